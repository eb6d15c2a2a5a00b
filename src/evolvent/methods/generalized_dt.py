"""Generalized Decision Transformer: asked for a distribution of what is seen, not for a return.

"Generalized Decision Transformer for Offline Hindsight Information Matching" (arXiv 2111.10364), in its categorical
form. Each step is conditioned on statistics of its future: how many of the following observations fall into each bin
of chosen features (`offline/statistics.py`). To act, take the counts of an episode that should be matched; bins that
were visited are subtracted step by step. Decision Transformer is the case in which the feature is the reward.

The paper conditions on shares of the future, and on features such as a runner's speed. Counts say the same and how much
time is left, and they can be subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.errors import BatchMismatch
from evolvent.methods.decision_transformer import DecisionTransformerConfig, build_shape, check_episodes
from evolvent.offline.statistics import FeatureBins, future_counts
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.models.sequences import DecisionModel
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import History, ObservationScaler

__all__ = [
    "GeneralizedDTConfig",
    "MatchingPolicy",
    "episode_counts",
    "generalized_dt",
    "load_matching",
    "save_matching",
]


class GeneralizedDTConfig(DecisionTransformerConfig):
    """Settings of Generalized Decision Transformer: those of Decision Transformer, and the statistics."""

    returns: Literal[True] = Field(default=True, description="read the statistics of the future")
    scale: float = Field(default=20.0, gt=0, description="what counts are divided by: about the length of an episode")
    features: tuple[int, ...] = Field(default=(0,), min_length=1, description="numbers of an observation to match")
    bins: int = Field(default=10, ge=1, description="bins of each feature")


@dataclass(frozen=True)
class MatchingPolicy:
    """A trained policy, with its features. `history`: update and loss."""

    model: DecisionModel
    scaler: ObservationScaler
    features: FeatureBins
    history: tuple[dict[str, float], ...] = ()

    def build_actor(self, counts: NDArray[np.float64], *, greedy: bool = True) -> ArrayActor:
        """Builds an actor that plays towards these counts.

        Args:
            counts: `[F V]`, visits of each bin (`episode_counts` of an episode to match).
            greedy: the likeliest action; else a sampled one.
        Raises:
            BatchMismatch: counts of other features.
        """
        import torch

        from evolvent.offline.acting import choose_actions
        from evolvent.offline.windows import recent_window

        if counts.shape != (self.features.size,):
            raise BatchMismatch("counts do not match the features", value=counts.shape, expected=(self.features.size,))

        @torch.no_grad()
        def act(history: History) -> NDArray[Any]:
            window = recent_window(history, self.model.shape.context, standard=self.scaler)
            visited = np.cumsum(self.features.one_hot(history.observation), 1)
            remaining = counts - (visited - visited[:, :1])  # the first observation is no consequence of an action
            condition = remaining[:, -window.seen.shape[1] :].astype(np.float32)
            self.model.eval()
            to_go = torch.from_numpy(condition)
            outputs = self.model(window.observation, window.action, to_go=to_go, time=window.time)[:, -1]
            return choose_actions(self.model.shape, outputs, history, greedy=greedy)

        return act


def generalized_dt(
    config: GeneralizedDTConfig,
    episodes: Episodes,
    *,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> MatchingPolicy:
    """Trains on episodes, each step conditioned on the counts of its own future (hindsight).

    Args:
        checkpoint: where the training is stored; an existing one is resumed.
        device: where the network learns; it is on the CPU afterwards.
    Raises:
        ConfigError: a feature that observations do not have, an episode longer than the horizon, actions outside
            -1..1, or a checkpoint of other settings.
        NonFinite: training diverged.
    """
    from evolvent.offline.conditioned import fit_conditioned
    from evolvent.offline.windows import WindowSource

    check_episodes(config, episodes)
    features = FeatureBins.fit(episodes.observation, columns=config.features, bins=config.bins)
    source = WindowSource(episodes, context=config.context, conditions=future_counts(episodes, features))
    model, history = fit_conditioned(
        replace(build_shape(config, episodes), condition=features.size),
        source.sample,
        config.train,
        config=config,
        seed=config.seed,
        digest=episodes.digest,
        checkpoint=checkpoint,
        device=device,
    )
    return MatchingPolicy(model, source.standard, features, history)


def episode_counts(episodes: Episodes, features: FeatureBins) -> NDArray[np.float64]:
    """Returns the counts of whole episodes, `[E, F V]`: those after the first decision of each."""
    return future_counts(episodes, features)[episodes.starts]


def save_matching(policy: MatchingPolicy, folder: Path) -> None:
    """Writes the policy; raises NoSpace or StoreUnavailable where that fails."""
    from evolvent.models.sequence_files import save_sequence

    features = policy.features
    extra = {
        **policy.scaler.as_json,
        "columns": list(features.columns),
        "low": features.low.tolist(),
        "high": features.high.tolist(),
        "bins": features.bins,
    }
    save_sequence(policy.model, policy.model.shape, folder, extra=extra)


def load_matching(folder: Path) -> MatchingPolicy:
    """Reads a policy that `save_matching` wrote; raises Incomplete, CorruptRecord or ShapeMismatch."""
    from evolvent.models.sequence_files import load_sequence, raise_incomplete
    from evolvent.models.sequences import DecisionModel, SequenceShape
    from evolvent.offline.windows import ObservationScaler

    model, extra = load_sequence(DecisionModel, SequenceShape, folder)
    with raise_incomplete(folder):
        scaler = ObservationScaler.from_json(extra, model.shape.observation)
        low, high = (np.asarray(extra[name], np.float64) for name in ("low", "high"))
        columns = tuple(int(column) for column in extra["columns"])
        features = FeatureBins(columns, low, high, int(extra["bins"]))
        if low.shape != (len(columns),) or high.shape != low.shape or features.size != model.shape.condition:
            raise BatchMismatch("statistics do not match the network", value=features.size)
        return MatchingPolicy(model, scaler, features)
