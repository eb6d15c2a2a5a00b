"""Gato's tokens: published bins, what goes in comes out, and what has no token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import SampleInvalid
from evolvent.models.gato import NUMBERS, SEPARATOR, Field, choices, decoded, numbers, step_tokens, texts


def test_golden_bins():
    assert (numbers([0, 0.1, -1, 1, 10, 256]) - 32000).tolist() == [512, 632, 279, 744, 860, 1023]
    assert (numbers([-1, 0, 1], action=True) - 32000).tolist() == [0, 512, 1023]
    assert numbers([-1e9, 1e9]).tolist() == [NUMBERS, NUMBERS + 1023]


@settings(max_examples=50, deadline=None)
@given(st.floats(-256, 256), st.booleans())
def test_a_number_comes_back_to_its_bin(value, action):
    value = value / 256 if action else value
    token = numbers([value], action=action)
    again = decoded(token, action=action)
    assert numbers(again, action=action)[0] == token[0]
    width = 2 / 1024 if action else 0.02 * (abs(value) + 0.01)
    assert abs(again[0] - value) <= width


def test_bins_keep_order():
    line = numbers(np.linspace(-300, 300, 5001))
    assert (np.diff(line) >= 0).all() and (numbers(-np.linspace(0.1, 9, 50)) < NUMBERS + 512).all()


def test_a_step_by_hand():
    observation = (Field("text", np.array([7, 8])), Field("number", np.array([[0.0, 1.0]])))
    found = step_tokens(observation, Field("choice", np.array([3])))
    assert found.tokens.tolist() == [7, 8, 32512, 32744, SEPARATOR, 3]
    assert found.learned.tolist() == [True, True, False, False, False, True]
    assert step_tokens((), Field("number", np.array([1.0]))).tokens.tolist() == [SEPARATOR, 33023]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: numbers([np.nan]),
        lambda: numbers([1.5], action=True),
        lambda: choices([1024]),
        lambda: texts([32000]),
        lambda: choices([-1]),
        lambda: decoded([5]),
        lambda: decoded([SEPARATOR]),
        lambda: step_tokens((), Field("choice", np.array([], np.int64))),
    ],
)
def test_what_has_no_token(wrong):
    with pytest.raises(SampleInvalid):
        wrong()
