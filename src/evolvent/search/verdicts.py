"""What a world says of a response, and calls of worlds that may block; for searches in one response."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from evolvent.engine.asks import Wait
from evolvent.errors import EnvLost, EvolventError, ScoringError, boundary
from evolvent.trajectory import Score, Task, unscored
from evolvent.worlds.base import World
from evolvent.worlds.deferred_close import Limits

__all__ = ["Verdict", "called", "graded", "question_of"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a world says of an end: its score, and how it read the answer."""

    score: Score
    answer: str | None


def question_of(world: World, task: Task) -> str:
    """What a fresh episode of a task says first."""
    env = world.make(task)
    try:
        observation, _ = env.reset()
        return str(observation)
    finally:
        env.close()


def graded(world: World, task: Task, said: str) -> Verdict:
    """What a fresh episode of a task says of a response of one turn; not scored where it cannot be graded."""
    env = world.make(task)
    try:
        env.reset()
        try:
            action = world.grammar.parse(said).action
        except EvolventError:
            action = said
        try:
            _, reward, _, _, info = env.step(action)
        except ScoringError:
            return Verdict(unscored(), None)
        answer = info.get("answer", said)
        return Verdict(world.score([reward], info), None if answer is None else str(answer))
    finally:
        env.close()


def called(world: World, call: Callable[[], Any]) -> Generator[Sequence[Any], Sequence[Any], Any]:
    """A call of a world, off the driver's thread where it may block."""
    with boundary(EnvLost, f"world {world.name!r} failed"):
        if not world.blocking:
            return call()
        (answer,) = yield (Wait(call, Limits().step_s),)
        return answer
