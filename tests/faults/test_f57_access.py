"""Fault 57: a foreign Host or Origin, a missing or wrong token: 403 on every route and method, and nothing is done."""

import json

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from evolvent.web import build_access
from tests.serve.served import begin, serving

SECRET = "a-token-of-24-characters"
TOKEN = {"Authorization": f"Bearer {SECRET}"}
ROUTES = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("GET", "/v1"),
    ("GET", "/v1/worlds"),
    ("GET", "/v1/worlds/echo/tasks?split=train&tier=seen"),
    ("POST", "/v1/sessions"),
    ("POST", "/v1/steps"),
    ("GET", "/v1/sessions/{}"),
    ("DELETE", "/v1/sessions/{}"),
    ("PUT", "/v1/sessions/{}"),
    ("PATCH", "/v1/sessions/{}"),
    ("POST", "/v1/sessions/{}/step"),
    ("OPTIONS", "/v1/steps"),
    ("GET", "/nowhere"),
    ("HEAD", "/health"),
]


@pytest.fixture(scope="module")
def server():
    with serving(access=build_access("127.0.0.1", token=SECRET)) as found:
        yield found


@pytest.fixture(scope="module")
def session(server):
    with server.client(headers=TOKEN) as client:
        return begin(client)


REFUSED = {
    "no token": {},
    "missing or wrong token": {"Authorization": "Bearer a-token-of-24-charactert"},
    "another scheme": {"Authorization": f"Token {SECRET}"},
    "in a cookie": {"Cookie": f"token={SECRET}"},
    "foreign host": {**TOKEN, "Host": "evil.example"},
    "foreign origin": {**TOKEN, "Origin": "http://evil.example"},
    "no origin at all": {**TOKEN, "Origin": "null"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_every_route_is_closed(server, session, why):
    with server.client(headers=REFUSED[why]) as client:
        for method, path in ROUTES:
            body = {"steps": [{"session": session, "step": 0, "action": "a"}], "step": 0, "action": "a"}
            answer = client.request(method, path.format(session), json=body)
            assert answer.status_code == 403, (method, path)
            assert method == "HEAD" or answer.json()["kind"] == "AccessDenied"
            assert SECRET not in answer.text
    with server.client(headers=TOKEN) as client:
        assert client.get(f"/v1/sessions/{session}").json()["step"] == 0, "nothing was done"


def test_the_query_is_no_place_for_a_token(server):
    with server.client() as client:
        assert client.get(f"/v1?token={SECRET}").status_code == 403


@pytest.mark.parametrize("why", [why for why in REFUSED if why != "foreign host"])
def test_the_socket_is_closed_too(server, why):
    headers = dict(REFUSED[why])
    with pytest.raises(InvalidStatus) as caught:
        connect(
            server.socket_url, proxy=None, legacy=True, origin=headers.pop("Origin", None), additional_headers=headers
        )
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["kind"] == "AccessDenied"


def test_with_the_token_everything_opens(server, session):
    with server.client(headers=TOKEN) as client:
        assert client.get(f"/v1/sessions/{session}").status_code == 200
    with server.client(auth=("anyone", SECRET)) as client:  # clients that are only given an address
        assert client.get("/v1").status_code == 200
    with connect(server.socket_url, proxy=None, additional_headers=TOKEN) as link:
        link.send(json.dumps({"request_id": 1, "op": "ping"}))
        assert json.loads(link.recv(timeout=60)) == {"request_id": 1, "ok": {"pong": True}}
