"""Aggregation: the golden table, ties, equivalence by a grader, what is left out, products of many small scores."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.search.aggregate import Sample, aggregate, collect_all_samples, collect_samples, group_answers
from evolvent.search.records import Child, SearchResult, Spent
from evolvent.search.tree import Tree

GOLDEN = [Sample("A", (0.9, 0.2)), Sample("A", (0.9, 0.3)), Sample("B", (0.6, 0.46))]
SPANS = ("min", "last", "prod")


def value(first: str, second: str) -> bool:
    return Fraction(first) == Fraction(second)


@pytest.mark.parametrize("span", SPANS)
def test_the_golden_table(span):
    best = aggregate(GOLDEN, span=span, rule="max")
    assert (best.answer, best.best_sample) == ("B", 2)
    voted = aggregate(GOLDEN, span=span, rule="vote")
    assert (voted.answer, voted.best_sample, voted.answers) == ("A", 1, ("A", "B"))
    weights = {"min": (0.5, 0.46), "last": (0.5, 0.46), "prod": (0.45, 0.276)}[span]
    assert voted.weights == pytest.approx(weights, rel=1e-12)
    assert voted.share == pytest.approx(weights[0] / sum(weights), rel=1e-12)
    assert aggregate(GOLDEN, span=span, rule="max").weights == pytest.approx(
        {"min": (0.3, 0.46), "last": (0.3, 0.46), "prod": (0.27, 0.276)}[span], rel=1e-12
    )
    most = aggregate(GOLDEN, span=span, rule="majority")
    assert (most.answer, most.weight, most.shares) == ("A", 2.0, (2 / 3, 1 / 3))


def test_of_equal_answers_the_one_seen_first_wins():
    samples = [Sample("B", (0.5,)), Sample("A", (0.25,)), Sample("A", (0.25,))]
    for rule in ("max", "vote"):
        assert aggregate(samples, span="last", rule=rule).answer == "B"
        assert aggregate(samples[::-1], span="last", rule=rule).answer == ("B" if rule == "max" else "A")
    two = [Sample("B"), Sample("A")]
    assert [aggregate(each, span="last", rule="majority").best_sample for each in (two, two[::-1])] == [0, 0]


def test_the_first_sample_of_the_best_value_stands_for_an_answer():
    samples = [Sample("A", (0.1,)), Sample("A", (0.4,)), Sample("A", (0.4,))]
    assert aggregate(samples, span="last", rule="vote").best_sample == 1
    assert aggregate(samples, span="last", rule="majority").best_sample == 0


def test_answers_are_compared_by_the_grader():
    asked = []

    def same(first: str, second: str) -> bool:
        asked.append((first, second))
        return value(first, second)

    assert group_answers(["1/2", "3", "0.5", "3.0", None, "1/2", "0.5"], same=same) == (0, 1, 0, 1, -1, 0, 0)
    assert asked == [("1/2", "3"), ("1/2", "0.5"), ("1/2", "3.0"), ("3", "3.0")]  # none twice, none with itself
    samples = [Sample("3", (0.5,)), Sample("1/2", (0.3,)), Sample("0.5", (0.4,))]
    assert aggregate(samples, span="min", rule="vote").answer == "3"
    choice = aggregate(samples, span="min", rule="vote", same=value)
    assert (choice.answer, choice.best_sample, choice.weights) == ("1/2", 2, (0.5, 0.7))


def test_counts_are_votes():
    samples = [Sample("A", (0.2,), count=3), Sample("B", (0.5,)), Sample("B", (0.3,))]
    assert aggregate(samples, span="last", rule="majority").weights == (3.0, 2.0)
    assert aggregate(samples, span="last", rule="vote").weights == pytest.approx((0.6, 0.8))
    assert aggregate(samples, span="last", rule="max").weights == (0.2, 0.5)


def test_what_was_not_scored_is_left_out_and_counted():
    samples = [Sample("A", count=4), Sample("B", (0.1,)), Sample("A", (0.05,))]
    choice = aggregate(samples, span="last", rule="vote")
    assert (choice.answer, choice.unscored, choice.best_sample) == ("B", 4, 1)
    assert aggregate(samples, span="last", rule="majority").answer == "A"
    assert aggregate(samples, span="last", rule="majority").unscored == 0
    none = aggregate(samples[:1], span="last", rule="vote")
    assert (none.answer, none.best_sample, none.unscored, none.share) == (None, None, 4, None)


def test_no_answer_wins_only_where_there_is_no_other():
    samples = [Sample(None, (0.9,), count=5), Sample("A", (0.1,))]
    for rule in ("max", "vote", "majority"):
        choice = aggregate(samples, span="last", rule=rule)
        assert (choice.answer, choice.answers, choice.unread, choice.share) == ("A", ("A",), 5, 1.0)
    alone = aggregate(samples[:1], span="last", rule="vote")
    assert (alone.answer, alone.best_sample, alone.unread) == (None, 0, 5)
    nothing = aggregate([], span="last", rule="vote")
    assert (nothing.answer, nothing.best_sample, nothing.answers, nothing.share) == (None, None, (), None)


def test_outcomes_are_stretched_to_0_and_1_before_a_vote():
    samples = [Sample("A", outcome=-1.0), Sample("A", outcome=-0.5), Sample("B", outcome=1.0), Sample("C")]
    choice = aggregate(samples, span="outcome", rule="vote")
    assert (choice.answer, choice.weights, choice.unscored) == ("B", (0.25, 1.0), 1)
    assert aggregate(samples, span="outcome", rule="max").weight == 1.0
    flat = [Sample("A", outcome=3.0), Sample("B", outcome=3.0), Sample("B", outcome=3.0)]
    assert aggregate(flat, span="outcome", rule="vote").weights == (1.0, 2.0)
    wide = [Sample("A", outcome=-1.7e308), Sample("B", outcome=1.7e308)]
    assert aggregate(wide, span="outcome", rule="vote").weights == (0.0, 1.0)
    # Adding a constant to all outcomes changes no vote.
    moved = [Sample(each.answer, outcome=each.outcome + 7) for each in samples[:3]]
    assert aggregate(moved, span="outcome", rule="vote").weights == choice.weights


def test_a_negative_weight_has_no_share():
    choice = aggregate([Sample("A", (-0.5,)), Sample("B", (0.25,))], span="last", rule="vote")
    assert (choice.answer, choice.weights, choice.shares) == ("B", (-0.5, 0.25), None)


def test_products_do_not_vanish():
    samples = [Sample("A", (1e-3,) * 200), Sample("B", (1.1e-3,) * 200), Sample("A", (1e-3,) * 200)]
    choice = aggregate(samples, span="prod", rule="max")
    assert (choice.answer, choice.weight) == ("B", 0.0)  # the product itself is too small for a float
    assert choice.shares == pytest.approx((1 / (1 + 1.1**200), 1.1**200 / (1 + 1.1**200)), rel=1e-9)
    vote = aggregate(samples, span="prod", rule="vote")
    assert vote.shares == pytest.approx((2 / (2 + 1.1**200), 1.1**200 / (2 + 1.1**200)), rel=1e-9)
    large = aggregate([Sample("A", (1e3,) * 200), Sample("B", (1.1e3,) * 200)], span="prod", rule="max")
    assert (large.answer, large.weight) == ("B", math.inf)
    mixed = [
        Sample("A", (-1e3,) * 201),
        Sample("B", (1e-3,) * 200),
        Sample("C", (1.1e-3,) * 200),
        Sample("D", (0.0, 1.0)),
    ]
    assert aggregate(mixed, span="prod", rule="vote").answer == "C"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ABC"), st.lists(st.integers(-4, 8), min_size=1, max_size=5), st.integers(1, 3)),
        min_size=1,
        max_size=7,
    )
)
def test_against_exact_arithmetic(drawn):
    samples = [Sample(answer, tuple(score / 8 for score in scores), count) for answer, scores, count in drawn]
    exact = {"min": min, "last": lambda scores: scores[-1], "prod": math.prod}
    for span, reduce in exact.items():
        values = [reduce([Fraction(score, 8) for score in scores]) for _, scores, _ in drawn]
        for rule in ("max", "vote", "majority"):
            weights: dict[str, Fraction] = {}
            for (answer, _, count), v in zip(drawn, values, strict=True):
                if rule == "max":
                    weights[answer] = max(weights.get(answer, v), v)
                else:
                    weights[answer] = weights.get(answer, Fraction(0)) + (v if rule == "vote" else 1) * count
            choice = aggregate(samples, span=span, rule=rule)
            assert choice.answers == tuple(weights)
            assert [Fraction(weight) for weight in choice.weights] == list(weights.values())  # eighths are exact
            assert choice.answer == max(weights, key=weights.__getitem__)


@pytest.mark.parametrize(
    "bad", [{"scores": (0.5, math.nan)}, {"scores": (math.inf,)}, {"outcome": math.nan}, {"count": 0}]
)
def test_bad_samples_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Sample("A", **bad)


def test_unknown_rules_are_refused_together():
    with pytest.raises(ConfigError) as told:
        aggregate(GOLDEN, span="mean", rule="best")
    assert [problem.where for problem in told.value.problems] == ["span", "rule"]


def result(values: list[float | None], scores: tuple[float, ...] = ()) -> SearchResult:
    """Root, a step, two ends below it; `values` of the step and the ends."""
    tree = Tree(0)
    tree.add_children(0, [Child(1, "step", value=values[0], scores=scores)])
    tree.add_children(
        1, [Child(2, "a", value=values[1], terminal=True, scores=scores), Child(3, "b", value=values[2], terminal=True)]
    )
    return SearchResult(tree, (3, 2, 3), 2, Spent())


def test_samples_of_a_search():
    plain = collect_samples(result([0.5, 0.75, 0.25]), lambda state: state * 10)
    assert plain == [Sample(30, (0.5, 0.25), 2, 0.25, (0, 3)), Sample(20, (0.5, 0.75), 1, 0.75, (0, 2))]
    spans = collect_samples(result([0.5, 0.75, None], scores=(0.1, 0.2)), lambda state: state)
    assert spans == [Sample(3, (0.1, 0.2), 2, None, (0, 3)), Sample(2, (0.1, 0.2, 0.1, 0.2), 1, 0.75, (0, 2))]
    assert collect_samples(result([None, 0.75, 0.25]), lambda state: state)[1].scores == ()


def test_trees_are_taken_together():
    both = [result([0.5, 0.75, 0.25]), result([0.5, 0.5, np.float64(1.0)])]
    samples = collect_all_samples(both, lambda state: state)
    assert [each.origin for each in samples] == [(0, 3), (0, 2), (1, 3), (1, 2)]
    choice = aggregate(samples, span="last", rule="vote")
    assert (choice.answer, choice.weight) == (3, 2.5)
    assert samples[choice.best_sample].origin == (1, 3)
