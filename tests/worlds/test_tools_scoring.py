"""Answers, results, tables: what counts as the same."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.worlds.tools.scoring import (
    distance_km,
    mark_reached,
    round_share_down,
    same_answer,
    same_result,
    table_match,
)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (7, "7"),
        (7, 7.0),
        (6.4, 6.399999999999999),
        (7.5, "7.50"),
        ("Anna", " anna. "),
        ("very poor", "'Very  poor'"),
        ("Yes", True),
        ("no", False),
        (["a", "b"], ["B", "a"]),
        ([1, 2], [2.0, "1"]),
        ("2024-05-03", "2024-05-03"),
    ],
)
def test_spelling_does_not_count(expected, got):
    assert same_answer(expected, got)
    assert same_answer(got, expected)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (7, 8),
        (7, "seven"),
        ("anna", "hanna"),
        (["a"], "a"),
        (["a", "a"], ["a"]),
        (7, True),
        ("7", None),
        (0, ""),
        (1, [1]),
        (100, 100.001),
    ],
)
def test_what_is_said_counts(expected, got):
    assert not same_answer(expected, got)


def test_distances_on_the_sphere():
    assert distance_km((0, 0), (0, 180)) == pytest.approx(math.pi * 6371)
    assert distance_km((0, 0), (90, 0)) == pytest.approx(math.pi * 6371 / 2)
    assert distance_km((50, 10), (50, 10)) == 0
    assert distance_km((0, 0), (0, 1)) == pytest.approx(111.19, abs=0.01)


def test_places_within_50_km_are_the_same():
    place = {"latitude": 50.0, "longitude": 10.0, "rain": [3]}
    assert same_result(place, {**place, "latitude": 50.4})  # 44 km
    assert not same_result(place, {**place, "latitude": 50.5})  # 56 km
    assert not same_result(place, {**place, "rain": [4]})
    assert same_result({"results": [place]}, {"results": [{**place, "longitude": 10.6}]})  # 43 km
    assert not same_result([place], [place, place])


def test_every_subgoal_is_met_once():
    subgoals = ["a", "b", "a"]
    assert mark_reached(subgoals, 0, "a") == 0b001
    assert mark_reached(subgoals, 0b001, "a") == 0b101
    assert mark_reached(subgoals, 0b101, "a") == 0b101
    assert mark_reached(subgoals, 0b101, "b") == 0b111
    assert mark_reached(subgoals, 0, "c") == 0


def test_tables_are_compared_over_the_union_of_their_extents():
    full = [["a", "b"], ["c", 4]]
    assert table_match(full, [["a", "b"], ["c", "4.0"]]) == 1
    assert table_match(full, [["a"]]) == 1 / 4  # the original says 1: the overlap alone
    assert table_match([["a"]], full) == 1 / 4
    assert table_match(full, [["a", "b"], ["c", 4], ["x", ""]]) == 5 / 6
    assert table_match(full, []) == 0
    assert table_match([], []) == 1
    assert table_match([["a", ""]], [["a"]]) == 1  # what is empty and what is not there are the same


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_grains_add_up_exactly(parts):
    """Differences of grains are exact, so that rewards of growths add up to the whole."""
    total = sum(parts)
    shares = [round_share_down(sum(parts[:end]) / total) for end in range(len(parts) + 1)]
    assert sum(after - before for before, after in pairwise(shares)) == 1.0
    assert all(share <= sum(parts[:end]) / total for end, share in enumerate(shares))
