"""A dot plot as inline SVG: a row per arm with its mean, its interval and a dot per seed, over references.

Pure, without a script; colors come from the classes of the page's style sheet, every mark carries its value as a
`<title>`, all text is escaped here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from markupsafe import Markup, escape

from evolvent.view.charts import ArmStyle, Reference, round_ticks
from evolvent.view.escape import clip, show_hidden

__all__ = ["DotRow", "dot_plot"]

_WIDTH, _LEFT, _RIGHT, _ROW = 1000.0, 190.0, 988.0, 44.0
_LABEL_CHARS = 24  # characters of a name that fit to the left
_MIN_LABEL_DISTANCE = 130.0  # closer than this, the names of two references would lie on each other


@dataclass(frozen=True, slots=True)
class DotRow:
    """An arm: rates 0..1. `low` and `high` are None without an interval, `mean` where there is nothing yet."""

    name: str
    style: ArmStyle
    mean: float | None
    low: float | None
    high: float | None
    dots: Mapping[str, float]


def dot_plot(rows: Sequence[DotRow], references: Sequence[Reference] = (), *, label: str) -> Markup:
    """Draws the plot; its scale holds everything that is drawn, and spans at least 20 points.

    Args:
        references: rates drawn down the whole plot, such as where all arms started.
        label: what the picture shows, for readers who do not see it.
    """
    values = [
        number for row in rows for number in (row.mean, row.low, row.high, *row.dots.values()) if number is not None
    ]
    axis = _Axis.fit([number for number in (*values, *(reference.y for reference in references)) if isfinite(number)])
    plot_top = 12.0 + 15.0 * len(references)
    plot_bottom = plot_top + _ROW * len(rows)
    parts = [_draw_grid(axis, top=plot_top, bottom=plot_bottom)]
    parts += _draw_references(axis, references, top=plot_top, bottom=plot_bottom)
    parts += [_draw_row(axis, row, middle=plot_top + _ROW * (index + 0.5)) for index, row in enumerate(rows)]
    return Markup('<svg class="chart dots" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, plot_bottom + 34, show_hidden(clip(label, 400)), Markup("").join(parts)
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def fit(cls, values: Sequence[float]) -> _Axis:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        margin = max(0.02, (0.2 - (high - low)) / 2)
        return cls(max(0.0, low - margin), min(1.0, high + margin))

    def x(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return _LEFT + (inside - self.low) / (self.high - self.low) * (_RIGHT - _LEFT)


def _clip_name(text: str, limit: int) -> str:
    visible_text = show_hidden(text)
    return visible_text if len(visible_text) <= limit else f"{visible_text[: limit - 1]}…"


def _draw_grid(axis: _Axis, *, top: float, bottom: float) -> Markup:
    parts = []
    for value in round_ticks(axis.low, axis.high, 8):
        x = axis.x(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{bottom + 15:.1f}">{100 * value:.0f}</text>')
    parts.append(f'<text class="tick end" x="{_RIGHT}" y="{bottom + 30:.1f}">success, %</text>')
    return Markup("".join(parts))


def _draw_references(axis: _Axis, references: Sequence[Reference], *, top: float, bottom: float) -> list[Markup]:
    """Draws dashed lines from top to bottom; names that would overlap are put on separate lines."""
    parts, last_x = [], -_MIN_LABEL_DISTANCE
    level = 0
    for reference in sorted(references, key=lambda reference: reference.y):
        x = axis.x(reference.y)
        level = level + 1 if x - last_x < _MIN_LABEL_DISTANCE else 0
        last_x = x
        anchor = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
        shift = -5 if anchor == "end" else 5
        parts.append(
            Markup('<path class="reference" d="M{:.1f} {:.1f}V{:.1f}"/>').format(x, top - 8 - 14 * level, bottom)
            + Markup('<text class="note {}" x="{:.1f}" y="{:.1f}">{} {:.1f} %</text>').format(
                anchor, x + shift, top - 3 - 14 * level, _clip_name(reference.name, _LABEL_CHARS), 100 * reference.y
            )
        )
    return parts


def _draw_row(axis: _Axis, row: DotRow, *, middle: float) -> Markup:
    above, below = middle - 6, middle + 9
    parts = [
        Markup('<text class="row-name" x="{}" y="{:.1f}">{}</text>').format(
            2, middle + 2, _clip_name(row.name, _LABEL_CHARS)
        )
    ]
    for seed, value in row.dots.items():
        parts.append(
            Markup(
                '<circle class="mark seed arm-{}" cx="{:.1f}" cy="{:.1f}" r="3.4"><title>{}</title></circle>'
            ).format(
                row.style,
                axis.x(value),
                below,
                f"{_clip_name(row.name, 60)}, seed {show_hidden(seed)}: {100 * value:.1f} %",
            )
        )
    if row.mean is None:
        parts.append(
            Markup('<text class="tick" x="{:.1f}" y="{:.1f}">no finished seed</text>').format(_LEFT + 6, middle + 2)
        )
        return Markup("").join(parts)
    title = f"{_clip_name(row.name, 60)}: {100 * row.mean:.1f} %"
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
