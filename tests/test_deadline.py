"""Deadlines on a clock that the test turns, and the pauses between tries."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.deadline import Deadline, backoff
from evolvent.errors import ConfigError, StepTimeout


class Clock:
    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now


def test_a_deadline_runs_down_and_stays_at_nothing():
    clock = Clock()
    deadline = Deadline(2.5, clock=clock)
    assert deadline.left() == 2.5 and not deadline.expired
    clock.now += 1
    assert deadline.left() == 1.5
    deadline.check("a step")
    clock.now += 1.5
    assert deadline.expired and deadline.left() == 0
    clock.now += 50
    assert deadline.left() == 0


def test_the_error_names_the_work_and_what_it_was_given():
    with pytest.raises(StepTimeout, match=r"reset: no end before the deadline: got 0\.25 s"):
        clock = Clock()
        deadline = Deadline(0.25, clock=clock)
        clock.now += 1
        deadline.check("reset")


def test_a_part_ends_with_its_own_span_or_with_the_whole():
    clock = Clock()
    whole = Deadline(10, clock=clock)
    part, long = whole.within(3), whole.within(60)
    clock.now += 3
    assert part.expired and not whole.expired and not long.expired
    clock.now += 7
    assert whole.expired and long.expired


def test_no_deadline_is_one_that_never_comes():
    assert Deadline(math.inf).left() == math.inf
    assert Deadline(math.inf).within(1).left() <= 1
    assert Deadline(0).expired


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan])
def test_a_deadline_in_the_past_is_refused(seconds):
    with pytest.raises(ConfigError, match="deadline out of range"):
        Deadline(seconds)


@given(st.integers(0, 5000), st.integers(), st.floats(0.001, 10), st.floats(0.001, 100))
def test_pauses_lie_in_the_upper_half_of_their_span(attempt, seed, base, cap):
    span = min(cap, base * 2.0 ** min(attempt, 60))
    pause = backoff(attempt, Random(seed), base_s=base, cap_s=cap)
    assert span / 2 <= pause <= span
    assert pause == backoff(attempt, Random(seed), base_s=base, cap_s=cap)


def test_clients_that_failed_together_come_back_apart():
    pauses = {round(backoff(3, Random(seed)), 4) for seed in range(50)}
    assert len(pauses) > 40


@pytest.mark.parametrize("wrong", [(-1, 1.0, 1.0), (0, 0.0, 1.0), (0, 1.0, -1.0)])
def test_pauses_that_cannot_be_are_refused(wrong):
    attempt, base, cap = wrong
    with pytest.raises(ConfigError, match="invalid backoff settings"):
        backoff(attempt, Random(0), base_s=base, cap_s=cap)
