"""Gato's tokens: published bins, what goes in comes out, and what has no token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import SampleInvalid
from evolvent.models.gato import (
    NUMBERS,
    SEPARATOR,
    Field,
    decode_numbers,
    encode_choices,
    encode_numbers,
    encode_step,
    encode_words,
)


def test_golden_bins():
    assert (encode_numbers([0, 0.1, -1, 1, 10, 256]) - 32000).tolist() == [512, 632, 279, 744, 860, 1023]
    assert (encode_numbers([-1, 0, 1], action=True) - 32000).tolist() == [0, 512, 1023]
    assert encode_numbers([-1e9, 1e9]).tolist() == [NUMBERS, NUMBERS + 1023]


@settings(max_examples=50, deadline=None)
@given(st.floats(-256, 256), st.booleans())
def test_a_number_comes_back_to_its_bin(value, action):
    value = value / 256 if action else value
    token = encode_numbers([value], action=action)
    again = decode_numbers(token, action=action)
    assert encode_numbers(again, action=action)[0] == token[0]
    width = 2 / 1024 if action else 0.02 * (abs(value) + 0.01)
    assert abs(again[0] - value) <= width


def test_bins_keep_order():
    line = encode_numbers(np.linspace(-300, 300, 5001))
    assert (np.diff(line) >= 0).all() and (encode_numbers(-np.linspace(0.1, 9, 50)) < NUMBERS + 512).all()


def test_a_step_by_hand():
    observation = (Field("text", np.array([7, 8])), Field("number", np.array([[0.0, 1.0]])))
    found = encode_step(observation, Field("choice", np.array([3])))
    assert found.tokens.tolist() == [7, 8, 32512, 32744, SEPARATOR, 3]
    assert found.learned.tolist() == [True, True, False, False, False, True]
    assert encode_step((), Field("number", np.array([1.0]))).tokens.tolist() == [SEPARATOR, 33023]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: encode_numbers([np.nan]),
        lambda: encode_numbers([1.5], action=True),
        lambda: encode_choices([1024]),
        lambda: encode_words([32000]),
        lambda: encode_choices([-1]),
        lambda: decode_numbers([5]),
        lambda: decode_numbers([SEPARATOR]),
        lambda: encode_step((), Field("choice", np.array([], np.int64))),
    ],
)
def test_what_has_no_token(wrong):
    with pytest.raises(SampleInvalid):
        wrong()
