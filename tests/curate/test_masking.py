"""Masked samples: structure by hand, every defect of the released script, and the way back as a property."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate.masking import SYLLABLES, MaskSpec, NameMap, mask_epoch, mask_sample, unmask_calls
from evolvent.curate.renaming import KeyMap, rename_sample
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import LEGAL_NAME, find_argument_faults
from evolvent.trajectory import sample_rng

ALL = MaskSpec(ratio=1.0)
PLACE = {
    "type": "object",
    "description": "Where.",
    "properties": {"city": {"type": "string"}, "zip_code": {"type": "string", "title": "Zip Code"}},
    "required": ["city"],
    "default": {"city": "Oslo"},
}
FORECAST = Tool(
    "get_forecast",
    "Call get_forecast for the weather of a city; see also find_place.",
    {
        "type": "object",
        "properties": {
            "where": PLACE,
            "days": {"type": "array", "items": {"type": "object", "properties": {"day_no": {"type": "integer"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "unit": {
                "anyOf": [{"type": "string", "enum": ["unit", "C"]}, {"type": "object", "properties": {"city": {}}}]
            },
        },
        "required": ["where", "unit"],
    },
)
FIND = Tool("find_place", "Finds a place by 'name'.", {"name": {"type": "str", "description": "the zip_code or name"}})
SAMPLE = CallSample(
    "one",
    (
        Message("user", "Where is zip_code 0150?"),
        Message("assistant", None, (Call("find_place", {"name": "0150"}, "c1"),)),
        Message("tool", '{"zip_code": "0150"}', (), "c1", {"name": "find_place"}),
        Message("user", "And the weather there?"),
    ),
    (FORECAST, FIND),
    (
        Call(
            "get_forecast",
            {"where": {"city": "Oslo", "zip_code": "0150"}, "unit": "unit", "labels": {"city": "x"}},
            "c2",
        ),
        Call("get_forecast", {"where": {"city": "city"}, "unit": {"city": 1}, "days": [{"day_no": 1}, {"day_no": 2}]}),
    ),
)
NAMES = NameMap(
    {"get_forecast": "f", "find_place": "get_forecast"},
    {
        "get_forecast": KeyMap(
            {"where": "unit", "unit": "where", "days": "d", "labels": "l"},
            {
                "where": KeyMap({"city": "c", "zip_code": "z"}),
                "unit": KeyMap({"city": "c"}),
                "days": KeyMap(elements=KeyMap({"day_no": "n"})),
            },
        ),
        "find_place": KeyMap({"name": "m"}),
    },
)


def test_renaming_by_hand_is_structural_and_simultaneous():
    """A function takes the name of another, and two parameters change places."""
    found = rename_sample(SAMPLE, NAMES)
    first, second = found.tools
    assert (first.name, second.name) == ("f", "get_forecast")
    assert first.description == "Call f for the weather of a city; see also get_forecast."
    assert first.parameters == {
        "type": "object",
        "properties": {
            "unit": {
                "type": "object",
                "description": "Where.",
                "properties": {"c": {"type": "string"}, "z": {"type": "string"}},
                "required": ["c"],
                "default": {"c": "Oslo"},
            },
            "d": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "l": {"type": "object", "additionalProperties": {"type": "string"}},
            "where": {
                "anyOf": [{"type": "string", "enum": ["unit", "C"]}, {"type": "object", "properties": {"c": {}}}]
            },
        },
        "required": ["unit", "where"],
    }
    assert second == Tool(
        "get_forecast", "Finds a place by 'm'.", {"m": {"type": "str", "description": "the zip_code or name"}}
    )
    assert found.calls == (
        Call("f", {"unit": {"c": "Oslo", "z": "0150"}, "where": "unit", "l": {"city": "x"}}, "c2"),
        Call("f", {"unit": {"c": "city"}, "where": {"c": 1}, "d": [{"n": 1}, {"n": 2}]}),
    )
    user, earlier, result, last = found.messages
    assert earlier.calls == (Call("get_forecast", {"m": "0150"}, "c1"),)
    assert result == Message("tool", '{"zip_code": "0150"}', (), "c1", {"name": "get_forecast"}), "a result is data"
    assert (user, last) == (SAMPLE.messages[0], SAMPLE.messages[3])
    assert unmask_calls(found.calls, NAMES) == SAMPLE.calls


def test_masking_leaves_the_sample_as_it_was():
    before = copy.deepcopy(SAMPLE)
    mask_sample(SAMPLE, sample_rng(1), ALL)
    assert before == SAMPLE


def test_what_is_wrong_in_masked_names_is_wrong_after_unmasking():
    found, names = mask_sample(SAMPLE, sample_rng(3), ALL)
    (old,) = unmask_calls([Call("get_forecast", {"where": {}})], names)
    assert old.name not in ("get_forecast", "find_place"), "an old name was not shown"
    (half,) = unmask_calls([Call(found.calls[0].name, {"where": {"city": "Oslo"}})], names)
    assert half.name == "get_forecast" and "where" not in half.arguments
    assert unmask_calls([Call("other", {"x": 1})], names) == (Call("other", {"x": 1}),)


def test_names_that_are_told_by_data_are_reported():
    _, names = mask_sample(SAMPLE, sample_rng(1), ALL)
    assert names.unrenamed == ("zip_code",), "`name` is an ordinary word, zip_code stands in a result"


def words_of(tool):
    return set(re.findall(r"\w+", f"{tool.name} {tool.description} {json.dumps(tool.parameters)}"))


def test_scrubbing_leaves_no_old_name():
    """`names`: only ordinary words stay in descriptions. `every`: nothing stays but values (the enum's `unit`)."""
    old = {"get_forecast", "find_place", "where", "zip_code", "days", "day_no", "labels", "unit", "city", "name"}
    found, _ = mask_sample(SAMPLE, sample_rng(2), ALL)
    told = words_of(found.tools[0]) | words_of(found.tools[1])
    assert told & old == {"city", "name", "unit", "zip_code"}, "zip_code is no parameter of find_place"
    every, _ = mask_sample(SAMPLE, sample_rng(2), replace(ALL, scrub="every"))
    assert not (words_of(every.tools[0]) | words_of(every.tools[1])) & (old - {"unit", "zip_code"})


def simple(parameters, arguments, request, **more):
    return CallSample(
        "s", (Message("user", request),), (Tool("search", "Finds.", parameters),), (Call("search", arguments, **more),)
    )


# ---------------------------------------------------------------------- defects of the released script, one a test


def test_defect_a_truth_value_stays():
    sample = simple({"all": {"type": "bool", "default": True, "description": "all?"}}, {"all": True}, "Find all")
    for seed in range(20):
        found, names = mask_sample(sample, sample_rng(seed), ALL)
        assert [*found.calls[0].arguments.values()] == [True] and not names.values


def test_defect_an_object_as_default_stays():
    sample = simple(
        {"by": {"type": "dict", "default": {"a": 1}}, "l": {"type": "list", "default": []}},
        {"by": {"a": 1}, "l": []},
        "Find",
    )
    found, names = mask_sample(sample, sample_rng(0), ALL)
    assert [*found.calls[0].arguments.values()] == [{"a": 1}, []] and not names.values


def test_defect_a_default_inside_other_numbers_is_not_replaced():
    """The request names 10 and 1; the released script makes `30 items from page 3 in 2023` of it, the label says 14."""
    parameters = {
        "limit": {"type": "int", "default": 10, "description": "How many, 10 by default."},
        "page": {"type": "int", "default": 1, "description": "Which page."},
        "year": {"type": "int"},
    }
    sample = simple(parameters, {"limit": 10, "page": 1, "year": 2021}, "Get 10 items from page 1 in 2021")
    for seed in range(20):
        found, names = mask_sample(sample, sample_rng(seed), ALL)
        limit, page, year = found.calls[0].arguments.values()
        assert 11 <= limit <= 14 and year == 2021 and page == 1, "a 1 is also inside 10 and 2021: it stays"
        assert found.request == f"Get {limit} items from page {page} in 2021"
        new = [*found.tools[0].parameters.values()]
        assert new[0]["default"] == limit and new[0]["description"] == f"How many, {limit} by default."
        assert new[1]["default"] == 1
        assert unmask_calls(found.calls, names) == sample.calls


def test_defect_tools_of_one_name():
    """Given twice they are one; two different ones cannot be told apart by a call."""
    twice = replace(SAMPLE, tools=(FORECAST, FIND, copy.deepcopy(FIND)))
    assert len(mask_sample(twice, sample_rng(0), ALL)[0].tools) == 2
    other = replace(SAMPLE, tools=(FORECAST, FIND, replace(FIND, description="other")))
    with pytest.raises(SampleInvalid, match="two different tools"):
        mask_sample(other, sample_rng(0), ALL)


def test_defect_the_old_name_in_its_description():
    found, _ = mask_sample(SAMPLE, sample_rng(0), ALL)
    assert not any("get_forecast" in tool.description or "find_place" in tool.description for tool in found.tools)


@pytest.mark.parametrize("style", ["random", "snake", "camel"])
def test_defect_names_that_are_not_legal(style):
    dotted = CallSample(
        "d", (Message("user", "go"),), (Tool("a.b", "", {"type": "dict", "properties": {"1x": {}}}),), ()
    )
    for seed in range(50):
        found, names = mask_sample(dotted, sample_rng(seed), MaskSpec(ratio=1.0, style=style))
        assert LEGAL_NAME.fullmatch(found.tools[0].name) and found.tools[0].name.isidentifier()
        assert all(map(LEGAL_NAME.fullmatch, found.tools[0].parameters["properties"]))
        assert unmask_calls([Call(found.tools[0].name)], names) == (Call("a.b"),)


# ---------------------------------------------------------------------- defaults


@pytest.mark.parametrize(
    ("parameter", "value", "request_text"),
    [
        ({"type": "int", "default": 10, "enum": [10, 20]}, 10, "go"),
        ({"type": "int", "default": 10, "maximum": 10}, 10, "go"),
        ({"type": "int", "default": 10}, 11, "go"),
        ({"type": "int", "default": 10}, 10, "10 of 10"),
        ({"type": "int", "default": 10}, 10, "in 10.5 s"),
        ({"type": "int", "default": 10}, 10, "at 10:30"),
        ({"type": "int", "default": 10}, 10, "-10 degrees"),
        ({"type": "str", "default": "New York"}, "New York", "go"),
        ({"type": "str", "default": ""}, "", "go"),
        ({"type": "str", "default": None}, None, "go"),
        ({"type": "float", "default": 1e30}, 1e30, "go"),
        ({"type": "int", "default": 10, "description": "10 or 100"}, 10, "go"),
    ],
)
def test_a_default_that_is_not_safe_to_replace_stays(parameter, value, request_text):
    sample = simple({"x": parameter}, {"x": value}, request_text)
    found, names = mask_sample(sample, sample_rng(1), ALL)
    assert not names.values and found.request == request_text
    assert [*found.calls[0].arguments.values()] == [value]


def test_a_value_that_another_argument_has_stays():
    parameters = {"x": {"type": "int", "default": 7}, "y": {"type": "int"}}
    assert not mask_sample(simple(parameters, {"x": 7, "y": 7}, "go"), sample_rng(0), ALL)[1].values
    assert mask_sample(simple(parameters, {"x": 7, "y": 8}, "go"), sample_rng(1), ALL)[1].values
    earlier = replace(
        simple(parameters, {"x": 7, "y": 8}, "go"), messages=(Message("user", "seven is 7"), Message("user", "go"))
    )
    assert not mask_sample(earlier, sample_rng(1), ALL)[1].values, "another message tells the value"


@pytest.mark.parametrize(("default", "value"), [(0.5, 0.5), ("metric", "metric"), ("5", 5), (5, 5)])
def test_exchanged_defaults_keep_their_type_and_change_places(default, value):
    parameters = {
        "type": "object",
        "properties": {"x": {"default": default, "description": f"is {default} if left out"}},
    }
    sample = simple(parameters, {"x": value}, f"take {value}, please")
    found, names = mask_sample(sample, sample_rng(4), ALL)
    ((old, new),) = names.values.values()
    (shown,) = found.tools[0].parameters["properties"].values()
    assert old == value and type(new) is type(value) and new != old
    assert type(shown["default"]) is type(default) and str(shown["default"]) == str(new)
    assert shown["description"] == f"is {new} if left out" and found.request == f"take {new}, please"
    key = next(iter(found.calls[0].arguments))
    assert found.calls[0].arguments == {key: new}
    assert unmask_calls(found.calls, names) == sample.calls
    assert unmask_calls([replace(found.calls[0], arguments={key: old})], names)[0].arguments == {"x": new}, (
        "wrong stays wrong"
    )
    assert mask_sample(sample, sample_rng(4), replace(ALL, defaults="off"))[0].calls[0].arguments == {key: value}


# ---------------------------------------------------------------------- drawing


def test_two_of_three_are_masked():
    sample = CallSample("s", (), (Tool("f"),), ())
    rng, spec, draws = np.random.default_rng(0), MaskSpec(), 100_000
    count = sum(bool(mask_sample(sample, rng, spec)[1].tools) for _ in range(draws))
    assert abs(count - draws * 2 / 3) < 4 * (draws * 2 / 9) ** 0.5
    assert not mask_sample(SAMPLE, sample_rng(0), MaskSpec(ratio=0.0))[1].tools


def test_an_epoch_is_drawn_by_name_and_not_by_order():
    samples = [replace(SAMPLE, id=str(number)) for number in range(30)]
    spec = MaskSpec(style="snake")
    one = {sample.id: (sample, names) for sample, names in mask_epoch(samples, spec, seed=1, epoch=0)}
    back = {sample.id: (sample, names) for sample, names in mask_epoch(samples[::-1], spec, seed=1, epoch=0)}
    assert one == back and set(one) == {sample.id for sample in samples}
    assert one != {sample.id: (sample, names) for sample, names in mask_epoch(samples, spec, seed=1, epoch=1)}
    assert one != {sample.id: (sample, names) for sample, names in mask_epoch(samples, spec, seed=2, epoch=0)}
    for sample, names in one.values():
        assert sorted(tool.name in ("get_forecast", "find_place") for tool in sample.tools) == [not names.tools] * 2
        assert unmask_calls(sample.calls, names) == SAMPLE.calls
    orders = {names.tools.get("find_place", "find_place") == sample.tools[0].name for sample, names in one.values()}
    assert orders == {True, False}, "tools are shuffled"


def test_bad_samples_are_told_and_others_go_on():
    bad = [
        replace(SAMPLE, id="gold", calls=(Call("none"),)),
        replace(
            SAMPLE,
            id="names",
            tools=(FORECAST, FIND, Tool("p", "", {"type": "object", "propertyNames": {"maxLength": 2}})),
        ),
        replace(
            SAMPLE,
            id="loop",
            tools=(FORECAST, FIND, Tool("p", "", {"type": "object", "properties": {"a": {"$ref": "#"}}})),
        ),
    ]
    told = []
    good = list(
        mask_epoch(
            [*bad, SAMPLE], ALL, seed=0, epoch=0, on_invalid=lambda sample, error: told.append((sample.id, str(error)))
        )
    )
    assert [sample.id for sample, _ in good] == ["one"] and [name for name, _ in told] == ["gold", "names", "loop"]
    assert all(name in why for name, why in told)
    with pytest.raises(SampleInvalid, match="'gold'"):
        list(mask_epoch(bad, ALL, seed=0, epoch=0))


def test_a_schema_too_deep_is_refused():
    deep = {"type": "string"}
    for _ in range(3_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SampleInvalid, match="too large"):
        mask_sample(
            replace(SAMPLE, tools=(FORECAST, FIND, Tool("p", "", {"type": "object", "properties": {"a": deep}}))),
            sample_rng(0),
            ALL,
        )


def test_references_are_written_out():
    tool = Tool("f", "", {"type": "object", "properties": {"at": {"$ref": "#/$defs/p"}}, "$defs": {"p": PLACE}})
    sample = CallSample("s", (), (tool,), (Call("f", {"at": {"city": "Oslo"}}),))
    found, names = mask_sample(sample, sample_rng(0), ALL)
    assert not find_argument_faults(found.calls[0].arguments, found.tools[0].parameters)
    assert "$ref" not in json.dumps(found.tools[0].parameters) and unmask_calls(found.calls, names) == sample.calls


def test_styles():
    known = set(SYLLABLES)
    for style, pattern in (("snake", r"[a-z]{3}(_[a-z]{3}){1,2}"), ("camel", r"[a-z]{3}([A-Z][a-z]{2}){1,2}")):
        found, _ = mask_sample(SAMPLE, sample_rng(0), MaskSpec(ratio=1.0, style=style))
        name = found.tools[0].name
        assert re.fullmatch(pattern, name) and {part.lower() for part in re.findall("[a-zA-Z][a-z]{2}", name)} <= known
    given = MaskSpec(ratio=1.0, style="snake", words=tuple("abcdefghijklmnopqrst"), pieces=(1, 1))
    found, _ = mask_sample(SAMPLE, sample_rng(0), given)
    assert {tool.name for tool in found.tools} < set(given.words)
    with pytest.raises(SampleInvalid, match="new names"):
        mask_sample(SAMPLE, sample_rng(0), replace(given, words=("a", "b", "c")))
    names = [mask_sample(SAMPLE, sample_rng(seed), ALL)[0].tools[0].name for seed in range(200)]
    assert {len(name) for name in names} == set(range(5, 16))
    assert {
        len(name)
        for seed in range(200)
        for name in mask_sample(SAMPLE, sample_rng(seed), ALL)[1].keys["find_place"].renamed.values()
    } == set(range(4, 11))


def test_new_names_never_meet_old_names_or_keys_of_data():
    fresh = tuple(f"new{number}" for number in range(14))
    old = ("where", "days", "labels", "unit", "city", "name")
    sample = replace(
        SAMPLE, calls=(Call("get_forecast", {"labels": {"new0": "x"}, "where": {"city": "a"}, "unit": "C"}),)
    )
    for seed in range(30):
        spec = MaskSpec(ratio=1.0, style="camel", words=(*old, *fresh), pieces=(1, 1))
        _, names = mask_sample(sample, sample_rng(seed), spec)
        new = [*names.tools.values(), *(one for keys in names.keys.values() for one in flat(keys).values())]
        assert len(new) == len(set(new)) == 10 and set(new) <= set(fresh[1:])


def test_the_published_setting():
    spec = MaskSpec.published()
    assert (spec.ratio, spec.scrub, spec.defaults) == (2 / 3, "off", "whole_token")
    text = "".join(
        mask_sample(SAMPLE, sample_rng(seed), replace(spec, ratio=1.0))[0].tools[0].name for seed in range(300)
    )
    assert set(text) == set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.")


def test_every_mistake_of_a_setting_is_told():
    with pytest.raises(ConfigError) as caught:
        MaskSpec(ratio=2, style="kebab", words=("a b",), pieces=(3, 2), scrub="some", defaults="on")
    assert [problem.where for problem in caught.value.problems] == [
        "ratio",
        "style",
        "defaults",
        "scrub",
        "words",
        "pieces",
    ]


# ---------------------------------------------------------------------- properties

WORDS = ["city", "zip_code", "maxItems", "a", "b", "days", "bab", "zor"]
LEAVES = st.sampled_from(
    [
        ({"type": "integer", "default": 3, "description": "3 or city"}, 3),
        ({"type": "string", "default": "city"}, "city"),
        ({"type": "string", "enum": ["a", "zor"]}, "zor"),
        ({"type": "boolean"}, True),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"city": 1, "zor_bab": 2}),
    ]
)


@st.composite
def shapes(draw, depth=2):
    """A schema and a value of it."""
    kind = draw(st.sampled_from(["leaf", "object", "list"])) if depth else "leaf"
    if kind == "leaf":
        return draw(LEAVES)
    if kind == "list":
        inner, value = draw(shapes(depth=depth - 1))
        return {"type": "array", "items": inner}, [value] * draw(st.integers(0, 2))
    return draw(objects(depth=depth - 1))


@st.composite
def objects(draw, depth=2):
    inside = draw(st.dictionaries(st.sampled_from(WORDS), shapes(depth=depth), max_size=3))
    given_ = draw(st.sets(st.sampled_from(sorted(inside)))) if inside else set()
    schema = {
        "type": "object",
        "properties": {name: one for name, (one, _) in inside.items()},
        "required": sorted(given_),
    }
    return schema, {name: value for name, (_, value) in inside.items() if name in given_}


@st.composite
def samples(draw):
    tools, calls = [], []
    for name in draw(st.lists(st.sampled_from(["get_a", "b", "x.y", "zor_bab"]), min_size=1, max_size=3, unique=True)):
        schema, value = draw(objects())
        tools.append(Tool(name, f"{name} is not get_a", schema))
        calls += [Call(name, value)] * draw(st.integers(0, 2))
    earlier = Message("assistant", None, tuple(calls[:1]))
    return CallSample(
        "s",
        (earlier, Message("user", draw(st.sampled_from(["3 cities", "a city, 3", "go"])))),
        tuple(tools),
        tuple(calls),
    )


@settings(max_examples=120, deadline=None)
@given(samples(), st.integers(0, 99), st.sampled_from(["random", "snake", "camel", "published"]))
def test_masking_can_be_taken_back_and_keeps_what_is_valid(sample, seed, style):
    spec = MaskSpec(
        ratio=1.0, style=style, scrub="every", words=("zor", "bab", "kip", "lun") if style == "snake" else ()
    )
    found, names = mask_sample(sample, sample_rng(seed), spec)
    assert unmask_calls(found.calls, names) == sample.calls
    tools = {tool.name: tool for tool in found.tools}
    assert len(tools) == len(sample.tools)
    for call, before in zip(found.calls, sample.calls, strict=True):
        own = next(tool for tool in sample.tools if tool.name == before.name)
        assert (
            find_argument_faults(call.arguments, tools[call.name].parameters)
            == ()
            == find_argument_faults(before.arguments, own.parameters)
        )
    new = [*names.tools.values(), *(name for keys in names.keys.values() for name in flat(keys).values())]
    assert len(new) == len(set(new)), "no two names are alike"
    for tool in sample.tools:
        own = {tool.name, *flat(names.keys[tool.name])}
        shown = tools[names.tools[tool.name]]
        told = {shown.name, *re.findall(r"[\w.]+", shown.description), *properties(shown.parameters)}
        assert not told & (own | set(names.tools)), "no old name is left as a token"


def flat(keys):
    inner = {old: new for part in (*keys.children.values(), keys.elements) if part for old, new in flat(part).items()}
    return {**inner, **keys.renamed}


def properties(schema):
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from schema.get("required", [])
        for part in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
            yield from properties(part)


@pytest.mark.parametrize(
    ("said", "arguments", "name", "default"),
    [
        ("Weather in Oslo on 1 May", {"when": "1 May", "days": 1}, "days", 1),
        ("pay 2 euros", {"amount": 2.0, "times": 2}, "times", 2),
        ("convert 2 hundred dollars", {"amount": 200, "digits": 2}, "digits", 2),
        ("find me a room", {"city": "Oslo", "kind": "a"}, "kind", "a"),
    ],
)
def test_a_default_that_may_stand_for_something_else_stays(said, arguments, name, default):
    kinds = {int: "integer", float: "number", str: "string"}
    properties = {key: {"type": kinds[type(one)]} for key, one in arguments.items()}
    properties[name]["default"] = default
    tool = Tool("act", "does it", {"type": "object", "properties": properties})
    sample = CallSample("s", (Message("user", said),), (tool,), (Call("act", arguments),))
    for seed in range(20):
        made, _ = mask_sample(sample, sample_rng(seed), MaskSpec(1.0))
        assert made.request == said and list(made.calls[0].arguments.values()) == list(arguments.values())


def test_a_title_that_is_the_tools_name_goes():
    schema = {"type": "object", "title": "get_weather", "properties": {"city": {"type": "string"}}}
    sample = CallSample("s", (Message("user", "x"),), (Tool("get_weather", "d", schema),), ())
    made, _ = mask_sample(sample, sample_rng(1), MaskSpec(1.0))
    assert "get_weather" not in str(made.tools[0])


def test_dependencies_that_are_none_are_left_as_they_are():
    for more in (
        {"dependentRequired": 3},
        {"dependentRequired": {"city": 3}},
        {"dependentSchemas": 4},
        {"required": [["city"]]},
        {"dependentRequired": {"town": [["city"]]}},
        {"required": [{"city": 1}], "items": {}},
    ):
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, **more}
        sample = CallSample("1", (Message("user", "Go"),), (Tool("visit", "Visits", schema),), ())
        made, _ = mask_sample(sample, np.random.default_rng(0), MaskSpec(1.0))
        assert more.items() <= made.tools[0].parameters.items()
