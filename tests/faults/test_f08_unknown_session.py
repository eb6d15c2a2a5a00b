"""Fault 8: whatever is asked of an unknown, closed or finished session has a typed answer, never 500."""

import pytest

from tests.serve.served import begin, serving


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


ROUTES = [
    ("GET", "", None),
    ("POST", "/step", {"action": "a"}),
    ("POST", "/step", {"step": 3, "action": "a"}),
    ("POST", "/reset", {"task": "x"}),
]
NAMES = ["never-there", "0", "%00", "%F0%9F%92%A9", "x" * 3000, "%2e%2e", "-1", "null", "a%20b", "<script>"]


@pytest.mark.parametrize(("method", "tail", "body"), ROUTES)
@pytest.mark.parametrize("name", NAMES)
def test_a_session_that_was_never_there(server, method, tail, body, name):
    with server.client() as client:
        answer = client.request(method, f"/v1/sessions/{name}{tail}", json=body)
        assert answer.status_code in (404, 405)
        assert answer.json()["status"] == answer.status_code and answer.json()["kind"] in ("SessionGone", "ConfigError")


@pytest.mark.parametrize("world", ["echo", "sleepy"])
def test_a_closed_session(server, world):
    with server.client() as client:
        session = begin(client, world)
        client.delete(f"/v1/sessions/{session}")
        for method, tail, body in ROUTES:
            answer = client.request(method, f"/v1/sessions/{session}{tail}", json=body)
            assert (answer.status_code, answer.json()["kind"]) == (404, "SessionGone")
        results = client.post("/v1/steps", json={"steps": [{"session": session, "action": "a"}]}).json()["results"]
        assert results[0]["error"]["kind"] == "SessionGone" and results[0]["error"]["status"] == 404


@pytest.mark.parametrize("world", ["echo", "sleepy"])
def test_a_finished_session(server, world):
    with server.client() as client:
        session = begin(client, world)
        assert client.post(f"/v1/sessions/{session}/step", json={"action": "quit"}).json()["terminated"]
        for body in ({"action": "a"}, {"step": 1, "action": "a"}):
            answer = client.post(f"/v1/sessions/{session}/step", json=body)
            assert (answer.status_code, answer.json()["kind"]) == (409, "SessionGone")
        results = client.post("/v1/steps", json={"steps": [{"session": session, "action": "a"}]}).json()["results"]
        assert results[0]["error"]["status"] == 409
        assert client.get(f"/v1/sessions/{session}").json()["state"] == "ended"
        client.delete(f"/v1/sessions/{session}")
