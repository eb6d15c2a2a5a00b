"""Generated tasks: a database of three tables with new rows, and a question whose answer depends on them.

A task is drawn in two independent steps: an outline (`outline`), and names for the columns of its tables, their
keys and their texts. The same outline with other names is the same task in other words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from random import Random

from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.panel import Candidate
from evolvent.worlds.sql.database import Database, Row
from evolvent.worlds.sql.domains import DOMAINS, KEYS, TERMS, VALUES, Entity
from evolvent.worlds.sql.equal import same_result
from evolvent.worlds.sql.kinds import Kind, kinds_by_tier
from evolvent.worlds.sql.outline import COLUMNS, Outline, Test, digest_outline, draw_outline, sample_without_replacement
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

__all__ = ["Draft", "OutlineChecker", "iterate_candidates"]

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
        for column, name in zip(("text0", "text1"), texts, strict=True):
            used = {text for used_texts in texts_by_column.values() for text in used_texts}
            free = [text for text in VALUES[name] if text not in used]
            texts_by_column[column] = sample_without_replacement(free, max(part.cells[column]) + 1, rng)
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
            declarations = ", ".join(
                f"{columns[column]} {_column_type(entity, column, columns)}" for column in part.order
            )
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
        return Database.in_memory({table.name: table.create for table in self.schema.tables}, self.build_rows())

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
