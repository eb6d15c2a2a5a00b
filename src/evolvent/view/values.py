"""Untrusted JSON values: values of the expected type are read, anything else is None or empty.

Reading never fails because of what a file holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

__all__ = ["as_count", "as_list", "as_mapping", "as_number", "as_numbers", "as_rate", "as_text"]

_MAX_NUMBER = 1e100  # larger numbers are damage, and their sums would overflow


def as_number(value: object) -> float | None:
    """Returns a finite number below 1e100, or None."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < _MAX_NUMBER else None


def as_count(value: object) -> int | None:
    """Returns a nonnegative integer, or None."""
    number = as_number(value)
    return None if number is None or not 0 <= number < 2**53 else int(number)


def as_rate(value: object) -> float | None:
    """Returns a number in 0..1, or None."""
    number = as_number(value)
    return number if number is not None and 0 <= number <= 1 else None


def as_text(value: object) -> str:
    """Returns text, or a number or truth value as JSON writes it; "" for anything else."""
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return value if isinstance(value, str) else ""


def as_mapping(value: object) -> Mapping[str, object]:
    """Returns an object, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> Sequence[object]:
    """Returns an array, or an empty sequence."""
    return value if isinstance(value, list) else ()


def as_numbers(value: object) -> dict[str, float]:
    """Returns the entries of an object that are numbers."""
    numbers = {name: as_number(entry) for name, entry in as_mapping(value).items()}
    return {name: number for name, number in numbers.items() if number is not None}
