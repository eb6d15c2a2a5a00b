from __future__ import annotations

import importlib
import importlib.util
import math

import pytest
import torch

import evolvent.learn
from evolvent.errors import MissingExtra
from evolvent.learn.learner import TrainConfig
from evolvent.learn.losses import target_logprobs, weighted_nll
from evolvent.learn.objectives import Objective
from evolvent.learn.objectives import weighted_nll as objective


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


def test_objectives_are_known_by_name() -> None:
    assert repr(objective) == "Objective(name='weighted_nll', needs=())"
    assert isinstance(objective, Objective)


@pytest.mark.parametrize(
    ("update", "share", "factor"),
    [(0, 0.0, 0.25), (2, 0.0, 0.75), (3, 0.0, 1.0), (9, 0.5, 0.6), (99, 1.0, 0.2), (99, 1.3, 0.2), (1, 0.5, 0.3)],
)
def test_rate_golden(update: int, share: float, factor: float) -> None:
    config = TrainConfig(lr=2.0, warmup_updates=4, final_lr=0.2)
    assert config.rate(update, share) == pytest.approx(2.0 * factor)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[train\]'"):
        importlib.reload(evolvent.learn)
