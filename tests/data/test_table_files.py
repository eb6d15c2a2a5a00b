"""Rows of a user's table: every form gives the same rows, and a bad one is told in one sentence."""

from __future__ import annotations

import csv
import gzip
import json
import math
from datetime import date

import pytest

from evolvent.data.tables import iterate_rows, read_table
from evolvent.errors import ConfigError, SampleInvalid

ROWS = [{"prompt": f"what is {n} + {n}?", "answer": str(2 * n)} for n in range(8)]


def write_file(folder, form: str):
    path = folder / "rows"  # the name does not say which form it is
    if form == "lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    elif form == "array":
        path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    elif form in ("csv", "tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]), delimiter="," if form == "csv" else "\t")
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("form", ["lines", "array", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("as_text", [False, True])
def test_file_gives_the_rows(tmp_path, form, as_text):
    path = write_file(tmp_path, form)
    assert [row.values for row in read_table(str(path) if as_text else path)] == ROWS


def test_data_set_gives_the_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_list(ROWS)
    assert [row.values for row in read_table(dataset)] == ROWS
    dataset.save_to_disk(str(tmp_path / "saved"))
    assert [row.values for row in read_table(tmp_path / "saved")] == ROWS
    splits = read_table(datasets.DatasetDict({"train": dataset, "validation": dataset}))
    assert [row.split for row in splits] == ["train"] * 8 + ["dev"] * 8


def test_cells_become_json_values():
    row = read_table([{"a": math.nan, "b": date(2026, 1, 2), "c": (1, 2), "d": {"e": 1.5}, 3: True}])[0]
    assert row.values == {"a": None, "b": "2026-01-02", "c": [1, 2], "d": {"e": 1.5}, "3": True}


def test_cells_of_csv_stay_as_they_are_written(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('prompt,answer\n"two\nlines, and a comma",007\n"x",0.50\n', encoding="utf-8")
    assert [row.values for row in read_table(path)] == [
        {"prompt": "two\nlines, and a comma", "answer": "007"},
        {"prompt": "x", "answer": "0.50"},
    ]


def test_bad_rows_are_kept_with_their_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n[1]\n{"prompt": \n', encoding="utf-8")
    bad = [row for row in read_table(path) if row.problem]
    assert [row.where for row in bad] == ["rows.jsonl:2", "rows.jsonl:3"]
    assert "expected an object" in bad[0].problem and "not valid JSON" in bad[1].problem
    assert "not JSON" in read_table([{"a": object()}])[0].problem
    path.write_text("a,b\n1\n", encoding="utf-8")
    assert "2 cells of the header" in read_table(path)[0].problem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"PAR1 broken", "cannot be read as Parquet"),
        (b"\xff\xfe\x01,2", "UTF-8"),
    ],
)
def test_unreadable_file_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="missing cannot be read"):
        read_table(tmp_path / "missing")
    with pytest.raises(ConfigError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(ConfigError, match="not a table: got int"):
        read_table(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown split: got part"):
        read_table({"part": ROWS})


CHATS = [
    {
        "id": "a",
        "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "content": "No", "weight": 0.0},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "Yes"},
        ],
    },
    {"id": "b", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
]


def pack(folder, name: str):
    """Writes the chats in a format, also by `datasets`, and returns the path."""
    path = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in CHATS)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode() if ".jsonl" in name else json.dumps(CHATS).encode()))
    elif name.endswith(".jsonl"):
        path.write_text("\ufeff" + lines, encoding="utf-8")
    elif name.endswith(".json"):
        path.write_text(json.dumps(CHATS, indent=1), encoding="utf-8")
    else:
        dataset = pytest.importorskip("datasets").Dataset.from_list(CHATS)
        dataset.to_parquet(str(path)) if name.endswith(".parquet") else dataset.save_to_disk(str(path))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz", "a.parquet", "saved"])
def test_chats_are_the_same_rows_in_every_format(tmp_path, name):
    """A table fills the weight that most messages do not have with null; it is left out again."""
    rows = list(iterate_rows(pack(tmp_path, name)))
    assert [row for _, row in rows] == CHATS
    first = {"a.jsonl": "a.jsonl:1", "saved": "saved:0"}.get(name, f"{name}:1")
    assert rows[0][0] == first


def test_json_fields_of_datasets_are_decoded(tmp_path):
    """`datasets` stores what differs from row to row as JSON text in Arrow: content that is text or parts, schemas."""
    datasets = pytest.importorskip("datasets")
    parts = [{"type": "text", "text": "a"}]
    rows = [
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yo", "weight": 0}]},
        {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "b"}], "tools": None},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "parameters": {"n": {"type": "a"}}}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    made = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert "Json" in str(made.features)
    made.save_to_disk(str(tmp_path / "saved"))
    made.to_parquet(str(tmp_path / "rows.parquet"))
    for written in ("saved", "rows.parquet"):
        found = [row for _, row in iterate_rows(tmp_path / written)]
        assert [row["messages"] for row in found] == [row["messages"] for row in rows]
        assert found[2]["tools"] == rows[2]["tools"]


@pytest.mark.parametrize(
    ("name", "content", "where", "problem"),
    [
        ("a.json", '[{"a": 1}, {"a": }, {"a": 3}]', "a.json:2", "not valid JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": \n{"a": 3}\n', "a.jsonl:2", "not valid JSON"),
        ("a.csv", 'a,b\n1,2\n"1"x,2\n3,4\n', "a.csv:3", "the row is not CSV"),
        ("a.csv", "a,b\n1,2\n1\n3,4\n", "a.csv:3", "2 cells of the header"),
        ("a.csv", b"a,b\n1,2\n\xff,2\n3,4\n", "a.csv:3", "the row is not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n{"a": 3}\n', "a.jsonl:2", "not valid JSON"),
    ],
)
def test_bad_row_is_named_and_the_others_are_read(tmp_path, name, content, where, problem):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(iterate_rows(path))
    assert [location for location, row in rows if isinstance(row, SampleInvalid)] == [where]
    assert problem in str(rows[1][1]) and len(rows) == 3


def test_packed_csv_and_long_cells_are_read(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(f'prompt,completion\nq,"{"x" * 200_000}"\n'.encode()))
    assert [len(row["completion"]) for _, row in iterate_rows(path)] == [200_000]
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        list(iterate_rows(path))


def test_a_large_cell_is_read_and_leaves_the_limit_of_other_csv_readers(tmp_path):
    limit = csv.field_size_limit()
    file = tmp_path / "large.csv"
    file.write_text(f"prompt,answer\n{'x' * (limit + 10)},1\n", encoding="utf-8")
    (row,) = read_table(file)
    assert len(row.values["prompt"]) == limit + 10 and csv.field_size_limit() == limit
