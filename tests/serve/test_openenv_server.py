"""OpenEnv's protocol as served: raw HTTP and WebSocket messages against what openenv-core 0.2.3 and 0.3.0 send."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import httpx2
import pytest
from websockets.sync.client import connect

from evolvent.serve.openenv.face import OpenEnvDialect
from evolvent.web import Access
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.weather import Weather
from tests.serve.small_host import Count, Till, emptied, faces


@pytest.fixture(scope="module")
def served():
    with faces(OpenEnvDialect()) as (address, host):
        yield address, host


@contextmanager
def socket(address, world="count", path="ws", **settings):
    """A connection; `ask` sends JSON (or text as it is) and reads the answer."""
    with connect(f"ws://{address}/openenv/{world}/{path}", proxy=None, **settings) as opened:

        def ask(message):
            opened.send(message if isinstance(message, (str, bytes)) else json.dumps(message))
            return json.loads(opened.recv(timeout=60))

        yield ask


def http(served, method, path, body=None, *, world="count"):
    return httpx2.request(method, f"http://{served[0]}/openenv/{world}{path}", json=body, trust_env=False, timeout=60)


def rpc(method, id=1, **params):
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def test_an_episode_over_the_socket(served):
    with socket(served[0]) as ask:
        assert ask({"type": "state"})["data"] == {"episode_id": None, "step_count": 0, "world": "count", "task": None}
        first = ask({"type": "reset", "data": {"index": 2, "episode_id": "mine", "unknown": 1}})
        task = first["data"]["observation"]["metadata"]["task"]
        marks = {"info": {}, "task": task, "step": 0, "truncated": False}
        seen = {"observation": {"text": "count to 3", "metadata": marks}, "reward": None, "done": False}
        assert first == {"type": "observation", "data": seen}
        step = {"type": "step", "data": {"message": "up"}}
        assert ask(step)["data"]["observation"]["text"] == "at 1"
        second = ask(step)["data"]
        assert (second["reward"], second["done"], second["observation"]["metadata"]["step"]) == (0.25, False, 2)
        assert ask({"type": "state"})["data"]["episode_id"] == "mine"
        last = ask(step)["data"]
        assert (last["reward"], last["done"]) == (1.0, True)
        over = ask(step)
        assert (over["type"], over["data"]["code"]) == ("error", "EXECUTION_ERROR")
        again = ask({"type": "reset", "data": {"task": task}})["data"]
        assert again["observation"]["text"] == "count to 3"
    assert emptied(served[1])


def test_seeds_pick_tasks_of_train(served):
    with socket(served[0]) as ask:

        def told(data):
            return ask({"type": "reset", "data": data})["data"]["observation"]["text"]

        train = Count().tasks("train", "seen")
        for seed in (0, 1, len(train), 2 * len(train) + 1, 2**62):
            assert told({"seed": seed}) == f"count to {train[seed % len(train)].spec['to']}"
        free = {told({}) for _ in range(40)}
        assert len(free) > 5 and free <= {f"count to {task.spec['to']}" for task in train}


def test_what_is_wrong_with_a_message_keeps_the_socket_open(served):
    wrong = [
        ("{", "INVALID_JSON", None),
        ('{"type": "step", "data": {"message": NaN}}', "INVALID_JSON", None),
        ("[" * 100_000, "INVALID_JSON", None),
        (json.dumps({"type": "reset", "data": {"x": "y" * (1 << 20)}}), "INVALID_JSON", None),
        (b"\xff\xfe", "INVALID_JSON", None),
        ([], "VALIDATION_ERROR", []),
        ({"type": "dance"}, "UNKNOWN_TYPE", None),
        ({}, "UNKNOWN_TYPE", None),
        ({"type": "reset", "data": {}, "id": 3}, "VALIDATION_ERROR", ["id"]),
        ({"type": "state", "data": {}}, "VALIDATION_ERROR", ["data"]),
        ({"type": "step"}, "VALIDATION_ERROR", ["data"]),
        ({"type": "step", "data": "up"}, "VALIDATION_ERROR", ["data"]),
        ({"type": "step", "data": {}}, "VALIDATION_ERROR", ["message"]),
        ({"type": "step", "data": {"message": 3}}, "VALIDATION_ERROR", ["message"]),
        ({"type": "step", "data": {"message": "up", "speed": 1}}, "VALIDATION_ERROR", ["speed"]),
        ('{"type": "step", "data": {"message": "\\ud800"}}', "VALIDATION_ERROR", ["message"]),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR", ["seed"]),
        ({"type": "reset", "data": {"episode_id": "x" * 256}}, "VALIDATION_ERROR", ["episode_id"]),
        ({"type": "reset", "data": {"index": 30}}, "EXECUTION_ERROR", None),
        ({"type": "reset", "data": {"task": "0" * 32}}, "EXECUTION_ERROR", None),
        ({"type": "step", "data": {"message": "up"}}, "EXECUTION_ERROR", None),  # before a reset
    ]
    with socket(served[0]) as ask:
        for message, code, place in wrong:
            answer = ask(message)
            assert (answer["type"], answer["data"]["code"]) == ("error", code), message
            if place is not None:
                assert place in [error["loc"] for error in answer["data"]["errors"]], message
        assert ask({"type": "reset", "data": {"index": 0}})["type"] == "observation"


def test_a_request_id_is_echoed_where_it_was_given_and_nowhere_else(served):
    with socket(served[0]) as ask:
        assert ask({"type": "reset", "data": {"index": 5}, "request_id": "a"})["request_id"] == "a"
        assert ask({"type": "step", "data": {"message": "up"}, "request_id": 7})["request_id"] == 7
        assert ask({"type": "step", "data": {}, "request_id": 8})["request_id"] == 8
        assert "request_id" not in ask({"type": "step", "data": {"message": "up"}})
        assert "request_id" not in ask({"type": "state", "request_id": None})


def test_info_admissible_and_unscored_rewards_travel(served):
    with socket(served[0], "told") as ask:
        first = ask({"type": "reset", "data": {"index": 6, "seed": 11}})["data"]["observation"]
        assert first["admissible"] == ["up", "stop"]
        assert first["metadata"]["info"] == {"seed": 11, "deep": {"a": [1, 2.5]}}
        assert ask({"type": "step", "data": {"message": "none"}})["data"]["reward"] is None
        for _ in range(2):
            assert not ask({"type": "step", "data": {"message": "up"}})["data"]["done"]
        last = ask({"type": "step", "data": {"message": "up"}})["data"]
        assert last["done"] and last["observation"]["metadata"]["truncated"]


def test_a_step_that_takes_too_long_loses_the_episode_and_no_more(served):
    with socket(served[0], "slow") as ask:
        ask({"type": "reset", "data": {"index": 9}})
        slow = ask({"type": "step", "data": {"message": "slow"}})["data"]
        assert (slow["code"], slow["kind"]) == ("EXECUTION_ERROR", "StepTimeout")
        assert ask({"type": "step", "data": {"message": "up"}})["data"]["kind"] == "SessionGone"
        assert ask({"type": "reset", "data": {"index": 9}})["data"]["observation"]["text"].startswith("count to")
        assert ask({"type": "step", "data": {"message": "up"}})["data"]["observation"]["text"] == "at 1"
    assert emptied(served[1])


def test_capacity_is_told_and_the_socket_closed():
    with faces(OpenEnvDialect(), capacity=1) as (address, host):
        with socket(address) as held:
            held({"type": "reset", "data": {}})
            with connect(f"ws://{address}/openenv/count/ws", proxy=None) as full:
                told = json.loads(full.recv(timeout=60))
                assert told["type"] == "error"
                data = told["data"]
                assert (data["code"], data["active_sessions"], data["max_sessions"]) == ("CAPACITY_REACHED", 1, 1)
                assert list(full) == [], "the server has closed"
            with connect(f"ws://{address}/openenv/till/mcp", proxy=None) as full:
                error = json.loads(full.recv(timeout=60))["error"]
                assert (error["code"], error["data"]["max_sessions"]) == (-32000, 1)
            refused = http((address, host), "POST", "/reset", {})
            assert (refused.status_code, refused.headers["retry-after"].isdigit()) == (503, True)
            assert (
                http((address, host), "POST", "/mcp", rpc("openenv/session/create")).json()["error"]["data"][
                    "active_sessions"
                ]
                == 1
            )
        assert emptied(host)


def test_close_ends_the_connection(served):
    with connect(f"ws://{served[0]}/openenv/count/ws", proxy=None) as opened:
        opened.send('{"type": "close"}')
        assert list(opened) == []
    assert emptied(served[1])


def test_connections_do_not_mix(served):
    texts = {}

    def play(number):
        with socket(served[0]) as ask:
            ask({"type": "reset", "data": {"index": 20}})
            for _ in range(number):
                texts[number] = ask({"type": "step", "data": {"message": "up"}})["data"]["observation"]["text"]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: f"at {number}" for number in range(1, 9)}


def test_pages(served):
    assert http(served, "GET", "/health").json() == {"status": "healthy"}
    assert http(served, "GET", "/state").json()["step_count"] == 0
    told = http(served, "GET", "/metadata").json()
    fields = {"name", "description", "readme_content", "version", "author", "documentation_url", "evolvent"}
    assert set(told) == fields and told["description"] == "Say up until the number is reached."
    counts = {split: {"seen": len(Count().tasks(split, "seen"))} for split in ("train", "dev", "test")}
    assert told["evolvent"]["tasks"] == counts and told["evolvent"]["tools"] is False
    schema = http(served, "GET", "/schema").json()
    assert set(schema) == {"action", "observation", "state"} and schema["action"]["required"] == ["message"]
    assert {"/reset", "/step", "/state"} <= set(http(served, "GET", "/openapi.json").json()["paths"])
    assert http(served, "GET", "/nothing").status_code == 404
    assert http(served, "GET", "/reset").status_code == 405
    assert http(served, "POST", "/reset", {}, world="nothing").status_code == 404


def test_http_has_a_new_environment_for_every_request(served):
    first = http(served, "POST", "/reset", {"seed": 0})
    assert first.json() == http(served, "POST", "/reset", {"seed": 0}).json()
    empty = httpx2.post(f"http://{served[0]}/openenv/count/reset", trust_env=False, timeout=60)
    assert empty.status_code == 200 and empty.json()["reward"] is None
    body = {"action": {"message": "up"}, "timeout_s": 3.0, "request_id": "r"}
    step = http(served, "POST", "/step", {**body, "index": 3})
    assert step.json()["observation"]["text"] == "at 1", "the first step of that task"
    assert http(served, "POST", "/step", body).json() == http(served, "POST", "/step", body).json()
    assert emptied(served[1])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", {}, 422),
        ("/step", {"action": {"message": 1}}, 422),
        ("/step", {"action": {"message": "up", "x": 1}}, 422),
        ("/step", {"action": "up"}, 422),
        ("/step", {"action": {"message": "up"}, "timeout_s": 0}, 422),
        ("/step", [], 422),
        ("/reset", {"seed": "three"}, 422),
        ("/reset", {"index": 99}, 422),
        ("/reset", {"task": "0" * 32}, 404),
    ],
)
def test_bad_bodies(served, path, body, status):
    answer = http(served, "POST", path, body)
    assert answer.status_code == status and answer.json()["detail"]


def test_bodies_that_are_no_json(served):
    url = f"http://{served[0]}/openenv/count"
    for path in ("/reset", "/step"):
        for content in (b"{", b"\xff", b'{"seed": NaN}'):
            assert httpx2.post(url + path, content=content, trust_env=False, timeout=60).status_code == 422
    parse = httpx2.post(url + "/mcp", content=b"{", trust_env=False, timeout=60)
    assert (parse.status_code, parse.json()["error"]["code"]) == (200, -32700)


def test_tools_by_steps(served):
    with socket(served[0], "till") as ask:
        listed = ask({"type": "step", "data": {"type": "list_tools"}})["data"]
        assert [tool["name"] for tool in listed["observation"]["tools"]] == ["add", "finish"]
        assert listed["observation"]["tools"][0]["input_schema"]["required"] == ["n"]
        reach = int(ask({"type": "reset", "data": {"index": 4}})["data"]["observation"]["text"].split()[1])
        call = {"type": "call_tool", "tool_name": "add", "arguments": {"n": reach}}
        answer = ask({"type": "step", "data": call})["data"]
        seen = answer["observation"]
        assert (seen["tool_name"], seen["result"]["data"], seen["error"]) == ("add", f"the sum is {reach}", None)
        unknown = ask({"type": "step", "data": {**call, "tool_name": "ad"}})["data"]["observation"]
        assert (
            unknown["error"]["error_type"] == "tool_not_found" and "did you mean 'add'" in unknown["error"]["message"]
        )
        assert ask({"type": "state"})["data"]["step_count"] == 1, "no step was taken"
        last = ask({"type": "step", "data": {"type": "call_tool", "tool_name": "finish"}})["data"]
        assert (last["reward"], last["done"]) == (1.0, True)


def test_json_rpc_on_the_sockets(served):
    with socket(served[0], "till") as ask:
        ask({"type": "reset", "data": {"index": 4}})
        answer = ask({"type": "mcp", "data": rpc("tools/call", name="add", arguments={"n": 2})})
        assert answer["type"] == "mcp" and answer["data"]["result"]["data"] == "the sum is 2"
        own = ask({"type": "mcp", "data": rpc("openenv/session/create")})["data"]["result"]["session_id"]
        refused = ask({"type": "mcp", "data": rpc("openenv/session/close", session_id=own)})["data"]
        assert refused["error"]["code"] == -32600
    with socket(served[0], "till", "mcp") as ask:
        assert [tool["name"] for tool in ask(rpc("tools/list"))["result"]["tools"]] == ["add", "finish"]
        begun = ask(rpc("tools/call", name="add", arguments={"n": 1}))["result"]
        assert begun["structuredContent"]["observation"] == "the sum is 1", "an episode begins with the first call"
        assert ask("{")["error"]["code"] == -32700
    assert emptied(served[1])


def test_json_rpc_over_http(served):
    def ask(body):
        answer = http(served, "POST", "/mcp", body, world="till")
        assert answer.status_code == 200
        return answer.json()

    made = ask(rpc("openenv/session/create", index=0))["result"]
    session, reach = made["session_id"], int(made["observation"].split()[1])
    assert ask(rpc("tools/call", name="add", arguments={"n": reach}, session_id=session))["id"] == 1
    last = ask(rpc("tools/call", id="x", name="finish", session_id=session))
    assert last["id"] == "x" and last["result"]["structuredContent"]["reward"] == 1.0
    assert last["result"]["structuredContent"]["done"] is True
    over = ask(rpc("tools/call", name="finish", session_id=session))["error"]
    assert (over["code"], over["data"]["kind"]) == (-32000, "SessionGone")
    assert ask(rpc("openenv/session/close", session_id=session))["result"]["closed"] is True
    assert ask(rpc("openenv/session/close", session_id=session))["error"]["code"] == -32602
    assert ask(rpc("tools/call", name="add", session_id=session))["error"]["code"] == -32602
    alone = ask(rpc("tools/call", name="add", arguments={"n": 3}))["result"]
    assert alone["data"] == "the sum is 3" and emptied(served[1]), "its environment ended with it"


def test_json_rpc_that_is_none(served):
    wrong = [
        ({}, -32600),
        ([], -32600),
        ({"jsonrpc": "1.0", "method": "tools/list"}, -32600),
        ({**rpc("tools/list"), "x": 1}, -32600),
        ({**rpc("tools/list"), "id": True}, -32600),
        ({**rpc("tools/list"), "params": []}, -32602),
        (rpc("tools/dance"), -32601),
        (rpc("tools/call"), -32602),
        (rpc("tools/call", name="act", arguments=[1]), -32602),
        (rpc("tools/call", name="fly"), -32602),
        (rpc("tools/call", name="act", arguments={"action": 3}), -32602),
        (rpc("openenv/session/create", seed=-1), -32602),
        (rpc("openenv/session/close"), -32602),
    ]
    for body, code in wrong:
        assert http(served, "POST", "/mcp", body).json()["error"]["code"] == code, body
    assert emptied(served[1])


def test_a_real_tool_world():
    world = Weather(sizes=Sizes(train=30, dev=20, test=20))
    task = world.tasks("train", "seen")[0]
    with faces(OpenEnvDialect(["weather"]), worlds=(world, Till())) as (address, _):
        assert http((address, None), "GET", "/health", world="till").status_code == 404, "only what was asked for"
        with socket(address, "weather") as ask:
            assert ask({"type": "reset", "data": {"task": task.id}})["type"] == "observation"
            done = False
            for action in world.expert(task):
                call = world.grammar.parse_call(action)
                data = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
                answer = ask({"type": "step", "data": data})["data"]
                done = answer["done"]
            assert done and answer["observation"]["error"] is None
            ask({"type": "reset", "data": {"task": task.id}})
            extra = {"type": "call_tool", "tool_name": call.name, "arguments": {**call.arguments, "zzz": 1}}
            assert ask({"type": "step", "data": extra})["data"]["observation"]["result"]["is_error"]


def test_the_guard_stands_before_all_of_it():
    token = "a-token-of-the-test"
    with faces(OpenEnvDialect(), access=Access(token)) as (address, _):
        url = f"http://{address}/openenv/count/health"
        assert httpx2.get(url, trust_env=False, timeout=60).status_code == 403
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx2.get(url, headers=bearer, trust_env=False, timeout=60).status_code == 200
        with pytest.raises(Exception, match="403"):
            connect(f"ws://{address}/openenv/count/ws", proxy=None)
        with socket(address, additional_headers=bearer) as ask:
            assert ask({"type": "reset", "data": {}})["type"] == "observation"
