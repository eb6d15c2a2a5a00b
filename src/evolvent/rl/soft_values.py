"""Values over all tokens of a vocabulary: hard (Q-Transformer) and soft (ETPO), and the losses that go with them.

Shapes: `N` positions, `V` tokens; `q [N, V]` values of each next token after a prefix, `logpi` and `logrho [N,
V]` log-probabilities of the policy and of the reference. A token that cannot be chosen has `logpi = -inf`, or
for the value without a policy `logrho = -inf`; its value is ignored.

With the values of prefixes, one-step targets are `advantages.decomposed_gae(..., gae_lambda=0,
token_lambda=0).returns`: inside an action the value of the next prefix of the same action, whose divergence is
that of the same step; at its end the reward and the discounted value of the next action's empty prefix.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.errors import BatchMismatch
from evolvent.learn.token_sequences import Batch

__all__ = [
    "expected_soft_value",
    "hard_value",
    "log_sum_exp_value",
    "mask_impossible",
    "soft_policy",
    "soft_policy_kl",
    "td_loss",
]


def hard_value(q: Tensor) -> Tensor:
    """Computes `max_w Q(prefix, w)`: the value of a prefix under the greedy policy (Q-Transformer, arXiv
    2309.10150).

    Args:
        q: `[N, V]`.

    Returns:
        values `[N]`.

    >>> import torch
    >>> hard_value(torch.tensor([[1.0, 2.0, 0.0]]))
    tensor([2.])
    """
    return q.amax(-1)


def expected_soft_value(q: Tensor, logpi: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """Computes `E_{w ~ pi} Q(prefix, w) - beta KL(pi || rho)`: the soft value of a prefix under the present policy.

    ETPO's soft backup with action decomposition (arXiv 2402.06700).

    Args:
        q: `[N, V]`.
        logpi, logrho: `[N, V]`, log-probabilities of policy and reference, nats.
        beta: coefficient of the divergence.

    Returns:
        values `[N]`.

    >>> import torch
    >>> q, logpi = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> expected_soft_value(q, logpi, torch.full((1, 3), 1 / 3).log(), beta=1.0)
    tensor([0.9411])
    """
    is_possible = logpi > -torch.inf
    q, logpi, logrho = (torch.where(is_possible, values, 0.0) for values in (q, logpi, logrho))
    return torch.where(is_possible, logpi.exp() * (q - beta * (logpi - logrho)), 0.0).sum(-1)


def log_sum_exp_value(q: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """Computes `beta log sum_w rho(w) exp(Q(prefix, w) / beta)`: the value under the best policy near the reference.

    It is the maximum of `expected_soft_value` over policies, reached by `soft_policy`.

    Args:
        q: `[N, V]`.
        logrho: `[N, V]`, log-probabilities of the reference, nats.
        beta: coefficient of the divergence.

    Returns:
        values `[N]`.

    >>> import torch
    >>> log_sum_exp_value(torch.tensor([[1.0, 2.0, 0.0]]), torch.full((1, 3), 1 / 3).log(), beta=1.0)
    tensor([1.3090])
    """
    return beta * _tilt_reference(q, logrho, beta).logsumexp(-1)


def soft_policy(q: Tensor, logrho: Tensor, *, beta: float) -> Tensor:
    """Computes the soft-optimal policy `log(rho exp(Q / beta) / Z)`.

    Over the tokens of an action the product is the action's own optimum.

    Args:
        q: `[N, V]`.
        logrho: `[N, V]`, log-probabilities of the reference, nats.
        beta: coefficient of the divergence.

    Returns:
        log-probabilities `[N, V]`.

    >>> import torch
    >>> soft_policy(torch.tensor([[1.0, 2.0, 0.0]]), torch.full((1, 3), 1 / 3).log(), beta=1.0).exp()
    tensor([[0.2447, 0.6652, 0.0900]])
    """
    return _tilt_reference(q, logrho, beta).log_softmax(-1)


def soft_policy_kl(logpi: Tensor, logrho: Tensor, q: Tensor, *, beta: float) -> Tensor:
    """Computes `KL(pi || rho exp(Q / beta) / Z)`, ETPO's policy loss; its gradient is 0 exactly where both are
    equal.

    Gradients reach `logpi` alone.

    Args:
        logpi, logrho: `[N, V]`, log-probabilities of policy and reference, nats.
        q: `[N, V]`.
        beta: coefficient of the divergence.

    Returns:
        divergences `[N]`, nats.

    >>> import torch
    >>> q, logpi = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.5, 0.25, 0.25]]).log()
    >>> soft_policy_kl(logpi, torch.full((1, 3), 1 / 3).log(), q, beta=1.0)
    tensor([0.3679])
    """
    q, logrho = q.detach(), logrho.detach()
    return (log_sum_exp_value(q, logrho, beta=beta) - expected_soft_value(q, logpi, logrho, beta=beta)) / beta


def td_loss(q_values: Tensor, target: Tensor, *, huber: float | None = None) -> Tensor:
    """Computes the temporal-difference loss `(Q(prefix, w) - target)^2 / 2`, linear beyond `huber`.

    No gradient reaches the targets.

    Args:
        q_values: `[N]`, Q of the sampled tokens.
        target: `[N]`, from the target network.
        huber: error beyond which the loss is linear; None: nowhere.

    Returns:
        losses `[N]`.

    Raises:
        BatchMismatch: the shapes differ.

    >>> import torch
    >>> td_loss(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3))
    tensor([0.5000, 0.0000, 2.0000])
    """
    if q_values.shape != target.shape:
        raise BatchMismatch(
            "values and targets differ in shape", value=tuple(q_values.shape), expected=tuple(target.shape)
        )
    if huber is None:
        return 0.5 * (q_values - target.detach()).square()
    return F.huber_loss(q_values, target.detach(), reduction="none", delta=huber)


def _tilt_reference(q: Tensor, logrho: Tensor, beta: float) -> Tensor:
    """Computes `log rho + Q / beta`, -inf for tokens that cannot be chosen."""
    is_possible = logrho > -torch.inf
    return torch.where(is_possible, logrho + torch.where(is_possible, q, 0.0) / beta, -torch.inf)


def mask_impossible(logits: Tensor, batch: Batch) -> Tensor:
    """Returns the logits `[N, V]` in float32, -inf for tokens that could not be sampled (top-k, listed actions).

    >>> index, columns = torch.tensor([0]), {"support": torch.tensor([[1, 2, -1]])}
    >>> batch = Batch(torch.tensor([[5]]), index, index, torch.ones(1), (0,), 1, columns=columns)
    >>> mask_impossible(torch.tensor([[0.5, 1.0, 2.0, 3.0]]), batch)
    tensor([[-inf, 1., 2., -inf]])
    """
    support = batch.columns.get("support")
    if support is None:
        return logits.float()
    support_counts = torch.zeros_like(logits, dtype=torch.int32)
    support_counts.scatter_add_(-1, support.long().clamp(min=0), (support >= 0).int())
    is_possible = (support_counts > 0) | ~(support >= 0).any(-1, keepdim=True)  # after a final observation all are
    return logits.float().masked_fill(~is_possible, -torch.inf)
