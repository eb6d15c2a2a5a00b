"""An OpenEnv server as a world: against a server written from the specification, and against our own."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import evolvent as ev
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    EnvLost,
    LimitExceeded,
    SessionGone,
    StepTimeout,
    VersionMismatch,
    WorldError,
)
from evolvent.serve.given import ClientTimeouts, WorldRules
from evolvent.serve.openenv.client import OpenEnvWorld
from evolvent.serve.openenv.face import OpenEnvDialect
from evolvent.trajectory import Score, Start, Task
from evolvent.web import Access
from tests.serve.foreign_server import Answer, foreign
from tests.serve.raw_openenv import RawOpenEnv
from tests.serve.small_host import Count, Told, emptied, faces

TASKS = {"train": [{"seed": number} for number in range(20)], "test": [{"episode_id": "e"}]}


@pytest.fixture
def raw():
    server = RawOpenEnv()
    with server.serving() as address:
        server.base = f"http://{address}"
        yield server


@pytest.fixture
def make():
    """Makes worlds; all are closed at the end."""
    made = []

    def world(base, **options):
        options.setdefault("tasks", TASKS)
        made.append(OpenEnvWorld(base, **options))
        return made[-1]

    yield world
    for one in made:
        one.close()


def begun(world, number=0, split="train"):
    env = world.make(world.tasks(split, "seen")[number])
    env.reset()
    return env


def test_what_the_server_and_the_caller_tell(raw, make):
    world = make(raw.base, rules=WorldRules(horizon=3, reward_range=(0.0, 2.0), success=1.5))
    assert (world.name, world.version, world.instructions, world.horizon) == ("raw", "7", "Be good.", 3)
    assert world.expert(world.tasks("train", "seen")[0]) is None and world.vocabulary() is None
    assert world.score([0.5, 1.0], {}) == Score(1.5, 0.75, True)
    assert world.score([0.5, None], {}) == Score(None, None, None)
    named = make(raw.base + "/", name="mine", rules=WorldRules(instructions=""))
    assert (named.name, named.instructions) == ("mine", "")
    assert "mine" in repr(named) and [task.world for task in named.tasks("test", "seen")] == ["mine"]
    raw.metadata = 404
    assert make(raw.base).name == "openenv", "some servers have no such page"


def test_tasks_are_dealt_or_taken_as_they_are(raw, make):
    dealt = make(raw.base, tasks=[{"seed": number} for number in range(40)])
    splits = {split: dealt.tasks(split, "seen") for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 40 and len(splits["train"]) > 25
    again = make(raw.base, tasks=[{"seed": number} for number in reversed(range(40))])
    assert {task.id: task.split for task in again.tasks("train", "seen")} == {
        task.id: "train" for task in splits["train"]
    }
    with pytest.raises(ConfigError, match="twice"):
        make(raw.base, tasks=[{"seed": 1}, {"seed": 1}])
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        make(raw.base, tasks={"trian": [{"seed": 1}]})
    with pytest.raises(ConfigError, match=r"tasks\[0\].*expected an object"):
        make(raw.base, tasks=[3])
    with pytest.raises(ConfigError, match="at least one"):
        make(raw.base, tasks=[])
    with pytest.raises(ConfigError, match="unknown tier"):
        dealt.tasks("train", "combo")
    with pytest.raises(ConfigError, match="does not belong to world"):
        dealt.make(Task("other", "7", {}))
    with pytest.raises(VersionMismatch):
        dealt.make(Task("raw", "8", {}))


def test_an_episode(raw, make):
    env = begun(make(raw.base), split="test")
    assert raw.heard == [{"type": "reset", "data": {"episode_id": "e"}}], "no key of ours goes to a foreign server"
    observation, reward, terminated, truncated, info = env.step("half")
    assert (observation, reward, terminated, truncated) == ("step 1", 0.5, False, False)
    assert info == {"board": [[1, 2], [3, 4]], "echo": {"message": "half"}, "metadata": {"k": 1}}
    assert env.step("none")[1] is None, "not scored is not 0"
    assert env.step("end")[2]
    with pytest.raises(SessionGone):
        env.step("more")
    assert env.reset()[0] == "reset 0" and raw.opened == 1, "the connection is kept"
    env.close()
    env.close()
    with pytest.raises(SessionGone):
        env.step("more")


def test_fields_of_actions_stay_as_they_are(raw, make):
    world = make(raw.base, action=lambda text: {"message": text, "tokens": [1, 2], "action_id": "7", "at": (1, 2)})
    assert begun(world).step("x")[4]["echo"] == {"message": "x", "tokens": [1, 2], "action_id": "7", "at": [1, 2]}
    tokens = begun(make(raw.base, action="tokens"))
    assert tokens.step(np.array([3, 4]))[4]["echo"] == {"tokens": [3, 4]}


def test_text_may_be_made_of_several_fields(raw, make):
    world = make(raw.base, text=lambda seen: f"{seen['text']}: {seen['board'][1]}")
    env = world.make(world.tasks("train", "seen")[0])
    observation, info = env.reset()
    assert observation == "reset 0: [3, 4]" and set(info) == {"text", "board", "echo", "metadata"}


def test_a_refused_action_is_an_observation(raw, make):
    env = begun(make(raw.base, action=lambda text: {"bad" if text == "wrong" else "message": text}))
    observation, reward, *over, info = env.step("wrong")
    assert "bad: Extra inputs are not permitted" in observation
    assert (reward, over, info) == (0.0, [False, False], {"invalid": True})
    assert env.step("right")[0] == "step 1", "the episode goes on"


def test_a_refused_task_is_a_mistake_of_the_caller(raw, make):
    world = make(raw.base, tasks=[{"bad": 1}])
    (task,) = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    with pytest.raises(ConfigError, match="refuses the task"):
        world.make(task).reset()


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("crash", WorldError, "boom"),
        ("session", EnvLost, "gone"),
        ("leave", EnvLost, "was lost"),
        ("junk", WorldError, "sent an invalid answer:"),
        ("list", WorldError, "is not an object with type and data"),
        ("bare", WorldError, "is not an object with type and data"),
        ("bytes", WorldError, "is not an object with type and data"),
        ("dance", WorldError, "neither"),
        ("nan", WorldError, "NaN"),
        ("word", WorldError, "is not a number"),
        ("vast", WorldError, "is not a number"),
        ("undone", WorldError, "the answer of"),
        ("mute", WorldError, "Set text=... to the name of the field that holds the text"),
        ("blind", WorldError, "has no observation"),
        ("big", LimitExceeded, "at most 100000 bytes"),
    ],
)
def test_what_goes_wrong_is_a_typed_error(raw, make, how, error, told):
    env = begun(make(raw.base, timeouts=ClientTimeouts(message_bytes=100_000)))
    with pytest.raises(error, match=told):
        env.step(how)
    with pytest.raises(SessionGone):
        env.step("more")
    assert env.reset()[0] == "reset 0", "another episode may begin"


def test_a_full_server_is_asked_again(make):
    server = RawOpenEnv(capacity=1)
    with server.serving() as address:
        world = make(f"http://{address}", timeouts=ClientTimeouts(reset_s=8))
        held, waiting = begun(world), world.make(world.tasks("train", "seen")[1])
        threading.Timer(0.3, held.close).start()
        assert waiting.reset()[0] == "reset 0" and server.opened > 2
        impatient = make(f"http://{address}", timeouts=ClientTimeouts(reset_s=0.5))
        with pytest.raises(AtCapacity, match="1 of 1 sessions"):
            begun(impatient)


def test_a_server_that_is_none(raw, make):
    for told, error in ((b"<html>", WorldError), (b"[]", WorldError), (500, WorldError), (401, AccessDenied)):
        raw.metadata = told
        with pytest.raises(error, match="/metadata"):
            make(raw.base)
    raw.metadata = b'{"name": "' + b"x" * 200_000 + b'"}'
    with pytest.raises(LimitExceeded):
        make(raw.base, timeouts=ClientTimeouts(message_bytes=100_000))
    raw.metadata = {"name": "x"}
    with pytest.raises(AccessDenied, match="Check the token and the address"):
        begun(_elsewhere(make(raw.base)))
    with pytest.raises(EnvLost, match="cannot be read"):
        make("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="expected the address of a server"):
        make("ftp://x")


def test_redirections_of_the_socket_are_not_followed(raw, make):
    here = make(raw.base, token="a-token-of-24-characters")
    with foreign(lambda *request: Answer({}, 302, headers={"location": raw.base.replace("http", "ws") + "/ws"})) as (
        url,
        heard,
    ):
        here.base = url
        with pytest.raises(EnvLost, match="HTTP 302"):
            begun(here)
    assert [path for _, path, _ in heard] == ["/ws"] and not raw.opened


def _elsewhere(world):
    world.base += "/nowhere"
    return world


def test_a_server_that_goes_away(make):
    server = RawOpenEnv()
    with server.serving() as address:
        world = make(f"http://{address}")
        env = begun(world)
    with pytest.raises(EnvLost):
        env.step("more")
    with pytest.raises(EnvLost, match=r"was lost|cannot be reached"):
        env.reset()


def test_our_own_server(make):
    tasks = {"train": [{"index": number} for number in range(6)]}
    with faces(OpenEnvDialect()) as (address, host):
        world = make(f"http://{address}/openenv/told", tasks=tasks)
        assert world.ours and world.instructions == Told().instructions
        env = world.make(world.tasks("train", "seen")[3])
        observation, info = env.reset()
        assert observation.startswith("count to")
        assert info == {"admissible": ["up", "stop"], "seed": None, "deep": {"a": [1, 2.5]}}
        assert env.step("none")[1:] == (None, False, False, {"steps": 1, "invalid": True})
        env.step("up"), env.step("up")
        assert env.step("up")[2:4] == (False, True), "cut off is not ended"
        env.close()
        assert emptied(host)
        with pytest.raises(ConfigError, match="index: got 99 in world 'told'"):
            begun(make(f"http://{address}/openenv/told", tasks={"train": [{"index": 99}]}))
        slow = begun(make(f"http://{address}/openenv/slow", tasks=tasks))
        with pytest.raises(StepTimeout):
            slow.step("slow")


def test_a_token():
    token = "a-token-of-the-test"
    with faces(OpenEnvDialect(), access=Access(token)) as (address, _):
        base, tasks = f"http://{address}/openenv/count", [{"index": 0}]
        with pytest.raises(AccessDenied, match="Check the token"):
            OpenEnvWorld(base, tasks=tasks)
        world = OpenEnvWorld(base, tasks={"train": tasks}, token=token)
        assert begun(world).step("stop")[2]
        assert token not in repr(world) and token not in repr(vars(world.make(world.tasks("train", "seen")[0])))
        world.close()


@pytest.mark.parametrize("slots", [1, 16])
def test_collected_as_in_process(make, slots):
    local = Count()
    wanted = local.tasks("train", "seen")[:8]
    actions = ["up"] * 20

    def played(worlds, tasks):
        starts = [Start(task) for task in tasks]
        found = ev.collect(worlds, starts, ev.Script(lambda world, task: actions), engine=None, slots=slots)
        return sorted([(step.observation, step.reward) for step in t.steps] for t in found if not t.error)

    with faces(OpenEnvDialect(), capacity=32) as (address, host):
        base = f"http://{address}/openenv/count"
        world = make(base, tasks={"train": [{"task": task.id} for task in wanted]}, rules=WorldRules(horizon=9))
        remote = played({world.name: world}, world.tasks("train", "seen"))
        assert remote == played({"count": local}, wanted) and len(remote) == 8
        assert emptied(host)
