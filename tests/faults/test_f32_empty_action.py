"""Fault 32: an empty response: no token of it is trained, and no weight lands on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from small_training import small_policy

from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.trajectory import Generation, Step, Task, Trajectory

DIALECT = small_policy(layers=1).dialect
EOS = 2


def flat(*steps: Step) -> TokenSequence:
    trajectory = Trajectory("t", Task("small", "1", {}), steps)
    (parts,) = flatten([trajectory], DIALECT, instructions=lambda task: "", context=64).sequences
    return parts


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_demonstrated_action(empty: str) -> None:
    parts = flat(Step("you", "go"), Step("you", empty), Step("door", "take key"))
    learned = DIALECT.action("go") + DIALECT.action("take key")
    assert parts.ids[parts.weight > 0].tolist() == learned
    assert (parts.ids == EOS).sum() == 3  # the empty action is still read


@pytest.mark.parametrize("written", [[], [EOS]])
def test_an_empty_sampled_action(written: list[int]) -> None:
    prompt = [1, 4, 9, 5]
    ids = np.asarray([*prompt, *written], np.int32)
    sampled = np.asarray([False] * 4 + [True] * len(written))
    first = Generation(ids, sampled, np.zeros(len(ids), np.float32))
    second = Generation(
        np.asarray([4, 9, 5, 7, EOS], np.int32),
        np.asarray([False] * 3 + [True] * 2),
        np.zeros(5, np.float32),
        extends=0,
    )
    parts = flat(Step("a", "", generations=(first,)), Step("b", "take", generations=(second,)))
    assert np.flatnonzero(parts.weight).tolist() == [len(ids) + 3, len(ids) + 4]
    only = flat(Step("a", "", generations=(first,)))
    assert not only.weight.any() and only.feed == 0
