"""The equality of answers, results and tables, and the progress of an episode.

The originals (AgentGym's tool servers) compare Python values exactly. Here spelling, the order of lists and the
format of numbers do not count, so that right answers are accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from evolvent.trajectory import Json
from evolvent.worlds.tools.table import Cell

__all__ = ["NEAR_KM", "distance_km", "mark_reached", "round_share_down", "same_answer", "same_result", "table_match"]

NEAR_KM = 50.0
"""Places nearer to each other than this are the same place (as in the original)."""
_EARTH_KM = 6371.0
_GRAINS = 1024
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def distance_km(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Computes the great-circle distance of two (latitude, longitude) in degrees (haversine formula, sphere of 6,371
    km).
    """
    latitude1, latitude2 = math.radians(first[0]), math.radians(second[0])
    longitude_difference = math.radians(second[1] - first[1])
    chord = math.sin((latitude2 - latitude1) / 2) ** 2
    chord += math.cos(latitude1) * math.cos(latitude2) * math.sin(longitude_difference / 2) ** 2
    return 2 * _EARTH_KM * math.asin(min(1.0, math.sqrt(chord)))


def same_result(expected: Json, actual: Json) -> bool:
    """Returns whether a tool's result is the expected one; objects with coordinates are compared as places."""
    if expected == actual:
        return True
    if type(expected) in _PLAIN_TYPES or type(actual) in _PLAIN_TYPES:
        return False
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same_result, expected, actual))
    if not isinstance(expected, Mapping) or not isinstance(actual, Mapping) or expected.keys() != actual.keys():
        return False
    if _is_place(expected) and _is_place(actual):
        is_near = distance_km(_point(expected), _point(actual)) < NEAR_KM
        return is_near and _without_point(expected) == _without_point(actual)
    return all(same_result(value, actual[key]) for key, value in expected.items())


def _is_place(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("latitude"), (int, float)) and isinstance(value.get("longitude"), (int, float))


def _point(value: Mapping[str, Any]) -> tuple[float, float]:
    return float(value["latitude"]), float(value["longitude"])


def _without_point(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: field_value for key, field_value in value.items() if key not in ("latitude", "longitude")}


def same_answer(expected: Json, actual: Json) -> bool:
    """Returns whether an answer is the expected one.

    Case, spaces, surrounding quotes and a final full stop do not count. Numbers are equal within one part in a
    million in any format, and lists are equal in any order.
    """
    if isinstance(expected, list) or isinstance(actual, list):
        if not isinstance(expected, list) or not isinstance(actual, list):
            return False
        return sorted(map(_normalize, expected)) == sorted(map(_normalize, actual))
    return _normalize(expected) == _normalize(actual)


def _normalize(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{float(value):.6g}"
    text = " ".join(str(value).split()).strip("'\"").lower().removesuffix(".").strip()
    return f"{float(text):.6g}" if _NUMBER.fullmatch(text) else {"true": "yes", "false": "no"}.get(text, text)


def mark_reached(subgoals: Sequence[Json], reached: int, result: Json) -> int:
    """Returns the reached subgoals after one more result, as bits: it reaches the first equal one that is still
    open.
    """
    for index, subgoal in enumerate(subgoals):
        if not reached >> index & 1 and same_result(subgoal, result):
            return reached | 1 << index
    return reached


def table_match(expected: Sequence[Sequence[Cell]], actual: Sequence[Sequence[Cell]]) -> float:
    """Computes the share of equal cells over the union of the extents of both tables; a cell outside a table is
    empty.

    The original compares only the overlap, so a table of one cell could be a full match. Two empty tables: 1.
    """
    rows = max(len(expected), len(actual))
    columns = max(map(len, (*expected, *actual)), default=0)
    if not rows or not columns:
        return 1.0
    equal = 0
    for expected_row, actual_row in zip_longest(expected, actual, fillvalue=()):
        equal += columns
        if expected_row != actual_row:
            pairs = zip_longest(expected_row, actual_row, fillvalue="")
            equal -= sum([a != b and _normalize_cell(a) != _normalize_cell(b) for a, b in pairs])
    return equal / (rows * columns)


@lru_cache(4096, typed=True)
def _normalize_cell(cell: Cell) -> str:
    return _normalize(cell)


def round_share_down(share: float) -> float:
    """Returns a share rounded down to 1/1024: sums of differences of such numbers are exact."""
    return math.floor(share * _GRAINS) / _GRAINS
