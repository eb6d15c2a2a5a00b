"""What every face of a server talks to: sessions of worlds, whoever runs them (this process, or worker processes).

A session is created for a world, reset to a task, stepped and closed. Faces (native, AgentGym, OpenEnv, MCP) translate
their messages into these calls and the typed errors into their answers; none of them touches an Env.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from evolvent.errors import EvolventError
from evolvent.trajectory import Task
from evolvent.worlds.base import World

__all__ = ["Host", "Look", "Seen", "State", "Status", "StepItem", "Stepped"]

State = Literal["open", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Seen:
    """The first observation of an episode and its info (JSON values)."""

    observation: str
    info: Mapping[str, Any] = field(default_factory=dict)


class Stepped(NamedTuple):
    """The answer to a step; `step` is the number of the step just taken, from 0.

    A tuple, as one is made for every step: it costs a third of a frozen dataclass.
    """

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: Mapping[str, Any] = MappingProxyType({})
    step: int = 0

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class StepItem(NamedTuple):
    """One step of a batch. step: its number, for safe repetition; None: the next one, whatever it is."""

    session: str
    action: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Where a session stands: the last observation, the sum of its rewards, the number of the next step."""

    session: str
    world: str
    state: State
    task: Task | None
    observation: str
    info: Mapping[str, Any]
    rewards: tuple[float | None, ...]
    step: int


@dataclass(frozen=True, slots=True)
class Status:
    """Live counts: open sessions by world, how many there may be, sessions created, steps taken, workers restarted."""

    sessions: Mapping[str, int]
    capacity: int
    created: int
    steps: int
    restarts: int = 0


class Host(Protocol):
    """Sessions of worlds.

    Every call but `worlds` and `status` is a coroutine and never blocks the event loop. Unknown, closed and reaped
    sessions raise SessionGone; what a world raises leaves as WorldError of some kind.
    """

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds served, by name: for panels, instructions, experts and scores."""
        ...

    async def create(self, world: str, *, short: bool = False) -> str:
        """A new session without an episode; its id is random (short: the decimal text of a 31-bit integer).

        Raises:
            ConfigError: a world that is not served, with the nearest name.
            AtCapacity: full. Never somebody else's session.
        """
        ...

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> Seen:
        """Begin (or begin again) an episode of this task; steps count from 0."""
        ...

    async def step(self, session: str, action: str, *, step: int | None = None) -> Stepped:
        """Take a step. The last step's number with the same action returns the stored answer and changes nothing.

        Raises:
            WrongStep: another number than the next one; `expected` holds it.
            SessionGone: before reset, or after the end of the episode.
            StepTimeout: the deadline passed; the session is lost.
            EnvLost: the Env or the worker that held it is gone.
        """
        ...

    async def steps(self, items: Sequence[StepItem]) -> list[Stepped | EvolventError]:
        """Many steps of different sessions at once; errors item by item, in the order of the items."""
        ...

    async def look(self, session: str) -> Look:
        """Where the session stands; changes nothing but renews its lease."""
        ...

    async def close(self, session: str) -> bool:
        """Give a session back; False where there is none any more."""
        ...

    def status(self) -> Status:
        """Live counts."""
        ...
