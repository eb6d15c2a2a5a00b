"""Q-learning Decision Transformer: returns are relabeled as worked out by hand, and pieces are put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from evolvent.errors import BatchMismatch
from evolvent.methods.q_decision_transformer import (
    QDecisionTransformerConfig,
    compute_state_values,
    make_returns_consistent,
    q_decision_transformer,
    relabel_returns,
)
from evolvent.methods.q_transformer import QTransformerConfig, q_transformer
from evolvent.offline.windows import WindowSource
from evolvent.rollout.arrays import play_arrays
from evolvent.worlds.stitching import Stitching, StitchingEnv, demonstrations
from tests.sequence_support import ragged

TRAIN = {"max_steps": 300, "lr": 1e-2, "warmup": 10, "grad_norm": 1.0, "batch": 32}
VALUES = {
    "bins": 4,
    "gamma": 1.0,
    "width": 32,
    "heads": 1,
    "layers": 1,
    "polyak": 0.1,
    "conservative": 0.5,
    "train": {**TRAIN, "lr": 3e-3, "max_steps": 400},
}


def test_relabel_returns_raises_what_is_below_the_next_value():
    """Rewards 1, 2 | 3, 4; the first episode was ended by the world, the second was cut.

    R_1 = 2 (the end counts, whatever V says); R_0 = 1 + max(2, 5) = 6; R_3 = 4 + max(0, 7) = 11; R_2 = 3 + 11 = 14.
    """
    episodes = replace(ragged(2, 2, terminated=[True, False]), reward=np.array([1.0, 2.0, 3.0, 4.0]))
    values = np.array([5.0, 99.0, 8.0, 7.0])
    assert relabel_returns(episodes, values).tolist() == [6.0, 2.0, 14.0, 11.0]
    assert relabel_returns(episodes, values, margin=3.0).tolist() == [3.0, 2.0, 14.0, 11.0]
    with pytest.raises(BatchMismatch, match="number of values does not match the decisions"):
        relabel_returns(episodes, values[:3])


def test_windows_agree_with_their_rewards():
    """The last return is 10; before it 2 + 10, then 1 + 12. The final step of a window that is padded stays 0."""
    episodes = replace(ragged(3), reward=np.array([1.0, 2.0, 3.0]))
    source = WindowSource(episodes, context=4, conditions=np.array([50.0, 40.0, 10.0]))
    windows = make_returns_consistent(source.windows_from([0, 1]))
    assert windows.to_go.tolist() == [[0.0, 13.0, 12.0, 10.0], [0.0, 0.0, 12.0, 10.0]]


@pytest.mark.parametrize("context", [1, 3])
def test_state_values_are_those_that_the_policy_acts_by(context):
    """One by one: the largest value of the window that ends with the observation after a decision."""
    episodes = ragged(4, 1, terminated=[False, True])
    policy = q_transformer(
        QTransformerConfig(
            context=context, bins=5, width=8, heads=1, layers=1, train={**TRAIN, "max_steps": 3, "batch": 4}
        ),
        episodes,
    )
    values = compute_state_values(policy, episodes, scale=2.0)
    observation = policy.scaler(np.concatenate([episodes.observation[:4], episodes.final[:1]]))
    bins = policy.to_bins(torch.from_numpy(np.concatenate([episodes.action[:4], np.zeros((1, 2), np.float32)])))
    for step in range(4):
        rows = slice(max(0, step + 2 - context), step + 2)
        with torch.no_grad():
            q = policy.model(torch.from_numpy(observation[None, rows]), bins[None, rows])[0, -1, 0]
        assert values[step] == pytest.approx(2.0 * float(q.max()), abs=1e-5)
    assert values[4] == 0.0


@pytest.mark.long
def test_the_way_that_nobody_went_is_found_by_its_relabeled_return():
    """From the start the data earn 2 or 1; the dead end passes where others earned 10, so its return is raised."""
    maze = Stitching()
    data = demonstrations(maze)
    config = QDecisionTransformerConfig(
        context=1, scale=4.0, width=32, layers=1, dropout=0.0, horizon=12, train=TRAIN, values=VALUES
    )
    values = compute_state_values(q_transformer(config.values, data), data)
    relabeled = relabel_returns(data, values)
    dead_end = int(data.starts[20])
    assert relabeled[dead_end] > 8.0 and relabeled[0] == pytest.approx(2.0, abs=0.1)
    policy = q_decision_transformer(config, data)

    def earned(target: float) -> float:
        return float(
            play_arrays(
                policy.build_actor(target), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0
            ).returns[0]
        )

    assert earned(10.0) == 10.0 and earned(2.0) == 2.0
