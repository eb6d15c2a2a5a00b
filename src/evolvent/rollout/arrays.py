"""Episodes of array worlds, played side by side by one actor: Gymnasium environments in, `Episodes` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, EnvLost, boundary
from evolvent.store.episodes import Episodes
from evolvent.trajectory import sample_seed

__all__ = ["ArrayEnv", "play"]


class ArrayEnv(Protocol):
    """An environment with Gymnasium's signature whose observations are arrays `[O]`."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Mapping[str, Any]]:
        """Begin an episode."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Mapping[str, Any]]:
        """Returns (observation, reward, terminated, truncated, info)."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class _Steps:
    """What E episodes did so far, with room for a horizon: filled step by step."""

    def __init__(self, rows: int, horizon: int, observation: int, *, dim: int) -> None:
        self.observation = np.zeros((rows, horizon + 1, observation), np.float32)
        self.reward = np.zeros((rows, horizon))
        self.action: NDArray[Any] = (
            np.zeros((rows, horizon, dim), np.float32) if dim else np.zeros((rows, horizon), np.int64)
        )
        self.lengths, self.terminated = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)


def play(
    actor: Callable[[Any], NDArray[Any]],
    make: Callable[[], ArrayEnv],
    *,
    episodes: int,
    horizon: int,
    actions: int,
    seed: int,
    dim: int = 0,
    scale: float = 1.0,
) -> Episodes:
    """Play episodes to their ends, all at once; an episode's seed is a function of `seed` and its number alone.

    Args:
        actor: gets a `History` of those that still run. make: a new environment; each serves one episode.
        horizon: steps after which an episode is cut. actions: discrete choices; 0: `dim` numbers in -1..1, which
            reach the environment times `scale`.
    Raises:
        ConfigError: no episodes or steps. EnvLost: an environment that failed. BatchMismatch: an actor of another
            world. SampleInvalid: observations or rewards that are not finite.
    """
    from evolvent.offline.windows import History

    if episodes < 1 or horizon < 1 or (actions < 1) == (dim < 1):
        raise ConfigError(
            "nothing to play",
            value=(episodes, horizon, actions, dim),
            expected="episodes and steps, 1 or more, and choices or numbers",
        )
    seeds = np.array([sample_seed("episode", seed, number) for number in range(episodes)], np.int64)
    worlds: list[ArrayEnv] = []
    try:
        with boundary(EnvLost, "an environment failed"):
            for _ in range(episodes):
                worlds.append(make())  # one by one: those that were made are closed if the next one fails
            first = [
                np.asarray(env.reset(seed=int(s) % 2**31)[0], np.float32).ravel()
                for env, s in zip(worlds, seeds, strict=True)
            ]
            kept = _Steps(episodes, horizon, len(first[0]), dim=0 if actions else dim)
            kept.observation[:, 0] = np.stack(first)
        running = np.arange(episodes)
        for t in range(horizon):
            history = History(
                observation=kept.observation[running, : t + 1],
                action=kept.action[running, :t],
                reward=kept.reward[running, :t],
                seed=seeds[running],
            )
            chosen = np.asarray(actor(history))
            _fits(chosen, kept.action[running, t])
            kept.action[running, t] = chosen
            with boundary(EnvLost, "an environment failed", step=t):
                going = [
                    _step(worlds[row], kept, int(row), (t, chosen[at] * scale if not actions else int(chosen[at])))
                    for at, row in enumerate(running)
                ]
            running = running[np.array(going)]
            if not len(running):
                break
    finally:
        for env in worlds:
            env.close()
    return _episodes(kept, actions)


def _fits(chosen: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Refuse actions that would be stretched or rounded to fit."""
    if chosen.shape != wanted.shape or (wanted.dtype.kind == "i" and chosen.dtype.kind not in "iu"):
        raise BatchMismatch(
            "an actor that decides for another world",
            value=(chosen.shape, str(chosen.dtype)),
            expected=(wanted.shape, str(wanted.dtype)),
        )


def _step(env: ArrayEnv, kept: _Steps, row: int, what: tuple[int, Any]) -> bool:
    """Take one step and keep what came of it; whether the episode goes on."""
    t, action = what
    observation, reward, terminated, truncated, _ = env.step(action)
    kept.observation[row, t + 1] = np.asarray(observation, np.float32).ravel()
    kept.reward[row, t], kept.lengths[row], kept.terminated[row] = float(reward), t + 1, bool(terminated)
    return not (terminated or truncated)


def _episodes(kept: _Steps, actions: int) -> Episodes:
    rows: Sequence[tuple[int, int]] = list(enumerate(kept.lengths.tolist()))
    return Episodes(
        observation=np.concatenate([kept.observation[row, :n] for row, n in rows]),
        final=np.stack([kept.observation[row, n] for row, n in rows]),
        action=np.concatenate([kept.action[row, :n] for row, n in rows]),
        reward=np.concatenate([kept.reward[row, :n] for row, n in rows]),
        lengths=kept.lengths,
        terminated=kept.terminated,
        actions=actions,
    )
