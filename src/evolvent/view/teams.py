"""Page of a team's training: results, learning curves, and episodes as strips of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from evolvent.view.charts import Frame, Line, line_chart
from evolvent.view.team_strips import ROLE_COLORS, draw_strip
from evolvent.view.templating import build_environment, render_page
from evolvent.worlds.teams.base import Scene

__all__ = ["team_page"]

JsonObject = Mapping[str, Any]
_MAX_POINTS = 120  # of a curve; neighbours are averaged where there are more


def team_page(data: JsonObject, films: Sequence[tuple[str, Sequence[Scene]]] = ()) -> str:
    """Renders one HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`; `facts` (name -> text); `rows` of `rollout.teams.outcome_row`; `history`, rows with `decisions`
            and, where episodes ended, `episode_return`, `episode_length` and `success`.
        films: (title, scenes) of episodes, as `rollout.teams.film` gives scenes.
    """
    strips = [(title, Markup(draw_strip(scenes, title=title))) for title, scenes in films]
    values = {"data": data, "curves": _draw_curves(data["history"]), "strips": strips, "signs": _list_signs(films)}
    return render_page(_build_environment(), "teams.html", values)


@cache
def _build_environment() -> Environment:
    return build_environment(
        {"value": _format_value, "ends": _format_interval, "optimum": _format_optimum}, max_chars=400
    )


def _list_signs(films: Sequence[tuple[str, Sequence[Scene]]]) -> list[tuple[str, str, str]]:
    """Returns (sign, color, meaning) of everything that is drawn."""
    names = {
        "agent": "an agent",
        "wall": "a wall",
        "danger": "fire",
        "prey": "the prey",
        "goal": "a victim, a landmark",
    }
    roles_and_shapes = {(mark.role, mark.shape) for _, scenes in films for scene in scenes for mark in scene.marks}
    return [
        ("●" if shape == "circle" else "■", ROLE_COLORS[role], names[role]) for role, shape in sorted(roles_and_shapes)
    ]


def _draw_curves(history: Sequence[Mapping[str, float]]) -> list[tuple[str, Markup]]:
    """Draws (caption, picture) of the metrics of learning, over decisions."""
    captioned_curves = []
    for name, caption, percent in (
        ("episode_return", "Return of an episode", False),
        ("success", "Success, %", True),
        ("episode_length", "Length of an episode, steps", False),
    ):
        points = [(row["decisions"], row[name]) for row in history if name in row]
        if len(points) > 1:
            frame = Frame(caption, "decisions", percent=percent, y_range=(0.0, 1.0) if percent else None, width=320)
            captioned_curves.append(
                (caption, line_chart(frame, [Line(caption, "evolve", _thin_points(points), markers=False)]))
            )
    return captioned_curves


def _thin_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns at most `_MAX_POINTS` points, each the mean of as many neighbors."""
    group_size = -(-len(points) // _MAX_POINTS)
    groups = [points[start : start + group_size] for start in range(0, len(points), group_size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _format_value(triple: Sequence[float | None] | None, *, percent: bool = False) -> str:
    if triple is None or triple[0] is None:
        return "–"
    return f"{100 * triple[0]:.1f}" if percent else f"{triple[0]:.3f}"


def _format_interval(triple: Sequence[float | None] | None, *, percent: bool = False) -> str:
    if triple is None or triple[1] is None or triple[2] is None:
        return ""
    return f"{100 * triple[1]:.1f} to {100 * triple[2]:.1f}" if percent else f"{triple[1]:.3f} to {triple[2]:.3f}"


def _format_optimum(optimum: Sequence[float] | None) -> str:
    """Formats the greatest return: exactly, or as an upper bound."""
    return "not known" if optimum is None else f"{'' if optimum[1] else '≤ '}{optimum[0]:.3f}"
