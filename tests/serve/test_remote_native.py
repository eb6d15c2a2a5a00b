"""The remote world against the library's own server, over real sockets: what is played there is what is played here."""

from __future__ import annotations

import pytest

import evolvent as ev
from evolvent.agents.plain import Expert, Random, Script
from evolvent.errors import AccessDenied, AtCapacity, ConfigError, EnvLost
from evolvent.rollout.episode import collect
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.remote.world import RemoteWorld, remote_worlds
from evolvent.trajectory import Start, Task
from evolvent.web import Access
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Sizes
from tests.serve.native_peer import serving

SMALL = Sizes(train=6, dev=4, test=4)
LOCAL = {world.name: world for world in (Crafting(sizes=SMALL), Maze(sizes=SMALL), Lookup(sizes=SMALL))}
TOKEN = "sesame-sesame-4711"


class Moody(ev.TextWorld):
    """Blocking; one of its tasks fails in a step."""

    name, horizon, instructions = "moody", 6, "say it"

    def specs(self):
        return [{"word": f"w{n}", "fails": n % 2 == 0} for n in range(40)]

    def play(self, spec):
        said = yield f"say {spec['word']}", 0.0
        while said != spec["word"]:
            if spec["fails"]:
                raise ZeroDivisionError("a bug in the world")
            said = yield f"not {said}", -0.125
        return 1.0


def server_of(worlds, *, token=None, capacity=256):
    host = LocalHost(worlds, capacity=capacity)
    return build_app(host, TaskIndex(worlds), access=Access(token=token), dialects=[NativeDialect()]), host


@pytest.fixture(scope="module")
def host_and_url():
    app, host = server_of({**LOCAL, "moody": Moody()})
    with serving(app, "on") as url:
        yield host, url


@pytest.fixture(params=["ws", "http"])
def transport(request):
    return request.param


def starts_of(world, samples=2):
    return [Start(task, n) for tier in world.tiers for task in world.tasks("dev", tier) for n in range(samples)]


def played(world, starts, agent, slots):
    return {done.id: done for done in collect({world.name: world}, starts, agent, engine=None, slots=slots, seed=5)}


@pytest.mark.parametrize("agent", [Expert(), Random()], ids=lambda agent: type(agent).__name__)
@pytest.mark.parametrize("name", LOCAL)
def test_the_same_trajectories_alone_and_64_at_a_time(host_and_url, name, agent, transport):
    host, url = host_and_url
    wanted = played(LOCAL[name], starts_of(LOCAL[name]), agent, 64)
    with RemoteWorld(url, world=name, transport=transport) as world:
        starts = starts_of(world)
        assert played(world, starts, agent, 64) == wanted
        few = played(world, starts[::6], agent, 1)
        assert few == {key: wanted[key] for key in few} and len(few) == len(starts[::6])
    assert sum(host.status().sessions.values()) == 0


def test_a_world_that_blocks_and_fails(host_and_url, transport):
    _, url = host_and_url
    near = Moody()
    agent = Script(lambda _, task: ["what", "no", task.spec["word"]])
    with RemoteWorld(url, world="moody", transport=transport) as world:
        far, here = (played(one, starts_of(near), agent, 32) for one in (world, near))
    assert far.keys() == here.keys() and any(done.error for done in far.values())
    for name, done in far.items():
        if done.task.spec["fails"]:
            assert (done.error.kind, done.score.raw, len(done.steps)) == ("EnvLost", None, len(here[name].steps))
            assert "a bug in the world" in done.error.message
        else:
            assert done == here[name]


def test_panels_experts_and_scores_agree(host_and_url):
    _, url = host_and_url
    for name, world in remote_worlds(url, list(LOCAL)).items():
        with world:
            local = LOCAL[name]
            for part in ("version", "instructions", "grammar", "horizon", "reward_range", "tiers"):
                assert getattr(world, part) == getattr(local, part)
            for tier in local.tiers:
                assert list(world.tasks("test", tier)) == list(local.tasks("test", tier))
                for task in local.tasks("test", tier)[:2]:
                    assert list(world.expert(task)) == list(local.expert(task))
            for rewards in ((0.0, 1.0), (0.0,), (None, 1.0), ()):
                assert world.score(rewards, {}) == local.score(rewards, {})
            assert world.vocabulary() == (None if local.vocabulary() is None else tuple(local.vocabulary()))


def test_tasks_that_are_not_there(host_and_url, transport):
    _, url = host_and_url
    with RemoteWorld(url, world="maze", transport=transport) as world:
        made_up = Task("maze", world.version, {"rows": 2})
        with pytest.raises(ConfigError, match="task"):
            world.expert(made_up)
        with pytest.raises(ConfigError):
            world.make(made_up).reset()


def test_a_token_and_a_full_house(transport):
    app, host = server_of({"maze": LOCAL["maze"]}, token=TOKEN, capacity=2)
    task = LOCAL["maze"].tasks("dev", "seen")[0]
    with serving(app, "on") as url:
        with pytest.raises(AccessDenied):
            RemoteWorld(url, transport=transport)
        with RemoteWorld(url, token=TOKEN, transport=transport, timeout_s=1.5) as world:
            envs = [world.make(task) for _ in range(3)]
            for env in envs[:2]:
                env.reset()
            with pytest.raises(AtCapacity, match="full"):
                envs[2].reset()
            envs[0].close()
            envs[2].reset()
            assert host.status().sessions == {"maze": 2}
        with RemoteWorld(url, token=TOKEN, transport=transport, timeout_s=1.5) as world:
            with pytest.raises(AtCapacity):
                world.make(task).reset()


def test_a_session_that_was_reaped(transport):
    host = LocalHost({"maze": LOCAL["maze"]}, idle_s=0.05)
    app = build_app(host, TaskIndex({"maze": LOCAL["maze"]}), access=Access(), dialects=[NativeDialect()])
    with serving(app, "on") as url, RemoteWorld(url, transport=transport) as world:
        env = world.make(world.tasks("dev", "seen")[0])
        env.reset()
        while sum(host.status().sessions.values()):
            pass
        with pytest.raises(EnvLost, match="lost the session"):
            env.step("move up")
