"""Generalized DT: counts of the future by hand, and episodes that spend their time where they are asked to."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.methods.generalized_dt import (
    GeneralizedDTConfig,
    episode_counts,
    generalized_dt,
    load_matching,
    save_matching,
)
from evolvent.offline.statistics import FeatureBins, count_distance, future_counts
from evolvent.rollout.arrays import play_arrays
from evolvent.store.episodes import Episodes

HORIZON = 8


class Line:
    """Cells -2..2; actions 0, 1, 2 move by -1, 0, 1. Nothing is rewarded. The observation is the cell."""

    def reset(self, *, seed=None, options=None):
        self.cell, self.steps = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.cell, self.steps = int(np.clip(self.cell + int(action) - 1, -2, 2)), self.steps + 1
        return np.full(1, self.cell, np.float32), 0.0, False, self.steps == HORIZON, {}

    def close(self):
        pass


def walk(actions) -> Episodes:
    return play_arrays(
        lambda history: np.array([actions[history.step]]), Line, episodes=1, horizon=HORIZON, num_actions=3, seed=0
    )


def test_counts_are_those_of_the_observations_that_follow():
    """Cells 0, 1, 2, 2 (one bin each): before the first decision 1 and 2, 2 are to come."""
    episodes = Episodes(
        observation=np.array([[0], [1], [2]], np.float32),
        final=np.array([[2]], np.float32),
        action=np.array([2, 2, 1]),
        reward=np.zeros(3),
        lengths=np.array([3]),
        terminated=np.array([False]),
        actions=3,
    )
    features = FeatureBins.fit(episodes.observation, columns=(0,), bins=3)
    assert future_counts(episodes, features).tolist() == [[0, 1, 2], [0, 0, 2], [0, 0, 1]]
    assert count_distance(np.array([1.0, 0, 0]), np.array([0, 0, 5.0]), bins=3) == 2.0
    with pytest.raises(ConfigError, match="feature out of range"):
        FeatureBins.fit(episodes.observation, columns=(1,), bins=3)


def test_it_spends_its_time_where_it_is_asked_to(tmp_path):
    """Random walks teach. Three episodes to match: always left, always right, and one that stays in the middle."""
    rng = np.random.default_rng(0)
    drift = rng.dirichlet([0.5, 0.5, 0.5], size=300)  # each walk prefers some moves
    data = play_arrays(
        lambda history: np.array([rng.choice(3, p=preference) for preference in drift]),
        Line,
        episodes=300,
        horizon=HORIZON,
        num_actions=3,
        seed=0,
    )
    config = GeneralizedDTConfig(
        context=1,
        scale=8.0,
        bins=5,
        width=32,
        layers=1,
        dropout=0.0,
        horizon=HORIZON,
        train={"max_steps": 250, "lr": 1e-2, "warmup": 10, "grad_norm": 1.0, "batch": 64},
    )
    policy = generalized_dt(config, data)
    targets = [walk([0] * HORIZON), walk([2] * HORIZON), walk([1] * HORIZON)]
    counts = [episode_counts(target, policy.features)[0] for target in targets]
    save_matching(policy, tmp_path)
    distances = np.array(
        [
            [
                count_distance(
                    episode_counts(
                        play_arrays(
                            load_matching(tmp_path).build_actor(asked),
                            Line,
                            episodes=1,
                            horizon=HORIZON,
                            num_actions=3,
                            seed=1,
                        ),
                        policy.features,
                    )[0],
                    target,
                    bins=5,
                )
                for target in counts
            ]
            for asked in counts
        ]
    )
    assert np.diag(distances).max() < 0.3, "each is matched"
    assert (distances + 9.0 * np.eye(3)).min() > 1.0, "and not another one"
    with pytest.raises(BatchMismatch, match="counts do not match the features"):
        policy.build_actor(counts[0][:4])
