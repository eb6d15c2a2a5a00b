"""Searches for a source as inline SVG: the plume, the path, the particles, and the belief that contracts.

Pure functions without a script. A film is the moments of an episode one over the other, each shown for its share of a
loop by a CSS animation, which the page's content policy allows; it stands still on its last moment in print, and for
whoever asked for less motion, and pauses under the pointer or the focus.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import atan2, cos, degrees, log10, sin, sqrt

import numpy as np
from markupsafe import Markup, escape

from evolvent.belief.traces import Look, Trace
from evolvent.view.charts import round_ticks
from evolvent.view.escape import clip, show_hidden

__all__ = ["belief_film", "belief_map", "select_looks"]

_SIDE, _LEFT, _BOTTOM_MARGIN = 300.0, 26.0, 20.0
_NUM_BANDS = 5  # of concentration, half a power of ten each, down from the highest
_FRAME_S, _HOLD_FRAMES = 0.22, 7  # seconds of a moment, and moments for which the last one stays
_MAX_MOMENTS = 60  # moments of a film
_OUTCOMES = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}


class _MapScale:
    """The mapping from meters to positions on the drawing; north is up."""

    def __init__(self, trace: Trace) -> None:
        (self.west, east), (self.south, north) = trace.area
        self.scale = _SIDE / max(east - self.west, north - self.south)
        self.width, self.height = (east - self.west) * self.scale, (north - self.south) * self.scale
        self.east, self.north = east, north

    def x(self, metres: float) -> float:
        return _LEFT + (metres - self.west) * self.scale

    def y(self, metres: float) -> float:
        return 6 + self.height - (metres - self.south) * self.scale

    def locate(self, position: Sequence[float]) -> str:
        return f"{self.x(position[0]):.1f} {self.y(position[1]):.1f}"


def select_looks(trace: Trace, count: int = 4) -> list[int]:
    """Returns the indices of up to `count` looks, evenly from the first to the last."""
    last = len(trace.looks) - 1
    return sorted({round(last * i / max(1, count - 1)) for i in range(count)})


def belief_map(trace: Trace, look_index: int) -> Markup:
    """Draws the area at a look: plume, path so far, particles, mean and two standard deviations."""
    area, look = _MapScale(trace), trace.looks[look_index]
    body = (
        _draw_ground(trace, area)
        + _draw_path(trace, area, look_index)
        + _draw_belief(area, look)
        + _draw_source(trace, area)
    )
    label = f"{trace.name} after {look_index} steps: spread {look.spread:.2f} m, reading {look.reading:.1e}"
    return _wrap_svg(area, label, body, style="chart plume")


def belief_film(trace: Trace, number: int = 0) -> Markup:
    """Draws the whole episode as a loop.

    Args:
        number: of the film in its page; its animation is named after it.
    """
    area, last = _MapScale(trace), len(trace.looks) - 1
    look_indices = select_looks(trace, min(_MAX_MOMENTS, last + 1))
    loop = len(look_indices) + _HOLD_FRAMES
    style = (
        f"@keyframes film-{number}{{0%{{opacity:1}}{100 / loop:.4f}%,100%{{opacity:0}}}}"
        f"@keyframes film-{number}-last{{0%{{opacity:1}}{100 * (1 + _HOLD_FRAMES) / loop:.4f}%,100%{{opacity:0}}}}"
    )
    parts = [f"<style>{style}</style>", _draw_ground(trace, area)]
    for i, look_index in enumerate(look_indices):
        final, look = look_index == last, trace.looks[look_index]
        timing = (
            f"animation:film-{number}{'-last' if final else ''} {loop * _FRAME_S:.2f}s step-end infinite;"
            f"animation-delay:{(i - loop) * _FRAME_S:.2f}s"
        )
        caption = f"step {look_index}, spread {look.spread:.2f} m" + (
            f": {_OUTCOMES.get(trace.ended_by, '')}" if final else ""
        )
        caption_svg = f'<text class="end note" x="{_LEFT + area.width - 4:.0f}" y="20">{escape(caption)}</text>'
        body = _draw_path(trace, area, look_index) + _draw_belief(area, look) + caption_svg
        parts.append(f'<g class="moment{" last" if final else ""}" style="{timing}">{body}</g>')
    parts.append(_draw_source(trace, area))
    return _wrap_svg(
        area, f"{trace.name}: an episode of {last} steps as a loop", "".join(parts), style="chart plume film"
    )


def _wrap_svg(area: _MapScale, label: str, body: str, *, style: str) -> Markup:
    width, height = _LEFT + area.width + 6, area.height + 6 + _BOTTOM_MARGIN
    name = escape(show_hidden(clip(label, 120)))
    focus = ' tabindex="0"' if "film" in style else ""
    return Markup(
        f'<svg class="{style}" viewBox="0 0 {width:.0f} {height:.0f}" role="img"{focus} aria-label="{name}">'
        f"{body}</svg>"
    )


def _draw_ground(trace: Trace, area: _MapScale) -> str:
    """Draws the plume in bands, the border and the axes."""
    field = np.asarray(trace.field, np.float64)
    rows, columns = field.shape
    cell_width, cell_height = area.width / columns, area.height / rows
    max_log = log10(max(float(field.max()), 1e-30))
    band = np.clip(np.floor(_NUM_BANDS + 1 - 2 * (max_log - np.log10(np.maximum(field, 1e-30)))), 0, _NUM_BANDS).astype(
        int
    )
    parts = []
    for row in range(rows):
        ends = [0, *(np.flatnonzero(np.diff(band[row])) + 1).tolist(), columns]
        for begin, end in pairwise(ends):
            if level := int(band[row, begin]):
                parts.append(
                    f'<path class="smell-{level}" d="M{_LEFT + begin * cell_width:.1f} '
                    f"{6 + area.height - (row + 1) * cell_height:.1f}"
                    f"h{(end - begin) * cell_width:.1f}v{cell_height + 0.15:.2f}H"
                    f'{_LEFT + begin * cell_width:.1f}Z"/>'
                )
    parts.append(f'<rect class="border" x="{_LEFT}" y="6" width="{area.width:.1f}" height="{area.height:.1f}"/>')
    for x in round_ticks(area.west, area.east, 6):
        parts.append(f'<text class="tick middle" x="{area.x(x):.1f}" y="{area.height + 20:.1f}">{x:g}</text>')
    for y in round_ticks(area.south, area.north, 6):
        parts.append(f'<text class="tick end" x="{_LEFT - 5}" y="{area.y(y) + 3.5:.1f}">{y:g}</text>')
    return "".join(parts)


def _draw_path(trace: Trace, area: _MapScale, look_index: int) -> str:
    """Draws the path up to a look, a dot at each detection, and the sensor."""
    looks = trace.looks[: look_index + 1]
    parts = []
    if len(looks) > 1:
        line = "L".join(area.locate(look.position) for look in looks)
        parts.append(f'<path class="walk" d="M{line}"/>')
    smelt = "".join(f"M{area.locate(look.position)}h0" for look in looks if look.reading > 0)
    if smelt:
        parts.append(f'<path class="smelt" d="{smelt}"/>')
    x, y = area.locate(looks[-1].position).split()
    parts.append(f'<circle class="sensor" cx="{x}" cy="{y}" r="4.5"><title>the sensor</title></circle>')
    return "".join(parts)


def _draw_belief(area: _MapScale, look: Look) -> str:
    """Draws the particles, and the ellipse of two standard deviations around the mean."""
    dots = "".join(f"M{area.locate(particle)}h0" for particle in look.particles.tolist())
    window = f'x="{_LEFT}" y="6" width="{area.width:.1f}" height="{area.height:.1f}"'  # what lies outside is cut off
    (a, b), (_, c) = look.covariance.tolist()
    middle, half = (a + c) / 2, sqrt(((a - c) / 2) ** 2 + b * b)
    turn = 0.5 * atan2(2 * b, a - c)
    major, minor = (2 * sqrt(max(0.0, variance)) * area.scale for variance in (middle + half, middle - half))
    x, y = area.locate(look.mean.tolist()).split()
    title = f"believed: ({look.mean[0]:.1f}, {look.mean[1]:.1f}) m, spread {look.spread:.2f} m"
    return (
        f'<svg {window} viewBox="{_LEFT} 6 {area.width:.1f} {area.height:.1f}">'
        f'<path class="particles" d="{dots}"/>'
        f'<ellipse class="sure" cx="{x}" cy="{y}" rx="{max(major, 1):.1f}" ry="{max(minor, 1):.1f}" '
        f'transform="rotate({-degrees(turn):.1f} {x} {y})"><title>{title}</title></ellipse>'
        f'<path class="mean" d="M{x} {y}m-4 0h8m-4 -4v8"/></svg>'
    )


def _draw_source(trace: Trace, area: _MapScale) -> str:
    """Draws the source as a star; the searching agent does not see it."""
    x, y = area.x(trace.source[0]), area.y(trace.source[1])
    points = [(r * sin(i * 0.628318), -r * cos(i * 0.628318)) for i, r in enumerate((6.5, 2.7) * 5)]
    star = "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in points)
    title = f"the source, at ({trace.source[0]:.1f}, {trace.source[1]:.1f}) m"
    return f'<path class="source" d="M{star}Z"><title>{title}</title></path>'
