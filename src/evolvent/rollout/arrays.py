"""Episodes of array worlds, played in parallel by one actor: Gymnasium environments in, `Episodes` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, EnvLost, boundary
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Array, JsonObject, sample_seed

if TYPE_CHECKING:
    from evolvent.offline.windows import History

__all__ = ["ArrayEnv", "play_arrays"]


class ArrayEnv(Protocol):
    """An environment with Gymnasium's signature whose observations are arrays `[O]`."""

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, JsonObject]:
        """Starts an episode."""
        ...

    def step(self, action: Array) -> tuple[Array, SupportsFloat, bool, bool, JsonObject]:
        """Returns (observation, reward, terminated, truncated, info)."""
        ...

    def close(self) -> None:
        """Releases resources."""
        ...


class _StepBuffer:
    """Buffers of E episodes for a horizon, filled step by step."""

    def __init__(self, rows: int, horizon: int, observation: int, *, dim: int) -> None:
        self.observation = np.zeros((rows, horizon + 1, observation), np.float32)
        self.reward = np.zeros((rows, horizon))
        self.action: NDArray[Any] = (
            np.zeros((rows, horizon, dim), np.float32) if dim else np.zeros((rows, horizon), np.int64)
        )
        self.lengths, self.terminated = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)


def play_arrays(
    actor: Callable[[History], Array],
    make_env: Callable[[], ArrayEnv],
    *,
    episodes: int,
    horizon: int,
    num_actions: int,
    seed: int,
    dim: int = 0,
    scale: float = 1.0,
) -> Episodes:
    """Plays episodes to their ends, all at once; an episode's seed is a function of `seed` and its number alone.

    Args:
        actor: Receives a `History` of the running episodes.
        make_env: Creates an environment; each serves one episode.
        episodes: Number of episodes.
        horizon: Maximum steps of an episode.
        num_actions: Number of discrete choices; 0: `dim` numbers in -1..1, multiplied by `scale` for the
            environment.
        seed: Seed of all episodes.
        dim: Dimensions of a continuous action.
        scale: Factor of continuous actions.
    Raises:
        ConfigError: no episodes or steps. EnvLost: an environment that failed. BatchMismatch: an actor of another
            world.
        SampleInvalid: observations or rewards that are not finite.
    """
    from evolvent.offline.windows import History

    if episodes < 1 or horizon < 1 or (num_actions < 1) == (dim < 1):
        raise ConfigError(
            "episodes, horizon or action space out of range",
            value=(episodes, horizon, num_actions, dim),
            expected="1 or more episodes and steps, and discrete or continuous actions",
        )
    seeds = np.array([sample_seed("episode", seed, number) for number in range(episodes)], np.int64)
    worlds: list[ArrayEnv] = []
    try:
        with boundary(EnvLost, "an environment failed"):
            for _ in range(episodes):
                worlds.append(make_env())  # one by one: those that were made are closed if the next one fails
            first = [
                np.asarray(env.reset(seed=int(s) % 2**31)[0], np.float32).ravel()
                for env, s in zip(worlds, seeds, strict=True)
            ]
            buffer = _StepBuffer(episodes, horizon, len(first[0]), dim=0 if num_actions else dim)
            buffer.observation[:, 0] = np.stack(first)
        running = np.arange(episodes)
        for t in range(horizon):
            history = History(
                observation=buffer.observation[running, : t + 1],
                action=buffer.action[running, :t],
                reward=buffer.reward[running, :t],
                seed=seeds[running],
            )
            chosen_actions = np.asarray(actor(history))
            _check_actions(chosen_actions, buffer.action[running, t])
            buffer.action[running, t] = chosen_actions
            with boundary(EnvLost, "an environment failed", step=t):
                is_running = [
                    _step_env(
                        worlds[row],
                        buffer,
                        int(row),
                        (t, chosen_actions[index] * scale if not num_actions else int(chosen_actions[index])),
                    )
                    for index, row in enumerate(running)
                ]
            running = running[np.array(is_running)]
            if not len(running):
                break
    finally:
        for env in worlds:
            env.close()
    return _to_episodes(buffer, num_actions)


def _check_actions(chosen_actions: NDArray[Any], expected: NDArray[Any]) -> None:
    """Raises BatchMismatch for actions that would need broadcasting or rounding."""
    if chosen_actions.shape != expected.shape or (expected.dtype.kind == "i" and chosen_actions.dtype.kind not in "iu"):
        raise BatchMismatch(
            "actions do not match the world",
            value=(chosen_actions.shape, str(chosen_actions.dtype)),
            expected=(expected.shape, str(expected.dtype)),
        )


def _step_env(env: ArrayEnv, buffer: _StepBuffer, row: int, step_action: tuple[int, Any]) -> bool:
    """Takes one step and stores its result; returns whether the episode continues."""
    t, action = step_action
    observation, reward, terminated, truncated, _ = env.step(action)
    buffer.observation[row, t + 1] = np.asarray(observation, np.float32).ravel()
    buffer.reward[row, t], buffer.lengths[row], buffer.terminated[row] = float(reward), t + 1, bool(terminated)
    return not (terminated or truncated)


def _to_episodes(buffer: _StepBuffer, actions: int) -> Episodes:
    rows: Sequence[tuple[int, int]] = list(enumerate(buffer.lengths.tolist()))
    return Episodes(
        observation=np.concatenate([buffer.observation[row, :n] for row, n in rows]),
        final=np.stack([buffer.observation[row, n] for row, n in rows]),
        action=np.concatenate([buffer.action[row, :n] for row, n in rows]),
        reward=np.concatenate([buffer.reward[row, :n] for row, n in rows]),
        lengths=buffer.lengths,
        terminated=buffer.terminated,
        actions=actions,
    )
