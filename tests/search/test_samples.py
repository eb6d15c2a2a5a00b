"""Sampling searches: what they draw, in rounds under a budget, and whom they choose."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import SmallTree, Watch, end, random_tree, run

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.records import Budget
from evolvent.search.samples import best_of_n, sampled_tree, search_greedy, self_consistency

FREE = Budget()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def ends(result) -> list[int]:
    return [int(result.tree.states[node]) for node in result.finished]


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_likeliest_way(seed):
    watch = Watch(random_tree(seed))
    result = run(search_greedy(0, FREE, rng()), watch)
    assert ends(result) == [end(result)] == [watch.tree.greedy()]
    assert (result.spent.evaluations, result.ended_by) == (0, "done")
    valued = run(search_greedy(0, FREE, rng(), valued=True), Watch(watch.tree, value=lambda state: None))
    assert valued.tree.value[valued.best_node] == watch.tree.reward[watch.tree.greedy()]


@pytest.mark.parametrize("seed", range(5))
def test_best_of_n_is_the_best_of_what_it_drew(seed):
    tree = random_tree(seed)
    watch = Watch(tree)
    result = run(best_of_n(0, FREE, rng(), n=12), watch)
    drawn = [tree.drawn(0, number) for number in range(12)]
    assert Counter(ends(result)) == Counter(drawn)  # equal samples are one node, and stand there as often as drawn
    assert len(result.tree) == 1 + len(set(drawn))
    assert end(result) == max(drawn, key=tree.reward.__getitem__)
    assert len(watch.batches) == 1


def test_under_a_budget_as_many_are_drawn_as_fit():
    tree = random_tree(3)
    for most in (24, 47, 100, 333, 1000):
        watch = Watch(tree)
        budget = Budget(generated=most)
        result = run(best_of_n(0, budget, rng(), n=20), watch, budget)
        count = len(result.finished)
        assert Counter(ends(result)) == Counter(tree.drawn(0, number) for number in range(count))  # no sample twice
        if count < 20:
            assert result.ended_by == "generated"
            assert most - result.spent.generated < 8 * watch.tokens  # the worst case of one more does not fit
        firsts = [wish.first for wanted in watch.batches for wish in wanted.expand]
        assert firsts == sorted(firsts)
        assert len(firsts) <= count + math.log2(20) + 1  # what does not fit is halved
    assert (count, result.ended_by) == (20, "done")


def test_nothing_fits():
    budget = Budget(generated=23)
    result = run(best_of_n(0, budget, rng(), n=4), Watch(random_tree(0)), budget)
    assert (result.best_node, result.finished, result.ended_by) == (None, (), "generated")
    assert not result.tree.is_expanded(0)


def test_samples_without_a_value_are_valued():
    tree = random_tree(1)
    watch = Watch(tree, value=lambda state: None)
    result = run(best_of_n(0, FREE, rng(), n=9), watch)
    assert sorted(watch.evaluated) == sorted(set(ends(result)))
    assert end(result) == max(ends(result), key=tree.reward.__getitem__)
    small = Budget(computed=3)
    late = run(best_of_n(0, small, rng(), n=9, valued=True), Watch(tree, value=lambda state: None), small)
    assert late.ended_by == "computed" and late.spent.computed <= 3


def test_a_sample_that_cannot_be_valued_is_dropped():
    tree = random_tree(1)
    drawn = [tree.drawn(0, number) for number in range(9)]
    best = max(drawn, key=tree.reward.__getitem__)
    result = run(
        best_of_n(0, FREE, rng(), n=9), Watch(tree, value=lambda state: math.nan if state == best else tree.best(state))
    )
    assert best not in ends(result)
    assert end(result) == max(set(drawn) - {best}, key=tree.reward.__getitem__)
    assert [each.action for each in result.dropped] == [str(best)]
    with pytest.raises(NoLegalAction, match="nan"):
        run(best_of_n(0, FREE, rng(), n=9), Watch(tree, value=lambda state: math.nan))


def test_self_consistency_takes_the_answer_of_most():
    tree = random_tree(5)
    drawn = [tree.drawn(0, number) for number in range(30)]
    plain = run(self_consistency(0, FREE, rng(), n=30), Watch(tree))
    assert end(plain) == Counter(drawn).most_common(1)[0][0]
    assert plain.notes["share"] == pytest.approx(Counter(drawn).most_common(1)[0][1] / 30)
    assert plain.spent.evaluations == 0
    remainders = Counter(state % 3 for state in drawn)
    by_rest = run(
        self_consistency(
            0, FREE, rng(), n=30, answer=lambda state: state, same=lambda one, other: one % 3 == other % 3
        ),
        Watch(tree),
    )
    assert end(by_rest) % 3 == remainders.most_common(1)[0][0]
    unread = run(self_consistency(0, FREE, rng(), n=30, answer=lambda state: None), Watch(tree))
    assert unread.best_node is not None and unread.notes["unread"] == 30


def drawn_by_hand(tree: SmallTree, numbers: np.ndarray) -> int | None:
    """The end of one walk, from the definition: the child in whose share of [0, 1) the number falls."""
    state = 0
    for number in numbers:
        below = sorted(tree.below[state], key=lambda child: -tree.logprob[child])
        shares = np.exp([tree.logprob[child] for child in below])
        state = below[int(np.searchsorted(np.cumsum(shares) / shares.sum(), number, side="right"))]
        if not tree.below[state]:
            return state
    return None


@pytest.mark.parametrize("seed", range(4))
def test_walks_are_those_of_their_numbers_whatever_goes_side_by_side(seed):
    tree = random_tree(seed)
    by_hand = [drawn_by_hand(tree, numbers) for numbers in rng(seed).random((40, 4))]
    for together in (1, 7, 40):
        watch = Watch(tree)  # which also sees that no state is expanded twice
        result = run(sampled_tree(0, FREE, rng(seed), width=3, depth=4, paths=40, together=together), watch)
        assert ends(result) == by_hand
        assert end(result) == Counter(by_hand).most_common(1)[0][0]
    assert len(watch.batches) <= 4
    valued = run(sampled_tree(0, FREE, rng(seed), width=3, depth=4, paths=40, valued=True), Watch(tree))
    assert end(valued) == max(by_hand, key=tree.reward.__getitem__)


def test_walks_are_judged_before_more_are_made():
    """Where the budget ends among walks, the ends of those before are valued, and one of them is chosen."""
    tree, judged = random_tree(2), 0
    for most in range(4, 40):
        budget = Budget(computed=most)
        search = sampled_tree(0, budget, rng(2), width=2, depth=4, paths=40, together=1, valued=True)
        result = run(search, Watch(tree, value=lambda state: None), budget)
        if result.ended_by == "computed" and len(result.finished) > 1:
            known = [not math.isnan(result.tree.value[node]) for node in result.finished]
            judged += 1
            assert all(known[:-1]) and known[list(result.finished).index(result.best_node)]
    assert judged


def test_children_are_drawn_by_their_priors():
    tree = SmallTree({0: (1, 2), 1: (), 2: ()}, {0: 0.0, 1: math.log(0.8), 2: math.log(0.2)}, {1: 0.1, 2: 0.2})
    result = run(sampled_tree(0, FREE, rng(1), width=2, depth=1, paths=2000, together=2000), Watch(tree))
    assert abs(ends(result).count(1) / 2000 - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 2000)


def test_a_walk_that_comes_to_no_end_does_not_count():
    tree = random_tree(2)
    short = run(sampled_tree(0, FREE, rng(), width=3, depth=1, paths=5), Watch(tree))
    assert (short.finished, short.best_node, short.ended_by) == ((), None, "done")

    class Blind(Watch):
        def _children(self, wish):
            return [] if wish.state else [replace(child, terminal=False) for child in super()._children(wish)]

    blind = run(sampled_tree(0, FREE, rng(), width=3, depth=4, paths=5), Blind(tree))
    assert (blind.finished, blind.best_node) == ((), None)


SEARCHES = [
    lambda budget: search_greedy(0, budget, rng(), valued=True),
    lambda budget: best_of_n(0, budget, rng(), n=6),
    lambda budget: self_consistency(0, budget, rng(), n=6),
    lambda budget: sampled_tree(0, budget, rng(), width=2, depth=4, paths=6, together=2, valued=True),
]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 3),
    st.sampled_from(["generated", "computed", "expansions"]),
    st.integers(1, 120),
    st.integers(0, 9),
    st.booleans(),
)
def test_no_budget_is_exceeded_and_every_budget_gives_a_result(which, limit, most, seed, told):
    budget = Budget(**{limit: most})
    watches = [Watch(random_tree(seed), value=None if told else lambda state: None) for _ in range(2)]
    first, second = (run(SEARCHES[which](budget), watch, budget) for watch in watches)
    assert first.ended_by in ("done", limit)
    assert (first.finished, first.best_node, first.spent) == (second.finished, second.best_node, second.spent)


@pytest.mark.parametrize("which", range(4))
def test_no_action_at_the_root(which):
    class Nothing(Watch):
        def _children(self, wish):
            return []

    with pytest.raises(NoLegalAction):
        run(SEARCHES[which](FREE), Nothing(random_tree(0)))


def test_sizes_are_checked_together():
    with pytest.raises(ConfigError, match="n: got 0, expected 1 or more"):
        next(best_of_n(0, FREE, rng(), n=0))
    with pytest.raises(ConfigError) as told:
        next(sampled_tree(0, FREE, rng(), width=0, depth=0, paths=0, together=0))
    assert len(told.value.problems) == 4
