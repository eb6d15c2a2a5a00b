"""Q-Transformer: offline Q-learning in which an action is a sequence of its dimensions.

"Q-Transformer: Scalable Offline Reinforcement Learning via Autoregressive Q-Functions" (arXiv 2309.10150). Each
dimension is split into bins and has a value given the dimensions before it. Inside an action the target is the
maximum over the next dimension's bins, at its end the reward and the discounted value of the next observation:
the backup with action decomposition of the rest of this library, with a maximum for its value. Targets are not
below the return in the data (after a cut counts the least return), and bins that the data do not show are
pulled to that.

Because it bootstraps, it combines pieces of episodes that no single episode has (`worlds/stitching.py`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from evolvent.models.q_sequence import QSequence
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History, ObservationScaler, Windows

__all__ = [
    "QTransformerConfig",
    "QTransformerPolicy",
    "load_q_transformer",
    "q_transformer",
    "save_q_transformer",
    "window_values",
]


class QTransformerConfig(Config):
    """Settings of Q-Transformer."""

    context: int = Field(default=1, ge=1, description="steps that are read")
    bins: int = Field(default=256, ge=2, description="of each dimension, where actions are numbers")
    gamma: float = Field(default=0.98, ge=0, le=1, description="discount between actions; inside one there is none")
    monte_carlo: bool = Field(default=True, description="no target below the return that the data show")
    conservative: float = Field(default=1.0, ge=0, description="weight of the pull of unseen bins to the least return")
    floor: float | None = Field(default=None, description="the least return; none: the least return-to-go of the data")
    scale: float = Field(default=1.0, gt=0, description="what rewards are divided by")
    polyak: float = Field(default=0.01, gt=0, le=1, description="how far the lagging network follows at each update")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=4, ge=1, description="of its attention")
    layers: int = Field(default=2, ge=1, description="blocks")
    train: SequenceTrainingConfig = Field(
        default=SequenceTrainingConfig(lr=3e-4, warmup=0, grad_norm=10.0), description="how it is trained"
    )
    seed: int = Field(default=0, ge=0, description="of everything random")


@dataclass(frozen=True)
class QTransformerPolicy:
    """A trained Q-Transformer. `discrete`: actions are choices. `history`: update and loss."""

    model: QSequence
    scaler: ObservationScaler
    discrete: bool
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self) -> ArrayActor:
        """Builds an actor that takes the best bin of each dimension, given those before it."""
        from evolvent.models.q_sequence import bin_middles
        from evolvent.offline.windows import recent_window

        def act(history: History) -> NDArray[Any]:
            window = recent_window(history, self.model.shape.context, standard=self.scaler)
            best = self.model.best(window.observation, self.to_bins(window.action)).numpy()
            return best[:, 0] if self.discrete else bin_middles(best, bins=self.model.shape.bins)

        return act

    def to_bins(self, action: Tensor) -> Tensor:
        """Converts actions of windows to bins, `[B, K, d]` int64; -1 where no action was taken yet."""
        import torch

        from evolvent.models.q_sequence import bin_actions

        if self.discrete:
            return action[..., None]
        return torch.from_numpy(bin_actions(action.numpy(), bins=self.model.shape.bins))


def q_transformer(
    config: QTransformerConfig, episodes: Episodes, *, checkpoint: SequenceCheckpoint | None = None, device: str = "cpu"
) -> QTransformerPolicy:
    """Trains on episodes; numeric actions are in -1..1.

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the networks learn, as "cuda:1"; the policy is on the CPU afterwards.
    Raises:
        SampleInvalid: actions are outside -1..1.
        ConfigError: the checkpoint is of a training with other settings.
        NonFinite: training diverged.
    """
    import torch

    from evolvent.models.q_sequence import QSequence, QShape
    from evolvent.offline.losses import conservative_loss
    from evolvent.offline.q_targets import mark_learned_steps, window_q_targets
    from evolvent.offline.state import configure_checkpoint
    from evolvent.offline.training import build_seeded, fit_windows
    from evolvent.offline.windows import WindowSource, returns_to_go
    from evolvent.rl.soft_values import td_loss

    scaled = replace(episodes, reward=episodes.reward / config.scale)
    min_return = float(returns_to_go(scaled, gamma=config.gamma).min())
    floor = min_return if config.floor is None else config.floor / config.scale
    source = WindowSource(scaled, context=config.context + 1, gamma=config.gamma, cut_return=floor, ahead=True)
    shape = QShape(
        observation=episodes.observation.shape[1],
        dims=episodes.action_dim or 1,
        context=config.context,
        bins=episodes.actions or config.bins,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
    )
    model = build_seeded(lambda: QSequence(shape), config.seed)
    with torch.no_grad():
        model.offset.fill_(floor)
    target_model = copy.deepcopy(model).eval().to(device)
    policy = QTransformerPolicy(model, source.standard, bool(episodes.actions))
    policy.to_bins(torch.from_numpy(episodes.action))  # all of them, before the first update

    def loss(rng: np.random.Generator) -> Any:
        windows = source.sample(rng, config.train.batch)
        bins, mask = policy.to_bins(windows.action), mark_learned_steps(windows)[:, :-1]
        placed_windows, placed_bins = windows.to(device), bins.to(device)
        values = window_values(target_model, placed_windows, placed_bins).cpu()
        target = window_q_targets(values, windows, gamma=config.gamma, monte_carlo=config.monte_carlo)
        target, bins, mask = target[:, :-1].to(device), placed_bins[:, :-1], mask.to(device)
        q = model(placed_windows.observation[:, :-1], bins, attention_mask=placed_windows.seen[:, :-1])
        action_values = q.gather(-1, bins.clamp(min=0)[..., None])[..., 0]
        value_mask = mask[..., None].expand_as(action_values)
        td_sum = td_loss(action_values[value_mask], target[value_mask]).sum()
        conservative_sum, count = conservative_loss(q, bins, value_mask, floor=floor)
        return td_sum + config.conservative * conservative_sum, count

    @torch.no_grad()
    def update_target(_: int) -> None:
        for target_weight, weight in zip(target_model.parameters(), model.parameters(), strict=True):
            target_weight.lerp_(weight, config.polyak)

    checkpoint = configure_checkpoint(checkpoint, config, episodes.digest, lagging=target_model)
    history = fit_windows(
        model, loss, config.train, seed=config.seed, on_update=update_target, checkpoint=checkpoint, device=device
    )
    return QTransformerPolicy(model, source.standard, policy.discrete, history)


def window_values(network: QSequence, windows: Windows, bins: Tensor) -> Tensor:
    """Computes `[B, K + 1, d]`, the maximum over each dimension's bins.

    The step after K steps is read with the last K - 1 of them, as in training and acting: the network never learns
    the values of longer windows.
    """
    import torch

    from evolvent.rl.soft_values import hard_value

    with torch.no_grad():
        step_values = network(windows.observation[:, :-1], bins[:, :-1], attention_mask=windows.seen[:, :-1])
        next_values = network(windows.observation[:, 1:], bins[:, 1:], attention_mask=windows.seen[:, 1:])
        return hard_value(torch.cat([step_values, next_values[:, -1:]], 1))


def save_q_transformer(policy: QTransformerPolicy, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    extra = {**policy.scaler.as_json, "discrete": policy.discrete}
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_q_transformer(folder: Path) -> QTransformerPolicy:
    """Reads a policy that `save_q_transformer` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.q_sequence import QSequence, QShape
    from evolvent.models.sequence_files import load_sequence, raise_incomplete
    from evolvent.offline.windows import ObservationScaler

    model, extra = load_sequence(QSequence, QShape, folder)
    with raise_incomplete(folder):
        return QTransformerPolicy(
            model, ObservationScaler.from_json(extra, model.shape.observation), bool(extra["discrete"])
        )
