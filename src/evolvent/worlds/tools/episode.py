"""One episode over tools: the state, the reached subgoals, and the best share so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply
from evolvent.worlds.state_env import StateEnv
from evolvent.worlds.tools.engine import State
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

    state: State
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
    transitions: dict[tuple[State, str], Transition] = field(default_factory=dict)


class ActionEvaluator(Protocol):
    """The evaluator of an agent's actions: a tool world."""

    penalty: float

    def evaluate_action(self, scene: Scene, state: State, text: str) -> Transition:
        """Returns the outcome of a text in a state."""
        ...

    def partial_share(self, scene: Scene, reached: int) -> float:
        """Returns the completed share before the end, if the subgoals of these bits are reached."""
        ...


class _State(NamedTuple):
    """The state of an episode.

    Args:
        tool_state: the state of the tools, an immutable value.
        reached: the reached subgoals, as bits.
        best: the best completed share so far.
        reported: the reward that the original would report.
    """

    tool_state: Any
    reached: int
    best: float
    reported: float


class ToolEnv(StateEnv[_State]):
    """The environment of a task of tools. Forks are free: its state is an immutable value."""

    def __init__(self, world: ActionEvaluator, task: Task, scene: Scene) -> None:
        super().__init__(task, _State(scene.quest.start, 0, 0.0, scene.initial_report))
        self._world, self._scene = world, scene

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.quest.question, self._info(self._start.reported)

    def _info(self, reported: float) -> dict[str, Any]:
        return {"admissible": self._scene.admissible, "score": reported}

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        tool_state, reached, best, reported = state
        text = action if isinstance(action, str) else str(action)
        transition = self._scene.transitions.get((tool_state, text))
        if transition is None:
            transition = self._world.evaluate_action(self._scene, tool_state, text)
        if transition.failed:
            info = {**self._info(reported), "invalid": True}
            return state, (transition.observation, self._world.penalty, False, False, info)
        new_hits = transition.hits & ~reached
        reached |= new_hits & -new_hits
        share = max(best, transition.share if transition.ends else self._world.partial_share(self._scene, reached))
        reported = max(reported, share, transition.reported)
        reply = transition.observation, share - best, transition.ends, False, self._info(reported)
        return _State(transition.state, reached, share, reported), reply
