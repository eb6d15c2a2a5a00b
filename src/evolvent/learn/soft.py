"""Values over all words of a vocabulary: hard (Q-Transformer) and soft (ETPO), and the losses that go with them.

Shapes: `N` positions, `V` words; `q [N, V]` values of each next word after a prefix, `logpi` and `logrho [N, V]`
log-probabilities of the policy and of the reference. A word that cannot be chosen has `logpi = -inf`, or for the value
without a policy `logrho = -inf`; it is not looked at.

With the values of prefixes, one-step targets are `advantages.decomposed_gae(..., lam=0, lam_part=0).returns`: inside an
action the value of the next prefix of the same action, whose divergence is that of the same step; at its end the reward
and the discounted value of the next action's empty prefix.

No array over the vocabulary needs to be kept: `in_chunks` makes them from hidden states, some positions at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from evolvent.errors import BatchMismatch

__all__ = [
    "expected_soft_value", "hard_value", "in_chunks", "log_sum_exp_value", "soft_policy", "soft_policy_kl", "td_loss",
]  # fmt: skip


def hard_value(q: Tensor) -> Tensor:
    """`max_w Q(prefix, w)`, `[N]`: what a prefix is worth to who always takes the best (Q-Transformer, 2309.10150)."""
    return q.amax(-1)


def expected_soft_value(q: Tensor, logpi: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """`E_{w ~ pi} Q(prefix, w) - beta KL(pi || rho)`, `[N]`: a prefix under the policy as it is.

    ETPO's soft backup with action decomposition (arXiv 2402.06700).
    """
    possible = logpi > -torch.inf
    q, logpi, logrho = (torch.where(possible, values, 0.0) for values in (q, logpi, logrho))
    return torch.where(possible, logpi.exp() * (q - beta * (logpi - logrho)), 0.0).sum(-1)


def log_sum_exp_value(q: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """`beta log sum_w rho(w) exp(Q(prefix, w) / beta)`, `[N]`: a prefix under the best policy near the reference.

    It is the maximum of `expected_soft_value` over policies, reached by `soft_policy`.
    """
    return beta * _tilted(q, logrho, beta).logsumexp(-1)


def soft_policy(q: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """`log(rho exp(Q / beta) / Z)`, `[N, V]`. Over the parts of an action the product is the action's own optimum."""
    return _tilted(q, logrho, beta).log_softmax(-1)


def soft_policy_kl(logpi: Tensor, logrho: Tensor, q: Tensor, *, beta: float) -> Tensor:
    """`KL(pi || rho exp(Q / beta) / Z)`, `[N]`: ETPO's policy step; its gradient is 0 exactly where they are equal.

    Gradients reach `logpi` alone.
    """
    q, logrho = q.detach(), logrho.detach()
    return (log_sum_exp_value(q, logrho, beta=beta) - expected_soft_value(q, logpi, logrho, beta=beta)) / beta


def td_loss(chosen: Tensor, target: Tensor, *, huber: float | None = None) -> Tensor:
    """`(Q(prefix, w) - target)^2 / 2`, `[N]`, linear beyond `huber`. No gradient reaches the targets.

    Args:
        chosen: `[N]`, the value of the word that was taken. target: `[N]`, of the value function that lags behind.
    """
    if chosen.shape != target.shape:
        raise BatchMismatch("values and targets differ in shape", value=tuple(chosen.shape),
                            expected=tuple(target.shape))  # fmt: skip
    if huber is None:
        return 0.5 * (chosen - target.detach()).square()
    return F.huber_loss(chosen, target.detach(), reduction="none", delta=huber)


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor, size: int) -> Tensor:
    """`function` of the tensors `[N, ...]`, `size` positions at a time, put together again along the first axis.

    What the function makes on the way, such as logits from hidden states, exists for one chunk only: for gradients it
    is made again. The function must give the same for the same input, one row a position.

    Raises:
        BatchMismatch: a chunk of no positions, or tensors of different lengths.
    """
    lengths = {len(tensor) for tensor in tensors}
    if size < 1 or len(lengths) != 1:
        raise BatchMismatch("tensors that cannot be cut into chunks", value=f"lengths {sorted(lengths)}, size {size}",
                            expected="one length, and a size of 1 or more")  # fmt: skip
    pieces = zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, *piece, use_reentrant=False) for piece in pieces])
    return torch.cat([function(*piece) for piece in pieces])


def _tilted(q: Tensor, logrho: Tensor, beta: float) -> Tensor:
    """`log rho + Q / beta`, -inf where a word cannot be chosen."""
    possible = logrho > -torch.inf
    return torch.where(possible, logrho + torch.where(possible, q, 0.0) / beta, -torch.inf)
