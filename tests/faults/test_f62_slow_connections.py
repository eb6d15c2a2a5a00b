"""Fault 62: a client that sends slowly, sends nothing or reads nothing is ended at a deadline, on every server.

A slow world, a stream of events and a WebSocket are not cut: a response has no deadline while its client reads.
"""

import json
import socket
import time
from contextlib import contextmanager

import pytest

from evolvent.serve.connections import ConnectionLimits, ConnectionTable
from tests.bench.small_policies import small_policy
from tests.serve.served import Sleepy, begin, serving, until
from tests.serve.small_host import serving as running
from tests.serve.small_policy import policy_server
from tests.view.viewed import viewed

SHORT = ConnectionLimits(
    head_s=0.5, body_s=0.5, idle_s=1.0, stalled_s=1.0, drain_s=0.5, socket_idle_s=1.0, min_bytes_per_s=2**20
)


def address_of(url):
    host, _, port = url.partition("//")[2].partition("/")[0].partition(":")
    return host, int(port)


@contextmanager
def dialled(url):
    with socket.create_connection(address_of(url), timeout=20) as connection:
        yield connection


def read_to_end(connection):
    """Returns what arrives until the server ends the connection; it fails where the server does not."""
    parts = []
    try:
        while part := connection.recv(2**16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.fixture(scope="module", params=["worlds", "policy", "viewer"])
def url(request, tmp_path_factory):
    """The address of each kind of server, with short deadlines."""
    if request.param == "worlds":
        with serving(connections=ConnectionTable(SHORT)) as server:
            yield server.url
    elif request.param == "policy":
        with policy_server(small_policy(), connections=ConnectionTable(SHORT)) as server:
            yield server.url.removesuffix("/v1")
    else:
        with viewed(tmp_path_factory.mktemp("runs"), connections=ConnectionTable(SHORT)) as viewer:
            yield viewer.url


def test_a_connection_without_a_request_is_ended(url):
    with dialled(url) as connection:
        assert read_to_end(connection) == b""


def test_a_head_that_does_not_end_is_answered_408(url):
    with dialled(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 408") and b"head" in answer


def test_a_head_byte_by_byte_has_the_same_deadline(url):
    began = time.monotonic()
    with dialled(url) as connection, pytest.raises(OSError):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ")
        while time.monotonic() - began < 30:
            connection.sendall(b"x")
            time.sleep(0.05)


def test_a_body_that_does_not_end_is_answered_408(url):
    with dialled(url) as connection:
        connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{")
        answer = read_to_end(connection)
    assert answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 403"))  # the viewer refuses it before it is read


def test_a_half_closed_connection_is_ended(url):
    with dialled(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        connection.shutdown(socket.SHUT_WR)
        read_to_end(connection)


def test_a_connection_between_two_requests_is_ended_and_serves_before(url):
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with dialled(url) as connection:
        connection.sendall(request)
        assert connection.recv(2**16).startswith(b"HTTP/1.1")
        time.sleep(0.7)  # longer than a head may take: it has not begun
        connection.sendall(request)
        assert read_to_end(connection).count(b"HTTP/1.1") >= 1


@pytest.fixture(scope="module")
def worlds():
    table = ConnectionTable(SHORT)
    with serving({"sleepy": Sleepy()}, connections=table) as server:
        server.table = table
        yield server


def test_a_slow_world_answers_after_all_deadlines(worlds):
    sleepy = worlds.host.worlds["sleepy"]
    with worlds.client() as client:
        session = begin(client, "sleepy")
        with dialled(worlds.url) as connection:
            body = json.dumps({"step": 0, "action": "sleep"}).encode()
            head = (
                f"POST /v1/sessions/{session}/step HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            until(lambda: sleepy.running)
            time.sleep(2.5)
            sleepy.release.set()
            assert connection.recv(2**16).startswith(b"HTTP/1.1 200")


def test_a_body_that_keeps_its_pace_arrives(worlds):
    body = json.dumps({"world": "sleepy", "task": "none", "pad": "x" * 2**20}).encode()
    with dialled(worlds.url) as connection:
        head = f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode())
        for start in range(0, len(body), 2**17):
            connection.sendall(body[start : start + 2**17])
            time.sleep(0.1)  # 1.2 MB a second, and longer than the deadline in all
        assert connection.recv(2**16).startswith((b"HTTP/1.1 404", b"HTTP/1.1 422"))


def test_a_client_that_does_not_read_is_ended():
    async def endless(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})

    table = ConnectionTable(SHORT)
    with running(endless, table) as address, dialled(f"http://{address}") as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until(lambda: table.num_open == 1)
        until(lambda: table.num_open == 0, 30)


def test_a_silent_websocket_is_closed_and_a_talking_one_is_not(worlds):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    with connect(worlds.socket_url, proxy=None) as talking, connect(worlds.socket_url, proxy=None) as silent:
        for number in range(10):
            talking.send(json.dumps({"request_id": number, "op": "ping"}))
            assert json.loads(talking.recv(timeout=60))["request_id"] == number
            time.sleep(0.3)
        with pytest.raises(ConnectionClosed):
            silent.recv(timeout=60)
        talking.send(json.dumps({"request_id": "last", "op": "ping"}))
        assert json.loads(talking.recv(timeout=60))["request_id"] == "last"


def test_nothing_is_left_behind(worlds):
    until(lambda: worlds.table.num_open <= 1, 20)
