"""Windows of steps as tokens: the training data of a generalist (`models/gato.py` makes the tokens)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evolvent.models.gato import GatoStep
from evolvent.models.gato_model import GatoModel

__all__ = ["build_step_batch", "sample_window", "steps_digest"]

Steps = Sequence[GatoStep]


def sample_window(episodes: Sequence[Steps], context: int, rng: np.random.Generator) -> Steps:
    """Samples at most `context` consecutive steps of one episode; every step is equally likely to be the newest."""
    ends = np.cumsum([len(episode) for episode in episodes])
    step_index = int(rng.integers(ends[-1]))
    episode = int(np.searchsorted(ends, step_index, side="right"))
    newest = step_index - int(ends[episode]) + len(episodes[episode])
    return episodes[episode][max(0, newest + 1 - context) : newest + 1]


def build_step_batch(windows: Sequence[Steps], model: GatoModel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Builds token rows, positions, visible and learned masks, `[B, L]` each, padded on the left; may raise
    SampleInvalid.
    """
    longest = max(sum(len(step.tokens) for step in steps) for steps in windows)
    arrays = np.zeros((4, len(windows), longest), np.int64)
    for number, steps in enumerate(windows):
        tokens = model.rows(np.concatenate([step.tokens for step in steps]))
        columns = slice(longest - len(tokens), longest)
        position = np.concatenate([np.arange(len(step.tokens)) for step in steps])
        arrays[:, number, columns] = (
            tokens,
            position,
            np.ones_like(tokens),
            np.concatenate([step.learned for step in steps]),
        )
    rows, position, is_visible, is_learned = torch.from_numpy(arrays)
    return rows, position, is_visible.bool(), is_learned.bool()


def steps_digest(episodes: Sequence[Steps]) -> str:
    """Computes the SHA-256 of all their tokens."""
    digest = hashlib.sha256()
    for episode in episodes:
        digest.update(len(episode).to_bytes(8, "little"))
        for step in episode:
            digest.update(step.tokens.tobytes() + step.learned.tobytes())
    return digest.hexdigest()
