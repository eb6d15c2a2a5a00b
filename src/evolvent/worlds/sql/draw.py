"""Generated tasks: a database of three tables with new rows, and a question whose answer depends on them.

A task is drawn in two independent steps: an outline, and names for the columns of its tables, their
keys and their texts. The same outline with other names is the same task in other words.

Outlines: tasks without names. They fix row counts, numbers, equal texts, and comparisons.

An outline has three tables in a row; each row of the second and third belongs to a row of the table before.
Columns are called by their role: key, name, parent, text0, text1, number0, number1. Their names and texts in a
task are drawn separately.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from itertools import chain, count
from random import Random
from threading import Lock
from typing import TypeVar

from evolvent.trajectory import Json, canonical_json, sample_seed
from evolvent.worlds.panel import Candidate
from evolvent.worlds.sql.database import Database, Row, build_image
from evolvent.worlds.sql.domains import DOMAINS, KEYS, TERMS, VALUES, Entity
from evolvent.worlds.sql.equal import same_result
from evolvent.worlds.sql.kinds import Kind, kinds_by_tier
from evolvent.worlds.sql.query import (
    Condition,
    Query,
    Values,
    iterate_misreadings,
    iterate_value_variants,
    render_hint,
    render_question,
    render_sql,
)
from evolvent.worlds.sql.schema import Link, Schema, Table

__all__ = [
    "COLUMNS",
    "Draft",
    "Outline",
    "OutlineChecker",
    "Part",
    "Test",
    "digest_outline",
    "draw_outline",
    "iterate_candidates",
    "sample_without_replacement",
]


COLUMNS: tuple[str, ...] = ("key", "name", "parent", "text0", "text1", "number0", "number1")

T = TypeVar("T")
_VALUE_SETS = {name: frozenset(values) for name, values in VALUES.items()}
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
    random, span = rng.random, _LARGEST + 1 - _SMALLEST
    while len(numbers) < number:
        numbers[_SMALLEST + int(random() * span)] = None
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
        rng, random, texts = self.rng, self.rng.random, 4 if rows == _ASKED_ROWS else 3
        cells: dict[str, Sequence[int]] = {"name": range(rows)}
        if num_parents:
            cells["parent"] = [int(random() * num_parents) for _ in range(rows)]
        for column in ("text0", "text1"):
            cells[column] = [int(random() * texts) for _ in range(rows)]
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


_NUM_DECOYS = 11


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the elements of an outline.

    Args:
        tables: the tables, in the outline's order.
        columns, texts: for each table, column of the outline -> its name, and the texts of its numbers.
        term: the word that a hint explains.
    """

    tables: Sequence[str]
    columns: Sequence[Mapping[str, str]]
    texts: Sequence[Mapping[str, Sequence[str]]]
    term: str = "term"

    def build_query(self, kind: Kind, outline: Outline) -> Query:
        """Builds the query of an outline."""
        columns = self.columns[outline.table]
        return Query(
            kind.select,
            self.tables[outline.table],
            columns[outline.column],
            tuple(self.build_link(part) for part in outline.joined_tables),
            tuple(self._build_condition(test) for test in outline.tests),
            kind.filter == "either",
            columns["name"] if kind.select == "top" else "",
            outline.number,
            outline.descending,
        )

    def build_link(self, part: int) -> Link:
        """Builds the foreign key of a table to the table before it."""
        parent = part - 1
        return Link(self.tables[part], self.columns[part]["parent"], self.tables[parent], self.columns[parent]["key"])

    def _build_condition(self, test: Test) -> Condition:
        texts = self.texts[test.part]
        value: str | int | None = test.value
        if test.value is not None and test.column in texts:
            value = texts[test.column][test.value]
        column = self.columns[test.part][test.column]
        return Condition(self.tables[test.part], column, test.operator, value, self.term if test.hinted else "")

    def build_rows(self, outline: Outline, part: int) -> Sequence[Row]:
        """Builds the rows of a table."""
        table, texts = outline.parts[part], self.texts[part]
        cells: list[Sequence[str | int]] = [range(1, len(table.cells["name"]) + 1)]
        for column in table.order[1:]:
            numbers = table.cells[column]
            if column == "parent":
                cells.append([row + 1 for row in numbers])
            else:
                cells.append([texts[column][number] for number in numbers] if column in texts else numbers)
        return list(zip(*cells, strict=True))

    def sample_values(self, outline: Outline) -> Values:
        """Returns some values of every column that a query can name."""
        values: dict[tuple[str, str], Sequence[str | int]] = {}
        for table, part, columns, texts in zip(self.tables, outline.parts, self.columns, self.texts, strict=True):
            for column in ("text0", "text1", "name"):
                values[table, columns[column]] = texts[column][:4]
            for column in ("number0", "number1"):
                values[table, columns[column]] = part.cells[column][:3]
        return values


def _draw_names(kind: Kind, outline: Outline, rng: Random) -> _Names:
    """Draws names of the domain: the columns of each table, its keys and its texts.

    No text is in two columns of a table, so names do not affect the result of a query.
    """
    entities = DOMAINS[kind.domain]
    key = KEYS[int(rng.random() * len(KEYS))]
    key_suffix = f"_{key}" if rng.random() < 0.5 else ""
    columns, texts_by_table = [], []
    for entity, part in zip(entities, outline.parts, strict=True):
        texts, numbers = (
            sample_without_replacement(entity.texts, 2, rng),
            sample_without_replacement(entity.numbers, 2, rng),
        )
        names = (key, "name", f"{entity.parent}{key_suffix}", *texts, *numbers)
        columns.append(dict(zip(COLUMNS, names, strict=True)))
        texts_by_column = {"name": sample_without_replacement(entity.names, len(part.cells["name"]), rng)}
        used = set(texts_by_column["name"])
        for column, name in zip(("text0", "text1"), texts, strict=True):
            free: Sequence[str] = VALUES[name]
            if not _VALUE_SETS[name].isdisjoint(used):
                free = [text for text in free if text not in used]
            texts_by_column[column] = sample_without_replacement(free, max(part.cells[column]) + 1, rng)
            used.update(texts_by_column[column])
        texts_by_table.append(texts_by_column)
    term = TERMS[int(rng.random() * len(TERMS))]
    return _Names([entity.name for entity in entities], columns, texts_by_table, term)


class Draft:
    """A drawn task.

    Args:
        kind: its kind.
        seed: seed of its outline.
        names: seed of its names.
    Attributes:
        schema, query, gold: the tables of the database, and the query that answers the question, as a value and as
            SQL.
    """

    def __init__(self, kind: Kind, seed: int, names: int = 0) -> None:
        self.kind, self._outline = kind, draw_outline(kind, seed)
        self._rng = Random(sample_seed("sql", "names", kind, seed, names))
        self._names = _draw_names(kind, self._outline, self._rng)
        self.query = self._names.build_query(kind, self._outline)
        self.gold = render_sql(self.query)
        self.schema = self._build_schema()

    def _build_schema(self) -> Schema:
        tables, links = [], []
        for index, (entity, part) in enumerate(zip(DOMAINS[self.kind.domain], self._outline.parts, strict=True)):
            columns = self._names.columns[index]
            declarations = ", ".join([f"{columns[name]} {_column_type(entity, name, columns)}" for name in part.order])
            names = tuple(columns[column] for column in part.order)
            tables.append(Table(entity.name, names, (columns["key"],), f"CREATE TABLE {entity.name} ({declarations})"))
            if index:
                links.append(self._names.build_link(index))
        return Schema(self.kind.domain, tuple(tables), tuple(links))

    @property
    def question(self) -> str:
        """Returns the question in words."""
        return render_question(self.query, self._plurals)

    @property
    def hint(self) -> str:
        """Returns the knowledge that the question needs; empty if it needs none."""
        return render_hint(self.query, self._plurals)

    @property
    def _plurals(self) -> Mapping[str, str]:
        return {entity.name: entity.plural for entity in DOMAINS[self.kind.domain]}

    def list_admissible(self) -> tuple[str, ...]:
        """Returns `admissible`."""
        return self.admissible

    @cached_property
    def admissible(self) -> tuple[str, ...]:
        """Returns the gold query at a random index among eleven others: all are misreadings of one query, itself
        drawn.

        Among misreadings of the gold query itself, the gold query would be the one most similar to all others.
        """
        values = self._names.sample_values(self._outline)
        centers = [candidate for candidate in _list_variants(self.query, values) if _could_mean(candidate, self.query)]
        center_variants = _list_variants(centers[int(self._rng.random() * len(centers))], values)
        second_variants = chain.from_iterable(
            _list_variants(candidate, values) for candidate in center_variants
        )  # where they are few
        queries = {self.gold: None}
        for candidate in chain(
            sample_without_replacement(center_variants, len(center_variants), self._rng), second_variants
        ):
            queries[render_sql(candidate)] = None
            if len(queries) > _NUM_DECOYS:
                break
        return tuple(sample_without_replacement(tuple(queries), len(queries), self._rng))

    def build_rows(self) -> Mapping[str, Sequence[Row]]:
        """Returns name of a table -> its rows, values in the order of its columns."""
        return {table: self._names.build_rows(self._outline, index) for index, table in enumerate(self._names.tables)}

    def create_database(self) -> Database:
        """Creates the database with its rows."""
        rows, tables = self.build_rows(), self.schema.tables
        image = build_image([(table.name, table.create, rows[table.name]) for table in tables])
        if image is None:
            return Database.in_memory({table.name: table.create for table in tables}, rows)
        return Database.from_image(image, [table.name for table in tables])

    def run_gold(self) -> Sequence[Row]:
        """Returns the rows of the gold query, computed in plain tables, which are refilled instead of created anew."""
        return _plain_tables().run(self.kind, self._outline, self._names.texts)

    def digest(self) -> str:
        """Returns a digest that is equal for drafts that differ only in names."""
        return digest_outline(self.kind, self._outline)


def _list_variants(query: Query, values: Values) -> list[Query]:
    """Returns a query and those that differ from it in one element."""
    return [query, *iterate_misreadings(query, values), *iterate_value_variants(query, values)]


def _could_mean(query: Query, candidate: Query) -> bool:
    """Returns whether the query could be a misreading of the candidate as well: nothing was left out of it."""
    keeps_select = query.select == candidate.select or candidate.select not in ("distinct", "group", "having")
    return keeps_select and len(query.conditions) == len(candidate.conditions)


def _column_type(entity: Entity, column: str, columns: Mapping[str, str]) -> str:
    if column == "key":
        return "INTEGER PRIMARY KEY"
    if column == "parent":
        return f"INTEGER REFERENCES {entity.parent}({columns['key']})"
    return "INTEGER" if column.startswith("number") else "TEXT"


_PLAIN_NAMES = _Names(
    tables=("part0", "part1", "part2"),
    columns=(dict(zip(COLUMNS, COLUMNS, strict=True)),) * 3,
    texts=({column: tuple(f"{column} {n}" for n in range(20)) for column in ("name", "text0", "text1")},) * 3,
)


class _PlainTables:
    """Three tables in memory with the columns of any outline. Names of tables and columns do not affect a result."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._lock = Lock()
        types = ("INTEGER PRIMARY KEY", "TEXT", "INTEGER", "TEXT", "TEXT", "INTEGER", "INTEGER")
        declarations = ", ".join(map(" ".join, zip(COLUMNS, types, strict=True)))
        for table in _PLAIN_NAMES.tables:
            self._connection.execute(f"CREATE TABLE {table} ({declarations})")

    def run(self, kind: Kind, outline: Outline, texts: Sequence[Mapping[str, Sequence[str]]]) -> Sequence[Row]:
        """Returns the rows of an outline's query over tables with these texts."""
        names = _Names(_PLAIN_NAMES.tables, _PLAIN_NAMES.columns, texts)
        query = render_sql(names.build_query(kind, outline))
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                for part in {outline.table, *(child - 1 for child in outline.joined_tables)}:
                    self._connection.execute(f"DELETE FROM {names.tables[part]}")
                    insert = f"INSERT INTO {names.tables[part]} VALUES (?, ?, ?, ?, ?, ?, ?)"
                    self._connection.executemany(insert, _list_cells(outline.parts[part], texts[part]))
                return self._connection.execute(query).fetchall()
            finally:
                self._connection.execute("COMMIT")


def _list_cells(part: Part, texts: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yields the rows of a table, columns in the order of `COLUMNS`; the first table has no parents."""
    cells, size = part.cells, len(part.cells["name"])
    parents: Sequence[int | None] = [None] * size
    if "parent" in cells:
        parents = [row + 1 for row in cells["parent"]]
    columns = [[texts[column][number] for number in cells[column]] for column in ("name", "text0", "text1")]
    return zip(range(1, size + 1), columns[0], parents, *columns[1:], cells["number0"], cells["number1"], strict=True)


@cache
def _plain_tables() -> _PlainTables:
    return _PlainTables()


class OutlineChecker:
    """Separates sound outlines from others, in one database without names that is refilled for each. The caller closes
    it.

    An outline is sound if its query finds something and no misreading of it (`query.iterate_misreadings`) has the same
    result. Names do not affect this.
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        for table in _PLAIN_NAMES.tables:
            self._connection.execute(f"CREATE TABLE {table} ({', '.join(COLUMNS)})")

    def is_sound(self, kind: Kind, outline: Outline) -> bool:
        """Returns whether the query finds anything, and the rows distinguish it from every misreading."""
        query = _PLAIN_NAMES.build_query(kind, outline)
        self._fill_tables(outline)
        gold = self._run_query(query)
        if not any(value for row in gold for value in row):  # no rows, a sum of nothing, a count of 0
            return False
        ordered = kind.select == "top"
        misreadings = iterate_misreadings(query, _PLAIN_NAMES.sample_values(outline))
        return not any(
            misreading != query and same_result(gold, self._run_query(misreading), ordered=ordered)
            for misreading in misreadings
        )

    def _run_query(self, query: Query) -> Sequence[Row]:
        return self._connection.execute(render_sql(query)).fetchall()

    def _fill_tables(self, outline: Outline) -> None:
        self._connection.execute("BEGIN")
        for part in {outline.table, *(child - 1 for child in outline.joined_tables)}:
            table, columns = _PLAIN_NAMES.tables[part], outline.parts[part].order
            self._connection.execute(f"DELETE FROM {table}")
            insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES (?{', ?' * (len(columns) - 1)})"
            self._connection.executemany(insert, _PLAIN_NAMES.build_rows(outline, part))
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Releases the database; a second call is harmless."""
        self._connection.close()


def iterate_candidates(tier: str) -> Iterator[Candidate]:
    """Yields sound tasks without end: one of every kind of the tier, then the next of every kind."""
    with closing(OutlineChecker()) as checker:
        for seed in count():
            for kind in kinds_by_tier()[tier]:
                outline = draw_outline(kind, seed)
                if checker.is_sound(kind, outline):
                    spec: dict[str, Json] = {"kind": str(kind), "seed": seed, "names": 0}
                    yield Candidate(spec, str(kind), tier, digest_outline(kind, outline))
