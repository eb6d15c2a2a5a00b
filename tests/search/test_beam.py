"""Beam search: the best of all where all are kept, a tree worked by hand, ends that leave, ties, budgets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import SmallTree, Watch, end, random_tree, run

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.beam import beam
from evolvent.search.records import Budget

FREE = Budget()
RNG = np.random.default_rng(0)  # of no use to a beam; `test_the_generator_is_not_used` sees to that


def states(result) -> list[int]:
    return [int(result.tree.states[node]) for node in result.finished]


def small(below: dict[int, tuple[int, ...]]) -> SmallTree:
    every = set(below) | {child for children in below.values() for child in children}
    whole = {state: below.get(state, ()) for state in every}
    return SmallTree(whole, {state: -float(state) for state in whole}, {})


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_with_all_kept_it_finds_the_best_whatever_the_values_on_the_way(seed, exact):
    tree = random_tree(seed)
    noise = np.random.default_rng(seed).normal(size=len(tree.below))
    watch = Watch(tree, value=None if exact else lambda state: tree.reward.get(state, float(noise[state])))
    result = run(beam(0, FREE, RNG, width=3, keep=None, depth=4), watch)
    assert tree.reward[end(result)] == tree.best()
    assert sorted(states(result)) == sorted(tree.ends())
    assert len(watch.batches) <= 4  # a level is one wish of all


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_with_exact_values_one_beam_is_enough(seed):
    tree = random_tree(seed)
    watch = Watch(tree)
    result = run(beam(0, FREE, RNG, width=3, keep=1, depth=4), watch)
    assert tree.reward[end(result)] == tree.best()
    assert len(result.finished) == 1 and len(watch.expanded) == result.tree.depth[result.best_node]


# 0 -> 1 .9 (end), 2 .8, 3 .7; 2 -> 4 .5, 5 .4 (end); 4 -> 6 .3 (end), 7 .95 (end); 3 -> 8 .99 (end)
BELOW = {0: (1, 2, 3), 2: (4, 5), 3: (8,), 4: (6, 7)}
VALUES = {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.5, 5: 0.4, 6: 0.3, 7: 0.95, 8: 0.99}


@pytest.mark.parametrize(
    ("keep", "expanded", "finished", "chosen"),
    [
        (1, [0], [1], 1),  # the best is an end: it leaves, and k is 0
        (2, [0, 2, 4], [1, 7], 7),  # 1 leaves; of 4 and 5 one place is left for 4; of 6 and 7 for 7
        (3, [0, 2, 3, 4], [1, 8, 7], 8),  # after 1 two places: 8, an end, and 4; then one
        (None, [0, 2, 3, 4], [1, 8, 5, 7, 6], 8),
    ],
)
def test_ends_leave_the_beam_and_lower_k(keep, expanded, finished, chosen):
    watch = Watch(small(BELOW), value=VALUES.get)
    result = run(beam(0, FREE, RNG, width=3, keep=keep, depth=5), watch)
    assert (watch.expanded, states(result), end(result)) == (expanded, finished, chosen)
    assert result.ended_by == "done"


def test_of_equal_values_the_first_made_stays():
    tree = small({0: (1, 2, 3), 1: (4,), 2: (5,), 3: (6,)})
    watch = Watch(tree, value=lambda state: 0.5)
    result = run(beam(0, FREE, RNG, width=3, keep=2, depth=2), watch)
    assert (watch.expanded, states(result), end(result)) == ([0, 1, 2], [4, 5], 4)


def test_without_an_end_nothing_is_chosen():
    result = run(beam(0, FREE, RNG, width=3, keep=4, depth=1), Watch(random_tree(0)))
    assert (result.finished, result.best_node, result.ended_by) == ((), None, "done")
    assert len(result.tree) > 1 and max(result.tree.depth[: len(result.tree)]) == 1  # nodes at depth are not expanded

    class Blind(Watch):
        def _children(self, wish):
            return super()._children(wish) if wish.state == 0 else []

    dead = run(beam(0, FREE, RNG, width=3, keep=4, depth=4), Blind(small({0: (1, 2), 1: (3,), 2: (4,)}), VALUES.get))
    assert (dead.finished, dead.best_node, dead.ended_by) == ((), None, "done")


def test_an_end_that_came_before_the_budget_ended_counts():
    # Of the second level only node 2 fits: 5 is an end, but 4 is better, and with one place left it has it.
    for keep, finished in ((2, [1]), (3, [1, 5])):
        watch = Watch(small(BELOW), value=VALUES.get)
        budget = Budget(expansions=2)
        result = run(beam(0, budget, RNG, width=3, keep=keep, depth=5), watch, budget)
        assert (watch.expanded, states(result), end(result)) == ([0, 2], finished, 1)
        assert result.ended_by == "expansions"


def test_children_without_a_value_are_valued_together():
    watch = Watch(small(BELOW), value=lambda state: None)
    watch._valued = VALUES.__getitem__
    result = run(beam(0, FREE, RNG, width=3, keep=3, depth=5), watch)
    assert (states(result), end(result)) == ([1, 8, 7], 8)
    assert [list(wanted.evaluate) for wanted in watch.batches] == [[], [1, 2, 3], [], [4, 5, 8], [], [6, 7]]


def test_what_cannot_be_valued_is_dropped():
    for told in (True, False):
        values = VALUES | {2: math.nan}
        watch = Watch(small(BELOW), value=values.get if told else lambda state: None)
        watch._valued = values.__getitem__
        result = run(beam(0, FREE, RNG, width=3, keep=2, depth=5), watch)
        assert (watch.expanded, states(result)) == ([0, 3], [1, 8])
        assert [each.action for each in result.dropped] == ["2"]
        with pytest.raises(NoLegalAction, match="nan"):
            none = Watch(small(BELOW), value=(lambda state: math.nan) if told else lambda state: None)
            none._valued = lambda state: math.nan
            run(beam(0, FREE, RNG, width=3, keep=2, depth=5), none)


def test_width_is_what_is_asked_for():
    watch = Watch(random_tree(1))
    run(beam(0, FREE, RNG, width=2, keep=3, depth=4), watch)
    assert {wish.width for wanted in watch.batches for wish in wanted.expand} == {2}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["generated", "computed", "expansions"]),
    st.integers(1, 120),
    st.integers(0, 20),
    st.sampled_from([1, 3, None]),
    st.booleans(),
)
def test_no_budget_is_exceeded_and_every_budget_gives_a_result(limit, most, seed, keep, told):
    budget = Budget(**{limit: most})
    value = None if told else lambda state: None
    first, second = (
        run(beam(0, budget, RNG, width=3, keep=keep, depth=4), Watch(random_tree(seed), value), budget)
        for _ in range(2)
    )
    assert first.ended_by in ("done", limit)
    assert (first.finished, first.best_node, first.spent) == (second.finished, second.best_node, second.spent)
    assert keep is None or len(first.finished) <= keep


def test_the_generator_is_not_used():
    rng = np.random.default_rng(7)
    run(beam(0, FREE, rng, width=3, keep=3, depth=4), Watch(random_tree(0)))
    assert rng.random() == np.random.default_rng(7).random()


def test_no_action_at_the_root():
    with pytest.raises(NoLegalAction):
        run(beam(0, FREE, RNG, width=3, keep=3, depth=4), Watch(small({0: ()})))


def test_sizes_are_checked_together():
    with pytest.raises(ConfigError) as told:
        next(beam(0, FREE, RNG, width=0, keep=0, depth=0))
    assert [problem.where for problem in told.value.problems] == ["width", "keep", "depth"]
