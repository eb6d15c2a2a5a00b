"""Lion and Adan against pytorch_optimizer, numpy, themselves resumed, and themselves on shards."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_ranks import net, one_update, train
from torch import nn

from evolvent.errors import ConfigError
from evolvent.learn.optim import Adan, Lion


def stepped(make, theta, gradients):
    p = nn.Parameter(theta.clone())
    optimizer = make([p])
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
        assert torch.equal(p.grad, g), "gradients stay"
    return p.detach().numpy()


def lion(theta, gradients, *, lr, b1, b2, wd):
    m = np.zeros_like(theta)
    for g in gradients:
        theta = theta * (1 - lr * wd) - lr * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return theta


def adan(theta, gradients, *, lr, betas, wd, no_prox):
    (b1, b2, b3), m, diff, n, before = betas, 0.0, 0.0, 0.0, gradients[0]
    for t, g in enumerate(gradients, 1):
        d = g - before
        m, diff = b1 * m + (1 - b1) * g, b2 * diff + (1 - b2) * d
        n, before = b3 * n + (1 - b3) * (g + b2 * d) ** 2, g
        den = np.sqrt(n / (1 - b3**t)) + 1e-8
        theta = theta * (1 - lr * wd) if no_prox else theta
        theta = theta - lr / (1 - b1**t) * m / den - lr * b2 / (1 - b2**t) * diff / den
        theta = theta if no_prox else theta / (1 + lr * wd)
    return theta


drawn = {
    "seed": st.integers(0, 99),
    "steps": st.integers(1, 5),
    "lr": st.floats(1e-4, 0.1),
    "wd": st.sampled_from([0.0, 0.3]),
    "b2": st.floats(0.5, 0.999),
}


def normal(seed, steps):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, generator=draw) for _ in range(steps + 1)]


@settings(deadline=None, max_examples=40)
@given(**drawn)
def test_lion_follows_its_equations(seed, steps, lr, wd, b2):
    theta, *gradients = normal(seed, steps)
    found = stepped(lambda p: Lion(p, lr=lr, betas=(0.9, b2), weight_decay=wd), theta, gradients)
    wide = [np.float64(x.numpy()) for x in (theta, *gradients)]
    np.testing.assert_allclose(found, lion(wide[0], wide[1:], lr=lr, b1=0.9, b2=b2, wd=wd), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(no_prox=st.booleans(), **drawn)
def test_adan_follows_its_equations(seed, steps, lr, wd, b2, no_prox):
    theta, *gradients = normal(seed, steps)
    betas = (0.98, b2, 0.99)
    found = stepped(lambda p: Adan(p, lr=lr, betas=betas, weight_decay=wd, no_prox=no_prox), theta, gradients)
    wide = [np.float64(x.numpy()) for x in (theta, *gradients)]
    expected = adan(wide[0], wide[1:], lr=lr, betas=betas, wd=wd, no_prox=no_prox)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["lion", "prox", "no_prox"])
def test_ten_updates_equal_those_of_pytorch_optimizer(name, decay):
    peers = pytest.importorskip("pytorch_optimizer")
    model, other = net(), net()
    if name == "lion":
        ours, theirs = Lion(model.parameters(), weight_decay=decay), peers.Lion(other.parameters(), weight_decay=decay)
    else:
        ours = Adan(model.parameters(), lr=0.01, weight_decay=decay, no_prox=name == "no_prox")
        theirs = peers.Adan(other.parameters(), lr=0.01, weight_decay=decay, weight_decouple=name == "no_prox")
    for step in range(10):
        one_update(model, ours, step, at=0, of=1, clip=None)
        one_update(other, theirs, step, at=0, of=1, clip=None)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [Lion, Adan])
def test_resumed_at_update_5_they_equal_the_uninterrupted_run(make):
    whole, part = net(), net()
    one, two = make(whole.parameters()), make(part.parameters())
    for step in range(10):
        one_update(whole, one, step, at=0, of=1, clip=None)
        if step == 5:
            saved, two = two.state_dict(), make(part.parameters())
            two.load_state_dict(saved)
        one_update(part, two, step, at=0, of=1, clip=None)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), part.parameters(), strict=True))


@pytest.mark.parametrize("make", [Lion, Adan])
def test_half_precision_weights_have_float32_state_and_arithmetic(make):
    model, other = net(dtype=torch.bfloat16), net(dtype=torch.bfloat16)
    ours, wide = make(model.parameters(), lr=0.01), [p.detach().float().requires_grad_() for p in other.parameters()]
    one_update(model, ours, 0, at=0, of=1, clip=None)
    again = net(dtype=torch.bfloat16)
    one_update(again, torch.optim.SGD(again.parameters(), lr=0.0), 0, at=0, of=1, clip=None)
    assert {v.dtype for state in ours.state.values() for v in state.values()} == {torch.float32}
    assert all(p.dtype is torch.bfloat16 and p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(p, w.bfloat16()) for p, w in zip(model.parameters(), wide, strict=True))


def test_settings_out_of_range_are_refused():
    for bad in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"weight_decay": -0.1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Lion(net().parameters(), **bad)


@pytest.mark.parametrize("name", ["lion", "adan"])
@pytest.mark.parametrize("layout", [(1, 4, 1), (2, 2, 1), (1, 2, 2)], ids=str)
def test_shards_equal_one_process(crew, name, layout):
    options = {"lr": 0.01, "weight_decay": 0.1}
    alone = train(name, options)
    for one in crew.run(train, name, {**options, "layout": layout}):
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=2e-6)
        assert one["state"]["norm.weight/step"] == ()
