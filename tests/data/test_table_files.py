"""Rows of a user's table: every form gives the same rows, and a bad one is told in one sentence."""

from __future__ import annotations

import csv
import json
import math
from datetime import date

import pytest

from evolvent.data.tables import read_table
from evolvent.errors import ConfigError

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
