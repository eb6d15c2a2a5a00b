"""The native dialect over one WebSocket, spoken by a client written from its description alone."""

from __future__ import annotations

import json
import socket
import time

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.serve.served import QUICK, begin, serving, small_worlds, until


class Socket:
    """A raw client: frames out, frames in."""

    def __init__(self, url, **more):
        self.link = connect(url, proxy=None, compression=None, legacy=True, **more)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.link.close()

    def send(self, **request):
        self.link.send(json.dumps(request))

    def receive(self):
        return json.loads(self.link.recv(timeout=60))

    def ask(self, **request):
        self.send(request_id=1, **request)
        answer = self.receive()
        assert answer.pop("request_id") == 1
        return answer.get("ok", answer.get("error"))


@pytest.fixture(scope="module")
def server():
    with serving(limits=QUICK) as found:
        yield found


@pytest.fixture
def client(server):
    with server.client() as found:
        yield found


@pytest.fixture
def link(server):
    with Socket(server.socket_url) as found:
        yield found


def test_an_episode(link, client):
    task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]
    begun = link.ask(op="create", world="echo", task=task, seed=1)
    session = begun["session"]
    assert (begun["observation"], begun["step"]) == (f"task {task['spec']['number']}", 0)
    done = link.ask(op="step", session=session, step=0, action="a")
    assert done == client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "a"}).json(), (
        "one session, two ways"
    )
    assert link.ask(op="steps", steps=[{"session": session, "action": "b"}])["results"][0]["observation"] == "2: b"
    assert link.ask(op="look", session=session) == client.get(f"/v1/sessions/{session}").json()
    assert link.ask(op="reset", session=session, task=task["id"])["step"] == 0
    assert link.ask(op="close", session=session) == {"closed": True}
    assert link.ask(op="close", session=session) == {"closed": False}
    assert link.ask(op="step", session=session, action="c")["kind"] == "SessionGone"
    assert link.ask(op="ping") == {"pong": True}


def test_answers_carry_the_ids_of_their_requests(link, client):
    session = begin(client)
    for name in (7, "seven", "7", 2**60):
        link.send(request_id=name, op="look", session=session)
    assert [link.receive()["request_id"] for _ in range(4)] == [7, "seven", "7", 2**60]


@pytest.mark.parametrize(
    ("frame", "name", "kind", "words"),
    [
        ("{", None, "SampleInvalid", "not valid JSON"),
        ("[]", None, "ConfigError", "expected one JSON object"),
        ("{}", None, "ConfigError", "request_id"),
        ('{"request_id": 1.5}', None, "ConfigError", "request_id"),
        ('{"request_id": true, "op": "ping"}', None, "ConfigError", "request_id"),
        ('{"request_id": "' + "x" * 300 + '", "op": "ping"}', None, "ConfigError", "request_id"),
        ('{"request_id": 5, "op": "stap"}', 5, "ConfigError", "did you mean 'step'?"),
        ('{"request_id": 5}', 5, "ConfigError", "op"),
        ('{"request_id": 5, "op": ["step"]}', 5, "ConfigError", "op"),
        ('{"request_id": 5, "op": "step"}', 5, "ConfigError", "session: got null"),
        ('{"request_id": 5, "op": "steps", "steps": 3}', 5, "ConfigError", "steps: got 3"),
        ('{"request_id": 5, "op": "ping", "x": NaN}', None, "SampleInvalid", "NaN"),
        ('{"a":' * 10_000, None, "LimitExceeded", "nested"),
        (b"{}", None, "ConfigError", "got bytes"),
    ],
)
def test_frames_that_are_no_requests_keep_the_socket_open(link, frame, name, kind, words):
    link.link.send(frame)
    answer = link.receive()
    assert answer["request_id"] == name and answer["error"]["kind"] == kind
    assert words in answer["error"]["message"]
    assert link.ask(op="ping") == {"pong": True}


def test_requests_of_different_sessions_do_not_wait_for_each_other(link, client, server):
    slow, quick = begin(client, "sleepy"), begin(client)
    link.send(request_id="slow", op="step", session=slow, action="sleep")
    link.send(request_id="quick", op="step", session=quick, action="a")
    assert link.receive()["request_id"] == "quick"
    late = link.receive()
    assert late["request_id"] == "slow" and late["error"]["kind"] == "StepTimeout"
    server.host.worlds["sleepy"].release.set()


def test_requests_of_one_session_are_done_in_their_order(link, client):
    for world in ("echo", "sleepy"):
        session = begin(client, world)
        for number in range(20):
            link.send(request_id=number, op="step", session=session, step=number, action=f"a{number}")
        link.send(request_id="all", op="steps", steps=[{"session": session, "step": 20, "action": "b"}])
        link.send(request_id="look", op="look", session=session)
        link.send(request_id="end", op="close", session=session)
        answers = [link.receive() for _ in range(23)]
        assert [answer["request_id"] for answer in answers] == [*range(20), "all", "look", "end"]
        assert [answer["ok"]["observation"] for answer in answers[:20]] == [f"{n + 1}: a{n}" for n in range(20)]
        assert answers[21]["ok"]["step"] == 21 and answers[22]["ok"] == {"closed": True}


def test_a_session_outlives_its_socket(server, client):
    with Socket(server.socket_url) as link:
        task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
        session = link.ask(op="create", world="echo", task=task)["session"]
        link.ask(op="step", session=session, step=0, action="a")
    with Socket(server.socket_url) as link:
        assert link.ask(op="step", session=session, step=0, action="a")["observation"] == "1: a"
        link.ask(op="close", session=session)


def test_a_batch_of_many_sessions(link, client):
    sessions = [begin(client) for _ in range(50)]
    steps = [{"session": session, "step": 0, "action": str(number)} for number, session in enumerate(sessions)]
    results = link.ask(op="steps", steps=steps)["results"]
    assert [row["observation"] for row in results] == [f"1: {number}" for number in range(50)]
    for session in sessions:
        link.ask(op="close", session=session)


@pytest.mark.parametrize(
    ("headers", "path", "status", "kind"),
    [
        ({"Evolvent-Protocol": "2"}, "/v1/ws", 400, "VersionMismatch"),
        ({}, "/v1/other", 404, "ConfigError"),
        ({}, "/nothing", 404, "ConfigError"),
        ({"Origin": "http://evil.example"}, "/v1/ws", 403, "AccessDenied"),
    ],
)
def test_a_refused_handshake_says_why(server, headers, path, status, kind):
    with pytest.raises(InvalidStatus) as caught:
        Socket(server.socket_url.replace("/v1/ws", path), additional_headers=headers)
    answer = caught.value.response
    assert answer.status_code == status and json.loads(answer.body)["kind"] == kind


def test_a_client_that_does_not_read_is_not_read_from(server, client):
    """It sends many times what may be unanswered; the server stops reading, and what it holds stays bounded."""
    session = begin(client)
    with Socket(server.socket_url) as link:
        raw = link.link.socket
        frame = _frame(json.dumps({"request_id": 1, "op": "step", "session": session, "action": "x" * 50_000}))
        raw.setblocking(False)
        sent, still = 0, 0
        while still < 40 and sent < 3000 * len(frame):
            try:
                sent += raw.send(frame[sent % len(frame) :])
                still = 0
            except BlockingIOError:
                still += 1
                time.sleep(0.025)
        assert still == 40, "the server read everything although nobody read its answers"
        answered = client.get(f"/v1/sessions/{session}").json()["step"]
        assert answered < 2000
        with pytest.raises((ConnectionError, BlockingIOError)):
            raw.shutdown(socket.SHUT_RDWR)
            raw.send(b"x")
    until(lambda: client.get("/health").status_code == 200)


def _frame(text):
    """A masked text frame with a mask of zeros (RFC 6455, section 5.2)."""
    data = text.encode()
    return bytes([0x81, 0x80 | 127]) + len(data).to_bytes(8, "big") + bytes(4) + data


def test_many_sockets_at_once():
    with serving(small_worlds(["echo"])) as server, server.client() as client:
        task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
        links = [Socket(server.socket_url) for _ in range(12)]
        for number, link in enumerate(links):
            link.send(request_id=number, op="create", world="echo", task=task)
        ids = {link.receive()["ok"]["session"] for link in links}
        assert len(ids) == 12 and client.get("/health").json()["sessions"] == {"echo": 12}
        for link in links:
            link.link.close()
