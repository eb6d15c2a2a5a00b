"""States in main memory change no step, whatever the optimizer keeps; and what gains nothing by them is refused."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from optim_ranks import net, one_update
from small_training import small_config, small_policy
from torch import Tensor

import evolvent.learn.progress as progress
from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim import OffloadedOptimizer, OptimizerConfig, build_optimizer
from evolvent.learn.optim.make import _CLASSES, check_offload

BUILT_IN = sorted(_CLASSES.keys() - {"muon", "sophiag"})  # Muon takes no vectors


def build_offloaded(
    config: OptimizerConfig, named_weights: Iterable[tuple[str, Tensor]], **settings: Any
) -> OffloadedOptimizer:
    return OffloadedOptimizer(partial(build_optimizer, config, **settings), named_weights)


@pytest.mark.parametrize("name", BUILT_IN)
def test_steps_equal_those_without_offload(name: str) -> None:
    config = OptimizerConfig(name=name, fused=False)
    settings = {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.1}
    plain_model, offloaded_model = net(), net()
    plain = build_optimizer(config, plain_model.named_parameters(), **settings)
    offloaded = build_offloaded(config, offloaded_model.named_parameters(), **settings)
    for step in range(4):
        for model, optimizer in ((plain_model, plain), (offloaded_model, offloaded)):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (step + 1)  # a schedule is seen
            if step == 2:  # weights that were changed elsewhere, as by a checkpoint, are read again
                with torch.no_grad():
                    model.up.weight.mul_(0.5)
            one_update(model, optimizer, step, at=0, of=1, clip=1.0)
    for weight, expected in zip(offloaded_model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(weight, expected)
        assert offloaded.state[weight].keys() == plain.state[expected].keys()


def test_a_weight_without_a_gradient_stays_and_has_no_state() -> None:
    model = net()
    optimizer = build_offloaded(
        OptimizerConfig(), model.named_parameters(), lr=0.01, betas=(0.9, 0.98), weight_decay=0.1
    )
    model.up.weight.grad = torch.ones_like(model.up.weight)
    kept = model.down.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.down.weight, kept) and list(optimizer.state) == [model.up.weight]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_stopped_training_equals_the_whole_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(progress, "is_builtin", lambda name: False)
    monkeypatch.setattr(progress, "build_optimizer", build_offloaded)
    progress.check_resumes(OptimizerConfig(name=name, fused=False))


def test_a_training_resumes_with_or_without_offload() -> None:
    identity = partial(
        progress.training_identity,
        small_policy(),
        weighted_nll,
        "data",
        optimizer=OptimizerConfig(),
        seed=1,
        base_digest=None,
    )
    assert identity(config=small_config()) == identity(config=small_config(offload="optimizer"))
    assert "offload" not in repr(small_config(offload="optimizer"))


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ({}, {"device_type": "cpu"}, "in main memory already"),
        ({"name": "adafactor"}, {"device_type": "cuda", "num_ranks": 2}, "adafactor reads whole tensors"),
        ({"name": "adalomo", "fused": False}, {"device_type": "cuda", "num_ranks": 4}, "each of 4 ranks has a part"),
        ({"name": "sophiag"}, {"device_type": "cuda", "num_ranks": 2}, "sophiag cannot step on copies"),
        ({"name": "adalomo"}, {"device_type": "cuda"}, "adalomo cannot step on copies"),
        ({"name": "sophiag"}, {"device_type": "cuda"}, "sophiag cannot step on copies"),
        ({"name": "schedulefreeadamw"}, {"device_type": "cuda"}, "schedulefreeadamw cannot step on copies"),
    ],
)
def test_what_gains_nothing_is_refused(settings: dict[str, Any], place: dict[str, Any], message: str) -> None:
    (problem,) = check_offload(OptimizerConfig(**settings), **place)
    assert problem.where == "train.offload" and message in f"{problem.what} {problem.hint}"


def test_a_learner_on_the_cpu_refuses_offload() -> None:
    assert check_offload(OptimizerConfig(), device_type="cuda") == []
    assert check_offload(OptimizerConfig(name="adan"), device_type="cuda", num_ranks=8) == []
    with pytest.raises(ConfigError, match="nothing would be gained"):
        Learner(small_policy(), weighted_nll, small_config(offload="optimizer"), seed=1)
