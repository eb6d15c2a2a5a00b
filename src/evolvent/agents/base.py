"""The agent interface: an agent begins an episode and returns a mind for it; the mind decides, step by step.

A mind's `act` is a generator of asks, so that one driver runs thousands of episodes over one engine. Planners,
scripts and array policies decide without asking anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from evolvent.agents.history import Turn
from evolvent.engine.asks import Answer, Ask, BlockingCall
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Branch, Generation, JsonObject, Step, Task, Trajectory, Value
from evolvent.worlds.base import Info, World

__all__ = ["Acting", "Agent", "Decision", "Mind", "SupportsResume", "recorded_turn"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A mind's decision for one step.

    Args:
        action: what is handed to the environment.
        thought: the reasoning that came with it.
        generations: what the model read and wrote; `extends` counts within the episode.
        ends: "agent": it decided to stop; "horizon": its context is full. Then `action` is not taken.
        info: marks for the step's record.
    """

    action: Value
    thought: str | None = None
    generations: tuple[Generation, ...] = ()
    ends: Literal["agent", "horizon"] | None = None
    info: JsonObject = field(default_factory=dict)


Acting = Generator[Sequence[Ask | BlockingCall], Sequence[Answer], Decision]


class Mind(Protocol):
    """An agent in one episode."""

    def act(self, observation: Value, info: Info) -> Acting:
        """Decide on an action, asking the engine as often as it likes."""
        ...


class Agent(Protocol):
    """Anything that can begin an episode."""

    def begin(self, world: World, task: Task, *, seed: int) -> Mind:
        """Returns a mind for one episode of a task. The same seed, task and policy act alike, whatever else runs."""
        ...


@runtime_checkable
class SupportsResume(Protocol):
    """An agent that can also continue an episode from its middle."""

    def resume(self, world: World, task: Task, *, seed: int, parent: Trajectory, branch: Branch) -> Mind:
        """Returns a mind that takes over the parent's steps before the branch, and its first tokens there, as its own
        past.

        Its first observation is that of the branching step. The past is context: nothing of it was sampled.

        Raises:
            ConfigError: a branch beyond the end of the parent, or of the action that it lies in.
        """
        ...


def recorded_turn(step: Step, dialect: Dialect, *, render: Callable[[Step], str]) -> Turn:
    """Converts a recorded step to a turn of a conversation: the sampled tokens, or else those of its text.

    Args:
        render: the text that an agent would write for a step without generations.
    Raises:
        VocabularyMismatch: a word that the dialect does not know.
    """
    for generation in reversed(step.generations):
        if generation.acted:
            ids = tuple(generation.ids[generation.sampled].tolist())
            return Turn(str(step.observation), ids, generation.stop != "length")
    return Turn(str(step.observation), tuple(dialect.action(render(step))), True)
