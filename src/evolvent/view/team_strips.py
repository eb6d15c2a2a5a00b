"""A strip of moments of a team's episode, as inline SVG: what rescue and particle worlds look like over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import escape

from evolvent.errors import ConfigError
from evolvent.view.escape import plain
from evolvent.worlds.teams.base import Mark, Scene

__all__ = ["COLOURS", "strip"]

_SIDE, _GAP, _LINE = 120.0, 8.0, 16.0  # of a frame, between frames, of the text below, in px
COLOURS = {"wall": "#5b6470", "danger": "#e8743b", "goal": "#2f9e63", "agent": "#2f6fde", "prey": "#b5179e"}  # by role


def strip(scenes: Sequence[Scene], *, frames: int = 8, title: str = "an episode") -> str:
    """`frames` moments of an episode side by side, the first and the last among them, each with its step below.

    Colours are not the only sign: agents are circles, walls and goals squares, and the title tells what is shown.

    Args:
        scenes: before each decision, as `rollout.teams.film` gives them.
        frames: how many are drawn, fewer where there are fewer scenes.
        title: read out where pictures are not seen; any text.
    Raises:
        ConfigError: no scenes, or less than one frame.
    """
    if not scenes or frames < 1:
        raise ConfigError("a strip of frames", value=(len(scenes), frames), expected="1 scene and 1 frame or more")
    chosen = sorted(set(np.linspace(0, len(scenes) - 1, min(frames, len(scenes))).round().astype(int).tolist()))
    width = len(chosen) * (_SIDE + _GAP) - _GAP
    parts = [
        f'<svg class="team-strip" role="img" viewBox="0 0 {width:g} {_SIDE + _LINE:g}" width="{width:g}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(plain(title))}</title>'
    ]
    for place, at in enumerate(chosen):
        left = place * (_SIDE + _GAP)
        parts.append(f'<svg x="{left:g}" y="0" width="{_SIDE:g}" height="{_SIDE:g}" viewBox="{_box(scenes[at])}">')
        parts.append(_ground(scenes[at]))
        parts += [_drawn(mark) for mark in scenes[at].marks]
        parts.append(
            f'</svg><text x="{left + _SIDE / 2:g}" y="{_SIDE + _LINE - 4:g}" text-anchor="middle" '
            f'font-size="11" fill="currentColor">step {at}</text>'
        )
    return "".join([*parts, "</svg>"])


def _box(scene: Scene) -> str:
    left, top, right, bottom = scene.area
    return f"{left:g} {top:g} {right - left:g} {bottom - top:g}"


def _ground(scene: Scene) -> str:
    left, top, right, bottom = scene.area
    line = (right - left) / 100
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{right - left:g}" height="{bottom - top:g}" fill="none" '
        f'stroke="currentColor" stroke-opacity=".4" stroke-width="{line:g}"/>'
    )


def _drawn(mark: Mark) -> str:
    colour = COLOURS[mark.role]
    if mark.shape == "circle":
        return f'<circle cx="{mark.x:.4g}" cy="{mark.y:.4g}" r="{mark.r:.4g}" fill="{colour}" fill-opacity=".85"/>'
    side = 2 * mark.r
    return (
        f'<rect x="{mark.x - mark.r:.4g}" y="{mark.y - mark.r:.4g}" width="{side:.4g}" height="{side:.4g}" '
        f'fill="{colour}" fill-opacity=".85"/>'
    )
