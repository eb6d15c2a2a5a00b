"""Decision Transformer: reinforcement learning as imitation of episodes with the requested return.

"Decision Transformer: Reinforcement Learning via Sequence Modeling" (arXiv 2106.01345). A GPT reads
(return-to-go, observation, action) of the last K steps and predicts the action. To act, request a return:
rewards are subtracted from it step by step. With `returns=False` the same GPT clones behavior, the paper's
comparison.

It finds the best way only where some episode from that start has earned the best return (arXiv 2206.01079); see
`worlds/stitching.py` for a world where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import ObservationScaler

__all__ = [
    "PRESETS",
    "DecisionTransformerConfig",
    "ReturnConditionedPolicy",
    "build_shape",
    "check_episodes",
    "decision_transformer",
    "load_conditioned",
    "save_conditioned",
]


class DecisionTransformerConfig(Config):
    """Settings of Decision Transformer."""

    returns: bool = Field(default=True, description="read returns-to-go; false: behavior cloning by the same GPT")
    context: int = Field(default=20, ge=1, description="steps that are read")
    scale: float = Field(default=1000.0, gt=0, description="what returns are divided by")
    width: int = Field(default=128, ge=1, description="of the network")
    heads: int = Field(default=1, ge=1, description="of its attention")
    layers: int = Field(default=3, ge=1, description="blocks")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    horizon: int = Field(default=1000, ge=1, description="longest episode")
    train: SequenceTrainingConfig = Field(default=SequenceTrainingConfig(), description="how it is trained")
    seed: int = Field(default=0, ge=0, description="of everything random")


PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "paper": {},
        "small": {
            "context": 8,
            "scale": 100.0,
            "width": 64,
            "layers": 2,
            "dropout": 0.0,
            "train": {"max_steps": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0},
        },
    }
)
"""The paper's settings for Hopper, HalfCheetah and Walker2d, and ones for small worlds on a processor."""


@dataclass(frozen=True)
class ReturnConditionedPolicy:
    """A trained policy and the scaler of its observations. `history`: update and loss."""

    model: DecisionModel
    scaler: ObservationScaler
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self, target: float = 0.0, *, context: int | None = None, greedy: bool = True) -> ArrayActor:
        """Builds an actor that plays towards a return `target` (`offline.acting.build_conditioned_actor`)."""
        from evolvent.offline.acting import build_conditioned_actor

        return build_conditioned_actor(self.model, self.scaler, target=target, context=context, greedy=greedy)


def decision_transformer(
    config: DecisionTransformerConfig,
    episodes: Episodes,
    *,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> ReturnConditionedPolicy:
    """Trains on episodes; numeric actions are in -1..1.

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the networks learn, as "cuda:1"; the policy is on the CPU afterwards.
    Raises:
        ConfigError: an episode is longer than the horizon, actions are outside -1..1, or the checkpoint is of a
            training with other settings.
        NonFinite: training diverged.
    """
    from evolvent.offline.conditioned import fit_conditioned
    from evolvent.offline.windows import WindowSource

    check_episodes(config, episodes)
    source = WindowSource(episodes, context=config.context)
    model, history = fit_conditioned(
        build_shape(config, episodes),
        source.sample,
        config.train,
        config=config,
        seed=config.seed,
        digest=episodes.digest,
        checkpoint=checkpoint,
        device=device,
    )
    return ReturnConditionedPolicy(model, source.standard, history)


def build_shape(config: DecisionTransformerConfig, episodes: Episodes, *, prompt_steps: int = 0) -> SequenceShape:
    """Builds the shape of the network for the world of these episodes; a prompt stands before the context."""
    from evolvent.models.sequences import SequenceShape

    return SequenceShape(
        observation=episodes.observation.shape[1],
        actions=episodes.actions,
        dim=episodes.action_dim,
        context=prompt_steps + config.context,
        horizon=config.horizon,
        returns=config.returns,
        scale=config.scale,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )


def save_conditioned(policy: ReturnConditionedPolicy, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    save_sequence(policy.model, policy.model.shape, folder, extra=policy.scaler.as_json)


def load_conditioned(folder: Path) -> ReturnConditionedPolicy:
    """Reads a policy that `save_conditioned` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_files import load_sequence, raise_incomplete
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.windows import ObservationScaler

    model, extra = load_sequence(DecisionModel, SequenceShape, folder)
    with raise_incomplete(folder):
        standard = ObservationScaler.from_json(extra, model.shape.observation)
    return ReturnConditionedPolicy(model, standard)


def check_episodes(config: DecisionTransformerConfig, episodes: Episodes) -> None:
    """Raises ConfigError for an episode longer than the horizon, and for actions outside -1..1."""
    from evolvent.offline.conditioned import check_action_range

    longest = int(episodes.lengths.max())
    if longest > config.horizon:
        raise ConfigError(
            "an episode is longer than the horizon",
            value=longest,
            expected=config.horizon,
            hint=f"set horizon={longest}",
        )
    check_action_range(episodes)
