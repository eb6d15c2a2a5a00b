"""Decision Transformer earns what is asked for, where some episode did; and finds no more than that."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import (
    DecisionTransformerConfig,
    decision_transformer,
    load_conditioned,
    save_conditioned,
)
from evolvent.rollout.arrays import play_arrays
from evolvent.worlds.stitching import Stitching, StitchingEnv, compute_reachable, demonstrations
from tests.sequence_support import Chain, chain_episodes, ragged

SMALL = {"width": 32, "layers": 1, "dropout": 0.0, "horizon": 12}
TRAIN = {"max_steps": 120, "lr": 1e-2, "warmup": 10, "grad_norm": 1.0, "batch": 32}


def test_a_chain_pays_what_is_asked_for(tmp_path):
    policy = decision_transformer(
        DecisionTransformerConfig(context=2, scale=1.0, **SMALL, train=TRAIN), chain_episodes()
    )
    for target in (0.0, 1.0, 2.0):
        found = play_arrays(policy.build_actor(target), Chain, episodes=1, horizon=2, num_actions=2, seed=0)
        assert found.returns.tolist() == [target]
    drawn = play_arrays(policy.build_actor(1.0, greedy=False), Chain, episodes=40, horizon=2, num_actions=2, seed=0)
    assert np.mean(drawn.returns == 1.0) > 0.9
    assert {tuple(path) for path in drawn.action.reshape(-1, 2)} >= {(0, 1), (1, 0)}, "both paths that pay 1"
    save_conditioned(policy, tmp_path)
    again = play_arrays(
        load_conditioned(tmp_path).build_actor(1.0, greedy=False), Chain, episodes=40, horizon=2, num_actions=2, seed=0
    )
    assert again.digest == drawn.digest


@pytest.mark.parametrize("whole", [False, True])
def test_the_best_way_is_found_only_where_somebody_went_it(whole):
    maze = Stitching()
    data = demonstrations(maze, include_best=whole)
    limit = compute_reachable(maze, data)
    config = DecisionTransformerConfig(context=6, scale=4.0, **SMALL, train={**TRAIN, "max_steps": 250})
    policy = decision_transformer(config, data)

    def earned(target: float) -> float:
        return float(
            play_arrays(
                policy.build_actor(target), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0
            ).returns[0]
        )

    assert earned(limit.conditioned) == limit.conditioned
    assert earned(1.0) == 1.0
    assert (earned(limit.optimum) == limit.optimum) is whole
    assert limit.stitched == limit.optimum


def test_what_cannot_be_learned_is_refused():
    config = DecisionTransformerConfig(context=2, **{**SMALL, "horizon": 4}, train=TRAIN)
    with pytest.raises(ConfigError, match="horizon"):
        decision_transformer(config, ragged(5))
    wild = ragged(2)
    wild.action[0, 0] = 1.5
    with pytest.raises(ConfigError, match=r"actions are out of range: got 1\.5, expected -1 to 1"):
        decision_transformer(config, wild)
