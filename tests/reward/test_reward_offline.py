"""Offline learning: weights, expectiles and targets by hand, and pairs of siblings of one tree."""

from __future__ import annotations

from math import e, exp, inf, nan

import numpy as np
import pytest
import torch

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.reward.offline import SiblingSpans, advantage_weights, build_sibling_pairs, expectile_error, q_targets


def test_weights_by_hand() -> None:
    found = advantage_weights([[0.0, 0.5], [-1.0, 1000.0]], beta=0.5)
    assert found == pytest.approx(np.asarray([[1.0, e], [exp(-2), 20.0]])) and found.shape == (2, 2)
    assert advantage_weights([3.0], beta=1.0, cap=2.0) == pytest.approx([2.0])
    with pytest.raises(ConfigError) as caught:
        advantage_weights([0.0], beta=0.0, cap=-1.0)
    assert [problem.where for problem in caught.value.problems] == ["beta", "cap"]
    with pytest.raises(BatchMismatch):
        advantage_weights([nan], beta=1.0)


def test_expectiles_by_hand() -> None:
    values = torch.tensor([0.0, 1.0, 2.0, nan], requires_grad=True)
    targets, weights = torch.tensor([1.0, 0.0, 2.0, 5.0]), torch.tensor([1.0, 2.0, 1.0, 0.0])
    loss = expectile_error(values, targets, weights)  # .7 * 1 + 2 * .3 * 1 + 0
    assert loss.item() == pytest.approx(1.3)
    (gradient,) = torch.autograd.grad(loss, values)
    assert gradient.tolist() == pytest.approx([-1.4, 1.2, 0.0, 0.0])
    with pytest.raises(ConfigError):
        expectile_error(values, targets, weights, tau=1.0)


@pytest.mark.parametrize(("tau", "wanted"), [(0.5, 0.5), (0.7, 0.7), (0.9, 0.9)])
def test_the_expectile_of_a_coin(tau: float, wanted: float) -> None:
    """Of 0 and 1 in equal parts the tau-expectile is tau: (1 - tau) v = tau (1 - v)."""
    grid = torch.linspace(0, 1, 101)
    losses = [float(expectile_error(v.expand(2), torch.tensor([0.0, 1.0]), torch.ones(2), tau=tau)) for v in grid]
    assert float(grid[int(np.argmin(losses))]) == pytest.approx(wanted)


def test_targets_by_hand() -> None:
    found = q_targets([0.0, 1.0, 0.5], [0.8, nan, 0.4], [False, True, False], discount=0.5)
    assert found == pytest.approx([0.4, 1.0, 0.7])
    with pytest.raises(BatchMismatch):
        q_targets([0.0], [0.0, 1.0], [True])
    with pytest.raises(ConfigError):
        q_targets([0.0], [0.0], [True], discount=1.5)


def test_siblings_become_pairs() -> None:
    family = SiblingSpans((1, 2), (3,), ((4,), (5, 6), (4,), (7,)), (0.2, 0.9, 0.2, nan), "f")
    parts = build_sibling_pairs([family])
    assert [part.ids.tolist() for part in parts] == [[1, 2, 3, 5, 6], [1, 2, 3, 4]] * 2  # equal spans make no pair
    assert [part.weight.tolist() for part in parts[:2]] == [[0, 0, 0, 1, 1], [0, 0, 0, 1]]
    assert {part.trajectory for part in parts} == {"f"}
    three = SiblingSpans((1,), (), ((2,), (3,), (4,)), (0.5, 0.0, 1.0))
    ranked = [part.ids.tolist()[-1] for part in build_sibling_pairs([three], max_pairs=2)]
    assert ranked == [4, 3, 2, 3]  # the greatest difference first; of equal ones the earlier
    assert len(build_sibling_pairs([three])) == 6 and len(build_sibling_pairs([three], margin=0.5)) == 2
    assert build_sibling_pairs([SiblingSpans((1,), (), ((2,), (3,)), (inf, 0.0))]) == []
    with pytest.raises(BatchMismatch):
        SiblingSpans((1,), (), ((2,),), ())
    with pytest.raises(ConfigError) as caught:
        build_sibling_pairs([], margin=-1.0, max_pairs=0)
    assert [problem.where for problem in caught.value.problems] == ["margin", "most"]
