"""Forms of training rows: published layouts, written by hand, are read as the same messages."""

from __future__ import annotations

import csv
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.data.forms import (
    FORM_TITLES,
    describe_forms,
    detect_form,
    parse_conversation,
    parse_preference,
    standardize_row,
)
from evolvent.data.tables import iterate_rows
from evolvent.errors import SampleInvalid
from evolvent.messages import Call, Message, Tool

WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object", "properties": {}}}
USER, REPLY = Message("user", "1 + 1?"), Message("assistant", "2")

# One row of each published layout: its form, and the messages that it stands for.
LAYOUTS = {
    "agenttraj": (
        {
            "item_id": "webshop_6",
            "conversations": [
                {"from": "human", "loss": None, "value": "You shop."},
                {"from": "gpt", "loss": False, "value": "OK."},
                {"from": "human", "loss": None, "value": "WebShop"},
                {"from": "gpt", "loss": True, "value": "search[mug]"},
            ],
        },
        [
            Message("user", "You shop."),
            Message("assistant", "OK.", extra={"weight": 0.0}),
            Message("user", "WebShop"),
            Message("assistant", "search[mug]"),
        ],
    ),
    "agentinstruct": (
        {
            "id": "os_0",
            "conversations": [
                {"from": "human", "loss": None, "value": "1 + 1?"},
                {"from": "gpt", "loss": True, "value": "2"},
            ],
        },
        [USER, REPLY],
    ),
    "sharegpt": (
        {
            "id": "identity_0",
            "system": "Be brief.",
            "conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}],
        },
        [Message("system", "Be brief."), USER, REPLY],
    ),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "1 + 1?"},
                {"role": "assistant", "content": "2", "weight": 0},
            ]
        },
        [Message("system", "Be brief."), USER, Message("assistant", "2", extra={"weight": 0})],
    ),
    "prompt-completion": ({"prompt": "1 + 1?", "completion": "2"}, [USER, REPLY]),
    "alpaca": (
        {
            "instruction": "Add.",
            "input": "1 + 1",
            "output": "2",
            "system": "Be brief.",
            "history": [["Hi", "Hello"]],
        },
        [
            Message("system", "Be brief."),
            Message("user", "Hi"),
            Message("assistant", "Hello"),
            Message("user", "Add.\n1 + 1"),
            REPLY,
        ],
    ),
    "questions": ({"question": "1 + 1?", "answer": "2"}, [USER, REPLY]),
    "calls": (
        {"query": "Rain?", "tools": json.dumps([WEATHER]), "answers": '[{"name": "weather", "arguments": {}}]'},
        [Message("user", "Rain?"), Message("assistant", None, (Call("weather"),))],
    ),
}


@pytest.mark.parametrize("form", LAYOUTS)
def test_layout_is_detected_and_read(form):
    row, messages = LAYOUTS[form]
    assert detect_form(row) == form
    assert list(parse_conversation(row).messages) == messages


@pytest.mark.parametrize("form", LAYOUTS)
def test_columns_that_another_row_fills_change_nothing(form):
    """A table of rows of several layouts fills every missing column with null."""
    row, messages = LAYOUTS[form]
    names = {name for other, _ in LAYOUTS.values() for name in other} | {"chosen", "rejected", "text", "label"}
    filled = dict.fromkeys(names) | row
    assert detect_form(filled) == form
    assert list(parse_conversation(filled).messages) == messages


@pytest.mark.parametrize("form", [form for form in LAYOUTS if form != "calls"])
def test_lists_may_be_json_text_as_tables_hold_them(form):
    row, messages = LAYOUTS[form]
    cells = {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
    assert detect_form(cells) == form
    assert list(parse_conversation(cells).messages) == messages


def test_lists_of_a_data_frame_are_read(tmp_path):
    pandas = pytest.importorskip("pandas")
    row, messages = LAYOUTS["agenttraj"]
    pandas.DataFrame([row]).to_parquet(tmp_path / "rows.parquet")
    (cells,) = pandas.read_parquet(tmp_path / "rows.parquet").to_dict("records")
    assert not isinstance(cells["conversations"], list)
    assert list(parse_conversation(cells).messages) == messages


def test_sharegpt_with_tools_has_calls_and_results():
    """The layout of LLaMA-Factory: `function_call` and `observation` turns, tools as JSON text."""
    row = {
        "conversations": [
            {"from": "human", "value": "Rain in Oslo?"},
            {"from": "gpt", "value": "I look."},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
            {"from": "observation", "value": '{"rain": true}'},
            {"from": "gpt", "value": "Yes."},
            {"from": "human", "value": "And both?"},
            {"from": "function_call", "value": '[{"name": "weather", "arguments": "{}"}, {"name": "weather"}]'},
            {"from": "tool", "value": "{}"},
        ],
        "tools": json.dumps([WEATHER]),
    }
    conversation = parse_conversation(row)
    assert conversation.tools == (Tool(**WEATHER),)
    assert [(message.role, message.text, message.calls) for message in conversation.messages] == [
        ("user", "Rain in Oslo?", ()),
        ("assistant", "I look.", (Call("weather", {"city": "Oslo"}),)),
        ("tool", '{"rain": true}', ()),
        ("assistant", "Yes.", ()),
        ("user", "And both?", ()),
        ("assistant", "", (Call("weather"), Call("weather"))),
        ("tool", "{}", ()),
    ]


def test_older_openai_rows_have_functions():
    row = {
        "functions": [WEATHER],
        "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
            {"role": "function", "name": "weather", "content": "no"},
            {"role": "assistant", "content": "No.", "function_call": None},
        ],
    }
    conversation = parse_conversation(row)
    assert conversation.tools == (Tool(**WEATHER),)
    assert [(message.role, message.calls) for message in conversation.messages] == [
        ("user", ()),
        ("assistant", (Call("weather"),)),
        ("tool", ()),
        ("assistant", ()),
    ]


@pytest.mark.parametrize(
    "reply",
    [
        {"content": "2", "reasoning_content": "1 and 1"},
        {"content": "2", "thinking": "1 and 1"},
        {"content": "2", "reasoning": "1 and 1"},
        {"content": [{"type": "thinking", "thinking": "1 and 1"}, {"type": "text", "text": "2"}]},
        {"content": [{"type": "reasoning", "text": "1 and 1", "thinking": None}, {"type": "text", "text": "2"}]},
    ],
)
def test_thoughts_of_every_spelling_are_the_same(reply):
    row = {"messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", **reply}]}
    assert parse_conversation(row).messages[-1] == Message("assistant", "2", extra={"reasoning_content": "1 and 1"})


PAIR = ([USER], [REPLY], [Message("assistant", "3")])
CHOSEN, REJECTED = ([{"role": "assistant", "content": answer}] for answer in ("2", "3"))
QUESTION = [{"role": "user", "content": "1 + 1?"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1 + 1?", "chosen": "2", "rejected": "3"},
        {"prompt": QUESTION, "chosen": CHOSEN, "rejected": REJECTED},
        {"prompt": "1 + 1?", "chosen": CHOSEN[0], "rejected": REJECTED[0]},
        {"chosen": QUESTION + CHOSEN, "rejected": QUESTION + REJECTED},
        {"prompt": "1 + 1?", "chosen": QUESTION + CHOSEN, "rejected": QUESTION + REJECTED},
        {"prompt": QUESTION, "chosen": QUESTION + CHOSEN, "rejected": QUESTION + REJECTED},
        {"prompt": "1 + 1?", "chosen": "1 + 1? 2", "rejected": "1 + 1? 3"},
        {"question": "1 + 1?", "chosen": "2", "rejected": "3"},
        {"instruction": "1 + 1?", "input": "", "chosen": "2", "rejected": "3"},
        {
            "conversations": [{"from": "human", "value": "1 + 1?"}],
            "chosen": {"from": "gpt", "value": "2"},
            "rejected": {"from": "gpt", "value": "3"},
        },
        {"input": {"messages": QUESTION}, "preferred_output": CHOSEN, "non_preferred_output": REJECTED},
        {"chosen": "\n\nHuman: 1 + 1?\n\nAssistant: 2", "rejected": "\n\nHuman: 1 + 1?\n\nAssistant: 3"},
    ],
)
def test_preferences_of_every_layout_are_the_same_pair(row):
    assert detect_form(row) == "preferences"
    pair = parse_preference(row)
    assert (list(pair.prompt), list(pair.chosen), list(pair.rejected)) == PAIR


def test_instructions_beside_sides_that_repeat_the_prompt_are_kept():
    system = [{"role": "system", "content": "Be brief."}]
    rows = [
        {"prompt": QUESTION, "chosen": system + QUESTION + CHOSEN, "rejected": system + QUESTION + REJECTED},
        {"prompt": system + QUESTION, "chosen": QUESTION + CHOSEN, "rejected": QUESTION + REJECTED},
        {"system": "Be brief.", "prompt": "1 + 1?", "chosen": "2", "rejected": "3"},
    ]
    for row in rows:
        pair = parse_preference(row)
        assert list(pair.prompt) == [Message("system", "Be brief."), USER]
        assert (list(pair.chosen), list(pair.rejected)) == PAIR[1:]


def test_texts_that_are_lists_stay_texts():
    """Programs answer with lists; a table holds messages as JSON text."""
    conversation = parse_conversation({"prompt": "Primes?", "completion": "[2, 3]"})
    assert conversation.messages[-1] == Message("assistant", "[2, 3]")
    pair = parse_preference({"prompt": "Primes?", "chosen": "[2, 3]", "rejected": "[]"})
    assert [side[0].text for side in (pair.chosen, pair.rejected)] == ["[2, 3]", "[]"]


def test_a_turn_that_repeats_the_prompt_later_is_kept():
    later = [{"role": "assistant", "content": "Yes?"}, *QUESTION]
    pair = parse_preference({"prompt": "1 + 1?", "chosen": later + CHOSEN, "rejected": later + REJECTED})
    assert [message.text for message in (*pair.prompt, *pair.chosen)] == ["1 + 1?", "Yes?", "1 + 1?", "2"]


def test_other_fields_of_a_row_stay_beside_its_messages():
    row = {"messages": QUESTION + CHOSEN, "answer": "2", "source": "s", "prompt": "1 + 1?", "note": None}
    assert standardize_row(row) == {name: value for name, value in row.items() if value is not None}
    question = {"question": "1 + 1?", "answer": "2", "level": 3}
    assert standardize_row(question) == {"level": 3, "messages": QUESTION + CHOSEN}


def test_one_word_that_opens_both_replies_is_no_repeated_prompt():
    pair = parse_preference({"prompt": "Hello", "chosen": "Hello, you!", "rejected": "Hello?"})
    assert [side[0].text for side in (pair.chosen, pair.rejected)] == ["Hello, you!", "Hello?"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"conversations": [{"from": "robot", "value": "x"}]}, "the speaker of turn 0 is unknown: got robot"),
        ({"conversations": [{"from": "gpt", "value": 3}]}, "turn 0 has no text: got 3"),
        ({"conversations": [{"from": "function_call", "value": "look()"}]}, "the function call of a turn is not JSON"),
        ({"conversations": [{"from": "gpt", "value": "x", "loss": "maybe"}]}, "the weight of a reply is not a number"),
        ({"instruction": "Add.", "output": ""}, "output of the row is not text"),
        ({"instruction": "Add.", "output": "2", "history": [["a"]]}, "history of the row is not a list of exchanges"),
        ({"prompt": "q", "completion": "a", "label": False}, "the completion is labeled as a bad one"),
        ({"messages": [{"role": "user", "content": "q"}], "tools": "f()"}, "tools of the row is not a list"),
        ({"title": "x"}, "unknown row format: got \\['title'\\]"),
        ({"text": "x"}, "unknown row format"),
        (3, "unknown row format: got int"),
    ],
)
def test_bad_rows_are_refused_with_the_reason(row, reason):
    with pytest.raises(SampleInvalid, match=reason):
        parse_conversation(row)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_weights = st.sampled_from([None, 0, 0.0, False, "false", 1, True, 0.5])


@st.composite
def conversations(draw):
    """Turns as (role, text, weight): instructions or none, then exchanges; weights only of replies."""
    turns = [("system", draw(_texts), None)] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        turns += [("user", draw(_texts), None), ("assistant", draw(_texts), draw(_weights))]
    return turns


@given(st.lists(conversations(), min_size=1, max_size=3), st.sampled_from(["weight", "loss"]))
@settings(deadline=None, max_examples=60)
def test_layout_format_and_spelling_change_nothing(tmp_path_factory, talks, flag):
    """The same conversations as OpenAI messages and as ShareGPT, in JSON lines, in Parquet and as JSON text in CSV."""
    folder = tmp_path_factory.mktemp("rows")
    speakers = {"system": "system", "user": "human", "assistant": "gpt"}
    layouts = {
        "messages": [[{"role": role, "content": text, flag: weight} for role, text, weight in talk] for talk in talks],
        "conversations": [
            [{"from": speakers[role], "value": text, flag: weight} for role, text, weight in talk] for talk in talks
        ],
    }
    expected = [
        [
            (role, text, 1.0 if weight is None else float(weight) if weight != "false" else 0.0)
            for role, text, weight in talk
        ]
        for talk in talks
    ]
    for name, rows in layouts.items():
        (folder / "a.jsonl").write_text("".join(json.dumps({name: row}) + "\n" for row in rows), encoding="utf-8")
        with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([[name], *([json.dumps(row)] for row in rows)])
        uniform = [[{**turn, flag: None if turn[flag] is None else str(turn[flag])} for turn in row] for row in rows]
        pq.write_table(pa.Table.from_pylist([{name: row} for row in uniform]), folder / "a.parquet")
        for file_name in ("a.jsonl", "a.csv", "a.parquet"):
            found = [parse_conversation(row) for _, row in iterate_rows(folder / file_name)]
            assert [[(m.role, m.text, m.weight) for m in talk.messages] for talk in found] == expected, (
                name,
                file_name,
            )


def test_forms_are_told_in_one_line():
    assert describe_forms(Counter(sharegpt=120)) == "conversations (ShareGPT), 120 rows"
    mixed = describe_forms({"text": 1, "unknown": 2, "alpaca": 1000})
    assert mixed == "instructions (Alpaca), 1,000 rows; an unknown form, 2 rows; text, 1 row"
    assert set(LAYOUTS) | {"preferences", "text"} == set(FORM_TITLES)
