"""JSON values between two processes: what is sent in one turn of the event loop travels as one message.

A message is four bytes of length (big-endian) and a JSON list of items. One message for all requests that wait costs
one system call and one decoding, where a message for each would cost as many as there are sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

__all__ = ["Frames"]

_log = logging.getLogger(__name__)
_MOST = 2**30


class Frames(asyncio.Protocol):
    """One end of such a connection.

    Args:
        heard: called with every item that arrives.
        lost: called once, when the connection ends.
        first: asked for an item to put before the others of a message (None: nothing).
    """

    def __init__(
        self, heard: Callable[[Any], None], lost: Callable[[], None], *, first: Callable[[], str | None] | None = None
    ) -> None:
        self._heard, self._lost, self._first = heard, lost, first
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[str] = []
        self._in = bytearray()

    def send(self, item: str) -> None:
        """Send an item, given as JSON text; dropped where the connection has ended."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(item)

    def close(self) -> None:
        """End the connection once everything is sent."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Called by the loop with whatever arrived; whole messages are handed on."""
        self._in += data
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if size > _MOST and self._transport is not None:
                _log.error("a message of %d bytes between processes: the connection is ended", size)
                self._transport.abort()
                return
            if len(self._in) < 4 + size:
                return
            items = json.loads(bytes(self._in[4 : 4 + size]))
            del self._in[: 4 + size]
            for item in items:
                self._heard(item)

    def _flush(self) -> None:
        if self._transport is None or not self._out:
            self._out.clear()
            return
        first = self._first() if self._first is not None else None
        body = f"[{','.join([first, *self._out] if first else self._out)}]".encode("ascii")
        self._out.clear()
        self._transport.write(len(body).to_bytes(4, "big") + body)
