"""Policies and planners on the same searches: one sensor, the same unseen sources, the same beliefs, one detector.

Whoever chooses the moves, an episode is ended by the detector or by its horizon. An episode is its task and its sample:
the source, the noise and the particles come from them, so all who are compared meet the same ones. A success is a right
stop: the episode was ended by the agent, and the estimate was within the preset's tolerance then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.outcomes import OutcomeTable, outcomes
from evolvent.belief.planners import PLANNERS, plan
from evolvent.belief.replay import score_rows
from evolvent.belief.seeking import Lookout, Moved, Payment, SourceSearch
from evolvent.belief.stopping import Detector, StopDecision
from evolvent.errors import BatchMismatch, ConfigError, ErrorRecord, unknown
from evolvent.stats import Interval, paired
from evolvent.trajectory import (
    Annotation,
    EndedBy,
    Score,
    Start,
    Step,
    Task,
    Trajectory,
    sample_rng,
    trajectory_name,
)
from evolvent.worlds.plume.presets import MOVES
from evolvent.worlds.plume.world import PlumeWorld

__all__ = ["SCORER", "Chooser", "Played", "compared", "planner", "play", "summary_row"]

Chooser = Callable[[SourceSearch], NDArray[Any]]
"""Chooses for [B] searches what `PlumeBatch.step` takes, by `observe()`, beliefs and places, not by `right()`."""

SCORER = "stop"
"""The scorer of the rows that hold the detector's score after each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one chooser did.

    Args:
        name: the chooser's. sensor: the sensor's id.
        trajectories: [N]. `success` says whether the estimate was right at the end, `ended_by` "agent" whether the
            agent stopped; `meta` has the error and the distance travelled, in metres.
        scores: the detector's score after each step, as annotations.
        decision_ms: CPU milliseconds of choosing for one episode, without the belief update that all share; the mean
            over decisions of a whole batch.
    """

    name: str
    sensor: str
    trajectories: Sequence[Trajectory]
    scores: Sequence[Annotation]
    decision_ms: Interval

    @property
    def table(self) -> OutcomeTable:
        """The outcomes; lost episodes count as unknown."""
        done = self.trajectories
        return outcomes(
            [one.ended_by == "agent" for one in done],
            [one.success for one in done],
            [len(one.steps) for one in done],
            distance=[float(one.meta["travelled_m"]) for one in done],
        )


def planner(name: str, *, nz: int = 25) -> Chooser:
    """A planner of `PLANNERS` as a chooser; ConfigError for another name, or nz below 1."""
    if name not in PLANNERS:
        raise ConfigError([unknown("planner", name, PLANNERS)])
    if nz < 1:
        raise ConfigError("a planner without readings to think of", value=nz, expected="nz of at least 1")

    def choose(search: SourceSearch) -> NDArray[Any]:
        places, inside = search.batch.candidates()
        found = plan(name, search.cloud, places, sensor=search.batch.sensor, allowed=inside, nz=nz).cpu().numpy()
        return found * (np.pi / 4) if search.preset.moves == "heading" else found

    return choose


@dataclass(slots=True)
class _Open:
    """An episode that is being played."""

    start: Start
    steps: list[Step] = field(default_factory=list)
    looks: list[StopDecision] = field(default_factory=list)


def play(
    choose: Chooser,
    world: PlumeWorld,
    starts: Sequence[Start],
    *,
    name: str,
    detector: Detector,
    particles: int | None = None,
    at_once: int = 64,
    fused: bool = False,
) -> Played:
    """Play episodes, as many at once as asked for; how many changes nothing.

    A belief that allows a reading in no way ends its episode by an error: no reward, no stop, no truth. What is
    recorded as rewards is AGDC's default pay, for planners too.

    Args:
        starts: [N] tasks and samples, no two equal. name: the chooser's, in the records. detector: ends the episodes.
        particles: of a belief (None: the preset's). fused: see `particles.prior`.
    Raises:
        BatchMismatch: no start, or two that are equal.
    """
    if not starts or len({(start.task.id, start.sample) for start in starts}) != len(starts):
        raise BatchMismatch("episodes to play", value=len(starts), expected="one or more, no two of them equal")
    search = SourceSearch(world.batch(min(at_once, len(starts))), particles=particles, fused=fused)
    table = _Table(name, search, Lookout(detector, world.horizon))
    table.seat(range(search.size), queue := iter(starts))
    spent = []
    while search.batch.running.any():
        began = time.process_time()
        actions = choose(search)
        spent.append((time.process_time() - began) * 1e3 / search.size)
        if free := table.step(actions):
            table.seat(free, queue)
    order = {(start.task.id, start.sample): i for i, start in enumerate(starts)}
    done = sorted(table.done, key=lambda one: order[one.task.id, one.sample])
    scores = [row for one in done for row in table.scores[one.id]]
    ms = paired(spent, [0.0] * len(spent), rng=sample_rng("decision time", name)).within(0.0, np.inf)
    return Played(name=name, sensor=search.batch.sensor.id, trajectories=done, scores=scores, decision_ms=ms)


class _Table:
    """The episodes that are being played, one in each row of a search, and those that are over."""

    def __init__(self, name: str, search: SourceSearch, lookout: Lookout) -> None:
        self._name, self._search, self._lookout, self._pay = name, search, lookout, Payment()
        self._open: list[_Open] = []
        self.done: list[Trajectory] = []
        self.scores: dict[str, list[Annotation]] = {}

    def seat(self, rows: Sequence[int], queue: Iterator[Start]) -> None:
        """Begin the next episodes in free rows, as long as there are some."""
        taken = list(zip(rows, queue, strict=False))
        if not taken:
            return
        self._search.begin([row for row, _ in taken], [one.task for _, one in taken], [one.sample for _, one in taken])
        self._open = self._open or [_Open(start) for _, start in taken]
        begun = np.zeros(self._search.size, np.bool_)
        for row, start in taken:
            self._open[row], begun[row] = _Open(start), True
        self._lookout.forget(begun)

    def step(self, actions: NDArray[Any]) -> list[int]:
        """One step of all that run; returns the rows that are free now."""
        search, batch = self._search, self._search.batch
        seen = np.concatenate([batch.position, batch.reading[:, None]], -1)
        moved = search.step(actions)
        decision, right = self._lookout.look(search.summary), search.right()
        ceased = decision.stop & moved.moved & ~moved.lost
        rewards = self._pay.of(ceased, right)
        for row in np.flatnonzero(moved.moved).tolist():
            one, paid = self._open[row], None if moved.lost[row] else float(rewards[row])
            one.steps.append(Step(seen[row], self._named(actions[row]), paid, info=self._believed(row)))
            one.looks.append(StopDecision(decision.stop[[row]], decision.score[[row]], decision.reason))
        free: list[int] = np.flatnonzero(ceased | moved.over | (moved.lost & moved.moved)).tolist()
        batch.end(free)
        for row in free:
            self._close(row, moved, ceased=bool(ceased[row]), right=bool(right[row]))
        return free

    def _named(self, action: Any) -> str | NDArray[Any]:
        moves = self._search.preset.moves
        return np.array([float(action)]) if moves == "heading" else MOVES[moves][int(action)]

    def _believed(self, row: int) -> dict[str, Any]:
        """What was believed after the step."""
        seen = self._search.summary
        if seen.mean is None or seen.spread is None:
            return {}
        return {"mean": [float(value) for value in seen.mean[row, :2]], "spread_m": float(seen.spread[row])}

    def _close(self, row: int, moved: Moved, *, ceased: bool, right: bool) -> None:
        one, batch, lost = self._open[row], self._search.batch, bool(moved.lost[row])
        ended: EndedBy = "error" if lost else "agent" if ceased else "horizon"
        paid = sum(step.reward for step in one.steps if step.reward is not None)
        error = ErrorRecord("BeliefCollapsed", "no particle allows the reading", len(one.steps) - 1) if lost else None
        done = Trajectory(
            trajectory_name(one.start, self._name),
            one.start.task,
            tuple(one.steps),
            np.array([*batch.position[row], batch.reading[row]]),
            ended,
            Score() if lost else Score(paid, float(right), right),
            one.start.sample,
            error=error,
            meta={
                "error_m": float(self._search.errors()[row]),
                "travelled_m": float(batch.travelled[row]),
                "sensor": batch.sensor.id,
            },
        )
        self.done.append(done)
        self.scores[done.id] = score_rows(done.id, SCORER, one.looks)


def summary_row(played: Played) -> dict[str, Any]:
    """A row of the report as JSON values; rates and means are [mean, low, high], 95 % intervals."""
    table = played.table
    told: dict[str, Any] = {**table.as_dict(), "name": played.name, "sensor": played.sensor}
    told["success"], told["false_cessation"] = _triple(table.rate("right_stop")), _triple(table.rate("false_stop"))
    return {**told, "decision_ms": _triple(played.decision_ms)}


def compared(
    choosers: dict[str, Chooser],
    world: PlumeWorld,
    tasks: Sequence[Task],
    *,
    detector: Detector,
    episodes: int = 512,
    particles: int | None = None,
    at_once: int = 64,
    fused: bool = False,
) -> list[Played]:
    """All choosers on the same episodes: the tasks in turn, each time with other noise (the next sample).

    Raises:
        ConfigError: no chooser or no task.
    """
    if not choosers or not tasks:
        raise ConfigError("nothing to compare", value=(len(choosers), len(tasks)), expected="choosers and tasks")
    starts = [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(episodes)]
    return [
        play(choose, world, starts, name=name, detector=detector, particles=particles, at_once=at_once, fused=fused)
        for name, choose in choosers.items()
    ]


def _triple(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [value if np.isfinite(value) else None for value in (interval.mean, interval.low, interval.high)]
