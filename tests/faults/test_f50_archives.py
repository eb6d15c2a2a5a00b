"""Fault 50: archives with entries that climb out, links and devices, and small ones that unpack to very much.

Nothing here unpacks an archive into a folder: what is read is read in memory, entry by entry, under limits that are
looked at before the first byte. An entry with a name or kind that is not plain is listed as bad, and the others go on.
"""

from __future__ import annotations

import ast
import json
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from evolvent.errors import ConfigError, EvolventError, LimitExceeded
from evolvent.memory.loaders import read_trad
from evolvent.worlds.plume.grids import read_grid

SRC = Path(__file__).parents[2] / "src"
EPISODE = json.dumps(
    {
        "task": "put some mug in shelf.",
        "traj": [
            {"obs": "You are in a room.", "act": "look", "thought": "where am I"},
            {"obs": "Nothing happens."},
        ],
    }
)
CLIMBING = ("../../out.json", "/out.json", "..\\out.json", "%2e%2e/out.json", "a/../../out.json", "C:/out.json")


def entry(name: str, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name)
    found.external_attr = (kind | 0o644) << 16
    return found


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", CLIMBING)
def test_an_entry_that_climbs_out_is_listed_and_nothing_is_written(tmp_path, monkeypatch, name):
    inside = tmp_path / "here" / "deep"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    with zipfile.ZipFile(inside / "a.zip", "w") as archive:
        archive.writestr(entry(name), EPISODE)
        archive.writestr(entry("good.json"), EPISODE)
    found = read_trad(inside / "a.zip")
    assert [one.id for one in found.trajectories] == ["trad/good"]
    assert len(found.invalid) == 1 and "unsafe file name" in str(found.invalid[0])
    assert files_below(tmp_path) == {"here", "here/deep", "here/deep/a.zip"}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_are_listed(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry("bad.json", kind), "/etc/passwd")
        archive.writestr(entry("good.json"), EPISODE)
    found = read_trad(tmp_path / "a.zip")
    assert [one.id for one in found.trajectories] == ["trad/good"]
    assert "an archive entry is not a regular file" in str(found.invalid[0])


def test_what_unpacks_to_very_much_is_refused_before_it_is_unpacked(tmp_path):
    """300 entries of a megabyte of zeros: a hundredth of a percent of that on disk."""
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(300):
            archive.writestr(entry(f"{number}.json"), bytes(1 << 20), zipfile.ZIP_DEFLATED)
    assert (tmp_path / "bomb.zip").stat().st_size < 1 << 20
    with pytest.raises(LimitExceeded, match="314572800 bytes"):
        read_trad(tmp_path / "bomb.zip")


def test_an_index_that_lies_about_a_size_gets_no_more_than_it_says(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(entry("long.json"), bytes(3 << 20), zipfile.ZIP_DEFLATED)
    raw = path.read_bytes()
    assert raw.count((3 << 20).to_bytes(4, "little")) == 2, "the entry's head and the index"
    path.write_bytes(raw.replace((3 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    found = read_trad(path)
    assert not found.trajectories and len(found.invalid) == 1


def test_a_grid_in_a_small_file_that_holds_large_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "g.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 24,)})
            for _ in range(128):
                file.write(bytes(1 << 20))
    assert (tmp_path / "g.npz").stat().st_size < 1 << 20
    with pytest.raises(ConfigError, match="too large"):
        read_grid(tmp_path / "g.npz")


def test_what_is_no_archive_is_a_typed_error(tmp_path):
    for data in (b"", b"PK\x03\x04" + bytes(50), b"not a zip"):
        (tmp_path / "a.zip").write_bytes(data)
        with pytest.raises(EvolventError):
            read_trad(tmp_path / "a.zip")


def test_no_code_here_unpacks_into_a_folder():
    wrong = []
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            imported = [one.name for one in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if name in ("extractall", "unpack_archive") or "tarfile" in imported:
                wrong.append(f"{path.name}:{node.lineno}")
    assert not wrong
