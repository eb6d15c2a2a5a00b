"""A query as a value: its selection, conditions and tables, rendered as SQL and as a question.

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
    "iterate_misreadings",
    "iterate_value_variants",
    "render_hint",
    "render_question",
    "render_sql",
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
    """A condition on the rows of a table.

    Args:
        operator: "=", ">" or "<".
        value: the value to compare with; None: the average of the column over the whole table.
        term: the word for such rows in the question, if a hint explains it; empty: the question states the
            condition.
    """

    table: str
    column: str
    operator: str
    value: str | int | None
    term: str = ""


class Query(NamedTuple):
    """A query over one table and the tables to which its rows belong.

    Args:
        select: one of `SELECTS`.
        table, column: the selection; for `top` the column of the order.
        shown_column: for `top`, the selected column.
        joins: the foreign keys that lead from the table to that of the last condition.
        conditions, match_any: the conditions, and whether one of them is enough.
        number: number of rows for `top`; for `having` the number of rows to exceed.
        descending: for `top`, whether the highest come first.
    """

    select: str
    table: str
    column: str
    joins: tuple[Link, ...] = ()
    conditions: tuple[Condition, ...] = ()
    match_any: bool = False
    shown_column: str = ""
    number: int = 0
    descending: bool = True


def render_sql(query: Query) -> str:
    """Renders the query in SQL; columns are qualified if there are several tables."""
    prefix = f"{query.table}." if query.joins else ""
    column = f"{prefix}{query.column}"
    tables = query.table + "".join(
        f" JOIN {link.to_table} ON {link.table}.{link.column} = {link.to_table}.{link.to_column}"
        for link in query.joins
    )
    where_clause = (" OR " if query.match_any else " AND ").join(
        _render_condition(test, bool(query.joins)) for test in query.conditions
    )
    rows = f"FROM {tables}" + (f" WHERE {where_clause}" if where_clause else "")
    if query.select in _AGGREGATES:
        return f"SELECT {_AGGREGATES[query.select]}({column}) {rows}"
    if query.select == "count":
        return f"SELECT COUNT(*) {rows}"
    if query.select == "top":
        direction = "DESC" if query.descending else "ASC"
        return f"SELECT {prefix}{query.shown_column} {rows} ORDER BY {column} {direction} LIMIT {query.number}"
    if query.select == "group":
        return f"SELECT {column}, COUNT(*) {rows} GROUP BY {column}"
    if query.select == "having":
        return f"SELECT {column} {rows} GROUP BY {column} HAVING COUNT(*) > {query.number}"
    return f"SELECT {'DISTINCT ' if query.select == 'distinct' else ''}{column} {rows}"


def _render_condition(test: Condition, qualified: bool) -> str:
    column = f"{test.table}.{test.column}" if qualified else test.column
    if test.value is None:
        return f"{column} {test.operator} (SELECT AVG({test.column}) FROM {test.table})"
    value = f"'{test.value}'" if isinstance(test.value, str) else test.value
    return f"{column} {test.operator} {value}"


def render_question(query: Query, plurals: Mapping[str, str]) -> str:
    """Renders the question that the query answers.

    Args:
        plurals: name of a table -> the word for several of its rows.
    """
    rows = _describe_rows(query, plurals)
    if query.select == "count":
        return f"How many {rows} are there?"
    if query.select == "list":
        return f"Give the {query.column} of {rows}."
    if query.select == "distinct":
        return f"Give each different {query.column} of {rows}."
    if query.select == "top":
        extreme = "highest" if query.descending else "lowest"
        return (
            f"Of {rows} give the {query.shown_column} of the {query.number} with the {extreme} "
            f"{query.column}, {extreme} first."
        )
    if query.select == "group":
        return f"For each {query.column} give the {query.column} and the number of {rows}."
    if query.select == "having":
        return f"Give each {query.column} that more than {query.number} {rows} have."
    return f"Give the {_ADJECTIVES[query.select]} {query.column} of {rows}."


def render_hint(query: Query, plurals: Mapping[str, str]) -> str:
    """Renders the meaning of the term in the question; empty if it uses none."""
    hints = [
        f"Hint: {test.term} {plurals[test.table]} are those whose {_describe_condition(test, plurals)}."
        for test in query.conditions
        if test.term
    ]
    return " ".join(hints)


def _describe_rows(query: Query, plurals: Mapping[str, str]) -> str:
    """Describes the rows of a question: "players whose age is above 12 that are of teams whose city is arvik"."""
    tables = [query.table, *(link.to_table for link in query.joins)]
    conjunction = " or whose " if query.match_any else " and whose "
    descriptions = []
    for table in tables:
        tests = [test for test in query.conditions if test.table == table]
        terms = "".join(f"{test.term} " for test in tests if test.term)
        conditions_text = conjunction.join(_describe_condition(test, plurals) for test in tests if not test.term)
        descriptions.append(f"{terms}{plurals[table]}" + (f" whose {conditions_text}" if conditions_text else ""))
    has_own_condition = any(test.table == query.table and not test.term for test in query.conditions)
    return descriptions[0] + "".join(
        f" that are of {part}" if has_own_condition and index == 0 else f" of {part}"
        for index, part in enumerate(descriptions[1:])
    )


def _describe_condition(test: Condition, plurals: Mapping[str, str]) -> str:
    value = f"the average {test.column} of all {plurals[test.table]}" if test.value is None else test.value
    return f"{test.column} {_OPERATORS[test.operator]} {value}"


def iterate_misreadings(query: Query, values: Values) -> Iterator[Query]:
    """Yields queries of one misreading: another column, operator or aggregate, a condition left out, `and` for `or`.

    Args:
        values: (table, column) -> some of its values. These columns may replace others, in this order; numbers and
            texts never replace each other.
    """
    for index, test in enumerate(query.conditions):
        remaining = (*query.conditions[:index], *query.conditions[index + 1 :])
        if remaining or not query.joins:
            yield query._replace(conditions=remaining, match_any=False)
        if test.operator != "=":
            yield _replace_condition(query, index, test._replace(operator="<" if test.operator == ">" else ">"))
        for column in _similar_columns(test.table, test.column, values):
            yield _replace_condition(query, index, test._replace(column=column))
    if len(query.conditions) > 1:
        yield query._replace(match_any=not query.match_any)
    yield from _iterate_other_selects(query)
    if query.select != "count":
        for column in _similar_columns(query.table, query.column, values):
            if column != query.shown_column:
                yield query._replace(column=column)


def iterate_value_variants(query: Query, values: Values) -> Iterator[Query]:
    """Yields the query with another value in one of its conditions."""
    for index, test in enumerate(query.conditions):
        if test.value is not None:
            for value in values[test.table, test.column]:
                if value != test.value:
                    yield _replace_condition(query, index, test._replace(value=value))


def _replace_condition(query: Query, index: int, test: Condition) -> Query:
    return query._replace(conditions=(*query.conditions[:index], test, *query.conditions[index + 1 :]))


def _similar_columns(table: str, column: str, values: Values) -> Iterator[str]:
    """Yields the other columns of the table with values of the same type."""
    value_type = type(values[table, column][0])
    for (other_table, name), column_values in values.items():
        if other_table == table and name != column and type(column_values[0]) is value_type:
            yield name


def _iterate_other_selects(query: Query) -> Iterator[Query]:
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
