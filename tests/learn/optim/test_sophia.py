"""SophiaG against numpy, and its curvature: sampled labels, the share of clipped coordinates, shards."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_ranks import batch, loss_of, net, one_update, train
from torch import nn

from evolvent.learn.optim import SophiaG


def by_hand(theta, gradients, curvatures, *, lr, wd, rho, every, tokens):
    """The equations, with the tokens beside rho as the reference has them."""
    m, h, share = np.zeros_like(theta), np.zeros_like(theta), 0.0
    for t, g in enumerate(gradients):
        if t % every == 0:
            h = 0.99 * h + 0.01 * curvatures[t] ** 2
        m = 0.965 * m + 0.035 * g
        ratio = np.abs(m) / (rho * tokens * h + 1e-15)
        theta = theta * (1 - lr * wd) - lr * np.sign(m) * np.minimum(1, ratio)
        share = (ratio >= 1).mean()
    return theta, h * tokens, share


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 99),
    steps=st.integers(1, 7),
    every=st.integers(1, 3),
    tokens=st.sampled_from([1, 40, 5120]),
    rho=st.sampled_from([0.04, 1.0]),
    wd=st.sampled_from([0.0, 0.1]),
)
def test_updates_follow_the_equations(seed, steps, every, tokens, rho, wd):
    draw = torch.Generator().manual_seed(seed)
    theta, *gradients = (torch.randn(3, 4, generator=draw) for _ in range(steps + 1))
    curvatures = [torch.randn(3, 4, generator=draw) for _ in gradients]
    p = nn.Parameter(theta.clone())
    optimizer = SophiaG([p], lr=0.01, rho=rho, weight_decay=wd, hessian_every=every)
    for t, g in enumerate(gradients):
        if t % optimizer.hessian_every == 0:
            p.grad = curvatures[t].clone()
            optimizer.update_hessian(tokens)
        p.grad = g.clone()
        optimizer.step()
    wide = [[np.float64(x.numpy()) for x in xs] for xs in (gradients, curvatures)]
    expected, h, share = by_hand(np.float64(theta.numpy()), *wide, lr=0.01, wd=wd, rho=rho, every=every, tokens=tokens)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=5e-6)
    np.testing.assert_allclose(optimizer.state[p]["hessian"].numpy(), h, rtol=1e-5)
    assert optimizer.clipped_share == pytest.approx(share)


def test_the_published_defaults():
    optimizer = SophiaG(net().parameters())
    assert optimizer.hessian_every == 10
    assert {key: optimizer.defaults[key] for key in ("lr", "betas", "rho", "weight_decay")} == {
        "lr": 1e-4,
        "betas": (0.965, 0.99),
        "rho": 0.04,
        "weight_decay": 0.1,
    }


def test_without_curvature_every_step_is_a_sign_and_with_it_some_are_not():
    model = net()
    optimizer = SophiaG(model.parameters(), rho=10.0)
    one_update(model, optimizer, 0, at=0, of=1, clip=None)
    touched = sum(int((state["momentum"] != 0).sum()) for state in optimizer.state.values())
    assert optimizer.clipped_share == pytest.approx(touched / sum(p.numel() for p in model.parameters()))
    ids = batch(0)[:, :-1]
    logits = model(ids).flatten(0, 1)
    drawn = torch.distributions.Categorical(logits=logits.detach()).sample()
    nn.functional.cross_entropy(logits, drawn).backward()
    optimizer.update_hessian(drawn.numel())
    optimizer.zero_grad()
    assert all((state["hessian"] >= 0).all() and state["hessian"].sum() > 0 for state in optimizer.state.values())
    before = optimizer.clipped_share
    one_update(model, optimizer, 1, at=0, of=1, clip=None)
    assert 0 < optimizer.clipped_share < before


def test_curvature_survives_a_checkpoint():
    model, other = net(), net()
    ours, again = SophiaG(model.parameters(), lr=0.01), SophiaG(other.parameters(), lr=0.01)
    loss_of(model, 0).backward()
    ours.update_hessian(48)
    again.load_state_dict(deepcopy(ours.state_dict()))
    for step in (1, 2):
        for m, optimizer in ((model, ours), (other, again)):
            optimizer.zero_grad()
            one_update(m, optimizer, step, at=0, of=1, clip=None)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("layout", [(1, 4, 1), (2, 2, 1), (1, 2, 2)], ids=str)
def test_shards_equal_one_process_and_share_one_metric(crew, layout):
    alone = train("sophiag", {"lr": 0.01, "curvature": True})
    for one in crew.run(train, "sophiag", {"lr": 0.01, "curvature": True, "layout": layout}):
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=2e-6)
        assert one["clipped"] == pytest.approx(alone["clipped"], abs=2e-3)
    assert 0 < alone["clipped"] < 1
