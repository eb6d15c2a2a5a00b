"""What searches came to, read from `searches.jsonl` and put together: a cell for each world, method and budget.

The rows are trusted as little as any other file of a run. A cell in which an episode could not be scored has no rate:
it is withheld, never averaged over the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evolvent.stats import Interval, paired, wilson
from evolvent.view.searchtree import SearchTree, read_tree
from evolvent.view.values import as_count, as_mapping, as_number, as_text

__all__ = ["BASELINES", "SearchCell", "SearchRow", "SearchTreeFile", "cells", "search_row", "tree_file"]

BASELINES = ("greedy", "samples", "best_of_n")  # what stands beside every search
_AGAINST = "best_of_n"


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One search: of a task, by a method, within a budget (None: none was set).

    Attributes:
        of: what the budget limits. success: None: not scored, and `error` says why. passed: whether any of its samples
            was right. samples: ends that it came to. answer: what it decided for, as text.
        ended_by: "done" or a limit. generated, computed, expansions: spent; `computed` None: where nobody counts.
        cpu_s: CPU seconds of the process between the end of the search before and of this one.
        dropped: children that could not be used. stopped: whether a detector ended its votes early.
    """

    world: str
    tier: str
    kind: str
    task: str
    method: str
    budget: int | None
    of: str
    success: bool | None
    passed: bool | None
    samples: int
    answer: str
    ended_by: str
    generated: int
    computed: int | None
    expansions: int
    cpu_s: float
    dropped: int
    error: str
    stopped: bool = False

    @property
    def key(self) -> tuple[str, str, int | None, str]:
        """What tells this search from the others of its run."""
        return self.world, self.method, self.budget, self.task


@dataclass(frozen=True, slots=True)
class SearchCell:
    """All searches of a world by a method within a budget; what was spent is the mean of a task.

    Attributes:
        n, errors: tasks, and those that could not be scored. rate: of success, with Wilson's interval; None: withheld.
        passed: share of tasks of which any sample was right; None: not known of all. samples: of a task.
        limited: share of searches that a limit ended. unanswered: searches that came to no end.
        against: success minus that of best of n within the same budget, paired by task; None: there is none.
    """

    world: str
    method: str
    budget: int | None
    of: str
    n: int
    errors: int
    rate: Interval | None
    passed: float | None
    samples: float
    generated: float
    computed: float | None
    expansions: float
    cpu_s: float
    limited: float
    unanswered: int
    dropped: int
    against: Interval | None


@dataclass(frozen=True, slots=True)
class SearchTreeFile:
    """One file of `trees/`: which search it is of, how that came out, and the tree.

    Attributes:
        number, forest: which of how many trees of the problem it is, the first being 1; 1 of 1 where there is one.
    """

    name: str
    world: str
    task: str
    method: str
    budget: int | None
    of: str
    success: bool | None
    answer: str
    tree: SearchTree
    number: int = 1
    forest: int = 1


def tree_file(name: str, document: object) -> SearchTreeFile | None:
    """The tree that a file holds; None where it holds none."""
    row = as_mapping(document)
    tree = read_tree(row.get("tree"))
    if tree is None:
        return None
    world, task, method, of, answer = (as_text(row.get(each)) for each in ("world", "task", "method", "of", "answer"))
    budget, success = as_count(row.get("budget")), _truth(row.get("success"))
    number, forest = as_count(row.get("number")) or 1, as_count(row.get("forest")) or 1
    return SearchTreeFile(name, world, task, method, budget, of, success, answer, tree, number, max(number, forest))


def search_row(row: Mapping[str, Any]) -> SearchRow | None:
    """The search that a line tells of; None where it tells of none."""
    world, method, task = (as_text(row.get(name)) for name in ("world", "method", "task"))
    budget, spent = row.get("budget"), as_mapping(row.get("spent"))
    if not (world and method and task) or (budget is not None and as_count(budget) is None):
        return None
    return SearchRow(
        world=world,
        tier=as_text(row.get("tier")),
        kind=as_text(row.get("kind")),
        task=task,
        method=method,
        budget=as_count(budget),
        of=as_text(row.get("of")),
        success=_truth(row.get("success")),
        passed=_truth(row.get("passed")),
        samples=as_count(row.get("samples")) or 0,
        answer=as_text(row.get("answer")),
        ended_by=as_text(row.get("ended_by")),
        generated=as_count(spent.get("generated")) or 0,
        computed=as_count(spent.get("computed")),
        expansions=as_count(spent.get("expansions")) or 0,
        cpu_s=max(0.0, as_number(row.get("cpu_s")) or 0.0),
        dropped=as_count(row.get("dropped")) or 0,
        error=as_text(row.get("error")),
        stopped=bool(as_text(row.get("stopped"))),
    )


def cells(rows: Iterable[SearchRow]) -> list[SearchCell]:
    """The cells, world by world; methods in the order in which they came, what stands beside them first.

    A search that was done again counts once, as it came out the last time.
    """
    last = {row.key: row for row in rows}
    found: dict[tuple[str, str, int | None], list[SearchRow]] = {}
    for row in last.values():
        found.setdefault((row.world, row.method, row.budget), []).append(row)
    worlds = list(dict.fromkeys(world for world, _, _ in found))
    methods = sorted(dict.fromkeys(method for _, method, _ in found), key=lambda name: _place(name))

    def place(key: tuple[str, str, int | None]) -> tuple[int, int, int]:
        world, method, budget = key
        return worlds.index(world), methods.index(method), budget or 0

    return [_cell(own, found.get((key[0], _AGAINST, key[2]), ())) for key, own in sorted(found.items(), key=_by(place))]


def _by(place: Any) -> Any:
    return lambda item: place(item[0])


def _place(method: str) -> int:
    return BASELINES.index(method) if method in BASELINES else len(BASELINES)


def _cell(own: Sequence[SearchRow], others: Sequence[SearchRow]) -> SearchCell:
    one, n = own[0], len(own)
    errors = sum(row.success is None for row in own)
    wins = sum(bool(row.success) for row in own)
    known = [row.passed for row in own if row.passed is not None]
    computed = [row.computed for row in own if row.computed is not None]
    return SearchCell(
        one.world,
        one.method,
        one.budget,
        one.of,
        n,
        errors,
        None if errors else wilson(wins, n),
        passed=sum(known) / n if len(known) == n else None,
        samples=sum(row.samples for row in own) / n,
        generated=sum(row.generated for row in own) / n,
        computed=sum(computed) / n if len(computed) == n else None,
        expansions=sum(row.expansions for row in own) / n,
        cpu_s=sum(row.cpu_s for row in own) / n,
        limited=sum(row.ended_by != "done" for row in own) / n,
        unanswered=sum(not row.samples and not row.error for row in own),
        dropped=sum(row.dropped for row in own),
        against=None if one.method in BASELINES else _against(own, others),
    )


def _against(own: Sequence[SearchRow], others: Sequence[SearchRow]) -> Interval | None:
    """The difference on the same tasks, tasks of a kind drawn together; None where they are not the same or scored."""
    theirs = {row.task: row for row in others}
    pairs = [(row, theirs[row.task]) for row in own if row.task in theirs]
    scored = all(row.success is not None for pair in pairs for row in pair)
    if not pairs or len(pairs) != len(own) or len(pairs) != len(others) or not scored:
        return None
    mine, best = ([float(bool(row.success)) for row in side] for side in zip(*pairs, strict=True))
    kinds = [row.kind for row, _ in pairs]
    return paired(mine, best, levels=[kinds], rng=np.random.default_rng(0)).within(-1.0, 1.0)


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
