"""JSON values between two processes: all items of one turn of the event loop are sent as one message.

A message is four bytes of length (big-endian) and a JSON list of items. One message for all waiting requests costs one
system call and one decoding, where separate messages would cost as many as there are sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

__all__ = ["HEARTBEAT_S", "ItemProtocol"]

HEARTBEAT_S = 1.0  # seconds between two signs of life of a worker

_log = logging.getLogger(__name__)
_MAX_MESSAGE_BYTES = 2**30


class ItemProtocol(asyncio.Protocol):
    """One end of a connection between processes.

    Args:
        on_item: called with every item that arrives.
        on_lost: called once, when the connection ends.
        first_item: returns an item to put before the others of a message (None: nothing).
    """

    def __init__(
        self,
        on_item: Callable[[object], None],
        on_lost: Callable[[], None],
        *,
        first_item: Callable[[], str | None] | None = None,
    ) -> None:
        self._heard, self._lost, self._first = on_item, on_lost, first_item
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[str] = []
        self._in = bytearray()

    def send(self, item: str) -> None:
        """Sends an item, given as JSON text; drops it if the connection has ended."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(item)

    def close(self) -> None:
        """Ends the connection after all items are sent."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport; called by the loop."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Reports the end of the connection; called by the loop."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Receives bytes from the loop and passes complete items on."""
        self._in += data
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if size > _MAX_MESSAGE_BYTES and self._transport is not None:
                _log.error("closing the connection: a message between processes has %d bytes", size)
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
