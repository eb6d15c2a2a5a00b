"""Episodes of the plume with a belief each: the process that planners, learners and evaluations step through.

An agent may know the position of its sensor, its readings, the sensor and the task's prior; only the scoring of
outcomes reads the source. A step is: move, sense, update the belief, run the detector. (AutoSTE senses first
and moves afterwards, so its detector does not know the newest position yet.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.cloud import Cloud, compute_features, draw_prior, replace_rows, select_rows, summarize_cloud
from evolvent.belief.particles import update
from evolvent.belief.stopping import Detector, StopDecision
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.plume.batch import PlumeBatch

__all__ = ["FEATURES", "DetectorHistory", "SourceSearch", "StepResult", "StopReward"]

FEATURES = 13
"""How many numbers `SourceSearch.observe` tells of an episode."""

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step of B episodes.

    Args:
        was_running: [B]. Whether each was running.
        is_over: [B]. Whether this step reached the horizon.
        is_lost: [B]. Whether the belief did not allow the reading and was reset from the prior.
    """

    was_running: Flags
    is_over: Flags
    is_lost: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReward:
    """The reward of a step: its cost, or the reward where the agent ended the episode.

    Args:
        reward: Reward of ceasing, instead of the cost of that step.
        cost: Reward of any other step, 0 or less.
        paid_for: "belief": ceasing always earns the reward, as published; "truth": only with a right estimate.
    Raises:
        ConfigError: numbers that are not finite, a cost above 0, an unknown rule.
    """

    reward: float = 100.0
    cost: float = -1.0
    paid_for: Literal["belief", "truth"] = "belief"

    def __post_init__(self) -> None:
        problems = [] if np.isfinite(self.reward) else [Problem("reward", f"{self.reward} is not finite")]
        if not (np.isfinite(self.cost) and self.cost <= 0):
            problems.append(Problem("cost", f"got {self.cost}, expected a finite number, 0 or less"))
        if self.paid_for not in ("belief", "truth"):
            problems.append(Problem("paid_for", f"unknown {self.paid_for!r}", "give 'belief' or 'truth'"))
        if problems:
            raise ConfigError(problems)

    def compute(self, ceased: Flags, right: Flags) -> Floats:
        """Computes the rewards [B] of a step that ended episodes with right or wrong estimates."""
        earns_reward: Flags = ceased if self.paid_for == "belief" else ceased & right
        return np.where(earns_reward, self.reward, self.cost)


class DetectorHistory:
    """A detector that is run on B beliefs repeatedly, with the history of each episode.

    Args:
        detector: Decides whether beliefs are certain enough.
        looks: Number of remembered decisions.
    """

    def __init__(self, detector: Detector, looks: int) -> None:
        self._detector, self._looks = detector, looks
        self._history: list[StopDecision] = []

    def decide(self, belief_summary: BeliefSummary) -> StopDecision:
        """Runs the detector once on all beliefs."""
        decision = self._detector(belief_summary, self._history)
        self._history = [*self._history, decision][-self._looks :]
        return decision

    def forget(self, rows: Flags) -> None:
        """Clears the history of rows [B] whose episodes start again."""
        if rows.any():
            self._history = [decision.clear_rows(rows) for decision in self._history]


class SourceSearch:
    """B episodes and their beliefs.

    Args:
        batch: The episodes.
        particles: Particles of a belief (None: the preset's).
        sweeps: Exact moves of a particle after resampling.
        fused: See `particles.prior`.
    Raises:
        ConfigError: fewer than one particle.
    """

    def __init__(
        self, batch: PlumeBatch, *, particles: int | None = None, sweeps: int = 3, fused: bool = False
    ) -> None:
        self.batch, self.preset = batch, batch.preset
        self.particles = batch.preset.particles if particles is None else particles
        if self.particles < 1:
            raise ConfigError("number of particles out of range", value=self.particles, expected="1 or more")
        self._sweeps, self._fused = sweeps, fused
        self._cloud: Cloud | None = None
        self._summary: BeliefSummary | None = None

    @property
    def size(self) -> int:
        """Returns the number of episodes, B."""
        return self.batch.size

    @property
    def cloud(self) -> Cloud:
        """Returns the beliefs; the next step overwrites their arrays. Raises SessionGone before the first `begin`."""
        if self._cloud is None:
            raise SessionGone(
                "beliefs were read before any episode", value=self.size, expected="a call of begin() first"
            )
        return self._cloud

    @property
    def summary(self) -> BeliefSummary:
        """Returns the summary of all B beliefs; those of ended episodes are as they were at the end."""
        if self._summary is None:
            self._summary = summarize_cloud(self.cloud)
        return self._summary

    def begin(self, rows: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        """Starts episodes in some rows, the first time in all; a belief depends on its task and seed alone.

        Raises:
            ConfigError: the first time not all rows, a task of another preset. BatchMismatch: lengths differ.
        """
        if self._cloud is None and sorted(rows) != list(range(self.size)):
            raise ConfigError(
                "only some episodes begin, but no episode has begun before",
                value=list(rows),
                expected=f"all {self.size} rows",
            )
        self.batch.begin(rows, tasks, seeds)
        row_indices = np.asarray(rows, dtype=np.int64)
        priors = [plume_prior for row in rows if (plume_prior := self.batch.priors[row]) is not None]
        belief_seeds = [sample_seed("belief", task.id, seed) for task, seed in zip(tasks, seeds, strict=True)]
        new_beliefs = self._update_beliefs(
            draw_prior(priors, self.particles, seeds=belief_seeds, fused=self._fused), row_indices
        )
        if self._cloud is None:
            order = np.argsort(row_indices)
            self._cloud = (
                new_beliefs if (order == np.arange(len(row_indices))).all() else select_rows(new_beliefs, order)
            )
        else:
            self._cloud = replace_rows(self._cloud, row_indices, new_beliefs)
        self._summary = None

    def step(self, actions: NDArray[np.generic]) -> StepResult:
        """Moves, senses and updates all running episodes.

        Args:
            actions: [B] indices of moves, or headings in radians; those of ended episodes do not matter.
        Raises:
            WorldError: an action that is none; nothing has moved. SessionGone: no episode runs.
        """
        collapses_before = self.cloud.collapses.copy()
        was_running = self.batch.running.copy()
        is_over = self.batch.step(actions)
        running_rows = np.flatnonzero(was_running)
        if len(running_rows) == self.size:
            self._cloud = self._update_beliefs(self.cloud, running_rows)
        else:
            self._cloud = replace_rows(
                self.cloud, running_rows, self._update_beliefs(select_rows(self.cloud, running_rows), running_rows)
            )
        self._summary = None
        return StepResult(was_running, is_over, self.cloud.collapses > collapses_before)

    def observe(self) -> NDArray[np.float32]:
        """Computes the policy's observation of its episodes, [B, 13]; see `compute_features`."""
        batch = self.batch
        return compute_features(
            self.summary,
            batch.position,
            batch.reading,
            steps=batch.steps,
            horizon=batch.horizon,
            length=self.preset.length,
            sensor=batch.sensor,
        )

    def errors(self) -> Floats:
        """Computes the distance from the posterior mean to the source, [B], meters: for scoring, never for acting."""
        mean = self.summary.mean
        if mean is None:
            raise ConfigError("the belief has no mean", value=None, expected="the summary of a cloud")
        distances: Floats = np.hypot(*(mean[:, :2] - self.batch.source[:, :2]).T)
        return distances

    def is_right(self) -> Flags:
        """Returns whether each estimate is within the preset's tolerance, [B]: for scoring, never for acting."""
        return self.errors() <= self.preset.tolerance

    def _update_beliefs(self, cloud: Cloud, row_indices: NDArray[np.int64]) -> Cloud:
        return update(
            cloud,
            self.batch.position[row_indices],
            self.batch.reading[row_indices],
            sensor=self.batch.sensor,
            sweeps=self._sweeps,
            collapse="renew",
            reuse=True,
        )
