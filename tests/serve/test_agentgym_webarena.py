"""The site as AgentGym's WebArena server: a client after the published protocol plays it.

The client is plain httpx2 and JSON, after `agentenv/envs/webarena.py` and the routes of `agentenv_webarena/server.py`:
creation without a body answers `{"env_idx"}`; a reset sends the seed 0 and the number of the task; a step sends the
full text of a model, whose action is the first block between triple backticks; the reward counts at `terminated`.
"""

from __future__ import annotations

import re

import httpx2
import pytest

from evolvent.agents.plain import Script
from evolvent.rollout.episode import collect
from evolvent.serve.agentgym.client import AgentGymWorld
from evolvent.serve.agentgym.dialects import default_mounts
from evolvent.trajectory import Start
from evolvent.worlds.panel import Sizes, list_tasks
from evolvent.worlds.site.world import Site
from tests.serve.agentgym_support import serving

WORLD = Site(sizes=Sizes(train=6, dev=2, test=2))
PROMPT = re.compile(
    r"OBSERVATION:\nTab 0 \(current\): .*\n\n\[\d+\] RootWebArea '.*\n(?:\t+\[\d+\] \w+ .*\n)+URL: http://[a-z]+\.com\S*\n"
    r"OBJECTIVE: .+\nPREVIOUS ACTION: .+"
)


def say(action: str) -> str:
    return f"Let's think step-by-step. In summary, the next action I will perform is ```{action}```"


class Client:
    """One session of an agent: every answer must have status 200, as for the released client."""

    def __init__(self, http: httpx2.Client, base: str) -> None:
        self.http, self.base = http, base
        answer = http.post(f"{base}/create")
        assert answer.status_code == 200
        self.env_id = answer.json()["env_idx"]

    def post(self, path: str, **fields: object):
        answer = self.http.post(f"{self.base}/{path}", json={**fields, "env_idx": self.env_id})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str):
        answer = self.http.get(f"{self.base}/{path}?env_idx={self.env_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reset(self, index: int):
        return self.post("reset", seed=0, idx=index)

    def step(self, text: str) -> tuple[str, float, bool]:
        answer = self.post("step", action=text)
        return answer["observation"], answer["reward"], answer["terminated"]


@pytest.fixture(scope="module")
def server():
    with serving({"site": WORLD}, default_mounts(["site"])) as served:
        yield served


@pytest.fixture
def client(server):
    with httpx2.Client(trust_env=False, timeout=60) as http:
        yield Client(http, server.mount("webarena"))


def test_the_mount_has_both_names():
    assert default_mounts(["site"]) == {"site": ("site", "webarena"), "webarena": ("site", "webarena")}


def test_a_client_reaches_the_objectives(client):
    for index, task in enumerate(list_tasks(WORLD)[:4]):
        first = client.reset(index)
        assert first["observation"] == WORLD.make(task).reset()[0] and PROMPT.fullmatch(first["observation"])
        assert set(first["sites"]) <= {"shopping", "reddit", "gitlab"} and first["sites"]
        plan = WORLD.expert(task)
        for action in plan[:-1]:
            observation, reward, terminated = client.step(say(action))
            assert (reward, terminated) == (0.0, False) and client.get("observation") == observation
            assert PROMPT.fullmatch(observation)
        assert client.step(say(plan[-1]))[1:] == (1.0, True)


def test_a_text_without_an_action_changes_nothing(client):
    first = client.reset(0)["observation"]
    message, reward, terminated = client.step("I would click [3]")
    assert "```" in message and (reward, terminated) == (0, False)
    assert client.get("observation") == first
    observation, reward, terminated = client.step(say("click [0]"))
    assert "no matching element found" in observation and (reward, terminated) == (0.0, False)
    assert observation.split("PREVIOUS ACTION")[0] == first.split("PREVIOUS ACTION")[0]


def test_the_metadata_hold_the_nodes_in_view(client):
    first = client.reset(0)["observation"]
    nodes = client.get("observation_metadata")["obs_nodes_info"]
    assert [node["text"] for node in nodes.values()] == re.findall(r"(?m)^\t*(\[\d+\] .+)$", first)
    assert all(node["text"].startswith(f"[{node_id}] ") for node_id, node in nodes.items())


def test_two_clients_do_not_meet(server, client):
    with httpx2.Client(trust_env=False, timeout=60) as http:
        other = Client(http, server.mount("site"))
        first, second = client.reset(0)["observation"], other.reset(1)["observation"]
        assert client.env_id != other.env_id and first != second
        client.step(say("goto [http://homepage.com]"))
        assert other.get("observation") == second
        assert other.post("close") == {"closed": "closed"} and client.get("observation") != first


def test_our_own_client_plays_whole_episodes(server):
    tasks = list_tasks(WORLD)
    with AgentGymWorld(server.mount("webarena"), "webarena", {"test": range(4)}, horizon=WORLD.horizon) as world:
        agent = Script(lambda world, task: WORLD.expert(tasks[task.spec["index"]]))
        starts = [Start(task) for task in world.tasks("test", "seen")]
        played = list(collect({world.name: world}, starts, agent, engine=None, slots=4))
    assert [(episode.error, episode.success) for episode in played] == [(None, True)] * 4
