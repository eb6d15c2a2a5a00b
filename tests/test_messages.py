"""Messages, tools and calls: the OpenAI form, both ways."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import SampleInvalid
from evolvent.messages import ROLES, Call, Message, Tool

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=5,
)
_calls = st.builds(Call, st.text(min_size=1), st.dictionaries(st.text(), _json, max_size=3), st.none() | st.text())
_messages = st.builds(
    Message,
    st.sampled_from(ROLES),
    st.none() | st.text(),
    st.lists(_calls, max_size=2).map(tuple),
    st.none() | st.text(),
    st.dictionaries(st.sampled_from(["name", "refusal"]), _json, max_size=2),
)


@given(_messages)
@settings(deadline=None, max_examples=100)
def test_a_message_written_as_json_and_read_is_the_same(message):
    assert Message.of_openai(json.loads(json.dumps(message.as_openai()))) == message


def test_the_form_by_hand():
    call = Call("find", {"b": 1, "a": None}, "c1")
    assert call.as_openai() == {
        "id": "c1",
        "type": "function",
        "function": {"name": "find", "arguments": '{"a":null,"b":1}'},
    }
    assert Message("tool", "3", tool_call_id="c1").as_openai() == {"role": "tool", "content": "3", "tool_call_id": "c1"}
    assert Message("assistant", None, (Call("f"),)).as_openai()["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    tool = Tool("find", "Finds.", {"type": "object"})
    assert Tool.of_openai(tool.as_openai()) == tool


def test_parts_of_text_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert Message.of_openai({"role": "user", "content": parts}).content == "ab"
    assert Message("assistant", None).text == ""


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        {"role": "bot"},
        {"content": "a"},
        {"role": "user", "content": 3},
        {"role": "user", "content": {"a": 1}},
        {"role": "assistant", "tool_calls": "f"},
        {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
        {"role": "assistant", "tool_calls": {"a": 1}},
        {"role": "assistant", "tool_calls": [3]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{'a': 1}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]},
    ],
    ids=lambda row: str(row)[:50],
)
def test_other_forms_are_refused(row):
    with pytest.raises(SampleInvalid):
        Message.of_openai(row)


@pytest.mark.parametrize("row", [None, {}, {"function": {}}, {"function": {"name": "f", "parameters": [1]}}], ids=str)
def test_tools_that_are_none(row):
    with pytest.raises(SampleInvalid):
        Tool.of_openai(row)
