"""The tutorial is walked: its files are written, its commands run in order, and what is exact comes out as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "tutorial.md"
NAMES = re.compile(r"`([\w.]+\.(?:py|toml))`:\s*\n\n```", re.MULTILINE)
STEP = re.compile(r"^\$ (.+)$", re.MULTILINE)
# What depends on no rounding, and not on which episode ended first, as what look.py shows does.
EXACT = ("worlds show", "worlds audit", "collect", "view")
SHORT = 5  # steps that need no training: those of every run of the tests
REPORTS = ("runs/cloned/report.html", "runs/searched/report.html", "runs/evolved/report.html")


def steps():
    """(command, what the page says it prints) in order."""
    for block in blocks(PAGE):
        if block.text.startswith("$ "):
            parts = STEP.split(block.text)
            yield from zip(parts[1::2], parts[2::2], strict=True)


def walk(folder: Path, most: int) -> list[tuple[str, str, str]]:
    """Do what the page says, in this folder; (command, printed, shown on the page) of each step."""
    text = PAGE.read_text(encoding="utf-8")
    code = [block.text for block in blocks(PAGE) if block.kind in ("python", "toml")]
    for name, content in zip(NAMES.findall(text), code, strict=True):
        (folder / name).write_text(content, encoding="utf-8")
    site = folder / "site"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(site), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    done = []
    for command, shown in list(steps())[: most + 1]:
        words = shlex.split(command)
        if words[0] == "pip":
            words = [
                sys.executable,
                *["-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target"],
            ]
            words += [str(site), "."]
        ran = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=900)
        assert ran.returncode == (1 if "audit" in command else 0), f"{command}\n{ran.stdout}\n{ran.stderr}"
        done.append((command, ran.stdout, shown))
    return done


def test_it_has_ten_steps_and_no_file_without_a_name():
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^## (\d+)\. ", text, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert NAMES.findall(text) == ["change.py", "pyproject.toml", "look.py"]


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_first_steps_print_what_the_page_says(tmp_path):
    done = walk(tmp_path, SHORT - 1)
    assert len(done) == SHORT
    exact = [(printed, shown) for command, printed, shown in done if any(name in command for name in EXACT)]
    assert len(exact) == 3
    for printed, shown in exact:
        missing = [line for line in lines(shown) if line not in lines(printed)]
        assert not missing, printed


@pytest.mark.long
def test_all_of_it(tmp_path):
    done = walk(tmp_path, 99)
    assert len(done) == len(list(steps())) >= 11
    printed = {command.split(" --")[0]: said for command, said, _ in done}
    solved = re.search(r"70 +([\d.]+)%", printed["evolvent eval runs/cloned"])
    assert solved and float(solved[1]) > 25, "the clone solves tasks that it has not seen"
    assert "evolve ended" in printed["evolvent evolve"] or "evolve" in printed["evolvent evolve"]
    assert all((tmp_path / report).stat().st_size > 10_000 for report in REPORTS)
    card = (tmp_path / "published" / "README.md").read_text(encoding="utf-8")
    assert "change" in card and (tmp_path / "published" / "model.safetensors").is_file()
