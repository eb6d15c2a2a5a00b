"""The training that Decision Transformer and its descendants share: imitate actions, given a condition.

What a method changes is the data: which windows are sampled, and what stands in the place of the return-to-go
(relabeled returns, statistics of the future, the previous reward, steps of another episode).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.models.sequences import DecisionModel, SequenceShape
from evolvent.offline.losses import action_error, action_nll
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.offline.state import SequenceCheckpoint, configure_checkpoint
from evolvent.offline.training import build_seeded, fit_windows
from evolvent.offline.windows import Windows
from evolvent.store.episodes import Episodes

__all__ = ["check_action_range", "fit_conditioned"]


def fit_conditioned(
    shape: SequenceShape,
    sample: Callable[[np.random.Generator, int], Windows],
    train: SequenceTrainingConfig,
    *,
    config: Config,
    seed: int,
    digest: str,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> tuple[DecisionModel, tuple[dict[str, float], ...]]:
    """Trains a decision model to predict the actions of windows.

    Args:
        sample: returns this many windows, sampled with the generator.
        config: all settings of the method; a training is resumed with the same ones only.
        digest: of the data.
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the network learns; it is on the CPU afterwards.
    Returns:
        the model and its history (update and loss).
    Raises:
        NonFinite: training diverged.
        ConfigError: the checkpoint is of a training with other settings.
    """
    model = build_seeded(lambda: DecisionModel(shape), seed)
    action_loss = action_nll if shape.actions else action_error

    def loss(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        windows = sample(rng, train.batch).to(device)
        predicted = model(
            windows.observation, windows.action, to_go=windows.to_go, time=windows.time, attention_mask=windows.seen
        )
        return action_loss(predicted, windows.action, windows.decided)

    history = fit_windows(
        model,
        loss,
        train,
        seed=seed,
        checkpoint=configure_checkpoint(checkpoint, config, digest),
        device=device,
    )
    return model, history


def check_action_range(episodes: Episodes) -> None:
    """Raises ConfigError where numeric actions are outside -1..1."""
    if episodes.action_dim and float(np.abs(episodes.action).max()) > 1.0:
        raise ConfigError(
            "actions are out of range",
            value=float(np.abs(episodes.action).max()),
            expected="-1 to 1",
            hint="divide them by the largest action of the world",
        )
