"""A dot plot as inline SVG: a row for each arm with its mean, the interval around it and a dot a seed, over references.

Pure, without a script; colours come from the classes of the page's style sheet, every mark carries its value as a
`<title>`, all text is escaped here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from markupsafe import Markup, escape

from evolvent.view.charts import ArmStyle, Reference, ticks
from evolvent.view.escape import clip, plain

__all__ = ["DotRow", "dot_plot"]

_WIDTH, _LEFT, _RIGHT, _ROW = 1000.0, 190.0, 988.0, 44.0
_LABEL = 24  # characters of a name that fit to the left
_CLOSE = 130.0  # closer than this, the names of two references would lie on each other


@dataclass(frozen=True, slots=True)
class DotRow:
    """One arm: rates 0..1. `low` and `high` are None where there is no interval, `mean` where there is nothing yet."""

    name: str
    style: ArmStyle
    mean: float | None
    low: float | None
    high: float | None
    dots: Mapping[str, float]


def dot_plot(rows: Sequence[DotRow], references: Sequence[Reference] = (), *, label: str) -> Markup:
    """The plot; its scale holds everything that is drawn, at least 20 points of it.

    Args:
        references: rates drawn down the whole plot, such as where all arms started.
        label: what the picture shows, for readers who do not see it.
    """
    values = [one for row in rows for one in (row.mean, row.low, row.high, *row.dots.values()) if one is not None]
    axis = _Axis.around([one for one in (*values, *(reference.y for reference in references)) if isfinite(one)])
    top = 12.0 + 15.0 * len(references)
    bottom = top + _ROW * len(rows)
    parts = [_grid(axis, top=top, bottom=bottom)]
    parts += _references(axis, references, top=top, bottom=bottom)
    parts += [_row(axis, row, middle=top + _ROW * (index + 0.5)) for index, row in enumerate(rows)]
    return Markup('<svg class="chart dots" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, bottom + 34, plain(clip(label, 400)), Markup("").join(parts)
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> _Axis:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        spare = max(0.02, (0.2 - (high - low)) / 2)
        return cls(max(0.0, low - spare), min(1.0, high + spare))

    def x(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return _LEFT + (inside - self.low) / (self.high - self.low) * (_RIGHT - _LEFT)


def _name(text: str, limit: int) -> str:
    shown = plain(text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def _grid(axis: _Axis, *, top: float, bottom: float) -> Markup:
    parts = []
    for value in ticks(axis.low, axis.high, 8):
        x = axis.x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{bottom + 15:.1f}">{100 * value:.0f}</text>')
    parts.append(f'<text class="tick end" x="{_RIGHT}" y="{bottom + 30:.1f}">success, %</text>')
    return Markup("".join(parts))


def _references(axis: _Axis, references: Sequence[Reference], *, top: float, bottom: float) -> list[Markup]:
    """Dashed lines from top to bottom; each name has a line of its own where it would lie on another's."""
    parts, taken = [], -_CLOSE
    level = 0
    for one in sorted(references, key=lambda one: one.y):
        x = axis.x(one.y)
        level = level + 1 if x - taken < _CLOSE else 0
        taken = x
        side = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
        shift = -5 if side == "end" else 5
        parts.append(
            Markup('<path class="reference" d="M{:.1f} {:.1f}V{:.1f}"/>').format(x, top - 8 - 14 * level, bottom)
            + Markup('<text class="note {}" x="{:.1f}" y="{:.1f}">{} {:.1f} %</text>').format(
                side, x + shift, top - 3 - 14 * level, _name(one.name, _LABEL), 100 * one.y
            )
        )
    return parts


def _row(axis: _Axis, row: DotRow, *, middle: float) -> Markup:
    above, below = middle - 6, middle + 9
    parts = [
        Markup('<text class="row-name" x="{}" y="{:.1f}">{}</text>').format(2, middle + 2, _name(row.name, _LABEL))
    ]
    for seed, value in row.dots.items():
        parts.append(
            Markup(
                '<circle class="mark seed arm-{}" cx="{:.1f}" cy="{:.1f}" r="3.4"><title>{}</title></circle>'
            ).format(row.style, axis.x(value), below, f"{_name(row.name, 60)}, seed {plain(seed)}: {100 * value:.1f} %")
        )
    if row.mean is None:
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}">no finished seed</text>').format(_LEFT + 6, middle + 2)
        )
        return Markup("").join(parts)
    title = f"{_name(row.name, 60)}: {100 * row.mean:.1f} %"
    if row.low is not None and row.high is not None:
        title += f" ({100 * row.low:.1f} to {100 * row.high:.1f})"
        ends = f"M{axis.x(row.low):.1f} {above - 4:.1f}v8M{axis.x(row.high):.1f} {above - 4:.1f}v8"
        line = f"M{axis.x(row.low):.1f} {above:.1f}H{axis.x(row.high):.1f}"
        parts.append(Markup('<path class="whisker span arm-{}" d="{}{}"/>').format(row.style, line, ends))
    parts.append(
        Markup('<circle class="mark arm-{}" cx="{:.1f}" cy="{:.1f}" r="5.6"><title>{}</title></circle>').format(
            row.style, axis.x(row.mean), above, escape(title)
        )
    )
    return Markup("").join(parts)
