"""Greedy MAP beside its definition, and the choices made of it."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate import greedy
from evolvent.curate.greedy import GreedySelector, greedy_map, restarted_map
from evolvent.curate.select import dpp, mask_spans, select_spans
from evolvent.errors import BatchMismatch, ConfigError, NonFinite
from evolvent.learn.token_sequences import TokenSequence


def scaled(features, quality=None):
    rows = np.asarray(features, np.float64)
    return rows if quality is None else rows * np.asarray(quality)[:, None]


def by_definition(features, quality, k):
    """Greedy on log det of the kernel's submatrices, each computed anew."""
    rows, chosen = scaled(features, quality), []
    for _ in range(k):
        values = np.full(len(rows), -np.inf)
        for item in set(range(len(rows))) - set(chosen):
            some = rows[[*chosen, item]]
            sign, value = np.linalg.slogdet(some @ some.T)
            values[item] = value if sign > 0 else -np.inf
        chosen.append(int(values.argmax()))
    return chosen


def by_cholesky(features, quality, k):
    """Chen et al.'s algorithm 1 with a whole kernel, in float64."""
    rows = scaled(features, quality)
    kernel = rows @ rows.T
    left, factor, chosen = np.diag(kernel).copy(), np.zeros((0, len(rows))), []
    for _ in range(k):
        best = int(left.argmax())
        row = (kernel[best] - factor[:, best] @ factor) / np.sqrt(left[best])
        factor, left = np.vstack([factor, row]), left - row**2
        left[best] = -np.inf
        chosen.append(best)
    return chosen


def random_problem(case):
    rng = np.random.default_rng(case)
    n, d = int(rng.integers(2, 61)), int(rng.integers(1, 20))
    features = rng.standard_normal((n, d)).astype((np.float32, np.float64)[case % 2])
    return features, rng.random(n) + 0.1 if case % 3 else None, min(n, d, int(rng.integers(1, 11)))


def test_the_golden_case():
    found = greedy_map([[2, 0], [1.9, 0.1], [0, 1]], None, 3)
    assert found.indices.tolist() == [0, 2] and found.stopped == "rank"
    assert found.gains == pytest.approx([np.log(4), 0.0])


def test_identical_to_the_definition_on_200_random_problems():
    for case in range(200):
        features, quality, k = random_problem(case)
        found = greedy_map(features, quality, k)
        assert found.indices.tolist() == by_definition(features, quality, k), case
        chosen = scaled(features, quality)[found.indices]
        assert found.gains.sum() == pytest.approx(np.linalg.slogdet(chosen @ chosen.T)[1], abs=1e-6), case
        assert found.stopped == "k"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("graded", [False, True])
def test_blocks_are_looked_at_only_when_needed_and_change_nothing(monkeypatch, dtype, graded):
    rng = np.random.default_rng(3)
    features = rng.standard_normal((3000, 24)).astype(dtype)
    quality = np.sort(rng.random(3000)) if graded else None
    expected = by_cholesky(features, quality, 20)
    monkeypatch.setattr(greedy, "_BLOCK", 1)
    choice = GreedySelector(features, quality)
    assert len(choice._blocks) == 47
    assert choice.extend(20).indices.tolist() == expected
    assert choice._fed.min() < (1 if graded else 19)  # blocks of little quality were never looked at again


def test_float32_items_are_told_apart_beyond_float32():
    """Residues of 1e-8 are below what sums in float32 can show; the choice is float64's."""
    rng = np.random.default_rng(0)
    features = (rng.standard_normal(12) + 1e-4 * rng.standard_normal((300, 12))).astype(np.float32)
    assert greedy_map(features, None, 8, rtol=1e-12).indices.tolist() == by_cholesky(features, None, 8)


def test_near_the_best_set_where_all_eigenvalues_are_at_least_one():
    for case in range(10):
        rows = np.hstack([np.eye(10), np.random.default_rng(case).standard_normal((10, 4))])
        value = {
            some: np.linalg.slogdet(rows[list(some)] @ rows[list(some)].T)[1] for some in combinations(range(10), 4)
        }
        found = greedy_map(rows, None, 4)
        assert found.gains.sum() >= (1 - 1 / np.e) * max(value.values())
        assert found.gains.sum() == pytest.approx(value[tuple(sorted(found.indices.tolist()))])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_permuted_rows_permute_the_result(seed):
    rng = np.random.default_rng(seed)
    features, quality = rng.standard_normal((200, 6)).astype(np.float32), rng.random(200)
    order = rng.permutation(200)
    first, second = greedy_map(features, quality, 6), greedy_map(features[order], quality[order], 6)
    assert order[second.indices].tolist() == first.indices.tolist()
    assert second.gains == pytest.approx(first.gains)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [32, 256])
def test_it_stops_at_the_rank_whatever_rounding_leaves(dtype, width):
    rng = np.random.default_rng(1)
    features = (rng.standard_normal((400, 20)) @ rng.standard_normal((20, width))).astype(dtype)
    found = greedy_map(features, rng.random(400) + 0.5, 44)
    assert (len(found.indices), found.stopped) == (20, "rank")
    assert greedy_map(features * dtype(1e-9), None, 44).stopped == "rank", "no absolute threshold"


def test_equal_rows_give_the_lowest_index_and_count_once():
    rng = np.random.default_rng(2)
    few = rng.standard_normal((4, 7)).astype(np.float32)
    copies = np.tile(few, (400, 1))
    found = greedy_map(copies, None, 9)
    assert found.indices.tolist() == greedy_map(few, None, 4).indices.tolist()
    assert found.stopped == "rank"
    assert greedy_map(np.eye(5), None, 3).indices.tolist() == [0, 1, 2]


def test_equal_rows_in_two_blocks_give_the_lowest_index(monkeypatch):
    """The later block is looked at first, for what was in it before; the tie is still the earlier block's."""
    monkeypatch.setattr(greedy, "_BLOCK", 1)
    features = np.zeros((128, 2))
    features[[0, 64]], features[[100, 101]] = [1, 0], [[0, 3], [0, 2]]
    assert greedy_map(features, None, 2).indices.tolist() == [100, 0]


def test_a_pool_smaller_than_k_is_taken_whole():
    found = greedy_map(np.eye(3), [1, 3, 2], 10)
    assert found.indices.tolist() == [1, 2, 0] and found.stopped == "empty"
    for shape in ((0, 4), (0, 0)):
        none = greedy_map(np.zeros(shape), None, 2)
        assert len(none.indices) == len(none.gains) == 0 and none.stopped == "empty"
    assert greedy_map(np.zeros((3, 2)), None, 2).stopped == "rank"
    assert greedy_map(np.zeros((3, 0)), None, 2).stopped == "rank"


def test_quality_scales_rows_and_zero_is_never_taken():
    features, quality = np.random.default_rng(5).standard_normal((30, 8)), np.arange(30.0)
    assert (
        greedy_map(features, quality, 5).indices.tolist()
        == greedy_map(scaled(features, quality), None, 5).indices.tolist()
    )
    found = greedy_map(np.eye(4), [1, 0, 1, 0], 4)
    assert found.indices.tolist() == [0, 2] and found.stopped == "rank"


def test_what_features_may_be(tmp_path):
    features = np.random.default_rng(6).standard_normal((50, 6)).astype(np.float32)
    expected = greedy_map(features, None, 5).indices.tolist()
    before = features.copy()
    stored = np.lib.format.open_memmap(tmp_path / "features.npy", "w+", np.float32, features.shape)
    stored[:] = features
    for other in (stored, np.asfortranarray(features), features.astype(np.float64), features * np.float32(2.0**80)):
        assert greedy_map(other, None, 5).indices.tolist() == expected
    assert (features == before).all()
    whole = np.random.default_rng(7).integers(-9, 9, (20, 4))
    assert greedy_map(whole, None, 4).indices.tolist() == by_definition(whole, None, 4)
    half = features.astype(np.float16)
    assert greedy_map(half, None, 5).indices.tolist() == by_definition(half, None, 5)


def test_it_can_be_continued():
    features = np.random.default_rng(8).standard_normal((60, 9))
    choice = GreedySelector(features)
    assert choice.extend(3).indices.tolist() == choice.extend(9).indices.tolist()[:3]
    assert choice.extend(9).indices.tolist() == greedy_map(features, None, 9).indices.tolist()


def test_bad_input_is_refused_by_place():
    good = np.random.default_rng(0).standard_normal((5, 3))
    bad, large = good.copy(), good.copy()
    bad[3, 1], large[2, 0] = np.nan, 1e200
    with pytest.raises(NonFinite, match="row 3, column 1 is nan"):
        greedy_map(bad, None, 2)
    with pytest.raises(NonFinite, match="row 2 are too large"):
        greedy_map(large, None, 2)
    for quality, what in (([1, 1, -1, 1, 1], "row 2 is -1"), ([1, 1, 1, 1, np.inf], "row 4 is inf")):
        with pytest.raises(NonFinite, match=what):
            greedy_map(good, quality, 2)
    for features, quality in ((good, [1, 1]), (good[0], None), (np.array([["a"]]), None), (good, np.ones((5, 1)))):
        with pytest.raises(BatchMismatch):
            greedy_map(features, quality, 2)
    for k in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
            greedy_map(good, None, k)
    for rtol in (-1, 1, np.nan):
        with pytest.raises(ConfigError, match="rtol"):
            greedy_map(good, None, 2, rtol=rtol)


# ------------------------------------------------------------------ beyond the rank


def test_beyond_the_rank_it_begins_again_on_the_rest():
    features = np.random.default_rng(4).standard_normal((40, 5))
    found = restarted_map(features, None, 12)
    first = greedy_map(features, None, 5).indices
    rest = np.delete(np.arange(40), first)
    second = rest[greedy_map(features[rest], None, 5).indices]
    assert found.indices[:10].tolist() == [*first, *second]
    assert found.stopped == "k" and len(set(found.indices.tolist())) == 12
    everything = restarted_map(features, None, 50)
    assert sorted(everything.indices.tolist()) == list(range(40)) and everything.stopped == "empty"
    features[7] = 0
    without = restarted_map(features, None, 50)
    assert len(without.indices) == 39 and 7 not in without.indices and without.stopped == "rank"


def test_the_selector_is_the_restarted_choice():
    rng = np.random.default_rng(0)
    features, quality = rng.standard_normal((30, 4)), rng.random(30)
    found = dpp(features, quality, 9, rng=rng)
    assert found.indices.tolist() == restarted_map(features, quality, 9).indices.tolist()


# ------------------------------------------------------------------ within samples


def answer(spans, *, prompt=2):
    count = prompt + len(spans)
    weight = np.r_[np.zeros(prompt), np.full(len(spans), 0.5)].astype(np.float32)
    written = weight > 0
    zeros = np.zeros(count, np.int32)
    span = np.r_[np.full(prompt, -1), spans].astype(np.int32)
    return TokenSequence(
        "t", np.arange(count, dtype=np.int32), written, ~written, zeros.astype(np.float32), zeros, span, weight
    )


def test_spans_within_a_sample():
    spans = [[[1, 0], [0.9, 0.1], [0, 1]], [[1, 1]], [[0, 0], [0, 0]], [[1, 0], [1, 0]]]
    kept = select_spans(spans, share=2 / 3)
    assert [each.tolist() for each in kept] == [[True, False, True], [True], [True, True], [True, False]]
    by_quality = select_spans(spans[:1], [[0.1, 2, 0.1]], share=0.3)
    assert by_quality[0].tolist() == [False, True, False]


def test_unchosen_spans_get_weight_zero():
    part = answer([4, 4, 2, 9])
    made = mask_spans(part, np.array([True, False, True]))
    assert made.weight.tolist() == [0, 0, 0.5, 0.5, 0, 0.5]
    assert part.weight.tolist() == [0, 0, 0.5, 0.5, 0.5, 0.5]
    with pytest.raises(BatchMismatch, match="does not match the spans"):
        mask_spans(part, np.array([True]))


def test_bad_spans_are_refused():
    for share in (0, 1.5, np.nan):
        with pytest.raises(ConfigError, match="share"):
            select_spans([[[1, 0]]], share=share)
    with pytest.raises(BatchMismatch, match="sample 1 has no spans"):
        select_spans([[[1, 0]], np.zeros((0, 2))], share=1)
    with pytest.raises(BatchMismatch, match="differ in length"):
        select_spans([[[1, 0]]], [], share=1)
