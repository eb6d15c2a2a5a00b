"""Windows of steps that are tokens: what a generalist learns from (`models/gato.py` makes the tokens)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evolvent.models.gato import GatoStep
from evolvent.models.gato_model import GatoModel

__all__ = ["step_batch", "step_window", "steps_digest"]

Steps = Sequence[GatoStep]


def step_window(episodes: Sequence[Steps], context: int, rng: np.random.Generator) -> Steps:
    """At most `context` steps in a row of one episode; every step is as likely the newest one as any other."""
    ends = np.cumsum([len(episode) for episode in episodes])
    at = int(rng.integers(ends[-1]))
    episode = int(np.searchsorted(ends, at, side="right"))
    newest = at - int(ends[episode]) + len(episodes[episode])
    return episodes[episode][max(0, newest + 1 - context) : newest + 1]


def step_batch(drawn: Sequence[Steps], model: GatoModel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, places, seen and learned, `[B, L]` each, padded on the left; SampleInvalid: a token never learned."""
    longest = max(sum(len(step.tokens) for step in steps) for steps in drawn)
    found = np.zeros((4, len(drawn), longest), np.int64)
    for number, steps in enumerate(drawn):
        tokens = model.rows(np.concatenate([step.tokens for step in steps]))
        at = slice(longest - len(tokens), longest)
        place = np.concatenate([np.arange(len(step.tokens)) for step in steps])
        found[:, number, at] = tokens, place, np.ones_like(tokens), np.concatenate([step.learned for step in steps])
    rows, place, seen, learned = torch.from_numpy(found)
    return rows, place, seen.bool(), learned.bool()


def steps_digest(episodes: Sequence[Steps]) -> str:
    """SHA-256 of all their tokens."""
    found = hashlib.sha256()
    for episode in episodes:
        found.update(len(episode).to_bytes(8, "little"))
        for step in episode:
            found.update(step.tokens.tobytes() + step.learned.tobytes())
    return found.hexdigest()
