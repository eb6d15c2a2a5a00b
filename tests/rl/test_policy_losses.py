"""Terms of policy losses: worked by hand, against gradients by definition, and what must not be looked at."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.rl.policy_losses import (
    aggregation_weights,
    clipped_surrogate,
    clipped_weight_surrogate,
    importance_weights,
    is_first_of_unit,
    kl_k1,
    kl_k2,
    kl_k3,
    mask_unlearned,
    number_units,
    policy_stats,
    reinforce,
    sequence_log_ratio,
    sum_over_unit,
    value_losses,
    weighted_sum,
)


def row(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss.sum(), of)
    return found.tolist()


# ------------------------------------------------------------------ units


def test_units_golden() -> None:
    sequence, action = torch.tensor([0, 0, 0, 2, 2, 5]), torch.tensor([0, 0, 1, 1, 1, 1])
    assert number_units(sequence).tolist() == [0, 0, 0, 1, 1, 2]
    assert number_units(sequence, action).tolist() == [0, 0, 1, 2, 2, 3]
    assert is_first_of_unit(number_units(sequence, action)).tolist() == [True, False, True, True, False, True]
    assert sum_over_unit(row(1, 2, 3, 4, 5, 6), number_units(sequence)).tolist() == [6, 6, 6, 9, 9, 6]


def test_units_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert number_units(none, none).shape == is_first_of_unit(none).shape == (0,)
    assert sum_over_unit(row(), none).shape == sequence_log_ratio(row(), row(), none).shape == (0,)


def test_sequence_ratio_golden() -> None:
    """Log-ratios (.3, -.1, .1): their mean is .1, exp(.1) is the ratio; each target's gradient is its own."""
    logprobs = row(-0.7, -2.1, -1.9, -3.0, grad=True)
    found = sequence_log_ratio(logprobs, row(-1.0, -2.0, -2.0, -2.5), torch.tensor([0, 0, 0, 1])).exp()
    assert found.tolist() == pytest.approx([1.105170918] * 3 + [math.exp(-0.5)], abs=1e-9)
    assert gradient(found * row(1, 2, 4, 8), logprobs) == pytest.approx(
        [1.105170918, 2.210341836, 4.420683672, 8 * math.exp(-0.5)], abs=1e-8
    )


def test_sequence_ratio_keeps_small_differences() -> None:
    """A mean of 3e-6 beside log-probabilities of -800 in float32, whose roundings are 6e-5."""
    logprobs = torch.tensor([-800.0, -2.0], requires_grad=True)
    gap = torch.tensor([0.0, 2.0**-17])
    found = sequence_log_ratio(logprobs, logprobs.detach() - gap, torch.tensor([0, 0]))
    assert found.tolist() == [2.0**-18] * 2


def test_a_sequence_of_one_has_the_ratio_of_its_part() -> None:
    logprobs, old = row(-0.7, -2.1, grad=True), row(-1.0, -2.5)
    found = sequence_log_ratio(logprobs, old, torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx((logprobs - old).tolist(), abs=1e-12)
    assert gradient(found.exp(), logprobs) == pytest.approx((logprobs - old).exp().tolist(), abs=1e-12)


# ------------------------------------------------------------------ surrogates


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.5, 0.0),  # held at 1.25
        (0.5, 2.0, -1.0, -1.0),  # not held: it may come back
        (0.5, -2.0, 1.6, 0.0),  # held at .8
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -1.0, 5.0, 5.0),
        (7.0, 0.0, 0.0, 0.0),
    ],
)
def test_clip_golden(ratio: float, advantage: float, loss: float, slope: float) -> None:
    log_ratio = row(math.log(ratio), grad=True)
    found = clipped_surrogate(log_ratio, row(advantage), low=0.2, high=0.25)
    assert found.item() == pytest.approx(loss) and gradient(found, log_ratio) == pytest.approx([slope])


def test_dual_clip_golden() -> None:
    log_ratio = row(math.log(5), math.log(2), math.log(5), grad=True)
    found = clipped_surrogate(log_ratio, row(-1, -1, 1), low=0.2, high=0.2, dual=3.0)
    assert found.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert gradient(found, log_ratio) == pytest.approx([0.0, 2.0, 0.0])


def test_an_advantage_of_zero_teaches_nothing_at_any_ratio() -> None:
    log_ratio = torch.tensor([1e4, -1e4], requires_grad=True)
    found = clipped_surrogate(log_ratio, torch.zeros(2), low=0.2, high=0.2)
    assert found.tolist() == [0.0, 0.0] and gradient(found, log_ratio) == [0.0, 0.0]


@pytest.mark.parametrize(("advantage", "dual"), [(1.0, None), (-1.0, 3.0)])
def test_a_ratio_beyond_all_numbers_is_clipped_without_a_trace(advantage: float, dual: float | None) -> None:
    """Of a span's tokens a log-ratio is a sum: exp of 95 is infinite in single precision."""
    ratio = torch.tensor([95.0, 0.1], requires_grad=True)
    loss = clipped_surrogate(ratio, torch.full((2,), advantage), low=0.2, high=0.2, dual=dual)
    loss.sum().backward()
    assert loss[0].item() == pytest.approx(-1.2 if advantage > 0 else 3.0)
    assert ratio.grad is not None and ratio.grad.tolist() == pytest.approx([0.0, -advantage * math.exp(0.1)])


def test_clipped_weight_golden() -> None:
    """Every target keeps its gradient, times the clipped ratio."""
    logprobs = row(-1.0, -2.0, -3.0, grad=True)
    log_ratio = logprobs - row(-1.0 - math.log(3), -2.0 - math.log(0.1), -3.0)
    found = clipped_weight_surrogate(log_ratio, row(2, -1, 1), logprobs, low=0.5, high=1.0)
    assert found.tolist() == pytest.approx([2 * 2 * 1.0, 0.5 * -1 * 2.0, 3.0])
    assert gradient(found, logprobs) == pytest.approx([-4.0, 0.5, -1.0])


def test_at_ratio_one_all_surrogates_have_the_gradient_of_reinforce() -> None:
    advantages, old = row(1.5, -0.5, 2.0), row(-1.0, -2.0, -0.5)
    unit = torch.tensor([0, 0, 1])
    slopes = []
    for how in ("reinforce", "clip", "dual", "weight", "sequence"):
        logprobs = old.clone().requires_grad_()
        log_ratio = sequence_log_ratio(logprobs, old, unit) if how == "sequence" else logprobs - old
        if how == "reinforce":
            loss = reinforce(advantages, logprobs)
        elif how == "weight":
            loss = clipped_weight_surrogate(log_ratio, advantages, logprobs, low=0.2, high=0.2)
        else:
            loss = clipped_surrogate(log_ratio, advantages, low=0.2, high=0.2, dual=3.0 if how == "dual" else None)
        slopes.append(gradient(loss, logprobs))
    for slope in slopes:
        assert slope == pytest.approx([-1.5, 0.5, -2.0])


def test_part_gradients_add_up_to_the_actions() -> None:
    """All actions of three binary parts under a policy over prefixes, by enumeration.

    With an action's advantage at each of its parts, the expected sum of part gradients is the gradient of the expected
    advantage; and part advantages that are a martingale's steps give the same expectation.
    """
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    pay = torch.randn(8, generator=generator, dtype=torch.float64)
    actions = list(itertools.product((0, 1), repeat=3))
    nodes = [(0, 1 + a, 3 + 2 * a + b) for a, b, _ in actions]
    table = logits.log_softmax(-1)
    parts = torch.stack([table[list(at), list(action)] for at, action in zip(nodes, actions, strict=True)])  # [8, 3]
    chance = parts.sum(1).exp()
    fixed = chance.detach()
    (true,) = torch.autograd.grad((chance * pay).sum(), logits, retain_graph=True)
    whole = pay[:, None].expand(8, 3)

    def value(prefix: tuple[int, ...]) -> float:
        own = [n for n, action in enumerate(actions) if action[: len(prefix)] == prefix]
        return float((fixed[own] * pay[own]).sum() / fixed[own].sum())

    stepwise = torch.tensor(
        [[value(a[: j + 1]) - value(a[:j]) for j in range(3)] for a in actions], dtype=torch.float64
    )
    for advantage in (whole, stepwise):
        terms = clipped_surrogate(parts - parts.detach(), advantage, low=0.2, high=0.2).sum(1)
        (found,) = torch.autograd.grad((fixed * terms).sum(), logits, retain_graph=True)
        torch.testing.assert_close(-found, true, rtol=0, atol=1e-12)


# ------------------------------------------------------------------ divergences


def test_kl_golden() -> None:
    logprobs, reference = row(-1.0, -2.0, -0.5), row(-1.5, -1.0, -0.5)
    assert kl_k1(logprobs, reference).tolist() == [0.5, -1.0, 0.0]
    assert kl_k2(logprobs, reference).tolist() == [0.125, 0.5, 0.0]
    expected = [math.exp(-0.5) + 0.5 - 1, math.exp(1) - 2, 0.0]
    assert kl_k3(logprobs, reference).tolist() == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_kl_estimators_in_expectation(seed: int) -> None:
    """Enumerated over five words: k1 and k3 have the divergence as mean; of the losses k2 has its gradient, k1 none."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(-1)
    logprobs = logits.log_softmax(-1)
    chance = logprobs.exp()
    divergence = (chance * (logprobs - reference)).sum()
    for measure in (kl_k1, kl_k3):
        assert (chance * measure(logprobs, reference)).sum().item() == pytest.approx(divergence.item(), abs=1e-12)
    (true,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    for measure, expected in ((kl_k2, true), (kl_k1, torch.zeros_like(true))):
        loss = (chance.detach() * measure(logprobs, reference)).sum()
        (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_k3_of_equal_policies_is_exactly_zero() -> None:
    logprobs = torch.linspace(-20, 0, 50)
    assert kl_k3(logprobs, logprobs).abs().max() == 0
    assert (kl_k3(logprobs, logprobs + 1e-4) > 0).all()


# ------------------------------------------------------------------ values


def test_value_terms_golden() -> None:
    values, returns = row(1.0, 5.0, -2.0), row(2.0, 1.0, -2.0)
    assert value_losses(values, returns).tolist() == [0.5, 8.0, 0.0]
    assert value_losses(values, returns, huber=1.0).tolist() == [0.5, 3.5, 0.0]


def test_value_clipping_golden() -> None:
    """A value that has moved more than the clip towards its return has no gradient; one that moved away has."""
    values, old, returns = row(0.5, 0.1, -0.5, grad=True), row(0, 0, 0), row(1, 1, 1)
    found = value_losses(values, returns, old, clip_range=0.2)
    assert found.tolist() == pytest.approx([0.5 * 0.64, 0.5 * 0.81, 0.5 * 2.25])
    assert gradient(found, values) == pytest.approx([0.0, -0.9, -1.5])
    assert value_losses(values, returns, old, clip_range=0.2, huber=0.5).tolist() == pytest.approx(
        [0.275, 0.325, 0.625]
    )
    with pytest.raises(BatchMismatch, match="clipping values needs the values before the update"):
        value_losses(values, returns, clip_range=0.2)


# ------------------------------------------------------------------ behaviour


def test_behaviour_golden() -> None:
    """-1.0 sampled, -.2 scored: e^.8 = 2.2255 is beyond a cap of 2."""
    old, behaviour = row(-0.2, -1.0, -1.5), row(-1.0, -1.0, -1.0)
    truncated = importance_weights(old, behaviour, max_weight=2.0, kind="truncated")
    masked = importance_weights(old, behaviour, max_weight=2.0, kind="masked")
    assert truncated.tolist() == pytest.approx([2.0, 1.0, math.exp(-0.5)])
    assert masked.tolist() == pytest.approx([0.0, 1.0, math.exp(-0.5)])
    sequences = importance_weights(old, behaviour, max_weight=2.0, kind="masked", unit=torch.tensor([0, 1, 1]))
    assert sequences.tolist() == pytest.approx([0.0, math.exp(-0.5), math.exp(-0.5)])


def test_behaviour_equal_to_the_trainer_is_weight_one() -> None:
    old = row(-0.3, -4.0, grad=True)
    cases: list[tuple[Any, Tensor | None]] = [
        (k, u) for k in ("truncated", "masked") for u in (None, torch.tensor([0, 0]))
    ]
    for kind, unit in cases:
        found = importance_weights(old, old.detach(), max_weight=1.0, kind=kind, unit=unit)
        assert found.tolist() == [1.0, 1.0] and not found.requires_grad


def test_sequence_correction_is_unbiased() -> None:
    """Two binary parts sampled from q, enumerated: the weighted mean is the mean under p."""
    p, q = torch.tensor([0.3, 0.7]).double().log(), torch.tensor([0.6, 0.4]).double().log()
    pay = {(0, 0): 1.0, (0, 1): -2.0, (1, 0): 0.5, (1, 1): 3.0}
    found = expected = 0.0
    for action, worth in pay.items():
        at, unit = list(action), torch.tensor([0, 0])
        weight = importance_weights(p[at], q[at], max_weight=100.0, kind="masked", unit=unit)[0].item()
        found += math.exp(q[at].sum()) * weight * worth
        expected += math.exp(p[at].sum()) * worth
    assert found == pytest.approx(expected)


# ------------------------------------------------------------------ adding up

TWO = torch.tensor([0, 0, 1, 1, 1, 1])
LOSSES = row(1, 1, 2, 2, 2, 2)


@pytest.mark.parametrize(
    ("kind", "length", "expected", "counted"),
    [
        ("part_mean", None, 5 / 3, 6),
        ("sequence_mean", None, 1.5, 2),
        ("sequence_sum", None, 5.0, 2),
        ("constant_length", 8, 0.625, 2),
    ],
)
def test_aggregation_golden(kind: Any, length: int | None, expected: float, counted: int) -> None:
    weights, count = aggregation_weights(kind, TWO, num_sequences=2, length=length)
    assert count == counted and weighted_sum(LOSSES, weights).item() / count == pytest.approx(expected)


def test_mean_over_units() -> None:
    """Actions of 2, 1 and 3 targets count alike."""
    unit = torch.tensor([0, 0, 1, 2, 2, 2])
    weights, count = aggregation_weights("unit_mean", TWO, num_sequences=2, unit=unit)
    assert count == 3 and weighted_sum(row(1, 3, 5, 2, 2, 5), weights).item() == pytest.approx(2 + 5 + 3)


@pytest.mark.parametrize("kind", ["part_mean", "sequence_mean", "sequence_sum", "constant_length", "unit_mean"])
def test_nothing_adds_up_to_nothing(kind: Any) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    weights, count = aggregation_weights(kind, none, num_sequences=0, length=8, unit=none)
    assert weights.shape == (0,) and count == 0


def test_aggregation_says_what_is_missing() -> None:
    with pytest.raises(BatchMismatch, match="a mean over units needs the unit of each token"):
        aggregation_weights("unit_mean", TWO, num_sequences=2)
    with pytest.raises(BatchMismatch, match="constant length"):
        aggregation_weights("constant_length", TWO, num_sequences=2)


def test_selected_is_not_looked_at() -> None:
    values = row(1.0, math.nan, math.inf, grad=True)
    (found,) = mask_unlearned(row(2, 0, 0), values)
    assert found.tolist() == [1, 0, 0] and gradient(found.exp(), values) == [math.e, 0, 0]
    assert weighted_sum(row(1.0, math.nan), row(3.0, 0.0)).item() == 3.0


# ------------------------------------------------------------------ measurements


def test_stats_golden() -> None:
    gap = row(math.log(1.5), math.log(0.5), 0.0, math.log(1.5))
    found = policy_stats(
        gap,
        gap,
        row(1, -1, 0, -1),
        low=0.2,
        high=0.2,
        behavior_log_ratio=row(0, math.log(2), 0, 0),
        entropy=row(1, 2, 3, 4),
    )
    means = {name: float(value) / count for name, (value, count) in found.items()}
    k3 = [0.5 - math.log(1.5), -0.5 + math.log(2), 0.0, 0.5 - math.log(1.5)]
    assert means["kl"] == pytest.approx(sum(k3) / 4)
    assert (means["clip_low"], means["clip_high"]) == (0.25, 0.25)
    assert means["ratio"] == pytest.approx(4.5 / 4) and means["ratio_max"] == pytest.approx(1.5)
    assert means["effective"] == pytest.approx(4.5**2 / 5.75 / 4)
    assert means["mismatch"] == pytest.approx((1 - math.log(2)) / 4) and means["entropy"] == 2.5


def test_stats_of_an_unmoved_policy_and_of_nothing() -> None:
    still = policy_stats(row(0, 0), row(0, 0), row(1, -1), low=0.2, high=0.2)
    assert {name: float(value) / count for name, (value, count) in still.items()} == {
        "kl": 0.0,
        "clip_low": 0.0,
        "clip_high": 0.0,
        "ratio": 1.0,
        "ratio_max": 1.0,
        "effective": 1.0,
    }
    empty = policy_stats(row(), row(), row(), low=0.2, high=0.2)
    assert {(float(value), count) for value, count in empty.values()} == {(0.0, 0)}
