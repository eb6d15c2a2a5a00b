"""Decision Transformer earns what is asked for, where some episode did; and finds no more than that."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import (
    DecisionTransformer,
    decision_transformer,
    load_conditioned,
    save_conditioned,
)
from evolvent.rollout.arrays import play
from evolvent.worlds.stitching import Stitching, StitchingEnv, demonstrations, reachable
from tests.sequence_support import Chain, chain_episodes, ragged

SMALL = {"width": 32, "layers": 1, "dropout": 0.0, "horizon": 12}
TRAIN = {"updates": 120, "lr": 1e-2, "warmup": 10, "grad_norm": 1.0, "batch": 32}


def test_a_chain_pays_what_is_asked_for(tmp_path):
    policy = decision_transformer(DecisionTransformer(context=2, scale=1.0, **SMALL, train=TRAIN), chain_episodes())
    for target in (0.0, 1.0, 2.0):
        found = play(policy.actor(target), Chain, episodes=1, horizon=2, actions=2, seed=0)
        assert found.returns.tolist() == [target]
    drawn = play(policy.actor(1.0, greedy=False), Chain, episodes=40, horizon=2, actions=2, seed=0)
    assert np.mean(drawn.returns == 1.0) > 0.9
    assert {tuple(path) for path in drawn.action.reshape(-1, 2)} >= {(0, 1), (1, 0)}, "both paths that pay 1"
    save_conditioned(policy, tmp_path)
    again = play(load_conditioned(tmp_path).actor(1.0, greedy=False), Chain, episodes=40, horizon=2, actions=2, seed=0)
    assert again.digest == drawn.digest


@pytest.mark.parametrize("whole", [False, True])
def test_the_best_way_is_found_only_where_somebody_went_it(whole):
    maze = Stitching()
    data = demonstrations(maze, whole=whole)
    limit = reachable(maze, data)
    config = DecisionTransformer(context=6, scale=4.0, **SMALL, train={**TRAIN, "updates": 250})
    policy = decision_transformer(config, data)

    def earned(target: float) -> float:
        return float(
            play(policy.actor(target), lambda: StitchingEnv(maze), episodes=1, horizon=12, actions=4, seed=0).returns[0]
        )

    assert earned(limit.conditioned) == limit.conditioned
    assert earned(1.0) == 1.0
    assert (earned(limit.optimum) == limit.optimum) is whole
    assert limit.stitched == limit.optimum


def test_what_cannot_be_learned_is_refused():
    config = DecisionTransformer(context=2, **{**SMALL, "horizon": 4}, train=TRAIN)
    with pytest.raises(ConfigError, match="horizon"):
        decision_transformer(config, ragged(5))
    wild = ragged(2)
    wild.action[0, 0] = 1.5
    with pytest.raises(ConfigError, match=r"-1\.\.1"):
        decision_transformer(config, wild)
