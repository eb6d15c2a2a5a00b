"""Rows of environments that are not arrays: one environment per row, stepped by a host, lost and restarted one by
one.

A host owns the environments: in this process (`LocalRows`), or in worker processes
(`evolvent.rollout.team_workers`). An environment that raises costs its row the episode: that step names the
error, and the row starts its next episode. If a whole process is lost, the rows that did not cause it are
replayed from their seeds and their actions, so that their episodes continue; a row whose replay differs is lost
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    EnvLost,
    ErrorRecord,
    EvolventError,
    Problem,
    SessionGone,
    WorldError,
    boundary,
)
from evolvent.trajectory import Array, Task, sample_seed
from evolvent.worlds.teams.base import TeamSpec, TeamStep, TeamView, check_actions, check_view, episode_of
from evolvent.worlds.teams.batch import check_numbers
from evolvent.worlds.teams.parallel import Row, RowState

__all__ = ["Interrupted", "LocalRows", "RowHost", "RowTeam", "episode_seed"]

_MAX_LOST_EPISODES = 3  # episodes in a row that may be lost in one row before the batch gives up


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A row that did not cause the failure, but whose environment is gone and must be replayed."""

    why: str


class RowHost(Protocol):
    """An owner of environments, one per row. A failure is a returned value, never an exception."""

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, RowState | ErrorRecord | Interrupted]:
        """Starts episodes: row -> (task, seed)."""
        ...

    def step(self, actions: Mapping[int, Array]) -> Mapping[int, RowState | ErrorRecord | Interrupted]:
        """Steps some rows once: row -> actions `[n, ...]`."""
        ...

    def close(self) -> None:
        """Ends all environments."""
        ...


class LocalRows:
    """Environments in this process, created when a row first meets a task and reused.

    Args:
        make: task -> an environment for it.
    """

    def __init__(self, make: Callable[[Task], Row]) -> None:
        self._make = make
        self._kept: dict[tuple[int, str], Row] = {}
        self._playing: dict[int, Row] = {}

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, RowState | ErrorRecord | Interrupted]:
        """Starts episodes; see `RowHost`."""
        return {row: self._begin(row, task, seed) for row, (task, seed) in starts.items()}

    def step(self, actions: Mapping[int, Array]) -> Mapping[int, RowState | ErrorRecord | Interrupted]:
        """Steps some rows once; see `RowHost`."""
        return {row: self._step(row, row_actions) for row, row_actions in actions.items()}

    def close(self) -> None:
        """Closes all environments."""
        for row in self._kept.values():
            row.close()
        self._kept, self._playing = {}, {}

    def _begin(self, row: int, task: Task, seed: int) -> RowState | ErrorRecord:
        try:
            if (row, task.id) not in self._kept:
                with boundary(EnvLost, "a team environment cannot be made"):
                    self._kept[row, task.id] = self._make(task)
            self._playing[row] = self._kept[row, task.id]
            return self._playing[row].begin(seed)
        except EvolventError as error:
            self._drop(self._kept.get((row, task.id)))
            return ErrorRecord.of(error)

    def _step(self, row: int, actions: NDArray[Any]) -> RowState | ErrorRecord:
        try:
            return self._playing[row].step(actions)
        except EvolventError as error:
            self._drop(self._playing[row])
            return ErrorRecord.of(error)

    def _drop(self, failed: Row | None) -> None:
        """Closes a failed environment, whatever its state; the next episode gets another one."""
        self._kept = {row_key: env for row_key, env in self._kept.items() if env is not failed}
        if failed is not None:
            with suppress(EvolventError):  # the row has its error; one more on the way out says nothing new
                failed.close()


def episode_seed(task: Task, sample: int) -> int:
    """Returns the seed (31 bits) of a foreign environment for an episode."""
    return sample_seed("team episode", task.id, sample) % 2**31


class RowTeam:
    """A batch of rows on a host.

    It is resumable if the environments are deterministic: a snapshot holds seeds and actions, and restoring replays
    them.

    Args:
        spec: the spec of all tasks, which are teams of one size: an environment of another size is refused.
        tasks, size: see `TeamBatch`.
        host: closed with the batch.
    """

    def __init__(self, spec: TeamSpec, tasks: Sequence[Task], size: int, *, host: RowHost) -> None:
        problems = [Problem("tasks", "got none, expected 1 or more")] if not tasks else []
        problems += [Problem("size", f"got {size}, expected 1 or more")] if size < 1 else []
        if problems:
            raise ConfigError(problems)
        self.spec, self.tasks, self.size, self._host = spec, tuple(tasks), size, host
        self.number = np.zeros(size, dtype=np.int64)
        self._done: list[list[NDArray[Any]]] = [[] for _ in range(size)]  # actions of the running episodes
        self._now: list[RowState] = []
        self._view: TeamView | None = None

    def reset(self, seeds: Sequence[int] | NDArray[np.int64]) -> TeamView:
        """Starts an episode in every row; see `TeamBatch.reset`. Raises EnvLost if three episodes in a row did not
        start.
        """
        self.number = check_numbers(seeds, self.size)
        self._now = [RowState(observation=np.zeros((1, 1), np.float32), alive=np.zeros(1, bool))] * self.size
        self._start_episodes(list(range(self.size)))
        return self._check_and_store()

    def step(self, actions: Array) -> TeamStep:
        """Steps every team once; see `TeamBatch.step`. Raises EnvLost if three episodes of a row did not start."""
        if self._view is None:
            raise SessionGone("step was called before reset", expected="reset() first")
        checked = check_actions(actions, self.spec, self._view)
        time = self._view.time
        for row in range(self.size):
            self._done[row].append(checked[row])
        answers = dict(self._host.step({row: checked[row] for row in range(self.size)}))
        self._replay([row for row, answer in answers.items() if isinstance(answer, Interrupted)], answers, compare=True)
        errors = {row: answer for row, answer in answers.items() if isinstance(answer, ErrorRecord)}
        errors = {row: ErrorRecord(error.kind, error.message, int(time[row]), True) for row, error in errors.items()}
        for row, answer in answers.items():
            if isinstance(answer, RowState):
                self._now[row] = answer
        is_valid = np.array([row not in errors for row in range(self.size)])
        terminated = np.array([row_state.terminated for row_state in self._now]) & is_valid
        is_cut = np.array([row_state.truncated for row_state in self._now]) | (time + 1 >= self.spec.horizon)
        truncated = is_cut & ~terminated & is_valid
        reward = np.where(is_valid, [row_state.reward for row_state in self._now], 0.0)
        successes = [row_state.success for row_state in self._now]
        is_over = terminated | truncated | ~is_valid
        ended = np.flatnonzero(is_over)
        final = self._stack_views(self._now, time + 1).select_rows(ended) if ended.size else None
        success = None if None in successes else np.array(successes, dtype=bool) & is_over & is_valid
        self.number[ended] += self.size
        self._start_episodes(ended.tolist())
        return TeamStep(
            view=self._check_and_store(),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            final=final,
            success=success,
            errors=errors,
        )

    def snapshot(self) -> Mapping[str, Array]:
        """Returns numbers `[E]`, steps `[E]`, actions of the running episodes `[E, max_steps, ...]`, last
        observations.
        """
        if self._view is None:
            raise SessionGone("snapshot was called before reset", expected="reset() first")
        max_steps = max(len(past_actions) for past_actions in self._done)
        shape = next((past_actions[0].shape for past_actions in self._done if past_actions), (self.spec.agents,))
        kind = next((past_actions[0].dtype for past_actions in self._done if past_actions), np.dtype(np.int64))
        actions = np.zeros((self.size, max_steps, *shape), dtype=kind)
        for row, past_actions in enumerate(self._done):
            if past_actions:
                actions[row, : len(past_actions)] = np.stack(past_actions)
        return {
            "number": self.number.copy(),
            "time": self._view.time.copy(),
            "actions": actions,
            "observation": self._view.observation.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> TeamView:
        """Plays the episodes of a snapshot again.

        Raises:
            BatchMismatch: the snapshot belongs to another batch. WorldError: an environment that is not deterministic.
        """
        expected_observation = state["observation"]
        if expected_observation.shape != (self.size, self.spec.agents, self.spec.observation):
            expected = (self.size, self.spec.agents, self.spec.observation)
            raise BatchMismatch(
                "the snapshot belongs to another batch", value=expected_observation.shape, expected=expected
            )
        self.reset(state["number"])
        self._done = [list(state["actions"][row, : state["time"][row]]) for row in range(self.size)]
        answers: dict[int, RowState | ErrorRecord | Interrupted] = {}
        self._replay(list(range(self.size)), answers, compare=False)
        for row, answer in answers.items():
            if not isinstance(answer, RowState):
                raise WorldError("an episode cannot be replayed", value=str(answer), hint="start a new run")
            self._now[row] = answer
        view = self._check_and_store()
        if not np.array_equal(view.observation, expected_observation):
            rows = np.flatnonzero((view.observation != expected_observation).any((1, 2))).tolist()
            raise WorldError("an environment is not deterministic", value=f"rows {rows}", hint="start a new run")
        return view

    def close(self) -> None:
        """Closes the host."""
        self._host.close()

    def _start_episodes(self, rows: list[int]) -> None:
        for attempt in range(_MAX_LOST_EPISODES):
            starts = {row: episode_of(int(self.number[row]), self.tasks) for row in rows}
            answers = self._host.begin(
                {row: (task, episode_seed(task, sample)) for row, (task, sample) in starts.items()}
            )
            for row, answer in answers.items():
                self._done[row] = []
                if isinstance(answer, RowState):
                    self._check_size(answer)
                    self._now[row] = answer
            lost = {row: answer for row, answer in answers.items() if not isinstance(answer, RowState)}
            if not lost:
                return
            if attempt + 1 == _MAX_LOST_EPISODES:
                row, reason = next(iter(lost.items()))
                reason_text = reason.message if isinstance(reason, ErrorRecord) else str(reason)
                raise EnvLost(f"row {row}: {_MAX_LOST_EPISODES} consecutive episodes did not begin: {reason_text}")
            self.number[[row for row, answer in lost.items() if isinstance(answer, ErrorRecord)]] += self.size
            rows = list(lost)

    def _check_size(self, row_state: RowState) -> None:
        expected = (self.spec.agents, self.spec.observation)
        if row_state.observation.shape != expected:
            raise ConfigError(
                "the team of the task has the wrong shape", value=row_state.observation.shape, expected=expected
            )

    def _replay(
        self, rows: list[int], answers: dict[int, RowState | ErrorRecord | Interrupted], *, compare: bool
    ) -> None:
        """Plays the running episodes of some rows again from their start to the present, all together.

        compare: whether the observation before the last of these decisions is in `_now` and must be reproduced.
        """
        if not rows:
            return
        starts = {row: episode_of(int(self.number[row]), self.tasks) for row in rows}
        replayed = dict(
            self._host.begin({row: (task, episode_seed(task, sample)) for row, (task, sample) in starts.items()})
        )
        for step_index in range(max((len(self._done[row]) for row in rows), default=0)):
            pending_actions = {
                row: self._done[row][step_index]
                for row in rows
                if isinstance(replayed[row], RowState) and step_index < len(self._done[row])
            }
            if compare:
                self._compare_replay(step_index, pending_actions, replayed)
            replayed.update(
                self._host.step(
                    {
                        row: row_actions
                        for row, row_actions in pending_actions.items()
                        if isinstance(replayed[row], RowState)
                    }
                )
            )
        for row, answer in replayed.items():
            is_gone = isinstance(answer, Interrupted)
            answers[row] = ErrorRecord("EnvLost", f"lost with its process: {answer}") if is_gone else answer

    def _compare_replay(
        self,
        step_index: int,
        pending_actions: Mapping[int, Any],
        replayed: dict[int, RowState | ErrorRecord | Interrupted],
    ) -> None:
        """Marks as lost the rows whose replay up to the last decision differs from the original observation."""
        for row in pending_actions:
            answer = replayed[row]
            if step_index + 1 < len(self._done[row]) or not isinstance(answer, RowState):
                continue
            if not np.array_equal(answer.observation, self._now[row].observation):
                replayed[row] = ErrorRecord("EnvLost", "lost with its process: this environment does not repeat itself")

    def _stack_views(self, row_states: Sequence[RowState], time: NDArray[np.int64]) -> TeamView:
        masks = [row_state.available for row_state in row_states]
        states = [row_state.state for row_state in row_states]
        return TeamView(
            observation=np.stack([row_state.observation for row_state in row_states]),
            alive=np.stack([row_state.alive for row_state in row_states]),
            available=None
            if any(mask is None for mask in masks)
            else np.stack([available_mask for available_mask in masks if available_mask is not None]),
            state=None
            if any(state is None for state in states)
            else np.stack([state for state in states if state is not None]),
            number=self.number.copy(),
            time=time.copy(),
        )

    def _check_and_store(self) -> TeamView:
        view = self._stack_views(self._now, np.array([len(done) for done in self._done], dtype=np.int64))
        check_view(view, self.spec)
        self._view = view
        return view
