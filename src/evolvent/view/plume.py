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
from evolvent.view.charts import ticks
from evolvent.view.escape import clip, plain

__all__ = ["belief_film", "belief_map", "moments"]

_SIDE, _LEFT, _ROOM = 300.0, 26.0, 20.0
_BANDS = 5  # of concentration, half a power of ten each, down from the highest
_FRAME_S, _HOLD = 0.22, 7  # seconds of a moment, and moments for which the last one stays
_MOST = 60  # moments of a film
_ENDED = {"agent": "ceased", "horizon": "ran out of time", "error": "lost its belief"}


class _Map:
    """Where metres lie on the drawing; north is up."""

    def __init__(self, trace: Trace) -> None:
        (self.west, east), (self.south, north) = trace.area
        self.scale = _SIDE / max(east - self.west, north - self.south)
        self.width, self.height = (east - self.west) * self.scale, (north - self.south) * self.scale
        self.east, self.north = east, north

    def x(self, metres: float) -> float:
        return _LEFT + (metres - self.west) * self.scale

    def y(self, metres: float) -> float:
        return 6 + self.height - (metres - self.south) * self.scale

    def at(self, place: Sequence[float]) -> str:
        return f"{self.x(place[0]):.1f} {self.y(place[1]):.1f}"


def moments(trace: Trace, count: int = 4) -> list[int]:
    """Indices of up to `count` looks, evenly from the first to the last."""
    last = len(trace.looks) - 1
    return sorted({round(last * i / max(1, count - 1)) for i in range(count)})


def belief_map(trace: Trace, at: int) -> Markup:
    """The area at look number `at`: the plume, the path so far, the particles, the mean and two standard deviations."""
    area, look = _Map(trace), trace.looks[at]
    body = _ground(trace, area) + _walked(trace, area, at) + _believed(area, look) + _truth(trace, area)
    label = f"{trace.name} after {at} steps: spread {look.spread:.2f} m, reading {look.reading:.1e}"
    return _svg(area, label, body, style="chart plume")


def belief_film(trace: Trace, number: int = 0) -> Markup:
    """The whole episode as a loop.

    Args:
        number: of the film in its page; its animation is named after it.
    """
    area, last = _Map(trace), len(trace.looks) - 1
    shown = moments(trace, min(_MOST, last + 1))
    loop = len(shown) + _HOLD
    style = (
        f"@keyframes film-{number}{{0%{{opacity:1}}{100 / loop:.4f}%,100%{{opacity:0}}}}"
        f"@keyframes film-{number}-last{{0%{{opacity:1}}{100 * (1 + _HOLD) / loop:.4f}%,100%{{opacity:0}}}}"
    )
    parts = [f"<style>{style}</style>", _ground(trace, area)]
    for i, at in enumerate(shown):
        final, look = at == last, trace.looks[at]
        timing = (
            f"animation:film-{number}{'-last' if final else ''} {loop * _FRAME_S:.2f}s step-end infinite;"
            f"animation-delay:{(i - loop) * _FRAME_S:.2f}s"
        )
        told = f"step {at}, spread {look.spread:.2f} m" + (f": {_ENDED.get(trace.ended_by, '')}" if final else "")
        words = f'<text class="end note" x="{_LEFT + area.width - 4:.0f}" y="20">{escape(told)}</text>'
        body = _walked(trace, area, at) + _believed(area, look) + words
        parts.append(f'<g class="moment{" last" if final else ""}" style="{timing}">{body}</g>')
    parts.append(_truth(trace, area))
    return _svg(area, f"{trace.name}: an episode of {last} steps as a loop", "".join(parts), style="chart plume film")


def _svg(area: _Map, label: str, body: str, *, style: str) -> Markup:
    width, height = _LEFT + area.width + 6, area.height + 6 + _ROOM
    name = escape(plain(clip(label, 120)))
    focus = ' tabindex="0"' if "film" in style else ""
    return Markup(
        f'<svg class="{style}" viewBox="0 0 {width:.0f} {height:.0f}" role="img"{focus} aria-label="{name}">'
        f"{body}</svg>"
    )


def _ground(trace: Trace, area: _Map) -> str:
    """The plume in bands, the border and the axes."""
    field = np.asarray(trace.field, np.float64)
    rows, columns = field.shape
    wide, high = area.width / columns, area.height / rows
    top = log10(max(float(field.max()), 1e-30))
    band = np.clip(np.floor(_BANDS + 1 - 2 * (top - np.log10(np.maximum(field, 1e-30)))), 0, _BANDS).astype(int)
    parts = []
    for row in range(rows):
        ends = [0, *(np.flatnonzero(np.diff(band[row])) + 1).tolist(), columns]
        for begin, end in pairwise(ends):
            if level := int(band[row, begin]):
                parts.append(
                    f'<path class="smell-{level}" d="M{_LEFT + begin * wide:.1f} '
                    f"{6 + area.height - (row + 1) * high:.1f}h{(end - begin) * wide:.1f}v{high + 0.15:.2f}H"
                    f'{_LEFT + begin * wide:.1f}Z"/>'
                )
    parts.append(f'<rect class="border" x="{_LEFT}" y="6" width="{area.width:.1f}" height="{area.height:.1f}"/>')
    for x in ticks(area.west, area.east, 6):
        parts.append(f'<text class="tick middle" x="{area.x(x):.1f}" y="{area.height + 20:.1f}">{x:g}</text>')
    for y in ticks(area.south, area.north, 6):
        parts.append(f'<text class="tick end" x="{_LEFT - 5}" y="{area.y(y) + 3.5:.1f}">{y:g}</text>')
    return "".join(parts)


def _walked(trace: Trace, area: _Map, at: int) -> str:
    """The path up to a look, a dot wherever something was smelt, and the sensor."""
    looks = trace.looks[: at + 1]
    parts = []
    if len(looks) > 1:
        line = "L".join(area.at(look.place) for look in looks)
        parts.append(f'<path class="walk" d="M{line}"/>')
    smelt = "".join(f"M{area.at(look.place)}h0" for look in looks if look.reading > 0)
    if smelt:
        parts.append(f'<path class="smelt" d="{smelt}"/>')
    x, y = area.at(looks[-1].place).split()
    parts.append(f'<circle class="sensor" cx="{x}" cy="{y}" r="4.5"><title>the sensor</title></circle>')
    return "".join(parts)


def _believed(area: _Map, look: Look) -> str:
    """Particles, and the ellipse of two standard deviations around the mean."""
    dots = "".join(f"M{area.at(one)}h0" for one in look.particles.tolist())
    window = f'x="{_LEFT}" y="6" width="{area.width:.1f}" height="{area.height:.1f}"'  # what lies outside is cut off
    (a, b), (_, c) = look.covariance.tolist()
    middle, half = (a + c) / 2, sqrt(((a - c) / 2) ** 2 + b * b)
    turn = 0.5 * atan2(2 * b, a - c)
    long, short = (2 * sqrt(max(0.0, each)) * area.scale for each in (middle + half, middle - half))
    x, y = area.at(look.mean.tolist()).split()
    title = f"believed: ({look.mean[0]:.1f}, {look.mean[1]:.1f}) m, spread {look.spread:.2f} m"
    return (
        f'<svg {window} viewBox="{_LEFT} 6 {area.width:.1f} {area.height:.1f}">'
        f'<path class="particles" d="{dots}"/>'
        f'<ellipse class="sure" cx="{x}" cy="{y}" rx="{max(long, 1):.1f}" ry="{max(short, 1):.1f}" '
        f'transform="rotate({-degrees(turn):.1f} {x} {y})"><title>{title}</title></ellipse>'
        f'<path class="mean" d="M{x} {y}m-4 0h8m-4 -4v8"/></svg>'
    )


def _truth(trace: Trace, area: _Map) -> str:
    """The source as a star; nobody who searches sees it."""
    x, y = area.x(trace.source[0]), area.y(trace.source[1])
    points = [(r * sin(i * 0.628318), -r * cos(i * 0.628318)) for i, r in enumerate((6.5, 2.7) * 5)]
    star = "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in points)
    title = f"the source, at ({trace.source[0]:.1f}, {trace.source[1]:.1f}) m"
    return f'<path class="source" d="M{star}Z"><title>{title}</title></path>'
