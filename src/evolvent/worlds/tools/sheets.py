"""Workbooks of generated tables, drawn per task, and the tools that read and change them.

As in the original, every tool that changes a sheet returns all its values. `sort_sheet_by_col` leaves the
header in place; merged cells all have the value of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, build_tool
from evolvent.worlds.tools.kinds import Draw
from evolvent.worlds.tools.table import (
    Cell,
    Position,
    Table,
    compute_formula,
    format_position,
    iterate_range,
    parse_position,
    to_cell,
)

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
_ROW_RANGE, _MAX_NUMBER = (3, 4), 20

Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Book:
    """The state of the tools: all sheets, and the open one."""

    sheets: tuple[tuple[str, Table], ...]
    opened: str | None = None

    def sheet(self, name: str) -> Table | None:
        """Returns the sheet with this name, or None."""
        for sheet_name, table in self.sheets:
            if sheet_name == name:
                return table
        return None

    def get_sheet(self, name: str) -> Table:
        """Returns the sheet with this name; raises InvalidAction if there is none."""
        table = self.sheet(name)
        if table is None:
            raise InvalidAction("there is no sheet of that name", value=name)
        return table

    @property
    def table(self) -> Table:
        """Returns the open sheet; raises InvalidAction if none is open."""
        table = self.sheet(self.opened) if self.opened else None
        if table is None:
            raise InvalidAction("please open a sheet before operating it", value=self.opened)
        return table

    def with_table(self, table: Table) -> Book:
        """Returns the book with another table in the open sheet."""
        sheets = tuple([(name, table if name == self.opened else sheet) for name, sheet in self.sheets])
        return Book(sheets, self.opened)


def draw_book(draw: Draw) -> Book:
    """Draws two sheets: items, their materials, and two columns of numbers that differ within a column."""
    names = draw.sample(2, SHEETS)
    return Book(tuple((name, _draw_table(draw)) for name in names))


def _draw_table(draw: Draw) -> Table:
    rows, numbers = draw.between(*_ROW_RANGE), range(1, _MAX_NUMBER + 1)
    pair = draw.sample(2, KINDS)
    materials = [*pair, *(draw.choice(pair) for _ in range(rows - 2))]
    items = zip(
        draw.sample(rows, ITEMS),
        draw.sample(rows, materials),
        draw.sample(rows, numbers),
        draw.sample(rows, numbers),
        strict=True,
    )
    return Table((("item", "kind", *draw.sample(2, COLUMNS)), *items))


def _list_values(table: Table) -> Json:
    return [list(row) for row in table.rows]


Change = Callable[[Table, JsonObject], Table]
Read = Callable[[Table, JsonObject], Json]


def _make_changer(change: Change) -> Callable[[Book, Mapping[str, Any]], tuple[Book, Json]]:
    def run(book: Book, arguments: Mapping[str, Any]) -> tuple[Book, Json]:
        table = change(book.table, arguments)
        return book.with_table(table), _list_values(table)

    return run


def _make_reader(read: Read) -> Callable[[Book, Mapping[str, Any]], tuple[Book, Json]]:
    return lambda book, arguments: (book, read(book.table, arguments))


def _open_sheet(book: Book, arguments: Mapping[str, Any]) -> tuple[Book, Json]:
    name = arguments["name"].strip()
    book.get_sheet(name)
    return replace(book, opened=name), {"opened": name}


def _delete_sheet(book: Book, arguments: Mapping[str, Any]) -> tuple[Book, Json]:
    name = arguments["name"].strip()
    book.get_sheet(name)
    remaining = tuple((sheet_name, table) for sheet_name, table in book.sheets if sheet_name != name)
    return Book(remaining, None if book.opened == name else book.opened), {"deleted": name}


def _freeze(book: Book, arguments: Mapping[str, Any]) -> tuple[Book, Json]:
    dimension, number, table = arguments["dimension"], arguments["num"], book.table
    if dimension not in ("rows", "columns") or not 0 <= number < (
        len(table.rows) if dimension == "rows" else table.width
    ):
        raise InvalidAction("expected rows or columns and how many , fewer than all", value=arguments)
    frozen = (number, table.frozen[1]) if dimension == "rows" else (table.frozen[0], number)
    return book.with_table(replace(table, frozen=frozen)), {"frozen": [*frozen]}


def _write_note(book: Book, arguments: Mapping[str, Any]) -> tuple[Book, Json]:
    position = parse_position(arguments["position"])
    return book.with_table(book.table.with_note(position, arguments["content"])), {"updated": format_position(position)}


def _check_grid(values: list[Any]) -> list[list[Any]]:
    """Returns values as rows of cells; raises InvalidAction for anything else."""
    if not values or not all(isinstance(line, list) and line for line in values):
        raise InvalidAction("expected a list of lists of values", value=values)
    if any(isinstance(value, list) for line in values for value in line):
        raise InvalidAction("expected a list of lists of values", value=values)
    return values


def _is_row_dimension(arguments: Mapping[str, Any]) -> bool:
    if arguments["dimension"] not in ("row", "col"):
        raise InvalidAction("expected row or col as dimension", value=arguments["dimension"])
    return bool(arguments["dimension"] == "row")


def _delete_lines(table: Table, arguments: Mapping[str, Any]) -> Table:
    indexes = [to_cell(index) for index in arguments["index_list"] if not isinstance(index, list)]
    if len(indexes) != len(arguments["index_list"]) or not all(isinstance(index, int) for index in indexes):
        raise InvalidAction("expected whole numbers as indexes", value=arguments["index_list"])
    return table.delete_lines([int(index) - 1 for index in indexes], rows=_is_row_dimension(arguments))


def _formula_cells(arguments: Mapping[str, Any]) -> list[Position]:
    """Returns the cells of a formula: a list of positions, or a range."""
    if "position_list" in arguments:
        if not all(isinstance(position_text, str) for position_text in arguments["position_list"]):
            raise InvalidAction("expected positions like B2", value=arguments["position_list"])
        return [parse_position(position_text) for position_text in arguments["position_list"]]
    if "start_position" in arguments and "end_position" in arguments:
        return list(iterate_range(arguments["start_position"], arguments["end_position"]))
    raise InvalidAction("expected start_position and end_position , or position_list", value=sorted(arguments))


def _compute_formula(table: Table, arguments: Mapping[str, Any]) -> Cell:
    return compute_formula(
        arguments["operator"].upper(), [table.cell_at(position) for position in _formula_cells(arguments)]
    )


def _write_formula(table: Table, arguments: Mapping[str, Any]) -> Table:
    return table.with_cells([(parse_position(arguments["result_position"]), _compute_formula(table, arguments))])


def _update_range(table: Table, arguments: Mapping[str, Any]) -> Table:
    positions, values = (
        list(iterate_range(arguments["start_position"], arguments["end_position"])),
        _check_grid(arguments["values_list"]),
    )
    top, left = positions[0]
    bottom, right = positions[-1]
    if len(values) != bottom - top + 1 or any(len(row) != right - left + 1 for row in values):
        raise InvalidAction("expected as many values as the range has cells", value=values)
    return table.with_cells(zip(positions, [value for row in values for value in row], strict=True))


def _sort_rows(table: Table, arguments: Mapping[str, Any]) -> Table:
    if arguments["order"] not in ("asc", "des"):
        raise InvalidAction("expected asc or des as order", value=arguments["order"])
    return table.sort_by(arguments["col_num"] - 1, descending=arguments["order"] == "des")


def _merge_cells(table: Table, arguments: Mapping[str, Any]) -> Table:
    positions = list(iterate_range(arguments["start_position"], arguments["end_position"]))
    return table.with_cells((position, table.cell_at(positions[0])) for position in positions)


def _read_range(table: Table, arguments: Mapping[str, Any]) -> Json:
    rows: dict[int, list[Cell]] = {}
    for row, column in iterate_range(arguments["start_position"], arguments["end_position"]):
        rows.setdefault(row, []).append(table.cell_at((row, column)))
    return list(rows.values())


def _filter_cells(table: Table, arguments: Mapping[str, Any]) -> Json:
    """Returns positions of the cells that equal a text, or one of several separated by `|`."""
    targets = {to_cell(word) for word in arguments["query"].removeprefix("^").removesuffix("$").strip("()").split("|")}
    rows, columns = arguments.get("in_row"), arguments.get("in_column")
    return [
        format_position((row, column))
        for row, line in enumerate(table.rows)
        for column, cell in enumerate(line)
        if cell in targets and rows in (None, row + 1) and columns in (None, column + 1)
    ]


_SPAN = "start_position: string, end_position: string"
_CELLS = "start_position?: string, end_position?: string, position_list?: array"
TOOLS: tuple[ToolSpec, ...] = (
    build_tool(_open_sheet, "open_sheet(name: string)", "Open a sheet; needed before anything else."),
    build_tool(_delete_sheet, "del_sheet(name: string)", "Delete a sheet."),
    build_tool(_freeze, "freeze_data(dimension: string, num: integer)", "Freeze the first rows or columns."),
    build_tool(
        lambda book, arguments: (book, format_position((arguments["row"] - 1, arguments["col"] - 1))),
        "get_A1_annotation(row: integer, col: integer)",
        "The A1 position of a row and a column.",
    ),
    build_tool(
        _make_changer(
            lambda table, arguments: table.insert_lines(
                _check_grid(arguments["values_list"]), arguments["col_idx"] - 1, rows=False
            )
        ),
        "insert_cols(values_list: array, col_idx: integer)",
        "Insert columns before a column.",
    ),
    build_tool(
        _make_changer(
            lambda table, arguments: table.insert_lines(
                _check_grid(arguments["values_list"]), arguments["row_idx"] - 1, rows=True
            )
        ),
        "insert_rows(values_list: array, row_idx: integer)",
        "Insert rows before a row.",
    ),
    build_tool(
        _make_changer(_delete_lines),
        "delete_batch_data(dimension: string, index_list: array)",
        "Delete rows (row) or columns (col) by their numbers.",
    ),
    build_tool(
        _make_changer(
            lambda table, arguments: table.with_cells([(parse_position(arguments["position"]), arguments["value"])])
        ),
        "update_cell(position: string, value: any)",
        "Set a cell.",
    ),
    build_tool(
        _make_reader(_compute_formula),
        f"get_value_by_formula({_CELLS}, operator: string)",
        "Compute something of cells.",
    ),
    build_tool(
        _make_changer(_write_formula),
        f"update_cell_by_formula({_CELLS}, result_position: string, operator: string)",
        "Set a cell to something computed of cells.",
    ),
    build_tool(_make_changer(_update_range), f"update_range({_SPAN}, values_list: array)", "Set the cells of a range."),
    build_tool(
        _make_changer(_sort_rows),
        "sort_sheet_by_col(col_num: integer, order: string)",
        "Sort the rows below the head, asc or des.",
    ),
    build_tool(_make_changer(_merge_cells), f"merge_cells({_SPAN})", "Merge the cells of a range."),
    build_tool(_write_note, "update_note(position: string, content: string)", "Put a note on a cell."),
    build_tool(
        _make_reader(lambda table, arguments: table.cell_at(parse_position(arguments["position"]))),
        "get_cell_value(position: string)",
        "The value of a cell.",
    ),
    build_tool(
        _make_reader(lambda table, arguments: table.note_at(parse_position(arguments["position"]))),
        "get_note(position: string)",
        "The note on a cell.",
    ),
    build_tool(
        _make_reader(lambda table, arguments: _list_values(table)), "get_all_values()", "All values of the open sheet."
    ),
    build_tool(_make_reader(_read_range), f"get_range_values({_SPAN})", "The values of a range."),
    build_tool(
        _make_reader(_filter_cells),
        "filter_cells(query: string, in_row?: integer, in_column?: integer)",
        "The positions of cells that hold a text (a|b: one of several).",
    ),
)
"""The tools of the sheet world under their original names."""
