"""Values of JSON: the wanted type or nothing, and no error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_numbers, as_rate, as_text

ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("value", "number", "count", "rate"),
    [
        (0.5, 0.5, 0, 0.5),
        (3, 3.0, 3, None),
        (True, 1.0, 1, 1.0),
        (-1, -1.0, None, None),
        ("3", None, None, None),
        (1e100, None, None, None),
        (float("nan"), None, None, None),
        (10**400, None, None, None),
        (2**53, 2.0**53, None, None),
    ],
)
def test_numbers(value: object, number: float | None, count: int | None, rate: float | None) -> None:
    assert (as_number(value), as_count(value), as_rate(value)) == (number, count, rate)


def test_texts_and_what_holds_others() -> None:
    assert [as_text(value) for value in ("a", 7, True, None, [1])] == ["a", "7", "true", "", ""]
    assert (as_list([1]), as_list({}), as_mapping({"a": 1}), as_mapping([1])) == ([1], (), {"a": 1}, {})
    assert as_numbers({"a": 1, "b": "x", "c": None, "d": 2.5}) == {"a": 1.0, "d": 2.5}


@given(value=ANY)
def test_anything_is_read(value: object) -> None:
    number = as_number(value)
    assert number is None or abs(number) < 1e100
    json.dumps([as_text(value), as_count(value), as_rate(value), as_numbers(value)], allow_nan=False)
