"""Fault 76: a packed file of rows that unpacks to very much.

Unpacking stops at a limit by the size of the packed file, and says so.
"""

from __future__ import annotations

import gzip
import json

import pytest

from evolvent.cli.main import main
from evolvent.data import jsonl
from evolvent.data.jsonl import open_unpacked, read_rows, row_files
from evolvent.data.tables import iterate_rows
from evolvent.errors import ConfigError, EvolventError, LimitExceeded


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
