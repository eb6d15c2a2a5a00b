"""Process data of others: every layout from rows written by hand, refusals, sizes, round trips."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.data.jsonl import Refusals, read_json_rows
from evolvent.errors import ConfigError, SampleInvalid, StoreUnavailable
from evolvent.reward.formats import read_labels, write_labels
from evolvent.reward.labels import STEP_TAG, SpanLabels

SHEPHERD = {
    "input": f"2 - 1 + 3 = ? Step 1: 2 - 1 = 1 {STEP_TAG}\nStep 2: 1 + 3 = 5 {STEP_TAG}",
    "label": "2 - 1 + 3 = ? Step 1: 2 - 1 = 1 +\nStep 2: 1 + 3 = 5 -",
    "task": "GSM8K",
}


def rating(text: str, value: int | None = 1, **more: Any) -> dict[str, Any]:
    return {"text": text, "rating": value, "flagged": False, **more}


def prm(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"question": {"problem": "p", "ground_truth_answer": "1"}, "label": {"steps": list(steps)}}


def step(*offered: dict[str, Any], chosen: int | None = 0, human: Any = None) -> dict[str, Any]:
    return {"completions": list(offered), "chosen_completion": chosen, "human_completion": human}


def write(path: Path, *rows: Any) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def read(path: Path, kind: Any = None, **more: Any) -> tuple[list[SpanLabels], Refusals]:
    refused = Refusals()
    return list(read_labels(path, kind, refused=refused, **more)), refused


def test_math_shepherd_signs_are_read_where_the_tags_stand(tmp_path: Path) -> None:
    (row,), refused = read(write(tmp_path / "a.jsonl", SHEPHERD))
    assert row == SpanLabels(
        "2 - 1 + 3 = ?", ("Step 1: 2 - 1 = 1", "Step 2: 1 + 3 = 5"), (1.0, 0.0), "math-shepherd", {"task": "GSM8K"}
    )
    assert not refused.count


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"label": SHEPHERD["label"].replace("5 -", "5 *")}, "label"),
        ({"label": SHEPHERD["label"].replace("= 1 +", "= 7 +")}, "label"),
        ({"label": SHEPHERD["label"] + " more"}, "label"),
        ({"label": "2 + 1" + SHEPHERD["label"][5:]}, "label"),
        ({"label": None}, "label"),
        ({"input": SHEPHERD["input"].replace("Step 2", "Step 1")}, "input"),
        ({"input": SHEPHERD["input"].replace("Step 1", "Step 3")}, "input"),
        ({"input": SHEPHERD["input"] + " no tag"}, "input"),
    ],
)
def test_math_shepherd_rows_that_are_refused(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    path = write(tmp_path / "a.jsonl", SHEPHERD, {**SHEPHERD, **change}, SHEPHERD)
    rows, refused = read(path)
    assert len(rows) == 2 and refused.count == 1
    assert (refused.rows[0].file, refused.rows[0].line, refused.rows[0].field) == (str(path), 2, field)


def test_prm800k_emits_the_chosen_way_and_each_alternative(tmp_path: Path) -> None:
    """1, 3, 2 completions: 4 chains, 2 of them partial, where a product would have made 6."""
    row = prm(
        step(rating("a")),
        step(rating("b1", 0), rating("b2", -1), rating("b3"), chosen=2),
        step(rating("c1", -1), rating("c2"), chosen=1),
    )
    found, refused = read(write(tmp_path / "a.jsonl", row))
    assert [one.spans for one in found] == [("a", "b1"), ("a", "b2"), ("a", "b3", "c1"), ("a", "b3", "c2")]
    assert [one.labels for one in found] == [(1, 1), (1, 0), (1, 1, 0), (1, 1, 1)] and not refused.count
    assert {one.labels[1] for one in read(tmp_path / "a.jsonl", neutral="bad")[0][:1]} == {0.0}
    assert read(tmp_path / "a.jsonl", neutral="none")[0][0].labels == (1.0, None)


def test_prm800k_where_a_human_went_on_or_nobody_did(tmp_path: Path) -> None:
    human = prm(
        step(rating("a1", -1), chosen=None, human={"text": "h", "rating": None}), step(rating("b", 1, flagged=True))
    )
    stopped = prm(step(rating("a1", -1), rating("a2", -1), chosen=None))
    found, refused = read(write(tmp_path / "a.jsonl", human, stopped))
    assert [(one.spans, one.labels) for one in found] == [
        (("a1",), (0,)),
        (("h", "b"), (None, None)),
        (("a1",), (0,)),
        (("a2",), (0,)),
    ]
    assert not refused.count


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (prm(step(rating("a", 2))), "label.steps[0].completions[0].rating"),
        (prm(step(rating("a", True))), "label.steps[0].completions[0].rating"),
        (prm(step(rating("a"), chosen=1)), "label.steps[0].chosen_completion"),
        (prm(step(rating("a"), chosen=-1)), "label.steps[0].chosen_completion"),
        (prm(step(rating("a"), chosen=None), step(rating("b"))), "label.steps[1]"),
        (
            prm(step(rating("a")), {"completions": [{"rating": 1}], "chosen_completion": 0}),
            "label.steps[1].completions[0].text",
        ),
        (prm(), "label.steps"),
        (prm(step(chosen=None)), "label.steps"),
    ],
)
def test_a_prm800k_row_is_refused_as_a_whole(tmp_path: Path, row: Any, field: str) -> None:
    found, refused = read(write(tmp_path / "a.jsonl", row, prm(step(rating("fine")))), "prm800k")
    assert [one.spans for one in found] == [("fine",)] and [one.field for one in refused.rows] == [field]


def test_math_aps_prefixes_label_their_last_span(tmp_path: Path) -> None:
    row = {
        "question": "q?",
        "final_answer": "3",
        "reasoning_steps": [
            {"solution_prefix": "q?\nfirst\n\nsecond", "mc_value": 0.25},
            {"solution_prefix": "q? ab", "mc_value": 1},
            {"solution_prefix": "q? caf\u00e9", "mc_value": 1},
        ],
    }
    found, refused = read(write(tmp_path / "a.jsonl", row))
    assert [(one.spans, one.labels) for one in found] == [(("first", "second"), (None, 0.25))]
    assert refused.count == 2 and refused.rows[0].field == "reasoning_steps[1].solution_prefix"
    assert found[0].to_hard().labels == (None, 0.0) and found[0].to_hard(0.0).labels == (None, 1.0)
    bad = {**row, "reasoning_steps": [{"solution_prefix": "q? fine", "mc_value": 1.5}]}
    assert read(write(tmp_path / "b.jsonl", bad))[1].rows[0].field == "reasoning_steps[0].mc_value"


def test_math_aps_trees_give_a_row_for_each_leaf(tmp_path: Path) -> None:
    def node(text: str, value: float, *children: Any) -> dict[str, Any]:
        return {"text": text, "mc_value": value, "children": list(children)}

    one, foreign = node("one", 0.75, node("two", 1.0), node("2", 0.0)), node("\u00fcber", 0.5, node("below", 0.5))
    tree = node("q?", 0.5, one, foreign, node("last", 0.5, node("x", 0.5)))
    array = tmp_path / "a.json"
    array.write_text(json.dumps([{"question": "q?", "reasoning_steps": tree}, 7], indent=1), encoding="utf-8")
    found, refused = read(array)
    assert [(one.spans, one.labels) for one in found] == [(("one", "two"), (0.75, 1.0)), (("last",), (0.5,))]
    assert found[0].to_hard().labels == (1.0, 1.0) and found[1].to_hard().labels == (0.0,)
    assert [(one.line, one.reason) for one in refused.rows][-1] == (2, "the row is not an object: got int")
    assert refused.count == 4
    deep: Any = node("deepest", 1.0)
    for _ in range(300):
        deep = node("deep", 0.5, deep)
    ((long,), _) = read(write(tmp_path / "deep.jsonl", {"question": "q?", "reasoning_steps": deep}))
    assert len(long.spans) == 301


def test_openrs_form_and_ours_come_back(tmp_path: Path) -> None:
    rows = [SpanLabels("q1", ("a", "b"), (0.25, 0.0), "omega", {"k": 1}), SpanLabels("q2", ("c",), (None,), "x")]
    assert write_labels(tmp_path / "own.jsonl", rows) == (2, 0)
    assert read(tmp_path / "own.jsonl")[0] == rows
    assert write_labels(
        tmp_path / "openr.jsonl", [*rows, SpanLabels("q3", (f"a {STEP_TAG} b",), (1.0,))], form="openr"
    ) == (1, 2)
    raw = json.loads((tmp_path / "openr.jsonl").read_text(encoding="utf-8"))
    assert raw == {"question": "q1", "process": f"a {STEP_TAG}\nb {STEP_TAG}\n", "label": ["+", "-"]}
    assert read(tmp_path / "openr.jsonl")[0] == [SpanLabels("q1", ("a", "b"), (1.0, 0.0), "openr")]
    wrong = [{**raw, "label": ["+"]}, {**raw, "label": ["+", "?"]}, {**raw, "process": "a"}]
    assert [one.field for one in read(write(tmp_path / "bad.jsonl", *wrong))[1].rows] == ["label", "label", "process"]


def test_what_is_no_row_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps({"question": "q", "spans": ["a"], "labels": [1]}).encode()
    bad = [
        b"{",
        b"[" * 5000,
        b'{"spans": ["a"], "labels": [NaN], "question": "q"}',
        b"\xff\xfe{}",
        b'{"foo": 1}',
        b"3",
        b'{"question": "q", "spans": ["a"], "labels": [2]}',
        b'{"question": "q", "spans": [1], "labels": [1]}',
        b'{"question": "q", "spans": ["a"], "labels": [1, 1]}',
        b'{"question": "q", "spans": [], "labels": []}',
    ]
    path.write_bytes(b"\n".join([good, b"", *bad, good]))
    found, refused = read(path)
    assert len(found) == 2 and [one.line for one in refused.rows] == list(range(3, 13))
    with pytest.raises(ConfigError, match="math-aps"):
        read(path, "math_aps")
    with pytest.raises(ConfigError, match="neutral"):
        read(path, neutral="maybe")
    with pytest.raises(StoreUnavailable):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("array", [False, True])
def test_rows_beyond_the_limit_are_refused_and_memory_stays_small(tmp_path: Path, array: bool) -> None:
    path, row = tmp_path / "a.json", json.dumps({"question": "q" * 900, "spans": ["a"], "labels": [1]})
    long = json.dumps({"question": "q" * 3_000_000, "spans": ["a"], "labels": [1]})
    with path.open("w", encoding="utf-8") as file:
        file.write("[" if array else "")
        for number in range(4000):
            file.write(("," if array else "\n") if number else "")
            file.write(long if number == 2 else row)
        file.write("]" if array else "\n")
    tracemalloc.start()
    refused = Refusals()
    count = sum(1 for _ in read_labels(path, refused=refused, max_bytes=2000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3999 and [one.line for one in refused.rows] == [3] and peak < 2_000_000


JSON: Any = st.recursive(
    st.text() | st.integers() | st.just('"\\'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(JSON, max_size=6), st.booleans(), st.integers(1, 9))
def test_an_array_is_cut_where_its_items_end(
    tmp_path_factory: pytest.TempPathFactory, items: list[Any], plain: bool, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(json.dumps(items, ensure_ascii=plain, indent=None if plain else 1), encoding="utf-8")
    refused = Refusals()
    with patch("evolvent.data.jsonl._CHUNK", chunk):
        assert [row for _, row in read_json_rows(path, refused)] == items and not refused.count


def test_labels_are_checked() -> None:
    for spans, labels in ((("a",), ()), ((), ()), (("a",), (1.5,)), (("a",), (float("nan"),))):
        with pytest.raises(SampleInvalid):
            SpanLabels("q", spans, labels)


def test_numbers_and_fields_that_are_none_refuse_their_row_alone(tmp_path: Path) -> None:
    """A whole number that no float holds, a bound that is a word, completions that are no list."""
    good = {"question": "q", "spans": ["a"], "labels": [1]}
    rows = [
        {**good, "labels": [10**400]},
        {**good, "meta": {"hard_above": "x"}},
        {**good, "meta": {"hard_above": 2}},
        prm({"completions": 5, "chosen_completion": 0}),
        prm({"completions": {"0": 1}, "chosen_completion": 0}),
        {"question": "q", "reasoning_steps": [{"solution_prefix": "abc", "mc_value": 10**400}]},
        good,
    ]
    refused = Refusals()
    found = list(read_labels(write(tmp_path / "a.jsonl", *rows), refused=refused))
    assert [one.labels for one in found] == [(1.0,)] and [one.line for one in refused.rows] == [1, 2, 3, 4, 5, 6]
    assert {one.field for one in refused.rows} >= {"labels", "label.steps[0].completions"}
