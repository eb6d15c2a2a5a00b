"""Searches that only sample: the likeliest continuation, the best of n, the majority of n, and a shared tree.

Samples do not depend on each other, so each search requests as many at once as its budget allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evolvent.belief.stopping import Detector
from evolvent.search.aggregate import Answer, Same, Sample, aggregate
from evolvent.search.budgeted import BudgetTracker, Exhausted, check_sizes, evaluate_nodes, expand_nodes
from evolvent.search.records import (
    Budget,
    Child,
    EndedBy,
    ExpandRequest,
    Request,
    Response,
    Search,
    SearchResult,
    State,
)
from evolvent.search.stopping import Stop, Vote
from evolvent.search.tree import Tree

__all__ = ["best_of_n", "sampled_tree", "search_greedy", "self_consistency", "voted_tree"]

Steps = Generator[Request, Response, None]


def search_greedy(root: State, budget: Budget, rng: np.random.Generator, *, valued: bool = False) -> Search:
    """Takes the one continuation of the likeliest actions. Leaves `rng` unused.

    Raises:
        NoLegalAction: the root has no action.
    """
    tree, tracker = Tree(root), BudgetTracker(budget)
    ended: EndedBy = "done"
    try:
        yield from expand_nodes(tree, tracker, [0], width=1, to_end=True, greedy=True, valued=valued)
        if valued:
            yield from evaluate_nodes(tree, tracker, range(1, len(tree)))
    except Exhausted as reached:
        ended = reached.limit
    ends = _terminal_nodes(tree)
    return SearchResult(tree, ends, next(iter(ends), None), tracker.spent, ended)


def best_of_n(
    root: State, budget: Budget, rng: np.random.Generator, *, n: int, valued: bool = True, stop: Stop | None = None
) -> Search:
    """Samples n whole continuations; the choice is the one of the highest value. Leaves `rng` unused.

    All n are requested at once. Where the budget cannot pay for them in the worst case, half as many are, and so
    on, in rounds until not even one fits. A continuation that was drawn c times in a round is one node and stands c
    times in `finished`. Without values the choice is the one drawn most often in a round. Of equal ones the first
    counts.

    Args:
        stop: when fewer are enough; the samples are then the first ones of the n, and `notes` those of
            `Vote.notes`.
    Raises:
        ConfigError: n is below 1. NoLegalAction: the root has no action.
    """
    check_sizes(n=n)
    tree, tracker = Tree(root), BudgetTracker(budget)
    ended: EndedBy = "done"
    samples: list[Child] = []
    vote = None if stop is None else Vote(stop, n)
    try:
        yield from _draw_samples(ExpandRequest(root, n, to_end=True, valued=valued), tracker, samples, vote)
    except Exhausted as reached:
        ended = reached.limit
    if samples or ended == "done":
        tree.add_children(0, samples)
    if ended == "done":
        tree.check_root()
    ends = _terminal_nodes(tree)
    notes = {} if vote is None else vote.notes()
    return SearchResult(tree, ends, _best_end(tree, ends), tracker.spent, ended, notes)


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
    """Samples n whole continuations without values; the choice is the first with the majority answer (Wang et al.,
    2023).

    Sampling is that of `best_of_n`. Leaves `rng` unused.

    Args:
        answer: reads the answer of a state; None: each action is its own answer.
        same: whether two answers are one; None: if they are equal.
        stop: when fewer votes are enough; with `Decided` the answer is always that of all n.
    Raises:
        ConfigError: n is below 1, or a detector of something else than votes. NoLegalAction: the root has no
            action.
    """
    early_stop = None if stop is None else Stop(stop, answer, same)
    result = yield from best_of_n(root, budget, rng, n=n, valued=False, stop=early_stop)
    tree = result.tree
    samples = [
        Sample(tree.actions[node] if answer is None else answer(tree.states[node]), count=count, origin=(0, node))
        for node, count in Counter(result.finished).items()
    ]
    choice = aggregate(samples, span="last", rule="majority", same=same)
    if choice.best_sample is None:
        return result
    notes = {**result.notes, "share": choice.share, "unread": choice.unread}
    return replace(result, best_node=list(dict.fromkeys(result.finished))[choice.best_sample], notes=notes)


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

    A node is expanded when the first walk needs its children; later walks reuse them. A walk ends at a terminal
    node, at `depth`, or where there is no child. The choice is the end of the highest value, without values the one
    that most walks reached; of equal ones the first.

    Args:
        width: children of a node. paths: walks. together: walks that go side by side, so that the nodes they reach
            are expanded at once. Every walk has its own random numbers, so the ends do not depend on `together`;
            only what is left unfinished when the budget ends does. valued: have the ends valued.
    Raises:
        ConfigError: a size is below 1. NoLegalAction: the root has no action.
    """
    check_sizes(width=width, depth=depth, paths=paths, together=together)
    walks = _Walks(Tree(root), BudgetTracker(budget), rng, width, depth)
    return (yield from _run_walks(walks, paths, together, valued=valued))


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
    """Runs `sampled_tree` without values, with walks as votes that `stop` may end: the walks are then the first
    ones.

    Notes: see `Vote.notes`.

    Raises:
        ConfigError: a size is below 1, or a detector of something else than votes. NoLegalAction: the root has no
            action.
    """
    check_sizes(width=width, depth=depth, paths=paths, together=together)
    walks = _Walks(Tree(root), BudgetTracker(budget), rng, width, depth)
    return (yield from _run_walks(walks, paths, together, vote=Vote(stop, paths)))


@dataclass(frozen=True, slots=True)
class _Walks:
    """The common settings of all walks of a tree, and the current node of each walk."""

    tree: Tree
    tracker: BudgetTracker
    rng: np.random.Generator
    width: int
    depth: int
    nodes: list[int] = field(default_factory=list)


def _run_walks(walks: _Walks, paths: int, together: int, *, valued: bool = False, vote: Vote | None = None) -> Search:
    """Runs walks in batches of `together`, or of fewer where a vote may end sooner."""
    tree, tracker, nodes = walks.tree, walks.tracker, walks.nodes
    ended: EndedBy = "done"
    try:
        while len(nodes) < paths and not (vote and vote.stopped):
            num_before = len(nodes)
            yield from _advance_walks(walks, min(together, paths - num_before, vote.votes_needed() if vote else paths))
            if vote:
                for node in nodes[num_before:]:
                    reached_end = bool(tree.terminal[node] and not tree.dead[node])
                    vote.cast(tree.states[node], action=node, readable=reached_end)
                vote.should_stop()
            if valued:  # lot by lot: what was drawn is judged before more is
                yield from evaluate_nodes(tree, tracker, [node for node in nodes if tree.terminal[node]])
    except Exhausted as reached:
        ended = reached.limit
    ends = tuple(node for node in nodes if tree.terminal[node] and not tree.dead[node])
    return SearchResult(tree, ends, _best_end(tree, ends), tracker.spent, ended, vote.notes() if vote else {})


def _draw_samples(expansion: ExpandRequest, tracker: BudgetTracker, samples: list[Child], vote: Vote | None) -> Steps:
    """Adds samples in rounds, those of each round as soon as they came, until there are `expansion.width`."""
    left = batch_size = expansion.width
    while left:
        size = min(batch_size, left) if vote is None else min(batch_size, left, vote.votes_needed())
        response = yield from tracker.request([replace(expansion, width=size, first=expansion.width - left)])
        children = response.children[0]
        if children is not None:
            if not children:
                return  # there is no action; asking again would not bring one
            left -= size
            samples += children
            if expansion.valued:
                yield from _evaluate_samples(tracker, samples)
            if vote is not None and _cast_votes(vote, children):
                return
            if response.short is not None:  # some were given up
                raise Exhausted(response.short)
        elif size == 1:
            raise Exhausted(response.short or "generated")
        else:
            batch_size = size // 2


def _cast_votes(vote: Vote, children: Sequence[Child]) -> bool:
    """Adds the votes of new samples and returns whether the detector stops."""
    for child in children:
        vote.cast(child.state, action=child.action, count=child.count, readable=child.terminal and not child.problem)
    return vote.should_stop()


def _evaluate_samples(tracker: BudgetTracker, samples: list[Child]) -> Steps:
    """Evaluates samples without a value before they are in the tree; NaN drops them there."""
    unvalued = [index for index, child in enumerate(samples) if child.value is None and not child.problem]
    if not unvalued:
        return
    response = yield from tracker.request(evaluate=[samples[index].state for index in unvalued])
    for index, sample_value in zip(unvalued, response.values, strict=True):
        samples[index] = replace(samples[index], value=sample_value)
    if response.short is not None:
        raise Exhausted(response.short)


def _advance_walks(walks: _Walks, count: int) -> Steps:
    """Runs so many new walks to their ends, side by side."""
    tree, nodes, num_before = walks.tree, walks.nodes, len(walks.nodes)
    numbers = walks.rng.random((count, walks.depth))  # of each walk, to draw its children
    nodes += [0] * count
    active = list(range(num_before, len(nodes)))
    for step in range(walks.depth):
        unexpanded = [node for node in dict.fromkeys(nodes[walk] for walk in active) if not tree.is_expanded(node)]
        if unexpanded:
            yield from expand_nodes(tree, walks.tracker, unexpanded, width=walks.width, valued=False)
        active = [walk for walk in active if tree.width[nodes[walk]]]
        for walk in active:
            nodes[walk] = _draw_child(tree, nodes[walk], float(numbers[walk - num_before, step]))
        active = [walk for walk in active if not tree.terminal[nodes[walk]]]
        if not active:
            return


def _draw_child(tree: Tree, node: int, uniform: float) -> int:
    """Returns the child that a number in [0, 1) selects by the priors."""
    edges = np.cumsum(tree.prior[tree.children(node)])
    offset = int(np.searchsorted(edges, uniform * edges[-1], side="right"))
    return int(tree.first[node]) + min(offset, len(edges) - 1)


def _terminal_nodes(tree: Tree) -> tuple[int, ...]:
    """Returns the terminal nodes, each as often as it was drawn."""
    nodes = range(1, len(tree))
    return tuple(
        node for node in nodes if tree.terminal[node] and not tree.dead[node] for _ in range(tree.counts[node])
    )


def _best_end(tree: Tree, ends: Sequence[int]) -> int | None:
    """Returns the end of the highest value, or without values the most frequent one; the first of equal ones."""
    counts = Counter(ends)
    valued = [node for node in counts if not np.isnan(tree.value[node])]
    if valued:
        return max(valued, key=tree.value.__getitem__)
    return max(counts, key=counts.__getitem__, default=None)
