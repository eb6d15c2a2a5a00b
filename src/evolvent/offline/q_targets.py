"""One-step targets for the dimensions of actions by the backup with action decomposition, over windows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evolvent.offline.windows import Windows
from evolvent.rl.advantages import decomposed_gae
from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, TRUNCATED, RolloutBatch

__all__ = ["mark_learned_steps", "window_q_targets"]


def mark_learned_steps(windows: Windows) -> Tensor:
    """Returns `[B, K]` bool, the decisions that are followed by a step or a final observation: these have targets."""
    is_learned = windows.decided.clone()
    is_learned[:, -1] = False
    return is_learned


def window_q_targets(value: Tensor, windows: Windows, *, gamma: float, monte_carlo: bool = True) -> Tensor:
    """Computes one-step targets of every dimension, `[B, K, d]`; 0 where no step is learned.

    Inside an action the target is the value of the next prefix; at its end the reward and the discounted value of
    the next step's empty prefix, 0 after the end of an episode (`advantages.decomposed_gae` with both lambdas 0).

    Args:
        value: `[B, K, d]`, of the prefix before each dimension: the maximum over its bins, by the target network.
        windows: with `ahead`, so that they include the step after a decision.
        monte_carlo: no target is below the discounted return in the data, `windows.to_go` (Q-Transformer, arXiv
            2309.10150, section 4.3); where an episode was cut, it must include the least return that may follow.
    Raises:
        NonFinite: a value or a reward is not finite.

    >>> row = torch.ones(1, 3)
    >>> windows = Windows(
    ...     observation=row[..., None], action=row[..., None], reward=torch.tensor([[1.0, 2.0, 0.0]]), to_go=0 * row,
    ...     time=row.long(), seen=row.bool(), decided=torch.tensor([[True, True, False]]),
    ...     terminated=torch.tensor([True]),
    ... )
    >>> window_q_targets(torch.tensor([[[9.0], [4.0], [8.0]]]), windows, gamma=0.5)[0, :, 0]  # 1 + 0.5 * 4, 2, none
    tensor([3., 2., 0.])
    """
    mask, (rows, steps, dims) = mark_learned_steps(windows), value.shape
    learned_counts = mask.sum(1)
    window = mask.nonzero(as_tuple=True)[0].numpy()
    actions, targets = len(window), torch.zeros(rows, steps, dims)
    if not actions:
        return targets
    used_windows = np.flatnonzero(learned_counts.numpy())  # every window with a learned step is an episode of its own
    last = np.append(np.diff(window) > 0, True)
    ended = np.where(last, np.where(windows.terminated.numpy()[window], TERMINATED, TRUNCATED), GOES_ON)
    num_parts = actions * dims
    reward = np.zeros((actions, dims))
    reward[:, -1] = windows.reward[mask].numpy()
    action, zeros = np.repeat(np.arange(actions), dims), np.zeros(num_parts, np.int64)
    batch = RolloutBatch(
        logp=np.zeros(num_parts, np.float32),
        version=zeros.astype(np.int32),
        span=action,
        action=action,
        episode=np.searchsorted(used_windows, window),
        group=np.arange(len(used_windows)),
        reward=reward.ravel(),
        ended=ended.astype(np.int8),
        bootstrap=value[window, -1, 0].double().numpy(),
        sequence=np.repeat(window, dims),
        position=np.arange(num_parts),
    )
    prefix_values = value[mask].double().numpy().ravel()
    action_targets = decomposed_gae(
        prefix_values, batch, gamma=gamma, gae_lambda=0.0, token_lambda=0.0
    ).returns.reshape(actions, dims)
    if monte_carlo:
        action_targets = np.maximum(action_targets, windows.to_go[mask].double().numpy()[:, None])
    targets[mask] = torch.from_numpy(action_targets).float()
    return targets
