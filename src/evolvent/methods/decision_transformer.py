"""Decision Transformer: reinforcement learning as imitation of those who earned what is asked for.

"Decision Transformer: Reinforcement Learning via Sequence Modeling" (arXiv 2106.01345). A GPT reads (return-to-go,
observation, action) of the last K steps and predicts the action. To act, ask for a return: what is earned is taken off
it step by step. With `returns=False` the same GPT clones behaviour, which the paper compares it with.

It finds the best way only where some episode from that start has earned the best return (arXiv 2206.01079); see
`worlds/stitching.py` for where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.offline.training import SequenceTraining
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import Keeping
    from evolvent.offline.windows import Standard

__all__ = [
    "PRESETS",
    "DecisionTransformer",
    "ReturnConditioned",
    "decision_transformer",
    "load_conditioned",
    "save_conditioned",
]


class DecisionTransformer(Config):
    """What can be chosen about Decision Transformer."""

    returns: bool = Field(default=True, description="read returns-to-go; false: behaviour cloning by the same GPT")
    context: int = Field(default=20, ge=1, description="steps that are read")
    scale: float = Field(default=1000.0, gt=0, description="what returns are divided by")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=1, ge=1, description="of its attention")
    layers: int = Field(default=3, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    horizon: int = Field(default=1000, ge=1, description="longest episode")
    train: SequenceTraining = Field(default=SequenceTraining(), description="how it is trained")
    seed: int = Field(default=0, ge=0, description="of everything random")


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {},
        "small": {
            "context": 8,
            "scale": 100.0,
            "width": 64,
            "layers": 2,
            "dropout": 0.0,
            "train": {"updates": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0},
        },
    }
)
"""The paper's settings for Hopper, HalfCheetah and Walker2d, and ones for small worlds on a processor."""


@dataclass(frozen=True)
class ReturnConditioned:
    """A trained policy and how its observations are standardised. `history`: update and loss."""

    model: DecisionModel
    standard: Standard
    history: tuple[dict[str, float], ...] = ()

    def actor(self, target: float = 0.0, *, context: int | None = None, greedy: bool = True) -> ArrayActor:
        """Who acts, asked for a return `target` (`learn.sequences.acting.conditioned`)."""
        from evolvent.offline.acting import conditioned

        return conditioned(self.model, self.standard, target=target, context=context, greedy=greedy)


def decision_transformer(
    config: DecisionTransformer, episodes: Episodes, *, keep: Keeping | None = None
) -> ReturnConditioned:
    """Train on episodes; actions that are numbers lie in -1..1.

    Args:
        keep: where the training is kept; one that is begun again there goes on.
    Raises:
        ConfigError: an episode longer than the horizon, or actions outside -1..1; a training of other settings is kept
            there. NonFinite: learning broke down.
    """
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.losses import action_error, action_nll
    from evolvent.offline.state import begun
    from evolvent.offline.training import fit_windows, seeded
    from evolvent.offline.windows import WindowSource

    _check(config, episodes)
    shape = SequenceShape(
        observation=episodes.observation.shape[1],
        actions=episodes.actions,
        dim=episodes.dim,
        context=config.context,
        horizon=config.horizon,
        returns=config.returns,
        scale=config.scale,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model = seeded(lambda: DecisionModel(shape), config.seed)
    source = WindowSource(episodes, context=config.context)
    missed = action_nll if episodes.actions else action_error

    def loss(rng: np.random.Generator) -> Any:
        read = source.draw(rng, config.train.batch)
        found = model(read.observation, read.action, to_go=read.to_go, time=read.time, seen=read.seen)
        return missed(found, read.action, read.decided)

    history = fit_windows(model, loss, config.train, seed=config.seed, keep=begun(keep, config, episodes.digest))
    return ReturnConditioned(model, source.standard, history)


def save_conditioned(policy: ReturnConditioned, folder: Path) -> None:
    """Write the policy; NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    save_sequence(policy.model, policy.model.shape, folder, extra=policy.standard.kept)


def load_conditioned(folder: Path) -> ReturnConditioned:
    """Read what `save_conditioned` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_files import described, load_sequence
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.windows import Standard

    model, extra = load_sequence(DecisionModel, SequenceShape, folder)
    with described(folder):
        standard = Standard.read(extra, model.shape.observation)
    return ReturnConditioned(model, standard)


def _check(config: DecisionTransformer, episodes: Episodes) -> None:
    longest = int(episodes.lengths.max())
    if longest > config.horizon:
        raise ConfigError(
            "an episode is longer than the horizon",
            value=longest,
            expected=config.horizon,
            hint=f"give horizon={longest}",
        )
    if episodes.dim and float(np.abs(episodes.action).max()) > 1.0:
        raise ConfigError(
            "actions lie outside -1..1",
            value=float(np.abs(episodes.action).max()),
            hint="divide them by the largest that the world takes",
        )
