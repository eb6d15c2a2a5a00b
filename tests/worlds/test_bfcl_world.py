"""BFCL as a world: panels, episodes of one and of several turns, scores, snapshots, bad folders."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bfcl_mini import BOOKED, CATEGORIES, build

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.messages import Call, Tool
from evolvent.trajectory import Task
from evolvent.worlds.base import Forkable
from evolvent.worlds.bfcl.episode import parse_answer
from evolvent.worlds.bfcl.multi_turn import MOST_STEPS
from evolvent.worlds.bfcl.world import GROUPS, Bfcl, group_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bfcl"))


@pytest.fixture(scope="module")
def world(folder) -> Bfcl:
    return Bfcl(folder, categories=CATEGORIES)


def task_of(world: Bfcl, name: str) -> Task:
    return next(task for tier in world.tiers for task in world.tasks("test", tier) if task.spec["id"] == name)


def play(world: Bfcl, task: Task, replies):
    """(observations, the last info, the score) of an episode; it must end with the last reply."""
    env = world.make(task)
    observation, info = env.reset()
    seen, rewards, ended = [observation], [], False
    for reply in replies:
        assert not ended
        observation, reward, ended, cut, info = env.step(reply)
        assert not cut
        seen.append(observation)
        rewards.append(reward)
    assert ended
    with pytest.raises(SessionGone):
        env.step("again")
    return seen, info, world.score(rewards, info)


def test_every_item_is_a_test_task_of_its_group(world):
    assert not world.problems
    counts = {tier: len(world.tasks("test", tier)) for tier in world.tiers}
    assert counts == {"non_live": 2, "live": 1, "irrelevance": 1, "relevance": 1, "multi_turn": 12}
    assert world.tiers == GROUPS
    for tier in GROUPS:
        assert not world.tasks("train", tier) and not world.tasks("dev", tier)
        for task in world.tasks("test", tier):
            assert (task.tier, task.split, group_of(task.kind)) == (tier, "test", tier)
            assert task.kind == task.spec["category"]
            assert "ground_truth" not in json.dumps(dict(task.spec))
    assert world.horizon == (MOST_STEPS + 1) * 4
    with pytest.raises(ConfigError):
        world.tasks("test", "simple")


@pytest.mark.parametrize("form", ["python", "json", "xml"])
def test_the_expert_solves_every_item_that_has_a_gold_answer(folder, form):
    world = Bfcl(folder, form=form, categories=CATEGORIES)
    for tier in world.tiers:
        for task in world.tasks("test", tier):
            replies = world.expert(task)
            if tier == "relevance":
                assert replies is None
                continue
            _, info, score = play(world, task, replies)
            assert score.success, (task.spec, info)


def test_one_reply_decides_an_item_of_one_turn(world):
    task = task_of(world, "simple_python_0")
    for reply, kind in (
        ("[get_weather(city='Oslo, Norway')]", ""),
        ("get_weather(city='Rome')", "value"),
        ("", "count"),
        ("[get_weather(city='Oslo'), get_weather(city='Oslo')]", "count"),
        ("get_weather()", "missing"),
    ):
        _, info, score = play(world, task, [reply])
        assert (info["verdict"]["kind"], score.success, score.raw) == (kind, not kind, float(not kind))
    relevance, irrelevance = task_of(world, "live_relevance_0-0-0"), task_of(world, "irrelevance_0")
    for reply, called in (("get_weather(city='any')", True), ("Which city?", False), ("", False)):
        assert play(world, relevance, [reply])[2].success is called
        assert play(world, irrelevance, [reply])[2].success is not called


def test_functions_and_request_are_told(world):
    observation, info = world.make(task_of(world, "live_simple_0-0-0")).reset()
    head, functions, _, system, user = observation.split("\n")
    assert (head, json.loads(functions)["name"]) == ("Functions:", "get_weather")
    assert (system, user) == ("system: Be brief.", "user: How is the weather in Oslo?")
    assert [one["role"] for one in info["messages"]] == ["system", "user"]
    assert [one["function"]["name"] for one in info["tools"]] == ["get_weather"]
    assert world.make(task_of(world, "simple_python_0")).reset()[0].endswith("\n\nHow is the weather in Oslo?")


def test_calls_are_answered_and_a_reply_without_calls_ends_the_turn(world):
    task = task_of(world, "multi_turn_base_2")
    env = world.make(task)
    observation, info = env.reset()
    assert observation.endswith("Fill in 10 gallons.") and '"fillFuelTank"' in observation
    assert info["turn"] == 0 and len(info["tools"]) == 36
    observation, reward, ended, _, info = env.step("[fillFuelTank(fuelAmount=10.0), nothing()]")
    assert (
        observation
        == 'fillFuelTank: {"fuelLevel": 15.0}\nnothing: Error during execution: there is no function nothing'
    )
    assert (reward, ended) == (0.0, False)
    assert [(one["role"], one["name"]) for one in info["messages"]] == [("tool", "fillFuelTank"), ("tool", "nothing")]
    observation, _, _, _, info = env.step("The tank has 15 gallons now.")
    assert (observation, info["turn"]) == ("Post the level.", 1)
    env.step("post_tweet(content='15.0', tags=['#fuel'])")
    observation, reward, ended, _, info = env.step("Posted.")
    assert (observation, reward, ended) == ("", 1.0, True)
    assert info["verdict"] == {"valid": True, "kind": "", "path": "", "detail": "", "silent": True}


def test_what_a_reply_cannot_be_read_as_is_no_call(world):
    task = task_of(world, "multi_turn_base_2")
    _, info, score = play(world, task, ["[fillFuelTank(10.0)]", "post_tweet(content='15.0'"])
    assert (score.success, info["verdict"]["kind"], info["verdict"]["path"]) == (False, "no_call", "turn 0")


def test_a_broken_call_is_no_abstention(world):
    task = task_of(world, "irrelevance_0")
    for reply, success in [
        ("I cannot do that.", True),
        ("[]", True),
        ("<think>\n[pay(a=1)]\n</think>\nI cannot.", True),
        ("[pay(amount=1", False),
        ("pay(1)", False),
        ("[pay(amount=1)]", False),
    ]:
        assert play(world, task, [reply])[2].success is success, reply


def test_bare_text_in_a_turn_has_the_type_of_its_schema():
    tools = [Tool("cd", "", {"type": "dict", "properties": {"folder": {"type": "string"}, "n": {"type": "integer"}}})]
    said = "<function=cd><parameter=folder>2024</parameter><parameter=n>2024</parameter></function>"
    assert parse_answer(said, "xml", tools) == (Call("cd", {"folder": "2024", "n": 2024}),)
    assert parse_answer("<tool_call>", "xml", tools) is None and parse_answer("no", "xml", tools) == ()


def test_missed_functions_come_in_their_turn_and_excluded_ones_never(world):
    task = task_of(world, "multi_turn_miss_func_0")
    env = world.make(task)

    def names(info):
        return {one["function"]["name"] for one in info["tools"]}

    observation, info = env.reset()
    assert '"touch"' not in observation and '"rm"' not in observation
    assert names(info) >= {"echo", "mean"} and not names(info) & {"touch", "rm"}
    _, _, _, _, info = env.step("done")
    assert "touch" not in names(info)
    observation, _, _, _, info = env.step("I cannot make files.")
    assert [json.loads(line)["name"] for line in observation.split("\n")[1:2]] == ["touch"]
    assert info["turn"] == 2 and "touch" in names(info) and "rm" not in names(info)
    assert len(info["messages"]) == 1
    base = world.make(task_of(world, "multi_turn_base_0")).reset()[1]
    assert names(base) == names(info) | {"rm"}


def test_too_many_replies_with_calls_in_a_turn_end_the_episode(world):
    task = task_of(world, "multi_turn_base_2")
    look = "displayCarStatus(option='fuel')"
    _, info, score = play(world, task, [look] * (MOST_STEPS + 1))
    assert (score.success, info["verdict"]["kind"]) == (False, "steps")
    turns = [
        *["fillFuelTank(fuelAmount=10.0)", *[look] * (MOST_STEPS - 1), "done"],
        "post_tweet(content='15.0', tags=['#fuel'])",
        "done",
    ]
    assert play(world, task, turns)[2].success


def test_a_snapshot_goes_on_where_it_was_taken(world):
    task = task_of(world, "multi_turn_base_1")
    replies = world.expert(task)
    env, other = world.make(task), world.make(task)
    assert isinstance(env, Forkable)
    env.reset()
    env.step(replies[0])
    moment = env.snapshot()
    straight = [env.step(reply) for reply in replies[1:]]
    assert BOOKED in replies[2] and straight[-1][1] == 1.0
    other.reset()
    for _ in range(2):
        other.restore(moment)
        assert [other.step(reply) for reply in replies[1:]] == straight
    other.restore(moment)
    other.step("[cancel_booking(access_token='tok', booking_id='0')]")
    other.restore(moment)
    assert [other.step(reply) for reply in replies[1:]] == straight
    foreign = world.make(task_of(world, "multi_turn_base_2"))
    with pytest.raises(ConfigError):
        foreign.restore(moment)
    env.reset()
    assert env.step(replies[0])[0].startswith("book_flight: ")
    env.close()
    with pytest.raises(SessionGone):
        env.step("x")


def test_tasks_are_the_same_everywhere_and_of_what_the_items_say(world, folder, tmp_path):
    again = Bfcl(folder, categories=("simple_python", "multi_turn_long_context"))
    wanted = {task.id for tier in world.tiers for task in world.tasks("test", tier)}
    known = {task.id for tier in again.tiers for task in again.tasks("test", tier)}
    assert len(known) == 4 and known < wanted
    long = task_of(again, "multi_turn_long_context_0")
    seen, _, score = play(again, long, again.expert(long))
    # Though the base items are not among its tasks, what was added is known: the files can be removed.
    assert score.success and any("removed" in text for text in seen) and not any('"error"' in text for text in seen)
    other = build(tmp_path / "other")
    path = other / "BFCL_v4_simple_python.json"
    path.write_text(path.read_text().replace("Oslo", "Bern"), encoding="utf-8")
    changed = Bfcl(other, categories=CATEGORIES)
    with pytest.raises(VersionMismatch):
        changed.make(task_of(world, "simple_python_0"))
    changed.make(task_of(world, "parallel_0"))
    with pytest.raises(ConfigError, match="item not found in the folder"):
        again.make(task_of(world, "parallel_0"))
    with pytest.raises(ConfigError):
        world.make(Task("crafting", "1", {"id": "parallel_0"}))
    task = task_of(world, "parallel_0")
    with pytest.raises(VersionMismatch):
        world.make(replace(task, spec={**task.spec, "digest": "0" * 16}))


def test_items_that_cannot_be_used_are_told_and_the_others_go_on(folder, tmp_path):
    other = build(tmp_path / "other")
    path = other / "possible_answer" / "BFCL_v4_multi_turn_base.json"
    path.write_text(path.read_text().replace("fillFuelTank(10.0)", "fillFuelTank(open('x'))"), encoding="utf-8")
    world = Bfcl(other, categories=CATEGORIES)
    assert [(one.where, len(world.tasks("test", "multi_turn"))) for one in world.problems] == [
        ("multi_turn_base_2", 11)
    ]
    with pytest.raises(ConfigError):
        Bfcl(tmp_path, categories=CATEGORIES)


def test_wrong_settings_are_named_together(folder):
    with pytest.raises(ConfigError) as caught:
        Bfcl(folder, form="java", categories=("simple_pyton",))
    assert len(caught.value.problems) == 2
    assert "simple_python" in str(caught.value)
