"""Rows of text, conversations and pairs become sequences; what is wrong or too long is named and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_policy import END, START, byte_policy, byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_training import episode, small_policy

from evolvent.errors import ConfigError, MissingExtra, SampleInvalid
from evolvent.learn.rows import ReadingConfig, read_rows, read_trajectories
from evolvent.learn.sources import (
    file_digest,
    open_dataset,
    read_dataset_rows,
    read_json_lines,
    source_digest,
    vocabulary_digest,
)
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.learn.windows import (
    Intake,
    build_blocks,
    fit_to_context,
    slice_sequence,
    split_into_windows,
    text_sequence,
)
from evolvent.models.dialects import dialect_for
from evolvent.store.store import Store
from evolvent.trajectory import Step, Task, Trajectory

POLICY = byte_policy(context=200)


def read(*rows: Any, intake: Intake | None = None, policy: Any = POLICY, **reading: Any) -> list[TokenSequence]:
    named = [(f"r{number}", row) for number, row in enumerate(rows)]
    return list(read_rows(named, policy, ReadingConfig(**reading), intake=intake))


def text(parts: TokenSequence, where: Any = slice(None)) -> str:
    return str(POLICY.tokenizer.decode(parts.ids[where], skip_special_tokens=False))


def learned(parts: TokenSequence) -> str:
    return text(parts, parts.weight != 0)


def same(one: TokenSequence, other: TokenSequence) -> bool:
    arrays = ("ids", "written", "sampled", "logprobs", "step", "span", "weight")
    return one.trajectory == other.trajectory and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


# ------------------------------------------------------------------ raw text


def test_a_document_is_learned_but_for_its_first_token() -> None:
    (parts,) = read({"text": f"Hi {END}."}, kind="text")
    assert text(parts) == f"Hi {END}.{END}" and (parts.ids == 257).sum() == 1  # only the last one is the control token
    assert parts.weight.tolist() == [0.0] + [1.0] * (len(parts) - 1)
    assert parts.written.all() and not parts.sampled.any()
    (parts,) = read({"text": "Hi"}, kind="text", policy=byte_policy(begin=True))
    assert text(parts) == f"{START}Hi{END}" and learned(parts) == f"Hi{END}"


def test_a_long_document_is_cut_into_windows_or_blocks() -> None:
    rows = [{"text": "abcdefghij"}, {"text": "klm"}]
    made = read(*rows, kind="text", context=5, overlong="split")
    assert [text(parts) for parts in made] == ["abcde", "fghij", f"klm{END}"]  # the end alone teaches nothing
    assert [learned(parts) for parts in made] == ["bcde", "ghij", f"lm{END}"]
    assert [parts.trajectory for parts in made] == ["r0/0", "r0/5", "r1"]
    made = read(*rows, kind="text", context=5, overlong="split", overlap=2)
    assert [text(parts) for parts in made] == ["abcde", "defgh", f"ghij{END}", f"klm{END}"]
    assert "".join(learned(parts) for parts in made) == f"bcdefghij{END}lm{END}"
    made = read(*rows, kind="text", context=6, join=True)
    assert [text(parts) for parts in made] == ["abcdef", f"ghij{END}k", f"lm{END}"]
    assert [learned(parts) for parts in made] == ["bcdef", f"hij{END}k", f"m{END}"]
    made = read(*rows, kind="text", context=6, join=True, overlap=1)
    assert "".join(learned(parts) for parts in made) == f"bcdefghij{END}klm{END}"


def test_longer_ones_are_refused_or_truncated_and_counted() -> None:
    rows = [{"text": "abcdefghij"}, {"text": "klm"}]
    tally = Intake()
    assert [text(parts) for parts in read(*rows, kind="text", context=5, intake=tally)] == [f"klm{END}"]
    assert (tally.rows, tally.parts, tally.refused, tally.truncated, tally.split) == (2, 1, 1, 0, 0)
    assert str(tally.problems[0]).startswith(
        "r0: the sequence is longer than the context: got 11 tokens, expected at most 5"
    )
    tally = Intake()
    made = read(*rows, kind="text", context=5, overlong="truncate", intake=tally)
    assert [text(parts) for parts in made] == ["abcde", f"klm{END}"]
    assert (tally.rows, tally.parts, tally.refused, tally.truncated, tally.split) == (2, 2, 0, 1, 0)
    tally = Intake()
    read(*rows, kind="text", context=5, overlong="split", intake=tally)
    assert (tally.rows, tally.parts, tally.refused, tally.truncated, tally.split) == (2, 3, 0, 0, 1)


def test_bad_documents_are_refused_by_place_and_reason() -> None:
    tally = Intake()
    rows = [{"text": "fine"}, {"text": ""}, {"text": 3}, ["text"], {"words": "x"}, {"text": "half \ud800"}]
    for join in (False, True):
        tally = Intake()
        assert len(read(*rows, kind="text", join=join, intake=tally)) == 1
        assert (tally.rows, tally.parts, tally.refused) == (6, 1, 5)
        assert [problem.where for problem in tally.problems] == ["r1", "r2", "r3", "r4", "r5"]
        assert [problem.what.partition(":")[0] for problem in tally.problems] == [
            "the document has no text",
            *["unknown row format"] * 3,
            "text contains a lone surrogate",
        ]
    words = small_policy()
    tally = Intake()
    made = read({"text": "take a lamp"}, {"text": "take a dragon"}, kind="text", policy=words, intake=tally)
    assert len(made) == 1 and "a word is missing from the policy's vocabulary" in tally.problems[0].what


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(2, 12), st.data())
def test_windows_and_blocks_lose_nothing(lengths: list[int], context: int, data: st.DataObject) -> None:
    """With an overlap every token but the first is a target exactly once; without one, all but each window's first."""
    overlap = data.draw(st.integers(0, context - 1))
    documents, at = [], 0
    for length in lengths:
        documents.append(np.arange(at, at + length, dtype=np.int32))
        at += length
    joined = list(build_blocks(documents, context, overlap=overlap))
    apart = [split_into_windows(text_sequence("d", document), context, overlap=overlap) for document in documents]
    for made, whole in [(joined, np.arange(at)), *zip(apart, documents, strict=True)]:
        targets = np.concatenate([whole[:0], *(parts.ids[parts.weight != 0] for parts in made)])
        starts = {int(parts.ids[0]) for parts in made}
        wanted = [token for token in whole[1:].tolist() if overlap or token not in starts]
        lost = set(wanted) - set(targets.tolist())
        assert len(set(targets.tolist())) == len(targets) and set(targets.tolist()) <= set(wanted)
        assert lost <= {int(whole[-1])} and (not overlap or not lost)  # a window of one token is left out
        for parts in made:
            assert len(parts) <= context and (np.diff(parts.ids) == 1).all()
    assert all(len(parts) == context for parts in joined[:-1])


def test_cutting_keeps_columns_and_what_is_known() -> None:
    parts = text_sequence("d", list(range(6)))
    parts = TokenSequence(
        *[
            getattr(parts, name)
            for name in ("trajectory", "ids", "written", "sampled", "logprobs", "step", "span", "weight")
        ],
        columns={"returns": np.arange(12).reshape(6, 2)},
        unit=0.5,
    )
    piece = slice_sequence(parts, 2, 5, num_context=2)
    assert piece.ids.tolist() == [2, 3, 4] and piece.weight.tolist() == [0, 0, 1] and piece.unit == 0.5
    assert piece.columns["returns"].tolist() == [[4, 5], [6, 7], [8, 9]] and piece.feed == 2
    assert parts.weight.tolist() == [0, 1, 1, 1, 1, 1]  # the whole is as it was
    late = TokenSequence(
        *[getattr(parts, name) for name in ("trajectory", "ids", "written", "sampled", "logprobs", "step", "span")],
        np.float32([0, 0, 0, 0, 0, 1]),
    )
    with pytest.raises(SampleInvalid, match=r"no learned token fits into the context.*number 5, expected .* first 3"):
        fit_to_context(late, 3, overlong="truncate")
    assert [window.ids.tolist() for window in fit_to_context(late, 4, overlong="split", overlap=1)] == [[3, 4, 5]]


# ------------------------------------------------------------------ conversations


def test_a_conversation_is_what_the_template_writes_and_replies_are_learned() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "where?"},
        {"role": "assistant", "content": "here"},
        {"role": "user", "content": f"and {START}"},
        {"role": "assistant", "content": "there"},
        {"role": "user", "content": "thanks"},
    ]
    (parts,) = read({"messages": messages})
    plain = POLICY.tokenizer.apply_chat_template(messages[:5], tokenize=False)
    assert text(parts) == plain.rstrip("\n")
    assert learned(parts) == f"here{END}there{END}"
    assert (parts.ids == 256).sum() == 5  # the one that the user spelled out stays letters
    assert parts.step.max() == 1 and set(parts.span[parts.written].tolist()) == {0, 1}
    steps = (Step("where?", "here"), Step(f"and {START}", "there"))
    flat = flatten(
        [Trajectory("r0", Task("w", "1", {}), steps)], POLICY.dialect, instructions=lambda task: "be brief", context=200
    )
    assert same(parts, flat.sequences[0])


def test_prompt_and_completion_are_a_conversation() -> None:
    whole = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    apart = [{"prompt": "q", "completion": "a"}, {"prompt": whole["messages"][:1], "completion": whole["messages"][1:]}]
    assert all(read(row)[0].ids.tolist() == read(whole)[0].ids.tolist() for row in apart)


def test_weights_of_replies() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "first", "weight": 0},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "second", "weight": 0.5},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": " "},
    ]
    (parts,) = read({"messages": messages})
    assert learned(parts) == f"second{END}" and set(parts.weight[parts.weight != 0].tolist()) == {0.5}


@pytest.mark.parametrize("name", ["weight", "loss"])
@pytest.mark.parametrize("form", ["messages", "conversations"])
@pytest.mark.parametrize(
    ("value", "weight"),
    [
        *((zero, 0.0) for zero in (0, 0.0, False, "false", "False", "0", "0.0")),
        *((nothing, 1.0) for nothing in (None, "null", "None", "")),
        *((whole, 1.0) for whole in (1, 1.0, True, "true", "1")),
        *((half, 0.5) for half in (0.5, "0.5")),
    ],
)
def test_every_spelling_of_a_weight_means_the_same(name: str, form: str, value: object, weight: float) -> None:
    """The last reply is learned whole; the first as its field says, whatever data set writes it."""
    names = ("role", "content") if form == "messages" else ("from", "value")
    turns = [dict(zip(names, turn, strict=True)) for turn in (("user", "a"), ("assistant", "b")) * 2]
    turns[1][name] = value
    (parts,) = read({form: turns})
    expected = [(f"b{END}", weight), (f"b{END}", 1.0)]
    shown = [(text(parts, parts.span == step), float(parts.weight[parts.span == step][0])) for step in (0, 1)]
    assert shown == expected


def test_both_sides_that_repeat_the_prompt_read_it_once() -> None:
    """UltraFeedback's layout: the prompt as text, and both sides as whole conversations."""
    sides = [[user("What is 2+2?"), reply(answer)] for answer in ("4", "5")]
    plain = {"prompt": "What is 2+2?", "chosen": "4", "rejected": "5"}
    told_twice = {"prompt": "What is 2+2?", "chosen": sides[0], "rejected": sides[1]}
    for chosen, rejected in (read(row, kind="pairs") for row in (plain, told_twice)):
        assert text(chosen) == f"{START}user\nWhat is 2+2?{END}\n{START}assistant\n4{END}"
        assert (learned(chosen), learned(rejected)) == (f"4{END}", f"5{END}")
    whole = {"prompt": [user("What is 2+2?")], "completion": sides[0]}
    assert text(read(whole)[0]) == text(read(plain)[0]), "of a pair the chosen side can be learned"


def test_thoughts_that_the_template_has_no_place_for_are_counted() -> None:
    intake = Intake()
    read(
        {"messages": [user(), reply("a", reasoning_content="because")]}, {"messages": [user(), reply()]}, intake=intake
    )
    assert intake.thoughts_left_out == 1
    assert intake.forms == {"messages": 2}


THOUGHTFUL = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and message['reasoning_content'] %}"
    "<think>\n{{ message['reasoning_content'] }}\n</think>\n\n{% endif %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>\n"
    "{\"name\": \"{{ call['function']['name'] }}\", \"arguments\": {{ call['function']['arguments'] | tojson }}}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOOK = {"name": "look", "arguments": {"at": "map"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning_content": "because"}, f"<think>\nbecause\n</think>\n\na{END}"),
        ({"thinking": "because"}, f"<think>\nbecause\n</think>\n\na{END}"),
        (
            {"content": [{"type": "thinking", "thinking": "because"}, {"type": "text", "text": "a"}]},
            f"<think>\nbecause\n</think>\n\na{END}",
        ),
        (
            {"tool_calls": [{"type": "function", "function": LOOK}]},
            f'a<tool_call>\n{{"name": "look", "arguments": {{"at": "map"}}}}\n</tool_call>{END}',
        ),
        (
            {"content": None, "function_call": {"name": "look", "arguments": '{"at": "map"}'}},
            f'<tool_call>\n{{"name": "look", "arguments": {{"at": "map"}}}}\n</tool_call>{END}',
        ),
    ],
)
def test_thoughts_and_calls_are_learned(fields: dict[str, object], expected: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = THOUGHTFUL
    policy = replace(byte_policy(context=400), tokenizer=tokenizer, dialect=dialect_for(tokenizer))
    intake = Intake()
    (parts,) = read({"messages": [user(), {**reply(), **fields}]}, policy=policy, intake=intake)
    assert learned(parts) == expected and intake.thoughts_left_out == 0


def user(content: object = "q") -> dict[str, object]:
    return {"role": "user", "content": content}


def reply(content: object = "a", **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [user()]}, "the conversation has no reply to learn"),
        ({"messages": [user(), reply("")]}, "the conversation has no reply to learn"),
        ({"messages": [user(), reply(), reply()]}, "message 2 is a reply that follows a reply"),
        ({"messages": [user(), reply(None, tool_calls=[CALL])]}, "it drops a turn of the assistant that calls tools"),
        ({"messages": [user(), reply(weight=float("nan"))]}, "the weight of a reply is not a number"),
        (
            {"messages": [user(), reply(weight="yes")]},
            "the weight of a reply is not a number: got yes, expected a finite",
        ),
        ({"messages": [user(), reply(weight=[1])]}, "the weight of a reply is not a number"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "the message has no known role"),
        ({"messages": [user(3), reply()]}, "the content of a message is not text"),
        ({"messages": [user("\udfff"), reply()]}, "text contains a lone surrogate"),
        ({"messages": "hello"}, "unknown row format"),
        ({"prompt": "q", "completion": []}, "neither text nor messages"),
        ({"text": "q"}, "unknown row format: got ['text']"),
        (None, "unknown row format: got NoneType"),
    ],
)
def test_bad_conversations_are_refused_by_place_and_reason(row: Any, reason: str) -> None:
    tally = Intake()
    good = {"messages": [user(), reply()]}
    assert len(read(good, row, good, intake=tally)) == 2
    assert (tally.rows, tally.parts, tally.refused) == (3, 2, 1)
    assert tally.problems[0].where == "r1" and reason in tally.problems[0].what


def test_only_the_first_hundred_problems_are_kept() -> None:
    tally = Intake()
    assert read(*[None] * 250, intake=tally) == []
    assert tally.refused == 250 and len(tally.problems) == 100


# ------------------------------------------------------------------ pairs


def test_pairs_share_their_prompt_and_learn_the_replies() -> None:
    prompt = [user("a"), reply("b"), user("c")]
    rows = [
        {"prompt": prompt, "chosen": "good", "rejected": [reply("bad")]},
        {"chosen": [*prompt, reply("good")], "rejected": [*prompt, reply("bad")]},
    ]
    one, other = read(rows[0], kind="pairs"), read(rows[1], kind="pairs")
    for chosen, rejected in (one, other):
        assert (learned(chosen), learned(rejected)) == (f"good{END}", f"bad{END}")
        assert text(chosen).replace("good", "bad") == text(rejected)
        assert (chosen.trajectory, rejected.trajectory) == ("r0/chosen", "r0/rejected")
    assert all(same(a, b) for a, b in zip(one, other, strict=True))


def test_pairs_that_are_too_long_stay_pairs() -> None:
    short = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    long = {"prompt": "q", "chosen": "yes" * 20, "rejected": "no"}
    hidden = {"prompt": "q" * 90, "chosen": "yes", "rejected": "no"}
    tally = Intake()
    made = read(short, long, hidden, short, kind="pairs", context=60, intake=tally)
    assert [parts.trajectory for parts in made] == ["r0/chosen", "r0/rejected", "r3/chosen", "r3/rejected"]
    assert (tally.rows, tally.parts, tally.refused) == (4, 4, 2)
    tally = Intake()
    made = read(short, long, hidden, short, kind="pairs", context=60, overlong="truncate", intake=tally)
    assert [parts.trajectory[:2] for parts in made] == ["r0", "r0", "r1", "r1", "r3", "r3"]
    assert (tally.refused, tally.truncated) == (1, 1) and len(made[2]) == 60
    assert "no learned token fits into the context" in tally.problems[0].what


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "q", "chosen": "a", "rejected": "a"}, "both sides of the pair are equal: got a"),
        (
            {"chosen": [user(), reply()], "rejected": [user(), reply()]},
            "both sides of the pair are equal: got no reply",
        ),
        ({"chosen": [user(), reply()], "rejected": [user()]}, "the conversation has no reply to learn"),
        ({"chosen": "a", "rejected": "b"}, "the pair of texts has no prompt"),
        ({"prompt": "q", "chosen": "a"}, "unknown row format"),
        ({"prompt": "q", "chosen": "a", "rejected": ""}, "the conversation has no reply to learn"),
        ({"prompt": [user(), reply()], "chosen": "a", "rejected": "b"}, "is a reply that follows a reply"),
    ],
)
def test_bad_pairs_are_refused_whole(row: Any, reason: str) -> None:
    tally = Intake()
    assert read(row, kind="pairs", intake=tally) == []
    assert tally.refused == 1 and reason in tally.problems[0].what


def test_readings_that_contradict_themselves() -> None:
    for wrong, reason in (
        (
            {"kind": "pairs", "overlong": "split"},
            "preference pairs cannot be split; set overlong to 'refuse' or 'truncate'",
        ),
        ({"join": True}, "only raw text documents can be joined; set join to false"),
        ({"overlap": 3}, "overlap needs windows; set overlong to 'split' or join to true"),
        ({"overlong": "split", "context": 8, "overlap": 8}, "overlap must be less than context"),
    ):
        with pytest.raises(ValidationError, match=reason):
            ReadingConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="context out of range for the policy: got 201, expected 1 to 200 tokens"):
        read({"text": "x"}, kind="text", context=201)
    with pytest.raises(ConfigError, match="expected 201 to 200 tokens"):
        read({"text": "x"}, kind="text", join=True, overlap=200)


# ------------------------------------------------------------------ sources


def test_json_lines_name_their_line_and_count_what_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_bytes(b'{"question": "q", "answer": "a"}\n\n{"question": \n\xff\n[1]\n{"question": "r", "answer": "b"}')
    tally = Intake()
    rows = read_json_lines(path, intake=tally, columns={"prompt": "question", "completion": "answer"})
    made = list(read_rows(rows, POLICY, ReadingConfig(), intake=tally))
    assert [parts.trajectory for parts in made] == ["qa.jsonl:1", "qa.jsonl:6"]
    assert (tally.rows, tally.parts, tally.refused) == (5, 2, 3)
    assert [problem.where for problem in tally.problems] == ["qa.jsonl:3", "qa.jsonl:4", "qa.jsonl:5"]
    assert tally.problems[0].what.startswith("not valid JSON: Expecting value")
    assert "unknown row format" in tally.problems[2].what


def test_a_store_streams_into_sequences(tmp_path: Path) -> None:
    policy = small_policy()
    with Store.open(tmp_path / "store", writing=True) as store:
        for number in range(12):
            store.append(episode(number))
        store.append(Trajectory("strange", Task("small", "1", {}), (Step("you see a dragon", "go"),)))
        store.append(Trajectory("idle", Task("small", "1", {}), (Step("you", ""),)))
    tally = Intake()
    stored = Store.open(tmp_path / "store").trajectories()
    made = list(read_trajectories(stored, policy, ReadingConfig(), instructions=lambda task: "", intake=tally))
    flat = flatten([episode(n) for n in range(12)], policy.dialect, instructions=lambda task: "", context=64)
    assert all(same(a, b) for a, b in zip(made, flat.sequences, strict=True))
    assert (tally.rows, tally.parts, tally.refused) == (14, 12, 2)
    assert [problem.where for problem in tally.problems] == ["strange", "idle"]
    tally = Intake()
    reading = ReadingConfig(context=20, overlong="split", overlap=4)
    some = list(
        read_trajectories([episode(n) for n in range(12)], policy, reading, instructions=lambda task: "", intake=tally)
    )
    assert sum((p.weight != 0).sum() for p in some) == sum((p.weight != 0).sum() for p in flat.sequences)
    assert tally.split == sum(len(parts) > 20 for parts in flat.sequences) > 0 and len(some) > 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    rows = [{"text": f"document {number}"} for number in range(5)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def test_data_sets_of_both_kinds_are_read(data: Path, tmp_path: Path, offline: Any) -> None:
    saved = offline.Dataset.from_list([{"text": f"document {number}"} for number in range(5)])
    saved.save_to_disk(str(tmp_path / "saved"))
    offline.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "splits"))
    texts = []
    for found in (open_dataset(data), open_dataset(tmp_path / "saved"), open_dataset(tmp_path / "splits"), saved):
        made = list(read_rows(read_dataset_rows(found, name="d"), POLICY, ReadingConfig(kind="text")))
        assert [parts.trajectory for parts in made] == [f"d:{number}" for number in range(5)]
        texts.append([text(parts) for parts in made])
    assert texts[0] == texts[1] == texts[2] == texts[3] and texts[0][4] == f"document 4{END}"
    with pytest.raises(ConfigError, match=r"unknown split 'trian'.*did you mean 'train'"):
        open_dataset(tmp_path / "splits", split="trian")


def test_data_sets_that_cannot_be_read(data: Path, tmp_path: Path, offline: Any) -> None:
    with pytest.raises(ConfigError, match="not found"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SampleInvalid, match="cannot be read as a data set"):
        open_dataset(tmp_path / "empty")
    (data / "train.jsonl").write_text('{"text": "a"}\n{"text": ', encoding="utf-8")
    with pytest.raises(SampleInvalid, match="'d' cannot be read"):
        list(read_dataset_rows(open_dataset(data), name="d"))


def test_without_datasets_the_extra_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[data\]'"):
        open_dataset(data)


def test_digests_tell_what_tokens_depend_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("one", encoding="utf-8")
    first = file_digest(path)
    assert first == file_digest(path) and file_digest(path, path) != first
    path.write_text("two", encoding="utf-8")
    assert file_digest(path) != first and file_digest(tmp_path) == file_digest(path)
    other = byte_policy(context=200, begin=True)
    seen = {
        source_digest(first, POLICY, ReadingConfig()),
        source_digest(first, other, ReadingConfig()),
        source_digest(first, POLICY, ReadingConfig(kind="text")),
        source_digest(first, POLICY, ReadingConfig(context=100)),
        source_digest(first, small_policy(), ReadingConfig()),
        source_digest(file_digest(path), POLICY, ReadingConfig()),
    }
    assert len(seen) == 6
    assert source_digest(first, POLICY, ReadingConfig()) == source_digest(
        first, byte_policy(context=200), ReadingConfig()
    )
    assert vocabulary_digest(POLICY.tokenizer) == vocabulary_digest(byte_policy().tokenizer)
    assert vocabulary_digest(POLICY.tokenizer) != vocabulary_digest(small_policy().tokenizer)
