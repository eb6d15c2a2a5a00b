"""Objectives: one contract `(sum, count)`, whatever the split into micro-batches; settings in the `repr`."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.learn.objectives import (
    Objective,
    Outputs,
    distill_objective,
    dpo_objective,
    gauss_newton,
    outcome,
    pair_margins,
    reward_pairs_objective,
    value_objective,
    weighted_nll,
)
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_packed, collate_padded

OBJECTIVES = [
    weighted_nll,
    gauss_newton,
    dpo_objective(beta=0.3),
    dpo_objective(beta=0.3, smoothing=0.1, sft=0.5),
    dpo_objective(beta=0.3, kind="ipo", per_token=True),
    reward_pairs_objective(center=0.01),
    outcome,
    value_objective(),
    value_objective(huber=0.2),
    distill_objective(),
    distill_objective(temperature=2.0, share=0.3),
]
IDS = [f"{number}-{objective.name}" for number, objective in enumerate(OBJECTIVES)]


def part(number: int, length: int, learned: list[int]) -> TokenSequence:
    """A sequence whose columns hold what a model would say: a part's outputs do not depend on the batch it is in."""
    rng = np.random.default_rng(number)
    weight = np.zeros(length, np.float32)
    weight[learned] = rng.choice([0.5, 1.0, 2.0], len(learned))
    marks, zeros = np.zeros(length, np.bool_), np.zeros(length, np.int32)
    teacher, student = (np.log(rng.dirichlet(np.ones(5), length))[:, :3] for _ in range(2))
    columns = {
        "reference": rng.normal(-1, 1, length).astype(np.float32),
        "returns": rng.normal(0, 1, length).astype(np.float32),
        "outcome": rng.random(length).astype(np.float32),
        "teacher_logprobs": teacher.astype(np.float32),
        "said": rng.normal(-1, 1, length).astype(np.float32),
        "student": student.astype(np.float32),
    }
    unlearned = weight == 0
    for column in columns.values():
        column[unlearned] = np.nan  # whoever looks at it is found out
    return TokenSequence(f"p{number}", zeros, marks, marks, weight * 0, zeros, zeros, weight, columns=columns)


def collated(parts: list[TokenSequence], rows: list[list[int]], *, packed: bool = False) -> Batch:
    batch = (collate_packed if packed else collate_padded)(parts, rows)
    return replace(batch, columns={name: column.double() for name, column in batch.columns.items()})


def said(batch: Batch) -> Outputs:
    words = batch.columns["said"].requires_grad_()
    return Outputs(words, words, batch.columns["student"].requires_grad_(), words)


@st.composite
def sequences(draw: st.DrawFn) -> list[TokenSequence]:
    made = []
    for number in range(2 * draw(st.integers(1, 5))):
        length = draw(st.integers(2, 9))
        learned = draw(st.lists(st.integers(1, length - 1), min_size=1, unique=True))
        made.append(part(number, length, sorted(learned)))
    return made


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
@settings(deadline=None, max_examples=25)
@given(parts=sequences(), cuts=st.lists(st.integers(0, 5), max_size=4), packed=st.booleans())
def test_micro_batches_sum_up_to_the_batch(
    objective: Objective, parts: list[TokenSequence], cuts: list[int], packed: bool
) -> None:
    """Any split between pairs leaves sum and count as they are; empty batches add nothing; nothing is NaN."""
    pairs = len(parts) // 2
    whole = pair_batch(parts)
    total, count = objective.loss(said(whole), whole)
    assert count == objective.count(whole) == (pairs if objective.together == 2 else whole.count)
    places = sorted([0, *(min(cut, pairs) for cut in cuts), pairs])
    sums, counts = 0.0, 0
    for start, end in pairwise(places):
        chosen = list(range(2 * start, 2 * end))
        rows = [chosen] if packed and chosen else [[index] for index in chosen]
        batch = collated(parts, rows, packed=packed)
        outputs = said(batch)
        amount, counted = objective.loss(outputs, batch)
        amount.backward()  # an empty batch too has a graph: every rank goes backward
        assert counted == objective.count(batch)
        sums, counts = sums + amount.item(), counts + counted
    assert math.isfinite(sums)
    assert (sums, counts) == (pytest.approx(total.item(), rel=1e-9, abs=1e-9), count)


def pair_batch(parts: list[TokenSequence]) -> Batch:
    return collated(parts, [[index] for index in range(len(parts))])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dpo_equals_the_published_formula_in_numpy(smoothing: float) -> None:
    """As trl computes it: sums over completions, ratios, their difference, logsigmoid; here row by row."""
    parts = [part(number, 6, [2, 3, 5]) for number in range(6)]
    parts = [replace(p, weight=(p.weight != 0).astype(np.float32)) for p in parts]
    terms = []
    for chosen, rejected in zip(parts[::2], parts[1::2], strict=True):
        ratios = []
        for side in (chosen, rejected):
            own = np.flatnonzero(side.weight)
            policy, reference = (side.columns[name][own].astype(np.float64) for name in ("said", "reference"))
            ratios.append(policy.sum() - reference.sum())
        delta = 0.3 * (ratios[0] - ratios[1])
        good, bad = (np.log1p(np.exp(-x)) for x in (delta, -delta))
        terms.append((1 - smoothing) * good + smoothing * bad)
    batch = pair_batch(parts)
    total, count = dpo_objective(beta=0.3, smoothing=smoothing).loss(said(batch), batch)
    assert (total.item() / count, count) == (pytest.approx(np.mean(terms), rel=1e-6), 3)


def golden_pair() -> tuple[Outputs, Batch]:
    """Chosen: two targets, log-ratios 1 and 2. Rejected: one target, log-ratio -1."""
    samples, sequence = (0, 1), torch.tensor([0, 0, 1])
    words = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    batch = Batch(
        torch.zeros(2, 3, dtype=torch.long),
        torch.tensor([0, 1, 3]),
        torch.zeros(3, dtype=torch.long),
        torch.ones(3),
        samples,
        5,
        sequence=sequence,
        columns={"reference": torch.tensor([-2.0, -4.0, -3.0])},
    )
    return Outputs(words, words), batch


def test_pairs_golden() -> None:
    outputs, batch = golden_pair()
    assert pair_margins(outputs, batch).tolist() == [4.0]
    assert pair_margins(outputs, batch, per_token=True).tolist() == [2.5]
    plain = -math.log(1 / (1 + math.exp(-0.5 * 4)))
    assert dpo_objective(beta=0.5).loss(outputs, batch)[0].item() == pytest.approx(plain, rel=1e-6)
    sft = plain + 0.1 * (1 + 2) / 2
    assert dpo_objective(beta=0.5, sft=0.1).loss(outputs, batch)[0].item() == pytest.approx(sft, rel=1e-6)
    assert dpo_objective(beta=0.5, kind="ipo").loss(outputs, batch)[0].item() == pytest.approx(9.0)
    assert dpo_objective(beta=0.5, kind="ipo", per_token=True).loss(outputs, batch)[0].item() == pytest.approx(2.25)
    assert reward_pairs_objective().loss(outputs, batch)[0].item() == pytest.approx(math.log1p(math.exp(-1)), rel=1e-6)


def test_the_better_side_is_pushed_up_and_the_other_down() -> None:
    outputs, batch = golden_pair()
    dpo_objective().loss(outputs, batch)[0].backward()
    assert outputs.logprobs is not None and outputs.logprobs.grad is not None
    assert outputs.logprobs.grad.sign().tolist() == [-1.0, -1.0, 1.0]


def test_mixed_distillation_is_the_sum_of_its_parts() -> None:
    batch = pair_batch([part(number, 6, [1, 4]) for number in range(3)])
    outputs = said(batch)
    both, far, near = (
        objective.loss(outputs, batch)[0].item()
        for objective in (
            distill_objective(temperature=2.0, share=0.3),
            distill_objective(temperature=2.0),
            weighted_nll,
        )
    )
    assert both == pytest.approx(0.3 * far + 0.7 * near, rel=1e-9)
    assert distill_objective().needs == ("teacher",) and distill_objective(share=0.5).needs == ("teacher", "logprobs")


def test_settings_are_in_the_repr() -> None:
    assert repr(weighted_nll) == ("Objective(name='weighted_nll', needs=('logprobs',), together=1, settings=())")
    assert repr(dpo_objective(beta=0.2, sft=0.1)) == (
        "Objective(name='dpo', needs=('logprobs', 'reference'), together=2, settings=(('beta', 0.2), "
        "('kind', 'sigmoid'), ('smoothing', 0.0), ('per_token', False), ('sft', 0.1)))"
    )
    assert len({repr(objective) for objective in OBJECTIVES}) == len(OBJECTIVES)
    assert repr(value_objective(huber=1.0)) == repr(value_objective(huber=1.0)) != repr(value_objective())
    for objective in OBJECTIVES:
        assert " at 0x" not in repr(objective)
        assert ForkingPickler.dumps(objective)  # it can go to other processes


@pytest.mark.parametrize("samples", [(0, 1, 2), (1, 0), (1, 2), (0, 3), (0, 1, 3, 2)])
def test_torn_pairs_are_refused(samples: tuple[int, ...]) -> None:
    outputs, batch = golden_pair()
    torn = replace(batch, samples=samples)
    for objective in (dpo_objective(), reward_pairs_objective()):
        with pytest.raises(BatchMismatch, match="the batch separates the two sides of a pair"):
            objective.count(torn)
        with pytest.raises(BatchMismatch, match="the batch separates the two sides of a pair"):
            objective.loss(outputs, torn)


def test_what_is_missing_is_named() -> None:
    outputs, batch = golden_pair()
    bare = replace(batch, columns={})
    for objective, column, hint in (
        (dpo_objective(), "reference", "annotate"),
        (value_objective(), "returns", "add_returns"),
        (outcome, "outcome", "outcome_readout"),
        (distill_objective(), "teacher_logprobs", "teacher_k"),
    ):
        with pytest.raises(BatchMismatch, match=f"no column '{column}'.*{hint}"):
            objective.loss(outputs, bare)
    for objective in (weighted_nll, reward_pairs_objective(), gauss_newton):
        with pytest.raises(BatchMismatch, match=f"lack '{objective.needs[0]}'"):
            objective.loss(Outputs(), batch)
    with pytest.raises(BatchMismatch, match="the batch of pairs has no sequence index"):
        reward_pairs_objective().loss(outputs, replace(batch, sequence=None))


def test_wrong_settings_are_listed_together() -> None:
    with pytest.raises(ConfigError, match=r"beta: got 0, expected above 0\nkind: got 'hinge', .*\nsft: got -1"):
        dpo_objective(beta=0, kind="hinge", sft=-1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"smoothing: got 0\.1, expected 0 for ipo"):
        dpo_objective(kind="ipo", smoothing=0.1)
    with pytest.raises(ConfigError, match=r"smoothing: got 0\.5, expected 0 or more and below"):
        dpo_objective(smoothing=0.5)
    with pytest.raises(ConfigError, match=r"temperature: .*\nshare: "):
        distill_objective(temperature=0, share=0)
    with pytest.raises(ConfigError, match="huber"):
        value_objective(huber=0)
    with pytest.raises(ConfigError, match="center"):
        reward_pairs_objective(center=-1)
