"""The guard in front of every server: hosts, origins, tokens, sizes, nesting."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.web import Access, build_access, guard_app, is_loopback, is_too_deep

SECRET = "a-token-of-24-characters"


async def told(scope, receive, send):
    """An app that answers with the body that reached it."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"] + b"!"})


def ask(access, *, method="GET", headers=None, content=None):
    async def once():
        transport = httpx2.ASGITransport(app=guard_app(told, access))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=60) as client:
            return await client.request(method, "/", headers=headers, content=content)

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_what_is_the_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:1", "[::1]:8000", "127.0.0.1", "LocalHost", "localhost."]
)
def test_names_of_the_loopback_are_ours(host):
    assert ask(build_access("127.0.0.1"), headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "localhost@evil.example",
        "[",
        "",
        "[::1].evil.example",
        "[::1]evil.example:80",
        "[127.0.0.1",
        "[evil.example]",
    ],
)
def test_foreign_hosts_are_refused(host):
    answer = ask(build_access("127.0.0.1"), headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["kind"] == "AccessDenied" and answer.headers["x-content-type-options"] == "nosniff"


def test_beyond_the_loopback_addresses_and_given_names_are_ours():
    access = build_access("0.0.0.0", token=SECRET, hosts=["Worlds.example"])
    token = {"authorization": f"Bearer {SECRET}"}
    for host, status in (("10.0.0.1:80", 200), ("worlds.example", 200), ("[fe80::1]:80", 200), ("evil.example", 403)):
        assert ask(access, headers={"host": host, **token}).status_code == status, host


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 200),
        ("https://friend.example", 200),
        ("http://127.0.0.1:8001", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("https://friend.example.evil", 403),
    ],
)
def test_only_our_own_pages_and_named_ones_may_call(origin, status):
    access = build_access("127.0.0.1", origins=["https://Friend.example"])
    assert ask(access, headers={"origin": origin}).status_code == status


def basic(password):
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {SECRET}", 200),
        (f"bearer  {SECRET} ", 200),
        (basic(SECRET), 200),
        (None, 403),
        ("", 403),
        (f"Bearer {SECRET}x", 403),
        (f"Bearer {SECRET[:-1]}", 403),
        (SECRET, 403),
        (basic("x"), 403),
        ("Basic ?", 403),
        ("Bearer ", 403),
        ("Basic ", 403),
    ],
)
def test_the_token_is_asked_of_every_request(header, status):
    access = build_access("127.0.0.1", token=SECRET)
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = ask(access, method=method, headers={} if header is None else {"authorization": header})
        assert answer.status_code == status
        assert SECRET not in answer.text


def test_the_token_is_in_no_repr():
    assert SECRET not in repr(build_access("127.0.0.1", token=SECRET))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "worlds.example"])
def test_no_server_beyond_the_loopback_without_a_token(host):
    with pytest.raises(ConfigError, match="no token is set"):
        build_access(host)
    assert build_access(host, token=SECRET).token == SECRET


@pytest.mark.parametrize(
    "token", ["", "short", "has spaces in the middle", "umlauts-äöü-äöü-äöü", "line\nbreak-line-break"]
)
def test_tokens_that_cannot_be_used(token):
    with pytest.raises(ConfigError, match="token") as caught:
        build_access("0.0.0.0", token=token)
    assert not token or token not in str(caught.value)


def test_bodies_arrive_whole_and_limited():
    access = Access(body_bytes=100)
    assert ask(access, method="POST", content=b"x" * 100).text == "x" * 100 + "!"
    answer = ask(access, method="POST", content=b"x" * 101)
    assert (answer.status_code, answer.json()["kind"]) == (413, "LimitExceeded")
    assert answer.headers["connection"] == "close"


def test_a_stream_is_read_no_further_than_the_limit():
    async def endless():
        for _ in range(10_000):
            yield b"x" * 50
            endless.sent += 1

    endless.sent = 0
    assert ask(Access(body_bytes=1000), method="POST", content=endless()).status_code == 413
    assert endless.sent < 30


@pytest.mark.parametrize("told_length", ["-1", "1e3", "9" * 30, "x"])
def test_lengths_that_are_none(told_length):
    assert ask(Access(), method="POST", headers={"content-length": told_length}, content=b"x").status_code == 413


def test_nesting_is_limited_before_anything_is_parsed():
    access = Access(depth=10)
    assert ask(access, method="POST", content=b"[" * 10 + b"]" * 10).status_code == 200
    for body in (b"[" * 11 + b"]" * 11, b"[" * 10_000, b'{"a":' * 10_000 + b"1" + b"}" * 10_000):
        answer = ask(access, method="POST", content=body)
        assert (answer.status_code, answer.json()["kind"]) == (413, "LimitExceeded")


def depth_of(value):
    """How deeply a JSON value is nested, counted on the value itself."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


TEXT = st.text(alphabet='[]{}"\\a,:', max_size=6)
VALUES = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=25
)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.integers(0, 8))
def test_depth_is_that_of_the_parsed_value(value, limit):
    assert is_too_deep(json.dumps(value).encode(), limit) is (depth_of(value) > limit)


def test_flat_bodies_with_many_brackets_are_fine():
    assert not is_too_deep(json.dumps({"steps": [{"a": "}{]["} for _ in range(1000)]}).encode(), 3)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_answered_nothing():
    sent = []

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", b"localhost"), (b"content-length", b"5")]}
    asyncio.run(guard_app(told, Access())(scope, receive, send))
    assert sent == []


FRIEND = {"origin": "https://friend.example"}


def test_pages_of_allowed_sites_may_read_the_answers():
    """Cross-origin resource sharing, as the Fetch standard has it: browsers ask first, without a token."""
    access = build_access("127.0.0.1", token=SECRET, origins=["https://friend.example"])
    asked = {**FRIEND, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    permit = ask(access, method="OPTIONS", headers=asked)
    assert permit.status_code == 204 and permit.headers["access-control-allow-origin"] == FRIEND["origin"]
    assert "authorization" in permit.headers["access-control-allow-headers"]
    answer = ask(access, method="POST", headers={**FRIEND, "authorization": f"Bearer {SECRET}"}, content=b"x")
    assert answer.text == "x!" and answer.headers["access-control-allow-origin"] == FRIEND["origin"]
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_asking_first_opens_nothing(method):
    access = build_access("127.0.0.1", token=SECRET, origins=["https://friend.example"])
    for origin in ({}, FRIEND, {"origin": "https://evil.example"}):
        for asked in ({}, {"access-control-request-method": "POST"}):
            if not (method == "OPTIONS" and origin is FRIEND and asked):
                answer = ask(access, method=method, headers={**origin, **asked})
                assert answer.status_code == 403 and "!" not in answer.text


def test_without_an_origin_nothing_is_shared():
    assert "access-control-allow-origin" not in ask(build_access("127.0.0.1")).headers
