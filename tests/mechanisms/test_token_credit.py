"""Why POAD gives credit to tokens, and why it does not discount inside an action.

Locks: an action of n words pays the share of right ones. The critic is exact, so that estimators differ by their
variance and their discounts alone.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evolvent.rl.estimators import AdvantageEstimator, GaeEstimator
from evolvent.rl.policy_losses import reinforce
from evolvent.rl.presets import NTPO, POAD, PPO_ACTION, Preset
from evolvent.rl.rollout_batch import TERMINATED, RolloutBatch
from tests.mechanisms.page import check_table
from tests.rl.flat_tables import Told, table

LENGTHS = (2, 4, 8, 12)
Floats = NDArray[np.float64]


def plain(preset: Preset) -> GaeEstimator:
    """The estimator of a preset with advantages in their own scale."""
    assert isinstance(preset.estimator, GaeEstimator)
    return replace(preset.estimator, whiten=False)


# ------------------------------------------------------------------ variance of the gradient, by enumeration


def measure_gradient(estimator: AdvantageEstimator, length: int) -> tuple[Floats, float]:
    """Returns the mean of the gradient of one action `[length, 2]`, and its variance, over all actions of two words."""
    words = np.array(list(itertools.product((0, 1), repeat=length)))  # 1: the right word
    batch = table(*(Told([length], [float(action.mean())]) for action in words))
    right_before = np.cumsum(words, axis=1) - words
    values = (right_before + 0.5 * (length - np.arange(length))) / length
    advantages = estimator(batch, values=values.ravel()).advantage.reshape(words.shape)
    gradients = advantages[..., None] * (np.eye(2)[words] - 0.5)  # of log softmax at even logits
    mean: Floats = gradients.mean(axis=0)
    return mean, float(np.square(gradients).sum(axis=(1, 2)).mean() - np.square(mean).sum())


@cache
def variance_ratios() -> dict[int, float]:
    """The variance of action-level PPO's gradient over that of POAD's."""
    return {n: measure_gradient(plain(PPO_ACTION), n)[1] / measure_gradient(plain(POAD), n)[1] for n in LENGTHS}


@pytest.mark.parametrize("length", LENGTHS)
def test_credit_for_tokens_and_for_actions_has_the_same_mean(length: int) -> None:
    by_token, by_action = (measure_gradient(plain(preset), length)[0] for preset in (POAD, PPO_ACTION))
    assert np.allclose(by_token, by_action, atol=1e-12)
    assert np.allclose(by_token, 0.25 / length * np.array([-1.0, 1.0]), atol=1e-12), "p (1 - p) / n at each word"


def test_the_variance_of_credit_for_actions_grows_with_their_length() -> None:
    ratios = list(variance_ratios().values())
    assert all(earlier < later for earlier, later in itertools.pairwise(ratios))
    assert ratios[0] > 1.0 and ratios[-1] > 2.0


# ------------------------------------------------------------------ learning, on a lock of free length


SEEDS, EPISODES, ITERATIONS, COLORS = 8, 8, 120, 5
LEARNED_LENGTHS = (4, 16, 48)


@cache
def learn_lock(name: str, length: int) -> Floats:
    """Learns a lock whose action ends where the policy says so; returns success `[ITERATIONS, SEEDS]`.

    An action pays the share of right words, and nothing if it has another length. Success is the expected payment.
    """
    estimator, lr = plain({"poad": POAD, "ntpo": NTPO, "ppo_action": PPO_ACTION}[name]), 1.5 * length
    rng = np.random.default_rng(length)
    stop, right = COLORS, rng.integers(COLORS, size=length)
    logits = torch.zeros(SEEDS, length + 1, COLORS + 1, dtype=torch.float64)
    logits[:, :length, stop], logits[:, length, stop] = -3.0, 3.0  # as after imitating actions of this length
    logits.requires_grad_()
    success = []
    for _ in range(ITERATIONS):
        logprobs = logits.log_softmax(-1)
        chances = logprobs.detach().exp().numpy()
        chance_stop, chance_right = chances[:, :, stop], chances[:, range(length), right]
        ends_right = np.cumprod(np.append(1 - chance_stop[:, :length], chance_stop[:, length:], 1)[:, ::-1], 1)[:, ::-1]
        share_right = chance_right / (1 - chance_stop[:, :length])
        rest = np.append(np.cumsum(share_right[:, ::-1], 1)[:, ::-1], np.zeros((SEEDS, 1)), 1)
        success.append(ends_right[:, 0] * rest[:, 0] / length)
        draws = rng.random((SEEDS, EPISODES, length + 1, 1))
        words = (draws > np.cumsum(chances, axis=2)[:, None]).sum(-1).clip(max=COLORS)
        is_end = words == stop
        ends = np.where(is_end.any(-1), is_end.argmax(-1), length)
        is_right = np.append(words[..., :length] == right, np.zeros((SEEDS, EPISODES, 1), bool), -1)
        right_before = np.cumsum(is_right, axis=-1) - is_right
        seed, number, position = np.nonzero(np.arange(length + 1) <= ends[..., None])
        word, episode = words[seed, number, position], seed * EPISODES + number
        is_last = position == ends[seed, number]
        pays = is_last & (position == length) & (word == stop)
        before = right_before[seed, number, position]
        count = len(word)
        batch = RolloutBatch(
            np.zeros(count, np.float32),
            np.zeros(count, np.int32),
            np.arange(count),
            episode,
            np.arange(SEEDS * EPISODES),
            np.zeros(SEEDS * EPISODES, np.int64),
            np.where(pays, before / length, 0.0),
            np.full(SEEDS * EPISODES, TERMINATED, np.int8),
            np.full(SEEDS * EPISODES, np.nan),
            episode,
            np.arange(count),
        )
        values = ends_right[seed, position] * (before + rest[seed, position]) / length
        advantages = estimator(batch, values=values).advantage
        loss = reinforce(torch.from_numpy(advantages), logprobs[seed, position, word]).sum() / EPISODES
        (gradient,) = torch.autograd.grad(loss, [logits])
        with torch.no_grad():
            logits -= lr * gradient
    return np.array(success)


@cache
def area(name: str, length: int) -> float:
    """The mean success over iterations and seeds."""
    return float(learn_lock(name, length).mean())


@pytest.mark.parametrize("length", LEARNED_LENGTHS)
def test_poad_learns_at_least_as_fast_as_credit_for_actions(length: int) -> None:
    assert learn_lock("poad", length)[0] == pytest.approx(learn_lock("ppo_action", length)[0]), "one start"
    assert area("poad", length) >= area("ppo_action", length)


def test_what_poad_gains_grows_with_the_length_of_actions() -> None:
    gains = [area("poad", length) - area("ppo_action", length) for length in LEARNED_LENGTHS]
    assert gains[0] < 0.02 and gains[1] > 0.04 and gains[2] > 0.1
    wins = learn_lock("poad", 48).mean(0) > learn_lock("ppo_action", 48).mean(0)
    assert wins.sum() >= 7, "of 8 seeds"


def test_a_discount_inside_an_action_costs_more_the_longer_it_is() -> None:
    costs = [area("poad", length) - area("ntpo", length) for length in LEARNED_LENGTHS]
    assert costs[0] < 0.01 and costs[2] > 0.05


def test_the_page_holds_these_areas() -> None:
    rows = [[n, *(area(name, n) for name in ("poad", "ntpo", "ppo_action"))] for n in LEARNED_LENGTHS]
    check_table(["words of the right action", "POAD", "NTPO", "action-level PPO"], rows)


# ------------------------------------------------------------------ short and long actions, exactly


def choose_between(estimator: GaeEstimator, *, short_pays: float, long_words: int) -> float:
    """Returns the probability of the long action after following the exact gradient from an even choice.

    The first word chooses an action: one word that pays `short_pays`, or `long_words` words that pay 1.
    """
    batch = table(Told([1], [short_pays]), Told([long_words], [1.0]))
    first_tokens = np.array([0, 1])
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    exact = replace(estimator, gae_lambda=1.0, token_lambda=1.0)
    returns = exact(batch, values=np.zeros(1 + long_words)).returns  # what each word leads to, under its discounts
    for _ in range(300):
        logprobs = logits.log_softmax(-1)
        chance = logprobs.detach().exp().numpy()
        values = np.append(returns[:1], returns[1:])
        values[first_tokens] = chance @ returns[first_tokens]
        advantages = estimator(batch, values=values).advantage[first_tokens]
        loss = (torch.from_numpy(chance) * reinforce(torch.from_numpy(advantages), logprobs)).sum()
        (gradient,) = torch.autograd.grad(loss, [logits])
        with torch.no_grad():
            logits -= 20.0 * gradient
    return float(logits.detach().softmax(-1)[1])


def test_ntpo_prefers_short_actions_that_pay_less_and_poad_does_not() -> None:
    """A right word that pays .9 against 16 words that pay 1: NTPO values these at .99^15 = .86."""
    assert choose_between(plain(POAD), short_pays=0.9, long_words=16) > 0.95
    assert choose_between(plain(NTPO), short_pays=0.9, long_words=16) < 0.05
    assert choose_between(plain(NTPO), short_pays=0.8, long_words=16) > 0.9, "below .86 it takes the long one too"


@pytest.mark.parametrize("words", [2, 16, 48])
def test_a_long_action_is_worth_a_power_of_the_discount_to_ntpo(words: int) -> None:
    batch = table(Told([words], [1.0]))
    worth = {
        preset.name: replace(plain(preset), token_lambda=1.0)(batch, values=np.zeros(words)).returns[0]
        for preset in (POAD, NTPO)
    }
    assert worth["poad"] == pytest.approx(1.0) and worth["ntpo"] == pytest.approx(0.99 ** (words - 1))


def test_the_page_holds_these_variances() -> None:
    heads = ["words of an action", *map(str, LENGTHS)]
    check_table(heads, [["variance of the gradient, credit by action / by token", *variance_ratios().values()]])
