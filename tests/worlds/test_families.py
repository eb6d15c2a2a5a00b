"""Generated task families: their rules by hand, and which tasks are held out."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError, SessionGone
from evolvent.worlds.families import FAMILIES, BanditEnv, DarkRoomEnv, get_family


def test_dark_room_pays_at_its_goal_alone():
    """3 x 3 cells, goal at the right of the middle: right, stay, right into the wall, then left and away."""
    env = DarkRoomEnv(3, (1, 2), horizon=4)
    observation, _ = env.reset()
    assert observation.tolist() == [0, 1, 0, 0, 1, 0]
    steps = [env.step(action) for action in (1, 4, 1, 3)]
    assert [reward for _, reward, *_ in steps] == [1.0, 1.0, 1.0, 0.0]
    assert [truncated for *_, truncated, _ in steps] == [False, False, False, True]
    assert steps[-1][0].tolist() == [0, 1, 0, 0, 1, 0]
    with pytest.raises(SessionGone, match="Call reset"):
        env.step(0)


def test_bandit_pays_by_its_probabilities():
    env = BanditEnv(np.array([0.0, 1.0, 0.3]))
    rewards = np.zeros((3, 300))
    for arm in range(3):
        for seed in range(300):
            env.reset(seed=seed)
            rewards[arm, seed] = env.step(arm)[1]
    assert rewards[0].sum() == 0 and rewards[1].sum() == 300 and 60 < rewards[2].sum() < 120
    assert env.best_action(np.ones(1, np.float32)) == 1
    with pytest.raises(SessionGone):
        env.step(0)


@pytest.mark.parametrize("name", ["darkroom", "darkroom9"])
def test_expert_walks_straight_to_every_goal(name):
    """The goal that is d steps away pays in all but the first d - 1 steps."""
    family = get_family(name)
    goals = set()
    for task in range(family.num_tasks):
        env = family.build_env(task)
        observation, _ = env.reset()
        middle = env.side // 2
        distance = abs(env.goal[0] - middle) + abs(env.goal[1] - middle)
        earned = 0.0
        for _ in range(family.horizon):
            observation, reward, *_ = env.step(env.best_action(observation))
            earned += reward
        assert distance > 0 and earned == family.horizon - distance + 1
        goals.add(env.goal)
    assert len(goals) == family.num_tasks


def test_held_out_tasks_are_in_no_training_set():
    training, held_out = FAMILIES["darkroom"].split_tasks(held_out=6, seed=3)
    assert len(held_out) == 6 and sorted(training + held_out) == list(range(48))
    assert FAMILIES["darkroom"].split_tasks(held_out=6, seed=3) == (training, held_out)
    with pytest.raises(ConfigError, match="number of held-out tasks out of range"):
        FAMILIES["darkroom"].split_tasks(held_out=48, seed=3)
    with pytest.raises(ConfigError, match="darkroom"):
        get_family("darkrom")
