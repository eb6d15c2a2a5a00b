"""Losses: worked by hand, against numerical gradients, and against exact distributions."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
from collections.abc import Callable

import pytest
import torch

import evolvent.learn
from evolvent.errors import MissingExtra
from evolvent.learn.learner import TrainConfig
from evolvent.learn.losses import (
    bradley_terry,
    distillation,
    dpo,
    ipo,
    outcome_error,
    sampled_nll,
    sum_per_sequence,
    target_logprobs,
    value_error,
    weighted_nll,
)


def test_target_logprobs_golden() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [1.0, 1.0], [math.log(2.0), 0.0]])
    assert target_logprobs(logits, torch.tensor([1, 0, 1])).exp().tolist() == pytest.approx([0.75, 0.5, 1 / 3])


def test_weighted_nll_golden_and_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    total = weighted_nll(logprobs, torch.tensor([1.0, 0.5, -2.0]))
    assert total.item() == pytest.approx(1.0 + 1.0 - 1.0)
    total.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, -0.5, 2.0]


def test_what_has_no_weight_is_not_looked_at() -> None:
    logprobs = torch.tensor([-1.0, float("nan"), float("-inf")], requires_grad=True)
    total = weighted_nll(logprobs, torch.tensor([2.0, 0.0, 0.0]))
    total.backward()
    assert total.item() == 2.0 and logprobs.grad is not None and logprobs.grad.tolist() == [-2.0, 0.0, 0.0]


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = target_logprobs(logits, torch.arange(5))
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.log_softmax(logits.float(), -1)[range(5), range(5)])


@pytest.mark.parametrize(
    ("update", "share", "factor"),
    [(0, 0.0, 0.25), (2, 0.0, 0.75), (3, 0.0, 1.0), (9, 0.5, 0.6), (99, 1.0, 0.2), (99, 1.3, 0.2), (1, 0.5, 0.3)],
)
def test_rate_golden(update: int, share: float, factor: float) -> None:
    config = TrainConfig(lr=2.0, warmup_steps=4, final_lr_ratio=0.2)
    assert config.learning_rate(update, share) == pytest.approx(2.0 * factor)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[train\]'"):
        importlib.reload(evolvent.learn)


# ------------------------------------------------------------------ preferences


def test_per_sequence_golden() -> None:
    values = torch.tensor([1.0, 2.0, float("nan"), 4.0], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    found = sum_per_sequence(values, weights, torch.tensor([0, 2, 0, 2]), count=4)
    assert found.tolist() == [1.0, 0.0, -3.0, 0.0]


def test_dpo_golden() -> None:
    margins = torch.tensor([0.0, 10 * math.log(3.0)])
    assert dpo(margins, beta=0.1).item() == pytest.approx(math.log(2) - math.log(0.75), rel=1e-6)
    smooth = math.log(2) - 0.9 * math.log(0.75) - 0.1 * math.log(0.25)
    assert dpo(margins, beta=0.1, smoothing=0.1).item() == pytest.approx(smooth, rel=1e-6)


def test_dpo_gradient_is_the_papers() -> None:
    """Section 4: the gradient by the margin is -beta s(-beta m)."""
    margins = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    dpo(margins, beta=0.5).backward()
    assert margins.grad is not None
    assert margins.grad.tolist() == pytest.approx([-0.5 / (1 + math.exp(0.5 * m)) for m in (-3.0, 0.0, 2.0)])


def test_dpo_stays_finite_where_probabilities_do_not() -> None:
    margins = torch.tensor([-1e4, 1e4], requires_grad=True)
    total = dpo(margins, beta=1.0)
    total.backward()
    assert total.item() == pytest.approx(1e4) and margins.grad is not None and margins.grad.tolist() == [-1.0, 0.0]


def test_ipo_golden() -> None:
    assert ipo(torch.tensor([5.0, 3.0, 0.0]), beta=0.1).item() == pytest.approx(0 + 4 + 25)


def test_bradley_terry_golden() -> None:
    chosen, rejected = torch.tensor([1.0, math.log(3.0)]), torch.tensor([1.0, 0.0])
    assert bradley_terry(chosen, rejected).item() == pytest.approx(math.log(2) - math.log(0.75))
    centered = math.log(2) - math.log(0.75) + 0.5 * (4 + math.log(3.0) ** 2)
    assert bradley_terry(chosen, rejected, center=0.5).item() == pytest.approx(centered)


# ------------------------------------------------------------------ values


def test_outcome_error_golden() -> None:
    values = torch.tensor([0.0, math.log(3.0), float("nan")], requires_grad=True)
    total = outcome_error(values, torch.tensor([0.5, 1.0, float("nan")]), torch.tensor([1.0, 2.0, 0.0]))
    assert total.item() == pytest.approx(math.log(2) - 2 * math.log(0.75))
    total.backward()
    assert values.grad is not None and values.grad.tolist() == pytest.approx([0.0, 2 * (0.75 - 1), 0.0])


def test_value_error_golden() -> None:
    values = torch.tensor([1.0, 5.0, float("inf")], requires_grad=True)
    returns, weights = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])
    assert value_error(values, returns, weights).item() == pytest.approx(0.5 + 2 * 4.5)
    total = value_error(values, returns, weights, huber=2.0)
    assert total.item() == pytest.approx(0.5 + 2 * 2 * (3 - 1))
    total.backward()
    assert values.grad is not None and values.grad.tolist() == [1.0, 4.0, 0.0]


# ------------------------------------------------------------------ distillation


def test_distillation_golden() -> None:
    """p = (1/2, 1/4, rest 1/4), q = (1/4, 1/4, rest 1/2): KL = 1/2 log 2 - 1/4 log 2."""
    teacher, student = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.25]]).log()
    found = distillation(student, teacher, torch.tensor([3.0]))
    assert found.item() == pytest.approx(3 * 0.25 * math.log(2), rel=1e-5)


def test_distillation_at_a_temperature_golden() -> None:
    """At T = 1/2 probabilities are squared: p = (4, 1, 1) / 6, q = (1, 1, 4) / 6, and T^2 = 1/4."""
    teacher, student = torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[0.25, 0.25]]).log()
    exact = (4 / 6) * math.log(4) - (1 / 6) * math.log(4)
    found = distillation(student, teacher, torch.tensor([1.0]), temperature=0.5)
    assert found.item() == pytest.approx(exact / 4, rel=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_with_all_words_it_is_the_exact_divergence(dtype: torch.dtype, tolerance: float, temperature: float) -> None:
    random = torch.Generator().manual_seed(0)
    logits_p, logits_q = (3 * torch.randn(6, 50, generator=random, dtype=torch.float64) for _ in range(2))
    weights = torch.rand(6, generator=random, dtype=torch.float64)
    p, q = (torch.log_softmax(logits / temperature, -1) for logits in (logits_p, logits_q))
    exact = temperature**2 * (weights * (p.exp() * (p - q)).sum(-1)).sum()
    teacher, student = (torch.log_softmax(logits, -1).to(dtype) for logits in (logits_p, logits_q))
    order = teacher.argsort(-1, descending=True)
    found = distillation(student.gather(1, order), teacher.gather(1, order), weights.to(dtype), temperature=temperature)
    assert found.item() == pytest.approx(exact.item(), rel=tolerance)


def test_what_is_left_out_makes_the_divergence_smaller_and_never_negative() -> None:
    """Merging words is a coarser view: the divergence falls with k (data processing)."""
    random = torch.Generator().manual_seed(1)
    teacher, student = (torch.log_softmax(2 * torch.randn(40, 30, generator=random), -1).double() for _ in range(2))
    order, ones = teacher.argsort(-1, descending=True), torch.ones(40, dtype=torch.float64)
    teacher, student = teacher.gather(1, order), student.gather(1, order)
    found = [distillation(student[:, :k], teacher[:, :k], ones).item() for k in (1, 3, 10, 29, 30)]
    assert found == sorted(found) and found[0] > 0
    assert distillation(teacher[:, :3], teacher[:, :3], ones).item() == pytest.approx(0.0, abs=1e-12)


def test_distillation_with_a_sure_teacher_or_a_sure_student_stays_finite() -> None:
    sure, wide = torch.tensor([[0.0, -40.0]]), torch.tensor([[math.log(0.2), math.log(0.1)]])
    for teacher, student in ((sure, wide), (wide, sure), (sure, sure)):
        student = student.clone().requires_grad_()
        total = distillation(student, teacher, torch.ones(1), temperature=2.0)
        total.backward()
        assert math.isfinite(total.item()) and student.grad is not None and bool(student.grad.isfinite().all())
    assert distillation(wide, sure, torch.ones(1)).item() == pytest.approx(-math.log(0.2), rel=1e-5)


def test_distillation_does_not_look_at_what_has_no_weight() -> None:
    nan = float("nan")
    student = torch.tensor([[0.25, 0.25], [nan, nan]]).log().requires_grad_()
    teacher = torch.tensor([[0.5, 0.25], [nan, 0.5]]).log()
    total = distillation(student, teacher, torch.tensor([1.0, 0.0]))
    total.backward()
    assert total.item() == pytest.approx(0.25 * math.log(2), rel=1e-5)
    assert student.grad is not None and student.grad[1].tolist() == [0.0, 0.0]


# ------------------------------------------------------------------ gradients and curvature


def losses() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    weights, other = (torch.rand(6, generator=random, dtype=torch.float64) for _ in range(2))
    sequence = torch.tensor([0, 0, 1, 2, 3, 3])
    teacher = torch.log_softmax(torch.randn(6, 9, generator=random, dtype=torch.float64), -1)[:, :4]

    def margins(x: torch.Tensor) -> torch.Tensor:
        sides = sum_per_sequence(x - other, weights, sequence, count=4).view(2, 2)
        return sides[:, 0] - sides[:, 1]

    def student(x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(torch.outer(x, torch.arange(9, dtype=torch.float64) / 9), -1)[:, :4]

    return {
        "nll": lambda x: weighted_nll(x, weights),
        "sampled": lambda x: sampled_nll(x, weights),
        "dpo": lambda x: dpo(margins(x), beta=0.7, smoothing=0.2),
        "ipo": lambda x: ipo(margins(x), beta=0.7),
        "bradley_terry": lambda x: bradley_terry(x[:3], x[3:], center=0.1),
        "outcome": lambda x: outcome_error(x, other, weights),
        "value": lambda x: value_error(x, other, weights),
        "huber": lambda x: value_error(x, other, weights, huber=0.3),
        "distillation": lambda x: distillation(student(x), teacher, weights, temperature=1.7),
    }


@pytest.mark.parametrize("name", list(losses()))
def test_gradients_in_float64(name: str) -> None:
    start = torch.randn(6, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(losses()[name], (start,))


def test_squared_gradients_of_sampled_labels_are_the_curvature() -> None:
    """All draws of labels, enumerated: E[g^2] / N is the Gauss-Newton diagonal of the weighted loss."""
    random = torch.Generator().manual_seed(4)
    inputs = torch.randn(3, 2, generator=random, dtype=torch.float64)
    weights = torch.tensor([1.0, 0.25, 3.0], dtype=torch.float64)
    theta = torch.randn(2, 4, generator=random, dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(inputs @ theta, -1)
    expected = torch.zeros_like(theta)
    for labels in itertools.product(range(4), repeat=3):
        drawn = logprobs[range(3), list(labels)]
        (gradient,) = torch.autograd.grad(sampled_nll(drawn, weights), theta, retain_graph=True)
        expected += drawn.sum().exp().detach() * gradient.square()
    probs = logprobs.exp().detach()
    exact = (weights[:, None, None] * inputs.square()[:, :, None] * (probs * (1 - probs))[:, None, :]).sum(0)
    assert torch.allclose(expected / 3, exact / 3, atol=1e-12)
