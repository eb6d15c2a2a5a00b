"""Search gains what its judge of states is worth: best of n, beam, MCTS and Gumbel search under judges of known AUC.

The tree has `WIDTH` actions a state and ends after `DEPTH`; one end in hundreds is right, as in a game of countdown.
The policy is uniform, so that a sample is right as often as an end. Ends are checked by the world, so best of n needs
no judge; a state is judged by whether a right end lies below it, plus noise that gives the judge its AUC.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from evolvent.reward.calibration import auc_within
from evolvent.search.beam import beam
from evolvent.search.gumbel import gumbel_mcts
from evolvent.search.mcts import Explore, Restart, mcts
from evolvent.search.records import Budget, Search
from evolvent.search.samples import best_of_n
from evolvent.search.select import puct
from tests.mechanisms.page import check_table
from tests.search.trees import SmallTree, Watch, end, run

WIDTH, DEPTH, RIGHT_ENDS, TREES = 5, 4, 4, 40
SAMPLES = 16  # of best of n; every search may write as many actions as they have
AUCS = (1.0, 0.98, 0.78, 0.5)
BUDGET = Budget(generated=3 * DEPTH * SAMPLES)  # 3 tokens an action


LEVELS = np.cumsum([0, *(WIDTH**level for level in range(DEPTH + 1))])  # the first state of every level


def build_tree(seed: int) -> SmallTree:
    """A full tree whose right ends are drawn; states are numbered level by level."""
    below = {state: tuple(range(WIDTH * state + 1, WIDTH * state + WIDTH + 1)) for state in range(int(LEVELS[-2]))}
    ends = range(int(LEVELS[-2]), int(LEVELS[-1]))
    right = np.random.default_rng(seed).choice(ends, size=RIGHT_ENDS, replace=False).tolist()
    below |= dict.fromkeys(ends, ())
    return SmallTree(below, dict.fromkeys(below, 0.0), {state: float(state in right) for state in ends})


def label_states(tree: SmallTree) -> dict[int, float]:
    """Whether a right end lies below each state, 0 or 1."""
    labels = dict(tree.reward)
    for state in reversed(range(int(LEVELS[-2]))):
        labels[state] = max(labels[child] for child in tree.below[state])
    return labels


def judge_states(tree: SmallTree, labels: dict[int, float], auc: float, seed: int) -> dict[int, float]:
    """The values of a calibrated judge: it reads a normal signal of the label, and says how likely that makes it.

    A good state has a higher signal than a bad one with chance `auc`. Ends have their reward.
    """
    separation = 2**0.5 * NormalDist().inv_cdf(auc) if auc < 1 else 10.0
    states = np.arange(LEVELS[-2])
    truth = np.array([labels[state] for state in states.tolist()])
    signal = separation * truth + np.random.default_rng(seed).normal(size=len(states))
    log_odds = np.log(truth.mean() / (1 - truth.mean())) + separation * signal - separation**2 / 2
    return tree.reward | dict(zip(states.tolist(), (1 / (1 + np.exp(-log_odds))).tolist(), strict=True))


class Judged(Watch):
    """A driver for full trees, where a state's level is known."""

    def length(self, above: int, state: int) -> int:
        return int(np.searchsorted(LEVELS, state, side="right") - np.searchsorted(LEVELS, above, side="right"))


def searches(rng: np.random.Generator) -> dict[str, Search]:
    return {
        "best of n": best_of_n(0, BUDGET, rng, n=SAMPLES),
        "beam": beam(0, BUDGET, rng, width=WIDTH, keep=3, depth=DEPTH),
        "MCTS": mcts(0, BUDGET, rng, width=WIDTH, depth=DEPTH, start=Restart(paths=8), explore=Explore(select=puct)),
        "Gumbel": gumbel_mcts(0, BUDGET, rng, width=WIDTH, depth=DEPTH, simulations=6, considered=4),
    }


@cache
def measure(auc: float) -> tuple[dict[str, float], float]:
    """Returns the success of every search over all trees, and the AUC within trees of the judge of their states."""
    successes: dict[str, list[float]] = {}
    scores: list[float] = []
    truths: list[float] = []
    for seed in range(TREES):
        tree = build_tree(seed)
        labels = label_states(tree)
        values = judge_states(tree, labels, auc, seed)
        scores += [values[state] for state in range(1, int(LEVELS[-2]))]
        truths += [labels[state] for state in range(1, int(LEVELS[-2]))]
        for name, search in searches(np.random.default_rng(seed)).items():
            chosen = end(run(search, Judged(tree, value=values.__getitem__, again=True, depth=DEPTH)))
            successes.setdefault(name, []).append(0.0 if chosen is None else tree.reward[chosen])
    trees = np.repeat(np.arange(TREES), len(scores) // TREES).tolist()
    return {name: float(np.mean(column)) for name, column in successes.items()}, auc_within(scores, truths, trees)


@pytest.mark.parametrize("auc", AUCS)
def test_a_judge_has_the_auc_that_it_was_built_for(auc: float) -> None:
    assert measure(auc)[1] == pytest.approx(auc, abs=0.02)


def test_best_of_n_does_not_depend_on_the_judge_of_states() -> None:
    chance = 1 - (1 - RIGHT_ENDS / WIDTH**DEPTH) ** SAMPLES
    (success,) = {measure(auc)[0]["best of n"] for auc in AUCS}
    assert success == pytest.approx(chance, abs=0.04)


@pytest.mark.parametrize("name", ["beam", "MCTS", "Gumbel"])
def test_the_gain_of_a_search_follows_the_auc_of_its_judge(name: str) -> None:
    """With an exact judge it solves most trees; with a judge that knows nothing no search beats sampling."""
    success = [measure(auc)[0][name] for auc in AUCS]
    assert success == sorted(success, reverse=True)
    assert success[0] > 0.75 and success[1] > 0.5
    assert success[0] - success[2] >= 0.4, "most of the gain is gone at .78"
    assert success[-1] <= measure(AUCS[-1])[0]["best of n"] + 0.05


def test_at_78_only_the_beam_is_clearly_above_best_of_n() -> None:
    success = measure(0.78)[0]
    assert success["beam"] > success["best of n"] + 0.3
    assert all(success["best of n"] < success[name] < success["best of n"] + 0.2 for name in ("MCTS", "Gumbel"))


def test_the_page_holds_these_figures() -> None:
    rows = [[f"{auc:g}", *measure(auc)[0].values()] for auc in AUCS]
    check_table(["AUC of the value model", *measure(1.0)[0]], rows)
