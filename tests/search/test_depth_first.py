"""Depth-first search: all ends without pruning, its order, both prunings by hand, budgets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import SmallTree, Watch, end, random_tree, run

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.depth_first import depth_first
from evolvent.search.records import Budget, Child, Response, Spent

FREE = Budget()
RNG = np.random.default_rng(0)


def states(result) -> list[int]:
    return [int(result.tree.states[node]) for node in result.finished]


def by_definition(tree: SmallTree, values, state: int = 0, *, below=None, ratio=None) -> list[int]:
    """All ends in the order of DFS-V, recursively, with the stopping rule as TS-LLM states it."""
    if not tree.below[state]:
        return [state]
    likeliest = sorted(tree.below[state], key=lambda child: -tree.logprob[child])  # as the adapter makes them
    found: list[int] = []
    for at, child in enumerate(sorted(likeliest, key=lambda child: -values(child))):
        if below is not None and values(child) < below:
            break
        if ratio is not None and at * 10 > (10 - round(10 * ratio)) * len(likeliest):  # in whole numbers
            break
        found += by_definition(tree, values, child, below=below, ratio=ratio)
    return found


def noisy(tree: SmallTree, seed: int):
    noise = np.random.default_rng(seed).uniform(size=len(tree.below)).round(1)  # rounded, so that there are ties
    return lambda state: tree.reward.get(state, float(noise[state]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_without_pruning_it_finds_the_best(seed):
    tree = random_tree(seed)
    watch = Watch(tree, value=noisy(tree, seed))
    result = run(depth_first(0, FREE, RNG, width=3, depth=4, paths=None), watch)
    assert tree.reward[end(result)] == tree.best()
    assert states(result) == by_definition(tree, watch.value)
    assert all(len(wanted.expand) <= 1 for wanted in watch.batches)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([None, 0.3, 0.6]),
    st.sampled_from([None, 0.3, 0.5, 0.7, 0.9]),
    st.sampled_from([1, 2, 5, None]),
)
def test_the_order_and_what_is_pruned(seed, below, ratio, paths):
    tree = random_tree(seed, most=6, depth=3)
    watch = Watch(tree, value=noisy(tree, seed))
    result = run(depth_first(0, FREE, RNG, width=6, depth=4, paths=paths, prune_below=below, prune_ratio=ratio), watch)
    assert states(result) == by_definition(tree, watch.value, below=below, ratio=ratio)[:paths]
    assert result.ended_by == "done"


def fan(width: int) -> SmallTree:
    """A root with `width` ends."""
    children = tuple(range(1, width + 1))
    return SmallTree(
        {0: children} | dict.fromkeys(children, ()),
        dict.fromkeys(range(width + 1), 0.0),
        {child: child / (width + 1) for child in children},
    )


@pytest.mark.parametrize(
    ("width", "ratio", "stay"),
    [(6, 0.7, 2), (10, 0.7, 4), (10, 0.9, 2), (50, 0.9, 6), (20, 0.9, 3), (3, 0.99, 1), (4, 1.0, 1), (4, 0.0, 4)],
)
def test_the_share_that_stays(width, ratio, stay):
    """floor((1 - ratio) n) + 1, where 1 - .9 as a float is less than .1."""
    watch = Watch(fan(width))
    result = run(depth_first(0, FREE, RNG, width=width, depth=1, paths=None, prune_ratio=ratio), watch)
    assert states(result) == list(range(width, width - stay, -1))
    assert result.notes == {"pruned": width - stay}


def test_the_least_value():
    result = run(depth_first(0, FREE, RNG, width=9, depth=1, paths=None, prune_below=0.7), Watch(fan(9)))
    assert states(result) == [9, 8, 7]  # .7 is not below .7
    none = run(depth_first(0, FREE, RNG, width=9, depth=1, paths=None, prune_below=0.95), Watch(fan(9)))
    assert (none.finished, none.best_node, none.ended_by, none.notes) == ((), None, "done", {"pruned": 9})
    both = run(depth_first(0, FREE, RNG, width=9, depth=1, paths=None, prune_below=0.7, prune_ratio=0.9), Watch(fan(9)))
    assert states(both) == [9]


def test_it_stops_at_the_wanted_number_of_paths():
    tree = random_tree(3)
    everything, few = Watch(tree, noisy(tree, 3)), Watch(tree, noisy(tree, 3))
    all_ = run(depth_first(0, FREE, RNG, width=3, depth=4, paths=None), everything)
    result = run(depth_first(0, FREE, RNG, width=3, depth=4, paths=2), few)
    assert states(result) == states(all_)[:2]
    assert few.expanded == everything.expanded[: len(few.expanded)] and len(few.expanded) < len(everything.expanded)


def test_nodes_at_depth_are_not_expanded():
    tree = random_tree(3)
    watch = Watch(tree)
    result = run(depth_first(0, FREE, RNG, width=3, depth=2, paths=None), watch)
    assert set(watch.expanded) == {0, *tree.below[0]}
    assert set(states(result)) == {
        state for child in tree.below[0] for state in tree.below[child] if not tree.below[state]
    }


def test_ends_that_were_made_before_the_budget_ended_count():
    # 0 -> 1 .9, 2 .8 (end), 3 .7 (end): 1 goes first and no longer fits.
    tree = SmallTree({0: (1, 2, 3), 1: (4,), 2: (), 3: (), 4: ()}, dict.fromkeys(range(5), 0.0), {})
    for paths, finished in ((None, [2, 3]), (1, [2])):
        budget = Budget(expansions=1)
        watch = Watch(tree, value={1: 0.9, 2: 0.8, 3: 0.7}.get)
        result = run(depth_first(0, budget, RNG, width=3, depth=3, paths=paths), watch, budget)
        assert (states(result), end(result), result.ended_by) == (finished, 2, "expansions")


@pytest.mark.parametrize(
    ("told", "ratio", "finished"),
    [
        ({1: 0.4, 2: 0.8}, None, [2, 1]),
        ({1: 0.4, 2: 0.8}, 0.9, [2]),
        ({3: 0.1}, None, [3]),
        ({}, None, []),
    ],
)
def test_ends_that_came_valued_with_an_expansion_that_was_cut_short_count(told, ratio, finished):
    """Three ends, of which the budget had values for some only."""
    search = depth_first(0, Budget(computed=9), RNG, width=3, depth=2, paths=None, prune_ratio=ratio)
    next(search)
    children = [Child(state, str(state), value=told.get(state), terminal=True) for state in (1, 2, 3)]
    with pytest.raises(StopIteration) as stop:
        search.send(Response([children], [], Spent(computed=5), "computed"))
    result = stop.value.value
    assert (states(result), result.ended_by) == (finished, "computed")
    assert end(result) == (finished[0] if finished else None)


def test_children_without_a_value_are_valued_and_nan_is_dropped():
    tree = fan(4)
    watch = Watch(tree, value=lambda state: None)
    assert states(run(depth_first(0, FREE, RNG, width=4, depth=1, paths=None), watch)) == [4, 3, 2, 1]
    assert watch.evaluated == [1, 2, 3, 4]
    watch = Watch(tree, value=lambda state: None)
    watch._valued = lambda state: math.nan if state == 4 else state / 5
    result = run(depth_first(0, FREE, RNG, width=4, depth=1, paths=None), watch)
    assert (states(result), [each.action for each in result.dropped]) == ([3, 2, 1], ["4"])
    watch = Watch(tree, value=lambda state: None)
    watch._valued = lambda state: math.nan
    with pytest.raises(NoLegalAction, match="nan"):
        run(depth_first(0, FREE, RNG, width=4, depth=1, paths=None), watch)
    with pytest.raises(NoLegalAction, match="nan"):
        run(depth_first(0, FREE, RNG, width=4, depth=1, paths=None), Watch(tree, value=lambda state: math.nan))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["generated", "computed", "expansions"]),
    st.integers(1, 120),
    st.integers(0, 20),
    st.sampled_from([1, 3, None]),
    st.booleans(),
)
def test_no_budget_is_exceeded_and_every_budget_gives_a_result(limit, most, seed, paths, told):
    budget = Budget(**{limit: most})
    value = None if told else lambda state: None
    first, second = (
        run(depth_first(0, budget, RNG, width=3, depth=4, paths=paths), Watch(random_tree(seed), value), budget)
        for _ in range(2)
    )
    assert first.ended_by in ("done", limit)
    assert (first.finished, first.best_node, first.spent) == (second.finished, second.best_node, second.spent)
    assert paths is None or len(first.finished) <= paths


def test_settings_are_checked():
    with pytest.raises(ConfigError) as told:
        next(depth_first(0, FREE, RNG, width=0, depth=0, paths=0))
    assert [problem.where for problem in told.value.problems] == ["width", "depth", "paths"]
    with pytest.raises(ConfigError) as told:
        next(depth_first(0, FREE, RNG, width=1, depth=1, paths=1, prune_below=math.nan, prune_ratio=1.1))
    assert [problem.where for problem in told.value.problems] == ["prune_below", "prune_ratio"]
