"""Fault 9: whatever bytes arrive as a body or an action, the answer is typed and not 500, and the episode goes on."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.served import begin, serving


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def session(client):
    return begin(client)


def unharmed(client, session):
    """The episode goes on where it was."""
    due = client.get(f"/v1/sessions/{session}").json()["step"]
    done = client.post(f"/v1/sessions/{session}/step", json={"step": due, "action": "fine"})
    assert done.status_code == 200 and done.json()["observation"] == f"{due + 1}: fine"


DEEP = 10_000
BODIES = {
    "empty": b"",
    "broken": b'{"step": 0, "action": "a',
    "no object": b'["a"]',
    "null": b"null",
    "number": b"7",
    "text": b'"a"',
    "two": b'{"action": "a"}{"action": "b"}',
    "NaN": b'{"step": NaN, "action": "a"}',
    "infinity": b'{"step": -Infinity, "action": "a"}',
    "1e400": b'{"step": 1e400, "action": "a"}',
    "fraction": b'{"step": 0.0, "action": "a"}',
    "negative": b'{"step": -1, "action": "a"}',
    "many digits": b'{"step": ' + b"9" * 5000 + b', "action": "a"}',
    "bool": b'{"step": true, "action": "a"}',
    "action number": b'{"action": 3}',
    "action null": b'{"action": null}',
    "action list": b'{"action": ["a"]}',
    "no action": b"{}",
    "lone surrogate": b'{"action": "\\ud800"}',
    "reversed pair": b'{"action": "\\udc00\\ud800"}',
    "NUL": b'{"action": "a\\u0000b"}',
    "raw NUL": b'{"action": "a\x00b"}',
    "no UTF-8": b'{"action": "\xff\xfe"}',
    "UTF-16": '{"action": "a"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"action": "a"}',
    "1 MB": json.dumps({"action": "x" * 2**20}).encode(),
    "10 MB": json.dumps({"action": "x" * 10 * 2**20}).encode(),
    "deep lists": b'{"action": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep, open": b"[" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep behind strings": b'{"a": ["]",' * DEEP,
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_no_steps(client, session, name):
    answer = client.post(f"/v1/sessions/{session}/step", content=BODIES[name])
    assert answer.status_code in (413, 422), answer.text
    row = answer.json()
    assert row["kind"] in ("ConfigError", "InvalidAction", "LimitExceeded", "SampleInvalid")
    assert row["message"] and len(answer.text) < 2000
    unharmed(client, session)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lone surrogate", "InvalidAction"),
        ("NUL", "InvalidAction"),
        ("1 MB", "InvalidAction"),
        ("10 MB", "LimitExceeded"),
        ("deep lists", "LimitExceeded"),
    ],
)
def test_what_it_was_is_said(client, session, name, kind):
    assert client.post(f"/v1/sessions/{session}/step", content=BODIES[name]).json()["kind"] == kind


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/steps", "/v1/worlds/echo/score"])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_nothing_anywhere(client, path, name):
    answer = client.post(path, content=BODIES[name])
    assert answer.status_code in (404, 413, 422) and answer.json()["kind"]


@pytest.mark.parametrize(
    "action",
    [
        "",
        " ",
        "\n\r\t",
        "\u202e",
        "\x1b[2J",
        "<|im_end|>",
        "'; DROP TABLE",
        "__import__('os').system('true')",
        "\U0001f600",
        "\ue000",
        "\ufffe",
        "{}" * 5000,
        '"' * 1000,
        "\\" * 999,
    ],
)
def test_odd_actions_are_actions(client, action):
    """The world judges them; they come back as they were said."""
    session = begin(client)
    done = client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": action})
    assert done.status_code == 200 and done.json()["observation"] == f"1: {action}"
    client.delete(f"/v1/sessions/{session}")


FIELDS = ["session", "step", "action", "steps", "world", "task", "seed", "rewards", "info", "id", "spec"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
EASY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EASY
@given(
    value=JSON,
    path=st.sampled_from(
        ["/v1/sessions", "/v1/steps", "/v1/worlds/echo/score", "/v1/sessions/{}/step", "/v1/sessions/{}/reset"]
    ),
)
def test_any_json_is_answered(client, session, value, path):
    answer = client.post(path.format(session), content=json.dumps(value).encode())
    assert answer.status_code < 500 and answer.headers["content-type"] == "application/json"
    assert answer.status_code < 300 or answer.json()["kind"]


@EASY
@given(data=st.binary(max_size=200))
def test_any_bytes_are_answered(client, session, data):
    answer = client.post(f"/v1/sessions/{session}/step", content=data)
    assert answer.status_code in (422, 413, 409) and answer.json()["kind"]


@EASY
@given(action=st.text(st.characters(categories=None), max_size=30))
def test_any_text_is_an_action_or_refused_without_harm(client, session, action):
    due = client.get(f"/v1/sessions/{session}").json()
    if due["state"] == "running":
        body = json.dumps({"step": due["step"], "action": action}).encode()
        answer = client.post(f"/v1/sessions/{session}/step", content=body)
        legal = "\0" not in action and not any("\ud800" <= letter <= "\udfff" for letter in action)
        assert answer.status_code == (200 if legal else 422)
