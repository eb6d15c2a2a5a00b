"""What is played over the network is what is played in process: grammars that read a policy, thoughts of experts."""

from __future__ import annotations

import httpx2
import pytest

import evolvent as ev
from evolvent.errors import WorldError
from evolvent.serve.remote.world import RemoteWorld
from evolvent.worlds.base import Parsed
from evolvent.worlds.functions.world import Functions
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer
from tests.serve.native_peer import serving as scripted
from tests.serve.served import serving

SIZES = Sizes(train=6, dev=4, test=4)


def test_a_policy_plays_calls_of_functions():
    world = Functions(sizes=SIZES)
    policy = ev.make_policy([world], seed=3)
    starts = [ev.Start(task) for task in world.tasks("train", world.tiers[0])[:4]]

    def played(by):
        agent, engine = ev.LanguageAgent(policy, max_tokens=8), ev.LocalEngine(policy, slots=4)
        return {one.id: one for one in ev.collect({world.name: by}, starts, agent, engine=engine)}

    with serving({world.name: world}) as served, RemoteWorld(served.url) as remote:
        over = played(remote)
    assert [one.error for one in over.values()] == [None] * 4
    assert over == played(world)


def test_demonstrations_keep_the_thoughts_of_the_expert():
    world = HouseholdWorld(sizes=SIZES)
    starts = [ev.Start(task) for task in world.tasks("train", "seen")[:3]]
    inside = {one.id: one for one in ev.collect({world.name: world}, starts, ev.Expert(), engine=None)}
    assert all(step.thought for one in inside.values() for step in one.steps)
    with serving({world.name: world}) as served, RemoteWorld(served.url) as remote:
        assert {one.id: one for one in ev.collect({world.name: remote}, starts, ev.Expert(), engine=None)} == inside
        task = starts[0].task
        assert list(remote.expert(task)) == world.expert(task) and list(remote.explain(task)) == world.explain(task)


def test_an_expert_that_does_not_explain_itself_has_no_thoughts():
    world = ev.Lookup(sizes=SIZES)
    task = world.tasks("train", "seen")[0]
    with serving({world.name: world}) as served, RemoteWorld(served.url) as remote:
        assert remote.explain(task) is None and list(remote.expert(task)) == list(world.expert(task))
        with httpx2.Client(base_url=served.url, trust_env=False, timeout=60) as client:
            told = client.get(f"/v1/worlds/lookup/tasks/{task.id}/expert").json()
    assert told == {"actions": list(world.expert(task))}


class Odd(NativePeer):
    """Tells of experts what it was told to tell."""

    told = None

    def page(self, method, path, query, body):
        if path.endswith("/expert"):
            return "expert", self.told
        return super().page(method, path, query, body)


@pytest.mark.parametrize("thoughts", [["one"], [1, 2], "no list", {"a": 1}])
def test_thoughts_that_are_none(thoughts):
    world = ev.Lookup(sizes=SIZES)
    task = world.tasks("train", "seen")[0]
    peer = Odd(world)
    peer.told = {"actions": ["a", "b"], "thoughts": thoughts}
    with scripted(peer) as url, RemoteWorld(url) as remote:
        for ask in (remote.expert, remote.explain):
            with pytest.raises(WorldError, match=r"thoughts|list of str"):
                ask(task)
        peer.told["thoughts"] = ["why", None]
        assert remote.explain(task) == (Parsed("a", "why"), Parsed("b"))
