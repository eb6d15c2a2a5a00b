"""Sheet: change a table as told, step by step, and leave every cell as it should be.

    in Sheet3 : delete all rows of kind metal ; then sort by price in descending order ; then set stock of fern to 7
    open_sheet Sheet3  ->  opened Sheet3   get_all_values  ->  item kind price stock ; fern wood 4 12 ; ...
    filter_cells metal  ->  B3 , B5   delete_batch_data row [3, 5]  ->  ...   sort_sheet_by_col 3 des  ->  ...

A kind is the sequence of changes. What counts is the share of wrong cells put right, over the union of both tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.crafting import words_of
from evolvent.worlds.tools.engine import FINISH
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.kinds import ATTEMPTS, Draw, Kind, canonical
from evolvent.worlds.tools.scoring import table_match
from evolvent.worlds.tools.sheets import COLUMNS, ITEMS, KINDS, SHEETS, TOOLS, Book, draw_book
from evolvent.worlds.tools.table import OPERATORS, Cell, Table, name_of
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
_LAST: Mapping[str, str] = {"total": "put the {1} of {0} below it"}
_OPERATIONS: Mapping[str, str] = {"sum": "SUM", "largest": "MAX", "smallest": "MIN", "number": "COUNT"}
_EMPTY = "_"

Rows = list[list[Cell]]


@dataclass(frozen=True, slots=True)
class _Change:
    """One change and what the question says of it."""

    what: str
    said: tuple[Any, ...]

    def __str__(self) -> str:
        words = [" ".join(map(str, word)) if isinstance(word, tuple) else word for word in self.said]
        return {**_CHANGES, **_LAST}[self.what].format(*words)


class Sheet(ToolWorld):
    """The sheet world. At `finish` the share of wrong cells put right counts; see `ToolWorld` for the options."""

    name = "sheet"
    horizon = 15
    specs = TOOLS
    trained = 4
    asked = False
    example = Call("update_cell", {"position": "B2", "value": 5})

    def kinds(self) -> Iterator[Kind]:
        """One to four changes, none of them twice; a total comes last."""
        for length in range(5):
            for changes in permutations(_CHANGES, length):
                if not {("up", "down"), ("down", "up")} & set(pairwise(changes)):
                    if changes:
                        yield (_START, *changes)
                    if length < 4:
                        yield (_START, *changes, "total")

    def quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(ATTEMPTS):
            found = self._drawn(Draw("evolvent sheet 1", *kind, seed, attempt), kind)
            if found is not None:
                return found
        raise ConfigError("no table allows changes of this kind", value=kind)

    def _drawn(self, draw: Draw, kind: Kind) -> Quest | None:
        """The task, or None where nothing would change or a change is impossible."""
        book = draw_book(draw)
        name = book.sheets[0][0]
        if "note" in kind:
            book = _noted(draw, book)
        asker = Asker(self._toolbox.beginning(Book(tuple(sorted(book.sheets)))))
        asker.do("open_sheet", name=name)
        changes = []
        for what in kind[1:]:
            said = _pick(draw, what, asker.state.table)
            if said is None:
                return None
            changes.append(_Change(what, said))
            _carry_out(asker, changes[-1], _rows(asker.state.table))
        start: Book = asker.toolbox.start
        if asker.state.sheet(name).rows == start.table_of(name).rows:
            return None
        question = f"in {name} : {' ; then '.join(map(str, changes))}"
        return Quest(question, start, _key(kind, book, changes), (name, tuple(changes)))

    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        name, changes = quest.notes
        asker.do("open_sheet", name=name)
        rows: Rows = asker.do("get_all_values")
        for change in changes:
            rows = _carry_out(asker, change, rows)
        return asker.solution(None, asked=False)

    def finished(self, quest: Quest, solution: Solution, state: Any, *, answer: Json) -> float:
        before, after = self._match(quest, solution, quest.start), self._match(quest, solution, state)
        return 1.0 if after == 1.0 else max(0.0, (after - before) / (1.0 - before))

    def reported(self, quest: Quest, solution: Solution, state: Any) -> float:
        return self._match(quest, solution, state) if state.opened else 0.0

    def _match(self, quest: Quest, solution: Solution, state: Book) -> float:
        """The share of cells of the sheet asked for that are as they should be; 0 where it is gone."""
        name, _ = quest.notes
        table = state.sheet(name)
        return 0.0 if table is None else table_match(solution.goal.sheet(name).rows, table.rows)

    def show(self, value: Json) -> str:
        """A table in the plain style: cells apart by spaces, rows by `;`; words that nobody knows read as `?`."""
        if self.style != "plain":
            return super().show(value)
        if isinstance(value, list) and value and all(isinstance(row, list) for row in value):
            return " ; ".join(" ".join(map(self._cell, row)) for row in value)
        return self._cell(super().show(value))

    def _cell(self, cell: Cell) -> str:
        known = self._words
        return " ".join(word if known.issuperset(words_of(word)) else "?" for word in str(cell).split()) or _EMPTY

    def around(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        book: Book = quest.start
        name, changes = quest.notes
        table = book.table_of(name)
        yield from (Call("get_all_values"), Call(FINISH), Call("del_sheet", {"name": name}))
        yield from (Call("open_sheet", {"name": one}) for one, _ in book.sheets)
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
            if change.what in ("add", "add_first"):
                new = [*change.said[0]]
                yield from (Call("insert_rows", {"values_list": [new], "row_idx": at}) for at in (2, 3, 6))

    def texts(self) -> Iterator[str]:
        yield from (*ITEMS, *SHEETS, *COLUMNS, *KINDS, *OPERATORS, *_OPERATIONS)
        yield from map(str, range(121))
        yield from (name_of((row, column)) for row in range(9) for column in range(7))
        yield from (*_CHANGES.values(), *_LAST.values())
        yield f"in then item kind opened deleted frozen updated rows columns row col asc des {_EMPTY} nothing"
        yield "TRUE FALSE"
        yield "expected an index next to the table the table would be too large indexes of not all of them"
        yield "expected the number of a column text or a number in a cell a position like B2 a row and from 1 on"
        yield "start of range before its end SUM AVERAGE COUNT MAX MIN MINUS or PRODUCT other cells with numbers"
        yield "the result is too large please open a sheet before operating it there is no sheet of that name"
        yield "how many fewer than all a list of lists of values dimension whole numbers as indexes positions"
        yield "start_position and end_position or position_list as many values as the range has cells order"


def _rows(table: Table) -> Rows:
    return [list(row) for row in table.rows]


def _noted(draw: Draw, book: Book) -> Book:
    """The book with notes on the numbers of its first sheet."""
    (name, table), *others = book.sheets
    for row in range(1, len(table.rows)):
        for column in (2, 3):
            table = table.with_note((row, column), str(draw.between(21, 40)))
    return Book(((name, table), *others))


def _pick(draw: Draw, what: str, table: Table) -> tuple[Any, ...] | None:
    """What the question says of a change to the table as it is now; None where there is nothing to change."""
    head, *body = table.rows
    numbers = [str(name) for name in head if name in COLUMNS]
    items = [str(row[0]) for row in body]
    if what in ("up", "down", "drop_col", "total", "fill", "set", "note") and not numbers:
        return None
    if what in ("up", "down", "drop_col"):
        return (draw.choice(numbers),)
    if what in ("drop", "merge"):
        return (draw.choice(items),) if len(items) > 1 else None
    if what == "drop_kind":
        kinds = sorted({str(row[1]) for row in body if row[1] in KINDS})
        return (draw.choice(kinds),) if len(kinds) > 1 else None
    if what in ("add", "add_first"):
        fresh = [item for item in ITEMS if item not in items]
        numbers_of = tuple(draw.between(21, 40) for _ in head[2:])
        return ((draw.choice(fresh), draw.choice(KINDS), *numbers_of),)
    return _pick_numbers(draw, what, table)


def _pick_numbers(draw: Draw, what: str, table: Table) -> tuple[Any, ...] | None:
    head, *body = table.rows
    numbers = [str(name) for name in head if name in COLUMNS]
    if what == "add_col":
        fresh = [name for name in COLUMNS if name not in head]
        return draw.choice(fresh), tuple(draw.between(41, 60) for _ in body)
    if what == "fill":
        return draw.choice(numbers), tuple(draw.between(41, 60) for _ in body)
    if what == "total":
        return draw.choice(numbers), draw.choice(list(_OPERATIONS))
    places = [(row, head.index(name)) for row in range(1, len(table.rows)) for name in numbers]
    if what == "note":
        places = [place for place in places if table.note(place)]
    if not places:
        return None
    row, column = draw.choice(places)
    said = head[column], table.rows[row][0]
    return said if what == "note" else (*said, draw.between(61, 80))


def _carry_out(asker: Asker, change: _Change, rows: Rows) -> Rows:
    """Make one change to the values as they are; returns the values after it."""
    what, said = change.what, change.said
    column = rows[0].index(said[0]) if said[0] in rows[0] else 0
    below = {"start_position": name_of((1, column)), "end_position": name_of((len(rows) - 1, column))}
    if what in ("up", "down"):
        return _do(asker, "sort_sheet_by_col", col_num=column + 1, order="asc" if what == "up" else "des")
    if what == "drop_col":
        return _do(asker, "delete_batch_data", dimension="col", index_list=[column + 1])
    if what in ("add", "add_first"):
        return _do(asker, "insert_rows", values_list=[[*said[0]]], row_idx=len(rows) + 1 if what == "add" else 2)
    if what == "add_col":
        return _do(asker, "insert_cols", values_list=[[said[0], *said[1]]], col_idx=len(rows[0]) + 1)
    if what == "fill":
        return _do(asker, "update_range", **below, values_list=[[value] for value in said[1]])
    if what == "total":
        result = name_of((len(rows), column))
        return _do(asker, "update_cell_by_formula", **below, result_position=result, operator=_OPERATIONS[said[1]])
    return _change_rows(asker, change, rows, column=column)


def _change_rows(asker: Asker, change: _Change, rows: Rows, *, column: int) -> Rows:
    what, said = change.what, change.said
    if what == "drop_kind":
        found = asker.ask("filter_cells", query=said[0])
        return _do(asker, "delete_batch_data", dimension="row", index_list=[int(at[1:]) for at in found])
    row = next(at for at, line in enumerate(rows) if line[0] == said[0 if what in ("drop", "merge") else 1])
    if what == "drop":
        return _do(asker, "delete_batch_data", dimension="row", index_list=[row + 1])
    if what == "merge":
        return _do(asker, "merge_cells", start_position=name_of((row, 0)), end_position=name_of((row, 1)))
    position = name_of((row, column))
    value = asker.ask("get_note", position=position) if what == "note" else said[2]
    return _do(asker, "update_cell", position=position, value=int(value))


def _do(asker: Asker, name: str, /, **arguments: Any) -> Rows:
    values: Rows = asker.do(name, **arguments)
    return values


def _key(kind: Kind, book: Book, changes: list[_Change]) -> str:
    """The canonical form: the numbers of the sheet, and names of items, kinds and columns as they are met."""
    name, table = book.sheets[0]
    words: list[str] = [word for row in table.rows for word in row if isinstance(word, str)]
    said = [word for change in changes for one in change.said for word in (one if isinstance(one, tuple) else [one])]
    numbers = [[cell for cell in row if not isinstance(cell, str)] for row in table.rows]
    facts: Json = [numbers, [note for _, note in table.notes]]
    spoken: Json = [word for word in said if not isinstance(word, str) or word in _OPERATIONS]
    links = [*words, *(word for word in said if isinstance(word, str))]
    return canonical(kind, [name], {name: (facts, links)}, extra=spoken)
