"""Several independent trees for one problem: they share its budget, and their answers become one.

TS-LLM's inter-tree aggregation (arXiv 2309.17179) begins a new tree for every further answer. Here all trees of a
problem are one search to their adapter: they are grown one after another, each with an equal share of what is left, so
that what one leaves is the next ones', and what is fed for several of them is fed and counted once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.aggregate import Choice, Rule, Same, Sample, Span, aggregate, grouped, samples_of
from evolvent.search.budgeted import check_sizes
from evolvent.search.records import Budget, EndedBy, Found, Search, SearchResult, Spent, State, Wanted
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["Between", "Decision", "Forest", "Growing", "candidates", "decide", "forest", "share", "told"]

Between = Literal["ends", "majority", "vote", "max"]
Growing = Generator[Wanted, Found, "Forest"]
_LIMITS: tuple[EndedBy, ...] = ("generated", "computed", "expansions", "seconds")


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """What the trees of a problem have come to.

    Args:
        trees: the searches in the order in which they were grown, at least one.
        spent: of all of them. ended_by: "done", or the first limit that ended one of them or kept it from beginning.
    """

    trees: tuple[SearchResult, ...]
    spent: Spent
    ended_by: EndedBy


@dataclass(frozen=True, slots=True)
class Decision:
    """What the trees decide for.

    Args:
        tree, node: where the solution is that stands for the answer; where no end counts (`choice.chosen` None) the
            unfinished path of highest value, or else the deepest, of the first such tree.
        choice: among the answers of all ends, or among those that the trees decided for.
        samples: all ends, tree by tree. apart: whether the trees decided first.
    """

    tree: int
    node: int
    choice: Choice
    samples: tuple[Sample, ...]
    apart: bool = False


def forest(
    begin: Callable[[State, Budget, np.random.Generator], Search], root: Any, budget: Budget, *, trees: int, seed: int
) -> Growing:
    """Grow `trees` trees one after another within one budget.

    The first tree is the search that `begin(root, budget, rng)` alone would be, but for its share of the budget; with
    one tree it is that search, number for number. The root of each further one is the same state with a seed of its
    own, from which its samples derive, and so are its random numbers. Where nothing is left, no tree is begun. A tree
    that found no action at its root, because none of its samples could be used, is left out; what it spent is spent.

    Args:
        begin: makes a search. root: a state with a field `seed` (`TextState`, `EnvState`, `SolutionState`).
        seed: of the first tree's random numbers; those of the others derive from it.
    Raises:
        ConfigError: less than one tree. NoLegalAction: no tree found an action at its root. What else a search raises.
    """
    check_sizes(trees=trees)
    grown: list[SearchResult] = []
    barren: NoLegalAction | None = None
    spent = Spent()
    ended: EndedBy = "done"
    for number in range(trees):
        own = seed if number == 0 else sample_seed(seed, "tree", number)
        place = root if number == 0 else replace(root, seed=sample_seed(root.seed, "tree", number))
        reached = budget.over(spent)
        if reached is not None:
            ended = reached if ended == "done" else ended
            break
        part = budget if trees == 1 else share(budget.left(spent), trees - number)
        meter = _Metered(begin(place, part, sample_rng(own, "search")))
        try:
            result = yield from meter.grow()
        except NoLegalAction as error:
            barren, spent = barren or error, spent + meter.spent
            continue
        grown.append(result)
        spent += result.spent
        ended = result.ended_by if ended == "done" else ended
    if barren is not None and not grown:
        raise barren
    return Forest(tuple(grown), spent, ended)


class _Metered:
    """A search, and what it was told that it has spent: one that raises cannot say it."""

    def __init__(self, search: Search) -> None:
        self._search, self.spent = search, Spent()

    def grow(self) -> Search:
        with closing(self._search) as search:
            try:
                wanted = next(search)
                while True:
                    found = yield wanted
                    self.spent += found.used
                    wanted = search.send(found)
            except StopIteration as stop:
                result: SearchResult = stop.value
                return result


def share(left: Budget, trees: int) -> Budget:
    """The part of what is left that the next of so many trees may spend, so that none is left without.

    Each limit is divided by the trees still to come; tokens and expansions are rounded up, so that nothing is lost.
    """
    parts: dict[str, Any] = {}
    for name in _LIMITS:
        most = getattr(left, name)
        parts[name] = None if most is None else most / trees if name == "seconds" else math.ceil(most / trees)
    return Budget(**parts)


# ------------------------------------------------------------------ which answer


def candidates(result: SearchResult) -> list[Sample]:
    """The solutions among which a tree decides, each once with its count; answers are still to be read.

    Those of rStar are the ends that its discriminator agreed with, or all ends, each once, with its reward as score.
    """
    if "agreed" not in result.notes:
        return samples_of(result, lambda state: None)
    tree = result.tree
    ends = result.notes["agreed"] or [node for node in range(len(tree)) if tree.terminal[node]]
    return [Sample(None, (float(tree.value[node]),), place=(0, node)) for node in ends]


def decide(
    trees: Sequence[SearchResult],
    answers: Sequence[Mapping[int, Hashable | None]],
    *,
    rule: Rule,
    span: Span,
    between: Between = "ends",
    same: Same | None = None,
) -> Decision:
    """One answer from the ends of several trees.

    Args:
        answers: by node, one mapping a tree. rule, span: how ends become one answer, see `aggregate`.
        between: "ends": the ends of all trees together, by `rule`. Else each tree decides by `rule`, and its decision
            is one sample, with the scores of the end that stands for it: the answer of most trees ("majority"), that of
            the largest sum of these scores ("vote"), or of the largest one ("max").
        same: whether two answers are one.
    Raises:
        ConfigError: not one mapping a tree, or an unknown rule.
    """
    if len(trees) != len(answers):
        raise ConfigError("answers of other trees than there are", value=len(answers), expected=str(len(trees)))
    own = [
        [
            replace(sample, answer=read[sample.place[1]], place=(number, sample.place[1]))
            for sample in candidates(result)
            if sample.place is not None
        ]
        for number, (result, read) in enumerate(zip(trees, answers, strict=True))
    ]
    samples = [sample for each in own for sample in each]
    if between == "ends":
        asked, choice = samples, aggregate(samples, span=span, rule=rule, same=same)
    else:
        chosen = [(each, aggregate(each, span=span, rule=rule, same=same).chosen) for each in own]
        asked = [replace(each[at], count=1) for each, at in chosen if at is not None]
        choice = aggregate(asked, span=span, rule=between, same=same)
    place = None if choice.chosen is None else asked[choice.chosen].place
    return Decision(*(_furthest(trees) if place is None else place), choice, tuple(samples), between != "ends")


def _furthest(trees: Sequence[SearchResult]) -> tuple[int, int]:
    """The tree and node of the unfinished path of highest value, or else the deepest; a root where there is none."""
    best, worth = (0, 0), (-float("inf"), -1)
    for number, result in enumerate(trees):
        tree = result.tree
        for node in tree.leaves():
            value = float(tree.value[node])
            own = (value if value == value else -float("inf"), int(tree.depth[node]))
            if node and own > worth:
                best, worth = (number, node), own
    return best


def told(decision: Decision, *, same: Same | None = None) -> tuple[dict[str, Any], ...]:
    """What the ends came to, as JSON values: {"answer", "weight", "count"}, the first seen first.

    The count is of all ends with this answer, however they write it. Where the trees decided first, an answer that no
    tree decided for has weight 0 and stands behind the others.

    Args:
        same: whether two answers are one, as `decide` was told.
    """
    choice, samples = decision.choice, decision.samples
    answers = [*choice.answers, *(sample.answer for sample in samples)]
    numbers = grouped(answers, same=same)
    firsts = {number: answers[numbers.index(number)] for number in dict.fromkeys(numbers)}
    counts = dict.fromkeys(numbers, 0)
    for sample, number in zip(samples, numbers[len(choice.answers) :], strict=True):
        counts[number] += sample.count
    weights = dict(zip(numbers, choice.weights, strict=False))
    if decision.apart:
        weights |= {number: 0.0 for number in firsts if number >= 0 and number not in weights}
    return tuple({"answer": firsts[at], "weight": weight, "count": counts[at]} for at, weight in weights.items())
