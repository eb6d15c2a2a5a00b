"""The equality of two query results.

Rows are compared by position: names of columns do not count, their order and their number do, and a repeated
column counts twice. NULL equals only NULL. Integers are compared exactly. If one of two numbers is a float,
they may differ by a billionth, as sums do that were added in another order, so 3 equals 3.0. Text never equals
a number, and capitals count. Two rules treat the order of the rows differently:

- `rows` (the default): the same rows equally often, in any order; in the gold's order if the gold has its own ORDER BY
  (`lexer.is_ordered`). Ties in that ORDER BY must still come in the gold's order.
- `set`: the same set of rows, however often and in any order. This is the execution accuracy of BIRD, which
  AgentGym counts; floats have the same tolerance here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

from evolvent.worlds.sql.database import Row

__all__ = ["COMPARISONS", "Comparison", "same_result"]

Comparison = Literal["rows", "set"]
COMPARISONS: tuple[str, ...] = ("rows", "set")
_TOLERANCE = 1e-9
_SORT_DIGITS = 8  # of a float by which rows are brought into an order


def same_result(
    gold_rows: Sequence[Row], rows: Sequence[Row], *, ordered: bool = False, compare: Comparison = "rows"
) -> bool:
    """Returns whether two results are equal; see the module.

    Args:
        gold_rows, rows: the rows of both, values as SQLite returns them (None, int, float, str, bytes).
        ordered: whether the gold query has its own ORDER BY; without effect for `set`.
    """
    if compare == "set":
        gold_rows, rows, ordered = _remove_duplicates(gold_rows), _remove_duplicates(rows), False
    if len(gold_rows) != len(rows):
        return False
    if ordered:
        return all(map(_same_row, gold_rows, rows))
    has_no_floats = not any(type(value) is float for result in (gold_rows, rows) for row in result for value in row)
    if has_no_floats:
        return Counter(gold_rows) == Counter(rows)
    return _same_bag(gold_rows, rows)


def _same_row(first: Row, second: Row) -> bool:
    return len(first) == len(second) and all(map(_same_value, first, second))


def _same_value(first: object, second: object) -> bool:
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        if type(first) is type(second) is int:
            return first == second
        return math.isclose(first, second, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return type(first) is type(second) and first == second


def _remove_duplicates(rows: Sequence[Row]) -> list[Row]:
    """Returns the distinct rows; of rows that differ by a billionth one is retained."""
    distinct_rows: list[Row] = []
    for group in _group_rows(dict.fromkeys(rows)).values():
        last: Row | None = None
        for row in group:
            if last is None or not _same_row(last, row):
                distinct_rows.append(row)
                last = row
    return distinct_rows


def _same_bag(gold: Sequence[Row], rows: Sequence[Row]) -> bool:
    """Returns whether the rows can be paired. Both sides are sorted, so a row's partner is among the first unmatched
    rows.
    """
    unmatched = _group_rows(rows)
    for key, group in _group_rows(gold).items():
        candidates = unmatched.get(key, [])
        if len(candidates) != len(group):
            return False
        for row in group:
            partner_index = next(
                (index for index, candidate in enumerate(candidates) if _same_row(row, candidate)), None
            )
            if partner_index is None:
                return False
            candidates.pop(partner_index)
    return True


def _group_rows(rows: Sequence[Row] | dict[Row, None]) -> dict[Row, list[Row]]:
    """Groups the rows by all their values that are not numbers, each group sorted by its numbers."""
    groups: defaultdict[Row, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(_exact_part(value) for value in row)].append(row)
    for group in groups.values():
        group.sort(key=lambda row: [_round_for_sorting(value) for value in row if isinstance(value, (int, float))])
    return groups


def _exact_part(value: object) -> object:
    """Returns the part of a value that must be equal exactly: text and bytes; all numbers map to 0."""
    return 0 if isinstance(value, (int, float)) else value


def _round_for_sorting(value: float) -> float:
    """Returns a number without the digits in which equal numbers may differ."""
    if value == 0 or (isinstance(value, float) and not math.isfinite(value)):
        return value
    return round(value, _SORT_DIGITS - 1 - math.floor(math.log10(abs(value))))
