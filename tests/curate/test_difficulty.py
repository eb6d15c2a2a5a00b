"""Difficulty scores by hand, log-probabilities and features beside a model's own forward."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate.difficulty import answer_logprobs, answer_spans, line_spans, mean_logprob_score, split_by_lines
from evolvent.curate.features import answer_features, span_features, unit_features
from evolvent.curate.select import mask_spans
from evolvent.errors import BatchMismatch, NonFinite, NothingToLearn
from evolvent.learn.forward import compute_outputs
from evolvent.learn.token_sequences import TokenSequence, collate_padded
from evolvent.models.policy import tiny_policy


@pytest.fixture(scope="module")
def policy():
    return tiny_policy([f"w{n}" for n in range(40)], size="xs", context=64, seed=3)


def part(ids, weight, span=None, name="t"):
    ids, weight = np.asarray(ids, np.int32), np.asarray(weight, np.float32)
    written, zeros = weight > 0, np.zeros(len(ids), np.int32)
    numbers = np.where(written, 0, -1) if span is None else np.asarray(span)
    return TokenSequence(
        name, ids, written, ~written, zeros.astype(np.float32), zeros, numbers.astype(np.int32), weight
    )


def several(count, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt, turn, answer = (int(each) for each in rng.integers(1, 9, 3))
        weight = np.r_[np.zeros(prompt), np.ones(turn), np.zeros(2), np.full(answer, 0.3)]
        span = np.r_[np.full(prompt, -1), np.full(turn, 5), -1, -1, np.full(answer, 2)]
        made.append(part(rng.integers(3, 40, len(weight)), weight, span, f"t{number}"))
    return made


# ------------------------------------------------------------------ scores


def test_the_golden_scores():
    assert mean_logprob_score([[-0.5, -1.5]]) == pytest.approx([0.36788], abs=5e-6)
    assert mean_logprob_score([[-0.5, -1.5]], spans=[[0, 1]]) == pytest.approx([0.41483], abs=5e-6)
    # Two spans, e^-1 and e^-3: a long one weighs as much as a short one.
    assert mean_logprob_score([[-1, -1, -1, -3]], spans=[[7, 7, 7, 2]]) == pytest.approx(
        [(np.exp(-1) + np.exp(-3)) / 2]
    )


def test_long_answers_do_not_vanish():
    """The probability of 1,000 tokens of e^-0.5 each is 0 in float32."""
    long = np.full(1000, -0.5, np.float32)
    assert np.exp(long.sum()) == 0
    assert mean_logprob_score([long]) == pytest.approx([0.60653], abs=5e-6)
    assert mean_logprob_score([np.full(10**5, -9.0)], spans=[np.arange(10**5) // 1000]) == pytest.approx([np.exp(-9)])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-60, 0), min_size=1, max_size=20))
def test_scores_lie_between_the_least_and_the_most_likely_token(values):
    one = mean_logprob_score([values])[0]
    every = mean_logprob_score([values], spans=[list(range(len(values)))])[0]
    low, high = np.exp(min(values)) * (1 - 1e-9), np.exp(max(values)) * (1 + 1e-9)
    assert low <= one <= high and low <= every <= high
    assert every >= one * (1 - 1e-9)  # the arithmetic mean is never below the geometric one
    assert mean_logprob_score([values], spans=[[3] * len(values)])[0] == pytest.approx(one)


def test_bad_log_probabilities_are_refused_by_sample():
    assert mean_logprob_score([]).tolist() == []
    assert mean_logprob_score([[0.0, -np.inf]]).tolist() == [0.0]
    with pytest.raises(NothingToLearn, match="sample 1 has no answer tokens"):
        mean_logprob_score([[-1.0], []])
    with pytest.raises(NonFinite, match="sample 1 is NaN: got token 2"):
        mean_logprob_score([[-1.0], [-1, -1, np.nan]])
    with pytest.raises(BatchMismatch, match="not probabilities"):
        mean_logprob_score([[0.2, 0.9]])
    with pytest.raises(BatchMismatch, match="spans of sample 0"):
        mean_logprob_score([[-1.0, -1.0]], spans=[[0]])
    with pytest.raises(BatchMismatch, match="differ in length"):
        mean_logprob_score([[-1.0]], spans=[])


# ------------------------------------------------------------------ lines


def test_lines_are_spans_of_the_same_tokens():
    assert line_spans(["a", " b", "\n", "c", "\n\n", "\n", "d"]).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert line_spans(["\n", "a", "\r\n", "b"]).tolist() == [0, 1, 1, 2]
    assert line_spans(["a\nb", "c", "", "\n"]).tolist() == [0, 1, 1, 1]
    assert line_spans([]).tolist() == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab \n\r", max_size=3), max_size=15))
def test_a_line_ends_where_a_break_is(pieces):
    found = line_spans(pieces)
    for place, (before, after) in enumerate(pairwise(found)):
        run = [p for p, line in zip(pieces, found, strict=True) if line == before][: place + 1]
        assert after - before in (0, 1)
        if after > before:
            assert any("\n" in p or "\r" in p for p in run) and pieces[place + 1].strip("\r\n")


def test_lines_of_answers_in_two_turns():
    words = {1: "x", 2: "y", 3: "\n"}
    made = split_by_lines(part([2, 1, 3, 2, 1, 1, 1, 3, 3, 2], [0, 1, 1, 1, 0, 0, 1, 1, 1, 1]), words.__getitem__)
    assert made.span.tolist() == [-1, 0, 0, 1, -1, -1, 2, 2, 2, 3]
    assert answer_spans(made).tolist() == [0, 0, 1, 2, 2, 2, 3]


# ------------------------------------------------------------------ log-probabilities


def by_hand(policy, one):
    """Log-probabilities of weighted tokens, one sequence at a time, from the model's plain logits."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor(one.ids[None].astype(np.int64))).logits[0].log_softmax(-1)
    return np.array([float(logits[at - 1, one.ids[at]]) for at in range(1, len(one)) if one.weight[at]])


def test_log_probabilities_are_those_of_training(policy):
    parts = several(12)
    found = answer_logprobs(policy, parts, max_tokens_per_forward=64)
    for one, values in zip(parts, found, strict=True):
        assert values == pytest.approx(by_hand(policy, one), abs=1e-5)
        assert len(values) == len(answer_spans(one)) == int((one.weight[1:] != 0).sum())
    alone = compute_outputs(policy.model, collate_padded(parts[:1], [[0]])).logprobs.detach().numpy()
    assert found[0] == pytest.approx(alone, abs=1e-6)
    scores = mean_logprob_score(found, spans=[answer_spans(one) for one in parts])
    assert ((scores > 0) & (scores < 1)).all()


def test_what_was_learned_becomes_easy(policy):
    own = policy.clone()
    easy, other = several(2, seed=5)
    before = mean_logprob_score(answer_logprobs(own, [easy, other]))
    optimizer = torch.optim.SGD(own.model.parameters(), lr=0.3)
    for _ in range(15):
        loss = -compute_outputs(own.model, collate_padded([easy], [[0]])).logprobs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = mean_logprob_score(answer_logprobs(own, [easy, other]))
    assert after[0] > 3 * before[0] and after[0] > after[1]


def test_a_sequence_without_answer_is_refused(policy):
    silent = part([1, 2, 3], [1, 0, 0], name="silent")  # a weight at position 0 teaches nothing
    for function in (answer_logprobs, answer_features, span_features):
        with pytest.raises(NothingToLearn, match="'silent'"):
            function(policy, [silent])


# ------------------------------------------------------------------ features


def states_by_hand(policy, one):
    with torch.no_grad():
        return (
            policy.model.base_model(input_ids=torch.tensor(one.ids[None].astype(np.int64))).last_hidden_state[0].numpy()
        )


def test_features_are_means_over_the_answers_own_tokens(policy):
    parts = several(9)
    parts[4] = replace(parts[4], weight=np.r_[np.float32(1), parts[4].weight[1:]])  # position 0 never counts
    pooled, spans = (
        answer_features(policy, parts, max_tokens_per_forward=50),
        span_features(policy, parts, max_tokens_per_forward=50),
    )
    assert pooled.dtype == np.float32
    for row, one in enumerate(parts):
        states, places = states_by_hand(policy, one), 1 + np.flatnonzero(one.weight[1:])
        assert pooled[row] == pytest.approx(states[places].mean(axis=0), abs=1e-4)
        numbers = answer_spans(one)
        assert numbers.max() == 1 and len(spans[row]) == 2
        for span in range(2):
            assert spans[row][span] == pytest.approx(states[places[numbers == span]].mean(axis=0), abs=1e-4)
    assert answer_features(policy, []).shape == (0, policy.model.config.hidden_size)
    assert not policy.model.get_output_embeddings()._forward_pre_hooks, "the hook is gone"


def test_features_at_position_zero_would_say_nothing(policy):
    """The original takes the state of the begin token, which is one and the same for every sample."""
    parts = [part([1, *one.ids[1:]], one.weight) for one in several(6)]
    first = np.stack([states_by_hand(policy, one)[0] for one in parts])
    with pytest.raises(NonFinite, match="every feature is constant"):
        unit_features(first)
    made = unit_features(answer_features(policy, parts))
    assert np.isfinite(made).all() and np.linalg.norm(made, axis=1) == pytest.approx(np.ones(6), abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_state_computed_in_different_orders_says_nothing(dtype):
    """Rounding is that of the largest terms, which a small column does not show; real differences of that column do."""
    rng, eps = np.random.default_rng(0), np.finfo(dtype).eps
    state = np.array([3.0, -2.0, 1e-3, 1e-5], dtype)
    noisy = (state + 4 * eps * rng.standard_normal((50, 4))).astype(dtype)
    with pytest.raises(NonFinite, match="every feature is constant"):
        unit_features(noisy)
    noisy[:, 2] *= rng.uniform(0.5, 1.5, 50)
    assert np.abs(unit_features(noisy)).max() <= 1


def test_trees_are_refused(policy):
    tree = several(1)[0]
    tree = replace(tree, parent=np.arange(-1, len(tree) - 1, dtype=np.int32))
    with pytest.raises(BatchMismatch, match="is a tree"):
        answer_features(policy, [tree])


def test_choosing_spans_leaves_the_rest_unlearned(policy):
    one = several(1)[0]
    chosen = mask_spans(one, np.array([False, True]))
    assert len(answer_logprobs(policy, [chosen])[0]) == int((one.span == 2).sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unit_features(dtype):
    rng = np.random.default_rng(0)
    raw = (rng.standard_normal((500, 6)) * [1, 10, 0, 0.01, 1, 1] + [0, 3, 7, -2, 1e4, 0]).astype(dtype)
    raw[:, 2] += rng.standard_normal(500).astype(dtype) * np.finfo(dtype).eps  # constant but for rounding
    made = unit_features(raw)
    assert made.dtype == dtype and made.shape == (500, 5)
    kept = raw[:, [0, 1, 3, 4, 5]].astype(np.float64)
    scores = (kept - kept.mean(axis=0)) / kept.std(axis=0)
    assert made == pytest.approx(scores / np.linalg.norm(scores, axis=1, keepdims=True), abs=1e-5)
    assert np.linalg.norm(made, axis=1) == pytest.approx(np.ones(500), abs=1e-6)


def test_unit_features_of_odd_pools():
    assert unit_features(np.zeros((0, 3))).shape == (0, 3)
    assert unit_features([[1.0, 0], [3, 0], [2, 0]]).tolist() == [[-1], [1], [0]]  # the mean has no direction
    for constant in (np.ones((4, 2)), np.ones((1, 3)), np.full((5, 2), 0.1, np.float32), np.zeros((3, 0))):
        with pytest.raises(NonFinite, match="constant"):
            unit_features(constant)
    bad = np.ones((3, 2))
    bad[1, 1] = np.nan
    with pytest.raises(NonFinite, match="row 1, column 1 is nan"):
        unit_features(bad)
    with pytest.raises(BatchMismatch, match="features do not form a matrix"):
        unit_features([1.0, 2.0])
