"""What a critic is worth: it explains returns that states predict, and nothing when rewards are shuffled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolvent.rl.diagnostics import explained_variance
from evolvent.rl.estimators import GaeEstimator
from evolvent.rl.policy_losses import value_losses
from evolvent.rl.presets import PPO
from evolvent.rl.rollout_batch import RolloutBatch
from tests.rl.flat_tables import Told, table

STATES, EPISODES = 8, 800
CHANCES = (np.arange(STATES) + 0.5) / STATES  # of a success from each state
assert isinstance(PPO.estimator, GaeEstimator)
ESTIMATOR = replace(PPO.estimator, kl_coef=0.0, whiten=False, gae_lambda=1.0)


def play(rng: np.random.Generator) -> tuple[np.ndarray, RolloutBatch]:
    state = rng.integers(STATES, size=EPISODES)
    rewards = (rng.random(EPISODES) < CHANCES[state]).astype(float)
    return state, table(*(Told([1], [reward]) for reward in rewards.tolist()))


def explain_held_out_returns(rng: np.random.Generator, *, shuffled: bool) -> float:
    """Fits a critic of one value a state, and returns what it explains of new episodes."""
    state, batch = play(rng)
    if shuffled:
        batch = replace(batch, reward=rng.permutation(batch.reward))
    returns = torch.from_numpy(ESTIMATOR(batch, values=np.zeros(EPISODES)).returns)
    critic = torch.zeros(STATES, dtype=torch.float64, requires_grad=True)
    for _ in range(40):
        (gradient,) = torch.autograd.grad(value_losses(critic[state], returns).mean(), [critic])
        with torch.no_grad():
            critic -= 2.0 * gradient
    new_state, new_batch = play(rng)
    new_returns = ESTIMATOR(new_batch, values=np.zeros(EPISODES)).returns
    return explained_variance(critic.detach().numpy()[new_state], new_returns)


def test_a_critic_explains_what_states_predict() -> None:
    """The most that states explain: the variance of their chances over that of outcomes, .33 here."""
    possible = CHANCES.var() / (CHANCES.mean() * (1 - CHANCES.mean()))
    rng = np.random.default_rng(3)
    explained = [explain_held_out_returns(rng, shuffled=False) for _ in range(5)]
    assert np.mean(explained) == pytest.approx(possible, abs=0.05) and min(explained) > 0.2


def test_a_critic_of_shuffled_rewards_explains_nothing() -> None:
    rng = np.random.default_rng(4)
    assert max(explain_held_out_returns(rng, shuffled=True) for _ in range(5)) < 0.05
