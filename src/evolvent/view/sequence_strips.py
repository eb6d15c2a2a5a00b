"""Episodes of array worlds as inline SVG: moments of CartPole and Pendulum, and a path in the stitching maze."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from markupsafe import escape
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.store.episodes import Episodes
from evolvent.view.escape import show_hidden
from evolvent.worlds.stitching import Stitching

__all__ = ["draw_best_and_worst", "draw_frames", "draw_maze_path"]

_SIDE, _GAP, _LINE, _MAX_FRAMES = 110.0, 8.0, 16.0, 8  # of a frame, between frames, of the text below, in px; frames
_SOLID, _MOVES = "#2f6fde", "#e8743b"


def draw_best_and_worst(world: str, episodes: Episodes) -> list[tuple[str, str]]:
    """Returns (title, SVG) of the best and the worst of these episodes; nothing for worlds without a picture."""
    if world not in (*_RENDERERS, "stitching"):
        return []
    returns = episodes.returns
    pictures: list[tuple[str, str]] = []
    for name, episode_index in (
        ("The best of these episodes", int(returns.argmax())),
        ("The worst", int(returns.argmin())),
    ):
        if pictures and returns.max() == returns.min():
            break
        first, count = int(episodes.starts[episode_index]), int(episodes.lengths[episode_index])
        observations = np.concatenate(
            [episodes.observation[first : first + count], episodes.final[episode_index : episode_index + 1]]
        )
        title = f"{name}: return {returns[episode_index]:.2f} after {count} steps"
        picture = (
            draw_maze_path(observations, title=title)
            if world == "stitching"
            else draw_frames(world, observations, title=title)
        )
        pictures.append((title, picture))
    return pictures


def draw_frames(world: str, observations: NDArray[np.float32], *, title: str) -> str:
    """Draws at most eight moments of an episode side by side, the first and the last among them, each with its step
    below.

    Args:
        observations: `[T + 1, O]`, in order. title: read out by screen readers; any text.
    Raises:
        ConfigError: a world that has no picture, or no observations.
    """
    if world not in _RENDERERS or not len(observations):
        raise ConfigError(
            "cannot draw these frames", value=(world, len(observations)), expected=f"moments of {', '.join(_RENDERERS)}"
        )
    frame_indices = sorted(
        set(np.linspace(0, len(observations) - 1, min(_MAX_FRAMES, len(observations))).round().astype(int).tolist())
    )
    width = len(frame_indices) * (_SIDE + _GAP) - _GAP
    parts = [_open_svg(width, _SIDE + _LINE, title)]
    for column, step in enumerate(frame_indices):
        left = column * (_SIDE + _GAP)
        parts.append(
            f'<svg x="{left:g}" y="0" width="{_SIDE:g}" height="{_SIDE:g}" viewBox="-1.5 -1.5 3 3">'
            f'<rect x="-1.48" y="-1.48" width="2.96" height="2.96" fill="none" stroke="currentColor" '
            f'stroke-opacity=".3" stroke-width=".03"/>{_RENDERERS[world](observations[step])}</svg>'
            f'<text x="{left + _SIDE / 2:g}" y="{_SIDE + _LINE - 4:g}" text-anchor="middle" font-size="11" '
            f'fill="currentColor">step {step}</text>'
        )
    return "".join([*parts, "</svg>"])


def draw_maze_path(observations: NDArray[np.float32], *, title: str) -> str:
    """Draws the maze with its letters, and the path through its cells as a line with a dot at its end.

    Args:
        observations: `[T + 1, cells]`, in order: 1 at the number of the cell.
    """
    maze, side = Stitching(), 36.0
    cells = maze.places
    rows, columns = (max(coordinates[axis] for coordinates in cells) + 1 for axis in (0, 1))
    parts = [_open_svg(side * columns, side * rows, title)]
    for cell, (row, column) in enumerate(cells):
        parts.append(
            f'<rect x="{column * side + 1:g}" y="{row * side + 1:g}" width="{side - 2:g}" '
            f'height="{side - 2:g}" rx="4" fill="currentColor" fill-opacity=".08"/>'
        )
        if maze.mark(cell) not in (".", "M"):
            parts.append(
                f'<text x="{column * side + 5:g}" y="{row * side + 13:g}" font-size="11" fill="currentColor">'
                f"{maze.mark(cell)}</text>"
            )
    path = [cells[int(cell)] for cell in observations.argmax(1)]
    points = [(column * side + side / 2, row * side + side / 2) for row, column in path]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    parts.append(
        f'<polyline points="{line}" fill="none" stroke="{_SOLID}" stroke-width="3" stroke-linejoin="round"/>'
        f'<circle cx="{points[-1][0]:g}" cy="{points[-1][1]:g}" r="6" fill="{_MOVES}"/></svg>'
    )
    return "".join(parts)


def _open_svg(width: float, height: float, title: str) -> str:
    return (
        f'<svg class="strip" role="img" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{escape(show_hidden(title))}</title>'
    )


def _draw_cartpole(observation: NDArray[np.float32]) -> str:
    """Draws the cart and pole. The track is 4.8 wide, the limit of an episode; the pole leans by its angle."""
    x, angle = float(np.clip(observation[0] / 2.4, -1.2, 1.2)), float(observation[2])
    top = (x + 1.2 * math.sin(angle), 0.55 - 1.2 * math.cos(angle))
    return (
        f'<line x1="-1.3" x2="1.3" y1=".75" y2=".75" stroke="currentColor" stroke-width=".03"/>'
        f'<rect x="{x - 0.28:.3f}" y=".55" width=".56" height=".2" fill="{_SOLID}"/>'
        f'<line x1="{x:.3f}" y1=".55" x2="{top[0]:.3f}" y2="{top[1]:.3f}" stroke="{_MOVES}" stroke-width=".1" '
        'stroke-linecap="round"/>'
    )


def _draw_pendulum(observation: NDArray[np.float32]) -> str:
    """Draws the pendulum from the cosine and sine of the angle from upright, counterclockwise."""
    x, y = (-1.15 * float(part) for part in (observation[1], observation[0]))
    return (
        f'<line x1="0" y1="0" x2="{x:.3f}" y2="{y:.3f}" stroke="{_MOVES}" stroke-width=".14" '
        f'stroke-linecap="round"/><circle r=".12" fill="{_SOLID}"/>'
    )


_RENDERERS: Mapping[str, Callable[[NDArray[np.float32]], str]] = MappingProxyType(
    {"cartpole": _draw_cartpole, "pendulum": _draw_pendulum}
)
