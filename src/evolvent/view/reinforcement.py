"""Page of a policy trained by reinforcement learning: first why it is not learning, then its curves.

The signs and their thresholds are in `SIGNS`. One is judged by its mean over the last iterations, so that one bad
iteration is no alarm and one good one no comfort.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Literal

from markupsafe import Markup

from evolvent.view.charts import Frame, Line, Reference, bin_points, line_chart, sparkline
from evolvent.view.data import Metric, ReportData
from evolvent.view.outcome import Panel, build_panels, main_arm
from evolvent.view.sections import Figure

__all__ = [
    "SIGNS",
    "Reading",
    "Sign",
    "TrainingSummary",
    "Trend",
    "build_verdict",
    "compute_trend",
    "describe_training",
    "format_number",
    "summarize_training",
]


@dataclass(frozen=True, slots=True)
class Sign:
    """A number that tells whether learning is in trouble.

    Attributes:
        name: of the number in the metrics. title: in words. limit: the threshold, and `side` the bad side of it.
        share: whether it is a share, read as per cent. means: what is wrong beyond it. try_: what to do then.
    """

    name: str
    title: str
    limit: float
    side: Literal["above", "below"]
    share: bool
    means: str
    try_: str


SIGNS: tuple[Sign, ...] = (
    Sign(
        "unscored",
        "episodes without a score",
        0.1,
        "above",
        True,
        "the world or its grader fails",
        "look at the errors of the episodes",
    ),
    Sign(
        "unparsed",
        "actions that cannot be read",
        0.2,
        "above",
        True,
        "the policy does not know the language of actions",
        "imitate demonstrations first",
    ),
    Sign(
        "invalid",
        "actions that the world refuses",
        0.5,
        "above",
        True,
        "actions are words, but not possible ones",
        "imitate demonstrations first, or choose among admissible actions",
    ),
    Sign(
        "context_full",
        "episodes out of context",
        0.1,
        "above",
        True,
        "the conversation does not fit the policy",
        "a longer context, or another history",
    ),
    Sign(
        "truncated",
        "episodes cut at the horizon",
        0.5,
        "above",
        True,
        "episodes end before the reward comes",
        "raise the horizon, or begin with a shorter task",
    ),
    Sign(
        "cut",
        "replies cut at the limit of tokens",
        0.2,
        "above",
        True,
        "replies end before the answer comes",
        "raise max_tokens, or reward short replies",
    ),
    Sign(
        "paid_only",
        "episodes that earn a reward without a success, where none succeeds",
        0.9,
        "above",
        True,
        "the reward has no success that is ever met: look at the mean return",
        "set success_at, or the highest reward_range that an episode can earn",
    ),
    Sign(
        "lr_reached",
        "learning rate reached so far, of its value",
        0.99,
        "below",
        True,
        "the warm-up is longer than the training",
        "lower train.warmup_steps, or train longer",
    ),
    Sign(
        "stale", "episodes of too old a policy", 0.2, "above", True, "collected work is thrown away", "allow more lag"
    ),
    Sign(
        "mismatch",
        "sampler against learner",
        0.01,
        "above",
        False,
        "actions were sampled from another distribution",
        "check temperature and top-k, correct it (rl.importance_correction), or allow less lag",
    ),
    Sign(
        "equal_groups",
        "groups without variance",
        0.7,
        "above",
        True,
        "most tasks are always solved, or never",
        "choose tasks of other difficulty, more samples a task, or start from demonstrations",
    ),
    Sign(
        "sampled_entropy",
        "entropy of a token (nats)",
        0.02,
        "below",
        False,
        "the policy always does the same",
        "raise the entropy bonus or temperature, lower the learning rate",
    ),
    Sign(
        "kl",
        "divergence of an iteration's updates",
        0.1,
        "above",
        False,
        "updates leave the policy that was measured",
        "fewer epochs, a lower learning rate, or a limit (rl.target_kl)",
    ),
    Sign(
        "clipped",
        "parts whose ratio was clipped",
        0.3,
        "above",
        True,
        "most of what is learned is thrown away",
        "fewer epochs, or a lower learning rate",
    ),
    Sign(
        "explained",
        "variance of returns that values explain",
        0.0,
        "below",
        False,
        "the critic is worse than a constant",
        "a higher critic learning rate, or critic_warmup",
    ),
    Sign(
        "bias",
        "mean of values minus returns, in deviations",
        0.5,
        "above",
        False,
        "the critic is off in one direction",
        "critic_warmup, or a lower discount",
    ),
)


Course = Literal["rose", "fell", "stayed", "early"]
_RECENT_ITERATIONS = 5  # iterations whose mean is "now"
_SIGNIFICANT_ERRORS = (
    2.3  # standard errors beyond which a change of two means of five is no chance (t, 8 degrees of freedom)
)
_SOLVED_RATE = 0.95
_RATE_NAMES = frozenset({"success", *(sign.name for sign in SIGNS if sign.share)})
_UPDATE_METRICS = (
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
    """A sign and its current value: the mean of the last iterations, None where it was not measured."""

    sign: Sign
    now: float | None
    beyond: bool
    course: Markup | None

    @property
    def shown(self) -> str:
        """Returns the formatted number."""
        return "–" if self.now is None else format_number(self.sign.name, self.now)

    @property
    def limit(self) -> str:
        """Returns the threshold as text."""
        return f"{self.sign.side} {format_number(self.sign.name, self.sign.limit)}"


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """Contents of the page of a reinforcement learning stage.

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


def summarize_training(data: ReportData) -> TrainingSummary | None:
    """Describes the newest reinforcement learning stage of the main arm; None where there is none."""
    rows = [row for row in data.metrics if row.kind == "practise" and row.step >= 1]
    if not rows:
        return None
    newest = next((row for row in reversed(rows) if row.arm == main_arm(data)), rows[-1])
    stage_rows = [row for row in rows if row.stage == newest.stage]
    iteration_rows = sorted({row.step: row for row in stage_rows}.values(), key=lambda row: row.step)
    num_recent = min(_RECENT_ITERATIONS, len(iteration_rows))
    success, returned = (
        compute_trend(_column(iteration_rows, "success")),
        compute_trend(_column(iteration_rows, "return")),
    )
    readings = _read_signs(iteration_rows, num_recent)
    evaluations = _mean_over_panels(build_panels(data), newest.arm)
    axes = _iteration_axes(iteration_rows)
    return TrainingSummary(
        method=newest.arm or data.info.method,
        stage=newest.stage,
        iterations=len(iteration_rows),
        goal=_requested_iterations(data.info.config),
        repeated=len(stage_rows) - len(iteration_rows),
        ends=num_recent,
        idle=sum(row.values.get("idle", 0.0) > 0 for row in iteration_rows),
        episodes=iteration_rows[-1].values.get("episodes"),
        env_steps=iteration_rows[-1].values.get("env_steps"),
        generated=axes["tokens generated"].get(iteration_rows[-1].step),
        success=success,
        returned=returned,
        verdict=build_verdict(success, returned, readings),
        readings=readings,
        beyond=sum(reading.beyond for reading in readings),
        missing=[sign.title for sign in SIGNS if sign.name not in {reading.sign.name for reading in readings}],
        before=next((mean for number, mean in evaluations if number == 0), None),
        now=next((mean for number, mean in reversed(evaluations) if number > 0), None),
        learning=_draw_learning(iteration_rows, axes, evaluations),
        measured=bool(evaluations),
        updates=_draw_updates(iteration_rows),
        others=len({row.stage for row in rows}) - 1,
    )


def _requested_iterations(config: Mapping[str, Any]) -> int | None:
    setting: Any = config.get("rl")
    practice = setting.get("practice", setting) if isinstance(setting, Mapping) else None
    setting = practice.get("iterations") if isinstance(practice, Mapping) else None
    return setting if isinstance(setting, int) and not isinstance(setting, bool) and 0 < setting < 2**53 else None


def _column(rows: Sequence[Metric], name: str) -> list[tuple[float, float]]:
    return [(row.step, row.values[name]) for row in rows if name in row.values]


# ---------------------------------------------------------------- why it is not learning


def compute_trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Compares the first and last few points of a number: did it change by more than the spread within them
    explains?

    Five points a side, fewer of a short course; below two a side it is early to say. None: no points.
    """
    ys = [y for _, y in points]
    if not ys:
        return None
    num_side = max(1, min(_RECENT_ITERATIONS, len(ys) // 2))
    first, last = ys[:num_side], ys[-num_side:]
    change = statistics.fmean(last) - statistics.fmean(first)
    course: Course = "early"
    if num_side > 1:
        error = sqrt((statistics.variance(first) + statistics.variance(last)) / num_side)
        course = "stayed" if abs(change) <= _SIGNIFICANT_ERRORS * error else "rose" if change > 0 else "fell"
    return Trend(statistics.fmean(first), statistics.fmean(last), course, len(ys))


def describe_training(data: ReportData) -> list[str]:
    """Returns what a terminal tells at the end of a training: success before and after, and the report's verdict.

    Empty where the run has no reinforcement learning stage.
    """
    training = summarize_training(data)
    if training is None:
        return []
    lines = []
    if training.before is not None and training.now is not None:
        before, now = format_number("success", training.before), format_number("success", training.now)
        lines.append(f"success on held-out tasks: {before} before, {now} after")
    if training.idle == training.iterations:
        iterations = f"None of the {training.iterations} iterations" if training.iterations > 1 else "The iteration"
        verb = "taught anything" if training.iterations > 1 else "taught nothing"
        lines.append(
            f"{iterations} {verb}: all episodes of a task earned the same, so "
            "the weights stayed. Use easier tasks, a reward with partial credit, or a policy that sometimes succeeds."
        )
    else:
        lines.append(training.verdict)
    return lines


def build_verdict(success: Trend | None, returned: Trend | None, readings: Sequence[Reading]) -> str:
    """Returns whether the policy learns, and the first sign that explains why not."""
    alarms = [first_alarm for first_alarm in readings if first_alarm.beyond]
    learns, sentence = _judge_learning(success, returned)
    if not alarms:
        addition = "" if learns else " The reason is none of these: look at credit, the tasks and the learning rate."
        return f"{sentence} No warnings.{addition}"
    first_alarm = alarms[0]
    description = f"{first_alarm.sign.title}, {first_alarm.shown}. It can mean that {first_alarm.sign.means}."
    if len(alarms) == 1:
        return f"{sentence} One warning: {description}"
    return f"{sentence} {len(alarms)} warnings. The first: {description}"


def _judge_learning(success: Trend | None, returned: Trend | None) -> tuple[bool, str]:
    """Returns whether there is nothing to worry about, and a sentence."""
    is_return_shown = success is None
    if success is not None and returned is not None:
        is_never_met = success.first == success.last == 0.0 and returned.last != 0.0
        is_return_shown = is_never_met or (success.course, returned.course) == ("stayed", "rose")
    kind, shown_trend = ("return", returned) if is_return_shown else ("success", success)
    if shown_trend is None:
        return False, "Nothing says whether it learns: no iteration has a success or a return."
    name = "success in training" if kind == "success" else "the return in training"
    first, last = format_number(kind, shown_trend.first), format_number(kind, shown_trend.last)
    compared = max(1, min(_RECENT_ITERATIONS, shown_trend.count // 2))
    duration = f"(means of the first and last {compared} of {shown_trend.count} iterations)"
    if kind == "success" and shown_trend.last >= _SOLVED_RATE:
        return True, f"Nearly everything is solved: {name} is {last}. Little is left to learn here."
    plural = "s" if shown_trend.count > 1 else ""
    sentences = {
        "early": f"It is early to say: {name} is {last} after {shown_trend.count} iteration{plural}.",
        "rose": f"It is learning: {name} rose from {first} to {last} {duration}.",
        "fell": f"It is getting worse: {name} fell from {first} to {last} {duration}.",
        "stayed": f"It is not learning: {name} was {first} at first and is {last} now, "
        f"no change beyond chance {duration}.",
    }
    return shown_trend.course == "rose", sentences[shown_trend.course]


def _read_signs(rows: Sequence[Metric], num_recent: int) -> list[Reading]:
    """Returns the signs that have a number, those beyond their threshold first, else in the order of `SIGNS`.

    Groups are compared where there is no critic; with one, their variance is the last that it could be.
    """
    readings, has_critic = [], any("explained" in row.values for row in rows)
    for sign in SIGNS:
        points = _column(rows, sign.name)
        if not points:
            continue
        recent = [row.values[sign.name] for row in rows[-num_recent:] if sign.name in row.values]
        now = statistics.fmean(recent) if recent else None
        is_beyond = now is not None and (now > sign.limit if sign.side == "above" else now < sign.limit)
        reading = Reading(sign, now, is_beyond, None)
        label = f"{sign.title}: now {reading.shown}, of {len(points)} iterations; the threshold is {reading.limit}"
        course = sparkline(bin_points(points, 40)[0], limit=sign.limit, is_beyond=is_beyond, label=label)
        readings.append(replace(reading, course=course))
    return sorted(
        readings,
        key=lambda entry: (not entry.beyond, entry.beyond and has_critic and entry.sign.name == "equal_groups"),
    )


def format_number(name: str, value: float) -> str:
    """Formats a number; shares are percentages."""
    if name in _RATE_NAMES:
        return f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"
    if value and abs(value) < 1e-4:
        return "about 0"
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")


# ---------------------------------------------------------------- curves


def _mean_over_panels(evaluated_panels: Sequence[Panel], arm: str) -> list[tuple[int, float]]:
    """Returns iteration and plain mean over all panels, where every panel has a mean; the base is iteration 0."""
    means_per_round: dict[int, list[float | None]] = {}
    for panel in evaluated_panels:
        for row in (*panel.curves.get("base", ())[:1], *panel.curves.get(arm, ())):
            means_per_round.setdefault(row.round, []).append(row.mean)
    complete = {number: [mean for mean in means if mean is not None] for number, means in means_per_round.items()}
    return sorted(
        (number, statistics.fmean(means)) for number, means in complete.items() if len(means) == len(evaluated_panels)
    )


def _iteration_axes(rows: Sequence[Metric]) -> dict[str, dict[float, float]]:
    """Returns for each axis the position of an iteration: its number, environment steps and generated tokens until
    then.
    """
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


def _draw_learning(
    rows: Sequence[Metric], axes: Mapping[str, Mapping[float, float]], evaluations: Sequence[tuple[int, float]]
) -> list[Figure]:
    """Draws success and, where it differs, return, over iterations, environment steps and tokens."""
    success, returned = _column(rows, "success"), _column(rows, "return")
    figures = []
    for name, points, is_rate in (("Success", success, True), ("Return", returned, False)):
        if not points or (not is_rate and points == success):
            continue
        is_rate = is_rate and all(0 <= y <= 1 for _, y in points)
        for axis, positions in axes.items():
            line = _build_line(name, [(positions[step], y) for step, y in points if step in positions])
            starts = [(positions.get(number, 0.0 if number == 0 else None), mean) for number, mean in evaluations]
            evaluation_points = [(x, mean) for x, mean in starts if x is not None] if name == "Success" else []
            if not line.points:
                continue
            frame = Frame(
                f"{name} by {axis}",
                axis,
                f"{name.lower()}, %" if is_rate else name.lower(),
                x_range=_range_from_zero([*line.points, *evaluation_points]),
                y_range=(0.0, 1.0) if is_rate else None,
                percent=is_rate,
                whole_x=True,
                width=330,
                height=200,
            )
            chart = line_chart(frame, [line, Line("measured", "control", evaluation_points)])
            figures.append(Figure(name, chart, f"by {axis}"))
    return figures


def _draw_updates(rows: Sequence[Metric]) -> list[Figure]:
    """Draws the metrics of the updates as small multiples; a threshold is drawn where it is near."""
    limits = {sign.name: sign.limit for sign in SIGNS}
    figures = []
    for name, title in _UPDATE_METRICS:
        scale = 100.0 if name in _RATE_NAMES else 1.0
        points = [(step, scale * y) for step, y in _column(rows, name)]
        if not points:
            continue
        line = _build_line(title, points)
        extremes = [y for _, y in line.points] + [y for _, *band in line.band for y in band]
        low, high = min(0.0, *extremes), max(0.0, *extremes)
        limit = scale * limits[name] if name in limits else None
        is_near = limit is not None and low <= limit <= 3 * high
        high = max(high, (limit or 0.0) / 20, limit if is_near and limit is not None else 0.0)
        frame = Frame(
            title,
            "iteration",
            x_range=_range_from_zero(points),
            whole_x=True,
            width=250,
            height=170,
            y_range=(low, high) if high > low else None,
        )
        references = [Reference("threshold", limit)] if is_near and limit is not None else []
        figures.append(Figure(title, line_chart(frame, [line], references)))
    return figures


def _build_line(name: str, points: Sequence[tuple[float, float]]) -> Line:
    means, band = bin_points(points)
    return Line(name, "evolve", means, band, markers=len(means) <= 12)


def _range_from_zero(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    xs = [x for x, _ in points]
    return min(0.0, *xs), max(1.0, *xs)
