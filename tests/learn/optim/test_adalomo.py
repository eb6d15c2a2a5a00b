"""AdaLomo against a hand-worked update, torch's Adafactor, numpy, and itself: fused, on shards, and resumed."""

import numpy as np
import pytest
import torch
from crew import Crew
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_ranks import loss_of, net, one_update, train
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from evolvent.learn.optim import AdaLomo

LAYOUTS = [(1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2), (1, 1, 4), (4, 1, 1)]


@pytest.fixture(scope="module")
def pair():
    with Crew(2) as ranks:
        yield ranks


def stepped(theta, gradients, **settings):
    p = nn.Parameter(torch.as_tensor(theta).clone())
    optimizer = AdaLomo([p], fused=False, **settings)
    for g in gradients:
        p.grad = torch.as_tensor(g).clone()
        optimizer.step()
    return p.detach(), optimizer.state[p]


def by_hand(theta, gradients, *, lr, weight_decay, d):
    """The equations in float64, with v written out in full."""
    theta, r, c, v = np.array(theta, dtype=np.float64), 0.0, 0.0, 0.0
    for t, given_g in enumerate(gradients, 1):
        g = np.array(given_g, dtype=np.float64)
        b, u = 1 - t**-0.8, g**2 + 1e-30
        if g.ndim >= 2:
            r = b * r + (1 - b) * u.mean(-1)
            c = b * c + (1 - b) * u.mean(-2)
            v = r[..., :, None] * c[..., None, :] / r.mean(-1)[..., None, None]
        else:
            v = b * v + (1 - b) * u
        step = g / np.sqrt(v)
        step /= max(1, np.sqrt((step**2).mean()) / d)
        a = lr * max(1e-3, np.sqrt((theta**2).mean()))
        theta = theta * (1 - a * weight_decay) - a * step
    return theta


def test_the_first_update_worked_by_hand():
    theta, state = stepped(torch.ones(2, 2), [torch.tensor([[1.0, 2.0], [3.0, 4.0]])], lr=0.01)
    assert state["row"].flatten().tolist() == pytest.approx([2.5, 12.5])
    assert state["column"].flatten().tolist() == pytest.approx([5.0, 10.0])
    expected = 1 - 0.01 * torch.tensor([[0.6, 1.2], [1.08, 0.96]]).sqrt()
    torch.testing.assert_close(theta, expected, rtol=0, atol=1e-7)


def test_the_update_is_clipped_by_its_root_mean_square():
    theta, _ = stepped(torch.ones(2, 2), [torch.tensor([[1.0, 2.0], [3.0, 4.0]])], lr=0.01, d=0.5)
    expected = 1 - 0.01 * torch.tensor([[0.6, 1.2], [1.08, 0.96]]).sqrt() * 0.5 / 0.96**0.5
    torch.testing.assert_close(theta, expected, rtol=0, atol=1e-7)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=4),
    steps=st.integers(1, 4),
    lr=st.floats(1e-4, 0.3),
    weight_decay=st.sampled_from([0.0, 0.1]),
    d=st.sampled_from([0.3, 1.0]),
    seed=st.integers(0, 99),
)
def test_any_shape_follows_the_equations(shape, steps, lr, weight_decay, d, seed):
    draw = torch.Generator().manual_seed(seed)
    theta, *gradients = (torch.randn(shape, generator=draw) for _ in range(steps + 1))
    gradients[-1].flatten()[: theta.shape[-1] if shape else 1] = 0.0  # a row without gradient
    found, _ = stepped(theta, gradients, lr=lr, weight_decay=weight_decay, d=d)
    expected = by_hand(theta.numpy(), [g.numpy() for g in gradients], lr=lr, weight_decay=weight_decay, d=d)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_ten_updates_equal_those_of_torchs_adafactor():
    model, other = net(), net()
    ours = AdaLomo(model.parameters(), lr=0.02)
    settings = {"beta2_decay": -0.8, "d": 1.0, "eps": (1e-15, 1e-3), "weight_decay": 0.0}
    theirs = torch.optim.Adafactor(other.parameters(), lr=0.02, **settings)
    for step in range(10):
        losses = [one_update(m, o, step, at=0, of=1, clip=None) for m, o in ((model, ours), (other, theirs))]
        assert float(losses[0]) == pytest.approx(float(losses[1]), abs=1e-6)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_fused_equals_unfused_bit_for_bit_and_keeps_gradients_only_there():
    model, other = net(), net()
    fused, plain = AdaLomo(model.parameters()), AdaLomo(other.parameters(), fused=False)
    for step in range(4):
        one_update(model, fused, step, at=0, of=1, clip=None)
        loss_of(other, step).backward()
        grads = [p.grad.clone() for p in other.parameters()]
        plain.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(other.parameters(), grads, strict=True))
        plain.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_resumed_at_update_5_it_equals_the_uninterrupted_run():
    whole, first = net(), net()
    one, two = AdaLomo(whole.parameters()), AdaLomo(first.parameters())
    for step in range(10):
        one_update(whole, one, step, at=0, of=1, clip=None)
        if step < 5:
            one_update(first, two, step, at=0, of=1, clip=None)
    saved = two.state_dict()
    assert set(saved["state"][0]) == {"step", "row", "column"} and set(saved["state"][1]) == {"step", "variance"}
    assert int(saved["state"][0]["step"]) == 5
    second = net()
    second.load_state_dict(first.state_dict())
    three = AdaLomo(second.parameters())
    three.load_state_dict(saved)
    for step in range(5, 10):
        one_update(second, three, step, at=0, of=1, clip=None)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_state_stays_float32_beside_half_precision_weights():
    model = net(dtype=torch.bfloat16)
    optimizer = AdaLomo(model.parameters())
    one_update(model, optimizer, 0, at=0, of=1, clip=None)
    optimizer.load_state_dict(optimizer.state_dict())
    values = [value for state in optimizer.state.values() for value in state.values()]
    assert len(values) == 18 and {value.dtype for value in values} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


class Largest(TorchDispatchMode):
    """Remembers the most elements of a result that is no view and no argument."""

    def __init__(self):
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.found = max(self.found, result.numel())
        return result


def test_a_fused_update_makes_no_temporary_as_large_as_the_gradient():
    p = nn.Parameter(torch.randn(64, 48))
    optimizer = AdaLomo([p], weight_decay=0.1, clip_value=0.5)
    p.grad = torch.randn(64, 48)
    optimizer.arm(0.5)
    with torch.no_grad(), Largest() as largest:
        optimizer._update_parameter(p, optimizer.param_groups[0], owned=True)
    assert 48 < largest.found <= 64 + 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_any_layout_equals_one_process(crew, pair, layout):
    options = {"lr": 0.05, "weight_decay": 0.1}
    alone = train("adalomo", options)
    ranks = pair if layout == (1, 2, 1) else crew
    found = ranks.run(train, "adalomo", {**options, "layout": layout})
    for one in found:
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=1e-6)
        for name, weights in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], weights, rtol=0, atol=1e-6)
            assert np.array_equal(one["weights"][name], found[0]["weights"][name])


def test_a_shard_holds_its_rows_and_sends_statistics_only(crew):
    options = {"layout": (1, 4, 1), "steps": 5}
    found = crew.run(train, "adalomo", options)
    rows = {name: shape for name, shape in found[0]["state"].items() if name.endswith("/row")}
    assert rows["up.weight/row"] == (5, 1) and rows["down.weight/row"] == (4, 1)
    assert sum(one["state"]["embed.weight/row"][0] for one in found) == 23
    assert {one["state"]["embed.weight/column"] for one in found} == {(1, 16)}
    columns, matrices, tensors = 16 + 16 + 20 + 16, 4, 7
    assert found[0]["sent"] == 5 * 4 * (columns + matrices + 2 * tensors)
    gradient = 4 * sum(weights.size for weights in found[0]["weights"].values())
    assert found[0]["sent"] / 5 < gradient / 15


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process loads too
@pytest.mark.parametrize("second", [(1, 4, 1), (1, 2, 2), (2, 1, 2), (1, 1, 1)], ids=str)
def test_state_saved_on_one_layout_goes_on_on_another(crew, pair, second, tmp_path):
    alone = train("adalomo", {"lr": 0.05, "steps": 6})
    first = pair.run(train, "adalomo", {"lr": 0.05, "steps": 3, "layout": (1, 2, 1), "save": str(tmp_path)})
    rest = {"lr": 0.05, "steps": 3, "start": 3, "load": str(tmp_path)}
    found = [train("adalomo", rest)] if second == (1, 1, 1) else crew.run(train, "adalomo", {**rest, "layout": second})
    for one in found:
        np.testing.assert_allclose(first[0]["losses"] + one["losses"], alone["losses"], rtol=0, atol=1e-6)
        for name, weights in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], weights, rtol=0, atol=1e-6)
