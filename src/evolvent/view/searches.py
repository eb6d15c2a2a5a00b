"""Results of searches, read from `searches.jsonl` and aggregated: a cell for each world, method and budget.

The rows are trusted as little as any other file of a run. A cell in which an episode could not be scored has no rate:
it is withheld, never averaged over the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evolvent.stats import Interval, paired_interval, wilson_interval
from evolvent.view.searchtree import SearchTree, parse_tree
from evolvent.view.values import as_count, as_mapping, as_number, as_text

__all__ = [
    "BASELINES",
    "SearchCell",
    "SearchRow",
    "SearchTreeFile",
    "aggregate_cells",
    "parse_search_row",
    "parse_tree_file",
]

BASELINES = ("greedy", "samples", "best_of_n")  # what stands beside every search
_COMPARISON = "best_of_n"


@dataclass(frozen=True, slots=True)
class SearchRow:
    """One search: of a task, by a method, within a budget (None: none was set).

    Attributes:
        budget_unit: what the budget limits. success: None: not scored, and `error` says why. passed: whether any of its
            samples was right. samples: ends that it came to. answer: what it decided for, as text.
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
    budget_unit: str
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
        """Returns the key that distinguishes this search from the others of its run."""
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
    budget_unit: str
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


def parse_tree_file(name: str, document: object) -> SearchTreeFile | None:
    """Parses the tree of a file; None where the file has no tree."""
    row = as_mapping(document)
    tree = parse_tree(row.get("tree"))
    if tree is None:
        return None
    world, task, method, budget_unit, answer = (
        as_text(row.get(name_of_field)) for name_of_field in ("world", "task", "method", "of", "answer")
    )
    budget, success = as_count(row.get("budget")), _bool_or_none(row.get("success"))
    number, forest = as_count(row.get("number")) or 1, as_count(row.get("forest")) or 1
    return SearchTreeFile(
        name, world, task, method, budget, budget_unit, success, answer, tree, number, max(number, forest)
    )


def parse_search_row(row: Mapping[str, object]) -> SearchRow | None:
    """Parses the search of a line; None where the line describes no search."""
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
        budget_unit=as_text(row.get("of")),
        success=_bool_or_none(row.get("success")),
        passed=_bool_or_none(row.get("passed")),
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


def aggregate_cells(rows: Iterable[SearchRow]) -> list[SearchCell]:
    """Groups the searches world by world; methods in order of appearance, baselines first.

    A search that was done again counts once, as it came out the last time.
    """
    last = {row.key: row for row in rows}
    rows_per_cell: dict[tuple[str, str, int | None], list[SearchRow]] = {}
    for row in last.values():
        rows_per_cell.setdefault((row.world, row.method, row.budget), []).append(row)
    worlds = list(dict.fromkeys(world for world, _, _ in rows_per_cell))
    methods = sorted(dict.fromkeys(method for _, method, _ in rows_per_cell), key=lambda name: _method_rank(name))

    def sort_key(key: tuple[str, str, int | None]) -> tuple[int, int, int]:
        world, method, budget = key
        return worlds.index(world), methods.index(method), budget or 0

    return [
        _build_cell(cell_rows, rows_per_cell.get((key[0], _COMPARISON, key[2]), ()))
        for key, cell_rows in sorted(rows_per_cell.items(), key=_key_of_item(sort_key))
    ]


def _key_of_item(sort_key: Any) -> Any:
    return lambda item: sort_key(item[0])


def _method_rank(method: str) -> int:
    return BASELINES.index(method) if method in BASELINES else len(BASELINES)


def _build_cell(cell_rows: Sequence[SearchRow], baseline_rows: Sequence[SearchRow]) -> SearchCell:
    first_row, n = cell_rows[0], len(cell_rows)
    errors = sum(row.success is None for row in cell_rows)
    wins = sum(bool(row.success) for row in cell_rows)
    known_passes = [row.passed for row in cell_rows if row.passed is not None]
    computed = [row.computed for row in cell_rows if row.computed is not None]
    return SearchCell(
        first_row.world,
        first_row.method,
        first_row.budget,
        first_row.budget_unit,
        n,
        errors,
        None if errors else wilson_interval(wins, n),
        passed=sum(known_passes) / n if len(known_passes) == n else None,
        samples=sum(row.samples for row in cell_rows) / n,
        generated=sum(row.generated for row in cell_rows) / n,
        computed=sum(computed) / n if len(computed) == n else None,
        expansions=sum(row.expansions for row in cell_rows) / n,
        cpu_s=sum(row.cpu_s for row in cell_rows) / n,
        limited=sum(row.ended_by != "done" for row in cell_rows) / n,
        unanswered=sum(not row.samples and not row.error for row in cell_rows),
        dropped=sum(row.dropped for row in cell_rows),
        against=None if first_row.method in BASELINES else _paired_difference(cell_rows, baseline_rows),
    )


def _paired_difference(cell_rows: Sequence[SearchRow], baseline_rows: Sequence[SearchRow]) -> Interval | None:
    """Returns the difference on the same tasks, resampled by kind; None where the tasks differ or are not all
    scored.
    """
    baseline_by_task = {row.task: row for row in baseline_rows}
    pairs = [(row, baseline_by_task[row.task]) for row in cell_rows if row.task in baseline_by_task]
    scored = all(row.success is not None for pair in pairs for row in pair)
    if not pairs or len(pairs) != len(cell_rows) or len(pairs) != len(baseline_rows) or not scored:
        return None
    method_wins, baseline_wins = ([float(bool(row.success)) for row in side] for side in zip(*pairs, strict=True))
    kinds = [row.kind for row, _ in pairs]
    return paired_interval(method_wins, baseline_wins, levels=[kinds], rng=np.random.default_rng(0)).clip(-1.0, 1.0)


def _bool_or_none(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
