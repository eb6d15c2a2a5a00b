"""Workbooks of invented tables, drawn per task, and the tools that read and change them.

As in the original, whatever changes a sheet answers with all its values. `sort_sheet_by_col` leaves the head where it
is, merged cells all read as the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, tool
from evolvent.worlds.tools.kinds import Draw
from evolvent.worlds.tools.table import Cell, Position, Table, compute, name_of, number_of, position_of, spans

__all__ = ["COLUMNS", "ITEMS", "KINDS", "SHEETS", "TOOLS", "Book", "draw_book"]

ITEMS = NAMES
SHEETS = tuple(f"Sheet{number}" for number in range(1, 10))
COLUMNS: tuple[str, ...] = (
    "age",
    "cost",
    "height",
    "length",
    "level",
    "points",
    "price",
    "profit",
    "rank",
    "score",
    "size",
    "sold",
    "speed",
    "stock",
    "weight",
    "width",
)
KINDS: tuple[str, ...] = ("cloth", "clay", "glass", "metal", "paper", "stone", "wax", "wood")
_ROWS, _LARGEST = (3, 4), 20

Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Book:
    """The state of the tools: all sheets, and which one is open."""

    sheets: tuple[tuple[str, Table], ...]
    opened: str | None = None

    def sheet(self, name: str) -> Table | None:
        """The sheet of that name, if there is one."""
        return dict(self.sheets).get(name)

    def table_of(self, name: str) -> Table:
        """The sheet of that name; raises InvalidAction where there is none."""
        table = self.sheet(name)
        if table is None:
            raise InvalidAction("there is no sheet of that name", value=name)
        return table

    @property
    def table(self) -> Table:
        """The open sheet; raises InvalidAction where none is."""
        table = self.sheet(self.opened) if self.opened else None
        if table is None:
            raise InvalidAction("please open a sheet before operating it", value=self.opened)
        return table

    def having(self, table: Table) -> Book:
        """The book with another table in the open sheet."""
        return replace(self, sheets=tuple((name, table if name == self.opened else one) for name, one in self.sheets))


def draw_book(draw: Draw) -> Book:
    """Two sheets: items, what they are made of, and two columns of numbers that differ within a column."""
    names = draw.some(2, SHEETS)
    return Book(tuple((name, _draw_table(draw)) for name in names))


def _draw_table(draw: Draw) -> Table:
    rows, numbers = draw.between(*_ROWS), range(1, _LARGEST + 1)
    pair = draw.some(2, KINDS)
    made = [*pair, *(draw.choice(pair) for _ in range(rows - 2))]
    items = zip(
        draw.some(rows, ITEMS), draw.some(rows, made), draw.some(rows, numbers), draw.some(rows, numbers), strict=True
    )
    return Table((("item", "kind", *draw.some(2, COLUMNS)), *items))


def _values(table: Table) -> Json:
    return [list(row) for row in table.rows]


Change = Callable[[Table, Mapping[str, Any]], Table]
Read = Callable[[Table, Mapping[str, Any]], Json]


def _changing(change: Change) -> Callable[[Book, Mapping[str, Any]], tuple[Book, Json]]:
    def run(book: Book, given: Mapping[str, Any]) -> tuple[Book, Json]:
        table = change(book.table, given)
        return book.having(table), _values(table)

    return run


def _reading(read: Read) -> Callable[[Book, Mapping[str, Any]], tuple[Book, Json]]:
    return lambda book, given: (book, read(book.table, given))


def _open(book: Book, given: Mapping[str, Any]) -> tuple[Book, Json]:
    name = given["name"].strip()
    book.table_of(name)
    return replace(book, opened=name), {"opened": name}


def _delete_sheet(book: Book, given: Mapping[str, Any]) -> tuple[Book, Json]:
    name = given["name"].strip()
    book.table_of(name)
    left = tuple((one, table) for one, table in book.sheets if one != name)
    return Book(left, None if book.opened == name else book.opened), {"deleted": name}


def _freeze(book: Book, given: Mapping[str, Any]) -> tuple[Book, Json]:
    dimension, number, table = given["dimension"], given["num"], book.table
    if dimension not in ("rows", "columns") or not 0 <= number < (
        len(table.rows) if dimension == "rows" else table.width
    ):
        raise InvalidAction("expected rows or columns and how many , fewer than all", value=given)
    frozen = (number, table.frozen[1]) if dimension == "rows" else (table.frozen[0], number)
    return book.having(replace(table, frozen=frozen)), {"frozen": [*frozen]}


def _write_note(book: Book, given: Mapping[str, Any]) -> tuple[Book, Json]:
    position = position_of(given["position"])
    return book.having(book.table.with_note(position, given["content"])), {"updated": name_of(position)}


def _grid(values: list[Any]) -> list[list[Any]]:
    """Values as rows of cells; raises InvalidAction for anything else."""
    if not values or not all(isinstance(line, list) and line for line in values):
        raise InvalidAction("expected a list of lists of values", value=values)
    if any(isinstance(value, list) for line in values for value in line):
        raise InvalidAction("expected a list of lists of values", value=values)
    return values


def _by_axis(given: Mapping[str, Any]) -> bool:
    if given["dimension"] not in ("row", "col"):
        raise InvalidAction("expected row or col as dimension", value=given["dimension"])
    return bool(given["dimension"] == "row")


def _delete(table: Table, given: Mapping[str, Any]) -> Table:
    indexes = [number_of(index) for index in given["index_list"] if not isinstance(index, list)]
    if len(indexes) != len(given["index_list"]) or not all(isinstance(index, int) for index in indexes):
        raise InvalidAction("expected whole numbers as indexes", value=given["index_list"])
    return table.deleted([int(index) - 1 for index in indexes], rows=_by_axis(given))


def _asked(given: Mapping[str, Any]) -> list[Position]:
    """The cells of a formula: a list of positions, or a range."""
    if "position_list" in given:
        if not all(isinstance(one, str) for one in given["position_list"]):
            raise InvalidAction("expected positions like B2", value=given["position_list"])
        return [position_of(one) for one in given["position_list"]]
    if "start_position" in given and "end_position" in given:
        return list(spans(given["start_position"], given["end_position"]))
    raise InvalidAction("expected start_position and end_position , or position_list", value=sorted(given))


def _formula(table: Table, given: Mapping[str, Any]) -> Cell:
    return compute(given["operator"].upper(), [table.at(position) for position in _asked(given)])


def _write_formula(table: Table, given: Mapping[str, Any]) -> Table:
    return table.written([(position_of(given["result_position"]), _formula(table, given))])


def _update_range(table: Table, given: Mapping[str, Any]) -> Table:
    places, values = list(spans(given["start_position"], given["end_position"])), _grid(given["values_list"])
    top, left = places[0]
    bottom, right = places[-1]
    if len(values) != bottom - top + 1 or any(len(row) != right - left + 1 for row in values):
        raise InvalidAction("expected as many values as the range has cells", value=values)
    return table.written(zip(places, [value for row in values for value in row], strict=True))


def _sort(table: Table, given: Mapping[str, Any]) -> Table:
    if given["order"] not in ("asc", "des"):
        raise InvalidAction("expected asc or des as order", value=given["order"])
    return table.sorted_by(given["col_num"] - 1, descending=given["order"] == "des")


def _merge(table: Table, given: Mapping[str, Any]) -> Table:
    places = list(spans(given["start_position"], given["end_position"]))
    return table.written((place, table.at(places[0])) for place in places)


def _range(table: Table, given: Mapping[str, Any]) -> Json:
    rows: dict[int, list[Cell]] = {}
    for row, column in spans(given["start_position"], given["end_position"]):
        rows.setdefault(row, []).append(table.at((row, column)))
    return list(rows.values())


def _filter(table: Table, given: Mapping[str, Any]) -> Json:
    """Positions of the cells that equal a text, or one of several between `|`."""
    wanted = {number_of(word) for word in given["query"].removeprefix("^").removesuffix("$").strip("()").split("|")}
    rows, columns = given.get("in_row"), given.get("in_column")
    return [
        name_of((row, column))
        for row, line in enumerate(table.rows)
        for column, cell in enumerate(line)
        if cell in wanted and rows in (None, row + 1) and columns in (None, column + 1)
    ]


_SPAN = "start_position: string, end_position: string"
_CELLS = "start_position?: string, end_position?: string, position_list?: array"
TOOLS: tuple[ToolSpec, ...] = (
    tool(_open, "open_sheet(name: string)", "Open a sheet; needed before anything else."),
    tool(_delete_sheet, "del_sheet(name: string)", "Delete a sheet."),
    tool(_freeze, "freeze_data(dimension: string, num: integer)", "Freeze the first rows or columns."),
    tool(
        lambda book, given: (book, name_of((given["row"] - 1, given["col"] - 1))),
        "get_A1_annotation(row: integer, col: integer)",
        "The A1 position of a row and a column.",
    ),
    tool(
        _changing(lambda table, given: table.inserted(_grid(given["values_list"]), given["col_idx"] - 1, rows=False)),
        "insert_cols(values_list: array, col_idx: integer)",
        "Insert columns before a column.",
    ),
    tool(
        _changing(lambda table, given: table.inserted(_grid(given["values_list"]), given["row_idx"] - 1, rows=True)),
        "insert_rows(values_list: array, row_idx: integer)",
        "Insert rows before a row.",
    ),
    tool(
        _changing(_delete),
        "delete_batch_data(dimension: string, index_list: array)",
        "Delete rows (row) or columns (col) by their numbers.",
    ),
    tool(
        _changing(lambda table, given: table.written([(position_of(given["position"]), given["value"])])),
        "update_cell(position: string, value: any)",
        "Set a cell.",
    ),
    tool(_reading(_formula), f"get_value_by_formula({_CELLS}, operator: string)", "Compute something of cells."),
    tool(
        _changing(_write_formula),
        f"update_cell_by_formula({_CELLS}, result_position: string, operator: string)",
        "Set a cell to something computed of cells.",
    ),
    tool(_changing(_update_range), f"update_range({_SPAN}, values_list: array)", "Set the cells of a range."),
    tool(
        _changing(_sort),
        "sort_sheet_by_col(col_num: integer, order: string)",
        "Sort the rows below the head, asc or des.",
    ),
    tool(_changing(_merge), f"merge_cells({_SPAN})", "Merge the cells of a range."),
    tool(_write_note, "update_note(position: string, content: string)", "Put a note on a cell."),
    tool(
        _reading(lambda table, given: table.at(position_of(given["position"]))),
        "get_cell_value(position: string)",
        "The value of a cell.",
    ),
    tool(
        _reading(lambda table, given: table.note(position_of(given["position"]))),
        "get_note(position: string)",
        "The note on a cell.",
    ),
    tool(_reading(lambda table, given: _values(table)), "get_all_values()", "All values of the open sheet."),
    tool(_reading(_range), f"get_range_values({_SPAN})", "The values of a range."),
    tool(
        _reading(_filter),
        "filter_cells(query: string, in_row?: integer, in_column?: integer)",
        "The positions of cells that hold a text (a|b: one of several).",
    ),
)
"""The tools of the sheet world under their original names."""
