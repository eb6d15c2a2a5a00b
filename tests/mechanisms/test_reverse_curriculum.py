"""Why R3 starts inside demonstrations: on a hidden chain outcomes alone find nothing once the chain is long."""

from __future__ import annotations

from functools import cache

import pytest

from tests.mechanisms.chain import RIGHT, Curriculum, Floats, train_on_chain
from tests.mechanisms.page import check_table

LENGTHS = (4, 8, 12)
ITERATIONS = 150
CURRICULA: tuple[Curriculum, ...] = ("outcome", "staged", "mixed")


@cache
def train(curriculum: Curriculum, length: int) -> tuple[Floats, Floats]:
    return train_on_chain(curriculum, length, iterations=ITERATIONS, lr=3.0, seeds=4)


def final_success(curriculum: Curriculum, length: int) -> float:
    return float(train(curriculum, length)[0][-1].mean())


@pytest.mark.parametrize("length", LENGTHS)
def test_every_curriculum_begins_with_the_same_policy(length: int) -> None:
    assert all(train(name, length)[0][0] == pytest.approx([RIGHT**length] * 4) for name in CURRICULA)


def test_what_mixed_starts_gain_over_outcomes_grows_with_the_length_of_the_chain() -> None:
    """Where one start in 16 succeeds outcomes are enough; where one in 4,096 does they teach nothing."""
    gains = [final_success("mixed", length) - final_success("outcome", length) for length in LENGTHS]
    assert -0.05 < gains[0] < 0.0 and -0.05 < gains[1] < 0.0 and gains[2] > 0.6
    success = train("outcome", 12)[0]
    assert success[-1].max() < 0.01 and train("mixed", 12)[0][-1].min() > 0.6, "on every seed"


def test_staged_starts_forget_the_beginning_until_they_return_to_it() -> None:
    """While later steps are practised the right first word falls from .5; success waits for the last stage."""
    for length in (8, 12):
        success, first = train("staged", length)
        before_last_stage = ITERATIONS - ITERATIONS // length - 1
        assert first[0] == pytest.approx(RIGHT) and (first.min(axis=0) < 0.2).all()
        assert success[before_last_stage].mean() < 0.2 and success[-1].mean() > 0.8
    assert train("mixed", 12)[0][ITERATIONS - 13].mean() > 0.5, "mixed starts have a policy to use all along"


def test_the_page_holds_these_figures() -> None:
    rows = [
        [length, *(final_success(name, length) for name in CURRICULA), float(train("staged", length)[1].min(0).mean())]
        for length in LENGTHS
    ]
    check_table(["steps", "outcomes alone", "staged", "mixed (R3)", "right first word in staged, at worst"], rows)
