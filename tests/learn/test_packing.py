from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_parts, small_policy

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.learn.forward import can_pack, compute_outputs, resolve_layout
from evolvent.learn.losses import weighted_nll
from evolvent.learn.token_sequences import (
    Batch,
    TokenSequence,
    block_mask,
    bucket_by_length,
    collate_packed,
    collate_padded,
    pack_rows,
)
from evolvent.learn.trees import collate_trees

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def loss_sum(policy: object, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return weighted_nll(compute_outputs(policy.model, batch).logprobs, batch.weights)  # type: ignore[attr-defined]


def test_bucket_golden() -> None:
    found = bucket_by_length([9, 1, 8, 2, 30, 7], 16, rng=np.random.default_rng(0), width=1)
    assert sorted(sorted(batch) for batch in found) == [[0], [1, 3], [2, 5], [4]]


@settings(deadline=None, max_examples=80)
@given(LENGTHS, st.integers(1, 100), st.integers(1, 8), st.integers(0, 3))
def test_bucket_holds_everything_once_within_the_budget(lengths: list[int], budget: int, width: int, seed: int) -> None:
    batches = bucket_by_length(lengths, budget, rng=np.random.default_rng(seed), width=width)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        assert len(batch) * max(sizes) <= budget or len(batch) == 1
    assert batches == bucket_by_length(lengths, budget, rng=np.random.default_rng(seed), width=width)


def test_bucket_pads_little() -> None:
    lengths = np.random.default_rng(1).integers(40, 110, 400).tolist()
    batches = bucket_by_length(lengths, 768, rng=np.random.default_rng(0))
    padded = sum(len(b) * max(lengths[i] for i in b) for b in batches)
    assert sum(lengths) / padded > 0.95


def test_bucket_shuffles_inside_and_between() -> None:
    one, two = (bucket_by_length([5] * 20, 25, rng=np.random.default_rng(seed)) for seed in (0, 1))
    assert {frozenset(b) for b in one} != {frozenset(b) for b in two}


def test_pack_golden_is_best_fit_decreasing() -> None:
    assert pack_rows([3, 7, 5, 2, 4], 10) == [[1, 0], [2, 4], [3]]
    assert pack_rows([6, 5, 4, 3], 10) == [[0, 2], [1, 3]]
    with pytest.raises(BatchMismatch, match="got 11, expected at most 10"):
        pack_rows([3, 11], 10)


@settings(deadline=None, max_examples=80)
@given(LENGTHS, st.integers(40, 90))
def test_pack_fits_and_holds_everything_once(lengths: list[int], capacity: int) -> None:
    rows = pack_rows(lengths, capacity)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    sums = sorted(sum(lengths[i] for i in row) for row in rows)
    assert sums[-1] <= capacity
    assert len(rows) == 1 or sums[0] + sums[1] > capacity  # two rows that fit into one would have been one


@pytest.fixture(scope="module")
def parts() -> list[TokenSequence]:
    made = small_parts(small_policy(), 12)
    rng = np.random.default_rng(0)
    scales = [rng.choice(np.float32([0.0, 0.5, 1.0, 3.0]), len(sequence)) for sequence in made]
    made = [replace(sequence, weight=sequence.weight * scale) for sequence, scale in zip(made, scales, strict=True)]
    return [sequence for sequence in made if sequence.feed]


@pytest.mark.parametrize("packed", [False, True])
def test_every_target_is_there_once_with_its_context(parts: list[TokenSequence], packed: bool) -> None:
    rows = [[i] for i in range(len(parts))] if not packed else pack_rows([p.feed for p in parts], 60)
    batch = (collate_packed if packed else collate_padded)(parts, rows)
    flat = batch.ids.flatten()
    at, found = 0, 0
    for number, row in enumerate(rows):
        at = number * batch.ids.shape[1]
        for index in row:
            sequence = parts[index]
            assert flat[at : at + sequence.feed].tolist() == sequence.ids[: sequence.feed].tolist()
            if batch.positions is not None and batch.docs is not None:
                place = slice(at, at + sequence.feed)
                assert batch.positions.flatten()[place].tolist() == list(range(sequence.feed))
                assert len(set(batch.docs.flatten()[place].tolist())) == 1
            for place in np.flatnonzero(sequence.weight):
                assert batch.index[found] == at + place - 1
                assert batch.targets[found] == sequence.ids[place]
                assert batch.weights[found] == sequence.weight[place]
                found += 1
            at += sequence.feed
    assert found == batch.count == sum(int((p.weight != 0).sum()) for p in parts)
    if batch.docs is not None:
        assert len(set(batch.docs.flatten().tolist()) - {-1}) == len(parts)
    assert batch.real == sum(p.feed for p in parts) and batch.padded == batch.ids.numel() - batch.real
    assert sorted(batch.samples) == list(range(len(parts)))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_sums_equal_those_of_singles(parts: list[TokenSequence], attention: str) -> None:
    policy = small_policy(attention=attention)
    single = sum(loss_sum(policy, collate_padded(parts, [[i]])).item() for i in range(len(parts)))
    padded = loss_sum(policy, collate_padded(parts, [[i] for i in range(len(parts))])).item()
    packed = loss_sum(policy, collate_packed(parts, pack_rows([p.feed for p in parts], 60))).item()
    assert padded == pytest.approx(single, rel=1e-5) and packed == pytest.approx(single, rel=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_change_in_one_document_leaves_the_others(parts: list[TokenSequence], attention: str) -> None:
    policy = small_policy(attention=attention)
    batch = collate_packed(parts, [[0, 1, 2]])
    assert batch.docs is not None
    before = compute_outputs(policy.model, batch).logprobs
    changed = batch.ids.clone()
    changed[batch.docs == 1] = (changed[batch.docs == 1] + 1) % 12
    after = compute_outputs(
        policy.model, Batch(changed, batch.index, batch.targets, batch.weights, (), 0, batch.positions, batch.docs)
    )
    document = batch.docs.flatten()[batch.index]
    assert torch.equal(before[document != 1], after.logprobs[document != 1])
    assert (before[document == 1] - after.logprobs[document == 1]).abs().max() > 1e-4


def test_what_is_in_the_padding_does_not_matter(parts: list[TokenSequence]) -> None:
    policy = small_policy()
    batch = collate_padded(parts, [[0], [1], [2]])
    filled = batch.ids.clone()
    for row, index in enumerate((0, 1, 2)):
        filled[row, parts[index].feed :] = 7
    assert not torch.equal(filled, batch.ids)
    other = Batch(filled, batch.index, batch.targets, batch.weights, (), 0)
    assert torch.equal(compute_outputs(policy.model, batch).logprobs, compute_outputs(policy.model, other).logprobs)


def test_log_probabilities_are_those_of_all_logits(parts: list[TokenSequence]) -> None:
    policy = small_policy()
    batch = collate_padded(parts, [[i] for i in range(4)])
    logits = policy.model(input_ids=batch.ids).logits.flatten(0, 1)[batch.index]
    wanted = torch.log_softmax(logits, -1).gather(1, batch.targets[:, None])[:, 0]
    assert torch.allclose(compute_outputs(policy.model, batch).logprobs, wanted, atol=1e-6)
    assert not policy.model.get_output_embeddings()._forward_pre_hooks  # nothing stays on the model


def test_block_mask_golden() -> None:
    found = block_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0].int().tolist()
    assert found == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_columns_are_those_of_the_chosen() -> None:
    """A sequence that is not in the batch has no say in them; the chosen agree, or entries would change places."""
    first, second, third = small_parts(small_policy(), 3)
    scored = [replace(p, columns={"score": np.arange(len(p), dtype=np.float32)}) for p in (second, third)]
    parts = [first, *scored]
    batch = collate_padded(parts, [[1], [2]])
    wanted = [p.columns["score"][1 : p.feed + 1][p.weight[1 : p.feed + 1] != 0] for p in scored]
    assert batch.columns["score"].tolist() == np.concatenate(wanted).tolist()
    assert collate_packed({5: second, 7: scored[1]}, [[7]]).columns.keys() == {"score"}
    for make in (
        lambda rows: collate_padded(parts, rows),
        lambda rows: collate_packed(parts, rows),
        lambda rows: collate_trees(parts, [row[0] for row in rows]),
    ):
        for rows in ([[0], [1]], [[1], [0]]):
            with pytest.raises(BatchMismatch, match="differ from the other sequences"):
                make(rows)


def test_layouts_are_chosen_and_refused() -> None:
    model = small_policy().model
    assert resolve_layout(model, "auto") == "bucketed" and resolve_layout(model, "packed") == "packed"
    model.config.sliding_window = 8
    assert not can_pack(model) and resolve_layout(model, "auto") == "bucketed"
    with pytest.raises(ConfigError, match="layout: packed rows need full attention"):
        resolve_layout(model, "packed")
