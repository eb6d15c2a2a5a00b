"""Search trees as JSON: the golden row of a small tree, what is kept of a large one, and what no JSON could hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.search.export import tree_row
from evolvent.search.records import Child, SearchResult, Spent
from evolvent.search.tree import Tree


def small() -> SearchResult:
    """The root with two children and one that is dropped; the second has an end below it."""
    tree = Tree("root")
    tree.add_children(
        0,
        [
            Child("a", "left", math.log(0.75), value=0.25, count=2),
            Child("b", "right\n", math.log(0.25)),
            Child("c", "worst", 0.0, value=math.nan),
        ],
    )
    tree.add_children(2, [Child("d", "on", terminal=True, value=1.0, kind="A1")])
    tree.backup(3, 1.0)
    tree.backup(1, 0.25)
    return SearchResult(tree, (3, 3), 3, Spent(12, 30, 2, 1, 0.123456789), "generated")


def test_the_row_of_a_small_tree():
    assert tree_row(small(), title="which way?", text=str.strip) == {
        "title": "which way?",
        "nodes": 4,
        "parent": [-1, 0, 0, 2],
        "action": ["", "left", "right", "on"],
        "visits": [2, 1, 1, 1],
        "mean": [0.625, 0.25, 1.0, 1.0],
        "value": [None, 0.25, None, 1.0],
        "prior": [1.0, 0.75, 0.25, 1.0],
        "count": [1, 2, 1, 1],
        "kind": ["", "", "", "A1"],
        "terminal": [3],
        "dead": [],
        "chosen": [0, 2, 3],
        "finished": [[3, 2]],
        "dropped": {"count": 1, "first": [[0, "worst", "its value is nan"]]},
        "ended_by": "generated",
        "spent": {"generated": 12, "computed": 30, "expansions": 2, "evaluations": 1, "seconds": 0.123457},
    }


def test_of_a_large_tree_the_chosen_path_and_the_most_visited_stay():
    """Ten children, the last is chosen and was visited least; of the others the two most visited."""
    tree = Tree(0)
    tree.add_children(0, [Child(n, f"a{n}", value=0.5, terminal=n == 9) for n in range(10)])
    for node, visits in ((4, 5), (7, 3), (2, 2)):
        for _ in range(visits):
            tree.backup(node, 0.5)
    row = tree_row(SearchResult(tree, (10,), 10, Spent()), max_nodes=4)
    assert row["action"] == ["", "a3", "a6", "a9"] and row["nodes"] == 11
    assert row["chosen"] == [0, 3] and row["terminal"] == [3] and row["finished"] == [[3, 1]]
    assert row["hidden"] == [7, 0, 0, 0]


def test_what_was_left_out_is_counted_where_a_root_was_begun_anew():
    """Two trees of three and two children below one root: nothing is hidden of five, and three where two are shown."""
    tree = Tree(0)
    tree.add_children(0, [Child(n, f"a{n}", value=0.5) for n in range(3)])
    tree.reset_root()
    tree.add_children(0, [Child(n, f"b{n}", value=0.5, terminal=True) for n in range(2)])
    assert "hidden" not in tree_row(SearchResult(tree, (5,), 5, Spent()))
    row = tree_row(SearchResult(tree, (5,), 5, Spent()), max_nodes=3)
    assert len(row["action"]) == 3 and row["hidden"] == [3, 0, 0]


def test_dropped_children_are_counted_and_twenty_are_listed():
    tree = Tree(0)
    tree.add_children(0, [Child(0, "good", value=1.0), *(Child(n, "x" * 5000, problem="no" * 2000) for n in range(30))])
    found = tree_row(SearchResult(tree, (), None, Spent()))["dropped"]
    assert (found["count"], len(found["first"])) == (30, 20)
    assert all(node == 0 and len(action) == len(reason) == 1001 for node, action, reason in found["first"])


def test_a_search_that_came_to_nothing():
    row = tree_row(SearchResult(Tree(0), (), None, Spent(), "generated"))
    assert (row["parent"], row["mean"], row["chosen"], row["finished"]) == ([-1], [None], [], [])


@st.composite
def grown(draw: st.DrawFn) -> SearchResult:
    """Trees of any shape, with visits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tree = Tree(0)
    for _ in range(draw(st.integers(0, 12))):
        node = int(rng.integers(len(tree)))
        if not tree.is_expanded(node):
            values = [None if rng.random() < 0.5 else float(rng.random()) for _ in range(rng.integers(0, 4))]
            tree.add_children(node, [Child(0, "a", float(rng.normal()), value=value) for value in values])
        tree.backup(int(rng.integers(len(tree))), float(rng.random()))
    chosen = int(rng.integers(len(tree))) if draw(st.booleans()) else None
    return SearchResult(tree, () if chosen is None else (chosen,), chosen, Spent())


@settings(max_examples=60, deadline=None)
@given(grown(), st.integers(1, 12))
def test_what_is_kept_is_a_tree_that_json_holds(result, most):
    row = tree_row(result, max_nodes=most)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    size, path = len(row["parent"]), len(row["chosen"])
    assert size == min(len(result.tree), max(size, path)) and size <= max(most, path, 1)
    assert row["parent"][0] == -1 and all(0 <= above < node for node, above in enumerate(row["parent"]) if node)
    below = [row["parent"].count(node) for node in range(size)]
    hidden = row.get("hidden", [0] * size)
    assert sum(below) + sum(hidden) <= len(result.tree) - 1 and min(hidden) >= 0
    if size == len(result.tree):
        assert not any(hidden)
    if result.best_node is not None:
        assert [row["visits"][node] for node in row["chosen"]] == [
            int(result.tree.visits[node]) for node in result.tree.path(result.best_node)
        ]


@pytest.mark.parametrize("value", [1e-9, 123456789.0, -0.5])
def test_numbers_have_six_digits(value):
    tree = Tree(0)
    tree.add_children(0, [Child(1, "a", value=value)])
    assert tree_row(SearchResult(tree, (), None, Spent()))["value"][1] == float(f"{value:.6g}")
