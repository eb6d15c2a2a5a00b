"""Sums on a clock: decoding with a process reward model that knows more than its policy, with gates.

    python -m benchmarks.openr --study clock            plays what has no cell yet; resumes
    python -m benchmarks.openr --study clock --report   only prints what is there

A task names seven hours of a clock with twelve, which are to be added up, one equation a step; a solution without a
wrong equation is paid, at its end. The base has imitated solutions in which a quarter of the 144 facts (`a + b = c`)
are wrong three times of four, always in the same way: it states wrong facts with confidence, and most of its samples
agree on a wrong solution, so that a vote does not help. Completions of its own samples (Math-Shepherd) tell after which
equations no right end was found, and the process reward model learns that.

Decoded are held-out tasks: greedily, by the majority of samples, by the best of n with the reward model's votes, and by
a beam of equations. The majority has so many samples that it computes more tokens than both.

Frozen before it was played: best of n by the reward model is above the majority, and so is the beam. Gates: the base's
samples are right in .05 to .5, and the reward model tells right from wrong beginnings of as many equations with an AUC
of .8 or more. What was tried before stands in `pilot.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.frozen import choose_seeds, describe_gate, freeze_plan, seed_interval
from benchmarks.looking_back import look_back
from benchmarks.reporting import about, write
from benchmarks.search_heads import look_alike
from benchmarks.study import load_or_make_policy, play_once, read_cells, read_policy_note, study_run, summary_path
from benchmarks.tuning.cell import sources
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Script
from evolvent.bench.plan import Gate
from evolvent.bench.verdict import check_gate
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.identity import version_1_text, version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.openr import OpenRConfig, openr
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.reward.calibration import auc_within
from evolvent.reward.labelling import LabellingConfig
from evolvent.reward.process import default_tags
from evolvent.reward.scoring import collect_solutions, make_span_splitter, score_spans
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import Play, TextWorld

__all__ = ["CLOCK", "QUICK_CLOCK", "Clock", "ClockPlan", "check_equations", "draw_wrong_facts", "run_clock"]

HOURS = 12
STEPS = 6
_CONTEXT = 80
_WORDS = 6 * STEPS - 1  # of a solution
_MAX_TOKENS = _WORDS + 3
_SLOTS = 64
DECODED = ("greedy", "majority", "guided", "beam")

GATES = (
    Gate("success of the base, sampled", "base", "sampled", minimum=0.05, maximum=0.5),
    Gate("AUC of the reward model, equally many equations", "judge", "auc", minimum=0.8),
)

Facts = Mapping[tuple[int, int], int]
"""What is believed of a + b, where that is wrong."""


@dataclass(frozen=True)
class ClockPlan:
    """What the study fixes before it runs.

    Args:
        wrong_facts: share of the facts that are shown wrong; believed: how often they are.
        shown: solutions of each training task that the base imitates. base_tokens: learned tokens of the base.
        tasks: training tasks whose samples are labeled. samples: of each.
        labels: of spans, that the reward model learns, repeats included.
        paths: of best of n by the reward model; votes: of the majority; width: of the beam, which keeps as many.
        panel: test tasks, decoded. gated: dev tasks. sampled: samples of each, for the gates.
    """

    wrong_facts: float = 0.25
    believed: float = 0.75
    shown: int = 4
    base_tokens: int = 600_000
    tasks: int = 1900
    samples: int = 3
    labelling: LabellingConfig = field(
        default_factory=lambda: LabellingConfig(kind="shepherd", count=2, max_tokens=_MAX_TOKENS)
    )
    labels: int = 90_000
    fitting: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=1024, warmup_steps=20)
    )
    paths: int = 8
    votes: int = 20
    width: int = 4
    panel: int = 200
    sampled: int = 4
    gated: int = 150
    seeds: tuple[int, ...] = tuple(range(10, 14))

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan: cells of another plan are not read."""
        models = ("labelling", "fitting")
        facts = {name: value for name, value in asdict(self).items() if name not in models}
        facts |= {name: version_1_values(getattr(self, name)) for name in models}
        decoding = [version_1_text(self.decode(name)) for name in DECODED[1:]]
        return f"{sample_seed(canonical_json({**facts, 'decoding': decoding, 'edition': 2})):016x}"

    def configure(self) -> OpenRConfig:
        """Returns OpenR's settings: labels and reward model, without learning."""
        return OpenRConfig(
            samples=self.samples,
            labelling=self.labelling,
            prm_tokens=self.labels,
            online="none",
            search=self.decode("guided"),
        )

    def decode(self, name: str) -> SearchConfig:
        """Returns the settings of a decoding that is a search."""
        if name == "majority":
            voting = {"method": "samples", "value": "none", "paths": self.votes, "rule": "majority"}
            return SearchConfig.model_validate({**voting, "max_tokens": _MAX_TOKENS})
        judged: dict[str, Any] = {"score": "process", "reduce": "min", "rule": "vote", "max_tokens": _MAX_TOKENS}
        if name == "guided":
            return SearchConfig.model_validate({**judged, "method": "best_of_n", "paths": self.paths})
        return SearchConfig.model_validate(
            {**judged, "method": "beam", "width": self.width, "paths": self.width, "level": "span"}
        )


CLOCK = ClockPlan()
QUICK_CLOCK = ClockPlan(
    shown=1,
    base_tokens=4000,
    tasks=4,
    samples=2,
    labelling=LabellingConfig(kind="shepherd", count=2, max_tokens=_MAX_TOKENS),
    labels=200,
    paths=2,
    votes=4,
    width=2,
    panel=4,
    sampled=1,
    gated=4,
    seeds=(0, 1),
)


# ------------------------------------------------------------------ the world


class Clock(TextWorld):
    """Add up the hours of a list, one equation a step; pays for a solution without a wrong equation, at its end."""

    name, horizon, run_in_thread, reward_range = "clock", 1, False, (0.0, 1.0)

    def specs(self) -> Iterable[Mapping[str, Any]]:
        rng = sample_rng("clock")
        return [{"hours": [int(hour) for hour in rng.permutation(HOURS)[: STEPS + 1]]} for _ in range(2400)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"sum {' '.join(map(str, spec['hours']))}"
        is_right = all(check_equations(spec["hours"], said)) and len(said.split()) == _WORDS
        return "", float(is_right), {"answer": " ".join(said.split())}

    def vocabulary(self) -> Sequence[str]:
        return ("sum", "+", "=", ";", *map(str, range(HOURS)))


@cache
def _world() -> Clock:
    return Clock()


def draw_wrong_facts(plan: ClockPlan, seed: int) -> Facts:
    """Draws which facts the base of a seed is shown wrong, and what it is shown instead."""
    rng = sample_rng("clock facts", seed)
    facts = {}
    for first in range(HOURS):
        for second in range(HOURS):
            if rng.random() < plan.wrong_facts:
                facts[first, second] = int(first + second + rng.integers(1, HOURS)) % HOURS
    return facts


def write_solution(hours: Sequence[int], facts: Facts, believed: float, rng: np.random.Generator) -> str:
    """Returns a solution in which wrong facts are stated this often; later equations go on from what was stated."""
    current, equations = hours[0], []
    for hour in hours[1:]:
        is_believed = (current, hour) in facts and rng.random() < believed
        result = facts[current, hour] if is_believed else (current + hour) % HOURS
        equations.append(f"{current} + {hour} = {result}")
        current = result
    return " ; ".join(equations)


def check_equations(hours: Sequence[int], text: str) -> tuple[bool, ...]:
    """Returns for each equation of a text whether it and all before it are right.

    >>> check_equations([3, 9, 1], "3 + 9 = 0 ; 0 + 1 = 1"), check_equations([3, 9, 1], "3 + 9 = 1 ; 1 + 1 = 2")
    ((True, True), (False, False))
    """
    sums = [sum(hours[: number + 1]) % HOURS for number in range(len(hours))]
    expected = [f"{sums[number]} + {hour} = {sums[number + 1]}" for number, hour in enumerate(hours[1:])]
    equations = [" ".join(equation.split()) for equation in text.split(";")]
    num_right = next(
        (number for number, (own, right) in enumerate(zip(equations, expected, strict=False)) if own != right),
        min(len(equations), len(expected)),
    )
    return tuple(number < num_right for number in range(len(equations)))


def list_tasks(plan: ClockPlan, split: str) -> Sequence[Task]:
    """Lists the tasks of a split that the study uses."""
    count = {"train": plan.tasks, "dev": plan.gated, "test": plan.panel}[split]
    return _world().tasks(split, "seen")[:count]


# ------------------------------------------------------------------ base, reward model and runs


def _show(plan: ClockPlan, seed: int) -> list[Trajectory]:
    """Plays the solutions that the base of a seed imitates."""
    world, facts = _world(), draw_wrong_facts(plan, seed)

    def say(number: int) -> Callable[[object, Task], list[str]]:
        return lambda _, task: [
            write_solution(task.spec["hours"], facts, plan.believed, sample_rng("shown", seed, task.id, number))
        ]

    tasks = world.tasks("train", "seen")
    return [
        trajectory
        for number in range(plan.shown)
        for trajectory in collect(
            {world.name: world}, [Start(task, number) for task in tasks], Script(say(number)), engine=None
        )
    ]


def _open_run(plan: ClockPlan, folder: Path, seed: int) -> Run[Policy]:
    panel = EvaluationPanel(tiers=("seen",), limit=plan.panel)
    backend = LocalBackend({"clock": _world()}, plan.fitting, panel, slots=_SLOTS, max_tokens=_MAX_TOKENS)
    return Run(folder, backend, seed=seed, settings=backend.settings())


def make_base(plan: ClockPlan, folder: Path, seed: int) -> Policy:
    """Returns the policy of a seed that everything begins with; made once and kept in the folder."""
    name = f"base-{plan.digest}-{seed}"

    def make() -> tuple[Policy, Mapping[str, Any]]:
        began = time.process_time()
        tokenizer = word_tokenizer(sorted(_world().vocabulary()), context=_CONTEXT)
        config = tiny_config(len(tokenizer), "xs", context=_CONTEXT)
        config.rope_parameters = {"rope_type": "default", "rope_theta": 3000.0}
        model = init_tiny(config, seed=sample_seed("clock", seed) % 2**31)
        untrained = Policy(model, tokenizer, dialect_for(tokenizer, "words"))
        look_back(untrained, offsets=(1, 2, 4))
        look_alike(untrained)
        with _open_run(plan, folder / "runs" / f"making-{name}", seed) as run:
            base = run.fit(untrained, _show(plan, seed), weighted_nll, tokens=plan.base_tokens)
        return base, {"cpu_s": round(time.process_time() - began, 1)}

    return load_or_make_policy(folder, name, make)


def _sample(plan: ClockPlan, policy: Policy, *, seed: int) -> list[Trajectory]:
    """Samples solutions of the gates' tasks."""
    starts = [Start(task, number) for task in list_tasks(plan, "dev") for number in range(plan.sampled)]
    agent, engine = LanguageAgent(policy, Sampling(1.0), max_tokens=_MAX_TOKENS), LocalEngine(policy, slots=_SLOTS)
    return list(collect({"clock": _world()}, starts, agent, engine=engine, seed=seed))


def measure_gates(plan: ClockPlan, policy: Policy, judge: Policy, *, seed: int) -> dict[str, Any]:
    """Measures what the gates look at, on dev tasks.

    Returns:
        sampled: share of right samples. auc: of the reward model's score for beginnings without a wrong equation
        against others of as many equations. first_wrong: share of samples with a wrong equation in which the score
        falls most, as a ratio, at the first wrong one; before the first equation stands the mean of all first scores.
        None where no two samples differ.
    """
    played = _sample(plan, policy, seed=seed)
    splitter = make_span_splitter(policy, plan.labelling.separators, max_tokens=_MAX_TOKENS)
    scores = score_spans(judge, collect_solutions(played, splitter), default_tags(judge.tokenizer))
    start = fmean(float(own[0]) for own in scores.values())
    values: list[float] = []
    truths: list[float] = []
    positions: list[int] = []
    found: list[bool] = []
    for trajectory in played:
        is_right = check_equations(trajectory.task.spec["hours"], str(trajectory.steps[-1].action))
        own = scores.get(trajectory.id)
        if own is None or len(own) != len(is_right):
            continue
        values += own.tolist()
        truths += map(float, is_right)
        positions += range(len(is_right))
        if not all(is_right):
            found.append(int(np.argmin(np.diff(np.log(own), prepend=np.log(start)))) == is_right.index(False))
    auc = float(auc_within(values, truths, positions))
    return {
        "sampled": round(fmean(trajectory.success is True for trajectory in played), 4),
        "auc": round(auc, 4) if isfinite(auc) else None,
        "first_wrong": round(fmean(found), 4) if found else None,
    }


# ------------------------------------------------------------------ cells


def _play_cell(plan: ClockPlan, folder: Path, seed: int) -> dict[str, Any]:
    began = time.process_time()
    base = make_base(plan, folder, seed)
    outcomes: dict[str, list[float]] = {}
    computed: dict[str, float] = {}
    with _open_run(plan, folder / "runs" / f"clock-{plan.digest}-{seed}", seed) as run:
        _, judge = openr(base, list_tasks(plan, "train"), config=plan.configure(), run=run)
        for name in DECODED:
            search = None if name == "greedy" else plan.decode(name)
            value_model = judge if search is not None and search.uses_judge else None
            arm = "guided" if name in ("greedy", "guided") else name
            (found,) = run.arm(arm).evaluate(base, 0 if name == "greedy" else 1, search=search, value_model=value_model)
            outcomes[name] = [float(success is True) for _, _, success in found.outcomes]
            computed[name] = round(found.computed / len(found.outcomes), 1)
    gates = measure_gates(plan, base, judge, seed=sample_seed("clock gates", seed))
    base_cpu_s = read_policy_note(folder, f"base-{plan.digest}-{seed}")["cpu_s"]
    row = {"seed": seed, "digest": plan.digest, "outcomes": outcomes, "computed": computed, **gates}
    return {**row, "sources": sources(), "base_cpu_s": base_cpu_s, "cpu_s": round(time.process_time() - began, 1)}


def play_clock(folder: Path, plan: ClockPlan, seeds: Sequence[int]) -> None:
    """Plays the seeds that have no cell, and keeps each."""
    with study_run(folder):
        plan_values = asdict(plan) | {name: version_1_values(getattr(plan, name)) for name in ("labelling", "fitting")}
        freeze_plan(folder, plan_values, plan.digest)
        for seed in seeds:
            row = play_once(folder, f"{seed}", plan.digest, partial(_play_cell, plan, folder, seed))
            if row is not None:
                shares = ", ".join(f"{name} {fmean(own):.3f}" for name, own in row["outcomes"].items())
                print(f"seed {seed}: {shares}; auc {row['auc']}, {row['cpu_s']} cpu-s", flush=True)


# ------------------------------------------------------------------ figures


def report_clock(folder: Path, plan: ClockPlan) -> dict[str, Any]:
    """Computes all figures of the kept cells.

    Raises:
        ConfigError: no seed has finished.
    """
    rows = read_cells(folder, plan.digest) if folder.is_dir() else []
    by_seed = {row["seed"]: row for row in rows if row["seed"] in plan.seeds}
    if not by_seed:
        raise ConfigError(f"{folder.name}: no seed has finished", hint="run the study without --report")
    decoded = {name: {seed: fmean(row["outcomes"][name]) for seed, row in by_seed.items()} for name in DECODED}
    gates = [check_gate(gate, {seed: row[gate.figure] for seed, row in by_seed.items()}) for gate in GATES]
    return {
        "benchmark": "openr_clock",
        "digest": plan.digest,
        "gate_passed": all(gate.passed for gate in gates) and len(by_seed) == len(plan.seeds),
        "gates": [describe_gate(gate) for gate in gates],
        "guided_minus_majority": seed_interval(decoded["guided"], decoded["majority"]),
        "beam_minus_majority": seed_interval(decoded["beam"], decoded["majority"]),
        "beam_minus_guided": seed_interval(decoded["beam"], decoded["guided"]),
        "decoded": {name: seed_interval(own) for name, own in decoded.items()},
        "computed": {name: round(fmean(row["computed"][name] for row in by_seed.values()), 1) for name in DECODED},
        "base_sampled": seed_interval({seed: row["sampled"] for seed, row in by_seed.items()}),
        "judge": {name: _mean([row[name] for row in by_seed.values()]) for name in ("auc", "first_wrong")},
        "panel": plan.panel,
        "seeds": sorted(by_seed),
        "cpu_hours": round(sum(row["cpu_s"] + row["base_cpu_s"] for row in by_seed.values()) / 3600, 3),
        "interval": "95 %, over seeds in pairs",
        "sources": sorted({row["sources"] for row in by_seed.values()}),
        **about("evolvent", "torch", "numpy", threads=1),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def show_clock(figures: Mapping[str, Any]) -> None:
    """Prints the table for people."""
    judge = figures["judge"]
    print(f"base, sampled {figures['base_sampled'][0]:.3f}; reward model: AUC {judge['auc']}")
    for name, (mean, low, high) in figures["decoded"].items():
        print(f"{name:9} {mean:.3f} [{low:.3f}, {high:.3f}]  computed tokens of a task {figures['computed'][name]:.0f}")
    for name in ("guided_minus_majority", "beam_minus_majority", "beam_minus_guided"):
        mean, low, high = figures[name]
        print(f"{name:22} {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    for gate in figures["gates"]:
        print(f"gate {gate['name']}: {gate['value']}, {'passed' if gate['passed'] else 'failed'}")
    print(f"gates passed: {figures['gate_passed']}; seeds {figures['seeds']}; {figures['cpu_hours']:.2f} CPU-hours")


def run_clock(folder: Path, *, seeds: Sequence[int] | None, quick: bool, play: bool) -> dict[str, Any]:
    """Plays what is missing where asked, keeps the summary, and returns the figures.

    Raises:
        ConfigError: a seed that is not in the plan, another plan in the folder, or nothing to report.
    """
    plan = QUICK_CLOCK if quick else CLOCK
    chosen = choose_seeds(seeds, plan.seeds)
    if play:
        play_clock(folder, plan, chosen)
    figures = {**report_clock(folder, plan), "quick": quick}
    if play and not quick:
        write(summary_path(folder, "openr_clock"), figures)
    show_clock(figures)
    return figures
