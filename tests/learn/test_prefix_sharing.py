"""Rows that share beginnings: every target sees its own past alone, no beginning is fed twice, nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_parts, small_policy
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTNeoConfig,
    MptConfig,
    Qwen3Config,
    RobertaConfig,
)

from evolvent.errors import BatchMismatch, ConfigError, DeviceMemory
from evolvent.learn import forward
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import dpo_objective, weighted_nll
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.prefix_sharing import (
    PrefixSharing,
    PrefixTree,
    build_batches,
    collate_shared,
    resolve_rl_layout,
    share_rows,
)
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_padded
from evolvent.rl.critic import critic_objective
from evolvent.rl.presets import POAD
from evolvent.rl.scored_rollout import score_rollout
from evolvent.rl.trainer import RLSpec, build_minibatch
from tests.rl.acting import Echo, quick, run_of, talking

FREE, DEAR = (
    PrefixSharing(1e9),
    PrefixSharing(0.01),
)  # attention that costs nothing, and so much that rows are never shared


def part(ids: list[int], learned: list[int], *, number: int = 0) -> TokenSequence:
    """A sequence whose targets are learned with weights that tell their places."""
    size, weight = len(ids), np.zeros(len(ids), np.float32)
    weight[learned] = 1.0 + np.asarray(learned, np.float32) / 8
    no = np.zeros(size, np.bool_)
    places = np.arange(size, dtype=np.float32)
    return TokenSequence(
        f"t{number}",
        np.asarray(ids, np.int32),
        no,
        no,
        places * 0,
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        weight,
        columns={"place": places, "two": np.stack([places, -places], 1)},
    )


@st.composite
def families(draw: st.DrawFn) -> list[TokenSequence]:
    """Up to seven sequences over three tokens, so that many begin alike; some are equal, some beginnings of others."""
    made = []
    for number in range(draw(st.integers(1, 7))):
        ids = draw(st.lists(st.integers(1, 3), min_size=2, max_size=9))
        learned = draw(st.lists(st.integers(1, len(ids) - 1), min_size=1, unique=True))
        made.append(part(ids, sorted(learned), number=number))
    return made


def beginnings(parts: list[TokenSequence], row: list[int]) -> int:
    """How many tokens a tree of these has: their different beginnings."""
    fed = [parts[index].ids[: parts[index].feed].tolist() for index in row]
    return len({tuple(ids[:end]) for ids in fed for end in range(1, len(ids) + 1)})


def check(batch: Batch, parts: list[TokenSequence]) -> None:
    """Every target stands once, in the order of samples, behind exactly the tokens before it, at their positions."""
    width, found = batch.ids.shape[1], 0
    for number, index in enumerate(batch.samples):
        for place in np.flatnonzero(parts[index].weight).tolist():
            row, at = divmod(int(batch.index[found]), width)
            if batch.mask is None or batch.positions is None:
                seen = list(range(at + 1))
            else:
                seen = batch.mask[row, 0, at].nonzero().flatten().tolist()
                assert sorted(batch.positions[row, seen].tolist()) == list(range(place))
                seen = sorted(seen, key=lambda one: int(batch.positions[row, one]))
            assert batch.ids[row, seen].tolist() == parts[index].ids[:place].tolist()
            assert int(batch.targets[found]) == int(parts[index].ids[place])
            assert float(batch.weights[found]) == parts[index].weight[place]
            assert batch.sequence is not None and int(batch.sequence[found]) == number
            assert float(batch.columns["place"][found]) == place
            assert batch.columns["two"][found].tolist() == [place, -place]
            found += 1
    assert found == batch.count


@settings(deadline=None, max_examples=150)
@given(families(), st.integers(0, 3))
def test_every_target_sees_its_own_past_alone(parts: list[TokenSequence], seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(parts)).tolist()
    one = FREE.collate(parts, order, max_tokens=10**6)
    assert list(one.samples) == order
    check(one, parts)
    several = build_batches(parts, order, max_tokens=14, rng=rng, sharing=FREE)
    assert sorted(index for batch in several for index in batch.samples) == list(range(len(parts)))
    for batch in several:
        assert batch.ids.numel() <= 14 or len(batch.ids) == 1
        check(batch, parts)


@settings(deadline=None, max_examples=100)
@given(families(), st.sampled_from([0.5, 3.0, 10.0, 1e9]), st.integers(3, 40))
def test_rows_are_the_least_work_of_all_cuts(parts: list[TokenSequence], even: float, most: int) -> None:
    """Against every way to cut the sorted sequences into rows; and no beginning is fed twice in a row."""
    sharing = PrefixSharing(even)

    def work(rows: list[list[int]]) -> float:
        return sum(sharing.row_work(beginnings(parts, row), len(row)) for row in rows)

    def fits(rows: list[list[int]]) -> bool:
        targets = [sum(np.count_nonzero(parts[index].weight) for index in row) for row in rows]
        held = [max(beginnings(parts, row), count) for row, count in zip(rows, targets, strict=True)]
        return all(len(row) == 1 or size <= most for row, size in zip(rows, held, strict=True))

    trees = sharing.plan_rows(parts, range(len(parts)), max_tokens=most)
    found = [list(tree.sequences) for tree in trees]
    order = [index for row in found for index in row]
    assert sorted(order) == list(range(len(parts))) and fits(found)
    fed = [parts[index].ids[: parts[index].feed].tolist() for index in order]
    assert fed == sorted(fed), "what begins alike stands together"
    ways = []
    for cut in range(1 << (len(order) - 1)):
        ends = [0, *(at + 1 for at in range(len(order) - 1) if cut >> at & 1), len(order)]
        ways.append([order[a:b] for a, b in pairwise(ends)])
    assert [tree.width for tree in trees] == [beginnings(parts, row) for row in found]
    assert work(found) == pytest.approx(min(work(way) for way in ways if fits(way)))
    assert collate_shared(parts, trees).real == sum(beginnings(parts, row) for row in found)


def test_rows_by_hand() -> None:
    """A prompt of 6 with three answers of 2, and a stranger: 12 + 4 tokens for 24 + 4, if rows may be long."""
    prompt = [1, 2, 3, 1, 2, 3]
    parts = [part([*prompt, n, n, n], [6, 7, 8], number=n) for n in (1, 2, 3)] + [part([3, 3, 3, 3, 3], [4])]
    assert FREE.plan_rows(parts, range(4), max_tokens=100) == [
        PrefixTree((0, 1, 2), (0, 6, 6), 12, 9),
        PrefixTree((3,), (0,), 4, 1),
    ]
    assert [tree.sequences for tree in FREE.plan_rows(parts, range(4), max_tokens=11)] == [(0, 1), (2,), (3,)]
    assert [tree.sequences for tree in DEAR.plan_rows(parts, range(4), max_tokens=100)] == [(0,), (1,), (2,), (3,)]
    batch = FREE.collate(parts, [3, 0, 1, 2], max_tokens=100)
    assert batch.real == 12 + 4 and batch.ids.shape == (2, 12)
    assert batch.positions is not None and batch.positions[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 6, 7]
    assert (
        FREE.row_work(12, 3) == pytest.approx(12)
        and PrefixSharing(24).row_work(12, 3) == 18
        and PrefixSharing(24).row_work(12, 1) == 15
    )


def test_a_forward_holds_no_more_than_it_may() -> None:
    """Equal sequences, as of a policy that is sure: few tokens, but targets of their own, and these are bounded."""
    parts = [part([1, *[2, 3] * 10], list(range(1, 21)), number=n) for n in range(40)]
    found = build_batches(parts, range(40), max_tokens=100, rng=np.random.default_rng(0), sharing=FREE)
    assert sum(batch.count for batch in found) == 800 and max(batch.count for batch in found) == 100
    assert {batch.ids.shape for batch in found} == {(1, 20)}


def test_rows_stay_apart_where_sharing_is_no_gain() -> None:
    """Where one wide tree would stretch the padding of many strangers, or need a batch of its own."""
    family = [part([1, *[2] * 50, *[n] * 20], list(range(51, 71)), number=n) for n in range(8, 16)]
    strangers = [part([n, *[4] * 50, n], [51], number=n) for n in range(20, 60)]
    parts = family + strangers
    one = FREE.collate(parts, range(len(parts)), max_tokens=10**6)
    plain = collate_padded(parts, [[index] for index in range(len(parts))])
    assert one.mask is None and torch.equal(one.ids, plain.ids), "48 rows of 70 are less than 41 of 203"
    several = build_batches(
        parts, range(len(parts)), max_tokens=plain.ids.numel(), rng=np.random.default_rng(0), sharing=FREE
    )
    assert len(several) == 1 and several[0].mask is None


def test_nothing_in_common_is_plain_rows() -> None:
    parts = [part([1, 2, 3], [2]), part([2, 2, 3], [1, 2]), part([3, 2, 3, 1], [1])]
    batch = FREE.collate(parts, [2, 0, 1], max_tokens=100)
    assert batch.mask is None and batch.positions is None and batch.samples == (2, 0, 1)
    assert torch.equal(batch.ids, collate_padded(parts, [[2], [0], [1]]).ids)


def test_other_columns_are_refused() -> None:
    parts = [part([1, 2, 3], [2]), replace(part([1, 2, 2], [2]), columns={})]
    with pytest.raises(BatchMismatch, match="differ from the other sequences"):
        FREE.collate(parts, [0, 1], max_tokens=100)


SHAPE = {"vocab_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
MODELS = {
    "grouped heads": Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8, intermediate_size=48),
    "learned positions": GPT2Config(vocab_size=16, n_layer=2, n_head=4, n_embd=32, n_positions=64, resid_pdrop=0.0),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_and_gradients_are_those_of_single_rows(name: str, attention: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name], attn_implementation=attention).eval()
    rng, parts = np.random.default_rng(0), []
    for number in range(12):
        prompt = [1 + number // 4, *([7, 3, 5, 9] * 3)]
        answer = rng.integers(0, 16, int(rng.integers(1, 9))).tolist()
        parts.append(part(prompt + answer, list(range(len(prompt), len(prompt + answer))), number=number))
    whole = FREE.collate(parts, range(12), max_tokens=10**6)
    assert whole.mask is not None and whole.real < 0.6 * sum(one.feed for one in parts)
    said = compute_outputs(model, whole).logprobs
    alone = [compute_outputs(model, collate_padded(parts, [[index]])).logprobs for index in range(12)]
    assert said is not None
    torch.testing.assert_close(said, torch.cat([one for one in alone if one is not None]), rtol=1e-4, atol=1e-5)
    slopes = []
    for logprobs in (said, torch.cat([one for one in alone if one is not None])):
        model.zero_grad()
        (logprobs * whole.weights).sum().backward()
        slopes.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)


def groups(count: int = 12) -> tuple[Learner, list[TokenSequence]]:
    policy = small_policy()
    made = [
        replace(one, trajectory=f"{one.trajectory}-{copy}", weight=one.weight * (1 + copy))
        for one in small_parts(policy, count)
        for copy in range(3)
    ]
    learner = Learner(policy, weighted_nll, TrainConfig(batch_tokens=4096, layout="shared"), seed=0)
    return learner, made


def test_an_update_is_the_same_with_fewer_tokens() -> None:
    fed, weights = [], []
    for layout in ("bucketed", "packed", "shared"):
        learner, made = groups()
        config = learner.config.model_copy(update={"layout": layout})
        learner = Learner(small_policy(), weighted_nll, config, seed=0)
        found = build_minibatch(learner, made, range(len(made)), rng=np.random.default_rng(0))
        fed.append(learner.update(found).fed)
        weights.append([weight.detach().clone() for weight in learner.policy.model.parameters()])
    assert fed[0] == fed[1] == 3 * fed[2], "each of three equal sequences is fed once"
    for other in weights[1:]:
        torch.testing.assert_close(weights[0], other, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("objective", [weighted_nll, dpo_objective()], ids=["imitation", "pairs"])
def test_a_fit_shares_rows_where_it_is_asked_to(objective) -> None:
    """Neighbours stay pairs: targets stand in the order of the data, however rows were made."""
    reports, weights = [], []
    for layout in ("bucketed", "shared"):
        policy = small_policy()
        made = []
        for number, one in enumerate(small_parts(policy, 10)):
            worse = one.ids.copy()
            worse[one.weight > 0] = one.ids[3]
            reference = np.linspace(-3, -1, len(one), dtype=np.float32)
            for ids, side in ((one.ids, 0), (worse, 1)):
                made.append(replace(one, trajectory=f"{number}-{side}", ids=ids, columns={"reference": reference}))
        config = TrainConfig(lr=1e-3, batch_tokens=512, max_steps=6, layout=layout)
        learner = Learner(policy, objective, config, seed=3)
        losses: list[tuple[float, int]] = []
        learner.fit(made, on_update=lambda metrics, told=losses: told.append((metrics.loss, metrics.fed)))
        reports.append(losses)
        weights.append([weight.detach().clone() for weight in policy.model.parameters()])
    assert [loss for loss, _ in reports[0]] == pytest.approx([loss for loss, _ in reports[1]], rel=1e-4)
    assert sum(fed for _, fed in reports[1]) < 0.95 * sum(fed for _, fed in reports[0])
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)


def test_a_practice_shares_its_prompts(tmp_path) -> None:
    """By itself; what is said of an episode, by the policy, its values and the reference, is what rows apart say."""
    world = Echo()
    setup = RLSpec("poad", quick(iterations=1), POAD.objective, critic_objective(), reference=True)
    with run_of(tmp_path, world) as run, run.train_rl(talking(tmp_path / "talking", world), setup) as practice:
        next(practice.iterations())
        played = practice.rollout(practice.next_starts(world.tasks("train", "seen")))
        seen, view = practice.score(played), practice.scoring_config
        assert view.sharing is not None and view.sharing == practice.learner.sharing
        apart = score_rollout(replace(view, sharing=None), played, seen.sequences, batch=seen.batch, report=seen.report)
        assert seen.token_outputs.keys() == apart.token_outputs.keys() == {"old", "values", "reference"}
        for name, said in seen.token_outputs.items():
            assert np.allclose(said, apart.token_outputs[name], atol=2e-5), name
        assert np.allclose(seen.old, seen.batch.logp, atol=2e-5) and seen.old.std() > 0.05
        practice.update(seen, seen.estimate_advantages(POAD.estimator))
        assert 0 < practice.metrics["fed"] < 0.6 * sum(chain.feed for chain in seen.sequences)


def test_who_shares() -> None:
    policy, alone = small_policy(), Parallelism()
    assert share_rows(policy.model, alone) == PrefixSharing.from_model(policy.model)
    assert resolve_rl_layout("auto", policy.model) == "shared"
    assert resolve_rl_layout("packed", policy.model) == "packed"
    for layout in ("auto", "bucketed", "packed"):  # fit shares where it is asked to
        assert Learner(small_policy(), weighted_nll, TrainConfig(layout=layout), seed=0).sharing is None
    with pytest.raises(ConfigError, match="layout: shared rows need pure data parallelism"):
        share_rows(policy.model, Parallelism(pp=2))
    policy.model.config.sliding_window = 8
    assert resolve_rl_layout("auto", policy.model) == "auto"
    with pytest.raises(ConfigError, match="layout: shared rows need full attention and explicit positions"):
        share_rows(policy.model, alone)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=16, n_layer=2, n_head=2, hidden_size=16),  # positions and masks of its own
        MptConfig(vocab_size=16, n_layers=2, n_heads=2, d_model=16),  # distances are counted in the row
        GPTNeoConfig(
            vocab_size=16, num_layers=2, num_heads=2, hidden_size=16, attention_types=[[["global", "local"], 1]]
        ),  # local layers
        RobertaConfig(
            vocab_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_size=16,
            intermediate_size=16,
            is_decoder=True,
        ),  # its positions begin at 2
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_would_mix_their_sequences_are_found_out(config) -> None:
    model = AutoModelForCausalLM.from_config(config)
    assert resolve_rl_layout("auto", model) == "auto" and model.training
    with pytest.raises(
        ConfigError,
        match=f"explicit positions, but {config.model_type} has other layers",
    ):
        share_rows(model, Parallelism())


def test_a_model_is_tried_within_its_context() -> None:
    config = GPT2Config(vocab_size=16, n_layer=1, n_head=2, n_embd=16, n_positions=10)
    assert resolve_rl_layout("auto", AutoModelForCausalLM.from_config(config)) == "shared"


def test_a_trial_that_finds_no_memory_is_told(monkeypatch) -> None:
    """It says nothing of the model."""

    def refused(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(forward, "compute_outputs", refused)
    with pytest.raises(DeviceMemory, match="does not fit the device's memory"):
        resolve_rl_layout("auto", small_policy().model)


def test_a_head_of_values_changes_no_row() -> None:
    """It stays on a model that has practised with values, and is not there after a checkpoint was read."""
    model = small_policy().model
    before = PrefixSharing.from_model(model)
    model.value_head = torch.nn.Linear(16, 64)
    assert PrefixSharing.from_model(model) == before


def test_the_length_where_attention_costs_as_much_as_the_rest() -> None:
    """By hand: a layer of the small model has 4 x 16 x 16 + 3 x 16 x 32 weights, and looks with 2 heads of 8."""
    weights = 4 * 16 * 16 + 3 * 16 * 32
    assert PrefixSharing.from_model(small_policy().model).break_even_width == pytest.approx(2 * weights / (4 * 2 * 8))
