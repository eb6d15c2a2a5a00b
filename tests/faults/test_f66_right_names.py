"""Fault 66: a damaged table is told as damaged, not as one that cannot be written; `--help` names verbs that exist."""

import errno
import re
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from evolvent.cli.main import VERBS, find_module, main
from evolvent.files import disk_error


@pytest.mark.parametrize("place", [10, 60, -300, -20])
def test_a_flipped_parquet_file_is_told_as_damaged(tmp_path, capsys, place):
    file = tmp_path / "rows.parquet"
    columns = {name: [f"{name} {number}" for number in range(200)] for name in ("prompt", "completion")}
    parquet.write_table(pa.table(columns), file)
    content = bytearray(file.read_bytes())
    content[place] ^= 0xFF
    file.write_bytes(content)
    code = main(["data", "stats", str(file)])
    output = "".join(capsys.readouterr())
    assert "writable" not in output and "fault of evolvent" not in output
    assert code == 0 or "rows.parquet" in output.replace("\n", "")


def test_an_error_of_the_disk_keeps_its_advice():
    assert "writable" in str(disk_error(OSError(errno.EACCES, "Permission denied"), Path("a")))
    damaged = str(disk_error(OSError("Corrupt snappy compressed data."), Path("a")))
    assert damaged == "cannot read a: its content is damaged (Corrupt snappy compressed data). Get the file again."


def test_the_help_names_verbs_that_exist(capsys):
    for verb, about in VERBS.items():
        assert callable(import_module(f"evolvent.cli.{find_module(verb)}").run)
        listed, mark, last = about.rpartition(" | ")
        if not mark:
            continue
        assert main([verb, "--help"]) == 0
        existing = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
        named = [*listed.replace(":", "").split(" | "), last.split()[0].strip(":")]
        assert set(named) <= set(existing), (verb, named, existing)
