"""Policy gradients as objectives: parity with trl and torchrl, levels, columns, and what cuts must not change."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.learn.objectives import Objective, Outputs
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_packed, collate_padded
from evolvent.rl.objective import (
    Aggregate,
    Clip,
    ClippedWeight,
    Divergence,
    ImportanceWeights,
    PolicyGradient,
    Reinforce,
    ValueLoss,
    policy_gradient,
)
from evolvent.rl.presets import DAPO, DR_GRPO, GRPO, GSPO, PRESETS, cispo

PEERS = json.loads(Path(__file__).with_name("policy_peers.json").read_text(encoding="utf-8"))
OBJECTIVES = [
    *(preset.objective for preset in PRESETS),
    cispo(low=0.3, high=2.0).objective,
    policy_gradient(
        PolicyGradient(
            ratio="span",
            surrogate=Clip(0.1, 0.3, dual=3.0),
            aggregate=Aggregate("sequence_mean"),
            kl=Divergence(0.1, "k2"),
            entropy_coef=0.01,
            value_loss=ValueLoss(0.7, huber=0.5, level="action"),
            importance_weights=ImportanceWeights(1.5, "masked", "sequence"),
        )
    ),
]


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch_of(lengths: list[int], weights: Tensor | None = None, **columns: Tensor) -> Batch:
    """A batch of these targets; ids and positions play no part."""
    number = sum(lengths)
    index = torch.arange(number)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    given = torch.ones(number, dtype=torch.float64) if weights is None else weights
    ids = torch.zeros(1, number + 1, dtype=torch.int64)
    return Batch(ids, index, index * 0, given, tuple(range(len(lengths))), number, sequence=sequence, columns=columns)


def mean(objective: Objective, outputs: Outputs, batch: Batch) -> float:
    loss, count = objective.loss(outputs, batch)
    assert count == objective.count(batch)
    return loss.item() / count


# ------------------------------------------------------------------ parity


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("grpo", GRPO.objective),
        ("dr_grpo", policy_gradient(replace(DR_GRPO.loss, aggregate=Aggregate("constant_length", length=7)))),
        ("dapo", DAPO.objective),
        ("gspo", policy_gradient(replace(GSPO.loss, surrogate=Clip(0.03, 0.04)))),
        ("cispo", cispo(low=1.0, high=0.3).objective),
    ],
)
def test_parity_with_trl(name: str, objective: Objective) -> None:
    """Loss and gradient of trl 1.16's GRPO trainer on the same tensors (made by make_policy_peers.py)."""
    given_, expected = PEERS["groups"]["given"], PEERS["groups"]["expected"][name]
    tensors = {key: torch.tensor(value, dtype=torch.float64) for key, value in given_.items()}
    real = tensors["mask"] > 0
    lengths = real.sum(1)
    flat = {key: tensors[key][real] for key in ("old", "reference")}
    logprobs = tensors["logprobs"][real].requires_grad_()
    batch = batch_of(lengths.tolist(), advantages=tensors["advantages"].repeat_interleave(lengths), **flat)
    loss, count = objective.loss(Outputs(logprobs), batch)
    (found,) = torch.autograd.grad(loss / count, logprobs)
    assert loss.item() / count == pytest.approx(expected["loss"], abs=1e-6)
    slopes = torch.tensor(expected["gradient"], dtype=torch.float64)
    torch.testing.assert_close(found, slopes[real], rtol=0, atol=1e-6)
    assert (slopes[~real] == 0).all()


def test_parity_with_torchrl() -> None:
    """Clipped objective, clipped value loss and entropy bonus of torchrl 0.14's ClipPPOLoss on the same tensors."""
    given_, expected = PEERS["ppo"]["given"], PEERS["ppo"]["expected"]
    tensors = {key: torch.tensor(value) for key, value in given_.items()}
    tensors = {key: tensor.double() if key != "action" else tensor for key, tensor in tensors.items()}
    table = tensors["logits"].log_softmax(-1)
    outputs = Outputs(table[range(6), tensors["action"]], tensors["values"], entropy=-(table.exp() * table).sum(-1))
    batch = batch_of([6], **{key: tensors[key] for key in ("old", "advantages", "returns", "old_values")})
    policy = mean(policy_gradient(), outputs, batch)
    assert policy == pytest.approx(expected["loss_objective"], abs=1e-6)
    bonus = mean(policy_gradient(PolicyGradient(entropy_coef=0.01)), outputs, batch) - policy
    assert bonus == pytest.approx(expected["loss_entropy"], abs=1e-6)
    critic = mean(policy_gradient(PolicyGradient(value_loss=ValueLoss(1.0, clip=0.2))), outputs, batch) - policy
    assert critic == pytest.approx(expected["loss_critic"], abs=1e-6)  # theirs: .5 of the square, not of its half


# ------------------------------------------------------------------ levels


def test_an_action_level_ratio_multiplies_inside() -> None:
    """Actions of 2 and 1 parts: ratios 1.5 * .9 = 1.35, held at 1.2, and 1.1."""
    batch = batch_of(
        [3], old=row(0, 0, 0), advantages=row(1, 1, 1), action=torch.tensor([0, 0, 1]), span=torch.tensor([0, 1, 2])
    )
    outputs = Outputs(row(1.5, 0.9, 1.1).log())
    by_action = PolicyGradient(ratio="action", aggregate=Aggregate("unit_mean", level="action"))
    assert mean(policy_gradient(by_action), outputs, batch) == pytest.approx(-(1.2 + 1.1) / 2)
    assert mean(policy_gradient(replace(by_action, ratio="span")), outputs, batch) == pytest.approx(
        -((1.2 + 0.9) / 2 + 1.1) / 2
    )
    sequence = replace(by_action, ratio="sequence", surrogate=Clip(0.5, 0.5))
    assert mean(policy_gradient(sequence), outputs, batch) == pytest.approx(-((1.5 * 0.9 * 1.1) ** (1 / 3)))


def test_action_numbers_of_two_sequences_are_told_apart() -> None:
    """Both sequences end and begin with their action 0."""
    batch = batch_of([1, 1], old=row(0, 0), advantages=row(1, 1), action=torch.tensor([0, 0]))
    settings_ = PolicyGradient(ratio="action", aggregate=Aggregate("unit_mean", level="action"))
    outputs = Outputs(row(1.1, 0.9).log())
    assert policy_gradient(settings_).count(batch) == 2
    assert mean(policy_gradient(settings_), outputs, batch) == pytest.approx(-1.0)


def test_values_above_the_part_are_those_of_first_targets() -> None:
    """An action's value is fitted once, with the weight of the whole action; what lies inside has no gradient."""
    batch = batch_of(
        [3, 1],
        old=row(0, 0, 0, 0),
        advantages=row(0, 0, 0, 0),
        returns=row(1, 9, 2, 3),
        action=torch.tensor([0, 0, 1, 0]),
    )
    values = row(0, 0, 0, 0).requires_grad_()
    objective = policy_gradient(PolicyGradient(value_loss=ValueLoss(1.0, level="action")))
    loss, _ = objective.loss(Outputs(row(0, 0, 0, 0), values), batch)
    assert loss.item() == pytest.approx(2 * 0.5 + 0.5 * 4 + 0.5 * 9)
    torch.autograd.backward(loss)
    assert values.grad is not None and values.grad.tolist() == [-2, 0, -2, -3]


def test_a_sequence_without_targets_before_it_is_no_matter() -> None:
    """Sequence numbers beyond the number of targets."""
    batch = replace(batch_of([1], old=row(0), advantages=row(2)), sequence=torch.tensor([7]))
    for ratio in ("part", "sequence"):
        assert mean(policy_gradient(PolicyGradient(ratio=ratio)), Outputs(row(0)), batch) == -2.0


# ------------------------------------------------------------------ terms


def test_learning_weights_multiply_terms_and_not_the_count() -> None:
    batch = batch_of([2], row(2.0, 0.5), old=row(0, 0), advantages=row(1, 4))
    assert mean(policy_gradient(), Outputs(row(0, 0)), batch) == pytest.approx(-(2 + 2) / 2)


def test_terms_add_up() -> None:
    """Surrogate -1 and 2; k2 of .5 and 0; entropies 1 and 3; behaviour weights 2 (capped) and 1 for the surrogate."""
    batch = batch_of([2], old=row(-1, -2), advantages=row(1, -2), reference=row(-2, -2), behaviour=row(-5, -2))
    outputs = Outputs(row(-1, -2), entropy=row(1, 3))
    full = PolicyGradient(kl=Divergence(0.1, "k2"), entropy_coef=0.01, importance_weights=ImportanceWeights(2.0))
    objective = policy_gradient(full)
    assert objective.needs == ("logprobs", "entropy", "reference")
    assert mean(objective, outputs, batch) == pytest.approx((-2 + 2 + 0.1 * 0.5 - 0.01 * 4) / 2)
    masked = policy_gradient(replace(full, importance_weights=ImportanceWeights(2.0, "masked")))
    assert mean(masked, outputs, batch) == pytest.approx((0 + 2 + 0.1 * 0.5 - 0.01 * 4) / 2)


def test_stats_and_the_limit() -> None:
    batch = batch_of([2, 2], old=row(0, 0, 0, 0), advantages=row(1, 1, 1, 1), behaviour=row(0, 0, 0, 0))
    objective = policy_gradient(
        PolicyGradient(target_kl=0.02, importance_weights=ImportanceWeights(), entropy_coef=0.1)
    )
    assert objective.limit == ("kl", 0.02) and objective.stats is not None
    found = objective.stats(Outputs(row(0, 0.5, 0, 0).requires_grad_(), entropy=row(1, 2, 3, 4)), batch)
    assert tuple(found) == objective.metric_names
    value, count = found["kl"]
    assert float(value) / count == pytest.approx((math.exp(0.5) - 1.5) / 4) and not value.requires_grad
    assert (float(found["clip_high"][0]), found["clip_high"][1]) == (1.0, 4)
    for preset in PRESETS:
        assert (preset.objective.limit is None) == (preset.loss.target_kl is None)


def test_reinforce_is_never_clipped() -> None:
    batch = batch_of([2], old=row(0, 0), advantages=row(1, -1))
    objective = policy_gradient(PolicyGradient(surrogate=Reinforce()))
    assert objective.stats is not None
    found = objective.stats(Outputs(row(9, -9)), batch)
    assert found["clip_high"][0] == found["clip_low"][0] == 0


# ------------------------------------------------------------------ the contract of objectives


def part(number: int, length: int, learned: list[int]) -> TokenSequence:
    """A sequence whose columns hold what a model would say; what is not learned is NaN."""
    rng = np.random.default_rng(number)
    weight = np.zeros(length, np.float32)
    weight[learned] = rng.choice([0.5, 1.0, 2.0], len(learned))
    marks, zeros = np.zeros(length, np.bool_), np.zeros(length, np.int32)
    said = rng.normal(-2, 0.5, length)
    columns: dict[str, Any] = {name: said + rng.normal(0, 0.2, length) for name in ("old", "behaviour", "reference")}
    columns |= {name: rng.normal(0, 1, length) for name in ("advantages", "returns", "old_values", "values")}
    columns |= {"said": said, "entropy": rng.random(length)}
    for column in columns.values():
        column[weight == 0] = np.nan
    columns |= {"action": np.cumsum(rng.random(length) < 0.4), "span": np.cumsum(rng.random(length) < 0.6)}
    return TokenSequence(f"p{number}", zeros, marks, marks, weight * 0, zeros, zeros, weight, columns=columns)


def said(batch: Batch) -> Outputs:
    columns = batch.columns
    return Outputs(columns["said"].requires_grad_(), columns["values"].requires_grad_(), entropy=columns["entropy"])


@st.composite
def sequences(draw: st.DrawFn) -> list[TokenSequence]:
    made = []
    for number in range(draw(st.integers(2, 6))):
        length = draw(st.integers(2, 8))
        learned = draw(st.lists(st.integers(1, length - 1), min_size=1, unique=True))
        made.append(part(number + 10 * draw(st.integers(0, 99)), length, sorted(learned)))
    return made


@pytest.mark.parametrize("number", range(len(OBJECTIVES)))
@settings(max_examples=8, deadline=None)
@given(parts=sequences(), cuts=st.lists(st.booleans(), min_size=5, max_size=5), packed=st.booleans())
def test_the_split_into_micro_batches_changes_nothing(
    number: int, parts: list[TokenSequence], cuts: list[bool], packed: bool
) -> None:
    """Loss, count and gradient of a whole update are the sums over its micro-batches, padded or packed."""
    objective = OBJECTIVES[number]
    whole = collate_padded(parts, [[at] for at in range(len(parts))])
    groups: list[list[int]] = [[0]]
    for at, cut in zip(range(1, len(parts)), cuts, strict=False):
        groups.append([at]) if cut else groups[-1].append(at)
    pieces = [
        collate_packed(parts, [group]) if packed else collate_padded(parts, [[at] for at in group]) for group in groups
    ]
    sums, slopes = [], []
    for batch in (whole, *pieces, collate_padded(parts, [])):
        outputs = said(batch)
        loss, count = objective.loss(outputs, batch)
        assert math.isfinite(loss.item()) and count == objective.count(batch)
        sums.append((loss.item(), count))
        if batch.count:
            torch.autograd.backward(loss)
            assert outputs.logprobs is not None and outputs.logprobs.grad is not None
            slopes.append(outputs.logprobs.grad)
    assert sums[0][1] == sum(count for _, count in sums[1:]) and sums[-1] == (0.0, 0)
    assert sums[0][0] == pytest.approx(sum(loss for loss, _ in sums[1:]), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(slopes[0], torch.cat(slopes[1:]), rtol=1e-6, atol=1e-9)


def test_padding_changes_nothing() -> None:
    """The constant length is a setting, and not the width of the batch."""
    parts = [part(1, 4, [1, 2, 3]), part(2, 3, [2])]
    for objective in OBJECTIVES:
        narrow, wide = (collate_padded(parts, [[0], [1]], shape=shape) for shape in ((0, 1), (3, 40)))
        assert mean(objective, said(narrow), narrow) == mean(objective, said(wide), wide)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
def test_missing_columns_are_named(objective: Objective) -> None:
    batch = collate_padded([part(1, 4, [1, 2, 3])], [[0]])
    outputs, read = said(batch), 0
    for name in ("advantages", "old", "behaviour", "reference", "returns", "old_values", "action", "span"):
        without = replace(batch, columns={key: value for key, value in batch.columns.items() if key != name})
        try:
            objective.loss(outputs, without)
        except BatchMismatch as error:
            read += 1
            assert f"no column '{name}'" in str(error) and error.hint
    assert read >= 2


def test_missing_outputs_are_named() -> None:
    batch = collate_padded([part(1, 4, [1, 2, 3])], [[0]])
    with pytest.raises(BatchMismatch, match="lack 'logprobs'"):
        policy_gradient().loss(Outputs(), batch)
    with pytest.raises(BatchMismatch, match="lack 'values'"):
        policy_gradient(PolicyGradient(value_loss=ValueLoss())).loss(Outputs(row(0, 0, 0)), batch)
    with pytest.raises(BatchMismatch, match="the batch has no sequence index"):
        policy_gradient().loss(Outputs(row(0, 0, 0)), replace(batch, sequence=None))


def test_settings_are_the_identity() -> None:
    texts = {repr(objective) for objective in OBJECTIVES}
    assert len(texts) == len(OBJECTIVES)
    again = policy_gradient(PolicyGradient(target_kl=0.02, temperature=0.7))
    assert repr(again) == repr(policy_gradient(PolicyGradient(target_kl=0.02, temperature=0.7)))
    assert repr(again) != repr(policy_gradient(PolicyGradient(target_kl=0.02)))
    assert again.temperature == 0.7


def test_objectives_can_be_sent_to_other_processes() -> None:
    for objective in OBJECTIVES:
        sent = ForkingPickler.loads(ForkingPickler.dumps(objective))
        assert repr(sent) == repr(objective)


def test_all_bad_settings_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PolicyGradient(
            surrogate=Clip(-0.1, -1.0, dual=1.0),
            aggregate=Aggregate("constant_length"),
            kl=Divergence(0.0),
            value_loss=ValueLoss(0.0, clip=0.0, huber=-1.0),
            importance_weights=ImportanceWeights(0.0),
            target_kl=0.0,
            temperature=0.0,
        )
    assert [problem.where for problem in caught.value.problems] == [
        "surrogate.low",
        "surrogate.high",
        "surrogate.dual",
        "kl.beta",
        "value_loss.coefficient",
        "value_loss.clip",
        "value_loss.huber",
        "importance_weights.max_weight",
        "target_kl",
        "temperature",
        "aggregate.length",
    ]
    with pytest.raises(ConfigError, match=r"surrogate\.low"):
        PolicyGradient(surrogate=ClippedWeight(2.0, 1.0))
    with pytest.raises(
        ConfigError, match=r"aggregate\.length: set it exactly when aggregate.kind is 'constant_length'"
    ):
        PolicyGradient(aggregate=Aggregate("part_mean", length=5))
