"""Values over the vocabulary: golden problem M2, gradients at the optimum, targets by hand."""

from __future__ import annotations

import math

import pytest
import torch
from flat_tables import Told, table
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.rl.advantages import decomposed_gae, q_targets
from evolvent.rl.soft_values import (
    expected_soft_value,
    hard_value,
    log_sum_exp_value,
    soft_policy,
    soft_policy_kl,
    td_loss,
)

NEVER = -math.inf


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniform(words: int, positions: int = 1) -> Tensor:
    return torch.full((positions, words), -math.log(words), dtype=torch.float64)


def drawn(seed: int, words: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, pi, rho = (torch.randn(3, words, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, pi, rho.log_softmax(-1)


def test_golden() -> None:
    """M2's first state at beta 1: its value from both its first words, and the policy over them."""
    q = rows([1.926064, 1.750423])
    assert log_sum_exp_value(q, uniform(2), beta=1.0).item() == pytest.approx(1.842094755, abs=1e-6)
    pi = soft_policy(q, uniform(2), beta=1.0)
    assert pi.exp().flatten().tolist() == pytest.approx([0.543798, 0.456202], abs=1e-6)
    assert expected_soft_value(q, pi, uniform(2), beta=1.0).item() == pytest.approx(1.842094755, abs=1e-6)
    assert hard_value(q).item() == 1.926064


def test_expected_value_golden() -> None:
    """pi (3/4, 1/4) on Q (4, 0) and uniform rho: 3 minus .5 times the divergence."""
    pi = rows([math.log(0.75), math.log(0.25)])
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    found = expected_soft_value(rows([4.0, 0.0]), pi, uniform(2), beta=0.5)
    assert found.item() == pytest.approx(3.0 - 0.5 * divergence)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.5, 3.0]))
def test_the_optimum_is_a_maximum(seed: int, beta: float) -> None:
    """log-sum-exp is what the soft policy gets, and no other policy gets more; the gap is beta times the divergence."""
    q, pi, rho = drawn(seed)
    pi = pi.log_softmax(-1)
    best = log_sum_exp_value(q, rho, beta=beta)
    torch.testing.assert_close(expected_soft_value(q, soft_policy(q, rho, beta=beta), rho, beta=beta), best)
    gap = best - expected_soft_value(q, pi, rho, beta=beta)
    assert (gap >= -1e-12).all()
    torch.testing.assert_close(gap, beta * soft_policy_kl(pi, rho, q, beta=beta))


def test_the_policy_loss_is_the_divergence() -> None:
    q, pi, rho = drawn(1)
    pi, best = pi.log_softmax(-1), soft_policy(q, rho, beta=0.3)
    torch.testing.assert_close(soft_policy_kl(pi, rho, q, beta=0.3), (pi.exp() * (pi - best)).sum(-1))


@pytest.mark.parametrize("beta", [0.05, 1.0])
def test_the_gradient_is_zero_at_the_optimum_alone(beta: float) -> None:
    """Not at the uniform policy, nor at the reference, nor at the greedy one."""
    q, _, rho = drawn(2)
    for logits, still in (
        (rho + q / beta, True),
        (rho + q / beta + 7.0, True),
        (rho, False),
        (q / beta, False),
        (torch.zeros_like(q), False),
    ):
        given_ = logits.clone().requires_grad_()
        loss = soft_policy_kl(given_.log_softmax(-1), rho, q, beta=beta).sum()
        (found,) = torch.autograd.grad(loss, given_)
        assert bool(found.abs().max() < 1e-12) is still
        assert bool(loss.abs() < 1e-12) is still


def test_gradients_reach_the_policy_alone() -> None:
    q, pi, rho = (tensor.requires_grad_() for tensor in drawn(3))
    loss = soft_policy_kl(pi.log_softmax(-1), rho, q, beta=1.0).sum() + td_loss(pi[:, 0], q[:, 0]).sum()
    slopes = torch.autograd.grad(loss, (pi, q, rho), allow_unused=True)
    assert [slope is None for slope in slopes] == [False, True, True]


def test_words_that_cannot_be_chosen_are_not_looked_at() -> None:
    """Top-k sampling: values and gradients are those over the words that are left, whatever else is there."""
    q, pi = rows([1.0, 2.0, math.nan]), rows([0.2, 0.4, math.inf])
    rho = rows([math.log(0.5), math.log(0.5), NEVER])
    logits = pi[:, :2].clone().requires_grad_()
    small = soft_policy_kl(logits.log_softmax(-1), rho[:, :2], q[:, :2], beta=0.7)
    (expected,) = torch.autograd.grad(small.sum(), logits)
    again = pi[:, :2].clone().requires_grad_()
    padded = torch.cat([again.log_softmax(-1), rows([NEVER])], -1)
    found = soft_policy_kl(padded, rho, q, beta=0.7)
    (slope,) = torch.autograd.grad(found.sum(), again)
    assert found.item() == small.item() and torch.equal(slope, expected)
    assert soft_policy(q, rho, beta=0.7)[0, 2] == NEVER


def test_a_policy_where_the_reference_never_is_has_no_value() -> None:
    found = expected_soft_value(rows([1.0, 1.0]), uniform(2), rows([0.0, NEVER]), beta=1.0)
    assert found.item() == NEVER


def test_targets_use_the_divergence_of_their_own_step() -> None:
    """Two actions of two parts, Q 0, beta 1: a prefix is worth minus its divergence from a uniform reference.

    Four policies, so that a divergence taken from the next step would give another target.
    """
    chances = [(0.5, 0.5), (0.75, 0.25), (0.9, 0.1), (0.6, 0.4)]
    logpi = rows(*([math.log(p) for p in pair] for pair in chances))
    values = expected_soft_value(torch.zeros(4, 2).double(), logpi, uniform(2, 4), beta=1.0)
    away = [sum(p * math.log(2 * p) for p in pair) for pair in chances]
    assert values.tolist() == pytest.approx([-gap for gap in away])
    flat = table(Told([2, 2], [1.0, 2.0]))
    targets = decomposed_gae(values.numpy(), flat, gamma=0.5, gae_lambda=0.0, token_lambda=0.0).returns
    assert targets.tolist() == pytest.approx([-away[1], 1.0 - 0.5 * away[2], -away[3], 2.0])


def test_targets_that_reach_back() -> None:
    """Q^pi(lambda) by hand: errors are v' - Q inside an action, r + gamma v' - Q at its end."""
    flat, soft, chosen = table(Told([2, 2], [1.0, 2.0])), [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]
    found = q_targets(soft, chosen, flat, gamma=0.5, gae_lambda=0.9, token_lambda=1.0)
    assert found.tolist() == pytest.approx([1.155, 1.555, 1.6, 2.0])
    one = q_targets(soft, chosen, flat, gamma=0.5, gae_lambda=0.0, token_lambda=0.0)
    near = decomposed_gae(soft, flat, gamma=0.5, gae_lambda=0.0, token_lambda=0.0).returns
    assert one.tolist() == pytest.approx(near.tolist())
    two = table(Told([1], [1.0]), Told([1], [2.0]))  # what one episode earned is nothing to the one before it
    assert q_targets([0.0, 0.0], [0.0, 0.0], two, gamma=1.0, gae_lambda=1.0).tolist() == [1.0, 2.0]
    with pytest.raises(BatchMismatch, match="length of 'chosen' does not match the tokens"):
        q_targets(soft, chosen[1:], flat, gamma=0.5, gae_lambda=0.9)


def test_td_golden() -> None:
    chosen, target = torch.tensor([1.0, 5.0]), torch.tensor([2.0, 1.0])
    assert td_loss(chosen, target).tolist() == [0.5, 8.0]
    assert td_loss(chosen, target, huber=1.0).tolist() == [0.5, 3.5]
    with pytest.raises(BatchMismatch, match="differ in shape"):
        td_loss(chosen, target[:1])
