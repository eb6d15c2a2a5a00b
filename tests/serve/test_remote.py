"""A remote world is a world like any other: same panels, same trajectories, same scores, over real sockets."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.plain import Expert, Random, Script
from evolvent.errors import ConfigError, EnvLost, SessionGone, VersionMismatch
from evolvent.rollout.episode import collect
from evolvent.rollout.evaluate import panel_starts, summarize_outcomes
from evolvent.serve.remote.world import RemoteWorld, remote_worlds
from evolvent.trajectory import Score, Start, Task
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import NativePeer, serving

SMALL = Sizes(train=6, dev=4, test=4)
WORLDS = {"crafting": Crafting(sizes=SMALL), "maze": Maze(sizes=SMALL), "lookup": Lookup(sizes=SMALL)}
TRANSPORTS = ("ws", "http")


class Echo(ev.TextWorld):
    """Wants to hear one word; it may block, as every world does that does not say otherwise."""

    name, horizon, instructions = "echo", 5, "speak"

    def specs(self):
        return [{"word": f"w{n}", "pair": [n, 0.5]} for n in range(20)]

    def play(self, spec):
        said = yield f"say {spec['word']}"
        while said != spec["word"]:
            said = yield f"you said {said}"
        return 1.0


@pytest.fixture(scope="module")
def peer():
    return NativePeer(*WORLDS.values(), Echo())


@pytest.fixture(scope="module")
def url(peer):
    with serving(peer) as url:
        yield url


@pytest.fixture(params=TRANSPORTS)
def remote(request, url):
    with RemoteWorld(url, world="crafting", transport=request.param) as world:
        yield world


def starts_of(world, samples=2):
    return [Start(task, n) for tier in world.tiers for task in world.tasks("dev", tier) for n in range(samples)]


def played(world, starts, agent, slots):
    return {done.id: done for done in collect({world.name: world}, starts, agent, engine=None, slots=slots, seed=3)}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", WORLDS)
def test_what_the_server_says_of_a_world_is_the_world(url, name, transport):
    local = WORLDS[name]
    with RemoteWorld(url, world=name, transport=transport) as world:
        for part in ("name", "version", "instructions", "grammar", "horizon", "reward_range", "tiers"):
            assert getattr(world, part) == getattr(local, part), part
        assert world.run_in_thread is True
        for split in ("train", "dev", "test"):
            for tier in local.tiers:
                assert list(world.tasks(split, tier)) == list(local.tasks(split, tier))
        assert world.vocabulary() == (None if local.vocabulary() is None else tuple(local.vocabulary()))
        for task in local.tasks("dev", local.tiers[0]):
            assert list(world.expert(task)) == list(local.expert(task))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("agent", [Expert(), Random()], ids=lambda agent: type(agent).__name__)
def test_trajectories_are_those_of_the_world_itself(url, agent, transport):
    for local in WORLDS.values():
        starts = starts_of(local)
        wanted = played(local, starts, agent, 64)
        with RemoteWorld(url, world=local.name, transport=transport) as world:
            assert played(world, starts, agent, 64) == wanted
            few = played(world, starts[::5], agent, 1)
            assert few == {start: wanted[start] for start in few} and len(few) == len(starts[::5])


def test_evaluation_gives_the_same_table(url):
    local = WORLDS["maze"]
    starts = panel_starts({"maze": local}, split="dev")
    with RemoteWorld(url, world="maze") as world:
        assert panel_starts({"maze": world}, split="dev") == starts
        far = summarize_outcomes(played(world, starts, Expert(), 8)[f"{start.task.id}/0"] for start in starts)
    assert far == summarize_outcomes(played(local, starts, Expert(), 8)[f"{start.task.id}/0"] for start in starts)
    assert all(row.mean == 1.0 for row in far)


def test_every_session_is_given_back(url, peer, remote):
    played(remote, starts_of(WORLDS["crafting"], 1), Random(), 16)
    assert peer.sessions == {}


def test_scores_are_the_servers(remote):
    local = WORLDS["crafting"]
    for rewards, info in (((0.0, 1.0), {}), ((0.0,), {"x": np.float32(1)}), ((None, 1.0), {"won": True}), ((), {})):
        assert remote.score(rewards, info) == local.score(rewards, info)
    assert remote.score((None,), {}) == Score(None, None, None)


def test_equal_questions_are_asked_once(url, peer):
    with RemoteWorld(url, world="crafting") as world:
        task = world.tasks("dev", "seen")[0]
        peer.heard.clear()
        for _ in range(3):
            world.tasks("dev", "seen"), world.expert(task), world.vocabulary(), world.score((0.0, 1.0), {"a": 1})
        assert [op for _, op, _ in peer.heard] == ["expert", "vocabulary", "score"]


def test_the_score_is_asked_where_the_episode_ends_not_where_all_are_driven(url, peer):
    """Its answer is there before `score` is called: the driver's thread does not wait for the server."""
    with RemoteWorld(url, world="maze") as world:
        task = world.tasks("dev", "seen")[0]
        env = world.make(task)
        env.reset()
        for action in world.expert(task):
            *_, info = env.step(action)
        env.close()
        heard = peer.ops("score")
        assert heard and world.score([0.0] * (len(world.expert(task)) - 1) + [1.0], info).success
        assert peer.ops("score") == heard


def test_a_world_of_ones_own(url):
    local = Echo()
    with RemoteWorld(url, world="echo") as world:
        starts = starts_of(local, 1)[:3]
        script = Script(lambda _, task: ["no", "maybe", task.spec["word"]])
        assert played(world, starts, script, 4) == played(local, starts, script, 4)


# envs


def test_an_env_resets_again_and_ends(remote, peer):
    task = WORLDS["crafting"].tasks("dev", "seen")[0]
    env, near = remote.make(task), WORLDS["crafting"].make(task)
    with pytest.raises(SessionGone, match="reset"):
        env.step("inventory")
    first = env.reset(seed=1)
    assert first[0] == near.reset(seed=1)[0]
    env.step("inventory")
    assert env.reset(seed=1) == first, "again from the beginning"
    assert len(peer.sessions) == 1, "the session of the first time was given back"
    for action in remote.expert(task):
        answer, wanted = env.step(action), near.step(action)
        assert answer[:4] == wanted[:4]
    assert answer[2]
    with pytest.raises(SessionGone, match="after the end"):
        env.step("inventory")
    env.close()
    env.close()
    assert peer.sessions == {}


def test_an_action_that_is_no_text_is_refused(remote):
    env = remote.make(remote.tasks("dev", "seen")[0])
    env.reset()
    with pytest.raises(ConfigError, match="the action is not text"):
        env.step(np.zeros(2))
    assert env.step("\ud83d half a character")[4].get("invalid") is True, "an agent's error is data"
    env.close()


def test_foreign_tasks_are_refused_before_anything_is_sent(remote):
    with pytest.raises(ConfigError, match="crafting"):
        remote.make(Task("maze", "1", {}))
    with pytest.raises(VersionMismatch, match="crafting"):
        remote.make(Task("crafting", "0", {}))
    with pytest.raises(ConfigError, match="did you mean 'dev'"):
        remote.tasks("deb", "seen")
    with pytest.raises(ConfigError, match="no such task"):
        remote.expert(Task("crafting", remote.version, {"made": "up"}))
    with pytest.raises(ConfigError, match="no such task"):
        remote.make(Task("crafting", remote.version, {"made": "up"})).reset()


def test_a_task_that_is_in_no_panel_is_sent_whole(peer, remote):
    task = Task("crafting", remote.version, {"made": "up"})
    peer.heard.clear()
    with pytest.raises(ConfigError):
        remote.make(task).reset()
    sent = [body["task"] for _, op, body in peer.heard if op in ("create", "refused")]
    assert sent == [
        task.id,
        {
            "id": task.id,
            "world": "crafting",
            "version": task.version,
            "spec": {"made": "up"},
            "kind": "",
            "tier": "seen",
            "split": "train",
        },
    ]


# together


def test_steps_that_wait_at_the_same_moment_travel_together(url, peer):
    """Eight Envs step at once, again and again: fewer messages than steps, and everybody gets their own answer."""
    task = WORLDS["crafting"].tasks("dev", "seen")[0]
    with RemoteWorld(url, world="crafting") as world:
        envs = [world.make(task) for _ in range(8)]
        for env in envs:
            env.reset()
        peer.heard.clear()
        meet, wrong = threading.Barrier(len(envs)), []

        def play(index):
            for turn in range(1, 13):
                meet.wait()
                said = envs[index].step(f"craft {index} of {turn}" if index % 2 else "inventory")
                near = WORLDS["crafting"].make(task)
                near.reset()
                if said[0] != near.step(f"craft {index} of {turn}" if index % 2 else "inventory")[0]:
                    wrong.append((index, turn, said))

        threads = [threading.Thread(target=play, args=(index,)) for index in range(len(envs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        sizes = [len(body["steps"]) for _, op, body in peer.heard if op == "steps"]
        assert sum(sizes) + peer.ops("step") == 96
        assert peer.ops("steps") + peer.ops("step") < 96 and max(sizes) > 1
        for env in envs:
            env.close()


def test_slow_worlds_are_not_stepped_together(url, peer):
    """A batch is answered when its slowest step is: where steps may be slow, everybody waits for their own only."""
    with RemoteWorld(url, world="echo") as world:
        peer.heard.clear()
        script = Script(lambda _, task: ["no", "no", task.spec["word"]])
        done = played(world, starts_of(Echo(), 3), script, 32)
        assert len(done) > 3 and all(trajectory.success for trajectory in done.values())
        assert peer.ops("steps") == 0 and peer.ops("step") == 3 * len(done)


# finding and leaving


def test_the_world_is_named_where_there_are_several(url):
    with pytest.raises(ConfigError, match=r"serves 4 worlds: got crafting, echo, lookup, maze\. Set world="):
        RemoteWorld(url)
    with pytest.raises(ConfigError, match="did you mean 'maze'"):
        RemoteWorld(url, world="maz")
    with RemoteWorld(f"{url}/v1/worlds/maze") as world:
        assert world.name == "maze" and repr(world) == f"RemoteWorld('maze' at {url})"
    with RemoteWorld(f"{url}/v1/", world="maze") as world:
        assert world.url == url
    with serving(NativePeer(WORLDS["maze"])) as alone, RemoteWorld(alone) as world:
        assert world.name == "maze"


@pytest.mark.parametrize("names", [None, ["maze", "crafting"]])
def test_worlds_of_one_server_are_collected_together(url, names):
    worlds = remote_worlds(url, names)
    try:
        assert list(worlds) == (names or ["crafting", "maze", "lookup", "echo"])
        starts = [Start(WORLDS[name].tasks("dev", "seen")[0]) for name in ("maze", "crafting")]
        assert all(done.success for done in collect(worlds, starts, Expert(), engine=None))
    finally:
        for world in worlds.values():
            world.close()


@pytest.mark.parametrize(
    "wrong",
    ["", "localhost:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1/?a=b", "http://127.0.0.1/#maze", "file:etc"],
)
def test_addresses_that_are_none(wrong):
    with pytest.raises(ConfigError, match="url"):
        RemoteWorld(wrong)


def test_a_password_in_the_address_is_refused_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        RemoteWorld("http://me:geheim@127.0.0.1:1")
    assert "geheim" not in str(caught.value)


def test_an_unknown_transport(url):
    with pytest.raises(ConfigError, match="transport"):
        RemoteWorld(url, world="maze", transport="pigeon")


def test_a_closed_world_says_so(url):
    world = RemoteWorld(url, world="maze")
    env = world.make(world.tasks("dev", "seen")[0])
    env.reset()
    world.close()
    world.close()
    with pytest.raises(EnvLost, match="closed"):
        env.step("move up")
    env.close()
    with pytest.raises(EnvLost, match="closed"):
        world.expert(world.tasks("dev", "seen")[0])


def test_a_forgotten_world_leaves_nothing_behind(url):
    """Neither its thread nor its sockets: an unclosed one would be a warning, which is an error here."""
    before = set(threading.enumerate())
    for transport in TRANSPORTS:
        world = RemoteWorld(url, world="maze", transport=transport)
        world.make(world.tasks("dev", "seen")[0]).reset()
        del world
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("evolvent-remote"):
            thread.join(10)
            assert not thread.is_alive()
