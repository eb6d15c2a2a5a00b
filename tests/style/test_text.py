"""What no file of the project may name: a machine's paths, a mirror, unfinished business."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from house import ROOT

FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", ".ci")
# Written in pieces, so that this file does not hold what it looks for.
MACHINE = re.compile("/" + r"(?:root|work|home/\w+|Users/\w+)/|" + "file:/" + r"//\w+/|C:" + r"\\Users|/tmp/\w")
MIRROR = re.compile("index" + r"[-_]url|https?://[\w.-]*(?:mirror|artifactory|nexus|proxy|registry)", re.IGNORECASE)
UNFINISHED = re.compile(r"\b(?:" + "TO" + "DO|FIX" + "ME|X" + r"XX)\b")
SKIPPED = {".png", ".parquet", ".safetensors", ".pyc"}


def files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            hidden = {"__pycache__", "evolvent.egg-info", "runs"} & set(path.parts)
            if path.is_file() and not hidden and path.suffix not in SKIPPED:
                yield path


def _found(pattern: re.Pattern[str]) -> list[str]:
    hits = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if match := pattern.search(line):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    return hits


def test_files_are_found():
    names = {path.name for path in files()}
    assert {"pyproject.toml", "errors.py", "test_text.py", "design.md"} <= names


def test_no_path_of_a_machine():
    assert _found(MACHINE) == []


def test_no_mirror():
    assert _found(MIRROR) == []


def test_nothing_unfinished():
    assert _found(UNFINISHED) == []
