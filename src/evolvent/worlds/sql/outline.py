"""Outlines: tasks without names. They fix row counts, numbers, equal texts, and comparisons.

An outline has three tables in a row; each row of the second and third belongs to a row of the table before.
Columns are called by their role: key, name, parent, text0, text1, number0, number1. Their names and texts in a
task are drawn elsewhere (`draw`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import TypeVar

from evolvent.trajectory import canonical_json, sample_seed
from evolvent.worlds.sql.kinds import Kind

__all__ = ["COLUMNS", "Outline", "Part", "Test", "digest_outline", "draw_outline", "sample_without_replacement"]

COLUMNS: tuple[str, ...] = ("key", "name", "parent", "text0", "text1", "number0", "number1")

T = TypeVar("T")
_SMALLEST, _LARGEST = 2, 90  # numbers in the rows
_ASKED_ROWS = 16  # rows of the table that is asked
_ROW_COUNTS = (4, _ASKED_ROWS, 7, 5)  # of its child, of itself, of its parent, of its parent's parent


def sample_without_replacement(values: Sequence[T], number: int, rng: Random) -> list[T]:
    """Samples `number` different values, in random order."""
    remaining, random = list(values), rng.random
    return [remaining.pop(int(random() * size)) for size in range(len(remaining), len(remaining) - number, -1)]


def _choose(values: Sequence[T], rng: Random) -> T:
    return values[int(rng.random() * len(values))]


def _draw_numbers(number: int, rng: Random) -> list[int]:
    """Draws `number` different numbers."""
    numbers: dict[int, None] = {}
    while len(numbers) < number:
        numbers[_SMALLEST + int(rng.random() * (_LARGEST + 1 - _SMALLEST))] = None
    return list(numbers)


@dataclass(frozen=True, slots=True)
class Part:
    """A table: its columns in order, and the cells of each but the key, which counts the rows from 1.

    Texts are numbered from 0 in each column; a parent is the index of a row in the table before.
    """

    order: tuple[str, ...]
    cells: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Test:
    """A condition: table, column, operator, value (None: the average), and whether a hint must explain it."""

    part: int
    column: str
    operator: str
    value: int | None
    hinted: bool = False


@dataclass(frozen=True, slots=True)
class Outline:
    """A task without names.

    Args:
        parts: the tables, parents first.
        table: index of the table that the query is about.
        tests: its conditions, those on this table first.
        column: the selected column; for `top` the column of the order.
        number, descending: see `query.Query`.
    """

    parts: Sequence[Part]
    table: int
    tests: tuple[Test, ...]
    column: str
    number: int
    descending: bool

    @property
    def joined_tables(self) -> range:
        """Returns the joined tables, one after another, from the table of the query upwards."""
        return range(self.table, self.tests[-1].part if self.tests else self.table, -1)


@dataclass(slots=True)
class _OutlineBuilder:
    """An outline being drawn: the random numbers, the tables so far, and the columns already in use."""

    rng: Random
    parts: list[Part] = field(default_factory=list)
    used_columns: set[tuple[int, str]] = field(default_factory=set)

    def add_part(self, rows: int, num_parents: int) -> None:
        """Adds one more table; `num_parents` is the number of rows of the table before, 0 for none."""
        rng, texts = self.rng, 4 if rows == _ASKED_ROWS else 3
        cells: dict[str, Sequence[int]] = {"name": range(rows)}
        if num_parents:
            cells["parent"] = [int(rng.random() * num_parents) for _ in range(rows)]
        for column in ("text0", "text1"):
            cells[column] = [int(rng.random() * texts) for _ in range(rows)]
        for column in ("number0", "number1"):
            cells[column] = _draw_numbers(rows, rng)
        self.parts.append(Part(("key", *sample_without_replacement(list(cells), len(cells), rng)), cells))

    def choose_unused_column(self, part: int, prefix: str) -> str:
        """Chooses a column with this prefix that is not in use, if there is one."""
        columns = [f"{prefix}{n}" for n in (0, 1)]
        chosen_column = _choose(
            [column for column in columns if (part, column) not in self.used_columns] or columns, self.rng
        )
        self.used_columns.add((part, chosen_column))
        return chosen_column

    def draw_equality(self, part: int, *, allow_name: bool = False) -> Test:
        """Draws a condition on a text that some row has; sometimes on its name, if allowed."""
        column = "name" if allow_name and self.rng.random() < 0.3 else self.choose_unused_column(part, "text")
        return Test(part, column, "=", _choose(self.parts[part].cells[column], self.rng))

    def draw_comparison(self, part: int, operator: str = "", *, mean: bool = False, hinted: bool = False) -> Test:
        """Draws a condition on a number that divides the rows: one of their numbers, or their average."""
        column = self.choose_unused_column(part, "number")
        operator = operator or _choose("<>", self.rng)
        values = sorted(self.parts[part].cells[column])
        third = len(values) // 3
        value = values[third + int(self.rng.random() * (len(values) - 2 * third))]
        return Test(part, column, operator, None if mean else value, hinted)

    def draw_tests(self, filter_name: str, table: int, target: int) -> tuple[Test, ...]:
        """Draws the conditions of a filter; those on the table of the query come first."""
        if filter_name == "plain":
            return ()
        if filter_name == "equal":
            return (self.draw_equality(target, allow_name=target != table),)
        if filter_name == "both" and target != table:
            return self.draw_comparison(table), self.draw_equality(target)
        if filter_name in ("both", "either"):
            return self.draw_equality(target), self.draw_comparison(target)
        operator = {"above": ">", "below": "<"}.get(filter_name, "")
        return (self.draw_comparison(target, operator, mean=filter_name == "mean", hinted=filter_name == "hint"),)

    def choose_column(self, select: str, table: int) -> str:
        """Chooses the column that is selected, or that defines the order."""
        if select == "count":
            return "name"
        if select in ("distinct", "group", "having"):
            return self.choose_unused_column(table, "text")
        if select == "list":
            return _choose(
                ("name", self.choose_unused_column(table, "text"), self.choose_unused_column(table, "number")), self.rng
            )
        return self.choose_unused_column(table, "number")


def draw_outline(kind: Kind, seed: int) -> Outline:
    """Draws the outline of a kind and a seed, the same on every machine."""
    rng = Random(sample_seed("sql", "outline", kind, seed))
    table = {"own": int(rng.random() * 3), "parent": 1 + int(rng.random() * 2), "grand": 2}[kind.link]
    target = table - ("own", "parent", "grand").index(kind.link)
    builder, num_parents = _OutlineBuilder(rng), 0
    for index in range(3):
        rows = _ROW_COUNTS[max(0, table - index + 1)]
        builder.add_part(rows, num_parents)
        num_parents = rows
    tests = builder.draw_tests(kind.filter, table, target)
    column = builder.choose_column(kind.select, table)
    is_larger = rng.random() < 0.5
    number = {"top": 2 + is_larger, "having": 1 + is_larger}.get(kind.select, 0)
    return Outline(builder.parts, table, tests, column, number, rng.random() < 0.5)


def digest_outline(kind: Kind, outline: Outline) -> str:
    """Returns a digest that is equal for tasks that differ only in names, domains included."""
    parts = []
    for part in outline.parts:
        texts = {column: _renumber(part.cells[column]) for column in ("text0", "text1")}
        parts.append([part.order, {**{column: list(cells) for column, cells in part.cells.items()}, **texts}])
    tests = [
        [test.part, test.column, test.operator, _comparable_value(outline, test), test.hinted] for test in outline.tests
    ]
    query_fields = [kind.shape, outline.table, outline.column, outline.number, outline.descending]
    return sha256(canonical_json([parts, tests, query_fields]).encode()).hexdigest()


def _renumber(cells: Sequence[int]) -> list[int]:
    """Returns texts numbered in the order of their first occurrence."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(cell, len(numbers)) for cell in cells]


def _comparable_value(outline: Outline, test: Test) -> int | None:
    """Returns the value of a condition; for a text the first row that has it."""
    if test.operator != "=" or test.value is None:
        return test.value
    return list(outline.parts[test.part].cells[test.column]).index(test.value)
