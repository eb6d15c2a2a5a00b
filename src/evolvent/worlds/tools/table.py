"""A spreadsheet as an immutable value: cells at A1 positions, notes, frozen cells, and formulas.

Every change returns a new table. Formulas are computed once, when they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from evolvent.errors import InvalidAction

__all__ = [
    "OPERATORS",
    "Cell",
    "Position",
    "Table",
    "compute_formula",
    "format_position",
    "iterate_range",
    "parse_position",
    "to_cell",
]

Cell = str | int | float
Position = tuple[int, int]  # row and column, from 0
OPERATORS = ("SUM", "AVERAGE", "COUNT", "MAX", "MIN", "MINUS", "PRODUCT")

_A1 = re.compile(r"([A-Z])([1-9][0-9]?)")
_NUMBER = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?")
_MAX_ROWS, _MAX_COLUMNS = 99, 26  # what A1 positions of one letter and two digits reach
_MAX_CELL_LENGTH = 200  # characters of a cell or a note


@dataclass(frozen=True, slots=True)
class Table:
    """One sheet.

    Args:
        rows: the cells; all rows have the same length, an empty cell is "".
        notes: notes by position.
        frozen: number of frozen rows and columns.
    """

    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[tuple[Position, str], ...] = field(default=())
    frozen: tuple[int, int] = (0, 0)

    @property
    def width(self) -> int:
        return len(self.rows[0]) if self.rows else 0

    def cell_at(self, position: Position) -> Cell:
        """Returns a cell, or an empty one outside the table."""
        row, column = position
        return self.rows[row][column] if row < len(self.rows) and column < self.width else ""

    def note_at(self, position: Position) -> str:
        """Returns the note at a position, or ""."""
        return next((note for note_position, note in self.notes if note_position == position), "")

    def with_note(self, position: Position, text: str) -> Table:
        """Returns the table with a note; an empty text removes the note."""
        notes = {**dict(self.notes), position: text[:_MAX_CELL_LENGTH]}
        return replace(
            self, notes=tuple(sorted((note_position, note) for note_position, note in notes.items() if note))
        )

    def with_cells(self, cells: Iterable[tuple[Position, object]]) -> Table:
        """Returns the table with values written; it grows as needed, and empty last rows and columns are dropped."""
        new_cells = [(position, to_cell(value)) for position, value in cells]
        rows = max([len(self.rows), *(row + 1 for (row, _), _ in new_cells)])
        columns = max([self.width, *(column + 1 for (_, column), _ in new_cells)])
        grown = [[*row, *("",) * (columns - len(row))] for row in self.rows]
        grown += [[""] * columns for _ in range(rows - len(grown))]
        for (row, column), cell in new_cells:
            grown[row][column] = cell
        return Table(_trim(grown), self.notes, self.frozen)

    def insert_lines(self, values: Sequence[Sequence[object]], index: int, *, rows: bool) -> Table:
        """Returns the table with rows (or columns) inserted before row (column) `index`, counted from 0."""
        lines = self.rows if rows else tuple(zip(*self.rows, strict=True))
        if not 0 <= index <= len(lines):
            raise InvalidAction("expected an index next to the table", value=index)
        new_lines = [tuple(to_cell(value) for value in line) for line in values]
        width = max([len(line) for line in (*lines, *new_lines)], default=0)
        if len(lines) + len(new_lines) > (_MAX_ROWS if rows else _MAX_COLUMNS) or width > (
            _MAX_COLUMNS if rows else _MAX_ROWS
        ):
            raise InvalidAction("the table would be too large", value=len(new_lines))
        combined = [(*line, *("",) * (width - len(line))) for line in (*lines[:index], *new_lines, *lines[index:])]
        notes = tuple(
            (_shift_position(position, index, len(new_lines), rows=rows), note) for position, note in self.notes
        )
        return Table(_trim(combined if rows else list(zip(*combined, strict=True))), notes, self.frozen)

    def delete_lines(self, indexes: Iterable[int], *, rows: bool) -> Table:
        """Returns the table without some rows (or columns), counted from 0; never without all of them."""
        lines = self.rows if rows else tuple(zip(*self.rows, strict=True))
        deleted = set(indexes)
        remaining = [line for position, line in enumerate(lines) if position not in deleted]
        if not deleted or not deleted <= set(range(len(lines))) or not remaining:
            raise InvalidAction("expected indexes of the table , not all of them", value=sorted(deleted))
        axis = 0 if rows else 1
        remaining_notes = [(position, note) for position, note in self.notes if position[axis] not in deleted]
        notes = tuple(
            (
                _shift_position(
                    position,
                    position[axis],
                    -sum(deleted_index < position[axis] for deleted_index in deleted),
                    rows=rows,
                ),
                note,
            )
            for position, note in remaining_notes
        )
        return Table(_trim(remaining if rows else list(zip(*remaining, strict=True))), notes, self.frozen)

    def sort_by(self, column: int, *, descending: bool) -> Table:
        """Returns the table sorted by a column, below header and frozen rows: numbers, then text, then empty cells."""
        if not 0 <= column < self.width:
            raise InvalidAction("expected the number of a column of the table", value=column + 1)
        num_fixed = max(1, self.frozen[0])
        order = sorted(
            range(num_fixed, len(self.rows)), key=lambda row: _sort_key(self.rows[row][column]), reverse=descending
        )
        order.sort(key=lambda row: self.rows[row][column] == "")
        new_row_of = {row: num_fixed + new_index for new_index, row in enumerate(order)}
        notes = tuple(sorted(((new_row_of.get(row, row), col), note) for (row, col), note in self.notes))
        return Table((*self.rows[:num_fixed], *(self.rows[row] for row in order)), notes, self.frozen)


def _trim(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
    """Returns rows without empty last rows and columns."""
    if rows and rows[0] and any(cell != "" for cell in rows[-1]) and any(row[-1] != "" for row in rows):
        return tuple(map(tuple, rows))
    height = max((index + 1 for index, row in enumerate(rows) if any(cell != "" for cell in row)), default=0)
    width = max((index + 1 for row in rows for index, cell in enumerate(row) if cell != ""), default=0)
    return tuple(tuple(row[:width]) for row in rows[:height])


def _shift_position(position: Position, index: int, offset: int, *, rows: bool) -> Position:
    row, column = position
    if rows:
        return (row + offset if row >= index else row), column
    return row, (column + offset if column >= index else column)


def _sort_key(cell: Cell) -> tuple[int, float, str]:
    return (0, float(cell), "") if not isinstance(cell, str) else (1, 0.0, cell)


def to_cell(value: object) -> Cell:
    """Converts a value to a cell: text that is a number becomes a number, whole numbers have no fraction."""
    if isinstance(value, bool) or value is None:
        return {True: "TRUE", False: "FALSE", None: ""}[value]
    if isinstance(value, str):
        text = value.strip()[:_MAX_CELL_LENGTH]
        if not _NUMBER.fullmatch(text):
            return text
        value = float(text)
    if not isinstance(value, (int, float)):
        raise InvalidAction("expected text or a number in a cell", value=value)
    return int(value) if value == int(value) else round(float(value), 2)


def parse_position(text: str) -> Position:
    """Parses an A1 position; raises InvalidAction for other text."""
    position_match = _A1.fullmatch(text.strip().upper())
    if position_match is None:
        raise InvalidAction("expected a position like B2", value=text)
    return int(position_match[2]) - 1, ord(position_match[1]) - ord("A")


def format_position(position: Position) -> str:
    """Formats a position in A1 notation; raises InvalidAction outside A1 to Z99."""
    row, column = position
    if not (0 <= row < _MAX_ROWS and 0 <= column < _MAX_COLUMNS):
        raise InvalidAction("expected a row and a column from 1 on", value=position)
    return f"{chr(ord('A') + column)}{row + 1}"


def iterate_range(start: str, end: str) -> Iterator[Position]:
    """Yields all positions from one corner to another, row by row."""
    (top, left), (bottom, right) = parse_position(start), parse_position(end)
    if top > bottom or left > right:
        raise InvalidAction("expected the start of the range before its end", value=(start, end))
    yield from ((row, column) for row in range(top, bottom + 1) for column in range(left, right + 1))


def compute_formula(operator: str, cells: Sequence[Cell]) -> Cell:
    """Computes a formula over the numbers among some cells, rounded to hundredths; `MINUS` needs exactly two."""
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    if operator not in OPERATORS:
        raise InvalidAction("expected SUM , AVERAGE , COUNT , MAX , MIN , MINUS or PRODUCT", value=operator)
    if operator == "COUNT":
        return len(numbers)
    if operator == "SUM":
        return to_cell(sum(numbers))
    if not numbers or (operator == "MINUS" and len(numbers) != 2):
        raise InvalidAction("expected other cells with numbers", value=operator)
    if operator == "MINUS":
        return to_cell(numbers[0] - numbers[1])
    if operator == "AVERAGE":
        return to_cell(sum(numbers) / len(numbers))
    result = prod(numbers) if operator == "PRODUCT" else max(numbers) if operator == "MAX" else min(numbers)
    if not -1e12 < result < 1e12:
        raise InvalidAction("the result is too large", value=operator)
    return to_cell(result)
