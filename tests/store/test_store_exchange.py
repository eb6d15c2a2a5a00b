"""Formats of others: what is read is written back the same, and bad rows never hide good ones."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import bits, episode, several

from evolvent.errors import CorruptRecord, SampleInvalid, StoreUnavailable
from evolvent.store.exchange import (
    read_agenttraj,
    read_jsonl,
    read_messages,
    write_agenttraj,
    write_jsonl,
    write_messages,
)
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step, Task

TALK = {
    "conversations": [
        {"from": "human", "loss": None, "value": "You shop. Actions: search[x]."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "WebShop [SEP] Search"},
        {"from": "gpt", "loss": True, "value": "Thought:\nlook\n\nAction:\nsearch[mug]"},
        {"from": "human", "loss": None, "value": "Results"},
        {"from": "gpt", "loss": False, "value": "click[back]"},
        {"from": "human", "loss": None, "value": "Bye"},
    ],
    "item_id": "webshop_6",
}


def dump(path, rows):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_agenttraj_by_hand(tmp_path):
    (found,) = read_agenttraj(dump(tmp_path / "webshop_train.json", [TALK])).trajectories
    assert (found.id, found.task.world, found.task.spec, found.score) == (
        "webshop_6",
        "webshop",
        {"item_id": "webshop_6"},
        Score(),
    )
    assert found.meta == {"item_id": "webshop_6", "preamble": ["You shop. Actions: search[x].", "OK."]}
    assert [(s.observation, s.action, s.reward, s.generations, dict(s.info)) for s in found.steps] == [
        ("WebShop [SEP] Search", "Thought:\nlook\n\nAction:\nsearch[mug]", None, (), {}),
        ("Results", "click[back]", None, (), {"loss": False}),
    ]
    assert found.final_observation == "Bye"


_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def talks(draw):
    texts = draw(st.lists(_words, min_size=1, max_size=7))
    turns = [{"from": ("human", "gpt")[i % 2], "loss": (None, True)[i % 2], "value": t} for i, t in enumerate(texts)]
    for turn in turns[1::2]:
        turn["loss"] = draw(st.booleans())
    return {"conversations": turns, "item_id": draw(st.sampled_from(["webshop_6", "x", "alfworld_look_1"]))}


@given(st.lists(talks(), max_size=4))
@settings(deadline=None, max_examples=60)
def test_agenttraj_import_then_export_is_the_identity(tmp_path_factory, rows):
    """Also with repeated ids, and through the store, sealed."""
    folder = tmp_path_factory.mktemp("x")
    read = read_agenttraj(dump(folder / "in.json", rows))
    assert not read.invalid and len({t.id for t in read.trajectories}) == len(rows)
    assert write_agenttraj(read.trajectories, folder / "out.json") == len(rows)
    assert json.loads((folder / "out.json").read_text("utf-8")) == rows
    assert read_agenttraj(folder / "out.json") == read


def test_own_trajectories_export_with_instructions_and_come_back(tmp_path):
    own = [episode("s/1"), replace(episode("s/2"), final_observation="")]
    write_agenttraj(own, tmp_path / "out.json", instructions="Walk.")
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [t["value"] for t in rows[0]["conversations"]] == [
        "Walk.",
        "OK.",
        "room 0",
        "go 0",
        "room 1",
        "go 1",
        "done",
    ]
    assert [t["loss"] for t in rows[0]["conversations"]] == [None, False, None, True, None, True, None]
    back = read_agenttraj(tmp_path / "out.json").trajectories
    assert [(t.id, t.task.world, t.actions, t.final_observation) for t in back] == [
        (f"{t.task.world}_{t.id}", t.task.world, t.actions, t.final_observation) for t in own
    ]
    assert all(not list(t.generations) and set(t.rewards) == {None} for t in back)


BAD_TALKS = [
    None,
    3,
    {},
    {"item_id": "x_1", "conversations": None},
    {"item_id": "x_1", "conversations": []},
    {"item_id": 3, "conversations": TALK["conversations"]},
    {**TALK, "conversations": TALK["conversations"][1:]},
    {**TALK, "conversations": [{"from": "human", "loss": None, "value": None}]},
    {**TALK, "conversations": [{"from": "human", "loss": "yes", "value": ""}]},
    {**TALK, "conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]},
    {**TALK, "reward": float("nan")},
    {**TALK, "reward": "high"},
]


def test_malformed_rows_are_listed_with_file_and_row(tmp_path):
    rows = [row for bad in BAD_TALKS for row in (TALK, bad)]
    read = read_agenttraj(dump(tmp_path / "mixed.json", rows))
    assert len(read.trajectories) == len(BAD_TALKS) == len(read.invalid)
    assert [int(str(e).split(" row ")[1].split(":")[0]) for e in read.invalid] == list(range(1, len(rows), 2))
    assert all("mixed.json" in str(error) for error in read.invalid)


@pytest.mark.parametrize("text", ["{}", "[", '[{"a":', "[" * 100_000])
def test_files_that_are_no_array(tmp_path, text):
    (tmp_path / "f.json").write_text(text, "utf-8")
    with pytest.raises(SampleInvalid, match=r"f\.json"):
        read_agenttraj(tmp_path / "f.json")
    with pytest.raises(StoreUnavailable):
        read_agenttraj(tmp_path / "none.json")


def test_rollout_files_bring_their_score(tmp_path):
    rows = [{**TALK, "reward": 0.75, "success": 0}, {**TALK, "reward": None}]
    first, second = read_agenttraj(dump(tmp_path / "f.json", rows)).trajectories
    assert (first.score, second.score) == (Score(0.75, None, False), Score())
    assert (first.id, second.id, second.sample, first.group) == ("webshop_6", "webshop_6#2", 1, second.group)


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n":1,"what":"mug"}'}}
TOOL = {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}}
CHATS = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Find a mug."},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3 mugs", "tool_call_id": "c1"},
            {"role": "assistant", "content": "Three."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [TOOL],
        "id": "chat-7",
    },
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {
        "messages": [
            {"role": "assistant", "content": "a", "reasoning_content": "hm", "refusal": None},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": ""},
        ],
        "source": "x",
    },
    {"messages": [{"role": "user", "content": "only"}]},
]


def test_messages_by_hand_and_back(tmp_path):
    (tmp_path / "chats.jsonl").write_text("\n\n".join(map(json.dumps, CHATS)) + "\n")
    read = read_messages(tmp_path / "chats.jsonl")
    assert not read.invalid
    first = read.trajectories[0]
    assert [(s.observation, s.action) for s in first.steps] == [("Be brief.\n\nFind a mug.", ""), ("3 mugs", "Three.")]
    assert first.steps[0].info["tool_calls"] == [CALL] and first.meta["tools"] == [TOOL]
    assert (first.id, first.final_observation, first.score, list(first.generations)) == (
        "chat-7",
        "Thanks",
        Score(),
        [],
    )
    assert (read.trajectories[1].id, read.trajectories[2].steps[0].thought) == ("chats-2", "hm")
    with Store.open(tmp_path / "t", writing=True) as store:
        for trajectory in read.trajectories:
            store.append(trajectory)
        store.seal()
        write_messages(store.trajectories(), tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == CHATS


_roles = st.sampled_from(["system", "user", "tool", "assistant"])


@given(st.lists(st.lists(st.tuples(_roles, _words), min_size=1, max_size=6), max_size=3))
@settings(deadline=None, max_examples=60)
def test_messages_import_then_export_is_the_identity(tmp_path_factory, chats):
    folder = tmp_path_factory.mktemp("x")
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
    (folder / "in.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert write_messages(read_messages(folder / "in.jsonl").trajectories, folder / "out.jsonl") == len(rows)
    assert [json.loads(line) for line in (folder / "out.jsonl").read_bytes().split(b"\n") if line] == rows


def test_own_trajectories_as_messages(tmp_path):
    own = replace(episode("s/1", steps=1), steps=(Step("room 0", "go 0", 1.0, thought="hm"),), final_observation="")
    write_messages([own], tmp_path / "out.jsonl", instructions="Walk.")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {
        "id": "s/1",
        "messages": [
            {"role": "system", "content": "Walk."},
            {"role": "user", "content": "room 0"},
            {"role": "assistant", "content": "go 0", "reasoning_content": "hm"},
        ],
    }


def test_bad_chats_are_listed(tmp_path):
    bad = [
        "{",
        "[]",
        "{}",
        '{"messages": [{"role":"bot"}]}',
        '{"messages": [{"role":"user","content":3}]}',
        '{"messages": [{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}]}',
        '{"messages": [{"role":"user","content":"a"}], "tools": [3]}',
        "[" * 50_000,
    ]
    good = json.dumps(CHATS[1])
    (tmp_path / "f.jsonl").write_text("\n".join(line for row in bad for line in (good, row)))
    read = read_messages(tmp_path / "f.jsonl")
    assert len(read.trajectories) == len(bad) == len(read.invalid)
    assert [f"f.jsonl row {2 * i + 1}:" in str(error) for i, error in enumerate(read.invalid)] == [True] * len(bad)


def test_a_number_that_is_none_is_a_bad_row_and_hides_no_other(tmp_path):
    """NaN among the arguments of a call, and a reward that no float holds: both are JSON as Python reads it."""
    good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": float("nan")}}}
    bad = {"messages": [*good["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]}
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, bad, good)))
    read = read_messages(tmp_path / "m.jsonl")
    assert [one.id for one in read.trajectories] == ["m-0", "m-2"]
    assert [str(one).partition("m.jsonl ")[2][:6] for one in read.invalid] == ["row 1:"]
    talks = read_agenttraj(dump(tmp_path / "t.json", [TALK, {**TALK, "reward": 10**400}, TALK]))
    assert len(talks.trajectories) == 2 and len(talks.invalid) == 1 and "row 1" in str(talks.invalid[0])


def test_keys_keep_their_order_also_where_they_are_sealed(tmp_path):
    """A model is shown a tool's parameters in the order they were written in."""
    properties = {"zip": {"type": "string"}, "city": {"type": "string", "description": "its name"}}
    function = {"name": "post", "description": "d", "parameters": {"type": "object", "properties": properties}}
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    tools = [{"type": "function", "function": function}]
    row = json.dumps({"messages": said, "tools": tools, "id": "x", "zone": {"b": 1, "a": 2}}, separators=(",", ":"))
    (tmp_path / "in.jsonl").write_text(row + "\n")
    with Store.open(tmp_path / "t", writing=True) as store:
        for one in read_messages(tmp_path / "in.jsonl").trajectories:
            store.append(one)
        task = Task("w", "1", {"z": 1, "a": {"y": 1, "b": 2}})
        store.append(replace(episode("spec"), task=task, meta={"b": 1, "a": 2}))
        for _ in range(2):  # live, then sealed
            write_messages([store.get("x")], tmp_path / "out.jsonl")
            assert (tmp_path / "out.jsonl").read_text() == row + "\n"
            own = store.get("spec")
            assert (json.dumps(own.task.spec), list(own.meta)) == ('{"z": 1, "a": {"y": 1, "b": 2}}', ["b", "a"])
            store.seal()


def test_arrays_have_no_place_in_texts_and_leave_no_file(tmp_path):
    array = replace(episode("a"), final_observation=np.zeros(2))
    for write in (write_agenttraj, write_messages):
        with pytest.raises(SampleInvalid, match="arrays"):
            write([episode("b"), array], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@given(several())
@settings(deadline=None, max_examples=30)
def test_records_are_token_exact(tmp_path_factory, wanted):
    path = tmp_path_factory.mktemp("x") / "out.jsonl"
    assert write_jsonl(wanted, path, run="r") == len(wanted)
    back = list(read_jsonl(path))
    assert back == wanted and [bits(t) for t in back] == [bits(t) for t in wanted]


@pytest.mark.parametrize("text", ['{"messages": []}\n', "[\n{}]\n", "[]", "3\n"])
def test_a_file_of_another_format_is_not_called_damaged(tmp_path, text):
    (tmp_path / "f").write_text(text, encoding="utf-8")
    with pytest.raises(SampleInvalid, match=r"does not hold evolvent records.*.*runs import FILE"):
        next(read_jsonl(tmp_path / "f"))


def test_a_cut_file_of_records_is_an_error(tmp_path):
    write_jsonl([episode("a"), episode("b")], tmp_path / "f")
    raw = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(raw[:-5])
    reading = read_jsonl(tmp_path / "f")
    assert next(reading) == episode("a")
    with pytest.raises(CorruptRecord) as error:
        next(reading)
    assert error.value.offset == raw.index(b"\n") + 1
