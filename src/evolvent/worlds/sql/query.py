"""A query as a value: what it selects, of which rows, over which tables; told as SQL and as a question.

average  both  parent    SELECT AVG(player.age) FROM player JOIN team ON player.team_id = team.id
                         WHERE player.goals > 12 AND team.city = 'arvik'
                         Give the average age of players whose goals is above 12 that are of teams whose city is
                         arvik.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from evolvent.worlds.sql.schema import Link

__all__ = [
    "FIXED_WORDS",
    "SELECTS",
    "Condition",
    "Query",
    "Values",
    "hint_of",
    "neighbours",
    "question_of",
    "sql_of",
    "variants",
]

Values = Mapping[tuple[str, str], Sequence[str | int]]
"""(table, column) -> some of its values."""

SELECTS: tuple[str, ...] = (
    "list",
    "count",
    "distinct",
    "total",
    "average",
    "most",
    "least",
    "top",
    "group",
    "having",
)
"""What a query can ask for."""

_AGGREGATES = {"total": "SUM", "average": "AVG", "most": "MAX", "least": "MIN"}
_OTHER_AGGREGATES = {
    "total": ("average", "most"),
    "average": ("total", "least"),
    "most": ("least", "total"),
    "least": ("most", "average"),
}
_ADJECTIVES = {"total": "total", "average": "average", "most": "highest", "least": "lowest"}
_OPERATORS = {"=": "is", ">": "is above", "<": "is below"}

FIXED_WORDS = (
    "SELECT DISTINCT FROM JOIN ON WHERE AND OR GROUP BY HAVING ORDER DESC ASC LIMIT COUNT SUM AVG MAX MIN ( ) , . * = "
    "< > ' How many are there ? Give the of each different total average highest lowest with first For and number more "
    "than one Of give whose is above below all that have or Hint : those"
)
"""Every word of a query and its question that comes from no schema and no database, for a vocabulary."""


class Condition(NamedTuple):
    """What the rows of a table have to fulfil.

    Args:
        operator: "=", ">" or "<".
        value: what to compare with; None: the average of the column over the whole table.
        term: what the question calls such rows, where a hint says what it means; empty: it says it itself.
    """

    table: str
    column: str
    operator: str
    value: str | int | None
    term: str = ""


class Query(NamedTuple):
    """A query over one table and the tables that its rows belong to.

    Args:
        select: one of `SELECTS`.
        table, column: what is selected; for `top` what is ordered by.
        shown: for `top`, the column that is given.
        joins: the foreign keys that lead from the table to that of the last condition.
        conditions, either: the conditions, and whether one of them is enough.
        number: how many rows `top` gives, and more than how many `having` asks for.
        descending: for `top`, whether the highest come first.
    """

    select: str
    table: str
    column: str
    joins: tuple[Link, ...] = ()
    conditions: tuple[Condition, ...] = ()
    either: bool = False
    shown: str = ""
    number: int = 0
    descending: bool = True


def sql_of(query: Query) -> str:
    """The query in SQL; columns bear the names of their tables where there are several."""
    before = f"{query.table}." if query.joins else ""
    column = f"{before}{query.column}"
    tables = query.table + "".join(
        f" JOIN {link.to_table} ON {link.table}.{link.column} = {link.to_table}.{link.to_column}"
        for link in query.joins
    )
    where = (" OR " if query.either else " AND ").join(_tested(test, bool(query.joins)) for test in query.conditions)
    rows = f"FROM {tables}" + (f" WHERE {where}" if where else "")
    if query.select in _AGGREGATES:
        return f"SELECT {_AGGREGATES[query.select]}({column}) {rows}"
    if query.select == "count":
        return f"SELECT COUNT(*) {rows}"
    if query.select == "top":
        way = "DESC" if query.descending else "ASC"
        return f"SELECT {before}{query.shown} {rows} ORDER BY {column} {way} LIMIT {query.number}"
    if query.select == "group":
        return f"SELECT {column}, COUNT(*) {rows} GROUP BY {column}"
    if query.select == "having":
        return f"SELECT {column} {rows} GROUP BY {column} HAVING COUNT(*) > {query.number}"
    return f"SELECT {'DISTINCT ' if query.select == 'distinct' else ''}{column} {rows}"


def _tested(test: Condition, qualified: bool) -> str:
    column = f"{test.table}.{test.column}" if qualified else test.column
    if test.value is None:
        return f"{column} {test.operator} (SELECT AVG({test.column}) FROM {test.table})"
    value = f"'{test.value}'" if isinstance(test.value, str) else test.value
    return f"{column} {test.operator} {value}"


def question_of(query: Query, plurals: Mapping[str, str]) -> str:
    """The question that the query answers.

    Args:
        plurals: name of a table -> what several of its rows are called.
    """
    rows = _rows(query, plurals)
    if query.select == "count":
        return f"How many {rows} are there?"
    if query.select == "list":
        return f"Give the {query.column} of {rows}."
    if query.select == "distinct":
        return f"Give each different {query.column} of {rows}."
    if query.select == "top":
        first = "highest" if query.descending else "lowest"
        return f"Of {rows} give the {query.shown} of the {query.number} with the {first} {query.column}, {first} first."
    if query.select == "group":
        return f"For each {query.column} give the {query.column} and the number of {rows}."
    if query.select == "having":
        return f"Give each {query.column} that more than {query.number} {rows} have."
    return f"Give the {_ADJECTIVES[query.select]} {query.column} of {rows}."


def hint_of(query: Query, plurals: Mapping[str, str]) -> str:
    """What the term in the question means; empty where it uses none."""
    hints = [
        f"Hint: {test.term} {plurals[test.table]} are those whose {_told(test, plurals)}."
        for test in query.conditions
        if test.term
    ]
    return " ".join(hints)


def _rows(query: Query, plurals: Mapping[str, str]) -> str:
    """The rows that a question speaks of: "players whose age is above 12 that are of teams whose city is arvik"."""
    tables = [query.table, *(link.to_table for link in query.joins)]
    joint = " or whose " if query.either else " and whose "
    told = []
    for table in tables:
        tests = [test for test in query.conditions if test.table == table]
        terms = "".join(f"{test.term} " for test in tests if test.term)
        plain = joint.join(_told(test, plurals) for test in tests if not test.term)
        told.append(f"{terms}{plurals[table]}" + (f" whose {plain}" if plain else ""))
    own = any(test.table == query.table and not test.term for test in query.conditions)
    return told[0] + "".join(
        f" that are of {part}" if own and place == 0 else f" of {part}" for place, part in enumerate(told[1:])
    )


def _told(test: Condition, plurals: Mapping[str, str]) -> str:
    value = f"the average {test.column} of all {plurals[test.table]}" if test.value is None else test.value
    return f"{test.column} {_OPERATORS[test.operator]} {value}"


def neighbours(query: Query, values: Values) -> Iterator[Query]:
    """Queries of one misreading: another column, operator or aggregate, a condition left out, `and` for `or`.

    Args:
        values: (table, column) -> some of its values. These columns may be named instead of others, in this order;
            numbers and texts are never taken for each other.
    """
    for at, test in enumerate(query.conditions):
        left = (*query.conditions[:at], *query.conditions[at + 1 :])
        if left or not query.joins:
            yield query._replace(conditions=left, either=False)
        if test.operator != "=":
            yield _with(query, at, test._replace(operator="<" if test.operator == ">" else ">"))
        for column in _alike(test.table, test.column, values):
            yield _with(query, at, test._replace(column=column))
    if len(query.conditions) > 1:
        yield query._replace(either=not query.either)
    yield from _other_selects(query)
    if query.select != "count":
        for column in _alike(query.table, query.column, values):
            if column != query.shown:
                yield query._replace(column=column)


def variants(query: Query, values: Values) -> Iterator[Query]:
    """The query with another value in one of its conditions."""
    for at, test in enumerate(query.conditions):
        if test.value is not None:
            for value in values[test.table, test.column]:
                if value != test.value:
                    yield _with(query, at, test._replace(value=value))


def _with(query: Query, at: int, test: Condition) -> Query:
    return query._replace(conditions=(*query.conditions[:at], test, *query.conditions[at + 1 :]))


def _alike(table: str, column: str, values: Values) -> Iterator[str]:
    """The other columns of the table that hold values of the same sort."""
    sort = type(values[table, column][0])
    for (other, name), found in values.items():
        if other == table and name != column and type(found[0]) is sort:
            yield name


def _other_selects(query: Query) -> Iterator[Query]:
    for select in _OTHER_AGGREGATES.get(query.select, ()):
        yield query._replace(select=select)
    if query.select == "top":
        yield query._replace(descending=not query.descending)
    if query.select in ("top", "having"):
        if query.number > (query.select == "top"):
            yield query._replace(number=query.number - 1)
        yield query._replace(number=query.number + 1)
    if query.select == "distinct":
        yield query._replace(select="list")
    if query.select in ("group", "having"):
        yield query._replace(select="distinct")
