"""The tables of `docs/mechanisms.md`: a test computes each, and the page must hold it as it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "mechanisms.md"


def check_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Asserts that the page holds this table; the failure shows the table to paste. Floats have two digits."""
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    expected = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    assert expected in PAGE.read_text(encoding="utf-8"), f"paste this table into {PAGE.name}:\n{expected}"
