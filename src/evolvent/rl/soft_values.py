"""Values over all words of a vocabulary: hard (Q-Transformer) and soft (ETPO), and the losses that go with them.

Shapes: `N` positions, `V` words; `q [N, V]` values of each next word after a prefix, `logpi` and `logrho [N, V]`
log-probabilities of the policy and of the reference. A word that cannot be chosen has `logpi = -inf`, or for the value
without a policy `logrho = -inf`; it is not looked at.

With the values of prefixes, one-step targets are `advantages.decomposed_gae(..., lam=0, lam_part=0).returns`: inside an
action the value of the next prefix of the same action, whose divergence is that of the same step; at its end the reward
and the discounted value of the next action's empty prefix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch

__all__ = [
    "expected_soft_value",
    "hard_value",
    "log_sum_exp_value",
    "soft_policy",
    "soft_policy_kl",
    "td_loss",
]


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
        raise BatchMismatch(
            "values and targets differ in shape", value=tuple(chosen.shape), expected=tuple(target.shape)
        )
    if huber is None:
        return 0.5 * (chosen - target.detach()).square()
    return F.huber_loss(chosen, target.detach(), reduction="none", delta=huber)


def _tilted(q: Tensor, logrho: Tensor, beta: float) -> Tensor:
    """`log rho + Q / beta`, -inf where a word cannot be chosen."""
    possible = logrho > -torch.inf
    return torch.where(possible, logrho + torch.where(possible, q, 0.0) / beta, -torch.inf)
