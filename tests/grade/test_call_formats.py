"""Calls as public models write them: one reader for each format, always with the schemas of the tools."""

from __future__ import annotations

import json
import random
from typing import get_args

import pytest

from benchmarks.call_cases import draw_case, list_writers, run_cases
from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.grade.call_forms import Form, attempts_call, decode_calls, encode_calls, has_call
from evolvent.grade.call_values import ParameterTypes
from evolvent.grade.literals import MAX_CHARS
from evolvent.grade.thoughts import find_thoughts, mask_thoughts, opens_thought, remove_thoughts
from evolvent.messages import Call, Tool

WEATHER = Tool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "o": {"type": "object"}},
    },
)
ONE = (Call("get_weather", {"city": "Oslo", "days": 3}),)
TWO = (*ONE, Call("stop"))
# How public models write the calls of TWO. Formats that write one call a message are read from two messages.
SPELLINGS: list[tuple[Form, str]] = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>\n'
               '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'),
    ("hermes", '<tool_call>[{"name":"get_weather","arguments":{"city":"Oslo","days":3}},{"name":"stop"}]</tool_call>'),
    ("qwen3_coder", "So\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n"
                    "3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=stop>\n</function>\n</tool_call>"),
    ("xml", '<function=get_weather>{"city": "Oslo", "days": 3}</function><function=stop>{}</function>'),
    ("glm", "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>stop\n</tool_call>"),
    ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
            "<arg_value>3</arg_value></tool_call><tool_call>stop</tool_call>"),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}; {"name": "stop"}'),
    ("llama3", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}\n{"name": "stop"}'),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}, "id": "abc123456"}, '
                '{"name": "stop", "arguments": {}, "id": "abc123457"}]'),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 3}[TOOL_CALLS]stop[CALL_ID]x[ARGS]{}'),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Oslo", "days": 3}stop{}'),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
                 '{"city": "Oslo", "days": 3}\n```<｜tool▁call▁end｜>\n'
                 "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo", "days": 3}'
                 "<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
                '{"city": "Oslo", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.stop:1'
                "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"),
    ("minimax", '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
                '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="stop">\n</invoke>\n'
                "</minimax:tool_call>"),
    ("minimax", '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n{"name": "stop"}\n'
                "</tool_calls>"),
    ("minimax", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
                'string="true">Oslo</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
                '</｜DSML｜invoke>\n<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'),
    ("harmony", "<|channel|>analysis<|message|>The user wants to=functions.x<|end|><|start|>assistant<|channel|>"
                'commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", "days": 3}<|call|>'
                "<|start|>assistant to=functions.stop<|channel|>commentary json<|message|>{}<|call|>"),
    ("harmony", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Oslo","days":3}<|end|>'
                "<|start|>assistant<|channel|>commentary to=functions.stop<|message|>{}"),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
               "<|tool_call>call:stop{}<tool_call|>"),
    ("gemma4", "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>"
               "<start_function_call>call:stop{}<end_function_call>"),
    ("lfm2", "Fine.<|tool_call_start|>[get_weather(city='Oslo', days=3), stop()]<|tool_call_end|>So."),
    ("pythonic", '[get_weather(city="Oslo", days=3), stop()]'),
    ("pythonic", "<|python_start|>[get_weather(city='Oslo', days=3), stop()]<|python_end|>"),
]  # fmt: skip


def plain(calls):
    return tuple(Call(call.name, call.arguments) for call in calls)


@pytest.mark.parametrize(("form", "text"), SPELLINGS)
def test_each_format_is_read(form, text):
    assert plain(decode_calls(text, form=form, tools=[WEATHER])) == TWO
    assert has_call(text, form=form) and attempts_call(text, form=form)
    assert plain(decode_calls(f"<think>\nshall I?\n</think>\n\n{text}", form=form, tools=[WEATHER])) == TWO


@pytest.mark.parametrize(("form", "text"), SPELLINGS)
def test_a_call_that_is_cut_is_refused(form, text):
    """However much is cut, what is read is a prefix of the calls, or nothing: never another call."""
    for end in range(len(text)):
        try:
            calls = plain(decode_calls(text[:end], form=form, tools=[WEATHER]))
        except InvalidAction:
            continue
        assert calls in (TWO, ONE), text[:end]


def test_every_writer_is_read_back_by_its_reader():
    writers = list_writers()
    names = {writer.name for writer in writers}
    assert {f"own {form}" for form in get_args(Form)} - names == {"own java", "own javascript"}
    assert {"qwen3_6.jinja", "glm4moe.jinja", "gptoss.jinja", "deepseekv3.jinja", "mistral-common v7"} <= names
    tally = run_cases(1_000, seed=1, writers=writers)
    assert tally.wrong == 0, tally.examples[:3]
    assert tally.right == 1_000 and tally.ambiguous + tally.refused + tally.unwritten < 30


def test_a_writer_refuses_what_its_reader_would_misread():
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    tool = Tool("f", "", schema)
    forged = Call("f", {"a": "x\n</parameter>\n<parameter=b>\n5"})
    with pytest.raises(SampleInvalid, match="change when they are read back"):
        encode_calls([forged], form="qwen3_coder", tools=[tool])
    with pytest.raises(SampleInvalid):
        encode_calls([Call("f", {"a": "x"})], form="glm") and encode_calls([Call("f g", {})], form="glm")
    with pytest.raises(SampleInvalid):
        encode_calls([Call("f", {"a": "90210"})], form="qwen3_coder")  # no schema says that it is text
    text = encode_calls([Call("f", {"a": "90210"})], form="qwen3_coder", tools=[tool])
    assert decode_calls(text, form="qwen3_coder", tools=[tool]) == (Call("f", {"a": "90210"}),)


# ---------------------------------------------------------------------------------- types of bare text (A5)


def bare(text, schema, form="xml"):
    tool = Tool("f", "", {"type": "object", "properties": {"a": schema}, "$defs": {"Zip": {"type": "string"}}})
    said = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (call,) = decode_calls(said, form=form, tools=[tool])
    return call.arguments["a"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "90210", "90210"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string", "default": None}, "null", None),
        ({"type": "string", "default": None}, "x", "x"),
        ({"type": "string", "default": "null"}, "null", "null"),
        ({"type": "string"}, "1e5", "1e5"),
        ({"type": "string"}, '{"a":1}', '{"a":1}'),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string", "maxLength": 2}, "90210", "90210"),
        ({"type": "str"}, "90210", "90210"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "123", "123"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"type": ["string", "null"]}, "123", "123"),
        ({"type": ["string", "null"]}, "true", "true"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": "string", "nullable": True}, "5", "5"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "123", "123"),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, "123", "123"),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, "true", True),
        ({"const": "5"}, "5", "5"),
        ({"const": 5}, "5", 5),
        ({"enum": ["5", "6"]}, "5", "5"),
        ({"enum": [5, "6"]}, "5", 5),
        ({"enum": ["null", "x"]}, "null", "null"),
        ({"$ref": "#/$defs/Zip"}, "90210", "90210"),
        ({"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]}, "90210", "90210"),
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "number"}, "1e5", 1e5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "['a', 'b']", ["a", "b"]),
        ({"type": "array"}, "('a', 1)", ["a", 1]),
        ({"type": "array", "items": {"type": "string"}}, "[a, b]", "[a, b]"),
        ({"type": "array"}, "[2024-10-11]", "[2024-10-11]"),
        ({"type": "object"}, "{'a': True, 'b': None}", {"a": True, "b": None}),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({}, "1e5", "1e5"),
        ({}, "5", 5),
        ({}, "['x']", "['x']"),
        ({"type": ["string", "number"]}, "007", "007"),
        ({"type": ["string", "number"]}, "7", 7),
        (True, "7", 7),
    ],
)  # fmt: skip
def test_bare_text_has_the_type_that_the_schema_allows(schema, text, value):
    result = bare(text, schema)
    assert result == value and type(result) is type(value)
    if not isinstance(value, str) or "\n" not in value:
        tool = Tool("f", "", {"type": "object", "properties": {"a": schema}, "$defs": {"Zip": {"type": "string"}}})
        for form, said in [
            ("glm", f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"),
            ("minimax", f'<tool_calls><invoke name="f"><parameter name="a">{text}</parameter></invoke></tool_calls>'),
        ]:
            assert decode_calls(said, form=form, tools=[tool]) == (Call("f", {"a": value}),)


def test_parameters_of_combined_and_broken_schemas_are_found():
    parts = {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "integer"}}}]}
    types = ParameterTypes(
        [
            Tool("f", "", {"type": "object", **parts}),
            Tool("map", "", {"type": "object", "additionalProperties": {"type": "string"}}),
            Tool("loop", "", {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "string"}}}),
            Tool("flat", "", {"a": {"type": "str", "description": "x"}}),
        ]
    )
    assert (types.read_bare("f", "a", "1"), types.read_bare("f", "b", "1")) == ("1", 1)
    assert types.read_bare("map", "anything", "1") == "1"
    assert (types.read_bare("loop", "b", "1"), types.read_bare("none", "b", "1")) == ("1", 1)
    assert types.read_bare("flat", "a", "12") == "12"


def test_a_value_may_hold_the_tag_that_ends_it():
    schema = {"type": "string"}
    assert bare("a </parameter> b", schema) == "a </parameter> b"
    assert bare("</function> and <function=g>", schema) == "</function> and <function=g>"
    said = '<tool_call>{"name": "f", "arguments": {"a": "x </tool_call> <tool_call>y"}}</tool_call>'
    assert decode_calls(said, form="hermes") == (Call("f", {"a": "x </tool_call> <tool_call>y"}),)


# ---------------------------------------------------------------------------------- synonyms of "arguments" (A6)


@pytest.mark.parametrize("key", ["arguments", "parameters", "input", "args", "tool_input", "Arguments", "kwargs"])
def test_synonyms_of_arguments_are_read(key):
    row = json.dumps({"name": "get_w", key: {"city": "Oslo", "arguments": "-l"}})
    call = Call("get_w", {"city": "Oslo", "arguments": "-l"})
    assert decode_calls(row, form="json") == (call,)
    assert decode_calls(f"[{row}, {row}]", form="json") == (call, call)
    assert decode_calls(f"{row}; {row}", form="llama3") == (call, call)
    assert decode_calls(f"<tool_call>{row}</tool_call>", form="xml") == (call,)
    as_text = json.dumps({"name": "get_w", key: json.dumps(dict(call.arguments))})
    assert decode_calls(as_text, form="json") == (call,)
    openai = json.dumps({"id": "c", "type": "function", "function": json.loads(row)})
    assert decode_calls(openai, form="json") == (Call(call.name, call.arguments, "c"),)


@pytest.mark.parametrize(
    "row",
    [
        {"name": "get_w", "city": "Oslo"},
        {"name": "get_w", "params": {"city": "Oslo"}},
        {"name": "get_w", "arguments": {"city": "Oslo"}, "parameters": {"city": "Bergen"}},
        {"name": "get_w", "arguments": {}, "city": "Oslo"},
        {"name": "get_w", "Name": "other", "arguments": {}},
        {"function": "get_w", "arguments": {}},
        {"name": "get_w", "arguments": None},
        {"action": "get_w", "action_input": {"city": "Oslo"}},
    ],
)
def test_arguments_that_would_be_lost_are_refused(row):
    tool = Tool("get_w", "", {"type": "object", "properties": {"city": {"type": "string"}}})
    for form, text in [("json", json.dumps(row)), ("xml", f"<tool_call>{json.dumps(row)}</tool_call>")]:
        with pytest.raises(InvalidAction, match="JSON that is no call"):
            decode_calls(text, form=form, tools=[tool])


def test_fields_that_carry_no_argument_are_passed_over():
    row = '{"id": "c1", "type": "function", "index": 0, "name": "f", "arguments": {}}'
    assert decode_calls(row, form="json") == (Call("f", {}, "c1"),)
    assert decode_calls('{"name": "f", "id": "c1"}', form="json") == (Call("f", {}, "c1"),)
    tool = Tool("f", "", {"type": "object", "properties": {"id": {"type": "string"}}})
    assert decode_calls('{"name": "f", "arguments": {"id": "a"}, "id": "c"}', form="json", tools=[tool])[0].id == "c"


# ---------------------------------------------------------------------------------- thoughts (A7)

FINAL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
DRAFT = '<tool_call>{"name": "f", "arguments": {"a": 0}}</tool_call>'


@pytest.mark.parametrize("form", [form for form in get_args(Form) if form not in ("java", "javascript")])
def test_marks_of_thoughts_inside_an_argument_stay(form):
    tool = Tool("f", "", {"type": "object", "properties": {"text": {"type": "string"}}})
    for text in ("a <think>b</think> c", "</think>", "<think>", "x </think> y <think> z"):
        calls = (Call("f", {"text": text}),)
        said = encode_calls(calls, form=form, tools=[tool])
        assert plain(decode_calls(said, form=form, tools=[tool])) == calls
        if form in ("python", "pythonic"):
            continue
        for thought in ("<think>hmm</think>", "<think>a</think>\n<think>b</think>", "hmm</think>\n"):
            assert plain(decode_calls(f"{thought}\n{said}", form=form, tools=[tool])) == calls


@pytest.mark.parametrize(
    "text",
    [
        f"<think>maybe {DRAFT}</think>{FINAL}",
        f"maybe {DRAFT}\n</think>\n{FINAL}",
        f"maybe <tool_call>\n</think>\n{FINAL}",
        f"<think>a</think><think>{DRAFT}</think>\n{FINAL}",
        f"Let me see. <think>{DRAFT}</think> So: {FINAL}",
        f"<thinking>{DRAFT}</thinking>{FINAL}",
        f"[THINK]{DRAFT}[/THINK]{FINAL}",
        f"{FINAL}<think>or {DRAFT}</think>",
        f"{FINAL}<think>or {DRAFT}",
    ],
)
def test_a_call_inside_a_thought_is_not_made(text):
    assert decode_calls(text, form="xml") == (Call("f", {"a": 1}),)


def test_a_thought_that_the_prompt_opened():
    assert opens_thought("<|im_start|>assistant\n<think>\n") and not opens_thought("<think>\n\n</think>\n\n")
    assert decode_calls(f"{DRAFT}</think>{FINAL}", form="xml", in_thought=True) == (Call("f", {"a": 1}),)
    for unfinished in (DRAFT, f"maybe {DRAFT} or"):
        with pytest.raises(InvalidAction):
            decode_calls(unfinished, form="xml", in_thought=True)
    with pytest.raises(InvalidAction):
        decode_calls(f"<think>{DRAFT}", form="xml")


def test_thoughts_keep_their_places_in_a_mask():
    text = "<think>ab</think> c <think>d"
    spans = find_thoughts(text)
    assert spans == [(0, 17), (20, 28)] and mask_thoughts(text, spans) == " " * 18 + "c" + " " * 9
    assert remove_thoughts(text) == "c" and remove_thoughts("no") == "no"
    assert find_thoughts("a</think>b", implied=False) == [] and remove_thoughts("a</think>b") == "b"


@pytest.mark.parametrize("form", get_args(Form))
def test_hostile_texts_are_refused_in_linear_time(form):
    pieces = (
        *("<think>", "</think>", "<tool_call>", "<tool_call>{", "[TOOL_CALLS]x", "<|message|>", "<parameter=a>"),
        *("<function=f><parameter=a>", "<arg_key>", "[", '{"', "<|tool_call>call:f{a:", " ", "\n", "f(a="),
        *("<tool_call><function=f><parameter=a></parameter>", '<minimax:tool_call><invoke name="a">'),
    )
    for piece in pieces:
        text = piece * (MAX_CHARS // len(piece))
        with pytest.raises(InvalidAction):
            decode_calls(text, form=form)


# ---------------------------------------------------------------------------------- abstaining (A19)


@pytest.mark.parametrize(
    ("form", "text", "attempts"),
    [
        ("xml", '<tool_call>{"name":"f","arguments":{"a":1}</tool_call>', True),
        ("xml", "<function=f>", True),
        ("xml", "I cannot do that.", False),
        ("xml", "<think>maybe <tool_call></think>No.", False),
        ("python", "[f(a=1]", True),
        ("python", "f(1)", True),
        ("python", "[f(a=1), g(]", True),
        ("python", "There is no tool (sorry).", False),
        ("python", "[1] says that nothing fits", False),
        ("json", '[{"name": "f", "arguments": {]', True),
        ("json", '```json\n{"name": "f"', True),
        ("json", "None of the tools can answer this.", False),
        ("json", '<tool_call>{"name": "f"}', True),
        ("lfm2", "<|tool_call_start|>[f(", True),
        ("mistral", "[TOOL_CALLS]f[ARGS]{", True),
    ],
)
def test_an_attempt_to_call_is_told_from_prose(form, text, attempts):
    assert attempts_call(text, form=form) is attempts
    assert not has_call(text, form=form)


def test_drawn_cases_fit_their_schemas():
    from evolvent.schemas import find_argument_faults

    rng = random.Random(0)
    for _ in range(200):
        tools, calls = draw_case(rng)
        parameters = {tool.name: tool.parameters for tool in tools}
        assert not [fault for call in calls for fault in find_argument_faults(call.arguments, parameters[call.name])]
