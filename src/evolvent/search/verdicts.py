"""A world's grading of a response, and calls of worlds that may block; for searches in one response."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from evolvent.engine.asks import Answer, Ask, BlockingCall, RoutedAsk
from evolvent.errors import EnvLost, EvolventError, ScoringError, user_boundary
from evolvent.trajectory import Score, Task, unscored
from evolvent.worlds.base import Info, Limits, World

__all__ = ["ResponseGrade", "call_world", "graded", "read_opening", "read_question"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResponseGrade:
    """A world's grade of an end: its score, and the answer that it read."""

    score: Score
    answer: str | None


def read_question(world: World, task: Task) -> str:
    """Returns the first observation of a fresh episode of a task."""
    return read_opening(world, task)[0]


def read_opening(world: World, task: Task) -> tuple[str, Info]:
    """Returns the first observation and info of a fresh episode of a task."""
    env = world.make(task)
    try:
        observation, info = env.reset()
        return str(observation), info
    finally:
        env.close()


def graded(world: World, task: Task, response_text: str) -> ResponseGrade:
    """Returns the grade of a one-turn response by a fresh episode of its task; not scored where it cannot be graded."""
    env = world.make(task)
    try:
        env.reset()
        try:
            action = world.grammar.parse(response_text).action
        except EvolventError:
            action = response_text
        try:
            _, reward, _, _, info = env.step(action)
        except ScoringError:
            return ResponseGrade(unscored(), None)
        answer = info.get("answer", response_text)
        return ResponseGrade(world.score([reward], info), None if answer is None else str(answer))
    finally:
        env.close()


def call_world(
    world: World, call: Callable[[], T]
) -> Generator[Sequence[Ask | RoutedAsk | BlockingCall], Sequence[Answer], T]:
    """Runs a call of a world, off the driver's thread where it may block."""
    with user_boundary(EnvLost, f"world {world.name!r} failed"):
        if not world.run_in_thread:
            return call()
        answers = yield (BlockingCall(call, Limits().step_s),)
        answer: T = answers[0]
        return answer
