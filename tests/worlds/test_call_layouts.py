from __future__ import annotations

import json

import pytest

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.messages import Call, Message
from evolvent.worlds.calls.layouts import read_hammer, read_hammer_row, read_nexus_raven, read_seal_tools

FLAT = {
    "name": "getRate",
    "description": "A rate.",
    "parameters": {
        "year": {"type": "int", "description": "which", "required": True},
        "unit": {"type": "str", "description": "", "default": "kg"},
    },
}
CALL = {"name": "getRate", "arguments": {"year": 2020}}


def write(path, rows, *, lines=False):
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) if lines else json.dumps(rows)
    path.write_text(text, encoding="utf-8")
    return path


def test_hammers_rows():
    sample = read_hammer_row({"query": "The rate?", "tools": [FLAT, FLAT], "answers": [CALL]}, "x")
    assert sample.messages == (Message("user", "The rate?"),)
    assert len(sample.tools) == 1
    assert sample.tools[0].parameters == {
        "type": "object",
        "required": ["year"],
        "properties": {
            "year": {"type": "int", "description": "which"},
            "unit": {"type": "str", "description": "", "default": "kg"},
        },
    }
    assert sample.calls == (Call("getRate", {"year": 2020}),)


def test_rows_with_json_text_as_in_xlam():
    sample = read_hammer_row({"query": "q", "tools": json.dumps([FLAT]), "answers": json.dumps([CALL])}, "x")
    assert (sample.tools[0].name, sample.calls[0].name) == ("getRate", "getRate")


def test_seal_tools_in_hammers_layout():
    tool = {**FLAT, "required": ["unit"], "parameters": {k: {"type": "str"} for k in ("year", "unit")}}
    sample = read_hammer_row({"query": "q", "tools": [tool], "answers": [{"tool": "getRate", "parameters": {}}]}, "x")
    assert sample.tools[0].parameters["required"] == ["unit"]
    assert sample.calls == (Call("getRate", {}),)


def test_conversations_as_in_api_bank():
    query = [
        {"role": "user", "content": "Hi"},
        {"role": "agent", "content": "Yes?"},
        {"role": "assistant", "content": f"```{json.dumps([CALL])}```"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "And 2021?"},
    ]
    sample = read_hammer_row({"query": query, "tools": [FLAT], "answers": []}, "x")
    assert [message.role for message in sample.messages] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert sample.messages[2] == Message("assistant", None, (Call("getRate", {"year": 2020}),))
    assert sample.messages[4].content == "Three."
    assert sample.request == "And 2021?"
    assert sample.calls == ()


BAD = [
    5,
    {"query": "q", "tools": []},
    {"query": "q", "tools": "[", "answers": []},
    {"query": "q", "tools": {}, "answers": []},
    {"query": "q", "tools": [{"name": "f"}], "answers": []},
    {"query": "q", "tools": [FLAT], "answers": [{"name": "f"}]},
    {"query": "q", "tools": [FLAT], "answers": [{"name": "f", "arguments": {}}]},
    {"query": [{"role": "king", "content": ""}], "tools": [FLAT], "answers": []},
    {"query": 5, "tools": [FLAT], "answers": []},
    {"query": "q", "tools": [{"name": "f", "parameters": {"a": 5}}], "answers": []},
]


@pytest.mark.parametrize("row", BAD)
def test_rows_that_are_none(row):
    with pytest.raises(SampleInvalid, match="row 7"):
        read_hammer_row(row, "row 7")


def test_files_in_hammers_layout(tmp_path):
    good = {"query": "q", "tools": [FLAT], "answers": [CALL]}
    samples, problems = read_hammer(write(tmp_path / "set.json", [good, *BAD, good]))
    assert [sample.id for sample in samples] == ["set/0", "set/11"]
    assert len(problems) == len(BAD)
    samples, problems = read_hammer(write(tmp_path / "lines.jsonl", [good, "{no", good], lines=True))
    assert [sample.id for sample in samples] == ["lines/0", "lines/2"]
    assert len(problems) == 1
    for broken in ("missing.json", "cut.json"):
        (tmp_path / "cut.json").write_text("[{", encoding="utf-8")
        with pytest.raises(ConfigError, match=broken):
            read_hammer(tmp_path / broken)


def test_seal_tools(tmp_path):
    tools = [
        {"api_name": f"t{n}", "api_description": "d", "parameters": {"a": {"type": "str"}}, "required": ["a"]}
        for n in range(9)
    ]
    items = [
        {"id": f"dev-{n}", "query": "q", "calling": [{"api": f"t{n}", "parameters": {"a": "x"}}]} for n in range(9)
    ]
    items.append({"id": "lost", "query": "q", "calling": [{"api": "t99", "parameters": {}}]})
    known, path = write(tmp_path / "tool.jsonl", tools, lines=True), tmp_path / "dev.jsonl"
    samples, problems = read_seal_tools(write(path, items, lines=True), known)
    assert len(samples) == 9
    assert len(problems) == 1
    assert samples[3].calls == (Call("t3", {"a": "x"}),)
    for sample in samples:
        assert len({tool.name for tool in sample.tools}) == 5
        assert sample.calls[0].name in {tool.name for tool in sample.tools}
    assert len({[tool.name for tool in sample.tools].index(sample.calls[0].name) for sample in samples}) > 1
    again, _ = read_seal_tools(write(path, items[::-1], lines=True), known)
    assert set(map(repr, again)) == set(map(repr, samples))  # what a sample shows does not depend on its place
    other, _ = read_seal_tools(path, known, num_other_tools=0, seed=1)
    assert {len(sample.tools) for sample in other} == {1}
    with pytest.raises(SampleInvalid):
        read_seal_tools(path, write(tmp_path / "none.jsonl", [{"api_name": 5}], lines=True))


def test_nexus_raven(tmp_path):
    arguments = [
        {"name": "email", "type": "str", "required": True, "description": "whose", "default": "None"},
        {"name": "key", "type": "str", "required": False, "description": "", "default": "None"},
    ]
    functions = [
        {"dataset": "mail", "name": "look", "description": "Looks.", "args_dicts": arguments},
        {"dataset": "mail", "name": "report", "description": "", "args_dicts": []},
    ]
    query = {
        "dataset": "mail",
        "prompt": "Look at a@b.",
        "python_function_name": "look",
        "python_args_dict": '{"email": "a@b"}',
        "context_functions": ["report", "look"],
    }
    bad = [{**query, "context_functions": ["gone"]}, {**query, "python_args_dict": "["}, {**query, "dataset": "post"}]
    samples, problems = read_nexus_raven(
        write(tmp_path / "queries.jsonl", [query, *bad], lines=True), write(tmp_path / "functions.json", functions)
    )
    (sample,) = samples
    assert len(problems) == 3
    assert [tool.name for tool in sample.tools] == ["report", "look"]
    assert sample.tools[1].parameters["required"] == ["email"]
    assert sample.calls == (Call("look", {"email": "a@b"}),)
    assert sample.id == "nexusraven/0"
