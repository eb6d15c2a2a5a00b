"""The functions world: the words form, other names, episodes, panels, and samples that are played."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction, SessionGone, VersionMismatch
from evolvent.grade.call_forms import spell_name
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.serve.toolcalls import format_action, list_tools
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit, play_actions
from evolvent.worlds.base import Forkable, SupportsRenaming
from evolvent.worlds.crafting import words_of
from evolvent.worlds.functions.catalogue import catalogue
from evolvent.worlds.functions.episode import FORMS, read_calls, write_calls
from evolvent.worlds.functions.spelling import decode_words, encode_words, resolve_names, show_tools
from evolvent.worlds.functions.tasks import build_spec, parse_spec, remove_defaults
from evolvent.worlds.functions.world import Functions, call_samples, fresh_names, rename_talk
from evolvent.worlds.panel import Sizes, digest

SMALL = Sizes(train=40, dev=20, test=20)
HOTEL = Tool(
    "find_hotel",
    "search for a hotel",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the city"},
            "nights": {"type": "integer", "description": "number of nights"},
            "breakfast": {"type": "boolean", "description": "whether breakfast is included", "default": False},
        },
        "required": ["city", "nights"],
        "additionalProperties": False,
    },
)
CANCEL = Tool(
    "cancel_hotel",
    "call off a hotel",
    {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "number of the hotel"}},
        "required": ["number"],
    },
)
OSLO = Call("find_hotel", {"city": "oslo", "nights": 3})
ROME = Call("find_hotel", {"city": "rome", "nights": 2, "breakfast": True})


@cache
def world(form: str = "words") -> Functions:
    return Functions(form, sizes=SMALL)  # type: ignore[arg-type]


def some(split: str = "dev", count: int = 20) -> list[Task]:
    return [task for tier in world().tiers for task in world().tasks(split, tier)[:count]]


def asked(*calls: Call, tools: tuple[Tool, ...] = (HOTEL, CANCEL)) -> Task:
    """A task of one turn."""
    return world().task_of(CallSample("by hand", (Message("user", "a request"),), tools, calls))


def reward_of(task: Task, text: str, form: str = "words") -> float:
    env = world(form).make(task)
    env.reset()
    return float(env.step(text)[1] or 0.0)


# ---------------------------------------------------------------------- the words form


def test_words_by_hand() -> None:
    calls = (
        Call("find_hotel", {"city": "oslo", "nights": 3, "breakfast": True}),
        Call("tip", {"sum": 12.5, "ids": [1, 2]}),
    )
    text = '[find hotel(city="oslo", nights=3, breakfast=True), tip(sum=12.5, ids=[1, 2])]'
    assert encode_words(calls) == text
    assert decode_words(text) == calls
    assert decode_words(" ".join(words_of(text))) == calls  # as a model over words writes it
    assert decode_words("[find_hotel(city='oslo', nights=3, breakfast=True), tip(sum=12.5, ids=[1, 2])]") == calls
    assert decode_words('f(when="new   york", low=- 3, to={"a b": 2})') == (
        Call("f", {"when": "new york", "low": -3, "to": {"a b": 2}}),
    )
    assert encode_words(()) == "[]"
    assert spell_name("_find__hotel_") == spell_name("find\thotel") == "find hotel" and spell_name("__") == "__"


@pytest.mark.parametrize(
    "text", ["", "find hotel", "[find hotel(city=)]", "f(a=3 4)", "f(a=1 000)", 'f("oslo")', "f(a=1", "f(" * 999]
)
def test_what_is_no_calls_in_words_is_refused(text: str) -> None:
    with pytest.raises(InvalidAction):
        decode_words(text)
    with pytest.raises(InvalidAction):
        world().grammar.parse(text)


def test_too_long_a_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidAction, match="too long"):
        decode_words(f'f(a="{"x" * 70_000}")')


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        calls = decode_words(text)
    except InvalidAction:
        return
    assert all(isinstance(call, Call) for call in calls)


def test_every_form_reads_what_it_writes() -> None:
    for task in some():
        talk = parse_spec(task.spec)
        for turn in talk.turns:
            calls = tuple(replace(call, id=None) for call in turn.calls)
            for form in FORMS:
                text = write_calls(calls, form)  # type: ignore[arg-type]
                found = resolve_names(read_calls(text, form), talk.tools)  # type: ignore[arg-type]
                assert tuple(replace(call, id=None) for call in found) == calls
                parsed = world(form).grammar.parse(text)
                assert world(form).grammar.parse(world(form).grammar.render(parsed)) == parsed
            spaced = " ".join(words_of(encode_words(calls)))
            assert resolve_names(read_calls(spaced, "words"), talk.tools) == calls


def test_names_are_resolved_by_their_spelling_also_nested_ones() -> None:
    tool = Tool(
        "make__one",
        "",
        {
            "properties": {
                "to_do": {"type": "object", "properties": {"due_day": {"type": "string"}}},
                "_all": {"type": "array", "items": {"type": "object", "properties": {"x_y": {}}}},
            }
        },
    )
    (found,) = resolve_names(decode_words('make one(to do={"due day": "monday"}, all=[{"x y": 1}], other=2)'), [tool])
    assert found == Call("make__one", {"to_do": {"due_day": "monday"}, "_all": [{"x_y": 1}], "other": 2})
    assert resolve_names([Call("unknown", {"a": 1})], [tool]) == (Call("unknown", {"a": 1}),)


def test_tools_are_shown_with_types_descriptions_and_defaults() -> None:
    assert show_tools([HOTEL, CANCEL]) == (
        "find hotel : search for a hotel ( city string the city ; nights integer number of nights ; "
        "breakfast boolean whether breakfast is included = False )\n"
        "cancel hotel : call off a hotel ( number integer number of the hotel )"
    )
    (shown,) = [show_tools([catalogue()["update_lamp"].tool])]
    assert "changes object what to change ( room string the room ; colour string the colour ;" in shown
    assert "cabin one of economy business first the cabin = economy" in show_tools([catalogue()["find_flight"].tool])
    assert "people list of string" in show_tools([catalogue()["share_hotel"].tool])


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ('[find hotel(city="oslo", nights=3)]', 1),
        ('[ find hotel ( nights = 3 , city = " oslo " ) ]', 1),
        ('find_hotel(city="oslo", nights=3, breakfast=False)', 1),  # the default, said
        ('[find hotel(city="oslo", nights=3, breakfast=True)]', 0),
        ('[find hotel(city="rome", nights=3)]', 0),
        ('[find hotel(city="oslo", nights="3")]', 0),
        ('[find hotel(city="oslo")]', 0),
        ('[find hotel(city="oslo", nights=3, stars=4)]', 0),
        ('[cancel hotel(city="oslo", nights=3)]', 0),
        ('[find hotel(city="oslo", nights=3), find hotel(city="oslo", nights=3)]', 0),
        ("[]", 0),
    ],
)
def test_verdicts_by_hand(text: str, reward: float) -> None:
    assert reward_of(asked(OSLO), text) == reward


def test_several_calls_have_no_order() -> None:
    task = asked(OSLO, ROME)
    assert reward_of(task, write_calls((OSLO, ROME), "words")) == 1
    assert reward_of(task, write_calls((ROME, OSLO), "words")) == 1
    assert reward_of(task, write_calls((OSLO, OSLO), "words")) == 0
    assert reward_of(task, write_calls((OSLO,), "words")) == 0


def test_an_optional_value_that_is_no_default_must_be_said() -> None:
    assert remove_defaults([ROME], [HOTEL])[0].arguments["breakfast"] is True
    assert "breakfast" not in remove_defaults([OSLO], [HOTEL])[0].arguments
    assert reward_of(asked(ROME), '[find hotel(city="rome", nights=2)]') == 0


@pytest.mark.parametrize("form", FORMS)
def test_calling_nothing_is_right_where_nothing_is_to_be_called(form: str) -> None:
    task = asked()
    assert reward_of(task, "[]", form) == reward_of(task, " [ ] ", form) == 1
    assert reward_of(task, write_calls([OSLO], form), form) == 0  # type: ignore[arg-type]
    assert world(form).expert(task) == ["[]"]


def test_what_cannot_be_read_costs_the_penalty_and_may_be_repeated() -> None:
    costly = Functions(penalty=-0.25, sizes=SMALL)
    task = asked(OSLO)
    env = costly.make(task)
    env.reset()
    observation, reward, terminated, truncated, info = env.step("find me a hotel")
    assert (reward, terminated, truncated, info["invalid"]) == (-0.25, False, False, True)
    assert observation
    last = env.step(costly.expert(task)[0])
    assert last[1:3] == (1.0, True)
    score = costly.score([-0.25, 1.0], {})
    assert (score.raw, score.unit, score.success) == (0.75, 1.0, True)


def test_turns_share_the_reward_and_show_results() -> None:
    task = next(task for task in world().tasks("test", "longer") if task.kind.startswith("multi_turn"))
    talk, plan = parse_spec(task.spec), world().expert(task)
    env = world().make(task)
    first, _ = env.reset()
    assert talk.messages[0].text in str(first)
    rewards = []
    for turn, text in zip(talk.turns, plan, strict=True):
        observation, reward, terminated, _, _ = env.step(text)
        rewards.append(reward)
        assert all(message.text in str(observation) for message in turn.messages_after)
    assert terminated
    assert sum(rewards) == 1.0
    assert min(rewards) > 0
    env.reset()
    env.step(plan[0])
    assert env.step("[]")[1:3] == (0.0, True)
    with pytest.raises(SessionGone):
        env.step(plan[1])


def test_snapshots_go_back_in_any_env_of_the_task() -> None:
    task = next(task for task in world().tasks("test", "longer") if task.kind.startswith("multi_turn"))
    plan = world().expert(task)
    env, other = world().make(task), world().make(task)
    assert isinstance(env, Forkable)
    env.reset()
    env.step(plan[0])
    moment = env.snapshot()
    env.step("[]")
    other.restore(moment)
    env.restore(moment)
    assert env.step(plan[1]) == other.step(plan[1])
    with pytest.raises(ConfigError, match="snapshot"):
        world().make(asked(OSLO)).restore(moment)


# ---------------------------------------------------------------------- panels


def test_the_audit_finds_nothing() -> None:
    found = audit(Functions(sizes=Sizes(train=60, dev=0, test=200)), limit=30)
    assert found.problems == ()
    assert all(tier.expert == 1.0 for tier in found.tiers.values())


def test_panels_have_their_shapes_splits_and_share_of_abstentions() -> None:
    split = {name: entry.split for name, entry in catalogue().items()}
    for tier in world().tiers:
        for part in ("train", "dev", "test"):
            tasks = world().tasks(part, tier)
            assert len(tasks) == (0 if part == "train" and tier in ("combo", "longer") else SMALL.of(part))
            for task in tasks:
                talk = parse_spec(task.spec)
                assert {split[tool.name] for tool in talk.tools} == {part}
                unseen = {catalogue()[tool.name].is_unseen for tool in talk.tools}
                assert unseen == {tier == "combo"}
            idle = sum(not turn.calls for task in tasks for turn in parse_spec(task.spec).turns)
            assert idle == (world().chance * len(tasks) if tier in ("seen", "combo") else 0)


def test_panels_are_the_same_in_another_world_and_no_two_tasks_are_alike() -> None:
    again = Functions(sizes=SMALL)
    for tier in again.tiers:
        assert digest(again.tasks("dev", tier)) == digest(world().tasks("dev", tier))
    keys = [world().key(task) for part in ("train", "dev", "test") for task in some(part, 40)]
    assert len(keys) == len(set(keys))


def test_panels_that_cannot_be_filled_and_other_mistakes_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be filled"):
        Functions(sizes=Sizes(train=0, dev=200, test=0, per_kind=1)).tasks("dev", "combo")  # 18 tools
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        world().tasks("tset", "seen")
    with pytest.raises(ConfigError, match=r"(?s)form.*penalty"):
        Functions("jsn", penalty=0.5)  # type: ignore[arg-type]


def test_every_word_is_in_the_vocabulary_also_under_other_names() -> None:
    known = set(world().vocabulary() or ())
    for task in [*some(count=10), *(world().rename(task, Random(1)) for task in some(count=10))]:
        env = world().make(task)
        observation, info = env.reset()
        for text in world().expert(task):
            told = [str(observation), *info["admissible"], str(env.step("what")[0])]
            assert {word for one in told for word in words_of(one)} <= known
            observation, *_, info = env.step(text)
    assert world("json").vocabulary() is None


def test_the_small_form_is_short() -> None:
    lengths = [len(words_of(str(world().make(task).reset()[0]))) for task in world().tasks("test", "seen")]
    assert max(lengths) <= 200


# ---------------------------------------------------------------------- other names


def test_renamed_tasks_are_the_same_but_for_names() -> None:
    assert isinstance(world(), SupportsRenaming)
    for task in some(count=10):
        new = world().rename(task, Random(7))
        talk, other = parse_spec(task.spec), parse_spec(new.spec)
        assert (new.kind, new.tier, new.split) == (task.kind, task.tier, task.split)
        assert new.id != task.id
        assert world().key(new) == world().key(task)
        assert play_actions(world(), new, world().expert(new))
        assert [one.description for one in other.tools] == [one.description for one in talk.tools]
        assert [one.text for one in other.messages] == [one.text for one in talk.messages]
        assert not {one.name for one in other.tools} & {one.name for one in talk.tools}
        tools = {tool.name: tool for tool in other.tools}
        for call in (call for turn in other.turns for call in turn.calls):
            schema = tools[call.name].parameters
            assert not list(jsonschema.Draft202012Validator(schema).iter_errors(call.arguments))
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", name) for name in (call.name, *call.arguments))
        if any(turn.calls for turn in talk.turns):
            assert not play_actions(world(), new, world().expert(task))


def test_renaming_can_be_undone() -> None:
    for task in some(count=10):
        talk = parse_spec(task.spec)
        names = fresh_names(talk.tools, Random(3))
        back = {new: (old, {b: a for a, b in own.items()}) for old, (new, own) in names.items()}
        assert build_spec(rename_talk(rename_talk(talk, names), back)) == build_spec(talk)
        for _, own in names.values():
            assert len(set(own.values())) == len(own)


def test_tasks_that_differ_in_more_than_names_have_other_keys() -> None:
    assert world().key(asked(OSLO)) != world().key(asked(ROME))
    other = replace(HOTEL, description="book a hotel")
    assert world().key(asked(OSLO)) != world().key(asked(OSLO, tools=(other, CANCEL)))


# ---------------------------------------------------------------------- as data


def test_tasks_become_samples_and_samples_tasks() -> None:
    for task in some(count=8):
        for turn in range(len(parse_spec(task.spec).turns)):
            sample = world().sample_of(task, turn)
            again = world().task_of(sample, tier=task.tier, split=task.split)
            assert play_actions(world(), again, [write_calls(sample.calls, "words")])
            assert world().sample_of(again).messages == sample.messages
            assert world().sample_of(again).calls == sample.calls
    with pytest.raises(ConfigError, match="turn"):
        world().sample_of(some()[0], 9)


def test_later_turns_have_the_conversation_before_them() -> None:
    task = next(task for task in world().tasks("test", "longer") if task.kind.startswith("multi_turn"))
    roles = [message.role for message in world().sample_of(task, 1).messages]
    assert roles == ["user", "assistant", "tool", "user"]
    sample = world().sample_of(task, 1)
    assert sample.messages[1].calls == world().sample_of(task, 0).calls
    first, _ = world().make(world().task_of(sample)).reset()
    assert encode_words(sample.messages[1].calls) in str(first)
    assert sample.messages[2].text in str(first)


def test_reduced_and_masked_samples_are_played() -> None:
    sample = CallSample("x", (Message("user", "find a hotel in oslo for 3 nights"),), (HOTEL, CANCEL), (OSLO,))
    without = world().task_of(replace(sample, tools=(CANCEL,), calls=()))
    assert play_actions(world(), without, ["[]"])
    masked = Tool("aB3.x_9", HOTEL.description, HOTEL.parameters)
    task = world("json").task_of(replace(sample, tools=(masked,), calls=(Call("aB3.x_9", OSLO.arguments),)))
    for form in ("json", "python", "words"):
        assert play_actions(world(form), task, world(form).expert(task))
    with pytest.raises(ConfigError, match="not offered"):
        world().task_of(replace(sample, tools=(CANCEL,)))
    with pytest.raises(ConfigError, match="names"):
        world().task_of(replace(sample, tools=(HOTEL, HOTEL)))


def test_other_dialects_of_schemas_are_read_with_their_defaults() -> None:
    flat = Tool("f", "d", {"a": {"type": "int", "description": "x"}, "b": {"type": "str, optional", "default": "y"}})
    call = Call("f", {"a": 1})
    task = asked(call, tools=(flat,))
    assert remove_defaults([Call("f", {"a": 1, "b": "y"})], [flat]) == (call,)
    assert reward_of(task, '[f(a=1, b="y")]') == reward_of(task, "[f(a=1)]") == 1
    assert reward_of(task, '[f(a=1, b="z")]') == 0
    assert show_tools([flat]) == "f : d ( a integer x ; b string = y )"


@pytest.mark.parametrize(
    "change",
    [
        {"tools": "x"},
        {"rounds": []},
        {"rounds": [{"calls": 3}]},
        {"messages": [{"role": "king"}]},
        {"tools": [{"name": "find_hotel", "parameters": {"$ref": "#/a"}}]},
    ],
)
def test_specs_that_are_none_are_refused(change: dict[str, Any]) -> None:
    task = asked(OSLO)
    with pytest.raises(ConfigError):
        world().make(replace(task, spec={**task.spec, **change}))
    with pytest.raises(ConfigError):
        world().make(replace(task, world="other"))
    with pytest.raises(VersionMismatch):
        world().make(replace(task, version="0"))


def test_call_samples_are_drawn_by_split_and_kind() -> None:
    split = {name: entry.split for name, entry in catalogue().items()}
    found = call_samples("train", "seen", 60)
    assert len(found) == len({sample.id for sample in found}) == 60
    assert {split[tool.name] for sample in found for tool in sample.tools} == {"train"}
    assert found == call_samples("train", "seen", 60)
    assert not {sample.id for sample in found} & {sample.id for sample in call_samples("train", "seen", 60, seed=1)}
    kinds = {sample.id.split(":")[0] for sample in call_samples("test", "combo", 20, kinds=["missing", "parallel"])}
    assert kinds == {"missing", "parallel"}
    turns = call_samples("train", "longer", 12, kinds=["multi_turn"])
    assert {message.role for sample in turns for message in sample.messages} == {"user", "assistant", "tool"}
    for mistake in ({"kinds": ["singel"]}, {"tier": "combo"}, {"count": -1}):
        given = {"split": "train", "tier": "seen", "count": 3, **mistake}
        with pytest.raises(ConfigError):
            call_samples(given.pop("split"), given.pop("tier"), given.pop("count"), **given)  # type: ignore[arg-type]


def test_a_server_of_tools_plays_it() -> None:
    task = asked(OSLO)
    tools = list_tools(world(), task)
    assert [tool.name for tool in tools] == ["find_hotel", "cancel_hotel"]
    assert reward_of(task, format_action(world(), OSLO, tools)) == 1


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ({"o": {"n": [1, 2]}}, {"o": {"n": 1}}),
        ({"v": "1.5"}, {"v": "15"}),
        ({"v": "a-b"}, {"v": "ab"}),
        ({"v": ""}, {}),
    ],
)
def test_values_are_judged_exactly(gold, wrong) -> None:
    """BFCL's answers list what is accepted and forgive spelling; values of a generator are what they are."""
    inner = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    tool = Tool("f", "d", {"type": "object", "properties": {"o": inner, "v": {"type": "string"}}})
    task = asked(Call("f", gold), tools=(tool,))
    own = world("json")
    for answer, reward in ((gold, 1.0), (wrong, 0.0)):
        env = own.make(task)
        env.reset()
        assert env.step(write_calls((Call("f", answer),), "json"))[1] == reward
