"""A strip of moments of a team's episode, as inline SVG: rescue and particle worlds over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import escape

from evolvent.errors import ConfigError
from evolvent.view.escape import show_hidden
from evolvent.worlds.teams.base import Mark, Scene

__all__ = ["ROLE_COLORS", "draw_strip"]

_SIDE, _GAP, _LINE = 120.0, 8.0, 16.0  # of a frame, between frames, of the text below, in px
ROLE_COLORS = {
    "wall": "#5b6470",
    "danger": "#e8743b",
    "goal": "#2f9e63",
    "agent": "#2f6fde",
    "prey": "#b5179e",
}  # by role


def draw_strip(scenes: Sequence[Scene], *, num_frames: int = 8, title: str = "an episode") -> str:
    """Draws moments of an episode side by side, the first and the last among them, each with its step below.

    Colors are not the only sign: agents are circles, walls and goals squares, and the title describes the picture.

    Args:
        scenes: before each decision, as `rollout.teams.film` gives them.
        num_frames: number of moments, fewer where there are fewer scenes.
        title: read out by screen readers; any text.
    Raises:
        ConfigError: no scenes, or less than one frame.
    """
    if not scenes or num_frames < 1:
        raise ConfigError("a strip of frames", value=(len(scenes), num_frames), expected="1 scene and 1 frame or more")
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
