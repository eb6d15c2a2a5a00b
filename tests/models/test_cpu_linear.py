"""Linear layers by oneDNN: the numbers and gradients of PyTorch's own, rows that do not depend on each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from evolvent.learn.parallel.lay import apply_recompute
from evolvent.models import cpu_linear
from evolvent.models.cpu_linear import linear_by_onednn, multiply_packed, pack_weight, packs_weights, release_pages
from evolvent.models.policy import Policy
from tests.learn.byte_policy import byte_policy

pytestmark = pytest.mark.skipif(
    not packs_weights(torch.zeros(2, 2), 10**7), reason="needs PyTorch with oneDNN on this processor"
)


def test_a_copy_of_the_weights_takes_at_most_a_quarter_of_the_free_memory(monkeypatch):
    weight, count = torch.zeros(2, 2), 20_000_000  # 80 MB
    monkeypatch.setattr(cpu_linear, "available_bytes", lambda device: 320_000_000)
    assert packs_weights(weight, count)
    monkeypatch.setattr(cpu_linear, "available_bytes", lambda device: 319_000_000)
    assert not packs_weights(weight, count)


@pytest.mark.parametrize(("width", "out"), [(576, 960), (1536, 576), (576, 4096), (896, 130)])
def test_packed_products_are_those_of_torch_whatever_the_rows_beside(width, out):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(out, width, generator=generator) / width**0.5, torch.randn(70, width, generator=generator)
    bias = torch.randn(out, generator=generator)
    packed = pack_weight(weight)
    whole = multiply_packed(x, packed, bias)
    torch.testing.assert_close(
        whole, F.linear(x.double(), weight.double(), bias.double()).float(), atol=1e-5, rtol=1e-5
    )
    for count in (4, 5, 8, 13, 32, 64):
        for first in (0, 3, 70 - count):
            part = multiply_packed(x[first : first + count], packed, bias)
            assert torch.equal(part, whole[first : first + count]), (count, first)


def _gradients(policy: Policy, ids: torch.Tensor, *, recompute: bool = False) -> dict[str, torch.Tensor]:
    model = policy.clone().model.train()
    if recompute:
        apply_recompute(model)
    with linear_by_onednn(model):
        logits = model(input_ids=ids, use_cache=False).logits
    logits.log_softmax(-1).square().mean().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("is_trained", [True, False])
def test_frozen_layers_keep_no_input_for_backward(monkeypatch, is_trained):
    monkeypatch.setattr(cpu_linear, "MIN_PRETRAINED", 1)
    layer, x = torch.nn.Linear(128, 256), torch.randn(9, 128, requires_grad=True)
    layer.requires_grad_(is_trained)
    saved_bytes: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved_bytes.append(tensor.nbytes)
        return tensor

    with linear_by_onednn(layer), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        product = layer(x)
    assert sum(saved_bytes) == layer.weight.nbytes + (x.nbytes if is_trained else 0)
    product.square().sum().backward()
    expected = x.detach().clone().requires_grad_()
    F.linear(expected, layer.weight.detach(), layer.bias.detach()).square().sum().backward()
    torch.testing.assert_close(x.grad, expected.grad, atol=1e-4, rtol=1e-4)
    assert (layer.weight.grad is not None) == is_trained


def test_layers_that_are_computed_again_stay_with_torch(monkeypatch):
    """A recomputed layer must save what it saved before; here gradients are those without recomputation."""
    policy, ids = byte_policy(), torch.arange(40).view(2, 20)
    expected = _gradients(policy, ids)
    monkeypatch.setattr(cpu_linear, "MIN_PRETRAINED", 1)
    found = _gradients(policy, ids, recompute=True)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


def test_arguments_by_name(monkeypatch):
    monkeypatch.setattr(cpu_linear, "MIN_PRETRAINED", 1)
    x, weight, bias = torch.randn(3, 256), torch.randn(128, 256, requires_grad=True), torch.randn(128)
    with linear_by_onednn(torch.nn.Linear(8, 8)):
        result = F.linear(bias=bias, weight=weight, input=x)
    assert "OneDnn" in str(result.grad_fn)
    torch.testing.assert_close(result, F.linear(x, weight, bias), atol=1e-4, rtol=1e-4)


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(96, 256)
        self.second = torch.nn.Linear(256, 96, bias=False)
        self.frozen = torch.nn.Linear(96, 256)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.second(torch.tanh(self.first(x))))


def test_gradients_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(cpu_linear, "MIN_PRETRAINED", 1)
    torch.manual_seed(0)
    model, x = _Model(), torch.randn(3, 7, 96, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), [x, *(p for p in model.parameters() if p.requires_grad)])
    with linear_by_onednn(model):
        result = model(x)
    assert "OneDnn" in str(result.grad_fn) + str(result.grad_fn.next_functions)
    found = torch.autograd.grad(result.square().sum(), [x, *(p for p in model.parameters() if p.requires_grad)])
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_small_models_bfloat16_and_autocast_stay_with_torch(monkeypatch):
    model = _Model()
    with linear_by_onednn(model):
        assert "OneDnn" not in str(model(torch.randn(4, 96)).grad_fn), "a small model"
    monkeypatch.setattr(cpu_linear, "MIN_PRETRAINED", 1)
    with linear_by_onednn(model), torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(4, 96)).dtype == torch.bfloat16
    with linear_by_onednn(model.bfloat16()):
        assert model(torch.randn(4, 96, dtype=torch.bfloat16)).dtype == torch.bfloat16


def _resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_pages_of_a_file_are_given_back_and_keep_their_values(tmp_path):
    size = 32 * 2**20
    torch.arange(size // 4, dtype=torch.int32).numpy().tofile(tmp_path / "weights")
    tensor = torch.from_file(str(tmp_path / "weights"), shared=False, size=size // 4, dtype=torch.int32)
    total = int(tensor.sum(dtype=torch.int64))
    before = _resident()
    release_pages([tensor])
    assert before - _resident() > 0.9 * size
    assert int(tensor.sum(dtype=torch.int64)) == total
    tensor[5] = 77
    release_pages([tensor])
    assert int(tensor[5]) == 77 and int(tensor[6]) == 6
    plain = torch.ones(2**20)
    release_pages([plain])
    assert float(plain.sum()) == 2**20
