"""Log-probabilities in blocks of targets: equal to those of whole logits, without a tensor of that size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Gemma2Config, GraniteConfig, LlamaConfig, LlamaForCausalLM

from evolvent.learn import forward
from evolvent.learn.forward import compute_outputs
from evolvent.learn.fused_head import head_logprobs
from evolvent.learn.token_sequences import Batch

N, H, V = 13, 8, 50


def plain_logprobs(states, weight, bias, targets, temperature):
    logits = F.linear(states, weight, bias).float() / temperature
    logp = logits.log_softmax(-1)
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("block_logits", [1, 3 * V, 100 * V])
@pytest.mark.parametrize("trains_head", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_head_logprobs_and_gradients_are_those_of_whole_logits(block_logits, trains_head, has_bias):
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(N, H, generator=generator), torch.randn(V, H, generator=generator)
    bias = torch.randn(V, generator=generator) if has_bias else None
    targets = torch.randint(V, (N,), generator=generator)
    advantages = torch.randn(N, generator=generator)
    gradients = []
    for compute in (plain_logprobs, None):
        leaves = [states.clone().requires_grad_()]
        leaves += [weight.clone().requires_grad_(trains_head)]
        leaves += [bias.clone().requires_grad_(trains_head)] if bias is not None else []
        arguments = (leaves[0], leaves[1], leaves[2] if has_bias else None, targets)
        if compute is None:
            logprobs, entropy = head_logprobs(
                *arguments, temperature=0.7, needs_entropy=True, block_logits=block_logits
            )
        else:
            expected_logprobs, expected_entropy = compute(*arguments, 0.7)
            logprobs = expected_logprobs
        (logprobs.exp() * advantages).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert torch.allclose(logprobs, expected_logprobs, atol=1e-5)
    assert torch.allclose(entropy, expected_entropy, atol=1e-5) and not entropy.requires_grad
    for ours, theirs in zip(*reversed(gradients), strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, atol=2e-6)


def test_only_the_head_is_trained_below_frozen_layers():
    weight = torch.randn(V, H, generator=torch.Generator().manual_seed(1)).requires_grad_()
    states, targets = torch.ones(2, H), torch.tensor([3, 4])
    head_logprobs(states, weight, None, targets, block_logits=V)[0].sum().backward()
    expected = weight.detach().clone().requires_grad_()
    plain_logprobs(states, expected, None, targets, 1.0)[0].sum().backward()
    assert torch.allclose(weight.grad, expected.grad, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Notes the largest number of elements that an operation returned, weights left out."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor._base is None:
                self.numel = max(self.numel, tensor.numel())
        return result


class HalfLogits(LlamaForCausalLM):
    """Changes its head's logits as no setting tells."""

    def forward(self, *arguments, **options):
        output = super().forward(*arguments, **options)
        output.logits = 0.5 * output.logits
        return output


def build_model(config_class, *, model_class=AutoModelForCausalLM, **settings):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = config_class(**sizes, num_key_value_heads=2, head_dim=8, vocab_size=512, **settings)
    model = (
        model_class.from_config(config, attn_implementation="eager")
        if model_class is AutoModelForCausalLM
        else model_class(config)
    )
    model.eval()
    model.value_head = nn.Linear(16, 1)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20.0)
    return model


def build_batch(count=24):
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, 512, (2, count)))
    index = torch.tensor([*range(count - 1), *range(count, 2 * count - 1)])
    targets = ids.flatten()[index + 1]
    return Batch(ids, index, targets, torch.ones(len(index)), (0, 1), 2 * count)


MODELS = {  # config, settings, and what is known of the head afterwards; None: never asked, as settings tell
    "llama": (LlamaConfig, {}, True),
    "half logits": (LlamaConfig, {"model_class": HalfLogits}, False),
    "gemma2": (Gemma2Config, {"final_logit_softcapping": 2.0}, None),
    "granite": (GraniteConfig, {"logits_scaling": 3.0}, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_of_models_are_those_of_whole_logits(monkeypatch, name):
    config_class, settings, keeps_logits = MODELS[name]
    model, batch = build_model(config_class, **settings), build_batch()
    model.get_output_embeddings().weight.requires_grad_(False)
    results = []
    for min_head in (1 << 40, 1, 1):  # the last time, what the model does with its logits is known
        monkeypatch.setattr(forward, "_MIN_FUSED_HEAD", min_head)
        model.zero_grad()
        outputs = compute_outputs(model, batch, needs=("logprobs", "values"), temperature=0.8)
        (outputs.logprobs.exp().sum() + outputs.values.sum()).backward()
        with torch.no_grad():
            scored = compute_outputs(model, batch, needs=("logprobs", "entropy"), temperature=0.8)
        layer = next(weight for weight_name, weight in model.named_parameters() if "q_proj" in weight_name)
        results.append((outputs.logprobs.detach(), outputs.values.detach(), scored.entropy, layer.grad.clone()))
    for fused in results[1:]:
        for ours, theirs in zip(fused, results[0], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
    assert getattr(model.get_output_embeddings(), forward._KEEPS_LOGITS, None) is keeps_logits


def test_head_of_zeros_does_not_hide_what_a_model_does_with_its_logits(monkeypatch):
    monkeypatch.setattr(forward, "_MIN_FUSED_HEAD", 1)
    model, batch = build_model(LlamaConfig, model_class=HalfLogits), build_batch()
    head = model.get_output_embeddings()
    weight = head.weight.detach().clone()
    with torch.no_grad():
        head.weight.zero_()
        assert torch.allclose(compute_outputs(model, batch).logprobs, torch.tensor(-np.log(512.0)).float())
        head.weight.copy_(weight)
        in_blocks = compute_outputs(model, batch).logprobs
        monkeypatch.setattr(forward, "_MIN_FUSED_HEAD", 1 << 40)
        assert torch.allclose(in_blocks, compute_outputs(model, batch).logprobs, atol=1e-5)


def test_frozen_head_computes_no_tensor_of_all_logits(monkeypatch):
    model, batch = build_model(LlamaConfig), build_batch(60)
    for weight in (model.get_output_embeddings().weight, model.get_input_embeddings().weight):
        weight.requires_grad_(False)
    largest = {}
    for min_head in (1 << 40, 1):
        monkeypatch.setattr(forward, "_MIN_FUSED_HEAD", min_head)
        monkeypatch.setattr("evolvent.learn.fused_head._BLOCK_LOGITS", {"cpu": 8 * 512})
        with LargestTensor() as seen:
            compute_outputs(model, batch).logprobs.sum().backward()
        largest[min_head] = seen.numel
    assert largest[1 << 40] >= batch.count * 512 and largest[1] < batch.count * 512 / 3


def test_trained_head_is_computed_in_blocks_where_logits_are_many(monkeypatch):
    model, batch = build_model(LlamaConfig), build_batch()
    monkeypatch.setattr(forward, "_MIN_FUSED_HEAD", 1)
    gradients = []
    for limit in (1 << 40, batch.count * 512 - 1):
        monkeypatch.setattr(forward, "_MAX_TRAINED_LOGITS", limit)
        model.zero_grad()
        compute_outputs(model, batch, needs=("logprobs",), temperature=0.8).logprobs.sum().backward()
        assert hasattr(model.get_output_embeddings(), forward._KEEPS_LOGITS) is (limit != 1 << 40)
        gradients.append(
            {name: weight.grad.clone() for name, weight in model.named_parameters() if "value" not in name}
        )
    for name, gradient in gradients[1].items():
        assert torch.allclose(gradient, gradients[0][name], atol=1e-4), name
