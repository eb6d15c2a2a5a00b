"""The calls of a remote world to its server, with retries and deadlines.

Each call has one deadline over all its tries. Calls that are safe to repeat are repeated with pauses: opening a
session, reading panels, closing. A step is repeated because it carries its number, so that a server that has taken it
answers from its record; but only in the same session, and only if the server can be reached again within one
heartbeat. With the two heartbeats after which a silent connection counts as lost, a lost server is known within three.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from evolvent.deadline import Deadline, backoff
from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    LimitExceeded,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    VersionMismatch,
    WorldError,
    boundary,
)
from evolvent.serve.host import ResetResult, StepRequest, StepResult
from evolvent.serve.remote.http import MAX_PANEL_BYTES, AnswerTooLarge, ConnectionLost, HttpClient, ServerPeer
from evolvent.serve.remote.socket import MAX_MESSAGE_BYTES, SocketClient
from evolvent.serve.wire import (
    PROTOCOL,
    NotFound,
    WireValue,
    WorldCard,
    decode_reset,
    decode_step,
    decode_world_card,
    encode_task,
)
from evolvent.trajectory import Task

__all__ = ["MAX_TEXT_CHARS", "RemoteConnection", "Transport"]

Transport = Literal["ws", "http"]
MAX_TEXT_CHARS = 1 << 20  # characters of one observation
MAX_BATCH_STEPS = 256  # steps in one message
MAX_RECONNECTS = 3  # how often one step may survive the loss of its connection
T = TypeVar("T")


class RemoteConnection:
    """The connection to one server. All coroutines run on one event loop; `open` comes first, `close` last.

    Args:
        peer: the server.
        transport: how sessions are stepped: over one WebSocket, or by requests over HTTP. Everything else is HTTP.
        heartbeat_s: see the module's text.
        rng: random numbers of the pauses between tries.
    Attributes:
        cards: the server's worlds at the last greeting, by name.
    """

    def __init__(
        self, peer: ServerPeer, *, transport: Transport = "ws", heartbeat_s: float = 5.0, rng: Random | None = None
    ) -> None:
        if transport not in ("ws", "http"):
            raise ConfigError("unknown transport", value=transport, expected="ws or http")
        self.peer, self.cards = peer, dict[str, WorldCard]()
        self._heartbeat_s, self._rng = heartbeat_s, rng or Random()
        self._http = HttpClient(peer, connect_s=heartbeat_s)
        self._socket = SocketClient(peer, heartbeat_s=heartbeat_s) if transport == "ws" else None
        self._greeted = False
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: list[tuple[StepRequest, asyncio.Future[Any]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self, deadline: Deadline) -> None:
        """Reads the server's version and worlds. Raises VersionMismatch, EnvLost (nobody there), AccessDenied,
        WorldError.
        """
        self._keeper = self._keeper or asyncio.create_task(self._hold_connections())
        await self.retry(self._greet, f"a greeting to {self.peer.base}", deadline)

    async def close(self) -> None:
        """Closes the connections; sessions stay with the server until they are closed or idle for too long."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _hold_connections(self) -> None:
        """Keeps the connections until it is cancelled: by `close`, or by the end of a garbage-collected loop."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._socket is not None:
                await self._socket.close()
            await self._http.close()

    async def get(self, path: str, *, deadline: Deadline) -> WireValue:
        """Returns the body of a page of the server, such as a panel."""
        return await self.retry(lambda: self._http.ask("GET", path, limit=MAX_PANEL_BYTES), f"GET {path}", deadline)

    async def score(self, world: str, body: Mapping[str, object], *, deadline: Deadline) -> WireValue:
        """Returns the score of an episode, which the server computes and does not store."""
        path = f"/v1/worlds/{quote(world, safe='')}/score"
        return await self.retry(lambda: self._http.ask("POST", path, body), f"POST {path}", deadline)

    async def create(self, task: Task, *, seed: int | None, deadline: Deadline) -> tuple[str, ResetResult]:
        """Creates a session for a task, and returns it with its first observation. A full server is retried.

        A session whose answer was lost stays with the server until it was idle for too long.
        """

        async def call() -> tuple[str, ResetResult]:
            if not self._greeted or (self._socket is not None and self._socket.is_lost):
                await self._greet()
            self._check_version(task)
            try:
                row = await self._send_create({"world": task.world, "task": task.id, "seed": seed})
            except NotFound:  # no task of its panels: it may know what to do with a whole one
                row = await self._send_create({"world": task.world, "task": encode_task(task), "seed": seed})
            session = row.get("session") if isinstance(row, Mapping) else None
            if not isinstance(session, str) or not session:
                raise self._answer_error("a session without an id", row)
            reset_result = self._decode_part(decode_reset, row)
            self._check_size(reset_result.observation)
            return session, reset_result

        return await self.retry(call, f"a session of {task.world!r}", deadline)

    async def release(self, session: str, deadline: Deadline) -> None:
        """Closes a session."""

        async def call() -> Any:
            if self._socket is not None:
                return await self._socket.ask("close", {"session": session})
            return await self._http.ask("DELETE", f"/v1/sessions/{quote(session, safe='')}")

        await self.retry(call, "closing a session", deadline)

    async def step(self, item: StepRequest, *, batched: bool, deadline: Deadline) -> StepResult:
        """Plays a step.

        Args:
            item: a step with a number.
            batched: send it in one message with other steps that wait at this moment. They are answered together, so
                this is for worlds whose steps are fast.
        Raises:
            StepTimeout: no answer before the deadline.
            EnvLost: the server cannot be reached, or it has lost the session.
            LimitExceeded: an observation larger than `MAX_TEXT_CHARS`.
        """
        try:
            async with asyncio.timeout(deadline.left()):
                return await self._step_with_reconnects(item, batched=batched)
        except TimeoutError:
            message = f"step {item.step} at {self.peer.base}: no answer before the deadline of {deadline.total_s:g} s"
            raise StepTimeout(message) from None
        except SessionGone as error:
            hint = "create a new session; the old one expired or the server restarted"
            raise EnvLost(f"{self.peer.base} has lost the session: {error.what}", hint=hint) from error

    async def retry(self, call: Callable[[], Awaitable[T]], label: str, deadline: Deadline) -> T:
        """Returns the value of a call that is safe to repeat: tried until it is answered, or the deadline leaves no
        time.

        Raises:
            EnvLost: the server could not be reached.
            AtCapacity: it stayed full.
            StepTimeout: it did not answer.
        """
        problem: WorldError | None = None
        for attempt in itertools.count():
            try:
                async with asyncio.timeout(deadline.left()):
                    return await call()
            except AnswerTooLarge as error:
                raise LimitExceeded(error.what, value=error.value, expected=error.expected) from error
            except TimeoutError:
                if problem is not None:  # what went wrong until then says more
                    raise self._final_error(problem, deadline) from problem
                raise StepTimeout(f"{label}: no answer before the deadline of {deadline.total_s:g} s") from None
            except (ConnectionLost, AtCapacity) as error:
                problem = error
            pause = backoff(attempt, self._rng)
            if isinstance(problem, AtCapacity):
                pause += problem.retry_after_s
            else:
                self._greeted = False
            if pause >= deadline.left():
                raise self._final_error(problem, deadline) from problem
            await asyncio.sleep(pause)
        raise WorldError("no attempt was made", value=label)

    def _final_error(self, problem: WorldError, deadline: Deadline) -> WorldError:
        if isinstance(problem, AtCapacity):
            message = f"{self.peer.base} stayed full for {deadline.total_s:g} s; open fewer sessions at once"
            return AtCapacity(message, retry_after_s=problem.retry_after_s)
        return EnvLost(f"no server at {self.peer.base} after {deadline.total_s:g} s", value=str(problem))

    async def _greet(self) -> None:
        """Checks that both sides have one protocol version, and reads the cards of the worlds."""
        greeting = await self._http.ask("GET", "/v1")
        server_version = greeting.get("protocol") if isinstance(greeting, Mapping) else None
        if not isinstance(server_version, int) or isinstance(server_version, bool):
            raise self._answer_error("the server does not speak the native dialect", greeting)
        if server_version != PROTOCOL:
            raise VersionMismatch(
                f"{self.peer.base} uses another protocol version",
                value=server_version,
                expected=PROTOCOL,
                hint="install the same version of evolvent on both sides",
            )
        rows = await self._http.ask("GET", "/v1/worlds", limit=MAX_PANEL_BYTES)
        worlds = rows.get("worlds") if isinstance(rows, Mapping) else None
        if not isinstance(worlds, list):
            raise self._answer_error("the answer is not a list of worlds", rows)
        cards = [self._decode_part(decode_world_card, row) for row in worlds]
        self.cards, self._greeted = {card.name: card for card in cards}, True

    def _check_version(self, task: Task) -> None:
        """Checks the world's version: a restarted server may have another one."""
        card = self.cards.get(task.world)
        self._greeted = card is not None and card.version == task.version  # else look again next time
        if card is None:
            raise EnvLost(f"{self.peer.base} no longer serves the world", value=task.world, expected=list(self.cards))
        if card.version != task.version:
            raise VersionMismatch(
                f"{self.peer.base} now serves another version of {task.world!r}",
                value=card.version,
                expected=task.version,
            )

    async def _send_create(self, body: Mapping[str, Any]) -> Any:
        if self._socket is not None:
            return await self._socket.ask("create", body)
        return await self._http.ask("POST", "/v1/sessions", body)

    async def _step_with_reconnects(self, item: StepRequest, *, batched: bool) -> StepResult:
        for attempt in range(MAX_RECONNECTS + 1):
            try:
                row = await (self._enqueue(item) if batched and not attempt else self._send_single(item))
                return self._parse_step(item, row)
            except AnswerTooLarge:  # what came over a shared connection may have been meant for another
                return self._parse_step(item, await self._send_separately(item))
            except ConnectionLost as error:
                self._greeted = False
                connection_error = error
                await self._reconnect(error)
        raise EnvLost(
            f"the connection to {self.peer.base} was lost {MAX_RECONNECTS + 1} times in one step",
            value=str(connection_error),
        )

    async def _reconnect(self, connection_error: ConnectionLost) -> None:
        """Waits until the server is reachable again, for a heartbeat; else it is lost."""
        try:
            async with asyncio.timeout(self._heartbeat_s):
                for attempt in itertools.count():
                    try:
                        if self._socket is not None:
                            await self._socket.connect()
                        else:
                            await self._http.ask("GET", "/v1")
                        return
                    except ConnectionLost:
                        await asyncio.sleep(backoff(attempt, self._rng, cap_s=self._heartbeat_s / 4))
        except TimeoutError:
            raise EnvLost(f"the server at {self.peer.base} is lost", value=str(connection_error)) from connection_error

    async def _send_single(self, item: StepRequest) -> Any:
        if self._socket is None:
            return await self._http.ask("POST", _step_path(item), _step_fields(item))
        return await self._socket.ask("step", {"session": item.session, **_step_fields(item)})

    async def _send_separately(self, item: StepRequest) -> Any:
        """Sends a step in its own request, so that its size affects no other step."""
        try:
            return await self._http.ask("POST", _step_path(item), _step_fields(item))
        except AnswerTooLarge as error:
            raise LimitExceeded(error.what, value=error.value, expected=error.expected) from error

    def _enqueue(self, item: StepRequest) -> asyncio.Future[Any]:
        """Submits a step that is sent with all others that wait at the next turn of the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((item, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._send_waiting)
        return future

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), MAX_BATCH_STEPS):
            task = asyncio.create_task(self._run_batch(waiting[first : first + MAX_BATCH_STEPS]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _run_batch(self, waiting: Sequence[tuple[StepRequest, asyncio.Future[Any]]]) -> None:
        """Sends steps in one message and distributes the answers; a common failure goes to all."""
        results: Sequence[Any]
        try:
            with boundary(WorldError, "a batch of steps failed"):
                results = await self._send_batch([item for item, _ in waiting])
        except EvolventError as error:
            results = [error] * len(waiting)
        for (_, future), result in zip(waiting, results, strict=True):
            if future.done():
                continue
            if isinstance(result, EvolventError):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _send_batch(self, items: Sequence[StepRequest]) -> Sequence[Any]:
        if len(items) == 1:
            return [await self._send_single(items[0])]
        body = {"steps": [{"session": item.session, **_step_fields(item)} for item in items]}
        if self._socket is not None:
            answer = await self._socket.ask("steps", body)
        else:
            answer = await self._http.ask("POST", "/v1/steps", body, limit=MAX_MESSAGE_BYTES)
        rows = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(rows, list) or len(rows) != len(items):
            raise self._answer_error(f"the results do not match the batch of {len(items)} steps", answer)
        return [
            self.peer.decode_error(row["error"]) if isinstance(row, Mapping) and "error" in row else row for row in rows
        ]

    def _parse_step(self, item: StepRequest, row: Any) -> StepResult:
        result = self._decode_part(decode_step, row)
        if result.step != item.step:
            raise WorldError(f"{self.peer.base} answered another step", value=result.step, expected=item.step)
        self._check_size(result.observation)
        return result

    def _check_size(self, text: str) -> None:
        if len(text) > MAX_TEXT_CHARS:
            raise LimitExceeded(
                f"{self.peer.base}: the observation is too long",
                value=f"{len(text)} characters",
                expected=f"at most {MAX_TEXT_CHARS}",
            )

    def _decode_part(self, decoder: Callable[[Any], T], row: Any) -> T:
        """Decodes a part of an answer; an error names the server's address and shows the start of the answer."""
        try:
            return decoder(row)
        except SampleInvalid as error:
            raise self._answer_error(error.what, row) from error

    def _answer_error(self, problem: str, row: object) -> WorldError:
        return self.peer.answer_error(self.peer.base, str(row), problem)


def _step_path(item: StepRequest) -> str:
    return f"/v1/sessions/{quote(item.session, safe='')}/step"


def _step_fields(item: StepRequest) -> dict[str, Any]:
    return {"step": item.step, "action": item.action}
