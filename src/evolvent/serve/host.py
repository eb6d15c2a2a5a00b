"""The interface that every dialect of a server calls: sessions of worlds, in this process or in worker processes.

A session is created for a world, reset to a task, stepped and closed. Dialects (native, AgentGym, OpenEnv, MCP)
translate their messages into these calls and the typed errors into their answers; no dialect touches an Env.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from evolvent.errors import EvolventError
from evolvent.trajectory import JsonObject, Task
from evolvent.worlds.base import World

__all__ = ["HostStatus", "ResetResult", "SessionHost", "SessionSnapshot", "SessionState", "StepRequest", "StepResult"]

SessionState = Literal["open", "running", "ended"]


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The first observation of an episode and its info (JSON values)."""

    observation: str
    info: JsonObject = field(default_factory=dict)


class StepResult(NamedTuple):
    """The answer to a step; `step` is the number of the step just taken, from 0.

    It is a tuple because one is made for every step: it costs a third of a frozen dataclass.
    """

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: JsonObject = MappingProxyType({})
    step: int = 0

    @property
    def is_done(self) -> bool:
        """Returns whether the episode has ended."""
        return self.terminated or self.truncated


class StepRequest(NamedTuple):
    """One step of a batch. step: its number, for safe repetition; None: the next step, whatever its number."""

    session: str
    action: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """The state of a session: the last observation, its rewards, the number of the next step."""

    session: str
    world: str
    state: SessionState
    task: Task | None
    observation: str
    info: JsonObject
    rewards: tuple[float | None, ...]
    step: int


@dataclass(frozen=True, slots=True)
class HostStatus:
    """Live counts: open sessions by world, their maximum, sessions created, steps taken, workers restarted."""

    sessions: Mapping[str, int]
    capacity: int
    created: int
    steps: int
    restarts: int = 0


class SessionHost(Protocol):
    """Sessions of worlds.

    Every call but `worlds` and `status` is a coroutine and never blocks the event loop. Unknown, closed and reaped
    sessions raise SessionGone; errors of a world leave as a subclass of WorldError.
    """

    @property
    def worlds(self) -> Mapping[str, World]:
        """Returns the served worlds by name: for panels, instructions, experts and scores."""
        ...

    async def create(self, world: str, *, short: bool = False) -> str:
        """Creates a session without an episode; its id is random (short: the decimal text of a 31-bit integer).

        Raises:
            ConfigError: a world that is not served, with the nearest name.
            AtCapacity: full. Another client's session is never given away.
        """
        ...

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> ResetResult:
        """Starts (or restarts) an episode of this task; steps count from 0."""
        ...

    async def step(self, session: str, action: str, *, step: int | None = None) -> StepResult:
        """Plays a step. The last step's number with the same action returns the stored answer and changes nothing.

        Raises:
            WrongStep: another number than the next one; `expected` holds it.
            SessionGone: before reset, or after the end of the episode.
            StepTimeout: the deadline passed; the session is lost.
            EnvLost: the Env or the worker that held it is gone.
        """
        ...

    async def steps(self, items: Sequence[StepRequest]) -> list[StepResult | EvolventError]:
        """Plays many steps of different sessions at once; returns results or errors in the order of the items."""
        ...

    async def look(self, session: str) -> SessionSnapshot:
        """Returns the state of the session; changes nothing but renews its lease."""
        ...

    async def close(self, session: str) -> bool:
        """Closes a session; returns False if it no longer exists."""
        ...

    def status(self) -> HostStatus:
        """Returns live counts."""
        ...
