"""Losses: pure functions on tensors, one per published estimator. Sums, never means: the Learner divides by the count.

Shapes: `N` targets with a learning weight, `V` words, `S` sequences, `P` pairs. Values that are not learned are
selected out, never multiplied by 0, because 0 times NaN is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "bradley_terry",
    "distillation",
    "dpo",
    "ipo",
    "outcome_error",
    "per_sequence",
    "sampled_nll",
    "target_logprobs",
    "two_label_error",
    "value_error",
    "weighted_nll",
]

_RESOLVED = 64  # a remainder of so many roundings of 1 or less is not told from 0


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """`log p(y_n)` of the targets `[N]`, in float32, from `logits [N, V]` and `targets [N]`."""
    return -F.cross_entropy(logits.float(), targets, reduction="none")


def weighted_nll(logprobs: Tensor, weights: Tensor) -> Tensor:
    """`sum_n -w_n log p(y_n)`: weighted maximum likelihood.

    With w the reward it is the learning step of AgentEvol (arXiv 2406.04151).

    Args:
        logprobs, weights: `[N]`. Where the weight is 0 the log-probability is not looked at.
    """
    return torch.where(weights != 0, -weights * logprobs, 0.0).sum()


def sampled_nll(sampled: Tensor, weights: Tensor) -> Tensor:
    """`sum_n -sqrt(|w_n|) log p(y_n)` on labels `y_n` that were drawn from the model itself.

    With g the gradient of this sum over N targets, `E[g^2] / N` is the diagonal of the Gauss-Newton matrix of the
    weighted loss `sum_n w_n l_n / N` (SophiaG: arXiv 2305.14342, algorithm 2): labels are drawn independently and
    their gradients have mean 0, so that only squares remain, and a square root of the weight gives the weight.

    Args:
        sampled: `[N]`, log-probabilities of the drawn labels. weights: `[N]`; a negative one counts as positive, since
            curvature is not negative.
    """
    return torch.where(weights != 0, -weights.abs().sqrt() * sampled, 0.0).sum()


# ------------------------------------------------------------------ preferences


def per_sequence(values: Tensor, weights: Tensor, sequence: Tensor, *, count: int) -> Tensor:
    """`sum_n w_n x_n` over the targets of each sequence, `[S]`.

    Args:
        values, weights: `[N]`. sequence: `[N]`, which sequence each target belongs to. count: S.
    """
    amounts = torch.where(weights != 0, weights * values, 0.0)
    return amounts.new_zeros(count).index_add(0, sequence, amounts)


def dpo(margins: Tensor, *, beta: float, smoothing: float = 0.0) -> Tensor:
    """`sum_p -(1 - e) log s(beta m_p) - e log s(-beta m_p)`, s the logistic function.

    Direct preference optimisation (arXiv 2305.18290, equation 7); with e > 0 labels are taken to be wrong with
    probability e (conservative DPO: E. Mitchell, A note on DPO with noisy preferences, 2023).

    Args:
        margins: `[P]`, `log pi(chosen) / ref(chosen) - log pi(rejected) / ref(rejected)`.
    """
    scaled = beta * margins
    return -((1.0 - smoothing) * F.logsigmoid(scaled) + smoothing * F.logsigmoid(-scaled)).sum()


def ipo(margins: Tensor, *, beta: float) -> Tensor:
    """`sum_p (m_p - 1 / (2 beta))^2`: identity preference optimisation (arXiv 2310.12036, equation 17, tau = beta).

    Args:
        margins: `[P]`, as in `dpo`.
    """
    return (margins - 0.5 / beta).square().sum()


def bradley_terry(chosen: Tensor, rejected: Tensor, *, center: float = 0.0) -> Tensor:
    """`sum_p -log s(r_c - r_r) + center (r_c + r_r)^2`: a reward model that tells the better one (Bradley-Terry).

    The second term keeps rewards around 0, which differences alone leave open (arXiv 2312.09244).

    Args:
        chosen, rejected: `[P]`, rewards of the two sides.
    """
    loss = -F.logsigmoid(chosen - rejected).sum()
    return loss + center * (chosen + rejected).square().sum() if center else loss


# ------------------------------------------------------------------ values


def outcome_error(values: Tensor, outcomes: Tensor, weights: Tensor) -> Tensor:
    """`sum_n w_n BCE(s(v_n), u_n)`: an outcome reward model, whose logistic is the expected score.

    It is the verifier of arXiv 2110.14168 with cross-entropy instead of the squared error.

    Args:
        values: `[N]`, before the logistic. outcomes: `[N]`, scores in 0..1. weights: `[N]`.
    """
    used = weights != 0
    each = F.binary_cross_entropy_with_logits(
        torch.where(used, values, 0.0), torch.where(used, outcomes, 0.0), reduction="none"
    )
    return (weights * each).sum()


def two_label_error(logprobs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """`sum_n w_n BCE(p_n, u_n)` with `p_n = exp(a_n) / (exp(a_n) + exp(b_n))`: which of two label words comes next.

    A process reward model that says "good" or "bad" after a span of reasoning (Math-Shepherd, arXiv 2312.08935,
    equation 5). Only the difference `a_n - b_n` counts: log-probabilities over all words and bare logits are the same.

    Args:
        logprobs: `[N, 2]`, of "good" and "bad". labels: `[N]`, the chance of "good" in 0..1. weights: `[N]`.
    """
    return outcome_error(logprobs[:, 0] - logprobs[:, 1], labels, weights)


def value_error(values: Tensor, returns: Tensor, weights: Tensor, *, huber: float | None = None) -> Tensor:
    """`sum_n w_n d^2 / 2` with `d = v_n - R_n`, linear beyond `|d| = huber`: `huber (|d| - huber / 2)` (Huber 1964).

    Args:
        values, returns, weights: `[N]`. huber: None: the square everywhere.
    """
    error = torch.where(weights != 0, values - returns, 0.0)
    each = (
        0.5 * error.square()
        if huber is None
        else F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=huber)
    )
    return (weights * each).sum()


# ------------------------------------------------------------------ distillation


def distillation(student: Tensor, teacher: Tensor, weights: Tensor, *, temperature: float = 1.0) -> Tensor:
    """`T^2 sum_n w_n KL(p_n || q_n)`, teacher p and student q over the teacher's k likeliest words and "any other".

    The remainder `1 - sum_j p_j` is one more class, so that the k words and the rest are both learned; with k = V there
    is no rest and it is the exact divergence. At a temperature both distributions over the k + 1 classes become
    `p^(1/T)`, normalised; T^2 keeps the gradient's size (arXiv 1503.02531, section 2).

    A rest below 64 roundings of the arrays' precision (8e-6 in float32) is taken for none.

    Args:
        student, teacher: `[N, k]`, log-probabilities of the same words. weights: `[N]`.
    """
    used = (weights != 0)[:, None]
    student, teacher = torch.where(used, student, 0.0), torch.where(used, teacher, 0.0)
    edge = _RESOLVED * torch.finfo(teacher.dtype).eps
    rest_p, rest_q = (-torch.expm1(x.logsumexp(-1, keepdim=True)) for x in (teacher, student))
    left = rest_p > edge
    none = torch.full_like(rest_p, -torch.inf)
    log_p = torch.where(left, rest_p.clamp(min=edge).log(), none)
    log_q = torch.where(left | (rest_q > edge), rest_q.clamp(min=edge).log(), none)
    p = torch.log_softmax(torch.cat([teacher, log_p], -1) / temperature, -1)
    q = torch.log_softmax(torch.cat([student, log_q], -1) / temperature, -1)
    each = torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(-1)
    return temperature**2 * (weights * each).sum()
