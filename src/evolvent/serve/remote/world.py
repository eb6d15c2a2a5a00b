"""A world of another process or machine, used like any other: `RemoteWorld("http://127.0.0.1:8000")`.

The server keeps the environments, the panels, the expert and the score; nothing is computed here. All Envs of a world
share one WebSocket on a background thread, and calls that wait at the same moment are sent together.
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
    unknown_name_problem,
)
from evolvent.serve.host import StepRequest
from evolvent.serve.loop import CLOSE_TIMEOUT_S, Loop
from evolvent.serve.remote.http import ServerPeer, parse_server_url
from evolvent.serve.remote.link import RemoteConnection, Transport
from evolvent.serve.wire import WorldCard, decode_score, decode_task, to_json
from evolvent.trajectory import Score, Task, Value, canonical_json
from evolvent.worlds.base import Env, Info, Parsed, Reply, check_task
from evolvent.worlds.panel import check_names

__all__ = ["RemoteWorld", "remote_worlds"]

MAX_CACHED_SCORES = 4096


class RemoteWorld:
    """A world that a server of the native dialect runs.

    Args:
        url: address of the server; it may name the world: `http://127.0.0.1:8000/v1/worlds/crafting`.
        world: name of the world on the server; not needed if the server has one.
        token: token for the Authorization header. It appears in no message, log or repr.
        timeout_s: seconds for every call with all its tries. The default is below the deadlines of
            `worlds.base.Limits`, so that the error of this side is seen.
        transport: "ws", one WebSocket for all Envs; or "http", a request a call.
        heartbeat_s: a silent server is lost within three of these (with "http": a server that refuses connections; an
            answer that never comes ends at `timeout_s`).

    Raises:
        ConfigError: an invalid address, or a world that is not served (with the nearest name).
        EnvLost: no server there; VersionMismatch: it has another version; AccessDenied: it needs another token.
        WorldError: another kind of server answers there.
    """

    run_in_thread = True

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
        base, url_world = parse_server_url(url)
        self.url, self._timeout_s, self._heartbeat_s = base, timeout_s, heartbeat_s
        self._link = RemoteConnection(ServerPeer(base, token), transport=transport, heartbeat_s=heartbeat_s)
        self._loop = Loop("evolvent-remote")
        self._tasks: dict[tuple[str, str], tuple[Task, ...]] = {}
        self._experts: dict[str, tuple[Parsed, ...] | None] = {}
        self._scores: dict[str, Score] = {}
        self._words: tuple[tuple[str, ...] | None] | None = None
        try:
            greeting = Deadline(min(timeout_s, 3 * heartbeat_s))
            self._loop.run(self._link.open(greeting), greeting.total_s + CLOSE_TIMEOUT_S, label=f"a greeting to {base}")
            card = _select_card(self._link.cards, world or url_world, base)
        except EvolventError:
            self.close()
            raise
        self.name, self.version, self.instructions = card.name, card.version, card.instructions
        self.grammar, self.horizon = card.grammar, card.horizon
        self.reward_range, self.tiers = card.reward_range, card.tiers
        self._together = not card.run_in_thread  # a batch is answered when its slowest step is

    def __repr__(self) -> str:
        return f"RemoteWorld({self.name!r} at {self.url})"

    def __enter__(self) -> RemoteWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; Envs that are still open are lost. A second call does nothing."""
        if self._loop.is_running:
            with suppress(StepTimeout):  # the loop takes with it what does not go by itself
                self._loop.run(self._link.close(), CLOSE_TIMEOUT_S, label="closing")
        self._loop.close()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of a split and tier, fetched once."""
        check_names(split, tier, self.tiers)
        if (split, tier) not in self._tasks:
            rows = self._fetch_field("tasks", "tasks", query=f"?{urlencode({'split': split, 'tier': tier})}")
            self._tasks[split, tier] = tuple(
                self._decode_panel_task(row, split, tier) for row in self._check_list(rows, dict)
            )
        return self._tasks[split, tier]

    def make(self, task: Task) -> Env:
        """Creates an Env at the server; nothing is sent before `reset`."""
        check_task(self, task)
        return _RemoteEnv(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Returns the server's score; requested once for equal rewards and info."""
        body = {"rewards": to_json(rewards), "info": to_json(info)}
        key = hashlib.sha256(canonical_json(body).encode()).hexdigest()
        if key not in self._scores:
            # Asked on the thread that drives all episodes: a lost server must not hold it up for long.
            deadline = Deadline(min(self._timeout_s, 3 * self._heartbeat_s))
            row = self._run_call(self._link.score(self.name, body, deadline=deadline), deadline)
            while len(self._scores) >= MAX_CACHED_SCORES:
                self._scores.pop(next(iter(self._scores)), None)
            self._scores[key] = self._decode_row(decode_score, row)
        return self._scores[key]

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the expert's actions, requested once for each task. Raises ConfigError for a task in no panel of
        the server.
        """
        moves = self._fetch_moves(task)
        return None if moves is None else tuple(move.action for move in moves)

    def explain(self, task: Task) -> Sequence[Parsed] | None:
        """Returns the expert's actions with its thoughts; None if the world does not explain it. Raises as `expert`."""
        moves = self._fetch_moves(task)
        return moves if moves and any(move.thought for move in moves) else None

    def vocabulary(self) -> Sequence[str] | None:
        """Returns the words of the world, requested once."""
        if self._words is None:
            rows = self._fetch_field("vocabulary", "words")
            self._words = (None if rows is None else tuple(self._check_list(rows, str)),)
        return self._words[0]

    def _fetch_moves(self, task: Task) -> tuple[Parsed, ...] | None:
        """Returns the expert's moves, requested once for each task."""
        check_task(self, task)
        if task.id not in self._experts:
            row = self._fetch_page(f"tasks/{task.id}/expert", "actions")
            actions = None if row["actions"] is None else self._check_list(row["actions"], str)
            thoughts = self._check_list(row.get("thoughts") or [None] * len(actions or ()), (str, type(None)))
            if actions is not None and len(thoughts) != len(actions):
                raise self._link.peer.answer_error(
                    self.url, str(row), "the number of thoughts differs from the actions"
                )
            self._experts[task.id] = None if actions is None else tuple(map(Parsed, actions, thoughts))
        return self._experts[task.id]

    def _run_call(self, coroutine: Any, deadline: Deadline) -> Any:
        """Runs a coroutine of the connection, which keeps to its own deadline; the loop's limit is a second one."""
        return self._loop.run(coroutine, deadline.total_s + CLOSE_TIMEOUT_S, label=f"a call to {self.url}")

    def _fetch_page(self, page: str, key: str, *, query: str = "") -> Mapping[str, Any]:
        """Returns an answer that holds this key."""
        deadline = Deadline(self._timeout_s)
        path = f"/v1/worlds/{quote(self.name, safe='')}/{page}{query}"
        row = self._run_call(self._link.get(path, deadline=deadline), deadline)
        if not isinstance(row, Mapping) or key not in row:
            raise self._link.peer.answer_error(f"GET {self.url}{path}", str(row), f"the answer lacks {key!r}")
        return row

    def _fetch_field(self, page: str, key: str, *, query: str = "") -> Any:
        return self._fetch_page(page, key, query=query)[key]

    def _check_list(self, rows: Any, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
        if not isinstance(rows, list) or not all(isinstance(row, kind) for row in rows):
            name = (
                kind.__name__
                if isinstance(kind, type)
                else " or ".join(element_class.__name__ for element_class in kind)
            )
            raise self._link.peer.answer_error(self.url, str(rows), f"the answer is not a list of {name}")
        return rows

    def _decode_panel_task(self, row: Any, split: str, tier: str) -> Task:
        task: Task = self._decode_row(decode_task, row)
        check_task(self, task)
        if (task.split, task.tier) != (split, tier):
            raise WorldError(
                f"{self.url}: the task belongs to another panel",
                value=f"{task.split}/{task.tier}",
                expected=f"{split}/{tier}",
            )
        return task

    def _decode_row(self, decoder: Any, row: Any) -> Any:
        try:
            return decoder(row)
        except SampleInvalid as error:
            raise self._link.peer.answer_error(self.url, str(row), error.what) from error


def _select_card(cards: Mapping[str, WorldCard], name: str | None, base: str) -> WorldCard:
    """Returns the card of the requested world."""
    if name is None and len(cards) == 1:
        return next(iter(cards.values()))
    if name is None:
        raise ConfigError(
            f"{base} serves {len(cards)} worlds", value=", ".join(sorted(cards)), hint="set world=... to one of them"
        )
    if name not in cards:
        raise ConfigError([unknown_name_problem("world", name, cards, location=base)])
    return cards[name]


class _RemoteEnv:
    """One session of the server. Steps are numbered, so that a repeated step is taken once."""

    def __init__(self, world: RemoteWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._session: str | None = None
        self._over, self._lost = True, ""
        self._rewards: list[float | None] = []
        self._number = 0  # of the next step, as the server counts
        self._info: Info = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts a new session of the task; an open session is closed first."""
        self.close()
        deadline = Deadline(self._world._timeout_s)
        coroutine = self._world._link.create(self._task, seed=seed, deadline=deadline)
        self._session, reset_result = self._world._run_call(coroutine, deadline)
        self._over, self._lost, self._rewards = False, "", []
        self._number, self._info = 0, reset_result.info
        return reset_result.observation, reset_result.info

    def step(self, action: Value) -> Reply:
        """Plays a step. Raises EnvLost, StepTimeout or LimitExceeded: the episode cannot go on after them."""
        if self._lost:
            raise EnvLost("the environment is lost", value=self._lost, hint="reset() first")
        if self._session is None or self._over:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        if not isinstance(action, str):
            raise ConfigError("the action is not text", value=type(action).__name__, expected="text")
        deadline = Deadline(self._world._timeout_s)
        item = StepRequest(self._session, action, self._number)
        coroutine = self._world._link.step(item, batched=self._world._together, deadline=deadline)
        try:
            result = self._world._run_call(coroutine, deadline)
        except InvalidAction as error:  # no world would have understood it: the agent's mistake, and nothing was done
            self._rewards.append(0.0)
            return str(error), 0.0, False, False, {**self._info, "invalid": True}
        except EvolventError as error:
            self._lost = str(error)
            if isinstance(error, EnvLost):
                self._session = None  # there is nobody to give it back to
            raise
        self._rewards.append(result.reward)
        self._number, self._info = self._number + 1, result.info
        if result.is_done:
            self._over = True
            self._prefetch_score(result.info)
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    def close(self) -> None:
        """Closes the session; if that fails, the server closes it when it was idle for too long."""
        session, self._session = self._session, None
        self._over = True
        if session is None or not self._world._loop.is_running:
            return
        deadline = Deadline(min(self._world._timeout_s, self._world._heartbeat_s))
        with suppress(EvolventError):
            self._world._run_call(self._world._link.release(session, deadline), deadline)

    def _prefetch_score(self, info: Info) -> None:
        """Computes the score here, on the thread of the episode: a collector would ask on the thread of all
        episodes.
        """
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
    """Returns worlds of a server by name, each with its own connection; all served worlds, or the named ones.

    Raises as `RemoteWorld` does; then no connection stays open.
    """
    base, _ = parse_server_url(url)
    worlds: dict[str, RemoteWorld] = {}
    try:
        for name in _list_served(base, token, heartbeat_s) if names is None else names:
            worlds[name] = RemoteWorld(
                base, world=name, token=token, timeout_s=timeout_s, transport=transport, heartbeat_s=heartbeat_s
            )
    except EvolventError:
        for world in worlds.values():
            world.close()
        raise
    return worlds


def _list_served(base: str, token: str | None, heartbeat_s: float) -> list[str]:
    """Returns the names of a server's worlds, in its order."""
    loop, connection = (
        Loop("evolvent-names"),
        RemoteConnection(ServerPeer(base, token), transport="http", heartbeat_s=heartbeat_s),
    )
    try:
        deadline = Deadline(3 * heartbeat_s)
        loop.run(connection.open(deadline), deadline.total_s + CLOSE_TIMEOUT_S, label=f"a greeting to {base}")
        loop.run(connection.close(), CLOSE_TIMEOUT_S, label="closing")
    finally:
        loop.close()
    return list(connection.cards)
