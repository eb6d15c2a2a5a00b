"""The suite of agent evaluation: the panels of many worlds at their official horizons, and what a policy did on them.

A result is one JSON file (`Sheet`): who played, which panels (by digest), successes with intervals, tokens, seconds,
and every outcome in the order of its panel, so that two files over the same panels can be compared task by task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, Problem, SampleInvalid, UnknownSchema, unknown
from evolvent.files import disk_errors, plain_json, write_atomic
from evolvent.stats import Interval, wilson
from evolvent.trajectory import Json, Start, Task, Trajectory
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.panel import digest

__all__ = [
    "FORMAT",
    "HORIZONS",
    "Contest",
    "Measured",
    "Player",
    "Sheet",
    "contests",
    "measure",
    "overall",
    "read_sheet",
]

FORMAT = 1
_MOST = 10**15  # of any count in a file
# Rounds of an episode as AgentGym's evaluation grants them; other worlds have their own.
HORIZONS: Mapping[str, int] = {
    "textcraft": 20,
    "babyai": 20,
    "sciworld": 30,
    "household": 30,
    "household-03": 30,
    "household-nouns": 30,
    "alfworld": 30,
    "alfworld-engine": 30,
    "minigrid": 20,
    "maze": 15,
    "wordle": 8,
    "weather": 10,
    "movie": 12,
    "academia": 12,
    "todo": 15,
    "sheet": 15,
    "sql": 1,
    "searchqa": 10,
}


@dataclass(frozen=True)
class Contest:
    """One panel to be played: a world, a tier, the tasks, and how many steps an episode may take."""

    world: World
    tier: str
    split: str
    tasks: tuple[Task, ...]
    horizon: int

    @property
    def name(self) -> str:
        return f"{self.world.name}/{self.tier}"

    def starts(self) -> list[Start]:
        """One start per task."""
        return [Start(task) for task in self.tasks]


@dataclass(frozen=True)
class Player:
    """Who played: a name for tables, what kind of agent it is, and what else identifies it (JSON values)."""

    name: str
    kind: str
    about: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What a player did on one panel.

    Args:
        world, version, tier, split, digest: which panel; the digest pins its tasks and their order.
        horizon: steps that an episode had.
        outcomes: one sign a task in the order of the panel: 1 won, 0 lost, - not scored.
        units: score in 0..1 of every task, None where the world gives none or nobody scored it.
        steps, generated, computed, prompted: environment steps, tokens sampled, tokens computed here, tokens that an
            endpoint read.
        wall_s: seconds it took; of a resumed panel, of its last part.
    """

    world: str
    version: str
    tier: str
    split: str
    digest: str
    horizon: int
    outcomes: str
    units: tuple[float | None, ...]
    steps: int = 0
    generated: int = 0
    computed: int = 0
    prompted: int = 0
    wall_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.world}/{self.tier}"

    @property
    def errors(self) -> int:
        """Episodes that could not be scored."""
        return self.outcomes.count("-")

    @property
    def success(self) -> Interval | None:
        """The success rate with Wilson's interval; withheld (None) where an episode has no score."""
        return None if self.errors else wilson(self.outcomes.count("1"), len(self.outcomes))

    @property
    def unit(self) -> float | None:
        """The mean score in 0..1, None where one is missing."""
        known = [one for one in self.units if one is not None]
        return sum(known) / len(known) if known and len(known) == len(self.units) else None

    def as_row(self) -> dict[str, Any]:
        """JSON values, with the figures that follow from the outcomes written out for readers."""
        rate = self.success
        ends = (
            dict.fromkeys(("mean", "low", "high"))
            if rate is None
            else {
                "mean": rate.mean,
                "low": rate.low,
                "high": rate.high,
            }
        )
        return {**asdict(self), "tasks": len(self.outcomes), "errors": self.errors, **ends}


@dataclass(frozen=True)
class Sheet:
    """A result to share: the player, how it was measured, and a row per panel."""

    player: Player
    seed: int
    created: str
    versions: Mapping[str, str]
    panels: tuple[Measured, ...]

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        head = {"format": FORMAT, "suite": "agent-eval", "player": asdict(self.player), "seed": self.seed}
        rows = [panel.as_row() for panel in self.panels]
        row = {**head, "created": self.created, "versions": dict(self.versions), "panels": rows}
        write_atomic(path, plain_json(row) + "\n")


def contests(
    worlds: Mapping[str, World],
    *,
    split: str = "test",
    tiers: Sequence[str] = (),
    limit: int | None = None,
    own_horizons: bool = False,
) -> list[Contest]:
    """The panels of these worlds, those of one tier in the order of the world's tiers.

    Args:
        tiers: only these; none given: all that a world has.
        limit: most tasks of a panel.
        own_horizons: the worlds' own horizons instead of the official ones.
    Raises:
        ConfigError: an unknown split or tier, or panels without a task.
    """
    known = sorted({tier for world in worlds.values() for tier in world.tiers})
    problems = [unknown("split", split, SPLITS)] if split not in SPLITS else []
    problems += [unknown("tier", tier, known) for tier in tiers if tier not in known]
    if problems:
        raise ConfigError(problems)
    found = []
    for name, world in worlds.items():
        horizon = world.horizon if own_horizons else HORIZONS.get(world.name, world.horizon)
        for tier in (tier for tier in world.tiers if not tiers or tier in tiers):
            tasks = tuple(world.tasks(split, tier)[:limit])
            if tasks:
                found.append(Contest(world, tier, split, tasks, horizon))
        if not any(contest.world is world for contest in found):
            problems.append(Problem(name, f"has no task in {split}/{','.join(tiers) or 'any tier'}", "choose another"))
    if problems:
        raise ConfigError(problems)
    return found


def measure(
    contest: Contest,
    trajectories: Iterable[Trajectory],
    *,
    wall_s: float,
    computed: int = 0,
    prompted: int = 0,
    completed: int = 0,
) -> Measured:
    """The row of a panel from its episodes, in whatever order they come.

    Args:
        wall_s, computed, prompted: see `Measured`.
        completed: tokens that an endpoint wrote; episodes of text do not hold them.
    Raises:
        SampleInvalid: a task without an episode.
    """
    found = {trajectory.task.id: trajectory for trajectory in trajectories}
    missing = sum(task.id not in found for task in contest.tasks)
    if missing:
        raise SampleInvalid(
            f"{missing} tasks of {contest.name} were not played", expected=f"{len(contest.tasks)} of them"
        )
    played = [found[task.id] for task in contest.tasks]
    world = contest.world
    return Measured(
        world.name,
        world.version,
        contest.tier,
        contest.split,
        digest(contest.tasks),
        contest.horizon,
        "".join("-" if one.success is None else "01"[one.success] for one in played),
        tuple(one.score.unit for one in played),
        sum(len(one.steps) for one in played),
        max(completed, sum(one.generated() for one in played)),
        computed,
        prompted,
        wall_s,
    )


def overall(panels: Sequence[Measured]) -> Interval | None:
    """The success of a whole sheet: the mean over worlds of the mean over their panels, every world the same weight.

    The panels are fixed and their tasks independent, so what each panel's Wilson interval reaches below and above its
    mean is added in squares, times the square of its weight (MOVER: Zou, Huang and Zhang, "A note on confidence
    interval estimation for a linear function of binomial proportions", 2009). One panel keeps its own interval.
    None where a panel is withheld.
    """
    if not panels or any(panel.errors for panel in panels):
        return None
    worlds: dict[str, list[Measured]] = {}
    for panel in panels:
        worlds.setdefault(panel.world, []).append(panel)
    mean = below = above = 0.0
    for own in worlds.values():
        weight = 1 / (len(worlds) * len(own))
        for panel in own:
            rate = wilson(panel.outcomes.count("1"), len(panel.outcomes))
            mean += weight * rate.mean
            below += (weight * (rate.mean - rate.low)) ** 2
            above += (weight * (rate.high - rate.mean)) ** 2
    n = sum(len(panel.outcomes) for panel in panels)
    return Interval(mean, max(0.0, mean - sqrt(below)), min(1.0, mean + sqrt(above)), n)


def read_sheet(path: Path) -> Sheet:
    """A result file, checked: it may come from anybody.

    Raises:
        StoreUnavailable: it cannot be read. UnknownSchema: a newer version wrote it.
        CorruptRecord: it is no result of the suite, or its numbers do not agree with its outcomes.
    """
    with disk_errors(path):
        raw = path.read_bytes()
    try:
        row = json.loads(raw)
        version = int(row["format"]) if row["suite"] == "agent-eval" else 0
        if version > FORMAT:
            raise UnknownSchema(f"{path} was written by a newer version", value=version, expected=f"{FORMAT} or less")
        player = Player(str(row["player"]["name"]), str(row["player"]["kind"]), dict(row["player"]["about"]))
        panels = tuple(_measured(one) for one in row["panels"])
        versions = {str(name): str(value) for name, value in row["versions"].items()}
        sheet = Sheet(player, int(row["seed"]), str(row["created"]), versions, panels)
        if len({one.name for one in panels}) < len(panels):
            raise ValueError("a panel stands in it twice")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise CorruptRecord(
            f"{path} is no result of agent-eval: {type(error).__name__} {error}",
            offset=0,
            hint="write one with: evolvent bench agent-eval --sheet FILE",
        ) from error
    if not version or not panels:
        raise CorruptRecord(f"{path} is no result of agent-eval", offset=0, hint="it holds no panel")
    return sheet


def _measured(row: Mapping[str, Any]) -> Measured:
    """A row of a file; what follows from its outcomes is not believed but computed again."""
    signs, units = str(row["outcomes"]), tuple(None if one is None else float(one) for one in row["units"])
    if not signs or set(signs) - set("01-") or len(units) != len(signs):
        raise ValueError("outcomes that are not one of 0, 1 and - a task, or not as many scores")
    counts = int(row["steps"]), int(row["generated"]), int(row["computed"]), int(row["prompted"])
    wall_s, horizon = float(row["wall_s"]), int(row["horizon"])
    if min(counts) < 0 or max(counts) > _MOST or not 0 <= wall_s < _MOST or not 0 < horizon < _MOST:
        raise ValueError("a count or a time that cannot be")
    if not all(one is None or isfinite(one) for one in units):
        raise ValueError("a score that is no number")
    return Measured(
        str(row["world"]),
        str(row["version"]),
        str(row["tier"]),
        str(row["split"]),
        str(row["digest"]),
        horizon,
        signs,
        units,
        *counts,
        wall_s,
    )
