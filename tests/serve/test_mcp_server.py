"""Worlds as MCP servers: raw JSON-RPC over streamable HTTP as the specification has it, and the official client."""

from __future__ import annotations

import asyncio
from contextlib import closing, contextmanager

import httpx2
import pytest
from mcp import Client, MCPError

from evolvent.serve.mcp.face import McpDialect
from evolvent.web import Access
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.weather import Weather
from tests.serve.small_host import Count, Till, emptied, faces

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture(scope="module")
def served():
    with faces(McpDialect()) as (address, host):
        yield address, host


class Raw:
    """A client of the handshake era (2025-11-25) that knows nothing but the specification."""

    def __init__(self, address, world="till", **headers):
        self.url, self.number = f"http://{address}/mcp/{world}", 0
        self.http = httpx2.Client(headers={**ACCEPT, **headers}, trust_env=False, timeout=20)

    def close(self):
        self.http.close()

    def post(self, method, params=None, **more):
        self.number += 1
        body = {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}}
        return self.http.post(self.url, json=body, **more)

    def begin(self):
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
        answer = self.post("initialize", hello)
        assert answer.status_code == 200, answer.text
        self.http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        self.http.headers["mcp-protocol-version"] = "2025-11-25"
        done = self.http.post(self.url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert done.status_code == 202
        return answer.json()["result"]

    def call(self, name, **arguments):
        return self.post("tools/call", {"name": name, "arguments": arguments}).json()["result"]


@contextmanager
def session(address, world="till", **headers):
    """A client in a session that is ended afterwards."""
    with closing(Raw(address, world, **headers)) as client:
        client.said = client.begin()
        yield client
        client.http.delete(client.url)


@pytest.fixture
def raw(served):
    with session(served[0]) as client:
        yield client


def reach(answer):
    return int(answer["content"][0]["text"].split()[-1])


def test_the_handshake_tells_of_the_world(raw):
    assert raw.said["serverInfo"]["name"] == "evolvent/till" and raw.said["serverInfo"]["version"] == "1"
    assert raw.said["instructions"].startswith("Add until the sum is reached")
    assert "evolvent_reset" in raw.said["instructions"] and "tools" in raw.said["capabilities"]


def test_tools_are_listed_with_their_schemas(raw):
    tools = {tool["name"]: tool for tool in raw.post("tools/list").json()["result"]["tools"]}
    assert list(tools) == ["evolvent_reset", "add", "finish"]
    assert tools["add"]["inputSchema"]["properties"] == {"n": {"type": "integer"}}
    assert tools["add"]["inputSchema"]["required"] == ["n"] and tools["finish"]["inputSchema"] == {"type": "object"}
    assert set(tools["evolvent_reset"]["inputSchema"]["properties"]) == {"task", "index", "seed"}


def test_an_episode(raw):
    first = raw.call("evolvent_reset", index=4)
    assert set(first["structuredContent"]) == {"observation", "info", "task"} and not first["isError"]
    step = raw.call("add", n=reach(first))
    assert step["content"] == [{"type": "text", "text": f"the sum is {reach(first)}"}]
    told = {"reward": 0.0, "terminated": False, "truncated": False, "done": False, "step": 0, "info": {}}
    assert step["structuredContent"] == {**told, "observation": f"the sum is {reach(first)}"}
    last = raw.call("finish")["structuredContent"]
    assert (last["reward"], last["done"], last["terminated"], last["step"]) == (1.0, True, True, 1)
    over = raw.call("finish")
    assert over["isError"] and over["structuredContent"]["kind"] == "SessionGone"
    assert reach(raw.call("evolvent_reset", index=4)) == reach(first)


def test_a_call_without_an_episode_takes_no_step(raw):
    answer = raw.call("add", n=1)
    assert answer["isError"] and answer["structuredContent"]["kind"] == "SessionGone"
    assert "evolvent_reset first" in answer["content"][0]["text"]


def test_calls_that_are_none(raw):
    raw.call("evolvent_reset", index=0)
    cases = [
        ({"name": "ad", "arguments": {}}, "did you mean 'add'"),
        ({"name": "evolvent_reset", "arguments": {"number": 3}}, "number"),
        ({"name": "evolvent_reset", "arguments": {"index": "x"}}, "index"),
    ]
    for params, told in cases:
        error = raw.post("tools/call", params).json()["error"]
        assert error["code"] == -32602 and told in error["message"]
    unknown = raw.call("evolvent_reset", index=99)
    assert unknown["isError"] and "0 to 29" in unknown["content"][0]["text"]
    missing = raw.call("add", m=3)
    assert missing["structuredContent"]["step"] == 0, "a call that the world tells off is a step"
    strange = raw.http.post(
        raw.url,
        content='{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"add","arguments":{"n":"\\ud800"}}}',
    )
    assert strange.status_code < 500
    assert raw.call("add", n=1)["structuredContent"]["step"] == 1


def test_sessions_end(served):
    with session(served[0]) as one, session(served[0]) as two:
        for client in (one, two):
            client.call("evolvent_reset", index=0)
        one.call("add", n=5)
        assert two.call("add", n=2)["content"][0]["text"] == "the sum is 2", "sessions do not mix"
        assert sum(served[1].status().sessions.values()) == 2
        for client in (one, two):
            assert client.http.delete(client.url).status_code == 200
            assert client.post("tools/list").status_code == 404
    assert emptied(served[1])


def test_there_is_no_stream_and_no_other_session(served, raw):
    stream = raw.http.get(raw.url, headers={"accept": "text/event-stream"})
    assert (stream.status_code, stream.headers["allow"]) == (405, "POST, DELETE")
    assert raw.http.put(raw.url, json={}).status_code == 405
    foreign = httpx2.post(
        raw.url,
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        headers={**ACCEPT, "mcp-session-id": "f" * 32},
        trust_env=False,
        timeout=60,
    )
    assert foreign.status_code == 404
    none = httpx2.post(
        raw.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=ACCEPT, trust_env=False, timeout=60
    )
    assert none.status_code == 400
    for body in (b"{", b"[]", b"\xff"):
        assert httpx2.post(raw.url, content=body, headers=ACCEPT, trust_env=False, timeout=60).status_code == 400
    assert httpx2.post(f"http://{served[0]}/mcp/nothing", json={}, trust_env=False, timeout=60).status_code == 404


def test_a_text_world_has_one_tool(served):
    with session(served[0], "count") as client:
        tools = client.post("tools/list").json()["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["evolvent_reset", "act"]
        assert tools[1]["inputSchema"]["required"] == ["action"]
        client.call("evolvent_reset", index=5)
        assert client.call("act", action="up")["structuredContent"]["reward"] == 0.25
        wrong = client.call("act", action=3)
        assert wrong["isError"] and wrong["structuredContent"]["kind"] == "InvalidAction"
        assert client.call("act", action="up")["structuredContent"]["step"] == 1, "no step was taken"


def test_what_the_world_marks_invalid_is_an_error_of_the_tool(served):
    with session(served[0], "told") as client:
        first = client.call("evolvent_reset", index=6, seed=3)
        assert first["structuredContent"]["info"]["deep"] == {"a": [1, 2.5]}
        wrong = client.call("act", action="fly")
        assert wrong["isError"] and wrong["content"][0]["text"] == "cannot fly"
        assert client.call("act", action="none")["structuredContent"]["reward"] is None
        client.call("act", action="up")
        last = client.call("act", action="up")["structuredContent"]
        assert (last["done"], last["truncated"], last["terminated"]) == (True, True, False)


def test_a_slow_step_loses_the_episode(served):
    with session(served[0], "slow") as client:
        client.call("evolvent_reset", index=9)
        assert client.call("act", action="slow")["structuredContent"]["kind"] == "StepTimeout"
        assert client.call("act", action="up")["structuredContent"]["kind"] == "SessionGone"
        assert not client.call("evolvent_reset", index=9)["isError"]
    assert emptied(served[1])


def test_a_full_host():
    with faces(McpDialect(), capacity=1) as (address, host):
        with session(address) as second:
            with session(address) as first:
                first.call("evolvent_reset")
                full = second.call("evolvent_reset")
                assert full["isError"] and full["structuredContent"]["kind"] == "AtCapacity"
                assert "Retry after" in full["content"][0]["text"] and full["structuredContent"]["retry_after_s"] > 0
            assert not second.call("evolvent_reset")["isError"]
        with closing(Raw(address)) as left:
            left.begin()
            left.call("evolvent_reset")
    assert emptied(host), "what clients left behind ends with the server"


def test_versions_without_sessions_name_the_episode():
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    def ask(client, method, **params):
        headers = {"mcp-method": method, **({"mcp-name": params["name"]} if "name" in params else {})}
        answer = client.post(method, {**params, "_meta": meta}, headers=headers)
        assert "mcp-session-id" not in answer.headers
        return answer.json()["result"]

    with faces(McpDialect()) as (address, _), closing(Raw(address, **{"mcp-protocol-version": "2026-07-28"})) as client:
        tools = {tool["name"]: tool["inputSchema"] for tool in ask(client, "tools/list")["tools"]}
        assert tools["add"]["required"] == ["n", "episode"] and "required" not in tools["evolvent_reset"]
        one, two = (ask(client, "tools/call", name="evolvent_reset", arguments={"index": 2}) for _ in range(2))
        names = [answer["structuredContent"]["episode"] for answer in (one, two)]
        assert len(set(names)) == 2 and one["content"][0]["text"].startswith(f"episode: {names[0]}\nreach")
        calls = [{"n": n, "episode": name} for n, name in zip((3, 4), names, strict=True)]
        sums = [ask(client, "tools/call", name="add", arguments=call)["content"][0]["text"] for call in calls]
        assert sums == ["the sum is 3", "the sum is 4"]
        again = ask(client, "tools/call", name="evolvent_reset", arguments={"index": 2, "episode": names[0]})
        assert again["structuredContent"]["episode"] == names[0], "the same place"
        with session(address) as other:
            other.call("evolvent_reset", index=2)
            client.http.headers["mcp-session-id"] = other.http.headers["mcp-session-id"]
            stolen = ask(client, "tools/call", name="add", arguments={"n": 1})
            assert stolen["isError"], "a header that this version does not know opens nothing"
        for episode in ({}, {"episode": "f" * 32}, {"episode": 3}):
            lost = ask(client, "tools/call", name="add", arguments={"n": 1, **episode})
            assert lost["isError"] and lost["structuredContent"]["kind"] == "SessionGone"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_official_client_plays_an_expert(mode):
    world = Weather(sizes=Sizes(train=30, dev=20, test=20))
    task = world.tasks("train", "seen")[1]

    async def play(url):
        async with Client(url, mode=mode) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            assert listed == {"evolvent_reset", *(tool.name for tool in world.toolbox(task).tools)}
            begun = await client.call_tool("evolvent_reset", {"task": task.id})
            named = {"episode": begun.structured_content["episode"]} if mode == "auto" else {}
            for action in world.expert(task):
                call = world.grammar.parse_call(action)
                answer = await client.call_tool(call.name, {**call.arguments, **named})
            assert answer.structured_content["done"] and answer.structured_content["reward"] == 1.0
            with pytest.raises(MCPError, match="unknown tool"):
                await client.call_tool("get_whether", named)

    with faces(McpDialect(["weather"]), worlds=(world, Till())) as (address, host):
        asyncio.run(play(f"http://{address}/mcp/weather"))
        if mode == "legacy":
            assert emptied(host), "leaving ends the session"


def test_many_official_clients_at_once(served):
    numbers = [task.spec["to"] for task in Count().tasks("train", "seen")][:12]

    async def play(index):
        async with Client(f"http://{served[0]}/mcp/count", mode="legacy") as client:
            await client.call_tool("evolvent_reset", {"index": index})
            seen = [await client.call_tool("act", {"action": "up"}) for _ in range(2)]
            return [row.structured_content["observation"] for row in seen if not row.is_error]

    async def every():
        return await asyncio.gather(*(play(index) for index in range(12)))

    played = asyncio.run(every())
    assert played == [(["at 1", "at 2"] if to > 2 else ["at 1", ""] if to == 2 else [""]) for to in numbers]
    assert emptied(served[1])


def test_the_guard_stands_before_it():
    token = "a-token-of-the-test"
    with faces(McpDialect(), access=Access(token)) as (address, _):
        with closing(Raw(address)) as client:
            assert client.post("initialize").status_code == 403
        with session(address, authorization=f"Bearer {token}") as client:
            assert client.said["serverInfo"]["name"] == "evolvent/till"
        with closing(Raw(address, authorization=f"Bearer {token}", origin="https://evil.example")) as client:
            assert client.post("initialize").status_code == 403


def test_an_address_may_end_in_mcp(served):
    """As the MCP inspector wants it; the session is that of the shorter address."""
    with session(served[0], "till/mcp") as client:
        tools = client.post("tools/list").json()["result"]["tools"]
        client.url = client.url.removesuffix("/mcp")
        assert tools and client.post("tools/list").json()["result"]["tools"] == tools
