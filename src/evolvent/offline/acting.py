"""Sequence policies that act: the last K steps of many episodes in, one action each out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evolvent.models.sequences import DecisionModel, squashed_sample
from evolvent.offline.windows import History, Standard, recent
from evolvent.trajectory import sample_rng

__all__ = ["ArrayActor", "conditioned"]

ArrayActor = Callable[[History], NDArray[Any]]
"""Decides in E episodes at once: `[E]` int64 or `[E, D]` float32 in -1..1."""


def conditioned(
    model: DecisionModel, standard: Standard, *, target: float = 0.0, context: int | None = None, greedy: bool = True
) -> ArrayActor:
    """Acts as someone does who earns `target` in all (Decision Transformer); without returns in the model, as the data.

    Args:
        context: steps that are read; None: as many as were trained with.
        greedy: the likeliest action or the mean's; else one that is drawn, from the episode's seed and step alone.
    Raises:
        NonFinite: (while acting) a target or an observation that is not finite.
    """
    most = min(context or model.shape.context, model.shape.context)

    @torch.no_grad()
    def act(history: History) -> NDArray[Any]:
        read = recent(history, most, standard=standard, target=target)
        model.eval()
        found = model(read.observation, read.action, to_go=read.to_go, time=read.time)[:, -1]
        if model.shape.actions:
            if not greedy:
                uniform = np.stack(
                    [sample_rng("act", int(seed), history.step).random(model.shape.actions) for seed in history.seed]
                )
                found = found - torch.log(-torch.log(torch.from_numpy(uniform).clamp(1e-12, 1.0 - 1e-12)))  # Gumbel
            choice: NDArray[Any] = found.argmax(-1).numpy()
            return choice
        if not model.shape.stochastic:
            numbers: NDArray[Any] = found.numpy()
            return numbers
        noise = np.zeros((len(found), model.shape.dim), np.float32)
        if not greedy:
            for row, seed in enumerate(history.seed):
                noise[row] = sample_rng("act", int(seed), history.step).standard_normal(model.shape.dim)
        drawn: NDArray[Any] = squashed_sample(found, torch.from_numpy(noise))[0].numpy()
        return drawn

    return act
