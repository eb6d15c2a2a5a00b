"""The foldable tree: its lines and what is unfolded, thousands of nodes in little room, hostile text, broken files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_document import outline

from evolvent.search.export import tree_row
from evolvent.search.records import Child, SearchResult, Spent
from evolvent.search.tree import Tree
from evolvent.view.searchtree import draw_tree, parse_tree

ROW: dict[str, Any] = {
    "title": "t",
    "nodes": 6,
    "parent": [-1, 0, 0, 1, 1, 3],
    "action": ["", "left", "right", "far", "near", "last"],
    "visits": [9, 3, 5, 2, 1, 0],
    "mean": [0.5, 0.4, 0.6, 0.45, None, None],
    "value": [None, 0.3, 0.6, 0.5, 0.25, None],
    "prior": [1, 0.2, 0.8, 0.5, 0.5, 1],
    "count": [1, 1, 1, 3, 1, 1],
    "hidden": [0, 2, 0, 0, 0, 0],
    "terminal": [5],
    "dead": [4],
    "chosen": [0, 1, 3, 5],
    "finished": [[5, 2], [77, 1]],
    "ended_by": "done",
    "spent": {"generated": 7},
    "dropped": {"count": 3, "first": [[1, "bad", "its value is nan"], [None, "x", "y"]]},
}


class Shape(HTMLParser):
    """Which lines lie in which, and which are unfolded."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[str] = []
        self.inside: dict[str, str] = {}
        self.opened: set[str] = set()
        self.state: list[bool] = []
        self.tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        if tag == "details":
            self.path.append("?")
            self.state.append(("open", None) in attrs or ("open", "") in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self.path.pop()
            self.state.pop()

    def handle_data(self, data: str) -> None:
        if self.tag != "bdi" or not data.strip():
            return
        leaf = self.path and self.path[-1] != "?"
        self.inside[data] = self.path[-1] if leaf else (self.path[-2] if len(self.path) > 1 else "")
        if not leaf and self.path:
            self.path[-1] = data
            self.opened |= {data} if self.state[-1] else set()
        self.tag = ""


def drawn(row: dict[str, Any]) -> str:
    tree = parse_tree(row)
    assert tree is not None
    return str(draw_tree(tree))


def test_lines_nest_as_the_nodes_do_and_only_the_chosen_path_is_unfolded():
    shape = Shape()
    shape.feed(drawn(ROW))
    above = {"start": "", "left": "start", "far": "left", "last": "far", "near": "left", "right": "start"}
    assert shape.inside == above
    assert shape.opened == {"start", "left", "far"}
    assert list(shape.inside) == ["start", "left", "far", "last", "near", "right"]  # the chosen first


def test_a_line_has_its_numbers_bar_and_marks():
    lines = {re.sub(r".*<bdi>(.*?)</bdi>.*", r"\1", line): line for line in drawn(ROW).splitlines() if "<bdi>" in line}
    assert "<em>×3</em><b>2</b><b>0.45</b><b>0.50</b><b>0.50</b>" in lines["far"]
    assert '<i class="v4">' in lines["left"] and '<i class="v2">' in lines["near"] and '<i class="vx">' in lines["last"]
    assert "<em>end, chosen</em><b>0</b><b>–</b><b>–</b><b>1.00</b>" in lines["last"]
    assert 'class="d"' in lines["near"] and "<em>dropped</em>" in lines["near"]
    assert 'class="c o"' in lines["last"]  # the only child
    assert 'class="c"' in lines["left"] and "class" not in lines["right"].partition(">")[0]
    assert "2 more not shown" in drawn(ROW)


def test_thousands_of_nodes_fit_in_a_megabyte():
    """6,000 nodes with a sentence each, of which 4,000 are kept."""
    tree = Tree(0)
    for node in range(1500):
        tree.add_children(
            node,
            [
                Child(0, f"so after step {node} there are {pick} and {node * pick} of them left;", value=0.5)
                for pick in range(4)
            ],
        )
        tree.backup(node, 0.25)
    row = tree_row(SearchResult(tree, (), None, Spent()), max_nodes=4000)
    assert (len(row["parent"]), row["nodes"]) == (4000, 6001)
    page = drawn(row)
    assert len(page.encode()) < 1_000_000
    found = outline(page)
    assert found.tags.count("bdi") == 4000 and found.tags.count("details") >= 999
    assert set(found.tags) == {"details", "summary", "p", "i", "b", "bdi"}


HOSTILE = "</details></p><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\u0000\ud800 --> {{ 7*7 }}"


@pytest.mark.parametrize("column", ["action", "kind"])
def test_what_a_model_wrote_is_text(column):
    page = drawn({**ROW, "action": ["", *"abcde"], column: [HOSTILE] * 6})
    found = outline(page)
    assert set(found.tags) <= {"details", "summary", "p", "i", "u", "b", "bdi", "em"}
    assert "<script" not in page and "<img" not in page and "\u202e" not in page
    assert ("U+202E" in page) == (column == "action")  # a kind is cut before it
    assert page.encode()  # no lone surrogate


def test_long_actions_are_cut_and_blank_ones_seen():
    page = drawn({**ROW, "action": ["", "x" * 5000, "y" * 5000, "a\nb", "  ", ""]})
    assert "x" * 600 + "…" in page and "x" * 601 not in page
    assert "y" * 160 + "…" in page and "y" * 161 not in page
    assert "a↵b" in page and "␣␣" in page and "∅" in page


def test_a_chain_deeper_than_browsers_nest_is_cut_and_says_so():
    size = 1200
    page = drawn({"parent": [-1, *range(size - 1)], "action": ["a"] * size, "chosen": list(range(size))})
    assert page.count("<details") == 300 and "too deep to be drawn" in page
    outline(page)


def test_the_scale_is_that_of_the_values():
    low, high = ({**ROW, "mean": [None] * 6, "value": values} for values in ([-3.0, -1.0], [0.5, 20.0]))
    trees = [parse_tree(row) for row in (low, high)]
    assert [(tree.low, tree.high) for tree in trees if tree] == [(-3.0, 0.0), (0.0, 20.0)]
    assert 'class="v0"' in drawn(low) and 'class="v10"' in drawn(high)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "x",
        {},
        {"parent": []},
        {"parent": [0]},
        {"parent": [-1, 1]},
        {"parent": [-1, -1]},
        {"parent": [-1, "0"]},
        {"parent": [-1, None]},
        {"parent": 3},
    ],
)
def test_what_is_no_tree_is_none(broken):
    assert parse_tree(broken) is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from(["count", "first"]), inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([*ROW, "kind"]).filter(lambda name: name != "parent"), JUNK, max_size=8))
def test_whatever_else_a_file_holds_it_is_drawn(columns):
    page = drawn({**ROW, **columns})
    assert page.count("<bdi>") == 6
    outline(page)
