"""Numbers to inline SVG: line charts with bands, interval strips, stacked bars, a timeline of stages.

Pure functions without a script. Colours come from classes (`arm-evolve`, `verb-fit`, ...) of the page's style sheet, so
that one drawing serves light, dark and print. Every mark carries its value as a `<title>`. All text is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log, log10
from typing import Literal

from markupsafe import Markup, escape

from evolvent.view.escape import clip, plain

__all__ = [
    "ArmStyle",
    "Bar",
    "Event",
    "Frame",
    "Line",
    "Reference",
    "binned",
    "interval_strip",
    "line_chart",
    "marker",
    "spark",
    "stacked_bar",
    "timeline",
]

ArmStyle = Literal["evolve", "control", "base", "expert", "other", "up", "down", "plus", "cross"]


@dataclass(frozen=True, slots=True)
class Line:
    """One series: `points` are (x, y), `band` (x, low, high) at the same or other x. `arm` gives colour and marker.

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

    On an axis with `log_x` equal factors are equally wide; all x are above 0 then.
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


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of a stacked bar or timeline: its label, size and class."""

    label: str
    size: float
    style: str
    lane: str = ""


def number(value: float, *, percent: bool = False) -> str:
    """A short number for an axis or a title."""
    if percent:
        return f"{100 * value:.0f} %"
    if value == 0:
        return "0"
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.3g}" if 1e-3 <= size < 1e3 else f"{value:.0f}" if size >= 1e3 else f"{value:.0e}"


def ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside low..high, at most about `most`."""
    span = high - low
    if not span > 1e-300 or not isfinite(span):  # below it, steps would be no numbers any more
        return [low]
    rough = span / max(1, most - 1)
    power = 10.0 ** floor(log10(rough))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999), 10 * power)
    step = max(1.0, float(ceil(step))) if whole else step
    first = ceil(low / step - 1e-9)
    last = floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)] or [low]


def log_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """1, 2 and 5 times powers of ten inside low..high, only the powers where those are too many; else `ticks`."""
    powers = [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]
    for steps in ((1, 2, 5), (1,)):
        found = [step * power for power in powers for step in steps if low <= step * power <= high]
        if 2 <= len(found) <= most:
            return found
    return found[:: ceil(len(found) / most)] if len(found) > most else ticks(low, high, most)


def binned(
    points: Sequence[tuple[float, float]], bins: int = 60
) -> tuple[list[tuple[float, float]], list[tuple[float, float, float]]]:
    """A long noisy curve as means of neighbouring points, and the band of their smallest and largest."""
    finite = sorted(point for point in points if isfinite(point[0]) and isfinite(point[1]))
    size = max(1, ceil(len(finite) / bins))
    means, band = [], []
    for start in range(0, len(finite), size):
        part = finite[start : start + size]
        x = sum(x for x, _ in part) / len(part)
        ys = [y for _, y in part]
        means.append((x, sum(ys) / len(ys)))
        band.append((x, min(ys), max(ys)))
    return means, band if size > 1 else []


def _span(
    values: Sequence[float], wanted: tuple[float, float] | None, *, floor_zero: bool = False
) -> tuple[float, float]:
    if wanted is not None:
        return wanted
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if floor_zero else low
    room = max(0.5, 1e-6 * abs(low))
    return (low, high) if high > low else (low - room, low + room)


class _Axes:
    """Where data lies on the drawing."""

    def __init__(self, frame: Frame, lines: Sequence[Line], events: Sequence[Event] = ()) -> None:
        xs = [x for line in lines for x, _ in line.points] + [event.x for event in events]
        ys = [y for line in lines for _, y in line.points] + [y for line in lines for b in line.band for y in b[1:]]
        self.x_low, self.x_high = _span(xs, frame.x_range)
        self.log_x = frame.log_x
        if self.log_x:  # room for the marks at both ends
            least, most = (min(xs), max(xs)) if xs else (1.0, 10.0)
            self.x_low, self.x_high = least / 1.2, most * 1.2
        self.y_low, self.y_high = _span(ys, frame.y_range, floor_zero=True)
        self.left, self.right, self.top, self.bottom = 38.0, frame.width - 10.0, 10.0, frame.height - 30.0

    def x(self, value: float) -> float:
        if self.log_x:
            return self.left + log(value / self.x_low) / log(self.x_high / self.x_low) * (self.right - self.left)
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.right - self.left)

    def y(self, value: float) -> float:
        inside = min(max(value, self.y_low), self.y_high)
        return self.bottom - (inside - self.y_low) / (self.y_high - self.y_low) * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)


def _safe(text: str) -> Markup:
    return escape(plain(clip(text, 80)))


def _svg(width: float, height: float, label: str, body: str, *, style: str = "chart") -> Markup:
    return Markup(
        f'<svg class="{style}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_safe(label)}">{body}</svg>'
    )


def line_chart(
    frame: Frame, lines: Sequence[Line], references: Sequence[Reference] = (), *, events: Sequence[Event] = ()
) -> Markup:
    """Lines over bands over events and references. Lines without points are left out; points must be finite."""
    shown = [line for line in lines if line.points]
    axes = _Axes(frame, shown, events)
    parts = [_grid(frame, axes)]
    parts += [_event(event, axes) for event in events]
    parts += _references(references, shown, frame, axes)
    parts += [_band(line, axes) for line in shown if line.band]
    parts += [_line(line, frame, axes) for line in shown]
    names = ", ".join(dict.fromkeys(line.name for line in shown))
    return _svg(frame.width, frame.height, f"{frame.title}: {names} by {frame.x_label}", "".join(parts))


def _references(references: Sequence[Reference], lines: Sequence[Line], frame: Frame, axes: _Axes) -> list[str]:
    """Dashed levels with their names; names that would lie on each other share one label, names on data go."""
    taken = [axes.y(y) for line in lines for x, y in line.points if axes.x(x) > 0.45 * (axes.left + axes.right)]
    parts: list[str] = []
    labels: list[tuple[float, str]] = []
    for one in sorted(references, key=lambda one: one.y):
        y = axes.y(one.y)
        title = f"{_safe(one.name)}: {number(one.y, percent=frame.percent)}"
        parts.append(f'<path class="reference" d="M{axes.left} {y:.1f}H{axes.right}"><title>{title}</title></path>')
        if labels and abs(labels[-1][0] - y) < 12:
            labels[-1] = (y, f"{labels[-1][1]}, {one.name}")
        else:
            labels.append((y, one.name))
    for y, name in labels:
        at = y + 11 if y < axes.top + 14 else y - 4
        if any(at - 15 < other < at + 7 for other in taken):
            continue
        parts.append(f'<text class="note end" x="{axes.right - 2}" y="{at:.1f}">{_safe(name)}</text>')
    return parts


def _grid(frame: Frame, axes: _Axes) -> str:
    parts = []
    for y in (0.0, 0.25, 0.5, 0.75, 1.0) if frame.percent else ticks(axes.y_low, axes.y_high):
        at = axes.y(y)
        parts.append(f'<path class="grid" d="M{axes.left} {at:.1f}H{axes.right}"/>')
        label = number(100 * y if frame.percent else y)
        parts.append(f'<text class="tick end" x="{axes.left - 6}" y="{at + 3.5:.1f}">{label}</text>')
    most = max(5, frame.width // 50)
    shown = ticks(axes.x_low, axes.x_high, most, whole=frame.whole_x)
    for x in log_ticks(axes.x_low, axes.x_high, most + 2) if frame.log_x else shown:
        parts.append(f'<text class="tick middle" x="{axes.x(x):.1f}" y="{axes.bottom + 14}">{number(x)}</text>')
    parts.append(f'<text class="tick end" x="{axes.right}" y="{axes.bottom + 27}">{_safe(frame.x_label)}</text>')
    if frame.y_label:
        parts.append(f'<text class="tick" x="{axes.left}" y="{axes.bottom + 27}">{_safe(frame.y_label)}</text>')
    return "".join(parts)


def _event(event: Event, axes: _Axes) -> str:
    """A thin line across the chart that stands on a wedge."""
    x, bottom = axes.x(event.x), axes.bottom
    drawn = f"M{x:.1f} {axes.top}V{bottom}M{x - 3.5:.1f} {bottom + 4}h7l-3.5 -5.5Z"
    return f'<path class="event" d="{drawn}"><title>{_safe(event.name)}</title></path>'


def _band(line: Line, axes: _Axes) -> str:
    if len(line.band) == 1:
        x, low, high = line.band[0]
        return f'<path class="whisker arm-{line.arm}" d="M{axes.x(x):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"/>'
    edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
    return f'<path class="band arm-{line.arm}" d="{axes.path(edge)}Z"/>'


def _line(line: Line, frame: Frame, axes: _Axes) -> str:
    parts = [f'<path class="line arm-{line.arm}" d="{axes.path(line.points)}"/>'] if len(line.points) > 1 else []
    intervals = {x: (low, high) for x, low, high in line.band}
    for x, y in line.points[line.unmarked :] if line.markers else ():
        title = f"{_safe(line.name)}, {_safe(frame.x_label)} {number(x)}: {number(y, percent=frame.percent)}"
        if x in intervals:
            low, high = (number(end, percent=frame.percent) for end in intervals[x])
            title += f" ({low} to {high})"
        mark = _shape(line.arm, axes.x(x), axes.y(y))
        parts.append(f'<g class="mark arm-{line.arm}">{mark}<title>{title}</title></g>')
    return "".join(parts)


def _shape(arm: ArmStyle, x: float, y: float) -> str:
    if arm == "control":
        return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4"/>'
    if arm == "base":
        return f'<path d="M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4Z"/>'
    if arm in ("up", "down"):
        tip = 4.6 if arm == "down" else -4.6
        return f'<path d="M{x:.1f} {y + tip:.1f}l4.4 {-1.7 * tip:.1f}h-8.8Z"/>'
    if arm in ("plus", "cross"):
        turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if arm == "cross" else ""
        drawn = f"M{x - 1.5:.1f} {y - 4.6:.1f}h3v3.1h3.1v3h-3.1v3.1h-3v-3.1h-3.1v-3h3.1Z"
        return f'<path{turned} d="{drawn}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'


def marker(arm: ArmStyle) -> Markup:
    """The mark of an arm alone, for legends: its shape tells the arms apart without colour."""
    shape = f'<g class="mark arm-{arm}">{_shape(arm, 6, 6)}</g>'
    return Markup(f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true">{shape}</svg>')


def interval_strip(mean: float, low: float, high: float, *, reach: float, label: str) -> Markup:
    """A difference with its interval on a scale from -reach to +reach, 0 in the middle; NaN ends draw no interval."""
    width, height, middle = 200.0, 22.0, 11.0

    def x(value: float) -> float:
        return width / 2 + min(max(value / reach, -1.0), 1.0) * (width / 2 - 6)

    parts = []
    clear = "clear" if low > 0 or high < 0 else "open"
    if isfinite(low) and isfinite(high):
        ends = f"M{x(low):.1f} {middle - 4}v8M{x(low):.1f} {middle}H{x(high):.1f}M{x(high):.1f} {middle - 4}v8"
        parts.append(f'<path class="strip {clear}" d="{ends}"/>')
    parts.append(f'<circle class="strip-dot {clear}" cx="{x(mean):.1f}" cy="{middle}" r="4.2"/>')
    return _svg(width, height, label, "".join(parts) + f"<title>{_safe(label)}</title>", style="strip-chart")


def strip_scale(reach: float) -> Markup:
    """The scale above interval strips of the same reach, in points."""
    step = ticks(0, reach, 3)[-1]
    places = [(100 + sign * step / reach * 94, sign * step) for sign in (-1, 0, 1)]
    labels = [
        f'<text class="tick middle" x="{x:.1f}" y="15">{"−" if value < 0 else "+" if value else ""}'
        f"{number(abs(100 * value))}</text>"
        for x, value in places
    ]
    return _svg(
        200, 20, f"scale from {-100 * reach:.0f} to {100 * reach:.0f} points", "".join(labels), style="strip-chart"
    )


def spark(points: Sequence[tuple[float, float]], *, limit: float, beyond: bool, label: str) -> Markup:
    """A course in the space of a word: its line, its last point, and the limit as a dashed level; finite points."""
    width, height = 120.0, 30.0
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = min(0.0, limit, *ys), max(0.0, limit, *ys)
    first, whole = min(xs, default=0.0), max(xs, default=0.0) - min(xs, default=0.0)

    def at(x: float, y: float) -> str:
        across = 3 + (x - first) / whole * (width - 8) if whole > 0 else width - 5
        return f"{across:.1f} {_down(y, low, high, height):.1f}"

    style = "spark-beyond" if beyond else "spark-within"
    parts = [f'<path class="reference" d="M0 {_down(limit, low, high, height):.1f}H{width:g}"/>']
    if points:
        places = [at(x, y) for x, y in points]
        parts.append(f'<path class="line {style}" d="M{"L".join(places)}"/>' if len(places) > 1 else "")
        x, y = places[-1].split()
        parts.append(f'<circle class="{style}" cx="{x}" cy="{y}" r="2.6"/>')
    return _svg(width, height, label, "".join(parts) + f"<title>{_safe(label)}</title>", style="spark")


def _down(value: float, low: float, high: float, height: float) -> float:
    """How far from the top, with room for a mark at both ends."""
    return height - 4 - (value - low) / (high - low) * (height - 8) if high > low else height / 2


def stacked_bar(bars: Sequence[Bar], *, label: str, unit: str) -> Markup:
    """Shares of a whole as one horizontal bar. Sizes are not negative; an empty or zero whole draws an empty bar."""
    whole = sum(bar.size for bar in bars)
    return _strip(_placed(bars, whole), whole, label=label, unit=unit)


def timeline(bars: Sequence[Bar], *, unit: str) -> list[tuple[str, Markup]]:
    """Stages one after another: for each lane its name and its strip; all strips share one axis from 0 to the sum."""
    whole = sum(bar.size for bar in bars)
    placed = _placed(bars, whole)
    lanes = dict.fromkeys(bar.lane for bar in bars)
    return [
        (lane, _strip([one for one in placed if one[0].lane == lane], whole, label=f"stages of {lane}", unit=unit))
        for lane in lanes
    ]


def _placed(bars: Sequence[Bar], whole: float) -> list[tuple[Bar, float, float]]:
    """Each bar with its start and length in thousandths of the whole."""
    placed, x = [], 0.0
    for bar in bars:
        long = 1000 * bar.size / whole if whole > 0 else 0.0
        placed.append((bar, x, long))
        x += long
    return placed


def _strip(placed: Sequence[tuple[Bar, float, float]], whole: float, *, label: str, unit: str) -> Markup:
    parts = ['<rect class="track" width="1000" height="10"/>']
    for bar, x, long in placed:
        share = f" ({100 * bar.size / whole:.0f} %)" if whole > 0 else ""
        title = f"{_safe(bar.label)}: {number(bar.size)} {_safe(unit)}{share}"
        parts.append(
            f'<rect class="{_safe(bar.style)}" x="{x:.2f}" width="{max(0.8, long - 1):.2f}" height="10">'
            f"<title>{title}</title></rect>"
        )
    body = Markup("".join(parts))
    return Markup(
        '<svg class="bar-chart" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(plain(label), body)
