"""Rows of environments that are not arrays: one environment a row, stepped by a host, lost and begun again one by one.

A host keeps the environments: in this process (`LocalRows`), or in worker processes (`evolvent.rollout.team_workers`).
An environment that raises costs its row the episode: that step names the error, and the row begins its next episode.
Where a whole process is lost, the rows that were not to blame are played again to where they were, from their seeds and
their actions, so that their episodes go on; one that does not come out the same is lost too.
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
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.teams.base import TeamSpec, TeamStep, TeamView, check_actions, check_view, episode_of
from evolvent.worlds.teams.batch import check_numbers
from evolvent.worlds.teams.parallel import Moment, Row

__all__ = ["Interrupted", "LocalRows", "RowHost", "RowTeam", "episode_seed"]

_TRIES = 3  # episodes in a row that may be lost in one row before the batch gives up


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The row was not to blame, but its environment is gone: play it again."""

    why: str


class RowHost(Protocol):
    """Keeps environments, one a row. What fails is an answer, never an exception."""

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, Moment | ErrorRecord | Interrupted]:
        """Begin episodes: row -> (task, seed)."""
        ...

    def step(self, actions: Mapping[int, NDArray[Any]]) -> Mapping[int, Moment | ErrorRecord | Interrupted]:
        """One decision in some rows: row -> actions `[n, ...]`."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class LocalRows:
    """Environments in this process, made when a row first meets a task and kept.

    Args:
        make: task -> an environment for it.
    """

    def __init__(self, make: Callable[[Task], Row]) -> None:
        self._make = make
        self._kept: dict[tuple[int, str], Row] = {}
        self._playing: dict[int, Row] = {}

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, Moment | ErrorRecord | Interrupted]:
        """See `RowHost`."""
        return {row: self._begin(row, task, seed) for row, (task, seed) in starts.items()}

    def step(self, actions: Mapping[int, NDArray[Any]]) -> Mapping[int, Moment | ErrorRecord | Interrupted]:
        """See `RowHost`."""
        return {row: self._step(row, own) for row, own in actions.items()}

    def close(self) -> None:
        """Close all of them."""
        for row in self._kept.values():
            row.close()
        self._kept, self._playing = {}, {}

    def _begin(self, row: int, task: Task, seed: int) -> Moment | ErrorRecord:
        try:
            if (row, task.id) not in self._kept:
                with boundary(EnvLost, "a team environment cannot be made"):
                    self._kept[row, task.id] = self._make(task)
            self._playing[row] = self._kept[row, task.id]
            return self._playing[row].begin(seed)
        except EvolventError as error:
            self._drop(self._kept.get((row, task.id)))
            return ErrorRecord.of(error)

    def _step(self, row: int, actions: NDArray[Any]) -> Moment | ErrorRecord:
        try:
            return self._playing[row].step(actions)
        except EvolventError as error:
            self._drop(self._playing[row])
            return ErrorRecord.of(error)

    def _drop(self, failed: Row | None) -> None:
        """Close what failed, whatever state it is in: the next episode gets another."""
        self._kept = {at: kept for at, kept in self._kept.items() if kept is not failed}
        if failed is not None:
            with suppress(EvolventError):  # the row has its error; one more on the way out says nothing new
                failed.close()


def episode_seed(task: Task, sample: int) -> int:
    """The seed (31 bits) that a foreign environment is given for an episode."""
    return sample_seed("team episode", task.id, sample) % 2**31


class RowTeam:
    """A batch of rows that a host keeps. Resumable where the environments repeat themselves: a snapshot holds seeds and
    actions, and restoring plays them again.

    Args:
        spec: of the environments of all tasks, which are teams of one size: an environment of another is refused.
        tasks, size: see `TeamBatch`.
        host: closed with the batch.
    """

    def __init__(self, spec: TeamSpec, tasks: Sequence[Task], size: int, *, host: RowHost) -> None:
        wrong = [Problem("tasks", "none", "give 1 or more")] if not tasks else []
        wrong += [Problem("size", f"got {size}", "expected 1 or more")] if size < 1 else []
        if wrong:
            raise ConfigError(wrong)
        self.spec, self.tasks, self.size, self._host = spec, tuple(tasks), size, host
        self.number = np.zeros(size, dtype=np.int64)
        self._done: list[list[NDArray[Any]]] = [[] for _ in range(size)]  # actions of the running episodes
        self._now: list[Moment] = []
        self._view: TeamView | None = None

    def reset(self, seeds: Sequence[int] | NDArray[np.int64]) -> TeamView:
        """See `TeamBatch.reset`. EnvLost: a row of which three episodes in a row did not begin."""
        self.number = check_numbers(seeds, self.size)
        self._now = [Moment(observation=np.zeros((1, 1), np.float32), alive=np.zeros(1, bool))] * self.size
        self._begin(list(range(self.size)))
        return self._seen()

    def step(self, actions: NDArray[Any]) -> TeamStep:
        """See `TeamBatch.step`. EnvLost: a row of which three episodes in a row did not begin."""
        if self._view is None:
            raise SessionGone("a step of a batch that has not begun", expected="reset() first")
        chosen = check_actions(actions, self.spec, self._view)
        time = self._view.time
        for row in range(self.size):
            self._done[row].append(chosen[row])
        answers = dict(self._host.step({row: chosen[row] for row in range(self.size)}))
        self._replay([row for row, answer in answers.items() if isinstance(answer, Interrupted)], answers, compare=True)
        errors = {row: answer for row, answer in answers.items() if isinstance(answer, ErrorRecord)}
        errors = {row: ErrorRecord(e.kind, e.message, int(time[row]), True) for row, e in errors.items()}
        for row, answer in answers.items():
            if isinstance(answer, Moment):
                self._now[row] = answer
        fine = np.array([row not in errors for row in range(self.size)])
        terminated = np.array([now.terminated for now in self._now]) & fine
        cut = np.array([now.truncated for now in self._now]) | (time + 1 >= self.spec.horizon)
        truncated = cut & ~terminated & fine
        reward = np.where(fine, [now.reward for now in self._now], 0.0)
        said = [now.success for now in self._now]
        over = terminated | truncated | ~fine
        ended = np.flatnonzero(over)
        final = self._stack(self._now, time + 1).rows(ended) if ended.size else None
        success = None if None in said else np.array(said, dtype=bool) & over & fine
        self.number[ended] += self.size
        self._begin(ended.tolist())
        return TeamStep(
            view=self._seen(),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            final=final,
            success=success,
            errors=errors,
        )

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Numbers `[E]`, steps `[E]`, actions of the running episodes `[E, most steps, ...]`, what was seen last."""
        if self._view is None:
            raise SessionGone("a snapshot of a batch that has not begun", expected="reset() first")
        most = max(len(done) for done in self._done)
        shape = next((done[0].shape for done in self._done if done), (self.spec.agents,))
        kind = next((done[0].dtype for done in self._done if done), np.dtype(np.int64))
        actions = np.zeros((self.size, most, *shape), dtype=kind)
        for row, done in enumerate(self._done):
            if done:
                actions[row, : len(done)] = np.stack(done)
        return {
            "number": self.number.copy(),
            "time": self._view.time.copy(),
            "actions": actions,
            "observation": self._view.observation.copy(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> TeamView:
        """Play the episodes of a snapshot again. BatchMismatch: of another batch. WorldError: an environment that does
        not repeat itself."""
        seen = state["observation"]
        if seen.shape != (self.size, self.spec.agents, self.spec.observation):
            expected = (self.size, self.spec.agents, self.spec.observation)
            raise BatchMismatch("a snapshot of another batch", value=seen.shape, expected=expected)
        self.reset(state["number"])
        self._done = [list(state["actions"][row, : state["time"][row]]) for row in range(self.size)]
        answers: dict[int, Moment | ErrorRecord | Interrupted] = {}
        self._replay(list(range(self.size)), answers, compare=False)
        for row, answer in answers.items():
            if not isinstance(answer, Moment):
                raise WorldError("an episode that cannot be played again", value=str(answer), hint="begin a new run")
            self._now[row] = answer
        view = self._seen()
        if not np.array_equal(view.observation, seen):
            rows = np.flatnonzero((view.observation != seen).any((1, 2))).tolist()
            raise WorldError("an environment that does not repeat itself", value=f"rows {rows}", hint="begin a new run")
        return view

    def close(self) -> None:
        """Close the host."""
        self._host.close()

    def _begin(self, rows: list[int]) -> None:
        for tries in range(_TRIES):
            starts = {row: episode_of(int(self.number[row]), self.tasks) for row in rows}
            begun = self._host.begin({row: (task, episode_seed(task, n)) for row, (task, n) in starts.items()})
            for row, answer in begun.items():
                self._done[row] = []
                if isinstance(answer, Moment):
                    self._check_size(answer)
                    self._now[row] = answer
            lost = {row: answer for row, answer in begun.items() if not isinstance(answer, Moment)}
            if not lost:
                return
            if tries + 1 == _TRIES:
                row, why = next(iter(lost.items()))
                raise EnvLost(f"row {row}: {_TRIES} episodes in a row did not begin", value=str(why))
            self.number[[row for row, answer in lost.items() if isinstance(answer, ErrorRecord)]] += self.size
            rows = list(lost)

    def _check_size(self, moment: Moment) -> None:
        expected = (self.spec.agents, self.spec.observation)
        if moment.observation.shape != expected:
            raise ConfigError("a task whose team is another", value=moment.observation.shape, expected=expected)

    def _replay(
        self, rows: list[int], answers: dict[int, Moment | ErrorRecord | Interrupted], *, compare: bool
    ) -> None:
        """Play the running episodes of some rows from their beginning to now, all together.

        compare: whether what was seen before the last of these decisions is in `_now` and has to come out the same.
        """
        if not rows:
            return
        starts = {row: episode_of(int(self.number[row]), self.tasks) for row in rows}
        found = dict(self._host.begin({row: (task, episode_seed(task, n)) for row, (task, n) in starts.items()}))
        for at in range(max((len(self._done[row]) for row in rows), default=0)):
            going = {
                row: self._done[row][at] for row in rows if isinstance(found[row], Moment) and at < len(self._done[row])
            }
            if compare:
                self._compare(at, going, found)
            found.update(self._host.step({row: own for row, own in going.items() if isinstance(found[row], Moment)}))
        for row, answer in found.items():
            gone = isinstance(answer, Interrupted)
            answers[row] = ErrorRecord("EnvLost", f"lost with its process: {answer}") if gone else answer

    def _compare(self, at: int, going: Mapping[int, Any], found: dict[int, Moment | ErrorRecord | Interrupted]) -> None:
        """Lose the rows that were played again up to their last decision and do not see what they saw then."""
        for row in going:
            answer = found[row]
            if at + 1 < len(self._done[row]) or not isinstance(answer, Moment):
                continue
            if not np.array_equal(answer.observation, self._now[row].observation):
                found[row] = ErrorRecord("EnvLost", "lost with its process: this environment does not repeat itself")

    def _stack(self, moments: Sequence[Moment], time: NDArray[np.int64]) -> TeamView:
        masks = [moment.available for moment in moments]
        states = [moment.state for moment in moments]
        return TeamView(
            observation=np.stack([moment.observation for moment in moments]),
            alive=np.stack([moment.alive for moment in moments]),
            available=None if any(mask is None for mask in masks) else np.stack([m for m in masks if m is not None]),
            state=None if any(own is None for own in states) else np.stack([own for own in states if own is not None]),
            number=self.number.copy(),
            time=time.copy(),
        )

    def _seen(self) -> TeamView:
        view = self._stack(self._now, np.array([len(done) for done in self._done], dtype=np.int64))
        check_view(view, self.spec)
        self._view = view
        return view
