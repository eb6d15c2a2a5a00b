"""Numbers to inline SVG: line charts with bands, interval strips, stacked bars, a timeline of stages.

Pure functions without a script. Colors come from classes (`arm-evolve`, `verb-fit`, ...) of the page's style sheet, so
that one drawing serves light, dark and print. Every mark carries its value as a `<title>`. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log, log10
from typing import Literal

from markupsafe import Markup, escape

from evolvent.view.escape import clip, show_hidden

__all__ = [
    "ArmStyle",
    "Bar",
    "Event",
    "Frame",
    "Line",
    "Reference",
    "bin_points",
    "interval_strip",
    "legend_marker",
    "line_chart",
    "needs_log_scale",
    "sparkline",
    "stacked_bar",
    "timeline",
]

ArmStyle = Literal["evolve", "control", "base", "expert", "other", "up", "down", "plus", "cross"]


@dataclass(frozen=True, slots=True)
class Line:
    """A series: `points` are (x, y), `band` (x, low, high) at the same or other x. `arm` sets color and marker.

    The first `unmarked` points only lead the line in from another series: they get no marker.
    """

    name: str
    arm: ArmStyle
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    markers: bool = True
    unmarked: int = 0


@dataclass(frozen=True, slots=True)
class Reference:
    """A level drawn across the chart, such as a random or an expert policy."""

    name: str
    y: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at an x, such as an update that was skipped."""

    name: str
    x: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The axes: their ranges (None: from the data) and units; `percent` prints rates 0..1 as per cent.

    On an axis with `log_x` or `log_y` equal factors are equally wide; all its values are above 0 then.
    """

    title: str
    x_label: str
    y_label: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    percent: bool = False
    whole_x: bool = False
    width: int = 320
    height: int = 190
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of a stacked bar or timeline: its label, size and class."""

    label: str
    size: float
    style: str
    lane: str = ""


def format_short(value: float, *, percent: bool = False) -> str:
    """Formats a short number for an axis or a title."""
    if percent:
        return f"{100 * value:.0f} %"
    if value == 0:
        return "0"
    magnitude = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if magnitude >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}" if 1e-3 <= magnitude < 1e3 else f"{value:.0f}" if magnitude >= 1e3 else f"{value:.0e}"


def round_ticks(low: float, high: float, max_ticks: int = 5, *, integers_only: bool = False) -> list[float]:
    """Returns round numbers (1, 2 or 5 times a power of ten apart) inside low..high, at most about `max_ticks`."""
    span = high - low
    if not span > 1e-300 or not isfinite(span):  # below it, steps would be no numbers any more
        return [low]
    min_step = span / max(1, max_ticks - 1)
    power = 10.0 ** floor(log10(min_step))
    step = next((multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= min_step * 0.999), 10 * power)
    step = max(1.0, float(ceil(step))) if integers_only else step
    first = ceil(low / step - 1e-9)
    last = floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)] or [low]


def log_ticks(low: float, high: float, max_ticks: int = 5) -> list[float]:
    """Returns 1, 2 and 5 times powers of ten inside low..high, only powers if those are too many; else
    `round_ticks`.
    """
    powers = [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]
    for steps in ((1, 2, 5), (1,)):
        positions = [step * power for power in powers for step in steps if low <= step * power <= high]
        if 2 <= len(positions) <= max_ticks:
            return positions
    return (
        positions[:: ceil(len(positions) / max_ticks)]
        if len(positions) > max_ticks
        else round_ticks(low, high, max_ticks)
    )


def bin_points(
    points: Sequence[tuple[float, float]], bins: int = 60
) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """Reduces a long noisy curve to means of neighboring points, and the band of their minimum and maximum."""
    finite = sorted(point for point in points if isfinite(point[0]) and isfinite(point[1]))
    size = max(1, ceil(len(finite) / bins))
    means, band = [], []
    for start in range(0, len(finite), size):
        chunk = finite[start : start + size]
        x = sum(x for x, _ in chunk) / len(chunk)
        ys = [y for _, y in chunk]
        means.append((x, sum(ys) / len(ys)))
        band.append((x, min(ys), max(ys)))
    return means, band if size > 1 else []


def needs_log_scale(values: Sequence[float]) -> bool:
    """Returns whether a linear axis would press most values flat: all are above 0, and the largest is 20 times the
    median.

    >>> needs_log_scale([8.0, 0.3, 0.2, 0.1]), needs_log_scale([8.0, 4.0, 2.0]), needs_log_scale([8.0, 0.1, 0.0])
    (True, False, False)
    """
    ordered = sorted(value for value in values if isfinite(value))
    return len(ordered) > 2 and ordered[0] > 0 and ordered[-1] > 20 * ordered[len(ordered) // 2]


def _axis_range(
    values: Sequence[float], fixed_range: tuple[float, float] | None, *, floor_zero: bool = False
) -> tuple[float, float]:
    if fixed_range is not None:
        return fixed_range
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if floor_zero else low
    margin = max(0.5, 1e-6 * abs(low))
    return (low, high) if high > low else (low - margin, low + margin)


class _Axes:
    """The mapping from data to positions on the drawing."""

    def __init__(self, frame: Frame, lines: Sequence[Line], events: Sequence[Event] = ()) -> None:
        xs = [x for line in lines for x, _ in line.points] + [event.x for event in events]
        ys = [y for line in lines for _, y in line.points] + [
            y for line in lines for interval in line.band for y in interval[1:]
        ]
        self.x_low, self.x_high = _axis_range(xs, frame.x_range)
        self.log_x = frame.log_x
        if self.log_x:  # room for the marks at both ends
            min_x, max_x = (min(xs), max(xs)) if xs else (1.0, 10.0)
            self.x_low, self.x_high = min_x / 1.2, max_x * 1.2
        self.y_low, self.y_high = _axis_range(ys, frame.y_range, floor_zero=True)
        self.log_y = frame.log_y
        if self.log_y:
            min_y, max_y = (min(ys), max(ys)) if ys else (1.0, 10.0)
            self.y_low, self.y_high = min_y / 1.1, max_y * 1.1
        self.left, self.right, self.top, self.bottom = 38.0, frame.width - 10.0, 10.0, frame.height - 30.0

    def x(self, value: float) -> float:
        if self.log_x:
            return self.left + log(value / self.x_low) / log(self.x_high / self.x_low) * (self.right - self.left)
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        inside = min(max(value, self.y_low), self.y_high)
        if self.log_y:
            return self.bottom - log(inside / self.y_low) / log(self.y_high / self.y_low) * (self.bottom - self.top)
        return self.bottom - (inside - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def _escape_text(text: str) -> Markup:
    return escape(show_hidden(clip(text, 80)))


def _wrap_svg(width: float, height: float, label: str, body: str, *, style: str = "chart") -> Markup:
    head = f'<svg class="{style}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_escape_text(label)}">'
    return Markup(f"{head}{body}</svg>")


def line_chart(
    frame: Frame, lines: Sequence[Line], references: Sequence[Reference] = (), *, events: Sequence[Event] = ()
) -> Markup:
    """Draws lines over bands over events and references; skips lines without points. Points must be finite."""
    drawn_lines = [line for line in lines if line.points]
    axes = _Axes(frame, drawn_lines, events)
    parts = [_draw_grid(frame, axes)]
    parts += [_draw_event(event, axes) for event in events]
    parts += _draw_references(references, drawn_lines, frame, axes)
    parts += [_draw_band(line, axes) for line in drawn_lines if line.band]
    parts += [_draw_line(line, frame, axes) for line in drawn_lines]
    names = ", ".join(dict.fromkeys(line.name for line in drawn_lines))
    return _wrap_svg(frame.width, frame.height, f"{frame.title}: {names} by {frame.x_label}", "".join(parts))


def _draw_references(references: Sequence[Reference], lines: Sequence[Line], frame: Frame, axes: _Axes) -> list[str]:
    """Draws dashed levels with their names; overlapping names share one label, and names on data are left out."""
    occupied_heights = [
        axes.y(y) for line in lines for x, y in line.points if axes.x(x) > 0.45 * (axes.left + axes.right)
    ]
    parts: list[str] = []
    labels: list[tuple[float, str]] = []
    for reference in sorted(references, key=lambda reference: reference.y):
        y = axes.y(reference.y)
        title = f"{_escape_text(reference.name)}: {format_short(reference.y, percent=frame.percent)}"
        parts.append(f'<path class="reference" d="M{axes.left} {y:.1f}H{axes.right}"><title>{title}</title></path>')
        if labels and abs(labels[-1][0] - y) < 12:
            labels[-1] = (y, f"{labels[-1][1]}, {reference.name}")
        else:
            labels.append((y, reference.name))
    for y, name in labels:
        label_y = y + 11 if y < axes.top + 14 else y - 4
        if any(label_y - 15 < height < label_y + 7 for height in occupied_heights):
            continue
        parts.append(f'<text class="note end" x="{axes.right - 2}" y="{label_y:.1f}">{_escape_text(name)}</text>')
    return parts


def _draw_grid(frame: Frame, axes: _Axes) -> str:
    parts = []
    y_ticks = (log_ticks if frame.log_y else round_ticks)(axes.y_low, axes.y_high)
    for y in (0.0, 0.25, 0.5, 0.75, 1.0) if frame.percent else y_ticks:
        grid_y = axes.y(y)
        parts.append(f'<path class="grid" d="M{axes.left} {grid_y:.1f}H{axes.right}"/>')
        label = format_short(100 * y if frame.percent else y)
        parts.append(f'<text class="tick end" x="{axes.left - 6}" y="{grid_y + 3.5:.1f}">{label}</text>')
    max_ticks = max(5, frame.width // 50)
    x_ticks = round_ticks(axes.x_low, axes.x_high, max_ticks, integers_only=frame.whole_x)
    for x in log_ticks(axes.x_low, axes.x_high, max_ticks + 2) if frame.log_x else x_ticks:
        parts.append(f'<text class="tick middle" x="{axes.x(x):.1f}" y="{axes.bottom + 14}">{format_short(x)}</text>')
    parts.append(f'<text class="tick end" x="{axes.right}" y="{axes.bottom + 27}">{_escape_text(frame.x_label)}</text>')
    if frame.y_label:
        parts.append(f'<text class="tick" x="{axes.left}" y="{axes.bottom + 27}">{_escape_text(frame.y_label)}</text>')
    return "".join(parts)


def _draw_event(event: Event, axes: _Axes) -> str:
    """Draws a thin line across the chart that stands on a wedge."""
    x, bottom = axes.x(event.x), axes.bottom
    outline = f"M{x:.1f} {axes.top}V{bottom}M{x - 3.5:.1f} {bottom + 4}h7l-3.5 -5.5Z"
    return f'<path class="event" d="{outline}"><title>{_escape_text(event.name)}</title></path>'


def _draw_band(line: Line, axes: _Axes) -> str:
    if len(line.band) == 1:
        x, low, high = line.band[0]
        return f'<path class="whisker arm-{line.arm}" d="M{axes.x(x):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"/>'
    edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
    return f'<path class="band arm-{line.arm}" d="{axes.path(edge)}Z"/>'


def _draw_line(line: Line, frame: Frame, axes: _Axes) -> str:
    parts = [f'<path class="line arm-{line.arm}" d="{axes.path(line.points)}"/>'] if len(line.points) > 1 else []
    intervals = {x: (low, high) for x, low, high in line.band}
    for x, y in line.points[line.unmarked :] if line.markers else ():
        title = (
            f"{_escape_text(line.name)}, {_escape_text(frame.x_label)} {format_short(x)}: "
            f"{format_short(y, percent=frame.percent)}"
        )
        if x in intervals:
            low, high = (format_short(end, percent=frame.percent) for end in intervals[x])
            title += f" ({low} to {high})"
        mark = _draw_marker(line.arm, axes.x(x), axes.y(y))
        parts.append(f'<g class="mark arm-{line.arm}">{mark}<title>{title}</title></g>')
    return "".join(parts)


def _draw_marker(arm: ArmStyle, x: float, y: float) -> str:
    if arm == "control":
        return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4"/>'
    if arm == "base":
        return f'<path d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4Z"/>'
    if arm in ("up", "down"):
        tip = 4.6 if arm == "down" else -4.6
        return f'<path d="M{x:.1f} {y + tip:.1f}l4.4 {-1.7 * tip:.1f}h-8.8Z"/>'
    if arm in ("plus", "cross"):
        rotation = f' transform="rotate(45 {x:.1f} {y:.1f})"' if arm == "cross" else ""
        outline = f"M{x - 1.5:.1f} {y - 4.6:.1f}h3v3.1h3.1v3h-3.1v3.1h-3v-3.1h-3.1v-3h3.1Z"
        return f'<path{rotation} d="{outline}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'


def legend_marker(arm: ArmStyle) -> Markup:
    """Draws the marker of an arm alone, for legends: its shape tells the arms apart without color."""
    shape = f'<g class="mark arm-{arm}">{_draw_marker(arm, 6, 6)}</g>'
    return Markup(f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true">{shape}</svg>')


def interval_strip(mean: float, low: float, high: float, *, scale_end: float, label: str) -> Markup:
    """Draws a difference with its interval on a scale from -scale_end to +scale_end; NaN ends draw no interval."""
    width, height, middle = 200.0, 22.0, 11.0

    def x(value: float) -> float:
        return width / 2 + min(max(value / scale_end, -1.0), 1.0) * (width / 2 - 6)

    parts = []
    clarity = "clear" if low > 0 or high < 0 else "open"
    if isfinite(low) and isfinite(high):
        ends = f"M{x(low):.1f} {middle - 4}v8M{x(low):.1f} {middle}H{x(high):.1f}M{x(high):.1f} {middle - 4}v8"
        parts.append(f'<path class="strip {clarity}" d="{ends}"/>')
    parts.append(f'<circle class="strip-dot {clarity}" cx="{x(mean):.1f}" cy="{middle}" r="4.2"/>')
    return _wrap_svg(
        width, height, label, "".join(parts) + f"<title>{_escape_text(label)}</title>", style="strip-chart"
    )


def strip_scale(scale_end: float) -> Markup:
    """Draws the scale above interval strips that share `scale_end`, in points."""
    step = round_ticks(0, scale_end, 3)[-1]
    marks = [(100 + sign * step / scale_end * 94, sign * step) for sign in (-1, 0, 1)]
    labels = []
    for x, value in marks:
        place = "tick end" if x > 185 else "tick" if x < 15 else "tick middle"  # no label is cut at an edge
        x = 200 if x > 185 else 0 if x < 15 else x
        sign = "−" if value < 0 else "+" if value else ""
        labels.append(f'<text class="{place}" x="{x:.1f}" y="15">{sign}{format_short(abs(100 * value))}</text>')
    return _wrap_svg(
        200,
        20,
        f"scale from {-100 * scale_end:.0f} to {100 * scale_end:.0f} points",
        "".join(labels),
        style="strip-chart",
    )


def sparkline(points: Sequence[tuple[float, float]], *, limit: float, is_beyond: bool, label: str) -> Markup:
    """Draws a curve the size of a word: its line, its last point, and the limit as a dashed level; points are
    finite.
    """
    width, height = 120.0, 30.0
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(0.0, limit, *ys), max(0.0, limit, *ys)
    first, x_span = min(xs, default=0.0), max(xs, default=0.0) - min(xs, default=0.0)

    def locate(x: float, y: float) -> str:
        left = 3 + (x - first) / x_span * (width - 8) if x_span > 0 else width - 5
        return f"{left:.1f} {_distance_from_top(y, low, high, height):.1f}"

    style = "spark-beyond" if is_beyond else "spark-within"
    parts = [f'<path class="reference" d="M0 {_distance_from_top(limit, low, high, height):.1f}H{width:g}"/>']
    if points:
        coordinates = [locate(x, y) for x, y in points]
        parts.append(f'<path class="line {style}" d="M{"L".join(coordinates)}"/>' if len(coordinates) > 1 else "")
        x, y = coordinates[-1].split()
        parts.append(f'<circle class="{style}" cx="{x}" cy="{y}" r="2.6"/>')
    return _wrap_svg(width, height, label, "".join(parts) + f"<title>{_escape_text(label)}</title>", style="spark")


def _distance_from_top(value: float, low: float, high: float, height: float) -> float:
    """Returns the distance from the top, with margins for a marker at both ends."""
    return height - 4 - (value - low) / (high - low) * (height - 8) if high > low else height / 2


def stacked_bar(bars: Sequence[Bar], *, label: str, unit: str) -> Markup:
    """Draws shares as one horizontal bar. Sizes are not negative; an empty or zero total draws an empty bar."""
    total = sum(bar.size for bar in bars)
    return _draw_strip(_place_bars(bars, total), total, label=label, unit=unit)


def timeline(bars: Sequence[Bar], *, unit: str) -> list[tuple[str, Markup]]:
    """Draws stages in sequence: for each lane its name and its strip; all strips share one axis from 0 to the sum."""
    total = sum(bar.size for bar in bars)
    placed_bars = _place_bars(bars, total)
    lanes = dict.fromkeys(bar.lane for bar in bars)
    return [
        (
            lane,
            _draw_strip(
                [placed_bar for placed_bar in placed_bars if placed_bar[0].lane == lane],
                total,
                label=f"stages of {lane}",
                unit=unit,
            ),
        )
        for lane in lanes
    ]


def _place_bars(bars: Sequence[Bar], total: float) -> list[tuple[Bar, float, float]]:
    """Returns each bar with its start and length in thousandths of the total."""
    placed_bars, x = [], 0.0
    for bar in bars:
        length = 1000 * bar.size / total if total > 0 else 0.0
        placed_bars.append((bar, x, length))
        x += length
    return placed_bars


def _draw_strip(placed_bars: Sequence[tuple[Bar, float, float]], total: float, *, label: str, unit: str) -> Markup:
    parts = ['<rect class="track" width="1000" height="10"/>']
    for bar, x, length in placed_bars:
        share = f" ({100 * bar.size / total:.0f} %)" if total > 0 else ""
        title = f"{_escape_text(bar.label)}: {format_short(bar.size)} {_escape_text(unit)}{share}"
        parts.append(
            f'<rect class="{_escape_text(bar.style)}" x="{x:.2f}" width="{max(0.8, length - 1):.2f}" height="10">'
            f"<title>{title}</title></rect>"
        )
    body = Markup("".join(parts))
    return Markup(
        '<svg class="bar-chart" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(show_hidden(label), body)
