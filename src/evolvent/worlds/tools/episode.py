"""One episode over tools: the state, the reached subgoals, and the best share so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, check_snapshot
from evolvent.worlds.tools.expert import Quest, Solution

__all__ = ["ActionEvaluator", "Scene", "ToolEnv", "Transition"]


@dataclass(frozen=True, slots=True)
class Transition:
    """The outcome of a text in a state.

    Args:
        state: the next state.
        observation: the reply.
        failed: whether the text is not a call, or the call failed.
        ends: whether it ended the episode.
        hits: the subgoals that equal the result, as bits.
        share: the completed share of the task, at the end.
        reported: the reward that the original would report, if it is larger.
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
    """The state that all episodes of one task share.

    Args:
        quest, solution: the task.
        admissible: plausible calls.
        initial_report: the reward that the original would report before any call.
        transitions: cached outcomes of texts in states.
    """

    quest: Quest
    solution: Solution
    admissible: tuple[str, ...]
    initial_report: float
    transitions: dict[tuple[Any, str], Transition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot. States are immutable, so it is a handful of references."""

    task: str
    running: bool
    state: Any
    reached: int
    best: float
    reported: float


class ActionEvaluator(Protocol):
    """The evaluator of an agent's actions: a tool world."""

    penalty: float

    def evaluate_action(self, scene: Scene, state: Any, text: str) -> Transition:
        """Returns the outcome of a text in a state."""
        ...

    def partial_share(self, scene: Scene, reached: int) -> float:
        """Returns the completed share before the end, if the subgoals of these bits are reached."""
        ...


class ToolEnv:
    """The environment of a task of tools. Forks are free: its state is an immutable value."""

    def __init__(self, world: ActionEvaluator, task: Task, scene: Scene) -> None:
        self._world, self._task, self._scene = world, task, scene
        self._set_snapshot(_Snapshot(task.id, False, scene.quest.start, 0, 0.0, scene.initial_report))

    def _set_snapshot(self, snapshot: _Snapshot) -> None:
        self._running, self._state = snapshot.running, snapshot.state
        self._reached, self._best, self._reported = snapshot.reached, snapshot.best, snapshot.reported

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        scene = self._scene
        self._set_snapshot(_Snapshot(self._task.id, True, scene.quest.start, 0, 0.0, scene.initial_report))
        return scene.quest.question, self._info()

    def _info(self) -> dict[str, Any]:
        return {"admissible": self._scene.admissible, "score": self._reported}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = action if isinstance(action, str) else str(action)
        transition = self._scene.transitions.get((self._state, text))
        if transition is None:
            transition = self._world.evaluate_action(self._scene, self._state, text)
        if transition.failed:
            return transition.observation, self._world.penalty, False, False, {**self._info(), "invalid": True}
        self._state, self._running = transition.state, not transition.ends
        new_hits = transition.hits & ~self._reached
        self._reached |= new_hits & -new_hits
        share = max(
            self._best, transition.share if transition.ends else self._world.partial_share(self._scene, self._reached)
        )
        reward, self._best = share - self._best, share
        self._reported = max(self._reported, share, transition.reported)
        return transition.observation, reward, transition.ends, False, self._info()

    def snapshot(self) -> object:
        return _Snapshot(self._task.id, self._running, self._state, self._reached, self._best, self._reported)

    def restore(self, snapshot: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        self._set_snapshot(check_snapshot(snapshot, _Snapshot, self._task))

    def close(self) -> None:
        self._running = False
