"""Fault 43: a judge of a search says NaN or fails, actions come twice, states come again, budgets are tiny.

A child that cannot be valued is left out with its reason, and the best of the rest is returned, never a NaN. No budget
is exceeded by one token. A walk that goes in a circle ends. The same seed gives the same tree.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from evolvent.search.beam import beam
from evolvent.search.depth_first import depth_first
from evolvent.search.drive import search_functions
from evolvent.search.environments import StateValue
from evolvent.search.gumbel import gumbel_mcts
from evolvent.search.mcts import Commit, Restart, mcts
from evolvent.search.proposers import ListedProposer
from evolvent.search.records import Budget, Child, ExpandRequest, Search
from evolvent.search.samples import best_of_n, sampled_tree
from tests.search.test_environments import SEARCHES as IN_WORLDS
from tests.search.test_environments import Steps, best, moves, step_task, total
from tests.search.test_environments import run as run_in
from tests.search.trees import Watch, end, random_tree, run

FREE = Budget()
SEARCHES = {
    "beam": lambda root, budget, rng: beam(root, budget, rng, width=3, keep=3, depth=6),
    "depth first": lambda root, budget, rng: depth_first(root, budget, rng, width=3, depth=6, paths=4),
    "best of n": lambda root, budget, rng: best_of_n(root, budget, rng, n=9),
    "sampled tree": lambda root, budget, rng: sampled_tree(root, budget, rng, width=3, depth=6, paths=8, valued=True),
    "mcts": lambda root, budget, rng: mcts(root, budget, rng, width=3, depth=6, start=Commit(6)),
    "restart": lambda root, budget, rng: mcts(root, budget, rng, width=3, depth=6, start=Restart(6), leaves=3),
    "gumbel": lambda root, budget, rng: gumbel_mcts(root, budget, rng, width=3, depth=6, simulations=6, considered=3),
}


def begun(name: str, root: object = 0, budget: Budget = FREE, seed: int = 0) -> Search:
    return SEARCHES[name](root, budget, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_not_a_number_is_never_chosen(name, seed):
    """Every third state below the first level has no value; the others have theirs."""
    tree = random_tree(seed)
    poor = {state for state in tree.below if state % 3 == 1} - set(tree.below[0])
    watch = Watch(tree, value=lambda state: math.nan if state in poor else tree.best(state), again=True)
    result = run(begun(name), watch)
    dead_ends = ("its value is nan", "there is no action to take in it")
    assert all(each.reason in dead_ends for each in result.dropped)
    for node in result.finished:
        assert result.tree.states[node] not in poor and math.isfinite(result.tree.means([node])[0])
    if result.best_node is not None and name in ("beam", "depth first", "best of n"):
        reached = [tree.reward[result.tree.states[node]] for node in result.finished]
        assert tree.reward[end(result)] == max(reached), "the best of what is left"


@pytest.mark.parametrize("limit", ["generated", "computed", "expansions"])
@pytest.mark.parametrize("name", SEARCHES)
def test_no_budget_is_exceeded_by_one(name, limit):
    for most in (1, 2, 5, 13, 40):
        budget = Budget(**{limit: most})
        result = run(begun(name, budget=budget), Watch(random_tree(2), again=True), budget)  # `run` watches the counts
        assert result.ended_by in ("done", limit)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_same_seed_gives_the_same_tree(name):
    one, two = (run(begun(name, seed=5), Watch(random_tree(3), again=True)) for _ in range(2))
    assert (one.tree.states, one.tree.actions, one.finished, one.best_node) == (
        two.tree.states,
        two.tree.actions,
        two.finished,
        two.best_node,
    )
    size = len(one.tree)
    assert np.array_equal(one.tree.visits[:size], two.tree.visits[:size])


@pytest.mark.parametrize("name", [name for name in SEARCHES if name != "best of n"])
def test_a_circle_of_states_ends(name):
    """States 0 -> 1 -> 2 -> 0 for ever: the depth ends every walk."""

    def children(wish: ExpandRequest) -> list[Child]:
        following = (wish.state + 1) % 3
        return [Child(following, "on", generated=1), Child(following, "on again", generated=1)]

    result = search_functions(begun(name), children, lambda state: state / 3)
    assert max(result.tree.depth[: len(result.tree)]) <= 6 and result.best_node is None


@pytest.mark.parametrize("name", IN_WORLDS)
def test_a_judge_that_raises_costs_its_child_and_no_more(name):
    """In an environment: the estimate fails for every path that begins with `a`, and says NaN for `b`."""

    def moody(state):
        if moves(state)[:1] == ("a",):
            raise ZeroDivisionError("unknown ground")
        return math.nan if moves(state) == ("b",) else best(0, moves(state)) - total(0, moves(state))

    result = run_in(IN_WORLDS[name], Steps(), step_task(), proposer=ListedProposer(), estimate=StateValue(moody))
    reasons = {each.action: each.reason for each in result.dropped}
    assert "unknown ground" in reasons["a"] and reasons["b"] == "its value is nan"
    chosen = moves(result.tree.states[result.best_node])
    assert chosen[0] == "c" and total(0, chosen) == pytest.approx(best(0, ("c",)))


class Stammering(ListedProposer):
    """Proposes every action twice."""

    def propose(self, requests, ask):
        found = yield from super().propose(requests, ask)
        return [[one for one in proposals for _ in range(2)] for proposals in found]


@pytest.mark.parametrize("name", IN_WORLDS)
def test_an_action_that_is_proposed_twice_is_one_child(name):
    once, twice = (
        run_in(IN_WORLDS[name], Steps(), step_task(), proposer=proposer)
        for proposer in (ListedProposer(), Stammering())
    )
    assert [moves(state) for state in twice.tree.states] == [moves(state) for state in once.tree.states]
    assert moves(twice.tree.states[twice.best_node]) == moves(once.tree.states[once.best_node])
