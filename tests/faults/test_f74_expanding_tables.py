"""Fault 74: a Parquet or Arrow file of a kilobyte that expands to gigabytes, and one that is damaged.

Its metadata, and where those do not say it its dictionaries, are looked at before a row is read; the error names the
number of bytes or rows and the limit. Every reader of Parquet and Arrow opens it in that way.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from evolvent.cli.main import main
from evolvent.curate.shards import list_shards, read_shard
from evolvent.data.tables import iterate_rows, read_table
from evolvent.errors import ConfigError, CorruptRecord, LimitExceeded
from evolvent.store import parquet_limits
from evolvent.store.arrow_limits import _measure_message
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


# ------------------------------------------------------------------------------------------ Arrow


def write_arrow(path: Path, column: pa.Array, *, as_file: bool = False, compression: str | None = None) -> Path:
    table = pa.table({"text": column})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with opened(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


ARROW_READERS = {name: READERS[name] for name in ("rows", "table", "shards")}


def long_views() -> pa.Array:
    """200 views of one long text."""
    view = pa.array(["x" * 2**20], pa.string_view())
    buffers = view.buffers()
    return pa.Array.from_buffers(pa.string_view(), 200, [None, pa.py_buffer(buffers[1].to_pybytes() * 200), buffers[2]])


EXPANDING = {
    "compressed": lambda: (pa.array(["x" * 2_000] * 9_000), "zstd"),
    "lz4": lambda: (pa.array(["x" * 2_000] * 9_000), "lz4"),
    "dictionary": lambda: (repeated("x" * 2**20, 200), None),
    "runs": lambda: (pa.RunEndEncodedArray.from_arrays(pa.array([200], pa.int32()), pa.array(["x" * 2**20])), None),
    "views": lambda: (long_views(), None),
    "nulls": lambda: (pa.nulls(2**25), None),
    "nulls in a list": lambda: (pa.ListArray.from_arrays(pa.array([0, 2**25], pa.int32()), pa.nulls(2**25)), None),
}


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("kind", EXPANDING)
def test_an_arrow_file_is_measured_before_its_rows_are_written_out(tmp_path, monkeypatch, kind, as_file):
    monkeypatch.setattr(parquet_limits, "MIN_LIMIT", 2**23)
    monkeypatch.setattr(parquet_limits, "MAX_RATIO", 4)
    column, compression = EXPANDING[kind]()
    path = write_arrow(tmp_path / "a.arrow", column, as_file=as_file, compression=compression)
    assert path.stat().st_size < 2**22
    for name, read in ARROW_READERS.items():
        with pytest.raises(LimitExceeded, match=r"expands to too much: (bytes|rows)"):
            read(path)
            pytest.fail(name)


def test_a_saved_data_set_is_measured(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk(tmp_path / "set")
    assert [row["text"] for row in read_rows_of(tmp_path / "set")] == ["a", "b"]
    (shard,) = (tmp_path / "set").glob("*.arrow")
    monkeypatch.setattr(parquet_limits, "MIN_LIMIT", 2**20)
    monkeypatch.setattr(parquet_limits, "MAX_RATIO", 4)
    write_arrow(shard, pa.array(["x" * 2_000] * 2_000), compression="zstd")
    with pytest.raises(LimitExceeded, match="expands to too much: bytes"):
        read_table(tmp_path / "set")


def read_rows_of(path: Path) -> list[dict[str, object]]:
    return [dict(row.values) for row in read_table(path)]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("as_file", [False, True])
def test_ordinary_arrow_files_are_read_as_they_were(tmp_path, compression, as_file):
    rows = [
        {"text": f"row {n % 7}", "n": n, "tags": ["a", "b"][: n % 3], "deep": {"x": [{"y": 0.5 * n}]}, "none": None}
        for n in range(3_000)
    ]
    table = pa.Table.from_pylist(rows)
    coded = table.set_column(0, "text", table["text"].dictionary_encode())
    path = tmp_path / "o.arrow"
    opened = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with opened(str(path), coded.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(coded, max_chunksize=700)
    expected = [{**row, "deep": {"x": [{"y": row["deep"]["x"][0]["y"]}]}} for row in rows]
    assert [row for _, row in iterate_rows(path)] == expected
    assert [row for shard in list_shards(path) for _, row in read_shard(shard)] == expected


def test_a_plain_file_of_one_batch_is_not_taken_for_one_that_expands(tmp_path, monkeypatch):
    """Where nothing is compressed, no batch counts for more than the file that holds it."""
    monkeypatch.setattr(parquet_limits, "MAX_CHUNK", 1)
    monkeypatch.setattr(parquet_limits, "MIN_LIMIT", 1)
    for column in (pa.array([7] * 50_000, pa.int8()), pa.array([[1, 2], [3]] * 20_000, pa.list_(pa.int8()))):
        path = write_arrow(tmp_path / "plain.arrow", column)
        assert [row["text"] for _, row in iterate_rows(path)] == column.to_pylist()


def test_sizes_of_compressed_buffers_are_those_that_they_unpack_to(tmp_path):
    column = pa.array([f"row {n}" * 20 for n in range(500)])
    plain, packed = (write_arrow(tmp_path / f"{name}.arrow", column, compression=name or None) for name in ("", "zstd"))
    sizes = []
    for path in (plain, packed):
        with pa.memory_map(str(path)) as source:
            sizes.append([_measure_message(message) for message in pa.ipc.MessageReader.open_stream(source)])
    assert sizes[0][0] == (0, 0), "the schema"
    rows, num_bytes = sizes[1][1]
    assert rows == 500 and num_bytes == 4 * 501 + sum(len(text) for text in column.to_pylist())
    assert 0 <= sizes[0][1][1] - num_bytes < 64, "without compression buffers are padded"


@pytest.mark.parametrize("position", range(8, 400, 13))
def test_a_damaged_arrow_file_is_an_error_or_is_read(tmp_path, position):
    path = write_arrow(tmp_path / "d.arrow", pa.array([f"row {n}" for n in range(50)]))
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x55
    path.write_bytes(raw)
    try:
        rows = list(iterate_rows(path))
    except (ConfigError, LimitExceeded):
        return
    assert len(rows) <= 50


def test_no_reader_opens_parquet_unmeasured():
    texts = {path.name: path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    opening = {
        name for name, text in texts.items() if re.search(r"ParquetFile\(|(?<!pyarrow\.)parquet\.read_table\(", text)
    }
    assert opening == {"parquet_limits.py", "query.py"}, "open it by open_parquet"
    assert {name for name, text in texts.items() if "pq.read_table(" in text} == {"query.py", "saved.py"}
    assert "with open_parquet(path).file" in texts["saved.py"]
    assert "check_parquet(file, path)" in texts["query.py"], "the store measures its own parts"


def test_no_reader_opens_arrow_unmeasured():
    texts = {path.name: path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}
    opening = {name for name, text in texts.items() if re.search(r"ipc\.(open_stream|open_file|MessageReader)", text)}
    assert opening == {"arrow_limits.py", "offline.py"}, "read it by iterate_arrow; offline data refuse what expands"
