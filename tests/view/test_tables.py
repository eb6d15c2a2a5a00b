"""The plain table: the right figures, in 80 columns and in 40, with nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import write_run
from rich.console import Console

from evolvent.view import ReportData, read_run, summary


def printed(data: ReportData, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=True, color_system=None).print(summary(data, width=width))
    return file.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "run", rounds=2, tasks=40))


@pytest.mark.parametrize("width", [200, 80, 76, 75, 40])
def test_every_panel_and_the_sentence_fit(data: ReportData, width: int) -> None:
    text = printed(data, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.isascii()
    words = " ".join(text.split())
    assert "Exploration on one seed: evolve ended" in words
    assert "..." not in words
    for row in data.results:
        if row.arm in ("base", "evolve", "control") and row.round != 1 and row.mean is not None:
            assert f"{100 * row.mean:.1f} %" in text


def test_a_row_holds_what_the_files_hold(data: ReportData) -> None:
    rows = {(row.arm, row.round): row for row in data.results if (row.world, row.tier) == ("lookup", "combo")}
    (line,) = [line for line in printed(data, 80).splitlines() if line.startswith("lookup") and "combo" in line]
    cells = [cell.strip() for cell in line.split("|")]
    means = [rows[key].mean or 0.0 for key in (("base", 0), ("evolve", 2), ("control", 2))]
    assert cells[2:6] == ["40", *(f"{100 * mean:.1f} %" for mean in means)]
    assert cells[6].startswith(f"{100 * (means[1] - means[2]):+.1f} [")


def test_a_run_without_results_is_one_sentence() -> None:
    assert printed(ReportData(), 80).split()[0] == "Exploration:"


def test_names_cannot_command_the_terminal(data: ReportData, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202e\nnext"
    rows = tuple(
        replace(row, world=evil, tier=evil) for row in data.results if row.world == "lookup" and row.tier == "evo"
    )
    for width in (80, 40):
        text = printed(replace(data, results=rows), width)
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
        assert "U+001B" in text.replace("\n", "")
    assert json.dumps(text)  # no lone surrogates either
