"""Losses: pure functions on tensors, one per published estimator. Sums, never means: the Learner divides by the
count.

Shapes: `N` targets with a learning weight, `V` tokens of the vocabulary, `S` sequences, `P` pairs. Entries that
are not learned are masked out, never multiplied by 0, because 0 times NaN is NaN. Log-probabilities are in
nats.
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
    "sampled_nll",
    "sum_per_sequence",
    "target_logprobs",
    "two_label_error",
    "value_error",
    "weighted_nll",
]

_RESOLUTION = 64  # a remainder of so many roundings of 1 or less is not told from 0


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Computes `log p(y_n)` of the targets, in float32.

    Args:
        logits: `[N, V]`.
        targets: `[N]`, token ids y_n.

    Returns:
        log-probabilities `[N]`.

    >>> import torch
    >>> target_logprobs(torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), torch.tensor([0, 1, 1]))
    tensor([-0.6931, -0.3133, -2.1269])
    """
    return -F.cross_entropy(logits.float(), targets, reduction="none")


def weighted_nll(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Computes weighted maximum likelihood, `sum_n -w_n log p(y_n)`.

    With w the reward it is the learning step of AgentEvol (arXiv 2406.04151).

    Args:
        logprobs: `[N]`; ignored where the weight is 0.
        weights: `[N]`.

    Returns:
        a scalar.

    >>> import torch
    >>> weighted_nll(torch.tensor([-1.0, -2.0, -torch.inf]), torch.tensor([1.0, 0.5, 0.0]))
    tensor(2.)
    """
    return torch.where(weights != 0, -weights * logprobs, 0.0).sum()


def sampled_nll(sampled: Tensor, weights: Tensor) -> Tensor:
    """Computes `sum_n -sqrt(|w_n|) log p(y_n)` on labels `y_n` that were sampled from the model itself.

    With g the gradient of this sum over N targets, `E[g^2] / N` is the diagonal of the Gauss-Newton matrix of the
    weighted loss `sum_n w_n l_n / N` (SophiaG: arXiv 2305.14342, algorithm 2): labels are sampled independently and
    their gradients have mean 0, so that only squares remain, and a square root of the weight gives the weight.

    Args:
        sampled: `[N]`, log-probabilities of the sampled labels.
        weights: `[N]`; a negative weight counts as positive, since curvature is not negative.

    Returns:
        a scalar.

    >>> import torch
    >>> sampled_nll(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1.0, 0.25, 0.0]))
    tensor(2.)
    """
    return torch.where(weights != 0, -weights.abs().sqrt() * sampled, 0.0).sum()


# ------------------------------------------------------------------ preferences


def sum_per_sequence(values: Tensor, weights: Tensor, sequence: Tensor, *, count: int) -> Tensor:
    """Computes `sum_n w_n x_n` over the targets of each sequence.

    Args:
        values: `[N]`, x.
        weights: `[N]`, w.
        sequence: `[N]`, the sequence of each target.
        count: number of sequences S.

    Returns:
        sums `[S]`.

    >>> import torch
    >>> sum_per_sequence(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 1.0, 0.5]), torch.tensor([0, 0, 1]), count=2)
    tensor([3.0000, 1.5000])
    """
    amounts = torch.where(weights != 0, weights * values, 0.0)
    return amounts.new_zeros(count).index_add(0, sequence, amounts)


def dpo(margins: Tensor, *, beta: float, smoothing: float = 0.0) -> Tensor:
    """Computes `sum_p -(1 - e) log s(beta m_p) - e log s(-beta m_p)`, s the logistic function.

    Direct preference optimization (arXiv 2305.18290, equation 7); with e > 0 labels are taken to be wrong with
    probability e (conservative DPO: E. Mitchell, A note on DPO with noisy preferences, 2023).

    Args:
        margins: `[P]`, `log pi(chosen) / ref(chosen) - log pi(rejected) / ref(rejected)`.
        beta: strength of the hold on the reference.
        smoothing: e.

    Returns:
        a scalar.

    >>> import torch
    >>> dpo(torch.tensor([0.0, 1.0, 2.0]), beta=0.1)
    tensor(1.9357)
    """
    scaled = beta * margins
    return -((1.0 - smoothing) * F.logsigmoid(scaled) + smoothing * F.logsigmoid(-scaled)).sum()


def ipo(margins: Tensor, *, beta: float) -> Tensor:
    """Computes `sum_p (m_p - 1 / (2 beta))^2`: identity preference optimization (arXiv 2310.12036, equation 17, tau
    = beta).

    Args:
        margins: `[P]`, as in `dpo`.
        beta: tau.

    Returns:
        a scalar.

    >>> import torch
    >>> ipo(torch.tensor([0.0, 5.0, 6.0]), beta=0.1)
    tensor(26.)
    """
    return (margins - 0.5 / beta).square().sum()


def bradley_terry(chosen_rewards: Tensor, rejected_rewards: Tensor, *, center: float = 0.0) -> Tensor:
    """Computes `sum_p -log s(r_c - r_r) + center (r_c + r_r)^2`: the loss of a Bradley-Terry reward model.

    The second term keeps rewards around 0, which differences alone leave open (arXiv 2312.09244).

    Args:
        chosen_rewards, rejected_rewards: `[P]`, r_c and r_r.
        center: coefficient of the second term.

    Returns:
        a scalar.

    >>> import torch
    >>> bradley_terry(torch.tensor([1.0, 2.0, 0.0]), torch.zeros(3))
    tensor(1.1333)
    """
    loss = -F.logsigmoid(chosen_rewards - rejected_rewards).sum()
    return loss + center * (chosen_rewards + rejected_rewards).square().sum() if center else loss


# ------------------------------------------------------------------ values


def outcome_error(values: Tensor, outcomes: Tensor, weights: Tensor) -> Tensor:
    """Computes `sum_n w_n BCE(s(v_n), u_n)`: an outcome reward model, whose logistic is the expected score.

    It is the verifier of arXiv 2110.14168 with cross-entropy instead of the squared error.

    Args:
        values: `[N]`, v before the logistic.
        outcomes: `[N]`, scores u in 0..1.
        weights: `[N]`.

    Returns:
        a scalar.

    >>> import torch
    >>> outcome_error(torch.tensor([0.0, 0.0, 2.0]), torch.tensor([1.0, 0.5, 1.0]), torch.ones(3))
    tensor(1.5132)
    """
    is_learned = weights != 0
    errors = F.binary_cross_entropy_with_logits(
        torch.where(is_learned, values, 0.0), torch.where(is_learned, outcomes, 0.0), reduction="none"
    )
    return (weights * errors).sum()


def two_label_error(logprobs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Computes `sum_n w_n BCE(p_n, u_n)` with `p_n = exp(a_n) / (exp(a_n) + exp(b_n))`, the probability of the first
    label.

    A process reward model that writes "good" or "bad" after a span of reasoning (Math-Shepherd, arXiv 2312.08935,
    equation 5). Only the difference `a_n - b_n` counts: log-probabilities over all tokens and bare logits give the
    same.

    Args:
        logprobs: `[N, 2]`, a and b, of "good" and "bad".
        labels: `[N]`, the probability u of "good" in 0..1.
        weights: `[N]`.

    Returns:
        a scalar.

    >>> import torch
    >>> two_label_error(torch.tensor([[-1.0, -1.0], [-1.0, -3.0], [-3.0, -1.0]]), torch.ones(3), torch.ones(3))
    tensor(2.9470)
    """
    return outcome_error(logprobs[:, 0] - logprobs[:, 1], labels, weights)


def value_error(values: Tensor, returns: Tensor, weights: Tensor, *, huber: float | None = None) -> Tensor:
    """Computes `sum_n w_n d^2 / 2` with `d = v_n - R_n`, linear beyond `|d| = huber`: `huber (|d| - huber / 2)`
    (Huber 1964).

    Args:
        values: `[N]`, predictions v.
        returns: `[N]`, targets R.
        weights: `[N]`.
        huber: error beyond which the loss is linear; None: the square everywhere.

    Returns:
        a scalar.

    >>> import torch
    >>> value_error(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3), torch.ones(3))
    tensor(2.5000)
    >>> value_error(torch.tensor([0.0, 1.0, 3.0]), torch.ones(3), torch.ones(3), huber=1.0)
    tensor(2.)
    """
    error = torch.where(weights != 0, values - returns, 0.0)
    losses = (
        0.5 * error.square()
        if huber is None
        else F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=huber)
    )
    return (weights * losses).sum()


# ------------------------------------------------------------------ distillation


def distillation(student: Tensor, teacher: Tensor, weights: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Computes `T^2 sum_n w_n KL(p_n || q_n)` of teacher p and student q over the teacher's k likeliest tokens and
    "any other".

    The remainder `1 - sum_j p_j` is one more class, so that the k tokens and the remainder are both learned; with k
    = V there is no remainder and it is the exact divergence. At a temperature both distributions over the k + 1
    classes become `p^(1/T)`, normalized; T^2 keeps the size of the gradient (arXiv 1503.02531, section 2). A
    remainder below 64 roundings of the arrays' precision (8e-6 in float32) counts as 0.

    Args:
        student, teacher: `[N, k]`, log-probabilities of the same tokens.
        weights: `[N]`.
        temperature: T.

    Returns:
        a scalar.

    >>> import torch
    >>> distillation(torch.tensor([[0.25, 0.25]]).log(), torch.tensor([[0.5, 0.25]]).log(), torch.ones(1))
    tensor(0.1733)
    """
    is_learned = (weights != 0)[:, None]
    student, teacher = torch.where(is_learned, student, 0.0), torch.where(is_learned, teacher, 0.0)
    threshold = _RESOLUTION * torch.finfo(teacher.dtype).eps
    teacher_remainder, student_remainder = (-torch.expm1(x.logsumexp(-1, keepdim=True)) for x in (teacher, student))
    has_remainder = teacher_remainder > threshold
    minus_infinity = torch.full_like(teacher_remainder, -torch.inf)
    log_p = torch.where(has_remainder, teacher_remainder.clamp(min=threshold).log(), minus_infinity)
    log_q = torch.where(
        has_remainder | (student_remainder > threshold), student_remainder.clamp(min=threshold).log(), minus_infinity
    )
    p = torch.log_softmax(torch.cat([teacher, log_p], -1) / temperature, -1)
    q = torch.log_softmax(torch.cat([student, log_q], -1) / temperature, -1)
    divergences = torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(-1)
    return temperature**2 * (weights * divergences).sum()
