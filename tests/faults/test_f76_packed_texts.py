"""Fault 76: a packed file of rows that unpacks to very much, and a GGUF file that lies about its size or its layers.

Unpacking stops at a limit by the size of the packed file, and says so; a GGUF file is compared with its own header.
"""

from __future__ import annotations

import gzip
import json
import os

import pytest

from evolvent.cli.main import main
from evolvent.data import jsonl
from evolvent.data.jsonl import open_unpacked, read_rows, row_files
from evolvent.data.tables import iterate_rows
from evolvent.errors import ConfigError, EvolventError, Incomplete, LimitExceeded
from evolvent.models.gguf import read_gguf_header
from evolvent.models.inspection import check_config
from evolvent.models.policy import load_policy


@pytest.fixture
def low_limit(monkeypatch):
    monkeypatch.setattr(jsonl, "_MIN_UNPACKED_BYTES", 2**18)


def packed(path, data: bytes):
    path.write_bytes(gzip.compress(data))
    return path


ROWS = b"".join(json.dumps({"text": f"row {number} " + "x" * 90}).encode() + b"\n" for number in range(20_000))
BOMBS = {
    "rows.jsonl.gz": b'{"text": "' + b" " * 2**21 + b'"}\n',
    "rows.json.gz": b"[" + b" " * 2**21 + b"1]",
    "rows.csv.gz": b"a,b\n" + b"1,2\n" * 2**17,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_much_is_refused(low_limit, tmp_path, name):
    path = packed(tmp_path / name, BOMBS[name])
    assert path.stat().st_size < 2**13
    with pytest.raises(LimitExceeded, match=r"unpacks to too much: got more than [\d,]+ bytes"):
        list(iterate_rows(path))


def test_readers_of_whole_files_refuse_it(low_limit, tmp_path, capsys):
    path = packed(tmp_path / "rows.jsonl.gz", BOMBS["rows.jsonl.gz"])
    with pytest.raises(LimitExceeded):
        read_rows(row_files(path), lambda row, *_: row)
    assert main(["data", "stats", str(path)]) in (1, 2)
    assert "unpacks to too much" in capsys.readouterr().err


def test_ordinary_packed_rows_are_read(low_limit, tmp_path):
    """Two megabytes of rows, a tenth of that packed."""
    path = packed(tmp_path / "rows.jsonl.gz", ROWS)
    assert len(list(iterate_rows(path))) == 20_000
    with open_unpacked(path) as file:
        assert file.readline() == ROWS[: ROWS.index(b"\n") + 1]
        file.seek(0)
        assert file.read() == ROWS


def test_a_damaged_packed_file_is_a_typed_error(tmp_path):
    path = packed(tmp_path / "rows.jsonl.gz", ROWS)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(row_files(path), lambda row, *_: row)
    with pytest.raises(EvolventError, match=r"cannot be unpacked|cannot be read"):
        list(iterate_rows(path))


def gguf(path, *, values: int = 1, tensors: int = 0, rest: bytes = b"") -> None:
    key = b"general.architecture"
    head = b"GGUF" + (3).to_bytes(4, "little") + tensors.to_bytes(8, "little") + values.to_bytes(8, "little")
    entry = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + (5).to_bytes(8, "little") + b"llama"
    path.write_bytes(head + entry + rest)


@pytest.mark.parametrize(("values", "tensors"), [(2**60, 0), (1, 2**60), (2, 0)])
def test_a_gguf_header_that_counts_beyond_its_end_is_refused(tmp_path, values, tensors):
    gguf(tmp_path / "m.gguf", values=values, tensors=tensors)
    with pytest.raises(Incomplete, match="is cut off"):
        read_gguf_header(tmp_path / "m.gguf")


def test_a_gguf_array_longer_than_the_file_is_refused(tmp_path):
    array = (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little")
    for kind in (8, 4):
        gguf(tmp_path / "m.gguf", values=2, rest=array + kind.to_bytes(4, "little") + (2**60).to_bytes(8, "little"))
        with pytest.raises(Incomplete, match="is cut off"):
            read_gguf_header(tmp_path / "m.gguf")


def test_the_layers_of_a_gguf_file_are_compared_with_its_header(tmp_path):
    shapes = {f"blk.{number}.attn_q.weight": (8, 8) for number in range(2)}
    check_config(tmp_path, {"num_hidden_layers": 2}, shapes)
    with pytest.raises(ConfigError, match=r"got 3 layers in config\.json, expected 2"):
        check_config(tmp_path, {"num_hidden_layers": 3}, shapes)


def test_a_pipe_with_the_name_of_a_gguf_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    for path in (tmp_path, tmp_path / "m.gguf"):
        with pytest.raises(EvolventError):
            load_policy(path)
