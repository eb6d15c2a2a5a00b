"""The suite of agent evaluation: the panels of many worlds at their official horizons, and the results of
players.

A result is one JSON file (`Sheet`): the player, the panels (by digest), successes with intervals, tokens,
seconds, and every outcome in the order of its panel, so that two files over the same panels can be compared
task by task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, CorruptRecord, Problem, SampleInvalid, UnknownSchema, unknown_name_problem
from evolvent.files import disk_errors, plain_json, write_atomic
from evolvent.stats import Interval, wilson_interval
from evolvent.trajectory import Json, Start, Task, Trajectory
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.panel import digest

__all__ = [
    "FORMAT",
    "HORIZONS",
    "PanelResult",
    "PanelSpec",
    "Player",
    "Sheet",
    "list_panels",
    "overall_success",
    "read_sheet",
    "summarize_panel",
]

FORMAT = 1
_MAX_COUNT = 10**15  # of any count in a file
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
class PanelSpec:
    """One panel to play: a world, a tier, its tasks, and the steps of an episode."""

    world: World
    tier: str
    split: str
    tasks: tuple[Task, ...]
    horizon: int

    @property
    def name(self) -> str:
        return f"{self.world.name}/{self.tier}"

    def starts(self) -> list[Start]:
        """Returns one start per task."""
        return [Start(task) for task in self.tasks]


@dataclass(frozen=True)
class Player:
    """A player: a name for tables, the kind of agent, and other identifying values (JSON)."""

    name: str
    kind: str
    about: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class PanelResult:
    """The result of a player on one panel.

    Args:
        world, version, tier, split, digest: Identity of the panel; the digest fixes its tasks and their order.
        horizon: Maximum steps of an episode.
        outcomes: One character a task in the order of the panel: 1 won, 0 lost, - not scored.
        units: Score in 0..1 of every task, None where the world gives none or the episode was not scored.
        steps: Environment steps.
        generated, computed, prompted: Tokens sampled, tokens computed here, tokens that an endpoint read.
        wall_s: Seconds; of a resumed panel, of its last part.
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
        """Returns the number of episodes that could not be scored."""
        return self.outcomes.count("-")

    @property
    def success(self) -> Interval | None:
        """Returns the success rate with Wilson's interval; None (withheld) where an episode has no score."""
        return None if self.errors else wilson_interval(self.outcomes.count("1"), len(self.outcomes))

    @property
    def unit(self) -> float | None:
        """Returns the mean score in 0..1, None where a score is missing."""
        scores = [unit_score for unit_score in self.units if unit_score is not None]
        return sum(scores) / len(scores) if scores and len(scores) == len(self.units) else None

    def to_row(self) -> dict[str, object]:
        """Returns JSON values, with the figures that follow from the outcomes."""
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
    """A shareable result: the player, how it was measured, and a row per panel."""

    player: Player
    seed: int
    created: str
    versions: Mapping[str, str]
    panels: tuple[PanelResult, ...]

    def write(self, path: Path) -> None:
        """Writes the file atomically."""
        head = {"format": FORMAT, "suite": "agent-eval", "player": asdict(self.player), "seed": self.seed}
        rows = [panel.to_row() for panel in self.panels]
        row = {**head, "created": self.created, "versions": dict(self.versions), "panels": rows}
        write_atomic(path, plain_json(row) + "\n")


def list_panels(
    worlds: Mapping[str, World],
    *,
    split: str = "test",
    tiers: Sequence[str] = (),
    limit: int | None = None,
    own_horizons: bool = False,
) -> list[PanelSpec]:
    """Lists the panels of worlds, in the order of each world's tiers.

    Args:
        worlds: Worlds by name.
        split: Split of the tasks.
        tiers: Only these tiers; empty: all tiers of a world.
        limit: Maximum tasks of a panel.
        own_horizons: Whether to use the worlds' own horizons instead of the official ones.
    Raises:
        ConfigError: an unknown split or tier, or panels without a task.
    """
    known_tiers = sorted({tier for world in worlds.values() for tier in world.tiers})
    problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
    problems += [unknown_name_problem("tier", tier, known_tiers) for tier in tiers if tier not in known_tiers]
    if problems:
        raise ConfigError(problems)
    panels = []
    for name, world in worlds.items():
        horizon = world.horizon if own_horizons else HORIZONS.get(world.name, world.horizon)
        for tier in (tier for tier in world.tiers if not tiers or tier in tiers):
            tasks = tuple(world.tasks(split, tier)[:limit])
            if tasks:
                panels.append(PanelSpec(world, tier, split, tasks, horizon))
        if not any(contest.world is world for contest in panels):
            problems.append(
                Problem(name, f"has no task in {split}/{','.join(tiers) or 'any tier'}", "choose another split or tier")
            )
    if problems:
        raise ConfigError(problems)
    return panels


def summarize_panel(
    panel: PanelSpec,
    trajectories: Iterable[Trajectory],
    *,
    wall_s: float,
    computed: int = 0,
    prompted: int = 0,
    completed: int = 0,
) -> PanelResult:
    """Computes the result of a panel from its episodes, in any order.

    Args:
        wall_s, computed, prompted: see `Measured`.
        completed: tokens that an endpoint wrote; episodes of text do not hold them.
    Raises:
        SampleInvalid: a task without an episode.
    """
    trajectories_by_task = {trajectory.task.id: trajectory for trajectory in trajectories}
    missing = sum(task.id not in trajectories_by_task for task in panel.tasks)
    if missing:
        raise SampleInvalid(f"results lack {missing} tasks of {panel.name}", expected=f"{len(panel.tasks)} tasks")
    ordered = [trajectories_by_task[task.id] for task in panel.tasks]
    world = panel.world
    return PanelResult(
        world.name,
        world.version,
        panel.tier,
        panel.split,
        digest(panel.tasks),
        panel.horizon,
        "".join("-" if episode.success is None else "01"[episode.success] for episode in ordered),
        tuple(episode.score.unit for episode in ordered),
        sum(len(episode.steps) for episode in ordered),
        max(completed, sum(episode.count_generated_tokens() for episode in ordered)),
        computed,
        prompted,
        wall_s,
    )


def overall_success(panels: Sequence[PanelResult]) -> Interval | None:
    """Computes the success of a whole sheet: the mean over worlds of the mean over their panels, with equal weights
    of worlds.

    The panels are fixed and their tasks independent, so the distances of each panel's Wilson interval below and above
    its mean are added in squares, times the square of its weight (MOVER: Zou, Huang and Zhang, "A note on confidence
    interval estimation for a linear function of binomial proportions", 2009). A single panel keeps its own interval.
    None where a panel is withheld.
    """
    if not panels or any(panel.errors for panel in panels):
        return None
    worlds: dict[str, list[PanelResult]] = {}
    for panel in panels:
        worlds.setdefault(panel.world, []).append(panel)
    mean = lower_variance = upper_variance = 0.0
    for world_panels in worlds.values():
        weight = 1 / (len(worlds) * len(world_panels))
        for panel in world_panels:
            rate = wilson_interval(panel.outcomes.count("1"), len(panel.outcomes))
            mean += weight * rate.mean
            lower_variance += (weight * (rate.mean - rate.low)) ** 2
            upper_variance += (weight * (rate.high - rate.mean)) ** 2
    n = sum(len(panel.outcomes) for panel in panels)
    return Interval(mean, max(0.0, mean - sqrt(lower_variance)), min(1.0, mean + sqrt(upper_variance)), n)


def read_sheet(path: Path) -> Sheet:
    """Reads and checks a result file, which may come from anyone.

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
        panels = tuple(_parse_panel(panel_row) for panel_row in row["panels"])
        versions = {str(name): str(value) for name, value in row["versions"].items()}
        sheet = Sheet(player, int(row["seed"]), str(row["created"]), versions, panels)
        if len({panel_row.name for panel_row in panels}) < len(panels):
            raise ValueError("a panel occurs twice")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise CorruptRecord(
            f"{path} is not a result of agent-eval: {type(error).__name__}: {error}",
            offset=0,
            hint="write one with: evolvent bench agent-eval --sheet FILE",
        ) from error
    if not version or not panels:
        raise CorruptRecord(f"{path} is not a result of agent-eval", offset=0, hint="the file has no panel")
    return sheet


def _parse_panel(row: Mapping[str, Any]) -> PanelResult:
    """Parses a row of a file; figures that follow from its outcomes are computed again."""
    outcome_codes, units = (
        str(row["outcomes"]),
        tuple(None if unit_score is None else float(unit_score) for unit_score in row["units"]),
    )
    if not outcome_codes or set(outcome_codes) - set("01-") or len(units) != len(outcome_codes):
        raise ValueError("outcomes must be 0, 1 or - for each task, with as many scores")
    counts = int(row["steps"]), int(row["generated"]), int(row["computed"]), int(row["prompted"])
    wall_s, horizon = float(row["wall_s"]), int(row["horizon"])
    if min(counts) < 0 or max(counts) > _MAX_COUNT or not 0 <= wall_s < _MAX_COUNT or not 0 < horizon < _MAX_COUNT:
        raise ValueError("a count or time is negative or not finite")
    if not all(unit_score is None or isfinite(unit_score) for unit_score in units):
        raise ValueError("a score is not a number")
    return PanelResult(
        str(row["world"]),
        str(row["version"]),
        str(row["tier"]),
        str(row["split"]),
        str(row["digest"]),
        horizon,
        outcome_codes,
        units,
        *counts,
        wall_s,
    )
