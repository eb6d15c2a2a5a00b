"""Typed tools and the text of calls: schemas, checks, every form of a call, hostile text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import InvalidAction
from evolvent.messages import Call
from evolvent.worlds.base import Parsed
from evolvent.worlds.tools.calls import ToolGrammar, compact
from evolvent.worlds.tools.engine import UNKNOWN_TOOL, Toolbox, build_tool
from evolvent.worlds.tools.kinds import Draw, digest_task

ADD = build_tool(
    lambda state, given: ((*state, given["number"]), len(state) + 1), "add(number: integer)", "Keep a number."
)
NOTE = build_tool(lambda state, given: (state, dict(given)), "note(position: string, content: string)", "Say it back.")
ANY = build_tool(lambda state, given: (state, given["answer"]), "finish(answer: any)", "End.")
PICK = build_tool(
    lambda state, given: (state, dict(given)),
    "pick(start?: string, end?: string, cells?: array, exact?: boolean, operator: string)",
    "Say it back.",
)


def refuse(state, given):
    raise InvalidAction(f"there is no {given['name']}", value=given)


BOX = Toolbox((ADD, NOTE, ANY, PICK, build_tool(refuse, "find(name: string)", "Never finds.")), ())
PLAIN, JSON = ToolGrammar(BOX.specs), ToolGrammar(BOX.specs, "json")


def test_schemas_say_types_and_what_is_required():
    assert BOX.tools[0].as_openai()["function"] == {
        "name": "add",
        "description": "Keep a number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        },
    }
    assert BOX.tools[2].parameters["properties"]["answer"] == {"type": ["string", "number", "boolean", "array"]}
    assert BOX.tools[3].parameters["required"] == ["operator"]


@pytest.mark.parametrize("value", [7, "7", 7.0, "+7"])
def test_numbers_as_text_are_numbers(value):
    assert BOX.call((), Call("add", {"number": value})) == ((7,), BOX.call((), Call("add", {"number": 7}))[1])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"number": 7, "more": 1},
        {"number": "seven"},
        {"number": 7.5},
        {"number": True},
        {"number": None},
        {"number": [7]},
        {"number": float("nan")},
        {"number": float("inf")},
        {"number": 10**400},
        {"number": {}},
    ],
)
def test_wrong_arguments_are_answered_and_change_nothing(arguments):
    state, result = BOX.call((1, 2), Call("add", arguments))
    assert (state, result.failed, result.value) == ((1, 2), True, "expected add number integer")


def test_unknown_tools_and_refusals_are_answered():
    assert BOX.call((3,), Call("fly", {})) == ((3,), BOX.call((), Call("fly"))[1])
    assert BOX.call((), Call("fly"))[1].value == UNKNOWN_TOOL
    assert BOX.call((), Call("find", {"name": "it"}))[1].value == "there is no it"


@pytest.mark.parametrize(
    ("value", "read"), [("false", False), ("False", False), ("true", True), (True, True), (False, False)]
)
def test_a_truth_value_as_text_is_what_it_says(value, read):
    assert BOX.call((), Call("pick", {"exact": value, "operator": "SUM"}))[1].value["exact"] is read


def test_a_truth_value_is_not_any_text():
    for value in ("no", 0, 1, "", []):
        assert BOX.call((), Call("pick", {"exact": value, "operator": "SUM"}))[1].failed


@pytest.mark.parametrize(
    "text",
    [
        'add with Action Input: {"number": 7}',
        'Action: add with Action Input: {"number": 7}',
        "add 7",
        "add  7 ",
        "Action: add with Action Input: {'number': 7}",
        'Thought: I need it.\n\nAction: add with Action Input: {"number":7}',
        "Thought: one line Action: add with Action Input: {'number': 7}",
        'add {"number": 7}',
        "Thought: so\nAction: add 7",
        'add with  Action  Input :{ "number" : 7 }',
        'Action: add with Action Input: {\n "number": 7\n}',
        "Action: fly 1\nAction: add 7",
    ],
)
def test_every_form_is_the_same_call(text):
    for grammar in (PLAIN, JSON):
        assert grammar.parse_call(text) == Call("add", {"number": 7})


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("note A1 water the plants", {"position": "A1", "content": "water the plants"}),
        ('note A1 "water, [the] plants"', {"position": "A1", "content": "water, [the] plants"}),
        ("note 007 3", {"position": "007", "content": "3"}),
        ("note A1 2024 - 05 - 03", {"position": "A1", "content": "2024-05-03"}),
        ("pick B2 B5 SUM", {"start": "B2", "end": "B5", "operator": "SUM"}),
        ("pick [B2, C3] SUM", {"cells": ["B2", "C3"], "operator": "SUM"}),
        ("pick [ B2 , C3 ] true SUM", {"cells": ["B2", "C3"], "exact": True, "operator": "SUM"}),
        ("pick null B5 SUM", {"end": "B5", "operator": "SUM"}),
        ("finish - 3", {"answer": -3}),
        ("finish 4 . 5", {"answer": 4.5}),
        ("finish very poor", {"answer": "very poor"}),
        ("finish 2024-05-03", {"answer": "2024-05-03"}),
        ('finish "7"', {"answer": "7"}),
        ("finish [[1, -2], [a, 'b']]", {"answer": [[1, -2], ["a", "'b'"]]}),
        ("finish true", {"answer": True}),
    ],
)
def test_the_short_form(text, arguments):
    assert dict(PLAIN.parse_call(text).arguments) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "Action:",
        "add",
        "add 7 8",
        "fly 7",
        "add with Action Input:",
        "add with Action Input: 7",
        "add with Action Input: __import__('os').system('true')",
        "add with Action Input: {'number': __import__('os')}",
        "add with Action Input: [7]",
        "add with Action Input: {1: 7}",
        'add {"number": NaN}',
        "add [",
        "add ]",
        "add [[[[[[7",
        "finish " + "[" * 5000,
        "add with Action Input: " + "{'a':" * 3000,
        "x" * 10_000,
        "add 7\x00",
        "find",
        "add with Action Input: {'number': '\\d'}",
        "add " + "9" * 5000,
    ],
)
def test_what_is_no_call_is_refused_and_never_run(text):
    """Reading raises InvalidAction, or the arguments do not fit; the state stays."""
    try:
        call = PLAIN.parse_call(text)
    except InvalidAction as problem:
        assert problem.what
    else:
        assert BOX.call((1,), call)[1].failed
        assert BOX.call((1,), call)[0] == (1,)


def test_arguments_that_a_tool_does_not_have_are_not_lost():
    call = Call("add", {"number": 7, "more": 1})
    assert PLAIN.parse_call(PLAIN.format_call(call)) == call
    assert BOX.call((), call)[1].failed


def test_thoughts_are_kept_apart():
    for grammar in (PLAIN, JSON):
        parsed = Parsed(grammar.format_call(Call("add", {"number": 7})), "I need it.\nReally.")
        assert grammar.parse(grammar.render(parsed)) == parsed
        alone = Parsed(grammar.format_call(Call("add", {"number": 7})))
        assert grammar.parse(grammar.render(alone)) == alone
    assert (
        JSON.render(Parsed(JSON.format_call(Call("add", {"number": 7}))))
        == 'Action: add with Action Input: {"number": 7}'
    )


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["null", "true", "7", "-3", "2024-05-03", "a b", "[", "'x'", '"', "paint  it"]
)
VALUES = TEXTS | st.integers(-(10**6), 10**6) | st.booleans() | st.sampled_from([0.5, -2.25])


@given(
    st.sampled_from(
        [
            (
                "finish",
                {"answer": VALUES | st.lists(VALUES, max_size=3) | st.lists(st.lists(VALUES, max_size=2), max_size=2)},
            ),
            ("note", {"position": TEXTS, "content": TEXTS}),
            ("pick", {"start": TEXTS, "end": TEXTS, "operator": TEXTS}),
            ("pick", {"cells": st.lists(TEXTS, max_size=3), "exact": st.booleans(), "operator": TEXTS}),
            ("add", {"number": st.integers(-(10**9), 10**9)}),
        ]
    ),
    st.data(),
)
def test_what_is_written_is_read_back(made, data):
    name, parts = made
    call = Call(name, {key: data.draw(values) for key, values in parts.items()})
    for grammar in (PLAIN, JSON):
        read = grammar.parse_call(grammar.format_call(call))
        assert (read.name, dict(read.arguments)) == (name, dict(call.arguments))


@given(st.text(max_size=60) | st.builds("{} {}".format, st.sampled_from(sorted(BOX.specs)), st.text(max_size=30)))
def test_any_text_is_read_or_refused(text):
    try:
        call = PLAIN.parse_call(text)
    except InvalidAction:
        return
    BOX.call((), call)


def test_results_in_few_words():
    assert compact({"cast": [{"id": 7, "name": "anna"}, {"id": 9, "name": "hugo"}]}) == "cast id name : 7 anna ; 9 hugo"
    assert compact([{"id": 7, "title": "maple"}]) == "id 7 title maple"
    assert compact({"daily": {"time": ["2024-05-03"], "rain": [4]}}) == "daily time 2024-05-03 rain 4"
    assert compact(["a", "b"]) == "a , b"
    assert (compact([]), compact(""), compact(True), compact(7.5)) == ("nothing", "nothing", "true", "7.5")


def test_draws_come_from_names_alone():
    first, again, other = Draw("a", 1), Draw("a", 1), Draw("a", 2)
    drawn = [first.below(1000) for _ in range(600)]
    assert drawn == [again.below(1000) for _ in range(600)]
    assert drawn != [other.below(1000) for _ in range(600)]
    assert drawn[:4] == [817, 476, 951, 45]  # the same on every machine
    assert sorted(Draw("b").sample(5, range(5))) == [0, 1, 2, 3, 4]


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_canonical_form_forgets_names_and_nothing_else(names):
    one, two, three, four = names
    graph = {one: (1, [two, three]), two: (2, [one]), three: (3, [three]), four: (4, [])}
    key = digest_task(("k",), [one], graph)
    assert key == digest_task(("k",), ["a"], {"a": (1, ["b", "c"]), "b": (2, ["a"]), "c": (3, ["c"]), "x": (9, [])})
    assert key != digest_task(("k",), [one], {**graph, three: (5, [three])})
    assert key != digest_task(("k",), [one], {**graph, three: (3, [two])})
    assert key != digest_task(("l",), [one], graph)
    assert key != digest_task(("k",), [one], graph, extra=1)
