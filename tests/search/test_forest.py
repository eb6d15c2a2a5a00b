"""Several trees of one problem: one tree is the search itself, budgets are shared, answers between trees by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.aggregate import aggregate, collect_all_samples
from evolvent.search.drive import search_functions
from evolvent.search.forest import Forest, answer_rows, decide, grow_forest, split_budget
from evolvent.search.mcts import Restart, mcts
from evolvent.search.records import Budget, Child, ExpandRequest, Request, Response, SearchResult, Spent
from evolvent.search.rstar import RStarTreeConfig, rstar
from evolvent.search.settings import ForestConfig, RStarConfig
from evolvent.search.tree import Tree
from evolvent.trajectory import sample_rng, sample_seed


@dataclass(frozen=True)
class At:
    """A state with a seed: what is drawn below it depends on nothing else."""

    seed: int
    depth: int = 0


def expand(wish: ExpandRequest) -> list[Child]:
    """Children that cost one to four tokens each; three deep an episode ends, worth what the seed says."""
    state: At = wish.state
    made = []
    for number in range(wish.first, wish.first + wish.width):
        seed = sample_seed(state.seed, wish.kind, number)
        depth = 3 if wish.to_end else state.depth + 1
        made.append(
            Child(
                At(seed, depth),
                f"{wish.kind}{seed % 1000}",
                -(seed % 7) / 7,
                (seed % 11) / 10,
                terminal=depth == 3,
                generated=1 + seed % 4,
                kind=wish.kind,
            )
        )
    return made


def most(wish: ExpandRequest) -> Spent:
    return Spent(generated=4 * wish.width)


def begin_mcts(root, budget, rng):
    return mcts(root, budget, rng, width=3, depth=3, start=Restart(2))


def begin_rstar(root, budget, rng):
    return rstar(
        root, budget, rng, answer=answer, rollouts=4, reasoning=RStarTreeConfig({"A1": 2, "A2": 3, "A3": 1}, 3, 4)
    )


BEGINS = {"mcts": begin_mcts, "rstar": begin_rstar}


def answer(state: At) -> str:
    return str(state.seed % 3)


def grown(method: str, budget: Budget, trees: int, *, seed: int = 4) -> Forest:
    return search_functions(grow_forest(BEGINS[method], At(7), budget, trees=trees, seed=seed), expand, cost=most)


def columns(result: SearchResult) -> tuple:
    tree = result.tree
    numbers = [getattr(tree, name)[: len(tree)].tolist() for name in ("parent", "visits", "total", "terminal", "prior")]
    spent = replace(result.spent, seconds=0.0)
    return tree.actions, numbers, result.finished, result.best_node, spent, result.ended_by


@pytest.mark.parametrize("method", BEGINS)
@pytest.mark.parametrize("budget", [Budget(), Budget(generated=60), Budget(expansions=3)])
def test_one_tree_is_the_search_itself(method, budget):
    """The same root, random numbers and budget: number for number."""
    alone = search_functions(BEGINS[method](At(7), budget, sample_rng(4, "search")), expand, cost=most)
    one = grown(method, budget, 1)
    assert len(one.trees) == 1 and columns(one.trees[0]) == columns(alone)
    assert one.ended_by == alone.ended_by and one.spent == one.trees[0].spent
    assert columns(grown(method, Budget(), 3).trees[0]) == columns(grown(method, Budget(), 1).trees[0])


@pytest.mark.parametrize("method", BEGINS)
def test_trees_differ_and_depend_on_their_seeds_alone(method):
    three, again = grown(method, Budget(), 3), grown(method, Budget(), 3)
    assert [columns(tree) for tree in three.trees] == [columns(tree) for tree in again.trees]
    assert len({tree.tree.actions[1] for tree in three.trees}) == 3
    assert [columns(tree) for tree in grown(method, Budget(), 2).trees] == [columns(tree) for tree in three.trees[:2]]
    if method == "rstar":  # whose rollouts are drawn
        other = grown(method, Budget(), 3, seed=5)
        assert [columns(tree) for tree in other.trees] != [columns(tree) for tree in three.trees]


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(sorted(BEGINS)),
    trees=st.integers(1, 4),
    generated=st.none() | st.integers(1, 90),
    expansions=st.none() | st.integers(1, 12),
    seed=st.integers(0, 9),
)
def test_a_budget_is_shared_and_never_exceeded(method, trees, generated, expansions, seed):
    found = grown(method, Budget(generated=generated, expansions=expansions), trees, seed=seed)
    assert 1 <= len(found.trees) <= trees
    assert found.spent.generated <= (generated or 10**9) and found.spent.expansions <= (expansions or 10**9)
    assert found.spent.generated == sum(tree.spent.generated for tree in found.trees)
    assert sum(tree.spent.expansions for tree in found.trees) == found.spent.expansions
    if generated is None and expansions is None:
        assert len(found.trees) == trees and found.ended_by == "done"


def test_parts_of_a_budget_by_hand():
    """10 tokens for three trees are 4, and 3 and 3 of what is left if all is spent."""
    assert split_budget(Budget(generated=10, expansions=2, seconds=3.0), 3) == Budget(4, None, 1, 1.0)
    assert split_budget(Budget(generated=6), 2) == Budget(3) and split_budget(Budget(generated=1), 4) == Budget(1)
    assert split_budget(Budget(computed=9), 2) == Budget(computed=5) and split_budget(Budget(), 3) == Budget()


def spending(parts: list[Budget], costs: list[int]):
    """Searches that spend so many tokens each, and note what they were given."""

    def begin(root, budget, rng):
        parts.append(budget)
        cost = costs[len(parts) - 1]
        assert cost <= budget.generated
        found = yield Request(left=budget)
        assert isinstance(found, Response)
        return SearchResult(Tree(root), (), None, Spent(cost), "done" if cost < budget.generated else "generated")

    return begin


def test_what_a_tree_leaves_is_the_next_ones():
    parts: list[Budget] = []
    found = search_functions(
        grow_forest(spending(parts, [1, 5, 3]), At(0), Budget(generated=10), trees=3, seed=0), expand
    )
    assert [part.generated for part in parts] == [4, 5, 4]
    assert (found.spent.generated, found.ended_by) == (9, "generated")


def test_where_nothing_is_left_no_tree_is_begun():
    parts: list[Budget] = []
    found = search_functions(grow_forest(spending(parts, [1, 1]), At(0), Budget(generated=2), trees=4, seed=0), expand)
    assert len(found.trees) == 2 and found.ended_by == "generated"
    with pytest.raises(ConfigError, match="trees"):
        search_functions(grow_forest(spending([], []), At(0), Budget(), trees=0, seed=0), expand)


def barren(*numbers: int):
    """Expansions of which those of some trees' roots, counted from 0, can all not be used; each costs two tokens."""
    roots: list[int] = []

    def unusable(wish: ExpandRequest) -> list[Child]:
        if not wish.state.depth:
            roots.append(wish.state.seed)
        nothing = wish.state.seed in [roots[number] for number in numbers if number < len(roots)]
        return [Child(wish.state, "", 0.0, float("nan"), generated=2)] if nothing else expand(wish)

    return unusable


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 2)])
def test_a_tree_without_an_action_is_left_out_and_what_it_spent_is_spent(lost):
    """The trees that were grown, and those still to come, are what they would be without it."""
    whole = grown("mcts", Budget(), 3)
    search = grow_forest(begin_mcts, At(7), Budget(generated=1000), trees=3, seed=4)
    found = search_functions(search, barren(*lost), cost=most)
    kept = [tree for number, tree in enumerate(whole.trees) if number not in lost]
    assert [columns(tree) for tree in found.trees] == [columns(tree) for tree in kept]
    assert found.spent.generated == sum(tree.spent.generated for tree in kept) + 2 * len(lost)
    assert found.spent.expansions == sum(tree.spent.expansions for tree in kept) + len(lost)


def test_without_any_action_there_is_no_forest():
    for trees in (1, 2):
        with pytest.raises(NoLegalAction, match="no action is available at the root of the search"):
            search_functions(grow_forest(begin_mcts, At(7), Budget(), trees=trees, seed=4), barren(0, 1), cost=most)
    with pytest.raises(NoLegalAction):  # the first spends all there is, so that no other is begun
        search_functions(grow_forest(begin_mcts, At(7), Budget(generated=2), trees=2, seed=4), barren(0))


# ------------------------------------------------------------------ one answer


def ends(*given: tuple[str, float, int], notes: dict | None = None) -> tuple[SearchResult, dict[int, str]]:
    """A tree whose ends have these answers and values, and were come to so often."""
    tree = Tree(At(0))
    tree.add_children(0, [Child(At(at), f"{at}", value=value, terminal=True) for at, (_, value, _) in enumerate(given)])
    came = tuple(node for node, (_, _, count) in enumerate(given, 1) for _ in range(count))
    return SearchResult(tree, came, None, Spent(), notes=notes or {}), {
        node: answer for node, (answer, _, _) in enumerate(given, 1)
    }


FIRST = ends(("a", 0.9, 1), ("b", 0.5, 3))
SECOND = ends(("b", 0.2, 1), ("c", 0.4, 1))
THIRD = ends(("c", 0.3, 2), ("a", 0.1, 1))
"""By the best: a (.9), c (.4), c (.3). All ends: a 2, b 4, c 3; sums of values a 1.0, b 1.7, c 1.0."""


@pytest.mark.parametrize(
    ("rule", "between", "answer", "weight", "place"),
    [
        ("max", "ends", "a", 0.9, (0, 1)),
        ("majority", "ends", "b", 4.0, (0, 2)),
        ("vote", "ends", "b", 1.7, (0, 2)),
        ("max", "majority", "c", 2.0, (1, 2)),
        ("max", "vote", "a", 0.9, (0, 1)),  # .9 against .4 + .3
        ("max", "max", "a", 0.9, (0, 1)),
        ("majority", "majority", "b", 2.0, (0, 2)),  # b of the first, b of the second (the first of equal ones), c
    ],
)
def test_answers_between_trees_by_hand(rule, between, answer, weight, place):
    trees, answers = zip(FIRST, SECOND, THIRD, strict=True)
    found = decide(trees, answers, rule=rule, span="min", between=between)
    assert (found.choice.answer, pytest.approx(found.choice.weight)) == (answer, weight)
    assert (found.tree, found.node) == place
    assert sum(sample.count for sample in found.samples) == 9


def test_ends_of_all_trees_are_those_of_aggregate():
    trees, answers = zip(FIRST, SECOND, THIRD, strict=True)
    found = decide(trees, answers, rule="vote", span="outcome")
    number = {
        id(result.tree.states[node]): read[node] for result, read in zip(trees, answers, strict=True) for node in read
    }
    whole = aggregate(collect_all_samples(trees, lambda state: number[id(state)]), span="outcome", rule="vote")
    assert found.choice.answers == whole.answers and found.choice.weights == whole.weights


def test_equal_answers_of_trees_are_one_as_the_grader_sees_it():
    trees, answers = zip(ends(("1/2", 0.5, 1)), ends(("3", 0.9, 1)), ends(("0.5", 0.4, 1)), strict=True)

    def same(a: str, b: str) -> bool:
        return {a, b} == {"1/2", "0.5"}

    found = decide(trees, answers, rule="max", span="min", between="majority", same=same)
    assert (found.choice.answer, found.choice.weight, found.tree) == ("1/2", 2.0, 0)
    assert decide(trees, answers, rule="max", span="min", between="majority").choice.answer == "1/2", (
        "the first of three"
    )
    assert [row["answer"] for row in answer_rows(found, same=same)] == ["1/2", "3"]


def test_all_ends_of_an_answer_are_counted_however_they_write_it():
    """Three ends say one half, two of them as .5, which the grader takes for the same."""
    result, read = ends(("1/2", 0.5, 1), ("0.5", 0.6, 2), ("3", 0.1, 1))

    def same(a: str, b: str) -> bool:
        return {a, b} == {"1/2", "0.5"}

    rows = answer_rows(decide([result], [read], rule="majority", span="min", same=same), same=same)
    assert [(row["answer"], row["weight"], row["count"]) for row in rows] == [("1/2", 3.0, 3), ("3", 1.0, 1)]
    rows = answer_rows(decide([result], [read], rule="max", span="min", between="majority", same=same), same=same)
    assert [(row["answer"], row["weight"], row["count"]) for row in rows] == [("0.5", 1.0, 3), ("3", 0.0, 1)]
    unread = dict.fromkeys(read)
    (row,) = answer_rows(decide([result], [unread], rule="majority", span="min"))
    assert (row["answer"], row["weight"], row["count"]) == (None, 4.0, 4)


def test_what_no_tree_decided_for_is_told_last_with_weight_0():
    trees, answers = zip(FIRST, SECOND, strict=True)
    rows = answer_rows(decide(trees, answers, rule="max", span="min", between="majority"))
    assert [(row["answer"], row["weight"], row["count"]) for row in rows] == [
        ("a", 1.0, 1),
        ("c", 1.0, 1),
        ("b", 0.0, 4),
    ]
    rows = answer_rows(decide(trees, answers, rule="max", span="min"))
    assert [(row["answer"], row["weight"]) for row in rows] == [("a", 0.9), ("b", 0.5), ("c", 0.4)]


def test_trees_of_rstar_are_counted_by_their_rewards_and_by_what_was_agreed():
    """Ends count once each, however many rollouts came to them; those that were not agreed with not at all."""
    agreed = ends(("a", 0.6, 5), ("b", 0.4, 1), notes={"agreed": [2]})
    free = ends(("a", 0.3, 1), ("b", 0.2, 0), notes={"agreed": None})
    trees, answers = zip(agreed, free, strict=True)
    found = decide(trees, answers, rule="vote", span="last")
    assert dict(zip(found.choice.answers, found.choice.weights, strict=True)) == pytest.approx({"b": 0.6, "a": 0.3})
    assert (found.tree, found.node) == (0, 2)
    none = ends(("a", 0.6, 1), ("b", 0.7, 1), notes={"agreed": []})
    assert decide([none[0]], [none[1]], rule="vote", span="last").choice.answer == "b"


def test_without_an_end_the_best_unfinished_path_of_the_first_such_tree_stands():
    def open_(*values: float) -> SearchResult:
        tree = Tree(At(0))
        tree.add_children(0, [Child(At(at), f"{at}", value=value) for at, value in enumerate(values)])
        return SearchResult(tree, (), None, Spent())

    found = decide([open_(0.1, 0.2), open_(0.3, 0.3)], [{}, {}], rule="max", span="min", between="majority")
    assert (found.tree, found.node, found.choice.best_sample, answer_rows(found)) == (1, 1, None, ())
    bare = SearchResult(Tree(At(0)), (), None, Spent())
    found = decide([bare, bare], [{}, {}], rule="max", span="min")
    assert (found.tree, found.node) == (0, 0)
    with pytest.raises(ConfigError, match="number of answers does not match the trees"):
        decide([bare], [], rule="max", span="min")


# ------------------------------------------------------------------ settings


def test_settings_that_contradict_themselves():
    for actions in ((3, 10, 3, 1), (3, 0, 3, 1, 1), (3, 10, 3, -1, 1)):
        with pytest.raises(ValueError, match="five numbers"):
            RStarConfig(actions=actions)
    kept = RStarConfig(actions=(2, 4, 0, 0, 1)).reasoning
    assert dict(kept.actions) == {"A1": 2, "A2": 4, "A5": 1}
    assert RStarConfig(depth=1).votes == 32 and RStarConfig().votes == 10
    assert ForestConfig(method="samples", forest=4).trees == 1 and ForestConfig(forest=4).trees == 4
    with pytest.raises(ConfigError, match="reader of answers"):
        ForestConfig(method="rstar").begin()


@pytest.mark.parametrize(
    ("given", "level", "said"),
    [
        ({"method": "beam"}, "token", "does not sample tokens, so all trees would be equal"),
        ({"method": "gumbel", "noise": 0.0}, "token", "does not sample tokens, so all trees would be equal"),
        ({"method": "mcts", "sampled": True}, "token", None),
        ({"method": "sampled_tree", "value": "none"}, "token", None),
        ({"method": "beam"}, "span", None),
        ({"method": "sampled_tree", "between": "max"}, "span", "ends have no values"),
        ({"method": "beam", "between": "vote"}, "span", "outside 0..1"),
        ({"method": "beam", "between": "vote", "score": "outcome"}, "span", None),
        ({"method": "rstar", "between": "vote", "value": "none"}, "solution", None),
        ({"method": "best_of_n", "between": "vote", "level": "token"}, "token", None),
    ],
)
def test_several_trees_that_would_be_no_better_than_one(given, level, said):
    found = [problem.what for problem in ForestConfig(forest=3, **given).forest_problems(level)]
    assert (said is None and not found) or (said is not None and said in found[0]), found
    assert ForestConfig(**given).forest_problems(level) == [], "one tree is always enough"


def test_random_numbers_of_trees_are_named_by_their_number():
    seen = []

    def begin(root, budget, rng):
        seen.append((root.seed, float(rng.random())))
        yield Request()
        return SearchResult(Tree(root), (), None, Spent())

    search_functions(grow_forest(begin, At(7), Budget(), trees=3, seed=4), expand)
    rng = [sample_rng(own, "search") for own in (4, sample_seed(4, "tree", 1), sample_seed(4, "tree", 2))]
    roots = [7, sample_seed(7, "tree", 1), sample_seed(7, "tree", 2)]
    assert seen == [(root, float(one.random())) for root, one in zip(roots, rng, strict=True)]
    assert isinstance(rng[0], np.random.Generator)
