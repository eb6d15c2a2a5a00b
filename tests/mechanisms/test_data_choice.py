"""What P3's two halves do: difficulty leaves wrong answers out if it can tell them, diversity covers rare skills.

A pool of skills of unequal frequency, four answers in ten wrong. A skill is learned if more right than wrong answers
of it were chosen over the rounds. Features point to the skill, whether the answer is right or wrong.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from evolvent.curate.pace import pace_mask
from evolvent.curate.select import Selector, dpp, unit_features
from evolvent.curate.selectors import random_choice
from evolvent.reward.calibration import auc
from tests.mechanisms.page import check_table

SKILLS, POOL, ROUNDS, CHOSEN, WRONG, POOLS = 24, 400, 5, 24, 0.4, 12
AUCS = (0.5, 0.7, 0.9, 0.98)
FREQUENCIES = 1 / np.arange(1, SKILLS + 1)


@cache
def learn_skills(difficulty_auc: float, *, is_paced: bool, select: Selector) -> float:
    """Returns the share of skills that are learned, the mean over pools."""
    shares = []
    for seed in range(POOLS):
        rng = np.random.default_rng(seed)
        skill = rng.choice(SKILLS, size=POOL, p=FREQUENCIES / FREQUENCIES.sum())
        is_right = rng.random(POOL) >= WRONG
        directions = rng.normal(size=(SKILLS, SKILLS))
        features = directions[skill] + rng.normal(size=(POOL, SKILLS), scale=0.5)
        easiness = 2**0.5 * NormalDist().inv_cdf(difficulty_auc) * is_right + rng.normal(size=POOL)
        assert auc(easiness, is_right) == pytest.approx(difficulty_auc, abs=0.1)
        votes = np.zeros(SKILLS)
        for number in range(1, ROUNDS + 1):
            admitted = np.flatnonzero(pace_mask(easiness, number, ROUNDS) if is_paced else np.ones(POOL, np.bool_))
            indices = select(unit_features(features[admitted]), None, CHOSEN, rng=rng).indices
            chosen = admitted[indices]
            votes += np.bincount(skill[chosen], weights=np.where(is_right[chosen], 1.0, -1.0), minlength=SKILLS)
        shares.append(float((votes > 0).mean()))
    return float(np.mean(shares))


def test_what_p3_gains_over_random_choice_grows_with_the_auc_of_its_difficulty() -> None:
    random = learn_skills(0.5, is_paced=False, select=random_choice)
    gains = [learn_skills(auc, is_paced=True, select=dpp) - random for auc in AUCS]
    assert gains == sorted(gains) and gains[0] < 0.12 and gains[2] > 0.25


def test_difficulty_and_diversity_add_up_and_diversity_alone_does_not_help() -> None:
    """Without a pace diversity takes wrong answers of rare skills as willingly as right ones."""
    random = learn_skills(0.5, is_paced=False, select=random_choice)
    paced_random = learn_skills(0.9, is_paced=True, select=random_choice)
    assert random + 0.15 < paced_random < learn_skills(0.9, is_paced=True, select=dpp) - 0.05
    assert learn_skills(0.5, is_paced=False, select=dpp) < random


def test_the_page_holds_these_shares() -> None:
    """Without a pace no choice depends on the difficulty."""
    unpaced = [learn_skills(0.5, is_paced=False, select=select) for select in (dpp, random_choice)]
    rows = [
        [f"{auc:g}", *(learn_skills(auc, is_paced=True, select=select) for select in (dpp, random_choice)), *unpaced]
        for auc in AUCS
    ]
    check_table(["AUC of the difficulty", "P3", "no diversity", "no difficulty", "random"], rows)
