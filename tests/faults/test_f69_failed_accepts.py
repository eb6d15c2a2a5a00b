"""Fault 69: descriptors have run out, so that accepting a connection fails again and again.

The server makes room, backs off, counts the failures, and logs them once.
"""

import asyncio

from evolvent.serve.connections import ConnectionTable
from evolvent.serve.metrics import format_exposition
from evolvent.serve.protocol import LimitedServer, make_server_config


class Waiting:
    """A connection between two requests."""

    deadline = None
    aborted = False

    def expire(self):
        """Does nothing: it is aborted."""

    def check_writing(self, now):
        """Writes nothing."""

    def abort(self):
        """Notes that it was ended."""
        self.aborted = True


def test_accept_errors_are_logged_once_and_back_off(caplog):
    table = ConnectionTable()

    async def run():
        server = LimitedServer(make_server_config(lambda scope, receive, send: None, table, lifespan="off"))
        loop, error = asyncio.get_running_loop(), OSError(24, "Too many open files")
        waiting = Waiting()
        table.admit(waiting, None)
        for _ in range(500):
            server._handle_loop_error(loop, {"message": "socket.accept() out of system resource", "exception": error})
        assert waiting.aborted, "a connection that waits makes room"

    asyncio.run(run())
    lines = [record for record in caplog.records if "accept" in record.getMessage()]
    assert len(lines) == 1 and not lines[0].exc_info
    assert 'reason="descriptors"} 500' in format_exposition(table.families()).decode()
