"""Algorithm Distillation: a sequence model imitates a whole learning history, and so learns to learn.

"In-context Reinforcement Learning with Algorithm Distillation" (arXiv 2210.14215). The data are histories: all
episodes of a reinforcement learner in one task, in order. A GPT reads the observations, actions and rewards of the
last K steps, across the borders of episodes, and predicts the learner's next action. In a new task it improves from
episode to episode, and its weights never change.

It is Decision Transformer's network without returns, on other data: an observation also holds the action and reward
that led to it and a mark where an episode begins, and a step's time is its place in the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.store.episodes import Episodes, concatenate_episodes
from evolvent.trajectory import Array

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History, ObservationScaler, Windows

__all__ = [
    "PRESETS",
    "AlgorithmDistillationConfig",
    "InContextPolicy",
    "add_outcomes",
    "algorithm_distillation",
    "join_history",
    "load_in_context",
    "save_in_context",
    "skip_episodes",
]


class AlgorithmDistillationConfig(Config):
    """Settings of Algorithm Distillation."""

    context: int = Field(default=200, ge=1, description="steps that are read; they must span several episodes")
    every: int = Field(default=1, ge=1, description="learn from every Nth episode of a history: faster improvement")
    width: int = Field(default=64, ge=1, description="width of the network")
    heads: int = Field(default=4, ge=1, description="heads of its attention")
    layers: int = Field(default=4, ge=1, description="blocks of the network")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="dropout while training")
    train: SequenceTrainingConfig = Field(
        default=SequenceTrainingConfig(lr=3e-4, warmup=1000, grad_norm=1.0), description="how it is trained"
    )
    seed: int = Field(default=0, ge=0, description="seed of weights and windows")


PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "paper": {},
        "small": {
            "context": 60,
            "every": 2,
            "layers": 2,
            "dropout": 0.0,
            "train": {"max_steps": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0},
        },
    }
)
"""Settings for dark rooms of 9 x 9 cells, and for small families on a processor."""


@dataclass(frozen=True)
class InContextPolicy:
    """A policy that learns within its context. `history`: update and loss."""

    model: DecisionModel
    scaler: ObservationScaler
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self, *, greedy: bool = False) -> ArrayActor:
        """Builds an actor for several episodes played as one (`rollout.histories.AcrossEpisodesEnv`).

        Args:
            greedy: take the likeliest action; else sample, as the paper does.
        """
        import torch

        from evolvent.offline.acting import choose_actions
        from evolvent.offline.windows import recent_window

        @torch.no_grad()
        def act(history: History) -> NDArray[Any]:
            seen_so_far = add_outcomes(history.observation, history.action, history.reward, self.model.shape.actions)
            window = recent_window(
                replace(history, observation=seen_so_far), self.model.shape.context, standard=self.scaler
            )
            self.model.eval()
            outputs = self.model(
                window.observation, window.action, to_go=window.to_go, time=_count_seen(window.seen.numpy())
            )[:, -1]
            return choose_actions(self.model.shape, outputs, history, greedy=greedy)

        return act


def algorithm_distillation(
    config: AlgorithmDistillationConfig,
    histories: Sequence[Episodes],
    *,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> InContextPolicy:
    """Trains on learning histories, each the episodes of one learner in one task, in order.

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the network learns; it is on the CPU afterwards.
    Raises:
        ConfigError: there is no history, actions are outside -1..1, or the checkpoint is of other settings.
        NonFinite: training diverged.
    """
    from evolvent.models.sequences import SequenceShape
    from evolvent.offline.conditioned import check_action_range, fit_conditioned
    from evolvent.offline.windows import ObservationScaler, WindowSource

    if not histories:
        raise ConfigError("no learning history to distill", value=0, expected="1 or more")
    joined = concatenate_episodes([join_history(skip_episodes(history, every=config.every)) for history in histories])
    check_action_range(joined)
    source = WindowSource(
        joined,
        context=config.context,
        standard=ObservationScaler.identity(joined.observation.shape[1]),
    )

    def sample(rng: np.random.Generator, batch: int) -> Windows:
        windows = source.sample(rng, batch)
        return replace(windows, time=_count_seen(windows.seen.numpy()))

    shape = SequenceShape(
        observation=joined.observation.shape[1],
        actions=joined.actions,
        dim=joined.action_dim,
        context=config.context,
        horizon=config.context,
        returns=False,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        dropout=config.dropout,
    )
    model, history = fit_conditioned(
        shape,
        sample,
        config.train,
        config=config,
        seed=config.seed,
        digest=joined.digest,
        checkpoint=checkpoint,
        device=device,
    )
    return InContextPolicy(model, source.standard, history)


def skip_episodes(history: Episodes, *, every: int) -> Episodes:
    """Returns every Nth episode of a history; what is left improves N times as fast."""
    return history if every == 1 else history.select(np.arange(0, len(history.lengths), every))


def join_history(history: Episodes) -> Episodes:
    """Joins the episodes of a history into one whose observations hold what led to them (`add_outcomes`)."""
    begins = np.zeros((len(history.reward), 1), np.float32)
    begins[history.starts] = 1.0
    observation = np.concatenate([history.observation, begins], 1)
    final = np.append(history.final[-1], np.float32(1.0))
    with_outcomes = add_outcomes(
        np.concatenate([observation, final[None]])[None], history.action[None], history.reward[None], history.actions
    )[0]
    return Episodes(
        observation=with_outcomes[:-1],
        final=with_outcomes[-1:],
        action=history.action,
        reward=history.reward,
        lengths=np.array([len(history.reward)], np.int64),
        terminated=np.zeros(1, np.bool_),
        actions=history.actions,
    )


def add_outcomes(
    observation: NDArray[np.float32], action: Array, reward: Array, num_actions: int
) -> NDArray[np.float32]:
    """Adds to each observation the action before it and its reward; zeros before the first.

    Args:
        observation: `[E, t + 1, O]`.
        action: `[E, t]` int64, or `[E, t, D]`.
        reward: `[E, t]`.
        num_actions: number of discrete actions, shown one-hot; 0: actions are numbers.
    Returns:
        `[E, t + 1, O + A + 1]` or `[E, t + 1, O + D + 1]` float32.
    """
    action_numbers = np.eye(num_actions, dtype=np.float32)[action] if num_actions else action
    outcomes = np.concatenate([action_numbers, reward[..., None]], 2, dtype=np.float32)
    first = np.zeros((len(observation), 1, outcomes.shape[2]), np.float32)
    return np.concatenate([observation, np.concatenate([first, outcomes], 1)], 2)


def _count_seen(is_visible: NDArray[np.bool_]) -> Any:
    """Returns the number of visible steps before each step, `[B, K]` int64; 0 at padding."""
    import torch

    return torch.from_numpy(np.maximum(np.cumsum(is_visible, 1, dtype=np.int64) - 1, 0))


def save_in_context(policy: InContextPolicy, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    save_sequence(policy.model, policy.model.shape, folder, extra=policy.scaler.as_json)


def load_in_context(folder: Path) -> InContextPolicy:
    """Reads a policy that `save_in_context` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.methods.decision_transformer import load_conditioned

    policy = load_conditioned(folder)
    return InContextPolicy(policy.model, policy.scaler)
