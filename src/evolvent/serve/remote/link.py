"""What a remote world asks of its server, and how long it insists.

Everything has one deadline over all its tries. What is safe to repeat is repeated with pauses: opening a session,
looking at panels, closing. A step is repeated because it bears its number, so that a server that has taken it answers
from its record; but only in the same session, and only if the server can be reached again within one heartbeat. With
the two heartbeats after which a silent connection counts as lost, a lost server is known within three.
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
from evolvent.serve.host import Seen, StepItem, Stepped
from evolvent.serve.remote.http import PANEL_BYTES, Http, LinkLost, Peer, TooLarge
from evolvent.serve.remote.socket import MESSAGE_BYTES, Socket
from evolvent.serve.wire import PROTOCOL, Card, NotFound, card_of, seen_of, step_of, task_row
from evolvent.trajectory import Task

__all__ = ["TEXT_LIMIT", "Link", "Transport"]

Transport = Literal["ws", "http"]
TEXT_LIMIT = 1 << 20  # characters of one observation
TOGETHER = 256  # steps in one message
RETURNS = 3  # how often one step may survive the loss of its connection
T = TypeVar("T")


class Link:
    """The connection to one server. All coroutines run on one event loop; `open` comes first, `close` last.

    Args:
        peer: the server.
        transport: how sessions are stepped: over one WebSocket, or by requests over HTTP. Everything else is HTTP.
        heartbeat_s: see the module's text.
        rng: where pauses between tries are drawn from.
    Attributes:
        cards: the worlds that the server had when it was last asked, by name.
    """

    def __init__(
        self, peer: Peer, *, transport: Transport = "ws", heartbeat_s: float = 5.0, rng: Random | None = None
    ) -> None:
        if transport not in ("ws", "http"):
            raise ConfigError("an unknown transport", value=transport, expected="ws or http")
        self.peer, self.cards = peer, dict[str, Card]()
        self._heartbeat_s, self._rng = heartbeat_s, rng or Random()
        self._http = Http(peer, connect_s=heartbeat_s)
        self._socket = Socket(peer, heartbeat_s=heartbeat_s) if transport == "ws" else None
        self._greeted = False
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: list[tuple[StepItem, asyncio.Future[Any]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def open(self, deadline: Deadline) -> None:
        """Learn what the server is. Raises VersionMismatch, EnvLost (nobody there), AccessDenied, WorldError."""
        self._keeper = self._keeper or asyncio.create_task(self._keep())
        await self.repeated(self._greet, f"a greeting to {self.peer.base}", deadline)

    async def close(self) -> None:
        """Close the connections; sessions stay with the server until they are closed or idle for too long."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _keep(self) -> None:
        """Holds the connections until it is cancelled: by `close`, or by the end of a loop that was forgotten."""
        try:
            await asyncio.Event().wait()
        finally:
            if self._socket is not None:
                await self._socket.close()
            await self._http.close()

    async def get(self, path: str, *, deadline: Deadline) -> Any:
        """The body of a page of the server, such as a panel."""
        return await self.repeated(lambda: self._http.ask("GET", path, limit=PANEL_BYTES), f"GET {path}", deadline)

    async def score(self, world: str, body: Mapping[str, Any], *, deadline: Deadline) -> Any:
        """The score of an episode, which the server computes and forgets."""
        path = f"/v1/worlds/{quote(world, safe='')}/score"
        return await self.repeated(lambda: self._http.ask("POST", path, body), f"POST {path}", deadline)

    async def create(self, task: Task, *, seed: int | None, deadline: Deadline) -> tuple[str, Seen]:
        """A new session that plays a task, and its first observation. A full server is asked again when it says.

        A session whose answer was lost stays with the server until it was idle for too long.
        """

        async def call() -> tuple[str, Seen]:
            if not self._greeted or (self._socket is not None and self._socket.lost):
                await self._greet()
            self._check_version(task)
            try:
                row = await self._ask_create({"world": task.world, "task": task.id, "seed": seed})
            except NotFound:  # no task of its panels: it may know what to do with a whole one
                row = await self._ask_create({"world": task.world, "task": task_row(task), "seed": seed})
            session = row.get("session") if isinstance(row, Mapping) else None
            if not isinstance(session, str) or not session:
                raise self._wrong("a session without a name", row)
            seen = self._checked(seen_of, row)
            self._check_size(seen.observation)
            return session, seen

        return await self.repeated(call, f"a session of {task.world!r}", deadline)

    async def release(self, session: str, deadline: Deadline) -> None:
        """Give a session back."""

        async def call() -> Any:
            if self._socket is not None:
                return await self._socket.ask("close", {"session": session})
            return await self._http.ask("DELETE", f"/v1/sessions/{quote(session, safe='')}")

        await self.repeated(call, "closing a session", deadline)

    async def step(self, item: StepItem, *, together: bool, deadline: Deadline) -> Stepped:
        """Take a step.

        Args:
            item: with a number.
            together: send it in one message with other steps that wait at this moment. They are answered together, so
                this is for worlds whose steps are quick.
        Raises:
            StepTimeout: no answer before the deadline.
            EnvLost: the server cannot be reached, or it has lost the session.
            LimitExceeded: an observation larger than `TEXT_LIMIT`.
        """
        try:
            async with asyncio.timeout(deadline.left()):
                return await self._stepped(item, together=together)
        except TimeoutError:
            told = f"step {item.step} at {self.peer.base}"
            raise StepTimeout("no answer before the deadline", value=f"{told}, {deadline.total_s:g} s") from None
        except SessionGone as error:
            hint = "it was idle for too long, or the server was restarted"
            raise EnvLost(f"{self.peer.base} has lost the session: {error.what}", hint=hint) from error

    async def repeated(self, call: Callable[[], Awaitable[T]], what: str, deadline: Deadline) -> T:
        """The value of a call that is safe to repeat: tried until it is answered, or the deadline leaves no time.

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
            except TooLarge as error:
                raise LimitExceeded(error.what, value=error.value, expected=error.expected) from error
            except TimeoutError:
                if problem is not None:  # what went wrong until then says more
                    raise self._given_up(problem, deadline) from problem
                raise StepTimeout("no answer before the deadline", value=f"{what}, {deadline.total_s:g} s") from None
            except (LinkLost, AtCapacity) as error:
                problem = error
            pause = backoff(attempt, self._rng)
            if isinstance(problem, AtCapacity):
                pause += problem.retry_after_s
            else:
                self._greeted = False
            if pause >= deadline.left():
                raise self._given_up(problem, deadline) from problem
            await asyncio.sleep(pause)
        raise WorldError("no try was made", value=what)

    def _given_up(self, problem: WorldError, deadline: Deadline) -> WorldError:
        if isinstance(problem, AtCapacity):
            told = f"{self.peer.base} stayed full for {deadline.total_s:g} s; open fewer sessions at once"
            return AtCapacity(told, retry_after_s=problem.retry_after_s)
        return EnvLost(f"no server at {self.peer.base}, tried for {deadline.total_s:g} s", value=str(problem))

    async def _greet(self) -> None:
        """Check that both sides speak one version, and read the cards of the worlds."""
        said = await self._http.ask("GET", "/v1")
        theirs = said.get("protocol") if isinstance(said, Mapping) else None
        if not isinstance(theirs, int) or isinstance(theirs, bool):
            raise self._wrong("no server of the native dialect", said)
        if theirs != PROTOCOL:
            raise VersionMismatch(
                f"{self.peer.base} speaks version {theirs} of the protocol, this side {PROTOCOL}",
                value=theirs,
                expected=PROTOCOL,
                hint="install the same version on both",
            )
        rows = await self._http.ask("GET", "/v1/worlds", limit=PANEL_BYTES)
        worlds = rows.get("worlds") if isinstance(rows, Mapping) else None
        if not isinstance(worlds, list):
            raise self._wrong("no list of worlds", rows)
        cards = [self._checked(card_of, row) for row in worlds]
        self.cards, self._greeted = {card.name: card for card in cards}, True

    def _check_version(self, task: Task) -> None:
        """A server that came back may have come back as another."""
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

    async def _ask_create(self, body: Mapping[str, Any]) -> Any:
        if self._socket is not None:
            return await self._socket.ask("create", body)
        return await self._http.ask("POST", "/v1/sessions", body)

    async def _stepped(self, item: StepItem, *, together: bool) -> Stepped:
        for attempt in range(RETURNS + 1):
            try:
                row = await (self._joined(item) if together and not attempt else self._single(item))
                return self._answer(item, row)
            except TooLarge:  # what came over a shared connection may have been meant for another
                return self._answer(item, await self._apart(item))
            except LinkLost as error:
                self._greeted = False
                lost = error
                await self._back(error)
        raise EnvLost(f"the connection to {self.peer.base} was lost {RETURNS + 1} times in one step", value=str(lost))

    async def _back(self, lost: LinkLost) -> None:
        """Reach the server again within a heartbeat; else it is lost."""
        try:
            async with asyncio.timeout(self._heartbeat_s):
                for attempt in itertools.count():
                    try:
                        if self._socket is not None:
                            await self._socket.connected()
                        else:
                            await self._http.ask("GET", "/v1")
                        return
                    except LinkLost:
                        await asyncio.sleep(backoff(attempt, self._rng, cap_s=self._heartbeat_s / 4))
        except TimeoutError:
            raise EnvLost(f"the server at {self.peer.base} is lost", value=str(lost)) from lost

    async def _single(self, item: StepItem) -> Any:
        if self._socket is None:
            return await self._http.ask("POST", _step_path(item), _numbered(item))
        return await self._socket.ask("step", {"session": item.session, **_numbered(item)})

    async def _apart(self, item: StepItem) -> Any:
        """A step in a request of its own, whose size is nobody else's business."""
        try:
            return await self._http.ask("POST", _step_path(item), _numbered(item))
        except TooLarge as error:
            raise LimitExceeded(error.what, value=error.value, expected=error.expected) from error

    def _joined(self, item: StepItem) -> asyncio.Future[Any]:
        """A step that goes out with all others that are there when the loop comes round."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((item, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return future

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), TOGETHER):
            task = asyncio.create_task(self._batch(waiting[first : first + TOGETHER]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _batch(self, waiting: Sequence[tuple[StepItem, asyncio.Future[Any]]]) -> None:
        """Send steps in one message and hand everybody their answer; what went wrong for all goes to all."""
        results: Sequence[Any]
        try:
            with boundary(WorldError, "a batch of steps failed"):
                results = await self._together([item for item, _ in waiting])
        except EvolventError as error:
            results = [error] * len(waiting)
        for (_, future), result in zip(waiting, results, strict=True):
            if future.done():
                continue
            if isinstance(result, EvolventError):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _together(self, items: Sequence[StepItem]) -> Sequence[Any]:
        if len(items) == 1:
            return [await self._single(items[0])]
        body = {"steps": [{"session": item.session, **_numbered(item)} for item in items]}
        if self._socket is not None:
            answer = await self._socket.ask("steps", body)
        else:
            answer = await self._http.ask("POST", "/v1/steps", body, limit=MESSAGE_BYTES)
        rows = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(rows, list) or len(rows) != len(items):
            raise self._wrong(f"a batch of {len(items)} steps with other results", answer)
        return [self.peer.told(row["error"]) if isinstance(row, Mapping) and "error" in row else row for row in rows]

    def _answer(self, item: StepItem, row: Any) -> Stepped:
        stepped = self._checked(step_of, row)
        if stepped.step != item.step:
            raise WorldError(f"{self.peer.base}: the answer to another step", value=stepped.step, expected=item.step)
        self._check_size(stepped.observation)
        return stepped

    def _check_size(self, text: str) -> None:
        if len(text) > TEXT_LIMIT:
            raise LimitExceeded(
                f"{self.peer.base}: an observation that is too long",
                value=f"{len(text)} characters",
                expected=f"at most {TEXT_LIMIT}",
            )

    def _checked(self, read: Callable[[Any], T], row: Any) -> T:
        """A part of an answer, read; what it is not, it is with the server's address and the head of the answer."""
        try:
            return read(row)
        except SampleInvalid as error:
            raise self._wrong(error.what, row) from error

    def _wrong(self, what: str, row: object) -> WorldError:
        return self.peer.unreadable(self.peer.base, str(row), what)


def _step_path(item: StepItem) -> str:
    return f"/v1/sessions/{quote(item.session, safe='')}/step"


def _numbered(item: StepItem) -> dict[str, Any]:
    return {"step": item.step, "action": item.action}
