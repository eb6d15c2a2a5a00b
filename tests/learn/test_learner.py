from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import episode, same, small_config, small_parts, small_policy, train

from evolvent.errors import BatchMismatch, ConfigError, DeviceMemory, NothingToLearn
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner, UpdateMetrics
from evolvent.learn.objectives import Objective, Outputs, weighted_nll
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_packed, collate_padded, flatten
from evolvent.models.policy import Policy


def learner_of(policy: Policy | None = None, **changes: Any) -> Learner:
    return Learner(policy or small_policy(), weighted_nll, small_config(**changes), seed=1)


def weighted_parts(policy: Policy, count: int = 10) -> list[TokenSequence]:
    made = small_parts(policy, count)
    rng = np.random.default_rng(2)
    scales = [rng.choice(np.float32([0.5, 1.0, 2.0]), len(sequence)) for sequence in made]
    return [replace(sequence, weight=sequence.weight * scale) for sequence, scale in zip(made, scales, strict=True)]


def plain_step(policy: Policy, parts: list[TokenSequence], lr: float, clip: float | None) -> tuple[float, float]:
    """The oracle: one sequence after another through all logits, one gradient, torch's unfused AdamW."""
    model = policy.model
    total, count = torch.zeros((), dtype=torch.float64), 0
    for sequence in parts:
        ids = torch.from_numpy(sequence.ids.astype(np.int64))
        scores = torch.log_softmax(model(input_ids=ids[None, :-1]).logits[0].double(), -1)
        weight = torch.from_numpy(sequence.weight[1:]).double()
        total = total - (weight * scores[torch.arange(len(ids) - 1), ids[1:]]).sum()
        count += int((weight != 0).sum())
    (total / count).backward()
    norm = math.sqrt(sum(float((w.grad.double() ** 2).sum()) for w in model.parameters()))
    for weight in model.parameters():
        weight.grad *= min(1.0, clip / norm) if clip else 1.0
    groups = [{"params": [w], "weight_decay": 0.1 if w.dim() > 1 else 0.0} for w in model.parameters()]
    torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), foreach=False).step()
    return float(total.detach() / count), norm


@pytest.mark.parametrize(("clip", "layout"), [(None, "bucketed"), (0.5, "bucketed"), (0.5, "packed")])
def test_an_update_equals_the_plain_one(clip: float | None, layout: str) -> None:
    policy, oracle = small_policy(), small_policy()
    for one in (
        policy,
        oracle,
    ):  # flat logits: where a gradient is as small as its epsilon, a step of AdamW is rounding
        one.model.get_input_embeddings().weight.data.mul_(0.08)
    parts = weighted_parts(policy)
    learner = learner_of(policy, max_grad_norm=clip, warmup_steps=4)
    rows = [list(range(5)), list(range(5, 10))] if layout == "packed" else [[i] for i in range(10)]
    metrics = learner.update([collate_packed(parts, rows) if layout == "packed" else collate_padded(parts, rows)])
    loss, norm = plain_step(oracle, parts, lr=4e-3 / 4, clip=clip)
    assert norm > 0.5  # clipping has something to do
    assert metrics.loss == pytest.approx(loss, rel=1e-6) and metrics.grad_norm == pytest.approx(norm, rel=1e-5)
    assert metrics.lr == pytest.approx(1e-3)
    for one, other in zip(policy.model.parameters(), oracle.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=2e-6)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=10, max_size=10), st.permutations(range(10)), st.booleans())
def test_the_split_into_micro_batches_does_not_matter(places: list[int], order: list[int], packed: bool) -> None:
    """Any split of an update, in any order and layout: equal loss, gradient norm and weights."""
    whole, split = learner_of(), learner_of()
    parts = weighted_parts(whole.policy)
    one = whole.update([collate_padded(parts, [[i] for i in range(10)])])
    groups = [[i for i in order if places[i] == k] for k in range(4)]
    collate = collate_packed if packed else collate_padded
    other = split.update([collate(parts, [[i] for i in group]) for group in groups if group])
    assert (one.tokens, one.fed) == (other.tokens, other.fed)
    assert one.loss == pytest.approx(other.loss, rel=1e-6) and one.grad_norm == pytest.approx(other.grad_norm, rel=2e-6)
    for a, b in zip(whole.policy.model.parameters(), split.policy.model.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def test_micro_tokens_do_not_change_a_training() -> None:
    whole, split = learner_of(epochs=2), learner_of(epochs=2, max_tokens_per_forward=60)
    one, other = (learner.fit(small_parts(learner.policy)) for learner in (whole, split))
    assert (one.updates, one.tokens, one.fed) == (other.updates, other.tokens, other.fed)
    assert one.losses == pytest.approx(other.losses, rel=1e-5)


def test_layouts_learn_the_same() -> None:
    learners = [learner_of(epochs=6, layout=layout, batch_tokens=4000) for layout in ("bucketed", "packed")]
    one, other = (learner.fit(small_parts(learner.policy, 12)) for learner in learners)
    assert one.updates == other.updates == 6  # everything in one update, so that the order does not matter
    assert one.losses == pytest.approx(other.losses, rel=1e-4)


def test_it_learns_what_can_be_learned() -> None:
    """The first two words of what is seen are to be repeated. Only knowing when to stop: 2/3 log 12 = 1.66 nats."""
    learner = learner_of(epochs=30, lr=2e-2, batch_tokens=600)
    learner.fit(small_parts(learner.policy, 300))
    unseen = flatten(
        [episode(i) for i in range(900, 930)], learner.policy.dialect, instructions=lambda task: "", context=64
    ).sequences
    with torch.no_grad():
        batch = collate_padded(unseen, [[i] for i in range(len(unseen))])
        nll = -compute_outputs(learner.policy.model, batch).logprobs.mean().item()
    assert nll < 1.25


def test_the_head_is_computed_at_targets_only() -> None:
    learner = learner_of()
    parts = small_parts(learner.policy, 6)
    seen: list[torch.Size] = []
    head = learner.policy.model.get_output_embeddings()
    watch = head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    batch = collate_padded(parts, [[i] for i in range(6)])
    learner.update([batch])
    watch.remove()
    assert [tuple(shape[:2]) for shape in seen] == [(1, batch.count)] and batch.count < batch.ids.numel() / 2


@pytest.mark.parametrize(("changes", "updates"), [({"max_steps": 7, "tokens": 1}, 7), ({"tokens": 1}, 1)])
def test_length_by_updates_then_tokens(changes: dict[str, Any], updates: int) -> None:
    learner = learner_of(**changes)
    report = learner.fit(small_parts(learner.policy))
    assert report.updates == updates == len(report.losses) and report.finished


def test_length_by_epochs_and_by_the_same_number_of_tokens() -> None:
    one, again = learner_of(epochs=3), learner_of(epochs=3)
    parts = small_parts(one.policy)
    seen: list[UpdateMetrics] = []
    report = one.fit(parts, on_update=seen.append)
    assert report.tokens == 3 * sum(int((p.weight != 0).sum()) for p in parts)
    assert report.fed == 3 * sum(p.feed for p in parts)
    by_tokens = learner_of(tokens=report.tokens)
    assert by_tokens.fit(parts) == again.fit(parts) == report  # the schedule is the same function of learned tokens
    assert [m.update for m in seen] == list(range(1, report.updates + 1))
    assert report.lr == seen[-1].lr < seen[5].lr and sum(m.padded for m in seen) == report.padded
    assert seen[0].as_row() == {
        "step": 1,
        "loss": seen[0].loss,
        "grad_norm": seen[0].grad_norm,
        "lr": seen[0].lr,
        "tokens": seen[0].tokens,
        "fed": seen[0].fed,
        "padded": seen[0].padded,
        "skipped": False,
    }


def test_two_runs_are_bit_equal_and_seeds_differ() -> None:
    state = torch.get_rng_state()
    one = train(None)
    torch.manual_seed(99)
    assert same(one, train(None))  # dropout included: the global random state plays no part
    torch.set_rng_state(state)
    policy = small_policy(dropout=0.1)
    other = Learner(policy, weighted_nll, small_config(), seed=6).fit(small_parts(policy))
    assert other.losses != one[0].losses


def test_the_world_outside_is_left_as_it_was() -> None:
    state = torch.get_rng_state()
    learner = learner_of(epochs=1)
    assert not learner.policy.model.training
    modes: list[bool] = []
    learner.fit(small_parts(learner.policy), on_update=lambda m: modes.append(learner.policy.model.training))
    assert all(modes) and not learner.policy.model.training
    assert torch.equal(state, torch.get_rng_state())


def test_stopping_early_is_told_and_saved(tmp_path: Any) -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 5

    report, _ = train(tmp_path, should_stop=stop, every=100)
    assert not report.finished and report.updates == 5
    assert [path.name for path in tmp_path.iterdir()] == ["update-000000005"]


def test_frozen_weights_stay_and_have_no_state(tmp_path: Any) -> None:
    policy = small_policy()
    frozen = policy.model.get_input_embeddings().weight
    frozen.requires_grad_(False)
    before = frozen.clone()
    learner = learner_of(policy, epochs=1)
    learner.fit(small_parts(policy))
    assert torch.equal(frozen, before) and frozen not in learner.optimizer.state
    policy.model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no weights to train"):
        learner_of(policy)


def test_bfloat16_weights_are_trained_in_float32_and_autocast_is_near() -> None:
    policy = small_policy()
    policy.model.bfloat16()
    learner = learner_of(policy, dtype="bfloat16")
    assert {w.dtype for w in policy.model.parameters()} == {torch.float32}
    parts = small_parts(policy, 6)
    batch = collate_padded(parts, [[i] for i in range(6)])
    exact = learner_of(policy.clone()).update([batch])
    low = learner.update([batch])
    assert low.loss == pytest.approx(exact.loss, rel=1e-2) and low.loss != exact.loss


def test_refusals() -> None:
    learner = learner_of()
    with pytest.raises(NothingToLearn, match="0 sequences"):
        learner.fit([])
    needy = Objective("ppo", weighted_nll.loss, weighted_nll.count, limit=("kl", 0.1))
    with pytest.raises(ConfigError, match=r"got 'kl', expected one of"):
        Learner(small_policy(), needy, small_config(), seed=0)

    def counts_otherwise(outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, int]:
        return weighted_nll.loss(outputs, batch)[0], 1

    def too_large(outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, int]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    parts = small_parts(learner.policy, 4)
    batch = collate_padded(parts, [[0], [1]])
    two_ways = Learner(small_policy(), Objective("odd", counts_otherwise, weighted_nll.count), small_config(), seed=0)
    with pytest.raises(BatchMismatch, match="'odd' counts a batch in two ways"):
        two_ways.update([batch])
    large = Learner(small_policy(), Objective("large", too_large, weighted_nll.count), small_config(), seed=0)
    with pytest.raises(DeviceMemory, match=r"\(2, \d+\).*max_tokens_per_forward"):
        large.update([batch])
    for wrong in ({"lr": 0.0}, {"betas": (0.9, 1.0)}, {"epochs": 0}, {"learning_rate": 1.0}, {"layout": "ragged"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            small_config(**wrong)


def test_every_forward_of_an_update_gives_freed_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise batches of different lengths leave gaps that add up: 0.3 GB in 16 forwards of SmolLM2."""
    released: list[int] = []
    monkeypatch.setattr("evolvent.learn.parallel.lay.release_heap", released.append)
    monkeypatch.setattr("evolvent.learn.parallel.lay.MIN_PRETRAINED", 1)
    learner = Learner(small_policy(), weighted_nll, small_config(), seed=0)
    parts = small_parts(learner.policy, 3)
    learner.update([collate_padded(parts, [[index]]) for index in range(3)])
    assert released == [learner.policy.parameters()] * 3


def test_a_finished_training_has_a_message_and_no_work(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    first = train(tmp_path)
    updates: list[UpdateMetrics] = []
    with caplog.at_level(logging.INFO, logger="evolvent.learn"):
        again = train(tmp_path, on_update=updates.append)
    assert same(first, again) and not updates
    assert "no work is left" in caplog.text
