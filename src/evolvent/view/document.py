"""The report of a run: one HTML file that needs nothing else, no script, no network, no other file.

Everything in a run directory is untrusted. Each value passes through `escape` on its way into the page: `templating`
makes hidden characters visible in whatever a template prints, autoescaping does the rest, and no address becomes a link
or a picture. The content policy in the page forbids every request.

Searches on the page: accuracy against tokens and CPU seconds, method by method, and the trees.

What a search spent is drawn as the mean of a task, so a point stands at what was used, not at what was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import isnan, log
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from evolvent.files import write_atomic
from evolvent.view import charts, sections
from evolvent.view.charts import ArmStyle, Frame, Line, Reference, line_chart
from evolvent.view.credit import build_credit_scale, build_pictures, render_credit_tokens
from evolvent.view.data import ReportData, Token, read_run
from evolvent.view.escape import clip, mark_hidden
from evolvent.view.outcome import build_headline, build_panels, compare_kinds, main_arm, select_pairs
from evolvent.view.reinforcement import summarize_training
from evolvent.view.searches import BASELINES, SearchCell, SearchTreeFile, aggregate_cells
from evolvent.view.searchtree import draw_tree
from evolvent.view.sections import Figure
from evolvent.view.templating import build_environment, render_page
from evolvent.view.training import build_training_report
from evolvent.view.values import as_mapping

__all__ = ["DrawnTree", "SearchReport", "build_search_report", "page", "report", "report_environment", "report_values"]


_BASELINE_STYLES: Mapping[str, ArmStyle] = {"greedy": "base", "samples": "control", "best_of_n": "up"}
_SEARCH_STYLES: tuple[ArmStyle, ...] = ("evolve", "down", "plus", "cross", "expert", "other")
_AXES: tuple[tuple[str, str, Callable[[SearchCell], float | None]], ...] = (
    ("generated", "generated tokens of a task", lambda cell: cell.generated),
    ("computed", "computed tokens of a task", lambda cell: cell.computed),
    ("cpu", "CPU seconds of a task", lambda cell: cell.cpu_s),
)
_BUDGET_LABELS = {"generated": "generated tokens", "computed": "computed tokens"}
_MAX_NODES = 4500  # of all trees that are drawn: some 220 bytes each


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """A tree and its drawing; no drawing where the previous trees fill the page.

    Attributes:
        begins, ends: whether a list of several trees of one problem begins before it, and ends after it.
    """

    file: SearchTreeFile
    drawing: Markup | None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class SearchReport:
    """Contents of the page's search section.

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


def build_search_report(data: ReportData) -> SearchReport | None:
    """Returns the contents of the search section; None for runs without searches."""
    if not data.searches:
        return None
    search_cells = aggregate_cells(data.searches)
    styles = _method_styles(search_cells)
    worlds = list(dict.fromkeys(cell.world for cell in search_cells))
    known_computed = [row.computed for row in data.searches if row.computed is not None]
    reasons: dict[tuple[str, str], int] = {}
    for row in {row.key: row for row in data.searches}.values():
        if row.success is None:
            world_and_reason = (row.world, row.error or "no reason is known")
            reasons[world_and_reason] = reasons.get(world_and_reason, 0) + 1
    return SearchReport(
        sentence=_build_sentence(search_cells),
        rows=search_cells,
        legend=list(styles.items()),
        worlds=[
            (world, _draw_figures([cell for cell in search_cells if cell.world == world], styles)) for world in worlds
        ],
        trees=_draw_trees(data.trees),
        withheld=[(*world_and_reason, count) for world_and_reason, count in reasons.items()],
        tasks=len({(row.world, row.task) for row in data.searches}),
        searches=len({row.key for row in data.searches}),
        generated=sum(row.generated for row in data.searches),
        computed=sum(known_computed) if len(known_computed) == len(data.searches) else None,
        cpu_s=sum(row.cpu_s for row in data.searches),
        dropped=sum(cell.dropped for cell in search_cells),
        told=_uses_world_verdicts(data.info.config),
        of=[
            _BUDGET_LABELS.get(unit, unit)
            for unit in dict.fromkeys(row.budget_unit for row in data.searches if row.budget_unit)
        ],
    )


def _uses_world_verdicts(config: Mapping[str, object]) -> bool:
    search = as_mapping(config.get("search"))
    return search.get("value") in ("rollouts", "reward") or search.get("terminal") == "reward"


def _method_styles(search_cells: Sequence[SearchCell]) -> dict[str, ArmStyle]:
    methods = list(dict.fromkeys(cell.method for cell in search_cells))
    search_methods = [method for method in methods if method not in BASELINES]
    search_styles = {method: _SEARCH_STYLES[index % len(_SEARCH_STYLES)] for index, method in enumerate(search_methods)}
    return {method: _BASELINE_STYLES.get(method) or search_styles[method] for method in methods}


def _build_sentence(search_cells: Sequence[SearchCell]) -> str:
    """Compares the best search of each world with greedy decoding and with best of n within the same budget."""
    sentences = []
    for world in dict.fromkeys(cell.world for cell in search_cells):
        scored_cells = [
            (cell, cell.rate.mean) for cell in search_cells if cell.world == world and cell.rate is not None
        ]
        searches = [(cell, mean) for cell, mean in scored_cells if cell.method not in BASELINES]
        if not searches:
            continue
        best_cell, mean = max(searches, key=lambda pair: pair[1])
        budget = "" if best_cell.budget is None else f" at {best_cell.budget:,}"
        parts = [f"In {world} {best_cell.method}{budget} is right in {_format_percent(mean)} of the tasks"]
        parts += [
            f"greedy decoding in {_format_percent(rate)}" for cell, rate in scored_cells if cell.method == "greedy"
        ]
        if best_cell.against is not None:
            interval_text = f"{_format_points(best_cell.against.low)} to {_format_points(best_cell.against.high)}"
            parts.append(
                f"{_format_points(best_cell.against.mean)} points ({interval_text}) against best of n at the "
                f"same budget"
            )
        sentences.append(", ".join(parts) + ".")
    return " ".join(sentences) or "No search has come to an end yet."


def _draw_figures(world_cells: Sequence[SearchCell], styles: Mapping[str, ArmStyle]) -> list[Figure]:
    """Draws accuracy against each kind of cost, one chart a kind; greedy decoding is also a level."""
    figures = []
    references = [
        Reference("greedy", cell.rate.mean) for cell in world_cells if cell.method == "greedy" and cell.rate is not None
    ]
    for name, label, cost in _AXES:
        lines = [
            _build_line(method, style, [cell for cell in world_cells if cell.method == method], cost)
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
        figures.append(Figure(title, line_chart(frame, lines, references)))
    return figures


def _build_line(
    method: str, style: ArmStyle, method_cells: Sequence[SearchCell], cost: Callable[[SearchCell], float | None]
) -> Line:
    rates_by_cost = [(x, cell.rate) for cell in method_cells if (x := cost(cell)) and cell.rate is not None]
    points = [(x, rate.mean) for x, rate in rates_by_cost]
    return Line(method, style, points, [(x, rate.low, rate.high) for x, rate in rates_by_cost])


def _draw_trees(trees: Sequence[SearchTreeFile]) -> list[DrawnTree]:
    """Draws the trees of a task in sequence, searches before baselines; as many as the page has room for."""
    drawn_trees, nodes = [], 0
    ordered = sorted(trees, key=lambda file: (*_problem_key(file), file.number))
    for index, file in enumerate(ordered):
        has_room = nodes + len(file.tree) <= _MAX_NODES
        nodes += len(file.tree) if has_room else 0
        previous, following = ordered[index - 1 : index] if index else [], ordered[index + 1 : index + 2]
        begins, ends = (
            file.forest > 1 and _problem_key(file) not in map(_problem_key, neighbor)
            for neighbor in (previous, following)
        )
        drawn_trees.append(DrawnTree(file, draw_tree(file.tree) if has_room else None, begins, ends))
    return drawn_trees


def _problem_key(file: SearchTreeFile) -> tuple[str, str, bool, str, int]:
    """Returns the key that the trees of one search of a problem share, in the order of the page."""
    return file.world, file.task, file.method in BASELINES, file.method, file.budget or 0


_SHADE_PROBABILITIES = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a token changes


def report(run: Path | str, output_path: Path | str | None = None) -> None:
    """Writes the report of the run directory `run` to the file `output_path`, whole or not at all.

    The run may still be going on: what is there is shown.

    Args:
        run: directory of the run.
        output_path: file to write; None: `report.html` in the directory.
    Raises:
        ConfigError: the directory is missing. StoreError: a file cannot be read or written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> report(folder, folder / "report.html")
    >>> (folder / "report.html").read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    folder = Path(run)
    write_atomic(Path(output_path or folder / "report.html"), page(read_run(folder)))


def page(data: ReportData) -> str:
    """Renders the report as one HTML document."""
    return render_page(report_environment(), "report.html", report_values(data))


def report_values(data: ReportData) -> dict[str, object]:
    """Returns the template variables of `report_body.html`."""
    evaluated_panels, training, rl_training = build_panels(data), build_training_report(data), summarize_training(data)
    return {
        "data": data,
        "info": data.info,
        "head": build_headline(data, evaluated_panels),
        "main": main_arm(data),
        "panels": evaluated_panels,
        "strips": sections.draw_strips(data, evaluated_panels),
        "practice": rl_training,
        "worlds": sections.draw_multiples(data, evaluated_panels, round_label="iteration" if rl_training else "round"),
        "pictures": build_pictures([row for row in data.credit if rl_training and row.stage == rl_training.stage]),
        "curves": [] if training else sections.draw_curves(data),
        "speeds": [] if training else sections.draw_speeds(data),
        "cost": sections.summarize_cost(data),
        "training": training,
        "search": None if training or rl_training else build_search_report(data),
        "kinds": [(panel, compare_kinds(panel)) for panel in evaluated_panels],
        "pairs": select_pairs(data),
        "floors": sections.list_floors(data),
        "config": sections.flatten_settings(data.info.config),
        "versions": sections.flatten_settings(data.info.versions),
        "errors": [row for row in data.results if row.errors],
    }


# ---------------------------------------------------------------- templates


@cache
def report_environment() -> Environment:
    """Builds the template environment with its filters; printed values are text unless they are markup."""
    return build_environment(
        {
            "arm": sections.arm_style,
            "count": _format_count,
            "credit_scale": build_credit_scale,
            "credit_tokens": render_credit_tokens,
            "marked": mark_hidden,
            "marker": charts.legend_marker,
            "moment": _format_time,
            "percent": _format_percent,
            "points": _format_points,
            "range": _format_range,
            "rate_of_work": _format_flops,
            "seconds": _format_seconds,
            "short": _clip_name,
            "signed": _format_signed,
            "size": _format_bytes,
            "token_class": _token_class,
            "value": _format_value,
        }
    )


def _clip_name(text: str) -> str:
    """Returns a name shortened for the head of the page."""
    return clip(text, 80)


def _format_time(text: str) -> str:
    """Formats a time stamp; other text stays unchanged."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M %Z")
    except ValueError:
        return text or "–"


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _format_points(value: float | None) -> str:
    if value is None or isnan(value):
        return "–"
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def _format_range(low: float | None, high: float | None) -> str:
    return "no interval" if low is None or high is None or isnan(low) else f"{100 * low:.1f} to {100 * high:.1f}"


def _format_count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _format_value(value: float | None) -> str:
    """Formats a number of any size in four digits."""
    if value is None:
        return "–"
    return (f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}").replace("-", "−")


def _format_signed(value: float) -> str:
    """Formats a number with its sign, in three digits."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def _format_bytes(value: float | None) -> str:
    """Formats bytes in the largest fitting unit."""
    if value is None:
        return "–"
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 2**power:
            return f"{value / 2**power:.3g} {unit}" if value < 1000 * 2**power else f"{value / 2**power:,.0f} {unit}"
    return f"{value:.0f} B"


def _format_flops(value: float) -> str:
    """Formats operations per second."""
    return f"{value / 1e12:.3g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.3g} GFLOP/s"


def _format_seconds(value: float | None) -> str:
    if value is None:
        return "–"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{value:.1f} s"


def _token_class(token: Token) -> str:
    if not token.sampled or token.logprob is None:
        return "read"
    return f"unsure-{sum(token.logprob < log(chance) for chance in _SHADE_PROBABILITIES)}"
