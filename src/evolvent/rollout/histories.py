"""Learning histories: all episodes of a learner in one task, in order, from its first random move to its best.

The learner is tabular Q-learning: an environment of a family (`worlds/families.py`) has few observations. Its histories
are what Algorithm Distillation (arXiv 2210.14215) imitates. `AcrossEpisodesEnv` plays several episodes as one, so that
a policy can remember the earlier ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.rollout.arrays import ArrayEnv
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Array, JsonObject, sample_rng, sample_seed

__all__ = ["AcrossEpisodesEnv", "play_learning_history", "play_policy_episodes"]


def play_learning_history(
    env: ArrayEnv,
    *,
    num_actions: int,
    episodes: int,
    horizon: int,
    seed: int,
    gamma: float = 0.9,
    lr: float = 0.3,
    exploration: float = 0.5,
) -> Episodes:
    """Plays the episodes of a tabular Q-learner, from its first to its last.

    `Q(s, a) += max(lr, 1 / n(s, a)) (r + gamma max Q(s', .) - Q(s, a))`, n: visits. It explores at random with a
    probability that falls linearly from 1 to 0 within the first `exploration` share of the episodes. Ties between
    actions are broken at random.

    Args:
        env: the environment of the task; closed afterwards.
        num_actions: number of discrete actions.
        episodes: number of episodes.
        horizon: maximum steps of an episode.
        seed: seed of the exploration and of the episodes.
        gamma: discount.
        lr: learning rate, where an action was taken often.
        exploration: share of the episodes in which the learner explores.
    Raises:
        ConfigError: no episodes or steps.
    """
    rng = sample_rng("learning history", seed)
    values: dict[bytes, NDArray[np.float64]] = defaultdict(lambda: np.zeros(num_actions))
    visits: dict[bytes, NDArray[np.int64]] = defaultdict(lambda: np.zeros(num_actions, np.int64))
    episode_index = 0

    def choose(observation: NDArray[np.float32]) -> int:
        epsilon = max(0.0, 1.0 - episode_index / max(1.0, exploration * episodes))
        if rng.random() < epsilon:
            return int(rng.integers(num_actions))
        return int(rng.choice(np.flatnonzero(values[observation.tobytes()] == values[observation.tobytes()].max())))

    def learn(
        observation: NDArray[np.float32],
        action: int,
        *,
        reward: float,
        next_observation: NDArray[np.float32],
        terminated: bool,
    ) -> None:
        key = observation.tobytes()
        visits[key][action] += 1
        future = 0.0 if terminated else float(values[next_observation.tobytes()].max())
        step_size = max(lr, 1.0 / int(visits[key][action]))
        values[key][action] += step_size * (reward + gamma * future - values[key][action])

    parts = []
    for episode_index in range(episodes):
        parts.append(
            _play_episode(env, choose, learn, horizon=horizon, seed=sample_seed("history", seed, episode_index))
        )
    env.close()
    return _join_parts(parts, num_actions)


def play_policy_episodes(
    env: ArrayEnv,
    choose: Callable[[NDArray[np.float32]], int],
    *,
    num_actions: int,
    episodes: int,
    horizon: int,
    seed: int,
    random_ratio: float = 0.0,
) -> Episodes:
    """Plays episodes of a fixed policy, of whose actions a share is replaced by random ones.

    Args:
        env: the environment; closed afterwards.
        choose: returns the action for an observation.
        random_ratio: share of random actions.
    """
    rng = sample_rng("policy episodes", seed)

    def choose_or_explore(observation: NDArray[np.float32]) -> int:
        return int(rng.integers(num_actions)) if rng.random() < random_ratio else choose(observation)

    parts = [
        _play_episode(env, choose_or_explore, None, horizon=horizon, seed=sample_seed("policy", seed, number))
        for number in range(episodes)
    ]
    env.close()
    return _join_parts(parts, num_actions)


_Part = tuple[list[NDArray[np.float32]], list[int], list[float], bool]  # observations, actions, rewards, terminated


def _play_episode(
    env: ArrayEnv,
    choose: Callable[[NDArray[np.float32]], int],
    learn: Callable[..., None] | None,
    *,
    horizon: int,
    seed: int,
) -> _Part:
    observations = [np.asarray(env.reset(seed=seed % 2**31)[0], np.float32)]
    actions, rewards, terminated = list[int](), list[float](), False
    for _ in range(horizon):
        action = choose(observations[-1])
        observation, reward, terminated, truncated, _ = env.step(np.asarray(action))
        next_observation = np.asarray(observation, np.float32)
        if learn is not None:
            learn(
                observations[-1],
                action,
                reward=float(reward),
                next_observation=next_observation,
                terminated=bool(terminated),
            )
        observations.append(next_observation)
        actions.append(action)
        rewards.append(float(reward))
        if terminated or truncated:
            break
    return observations, actions, rewards, bool(terminated)


def _join_parts(parts: list[_Part], num_actions: int) -> Episodes:
    if not parts or not parts[0][1]:
        raise ConfigError("no episode was played", value=len(parts), expected="1 or more episodes and steps")
    return Episodes(
        observation=np.concatenate([np.stack(observations[:-1]) for observations, *_ in parts]),
        final=np.stack([observations[-1] for observations, *_ in parts]),
        action=np.concatenate([np.array(actions, np.int64) for _, actions, *_ in parts]),
        reward=np.concatenate([np.array(rewards, np.float64) for _, _, rewards, _ in parts]),
        lengths=np.array([len(actions) for _, actions, *_ in parts], np.int64),
        terminated=np.array([terminated for *_, terminated in parts], np.bool_),
        actions=num_actions,
    )


class AcrossEpisodesEnv:
    """Several episodes of one environment, played as one long episode.

    The observation has one more number: 1 at the first step of an inner episode. The last observation of an inner
    episode is not shown; the first one of the next follows at once.

    Args:
        env: the environment of the inner episodes.
        episodes: number of inner episodes.
        horizon: maximum steps of an inner episode.
    """

    def __init__(self, env: ArrayEnv, *, episodes: int, horizon: int) -> None:
        self.env, self.episodes, self.horizon = env, episodes, horizon
        self._seed = self._episode = self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], JsonObject]:
        """Starts the first inner episode; the seed decides all of them."""
        self._seed, self._episode = seed or 0, 0
        return self._begin(), {}

    def step(self, action: Array) -> tuple[NDArray[np.float32], float, bool, bool, JsonObject]:
        """Returns (observation, reward, terminated, truncated, info); truncated after the last inner episode."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        self._step += 1
        if not (terminated or truncated or self._step == self.horizon):
            return np.append(np.asarray(observation, np.float32), np.float32(0.0)), float(reward), False, False, {}
        self._episode += 1
        is_over = self._episode == self.episodes
        return self._begin(), float(reward), False, is_over, {}

    def close(self) -> None:
        """Closes the inner environment."""
        self.env.close()

    def _begin(self) -> NDArray[np.float32]:
        self._step = 0
        seed = sample_seed("inner episode", self._seed, self._episode) % 2**31
        return np.append(np.asarray(self.env.reset(seed=seed)[0], np.float32), np.float32(1.0))
