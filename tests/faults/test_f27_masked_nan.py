"""NaN in positions that are not learned: loss and gradients are bit-equal to those without it."""

from __future__ import annotations

import pytest
import torch
from small_training import small_parts, small_policy

from evolvent.learn.forward import outputs
from evolvent.learn.losses import weighted_nll
from evolvent.learn.packing import Batch, collate_packed, collate_padded


def gradients(batch: Batch, *, poison: bool) -> list[torch.Tensor]:
    """Loss and gradients; `poison` writes NaN into the last hidden states of every position without a target."""
    policy = small_policy()
    masked = torch.ones(batch.ids.numel(), dtype=torch.bool)
    masked[batch.index] = False

    def spoil(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill(masked.view(*batch.ids.shape, 1), float("nan"))

    if poison:
        policy.model.model.norm.register_forward_hook(spoil)
        assert policy.model(input_ids=batch.ids).logits.isnan().any()
    loss = weighted_nll(outputs(policy.model, batch).logprobs, batch.weights)
    torch.autograd.backward(loss)
    return [loss.detach(), *(w.grad for w in policy.model.parameters() if w.grad is not None)]


@pytest.mark.parametrize("packed", [False, True])
def test_masked_hidden_states(packed: bool) -> None:
    parts = small_parts(small_policy(), 4)
    batch = collate_packed(parts, [[0, 1], [2, 3]]) if packed else collate_padded(parts, [[i] for i in range(4)])
    clean, spoilt = gradients(batch, poison=False), gradients(batch, poison=True)
    assert len(clean) > 10 and all(torch.equal(a, b) for a, b in zip(clean, spoilt, strict=True))


def test_masked_log_probabilities() -> None:
    weights = torch.tensor([1.0, 0.0, 0.5])
    results = []
    for value in (-3.0, float("nan"), float("-inf")):
        logprobs = torch.tensor([-1.0, value, -2.0], requires_grad=True)
        loss = weighted_nll(logprobs, weights)
        loss.backward()
        assert logprobs.grad is not None
        results.append((loss.item(), logprobs.grad.tolist()))
    assert results[0] == results[1] == results[2]
