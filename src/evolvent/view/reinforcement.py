"""A policy that practises, as the page shows it: first why it is not learning, then its curves.

The signs and their thresholds are in `signs.py`. One is judged by its mean over the last iterations, so that one bad
iteration is no alarm and one good one no comfort.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal

from markupsafe import Markup

from evolvent.view.charts import Frame, Line, Reference, binned, line_chart, spark
from evolvent.view.data import Metric, ReportData
from evolvent.view.outcome import Panel, main_arm, panels
from evolvent.view.sections import Figure
from evolvent.view.signs import SIGNS, Sign

__all__ = ["Practised", "Reading", "Trend", "practised", "told", "trend", "verdict"]

Course = Literal["rose", "fell", "stayed", "early"]
_LAST = 5  # iterations whose mean is "now"
_SURE = 2.3  # standard errors beyond which a change of two means of five is no chance (t, 8 degrees of freedom)
_SOLVED = 0.95
_SHARES = frozenset({"success", *(sign.name for sign in SIGNS if sign.share)})
_UPDATES = (
    ("sampled_entropy", "Entropy of a token, nats"),
    ("kl", "KL divergence of updates"),
    ("clipped", "Clipped ratios, %"),
    ("explained", "Explained variance"),
    ("value_error", "Value loss"),
    ("critic_loss", "Value loss of the critic"),
    ("advantage_deviation", "Spread of advantages"),
    ("loss", "Loss"),
    ("grad_norm", "Gradient norm"),
    ("length", "Steps of an episode"),
    ("written", "Tokens of an episode"),
    ("lr", "Learning rate"),
)


@dataclass(frozen=True, slots=True)
class Trend:
    """A number over the iterations: means of the first and last few, and whether they differ beyond chance."""

    first: float
    last: float
    course: Course
    count: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A sign and what it says now: the mean of the last iterations, None where it was not measured."""

    sign: Sign
    now: float | None
    beyond: bool
    course: Markup | None

    @property
    def shown(self) -> str:
        """The number as people read it."""
        return "–" if self.now is None else told(self.sign.name, self.now)

    @property
    def limit(self) -> str:
        """The threshold in words."""
        return f"{self.sign.side} {told(self.sign.name, self.sign.limit)}"


@dataclass(frozen=True, slots=True)
class Practised:
    """What the page of a practice shows.

    Attributes:
        iterations, goal: done, and asked for where that is known. repeated: rows of iterations that were done again.
        ends: iterations whose mean is "now". idle: iterations that taught nothing.
        success, returned: their trends; None where no row has them.
        readings: of all signs that were measured, those beyond their threshold first. beyond: how many those are.
        missing: titles of the signs that were not measured. before, now: measured success, as the mean over panels.
        others: further practices in the run, which are not shown.
    """

    method: str
    stage: str
    iterations: int
    goal: int | None
    repeated: int
    ends: int
    idle: int
    episodes: float | None
    env_steps: float | None
    generated: float | None
    success: Trend | None
    returned: Trend | None
    verdict: str
    readings: Sequence[Reading]
    beyond: int
    missing: Sequence[str]
    before: float | None
    now: float | None
    learning: Sequence[Figure]
    measured: bool
    updates: Sequence[Figure]
    others: int


def practised(data: ReportData) -> Practised | None:
    """What is shown of a run that practised: its newest practice of the main arm; None where there is none."""
    rows = [row for row in data.metrics if row.kind == "practise" and row.step >= 1]
    if not rows:
        return None
    newest = next((row for row in reversed(rows) if row.arm == main_arm(data)), rows[-1])
    own = [row for row in rows if row.stage == newest.stage]
    kept = sorted({row.step: row for row in own}.values(), key=lambda row: row.step)
    ends = min(_LAST, len(kept))
    success, returned = trend(_column(kept, "success")), trend(_column(kept, "return"))
    readings = _readings(kept, ends)
    measured = _measured(panels(data), newest.arm)
    axes = _axes(kept)
    return Practised(
        method=newest.arm or data.info.method,
        stage=newest.stage,
        iterations=len(kept),
        goal=_goal(data.info.config),
        repeated=len(own) - len(kept),
        ends=ends,
        idle=sum(row.values.get("idle", 0.0) > 0 for row in kept),
        episodes=kept[-1].values.get("episodes"),
        env_steps=kept[-1].values.get("env_steps"),
        generated=axes["tokens generated"].get(kept[-1].step),
        success=success,
        returned=returned,
        verdict=verdict(success, returned, readings),
        readings=readings,
        beyond=sum(one.beyond for one in readings),
        missing=[sign.title for sign in SIGNS if sign.name not in {one.sign.name for one in readings}],
        before=next((mean for number, mean in measured if number == 0), None),
        now=next((mean for number, mean in reversed(measured) if number > 0), None),
        learning=_learning(kept, axes, measured),
        measured=bool(measured),
        updates=_updates(kept),
        others=len({row.stage for row in rows}) - 1,
    )


def _goal(config: Mapping[str, Any]) -> int | None:
    found: Any = config
    for name in ("rl", "practice", "iterations"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**53 else None


def _column(rows: Sequence[Metric], name: str) -> list[tuple[float, float]]:
    return [(row.step, row.values[name]) for row in rows if name in row.values]


# ---------------------------------------------------------------- why it is not learning


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Whether a number changed from its first few points to its last: by more than the spread inside them explains.

    Five points a side, fewer of a short course; below two a side it is early to say. None: no points.
    """
    ys = [y for _, y in points]
    if not ys:
        return None
    side = max(1, min(_LAST, len(ys) // 2))
    first, last = ys[:side], ys[-side:]
    change = statistics.fmean(last) - statistics.fmean(first)
    course: Course = "early"
    if side > 1:
        error = sqrt((statistics.variance(first) + statistics.variance(last)) / side)
        course = "stayed" if abs(change) <= _SURE * error else "rose" if change > 0 else "fell"
    return Trend(statistics.fmean(first), statistics.fmean(last), course, len(ys))


def verdict(success: Trend | None, returned: Trend | None, readings: Sequence[Reading]) -> str:
    """Whether it learns, and the first sign that says why not."""
    beyond = [one for one in readings if one.beyond]
    learns, sentence = _learns(success, returned)
    if not beyond:
        rest = "" if learns else " The reason is none of these: look at credit, the tasks and the learning rate."
        return f"{sentence} No sign is beyond its threshold.{rest}"
    one, still = beyond[0], "Still, " if learns else ""
    named = f"{one.sign.title}, {one.shown}. It means that {one.sign.means}."
    if len(beyond) == 1:
        one_sign = "one sign is" if still else "One sign is"
        return f"{sentence} {still}{one_sign} beyond its threshold: {named}"
    return f"{sentence} {still}{len(beyond)} signs are beyond their thresholds. The first: {named}"


def _learns(success: Trend | None, returned: Trend | None) -> tuple[bool, str]:
    """Whether there is nothing to worry about, and a sentence."""
    rising = success is not None and returned is not None and (success.course, returned.course) == ("stayed", "rose")
    kind, one = ("success", success) if success is not None and not rising else ("return", returned)
    if one is None:
        return False, "Nothing says whether it learns: no iteration has a success or a return."
    name = "success in practice" if kind == "success" else "the return in practice"
    first, last = told(kind, one.first), told(kind, one.last)
    over = f"over {one.count} iterations"
    if kind == "success" and one.last >= _SOLVED:
        return True, f"Nearly everything is solved: {name} is {last}. Little is left to learn here."
    sentences = {
        "early": f"It is early to say: {name} is {last} after {one.count} iteration{'s' if one.count > 1 else ''}.",
        "rose": f"It is learning: {name} rose from {first} to {last} {over}.",
        "fell": f"It is getting worse: {name} fell from {first} to {last} {over}.",
        "stayed": f"It is not learning: {name} was {first} at first and is {last} now, no change beyond chance {over}.",
    }
    return one.course == "rose", sentences[one.course]


def _readings(rows: Sequence[Metric], ends: int) -> list[Reading]:
    """All signs of which there is a number, those beyond their threshold first, else in the order of `SIGNS`.

    Groups are compared where there is no critic; with one, their variance is the last that it could be.
    """
    found, criticised = [], any("explained" in row.values for row in rows)
    for sign in SIGNS:
        points = _column(rows, sign.name)
        if not points:
            continue
        recent = [row.values[sign.name] for row in rows[-ends:] if sign.name in row.values]
        now = statistics.fmean(recent) if recent else None
        beyond = now is not None and (now > sign.limit if sign.side == "above" else now < sign.limit)
        reading = Reading(sign, now, beyond, None)
        label = f"{sign.title}: now {reading.shown}, of {len(points)} iterations; the threshold is {reading.limit}"
        course = spark(binned(points, 40)[0], limit=sign.limit, beyond=beyond, label=label)
        found.append(replace(reading, course=course))
    return sorted(
        found, key=lambda one: (not one.beyond, one.beyond and criticised and one.sign.name == "equal_groups")
    )


def told(name: str, value: float) -> str:
    """A number as people read it: shares as per cent."""
    if name in _SHARES:
        return f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"
    if value and abs(value) < 1e-4:
        return "about 0"
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")


# ---------------------------------------------------------------- curves


def _measured(shown: Sequence[Panel], arm: str) -> list[tuple[int, float]]:
    """Iteration and the plain mean over all panels, where every panel has one; the base is iteration 0."""
    found: dict[int, list[float | None]] = {}
    for panel in shown:
        for row in (*panel.curves.get("base", ())[:1], *panel.curves.get(arm, ())):
            found.setdefault(row.round, []).append(row.mean)
    complete = {number: [mean for mean in means if mean is not None] for number, means in found.items()}
    return sorted((number, statistics.fmean(means)) for number, means in complete.items() if len(means) == len(shown))


def _axes(rows: Sequence[Metric]) -> dict[str, dict[float, float]]:
    """What an iteration is on each axis: its number, environment steps and generated tokens until then."""
    generated, episodes = 0.0, 0.0
    tokens: dict[float, float] = {}
    for row in rows:
        total = row.values.get("episodes", episodes)
        if "written" in row.values:
            generated += max(0.0, row.values["written"] * (total - episodes))
            tokens[row.step] = generated
        episodes = total
    return {
        "iteration": {row.step: row.step for row in rows},
        "environment steps": {row.step: row.values["env_steps"] for row in rows if "env_steps" in row.values},
        "tokens generated": tokens,
    }


def _learning(
    rows: Sequence[Metric], axes: Mapping[str, Mapping[float, float]], measured: Sequence[tuple[int, float]]
) -> list[Figure]:
    """Success and, where it says something else, return, over iterations, environment steps and tokens."""
    success, returned = _column(rows, "success"), _column(rows, "return")
    figures = []
    for name, points, rate in (("Success", success, True), ("Return", returned, False)):
        if not points or (not rate and points == success):
            continue
        rate = rate and all(0 <= y <= 1 for _, y in points)
        for axis, places in axes.items():
            line = _line(name, [(places[step], y) for step, y in points if step in places])
            starts = [(places.get(number, 0.0 if number == 0 else None), mean) for number, mean in measured]
            known = [(x, mean) for x, mean in starts if x is not None] if name == "Success" else []
            if not line.points:
                continue
            frame = Frame(
                f"{name} by {axis}",
                axis,
                f"{name.lower()}, %" if rate else name.lower(),
                x_range=_from_0([*line.points, *known]),
                y_range=(0.0, 1.0) if rate else None,
                percent=rate,
                whole_x=True,
                width=330,
                height=200,
            )
            chart = line_chart(frame, [line, Line("measured", "control", known)])
            figures.append(Figure(name, chart, f"by {axis}"))
    return figures


def _updates(rows: Sequence[Metric]) -> list[Figure]:
    """What the updates did, as small multiples; a threshold that is near is drawn."""
    limits = {sign.name: sign.limit for sign in SIGNS}
    figures = []
    for name, title in _UPDATES:
        scale = 100.0 if name in _SHARES else 1.0
        points = [(step, scale * y) for step, y in _column(rows, name)]
        if not points:
            continue
        line = _line(title, points)
        ends = [y for _, y in line.points] + [y for _, *band in line.band for y in band]
        low, high = min(0.0, *ends), max(0.0, *ends)
        limit = scale * limits[name] if name in limits else None
        near = limit is not None and low <= limit <= 3 * high
        high = max(high, (limit or 0.0) / 20, limit if near and limit is not None else 0.0)
        frame = Frame(
            title,
            "iteration",
            x_range=_from_0(points),
            whole_x=True,
            width=250,
            height=170,
            y_range=(low, high) if high > low else None,
        )
        references = [Reference("threshold", limit)] if near and limit is not None else []
        figures.append(Figure(title, line_chart(frame, [line], references)))
    return figures


def _line(name: str, points: Sequence[tuple[float, float]]) -> Line:
    means, band = binned(points)
    return Line(name, "evolve", means, band, markers=len(means) <= 12)


def _from_0(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    xs = [x for x, _ in points]
    return min(0.0, *xs), max(1.0, *xs)
