"""One episode over tools: the state, what was reached, the best share so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.tools.expert import Quest, Solution

__all__ = ["Move", "Referee", "Scene", "ToolEnv"]


@dataclass(frozen=True, slots=True)
class Move:
    """What comes of a text in a state.

    Args:
        state: after it.
        observation: what is answered.
        failed: it was no call, or one that cannot be.
        ends: it ended the episode.
        hits: the subgoals that the result equals, as bits.
        share: the share of the task that is done, at the end.
        reported: what the original would report as reward, where that is more.
    """

    state: Any
    observation: str
    failed: bool = False
    ends: bool = False
    hits: int = 0
    share: float = 0.0
    reported: float = 0.0


@dataclass(slots=True)
class Scene:
    """What all episodes of one task share.

    Args:
        quest, solution: the task.
        admissible: calls that somebody might try.
        first: what the original would report as reward before anything is done.
        moves: what came of texts in states, as far as kept.
    """

    quest: Quest
    solution: Solution
    admissible: tuple[str, ...]
    first: float
    moves: dict[tuple[Any, str], Move] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot. States are immutable, so it is a handful of references."""

    task: str
    running: bool
    state: Any
    reached: int
    best: float
    reported: float


class Referee(Protocol):
    """Who says what comes of an action: a tool world."""

    penalty: float

    def move(self, scene: Scene, state: Any, text: str) -> Move:
        """What comes of a text in a state."""
        ...

    def part(self, scene: Scene, reached: int) -> float:
        """The share done before the end, where the subgoals of these bits are reached."""
        ...


class ToolEnv:
    """One episode over the tools of a task. Forks at no cost: its state is an immutable value."""

    def __init__(self, world: Referee, task: Task, scene: Scene) -> None:
        self._world, self._task, self._scene = world, task, scene
        self._set(_Moment(task.id, False, scene.quest.start, 0, 0.0, scene.first))

    def _set(self, moment: _Moment) -> None:
        self._running, self._state = moment.running, moment.state
        self._reached, self._best, self._reported = moment.reached, moment.best, moment.reported

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        scene = self._scene
        self._set(_Moment(self._task.id, True, scene.quest.start, 0, 0.0, scene.first))
        return scene.quest.question, self._info()

    def _info(self) -> dict[str, Any]:
        return {"admissible": self._scene.admissible, "score": self._reported}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = action if isinstance(action, str) else str(action)
        move = self._scene.moves.get((self._state, text))
        if move is None:
            move = self._world.move(self._scene, self._state, text)
        if move.failed:
            return move.observation, self._world.penalty, False, False, {**self._info(), "invalid": True}
        self._state, self._running = move.state, not move.ends
        fresh = move.hits & ~self._reached
        self._reached |= fresh & -fresh
        share = max(self._best, move.share if move.ends else self._world.part(self._scene, self._reached))
        reward, self._best = share - self._best, share
        self._reported = max(self._reported, share, move.reported)
        return move.observation, reward, move.ends, False, self._info()

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._state, self._reached, self._best, self._reported)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._set(own_moment(value, _Moment, self._task))

    def close(self) -> None:
        self._running = False
