"""Fault 27: NaN in positions that are not learned: loss and gradients are bit-equal to those without it."""

from __future__ import annotations

import pytest
import torch
from small_training import small_parts, small_policy

from evolvent.learn.forward import compute_outputs
from evolvent.learn.losses import weighted_nll
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.token_sequences import Batch, collate_packed, collate_padded
from evolvent.rl.objective import Aggregate, Divergence, ImportanceWeights, PolicyGradient, ValueLoss, policy_gradient
from evolvent.rl.presets import PRESETS, cispo


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
    loss = weighted_nll(compute_outputs(policy.model, batch).logprobs, batch.weights)
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


CORRECTED = PolicyGradient(
    ratio="span",
    aggregate=Aggregate("unit_mean", level="action"),
    kl=Divergence(0.1, "k2"),
    entropy_coef=0.1,
    value_loss=ValueLoss(1.0, huber=0.5, level="span"),
    importance_weights=ImportanceWeights(2.0, "masked", "sequence"),
)
POLICY_OBJECTIVES = [
    *(preset.objective for preset in PRESETS),
    cispo(low=0.5, high=1.0).objective,
    policy_gradient(CORRECTED, name="corrected"),
]


@pytest.mark.parametrize("objective", POLICY_OBJECTIVES, ids=lambda objective: objective.name)
def test_masked_targets_of_a_policy(objective: Objective) -> None:
    """Log-probabilities, advantages, values, entropies and all columns; a NaN poisons no unit that it lies in."""
    weights = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0, 1.0])
    numbers = torch.arange(6)
    results = []
    for value in (-3.0, float("nan"), float("inf"), float("-inf")):
        generator = torch.Generator().manual_seed(0)
        names = ("said", "values", "entropy", "advantages", "old", "behaviour", "reference", "returns", "old_values")
        drawn = {name: torch.randn(6, generator=generator) for name in names}
        for column in drawn.values():
            column[weights == 0] = value
        learned = [drawn[name].requires_grad_() for name in ("said", "values", "entropy")]
        columns = {name: drawn[name] for name in names[3:]} | {"action": numbers // 2, "span": numbers // 2}
        ids, sequence = torch.zeros(1, 7, dtype=torch.int64), torch.tensor([0, 0, 0, 0, 1, 1])
        batch = Batch(ids, numbers, numbers, weights, (0, 1), 7, sequence=sequence, columns=columns)
        loss, count = objective.loss(Outputs(learned[0], learned[1], entropy=learned[2]), batch)
        slopes = torch.autograd.grad(loss, learned, allow_unused=True)
        results.append((loss.item(), count, [slope.tolist() for slope in slopes if slope is not None]))
    assert abs(results[0][0]) < float("inf") and any(abs(slope) > 0 for slope in results[0][2][0])
    assert results[0] == results[1] == results[2] == results[3]
