"""Searches on the page: what accuracy costs in tokens and CPU seconds, method by method, and the trees.

What a search spent is drawn as the mean of a task, so a point stands at what was used, not at what was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evolvent.view.charts import ArmStyle, Frame, Line, Reference, line_chart
from evolvent.view.data import ReportData
from evolvent.view.searches import BASELINES, SearchCell, SearchTreeFile, cells
from evolvent.view.searchtree import draw_tree
from evolvent.view.sections import Figure
from evolvent.view.values import as_mapping

__all__ = ["DrawnTree", "Searching", "searched"]

_STYLES: Mapping[str, ArmStyle] = {"greedy": "base", "samples": "control", "best_of_n": "up"}
_SEARCHES: tuple[ArmStyle, ...] = ("evolve", "down", "plus", "cross", "expert", "other")
_AXES: tuple[tuple[str, str, Callable[[SearchCell], float | None]], ...] = (
    ("generated", "generated tokens of a task", lambda cell: cell.generated),
    ("computed", "computed tokens of a task", lambda cell: cell.computed),
    ("cpu", "CPU seconds of a task", lambda cell: cell.cpu_s),
)
_LIMITS = {"generated": "generated tokens", "computed": "computed tokens"}
_NODES = 4500  # of all trees that are drawn: some 220 bytes each


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """A tree and its drawing; no drawing where those before it fill the page.

    Attributes:
        begins, ends: whether a list of several trees of one problem begins before it, and ends after it.
    """

    file: SearchTreeFile
    drawing: Markup | None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Searching:
    """What the page shows of searches.

    Attributes:
        sentence: what they came to. rows: the table. legend: methods with their styles.
        worlds: world -> small multiples. trees: by task. withheld: searches without a score, by world and reason.
        of: what budgets limit. dropped: children that could not be used.
        told: whether values came from the world's own verdicts.
    """

    sentence: str
    rows: Sequence[SearchCell]
    legend: Sequence[tuple[str, ArmStyle]]
    worlds: Sequence[tuple[str, Sequence[Figure]]]
    trees: Sequence[DrawnTree]
    withheld: Sequence[tuple[str, str, int]]
    tasks: int
    searches: int
    generated: int
    computed: int | None
    cpu_s: float
    dropped: int
    of: Sequence[str]
    told: bool


def searched(data: ReportData) -> Searching | None:
    """What is shown of a run that searched; None where none did."""
    if not data.searches:
        return None
    found = cells(data.searches)
    styles = _styles(found)
    worlds = list(dict.fromkeys(cell.world for cell in found))
    known = [row.computed for row in data.searches if row.computed is not None]
    reasons: dict[tuple[str, str], int] = {}
    for row in {row.key: row for row in data.searches}.values():
        if row.success is None:
            where = (row.world, row.error or "no reason is known")
            reasons[where] = reasons.get(where, 0) + 1
    return Searching(
        sentence=_sentence(found),
        rows=found,
        legend=list(styles.items()),
        worlds=[(world, _figures([cell for cell in found if cell.world == world], styles)) for world in worlds],
        trees=_drawn(data.trees),
        withheld=[(*where, count) for where, count in reasons.items()],
        tasks=len({(row.world, row.task) for row in data.searches}),
        searches=len({row.key for row in data.searches}),
        generated=sum(row.generated for row in data.searches),
        computed=sum(known) if len(known) == len(data.searches) else None,
        cpu_s=sum(row.cpu_s for row in data.searches),
        dropped=sum(cell.dropped for cell in found),
        told=_told(data.info.config),
        of=[_LIMITS.get(of, of) for of in dict.fromkeys(row.of for row in data.searches if row.of)],
    )


def _told(config: Mapping[str, object]) -> bool:
    search = as_mapping(config.get("search"))
    return search.get("value") in ("rollouts", "reward") or search.get("terminal") == "reward"


def _styles(found: Sequence[SearchCell]) -> dict[str, ArmStyle]:
    methods = list(dict.fromkeys(cell.method for cell in found))
    others = [method for method in methods if method not in BASELINES]
    own = {method: _SEARCHES[place % len(_SEARCHES)] for place, method in enumerate(others)}
    return {method: _STYLES.get(method) or own[method] for method in methods}


def _sentence(found: Sequence[SearchCell]) -> str:
    """The best search of each world beside greedy decoding and beside best of n within the same budget."""
    said = []
    for world in dict.fromkeys(cell.world for cell in found):
        own = [(cell, cell.rate.mean) for cell in found if cell.world == world and cell.rate is not None]
        searches = [(cell, mean) for cell, mean in own if cell.method not in BASELINES]
        if not searches:
            continue
        best, mean = max(searches, key=lambda pair: pair[1])
        budget = "" if best.budget is None else f" at {best.budget:,}"
        parts = [f"In {world} {best.method}{budget} is right in {_percent(mean)} of the tasks"]
        parts += [f"greedy decoding in {_percent(level)}" for cell, level in own if cell.method == "greedy"]
        if best.against is not None:
            ends = f"{_points(best.against.low)} to {_points(best.against.high)}"
            parts.append(f"{_points(best.against.mean)} points ({ends}) against best of n at the same budget")
        said.append(", ".join(parts) + ".")
    return " ".join(said) or "No search has come to an end yet."


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _points(value: float) -> str:
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _figures(own: Sequence[SearchCell], styles: Mapping[str, ArmStyle]) -> list[Figure]:
    """Accuracy against what it cost, one chart for each thing that it costs; greedy decoding is also a level."""
    figures = []
    level = [Reference("greedy", cell.rate.mean) for cell in own if cell.method == "greedy" and cell.rate is not None]
    for name, label, cost in _AXES:
        lines = [
            _line(method, style, [cell for cell in own if cell.method == method], cost)
            for method, style in styles.items()
        ]
        if not any(line.points for line in lines):
            continue
        frame = Frame(
            f"Accuracy by {label}",
            label,
            "right, %",
            y_range=(0.0, 1.0),
            percent=True,
            width=330,
            height=220,
            log_x=True,
        )
        title = {"generated": "Generated tokens", "computed": "Computed tokens", "cpu": "CPU seconds"}[name]
        figures.append(Figure(title, line_chart(frame, lines, level)))
    return figures


def _line(method: str, style: ArmStyle, own: Sequence[SearchCell], cost: Callable[[SearchCell], float | None]) -> Line:
    placed = [(x, cell.rate) for cell in own if (x := cost(cell)) and cell.rate is not None]
    points = [(x, rate.mean) for x, rate in placed]
    return Line(method, style, points, [(x, rate.low, rate.high) for x, rate in placed])


def _drawn(trees: Sequence[SearchTreeFile]) -> list[DrawnTree]:
    """The trees of a task one after another, searches before baselines; as many are drawn as the page has room for."""
    shown, nodes = [], 0
    ordered = sorted(trees, key=lambda file: (*_problem(file), file.number))
    for at, file in enumerate(ordered):
        fits = nodes + len(file.tree) <= _NODES
        nodes += len(file.tree) if fits else 0
        before, after = ordered[at - 1 : at] if at else [], ordered[at + 1 : at + 2]
        begins, ends = (file.forest > 1 and _problem(file) not in map(_problem, near) for near in (before, after))
        shown.append(DrawnTree(file, draw_tree(file.tree) if fits else None, begins, ends))
    return shown


def _problem(file: SearchTreeFile) -> tuple[str, str, bool, str, int]:
    """What the trees of one search of a problem have in common, in the order of the page."""
    return file.world, file.task, file.method in BASELINES, file.method, file.budget or 0
