"""What a frozen policy says of parts equals what its own forward says, and trains as it should."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import small_config, small_parts, small_policy

from evolvent.errors import BatchMismatch, ConfigError, VocabularyMismatch
from evolvent.learn.annotate import annotate
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import (
    Outputs,
    distill_objective,
    dpo_objective,
    outcome,
    reward_pairs_objective,
    value_objective,
    weighted_nll,
)
from evolvent.learn.preferences import append_readout
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import TokenSequence, collate_padded
from evolvent.learn.tokens import write_tokens
from evolvent.learn.trees import add_branches
from evolvent.models.tiny import word_tokenizer

POLICY = small_policy(seed=3)
WORDS = vocabulary_digest(POLICY.tokenizer)


@pytest.fixture(scope="module")
def parts() -> list[TokenSequence]:
    """Episodes with weights of every kind: none at all, some targets left out."""
    rng = np.random.default_rng(0)
    made = small_parts(POLICY, 30)
    made = [replace(p, weight=p.weight * rng.choice(np.float32([0, 0.5, 2]), len(p))) for p in made]
    made[4] = replace(made[4], weight=made[4].weight * 0)
    return made


def alone(sequence: TokenSequence, policy: Any = POLICY) -> torch.Tensor:
    """Log-probabilities of all words before every token of a sequence, by a plain forward: `[T - 1, V]`."""
    with torch.no_grad():
        return torch.log_softmax(policy.model(torch.tensor(sequence.ids[None].astype(np.int64))).logits[0, :-1], -1)


@pytest.mark.parametrize("batch_tokens", [None, 1, 150])
def test_reference_log_probabilities_are_those_of_a_plain_forward(
    parts: list[TokenSequence], batch_tokens: int | None
) -> None:
    found = list(annotate(POLICY, iter(parts), vocabulary=WORDS, max_tokens_per_forward=batch_tokens))
    assert [p.trajectory for p in found] == [p.trajectory for p in parts]
    for before, after in zip(parts, found, strict=True):
        column = after.columns["reference"]
        targets = np.flatnonzero(before.weight)
        wanted = alone(before)[targets - 1, before.ids[targets].astype(np.int64)].numpy()
        assert column.dtype == np.float32 and column[targets] == pytest.approx(wanted, abs=2e-6)
        assert not column[before.weight == 0].any()
        assert np.array_equal(before.weight, after.weight) and np.array_equal(before.ids, after.ids)


@pytest.mark.parametrize("k", [1, 4])
def test_teachers_words_are_the_likeliest_in_order(parts: list[TokenSequence], k: int) -> None:
    for before, after in zip(parts, annotate(POLICY, parts, vocabulary=WORDS, teacher_k=k), strict=True):
        ids, logprobs = after.columns["teacher_ids"], after.columns["teacher_logprobs"]
        assert ids.shape == logprobs.shape == (len(before), k) and ids.dtype == np.int32
        targets = np.flatnonzero(before.weight)
        top = alone(before)[targets - 1].topk(k)
        assert np.array_equal(ids[targets], top.indices.numpy())
        assert logprobs[targets] == pytest.approx(top.values.numpy(), abs=2e-6)


def batch_of(parts: list[TokenSequence]) -> Any:
    return collate_padded(parts, [[index] for index in range(len(parts)) if parts[index].feed])


def said_of_teacher(policy: Any, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        logits = policy.model(input_ids=batch.ids).logits.flatten(0, 1)[batch.index]
    return torch.log_softmax(logits, -1).gather(1, batch.columns["teacher_ids"].long())


def test_a_teacher_with_all_words_is_the_exact_divergence(parts: list[TokenSequence]) -> None:
    student = small_policy(seed=8)
    words = len(POLICY.tokenizer)
    batch = batch_of(list(annotate(POLICY, parts, vocabulary=WORDS, teacher_k=words)))
    exact = torch.zeros((), dtype=torch.float64)
    for sequence in parts:
        p, q = (alone(sequence, policy).double() for policy in (POLICY, student))
        each = (p.exp() * (p - q)).sum(-1)
        exact += (each * torch.from_numpy(sequence.weight[1:])).sum()
    total, count = distill_objective().loss(Outputs(teacher=said_of_teacher(student, batch)), batch)
    assert total.item() == pytest.approx(exact.item(), rel=1e-5) and count == batch.count
    assert distill_objective().loss(Outputs(teacher=said_of_teacher(POLICY, batch)), batch)[0].abs() < 1e-3


def test_dpo_begins_at_log_2_where_the_policy_is_the_reference(parts: list[TokenSequence]) -> None:
    batch = batch_of(list(annotate(POLICY, [p for p in parts if p.feed][:20], vocabulary=WORDS)))
    total, count = dpo_objective(beta=0.5).loss(compute_outputs(POLICY.model, batch), batch)
    assert count == 10 and total.item() / count == pytest.approx(math.log(2), rel=1e-5)


def test_the_model_stays_as_it_was(parts: list[TokenSequence]) -> None:
    policy = small_policy(dropout=0.5)
    policy.model.train()
    before = {name: weight.clone() for name, weight in policy.model.state_dict().items()}
    first, second = (list(annotate(policy, parts[:4], vocabulary=WORDS)) for _ in range(2))
    assert all(
        np.array_equal(a.columns["reference"], b.columns["reference"]) for a, b in zip(first, second, strict=True)
    )
    assert policy.model.training and not policy.model.get_output_embeddings()._forward_pre_hooks
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.state_dict().items())
    assert all(weight.grad is None for weight in policy.model.parameters())


def test_branches_are_refused_before_any_of_their_window_is_read(parts: list[TokenSequence]) -> None:
    """A branch would be read as what follows the last token, and not as what follows the place where it forks off."""
    tree = add_branches(parts[1], [(len(parts[1]) - 2, [3])], {})
    with pytest.raises(BatchMismatch, match=f"'{tree.trajectory}' has branches.*Annotate before branching"):
        list(annotate(POLICY, [parts[0], tree], vocabulary=WORDS))


def test_it_streams_and_keeps_other_columns(parts: list[TokenSequence], tmp_path: Path) -> None:
    taken = 0

    def counted() -> Any:
        nonlocal taken
        for number in range(1200):
            taken += 1
            yield parts[number % 4]

    stream = annotate(POLICY, counted(), vocabulary=WORDS)
    next(stream)
    assert taken == 512  # one window, whatever follows
    both = annotate(POLICY, annotate(POLICY, parts, vocabulary=WORDS), vocabulary=WORDS, teacher_k=2)
    found = write_tokens(tmp_path / "c", both)
    assert set(found[0].columns) == {"reference", "teacher_ids", "teacher_logprobs"}
    assert found[0].columns["teacher_ids"].shape == (len(parts[0]), 2)


def test_another_vocabulary_is_refused_before_anything_is_read(parts: list[TokenSequence]) -> None:
    def never() -> Any:
        raise RuntimeError("read")
        yield

    other = replace(POLICY, tokenizer=word_tokenizer(["lamp"]))
    with pytest.raises(VocabularyMismatch, match="made with another tokenizer"):
        annotate(other, never(), vocabulary=WORDS)
    with pytest.raises(
        ConfigError, match=r"teacher_k: got 20, expected 1 to 19, the size of the vocabulary\nbatch_tokens: .*got 0"
    ):
        annotate(POLICY, never(), vocabulary=WORDS, teacher_k=20, max_tokens_per_forward=0)
    strange = replace(parts[0], ids=parts[0].ids + 100)
    with pytest.raises(VocabularyMismatch, match="has a token id out of range"):
        list(annotate(POLICY, [strange], vocabulary=WORDS))
    with pytest.raises(BatchMismatch, match="longer than the model's context"):
        list(annotate(replace(POLICY, limit=5), parts, vocabulary=WORDS))


def test_words_that_the_tokenizer_does_not_have_are_no_teachers_words(parts: list[TokenSequence]) -> None:
    """Models have more rows than words, for speed; a student's model may have fewer."""
    policy = small_policy(seed=3)
    policy.model.resize_token_embeddings(64, mean_resizing=False)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[len(policy.tokenizer) :] = 5.0
    for after in annotate(policy, parts, vocabulary=WORDS, teacher_k=6):
        assert after.columns["teacher_ids"].max() < len(policy.tokenizer)


# ------------------------------------------------------------------ through the Learner


def with_column(parts: list[TokenSequence], name: str, values: list[float]) -> list[TokenSequence]:
    return [
        replace(p, columns={**p.columns, name: np.full(len(p), v, np.float32)})
        for p, v in zip(parts, values, strict=True)
    ]


def pairs_of(parts: list[TokenSequence]) -> list[TokenSequence]:
    """A side that begins with a word of the first half of the vocabulary is chosen."""
    ordered = sorted((p for p in parts if p.feed), key=lambda p: (int(p.ids[2]), p.trajectory))
    half = len(ordered) // 2
    return [side for both in zip(ordered[:half], ordered[half : 2 * half], strict=True) for side in both]


def trained(objective: Any, parts: list[TokenSequence], **changes: Any) -> tuple[Any, Any]:
    policy = small_policy(seed=3)
    settings = {"max_steps": 25, "lr": 5e-3, "batch_tokens": 400, "warmup_steps": 2, **changes}
    learner = Learner(policy, objective, small_config(**settings), seed=0)
    return learner, learner.fit(parts)


@pytest.mark.parametrize("layout", ["bucketed", "packed"])
def test_every_objective_is_learned(layout: str) -> None:
    parts = [p for p in small_parts(POLICY, 24) if len(p) < 40]
    ends = [append_readout(p, token=2) for p in parts]
    good = [float(p.ids[2] < 12) for p in parts]
    referenced = list(annotate(POLICY, pairs_of(parts), vocabulary=WORDS))
    taught = list(annotate(small_policy(seed=9), parts, vocabulary=WORDS, teacher_k=5))
    cases = {
        "dpo": (dpo_objective(beta=0.5), referenced),
        "ipo": (dpo_objective(beta=0.5, kind="ipo", per_token=True), referenced),
        "distill": (distill_objective(), taught),
        "mixed": (distill_objective(share=0.5, temperature=2.0), taught),
        "reward": (reward_pairs_objective(center=0.01), [append_readout(p, token=2) for p in pairs_of(parts)]),
        "outcome": (outcome, with_column(ends, "outcome", good)),
        "value": (value_objective(), with_column(parts, "returns", [2 * g - 1 for g in good])),
        "nll": (weighted_nll, parts),
    }
    for name, (objective, data) in cases.items():
        _, report = trained(objective, data, layout=layout)
        assert len(report.losses) == 25 and not report.skipped, name
        assert np.mean(report.losses[-5:]) < 0.9 * np.mean(report.losses[:3]), (name, report.losses)


def test_micro_batches_do_not_change_a_preference_training() -> None:
    parts = [p for p in small_parts(POLICY, 24) if len(p) < 40]
    referenced = list(annotate(POLICY, pairs_of(parts), vocabulary=WORDS))
    _, whole = trained(dpo_objective(), referenced, max_steps=5)
    _, cut = trained(dpo_objective(), referenced, max_steps=5, max_tokens_per_forward=90)
    assert whole.losses == pytest.approx(cut.losses, rel=1e-5)
