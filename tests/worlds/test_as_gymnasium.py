"""Worlds as environments of Gymnasium: its own checker, and its vectorized environments."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import evolvent as ev
from evolvent.cli.setup.registry import ALL_WORLDS, load_world
from evolvent.errors import ConfigError, SessionGone
from evolvent.worlds.gym.export import AnyText

OTHER_WORLDS = (
    "kitchen",
    "functions",
    "backoffice",
    "arithmetic",
    "plume",
    "microwave",
    "science",
    "shop",
    "site",
    "gymnasium:Taxi-v4",
)


@pytest.fixture(scope="module")
def world():
    return ev.Lookup()


@pytest.mark.parametrize("name", [*ALL_WORLDS, *OTHER_WORLDS])
def test_every_world_passes_the_checker_of_gymnasium(name):
    check_env(ev.worlds.as_gymnasium(load_world(name)), skip_render_check=True)


def test_an_episode_is_that_of_the_world(world):
    env = ev.worlds.as_gymnasium(world, split="test")
    observation, info = env.reset(seed=3)
    task = next(task for task in world.tasks("test", "seen") if task.id == info["task"])
    assert isinstance(env, gymnasium.Env) and observation == world.make(task).reset()[0]
    for action in world.expert(task):
        observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    assert info["score"] == {"raw": 1.0, "unit": 1.0} and env.reset(seed=3)[1]["task"] == task.id
    assert env.reset(options={"task": task.id})[1]["task"] == task.id
    assert env.reset(options={"task": 2})[1]["task"] == world.tasks("test", "seen")[2].id


def test_an_episode_is_truncated_at_the_horizon(world):
    env = ev.worlds.as_gymnasium(world)
    env.reset(seed=0)
    ends = [env.step("nonsense")[2:4] for _ in range(world.horizon)]
    assert ends == [(False, False)] * (world.horizon - 1) + [(False, True)]
    with pytest.raises(SessionGone):
        env.step("nonsense")


@pytest.mark.parametrize("vectorize", [SyncVectorEnv, AsyncVectorEnv])
def test_vectorized_environments_play_what_single_ones_play(world, vectorize):
    singles = [ev.worlds.as_gymnasium(world) for _ in range(3)]
    expected = [env.reset(seed=seed)[0] for seed, env in enumerate(singles)]
    many = vectorize([lambda: ev.worlds.as_gymnasium(world)] * 3)
    try:
        observations, infos = many.reset(seed=0)
        assert list(observations) == expected and len(set(expected)) == 3
        actions = tuple(info[0] for info in infos["admissible"])
        later, _, _, _, _ = many.step(actions)
        assert list(later) == [env.step(action)[0] for env, action in zip(singles, actions, strict=True)]
        assert list(observations) == expected  # what was returned before stays
    finally:
        many.close()


def test_texts_of_any_characters_are_shared_between_processes():
    class Echo(gymnasium.Env):
        observation_space = action_space = AnyText(20)

        def reset(self, *, seed=None, options=None):
            return "", {}

        def step(self, action):
            return action, 0.0, False, False, {}

    many = AsyncVectorEnv([Echo, Echo])
    try:
        many.reset()
        texts = ("Zürich → 東京 🚪", "")
        assert tuple(many.step(texts)[0]) == texts
        assert many.single_observation_space.contains("x" * 20) and not many.single_observation_space.contains("x" * 21)
    finally:
        many.close()


def test_a_state_is_drawn_as_text():
    env = ev.worlds.as_gymnasium(load_world("gymnasium:FrozenLake-v1"), render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert ev.worlds.as_gymnasium(load_world("gymnasium:FrozenLake-v1")).render() is None


def test_wrong_arguments_are_refused(world):
    with pytest.raises(ConfigError, match="unknown split 'trian'"):
        ev.worlds.as_gymnasium(world, split="trian")
    with pytest.raises(ConfigError, match="unknown render mode 'human'"):
        ev.worlds.as_gymnasium(world, render_mode="human")
    with pytest.raises(ConfigError, match="has no train tasks"):
        ev.worlds.as_gymnasium(world, tasks=[])
    env = ev.worlds.as_gymnasium(world)
    with pytest.raises(ConfigError, match="unknown task of the environment"):
        env.reset(options={"task": "none"})
