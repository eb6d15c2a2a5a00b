"""Requests made to cost a server much: they hold nobody else up, and their answers stay small."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx2
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

import evolvent as ev
from evolvent.cli.serve import ServeConfig, _make_connections, _make_server_config
from evolvent.errors import ConfigError, EnvLost
from evolvent.serve.agentgym.face import AgentGymDialect
from evolvent.serve.host import StepRequest, StepResult
from evolvent.serve.mcp.face import McpDialect
from evolvent.serve.openai.request import ChatRequest, CompletionRequest, parse_request
from evolvent.serve.openenv.face import OpenEnvDialect
from evolvent.serve.pool.host import PooledHost
from evolvent.web import Access
from tests.serve.served import Echo, serving, until
from tests.serve.small_host import emptied, faces
from tests.serve.small_policy import NAME, policy_server
from tests.serve.test_mcp_server import Raw


class Thoughtful(Echo):
    """Its expert builds something when it is first asked, and says which thread it was asked on."""

    name = "thoughtful"

    def __init__(self):
        self.release, self.threads = threading.Event(), []

    def expert(self, task):
        self.threads.append(threading.get_ident())
        if len(self.threads) == 1:
            self.release.wait(30)
        return ["quit"]


def test_the_first_question_to_an_expert_holds_nobody_up():
    world = Thoughtful()
    with serving({"thoughtful": world}) as server, server.client() as client, ThreadPoolExecutor(3) as threads:
        task = client.get("/v1/worlds/thoughtful/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
        path = f"/v1/worlds/thoughtful/tasks/{task}/expert"
        asked = [threads.submit(lambda: httpx2.get(server.url + path, trust_env=False, timeout=30)) for _ in range(3)]
        try:
            until(lambda: world.threads)
            assert client.get("/health").status_code == 200 and len(world.threads) == 1, "it builds once"
        finally:
            world.release.set()
        assert [one.result().json() for one in asked] == [{"actions": ["quit"]}] * 3
        assert client.get(path).json() == {"actions": ["quit"]}
    assert world.threads[0] != world.threads[-1], "the first thread was not the loop's"


def test_a_score_is_of_one_episode():
    with serving() as server, server.client() as client:
        path = "/v1/worlds/echo/score"
        assert client.post(path, json={"rewards": [0.0] * 100_001}).status_code == 422
        for wrong in ("1e400", "NaN", "true", '"1"', "1" + "0" * 400, "-1" + "0" * 400):
            assert client.post(path, content=f'{{"rewards": [{wrong}]}}').status_code == 422, wrong
        assert client.post(path, json={"rewards": [0, 0.5, None]}).status_code == 200


MANY = {f"key {number}": number for number in range(5000)}


def test_openenv_tells_of_a_few_wrong_keys_only():
    with faces(OpenEnvDialect()) as (address, _):
        url = f"http://{address}/openenv/count"
        for body in ({"action": {"message": "up", **MANY}}, {"action": {"type": "call_tool", **MANY}}, MANY):
            answer = httpx2.post(f"{url}/step", json=body, trust_env=False, timeout=60)
            assert answer.status_code == 422 and len(answer.content) < 8000
        few = httpx2.post(
            f"{url}/step", json={"action": {"message": "up", "a": 1, "b": 2}}, trust_env=False, timeout=60
        )
        assert [row["loc"] for row in few.json()["detail"]] == [["a"], ["b"]]


def test_mcp_tells_of_no_thousand_wrong_arguments():
    with faces(McpDialect()) as (address, _), closing(Raw(address)) as client:
        client.begin()
        answer = client.post("tools/call", {"name": "evolvent_reset", "arguments": MANY})
        assert "too many" in answer.json()["error"]["message"] and len(answer.content) < 500


def test_beginnings_at_once_in_one_mcp_session_leave_one_session():
    with faces(McpDialect(), capacity=64) as (address, host), closing(Raw(address, "slow")) as client:
        client.begin()
        call = {"name": "evolvent_reset", "arguments": {}}
        rows = [{"jsonrpc": "2.0", "id": 100 + n, "method": "tools/call", "params": call} for n in range(12)]
        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(lambda row: client.http.post(client.url, json=row), rows))
        assert not any(answer.json()["result"]["isError"] for answer in answers)
        until(lambda: host.status().sessions["slow"] == 1, 60.0)
        client.http.delete(client.url)
        assert emptied(host)


@pytest.mark.parametrize(
    "body", [{"messages": [1] * 200_000}, {"messages": [{}], **MANY}, {"messages": [{}], "stop": ["x"] * 1000}]
)
def test_a_policy_tells_of_the_first_wrong_parts(body):
    with pytest.raises(ConfigError) as caught:
        parse_request(ChatRequest, {"model": "m", **body})
    assert len(str(caught.value)) < 2000


def test_a_prompt_of_many_wrong_parts():
    with pytest.raises(ConfigError) as caught:
        parse_request(CompletionRequest, {"model": "m", "prompt": [{}] * 200_000})
    assert len(str(caught.value)) < 2000


def test_texts_that_cannot_fit_are_not_made_tokens():
    policy = ev.tiny_policy(["go", "see"], context=32, seed=1)
    with policy_server(policy) as served, httpx2.Client(base_url=served.url, trust_env=False, timeout=60) as http:
        long = "nobody knows this word " * 10_000  # a word that is read would be refused as unknown
        turns = [{"role": role, "content": ""} for role in ("user", "assistant")] * 1000
        for path, body in (
            ("/chat/completions", {"messages": [{"role": "user", "content": long}]}),
            ("/chat/completions", {"messages": [*turns, {"role": "user", "content": "go"}]}),
            ("/completions", {"prompt": long}),
        ):
            answer = http.post(path, json={"model": NAME, **body})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["code"] == "context_length_exceeded"


class Faulty(Echo):
    """Says what is no JSON to `nan`."""

    name = "faulty"

    def make(self, task):
        return _FaultyEnv(super().make(task))


class _FaultyEnv:
    def __init__(self, inner):
        self._inner, self.close, self.reset = inner, inner.close, inner.reset

    def step(self, action):
        observation, reward, terminated, truncated, _ = self._inner.step(action)
        return observation, reward, terminated, truncated, {"value": float("nan") if action == "nan" else 1}


def faulty_worlds(names):
    return {"faulty": Faulty()}


def test_in_a_pool_too_a_step_whose_info_is_no_json_fails_alone():
    async def ask():
        async with PooledHost(faulty_worlds([]), faulty_worlds, ["faulty"], workers=1) as host:
            task = host.worlds["faulty"].tasks("train", "seen")[0]
            sessions = [await host.create("faulty") for _ in range(3)]
            for session in sessions:
                await host.reset(session, task)
            actions = ("a", "nan", "c")
            answers = await host.steps([StepRequest(*pair, 0) for pair in zip(sessions, actions, strict=True)])
            assert [isinstance(answer, StepResult) for answer in answers] == [True, False, True]
            assert isinstance(answers[1], EnvLost) and "is not JSON" in str(answers[1])
            assert (await host.step(sessions[1], "b", step=1)).observation == "2: b", "the session goes on"

    asyncio.run(ask())


def test_a_world_served_under_another_name_has_its_mount():
    worlds = {"other": Echo()}
    with (
        serving(worlds, faces=[AgentGymDialect({"mine": ("other", "textcraft")})]) as server,
        server.client() as client,
    ):
        begun = client.post("/agentgym/mine/create", json={})
        assert begun.status_code == 200 and begun.json()["observation"] == "task 0"


def test_the_command_does_not_keep_endless_headers():
    config = ServeConfig()
    settings = _make_server_config(config, lambda scope, receive, send: None, Access(), _make_connections(config))
    settings.load()
    assert issubclass(settings.http_protocol_class, H11Protocol)
    assert settings.ws_max_size == Access().body_bytes
