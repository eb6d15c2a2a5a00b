"""The session of one client at a host: one session of a world, its episode, and the choice of its task.

It is shared by the dialects without their own session ids (OpenEnv's sockets, MCP's sessions): one connection, one
client session. A session that the host has lost meanwhile (idle for too long, its worker gone) is replaced at the next
episode.
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
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import ResetResult, SessionHost, StepResult
from evolvent.serve.toolcalls import format_action, list_tools
from evolvent.serve.wire import replace_surrogates
from evolvent.trajectory import Task

__all__ = ["ClientSession", "ClientSessions", "TaskChoice", "choose_task", "count_train_tasks"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """The choice of an episode's task: its id, else its index in the task index, else the seed picks a task of
    train.

    seed: task number `seed % n` of the n tasks of train (in the order of the task index); also the seed of the reset.
    All None: any task of train, another each time.
    """

    task: str | None = None
    index: int | None = None
    seed: int | None = None


async def choose_task(task_index: TaskIndex, name: str, choice: TaskChoice, *, tiers: Sequence[str]) -> Task:
    """Returns the task of a choice.

    Args:
        name: name under which the world is served.
        tiers: tiers of the world.

    Raises:
        ConfigError: an id or index that the world does not have.
    """
    if choice.task is not None:
        return await task_index.get_by_id(name, choice.task)
    if choice.index is not None:
        return await task_index.get_by_index(name, choice.index)
    count = await count_train_tasks(task_index, name, tiers)
    index = secrets.randbelow(count) if choice.seed is None else choice.seed % count
    return await task_index.get_by_index(name, index)


async def count_train_tasks(task_index: TaskIndex, name: str, tiers: Sequence[str]) -> int:
    """Returns the number of tasks of train, which come first in the task index; of all tasks if train is empty."""
    panels = [await task_index.get_panel(name, "train", tier) for tier in tiers]
    count = sum(map(len, panels)) or await task_index.count_tasks(name)
    if not count:
        raise ConfigError(f"world {name!r} does not have tasks", value=0, expected="at least one")
    return count


class ClientSession:
    """The session of one client. Its calls are made one after another.

    Args:
        name: name under which the world is served.

    Attributes:
        session: session id of the host; None before `open` and after it was lost.
        task: task of the episode; None before the first episode, and after it was lost.
        steps: number of steps taken in the episode.
        fresh: whether no episode has started yet.
    """

    def __init__(self, host: SessionHost, task_index: TaskIndex, name: str) -> None:
        self.host, self.catalogue, self.name, self.world = host, task_index, name, host.worlds[name]
        self.session: str | None = None
        self.task: Task | None = None
        self.steps = 0
        self.fresh = True

    async def open(self) -> str:
        """Creates a session if there is none, and returns its id. Raises AtCapacity if the host is full."""
        if self.session is None:
            self.session = await self.host.create(self.name)
        return self.session

    async def begin(self, choice: TaskChoice) -> ResetResult:
        """Starts an episode, in a new session if the old one is gone.

        Raises:
            ConfigError: a task that the world does not have.
            WorldError: an error of the host.
        """
        task = await choose_task(self.catalogue, self.name, choice, tiers=self.world.tiers)
        self.task, self.fresh = None, False
        had_session = self.session is not None
        session = await self.open()
        try:
            reset_result = await self._close_if_lost(self.host.reset(session, task, seed=choice.seed))
        except (SessionGone, EnvLost):
            await self.close()
            if not had_session:
                raise
            reset_result = await self._close_if_lost(self.host.reset(await self.open(), task, seed=choice.seed))
        self.task, self.steps = task, 0
        return reset_result

    async def step(self, action: str) -> StepResult:
        """Plays a step of the episode.

        Raises:
            InvalidAction: text with halves of characters, which no world reads.
            SessionGone: no episode: not started, ended, or lost.
            StepTimeout, EnvLost: the episode is lost; `begin` another.
        """
        if replace_surrogates(action) != action:
            raise InvalidAction("text that is no Unicode", value=ascii(action), expected="no lone surrogates")
        if self.session is None or self.task is None:
            raise SessionGone("step was called before reset", value=action, expected="reset() first")
        result = await self._close_if_lost(self.host.step(self.session, action))
        self.steps = result.step + 1
        return result

    async def tools(self) -> tuple[Tool, ...]:
        """Returns the tools of the episode; before the first episode, those of the world's first task."""
        return list_tools(self.world, self.task or await self.catalogue.get_by_index(self.name, 0))

    async def call(self, call: Call) -> StepResult:
        """Plays a step by calling a tool.

        Raises:
            InvalidAction: no such tool, or arguments that cannot be written; no step was taken.
            WorldError: as `step` does.
        """
        return await self.step(format_action(self.world, call, await self.tools()))

    async def close(self) -> None:
        """Closes the session; a second call does nothing."""
        session, self.session, self.task = self.session, None, None
        if session is not None:
            await self.host.close(session)

    async def _close_if_lost(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except (EnvLost, StepTimeout):
            await self.close()
            raise


class ClientSessions:
    """Client sessions of one world by a key that its clients name; those unused for too long are closed.

    The host reaps sessions by its own lease; here only the mapping from keys to sessions ends.

    Args:
        idle_s: seconds that a client session is kept without use.
        clock: returns seconds, monotonic.
    """

    def __init__(
        self,
        host: SessionHost,
        task_index: TaskIndex,
        name: str,
        *,
        idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host, self.catalogue, self.name = host, task_index, name
        self._idle_s, self._clock = idle_s, clock
        self._held: dict[str, tuple[ClientSession, float]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._held)

    def create(self) -> ClientSession:
        """Creates a client session for one client; `keep` it, or close it."""
        return ClientSession(self.host, self.catalogue, self.name)

    def lock_for(self, key: str) -> asyncio.Lock:
        """Returns a lock held while an episode starts under a key: of two concurrent starts the second gets the same
        session.
        """
        return self._turns.setdefault(key, asyncio.Lock())

    def get(self, key: str) -> ClientSession | None:
        """Returns the client session of a key, None if there is none."""
        if key not in self._held:
            return None
        client_session, _ = self._held[key]
        self._held[key] = client_session, self._clock()
        return client_session

    async def keep(self, key: str, client_session: ClientSession) -> None:
        """Stores a client session, and closes those that were unused for too long. A previous one of the key is
        closed.
        """
        now = self._clock()
        for expired_key in [name for name, (_, used) in self._held.items() if now - used > self._idle_s]:
            await self.drop(expired_key)
        previous, _ = self._held.get(key, (client_session, now))
        self._held[key] = client_session, now
        if previous is not client_session:  # two beginnings at once: only the later one can be reached
            await previous.close()

    def forget(self, key: str) -> None:
        """Removes a key that no longer leads to a session; the session stays open."""
        self._held.pop(key, None)

    async def clear(self) -> None:
        """Closes all client sessions."""
        for key in list(self._held):
            await self.drop(key)

    async def drop(self, key: str) -> bool:
        """Closes a client session; returns False if there is none."""
        client_session, _ = self._held.pop(key, (None, 0.0))
        if client_session is not None:
            await client_session.close()
        return client_session is not None
