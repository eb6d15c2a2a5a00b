"""Episodes of array worlds as inline SVG: moments of CartPole and Pendulum, and a path in the maze of pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from markupsafe import escape
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.store.episodes import Episodes
from evolvent.view.escape import plain
from evolvent.worlds.stitching import Stitching

__all__ = ["drawn", "frames", "maze_path"]

_SIDE, _GAP, _LINE, _MOST = 110.0, 8.0, 16.0, 8  # of a frame, between frames, of the text below, in px; frames
_SOLID, _MOVES = "#2f6fde", "#e8743b"


def drawn(world: str, episodes: Episodes) -> list[tuple[str, str]]:
    """(title, SVG) of the best and the worst of these episodes; nothing for worlds without a picture."""
    if world not in (*_DRAWN, "stitching"):
        return []
    returns = episodes.returns
    found: list[tuple[str, str]] = []
    for name, at in (("The best of these episodes", int(returns.argmax())), ("The worst", int(returns.argmin()))):
        if found and returns.max() == returns.min():
            break
        first, count = int(episodes.starts[at]), int(episodes.lengths[at])
        seen = np.concatenate([episodes.observation[first : first + count], episodes.final[at : at + 1]])
        title = f"{name}: return {returns[at]:.2f} after {count} steps"
        picture = maze_path(seen, title=title) if world == "stitching" else frames(world, seen, title=title)
        found.append((title, picture))
    return found


def frames(world: str, seen: NDArray[np.float32], *, title: str) -> str:
    """At most eight moments of an episode side by side, the first and the last among them, each with its step below.

    Args:
        seen: `[T + 1, O]`, the observations in order. title: read out where pictures are not seen; any text.
    Raises:
        ConfigError: a world that has no picture, or no observations.
    """
    if world not in _DRAWN or not len(seen):
        raise ConfigError("no such frames", value=(world, len(seen)), expected=f"moments of {', '.join(_DRAWN)}")
    chosen = sorted(set(np.linspace(0, len(seen) - 1, min(_MOST, len(seen))).round().astype(int).tolist()))
    width = len(chosen) * (_SIDE + _GAP) - _GAP
    parts = [_head(width, _SIDE + _LINE, title)]
    for place, at in enumerate(chosen):
        left = place * (_SIDE + _GAP)
        parts.append(
            f'<svg x="{left:g}" y="0" width="{_SIDE:g}" height="{_SIDE:g}" viewBox="-1.5 -1.5 3 3">'
            f'<rect x="-1.48" y="-1.48" width="2.96" height="2.96" fill="none" stroke="currentColor" '
            f'stroke-opacity=".3" stroke-width=".03"/>{_DRAWN[world](seen[at])}</svg>'
            f'<text x="{left + _SIDE / 2:g}" y="{_SIDE + _LINE - 4:g}" text-anchor="middle" font-size="11" '
            f'fill="currentColor">step {at}</text>'
        )
    return "".join([*parts, "</svg>"])


def maze_path(seen: NDArray[np.float32], *, title: str) -> str:
    """The maze with its letters, and the way through its cells as a line with a dot at its end.

    Args:
        seen: `[T + 1, cells]`, the observations in order: 1 at the number of the cell.
    """
    maze, side = Stitching(), 36.0
    places = maze.places
    rows, columns = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    parts = [_head(side * columns, side * rows, title)]
    for cell, (row, column) in enumerate(places):
        parts.append(
            f'<rect x="{column * side + 1:g}" y="{row * side + 1:g}" width="{side - 2:g}" '
            f'height="{side - 2:g}" rx="4" fill="currentColor" fill-opacity=".08"/>'
        )
        if maze.mark(cell) not in (".", "M"):
            parts.append(
                f'<text x="{column * side + 5:g}" y="{row * side + 13:g}" font-size="11" fill="currentColor">'
                f"{maze.mark(cell)}</text>"
            )
    way = [places[int(cell)] for cell in seen.argmax(1)]
    points = [(column * side + side / 2, row * side + side / 2) for row, column in way]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="{_SOLID}" stroke-width="3" stroke-linejoin="round"/>'
        f'<circle cx="{points[-1][0]:g}" cy="{points[-1][1]:g}" r="6" fill="{_MOVES}"/></svg>'
    )
    return "".join(parts)


def _head(width: float, height: float, title: str) -> str:
    return (
        f'<svg class="strip" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(plain(title))}</title>'
    )


def _cartpole(seen: NDArray[np.float32]) -> str:
    """The track is 4.8 wide, as far as an episode goes; the pole leans by its angle."""
    x, angle = float(np.clip(seen[0] / 2.4, -1.2, 1.2)), float(seen[2])
    top = (x + 1.2 * math.sin(angle), 0.55 - 1.2 * math.cos(angle))
    return (
        f'<line x1="-1.3" x2="1.3" y1=".75" y2=".75" stroke="currentColor" stroke-width=".03"/>'
        f'<rect x="{x - 0.28:.3f}" y=".55" width=".56" height=".2" fill="{_SOLID}"/>'
        f'<line x1="{x:.3f}" y1=".55" x2="{top[0]:.3f}" y2="{top[1]:.3f}" stroke="{_MOVES}" stroke-width=".1" '
        'stroke-linecap="round"/>'
    )


def _pendulum(seen: NDArray[np.float32]) -> str:
    """Seen are cosine and sine of the angle from upright, against the clock."""
    x, y = (-1.15 * float(part) for part in (seen[1], seen[0]))
    return (
        f'<line x1="0" y1="0" x2="{x:.3f}" y2="{y:.3f}" stroke="{_MOVES}" stroke-width=".14" '
        f'stroke-linecap="round"/><circle r=".12" fill="{_SOLID}"/>'
    )


_DRAWN: Mapping[str, Callable[[NDArray[np.float32]], str]] = MappingProxyType(
    {"cartpole": _cartpole, "pendulum": _pendulum}
)
