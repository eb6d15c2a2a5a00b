"""Rows of every form become trajectories of a store, and come back as the same messages."""

from __future__ import annotations

import json

import pytest

from evolvent.curate.origins import row_to_trajectories
from evolvent.data.forms import parse_conversation
from evolvent.errors import SampleInvalid
from evolvent.store.exchange import chat_row, read_agenttraj, write_agenttraj, write_messages
from evolvent.store.store import Store
from evolvent.trajectory import Score
from tests.data.test_forms import LAYOUTS

TALK = {
    "item_id": "textcraft_1",
    "conversations": [
        {"from": "human", "loss": None, "value": "Craft."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "Goal: stick."},
        {"from": "gpt", "loss": True, "value": "get log"},
        {"from": "human", "loss": None, "value": "Got log."},
        {"from": "gpt", "loss": False, "value": "sing"},
        {"from": "human", "loss": None, "value": "What?"},
    ],
}


@pytest.mark.parametrize("form", LAYOUTS)
def test_import_then_export_keeps_every_message(tmp_path, form):
    """Instructions, tools, calls and weights included; through a store that is sealed."""
    row, messages = LAYOUTS[form]
    (trajectory,) = row_to_trajectories(row, "file-0", {})
    with Store.open(tmp_path, writing=True) as store:
        store.append(trajectory)
        store.seal()
        (stored,) = store.trajectories()
    back = parse_conversation(chat_row(stored))
    assert [(m.role, m.text, m.calls, m.weight) for m in back.messages] == [
        (m.role, m.text, m.calls, m.weight) for m in messages
    ]
    assert back.tools == parse_conversation(row).tools


def test_ids_are_kept_and_repeated_ones_are_numbered():
    id_counts: dict[str, int] = {}
    chat = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    rows = [{"id": 7, **chat}, {"id": 7, **chat}, chat, {**TALK}, {**TALK}, {"prompt": "q", "completion": "a"}]
    made = [row_to_trajectories(row, f"file-{number}", id_counts)[0] for number, row in enumerate(rows)]
    assert [trajectory.id for trajectory in made] == ["7", "7#2", "file-2", "textcraft_1", "textcraft_1#2", "file-5"]
    assert {trajectory.task.world for trajectory in made} == {"messages", "textcraft"}


def test_agentinstruct_has_its_world_by_its_id():
    (trajectory,) = row_to_trajectories({"id": "os_0", "conversations": TALK["conversations"]}, "x", {})
    assert (trajectory.id, trajectory.task.world, trajectory.meta["preamble"]) == ("os_0", "os", ["Craft.", "OK."])


def test_both_sides_of_a_preference_are_one_group():
    row = {
        "prompt": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "chosen": "good",
        "rejected": "bad",
    }
    chosen, rejected = row_to_trajectories(row, "file-3", {})
    assert (chosen.id, rejected.id) == ("file-3/chosen", "file-3/rejected")
    assert (chosen.score, rejected.score) == (Score(1.0, 1.0, True), Score(0.0, 0.0, False))
    assert chosen.group == rejected.group == "file-3" and chosen.task.id == rejected.task.id
    assert [(m.text, m.weight) for m in parse_conversation(chat_row(chosen)).messages] == [
        ("a", 1.0),
        ("b", 0.0),
        ("c", 1.0),
        ("good", 1.0),
    ]


@pytest.mark.parametrize(
    "row", [3, {"text": "x"}, {"title": "x"}, {"conversations": [{"from": "robot", "value": "x"}]}]
)
def test_rows_that_are_no_conversation_are_refused(row):
    with pytest.raises(SampleInvalid):
        row_to_trajectories(row, "x", {})


def test_messages_keep_the_rules_and_end_as_asked(tmp_path):
    """The rules of an AgentTraj conversation are its first turn, replies that are not learned weigh nothing."""
    (trajectory,) = row_to_trajectories(TALK, "x", {})
    turns = [
        ("user", "Craft.", None),
        ("assistant", "OK.", 0),
        ("user", "Goal: stick.", None),
        ("assistant", "get log", None),
        ("user", "Got log.", None),
        ("assistant", "sing", 0),
        ("user", "What?", None),
    ]
    for ends_with_reply, expected in ((False, turns), (True, turns[:-1])):
        assert write_messages([trajectory], tmp_path / "m.jsonl", ends_with_reply=ends_with_reply) == 1
        messages = json.loads((tmp_path / "m.jsonl").read_text())["messages"]
        assert [(m["role"], m["content"], m.get("weight")) for m in messages] == expected
    rules = chat_row(trajectory, "Other rules.")["messages"]
    assert [message["content"] for message in rules[:2]] == ["Craft.", "OK."], "it has its own"


def test_weights_of_messages_are_flags_of_agenttraj(tmp_path):
    chat = {"messages": [{"role": role, "content": "x"} for role in ("user", "assistant") * 2]}
    chat["messages"][1]["loss"] = "false"
    chat["messages"][3]["weight"] = 1
    (trajectory,) = row_to_trajectories(chat, "x", {})
    write_agenttraj([trajectory], tmp_path / "a.json")
    (row,) = json.loads((tmp_path / "a.json").read_text())
    assert [turn["loss"] for turn in row["conversations"]] == [None, False, None, True]
    assert chat_row(trajectory) == chat


@pytest.mark.parametrize("spelling", [0, 0.0, "false", False])
def test_every_spelling_of_false_is_not_learned(tmp_path, spelling):
    turns = [dict(turn) for turn in TALK["conversations"]]
    for turn in (turns[1], turns[5]):
        turn["loss"] = spelling
    (tmp_path / "a.json").write_text(json.dumps([{**TALK, "conversations": turns}]))
    (trajectory,) = read_agenttraj(tmp_path / "a.json").trajectories
    assert [step.info.get("loss") for step in trajectory.steps] == [None, False]
    write_agenttraj([trajectory], tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text()) == [TALK]
