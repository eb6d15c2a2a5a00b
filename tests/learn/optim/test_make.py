"""Optimizers by name: the groups, AdamW's bits, the long tail, and what is refused with a way out."""

import builtins
import importlib
import sys

import pytest
import torch
from optim_ranks import loss_of, net, one_update

import evolvent.learn.optim as room
from evolvent.config import list_settings, resolve
from evolvent.errors import ConfigError, MissingExtra
from evolvent.learn.optim import (
    AdaLomo,
    Adan,
    FusedOptimizer,
    Lion,
    Lomo,
    OptimizerConfig,
    SophiaG,
    build_optimizer,
    check_fused,
)


def built(model, **settings):
    config = OptimizerConfig(**settings)
    return build_optimizer(config, model.named_parameters(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1)


def test_adamw_is_built_as_the_learner_always_did():
    model, other = net(), net()
    ours = built(model)
    groups = [
        {"params": [p for p in other.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in other.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), fused=True)
    for step in range(3):
        one_update(model, ours, step, at=0, of=1, clip=1.0)
        one_update(other, theirs, step, at=0, of=1, clip=1.0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    strip = lambda o: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]  # noqa: E731
    assert strip(ours) == strip(theirs)


def test_matrices_decay_vectors_do_not_and_frozen_weights_are_left_out():
    model = net()
    model.embed.weight.requires_grad_(False)
    matrices, vectors = built(model, name="lion").param_groups
    assert [tuple(p.shape) for p in matrices["params"]] == [(20, 16), (16, 20), (23, 16)]
    assert [p.dim() for p in vectors["params"]] == [1, 1, 1]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("lion", Lion),
        ("adan", Adan),
        ("sophiag", SophiaG),
        ("lomo", Lomo),
        ("adalomo", AdaLomo),
        ("adamw", torch.optim.AdamW),
        ("adam", torch.optim.Adam),
        ("sgd", torch.optim.SGD),
        ("adafactor", torch.optim.Adafactor),
        ("rmsprop", torch.optim.RMSprop),
        ("nadam", torch.optim.NAdam),
    ],
)
def test_names_give_optimizers_that_learn(name, cls):
    model = net()
    optimizer = built(model, name=name)
    assert type(optimizer) is cls and optimizer.defaults["lr"] == 0.01
    before = loss_of(model, 0).item()
    for _ in range(20):
        one_update(model, optimizer, 0, at=0, of=1, clip=None)
    assert loss_of(model, 0).item() < before


def test_settings_reach_their_optimizer():
    model = net()
    assert built(model, name="adan", betas=(0.9, 0.8, 0.7), eps=1e-6).defaults["betas"] == (0.9, 0.8, 0.7)
    assert built(model, name="adan").defaults["betas"] == (0.98, 0.92, 0.99)
    assert built(model, name="adam").defaults["betas"] == (0.9, 0.999)
    assert built(model, betas=(0.8, 0.9)).defaults["betas"] == (0.8, 0.9)
    assert built(model, name="sgd", momentum=0.9).defaults["momentum"] == 0.9
    sophia = built(model, name="sophiag", rho=0.1, hessian_every=3)
    assert (sophia.defaults["rho"], sophia.hessian_every) == (0.1, 3)
    assert not built(model, name="lomo", fused=False).fused and built(net(), name="lomo").fused
    config = OptimizerConfig(name="adalomo", clip="value")
    clipped = build_optimizer(config, net().named_parameters(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.0, clip=0.5)
    assert (
        isinstance(clipped, FusedOptimizer)
        and clipped.clip_value == 0.5
        and built(net(), name="lomo").clip_value is None
    )


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"momentum": 0.9}, "momentum"),
        ({"name": "lion", "eps": 1e-8}, "eps"),
        ({"name": "sgd", "rho": 0.1}, "rho"),
        ({"name": "adan", "betas": (0.9, 0.99)}, "betas"),
        ({"name": "adamw", "betas": (0.9,)}, "betas"),
    ],
)
def test_what_an_optimizer_does_not_take_is_refused(settings, place):
    with pytest.raises(ConfigError) as found:
        built(net(), **settings)
    assert [problem.where for problem in found.value.problems] == [f"optimizer.{place}"]


def test_a_name_with_a_slip_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown optimizer 'adalom'.*did you mean 'adalomo'"):
        built(net(), name="adalom")


def test_the_long_tail_comes_from_pytorch_optimizer():
    peers = pytest.importorskip("pytorch_optimizer")
    model = net()
    optimizer = built(model, name="ademamix")
    assert type(optimizer) is peers.AdEMAMix
    one_update(model, optimizer, 0, at=0, of=1, clip=None)


def test_without_the_extra_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingExtra, match=r"ademamix.*adalomo.*pip install 'evolvent\[optim\]'"):
        built(net(), name="ademamix")
    assert isinstance(built(net(), name="adan"), Adan)


def test_weights_that_an_optimizer_refuses_are_a_mistake_of_the_configuration():
    with pytest.raises(ConfigError, match="muon"):
        built(net(), name="muon")  # takes matrices only
    with pytest.raises(ConfigError, match="unknown optimizer 'lbfgs'"):
        built(net(), name="lbfgs")  # needs a closure


def test_fused_updates_are_refused_where_weights_would_change_too_early():
    lomo = OptimizerConfig(name="lomo", clip="norm")
    assert [problem.where for problem in check_fused(lomo, 4, 1)] == ["optimizer.fused", "optimizer.clip"]
    several, norm = check_fused(lomo, 4, 1)
    assert "4 micro-batches" in several.what and "optimizer.fused=false" in several.hint
    assert "train.max_tokens_per_forward" in several.hint and "two_pass" in norm.hint
    assert "2 pipeline stages" in check_fused(OptimizerConfig(name="adalomo"), 2, 2)[0].hint
    assert check_fused(OptimizerConfig(name="adalomo"), 1, 2) == []
    assert check_fused(OptimizerConfig(name="lomo", fused=False, clip="norm"), 4, 2) == []
    assert check_fused(OptimizerConfig(name="adamw", clip="norm"), 4, 2) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "norm"),
        ({"name": "adalomo"}, "none"),
        ({"name": "lomo"}, "two_pass"),
        ({"name": "lomo", "fused": False}, "norm"),
        ({"name": "lomo", "clip": "value"}, "value"),
        ({"name": "adalomo", "clip": "two_pass"}, "two_pass"),
        ({"name": "sgd", "clip": "two_pass"}, "norm"),
        ({"clip": "none"}, "none"),
    ],
)
def test_clipping_is_the_same_fused_or_not(settings, expected):
    assert OptimizerConfig(**settings).clipping == expected


def test_the_configuration_is_small_closed_and_read_from_words():
    assert len(list_settings(OptimizerConfig)) <= 9 and all(knob.description for knob in list_settings(OptimizerConfig))
    config = resolve(OptimizerConfig, overrides=["--name", "adan", "--betas", "0.9,0.8,0.7", "--clip", "none"])
    assert config.betas == (0.9, 0.8, 0.7)
    with pytest.raises(ConfigError, match="betas"):
        resolve(OptimizerConfig, overrides=["--betas", "0.9,1.5"])


def test_every_public_name_of_the_room_is_there():
    for module in ("clip", "fused", "adan", "sophia", "make"):
        found = importlib.import_module(f"evolvent.learn.optim.{module}")
        assert all(hasattr(found, name) for name in found.__all__)
    assert all(hasattr(room, name) for name in room.__all__) and not set(dir(builtins)) & set(room.__all__)
