"""What one cell of the study of credit is: its start, a practice within a budget of environment steps, two panels.

`benchmarks/credit/__main__.py` says which cells there are, chooses the rates, keeps the rows and compares them.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.r3.cell import Budgeted
from benchmarks.study import load_or_make_policy
from benchmarks.tuning.cell import sources
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Random
from evolvent.cli.train.rl import CLONE_CONFIG, METHODS
from evolvent.config import Config
from evolvent.engine.asks import GREEDY
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, NonFinite, NothingToLearn, ScoringError
from evolvent.former_names import former_fields
from evolvent.identity import version_1_values
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import Policy
from evolvent.rl.trainer import RLConfig
from evolvent.rollout.episode import Limits, collect
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.store.log import read_rows
from evolvent.trajectory import Json, Start, Task, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.datasci.world import DataSci
from evolvent.worlds.household.nouns import HouseholdNouns
from evolvent.worlds.kitchen.world import Kitchen

__all__ = ["INNER", "PLACES", "WAYS", "Cell", "Place", "Protocol", "Way", "panels", "run_cell", "start_of"]

INNER = (0.95, 0.9, 0.8, 0.5)
"""Discounts inside an action that POAD is played with beside its own, 1."""
_SLOTS = 128


@dataclass(frozen=True)
class Panels:
    """Tasks to begin and practice with, held-out ones like them, and those that generalisation is measured on.

    Half of a start's random episodes are of `spoken` tasks, where there are any: their words are to be known, and how
    they are solved is not.
    """

    practised: Sequence[Task]
    final: Sequence[Task]
    swapped: Sequence[Task]
    spoken: Sequence[Task] = ()


def _kitchen(count: int) -> tuple[World, Panels]:
    """The small kitchen; no order of carrots is practiced or shown, and orders of carrots are the swapped noun."""
    world = Kitchen(level="small")
    every = {split: list(world.tasks(split, "seen")) for split in ("train", "dev", "test")}
    other = {split: [task for task in tasks if "carrot" in task.kind] for split, tasks in every.items()}
    known = {split: [task for task in tasks if "carrot" not in task.kind] for split, tasks in every.items()}
    swapped = [*other["test"], *other["dev"], *other["train"]]
    return world, Panels(known["train"], known["test"][:count], swapped[:count])


def _household(count: int) -> tuple[World, Panels]:
    """Heating a pancake, then heating other food: those rooms in which the expert needs at most seven actions."""
    world = HouseholdNouns(horizon=7)  # its panels are of tasks that the expert finishes in time
    final, swapped = (world.tasks("test", tier)[:count] for tier in ("seen", "combo"))
    return HouseholdNouns(horizon=12), Panels(world.tasks("train", "seen"), final, swapped, world.tasks("dev", "combo"))


def _datasci(count: int) -> tuple[World, Panels]:
    """Pipelines for the data sets that are practiced on, then for data sets and wordings that are not."""
    world = DataSci()
    tasks = world.tasks("train", "seen")
    order = sample_rng("credit", "datasci").permutation(len(tasks))
    mixed = [tasks[at] for at in order]
    unseen = world.tasks("test", "seen")
    chosen = sample_rng("credit", "datasci", "test").permutation(len(unseen))[:count]
    return world, Panels(mixed[count:], mixed[:count], [unseen[at] for at in chosen])


@dataclass(frozen=True)
class Place:
    """A world of the study, where a start comes from, and what is measured.

    Args:
        make: the world and its panels of so many tasks.
        random, expert: episodes of uniform choice and of the expert that a start imitates.
        tokens: learned tokens of that imitation.
        gamma: between actions, as published. env_steps: of every practice.
        measure: what the curve shows: success, or the mean return.
        threshold: of the curve, for steps to threshold; fixed on development seeds, before any other was played.
    """

    make: Callable[[int], tuple[World, Panels]]
    random: int
    expert: int
    tokens: int
    gamma: float
    env_steps: int
    measure: Literal["success", "return"]
    threshold: float


PLACES: Mapping[str, Place] = {
    "kitchen": Place(_kitchen, 150, 50, 200_000, 0.99, 16_000, "success", 0.15),
    "household": Place(_household, 100, 125, 150_000, 0.95, 20_000, "success", 0.3),
    "datasci": Place(_datasci, 200, 0, 60_000, 0.95, 8_000, "return", 0.8),
}


@dataclass(frozen=True)
class Way:
    """A method of the study: its name on the command line, and its settings."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    discounted: bool = True

    def described(self) -> dict[str, Any]:
        """Returns the settings under the names of version 1, which the digests of kept cells are made of."""
        former = former_fields(METHODS[self.method].config)
        return {former.get(name, name): value for name, value in self.settings.items()}

    def config(self, protocol: Protocol, place: Place) -> Config:
        """As the method takes it."""
        gamma = {"gamma": place.gamma} if self.discounted else {}
        return METHODS[self.method].config(**{**gamma, **self.settings, "practice": protocol.practice})


_SAME: Mapping[str, Any] = {"entropy_coef": 1e-3, "target_kl": None, "whiten": True}
# POAD, NTPO and action-level PPO differ in credit and ratio alone. Left as published, PPO would have a hundred times
# POAD's entropy bonus, and the comparison would be about that. ETPO as published learns next to nothing in so few
# iterations: a reward comes one token nearer in each, and beta .3 hardly lets the policy move (kitchen, development
# seeds: .05, flat at three rates); so it has the lambdas of the others, and a beta found on seed 100.
WAYS: Mapping[str, Way] = {
    "poad": Way("poad", _SAME),
    "ntpo": Way("ntpo", _SAME),
    "ppo": Way("ppo", {**_SAME, "level": "action"}),
    "token_ppo": Way("token_ppo", dict(METHODS["token_ppo"].defaults or {}), discounted=False),
    "etpo": Way("etpo", {"beta": 0.05, "gae_lambda": 0.95, "token_lambda": 1.0}),
    "grpo": Way("grpo", discounted=False),
    "gigpo": Way("grpo", {"kind": "gigpo"}, discounted=False),
    **{f"poad{inner:g}": Way("poad", {**_SAME, "token_gamma": inner}) for inner in INNER},
}


@dataclass(frozen=True)
class Protocol:
    """All that the study fixes before it runs.

    Args:
        practice: how every method plays and passes. train: its updates; the rate is the cell's.
        clone: how a start imitates. rates: tried by every method on the development seeds.
        scale: of the budgets, for a quick run. panel: tasks of each panel at the end.
    """

    practice: RLConfig = field(
        default_factory=lambda: RLConfig(
            iterations=5000, tasks_per_iteration=32, group_size=4, ppo_epochs=2, minibatches=2, save_every=5000
        )
    )
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(weight_decay=0.0, final_lr_ratio=1.0, max_grad_norm=0.5, batch_tokens=4096)
    )
    clone: TrainConfig = CLONE_CONFIG
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    development: tuple[int, ...] = (100, 101)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    scale: float = 1.0
    panel: int = 60
    max_tokens: int = 32

    def described(self) -> dict[str, Json]:
        """Everything, as JSON values."""
        own: dict[str, Json] = {name: version_1_values(getattr(self, name)) for name in ("practice", "train", "clone")}
        own |= {name: getattr(self, name) for name in ("rates", "development", "seeds", "scale", "panel", "max_tokens")}
        own["places"] = {
            name: {what: value for what, value in asdict(place).items() if what not in ("make", "threshold")}
            for name, place in PLACES.items()
        }
        own["ways"] = {name: [way.method, way.described(), way.discounted] for name, way in WAYS.items()}
        return own

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        return f"{sample_seed(canonical_json(self.described())):016x}"


@dataclass(frozen=True, order=True)
class Cell:
    """One practice: a method at a rate, from the start of a world and a seed."""

    world: str
    seed: int
    method: str
    rate: float

    @property
    def key(self) -> str:
        return f"{self.world}-{self.method}-{self.rate:g}-{self.seed}"


@cache
def panels(world: str, count: int) -> tuple[World, Panels]:
    """The world of a place and its panels; they are drawn once a process."""
    return PLACES[world].make(count)


# ---------------------------------------------------------------------- the start


def start_of(protocol: Protocol, folder: Path, world: str, seed: int) -> Policy:
    """The policy that all methods begin with: it knows the language, and hardly the task. Made once, then kept."""
    return load_or_make_policy(
        folder, f"start-{protocol.digest}-{world}-{seed}", lambda: (_cloned(protocol, world, seed), {})
    )


def _cloned(protocol: Protocol, name: str, seed: int) -> Policy:
    place, (world, tasks) = PLACES[name], panels(name, protocol.panel)
    order = sample_rng("credit", name, seed).permutation(len(tasks.practised))
    chosen = [tasks.practised[at] for at in order[: place.random + place.expert]]
    said = list(tasks.spoken[: place.random // 2])
    starts = [Start(task) for task in [*said, *chosen[: place.random - len(said)]]]
    shown = list(collect({world.name: world}, starts, Random(), engine=None, seed=seed))
    shown.sort(key=lambda one: one.id)  # they come in order of completion
    shown += collect_demonstrations([world], chosen[place.random :], seed=seed) if place.expert else []
    policy = make_policy([world], seed=seed)
    flat = flatten(shown, policy.dialect, instructions=lambda task: "", context=policy.context)
    config = protocol.clone.model_copy(update={"tokens": max(1, round(place.tokens * protocol.scale))})
    learner = Learner(policy, weighted_nll, config, seed=sample_seed("credit start", seed) % 2**31)
    learner.fit(flat.sequences)
    return learner.policy.next_version()


def weights_digest(policy: Policy) -> str:
    """16 hex digits: the weights of two starts are the same or not."""
    found = hashlib.sha256()
    for _, weight in sorted(policy.model.state_dict().items()):
        found.update(weight.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


# ---------------------------------------------------------------------- the cell


def run_cell(protocol: Protocol, folder: Path, cell: Cell) -> dict[str, Any]:
    """Practice and measure; the row to keep.

    A practice that has nothing to learn from, or whose weights are no longer finite, ends early: its curve goes as far
    as it came, and its panels are those of its start.
    """
    place, (world, tasks) = PLACES[cell.world], panels(cell.world, protocol.panel)
    policy, most = start_of(protocol, folder, cell.world, cell.seed), round(place.env_steps * protocol.scale)
    began, digest, way, note = time.process_time(), weights_digest(policy), WAYS[cell.method], ""
    train = protocol.train.model_copy(update={"lr": cell.rate})
    verbs = Budgeted({world.name: world}, slots=_SLOTS, max_tokens=protocol.max_tokens, rl_train=train)
    verbs.most = most
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), verbs, seed=cell.seed) as run:
        order = sample_rng("credit practice", cell.world, cell.seed).permutation(len(tasks.practised))
        practised = [tasks.practised[at] for at in order]
        try:
            policy = METHODS[way.method].call(policy, practised, config=way.config(protocol, place), run=run)
        except (NonFinite, NothingToLearn) as problem:
            note = f"{type(problem).__name__}: {problem}"
        rows = [row for row in read_rows(Path(scratch) / "metrics.jsonl") if row.get("kind") == "practise"]
        used = dict(verbs.usage())
    trained = time.process_time()
    curve = curve_of([row for row in rows if "success" in row])
    final, swapped = (measured(protocol, world, policy, own) for own in (tasks.final, tasks.swapped))
    return {
        **asdict(cell),
        "digest": protocol.digest,
        "start": digest,
        "curve": curve,
        "env_steps": verbs.env_steps,
        "budget": most,
        "iterations": len(rows),
        "final": final,
        "swapped": swapped,
        **{f"tokens_{name}": used[name] for name in ("generated", "computed", "trained", "fed")},
        "cpu_train_s": round(trained - began, 1),
        "cpu_play_s": round(time.process_time() - trained, 1),
        "note": note,
        "sources": sources(),
    }


def curve_of(rows: Iterable[Mapping[str, Any]]) -> list[list[float]]:
    """For each iteration: environment steps before it was played, its success, its mean return."""
    found, before = [], 0
    for row in rows:
        found.append([before, round(row["success"], 4), round(row["return"], 4)])
        before = row["env_steps"]
    return found


def area(curve: Sequence[Sequence[float]], *, measure: str, budget: int) -> float:
    """The mean height of the curve over the budget of environment steps; linear in between, level after its end."""
    at, height = _axes(curve, measure)
    ends = np.append(at[at < budget], budget)
    heights = np.interp(ends, at, height)
    return float(np.trapezoid(heights, ends) / budget)


def steps_to(curve: Sequence[Sequence[float]], threshold: float, *, measure: str, budget: int) -> tuple[int, bool]:
    """Steps at which the mean of three iterations reaches the threshold, and whether any does (else the budget)."""
    at, height = _axes(curve, measure)
    smooth = np.convolve(height, np.ones(3) / 3, "valid") if len(height) >= 3 else np.zeros(0)
    reached = np.flatnonzero(smooth >= threshold)
    return (min(budget, int(at[reached[0] + 2])), True) if len(reached) else (budget, False)


def _axes(curve: Sequence[Sequence[float]], measure: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if not curve:
        raise ConfigError("a practice without a scored iteration has no curve")
    table = np.asarray(curve, np.float64)
    return table[:, 0], table[:, 1 if measure == "success" else 2]


def measured(protocol: Protocol, world: World, policy: Policy, tasks: Sequence[Task]) -> dict[str, list[float]]:
    """Success and return of every task of a panel, greedily.

    Raises:
        ScoringError: an episode could not be scored.
    """
    agent = LanguageAgent(policy, GREEDY, max_tokens=protocol.max_tokens)
    engine = LocalEngine(policy, slots=min(_SLOTS, len(tasks)))
    playing = collect({world.name: world}, [*map(Start, tasks)], agent, engine=engine, limits=Limits())
    scores = {one.task.id: one.score for one in playing}
    missing = [task.id for task in tasks if scores[task.id].raw is None]
    if missing:
        raise ScoringError("episodes that could not be scored", value=missing[:5])
    return {
        "success": [float(bool(scores[task.id].success)) for task in tasks],
        "return": [round(float(scores[task.id].raw or 0.0), 4) for task in tasks],
    }
