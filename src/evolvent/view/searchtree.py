"""A search tree on the page: details inside details, so that thousands of nodes fold without a script.

Read from the JSON of `search/export.py`, which is trusted as little as any other file. A line is a node: a bar for its
value, its action, and N, Q, V and P in columns. Below the root only the path that was decided for is unfolded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from evolvent.view.escape import marked
from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_numbers, as_text

__all__ = ["DroppedChild", "SearchTree", "draw_tree", "read_tree"]

_NODES = 5000  # most that are read
_DEEPEST = 300  # levels that are drawn: browsers nest some 500 elements
_TEXT, _CHOSEN = 160, 600  # characters of an action, and of one on the path that was decided for
_STEPS = 10  # lengths of the bar
_BLANKS = str.maketrans({"\n": "↵", "\t": "⇥", "\r": "↵"})


@dataclass(frozen=True, slots=True)
class DroppedChild:
    """A child that was not taken, or not gone to: under which node (None: one that is not shown), its action, why."""

    node: int | None
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class SearchTree:
    """A tree as its file tells it: columns `[nodes]`, a parent before its children; numbers are None where unknown.

    Attributes:
        whole: nodes of the whole tree, of which those of the columns are shown.
        parent: -1 of the root. mean, value, prior: Q, V and P. count: equal samples. hidden: children left out.
        terminal, dead: nodes where an episode ends, and that were not to be gone to. chosen: the path decided for.
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
    chosen: tuple[int, ...]
    finished: Mapping[int, int]
    ended_by: str
    spent: Mapping[str, float]
    dropped: int
    reasons: tuple[DroppedChild, ...]
    low: float
    high: float

    def __len__(self) -> int:
        return len(self.parent)

    def worth(self, node: int) -> float | None:
        """What the bar of a node shows: Q, else V."""
        mean = self.mean[node]
        return self.value[node] if mean is None else mean


def read_tree(document: object) -> SearchTree | None:
    """The tree that a JSON value holds, its first 5,000 nodes; None where it holds none."""
    row = as_mapping(document)
    given = as_list(row.get("parent"))[:_NODES]
    parent = tuple(-1 if above == -1 else as_count(above) for above in given)
    if (
        not parent
        or parent[0] != -1
        or not all(above is not None and -1 < above < node for node, above in enumerate(parent) if node)
    ):
        return None
    size = len(parent)
    mean, value, prior = ([as_number(one) for one in _column(row, name, size)] for name in ("mean", "value", "prior"))
    worth = [second if first is None else first for first, second in zip(mean, value, strict=True)]
    known = [0.0, *(one for one in worth if one is not None)]
    dropped = as_mapping(row.get("dropped"))
    return SearchTree(
        title=as_text(row.get("title")),
        whole=max(size, as_count(row.get("nodes")) or 0),
        parent=tuple(above or 0 for above in parent),
        action=tuple(map(as_text, _column(row, "action", size))),
        visits=_counts(row, "visits", size),
        mean=tuple(mean),
        value=tuple(value),
        prior=tuple(prior),
        count=_counts(row, "count", size),
        kind=tuple(map(as_text, _column(row, "kind", size))),
        hidden=_counts(row, "hidden", size),
        terminal=_nodes(row, "terminal", size),
        dead=_nodes(row, "dead", size),
        chosen=_path(row, parent),
        finished=_finished(row, size),
        ended_by=as_text(row.get("ended_by")),
        spent=as_numbers(row.get("spent")),
        dropped=as_count(dropped.get("count")) or 0,
        reasons=_reasons(dropped, size),
        low=min(known),
        high=max(1.0, *known) if min(known) >= 0 else max(known),
    )


def draw_tree(tree: SearchTree) -> Markup:
    """All of its lines, the root's first. Everything that a model wrote is escaped."""
    return Markup("".join(_lines(tree)))


# ---------------------------------------------------------------- reading


def _column(row: Mapping[str, object], name: str, size: int) -> Sequence[object]:
    """The entries of a column, None where there are too few."""
    found = list(as_list(row.get(name)))[:size]
    return [*found, *[None] * (size - len(found))]


def _counts(row: Mapping[str, object], name: str, size: int) -> tuple[int | None, ...]:
    return tuple(map(as_count, _column(row, name, size)))


def _nodes(row: Mapping[str, object], name: str, size: int) -> frozenset[int]:
    return frozenset(node for node in map(as_count, as_list(row.get(name))) if node is not None and node < size)


def _finished(row: Mapping[str, object], size: int) -> dict[int, int]:
    pairs = [tuple(map(as_count, one)) for one in as_list(row.get("finished")) if isinstance(one, list)]
    counted = [pair for pair in pairs if len(pair) == 2]
    return {node: times for node, times in counted if node is not None and times and node < size}


def _path(row: Mapping[str, object], parent: Sequence[int | None]) -> tuple[int, ...]:
    """The path decided for; nothing where it is none."""
    nodes = [as_count(node) for node in as_list(row.get("chosen"))]
    above: int | None = -1
    for node in nodes:
        if node is None or node >= len(parent) or parent[node] != above:
            return ()
        above = node
    return tuple(node for node in nodes if node is not None)


def _reasons(dropped: Mapping[str, object], size: int) -> tuple[DroppedChild, ...]:
    rows = [one for one in as_list(dropped.get("first")) if isinstance(one, list) and len(one) == 3]
    found = ((as_count(node), as_text(action), as_text(reason)) for node, action, reason in rows)
    return tuple(DroppedChild(None if node is None or node >= size else node, *said) for node, *said in found)


# ---------------------------------------------------------------- drawing


def _lines(tree: SearchTree) -> Iterator[str]:
    below = _below(tree)
    chosen, depth = frozenset(tree.chosen), _depths(tree)
    stack: list[int | str] = [0]
    while stack:
        at = stack.pop()
        if isinstance(at, str):
            yield at
            continue
        children, left, above = below[at], tree.hidden[at] or 0, tree.parent[at]
        only = at > 0 and len(below[above]) + (tree.hidden[above] or 0) == 1
        line, style = _line(tree, at, chosen), _style(tree, at, chosen, only=only)
        if not (children or left) or depth[at] >= _DEEPEST:
            yield f"<p{style}>{line}</p>\n"
            yield '<p class="left">What is below is too deep to be drawn.</p>\n' if children else ""
            continue
        yield f"<details{style}{' open' if at == 0 or at in chosen else ''}><summary>{line}</summary>\n"
        stack.append("</details>\n")
        stack += [f'<p class="left">{left:,} more not shown</p>\n'] if left else []
        stack += reversed(children)


def _below(tree: SearchTree) -> list[list[int]]:
    """The children of each node: the chosen first, then by visits, then by value."""
    found: list[list[int]] = [[] for _ in range(len(tree))]
    chosen = frozenset(tree.chosen)
    for node in range(1, len(tree)):
        found[tree.parent[node]].append(node)

    def place(node: int) -> tuple[bool, int, float]:
        worth = tree.worth(node)
        return node not in chosen, -(tree.visits[node] or 0), float("inf") if worth is None else -worth

    return [sorted(children, key=place) for children in found]


def _depths(tree: SearchTree) -> list[int]:
    depth = [0] * len(tree)
    for node in range(1, len(tree)):
        depth[node] = depth[tree.parent[node]] + 1
    return depth


def _style(tree: SearchTree, node: int, chosen: frozenset[int], *, only: bool) -> str:
    """The classes of a line: c chosen, d dead, o the only child, which stands right under its parent."""
    names = [name for name, holds in (("c", node in chosen), ("d", node in tree.dead), ("o", only)) if holds]
    return f' class="{" ".join(names)}"' if names else ""


def _line(tree: SearchTree, node: int, chosen: frozenset[int]) -> str:
    said = _said(tree.action[node], _CHOSEN if node in chosen else _TEXT) if node else "start"
    kind = f"<u>{_said(tree.kind[node], 40)}</u>" if tree.kind[node] else ""
    marks = []
    if (tree.count[node] or 1) > 1:
        marks.append(f"×{tree.count[node]}")
    if node in tree.terminal:
        marks.append("end, chosen" if tree.chosen[-1:] == (node,) else "end")
    if node in tree.dead:
        marks.append("dropped")
    told = f"<em>{', '.join(marks)}</em>" if marks else ""
    visits = tree.visits[node]
    numbers = [
        "–" if visits is None else f"{visits:,}",
        *map(_short, (tree.mean[node], tree.value[node], tree.prior[node] if node else None)),
    ]
    cells = "".join(f"<b>{number}</b>" for number in numbers)
    return f'<i class="{_bar(tree, node)}"></i>{kind}<bdi>{said}</bdi>{told}{cells}'


def _bar(tree: SearchTree, node: int) -> str:
    """The class of a bar: v0 to v10, or vx where no value is known."""
    worth = tree.worth(node)
    if worth is None:
        return "vx"
    whole = tree.high - tree.low
    return f"v{round(_STEPS * (worth - tree.low) / whole) if whole > 0 else _STEPS}"


def _said(text: str, limit: int) -> Markup:
    """An action in one line, safe: cut, blanks that would not be seen as signs."""
    cut = text if len(text) <= limit else f"{text[:limit]}…"
    shown = cut.translate(_BLANKS) if cut.strip(" ") else "␣" * len(cut) or "∅"
    return escape(shown) if shown.isprintable() and shown.isascii() else marked(shown, limit + 1)


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    return (f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")
