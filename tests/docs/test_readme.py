"""The README stays a front door: short, with the installation and pictures near its top."""

from __future__ import annotations

import re

from doc_blocks import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_read_in_two_minutes():
    assert len(README.splitlines()) <= 160
    assert len(README.split()) <= 1300


def test_the_installation_stands_near_the_top():
    installs = [number for number, line in enumerate(README.splitlines(), 1) if "pip install" in line]
    assert installs[0] <= 30


def test_every_picture_of_the_readme_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\((docs/[^)]+)\)", README)
    assert {"docs/terminal.svg", "docs/report.png"} <= set(pictures)
    for name in pictures:
        assert (ROOT / name).stat().st_size < 150_000, name


def test_the_terminal_is_a_picture_without_scripts():
    svg = (ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8")
    assert "@keyframes" in svg and "prefers-reduced-motion" in svg
    assert "<script" not in svg and 'href="http' not in svg
    assert "evolvent train grpo" in svg and "100%" in svg
