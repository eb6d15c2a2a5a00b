"""Agents without a model: scripts (experts, replays) and the random agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evolvent.agents.base import Acting, Decision
from evolvent.errors import WorldError, user_boundary
from evolvent.trajectory import Task, Value, sample_rng
from evolvent.worlds.base import Info, Parsed, SupportsRationales, World

__all__ = ["Expert", "Random", "Script"]


class _ScriptMind:
    def __init__(self, actions: Sequence[Parsed]) -> None:
        self._actions, self._at = actions, 0

    def act(self, observation: Value, info: Info) -> Acting:
        if self._at >= len(self._actions):
            return Decision("", ends="agent")
        self._at += 1
        parsed = self._actions[self._at - 1]
        return Decision(parsed.action, parsed.thought)
        yield ()  # a generator that never asks


class _RandomMind:
    def __init__(self, seed: int) -> None:
        self._rng = sample_rng(seed, "random agent")

    def act(self, observation: Value, info: Info) -> Acting:
        admissible = info.get("admissible")
        if not admissible:
            raise WorldError(
                "the random agent needs a world that lists its admissible actions",
                value=sorted(info),
                expected="admissible",
            )
        return Decision(admissible[int(self._rng.integers(len(admissible)))])
        yield ()


@dataclass(frozen=True)
class Script:
    """Plays a given list of actions for each task, then stops."""

    actions: Callable[[World, Task], Sequence[str]]

    def begin(self, world: World, task: Task, *, seed: int) -> _ScriptMind:
        return _ScriptMind([*map(Parsed, self.actions(world, task))])


@dataclass(frozen=True)
class Expert:
    """Plays the world's own solution, with its thoughts where the world explains it.

    Raises:
        WorldError: a world without an expert for the task.
    """

    def begin(self, world: World, task: Task, *, seed: int) -> _ScriptMind:
        with user_boundary(WorldError, f"world {world.name!r} failed in expert"):
            rationale_actions = world.explain(task) if isinstance(world, SupportsRationales) else None
            actions = world.expert(task) if rationale_actions is None else ()
        if actions is None:
            raise WorldError(f"world {world.name!r} has no expert for this task", value=task.id)
        return _ScriptMind([*map(Parsed, actions)] if rationale_actions is None else rationale_actions)


@dataclass(frozen=True)
class Random:
    """Samples uniformly from the admissible actions: the baseline of every table."""

    def begin(self, world: World, task: Task, *, seed: int) -> _RandomMind:
        return _RandomMind(seed)
