"""Page of a team's training: results, learning curves, and episodes as strips of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from jinja2 import Environment
from markupsafe import Markup, escape

from evolvent.errors import ConfigError
from evolvent.trajectory import JsonObject
from evolvent.view.charts import Frame, Line, line_chart
from evolvent.view.escape import show_hidden
from evolvent.view.templating import build_environment, render_page
from evolvent.worlds.teams.base import Mark, Scene

__all__ = ["ROLE_COLORS", "draw_strip", "team_page"]


_SIDE, _GAP, _LINE = 120.0, 8.0, 16.0  # of a frame, between frames, of the text below, in px
ROLE_COLORS = {
    "wall": "#5b6470",
    "danger": "#e8743b",
    "goal": "#2f9e63",
    "agent": "#2f6fde",
    "prey": "#b5179e",
    "enemy": "#b5179e",
}  # by role


def draw_strip(scenes: Sequence[Scene], *, num_frames: int = 8, title: str = "an episode") -> str:
    """Draws moments of an episode side by side, the first and the last among them, each with its step below.

    Colors are not the only sign: agents are circles, walls and goals squares, and the title describes the picture.

    Args:
        scenes: before each decision, as `rollout.teams.record_scenes` gives them.
        num_frames: number of moments, fewer where there are fewer scenes.
        title: read out by screen readers; any text.
    Raises:
        ConfigError: no scenes, or less than one frame.
    """
    if not scenes or num_frames < 1:
        raise ConfigError(
            "number of scenes or frames out of range",
            value=(len(scenes), num_frames),
            expected="1 scene and 1 frame or more",
        )
    scene_indices = sorted(
        set(np.linspace(0, len(scenes) - 1, min(num_frames, len(scenes))).round().astype(int).tolist())
    )
    width = len(scene_indices) * (_SIDE + _GAP) - _GAP
    parts = [
        f'<svg class="team-strip" role="img" viewBox="0 0 {width:g} {_SIDE + _LINE:g}" width="{width:g}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(show_hidden(title))}</title>'
    ]
    for column, scene_index in enumerate(scene_indices):
        left = column * (_SIDE + _GAP)
        parts.append(
            f'<svg x="{left:g}" y="0" width="{_SIDE:g}" height="{_SIDE:g}" viewBox="{_view_box(scenes[scene_index])}">'
        )
        parts.append(_draw_ground(scenes[scene_index]))
        parts += [_draw_mark(mark) for mark in scenes[scene_index].marks]
        parts.append(
            f'</svg><text x="{left + _SIDE / 2:g}" y="{_SIDE + _LINE - 4:g}" text-anchor="middle" '
            f'font-size="11" fill="currentColor">step {scene_index}</text>'
        )
    return "".join([*parts, "</svg>"])


def _view_box(scene: Scene) -> str:
    left, top, right, bottom = scene.area
    return f"{left:g} {top:g} {right - left:g} {bottom - top:g}"


def _draw_ground(scene: Scene) -> str:
    left, top, right, bottom = scene.area
    line = (right - left) / 100
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" fill="none" '
        f'stroke="currentColor" stroke-opacity=".4" stroke-width="{line:g}"/>'
    )


def _draw_mark(mark: Mark) -> str:
    color = ROLE_COLORS[mark.role]
    if mark.shape == "circle":
        return f'<circle cx="{mark.x:.4g}" cy="{mark.y:.4g}" r="{mark.radius:.4g}" fill="{color}" fill-opacity=".85"/>'
    side = 2 * mark.radius
    return (
        f'<rect x="{mark.x - mark.radius:.4g}" y="{mark.y - mark.radius:.4g}" width="{side:.4g}" height="{side:.4g}" '
        f'fill="{color}" fill-opacity=".85"/>'
    )


_MAX_POINTS = 120  # of a curve; neighbors are averaged where there are more


def team_page(data: JsonObject, films: Sequence[tuple[str, Sequence[Scene]]] = ()) -> str:
    """Renders one HTML document that needs nothing else: no script, no network.

    Args:
        data: `title`; `facts` (name -> text); `rows` of `rollout.teams.outcome_row`; `history`, rows with `decisions`
            and, where episodes ended, `episode_return`, `episode_length` and `success`.
        films: (title, scenes) of episodes, as `rollout.teams.record_scenes` gives scenes.
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
        "enemy": "an enemy",
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
