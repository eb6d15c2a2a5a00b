"""The JSON text of answers says what the rows of the wire say, whatever a world puts into them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import EnvLost
from evolvent.serve.host import StepRequest, StepResult
from evolvent.serve.native.rows import encode_compact, encode_info_text, encode_step_text
from evolvent.serve.wire import encode_step

TEXTS = st.text(st.characters(exclude_categories=()))  # with halves of surrogate pairs
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | FLOATS | TEXTS
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
LISTED = st.lists(TEXTS, max_size=4) | st.lists(PLAIN, max_size=4)
INFOS = st.dictionaries(TEXTS, VALUES, max_size=3) | st.builds(
    lambda rest, listed, kind: {**rest, "admissible": kind(listed)},
    st.dictionaries(TEXTS, VALUES, max_size=2),
    LISTED,
    st.sampled_from([tuple, list]),
)


@given(TEXTS, st.none() | FLOATS | st.integers(-9, 9), st.booleans(), INFOS)
def test_a_steps_text_is_that_of_its_row(observation, reward, ended, info):
    done = StepResult(observation, reward, ended, not ended, info, 7)
    assert json.loads(encode_step_text(done)) == json.loads(json.dumps(encode_step(done)))


def test_what_equals_something_else_is_not_taken_for_it():
    said = [
        encode_info_text({"admissible": values}) for values in (("a", 1), ("a", True), ("a", 1.0), (), ("1",), (1,))
    ]
    assert said == [f'{{"admissible":{each}}}' for each in ('["a",1]', '["a",true]', '["a",1.0]', "[]", '["1"]', "[1]")]


def test_numpy_values_and_what_cannot_be_hashed_are_written():
    info = {"admissible": ("go", ["left"]), "view": np.eye(2, dtype=np.int8), "seen": np.float32(0.5)}
    assert json.loads(encode_info_text(info)) == {"admissible": ["go", ["left"]], "view": [[1, 0], [0, 1]], "seen": 0.5}
    assert json.loads(encode_step_text(StepResult("", np.float64(0.25), True, False)))["reward"] == 0.25


@pytest.mark.parametrize("info", [{"x": float("nan")}, {"admissible": ("a",), "x": object()}, {"admissible": {1: 1j}}])
def test_what_is_no_json_is_an_error_of_the_world(info):
    with pytest.raises(EnvLost, match="the world's answer is not JSON"):
        encode_step_text(StepResult("here", 0.0, False, False, info))


@pytest.mark.parametrize("reward", [float("inf"), float("nan")])
def test_a_reward_that_is_not_finite_is_never_written(reward):
    with pytest.raises(EnvLost):
        encode_step_text(StepResult("here", reward, False, False))


def test_an_answer_and_an_item_cannot_be_changed():
    for made, name in ((StepResult("", 0.0, False, True), "reward"), (StepRequest("s", "a"), "action")):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)
    assert StepResult("", 0.0, False, True).is_done
    assert encode_compact({"info": StepResult("", 0, False, False).info}) == '{"info":{}}'
