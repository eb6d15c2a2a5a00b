"""The page of a search for sources: what policies and planners reach, how learning went, and episodes to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from evolvent.belief.traces import Trace
from evolvent.view.charts import ArmStyle, Frame, Line, line_chart
from evolvent.view.dots import DotRow, dot_plot
from evolvent.view.escape import clip, plain
from evolvent.view.plume import belief_film, belief_map, moments
from evolvent.view.templating import environment_of, written

__all__ = ["seeking_page", "seeking_rows"]

Data = Mapping[str, Any]
COLUMNS = ("", "success, %", "95 %", "false stops, %", "steps", "metres", "decision, ms")


def seeking_rows(rows: Sequence[Data]) -> list[tuple[object, ...]]:
    """What a terminal shows, in the order of `COLUMNS`."""
    return [
        (
            plain(clip(str(row["name"]), 40)),
            _percent(row["success"], 0),
            _ends(row["success"]),
            _percent(row["false_cessation"], 0),
            _number(row["steps"]),
            _number(row["distance"]),
            _number(row["decision_ms"], 4),
        )
        for row in rows
    ]


def seeking_page(data: Data, traces: Sequence[Trace] = ()) -> str:
    """One HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`, `facts` (name -> text), `learned` (names of learned policies), `rows` (of `summary_row`),
            `curve` ([[step, share of right stops, share of stops, mean length], ...], may be empty).
        traces: episodes to show, each as a film and as four maps.
    """
    films = [
        {
            "trace": one,
            "film": belief_film(one, number),
            "ended": _how(one),
            "maps": [(at, one.looks[at].spread, belief_map(one, at)) for at in moments(one)],
            "spread": _spread(one),
        }
        for number, one in enumerate(traces)
    ]
    values = {"data": data, "picture": _picture(data), "curves": _curves(data["curve"]), "films": films}
    return written(_environment(), "seeking.html", values)


@cache
def _environment() -> Environment:
    return environment_of({"percent": _percent, "ends": _ends, "number": _number, "range": _range}, longest=400)


def _picture(data: Data) -> Markup:
    rows = [
        DotRow(str(row["name"]), _style(str(row["name"]), data["learned"]), *_three(row["success"]), {})
        for row in data["rows"]
    ]
    return dot_plot(rows, label="Right stops of each policy with 95 % intervals")


def _style(name: str, learned: Sequence[str]) -> ArmStyle:
    if name in learned:
        return "control" if name.endswith("without") else "evolve"
    return "base" if name == "random" else "expert"


def _curves(curve: Sequence[Sequence[float]]) -> list[Markup]:
    """Outcomes and lengths of the episodes of training, over its steps."""
    if not curve:
        return []
    right = Line("right stops", "evolve", [(row[0], row[1]) for row in curve], markers=False)
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
            [right, all_stops],
        ),
        line_chart(
            Frame("Length of an episode", "steps of training", y_label="steps", width=460, height=220), [length]
        ),
    ]


def _spread(one: Trace) -> Markup:
    points = [(float(at), look.spread) for at, look in enumerate(one.looks)]
    line = Line("spread", "evolve", points, markers=False)
    return line_chart(Frame("Spread of the belief", "steps", y_label="metres", width=320, height=190), [line])


def _how(one: Trace) -> str:
    estimate = "with the right estimate" if one.right else "with a wrong estimate"
    ended = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}.get(one.ended_by, "ended")
    return f"{ended} after {len(one.looks) - 1} steps, {estimate}"


def _three(triple: Sequence[float | None] | None) -> tuple[float | None, float | None, float | None]:
    if triple is None:
        return None, None, None
    mean, low, high = triple
    return mean, low, high


def _percent(triple: Sequence[float | None] | None, at: int = 0) -> str:
    value = None if triple is None else triple[at]
    return "–" if value is None else f"{100 * value:.1f}"


def _ends(triple: Sequence[float | None] | None) -> str:
    low, high = _percent(triple, 1), _percent(triple, 2)
    return "" if low == "–" else f"{low} to {high}"


def _number(triple: Sequence[float | None] | None, places: int = 1) -> str:
    value = None if triple is None else triple[0]
    return "–" if value is None else f"{value:.{places}f}"


def _range(triple: Sequence[float | None] | None, places: int = 1) -> str:
    if triple is None or triple[1] is None or triple[2] is None:
        return ""
    return f"{triple[1]:.{places}f} to {triple[2]:.{places}f}"
