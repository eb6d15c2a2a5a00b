"""A server that plays recorded conversations: it answers what was recorded, and only where it is asked the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.http_server import QuietHTTPServer

FOLDER = Path(__file__).parent / "wire"


def talk(dialect: str, name: str, **stands_for: object) -> list[dict]:
    """A conversation of `wire/DIALECT.json`, with what its `$NAMES` stand for."""
    text = json.dumps(json.loads((FOLDER / f"{dialect}.json").read_text(encoding="utf-8"))["talks"][name])
    for key, value in stands_for.items():
        text = text.replace(f"${key}", str(value))
    return json.loads(text)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _any(self):
        length = int(self.headers.get("content-length") or 0)
        asked = {
            "method": self.command,
            "path": self.path,
            "body": json.loads(self.rfile.read(length)) if length else None,
        }
        self.server.asked.append(asked)
        expected = self.server.exchanges[min(len(self.server.asked), len(self.server.exchanges)) - 1]
        answer: Mapping = expected["answer"]
        if len(self.server.asked) > len(self.server.exchanges) or asked != expected["request"]:
            answer = {"status": 418, "body": {"error": {"message": f"not as recorded: {asked}"}}}
        data = json.dumps(answer["body"]).encode()
        self.send_response(answer["status"])
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _any

    def log_message(self, *words):
        pass


@contextmanager
def replayed(exchanges: list[dict]) -> Iterator[str]:
    """Serve a conversation; yields its address. At the end all of it must have been asked for, in order."""
    server = QuietHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads, server.exchanges, server.asked = True, exchanges, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert server.asked == [exchange["request"] for exchange in exchanges]
