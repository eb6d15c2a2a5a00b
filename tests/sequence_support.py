"""Small array worlds whose answers are known, and their episodes."""

from __future__ import annotations

import itertools

import numpy as np

from evolvent.store.episodes import Episodes


class Chain:
    """Two steps; action 1 pays 1, action 0 pays 0. Observed is which step it is, `[2]`."""

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.eye(2, dtype=np.float32)[0], {}

    def step(self, action):
        self.t += 1
        return np.eye(2, dtype=np.float32)[min(self.t, 1)], float(action), self.t == 2, False, {}

    def close(self):
        pass


def chain_episodes(copies: int = 1) -> Episodes:
    """All four paths."""
    paths = list(itertools.product((0, 1), repeat=2)) * copies
    eye = np.eye(2, dtype=np.float32)
    return Episodes(
        observation=np.concatenate([eye for _ in paths]),
        final=np.stack([eye[1] for _ in paths]),
        action=np.array(paths, np.int64).ravel(),
        reward=np.array(paths, np.float64).ravel(),
        lengths=np.full(len(paths), 2),
        terminated=np.ones(len(paths), np.bool_),
        actions=2,
    )


def ragged(*lengths: int, observation: int = 3, dim: int = 2, seed: int = 0, terminated=None) -> Episodes:
    """Episodes of numbers."""
    rng, whole = np.random.default_rng(seed), sum(lengths)
    return Episodes(
        observation=rng.normal(size=(whole, observation)).astype(np.float32),
        reward=rng.normal(size=whole),
        final=rng.normal(size=(len(lengths), observation)).astype(np.float32),
        lengths=np.array(lengths),
        action=rng.uniform(-1, 1, (whole, dim)).astype(np.float32),
        actions=0,
        terminated=np.ones(len(lengths), np.bool_) if terminated is None else np.array(terminated),
    )
