"""The shop as AgentGym's WebShop server: a client after the published protocol plays it.

The client is plain httpx2 and JSON, after `agentenv/envs/webshop.py` and the routes of `agentenv_webshop/server.py`:
creation without a body answers a bare number, which is `env_idx` from then on; the first observation is read by
`GET /observation`; only `state`, `reward` and `done` of a step are looked at.
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
from evolvent.worlds.shop.world import Shop
from tests.serve.agentgym_support import serving

WORLD = Shop(sizes=Sizes(train=6, dev=2, test=2))
PAGES = {
    "search": r"WebShop \[SEP\] Instruction: \[SEP\] .+, and price lower than \d+\.00 dollars \[SEP\] Search",
    "results": r"Instruction: \[SEP\] .+ \[SEP\] Back to Search \[SEP\] Page 1 \(Total results: 50\) \[SEP\] Next > .+",
    "item": r"Instruction: \[SEP\] .+ \[SEP\] Back to Search \[SEP\] < Prev \[SEP\] .+ Price: \$.+ \[SEP\] Buy Now",
    "done": r"Thank you for shopping with us! .+ \[SEP\] Reward Details \[SEP\] None",
}


class Client:
    """One session of an agent: every answer must have status 200, as for the released client."""

    def __init__(self, http: httpx2.Client, base: str) -> None:
        self.http, self.base = http, base
        answer = http.post(f"{base}/create")
        assert answer.status_code == 200
        self.env_id = answer.json()
        assert type(self.env_id) is int

    def post(self, path: str, **fields: object):
        answer = self.http.post(f"{self.base}/{path}", json={**fields, "env_idx": self.env_id})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str):
        answer = self.http.get(f"{self.base}/{path}?env_idx={self.env_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def observe(self) -> str:
        return self.get("observation")

    def reset(self, index: int) -> list:
        answer = self.post("reset", session_id=index)
        answer[0] = self.observe()
        return answer

    def step(self, action: str) -> tuple[str, float, bool]:
        answer = self.post("step", action=action)
        assert answer["info"] is None
        return answer["state"], answer["reward"], answer["done"]


@pytest.fixture(scope="module")
def server():
    with serving({"shop": WORLD}, default_mounts(["shop"])) as served:
        yield served


@pytest.fixture
def client(server):
    with httpx2.Client(trust_env=False, timeout=60) as http:
        yield Client(http, server.mount("webshop"))


def test_the_mount_has_both_names():
    assert default_mounts(["shop"]) == {"shop": ("shop", "webshop"), "webshop": ("shop", "webshop")}


def test_a_client_shops(client):
    for index, task in enumerate(list_tasks(WORLD)[:4]):
        first = client.reset(index)
        assert first == [WORLD.make(task).reset()[0], None]
        assert re.fullmatch(PAGES["search"], first[0])
        plan = WORLD.expert(task)
        for action in plan[:-1]:
            state, reward, done = client.step(action)
            assert (reward, done) == (0.0, False) and client.observe() == state
        state, reward, done = client.step(plan[-1])
        assert (reward, done) == (1.0, True) and re.fullmatch(PAGES["done"], state)
        assert "[SEP] Your score (min 0.0, max 1.0) [SEP] 1.0 [SEP]" in state


def test_what_can_be_clicked_is_told_in_lower_case(client):
    first = client.reset(0)[0]
    instruction = first.split(" [SEP] ")[2]
    assert client.get("available_actions") == {"has_search_bar": True, "clickables": ["search"]}
    assert client.get("instruction_text") == f"Instruction: {instruction}"
    assert client.get("state")["instruction_text"] == f"Instruction: {instruction}"
    state, _, _ = client.step("search[rain jacket]")
    assert re.fullmatch(PAGES["results"], state)
    told = client.get("available_actions")
    assert told["has_search_bar"] is False
    assert told["clickables"] == ["back to search", "next >", *re.findall(r"\b\d{10}\b", state)]
    state, _, _ = client.step(f"click[{told['clickables'][2]}]")
    assert re.fullmatch(PAGES["item"], state)
    told = client.get("available_actions")["clickables"]
    buttons = ["back to search", "< prev", "description", "features", "reviews", "attributes", "buy now"]
    assert told[:7] == buttons and len(told) > 9
    for target in ("features", "< prev", told[-1]):
        client.step(f"click[{target}]")
    assert client.observe() == state, "the chosen option is not shown"
    assert client.step("click[search]") == (state, 0.0, False), "what cannot be clicked changes nothing"
    _, reward, done = client.step("click[Buy Now]")
    assert done and 0.0 <= reward <= 1.0


def test_two_clients_do_not_meet(server, client):
    with httpx2.Client(trust_env=False, timeout=60) as http:
        other = Client(http, server.mount("shop"))
        first, second = client.reset(0)[0], other.reset(1)[0]
        assert client.env_id != other.env_id and first != second
        client.step("search[rain jacket]")
        assert other.observe() == second
        assert other.post("close") is True and client.observe() != first


def test_our_own_client_plays_whole_episodes(server):
    tasks = list_tasks(WORLD)
    with AgentGymWorld(server.mount("webshop"), "webshop", {"test": range(4)}, horizon=WORLD.horizon) as world:
        agent = Script(lambda world, task: WORLD.expert(tasks[task.spec["index"]]))
        starts = [Start(task) for task in world.tasks("test", "seen")]
        played = list(collect({world.name: world}, starts, agent, engine=None, slots=4))
    assert [(episode.error, episode.success) for episode in played] == [(None, True)] * 4
