"""What all searches stand on: the tree, the budget, and how a search asks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evolvent.errors import ConfigError, EngineError, NoLegalAction
from evolvent.search.budgeted import BudgetTracker, Exhausted, evaluate_nodes, expand_nodes
from evolvent.search.records import Budget, Child, ExpandRequest, Response, Spent
from evolvent.search.tree import Tree


def told(steps, *answers):
    """Run steps of a search with ready answers; returns what was asked and what came out."""
    asked, outcome = [next(steps)], None
    for answer in answers:
        try:
            asked.append(steps.send(answer))
        except StopIteration as stop:
            outcome = stop.value
    return asked, outcome


def test_children_that_cannot_be_used_are_listed():
    tree = Tree("root")
    children = [
        Child("a", "a", math.log(0.3), value=0.5),
        Child("b", "b", math.nan),
        Child("c", "c", value=math.inf),
        Child("d", "d", problem="it does not parse"),
        Child("e", "e", math.log(0.1)),
        Child("f", "f", scores=(0.5, math.nan)),
    ]
    assert tree.add_children(0, children) == range(1, 3)
    assert tree.prior[1:3].tolist() == pytest.approx([0.75, 0.25])
    assert [(each.node, each.action) for each in tree.dropped] == [(0, "b"), (0, "c"), (0, "d"), (0, "f")]
    assert np.isnan(tree.value[2]) and not tree.is_expanded(1) and tree.is_expanded(0)


def test_backup_and_paths():
    tree = Tree("root")
    tree.add_children(0, [Child("a", "a", scores=(0.1, 0.2)), Child("b", "b")])
    (leaf,) = tree.add_children(1, [Child("c", "c", scores=(0.3,), value=0.7)])
    tree.backup(leaf, 2.0)
    tree.backup(1, 1.0)
    assert tree.visits[:4].tolist() == [2, 2, 0, 1] and tree.total[:4].tolist() == [3.0, 3.0, 0.0, 2.0]
    assert tree.line(leaf) == ("a", "c") and tree.spans(leaf) == (0.1, 0.2, 0.3)
    assert tree.means([0, 1, 3]).tolist() == [1.5, 1.5, 2.0]
    tree.clear_statistics()
    assert tree.means([3]).tolist() == [0.7] and list(tree.leaves()) == [2, 3]


def test_many_nodes():
    tree = Tree(0)
    for node in range(300):
        tree.add_children(node, [Child(node, str(node))])
    assert len(tree) == 301 and tree.depth[300] == 300 and tree.path(300) == list(range(301))


def test_a_parent_of_the_dead_is_dead():
    tree = Tree(0)
    tree.add_children(0, [Child(1, "1"), Child(2, "2")])
    tree.add_children(1, [Child(3, "3"), Child(4, "4")])
    tree.drop(3, "why")
    assert tree.dead[:5].tolist() == [False, False, False, True, False]
    tree.drop(4, "why")
    assert tree.dead[:5].tolist() == [False, True, False, True, True]
    tree.drop(2, "why")
    assert tree.dead[0] and [each.node for each in tree.dropped] == [1, 1, 0]
    with pytest.raises(NoLegalAction, match="why"):
        tree.check_root()


def test_a_renewed_root_has_other_children():
    tree = Tree(0)
    tree.add_children(0, [Child(1, "1")])
    tree.backup(1, 1.0)
    tree.reset_root()
    assert not tree.is_expanded(0) and tree.visits[0] == 0 and tree.visits[1] == 1
    assert tree.add_children(0, [Child(2, "2")]) == range(2, 3)
    assert tree.path(1) == [0, 1] and tree.path(2) == [0, 2]


def test_what_a_budget_allows():
    budget = Budget(generated=10, expansions=2)
    assert budget.over(Spent(generated=9, expansions=1)) is None
    assert budget.over(Spent(generated=10)) == "generated"
    assert budget.over(Spent(generated=9), more=Spent(generated=1)) is None
    assert budget.over(Spent(generated=9), more=Spent(generated=2)) == "generated"
    assert budget.left(Spent(generated=9, computed=50)) == Budget(generated=1, expansions=2)
    with pytest.raises(ConfigError, match=r"(?s)generated.*seconds"):
        Budget(generated=0, seconds=-1.0)


def test_more_wishes_than_expansions():
    asking, tree = BudgetTracker(Budget(expansions=3)), Tree(0)
    told(expand_nodes(tree, asking, [0], width=2), Response([[Child(1), Child(2), Child(3)]]))
    steps = expand_nodes(tree, asking, [1, 2, 3], width=2, first=4)
    wanted = next(steps)
    assert wanted.expand == [ExpandRequest(1, 2, first=4), ExpandRequest(2, 2, first=4)]
    with pytest.raises(Exhausted) as stop:
        steps.send(Response([[Child(4)], []], spent=Spent(generated=7)))
    assert stop.value.limit == "expansions" and asking.spent == Spent(generated=7, expansions=3)
    assert tree.is_expanded(1) and tree.is_expanded(2) and not tree.is_expanded(3)
    assert next(evaluate_nodes(tree, asking, [1])).left == Budget()  # valuing is no expansion
    spent = BudgetTracker(Budget(generated=7, expansions=9))
    spent.spent = Spent(generated=7)
    with pytest.raises(Exhausted, match="generated"):
        next(evaluate_nodes(tree, spent, [1]))


def test_answers_that_do_not_fit():
    for answer in (Response(), Response([[], []]), Response([[]], [0.5]), Response([None])):
        steps = BudgetTracker(Budget()).request([ExpandRequest(0, 1)])
        next(steps)
        with pytest.raises(EngineError, match="the search received"):
            steps.send(answer)


def test_values_are_asked_for_once():
    asking, tree = BudgetTracker(Budget()), Tree(0)
    tree.add_children(0, [Child(1, "1", value=0.1), Child(2, "2"), Child(3, "3")])
    asked, _ = told(evaluate_nodes(tree, asking, [1, 2, 3, 2]), Response(values=[math.nan, 0.3]))
    assert [list(wanted.evaluate) for wanted in asked] == [[2, 3]]
    assert tree.dead[2] and tree.value[3] == 0.3 and asking.spent.evaluations == 2
    assert list(evaluate_nodes(tree, asking, [1, 2, 3])) == []
