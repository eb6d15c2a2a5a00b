"""Drawing of a search tree: nested details elements, so that thousands of nodes fold without a script.

Read from the JSON of `search/export.py`, which is trusted as little as any other file. A line is a node: a bar for its
value, its action, and N, Q, V and P in columns. Below the root only the path that was decided for is unfolded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from evolvent.view.escape import mark_hidden
from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_numbers, as_text

__all__ = ["DroppedChild", "SearchTree", "draw_tree", "parse_tree"]

_MAX_NODES = 5000  # most that are read
_MAX_DEPTH = 300  # levels that are drawn: browsers nest some 500 elements
_ACTION_CHARS, _CHOSEN_ACTION_CHARS = 160, 600  # characters of an action, and of one on the path that was decided for
_BAR_STEPS = 10  # lengths of the bar
_BLANKS = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "↵"})


@dataclass(frozen=True, slots=True)
class DroppedChild:
    """A child that was not taken or not visited: its parent (None: a hidden node), its action, the reason."""

    node: int | None
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class SearchTree:
    """A tree as stored in its file: columns `[nodes]`, a parent before its children; numbers are None where unknown.

    Attributes:
        whole: nodes of the whole tree, of which those of the columns are shown.
        parent: -1 of the root. mean, value, prior: Q, V and P. count: equal samples. hidden: children left out.
        terminal, dead: nodes where an episode ends, and that were not to be gone to. chosen_path: the path decided for.
        finished: how often each end was come to. dropped: in all; reasons: of the first.
        low, high: ends of the scale of the bars.
    """

    title: str
    whole: int
    parent: tuple[int, ...]
    action: tuple[str, ...]
    visits: tuple[int | None, ...]
    mean: tuple[float | None, ...]
    value: tuple[float | None, ...]
    prior: tuple[float | None, ...]
    count: tuple[int | None, ...]
    kind: tuple[str, ...]
    hidden: tuple[int | None, ...]
    terminal: frozenset[int]
    dead: frozenset[int]
    chosen_path: tuple[int, ...]
    finished: Mapping[int, int]
    ended_by: str
    spent: Mapping[str, float]
    dropped: int
    reasons: tuple[DroppedChild, ...]
    low: float
    high: float

    def __len__(self) -> int:
        return len(self.parent)

    def bar_value(self, node: int) -> float | None:
        """Returns the value for the bar of a node: Q, else V."""
        mean_value = self.mean[node]
        return self.value[node] if mean_value is None else mean_value


def parse_tree(document: object) -> SearchTree | None:
    """Parses the tree of a JSON value, its first 5,000 nodes; None where there is no tree."""
    row = as_mapping(document)
    stored_parents = as_list(row.get("parent"))[:_MAX_NODES]
    parent = tuple(-1 if above == -1 else as_count(above) for above in stored_parents)
    if (
        not parent
        or parent[0] != -1
        or not all(above is not None and -1 < above < node for node, above in enumerate(parent) if node)
    ):
        return None
    num_nodes = len(parent)
    mean, value, prior = (
        [as_number(entry) for entry in _read_column(row, name, num_nodes)] for name in ("mean", "value", "prior")
    )
    bar_values = [second if first is None else first for first, second in zip(mean, value, strict=True)]
    known_values = [0.0, *(entry for entry in bar_values if entry is not None)]
    dropped = as_mapping(row.get("dropped"))
    return SearchTree(
        title=as_text(row.get("title")),
        whole=max(num_nodes, as_count(row.get("nodes")) or 0),
        parent=tuple(above or 0 for above in parent),
        action=tuple(map(as_text, _read_column(row, "action", num_nodes))),
        visits=_read_counts(row, "visits", num_nodes),
        mean=tuple(mean),
        value=tuple(value),
        prior=tuple(prior),
        count=_read_counts(row, "count", num_nodes),
        kind=tuple(map(as_text, _read_column(row, "kind", num_nodes))),
        hidden=_read_counts(row, "hidden", num_nodes),
        terminal=_read_nodes(row, "terminal", num_nodes),
        dead=_read_nodes(row, "dead", num_nodes),
        chosen_path=_read_chosen_path(row, parent),
        finished=_read_finished(row, num_nodes),
        ended_by=as_text(row.get("ended_by")),
        spent=as_numbers(row.get("spent")),
        dropped=as_count(dropped.get("count")) or 0,
        reasons=_read_reasons(dropped, num_nodes),
        low=min(known_values),
        high=max(1.0, *known_values) if min(known_values) >= 0 else max(known_values),
    )


def draw_tree(tree: SearchTree) -> Markup:
    """Draws all lines of a tree, the root first. All model text is escaped."""
    return Markup("".join(_draw_lines(tree)))


# ---------------------------------------------------------------- reading


def _read_column(row: Mapping[str, object], name: str, num_nodes: int) -> Sequence[object]:
    """Returns the entries of a column, padded with None where there are too few."""
    entries = list(as_list(row.get(name)))[:num_nodes]
    return [*entries, *[None] * (num_nodes - len(entries))]


def _read_counts(row: Mapping[str, object], name: str, num_nodes: int) -> tuple[int | None, ...]:
    return tuple(map(as_count, _read_column(row, name, num_nodes)))


def _read_nodes(row: Mapping[str, object], name: str, num_nodes: int) -> frozenset[int]:
    return frozenset(node for node in map(as_count, as_list(row.get(name))) if node is not None and node < num_nodes)


def _read_finished(row: Mapping[str, object], num_nodes: int) -> dict[int, int]:
    pairs = [tuple(map(as_count, entry)) for entry in as_list(row.get("finished")) if isinstance(entry, list)]
    counted = [pair for pair in pairs if len(pair) == 2]
    return {node: times for node, times in counted if node is not None and times and node < num_nodes}


def _read_chosen_path(row: Mapping[str, object], parent: Sequence[int | None]) -> tuple[int, ...]:
    """Reads the chosen path; empty where the nodes form no path."""
    nodes = [as_count(node) for node in as_list(row.get("chosen"))]
    parent_node: int | None = -1
    for node in nodes:
        if node is None or node >= len(parent) or parent[node] != parent_node:
            return ()
        parent_node = node
    return tuple(node for node in nodes if node is not None)


def _read_reasons(dropped: Mapping[str, object], num_nodes: int) -> tuple[DroppedChild, ...]:
    rows = [entry for entry in as_list(dropped.get("first")) if isinstance(entry, list) and len(entry) == 3]
    children = ((as_count(node), as_text(action), as_text(reason)) for node, action, reason in rows)
    return tuple(DroppedChild(None if node is None or node >= num_nodes else node, *texts) for node, *texts in children)


# ---------------------------------------------------------------- drawing


def _draw_lines(tree: SearchTree) -> Iterator[str]:
    children_of = _sorted_children(tree)
    chosen_nodes, depth = frozenset(tree.chosen_path), _node_depths(tree)
    stack: list[int | str] = [0]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
            continue
        children, num_hidden, parent_node = children_of[node], tree.hidden[node] or 0, tree.parent[node]
        is_only_child = node > 0 and len(children_of[parent_node]) + (tree.hidden[parent_node] or 0) == 1
        line, style = (
            _draw_line(tree, node, chosen_nodes),
            _line_classes(tree, node, chosen_nodes, is_only_child=is_only_child),
        )
        if not (children or num_hidden) or depth[node] >= _MAX_DEPTH:
            yield f"<p{style}>{line}</p>\n"
            yield '<p class="left">What is below is too deep to be drawn.</p>\n' if children else ""
            continue
        yield f"<details{style}{' open' if node == 0 or node in chosen_nodes else ''}><summary>{line}</summary>\n"
        stack.append("</details>\n")
        stack += [f'<p class="left">{num_hidden:,} more not shown</p>\n'] if num_hidden else []
        stack += reversed(children)


def _sorted_children(tree: SearchTree) -> list[list[int]]:
    """Returns the children of each node: the chosen child first, then by visits, then by value."""
    children_of: list[list[int]] = [[] for _ in range(len(tree))]
    chosen_nodes = frozenset(tree.chosen_path)
    for node in range(1, len(tree)):
        children_of[tree.parent[node]].append(node)

    def sort_key(node: int) -> tuple[bool, int, float]:
        value = tree.bar_value(node)
        return node not in chosen_nodes, -(tree.visits[node] or 0), float("inf") if value is None else -value

    return [sorted(children, key=sort_key) for children in children_of]


def _node_depths(tree: SearchTree) -> list[int]:
    depth = [0] * len(tree)
    for node in range(1, len(tree)):
        depth[node] = depth[tree.parent[node]] + 1
    return depth


def _line_classes(tree: SearchTree, node: int, chosen_nodes: frozenset[int], *, is_only_child: bool) -> str:
    """Returns the classes of a line: c chosen, d dead, o the only child, which is drawn right under its parent."""
    names = [
        name for name, holds in (("c", node in chosen_nodes), ("d", node in tree.dead), ("o", is_only_child)) if holds
    ]
    return f' class="{" ".join(names)}"' if names else ""


def _draw_line(tree: SearchTree, node: int, chosen_nodes: frozenset[int]) -> str:
    action_text = (
        _format_action(tree.action[node], _CHOSEN_ACTION_CHARS if node in chosen_nodes else _ACTION_CHARS)
        if node
        else "start"
    )
    kind = f"<u>{_format_action(tree.kind[node], 40)}</u>" if tree.kind[node] else ""
    marks = []
    if (tree.count[node] or 1) > 1:
        marks.append(f"×{tree.count[node]}")
    if node in tree.terminal:
        marks.append("end, chosen" if tree.chosen_path[-1:] == (node,) else "end")
    if node in tree.dead:
        marks.append("dropped")
    marks_html = f"<em>{', '.join(marks)}</em>" if marks else ""
    visits = tree.visits[node]
    numbers = [
        "–" if visits is None else f"{visits:,}",
        *map(_format_value, (tree.mean[node], tree.value[node], tree.prior[node] if node else None)),
    ]
    cells = "".join(f"<b>{number}</b>" for number in numbers)
    return f'<i class="{_bar_class(tree, node)}"></i>{kind}<bdi>{action_text}</bdi>{marks_html}{cells}'


def _bar_class(tree: SearchTree, node: int) -> str:
    """Returns the class of a bar: v0 to v10, or vx where no value is known."""
    value = tree.bar_value(node)
    if value is None:
        return "vx"
    value_range = tree.high - tree.low
    return f"v{round(_BAR_STEPS * (value - tree.low) / value_range) if value_range > 0 else _BAR_STEPS}"


def _format_action(text: str, limit: int) -> Markup:
    """Formats an action in one line, safely: clipped, with invisible blanks replaced by signs."""
    clipped = text if len(text) <= limit else f"{text[:limit]}…"
    visible_text = clipped.translate(_BLANKS) if clipped.strip(" ") else "␣" * len(clipped) or "∅"
    return (
        escape(visible_text)
        if visible_text.isprintable() and visible_text.isascii()
        else mark_hidden(visible_text, limit + 1)
    )


def _format_value(value: float | None) -> str:
    if value is None:
        return "–"
    return (f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")
