"""A client's seat at a host: one session of a world, the episode played there, and how its task is chosen.

What the faces without session ids of their own share (OpenEnv's sockets, MCP's sessions): one connection, one seat. A
session that the host has lost meanwhile (idle for too long, its worker gone) is replaced at the next beginning.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

from evolvent.errors import ConfigError, EnvLost, InvalidAction, SessionGone, StepTimeout
from evolvent.messages import Call, Tool
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host, Seen, Stepped
from evolvent.serve.toolcalls import action_of, tools_of
from evolvent.serve.wire import text_of
from evolvent.trajectory import Task

__all__ = ["Choice", "Seat", "Seats", "choose", "trained"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which task an episode is of: its id, else its index in the catalogue, else the seed picks a task of train.

    seed: task number `seed % n` of the n tasks of train (in the order of the catalogue); also the seed of the reset.
    All None: any task of train, another each time.
    """

    task: str | None = None
    index: int | None = None
    seed: int | None = None


async def choose(catalogue: Catalogue, name: str, choice: Choice, *, tiers: Sequence[str]) -> Task:
    """The task of a choice.

    Args:
        name: under which the world is served.
        tiers: those of the world.

    Raises:
        ConfigError: an id or index that the world does not have.
    """
    if choice.task is not None:
        return await catalogue.task(name, choice.task)
    if choice.index is not None:
        return await catalogue.at(name, choice.index)
    count = await trained(catalogue, name, tiers)
    index = secrets.randbelow(count) if choice.seed is None else choice.seed % count
    return await catalogue.at(name, index)


async def trained(catalogue: Catalogue, name: str, tiers: Sequence[str]) -> int:
    """How many tasks of train there are, which come first in the catalogue; of all where there are none for train."""
    panels = [await catalogue.panel(name, "train", tier) for tier in tiers]
    count = sum(map(len, panels)) or await catalogue.count(name)
    if not count:
        raise ConfigError(f"the world {name!r} has no tasks", value=0, expected="at least one")
    return count


class Seat:
    """One client's place. Its calls are made one after another.

    Args:
        name: under which the world is served.

    Attributes:
        session: of the host; None before `open` and where it was lost.
        task: of the episode; None before the first, and where it was lost.
        steps: taken in the episode.
        fresh: no episode was begun yet.
    """

    def __init__(self, host: Host, catalogue: Catalogue, name: str) -> None:
        self.host, self.catalogue, self.name, self.world = host, catalogue, name, host.worlds[name]
        self.session: str | None = None
        self.task: Task | None = None
        self.steps = 0
        self.fresh = True

    async def open(self) -> str:
        """Take a session; its id. Raises AtCapacity where the host is full."""
        if self.session is None:
            self.session = await self.host.create(self.name)
        return self.session

    async def begin(self, choice: Choice) -> Seen:
        """Begin an episode, in a new session where the old one is gone.

        Raises:
            ConfigError: a task that the world does not have.
            WorldError: of some kind: what the host raises.
        """
        task = await choose(self.catalogue, self.name, choice, tiers=self.world.tiers)
        self.task, self.fresh = None, False
        held = self.session is not None
        session = await self.open()
        try:
            seen = await self._kept(self.host.reset(session, task, seed=choice.seed))
        except (SessionGone, EnvLost):
            await self.close()
            if not held:
                raise
            seen = await self._kept(self.host.reset(await self.open(), task, seed=choice.seed))
        self.task, self.steps = task, 0
        return seen

    async def step(self, action: str) -> Stepped:
        """Take a step of the episode.

        Raises:
            InvalidAction: text with halves of characters, which no world reads.
            SessionGone: no episode: not begun, ended, or lost.
            StepTimeout, EnvLost: the episode is lost; `begin` another.
        """
        if text_of(action) != action:
            raise InvalidAction("text that is no Unicode", value=ascii(action), expected="no lone surrogates")
        if self.session is None or self.task is None:
            raise SessionGone("a step without an episode", value=action, expected="a reset first")
        stepped = await self._kept(self.host.step(self.session, action))
        self.steps = stepped.step + 1
        return stepped

    async def tools(self) -> tuple[Tool, ...]:
        """The tools of the episode; before one, those of the world's first task."""
        return tools_of(self.world, self.task or await self.catalogue.at(self.name, 0))

    async def call(self, call: Call) -> Stepped:
        """Take a step by calling a tool.

        Raises:
            InvalidAction: no such tool, or arguments that cannot be written; no step was taken.
            WorldError: as `step` does.
        """
        return await self.step(action_of(self.world, call, await self.tools()))

    async def close(self) -> None:
        """Give the session back; a second time does nothing."""
        session, self.session, self.task = self.session, None, None
        if session is not None:
            await self.host.close(session)

    async def _kept(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except (EnvLost, StepTimeout):
            await self.close()
            raise


class Seats:
    """Seats of one world by a key that its clients name; those unused for too long are given back.

    The host reaps sessions by its own lease; here only the memory of them ends.

    Args:
        idle_s: how long a seat is remembered without use.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        host: Host,
        catalogue: Catalogue,
        name: str,
        *,
        idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host, self.catalogue, self.name = host, catalogue, name
        self._idle_s, self._clock = idle_s, clock
        self._held: dict[str, tuple[Seat, float]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._held)

    def new(self) -> Seat:
        """A seat that nobody else has; `keep` it, or close it."""
        return Seat(self.host, self.catalogue, self.name)

    def turn(self, key: str) -> asyncio.Lock:
        """Held while an episode is begun under a key: of two beginnings at once one waits, and gets the same seat."""
        return self._turns.setdefault(key, asyncio.Lock())

    def get(self, key: str) -> Seat | None:
        """The seat of a key, None where there is none (any more)."""
        if key not in self._held:
            return None
        seat, _ = self._held[key]
        self._held[key] = seat, self._clock()
        return seat

    async def keep(self, key: str, seat: Seat) -> None:
        """Remember a seat, and forget those that were not used for long. Another one of the key is given back."""
        now = self._clock()
        for old in [name for name, (_, used) in self._held.items() if now - used > self._idle_s]:
            await self.drop(old)
        before, _ = self._held.get(key, (seat, now))
        self._held[key] = seat, now
        if before is not seat:  # two beginnings at once: only the later one can be reached
            await before.close()

    def forget(self, key: str) -> None:
        """Another key leads to the seat now."""
        self._held.pop(key, None)

    async def clear(self) -> None:
        """Give all seats back."""
        for key in list(self._held):
            await self.drop(key)

    async def drop(self, key: str) -> bool:
        """Give a seat back; False where there is none."""
        seat, _ = self._held.pop(key, (None, 0.0))
        if seat is not None:
            await seat.close()
        return seat is not None
