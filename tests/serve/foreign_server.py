"""An HTTP server that answers what a test tells it to: for clients of servers that are not ours."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.http_server import QuietHTTPServer


class Answer:
    """What a request is answered: a status, headers and a body; or `parts`, each sent as it comes, without a length."""

    def __init__(self, body: Any = None, status: int = 200, *, headers=None, raw: bytes | None = None, parts=None):
        self.status, self.headers, self.parts = status, dict(headers or {}), parts
        self.body = json.dumps(body).encode() if raw is None else raw


@contextlib.contextmanager
def foreign(answer: Callable[[str, str, Any], Any]) -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """The address of a server, and the requests that it got. `answer(method, path, body)` gives a JSON value, an
    `Answer`, or None: then the connection is cut."""
    heard: list[tuple[str, str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
            body = json.loads(data) if data else None
            heard.append((self.command, self.path, body))
            told = answer(self.command, self.path, body)
            if told is None:
                self.close_connection = True
                return
            told = told if isinstance(told, Answer) else Answer(told)
            with contextlib.suppress(OSError):
                self.write(told)

        def write(self, told: Answer) -> None:
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            if told.parts is None:
                self.send_header("content-length", str(len(told.body)))
                self.end_headers()
                self.wfile.write(told.body)
                return
            self.end_headers()
            self.close_connection = True
            for part in told.parts:
                self.wfile.write(part)
                self.wfile.flush()

        do_GET = do_POST = handle_any

        def log_message(self, *words: object) -> None:
            pass

    server = QuietHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
