"""Page of a source search: success of policies and planners, learning curves, and episodes to look at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment
from markupsafe import Markup

from evolvent.belief.traces import Trace
from evolvent.trajectory import JsonObject
from evolvent.view.charts import ArmStyle, Frame, Line, line_chart
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, show_hidden
from evolvent.view.plume import belief_film, belief_map, select_looks
from evolvent.view.templating import build_environment, render_page

__all__ = ["build_seeking_rows", "seeking_page"]

COLUMNS = ("", "success, %", "95 %", "false stops, %", "steps", "metres", "decision, ms")


def build_seeking_rows(rows: Sequence[JsonObject]) -> list[tuple[object, ...]]:
    """Returns the rows of a terminal table, in the order of `COLUMNS`."""
    return [
        (
            show_hidden(clip(str(row["name"]), 40)),
            _format_percent(row["success"], 0),
            _format_interval(row["success"]),
            _format_percent(row["false_cessation"], 0),
            _format_number(row["steps"]),
            _format_number(row["distance"]),
            _format_number(row["decision_ms"], 4),
        )
        for row in rows
    ]


def seeking_page(data: JsonObject, traces: Sequence[Trace] = ()) -> str:
    """Renders one HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`, `facts` (name -> text), `learned` (names of learned policies), `rows` (of `summary_row`),
            `curve` ([[step, share of right stops, share of stops, mean length], ...], may be empty).
        traces: episodes to show, each as a film and as four maps.
    """
    films = [
        {
            "trace": trace,
            "film": belief_film(trace, number),
            "ended": _describe_end(trace),
            "maps": [
                (look_index, trace.looks[look_index].spread, belief_map(trace, look_index))
                for look_index in select_looks(trace)
            ],
            "spread": _draw_spread(trace),
        }
        for number, trace in enumerate(traces)
    ]
    values = {"data": data, "picture": _draw_picture(data), "curves": _draw_curves(data["curve"]), "films": films}
    return render_page(_build_environment(), "seeking.html", values)


@cache
def _build_environment() -> Environment:
    return build_environment(
        {"percent": _format_percent, "ends": _format_interval, "number": _format_number, "range": _format_range},
        max_chars=400,
    )


def _draw_picture(data: JsonObject) -> Markup:
    rows = [
        DotRow(
            str(row["name"]), _policy_style(str(row["name"]), data["learned"]), *_unpack_interval(row["success"]), {}
        )
        for row in data["rows"]
    ]
    return dot_plot(rows, label="Right stops of each policy with 95 % intervals")


def _policy_style(name: str, learned: Sequence[str]) -> ArmStyle:
    if name in learned:
        return "control" if name.endswith("without") else "evolve"
    return "base" if name == "random" else "expert"


def _draw_curves(curve: Sequence[Sequence[float]]) -> list[Markup]:
    """Draws outcomes and lengths of the training episodes, over the training steps."""
    if not curve:
        return []
    right_stops = Line("right stops", "evolve", [(row[0], row[1]) for row in curve], markers=False)
    all_stops = Line("all stops", "control", [(row[0], row[2]) for row in curve], markers=False)
    length = Line("mean length", "other", [(row[0], row[3]) for row in curve], markers=False)
    return [
        line_chart(
            Frame(
                "Episodes that ended by a stop",
                "steps of training",
                percent=True,
                y_range=(0.0, 1.0),
                width=460,
                height=220,
            ),
            [right_stops, all_stops],
        ),
        line_chart(
            Frame("Length of an episode", "steps of training", y_label="steps", width=460, height=220), [length]
        ),
    ]


def _draw_spread(trace: Trace) -> Markup:
    points = [(float(index), look.spread) for index, look in enumerate(trace.looks)]
    line = Line("spread", "evolve", points, markers=False)
    return line_chart(Frame("Spread of the belief", "steps", y_label="metres", width=320, height=190), [line])


def _describe_end(trace: Trace) -> str:
    estimate = "with the right estimate" if trace.right else "with a wrong estimate"
    outcome = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}.get(trace.ended_by, "ended")
    return f"{outcome} after {len(trace.looks) - 1} steps, {estimate}"


def _unpack_interval(triple: Sequence[float | None] | None) -> tuple[float | None, float | None, float | None]:
    if triple is None:
        return None, None, None
    mean, low, high = triple
    return mean, low, high


def _format_percent(triple: Sequence[float | None] | None, position: int = 0) -> str:
    value = None if triple is None else triple[position]
    return "–" if value is None else f"{100 * value:.1f}"


def _format_interval(triple: Sequence[float | None] | None) -> str:
    low, high = _format_percent(triple, 1), _format_percent(triple, 2)
    return "" if low == "–" else f"{low} to {high}"


def _format_number(triple: Sequence[float | None] | None, decimals: int = 1) -> str:
    value = None if triple is None else triple[0]
    return "–" if value is None else f"{value:.{decimals}f}"


def _format_range(triple: Sequence[float | None] | None, decimals: int = 1) -> str:
    if triple is None or triple[1] is None or triple[2] is None:
        return ""
    return f"{triple[1]:.{decimals}f} to {triple[2]:.{decimals}f}"
