"""Environments of Gymnasium as rows of arrays: spaces, seeds, horizons, masks, and failures that stay in their row."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from evolvent.errors import ConfigError
from evolvent.worlds.gym.rows import control_spec, make_control_batch
from evolvent.worlds.gym.world import GymnasiumWorld
from evolvent.worlds.teams.base import Continuous, Discrete, Multi


def make_world(observation_space, action_space, *, fails_at=None, horizon=None):
    """A world that tells its last action and pays 1 a step."""

    class Probe(gymnasium.Env):
        actions: list[object] = []  # noqa: RUF012 - shared by all environments on purpose

        def __init__(self):
            self.observation_space, self.action_space = observation_space, action_space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            self.time += 1
            self.actions.append(action)
            if self.time == fails_at:
                raise RuntimeError("broken")
            return self.observation_space.sample(), 1.0, False, False, {}

    return GymnasiumWorld(Probe, horizon=horizon), Probe


NUMBERS = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("observation_space", "size"),
    [
        (NUMBERS, 2),
        (spaces.Discrete(5), 5),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.MultiBinary(4), 4),
        (spaces.Tuple([spaces.Discrete(3), NUMBERS]), 5),
        (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([NUMBERS])}), 5),
    ],
)
def test_an_observation_becomes_an_array(observation_space, size):
    world, _ = make_world(observation_space, spaces.Discrete(2))
    batch = make_control_batch(world, world.tasks("test", "seen")[:2], 2)
    view = batch.reset([0, 1])
    assert control_spec(world).observation == size == view.observation.shape[2]
    sample = observation_space.sample()
    assert np.asarray(spaces.flatten(observation_space, sample)).size == size


@pytest.mark.parametrize(
    ("action_space", "kind", "action", "expected"),
    [
        (spaces.Discrete(3, start=5), Discrete(3), 2, 7),
        (spaces.MultiDiscrete([2, 3], start=[1, 4]), Multi((2, 3)), [1, 2], [2, 6]),
        (spaces.MultiBinary(2), Multi((2, 2)), [0, 1], [0, 1]),
        (spaces.Box(-2, 6, (1,)), Continuous(1), [0.5], [4.0]),
        (spaces.Box(np.array([2.0], np.float32), np.array([np.inf], np.float32)), Continuous(1), [-1.0], [2.0]),
        (spaces.Box(np.array([-np.inf], np.float32), np.array([5.0], np.float32)), Continuous(1), [1.0], [5.0]),
    ],
)
def test_an_action_reaches_the_environment_inside_of_its_space(action_space, kind, action, expected):
    world, probe = make_world(NUMBERS, action_space)
    batch = make_control_batch(world, world.tasks("test", "seen")[:1], 1)
    batch.reset([0])
    dtype = np.float64 if isinstance(kind, Continuous) else np.int64
    batch.step(np.array([[action]], dtype))
    assert batch.spec.actions == kind and action_space.contains(probe.actions[-1])
    assert np.asarray(probe.actions[-1]).tolist() == expected


def test_episodes_begin_with_the_seeds_of_their_tasks():
    world = GymnasiumWorld("CartPole-v1")
    tasks = world.tasks("test", "seen")[:3]
    view = make_control_batch(world, tasks, 3).reset([0, 1, 2])
    env = gymnasium.make("CartPole-v1")
    for row, task in enumerate(tasks):
        assert view.observation[row, 0].tolist() == env.reset(seed=task.spec["seed"])[0].tolist()


def test_an_episode_is_cut_at_the_horizon_and_succeeds_by_its_return():
    world = GymnasiumWorld("CartPole-v1", horizon=4, success_at=4)
    batch = make_control_batch(world, world.tasks("test", "seen")[:1], 1)
    batch.reset([0])
    results = [batch.step(np.array([[action]])) for action in (0, 1, 0, 1)]
    assert [bool(result.truncated[0]) for result in results] == [False, False, False, True]
    assert [result.success.tolist() for result in results] == [[False]] * 3 + [[True]]
    assert results[-1].final is not None and results[-1].final.alive.tolist() == [[True]]


def test_an_environment_without_limit_is_cut_at_the_horizon_of_the_world():
    world, _ = make_world(NUMBERS, spaces.Discrete(2))
    assert control_spec(world).horizon == 1000


def test_a_failure_stays_in_its_row_and_is_told_once(caplog):
    world, _ = make_world(NUMBERS, spaces.Discrete(2), fails_at=2)
    batch = make_control_batch(world, world.tasks("train", "seen"), 2)
    batch.reset([0, 1])
    batch.step(np.zeros((2, 1), np.int64))
    result = batch.step(np.zeros((2, 1), np.int64))
    assert set(result.errors) == {0, 1} and "RuntimeError: broken" in str(result.errors[0])
    assert result.view.time.tolist() == [0, 0] and result.view.number.tolist() == [2, 3]
    assert [record.message for record in caplog.records if "could not be scored" in record.message] == [
        f"an episode could not be scored: {result.errors[0].message}"
    ]


def test_a_mask_of_actions_is_handed_on():
    world = GymnasiumWorld("Taxi-v4")
    view = make_control_batch(world, world.tasks("test", "seen")[:1], 1).reset([0])
    _, info = gymnasium.make("Taxi-v4").reset(seed=world.tasks("test", "seen")[0].spec["seed"])
    assert view.available is not None and view.available[0, 0].tolist() == info["action_mask"].astype(bool).tolist()


def test_texts_are_no_numbers():
    world, _ = make_world(spaces.Dict({"a": spaces.Text(5)}), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"observations that are not numbers.*--policy xs"):
        control_spec(world)
    world, _ = make_world(NUMBERS, spaces.Text(5))
    with pytest.raises(ConfigError, match=r"Text actions, which are not numbers.*--policy xs"):
        control_spec(world)
