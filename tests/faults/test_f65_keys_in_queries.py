"""Fault 65: a key in the query of an address: `--log_requests` writes the path without it, for WebSockets too.

A malformed request is told once a minute, so that nobody fills the log.
"""

import contextlib
import logging
import socket

import httpx2
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from evolvent.serve.protocol import log_answers
from tests.serve.command import command
from tests.serve.served import serving

KEY = "0123456789abcdefkey"


def test_a_server_logs_requests_without_their_queries():
    with command("lookup", "--log_requests", "true") as server:
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            assert client.get("/health", params={"api_key": KEY, "n": "1"}).status_code == 200
            assert client.get(f"/v1/worlds?{KEY}").status_code in (200, 422)
        address = server.url.replace("http", "ws", 1)
        with connect(f"{address}/v1/ws?key={KEY}", proxy=None) as open_socket:
            open_socket.ping().wait(20)
        with contextlib.suppress(InvalidStatus), connect(f"{address}/v1/none?key={KEY}", proxy=None):
            pass
        output = server.output
    output += server.output
    assert KEY not in output
    assert '"GET /health?... HTTP/1.1" 200' in output and '"WebSocket /v1/ws?... HTTP/1.1" accepted' in output
    assert '"WebSocket /v1/none?... HTTP/1.1" 404' in output


def test_a_line_holds_the_path_and_no_control_text(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204})

    async def nothing(message):
        pass

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/a\nb\x1b[2J",
        "query_string": KEY.encode(),
        "http_version": "1.1",
        "client": ("192.0.2.1", 7),
    }
    logger = logging.getLogger("uvicorn.access")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "uvicorn.access"):
        coroutine = log_answers(app)(scope, None, nothing)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
    logger.removeHandler(caplog.handler)
    assert caplog.messages[0] == '192.0.2.1:7 - "GET /a%0Ab%1B%5B2J?... HTTP/1.1" 204'


def test_malformed_requests_are_told_once(caplog):
    with serving() as server, caplog.at_level(logging.WARNING, "uvicorn.error"):
        host, _, port = server.url.partition("//")[2].partition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=20) as stranger:
                stranger.sendall(b"NONSENSE\r\n\r\n")
                assert stranger.recv(2**12).startswith(b"HTTP/1.1 400")
    assert len([line for line in caplog.messages if "Invalid HTTP" in line]) <= 1
