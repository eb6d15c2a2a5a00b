"""Fault 49: names from data that would leave their folder, or that no file system takes.

UnsafePath with the reason, whatever the spelling; good names stay as they are.
"""

from __future__ import annotations

import json
import re

import pytest
from small_store import episode, filled

from evolvent.errors import UnsafePath
from evolvent.files import safe_join
from evolvent.store.store import Store

NAMES = [
    "",
    ".",
    "..",
    "../../x",
    "a/../../x",
    "/etc/passwd",
    "//x",
    "~/x",
    "..\\x",
    "a\\..\\x",
    "C:\\x",
    "C:x",
    "%2e%2e/x",
    "%2E%2e%2fx",
    "%252e%252e/x",
    "%25252e%25252e/x",
    "..%2fx",
    "..%5cx",
    "%2fetc",
    "a\0b",
    "a%00b",
    "a\nb",
    "\x7f",
    "x" * 300,
    "é" * 130,
    "a/" + "x" * 300,
    "con",
    "NUL.txt",
    "aux .json",
    "com1",
    "LPT9.x",
    "a.",
    "a ",
    "a//b",
    "./a",
    "a/.",
    "\ud800",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_unsafe_names_are_refused_with_the_reason(tmp_path, name):
    with pytest.raises(UnsafePath, match=f"unsafe file name: got {re.escape(repr(name)[:190])}.*Refused because "):
        safe_join(tmp_path, name)


def test_a_linked_folder_that_leads_out_is_refused(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to("/etc")
    with pytest.raises(UnsafePath, match="symbolic link"):
        safe_join(tmp_path / "root", "link/passwd")


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    path = tmp_path / "t"
    filled(path, 1)
    Store.open(path).seal()
    row = json.loads((path / "manifest.jsonl").read_text())
    (path / "manifest.jsonl").write_text(json.dumps({**row, "part": "../../../secret.parquet"}) + "\n")
    with pytest.raises(UnsafePath):
        list(Store.open(path).trajectories())


def test_ids_never_become_paths(tmp_path):
    """An id like a path is only text: it is stored and found, and no file has its name."""
    from dataclasses import replace

    names = ["../../x", "/etc/passwd", "..\\x", "%2e%2e/x"]
    with Store.open(tmp_path / "t", writing=True) as store:
        for name in names:
            store.append(replace(episode(0), id=name))
        store.seal()
        assert list(store.ids()) == names and store.get("../../x").id == "../../x"
    assert {p.name for p in tmp_path.iterdir()} == {"t"}
