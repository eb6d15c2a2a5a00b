"""Sheet: change a table as instructed, step by step, until every cell is right.

    in Sheet3 : delete all rows of kind metal ; then sort by price in descending order ; then set stock of fern to 7
    open_sheet Sheet3  ->  opened Sheet3   get_all_values  ->  item kind price stock ; fern wood 4 12 ; ...
    filter_cells metal  ->  B3 , B5   delete_batch_data row [3, 5]  ->  ...   sort_sheet_by_col 3 des  ->  ...

A kind is the sequence of changes. The score is the share of wrong cells that were corrected, over the union of
both tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, permutations
from typing import Any

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.crafting import words_of
from evolvent.worlds.tools.engine import FINISH, State
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.scoring import table_match
from evolvent.worlds.tools.sheets import COLUMNS, ITEMS, KINDS, SHEETS, TOOLS, Book, draw_book
from evolvent.worlds.tools.table import OPERATORS, Cell, Table, format_position
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Sheet"]

_START = "sheet"
_CHANGES: Mapping[str, str] = {
    "up": "sort by {0} in ascending order",
    "down": "sort by {0} in descending order",
    "drop": "delete the row of {0}",
    "drop_kind": "delete all rows of kind {0}",
    "drop_col": "delete the column {0}",
    "add": "add the row {0} at the end",
    "add_first": "add the row {0} as first row",
    "add_col": "add the column {0} with {1} at the end",
    "set": "set {0} of {1} to {2}",
    "note": "set {0} of {1} to what its note says",
    "fill": "set the column {0} to {1}",
    "merge": "merge item and kind of {0}",
}
_FINAL_CHANGES: Mapping[str, str] = {"total": "put the {1} of {0} below it"}
_OPERATIONS: Mapping[str, str] = {"sum": "SUM", "largest": "MAX", "smallest": "MIN", "number": "COUNT"}
_EMPTY_CELL = "_"
_MAX_CACHED_CELLS = 4096

Rows = list[list[Cell]]


@dataclass(frozen=True, slots=True)
class _Change:
    """One change and its arguments in the question."""

    operation: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        formatted = [" ".join(map(str, word)) if isinstance(word, tuple) else word for word in self.arguments]
        return {**_CHANGES, **_FINAL_CHANGES}[self.operation].format(*formatted)


class Sheet(ToolWorld):
    """The sheet world. At `finish` the share of corrected cells counts; see `ToolWorld` for the options."""

    name = "sheet"
    horizon = 15
    specs = TOOLS
    trained_length = 4
    takes_answer = False
    example = Call("update_cell", {"position": "B2", "value": 5})

    def kinds(self) -> Iterator[Kind]:
        """Yields one to four changes, none of them twice; a total comes last."""
        for length in range(5):
            for changes in permutations(_CHANGES, length):
                if not {("up", "down"), ("down", "up")} & set(pairwise(changes)):
                    if changes:
                        yield (_START, *changes)
                    if length < 4:
                        yield (_START, *changes, "total")

    def has_kind(self, kind: Kind) -> bool:
        """Returns whether `kinds` yields this kind; it yields 14,000, which take longer to list than a task to draw."""
        if len(kind) < 2 or kind[0] != _START:
            return False
        changes = kind[1:-1] if kind[-1] == "total" else kind[1:]
        if len(changes) > (3 if kind[-1] == "total" else 4) or len(set(changes)) < len(changes):
            return False
        is_reversed = not {("up", "down"), ("down", "up")}.isdisjoint(pairwise(changes))
        return _CHANGES.keys() >= set(changes) and not is_reversed

    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(MAX_ATTEMPTS):
            quest = self._try_draw_quest(Draw("evolvent sheet 1", *kind, seed, attempt), kind)
            if quest is not None:
                return quest
        raise ConfigError("no table allows changes of this kind", value=kind)

    def _try_draw_quest(self, draw: Draw, kind: Kind) -> Quest | None:
        """Draws the task, or returns None if the sheet would not change or a change is impossible."""
        book = draw_book(draw)
        name = book.sheets[0][0]
        if "note" in kind:
            book = _add_notes(draw, book)
        expert = ToolExpert(self._toolbox.with_start(Book(tuple(sorted(book.sheets)))))
        expert.execute("open_sheet", name=name)
        changes, rows = [], _copy_rows(expert.state.table)
        for operation in kind[1:]:
            arguments = _draw_arguments(draw, operation, expert.state.table)
            if arguments is None:
                return None
            changes.append(_Change(operation, arguments))
            rows = _apply_change(expert, changes[-1], rows)
        start: Book = expert.toolbox.start
        if expert.state.sheet(name).rows == start.get_sheet(name).rows:
            return None
        question = f"in {name} : {' ; then '.join(map(str, changes))}"
        return Quest(question, start, partial(_digest_quest, kind, book, changes), (name, tuple(changes)))

    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        name, changes = quest.notes
        expert.execute("open_sheet", name=name)
        rows: Rows = expert.execute("get_all_values")
        for change in changes:
            rows = _apply_change(expert, change, rows)
        return expert.build_solution(None, takes_answer=False)

    def completed_share(self, quest: Quest, solution: Solution, state: State, *, answer: Json) -> float:
        before, after = self._match_sheet(quest, solution, quest.start), self._match_sheet(quest, solution, state)
        return 1.0 if after == 1.0 else max(0.0, (after - before) / (1.0 - before))

    def reported_reward(self, quest: Quest, solution: Solution, state: State) -> float:
        return self._match_sheet(quest, solution, state) if state.opened else 0.0

    def _match_sheet(self, quest: Quest, solution: Solution, state: Book) -> float:
        """Returns the share of right cells in the sheet of the question; 0 if the sheet is gone."""
        name, _ = quest.notes
        table, goal = state.sheet(name), solution.goal.sheet(name)
        if table is None:
            return 0.0
        return 1.0 if table.rows is goal.rows else table_match(goal.rows, table.rows)

    def render_result(self, value: Json) -> str:
        """Renders a table in the plain style: cells separated by spaces, rows by `;`; unknown words become `?`."""
        if self.style != "plain":
            return super().render_result(value)
        if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
            return " ; ".join(" ".join(map(self._render_cell, row)) for row in value)
        return self._render_cell(super().render_result(value))

    def _render_cell(self, cell: Cell) -> str:
        text = str(cell)
        rendered = self._rendered_cells.get(text)
        if rendered is None:
            vocabulary = self._vocabulary
            masked_words = (word if vocabulary.issuperset(words_of(word)) else "?" for word in text.split())
            rendered = " ".join(masked_words) or _EMPTY_CELL
            if len(self._rendered_cells) < _MAX_CACHED_CELLS:
                self._rendered_cells[text] = rendered
        return rendered

    @cached_property
    def _rendered_cells(self) -> dict[str, str]:
        return {}

    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        book: Book = quest.start
        name, changes = quest.notes
        table = book.get_sheet(name)
        yield from (Call("get_all_values"), Call(FINISH), Call("del_sheet", {"name": name}))
        yield from (Call("open_sheet", {"name": sheet_name}) for sheet_name, _ in book.sheets)
        for column in range(1, table.width + 1):
            yield from (Call("sort_sheet_by_col", {"col_num": column, "order": order}) for order in ("asc", "des"))
            yield Call("delete_batch_data", {"dimension": "col", "index_list": [column]})
        for row in range(2, len(table.rows) + 1):
            yield Call("delete_batch_data", {"dimension": "row", "index_list": [row]})
            yield Call("merge_cells", {"start_position": f"A{row}", "end_position": f"B{row}"})
            yield from (Call("get_note", {"position": f"{letter}{row}"}) for letter in "CD")
            yield Call("update_cell", {"position": f"C{row}", "value": row})
        for kind in sorted({str(row[1]) for row in table.rows[1:]}):
            yield Call("filter_cells", {"query": kind})
        for letter in "CD":
            yield Call(
                "update_cell_by_formula",
                {
                    "start_position": f"{letter}2",
                    "end_position": f"{letter}5",
                    "result_position": f"{letter}6",
                    "operator": "SUM",
                },
            )
        for change in changes:
            if change.operation in ("add", "add_first"):
                new_row = [*change.arguments[0]]
                yield from (
                    Call("insert_rows", {"values_list": [new_row], "row_idx": row_index}) for row_index in (2, 3, 6)
                )

    def vocabulary_texts(self) -> Iterator[str]:
        yield from (*ITEMS, *SHEETS, *COLUMNS, *KINDS, *OPERATORS, *_OPERATIONS)
        yield from map(str, range(121))
        yield from (format_position((row, column)) for row in range(9) for column in range(7))
        yield from (*_CHANGES.values(), *_FINAL_CHANGES.values())
        yield f"in then item kind opened deleted frozen updated rows columns row col asc des {_EMPTY_CELL} nothing"
        yield "TRUE FALSE"
        yield "expected an index next to the table the table would be too large indexes of not all of them"
        yield "expected the number of a column text or a number in a cell a position like B2 a row and from 1 on"
        yield "start of range before its end SUM AVERAGE COUNT MAX MIN MINUS or PRODUCT other cells with numbers"
        yield "the result is too large please open a sheet before operating it there is no sheet of that name"
        yield "how many fewer than all a list of lists of values dimension whole numbers as indexes positions"
        yield "start_position and end_position or position_list as many values as the range has cells order"


def _copy_rows(table: Table) -> Rows:
    return [list(row) for row in table.rows]


def _add_notes(draw: Draw, book: Book) -> Book:
    """Returns the book with notes on the numbers of its first sheet."""
    (name, table), *other_sheets = book.sheets
    positions = [(row, column) for row in range(1, len(table.rows)) for column in (2, 3)]
    notes = tuple([(position, str(draw.between(21, 40))) for position in positions])
    return Book(((name, Table(table.rows, notes, table.frozen)), *other_sheets))


def _draw_arguments(draw: Draw, operation: str, table: Table) -> tuple[Any, ...] | None:
    """Draws the arguments of a change to the present table; None if nothing can be changed."""
    header, *body = table.rows
    number_columns = [str(name) for name in header if name in COLUMNS]
    items = [str(row[0]) for row in body]
    if operation in ("up", "down", "drop_col", "total", "fill", "set", "note") and not number_columns:
        return None
    if operation in ("up", "down", "drop_col"):
        return (draw.choice(number_columns),)
    if operation in ("drop", "merge"):
        return (draw.choice(items),) if len(items) > 1 else None
    if operation == "drop_kind":
        kinds = sorted({str(row[1]) for row in body if row[1] in KINDS})
        return (draw.choice(kinds),) if len(kinds) > 1 else None
    if operation in ("add", "add_first"):
        unused_items = [item for item in ITEMS if item not in items]
        new_numbers = tuple(draw.between(21, 40) for _ in header[2:])
        return ((draw.choice(unused_items), draw.choice(KINDS), *new_numbers),)
    return _draw_number_arguments(draw, operation, table)


def _draw_number_arguments(draw: Draw, operation: str, table: Table) -> tuple[Any, ...] | None:
    header, *body = table.rows
    number_columns = [str(name) for name in header if name in COLUMNS]
    if operation == "add_col":
        unused_columns = [name for name in COLUMNS if name not in header]
        return draw.choice(unused_columns), tuple(draw.between(41, 60) for _ in body)
    if operation == "fill":
        return draw.choice(number_columns), tuple(draw.between(41, 60) for _ in body)
    if operation == "total":
        return draw.choice(number_columns), draw.choice(list(_OPERATIONS))
    cells = [(row, header.index(name)) for row in range(1, len(table.rows)) for name in number_columns]
    if operation == "note":
        cells = [cell for cell in cells if table.note_at(cell)]
    if not cells:
        return None
    row, column = draw.choice(cells)
    arguments = header[column], table.rows[row][0]
    return arguments if operation == "note" else (*arguments, draw.between(61, 80))


def _apply_change(expert: ToolExpert, change: _Change, rows: Rows) -> Rows:
    """Applies one change to the present values and returns the values after it."""
    operation, arguments = change.operation, change.arguments
    column = rows[0].index(arguments[0]) if arguments[0] in rows[0] else 0
    if operation in ("up", "down"):
        return _execute(expert, "sort_sheet_by_col", col_num=column + 1, order="asc" if operation == "up" else "des")
    if operation == "drop_col":
        return _execute(expert, "delete_batch_data", dimension="col", index_list=[column + 1])
    if operation in ("add", "add_first"):
        return _execute(
            expert, "insert_rows", values_list=[[*arguments[0]]], row_idx=len(rows) + 1 if operation == "add" else 2
        )
    if operation == "add_col":
        return _execute(expert, "insert_cols", values_list=[[arguments[0], *arguments[1]]], col_idx=len(rows[0]) + 1)
    if operation == "fill":
        values = [[value] for value in arguments[1]]
        return _execute(expert, "update_range", **_column_range(rows, column), values_list=values)
    if operation == "total":
        result = format_position((len(rows), column))
        operator, cells = _OPERATIONS[arguments[1]], _column_range(rows, column)
        return _execute(expert, "update_cell_by_formula", **cells, result_position=result, operator=operator)
    return _change_rows(expert, change, rows, column=column)


def _column_range(rows: Rows, column: int) -> dict[str, str]:
    """Returns the ends of a column below its header."""
    return {
        "start_position": format_position((1, column)),
        "end_position": format_position((len(rows) - 1, column)),
    }


def _change_rows(expert: ToolExpert, change: _Change, rows: Rows, *, column: int) -> Rows:
    operation, arguments = change.operation, change.arguments
    if operation == "drop_kind":
        positions = expert.query("filter_cells", query=arguments[0])
        return _execute(
            expert, "delete_batch_data", dimension="row", index_list=[int(index[1:]) for index in positions]
        )
    row = next(
        index for index, line in enumerate(rows) if line[0] == arguments[0 if operation in ("drop", "merge") else 1]
    )
    if operation == "drop":
        return _execute(expert, "delete_batch_data", dimension="row", index_list=[row + 1])
    if operation == "merge":
        return _execute(
            expert, "merge_cells", start_position=format_position((row, 0)), end_position=format_position((row, 1))
        )
    position = format_position((row, column))
    value = expert.query("get_note", position=position) if operation == "note" else arguments[2]
    return _execute(expert, "update_cell", position=position, value=int(value))


def _execute(expert: ToolExpert, name: str, /, **arguments: Any) -> Rows:
    values: Rows = expert.execute(name, **arguments)
    return values


def _digest_quest(kind: Kind, book: Book, changes: list[_Change]) -> str:
    """Returns the canonical form: the numbers of the sheet; names of items, kinds and columns in order of discovery."""
    name, table = book.sheets[0]
    cell_words: list[str] = [word for row in table.rows for word in row if isinstance(word, str)]
    argument_words = [
        word
        for change in changes
        for argument in change.arguments
        for word in (argument if isinstance(argument, tuple) else [argument])
    ]
    numbers = [[cell for cell in row if not isinstance(cell, str)] for row in table.rows]
    facts: Json = [numbers, [note for _, note in table.notes]]
    fixed_arguments: Json = [word for word in argument_words if not isinstance(word, str) or word in _OPERATIONS]
    links = [*cell_words, *(word for word in argument_words if isinstance(word, str))]
    return digest_task(kind, [name], {name: (facts, links)}, extra=fixed_arguments)
