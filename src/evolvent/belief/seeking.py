"""Episodes of the plume with a belief each: the process that planners, learners and evaluations step through.

What an agent may know is the place of its sensor, its readings, the sensor and the task's prior; the source is looked
at where an outcome is scored, and nowhere else. A step is: move, sense there, update the belief, look at it. (AutoSTE
senses first and moves afterwards, so what it looks at does not know the newest place yet.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.cloud import Cloud, features, map_rows, prior, put, summary
from evolvent.belief.particles import update
from evolvent.belief.stopping import Detector, StopDecision
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.plume.batch import PlumeBatch

__all__ = ["FEATURES", "Lookout", "Moved", "Payment", "SourceSearch"]

FEATURES = 13
"""How many numbers `SourceSearch.observe` tells of an episode."""

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a step did to B episodes.

    Args:
        moved: [B] which of them were running.
        over: [B] which of them this step has brought to the horizon.
        lost: [B] whose belief allowed the reading in no way, and was begun anew from the prior.
    """

    moved: Flags
    over: Flags
    lost: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """What a step earns: its cost, and the reward where the agent ended the episode itself.

    Args:
        reward: of ceasing, instead of the cost of that step. cost: of any other step, 0 or less.
        paid_for: "belief": ceasing is paid whatever is true, as published; "truth": only with a right estimate.
    Raises:
        ConfigError: numbers that are not finite, a cost above 0, an unknown rule.
    """

    reward: float = 100.0
    cost: float = -1.0
    paid_for: Literal["belief", "truth"] = "belief"

    def __post_init__(self) -> None:
        problems = [] if np.isfinite(self.reward) else [Problem("reward", f"{self.reward} is not finite")]
        if not (np.isfinite(self.cost) and self.cost <= 0):
            problems.append(Problem("cost", f"a step earns {self.cost}", "give a finite number, 0 or less"))
        if self.paid_for not in ("belief", "truth"):
            problems.append(Problem("paid_for", f"unknown {self.paid_for!r}", "give 'belief' or 'truth'"))
        if problems:
            raise ConfigError(problems)

    def of(self, ceased: Flags, right: Flags) -> Floats:
        """[B] rewards of a step that ended episodes with right or wrong estimates."""
        paid: Flags = ceased if self.paid_for == "belief" else ceased & right
        return np.where(paid, self.reward, self.cost)


class Lookout:
    """A detector that looks at B beliefs again and again, with the history of each episode.

    Args:
        detector: says whether beliefs are sure enough. looks: how many decisions are remembered.
    """

    def __init__(self, detector: Detector, looks: int) -> None:
        self._detector, self._looks = detector, looks
        self._history: list[StopDecision] = []

    def look(self, seen: BeliefSummary) -> StopDecision:
        """One look at all beliefs."""
        decision = self._detector(seen, self._history)
        self._history = [*self._history, decision][-self._looks :]
        return decision

    def forget(self, rows: Flags) -> None:
        """Episodes [B] that begin anew: nothing was said of them yet."""
        if rows.any():
            self._history = [decision.cleared(rows) for decision in self._history]


class SourceSearch:
    """B episodes and what is believed in each.

    Args:
        batch: the episodes. particles: of a belief (None: the preset's).
        sweeps: exact moves of a particle after resampling. fused: see `particles.prior`.
    Raises:
        ConfigError: fewer than one particle.
    """

    def __init__(
        self, batch: PlumeBatch, *, particles: int | None = None, sweeps: int = 3, fused: bool = False
    ) -> None:
        self.batch, self.preset = batch, batch.preset
        self.particles = batch.preset.particles if particles is None else particles
        if self.particles < 1:
            raise ConfigError("a belief without particles", value=self.particles, expected="1 or more")
        self._sweeps, self._fused = sweeps, fused
        self._cloud: Cloud | None = None
        self._summary: BeliefSummary | None = None

    @property
    def size(self) -> int:
        """B."""
        return self.batch.size

    @property
    def cloud(self) -> Cloud:
        """The beliefs; the next step uses its arrays up. SessionGone: before the first `begin`."""
        if self._cloud is None:
            raise SessionGone("beliefs before any episode", value=self.size, expected="begin() first")
        return self._cloud

    @property
    def summary(self) -> BeliefSummary:
        """Of all B beliefs; those of ended episodes are as they were at the end."""
        if self._summary is None:
            self._summary = summary(self.cloud)
        return self._summary

    def begin(self, rows: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        """Begin episodes in some rows, the first time in all; a belief depends on its task and seed alone.

        Raises:
            ConfigError: the first time not all rows, a task of another preset. BatchMismatch: lengths differ.
        """
        if self._cloud is None and sorted(rows) != list(range(self.size)):
            raise ConfigError("some episodes begin where none has", value=list(rows), expected=f"all {self.size} rows")
        self.batch.begin(rows, tasks, seeds)
        at = np.asarray(rows, dtype=np.int64)
        known = [one for row in rows if (one := self.batch.priors[row]) is not None]
        own = [sample_seed("belief", task.id, seed) for task, seed in zip(tasks, seeds, strict=True)]
        fresh = self._updated(prior(known, self.particles, seeds=own, fused=self._fused), at)
        if self._cloud is None:
            order = np.argsort(at)
            self._cloud = fresh if (order == np.arange(len(at))).all() else map_rows(fresh, order)
        else:
            self._cloud = put(self._cloud, at, fresh)
        self._summary = None

    def step(self, actions: NDArray[np.generic]) -> Moved:
        """Move, sense and update all running episodes.

        Args:
            actions: [B] indices of moves, or headings in radians; those of ended episodes do not matter.
        Raises:
            WorldError: an action that is none; nothing has moved. SessionGone: no episode runs.
        """
        before = self.cloud.collapses.copy()
        running = self.batch.running.copy()
        over = self.batch.step(actions)
        at = np.flatnonzero(running)
        if len(at) == self.size:
            self._cloud = self._updated(self.cloud, at)
        else:
            self._cloud = put(self.cloud, at, self._updated(map_rows(self.cloud, at), at))
        self._summary = None
        return Moved(running, over, self.cloud.collapses > before)

    def observe(self) -> NDArray[np.float32]:
        """[B, 13] what a policy sees of its episodes; see `features`."""
        batch = self.batch
        return features(
            self.summary,
            batch.position,
            batch.reading,
            t=batch.steps,
            horizon=batch.horizon,
            length=self.preset.length,
            sensor=batch.sensor,
        )

    def errors(self) -> Floats:
        """[B] metres from the posterior mean to the source: for scoring, never for acting."""
        mean = self.summary.mean
        if mean is None:
            raise ConfigError("a belief without a mean", value=None, expected="a cloud's summary")
        found: Floats = np.hypot(*(mean[:, :2] - self.batch.source[:, :2]).T)
        return found

    def right(self) -> Flags:
        """[B] whether the estimate is within the preset's tolerance: for scoring, never for acting."""
        return self.errors() <= self.preset.tolerance

    def _updated(self, cloud: Cloud, at: NDArray[np.int64]) -> Cloud:
        return update(
            cloud,
            self.batch.position[at],
            self.batch.reading[at],
            sensor=self.batch.sensor,
            sweeps=self._sweeps,
            collapse="renew",
            reuse=True,
        )
