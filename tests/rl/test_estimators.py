"""Rules of credit: which estimator with which constants, worked by hand; and both halves of the published presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from flat_tables import Told, table
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.rl import presets
from evolvent.rl.advantages import decomposed_gae, group_advantage, whiten
from evolvent.rl.estimators import AdvantageEstimator, GaeEstimator, GroupEstimator
from evolvent.rl.objective import Aggregate, Clip, Divergence, Reinforce, ValueLoss
from evolvent.rl.presets import DAPO, PRESETS, cispo
from evolvent.rl.rollout_batch import CUT_OFF, GOES_ON, TERMINATED, TRUNCATED

# Task 0: three episodes with returns 1, 0, .5, the last one cut; task 1: two that both failed. Parts: 3, 1, 2, 1, 2.
FLAT = table(
    Told([2, 1], [0.25, 0.75], group=0),
    Told([1], [0.0], group=0),
    Told([2], [0.5], group=0, bootstrap=7.0),
    Told([1], [0.0], group=1),
    Told([1, 1], [0.0, 0.0], group=1),
    logp=np.full(9, -1.0),
)
CLOSER = np.asarray([-1.5, -1.0, -1.0, -2.0, -1.0, -1.0, -1.0, -1.0, -1.0])  # a reference: .5 and 1 away twice


def near(found: NDArray[np.float64], expected: Sequence[float]) -> None:
    assert found.tolist() == pytest.approx(list(expected), abs=1e-12)


# ------------------------------------------------------------------ groups


def test_every_part_has_its_episodes_advantage() -> None:
    credit = GroupEstimator(scale="none")(FLAT)
    near(credit.advantage, [0.5, 0.5, 0.5, -0.5, 0, 0, 0, 0, 0])
    near(credit.returns, [1, 1, 1, 0, 0.5, 0.5, 0, 0, 0])
    assert credit.counts == {"groups_single": 0, "groups_equal": 1} and credit.learned_mask is None
    scaled = GroupEstimator()(FLAT)  # the sample deviation of (1, 0, .5) is .5
    near(scaled.advantage, (credit.advantage / (0.5 + 1e-6)).tolist())


def test_what_dapo_does_not_learn() -> None:
    """Groups without variance, and episodes that were cut; these are still compared with."""
    credit = GroupEstimator(scale="none", drop_equal=True, drop_truncated=True)(FLAT)
    near(credit.advantage, [0.5, 0.5, 0.5, -0.5, 0, 0, 0, 0, 0])
    assert credit.learned_mask is not None and credit.learned_mask.tolist() == [True] * 4 + [False] * 5
    assert FLAT.ended.tolist() == [GOES_ON, TERMINATED, TERMINATED, TRUNCATED, TERMINATED, GOES_ON, TERMINATED]
    full = replace(FLAT, ended=np.asarray([0, 1, 1, CUT_OFF, 1, 0, 1], np.int8))
    assert np.array_equal(DAPO.estimator(full).learned_mask, DAPO.estimator(FLAT).learned_mask)
    whitened = GroupEstimator(scale="none", drop_equal=True, drop_truncated=True, whiten=True)(FLAT)
    near(whitened.advantage, whiten([0.5, 0.5, 0.5, -0.5]).tolist() + [0] * 5)


def test_a_penalty_in_the_episodes_return() -> None:
    """RLOO: the first episode is .5 away from the reference, the second 1: returns .95, -.1, .5."""
    rule = GroupEstimator(baseline="leave_one_out", scale="none", kl_coef=0.1)
    credit = rule(FLAT, reference=CLOSER)
    near(credit.advantage, [0.75, 0.75, 0.75, -0.825, 0.075, 0.075, 0, 0, 0])
    assert rule.needs == ("reference",)


def test_a_penalty_from_each_part_on() -> None:
    """REINFORCE++: a part pays for itself and for what follows it, not for what was before it."""
    rule = GroupEstimator(baseline="none", scale="none", kl_coef=0.1, kl_level="part")
    near(rule(FLAT, reference=CLOSER).advantage, [0.95, 1, 1, -0.1, 0.5, 0.5, 0, 0, 0])
    near(
        replace(rule, whiten=True)(FLAT, reference=CLOSER).advantage,
        whiten([0.95, 1, 1, -0.1, 0.5, 0.5, 0, 0, 0]).tolist(),
    )


def test_the_penalty_is_of_the_policy_that_learns() -> None:
    """Where its log-probabilities are given they take the place of the sampler's."""
    rule = GroupEstimator(baseline="none", scale="none", kl_coef=0.1)
    near(rule(FLAT, logp=CLOSER, reference=CLOSER).advantage, [1, 1, 1, 0, 0.5, 0.5, 0, 0, 0])


def test_anchors_compare_steps() -> None:
    """Steps of task 0: from state 5 with returns-to-go .625, 0 and .5 (discount .5), and one from state 6."""
    rule = GroupEstimator(scale="none", anchor_coef=2.0, anchor_gamma=0.5)
    credit = rule(FLAT, anchors=[5, 6, 5, 5, 5, 5, 6])
    mean = (0.625 + 0.0 + 0.5) / 3
    near(
        credit.advantage,
        [0.5 + 2 * (0.625 - mean)] * 2 + [0.5, -0.5 - 2 * mean] + [2 * (0.5 - mean)] * 2 + [0, 0, 0],
    )
    assert credit.counts == {"groups_single": 0, "groups_equal": 1, "anchors_single": 2, "anchors_equal": 1}
    assert rule.needs == ("anchors",)


def test_long_episodes_may_weigh_more() -> None:
    """Over steps the mean of task 0 is (1 + 1 + 0 + .5) / 4."""
    credit = GroupEstimator(scale="none", statistics_over="steps")(FLAT)
    near(credit.advantage, [0.375, 0.375, 0.375, -0.625, -0.125, -0.125, 0, 0, 0])


def test_a_group_of_one_and_all_failed() -> None:
    alone = table(Told([2], [1.0], group=0), Told([1], [0.0], group=1), Told([1], [0.0], group=1))
    credit = GroupEstimator(drop_equal=True)(alone)
    near(credit.advantage, [0, 0, 0, 0])
    assert credit.counts == {"groups_single": 1, "groups_equal": 1}
    assert credit.learned_mask is not None and not credit.learned_mask.any()


# ------------------------------------------------------------------ critics


def test_gae_rule_is_the_estimator() -> None:
    values = np.linspace(-1, 1, 9)
    rule = GaeEstimator(gamma=0.9, gae_lambda=0.8, token_gamma=0.7, token_lambda=0.6, between="span")
    expected = decomposed_gae(
        values, FLAT, gamma=0.9, gae_lambda=0.8, token_gamma=0.7, token_lambda=0.6, between="span"
    )
    found = rule(FLAT, values=values)
    assert np.array_equal(found.advantage, expected.advantage) and np.array_equal(found.returns, expected.returns)
    white = replace(rule, whiten=True)(FLAT, values=values)
    assert np.array_equal(white.advantage, whiten(expected.advantage))
    assert np.array_equal(white.returns, expected.returns)
    assert rule.needs == ("values",)


def test_gae_rule_with_a_penalty() -> None:
    """R3's: no discount, no value, so that a part's advantage is all that is paid from there on."""
    rule = GaeEstimator(gamma=1.0, gae_lambda=1.0, kl_coef=0.1)
    near(rule(FLAT, values=np.zeros(9), reference=CLOSER).returns, [0.95, 1, 0.75, -0.1, 7.5, 7.5, 0, 0, 0])
    assert rule.needs == ("values", "reference")


# ------------------------------------------------------------------ presets and mistakes


@pytest.mark.parametrize("preset", [*PRESETS, cispo(low=0.2, high=1.0)], ids=lambda preset: preset.name)
def test_presets_give_credit_with_what_they_name(preset: presets.Preset) -> None:
    """Everything in `needs` is read and refused when missing; nothing else is."""
    rule: AdvantageEstimator = preset.estimator
    arrays = {"values": np.zeros(9), "reference": CLOSER, "anchors": np.zeros(7)}
    credit = rule(FLAT, **{name: arrays[name] for name in rule.needs})
    assert credit.advantage.shape == credit.returns.shape == (9,) and np.isfinite(credit.advantage).all()
    for missing in rule.needs:
        with pytest.raises(BatchMismatch, match=f"needs '{missing}'"):
            rule(FLAT, **{name: arrays[name] for name in rule.needs if name != missing})
    assert preset.objective.name == preset.name
    assert ("values" in preset.objective.needs) == ("values" in rule.needs)


def test_presets_are_the_published_ones() -> None:
    """The table of constants, read by hand: baseline, scale, clip, level of the ratio, how terms are added up."""
    table_ = {
        presets.GRPO: ("group_mean", "group_std", Clip(0.2, 0.2), "part", "sequence_mean"),
        presets.DR_GRPO: ("group_mean", "none", Clip(0.2, 0.2), "part", "constant_length"),
        presets.DAPO: ("group_mean", "group_std", Clip(0.2, 0.28), "part", "part_mean"),
        presets.RLOO: ("leave_one_out", "none", Reinforce(), "part", "sequence_sum"),
        presets.REINFORCE_PP: ("none", "none", Clip(0.2, 0.2), "part", "part_mean"),
        presets.REINFORCE_PP_BASELINE: ("group_mean", "none", Clip(0.2, 0.2), "part", "part_mean"),
        presets.GSPO: ("group_mean", "group_std", Clip(3e-4, 4e-4), "sequence", "sequence_mean"),
        presets.LITE_PPO: ("group_mean", "batch_std", Clip(0.2, 0.2), "part", "part_mean"),
        presets.GIGPO: ("group_mean", "none", Clip(0.2, 0.2), "part", "part_mean"),
    }
    for preset, expected in table_.items():
        rule, loss = preset.estimator, preset.loss
        assert isinstance(rule, GroupEstimator)
        assert (rule.baseline, rule.scale, loss.surrogate, loss.ratio, loss.aggregate.kind) == expected
    assert presets.DR_GRPO.loss.aggregate == Aggregate("constant_length", length=3000)
    assert presets.GRPO.loss.kl == Divergence(0.04, "k3") and presets.DAPO.loss.kl is None
    assert presets.R3.estimator == GaeEstimator(1.0, 0.95, 1.0, 0.95, kl_coef=0.05, whiten=True)
    assert presets.R3.loss.value_loss == ValueLoss(5.0, clip=0.2)
    poad, ntpo = presets.POAD.estimator, presets.NTPO.estimator
    assert isinstance(poad, GaeEstimator) and ntpo == replace(poad, token_gamma=poad.gamma)
    assert presets.POAD.loss.target_kl == presets.OPENR_APPO.loss.target_kl == 0.02
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)


def test_grpo_is_the_group_estimator() -> None:
    returns, group = [1.0, 0.0, 0.5, 0.0, 0.0], [0, 0, 0, 1, 1]
    expected = group_advantage(returns, group, baseline="group_mean", scale="group_std").advantage
    near(GroupEstimator()(FLAT).advantage, expected[FLAT.episode_of_token].tolist())


def test_all_bad_settings_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        GaeEstimator(gamma=1.1, gae_lambda=-0.1, token_gamma=float("nan"), token_lambda=2.0, kl_coef=-1.0)
    assert [problem.where for problem in caught.value.problems] == ["gamma", "lam", "gamma_part", "lam_part", "kl"]
    with pytest.raises(ConfigError) as caught:
        GroupEstimator(kl_coef=-1.0, anchor_coef=-1.0)
    assert [problem.where for problem in caught.value.problems] == ["kl", "anchor"]


def test_penalties_that_are_not_finite_are_named() -> None:
    broken = CLOSER.copy()
    broken[4] = np.nan
    with pytest.raises(NonFinite, match="the reward of episode 2, action 0, part 0 is not finite"):
        GroupEstimator(kl_coef=0.1)(FLAT, reference=broken)
