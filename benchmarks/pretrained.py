"""Parts that the studies on SmolLM2-135M-Instruct share: the start of a seed, its run, and the command line.

    evolvent models get smollm2                   first, once
    python -m benchmarks.NAME --tune              rates, on a development seed; resumes
    python -m benchmarks.NAME [--seeds 0]         freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.NAME --report [--json]   prints what was played
    python -m benchmarks.NAME --quick [--json]    a small copy in a temporary folder; supports no claim

Weights, adapters and play are computed in bfloat16 with one thread. Several processes may share the seeds. Three seeds
give intervals; a verdict takes six.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rich.console import Console

from benchmarks.rates import RateGrid
from benchmarks.reporting import RESULTS, about, command_line, finish, versions, write
from benchmarks.study import prepare_process, study_run, summary_path, unpack
from evolvent.bench.study import Study, StudyEvent, run_study
from evolvent.bench.verdict import StudySummary, read_summary, to_json
from evolvent.cli.setup import registry
from evolvent.errors import ConfigError
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.placement import Placement
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.stats import Interval
from evolvent.trajectory import Json, canonical_json, sample_seed
from evolvent.view.study import study_table
from evolvent.worlds.base import World

__all__ = [
    "PACKAGES",
    "Pretrained",
    "RealStudy",
    "StudyPlan",
    "describe_plan",
    "list_interval",
    "plan_digest",
    "play_command",
    "study_facts",
]

PACKAGES = ("evolvent", "torch", "transformers", "peft")


class StudyPlan(Protocol):
    """What a study fixes before it runs: a dataclass, with the learning rates that are tried."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def rates(self) -> tuple[float, ...]: ...


PlanT = TypeVar("PlanT", bound=StudyPlan)


@dataclass(frozen=True)
class Pretrained:
    """The policy that a study begins with, and how it learns.

    Args:
        model: name of the pretrained model. rank: of its LoRA adapter, on all linear layers. context: in tokens.
        batch_tokens: most tokens of an update.
    """

    model: str = "smollm2"
    rank: int = 16
    context: int = 1024
    batch_tokens: int = 1024
    warmup_steps: int = 10

    def start(self, worlds: Sequence[World], seed: int) -> Policy:
        """Returns the pretrained model with a new adapter."""
        placement = Placement(dtype="bfloat16", context=self.context)
        loaded = registry.resolve_policy(self.model, list(worlds), seed=seed, placement=placement)
        adapter = AdapterConfig(kind="lora", rank=self.rank, alpha=2 * self.rank, targets=("all-linear",))
        return adapt(loaded, adapter, seed=sample_seed("pretrained study", seed) % 2**31)

    def train(self, rate: float) -> TrainConfig:
        """Returns the settings of learning at a rate, which falls to a tenth."""
        return TrainConfig(
            lr=rate,
            weight_decay=0.0,
            warmup_steps=self.warmup_steps,
            batch_tokens=self.batch_tokens,
            max_tokens_per_forward=self.batch_tokens,
            dtype="bfloat16",
        )

    def open_run(
        self,
        folder: Path,
        worlds: Mapping[str, World],
        *,
        rate: float,
        seed: int,
        max_tokens: int | None = None,
        panel: EvaluationPanel | None = None,
    ) -> Run[Policy]:
        """Opens a run in a folder; one that was interrupted goes on where it stopped."""
        backend = LocalBackend(
            worlds,
            self.train(rate),
            panel or EvaluationPanel(limit=2),
            slots=64,
            max_tokens=max_tokens,
            placement=Placement(dtype="bfloat16", context=self.context),
        )
        return Run(folder, backend, seed=seed, settings=backend.settings())

    def describe(self) -> dict[str, Any]:
        """Returns everything as JSON values."""
        return asdict(self) | {"train": version_1_values(self.train(1e-3))}


@dataclass(frozen=True)
class RealStudy(Generic[PlanT]):
    """A study on a pretrained model, as the command line needs it.

    Args:
        name: of the module, after `benchmarks.`.
        doc: the module's text.
        plan, quick: what the study fixes before it runs: dataclasses with `rates`; quick: of a small copy.
        seeds: all of them. tuned: the arms that try the rates.
        try_rate: (plan, folder, arm, rate) to the success on dev.
        build: (plan, rates, seeds) to the study.
        figures: what `--json` adds to the summary, from the summary and the folder.
        external: an option that names a folder of public data, its help, and what measures the played arms on it, from
            the plan, the study's folder, that folder and the digest; None: there is no such option.
    """

    name: str
    doc: str
    plan: PlanT
    quick: PlanT
    seeds: tuple[int, ...]
    tuned: tuple[str, ...]
    try_rate: Callable[[PlanT, Path, str, float], float]
    build: Callable[[PlanT, Mapping[str, float], Sequence[int]], Study]
    figures: Callable[[StudySummary, Path], Mapping[str, Json]]
    external: tuple[str, str, Callable[[PlanT, Path, Path, str], None]] | None = None

    @property
    def grid(self) -> RateGrid:
        """Returns the rates that are tried."""
        return RateGrid(self.tuned, self.plan.rates, plan_digest(self.plan))

    def run(self, folder: Path, *, quick: bool, arms: Sequence[str] | None, seeds: Sequence[int] | None) -> Study:
        """Freezes and plays the study, or its small copy: one seed at the middle rate, and the arms that decide."""
        if quick:
            rates = dict.fromkeys(self.tuned, self.quick.rates[len(self.quick.rates) // 2])
            study = self.build(self.quick, rates, self.seeds[:1])
            arms = arms or [study.primary.arm, study.primary.control, *(gate.arm for gate in study.gates)]
        else:
            study = self.build(self.plan, self.grid.choose(folder), self.seeds)
        run_study(study, folder, only=arms, seeds=seeds, observe=_print_event)
        return study


def describe_plan(plan: StudyPlan) -> dict[str, Any]:
    """Returns the fields of a plan, a dataclass, as JSON values; a protocol is described by its digest."""
    values = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return {name: _describe_value(value) for name, value in values.items()}


def _describe_value(value: Any) -> Any:
    if isinstance(value, Pretrained):
        return value.describe()
    return value.digest if hasattr(value, "digest") else value


def plan_digest(plan: StudyPlan) -> str:
    """Returns 16 hex digits of a plan: cells of another plan are not read."""
    return f"{sample_seed(canonical_json(describe_plan(plan))):016x}"


def play_command(real: RealStudy[PlanT], arguments: Sequence[str] | None = None) -> None:
    """Runs the command line of a study: tunes, plays, reports."""
    parser = command_line(real.name, real.doc, quick="a small copy of the study in a temporary folder")
    parser.add_argument("--tune", action="store_true", help="only try the learning rates")
    parser.add_argument("--arms", nargs="+", help="play only these arms, and those they depend on")
    parser.add_argument("--seeds", type=int, nargs="+", help="play only these seeds")
    parser.add_argument("--report", action="store_true", help="print what was played")
    if real.external is not None:
        parser.add_argument(f"--{real.external[0]}", type=Path, metavar="DIR", dest="data", help=real.external[1])
    options = parser.parse_args(arguments)
    prepare_process()
    try:
        _play(real, options)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error


def _play(real: RealStudy[PlanT], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / real.name if options.quick else RESULTS / real.name
        folder.mkdir(parents=True, exist_ok=True)
        unpack(folder)
        with study_run(folder):
            unpack(folder)  # again: another process may have packed meanwhile
            if options.tune:
                for line in real.grid.tune(folder, partial(real.try_rate, real.plan, folder)):
                    print(line, flush=True)
                tried = {arm: real.grid.tried(folder, arm) for arm in real.tuned}
                return finish({"benchmark": real.name, "rates": tried}, options)
            if not options.report:
                study = real.run(folder, quick=options.quick, arms=options.arms, seeds=options.seeds)
                if real.external is not None and options.data is not None:
                    plan = real.quick if options.quick else real.plan
                    real.external[2](plan, folder, options.data, study.digest())
            found = _summarize(real, folder, quick=options.quick)
    if not options.quick:
        write(summary_path(folder, real.name), found)
    return finish(found, options)


def _summarize(real: RealStudy[PlanT], folder: Path, *, quick: bool) -> dict[str, Any]:
    summary = read_summary(folder)
    values = to_json(summary)
    Console(width=110).print(study_table(values, width=110))
    finished = sorted({seed for arm in summary.arms for seed in arm.by_seed})
    figures = real.figures(summary, folder)
    for name, value in figures.items():
        print(f"{name:24} {value}")
    return {
        "benchmark": real.name,
        "quick": quick,
        "digest": summary.digest,
        "verdict": summary.verdict,
        "gate_passed": summary.gate_passed,
        "gates": values["gates"],
        "seeds": finished,
        "frozen_seeds": list(summary.seeds),
        **figures,
        "rates": values["rates"],
        "cpu_hours": round(sum(arm.cpu_s for arm in summary.arms) / 3600, 3),
        "tokens": {arm.name: arm.tokens for arm in summary.arms},
        "unfinished": values["unfinished"],
        **about(*PACKAGES, threads=1),
    }


def list_interval(interval: Interval | None) -> list[Json] | None:
    """Returns [mean, low, high]; low and high are None where one seed gives no interval."""
    if interval is None:
        return None
    return [None if isnan(value) else value for value in (interval.mean, interval.low, interval.high)]


def study_facts(plan: StudyPlan, rates: Mapping[str, float]) -> dict[str, Any]:
    """Returns what the result of a study depends on beside its arms, as JSON values."""
    return {"plan": describe_plan(plan), "rates": dict(rates), "versions": versions(*PACKAGES)}


def _print_event(event: StudyEvent) -> None:
    if event.state != "known":
        print(f"{event.arm} {event.seed} {event.state} {event.why}".rstrip(), flush=True)
