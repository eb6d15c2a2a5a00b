"""Q-learning Decision Transformer: returns-to-go relabeled by learned values, so that pieces can be put together.

"Q-learning Decision Transformer: Leveraging Dynamic Programming for Conditional Sequence Modelling in Offline RL"
(arXiv 2209.03993). Values are learned offline. Backward through an episode, a return-to-go that is below the value of
the next observation is raised to it (algorithm 1):

    R_t = r_t + max(R_(t+1), V(o_(t+1)))        V(o) = max_a Q(o, a); nothing follows the end of an episode

Decision Transformer then learns from the same episodes with these returns. Within a window they agree with its rewards:
the last one is relabeled, and the earlier ones are `r_t + R_(t+1)` (algorithm 2). The paper learns Q by CQL; here
Q-Transformer does (`methods/q_transformer.py`), which is conservative too and knows both choices and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.errors import BatchMismatch
from evolvent.methods.decision_transformer import (
    PRESETS as DT_PRESETS,
)
from evolvent.methods.decision_transformer import (
    DecisionTransformerConfig,
    ReturnConditionedPolicy,
    build_shape,
    check_episodes,
)
from evolvent.methods.q_transformer import QTransformerConfig, QTransformerPolicy, q_transformer, window_values
from evolvent.store.episodes import Episodes

if TYPE_CHECKING:
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.offline.windows import Windows

__all__ = [
    "PRESETS",
    "QDecisionTransformerConfig",
    "compute_state_values",
    "make_returns_consistent",
    "q_decision_transformer",
    "relabel_returns",
]


class QDecisionTransformerConfig(DecisionTransformerConfig):
    """Settings of Q-learning Decision Transformer: those of Decision Transformer, and of the values."""

    values: QTransformerConfig = Field(default=QTransformerConfig(gamma=0.99), description="how values are learned")
    margin: float = Field(
        default=0.0, ge=0, description="how far a value must exceed a return-to-go to replace it; raise it for noise"
    )


_ROWS_PER_FORWARD = 1024
_SMALL_VALUES = {
    "bins": 32,
    "width": 64,
    "heads": 2,
    "polyak": 0.02,
    "conservative": 0.5,
    "train": {"max_steps": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0},
}
PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"paper": {}, "small": {**DT_PRESETS["small"], "values": _SMALL_VALUES}}
)
"""Decision Transformer's settings, and ones for small worlds on a processor."""


def q_decision_transformer(
    config: QDecisionTransformerConfig,
    episodes: Episodes,
    *,
    value_checkpoint: SequenceCheckpoint | None = None,
    checkpoint: SequenceCheckpoint | None = None,
    device: str = "cpu",
) -> ReturnConditionedPolicy:
    """Learns values, relabels the returns-to-go, and trains Decision Transformer on them.

    Args:
        value_checkpoint: where the training of the values is stored; an existing one is resumed.
        checkpoint: where the training of the policy is stored; an existing one is resumed.
        device: where the networks learn; the policy is on the CPU afterwards.
    Raises:
        ConfigError: an episode is longer than the horizon, actions are outside -1..1, or a checkpoint is of a
            training with other settings.
        NonFinite: training diverged.
    """
    from evolvent.offline.conditioned import fit_conditioned
    from evolvent.offline.windows import WindowSource

    check_episodes(config, episodes)
    values = q_transformer(config.values, episodes, checkpoint=value_checkpoint, device=device)
    next_values = compute_state_values(values, episodes, scale=config.values.scale)
    source = WindowSource(
        episodes, context=config.context, conditions=relabel_returns(episodes, next_values, margin=config.margin)
    )

    def sample(rng: np.random.Generator, batch: int) -> Windows:
        return make_returns_consistent(source.sample(rng, batch))

    model, history = fit_conditioned(
        build_shape(config, episodes),
        sample,
        config.train,
        config=config,
        seed=config.seed,
        digest=episodes.digest,
        checkpoint=checkpoint,
        device=device,
    )
    return ReturnConditionedPolicy(model, source.standard, history)


def compute_state_values(policy: QTransformerPolicy, episodes: Episodes, *, scale: float = 1.0) -> NDArray[np.float64]:
    """Computes `V(o) = max_a Q(o, a)` of the observation after each decision, `[N]`; 0 after an episode's end.

    After the last decision of an episode that was cut stands the value of its final observation.

    Args:
        policy: the learned values.
        scale: what the policy's rewards were divided by.
    """
    from evolvent.offline.windows import WindowSource

    context = policy.model.shape.context
    source = WindowSource(episodes, context=context + 1, standard=policy.scaler, ahead=True)
    decisions = np.arange(len(episodes.reward))
    steps = decisions - episodes.starts[episodes.episode_index]
    first_steps = np.maximum(0, steps + 1 - context)  # of the window that ends with the observation after the step
    values = np.zeros(len(decisions))
    for rows in np.array_split(decisions, -(-len(decisions) // _ROWS_PER_FORWARD)):
        windows = source.windows_from(decisions[rows] - steps[rows] + first_steps[rows])
        padding = context + 1 - windows.seen.sum(1).numpy()
        columns = padding + steps[rows] + 1 - first_steps[rows]
        step_values = window_values(policy.model, windows, policy.to_bins(windows.action)).numpy()
        values[rows] = step_values[np.arange(len(rows)), columns, 0] * scale
    ends = np.cumsum(episodes.lengths) - 1
    values[ends[episodes.terminated]] = 0.0
    return values


def relabel_returns(
    episodes: Episodes, next_values: NDArray[np.float64], *, margin: float = 0.0
) -> NDArray[np.float64]:
    """Computes `R_t = r_t + max(R_(t+1), V(o_(t+1)))` to the end of each episode, `[N]` (algorithm 1).

    Args:
        next_values: `[N]`, V of the observation after each decision; not read where the world ended the episode.
        margin: a value replaces a return only where it is larger by more than this.
    Raises:
        BatchMismatch: the number of values differs from the number of decisions.

    >>> import numpy as np
    >>> from evolvent.store.episodes import Episodes
    >>> line = Episodes(
    ...     observation=np.zeros((3, 1), np.float32),
    ...     final=np.zeros((1, 1), np.float32),
    ...     action=np.array([0, 0, 0]),
    ...     reward=np.array([0.0, 0.0, 1.0]),
    ...     lengths=np.array([3]),
    ...     terminated=np.array([True]),
    ...     actions=1,
    ... )
    >>> relabel_returns(line, np.array([10.0, 0.5, 0.0])).tolist()
    [10.0, 1.0, 1.0]
    """
    if next_values.shape != episodes.reward.shape:
        raise BatchMismatch(
            "number of values does not match the decisions", value=next_values.shape, expected=episodes.reward.shape
        )
    relabeled = np.zeros(len(episodes.reward))
    for start, length, terminated in zip(episodes.starts, episodes.lengths, episodes.terminated, strict=True):
        to_go = 0.0
        for step in range(int(start + length) - 1, int(start) - 1, -1):
            is_end = terminated and step == start + length - 1
            value = -np.inf if is_end else float(next_values[step])
            to_go = float(episodes.reward[step]) + (value if value > to_go + margin else to_go)
            relabeled[step] = to_go
    return relabeled


def make_returns_consistent(windows: Windows) -> Windows:
    """Returns the windows with `R_t = r_t + R_(t+1)` before the last step, whose return stays (algorithm 2)."""
    import torch

    earlier_rewards = torch.where(windows.decided, windows.reward, 0.0)[:, :-1].flip(1).cumsum(1).flip(1)
    last = windows.to_go[:, -1:]
    consistent = torch.cat([last + earlier_rewards, last], 1)
    return replace(windows, to_go=torch.where(windows.decided, consistent, 0.0))
