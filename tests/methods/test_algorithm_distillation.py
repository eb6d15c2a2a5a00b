"""Algorithm Distillation: histories as it reads them, by hand, and a policy that learns without a change of weights."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.methods.algorithm_distillation import (
    AlgorithmDistillationConfig,
    algorithm_distillation,
    join_history,
    load_in_context,
    save_in_context,
    skip_episodes,
)
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.histories import AcrossEpisodesEnv, play_learning_history, play_policy_episodes
from evolvent.worlds.families import DarkRoomEnv, get_family
from tests.sequence_support import Chain, chain_episodes

TRAIN = {"max_steps": 800, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0, "batch": 32}
SMALL = {"width": 64, "layers": 2, "dropout": 0.0}


def test_a_history_is_one_episode_that_holds_its_outcomes():
    """Two episodes of the chain: actions 0, 1 and 1, 0. Observed: step, begin mark, previous action, reward."""
    history = join_history(chain_episodes().select([1, 2]))
    assert history.lengths.tolist() == [4]
    assert history.observation.tolist() == [
        [1, 0, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 1],
        [0, 1, 0, 0, 1, 1],
    ]
    assert history.final.tolist() == [[0, 1, 1, 1, 0, 0]]
    assert skip_episodes(chain_episodes(), every=2).action.tolist() == [0, 0, 1, 0]


def test_episodes_played_as_one_show_where_they_begin():
    env = AcrossEpisodesEnv(Chain(), episodes=2, horizon=2)
    observation, _ = env.reset(seed=1)
    steps = [env.step(1) for _ in range(4)]
    assert [*observation, *steps[0][0], *steps[1][0]] == [1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert [truncated for *_, truncated, _ in steps] == [False, False, False, True]
    cut = AcrossEpisodesEnv(Chain(), episodes=3, horizon=1)
    cut.reset(seed=1)
    assert [cut.step(0)[3] for _ in range(3)] == [False, False, True]


def test_the_learner_of_a_history_ends_at_the_goal():
    """The goal is one step away, so the best return of ten steps is 10; random moves earn far less."""
    history = play_learning_history(DarkRoomEnv(3, (0, 1), 10), num_actions=5, episodes=40, horizon=10, seed=0)
    assert history.returns[-5:].tolist() == [10.0] * 5 and history.returns[:5].mean() < 5.0
    same = play_learning_history(DarkRoomEnv(3, (0, 1), 10), num_actions=5, episodes=40, horizon=10, seed=0)
    assert same.digest == history.digest


def test_without_histories_there_is_nothing_to_distill():
    with pytest.raises(ConfigError, match="no learning history to distill"):
        algorithm_distillation(AlgorithmDistillationConfig(), [])


def test_a_policy_is_saved_with_what_it_reads(tmp_path):
    family = get_family("bandit")
    histories = [
        play_learning_history(family.build_env(task), num_actions=5, episodes=6, horizon=1, seed=task)
        for task in range(2)
    ]
    config = AlgorithmDistillationConfig(
        context=4, **{**SMALL, "width": 8, "heads": 2}, train={**TRAIN, "max_steps": 3}
    )
    policy = algorithm_distillation(config, histories)
    save_in_context(policy, tmp_path)

    def played(actor):
        return play_arrays(
            actor,
            lambda: AcrossEpisodesEnv(family.build_env(7), episodes=9, horizon=1),
            episodes=3,
            horizon=9,
            num_actions=5,
            seed=0,
        )

    first = played(policy.build_actor())
    assert played(load_in_context(tmp_path).build_actor()).digest == first.digest
    assert first.lengths.tolist() == [9, 9, 9]


@pytest.mark.long
def test_bandits_that_it_never_saw_are_learned_within_the_context():
    """200 bandits teach; 40 others are played. It begins at chance and comes near the best arm."""
    family = get_family("bandit")
    training, held_out = family.split_tasks(held_out=100, seed=0)
    histories = [
        play_learning_history(family.build_env(task), num_actions=5, episodes=40, horizon=1, seed=task)
        for task in training[:200]
    ]
    policy = algorithm_distillation(AlgorithmDistillationConfig(context=30, **SMALL, train=TRAIN), histories)
    rewards, best = [], []
    for task in held_out[:40]:
        played = play_arrays(
            policy.build_actor(),
            lambda task=task: AcrossEpisodesEnv(family.build_env(task), episodes=30, horizon=1),
            episodes=4,
            horizon=30,
            num_actions=5,
            seed=5,
        )
        rewards.append(played.reward.reshape(4, 30).mean(0))
        best.append(family.build_env(task).probabilities.max())
    curve, chance = (
        np.mean(rewards, 0),
        np.mean([family.build_env(task).probabilities.mean() for task in held_out[:40]]),
    )
    assert curve[:4].mean() < chance + 0.1
    assert curve[-10:].mean() > chance + 0.6 * (np.mean(best) - chance)


def test_an_expert_of_a_family_is_played_with_random_moves():
    family = get_family("darkroom")
    env = family.build_env(0)
    expert, mixed = (
        play_policy_episodes(
            family.build_env(0), env.best_action, num_actions=5, episodes=20, horizon=12, seed=0, random_ratio=ratio
        ).returns
        for ratio in (0.0, 0.5)
    )
    assert set(expert.tolist()) == {7.0} and 0.0 < mixed.mean() < 7.0
