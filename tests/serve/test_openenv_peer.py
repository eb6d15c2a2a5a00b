"""The real `openenv-core` against ours, where it is installed: its clients play our worlds, we play its servers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

core = pytest.importorskip("openenv.core", reason="openenv-core is not installed")

import uvicorn  # noqa: E402
from openenv.cli._validation import validate_running_environment  # noqa: E402
from openenv.core.env_server import Environment, create_fastapi_app  # noqa: E402
from openenv.core.env_server.types import Action, Observation, State  # noqa: E402
from openenv.core.generic_client import GenericEnvClient  # noqa: E402
from openenv.core.mcp_client import MCPToolClient  # noqa: E402
from pydantic import Field  # noqa: E402

from evolvent.errors import AtCapacity, SessionGone, StepTimeout, WorldError  # noqa: E402
from evolvent.serve.given import ClientTimeouts  # noqa: E402
from evolvent.serve.openenv.client import OpenEnvWorld  # noqa: E402
from evolvent.serve.openenv.face import OpenEnvDialect  # noqa: E402
from tests.serve.small_host import emptied, faces  # noqa: E402


@pytest.fixture(scope="module")
def served():
    with faces(OpenEnvDialect()) as (address, host):
        yield address, host


def test_its_client_plays_a_text_world(served):
    async def play():
        async with GenericEnvClient(base_url=f"http://{served[0]}/openenv/count") as env:
            seen = await env.reset(index=2, episode_id="mine")
            assert (seen.observation["text"], seen.reward, seen.done) == ("count to 3", None, False)
            rewards = [(await env.step({"message": "up"})).reward for _ in range(3)]
            assert rewards == [0.25, 0.25, 1.0]
            state = await env.state()
            assert (state["episode_id"], state["step_count"]) == ("mine", 3)
            with pytest.raises(RuntimeError, match="EXECUTION_ERROR"):
                await env.step({"message": "up"})
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                await env.step({"say": "up"})
            assert (await env.reset(seed=0)).observation["text"].startswith("count to")

    asyncio.run(play())
    assert emptied(served[1])


@pytest.mark.parametrize("production", [False, True])
def test_its_tool_client_plays_a_tool_world(served, production):
    async def play():
        async with MCPToolClient(base_url=f"http://{served[0]}/openenv/till") as env:
            env.use_production_mode = production
            if not production:
                await env.reset(index=4)
            assert [tool.name for tool in await env.list_tools()] == ["add", "finish"]
            assert await env.call_tool("add", n=2) == "the sum is 2"
            with pytest.raises(RuntimeError, match="unknown tool"):
                await env.call_tool("ad", n=2)
            assert await env.call_tool("add", n=3) == "the sum is 5"

    asyncio.run(play())
    assert emptied(served[1])


def test_its_validator_is_content(served):
    for world in ("count", "till"):
        report = validate_running_environment(f"http://{served[0]}/openenv/{world}")
        assert report["passed"], report["summary"]


class Said(Action):
    message: str = ""
    tokens: list[int] = Field(default_factory=list)


class Heard(Observation):
    text: str
    tokens: list[int] = Field(default_factory=list)


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.steps, self.id = 0, None

    def reset(self, seed=None, episode_id=None, **more):
        self.steps, self.id = 0, episode_id
        return Heard(text=f"{seed} {episode_id}")

    def step(self, action, timeout_s=None, **more):
        self.steps += 1
        if action.message == "slow":
            time.sleep(1.0)
        if action.message == "crash":
            raise ValueError("boom")
        reward = None if action.message == "none" else 0.5
        done = action.message == "end"
        return Heard(text=f"{action.message} {self.steps}", tokens=action.tokens, reward=reward, done=done)

    @property
    def state(self):
        return State(episode_id=self.id, step_count=self.steps)


@pytest.fixture
def theirs():
    app = create_fastapi_app(Echo, Said, Heard, max_concurrent_envs=2)
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # else no TCP_NODELAY: answers in two parts wait 40 ms
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


def test_we_play_its_server(theirs):
    tasks = {"train": [{"seed": 3, "episode_id": "a"}, {}, {"seed": 4}]}
    world = OpenEnvWorld(
        theirs,
        tasks=tasks,
        action=lambda text: {"message": text, "tokens": [1, 2]},
        timeouts=ClientTimeouts(step_s=0.4, reset_s=2),
    )
    assert world.name == "Echo" and not world.ours
    task = world.tasks("train", "seen")[0]
    env = world.make(task)
    assert env.reset() == ("3 a", {"tokens": []})
    assert env.step("x") == ("x 1", 0.5, False, False, {"tokens": [1, 2]})
    assert env.step("none")[1] is None
    with pytest.raises(StepTimeout):
        env.step("slow")
    with pytest.raises(SessionGone):
        env.step("x")
    assert env.reset()[0] == "3 a" and env.step("x")[0] == "x 1"
    with pytest.raises(WorldError, match="boom"):
        env.step("crash")
    env.reset()
    assert env.step("end")[2]
    time.sleep(1.0)  # the slow step keeps its place until it has ended
    second, third = (world.make(task) for task in world.tasks("train", "seen")[1:])
    second.reset()
    with pytest.raises(AtCapacity, match="2 of 2 sessions"):
        third.reset()
    second.close()
    assert third.reset()[0] == "4 None"
    wrong = OpenEnvWorld(theirs, tasks=tasks, action="word")
    env.close()
    lost = wrong.make(wrong.tasks("train", "seen")[0])
    lost.reset()
    assert "word: Extra inputs are not permitted" in lost.step("x")[0]
    for each in (world, wrong):
        each.close()
