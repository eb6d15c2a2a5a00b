"""The study of reward against language: its worlds, the point that an arm may choose, and figures by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.credit.language import (
    ARMS,
    COLORS,
    LENGTH,
    Code,
    LanguagePlan,
    Talk,
    choose_point,
    compute_limit,
    report_language,
    write_random_colors,
    write_sentence,
)
from benchmarks.study import write_cell
from evolvent.errors import ConfigError
from evolvent.trajectory import sample_rng

PLAN = LanguagePlan(coefs=(0.01, 0.1), levels=(0.1,), seeds=(0, 1))


def play(world, spec, text):
    """Plays an episode of one action and returns its reward."""
    episode = world.play(spec)
    next(episode)
    with pytest.raises(StopIteration) as stop:
        episode.send(text)
    return stop.value.value


def test_a_code_pays_the_share_of_right_colors_at_twelve_words():
    world = Code()
    right = [COLORS[index] for index in sample_rng("code", "north").integers(len(COLORS), size=LENGTH)]
    half = [color if position < 6 else "door" for position, color in enumerate(right)]
    spec = {"door": "north", "copy": 0}
    assert play(world, spec, " ".join(right)) == 1.0
    assert play(world, spec, " ".join(half)) == 0.5
    assert play(world, spec, " ".join(right[:-1])) == play(world, spec, "") == 0.0


def test_a_sentence_follows_its_chain_and_random_colors_do_not():
    """A successor comes with probability .8 + .2 / 6 = .833; at random with 1 / 6."""

    def measure(write_text):
        words = [write_text(f"{number}").split() for number in range(300)]
        pairs = [(COLORS.index(first), COLORS.index(second)) for text in words for first, second in pairwise(text)]
        assert all(len(text) == LENGTH for text in words)
        return Counter((second - first) % len(COLORS) == 1 for first, second in pairs)[True] / len(pairs)

    assert measure(write_sentence) == pytest.approx(0.833, abs=0.02)
    assert measure(write_random_colors) == pytest.approx(0.167, abs=0.02)
    assert not {task.id for task in Talk().tasks("train", "seen")} & {task.id for task in Talk().tasks("test", "seen")}


def point(returns, kl, perplexity=4.0):
    return {"return": returns, "kl": kl, "perplexity": [perplexity]}


def test_a_point_is_chosen_by_one_half_and_reported_by_the_other():
    base, lucky, far = point([0.1, 0.1], [0.0, 0.0]), point([0.5, 0.3], [0.09, 0.2]), point([0.9, 0.9], [0.11, 0.05])
    assert choose_point([base, lucky, far], 0.1) is lucky, "the divergence of the second half is not looked at"
    assert choose_point([base, far], 0.1) is base
    assert choose_point([base, lucky, far], 0.5) is far


@pytest.mark.parametrize("level", [0.01, 0.1, 0.3, 1.0])
def test_no_distribution_of_colors_returns_more_within_a_divergence(level):
    """Brute force: random distributions, and mixtures of uniform with one color; 12 of 13 tokens are colors."""
    rng, best = np.random.default_rng(0), 0.0
    drawn = rng.dirichlet(np.full(len(COLORS), 0.7), size=1000)
    weights = np.linspace(0, 0.999, 4000)[:, None]
    mixed = weights * np.eye(len(COLORS))[0] + (1 - weights) / len(COLORS)
    for shares in np.concatenate([drawn, mixed]):
        known = shares[shares > 0]
        if LENGTH / (LENGTH + 1) * float((known * np.log(known * len(COLORS))).sum()) <= level:
            best = max(best, float(shares.max()))
    assert best <= compute_limit(level) + 1e-9
    assert best == pytest.approx(compute_limit(level), abs=1e-3)


def test_figures_are_those_of_the_chosen_points(tmp_path):
    """ETPO: .4 and .3 (reported), PPO: .2 and .2; perplexities 4 over 5."""
    folder = tmp_path / "credit_language"
    base = point([0.2, 0.2], [0.0, 0.0], 3.0)
    points = {
        ("etpo", 0.01, 0): point([0.5, 0.4], [0.08, 0.08], 4.0),
        ("etpo", 0.1, 0): point([0.3, 0.9], [0.01, 0.01], 3.5),
        ("etpo", 0.01, 1): point([0.5, 0.3], [0.1, 0.3], 4.0),
        ("etpo", 0.1, 1): point([0.9, 0.9], [0.4, 0.4], 9.0),
        ("token_ppo", 0.01, 0): point([0.6, 0.2], [0.05, 0.05], 5.0),
        ("token_ppo", 0.1, 0): point([0.2, 0.2], [0.01, 0.01], 3.1),
        ("token_ppo", 0.01, 1): point([0.4, 0.2], [0.06, 0.05], 5.0),
        ("token_ppo", 0.1, 1): point([0.1, 0.1], [0.01, 0.01], 3.1),
    }
    cell = {"rate": 3e-4, "digest": PLAN.cell_digest, "sources": "s", "cpu_s": 36.0}
    with pytest.raises(ConfigError, match="no seed has finished"):
        report_language(folder, PLAN)
    for (arm, coef, seed), reached in points.items():
        row = {**cell, "arm": arm, "coef": coef, "seed": seed, "points": [base, reached]}
        write_cell(folder, f"{arm}-{coef:g}-{seed}", row)
    for arm in ARMS:
        for rate in PLAN.rates:
            row = {"digest": PLAN.cell_digest, "arm": arm, "rate": rate, "success": float(rate == 3e-4)}
            write_cell(folder, f"tuning-{arm}-{rate:g}", row)
    figures = report_language(folder, PLAN)
    assert figures["seeds"] == [0, 1] and figures["gate_passed"]
    assert figures["return"]["0.1"]["etpo"][0] == pytest.approx(0.35)
    assert figures["etpo_minus_ppo_ci"][0] == pytest.approx(0.15)
    assert figures["etpo_over_ppo_perplexity"]["0.1"] == [0.8, 0.8, 0.8]
    assert figures["points"]["etpo"][1] == [0.08, 0.4] and len(figures["points"]["token_ppo"]) == 8
    assert figures["rates"] == {"etpo": 3e-4, "token_ppo": 3e-4} and figures["cpu_hours"] == 0.08
