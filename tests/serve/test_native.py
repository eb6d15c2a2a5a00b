"""The native dialect over HTTP, spoken by a client written from its description alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from evolvent.trajectory import Task
from tests.serve.served import SIZES, Echo, begin, serving, small_worlds, until


@pytest.fixture(scope="module")
def server():
    with serving() as found:
        yield found


@pytest.fixture
def client(server):
    with server.client(headers={"Evolvent-Protocol": "1"}) as found:
        yield found


def test_the_handshake(client):
    about = client.get("/v1").json()
    assert about["name"] == "evolvent" and about["protocol"] == 1 and about["ws"] == "/v1/ws"
    assert about["worlds"] == ["echo", "sleepy", "crafting"]
    assert about["versions"]["worlds"]["crafting"] == "1"


def test_another_protocol_is_refused_naming_both(client):
    answer = client.get("/v1", headers={"Evolvent-Protocol": "7"})
    assert (answer.status_code, answer.json()["kind"]) == (400, "VersionMismatch")
    assert "7" in answer.json()["message"] and answer.json()["expected"] == 1


def test_worlds_tell_everything_a_client_needs(client):
    rows = client.get("/v1/worlds").json()["worlds"]
    crafting = small_worlds(["crafting"])["crafting"]
    row = next(row for row in rows if row["name"] == "crafting")
    assert row == client.get("/v1/worlds/crafting").json()
    assert row["instructions"] == crafting.instructions and row["horizon"] == crafting.horizon
    assert row["tiers"] == list(crafting.tiers) and row["reward_range"] == [0.0, 1.0]
    assert row["grammar"] == {"kind": "Plain", "fields": {}} and row["blocking"] is False and row["vocabulary"] is True
    assert client.get("/v1/worlds/crafting/vocabulary").json()["words"] == list(crafting.vocabulary())
    assert client.get("/v1/worlds/echo/vocabulary").json() == {"words": None}


def test_panels_whole_and_in_pages(client):
    path = "/v1/worlds/crafting/tasks?split=train&tier=seen"
    panel = client.get(path).json()
    assert panel["total"] == len(panel["tasks"]) == SIZES.train
    for row in panel["tasks"]:
        assert Task(row["world"], row["version"], row["spec"]).id == row["id"]
        assert (row["split"], row["tier"]) == ("train", "seen")
    page = client.get(path + "&offset=5&limit=3").json()
    assert page == {"tasks": panel["tasks"][5:8], "total": SIZES.train, "offset": 5}
    row = panel["tasks"][0]
    assert client.get(f"/v1/worlds/crafting/tasks/{row['id']}").json() == row


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/worlds/craft", 404, "did you mean 'crafting'?"),
        ("/v1/worlds/echo/tasks", 422, "tier: is missing"),
        ("/v1/worlds/echo/tasks?split=trian&tier=seen", 422, "did you mean 'train'?"),
        ("/v1/worlds/echo/tasks?split=train&tier=seen&limit=-1", 422, "expected a whole number"),
        ("/v1/worlds/echo/tasks/nope", 404, "unknown task 'nope'"),
        ("/v1/worlds/echo/tasks/nope/expert", 404, "nope"),
        ("/v1/nothing", 404, "/openapi.json"),
        ("/nothing", 404, "GET /"),
        ("/v1/sessions/none", 404, "unknown session"),
        ("/v1/worlds/echo/tasks?" + "a=1&" * 50, 422, "query"),
        ("/v1/ws", 404, "unknown path"),
    ],
)
def test_wrong_questions_are_answered_with_what_is_right(client, path, status, words):
    answer = client.get(path)
    assert answer.status_code == status
    row = answer.json()
    assert set(row) == {"kind", "message", "expected", "status"} and row["status"] == status
    assert words in row["message"]


def test_wrong_methods_say_which_there_are(client):
    answer = client.put("/v1/sessions/any")
    assert answer.status_code == 405 and answer.headers["allow"] == "DELETE, GET"
    assert client.post("/health").status_code == 405 and client.get("/v1/steps").headers["allow"] == "POST"


def test_an_expert_episode_and_its_score(client):
    row = client.get("/v1/worlds/crafting/tasks?split=test&tier=longer").json()["tasks"][0]
    actions = client.get(f"/v1/worlds/crafting/tasks/{row['id']}/expert").json()["actions"]
    begun = client.post("/v1/sessions", json={"world": "crafting", "task": row["id"], "seed": 3})
    assert begun.status_code == 201
    session, rewards = begun.json()["session"], []
    assert "Goal: craft" in begun.json()["observation"] and begun.json()["info"]["admissible"]
    for number, action in enumerate(actions):
        done = client.post(f"/v1/sessions/{session}/step", json={"step": number, "action": action}).json()
        assert done["step"] == number and done["terminated"] is (number == len(actions) - 1) and not done["truncated"]
        rewards.append(done["reward"])
    score = client.post("/v1/worlds/crafting/score", json={"rewards": rewards, "info": done["info"]}).json()
    assert score == {"raw": 1.0, "unit": 1.0, "success": True}
    look = client.get(f"/v1/sessions/{session}").json()
    assert (look["state"], look["step"], look["rewards"], look["task"]) == ("ended", len(actions), rewards, row)
    assert client.delete(f"/v1/sessions/{session}").json() == {"closed": True}
    assert client.delete(f"/v1/sessions/{session}").json() == {"closed": False}


def test_an_episode_without_all_rewards_has_no_score(client):
    answer = client.post("/v1/worlds/echo/score", json={"rewards": [0.0, None], "info": {}})
    assert answer.json() == {"raw": None, "unit": None, "success": None}


@pytest.mark.parametrize("rewards", [[float("1e999")], ["1"], [True], {}, None])
def test_rewards_that_are_none(client, rewards):
    body = json.dumps({"rewards": rewards, "info": {}}).replace("Infinity", "1e999")
    answer = client.post("/v1/worlds/echo/score", content=body)
    assert answer.status_code == 422


def test_a_session_begins_again(client):
    session = begin(client)
    client.post(f"/v1/sessions/{session}/step", json={"action": "quit"})
    over = client.post(f"/v1/sessions/{session}/step", json={"action": "more"})
    assert (over.status_code, over.json()["kind"]) == (409, "SessionGone")
    panel = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"]
    again = client.post(f"/v1/sessions/{session}/reset", json={"task": panel[1]["id"]}).json()
    assert again == {"session": session, "observation": f"task {panel[1]['spec']['number']}", "info": {}, "step": 0}
    assert client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "a"}).json()["observation"] == "1: a"
    client.delete(f"/v1/sessions/{session}")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["world"]),
        ({"world": 3, "task": "x"}, ["world: got 3"]),
        ({"world": "echo"}, ["task: got null"]),
        ({"world": "echo", "task": "x", "seed": "1"}, ["seed: got text"]),
        ({"world": "echo", "task": "x", "seed": True}, ["seed: got true"]),
        ({"world": "echo", "task": "x", "seed": 2**63}, ["seed"]),
    ],
)
def test_creations_that_cannot_be_read(client, body, words):
    answer = client.post("/v1/sessions", json=body)
    assert answer.status_code == 422 and answer.json()["kind"] == "ConfigError"
    assert all(word in answer.json()["message"] for word in words)


def test_a_creation_that_fails_leaves_no_session_behind(client):
    before = client.get("/health").json()["sessions"]
    assert client.post("/v1/sessions", json={"world": "echo", "task": "x"}).status_code == 404
    assert client.post("/v1/sessions", json={"world": "ecko", "task": "x"}).status_code == 404
    assert client.get("/health").json()["sessions"] == before


def test_a_batch_fails_item_by_item(client):
    one, other = begin(client), begin(client)
    steps = [
        {"session": one, "action": "a"},
        {"session": "none", "action": "b"},
        {"session": other, "step": 5, "action": "c"},
        {"session": other, "step": 0, "action": "d"},
        {"session": one, "action": "e"},
        "nonsense",
        {"session": 3},
        {"session": other, "step": 0, "action": "d"},
    ]
    results = client.post("/v1/steps", json={"steps": steps}).json()["results"]
    kinds = [row.get("observation") or row["error"]["kind"] for row in results]
    assert kinds == ["1: a", "SessionGone", "WrongStep", "1: d", "2: e", "ConfigError", "ConfigError", "1: d"]
    assert results[2]["error"]["expected"] == 0 and results[3] == results[7]
    assert "steps[6].session: got 3" in results[6]["error"]["message"]
    for session in (one, other):
        client.delete(f"/v1/sessions/{session}")


@pytest.mark.parametrize("steps", [None, {}, "x", [{}] * 1025])
def test_batches_that_are_none(client, steps):
    assert client.post("/v1/steps", json={"steps": steps}).status_code == 422


def test_a_failing_world_ends_its_session_and_no_other(client):
    bad, good = begin(client), begin(client)
    failed = client.post(f"/v1/sessions/{bad}/step", json={"action": "fail"})
    assert (failed.status_code, failed.json()["kind"]) == (410, "EnvLost")
    assert "ZeroDivisionError" in failed.json()["message"]
    again = client.post(f"/v1/sessions/{bad}/step", json={"action": "a"})
    assert (again.status_code, again.json()["kind"]) == (410, "EnvLost")
    assert client.post(f"/v1/sessions/{good}/step", json={"action": "a"}).status_code == 200
    assert client.delete(f"/v1/sessions/{bad}").json() == {"closed": False}
    client.delete(f"/v1/sessions/{good}")


class Arrays(Echo):
    """Hands out what numpy made, and once what is no JSON at all."""

    name = "arrays"

    def make(self, task):
        return self

    def reset(self, *, seed=None, options=None):
        return "begin", {"where": np.array([1, 2]), "legal": ("a", "b"), "mask": np.bool_(True)}

    def step(self, action):
        nan = {"value": float("nan")} if action == "nan" else {"value": np.float32(0.5), np.int64(3): np.int8(4)}
        return action, np.float64(0.25), np.bool_(False), False, nan

    def close(self):
        pass


def test_infos_of_numpy_travel_as_json():
    with serving({"arrays": Arrays()}) as server, server.client() as client:
        task = client.get("/v1/worlds/arrays/tasks?split=train&tier=seen").json()["tasks"][0]
        begun = client.post("/v1/sessions", json={"world": "arrays", "task": task}).json()
        assert begun["info"] == {"where": [1, 2], "legal": ["a", "b"], "mask": True}
        path = f"/v1/sessions/{begun['session']}/step"
        done = client.post(path, json={"action": "a"}).json()
        assert (done["reward"], done["terminated"], done["info"]) == (0.25, False, {"value": 0.5, "3": 4})
        steps = [{"session": begun["session"], "action": action} for action in ("b", "nan", "c")]
        results = client.post("/v1/steps", json={"steps": steps}).json()["results"]
        assert [row.get("observation") for row in results] == ["b", None, "c"]
        assert results[1]["error"]["kind"] == "EnvLost"


def test_64_clients_hammer_and_none_is_given_anothers_answer(server):
    def play(number):
        with server.client() as client:
            session = begin(client, index=number % 20)
            path = f"/v1/sessions/{session}"
            told = [
                client.post(path + "/step", json={"action": f"{number}-{turn}"}).json()["observation"]
                for turn in range(6)
            ]
            assert client.delete(path).json() == {"closed": True}
            return told

    with ThreadPoolExecutor(16) as threads:
        for number, told in enumerate(threads.map(play, range(64))):
            assert told == [f"{turn + 1}: {number}-{turn}" for turn in range(6)]
    with server.client() as client:
        assert client.get("/health").json()["sessions"] == {"echo": 0, "sleepy": 0, "crafting": 0}


def test_health_counts_what_lives(client):
    before = client.get("/health").json()
    session = begin(client)
    client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "a"})
    client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "a"})
    now = client.get("/health").json()
    assert now["status"] == "ok" and now["sessions"]["echo"] == before["sessions"]["echo"] + 1
    assert (now["created"], now["steps"]) == (before["created"] + 1, before["steps"] + 1), "a repetition is no step"
    client.delete(f"/v1/sessions/{session}")


def test_many_sessions_one_after_the_other_leave_nothing_behind():
    worlds = small_worlds(["sleepy"])
    with serving(worlds) as server, server.client() as client:
        task = client.get("/v1/worlds/sleepy/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
        for _ in range(100):
            session = client.post("/v1/sessions", json={"world": "sleepy", "task": task}).json()["session"]
            client.delete(f"/v1/sessions/{session}")
        until(lambda: worlds["sleepy"].closed == 100)
        assert client.get("/health").json()["sessions"] == {"sleepy": 0}


def test_the_document_lists_every_path(client):
    document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    operations = [name for path in document["paths"].values() for name in path if name != "parameters"]
    assert len(operations) == 17 and len(document["paths"]) == 16
    assert set(document["components"]["schemas"]) >= {"Error", "Stepped", "Look", "Task"}


def test_the_root_says_what_is_here(client):
    assert client.get("/").json()["worlds"] == ["echo", "sleepy", "crafting"]
    assert client.head("/health").status_code == 200
