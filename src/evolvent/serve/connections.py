"""The connections of a server: how many there may be, in all and from one address, and until when each has to move on.

`ConnectionTable` knows nothing of protocols. `serve/protocol.py` tells it what each connection does, and is told to end
a connection that is late, or whose place a newer one needs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from evolvent.serve.metrics import Family, LabeledCounter, make_gauge

try:
    import resource
except ImportError:  # Windows has no limit of this kind
    resource = None  # type: ignore[assignment]

__all__ = ["ACCEPTS_PER_TURN", "Connection", "ConnectionLimits", "ConnectionTable", "fit_descriptors"]

ACCEPTS_PER_TURN = 64  # connections that asyncio accepts before any of them is counted
_OTHER_DESCRIPTORS = 192  # files, worker processes and libraries of a server
_MIN_CONNECTIONS = 16
_SWEEP_S = 1.0
_REPORT_S = 60.0  # at most one line about refused connections, and one about failed accepts, in so many seconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a server's connections.

    A response has no deadline: a slow world, a long reply and a stream of events are never cut while the client reads.

    Args:
        max_connections: connections in all. A new one takes the place of the one that has been idle longest.
        max_per_address: the same for one address; addresses of the loopback are not counted.
        reserve: connections beyond these, each for one request to `/health` or `/metrics`; others are answered 503.
        head_s: seconds in which a request's head must arrive, from its first byte or from the connection's beginning.
        body_s: seconds in which its body must arrive, and one second more for every `min_bytes_per_s` received.
        min_bytes_per_s: the slowest upload, beyond `body_s` seconds.
        idle_s: seconds that a connection may wait between two requests.
        socket_idle_s: seconds that a WebSocket may stay without a message of the client.
        stalled_s: seconds in which a client must take some of the bytes that wait for it.
        drain_s: seconds, and
        drain_bytes: bytes, of a refused request that are still read, so that the client gets to read the answer.
    """

    max_connections: int = 2048
    max_per_address: int = 1088
    reserve: int = 32
    head_s: float = 10.0
    body_s: float = 30.0
    min_bytes_per_s: int = 16 * 2**10
    idle_s: float = 75.0
    socket_idle_s: float = 3600.0
    stalled_s: float = 60.0
    drain_s: float = 10.0
    drain_bytes: int = 64 * 2**20


def fit_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Returns limits that this process has descriptors for; raises its soft limit up to the hard one where needed."""
    if resource is None:
        return limits
    others = _OTHER_DESCRIPTORS + ACCEPTS_PER_TURN + limits.reserve
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= limits.max_connections + others:
        return limits
    wanted = limits.max_connections + others
    raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        raised = soft
    room = max(_MIN_CONNECTIONS, raised - others)
    if room >= limits.max_connections:
        return limits
    _log.warning("at most %d connections at once: this process may open %d files", room, raised)
    return replace(limits, max_connections=room, max_per_address=min(limits.max_per_address, max(1, room * 3 // 4)))


class Connection(Protocol):
    """The part of a connection that the table needs."""

    deadline: float | None  # in seconds of the loop's clock; None: it may take its time

    def expire(self) -> None:
        """Ends the connection, whose deadline is over; the client is told where it can be."""
        ...

    def check_writing(self, now: float) -> None:
        """Ends the connection where the client has stopped to read what is sent."""
        ...

    def abort(self) -> None:
        """Ends the connection at once."""
        ...


class _Waiting:
    """Connections that wait for their clients, in the order in which they make room, the longest waiting first.

    fresh: no head of a request has arrived. idle: between two requests. arriving: with a part of a body.
    """

    __slots__ = ("arriving", "fresh", "idle")

    def __init__(self) -> None:
        self.fresh: dict[Connection, None] = {}
        self.idle: dict[Connection, None] = {}
        self.arriving: dict[Connection, None] = {}

    def discard(self, connection: Connection) -> None:
        self.fresh.pop(connection, None)
        self.idle.pop(connection, None)
        self.arriving.pop(connection, None)

    def first(self) -> Connection | None:
        return next(iter(self.fresh or self.idle or self.arriving), None)


class _Address:
    """The connections of one address."""

    __slots__ = ("count", "waiting")

    def __init__(self) -> None:
        self.count, self.waiting = 0, _Waiting()


class ConnectionTable:
    """All connections of one server; used from its event loop only.

    Args:
        limits: see `ConnectionLimits`.
        clock: seconds that never jump; those of the event loop.
    """

    def __init__(self, limits: ConnectionLimits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock = limits or ConnectionLimits(), clock
        self._address_names: dict[Connection, str | None] = {}
        self._addresses: dict[str, _Address] = {}
        self._waiting = _Waiting()
        self._reserved: dict[Connection, None] = {}
        self._refused = LabeledCounter(
            "evolvent_connections_refused_total", "Connections that were ended for a limit.", "reason"
        )
        self._reported: dict[str, float] = {}
        self._is_sweeping = False

    @property
    def num_open(self) -> int:
        """Returns the number of open connections, the reserved ones included."""
        return len(self._address_names) + len(self._reserved)

    def admit(self, connection: Connection, address: str | None) -> bool:
        """Counts a new connection; ends one that waits for a request where there is no other place.

        Args:
            address: the client's address; None: it is not counted by address.

        Returns:
            Whether it is an ordinary connection; False: one of the reserve, for one request to `/health`.
        """
        if not self._is_sweeping:
            self._is_sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        limits, entry = self.limits, None if address is None else self._addresses.get(address)
        if entry is not None and entry.count >= limits.max_per_address:
            return self._make_room(entry.waiting, "address") and self._add(connection, address)
        if len(self._address_names) >= limits.max_connections:
            return self._make_room(self._waiting, "total") and self._add(connection, address)
        return self._add(connection, address)

    def _make_room(self, waiting: _Waiting, reason: str) -> bool:
        """Ends the longest waiting connection; returns whether there was one."""
        longest = waiting.first()
        self.refuse(reason)
        if longest is None:
            return False
        self.release(longest)
        longest.abort()
        return True

    def _add(self, connection: Connection, address: str | None) -> bool:
        self._address_names[connection] = address
        self._waiting.fresh[connection] = None
        if address is not None:
            entry = self._addresses.setdefault(address, _Address())
            entry.count += 1
            entry.waiting.fresh[connection] = None
        return True

    def reserve(self, connection: Connection) -> None:
        """Counts a connection of the reserve; the oldest of them ends where there are too many."""
        if len(self._reserved) >= self.limits.reserve:
            oldest = next(iter(self._reserved))
            del self._reserved[oldest]
            oldest.abort()
        self._reserved[connection] = None

    def note_request(self, connection: Connection) -> None:
        """Notes that a connection has sent a whole request: it is not ended before its answer."""
        for waiting in self._lists_of(connection):
            waiting.discard(connection)

    def note_arriving(self, connection: Connection) -> None:
        """Notes that a connection has sent the head of a request and not all of its body."""
        for waiting in self._lists_of(connection):
            waiting.discard(connection)
            waiting.arriving[connection] = None

    def note_idle(self, connection: Connection) -> None:
        """Notes that a connection waits for its next request."""
        for waiting in self._lists_of(connection):
            waiting.discard(connection)
            waiting.idle[connection] = None

    def _lists_of(self, connection: Connection) -> Sequence[_Waiting]:
        """Returns the lists in which a connection stands; none for one of the reserve."""
        if connection not in self._address_names:
            return ()
        address = self._address_names[connection]
        return (self._waiting,) if address is None else (self._waiting, self._addresses[address].waiting)

    def release(self, connection: Connection) -> None:
        """Forgets a connection that has ended; an unknown one is ignored."""
        self._reserved.pop(connection, None)
        if connection not in self._address_names:
            return
        self.note_request(connection)
        address = self._address_names.pop(connection)
        if address is not None:
            entry = self._addresses[address]
            entry.count -= 1
            if not entry.count:
                del self._addresses[address]

    def abort_all(self) -> int:
        """Ends all connections, as the server is ending; returns how many there were."""
        remaining = [*self._address_names, *self._reserved]
        for connection in remaining:
            connection.abort()
        return len(remaining)

    def refuse(self, reason: str) -> None:
        """Counts a connection that a limit ended, and logs it, at most once a minute for each reason."""
        self._refused.add(reason)
        if self._is_report_due(reason):
            _log.warning(
                "connections are ended for a limit (%s): %d are open, at most %d; further ones are only counted, in "
                "/metrics",
                reason,
                self.num_open,
                self.limits.max_connections,
            )

    def note_accept_error(self, error: OSError) -> None:
        """Notes that the system gave no descriptor for a connection: some of those that wait make room."""
        self._refused.add("descriptors")
        for _ in range(ACCEPTS_PER_TURN):
            longest = self._waiting.first()
            if longest is None:
                break
            self.release(longest)
            longest.abort()
        if self._is_report_due("accept"):
            _log.error("cannot accept connections: %s; trying again every second", error.strerror or error)

    def _is_report_due(self, topic: str) -> bool:
        now, last = self.clock(), self._reported.get(topic)
        is_due = last is None or now - last >= _REPORT_S
        if is_due:
            self._reported[topic] = now
        return is_due

    def _sweep(self) -> None:
        """Ends the connections that are late; goes on every second while there are connections."""
        now = self.clock()
        try:
            for connection in [*self._address_names, *self._reserved]:
                if connection.deadline is not None and now >= connection.deadline:
                    connection.expire()
                connection.check_writing(now)
        finally:
            self._is_sweeping = self.num_open > 0
            if self._is_sweeping:
                asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def families(self) -> list[Family]:
        """Returns the open and the refused connections for `/metrics`."""
        limit = make_gauge(
            "evolvent_connections_limit", "How many connections there may be.", self.limits.max_connections
        )
        return [
            make_gauge("evolvent_connections_open", "Connections that are open.", self.num_open),
            limit,
            self._refused.family(),
        ]
