"""What the dimensions of actions are worth by one step of the backup with action decomposition, over windows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evolvent.offline.windows import Windows
from evolvent.rl.advantages import decomposed_gae
from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, TRUNCATED, Flat

__all__ = ["learned_steps", "q_targets"]


def learned_steps(read: Windows) -> Tensor:
    """`[B, K]` bool, the decisions after which the window goes on, be it to a final observation: these have targets."""
    found = read.decided.clone()
    found[:, -1] = False
    return found


def q_targets(value: Tensor, read: Windows, *, gamma: float, monte_carlo: bool = True) -> Tensor:
    """One-step targets of every dimension, `[B, K, d]`; 0 where no step is learned.

    Inside an action the target is the value of the next prefix; at its end the reward and the discounted value of the
    next step's empty prefix, 0 after the end of an episode (`advantages.decomposed_gae` with both lambdas 0).

    Args:
        value: `[B, K, d]`, of the prefix before each dimension: the most of its bins, by the network that lags behind.
        read: windows with `ahead`, so that what follows a decision is in them.
        monte_carlo: no target is below the discounted return that the data show, `read.to_go` (Q-Transformer, arXiv
            2309.10150, section 4.3); where an episode was cut, what may follow at the least has to be part of it.
    Raises:
        NonFinite: a value or a reward that is not finite.
    """
    mask, (rows, steps, dims) = learned_steps(read), value.shape
    numbers = mask.sum(1)
    window = mask.nonzero(as_tuple=True)[0].numpy()
    actions, targets = len(window), torch.zeros(rows, steps, dims)
    if not actions:
        return targets
    used = np.flatnonzero(numbers.numpy())  # every window with a learned step is an episode of its own
    last = np.append(np.diff(window) > 0, True)
    ended = np.where(last, np.where(read.terminated.numpy()[window], TERMINATED, TRUNCATED), GOES_ON)
    parts = actions * dims
    reward = np.zeros((actions, dims))
    reward[:, -1] = read.reward[mask].numpy()
    action, zeros = np.repeat(np.arange(actions), dims), np.zeros(parts, np.int64)
    flat = Flat(
        logp=np.zeros(parts, np.float32),
        version=zeros.astype(np.int32),
        span=action,
        action=action,
        episode=np.searchsorted(used, window),
        group=np.arange(len(used)),
        reward=reward.ravel(),
        ended=ended.astype(np.int8),
        bootstrap=value[window, -1, 0].double().numpy(),
        chain=np.repeat(window, dims),
        place=np.arange(parts),
    )
    prefix = value[mask].double().numpy().ravel()
    found = decomposed_gae(prefix, flat, gamma=gamma, lam=0.0, lam_part=0.0).returns.reshape(actions, dims)
    if monte_carlo:
        found = np.maximum(found, read.to_go[mask].double().numpy()[:, None])
    targets[mask] = torch.from_numpy(found).float()
    return targets
