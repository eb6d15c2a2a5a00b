"""Sequence policies that act: from the last K steps of many episodes to one action each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.models.sequences import DecisionModel, SequenceShape, squashed_sample
from evolvent.offline.windows import History, ObservationScaler, recent_window
from evolvent.trajectory import sample_rng

__all__ = ["ArrayActor", "build_conditioned_actor", "choose_actions"]

ArrayActor = Callable[[History], NDArray[np.generic]]
"""Decides in E episodes at once: `[E]` int64 or `[E, D]` float32 in -1..1."""


def build_conditioned_actor(
    model: DecisionModel,
    standard: ObservationScaler,
    *,
    target: float = 0.0,
    context: int | None = None,
    greedy: bool = True,
) -> ArrayActor:
    """Builds an actor that plays towards a return `target` (Decision Transformer); without returns in the model, as
    the data.

    Args:
        context: number of steps that are read; None: as in training.
        greedy: the likeliest action or the mean; else a sampled action, from the episode's seed and step alone.
    Raises:
        NonFinite: (while acting) a target or an observation is not finite.
    """
    max_steps = min(context or model.shape.context, model.shape.context)

    @torch.no_grad()
    def act(history: History) -> NDArray[Any]:
        window = recent_window(history, max_steps, standard=standard, target=target)
        model.eval()
        outputs = model(window.observation, window.action, to_go=window.to_go, time=window.time)[:, -1]
        return choose_actions(model.shape, outputs, history, greedy=greedy)

    return act


def choose_actions(shape: SequenceShape, outputs: Tensor, history: History, *, greedy: bool) -> NDArray[np.generic]:
    """Chooses an action for each episode from the network's outputs at the newest step.

    Args:
        shape: of the network.
        outputs: `[E, A]` logits, `[E, D]` actions, or `[E, 2, D]` mean and log deviation.
        history: its seeds and its step decide the samples.
        greedy: the likeliest action or the mean; else a sampled action.
    Returns:
        `[E]` int64 or `[E, D]` float32.
    """
    if shape.actions:
        if not greedy:
            uniform = np.stack(
                [sample_rng("act", int(seed), history.step).random(shape.actions) for seed in history.seed]
            )
            outputs = outputs - torch.log(-torch.log(torch.from_numpy(uniform).clamp(1e-12, 1.0 - 1e-12)))  # Gumbel
        choice: NDArray[np.generic] = outputs.argmax(-1).numpy()
        return choice
    if not shape.stochastic:
        numbers: NDArray[np.generic] = outputs.numpy()
        return numbers
    noise = np.zeros((len(outputs), shape.dim), np.float32)
    if not greedy:
        for row, seed in enumerate(history.seed):
            noise[row] = sample_rng("act", int(seed), history.step).standard_normal(shape.dim)
    sampled: NDArray[np.generic] = squashed_sample(outputs, torch.from_numpy(noise))[0].numpy()
    return sampled
