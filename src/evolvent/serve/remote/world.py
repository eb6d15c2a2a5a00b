"""A world of another process or machine, used like any other: `RemoteWorld("http://127.0.0.1:8000")`.

The server keeps the environments, the panels, the expert and the score; nothing of it is computed here. All Envs of a
world share one WebSocket on a background thread, and what waits at the same moment travels together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

from evolvent.deadline import Deadline
from evolvent.errors import (
    ConfigError,
    EnvLost,
    EvolventError,
    InvalidAction,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    WorldError,
    unknown,
)
from evolvent.serve.host import StepItem
from evolvent.serve.loop import CLOSING_S, Loop
from evolvent.serve.remote.http import Peer, address
from evolvent.serve.remote.link import Link, Transport
from evolvent.serve.wire import Card, plain, score_of_row, task_of
from evolvent.trajectory import Score, Task, Value, canonical_json
from evolvent.worlds.base import Env, Info, Reply, check_task
from evolvent.worlds.grammar import Parsed
from evolvent.worlds.panel import check_names

__all__ = ["RemoteWorld", "remote_worlds"]

KNOWN_SCORES = 4096


class RemoteWorld:
    """A world that a server of the native dialect plays.

    Args:
        url: the server's address; it may name the world: `http://127.0.0.1:8000/v1/worlds/crafting`.
        world: which of the server's worlds; not needed where it serves one.
        token: what the server wants in the Authorization header. It is in no message, log or repr.
        timeout_s: for every call with all its tries. The default is below the deadlines of `rollout.Limits`, so that
            the error of this side is seen.
        transport: "ws", one WebSocket for all Envs; or "http", a request a call.
        heartbeat_s: a server that gives no sign of life is lost within three of these (with "http": one that refuses
            connections; an answer that never comes ends at `timeout_s`).

    Raises:
        ConfigError: an address that is none, or a world that is not served (with the nearest name).
        EnvLost: no server there; VersionMismatch: it speaks another version; AccessDenied: it wants another token.
        WorldError: something else answers there.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        *,
        world: str | None = None,
        token: str | None = None,
        timeout_s: float = 50.0,
        transport: Transport = "ws",
        heartbeat_s: float = 5.0,
    ) -> None:
        base, named = address(url)
        self.url, self._timeout_s, self._heartbeat_s = base, timeout_s, heartbeat_s
        self._link = Link(Peer(base, token), transport=transport, heartbeat_s=heartbeat_s)
        self._loop = Loop("evolvent-remote")
        self._tasks: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._experts: dict[str, tuple[Parsed, ...] | None] = {}
        self._scores: dict[str, Score] = {}
        self._words: tuple[tuple[str, ...] | None] | None = None
        try:
            greeting = Deadline(min(timeout_s, 3 * heartbeat_s))
            self._loop.run(self._link.open(greeting), greeting.total_s + CLOSING_S, what=f"a greeting to {base}")
            card = _chosen(self._link.cards, world or named, base)
        except EvolventError:
            self.close()
            raise
        self.name, self.version, self.instructions = card.name, card.version, card.instructions
        self.grammar, self.horizon = card.grammar, card.horizon
        self.reward_range, self.tiers = card.reward_range, card.tiers
        self._together = not card.blocking  # a batch is answered when its slowest step is

    def __repr__(self) -> str:
        return f"RemoteWorld({self.name!r} at {self.url})"

    def __enter__(self) -> RemoteWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; Envs that are still open are lost. A second time does nothing."""
        if self._loop.running:
            with suppress(StepTimeout):  # the loop takes with it what does not go by itself
                self._loop.run(self._link.close(), CLOSING_S, what="closing")
        self._loop.close()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split and tier, fetched once."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._tasks:
            rows = self._get("tasks", "tasks", query=f"?{urlencode({'split': split, 'tier': tier})}")
            self._tasks[split, tier] = tuple(self._task(row, split, tier) for row in self._listed(rows, dict))
        return self._tasks[split, tier]

    def make(self, task: Task) -> Env:
        """An Env at the server; nothing is asked of it before `reset`."""
        check_task(self, task)
        return _RemoteEnv(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """The score as the server computes it; asked once for equal rewards and info."""
        body = {"rewards": plain(rewards), "info": plain(info)}
        key = hashlib.sha256(canonical_json(body).encode()).hexdigest()
        if key not in self._scores:
            # Asked on the thread that drives all episodes: a lost server must not hold it up for long.
            deadline = Deadline(min(self._timeout_s, 3 * self._heartbeat_s))
            row = self._run(self._link.score(self.name, body, deadline=deadline), deadline)
            while len(self._scores) >= KNOWN_SCORES:
                self._scores.pop(next(iter(self._scores)), None)
            self._scores[key] = self._read(score_of_row, row)
        return self._scores[key]

    def expert(self, task: Task) -> Sequence[str] | None:
        """The expert's actions, asked once for each task. ConfigError for a task of none of the server's panels."""
        moves = self._moves(task)
        return None if moves is None else tuple(move.action for move in moves)

    def explained(self, task: Task) -> Sequence[Parsed] | None:
        """The same with the expert's thoughts; None where the world does not explain it. Raises as `expert`."""
        moves = self._moves(task)
        return moves if moves and any(move.thought for move in moves) else None

    def vocabulary(self) -> Sequence[str] | None:
        """The words of the world, asked once."""
        if self._words is None:
            rows = self._get("vocabulary", "words")
            self._words = (None if rows is None else tuple(self._listed(rows, str)),)
        return self._words[0]

    def _moves(self, task: Task) -> tuple[Parsed, ...] | None:
        """What the expert does, asked once for each task."""
        check_task(self, task)
        if task.id not in self._experts:
            row = self._page(f"tasks/{task.id}/expert", "actions")
            actions = None if row["actions"] is None else self._listed(row["actions"], str)
            thoughts = self._listed(row.get("thoughts") or [None] * len(actions or ()), (str, type(None)))
            if actions is not None and len(thoughts) != len(actions):
                raise self._link.peer.unreadable(self.url, str(row), "another number of thoughts than of actions")
            self._experts[task.id] = None if actions is None else tuple(map(Parsed, actions, thoughts))
        return self._experts[task.id]

    def _run(self, work: Any, deadline: Deadline) -> Any:
        """A coroutine of the link, which keeps to its deadline by itself; the loop's own limit is a second net."""
        return self._loop.run(work, deadline.total_s + CLOSING_S, what=f"a call to {self.url}")

    def _page(self, page: str, key: str, *, query: str = "") -> Mapping[str, Any]:
        """An answer that holds this key."""
        deadline = Deadline(self._timeout_s)
        path = f"/v1/worlds/{quote(self.name, safe='')}/{page}{query}"
        row = self._run(self._link.get(path, deadline=deadline), deadline)
        if not isinstance(row, Mapping) or key not in row:
            raise self._link.peer.unreadable(f"GET {self.url}{path}", str(row), f"an answer without {key!r}")
        return row

    def _get(self, page: str, key: str, *, query: str = "") -> Any:
        return self._page(page, key, query=query)[key]

    def _listed(self, rows: Any, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
        if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
            name = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
            raise self._link.peer.unreadable(self.url, str(rows), f"something else than a list of {name}")
        return rows

    def _task(self, row: Any, split: str, tier: str) -> Task:
        task: Task = self._read(task_of, row)
        check_task(self, task)
        if (task.split, task.tier) != (split, tier):
            raise WorldError(
                f"{self.url}: a task of another panel", value=f"{task.split}/{task.tier}", expected=f"{split}/{tier}"
            )
        return task

    def _read(self, read: Any, row: Any) -> Any:
        try:
            return read(row)
        except SampleInvalid as error:
            raise self._link.peer.unreadable(self.url, str(row), error.what) from error


def _chosen(cards: Mapping[str, Card], name: str | None, base: str) -> Card:
    """The card of the world that is meant."""
    if name is None and len(cards) == 1:
        return next(iter(cards.values()))
    if name is None:
        raise ConfigError(
            f"{base} serves {len(cards)} worlds", value=", ".join(sorted(cards)), hint="say which: world=..."
        )
    if name not in cards:
        raise ConfigError([unknown("world", name, cards, where=base)])
    return cards[name]


class _RemoteEnv:
    """One session of the server. Steps are numbered, so that one that is sent again is taken once."""

    def __init__(self, world: RemoteWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._session: str | None = None
        self._over, self._lost = True, ""
        self._rewards: list[float | None] = []
        self._number = 0  # of the next step, as the server counts
        self._info: Info = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """A new session of the task; one that was open before is given back."""
        self.close()
        deadline = Deadline(self._world._timeout_s)
        created = self._world._link.create(self._task, seed=seed, deadline=deadline)
        self._session, seen = self._world._run(created, deadline)
        self._over, self._lost, self._rewards = False, "", []
        self._number, self._info = 0, seen.info
        return seen.observation, seen.info

    def step(self, action: Value) -> Reply:
        """Take a step. Raises EnvLost, StepTimeout or LimitExceeded: the episode cannot go on after them."""
        if self._lost:
            raise EnvLost("the environment was lost before", value=self._lost, hint="reset() first")
        if self._session is None or self._over:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        if not isinstance(action, str):
            raise ConfigError("an action that is no text", value=type(action).__name__, expected="text")
        deadline = Deadline(self._world._timeout_s)
        item = StepItem(self._session, action, self._number)
        work = self._world._link.step(item, together=self._world._together, deadline=deadline)
        try:
            stepped = self._world._run(work, deadline)
        except InvalidAction as error:  # no world would have understood it: the agent's mistake, and nothing was done
            self._rewards.append(0.0)
            return str(error), 0.0, False, False, {**self._info, "invalid": True}
        except EvolventError as error:
            self._lost = str(error)
            if isinstance(error, EnvLost):
                self._session = None  # there is nobody to give it back to
            raise
        self._rewards.append(stepped.reward)
        self._number, self._info = self._number + 1, stepped.info
        if stepped.done:
            self._over = True
            self._foresee(stepped.info)
        return stepped.observation, stepped.reward, stepped.terminated, stepped.truncated, stepped.info

    def close(self) -> None:
        """Give the session back; if that fails, the server does it when nobody has asked for it for a while."""
        session, self._session = self._session, None
        self._over = True
        if session is None or not self._world._loop.running:
            return
        deadline = Deadline(min(self._world._timeout_s, self._world._heartbeat_s))
        with suppress(EvolventError):
            self._world._run(self._world._link.release(session, deadline), deadline)

    def _foresee(self, info: Info) -> None:
        """Ask for the score here, on the thread of the episode: whoever collects asks on the thread of all episodes."""
        with suppress(EvolventError):  # who wants the score asks again, and hears it
            self._world.score(self._rewards, info)


def remote_worlds(
    url: str,
    names: Sequence[str] | None = None,
    *,
    token: str | None = None,
    timeout_s: float = 50.0,
    transport: Transport = "ws",
    heartbeat_s: float = 5.0,
) -> dict[str, RemoteWorld]:
    """Worlds of a server by name, each with a connection of its own; all that it serves, or those named.

    Raises as `RemoteWorld` does; then no connection stays open.
    """
    base, _ = address(url)
    worlds: dict[str, RemoteWorld] = {}
    try:
        for name in _served(base, token, heartbeat_s) if names is None else names:
            worlds[name] = RemoteWorld(
                base, world=name, token=token, timeout_s=timeout_s, transport=transport, heartbeat_s=heartbeat_s
            )
    except EvolventError:
        for world in worlds.values():
            world.close()
        raise
    return worlds


def _served(base: str, token: str | None, heartbeat_s: float) -> list[str]:
    """The names of a server's worlds, in its order."""
    loop, link = Loop("evolvent-names"), Link(Peer(base, token), transport="http", heartbeat_s=heartbeat_s)
    try:
        deadline = Deadline(3 * heartbeat_s)
        loop.run(link.open(deadline), deadline.total_s + CLOSING_S, what=f"a greeting to {base}")
        loop.run(link.close(), CLOSING_S, what="closing")
    finally:
        loop.close()
    return list(link.cards)
