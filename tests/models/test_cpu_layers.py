"""Layers of large models on a CPU: numbers and gradients of PyTorch's own, rows that do not depend on each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from evolvent.learn.parallel.lay import apply_recompute
from evolvent.models import cpu_layers
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.cpu_layers import fast_layers, multiply_packed, pack_weight, packs_weights, release_pages
from evolvent.models.policy import Policy
from tests.learn.byte_policy import byte_policy

pytestmark = pytest.mark.skipif(
    not packs_weights(torch.zeros(2, 2), 10**7), reason="needs PyTorch with oneDNN on this processor"
)


def test_a_copy_of_the_weights_takes_at_most_half_of_the_free_memory(monkeypatch):
    weight, count = torch.zeros(2, 2), 20_000_000  # 80 MB
    monkeypatch.setattr(cpu_layers, "available_bytes", lambda device: 160_000_000)
    assert packs_weights(weight, count)
    monkeypatch.setattr(cpu_layers, "available_bytes", lambda device: 159_000_000)
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
    with fast_layers(model):
        logits = model(input_ids=ids, use_cache=False).logits
    logits.log_softmax(-1).square().mean().backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("is_trained", [True, False])
def test_frozen_layers_keep_no_input_for_backward(monkeypatch, is_trained):
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    layer, x = torch.nn.Linear(128, 256), torch.randn(9, 128, requires_grad=True)
    layer.requires_grad_(is_trained)
    saved_bytes: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved_bytes.append(tensor.nbytes)
        return tensor

    with fast_layers(layer), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
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
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    found = _gradients(policy, ids, recompute=True)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


def test_arguments_by_name(monkeypatch):
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    x, weight, bias = torch.randn(3, 256), torch.randn(128, 256, requires_grad=True), torch.randn(128)
    with fast_layers(torch.nn.Linear(8, 8)):
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
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    torch.manual_seed(0)
    model, x = _Model(), torch.randn(3, 7, 96, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), [x, *(p for p in model.parameters() if p.requires_grad)])
    with fast_layers(model):
        result = model(x)
    assert "OneDnn" in str(result.grad_fn) + str(result.grad_fn.next_functions)
    found = torch.autograd.grad(result.square().sum(), [x, *(p for p in model.parameters() if p.requires_grad)])
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_small_models_bfloat16_and_autocast_stay_with_torch(monkeypatch):
    model = _Model()
    with fast_layers(model):
        assert "OneDnn" not in str(model(torch.randn(4, 96)).grad_fn), "a small model"
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    with fast_layers(model), torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(4, 96)).dtype == torch.bfloat16
    with fast_layers(model.bfloat16()):
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


# ---------------------------------------------------------------- adapters, norms, attention


def _adapted(**settings) -> Policy:
    policy = byte_policy()
    with torch.no_grad():
        adapted = adapt(policy, AdapterConfig(kind="lora", targets=("all-linear",), **settings), seed=1)
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return adapted


def _learn(
    policy: Policy, *, dtype: torch.dtype = torch.float32, first: int = 0
) -> tuple[float, dict[str, torch.Tensor]]:
    """Returns a loss and its gradients, with the layers of this module."""
    ids, model = torch.arange(first, first + 40).view(2, 20), policy.model.train()
    model.zero_grad()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.random.fork_rng(), autocast, fast_layers(model):
        torch.manual_seed(3)
        logits = model(input_ids=ids, use_cache=False).logits
    loss = logits.float().log_softmax(-1).square().mean()
    loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    assert not [module for module in model.modules() if "forward" in vars(module)], "every layer is as it was"
    return float(loss.detach()), gradients


@pytest.mark.parametrize(
    ("settings", "is_fused"),
    [({"rank": 4}, True), ({"rank": 4, "alpha": 12}, True), ({"rank": 4, "dropout": 0.5}, False)],
)
def test_a_layer_with_an_adapter_learns_as_in_peft(monkeypatch, settings, is_fused):
    policy = _adapted(**settings)
    expected_loss, expected = _learn(policy)
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(cpu_layers._LoraLinear, "forward", _counting(cpu_layers._LoraLinear.forward, calls))
    loss, gradients = _learn(policy)
    assert bool(calls) == is_fused
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert gradients.keys() == expected.keys() and all("lora" in name for name in gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3)


def _counting(function: Callable[..., Any], calls: list[Any]) -> staticmethod:
    def count(ctx: Any, *args: Any) -> Any:
        calls.append(args[0])
        return function(ctx, *args)

    return staticmethod(count)


def test_disabled_merged_and_dora_adapters_stay_with_peft(monkeypatch):
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(cpu_layers._LoraLinear, "forward", _counting(cpu_layers._LoraLinear.forward, calls))
    dora = adapt(byte_policy(), AdapterConfig(kind="dora", rank=2, targets=("all-linear",)), seed=1)
    _learn(dora)
    policy, ids = _adapted(rank=2), torch.arange(40).view(2, 20)
    with policy.model.disable_adapter(), fast_layers(policy.model), torch.no_grad():
        bare = policy.model(input_ids=ids).logits
    torch.testing.assert_close(bare, byte_policy().model(input_ids=ids).logits, atol=1e-5, rtol=1e-4)
    policy.model.merge_adapter()
    with fast_layers(policy.model), torch.no_grad():
        policy.model(input_ids=ids)
    assert not calls


def test_bfloat16_adapters_and_attention_are_within_its_rounding(monkeypatch):
    """Beside float32, the gradients over five texts are at most a fifth further off than PyTorch's own."""
    policy = _adapted(rank=4)
    texts = range(0, 200, 40)
    exact = [_learn(policy, first=first) for first in texts]
    rounded = [_learn(policy, dtype=torch.bfloat16, first=first) for first in texts]
    monkeypatch.setattr(cpu_layers, "MIN_PRETRAINED", 1)
    calls: list[torch.Tensor] = []
    monkeypatch.setattr(cpu_layers._Attention, "forward", _counting(cpu_layers._Attention.forward, calls))
    found = [_learn(policy, dtype=torch.bfloat16, first=first) for first in texts]
    assert len(calls) == 2 * len(texts), "two layers"
    for (loss, _), (exact_loss, _) in zip(found, exact, strict=True):
        assert loss == pytest.approx(exact_loss, rel=2e-2)

    def measure_error(learned: list[tuple[float, dict[str, torch.Tensor]]]) -> float:
        pairs = zip(learned, exact, strict=True)
        squares = [(ours[name] - theirs[name]).square().sum() for (_, ours), (_, theirs) in pairs for name in theirs]
        return float(torch.stack(squares).sum()) ** 0.5

    assert measure_error(found) <= 1.2 * measure_error(rounded)


@pytest.mark.parametrize("masked", ["causal", "rows", "shared"])
def test_attention_of_short_rows_is_attention(masked):
    """Beside float64: output and gradients as exact as those of PyTorch's own in bfloat16, to half as much again."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 6, 37, 16), (3, 2, 37, 16), (3, 2, 37, 16))
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    gradient = torch.randn(shapes[0], generator=generator).bfloat16()
    mask = None
    if masked != "causal":
        drawn = torch.rand(3 if masked == "rows" else 1, 1, 37, 37, generator=generator) > 0.5
        mask = drawn | torch.eye(37, dtype=torch.bool)

    def attend(function: Callable[..., Any], dtype: torch.dtype) -> list[torch.Tensor]:
        tensors = [each.to(dtype, copy=True).requires_grad_() for each in inputs]
        result = function(*tensors, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        result.backward(gradient.to(dtype))
        return [result.detach().double(), *(each.grad.double() for each in tensors)]

    exact = attend(F.scaled_dot_product_attention, torch.float64)
    theirs = attend(F.scaled_dot_product_attention, torch.bfloat16)
    ours = attend(cpu_layers._attend, torch.bfloat16)
    for found, rounded, expected in zip(ours, theirs, exact, strict=True):
        assert float((found - expected).abs().mean()) <= 1.5 * float((rounded - expected).abs().mean())


def test_long_rows_float32_and_attention_that_learns_nothing_stay_with_torch():
    short = torch.randn(1, 2, 8, 16).bfloat16()
    learned, long = short.clone().requires_grad_(), torch.randn(1, 2, 513, 16).bfloat16().requires_grad_()
    assert cpu_layers._attend(learned, learned, learned, is_causal=True) is not None
    assert cpu_layers._attend(short, short, short, is_causal=True) is None
    assert cpu_layers._attend(long, long, long, is_causal=True) is None
    assert cpu_layers._attend(learned, learned, learned, is_causal=True, dropout_p=0.1) is None
    in_float = torch.randn(1, 2, 8, 16, requires_grad=True)
    assert cpu_layers._attend(in_float, in_float, in_float, is_causal=True) is None
    assert cpu_layers._attend(learned[:, :, :1], learned, learned) is None, "one query, as in decoding"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_its_gradients_are_those_of_llama(dtype):
    norm = LlamaRMSNorm(32, eps=1e-5).to(dtype)
    generator = torch.Generator().manual_seed(0)
    norm.weight.data.copy_(torch.rand(32, generator=generator) + 0.5)
    x = torch.randn(2, 5, 32, generator=generator).to(dtype).requires_grad_()
    gradient = torch.randn(2, 5, 32, generator=generator).to(dtype)
    expected = torch.autograd.grad(norm(x), (x, norm.weight), gradient)
    result = cpu_layers._run_norm(norm, x)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(result, norm(x), atol=tolerance, rtol=tolerance)
    assert "RmsNorm" in str(result.grad_fn)
    for ours, theirs in zip(torch.autograd.grad(result, (x, norm.weight), gradient), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def test_norms_of_another_formula_stay_as_they_are():
    assert cpu_layers._is_rms_norm(LlamaRMSNorm) and cpu_layers._is_rms_norm(Qwen3RMSNorm)
    assert not cpu_layers._is_rms_norm(GemmaRMSNorm), "one more than its weight"
    assert not cpu_layers._is_rms_norm(torch.nn.LayerNorm)


@pytest.mark.parametrize("surroundings", [FakeTensorMode, lambda: torch.device("meta"), torch.inference_mode])
def test_the_kind_of_a_norm_does_not_depend_on_where_it_is_first_met(surroundings):
    cpu_layers._is_rms_norm.cache_clear()  # as before a training that first estimates its memory
    with surroundings():
        assert cpu_layers._is_rms_norm(LlamaRMSNorm) and not cpu_layers._is_rms_norm(GemmaRMSNorm)
    assert cpu_layers._is_rms_norm(LlamaRMSNorm)
