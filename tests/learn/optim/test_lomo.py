"""LOMO and what every fused optimizer shares: hooks, arming, two passes, tied weights, and replicas that stay equal."""

import gc
import weakref

import numpy as np
import pytest
import torch
from optim_ranks import loss_of, net, one_update, train

from evolvent.errors import ConfigError
from evolvent.learn.optim import Lomo
from evolvent.learn.optim.clip import clip_factor, total_norm


def after(model, optimizer, *, steps=4, clip=None):
    for step in range(steps):
        one_update(model, optimizer, step, at=0, of=1, clip=clip)
    return [p.detach().clone() for p in model.parameters()]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_fused_is_unfused_is_gradient_descent_bit_for_bit():
    models = [net(), net(), net()]
    fused = after(models[0], Lomo(models[0].parameters(), lr=0.5))
    plain = after(models[1], Lomo(models[1].parameters(), lr=0.5, fused=False))
    for step in range(4):
        loss_of(models[2], step).backward()
        with torch.no_grad():
            for p in models[2].parameters():
                p.copy_(torch.sub(p, p.grad, alpha=0.5))
                p.grad = None
    assert same(fused, plain) and same(fused, models[2].parameters())


def test_weights_of_a_backward_equal_those_of_the_reference_implementations():
    lomo_optim, pytorch_optimizer = (pytest.importorskip(name) for name in ("lomo_optim", "pytorch_optimizer"))
    models = [net(), net(), net()]
    ours = after(models[0], Lomo(models[0].parameters(), lr=0.3))
    for model, peer in zip(models[1:], (lomo_optim.Lomo, pytorch_optimizer.LOMO), strict=True):
        optimizer = peer(model)
        for step in range(4):
            optimizer.fused_backward(loss_of(model, step), 0.3)
        assert same(ours, model.parameters())


def test_clipping_by_value_and_in_two_passes_as_the_reference_does():
    lomo_optim = pytest.importorskip("lomo_optim")
    for ours, theirs in (({"clip_value": 0.01}, {"clip_grad_value": 0.01}), ({}, {"clip_grad_norm": 0.2})):
        model, other = net(), net()
        clip = theirs.get("clip_grad_norm")
        found = after(model, Lomo(model.parameters(), lr=0.5, **ours), clip=clip)
        optimizer = lomo_optim.Lomo(other, **theirs)
        for step in range(4):
            loss = loss_of(other, step)
            if clip:
                optimizer.grad_norm(loss)
            optimizer.fused_backward(loss, 0.5)
        for a, b in zip(found, other.parameters(), strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=0, atol=1e-6)


def test_one_update_call_for_each_trained_tensor_and_no_second_gradient():
    model = net()
    model.up.bias.requires_grad_(False)
    optimizer = Lomo(model.parameters())
    trained, calls, beside = [p for p in model.parameters() if p.requires_grad], [], []
    real = optimizer.update

    def counting(p, *args, **kwargs):
        calls.append(p)
        beside.append(sum(q.grad is not None for q in trained))
        real(p, *args, **kwargs)

    optimizer.update = counting
    for step in range(3):
        one_update(model, optimizer, step, at=0, of=1, clip=None)
    assert len(calls) == 3 * len(trained) == 18
    assert set(beside) == {1}  # its own
    assert model.up.bias not in optimizer.state and "step" in optimizer.state[trained[0]]


def test_tied_weights_change_once_after_both_their_gradients():
    models = [net(tied=True), net(tied=True)]
    optimizer = Lomo(models[0].parameters(), lr=0.5)
    fused = after(models[0], optimizer)
    assert same(fused, after(models[1], torch.optim.SGD(models[1].parameters(), lr=0.5)))
    assert int(optimizer.state[models[0].embed.weight]["step"]) == 4


def test_a_backward_that_is_not_armed_leaves_gradients_which_step_uses():
    model, other = net(), net()
    optimizer, sgd = Lomo(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    for step in (0, 1):
        loss_of(model, step).backward()
        loss_of(other, step).backward()
    assert same(before, model.parameters())
    optimizer.arm()
    loss_of(model, 2).backward()  # what was there before counts too
    loss_of(other, 2).backward()
    assert all(p.grad is None for p in model.parameters())
    optimizer.step()
    sgd.step()
    assert same(model.parameters(), other.parameters())
    loss_of(model, 3).backward()
    assert all(p.grad is not None for p in model.parameters()), "step() ends the arming"


def test_a_closure_is_called_as_torch_does():
    model, other = net(), net()

    def closure(m, optimizer):
        def evaluate():
            optimizer.zero_grad()
            loss = loss_of(m, 0)
            loss.backward()
            return loss

        return evaluate

    ours, sgd = Lomo(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    assert ours.step(closure(model, ours)).item() == sgd.step(closure(other, sgd)).item()
    assert same(model.parameters(), other.parameters())


def test_groups_and_schedules_reach_the_hooks_also_after_loading():
    model, other = net(), net()
    parts = lambda m: [{"params": [m.embed.weight], "lr": 0.1}, {"params": list(m.parameters())[1:]}]  # noqa: E731
    ours, sgd = Lomo(parts(model), lr=0.2), torch.optim.SGD(parts(other), lr=0.2)
    ours.load_state_dict(ours.state_dict())  # replaces the groups
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.5) for o in (ours, sgd)]
    for step in range(3):
        one_update(model, ours, step, at=0, of=1, clip=None)
        one_update(other, sgd, step, at=0, of=1, clip=None)
        for schedule in schedules:
            schedule.step()
    assert same(model.parameters(), other.parameters())
    assert [group["lr"] for group in ours.param_groups] == [0.1 / 8, 0.2 / 8]


def test_measuring_changes_nothing_and_gives_the_global_norm():
    model, other = net(), net()
    loss_of(other, 0).backward()
    optimizer = Lomo(model.parameters())
    with optimizer.measure_norm() as norm:
        loss_of(model, 0).backward()
        assert all(p.grad is None for p in model.parameters())
    assert norm.item() == pytest.approx(total_norm(other.parameters()).item(), rel=1e-6)
    with optimizer.measure_norm(skip=[model.embed.weight]) as rest:
        loss_of(model, 0).backward()
    assert norm**2 - rest**2 == pytest.approx(other.embed.weight.grad.square().sum().item(), rel=1e-4)
    assert same(model.parameters(), other.parameters())
    with pytest.raises(ZeroDivisionError), optimizer.measure_norm():
        1 / 0  # noqa: B018
    loss_of(model, 0).backward()
    assert all(p.grad is not None for p in model.parameters()), "an error ends the measuring"


def test_two_passes_equal_one_pass_that_knows_the_norm():
    models = [net(), net(), net()]
    fused = after(models[0], Lomo(models[0].parameters(), lr=1.0), clip=0.2)
    plain = after(models[1], Lomo(models[1].parameters(), lr=1.0, fused=False), clip=0.2)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    assert not same(fused, after(models[2], Lomo(models[2].parameters(), lr=1.0)))


def test_detached_weights_wait_for_step():
    model, other = net(), net()
    optimizer = Lomo(model.parameters(), lr=0.1)
    optimizer.detach([model.embed.weight])
    optimizer.arm(0.5)
    loss_of(model, 0).backward()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["embed.weight"]
    with optimizer.measure_norm() as norm:
        pass
    assert norm > 0 and model.embed.weight.grad is None, "measuring takes what hooks do not"
    after(other, torch.optim.SGD(other.parameters(), lr=0.05), steps=1)
    assert same(list(model.parameters())[1:], list(other.parameters())[1:])
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.detach()
    optimizer.arm()
    optimizer.zero_grad()
    loss_of(model, 0).backward()
    assert not optimizer.fused and all(p.grad is not None for p in model.parameters())


def test_half_precision_weights_are_changed_in_float32():
    model = net(dtype=torch.bfloat16)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = Lomo(model.parameters(), lr=0.5, fused=False, weight_decay=0.1)
    loss_of(model, 0).backward()
    grads = [p.grad.float() for p in model.parameters()]
    optimizer.step()
    for p, old, grad in zip(model.parameters(), before, grads, strict=True):
        assert torch.equal(p, torch.sub(old.float() * (1 - 0.05), grad, alpha=0.5).bfloat16())


def test_float16_weights_are_refused():
    with pytest.raises(ConfigError, match=r"float16.*bfloat16"):
        Lomo(net(dtype=torch.float16).parameters())


def test_the_optimizer_can_go_while_the_weights_stay():
    model = net()
    optimizer = Lomo(model.parameters())
    optimizer.arm()
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    loss_of(model, 0).backward()
    assert gone() is None and all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("layout", [(4, 1, 1), (2, 2, 1), (1, 4, 1), (1, 2, 2)])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_replicas_hold_equal_weights_and_equal_one_process(crew, layout, clip):
    options = {"lr": 0.5} | ({} if clip is None else {"clip": clip})
    alone = train("lomo", options)
    found = crew.run(train, "lomo", {**options, "layout": layout})
    for one in found:
        assert all(np.array_equal(one["weights"][name], found[0]["weights"][name]) for name in one["weights"])
        for name, weights in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], weights, rtol=0, atol=1e-6)
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=2e-6)


def test_tied_weights_over_shards(crew):
    alone = train("lomo", {"lr": 0.5, "tied": True})
    for one in crew.run(train, "lomo", {"lr": 0.5, "tied": True, "layout": (2, 2, 1)}):
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(one["weights"]["embed.weight"], alone["weights"]["embed.weight"], rtol=0, atol=1e-6)


def test_the_scale_of_a_norm_is_the_published_one():
    assert clip_factor(1.0, torch.tensor(4.0)).item() == pytest.approx(1 / (4 + 1e-6))
    assert clip_factor(1.0, torch.tensor(0.5)).item() == 1.0
