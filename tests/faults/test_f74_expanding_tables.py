"""Fault 74: a Parquet file of a kilobyte that expands to gigabytes, and one that is damaged.

Its metadata, and where those do not say it its dictionaries, are looked at before a row is read; the error names the
number of bytes or rows and the limit. Every reader of Parquet opens it in that way.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evolvent.cli.main import main
from evolvent.curate.shards import list_shards, read_shard
from evolvent.data.tables import iterate_rows, read_table
from evolvent.errors import ConfigError, CorruptRecord, LimitExceeded
from evolvent.store import parquet_limits
from evolvent.store.parquet_limits import open_parquet
from evolvent.worlds.datasci.table import read_table as read_scores
from evolvent.worlds.web_replay.records import read_ranks

SRC = Path(__file__).parents[2] / "src"


def repeated(value, count: int) -> pa.DictionaryArray:
    """A value that stands once in memory and in the file."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([value]))


def write(path: Path, column: pa.Array, **options) -> Path:
    pq.write_table(pa.table({"text": column}), path, compression="zstd", **options)
    return path


@pytest.fixture
def dictionary(tmp_path):
    """2,000 rows of a megabyte each, in less than two kilobytes."""
    path = write(tmp_path / "d.parquet", repeated("x" * 2**20, 2_000))
    assert path.stat().st_size < 2_000
    return path


def test_a_dictionary_is_measured_before_its_rows_are_written_out(dictionary):
    before = pa.total_allocated_bytes()
    with pytest.raises(
        LimitExceeded, match=r"expands to too much: bytes: got 2,\d{3},\d{3},\d{3}, expected at most 1,073"
    ):
        open_parquet(dictionary)
    assert pa.total_allocated_bytes() - before < 2**24


READERS = {
    "rows": lambda path: list(iterate_rows(path)),
    "table": read_table,
    "shards": lambda path: [list(read_shard(shard)) for shard in list_shards(path)],
    "ranks": lambda path: read_ranks(path, max_rank=3),
    "scores": read_scores,
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_it(dictionary, name):
    with pytest.raises(LimitExceeded, match="expands to too much: bytes"):
        READERS[name](dictionary)


def test_the_command_names_the_reason(dictionary, capsys):
    assert main(["data", "stats", str(dictionary)]) in (1, 2)
    error = capsys.readouterr().err
    assert "expands to too much: bytes: got 2," in error and "Traceback" not in error and "write there" not in error


def test_pages_that_unpack_to_much_are_refused_by_the_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_limits, "MIN_LIMIT", 2**20)
    monkeypatch.setattr(parquet_limits, "MAX_RATIO", 10)
    monkeypatch.setattr(parquet_limits, "_measure", lambda *_: pytest.fail("it was read"))
    path = write(tmp_path / "p.parquet", pa.array(["x" * 2_000] * 2_000), use_dictionary=False)
    assert path.stat().st_size < 20_000
    with pytest.raises(LimitExceeded, match="expands to too much: bytes: got 4,"):
        open_parquet(path)


@pytest.mark.parametrize("value", [7, 0.5, True, None])
def test_a_number_that_repeats_is_counted_by_rows(tmp_path, monkeypatch, value):
    monkeypatch.setattr(parquet_limits, "MIN_ROWS", 50_000)
    path = write(tmp_path / "n.parquet", pa.array([value] * 100_000, pa.float64() if value is None else None))
    with pytest.raises(LimitExceeded, match="expands to too much: rows: got 100,000, expected at most 50,000"):
        open_parquet(path)


def test_texts_in_lists_and_structs_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_limits, "MIN_LIMIT", 2**22)
    rows = [[{"role": "user", "content": "z" * 5_000}]] * 2_000
    with pytest.raises(LimitExceeded, match="expands to too much: bytes: got 10,"):
        open_parquet(write(tmp_path / "l.parquet", pa.array(rows)))


def test_long_texts_are_read_in_small_batches(tmp_path):
    path = write(tmp_path / "long.parquet", repeated("x" * 2**20, 300))
    parquet = open_parquet(path)
    with parquet.file:
        assert parquet.batch_rows <= 128
        assert [row["text"] for batch in parquet.iterate_batches() for row in batch.to_pylist()] == ["x" * 2**20] * 300


def test_ordinary_files_are_read_as_they_were(tmp_path):
    rows = [{"text": f"row {number % 7}", "n": number, "tags": ["a", "b"][: number % 3]} for number in range(5_000)]
    path = tmp_path / "o.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)
    assert [row for _, row in iterate_rows(path)] == rows
    assert [row for shard in list_shards(path) for _, row in read_shard(shard)] == rows
    assert open_parquet(path).batch_rows == 1024


def test_a_damaged_file_is_not_called_one_that_cannot_be_written(tmp_path):
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": [f"row {number} " * 9 for number in range(900)]}), path, compression="zstd")
    shards = list_shards(path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 255
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        list(iterate_rows(path))
    with pytest.raises(CorruptRecord, match=r"has changed|is not valid parquet"):
        list(read_shard(shards[0]))
    path.write_bytes(bytes(raw[:-40]))
    with pytest.raises(CorruptRecord, match="is not valid parquet"):
        list_shards(path)


def test_no_reader_opens_parquet_unmeasured():
    texts = {path.name: path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    opening = {
        name for name, text in texts.items() if re.search(r"ParquetFile\(|(?<!pyarrow\.)parquet\.read_table\(", text)
    }
    assert opening == {"parquet_limits.py", "query.py"}, "open it by open_parquet"
    assert {name for name, text in texts.items() if "pq.read_table(" in text} == {"query.py", "saved.py"}
    assert "with open_parquet(path).file" in texts["saved.py"]
    assert "check_parquet(file, path)" in texts["query.py"], "the store measures its own parts"
