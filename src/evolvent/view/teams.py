"""The page of a team's training: what it reached, how learning went, and episodes as strips of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from evolvent.view.charts import Frame, Line, line_chart
from evolvent.view.team_strips import COLOURS, strip
from evolvent.view.templating import environment_of, written
from evolvent.worlds.teams.base import Scene

__all__ = ["team_page"]

Data = Mapping[str, Any]
_POINTS = 120  # of a curve; neighbours are averaged where there are more


def team_page(data: Data, films: Sequence[tuple[str, Sequence[Scene]]] = ()) -> str:
    """One HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`; `facts` (name -> text); `rows` of `rollout.teams.outcome_row`; `history`, rows with `decisions`
            and, where episodes ended, `episode_return`, `episode_length` and `success`.
        films: (title, scenes) of episodes, as `rollout.teams.film` gives scenes.
    """
    strips = [(title, Markup(strip(scenes, title=title))) for title, scenes in films]
    values = {"data": data, "curves": _curves(data["history"]), "strips": strips, "signs": _signs(films)}
    return written(_environment(), "teams.html", values)


@cache
def _environment() -> Environment:
    return environment_of({"value": _value, "ends": _ends, "optimum": _optimum}, longest=400)


def _signs(films: Sequence[tuple[str, Sequence[Scene]]]) -> list[tuple[str, str, str]]:
    """(sign, colour, what it stands for) of everything that is drawn."""
    names = {
        "agent": "an agent",
        "wall": "a wall",
        "danger": "fire",
        "prey": "the prey",
        "goal": "a victim, a landmark",
    }
    drawn = {(mark.role, mark.shape) for _, scenes in films for scene in scenes for mark in scene.marks}
    return [("●" if shape == "circle" else "■", COLOURS[role], names[role]) for role, shape in sorted(drawn)]


def _curves(history: Sequence[Mapping[str, float]]) -> list[tuple[str, Markup]]:
    """(caption, picture) of what was measured while learning, over decisions."""
    found = []
    for name, caption, percent in (
        ("episode_return", "Return of an episode", False),
        ("success", "Success, %", True),
        ("episode_length", "Length of an episode, steps", False),
    ):
        points = [(row["decisions"], row[name]) for row in history if name in row]
        if len(points) > 1:
            frame = Frame(caption, "decisions", percent=percent, y_range=(0.0, 1.0) if percent else None, width=320)
            found.append((caption, line_chart(frame, [Line(caption, "evolve", _thinned(points), markers=False)])))
    return found


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `_POINTS` points, each the mean of as many neighbours."""
    each = -(-len(points) // _POINTS)
    groups = [points[at : at + each] for at in range(0, len(points), each)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _value(triple: Sequence[float | None] | None, *, percent: bool = False) -> str:
    if triple is None or triple[0] is None:
        return "–"
    return f"{100 * triple[0]:.1f}" if percent else f"{triple[0]:.3f}"


def _ends(triple: Sequence[float | None] | None, *, percent: bool = False) -> str:
    if triple is None or triple[1] is None or triple[2] is None:
        return ""
    return f"{100 * triple[1]:.1f} to {100 * triple[2]:.1f}" if percent else f"{triple[1]:.3f} to {triple[2]:.3f}"


def _optimum(known: Sequence[float] | None) -> str:
    """The greatest return: exactly, or at most."""
    return "not known" if known is None else f"{'' if known[1] else '≤ '}{known[0]:.3f}"
