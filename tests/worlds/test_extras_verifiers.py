"""Tasksets of verifiers as worlds: with the package where it is installed, else with what it promises to tasksets."""

from __future__ import annotations

import importlib.util
import json
import sys
from urllib.parse import parse_qsl

import pytest

from evolvent.cli.setup.registry import load_world
from evolvent.errors import ConfigError, EnvLost
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.verifiers import (
    VerifiersWorld,
    _format_setting,
    _parse_setting,
    open_verifiers_world,
)
from tests.worlds.verifiers_protocol import METADATA, STATE, TASKSET, V1

CALL = '<tool_call>{"name": "desk_add", "arguments": {"a": %d, "b": 1}}</tool_call>'


@pytest.fixture(scope="module", autouse=True)
def tasksets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    (folder / "sums_set.py").write_text(TASKSET, encoding="utf-8")
    if importlib.util.find_spec("verifiers") is None:
        (folder / "verifiers" / "v1").mkdir(parents=True)
        (folder / "verifiers" / "__init__.py").touch()
        (folder / "verifiers" / "v1" / "__init__.py").write_text(V1, encoding="utf-8")
        (folder / "verifiers" / "v1" / "state.py").write_text(STATE, encoding="utf-8")
        (folder / "verifiers-0.4.0.dist-info").mkdir()
        (folder / "verifiers-0.4.0.dist-info" / "METADATA").write_text(METADATA, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verifiers", "sums_set")]:
        module = sys.modules[name]
        if str(folder) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def first_task(world):
    return world.tasks("train", "seen")[0]


def answer_of(world, task):
    return str(world._find_source(task).data.answer)


def test_a_taskset_is_a_world_by_its_name():
    world = load_world("verifiers:sums_set")
    assert world.name == "verifiers:sums_set" and world.version.startswith("0.4")
    assert sum(world.splits.values()) == 20 and min(world.splits.values()) >= 2
    numbers = [task.spec["row"]["number"] for split in SPLITS for task in world.tasks(split, "seen")]
    assert sorted(numbers) == list(range(20))
    assert "exact x 1" in world.describe() and "worked x 0.5" in world.describe()
    assert world.horizon == 1 and world.reward_range == (0.0, 1.5)
    assert {"What", "is", "Answer"} <= set(world.vocabulary())


def test_a_reply_is_scored_by_the_rewards_of_its_task():
    world = VerifiersWorld("sums_set")
    task = first_task(world)
    env = world.make(task)
    observation, info = env.reset()
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    assert world._find_source(task).data.prompt in observation
    _, reward, terminated, truncated, info = env.step(answer_of(world, task))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["rewards"] == {"exact": 1.0, "worked": 0.0} and info["metrics"] == {"turns": 1.0}
    score = world.score([reward], info)
    assert score.raw == 1.0 and score.unit == pytest.approx(1 / 1.5) and score.success is False
    env.reset()
    assert env.step("no")[1] == 0.0


def test_tools_run_and_share_the_state_that_rewards_read():
    world = open_verifiers_world('sums_set?kind="tools"&size=12')
    task = first_task(world)
    env = world.make(task)
    _, info = env.reset()
    (tool,) = info["tools"]
    assert tool["function"]["name"] == "desk_add" and tool["function"]["description"] == "Adds two numbers."
    assert tool["function"]["parameters"]["required"] == ["a", "b"] and world.horizon == 8
    number = int(answer_of(world, task)) - 1
    observation, reward, terminated, _, info = env.step(CALL % number)
    assert (observation, reward, terminated) == (str(number + 1), 0.0, False)
    assert info["messages"] == [{"role": "tool", "content": str(number + 1), "tool_call_id": "call00"}]
    _, reward, terminated, _, info = env.step(str(number + 1))
    assert (reward, terminated) == (1.5, True) and info["metrics"] == {"turns": 2.0}
    assert world.score([0.0, reward], info).success is True
    env.reset()
    assert env.step("7")[4]["rewards"]["worked"] == 0.0, "another episode has a state of its own"


def test_stops_of_the_taskset_and_wrong_calls():
    world = open_verifiers_world("sums_set?kind=tools&max_turns=6")
    env = world.make(first_task(world))
    env.reset()
    assert "unknown tool 'desk_sub'" in env.step(CALL.replace("add", "sub") % 1)[0]
    assert env.step('<tool_call>{"name": "desk_add", "arguments": {"a": "x"}}</tool_call>')[0].startswith("error: ")
    ends = [env.step(CALL % number)[2] for number in range(3)]
    assert ends == [False, False, True], "three sums end the episode"
    env = open_verifiers_world("sums_set?kind=tools&max_turns=1").make(first_task(world))
    env.reset()
    assert env.step(CALL % 1)[2], "the last reply ends the episode, whatever it calls"


def test_episodes_fork_by_replay():
    world = open_verifiers_world("sums_set?kind=tools")
    task = first_task(world)
    actions = [CALL % 1, CALL % 2, "3"]
    assert not check_env(lambda: world.make(task), steps=4, walks=2, choose=lambda rng, info: rng.choice(actions))


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("", "needs the name of a taskset"),
        ("no_such_set", "cannot be opened"),
        ("sums_set?size=0", "has no tasks"),
        ("sums_set?size=many", "cannot be opened"),
        ("sums_set?max_turns=0", "expected a whole number of 1 or more"),
        ("sums_set?kind=box", "has a reward that needs a container: got 'looked'"),
        ("sums_set?kind=user", "lets a user begin"),
        ("sums_set?kind=mixed tools", "has tasks of different tools: got [(), ('desk_add',)]"),
        ("sums_set?kind=mixed rewards", "has tasks of different rewards"),
        ("owner/sums_set", "expected the name of an installed package"),
        ("sums_set?kind=rewards.py:exact", "settings that name files of code are refused"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(option, text):
    with pytest.raises(ConfigError) as refused:
        open_verifiers_world(option)
    assert text in str(refused.value)


def test_an_error_of_a_reward_ends_the_episode_without_a_score(monkeypatch):
    world = VerifiersWorld("sums_set")
    task = first_task(world)

    async def broken(trace, runtime=None):
        raise ValueError("no answer key")

    monkeypatch.setattr(world._find_source(task), "score", broken, raising=False)
    env = world.make(task)
    env.reset()
    with pytest.raises(EnvLost, match="no answer key"):
        env.step("1")


def test_a_reward_beyond_full_marks_ends_the_episode_without_a_score():
    """A sum would hide that the answer was wrong."""
    env = open_verifiers_world("sums_set?kind=large").make(first_task(open_verifiers_world("sums_set?kind=large")))
    env.reset()
    with pytest.raises(EnvLost, match=r"worked.*9"):
        env.step("wrong")


def test_success_needs_every_reward_by_its_name():
    world = open_verifiers_world("sums_set?kind=tools")
    assert world.score([1.5], {"rewards": {"exact": 1.0, "worked": 1.0}}).success is True
    assert world.score([1.5], {"rewards": {"exact": 0.0, "worked": 1.0}}).success is False


def test_a_task_whose_answer_changed_is_not_scored():
    world, changed = VerifiersWorld("sums_set"), VerifiersWorld("sums_set")
    changed._tasks.reverse()
    with pytest.raises(ConfigError, match=r"task \d+ of verifiers:sums_set has changed"):
        changed.make(first_task(world))


def test_the_fingerprint_follows_the_tasks():
    fingerprints = {open_verifiers_world(f"sums_set?size={size}").fingerprint for size in (12, 12, 13)}
    assert len(fingerprints) == 2
    assert open_verifiers_world('sums_set?kind="tools"&size=12').name == "verifiers:sums_set?kind=tools&size=12"


@pytest.mark.parametrize("value", ["tools", "12", "a&b=c", "true", 12, 0.5, True, None, ["a b", 1], {"a": "%"}])
def test_settings_of_a_name_are_read_back(value):
    (pair,) = parse_qsl(f"key={_format_setting(value)}")
    assert _parse_setting(pair[1]) == value
    assert json.dumps(first_task(VerifiersWorld("sums_set")).spec)
