"""Requests that nothing answers: near-duplicates are found under any name, and what is left out is counted."""

import hashlib
import json
from dataclasses import replace

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate.irrelevance import (
    LIMIT,
    accepts,
    content_words,
    drop_gold,
    find_substitute,
    measure_similarity,
    mix_irrelevant,
    row_to_sample,
    sample_to_row,
    write_irrelevance,
)
from evolvent.curate.masking import MaskSpec, mask_sample
from evolvent.curate.shards import list_shards, read_shard
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import sample_rng


def tool(name, description, *, required=None, **parameters):
    known = {key: {"type": kind, "description": told} for key, (kind, told) in parameters.items()}
    needed = list(known) if required is None else required
    return Tool(name, description, {"type": "object", "properties": known, "required": needed})


WEATHER = tool(
    "get_weather",
    "Get the current weather for a city.",
    required=["city"],
    city=("string", "The city to look up."),
    days=("integer", "How many days ahead."),
)
AGAIN = tool(
    "fetch_conditions",
    "Retrieves current weather of the given city.",
    required=["place"],
    place=("string", "Name of the city to look up."),
    ahead=("integer", "How many days ahead."),
)
POLLEN = tool("get_pollen", "Warns of pollen and of storms in a region.", region=("string", "Which region."))
ROUTE = tool("find_route", "Plan a route between two stations.", start=("string", "From."), end=("string", "To."))
SAMPLE = CallSample(
    "s",
    (Message("user", "weather in Oslo, 3 days?"),),
    (POLLEN, WEATHER, ROUTE),
    (Call("get_weather", {"city": "Oslo", "days": 3}),),
)


def test_gold_is_removed_and_nothing_is_called():
    assert drop_gold(SAMPLE) == CallSample("s/irrelevant", SAMPLE.messages, (POLLEN, ROUTE), ())
    both = replace(SAMPLE, calls=(*SAMPLE.calls, Call("find_route", {"start": "a", "end": "b"})))
    assert [one.name for one in drop_gold(both).tools] == ["get_pollen"]


def test_a_renamed_near_duplicate_is_found_and_a_tool_of_the_same_domain_is_none():
    assert measure_similarity(WEATHER, AGAIN) >= LIMIT > 0.4 > measure_similarity(WEATHER, POLLEN)
    assert drop_gold(replace(SAMPLE, tools=(WEATHER, AGAIN))) is None
    assert find_substitute(SAMPLE.calls[0], WEATHER, [POLLEN, AGAIN]) == AGAIN
    assert drop_gold(replace(SAMPLE, tools=(WEATHER, POLLEN))).tools == (POLLEN,)


def test_a_masked_copy_is_as_near_as_can_be():
    for seed in range(5):
        hidden, _ = mask_sample(replace(SAMPLE, calls=(), tools=(WEATHER,)), sample_rng(seed), MaskSpec(ratio=1.0))
        assert measure_similarity(WEATHER, hidden.tools[0]) == pytest.approx(1.0)
        assert drop_gold(replace(SAMPLE, tools=(WEATHER, hidden.tools[0]))) is None


def test_one_of_two_calls_that_can_still_be_made_is_enough():
    calls = (Call("find_route", {"start": "a", "end": "b"}), *SAMPLE.calls)
    assert drop_gold(replace(SAMPLE, tools=(WEATHER, AGAIN, ROUTE, POLLEN), calls=calls)) is None


def test_nothing_is_left_or_nothing_was_called():
    assert drop_gold(replace(SAMPLE, tools=(WEATHER,))) is None
    assert drop_gold(replace(SAMPLE, calls=())) is None
    with pytest.raises(SampleInvalid, match="calls the unknown tool"):
        drop_gold(replace(SAMPLE, calls=(Call("other"),)))


def test_the_measure_is_handed_in():
    pair = replace(SAMPLE, tools=(WEATHER, POLLEN))
    assert drop_gold(pair, near=lambda a, b: 1.0, limit=0.5) is not None, "nothing else takes two arguments"
    other = tool("x", "y", what=("string", "?"), number=("number", "?"))
    tools = (*SAMPLE.tools, other)
    assert drop_gold(replace(SAMPLE, tools=tools)) is not None
    assert drop_gold(replace(SAMPLE, tools=tools), near=lambda a, b: float(b is other)) is None


def test_what_a_tool_accepts_by_hand():
    call = Call("f", {"a": "x", "b": 3})
    assert accepts(tool("g", "", p=("string", ""), q=("integer", "")), call)
    assert accepts(tool("g", "", p=("integer", ""), q=("string", "")), call), "in any order, under any name"
    assert accepts(tool("g", "", p=("string", ""), q=("string", "")), call), "3 can be written"
    assert accepts(tool("g", "", p=("string", ""), q=("integer", "")), Call("f", {"a": "x", "b": "3"})), "and read"
    assert not accepts(tool("g", "", p=("integer", ""), q=("boolean", "")), call)
    assert not accepts(tool("g", "", p=("string", "")), call), "one argument has no place"
    third = {"p": ("string", ""), "q": ("integer", ""), "r": ("string", "")}
    assert not accepts(tool("g", "", **third), call), "a required parameter gets nothing"
    assert accepts(tool("g", "", required=["r", "q"], **third), call)
    other = {"p": ("string", ""), "q": ("string", ""), "r": ("boolean", "")}
    assert accepts(tool("g", "", required=["p"], **other), call)
    assert not accepts(tool("g", "", required=["r"], **other), call), "all have a place, but the required one gets none"
    assert not accepts(tool("g", "", required=["r", "p"], **third), Call("f", {"b": True, "a": [1]}))


def test_words_are_compared_without_endings_and_verbs_by_kind():
    assert content_words("Retrieves the currentWeather") == content_words("get current weather")
    assert content_words("the of a") == frozenset()
    assert measure_similarity(Tool("add"), Tool("add")) == 1.0 and measure_similarity(Tool("add"), Tool("find")) == 0.0


def test_similarity_by_hand():
    """Words {plan, route} and {plan, trip, route}: 4/5. One of two parameters is alike, its text half: .75 / 2."""
    one = tool("a", "plan route", start=("string", "first station"))
    two = tool("b", "plan trip route", go=("string", "last station"), n=("array", "all"))
    assert measure_similarity(one, two) == measure_similarity(two, one) == pytest.approx(0.6 * 0.8 + 0.4 * 0.375)


def test_a_pool_fills_up_but_not_with_what_answers():
    pool = (AGAIN, WEATHER, ROUTE, tool("sum", "Add two numbers.", a=("number", ""), b=("number", "")))
    found = drop_gold(SAMPLE, pool=pool)
    assert [one.name for one in found.tools] == ["get_pollen", "find_route", "sum"]
    orders = {tuple(one.name for one in drop_gold(SAMPLE, pool=pool, rng=sample_rng(seed)).tools) for seed in range(30)}
    assert {frozenset(order) for order in orders} == {frozenset(("get_pollen", "find_route", "sum"))} and len(
        orders
    ) == 3


def many(count):
    return [replace(SAMPLE, id=str(number)) for number in range(count)]


def test_the_share_is_met_and_does_not_depend_on_order():
    found = mix_irrelevant(many(80), 1 / 9, seed=0)
    assert (found.num_copies, found.num_requested, len(found.samples), found.left_out) == (10, 10, 90, {})
    assert found.share == pytest.approx(1 / 9) and len(found.copies) == 10
    assert all(not copy.calls and WEATHER not in copy.tools for copy in found.copies)
    back = mix_irrelevant(many(80)[::-1], 1 / 9, seed=0)
    assert {one.id: one for one in back.samples} == {one.id: one for one in found.samples}
    assert {one.id for one in mix_irrelevant(many(80), 1 / 9, seed=1).copies} != {one.id for one in found.copies}
    assert mix_irrelevant(many(3), 0.0, seed=0).samples == tuple(many(3))


def test_what_is_left_out_is_counted():
    bad = [
        replace(SAMPLE, id="a", tools=(WEATHER, AGAIN)),
        replace(SAMPLE, id="b", tools=(WEATHER,)),
        replace(SAMPLE, id="c", calls=()),
        replace(SAMPLE, id="d", calls=(Call("none"),)),
        SAMPLE,
    ]
    found = mix_irrelevant(bad, 0.5, seed=0)
    assert (found.num_copies, found.num_requested) == (1, 5)
    assert found.left_out == {"answerable": 1, "no_tools": 1, "no_calls": 1, "invalid": 1}
    with pytest.raises(ConfigError) as caught:
        mix_irrelevant([SAMPLE, SAMPLE], 1.0, seed=0)
    assert [problem.where for problem in caught.value.problems] == ["share", "samples"]


def test_the_data_set_loads_and_says_what_it_is(tmp_path):
    odd = replace(SAMPLE, id="ö", tools=(POLLEN, Tool("f", "", {"x": {"type": "int"}})), calls=(Call("f", {"x": 1}),))
    report = mix_irrelevant([*many(4), odd], 0.4, seed=0)
    digests = write_irrelevance(tmp_path / "set", report.samples, licence="CC-BY-4.0", source="tests", report=report)
    loaded = datasets.load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    assert [row_to_sample(row) for row in loaded] == list(report.samples)
    for path, digest in digests.items():
        assert hashlib.sha256((tmp_path / "set" / path).read_bytes()).hexdigest() == digest
    text = (tmp_path / "set" / "README.md").read_text(encoding="utf-8")
    assert 'license: "CC-BY-4.0"' in text and digests["data/train.jsonl"] in text
    assert f"| samples | {len(report.samples)} |" in text and f"| copies made | {report.num_copies} |" in text
    again = write_irrelevance(tmp_path / "two", report.samples, licence="CC-BY-4.0", source="tests", report=report)
    assert again == digests
    with pytest.raises(ConfigError) as caught:
        write_irrelevance(tmp_path / "no", [], licence="", source="a\nb")
    assert [problem.where for problem in caught.value.problems] == ["licence", "source", "samples"]
    assert not (tmp_path / "no").exists()


def test_rows_of_others_are_read_and_bad_ones_refused():
    row = {
        "id": 7,
        "query": "q",
        "tools": '[{"name": "f", "description": "d", "parameters": {"x": {"type": "int"}}}]',
        "answers": '[{"name": "f", "arguments": {"x": 1}}]',
    }
    flat = Tool("f", "d", {"x": {"type": "int"}})
    assert row_to_sample(row) == CallSample("7", (Message("user", "q"),), (flat,), (Call("f", {"x": 1}),))
    for bad in (
        {},
        {**row, "tools": "no"},
        {**row, "answers": '["f"]'},
        {**row, "tools": "[" * 100_000},
        {**row, "messages": "1"},
    ):
        with pytest.raises(SampleInvalid):
            row_to_sample(bad)
    with pytest.raises(SampleInvalid, match="holds a value that is not JSON"):
        sample_to_row(replace(SAMPLE, calls=(Call("f", {"x": float("nan")}),)))


def test_rows_of_lists_without_ids_are_samples_too(tmp_path):
    """The form of docs/data.md, also as tables hold it, which fill what other tools and answers have with null."""
    tools = [{"name": "f", "description": "d", "parameters": {"x": {"type": "int"}}}]
    row = {"query": "q", "tools": tools, "answers": [{"name": "f", "arguments": {"x": 1}}]}
    other = {"query": "r", "tools": [{**tools[0], "parameters": {"y": {"type": "str"}}}], "answers": []}
    sample = row_to_sample(row)
    assert (sample.tools[0].parameters, sample.calls) == ({"x": {"type": "int"}}, (Call("f", {"x": 1}),))
    texts = {name: json.dumps(value) if name != "query" else value for name, value in row.items()}
    assert row_to_sample(texts).calls == sample.calls
    assert row_to_sample(dict(row)).id == sample.id != row_to_sample(other).id
    table = pa.Table.from_pylist([row, other])
    assert table.to_pylist()[0]["tools"][0]["parameters"] == {"x": {"type": "int"}, "y": None}
    pq.write_table(table, tmp_path / "rows.parquet")
    read = [row for shard in list_shards(tmp_path / "rows.parquet") for _, row in read_shard(shard)]
    assert [row_to_sample(found) for found in read] == [row_to_sample(one) for one in (row, other)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": None}, "the function-calling sample is missing tools"),
        ({"query": None}, "is missing query"),
        ({"answers": "f(x=1)"}, r"has no list in answers: got f\(x=1\), expected query, tools, answers: lists"),
        ({"answers": [{"arguments": {}}]}, "has an answer without a name"),
        ({"answers": [{"name": "f", "arguments": [1]}]}, "has arguments that are not an object"),
        ({"tools": [{"description": "d"}]}, "the tool has no name"),
    ],
)
def test_a_bad_sample_is_refused_with_its_reason(change, reason):
    row = {"query": "q", "tools": [{"name": "f"}], "answers": [{"name": "f", "arguments": {}}]}
    with pytest.raises(SampleInvalid, match=reason):
        row_to_sample(row | change)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
def test_rows_keep_samples(text, arguments):
    one = replace(SAMPLE, messages=(Message("user", text),), calls=(Call("get_weather", arguments),))
    row = json.loads(json.dumps(sample_to_row(one)))
    assert row_to_sample(row) == one
    assert [tuple(found.parameters) for found in row_to_sample(row).tools] == [
        tuple(found.parameters) for found in one.tools
    ]


def test_an_argument_that_repeats_its_default_needs_no_parameter():
    def weather(name, **more):
        city = {"type": "string", "description": "the city"}
        schema = {"type": "object", "properties": {"city": city, **more}, "required": ["city"]}
        return Tool(name, "get the weather of a city", schema)

    gold = weather("get_weather", units={"type": "string", "default": "c"})
    other = weather("fetch_weather")
    sample = CallSample(
        "s",
        (Message("user", "weather in Oslo"),),
        (gold, other),
        (Call("get_weather", {"city": "Oslo", "units": "c"}),),
    )
    assert drop_gold(sample) is None, "the other tool does the same"


def test_what_was_copied_before_is_not_copied_again():
    def tool(name, about):
        return Tool(name, about, {"type": "object", "properties": {"x": {"type": "string", "description": about}}})

    tools = (tool("rain", "how much rain falls"), tool("pay", "send money to somebody"))
    sample = CallSample("a", (Message("user", "rain in Oslo"),), tools, (Call("rain", {"x": "Oslo"}),))
    once = mix_irrelevant([sample], 0.5, seed=0)
    assert [one.id for one in once.samples] == ["a", "a/irrelevant"]
    twice = mix_irrelevant(once.samples, 0.9, seed=0)
    assert [one.id for one in twice.samples] == ["a", "a/irrelevant"] and twice.left_out["copied before"] == 1
