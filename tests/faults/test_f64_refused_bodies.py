"""Fault 64: a body above the limit, or one of a client without the token: the refusal arrives, not a reset connection.

What a refused client still sends is read, up to a limit; an endless body is cut.
"""

import http.client
import json
import socket

import httpx2
import pytest

from evolvent.serve.connections import ConnectionLimits, ConnectionTable
from evolvent.web import Access
from tests.bench.small_policies import small_policy
from tests.serve.served import serving, until
from tests.serve.small_policy import policy_server

TOKEN = "a-token-of-24-characters"
BODY = b"x" * (9 << 20)


@pytest.fixture(scope="module", params=["worlds", "policy"])
def place(request):
    """The address of a server with a token, as `http.client` takes it."""
    access = Access(token=TOKEN)
    if request.param == "worlds":
        with serving(access=access) as server:
            yield server.url.partition("//")[2], "/v1/sessions"
    else:
        with policy_server(small_policy(), access=access) as server:
            yield server.url.partition("//")[2].partition("/")[0], "/v1/chat/completions"


def send_all_then_read(place, headers, body=BODY):
    """The answer to a client that reads after it has sent everything, as many do."""
    connection = http.client.HTTPConnection(place[0], timeout=60)
    try:
        connection.request("POST", place[1], body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_body_of_9_mb_is_answered_413(place):
    for _ in range(3):
        status, row = send_all_then_read(place, {"authorization": f"Bearer {TOKEN}"})
        assert status == 413 and "8388608" in json.dumps(row)


def test_a_body_of_unknown_length_is_answered_413(place):
    parts = iter([BODY[: 1 << 20]] * 9)
    status, _ = send_all_then_read(place, {"authorization": f"Bearer {TOKEN}"}, parts)
    assert status == 413


def test_a_large_body_without_the_token_is_refused_as_such(place):
    status, _ = send_all_then_read(place, {})
    assert status in (401, 403)


def test_a_body_that_is_no_http_is_answered_400(place):
    with socket.create_connection(
        (place[0].partition(":")[0], int(place[0].partition(":")[2])), timeout=20
    ) as stranger:
        stranger.sendall(b"NONSENSE\r\n\r\n" + BODY[: 1 << 20])
        answer = b""
        while part := stranger.recv(2**16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")


def test_an_endless_body_is_cut():
    limits = ConnectionLimits(drain_bytes=1 << 20)
    with serving(connections=ConnectionTable(limits)) as server:
        host, _, port = server.url.partition("//")[2].partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as stranger, pytest.raises(ConnectionError):
            stranger.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n")
            for _ in range(400):
                stranger.sendall(BODY[: 1 << 20])


def test_bodies_that_arrive_slowly_do_not_fill_the_memory():
    """Beyond 16 whole ones further large bodies are refused; small ones are read."""
    access = Access(body_bytes=1 << 20)
    with serving(access=access) as server, server.client() as client:
        host, _, port = server.url.partition("//")[2].partition(":")
        strangers = [socket.create_connection((host, int(port)), timeout=20) for _ in range(24)]
        head = b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1048576\r\n\r\n"
        for stranger in strangers:
            stranger.sendall(head + BODY[: (1 << 20) - 1])
        until(lambda: "503" in client.get("/metrics").text)
        answers = []
        for stranger in strangers:
            stranger.settimeout(0.1)
            try:
                answers.append(stranger.recv(2**12))
            except TimeoutError:
                answers.append(b"")
        refused = [answer for answer in answers if answer]
        assert 4 <= len(refused) < 24 and all(answer.startswith(b"HTTP/1.1 503") for answer in refused)
        assert b"retry-after: 1" in refused[0].lower()
        assert client.post("/v1/sessions", json={"world": "none"}).status_code in (404, 422)
        for stranger in strangers:
            stranger.close()


def test_the_official_clients_see_the_refusal(place):
    with httpx2.Client(trust_env=False, timeout=60) as client:
        answer = client.post(f"http://{place[0]}{place[1]}", content=BODY, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 413
