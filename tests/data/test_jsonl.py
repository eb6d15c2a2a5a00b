"""Rows of JSON files: one way to read a line, and one way to report a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolvent.data.jsonl import Refusals, read_json_lines, read_json_rows, read_rows
from evolvent.errors import ConfigError, Problem

LINES = '{"a": 1}\n\n{broken\n2\n'


@pytest.fixture
def row_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_read_json_lines_with_a_broken_line_reports_file_and_line(row_file: Path) -> None:
    problems: list[Problem] = []
    assert list(read_json_lines(row_file, problems)) == [(1, {"a": 1}), (4, 2)]
    assert [problem.where for problem in problems] == ["rows.jsonl, line 3"]
    assert "not valid JSON (Expecting property name" in str(problems[0]) and "the line is left out" in str(problems[0])


def test_read_json_lines_of_a_missing_file_names_its_purpose(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: this file cannot be read .*needed for answers"):
        list(read_json_lines(tmp_path / "gone.json", [], hint="needed for answers"))


def test_read_rows_and_read_json_rows_leave_out_the_same_line(row_file: Path) -> None:
    refused = Refusals()
    rows = [row for _, row in read_json_rows(row_file, refused)]
    parsed, problems = read_rows([(row_file, row_file.name)], lambda value, file, index: value)
    assert rows == list(parsed) == [{"a": 1}, 2]
    assert (refused.count, refused.rows[0].line) == (1, 3)
    assert "line 3 is not valid JSON (Expecting property name" in str(problems[0])
