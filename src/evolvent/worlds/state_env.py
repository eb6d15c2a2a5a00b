"""The life cycle of environments whose whole changing state is one value.

A subclass says how an episode starts and what an action does to the state; `StateEnv` adds `reset`, `step`, `snapshot`,
`restore` and `close`. A world whose state lives elsewhere (rows of an array batch) writes its own Env. So do crafting
and maze: their steps take less than half a microsecond, and the calls made here would slow them by a fifth to a third.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, check_snapshot

__all__ = ["Snapshot", "StateEnv"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[S]):
    """A snapshot of an episode.

    Args:
        task: the id of the episode's task.
        running: whether the episode runs.
        state: the state, which nothing changes any more.
    """

    task: str
    running: bool
    state: S


class StateEnv(ABC, Generic[S]):
    """Base class of environments whose whole changing state is one value: define `_observe_start` and `_transition`.

    The state is an immutable value that each transition replaces. A class whose transitions change the state in place
    overrides `_copy_state`. A class that holds a resource overrides `close`.

    Args:
        task: the task of the episodes.
        start: the state in which episodes begin.
    """

    def __init__(self, task: Task, start: S) -> None:
        self._task, self._start, self._state = task, start, start
        self._running = False

    @abstractmethod
    def _observe_start(self) -> tuple[Value, Info]:
        """Returns the first observation and its info; the state is the start."""

    @abstractmethod
    def _transition(self, state: S, action: Value) -> tuple[S, Reply]:
        """Returns the next state and the reply to an action. A reply that is terminated or truncated ends the episode.

        If it raises, the state is not replaced and the episode goes on.
        """

    def _copy_state(self, state: S) -> S:
        """Returns an independent copy of a state: the state itself where nothing changes it in place."""
        return state

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode and returns (observation, info)."""
        self._running = False
        self._state = self._copy_state(self._start)
        first_reply = self._observe_start()
        self._running = True
        return first_reply

    def step(self, action: Value) -> Reply:
        """Plays an action; raises SessionGone before `reset` and after the end."""
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._state, reply = self._transition(self._state, action)
        if reply[2] or reply[3]:
            self._running = False
        return reply

    def snapshot(self) -> object:
        """Returns a snapshot, which stays valid whatever the Env does afterwards."""
        return Snapshot(self._task.id, self._running, self._copy_state(self._state))

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        snapshot: Snapshot[S] = check_snapshot(value, Snapshot, self._task)
        self._running, self._state = snapshot.running, self._copy_state(snapshot.state)

    def close(self) -> None:
        """Ends the episode; a second call is harmless."""
        self._running = False
