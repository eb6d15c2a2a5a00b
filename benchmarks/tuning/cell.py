"""What one cell of the study of tuning methods is: its base, its data, a training at one rate, a panel played.

`benchmarks/tuning/__main__.py` says which cells there are, at which rates, and keeps their rows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import evolvent
from benchmarks.reporting import versions
from evolvent.agents.language import LanguageAgent
from evolvent.cli.setup import registry
from evolvent.engine.asks import Engine, Sampling
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, NonFinite, ScoringError
from evolvent.identity import version_1_values
from evolvent.learn.learner import FitReport, Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.models.adapters import AdapterConfig, adapt, kind_of, merge_adapter
from evolvent.models.policy import Policy
from evolvent.rollout.episode import Limits, collect
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.trajectory import Json, Start, Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.goal_templates import WORDINGS
from evolvent.worlds.panel import digest
from evolvent.worlds.wording import Worded

__all__ = ["Cell", "Protocol", "ready", "refusal", "run_cell", "sources"]

_MARGIN = 16  # tokens that every policy leaves free in its context: as many as virtual tokens take
_SLOTS = 100  # episodes open at once
_LOOK, _BEGIN = 4, 0.2  # a base is looked at every so many updates, from this share of its longest cloning on


@dataclass(frozen=True)
class Protocol:
    """All that the study fixes before it runs; its digest is in every row.

    Args:
        cloned: the worlds that a base is cloned on, as they state their tasks.
        worlds: those of them that it is then tuned on, told in other words, and measured on: held-out tasks in
            words that neither training has.
        shown, told: tasks of each world's first tier that the base is cloned on, and others that the tuning learns.
        namings: how often each of the latter is told, each time in other words.
        solved: the base is cloned until it solves this share of the dev panel, so that the bases of all seeds are
            alike; `base_tokens` are the most that it learns.
        tokens: learned tokens of every tuning.
        base, train: how both are trained; the rate of `train` is the cell's.
        tiers: those that are measured.
        dev, test: tasks of each tier on the panels that choose the rate and that give the result.
        adapters, optimizers: tunings and rules by name.
        centres: the middle of each rule's grid of rates for full tuning; `times` multiplies it for each tuning.
        exceptions: middles of single cells, "optimizer/tuning".
        step: the ratio of neighbors in a grid of three.
        tuning_seed, seeds: of the base on which rates are chosen, and of the bases of the result.
    """

    cloned: tuple[str, ...]
    worlds: tuple[str, ...]
    shown: int
    told: int
    namings: int
    solved: float
    base_tokens: int
    tokens: int
    base: TrainConfig
    train: TrainConfig
    tiers: tuple[str, ...]
    dev: int
    test: int
    adapters: Mapping[str, AdapterConfig]
    optimizers: Mapping[str, OptimizerConfig]
    centres: Mapping[str, float]
    times: Mapping[str, float]
    exceptions: Mapping[str, float]
    tuning_seed: int
    seeds: tuple[int, ...]
    step: float = 10**0.5
    context: int = 192
    horizon: int = 8
    max_tokens: int = 10

    def described(self) -> dict[str, Json]:
        """Everything, the panels' digests and the versions among it, as JSON values."""
        own = asdict(replace(self, adapters={}, optimizers={}))
        own |= {"base": version_1_values(self.base), "train": version_1_values(self.train)}
        newer = {"existing"}  # a setting that came after the rows; every policy here begins without an adapter
        own |= {"adapters": {name: version_1_values(one, exclude=newer) for name, one in self.adapters.items()}}
        own |= {"optimizers": {name: version_1_values(one) for name, one in self.optimizers.items()}}
        panels = {split: digest(panel(self, split)) for split in ("dev", "test")}
        return {**own, "panels": panels, "versions": versions("torch", "transformers", "peft")}

    def digest(self) -> str:
        """SHA-256 of all that, 16 hex digits."""
        return hashlib.sha256(canonical_json(self.described()).encode()).hexdigest()[:16]

    def centre(self, optimizer: str, tuning: str) -> float:
        """The middle of a cell's grid."""
        usual = self.centres[optimizer] * self.times[tuning]
        return self.exceptions.get(f"{optimizer}/{tuning}", usual)


@dataclass(frozen=True)
class Cell:
    """One training: which rule, which tuning, at which rate, from the base of which seed, measured on which split."""

    optimizer: str
    tuning: str
    rate: float
    seed: int
    split: str

    @property
    def key(self) -> str:
        return f"{self.optimizer}/{self.tuning}/{self.rate:.3e}/{self.seed}/{self.split}"


@dataclass(frozen=True)
class Ready:
    """What the cells of a seed begin with; `cpu_s` is what making it took."""

    base: Policy
    parts: Sequence[TokenSequence]
    report: FitReport
    digest: str
    cpu_s: float


@cache
def _plain(chosen: tuple[str, ...]) -> Mapping[str, World]:
    """The worlds as they are."""
    return registry.load_worlds(chosen)


@cache
def _worded(chosen: tuple[str, ...]) -> Mapping[str, Worded]:
    """The worlds told in other words."""
    worded = [Worded(world, WORDINGS[world.name], times=3) for world in _plain(chosen).values()]
    return {world.name: world for world in worded}


def panel(protocol: Protocol, split: str) -> list[Task]:
    """The held-out tasks of a split: of each tier of every world, in that split's own words."""
    count = protocol.dev if split == "dev" else protocol.test
    worlds = _worded(protocol.worlds).values()
    return [task for world in worlds for tier in protocol.tiers for task in world.tasks(split, tier)[:count]]


def _order(protocol: Protocol, seed: int, world: World) -> list[Task]:
    """A world's training tasks in the order of a seed: the first are cloned, those after them told in other words."""
    tasks = world.tasks("train", world.tiers[0])
    return [tasks[at] for at in sample_rng("tuning", seed, world.name).permutation(len(tasks))]


def _shown(protocol: Protocol, seed: int) -> list[Task]:
    worlds = _plain(protocol.cloned).values()
    return [task for world in worlds for task in _order(protocol, seed, world)[: protocol.shown]]


def _told(protocol: Protocol, seed: int) -> list[Task]:
    told: list[Task] = []
    for world in _worded(protocol.worlds).values():
        others = _order(protocol, seed, world.base)[protocol.shown : protocol.shown + protocol.told]
        tellings: dict[str, list[Task]] = {task.id: [] for task in others}
        for task in world.tasks("train", world.tiers[0]):
            tellings.get(world.original_task(task).id, []).append(task)
        told += [task for own in tellings.values() for task in own[: protocol.namings]]
    return told


def _every(protocol: Protocol) -> dict[str, World]:
    return {**_plain(protocol.cloned), **_worded(protocol.worlds)}


def _parts(protocol: Protocol, policy: Policy, tasks: Sequence[Task], seed: int) -> list[TokenSequence]:
    """What the worlds' experts do on these tasks, as the policy learns it."""
    every = _every(protocol)
    played = collect_demonstrations(list(every.values()), tasks, seed=seed)
    flat = flatten(played, policy.dialect, instructions=lambda t: every[t.world].instructions, context=policy.context)
    if flat.refused:
        raise ConfigError("demonstrations that do not fit the context", value=len(flat.refused))
    return list(flat.sequences)


def _solves(protocol: Protocol, learner: Learner) -> bool:
    """Whether the base solves enough; looked at every few updates."""
    if learner.updates % _LOOK or learner.share < _BEGIN:
        return False
    won = played(protocol, learner.policy, panel(protocol, "dev"))
    return sum(won) >= protocol.solved * len(won)


def ready(protocol: Protocol, seed: int, kept: dict[int, Ready]) -> Ready:
    """The cloned base of a seed and the data to tune it on; the same weights whenever it is made on one machine."""
    if seed in kept:
        return kept[seed]
    began = time.process_time()
    made = make_policy(list(_every(protocol).values()), context=protocol.context, seed=seed)
    policy = replace(made, limit=protocol.context - _MARGIN)
    config = protocol.base.model_copy(update={"tokens": protocol.base_tokens})
    learner = Learner(policy, weighted_nll, config, seed=sample_seed("base", seed) % 2**31)
    shown = _parts(protocol, policy, _shown(protocol, seed), seed)
    report = learner.fit(shown, should_stop=lambda: _solves(protocol, learner))
    weights = hashlib.sha256()
    for _, weight in sorted(policy.model.state_dict().items()):
        weights.update(weight.contiguous().numpy().tobytes())
    parts = _parts(protocol, policy, _told(protocol, seed), seed)
    base = learner.policy.next_version()
    kept[seed] = Ready(base, parts, report, weights.hexdigest()[:16], time.process_time() - began)
    return kept[seed]


def _learner(protocol: Protocol, base: Policy, cell: Cell) -> Learner:
    """A Learner on a copy of the base."""
    seed = sample_seed("tuned", cell.seed) % 2**31
    config = protocol.train.model_copy(update={"lr": cell.rate, "tokens": protocol.tokens})
    tuned = adapt(base.clone(), protocol.adapters[cell.tuning], seed=seed)
    return Learner(tuned, weighted_nll, config, seed=seed, optimizer=protocol.optimizers[cell.optimizer])


def refusal(protocol: Protocol, base: Policy, cell: Cell) -> str:
    """Why rule and tuning do not go together; empty if they do."""
    try:
        _learner(protocol, base, cell)
    except ConfigError as problem:
        return str(problem)
    return ""


def run_cell(protocol: Protocol, start: Ready, cell: Cell) -> dict[str, Any]:
    """Tune the base as the cell says and play the panel; returns the row to keep.

    A cell of the tuning "base" is the base itself. A training that ends as not finite has no success at all.
    """
    began = time.process_time()
    policy, learned = start.base, {"tokens": 0, "updates": 0, "fed": 0, "weights": 0}
    losses: tuple[float, ...] = ()
    note = ""
    if cell.tuning != "base":
        learner = _learner(protocol, start.base, cell)
        weights = sum(p.numel() for p in learner.policy.model.parameters() if p.requires_grad)
        try:
            report = learner.fit(start.parts)
            policy, losses = learner.policy.next_version(), report.losses
            learned = {"tokens": report.tokens, "updates": report.updates, "fed": report.fed, "weights": weights}
        except NonFinite as problem:
            note, learned = str(problem), {**learned, "weights": weights}
    trained = time.process_time()
    tasks = panel(protocol, cell.split)
    outcomes = [False] * len(tasks) if note else played(protocol, policy, tasks)
    last = losses[-max(1, len(losses) // 10) :]
    return {
        "key": cell.key,
        **asdict(cell),
        "success": sum(outcomes) / len(outcomes),
        "outcomes": "".join(str(int(won)) for won in outcomes),
        **learned,
        "loss": [round(losses[0], 4), round(sum(last) / len(last), 4)] if losses else None,
        "cpu_train_s": round(trained - began, 3),
        "cpu_play_s": round(time.process_time() - trained, 3),
        "base": start.digest,
        "note": note,
        "sources": sources(),
    }


def _engine(policy: Policy) -> Engine:
    """What serves a policy fastest: merged where the adapter can be, else from the beginning of every text."""
    if kind_of(policy.model) in ("prefix", "prompt"):
        return RecomputeEngine(policy, slots=_SLOTS)
    return LocalEngine(merge_adapter(policy), slots=_SLOTS)


def played(protocol: Protocol, policy: Policy, tasks: Sequence[Task]) -> list[bool]:
    """Whether each task was solved, greedily."""
    agent = LanguageAgent(policy, Sampling(temperature=0.0), max_tokens=protocol.max_tokens)
    playing = collect(
        _every(protocol),
        [Start(task) for task in tasks],
        agent,
        engine=_engine(policy),
        seed=0,
        slots=_SLOTS,
        limits=Limits(horizon=protocol.horizon),
    )
    won = {trajectory.task.id: trajectory.success for trajectory in playing}
    if any(won[task.id] is None for task in tasks):
        raise ScoringError("episodes that could not be scored", value=sum(one is None for one in won.values()))
    return [bool(won[task.id]) for task in tasks]


@cache
def sources() -> str:
    """A digest of the library's own source: which code a row came from."""
    root = Path(evolvent.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]
