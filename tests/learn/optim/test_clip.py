"""The global norm: torch's bits in one process, the norm of the gathered gradients over shards and stages."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_ranks import norms
from torch import nn

from evolvent.learn.optim.clip import clamp_, scale_, total_norm


def weights(shapes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=draw)
    return params


@settings(deadline=None, max_examples=50)
@given(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    limit=st.floats(1e-3, 1e3),
)
def test_in_one_process_the_bits_are_those_of_torch(shapes, seed, limit):
    params, others = weights(shapes, seed), weights(shapes, seed)
    norm = total_norm(params)
    assert torch.equal(norm, nn.utils.get_total_norm([p.grad for p in others]))
    scale_(params, limit, norm)
    nn.utils.clip_grads_with_norm_(others, limit, norm)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(params, others, strict=True))


def test_what_has_no_gradient_or_is_skipped_counts_nothing():
    params = weights([(2, 2), (3,), (4,)])
    params[1].grad = None
    params[0].grad = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert total_norm(iter(params), skip=[params[2]]).item() == 5.0
    assert total_norm(params[1:2]).item() == 0.0 and total_norm([]).item() == 0.0
    scale_(params[1:2], 1.0, torch.tensor(2.0))


def test_half_precision_gradients_have_a_float32_norm():
    p = nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    p.grad = torch.full((1000,), 0.1, dtype=torch.bfloat16)
    norm = total_norm([p])
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(float(p.grad[0]) * math.sqrt(1000), rel=1e-6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_is_not_finite_shows(value):
    params = weights([(2,), (3,)])
    params[0].grad[1] = value
    assert not math.isfinite(total_norm(params))


def test_the_norm_of_plain_sharded_replicated_and_unsummed_gradients_over_stages(crew):
    found = crew.run(norms)
    assert len({norm for norm, _, _ in found}) == 1, "every rank has the same"
    for norm, gathered, far in found:
        assert norm == pytest.approx(gathered, rel=1e-6) and far < 1e-6


def test_every_number_is_clipped_on_its_own():
    params, others = weights([(2, 3), (4,)]), weights([(2, 3), (4,)])
    params[1].grad = others[1].grad = None
    clamp_(params, 0.3)
    nn.utils.clip_grad_value_(others, 0.3)
    assert torch.equal(params[0].grad, others[0].grad) and params[0].grad.abs().max() == 0.3
