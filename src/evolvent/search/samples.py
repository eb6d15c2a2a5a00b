"""Searches that only sample: the likeliest continuation, the best of n, the majority of n, and a tree that is shared.

Samples do not depend on each other, so each search asks for as many at once as its budget has room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evolvent.belief.stopping import Detector
from evolvent.search.aggregate import Answer, Same, Sample, aggregate
from evolvent.search.budgeted import Asking, Exhausted, check_sizes, expand, value
from evolvent.search.records import Budget, Child, EndedBy, Expand, Found, Search, SearchResult, State, Wanted
from evolvent.search.stopping import Stop, Vote
from evolvent.search.tree import Tree

__all__ = ["best_of_n", "greedy", "sampled_tree", "self_consistency", "voted_tree"]

Steps = Generator[Wanted, Found, None]


def greedy(root: State, budget: Budget, rng: np.random.Generator, *, valued: bool = False) -> Search:
    """The one continuation of the likeliest actions. Leaves `rng` unused.

    Raises:
        NoLegalAction: the root has no action.
    """
    tree, asking = Tree(root), Asking(budget)
    ended: EndedBy = "done"
    try:
        yield from expand(tree, asking, [0], width=1, whole=True, greedy=True, valued=valued)
        if valued:
            yield from value(tree, asking, range(1, len(tree)))
    except Exhausted as reached:
        ended = reached.limit
    ends = _ends(tree)
    return SearchResult(tree, ends, next(iter(ends), None), asking.spent, ended)


def best_of_n(
    root: State, budget: Budget, rng: np.random.Generator, *, n: int, valued: bool = True, stop: Stop | None = None
) -> Search:
    """n whole continuations; the choice is the one of the highest value. Leaves `rng` unused.

    All n are asked for at once. Where the budget has no room for them in the worst case, half as many are, and so on,
    in rounds until not even one fits. A continuation that was drawn c times in a round is one node and stands c times
    in `finished`. Without values the choice is the one drawn most often in a round. Of equal ones the first counts.

    Args:
        stop: when fewer are enough; the samples are then the first ones of the n, and `notes` those of `Vote.notes`.
    Raises:
        ConfigError: n is below 1. NoLegalAction: the root has no action.
    """
    check_sizes(n=n)
    tree, asking = Tree(root), Asking(budget)
    ended: EndedBy = "done"
    drawn: list[Child] = []
    vote = None if stop is None else Vote(stop, n)
    try:
        yield from _draw(Expand(root, n, whole=True, valued=valued), asking, drawn, vote)
    except Exhausted as reached:
        ended = reached.limit
    if drawn or ended == "done":
        tree.grow(0, drawn)
    if ended == "done":
        tree.check_root()
    ends = _ends(tree)
    notes = {} if vote is None else vote.notes()
    return SearchResult(tree, ends, _best(tree, ends), asking.spent, ended, notes)


def self_consistency(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    n: int,
    answer: Answer | None = None,
    same: Same | None = None,
    stop: Detector | None = None,
) -> Search:
    """n whole continuations without values; the choice is the first with the answer of most (Wang et al., 2023).

    Sampling is that of `best_of_n`. Leaves `rng` unused.

    Args:
        answer: reads the answer of a state; None: each action is an answer of its own.
        same: whether two answers are one; None: if they are equal.
        stop: when fewer votes are enough; with `Decided` the answer is always that of all n.
    Raises:
        ConfigError: n is below 1, or a detector of something else than votes. NoLegalAction: the root has no action.
    """
    early = None if stop is None else Stop(stop, answer, same)
    result = yield from best_of_n(root, budget, rng, n=n, valued=False, stop=early)
    tree = result.tree
    samples = [
        Sample(tree.actions[node] if answer is None else answer(tree.states[node]), count=count, place=(0, node))
        for node, count in Counter(result.finished).items()
    ]
    choice = aggregate(samples, span="last", rule="majority", same=same)
    if choice.chosen is None:
        return result
    notes = {**result.notes, "share": choice.share, "unread": choice.unread}
    return replace(result, chosen=list(dict.fromkeys(result.finished))[choice.chosen], notes=notes)


def sampled_tree(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    paths: int,
    together: int = 8,
    valued: bool = False,
) -> Search:
    """Walks from the root through one shared tree, each child drawn by its prior (TS-LLM's CoT-SC-tree).

    A node is expanded when the first walk needs its children, later walks find them there. A walk ends at a terminal
    node, at `depth`, or where there is no child. The choice is the end of the highest value, without values the one
    that most walks came to; of equal ones the first.

    Args:
        width: children of a node. paths: walks. together: walks that go side by side, so that the nodes they come to
            are expanded at once. Every walk has its own random numbers, so the ends do not depend on `together`;
            only what is left unfinished when the budget ends does. valued: have the ends valued.
    Raises:
        ConfigError: a size is below 1. NoLegalAction: the root has no action.
    """
    check_sizes(width=width, depth=depth, paths=paths, together=together)
    walks = _Walks(Tree(root), Asking(budget), rng, width, depth)
    return (yield from _walked(walks, paths, together, valued=valued))


def voted_tree(
    root: State,
    budget: Budget,
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    paths: int,
    stop: Stop,
    together: int = 8,
) -> Search:
    """`sampled_tree` without values, whose walks are votes that `stop` may end: the walks are then the first ones.

    Notes: see `Vote.notes`.

    Raises:
        ConfigError: a size is below 1, or a detector of something else than votes. NoLegalAction: the root has no
            action.
    """
    check_sizes(width=width, depth=depth, paths=paths, together=together)
    walks = _Walks(Tree(root), Asking(budget), rng, width, depth)
    return (yield from _walked(walks, paths, together, vote=Vote(stop, paths)))


@dataclass(frozen=True, slots=True)
class _Walks:
    """What all walks of a tree have in common, and where each of them stands."""

    tree: Tree
    asking: Asking
    rng: np.random.Generator
    width: int
    depth: int
    at: list[int] = field(default_factory=list)


def _walked(walks: _Walks, paths: int, together: int, *, valued: bool = False, vote: Vote | None = None) -> Search:
    """Walk in lots of `together`, or of fewer where a vote may end sooner."""
    tree, asking, at = walks.tree, walks.asking, walks.at
    ended: EndedBy = "done"
    try:
        while len(at) < paths and not (vote and vote.stopped):
            begun = len(at)
            yield from _walk(walks, min(together, paths - begun, vote.ahead() if vote else paths))
            if vote:
                for node in at[begun:]:
                    ended_well = bool(tree.terminal[node] and not tree.dead[node])
                    vote.cast(tree.states[node], done=node, readable=ended_well)
                vote.look()
            if valued:  # lot by lot: what was drawn is judged before more is
                yield from value(tree, asking, [node for node in at if tree.terminal[node]])
    except Exhausted as reached:
        ended = reached.limit
    ends = tuple(node for node in at if tree.terminal[node] and not tree.dead[node])
    return SearchResult(tree, ends, _best(tree, ends), asking.spent, ended, vote.notes() if vote else {})


def _draw(wish: Expand, asking: Asking, drawn: list[Child], vote: Vote | None) -> Steps:
    """Add samples to `drawn` in rounds, those of each round as soon as they came, until there are `wish.width`."""
    left = room = wish.width
    while left:
        size = min(room, left) if vote is None else min(room, left, vote.ahead())
        found = yield from asking.ask([replace(wish, width=size, first=wish.width - left)])
        children = found.children[0]
        if children is not None:
            if not children:
                return  # there is no action; asking again would not bring one
            left -= size
            drawn += children
            if wish.valued:
                yield from _value(asking, drawn)
            if vote is not None and _voted(vote, children):
                return
            if found.short is not None:  # some were given up
                raise Exhausted(found.short)
        elif size == 1:
            raise Exhausted(found.short or "generated")
        else:
            room = size // 2


def _voted(vote: Vote, children: Sequence[Child]) -> bool:
    """Cast the votes of new samples and look at them."""
    for child in children:
        vote.cast(child.state, done=child.action, count=child.count, readable=child.terminal and not child.problem)
    return vote.look()


def _value(asking: Asking, drawn: list[Child]) -> Steps:
    """Have samples valued that came without a value, before they are in the tree; NaN drops them there."""
    todo = [at for at, child in enumerate(drawn) if child.value is None and not child.problem]
    if not todo:
        return
    found = yield from asking.ask(evaluate=[drawn[at].state for at in todo])
    for at, told in zip(todo, found.values, strict=True):
        drawn[at] = replace(drawn[at], value=told)
    if found.short is not None:
        raise Exhausted(found.short)


def _walk(walks: _Walks, count: int) -> Steps:
    """Lead so many new walks to their ends, side by side."""
    tree, at, begun = walks.tree, walks.at, len(walks.at)
    numbers = walks.rng.random((count, walks.depth))  # of each walk, to draw its children
    at += [0] * count
    going = list(range(begun, len(at)))
    for step in range(walks.depth):
        unopened = [node for node in dict.fromkeys(at[walk] for walk in going) if not tree.expanded(node)]
        if unopened:
            yield from expand(tree, walks.asking, unopened, width=walks.width, valued=False)
        going = [walk for walk in going if tree.width[at[walk]]]
        for walk in going:
            at[walk] = _child(tree, at[walk], float(numbers[walk - begun, step]))
        going = [walk for walk in going if not tree.terminal[at[walk]]]
        if not going:
            return


def _child(tree: Tree, node: int, number: float) -> int:
    """The child that a number in [0, 1) draws by the priors."""
    edges = np.cumsum(tree.prior[tree.children(node)])
    drawn = int(np.searchsorted(edges, number * edges[-1], side="right"))
    return int(tree.first[node]) + min(drawn, len(edges) - 1)


def _ends(tree: Tree) -> tuple[int, ...]:
    """The terminal nodes, each as often as it was drawn."""
    nodes = range(1, len(tree))
    return tuple(
        node for node in nodes if tree.terminal[node] and not tree.dead[node] for _ in range(tree.counts[node])
    )


def _best(tree: Tree, ends: Sequence[int]) -> int | None:
    """The end of the highest value, or if none was valued the one that is there most often; the first of equal ones."""
    counts = Counter(ends)
    known = [node for node in counts if not np.isnan(tree.value[node])]
    if known:
        return max(known, key=tree.value.__getitem__)
    return max(counts, key=counts.__getitem__, default=None)
