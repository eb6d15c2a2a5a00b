"""Several independent trees for one problem: they share its budget, and their answers become one.

TS-LLM's inter-tree aggregation (arXiv 2309.17179) begins a new tree for every further answer. Here all trees of
a problem are one search to their adapter: they are grown one after another, each with an equal share of the
remaining budget, so that later trees inherit unspent amounts, and tokens that several of them feed are fed and
counted once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from evolvent.errors import ConfigError, NoLegalAction
from evolvent.search.aggregate import Choice, Rule, Same, Sample, Span, aggregate, collect_samples, group_answers
from evolvent.search.budgeted import check_sizes
from evolvent.search.records import Budget, EndedBy, Request, Response, Search, SearchResult, Spent, State
from evolvent.trajectory import sample_rng, sample_seed

__all__ = [
    "Between",
    "Decision",
    "Forest",
    "Growing",
    "answer_rows",
    "decide",
    "grow_forest",
    "list_candidates",
    "split_budget",
]

Between = Literal["ends", "majority", "vote", "max"]
Growing = Generator[Request, Response, "Forest"]
_LIMITS: tuple[EndedBy, ...] = ("generated", "computed", "expansions", "seconds")


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """The results of all trees of a problem.

    Args:
        trees: the searches in the order in which they were grown, at least one.
        spent: of all of them. ended_by: "done", or the first limit that ended one of them or kept it from
            beginning.
    """

    trees: tuple[SearchResult, ...]
    spent: Spent
    ended_by: EndedBy


@dataclass(frozen=True, slots=True)
class Decision:
    """The combined decision of the trees.

    Args:
        tree, node: the location of the solution that represents the answer; where no end counts
            (`choice.best_sample` is None) the unfinished path of highest value, or else the deepest, of the first
            such tree.
        choice: among the answers of all ends, or among those that the trees decided for.
        samples: all ends, tree by tree. decided_per_tree: whether each tree decided first.
    """

    tree: int
    node: int
    choice: Choice
    samples: tuple[Sample, ...]
    decided_per_tree: bool = False


def grow_forest(
    begin: Callable[[State, Budget, np.random.Generator], Search], root: State, budget: Budget, *, trees: int, seed: int
) -> Growing:
    """Expands `trees` trees one after another within one budget.

    The first tree is the search that `begin(root, budget, rng)` alone would be, but for its share of the budget;
    with one tree it is that search, number for number. The root of each further one is the same state with its own
    seed, from which its samples derive, and so are its random numbers. Where nothing is left, no tree is begun. A
    tree that found no action at its root, because none of its samples could be used, is left out; its spending
    still counts.

    Args:
        begin: makes a search. root: a state with a field `seed` (`TextState`, `EnvState`, `SolutionState`).
        seed: of the first tree's random numbers; those of the others derive from it.
    Raises:
        ConfigError: less than one tree. NoLegalAction: no tree found an action at its root. Other errors of a
            search.
    """
    check_sizes(trees=trees)
    grown: list[SearchResult] = []
    first_error: NoLegalAction | None = None
    spent = Spent()
    ended: EndedBy = "done"
    for number in range(trees):
        tree_seed = seed if number == 0 else sample_seed(seed, "tree", number)
        tree_root = root if number == 0 else replace(root, seed=sample_seed(root.seed, "tree", number))
        reached_limit = budget.over(spent)
        if reached_limit is not None:
            ended = reached_limit if ended == "done" else ended
            break
        tree_budget = budget if trees == 1 else split_budget(budget.left(spent), trees - number)
        meter = _MeteredSearch(begin(tree_root, tree_budget, sample_rng(tree_seed, "search")))
        try:
            result = yield from meter.run()
        except NoLegalAction as error:
            first_error, spent = first_error or error, spent + meter.spent
            continue
        grown.append(result)
        spent += result.spent
        ended = result.ended_by if ended == "done" else ended
    if first_error is not None and not grown:
        raise first_error
    return Forest(tuple(grown), spent, ended)


class _MeteredSearch:
    """A search with a count of its spending; a search that raises cannot report it."""

    def __init__(self, search: Search) -> None:
        self._search, self.spent = search, Spent()

    def run(self) -> Search:
        with closing(self._search) as search:
            try:
                request = next(search)
                while True:
                    response = yield request
                    self.spent += response.used
                    request = search.send(response)
            except StopIteration as stop:
                result: SearchResult = stop.value
                return result


def split_budget(left: Budget, trees: int) -> Budget:
    """Returns the part of the remaining budget that the next of so many trees may spend, so that each tree gets a
    part.

    Each limit is divided by the trees still to come; tokens and expansions are rounded up, so that nothing is lost.
    """
    parts: dict[str, Any] = {}
    for name in _LIMITS:
        limit = getattr(left, name)
        parts[name] = None if limit is None else limit / trees if name == "seconds" else math.ceil(limit / trees)
    return Budget(**parts)


# ------------------------------------------------------------------ which answer


def list_candidates(result: SearchResult) -> list[Sample]:
    """Lists the solutions among which a tree decides, each once with its count; answers are still to be read.

    Those of rStar are the ends that its discriminator agreed with, or all ends, each once, with its reward as
    score.
    """
    if "agreed" not in result.notes:
        return collect_samples(result, lambda state: None)
    tree = result.tree
    ends = result.notes["agreed"] or [node for node in range(len(tree)) if tree.terminal[node]]
    return [Sample(None, (float(tree.value[node]),), origin=(0, node)) for node in ends]


def decide(
    trees: Sequence[SearchResult],
    answers: Sequence[Mapping[int, Hashable | None]],
    *,
    rule: Rule,
    span: Span,
    between: Between = "ends",
    same: Same | None = None,
) -> Decision:
    """Combines the ends of several trees to one answer.

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
        raise ConfigError("number of answers does not match the trees", value=len(answers), expected=str(len(trees)))
    samples_by_tree = [
        [
            replace(sample, answer=tree_answers[sample.origin[1]], origin=(number, sample.origin[1]))
            for sample in list_candidates(result)
            if sample.origin is not None
        ]
        for number, (result, tree_answers) in enumerate(zip(trees, answers, strict=True))
    ]
    samples = [sample for tree_samples in samples_by_tree for sample in tree_samples]
    if between == "ends":
        voters, choice = samples, aggregate(samples, span=span, rule=rule, same=same)
    else:
        tree_choices = [
            (tree_samples, aggregate(tree_samples, span=span, rule=rule, same=same).best_sample)
            for tree_samples in samples_by_tree
        ]
        voters = [replace(tree_samples[index], count=1) for tree_samples, index in tree_choices if index is not None]
        choice = aggregate(voters, span=span, rule=between, same=same)
    origin = None if choice.best_sample is None else voters[choice.best_sample].origin
    return Decision(*(_best_unfinished(trees) if origin is None else origin), choice, tuple(samples), between != "ends")


def _best_unfinished(trees: Sequence[SearchResult]) -> tuple[int, int]:
    """Returns the tree and node of the unfinished path of highest value, or else the deepest; a root where there is
    none.
    """
    best, best_key = (0, 0), (-float("inf"), -1)
    for number, result in enumerate(trees):
        tree = result.tree
        for node in tree.leaves():
            value = float(tree.value[node])
            candidate = (value if value == value else -float("inf"), int(tree.depth[node]))
            if node and candidate > best_key:
                best, best_key = (number, node), candidate
    return best


def answer_rows(decision: Decision, *, same: Same | None = None) -> tuple[dict[str, object], ...]:
    """Converts the answers of all ends to JSON values: {"answer", "weight", "count"}, the first seen first.

    The count is of all ends with this answer, in any spelling. Where each tree decided first, an answer that no
    tree decided for has weight 0 and stands after the others.

    Args:
        same: whether two answers are one, as in `decide`.
    """
    choice, samples = decision.choice, decision.samples
    answers = [*choice.answers, *(sample.answer for sample in samples)]
    numbers = group_answers(answers, same=same)
    firsts = {number: answers[numbers.index(number)] for number in dict.fromkeys(numbers)}
    counts = dict.fromkeys(numbers, 0)
    for sample, number in zip(samples, numbers[len(choice.answers) :], strict=True):
        counts[number] += sample.count
    weights = dict(zip(numbers, choice.weights, strict=False))
    if decision.decided_per_tree:
        weights |= {number: 0.0 for number in firsts if number >= 0 and number not in weights}
    return tuple(
        {"answer": firsts[group_number], "weight": weight, "count": counts[group_number]}
        for group_number, weight in weights.items()
    )
