"""Every Python block of README and docs runs in an empty folder, or says why not and is compiled with its imports."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import runpy
import signal
import tomllib
from contextlib import contextmanager

import pytest
from doc_blocks import ROOT, blocks, pages
from preludes import FRAGMENTS, PRELUDES

from evolvent.cli.main import main

SECONDS = 600
LONG = {
    "docs/sequences.md",
    "docs/belief.md",
    "docs/memory.md",
}  # pages whose blocks train, or play hundreds of decisions
OPTIONAL = {"evolvent.worlds.teams.extras"}
TUTORIAL = "docs/tutorial.md"  # its blocks are one walk: test_tutorial.py
PYTHON = [block for page in pages() for block in blocks(page) if block.kind == "python" and block.page != TUTORIAL]
TOML = [block for page in pages() for block in blocks(page) if block.kind == "toml" and block.page != TUTORIAL]


def found(block, table):
    """What a table of (page, how a block begins) holds for this one; None where it holds nothing."""
    entries = [value for (page, head), value in table.items() if page == block.page and block.text.startswith(head)]
    assert len(entries) < 2, f"{block}: two entries"
    return entries[0] if entries else None


def reason(block):
    return block.reason or found(block, FRAGMENTS) or ""


@contextmanager
def limited(seconds):
    def late(number, frame):
        raise TimeoutError(f"a block runs for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def marked(block):
    return pytest.param(block, marks=pytest.mark.long if block.page in LONG else ())


@pytest.mark.parametrize("block", [marked(one) for one in PYTHON if not reason(one)], ids=str)
def test_a_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text((found(block, PRELUDES) or "") + "\n" + block.text, encoding="utf-8")
    with limited(SECONDS):
        runpy.run_path(str(script))


@pytest.mark.parametrize("block", [one for one in PYTHON if reason(one)], ids=lambda one: f"{one}, {reason(one)}")
def test_what_is_not_run_is_of_this_library(block):
    """It compiles, its modules exist, and they have the names that it takes from them."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("evolvent"):
            assert importlib.util.find_spec(node.module), node.module
            if node.module not in OPTIONAL:
                module = importlib.import_module(node.module)
                assert not [alias.name for alias in node.names if not hasattr(module, alias.name)]


@pytest.mark.parametrize("block", TOML, ids=str)
def test_settings_are_settings(block, tmp_path, capsys):
    file = tmp_path / "settings.toml"
    file.write_text(block.text, encoding="utf-8")
    assert tomllib.loads(block.text)
    assert main(["search", str(file), "--print-config"]) == 0, capsys.readouterr().err


def test_every_entry_is_of_a_block():
    """What was said of a block that is gone, or begins otherwise now, is gone too."""
    for page, head in (*FRAGMENTS, *PRELUDES):
        assert [block for block in PYTHON if block.page == page and block.text.startswith(head)], (page, head)


def test_shell_blocks_name_files_that_are_there():
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:examples|benchmarks|docs|tests)/[\w/]+\.(?:py|md|sh))`", text):
            assert (ROOT / name).is_file(), f"{page.name}: {name}"
        for name in set(re.findall(r"python -m (benchmarks\.\w+)", text)) - {"benchmarks.NAME"}:
            assert importlib.util.find_spec(name), f"{page.name}: {name}"
        for name in re.findall(r"\bpython (examples/\w+\.py)", text):
            assert (ROOT / name).is_file(), f"{page.name}: {name}"
