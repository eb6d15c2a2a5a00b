"""Page of a run that only trained: curves, evaluations of snapshots, speed, memory by kind, cost."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from markupsafe import Markup

from evolvent.view.charts import Bar, Event, Frame, Line, bin_points, line_chart, needs_log_scale, stacked_bar
from evolvent.view.data import EvaluationRow, MeasuredValue, Metric, ReportData, RunInfo
from evolvent.view.sections import Figure

__all__ = ["Kind", "Memory", "Series", "TrainingReport", "build_training_report", "summarize_memory"]

_CURVE_METRICS = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("lr", "Learning rate"))
_SPEED_METRICS = (
    ("tokens_per_s", "Tokens a second", 1.0),
    ("gemm_share", "GEMM share, %", 100.0),
    ("data_wait", "Waiting for data, %", 100.0),
    ("pad_fraction", "Padding, %", 100.0),
)
_MEMORY_KINDS = (("parameters", "parameters"), ("gradients", "gradients"), ("optimizer", "optimizer state"))
_RATE_METRICS = frozenset({"accuracy", "macro_f1", "exact_match", "token_f1", "f1", "precision", "recall", "success"})
_PARALLEL_SIZES = ("pp", "replicate", "shard", "tp")
_LAST_UPDATES = 10  # updates whose mean is the loss at the end
_MAX_FIGURES, _MAX_EVENTS, _MAX_ROWS = 24, 200, 500  # most of each that are drawn


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of memory: bytes at the peak, and its class on the page."""

    name: str
    size: float
    style: str


@dataclass(frozen=True, slots=True)
class Series:
    """One number of an evaluator over the snapshots: its newest and its best value, each with the update it is of.

    Args:
        title: the metric as it is read.
        settings: digest of how it was measured, where there is more than one way.
        rate: it is printed as per cent.
    """

    metric: str
    title: str
    settings: str
    rate: bool
    newest: MeasuredValue
    newest_step: float
    best: MeasuredValue
    best_step: float
    count: int


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """Contents of the page of a training; numbers are None where no row holds them.

    Attributes:
        updates, goal: taken, and asked for where that is known. learned: how many of `unit`, which is tokens or pairs.
        fed, padded: tokens fed, and filler beside them.
        repeated: updates that were taken again after an interruption. skipped: the updates that were not finite.
        first, last: the loss at the first update, and its mean over the last `ends` ones.
        tokens_per_s, gemm_share, data_wait: medians of the rows. ceiling: operations per second of one rank.
        seconds, cpu_s: of the leading rank, over all its processes. ranks: how many trained.
        memory, peak, process: at the peak of the leading rank, in bytes; `process` was there before.
        hidden: figures of evaluations that are not drawn.
    """

    updates: int
    goal: int | None
    learned: float
    unit: str
    fed: float
    padded: float
    repeated: int
    skipped: tuple[int, ...]
    first: float | None
    last: float | None
    ends: int
    tokens_per_s: float | None
    gemm_share: float | None
    ceiling: float | None
    data_wait: float | None
    seconds: float
    cpu_s: float | None
    ranks: int
    curves: Sequence[Figure]
    speeds: Sequence[Figure]
    memory: Sequence[Kind]
    memory_bar: Markup | None
    peak: float | None
    process: float | None
    evaluations: Sequence[Figure]
    series: Sequence[Series]
    hidden: int
    measured: Sequence[tuple[EvaluationRow, MeasuredValue]]
    failed: Sequence[EvaluationRow]
    evaluating: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory at the peak of the leading rank, in bytes: by kind, whole, and what the process held before."""

    kinds: Sequence[Kind]
    bar: Markup | None
    peak: float | None
    process: float | None


def summarize_memory(rows: Sequence[Metric]) -> Memory:
    """Returns the memory of the training in a run; empty where none was logged."""
    kinds, peak, process = _memory_kinds(rows)
    return Memory(kinds, _draw_memory_bar(kinds), peak, process)


def build_training_report(data: ReportData) -> TrainingReport | None:
    """Returns the contents of the page of a run of `evolvent train`; None for other runs."""
    if data.results or data.stages or data.info.method.partition(" ")[0] != "train":
        return None
    updates, repeated = _drop_repeated([row for row in data.metrics if "lr" in row.values])
    monitor, _ = _drop_repeated(
        [row for row in data.metrics if "tokens_per_s" in row.values and "lr" not in row.values]
    )
    losses = [row.values["loss"] for row in updates if "loss" in row.values]
    skipped = tuple(int(row.step) for row in updates if row.values.get("skipped"))
    seconds, cpu_s = _total_seconds(data.metrics)
    kinds, peak, process = _memory_kinds(monitor)
    last_step = updates[-1].step if updates else 0.0
    series, figures, hidden = _group_evaluations(data.evaluations, last_step)
    learned, fed, padded = (sum(row.values.get(name, 0.0) for row in updates) for name in ("tokens", "fed", "padded"))
    return TrainingReport(
        updates=len(updates),
        goal=_read_count(data.info.config, "train", "max_steps") or _read_count(data.info.config, "train", "updates"),
        learned=learned,
        unit=_token_unit(data.info),
        fed=fed,
        padded=padded,
        repeated=repeated,
        skipped=skipped,
        first=losses[0] if losses else None,
        last=statistics.fmean(losses[-_LAST_UPDATES:]) if losses else None,
        ends=min(_LAST_UPDATES, len(losses)),
        tokens_per_s=_median(monitor, "tokens_per_s"),
        gemm_share=_median(monitor, "gemm_share"),
        ceiling=_median(monitor, "gemm_per_s"),
        data_wait=_median(monitor, "data_wait"),
        seconds=seconds,
        cpu_s=cpu_s,
        ranks=prod(_read_count(data.info.config, "parallel", name) or 1 for name in _PARALLEL_SIZES),
        curves=_draw_curves(updates, skipped, last_step),
        speeds=_draw_speeds(monitor, last_step),
        memory=kinds,
        peak=peak,
        process=process,
        memory_bar=_draw_memory_bar(kinds),
        evaluations=figures,
        series=series,
        hidden=hidden,
        measured=[(row, measure) for row in data.evaluations for measure in row.measures][-_MAX_ROWS:],
        failed=[row for row in data.evaluations if row.error],
        evaluating=sum(row.seconds for row in data.evaluations),
    )


# ---------------------------------------------------------------- rows


def _drop_repeated(rows: Sequence[Metric]) -> tuple[list[Metric], int]:
    """Returns the rows by update, and the number of dropped rows: a resumed training repeats from its checkpoint."""
    kept_rows: list[Metric] = []
    num_dropped = 0
    for row in rows:
        while kept_rows and kept_rows[-1].step >= row.step:
            kept_rows.pop()
            num_dropped += 1
        kept_rows.append(row)
    return kept_rows, num_dropped


def _total_seconds(rows: Sequence[Metric]) -> tuple[float, float | None]:
    """Returns seconds and CPU seconds; the clock restarts in every process that resumed the run."""
    seconds, cpu_s, previous = 0.0, 0.0, None
    for row in [*rows, None]:
        if previous is not None and (row is None or row.time_s < previous.time_s):
            seconds, cpu_s = seconds + previous.time_s, cpu_s + (previous.cpu_s or 0.0)
        previous = row
    return seconds, cpu_s if any(row.cpu_s is not None for row in rows) else None


def _read_count(config: Mapping[str, Any], *names: str) -> int | None:
    value: Any = config
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else None


def _token_unit(info: RunInfo) -> str:
    """Returns the unit of an update's `tokens`: pairs for objectives over pairs."""
    recipe = info.method.partition(" ")[2]
    is_paired = recipe == "dpo" or (recipe == "reward" and info.config.get("kind", "pairs") == "pairs")
    return "pairs" if is_paired else "tokens"


def _median(rows: Sequence[Metric], name: str) -> float | None:
    numbers = [row.values[name] for row in rows if name in row.values]
    return statistics.median(numbers) if numbers else None


# ---------------------------------------------------------------- curves


def _draw_curves(updates: Sequence[Metric], skipped: Sequence[int], last_step: float) -> list[Figure]:
    """Draws loss, gradient norm and learning rate by update; skipped updates are marked on the first two."""
    figures = []
    events = [Event(f"update {number}: skipped, not finite", float(number)) for number in skipped[:_MAX_EVENTS]]
    for name, title in _CURVE_METRICS:
        points = [(row.step, row.values[name]) for row in updates if name in row.values]
        if points:
            line = _build_line(title, points, 200 if name == "lr" else 120)
            is_log = name == "loss" and needs_log_scale([y for _, y in points])
            frame = Frame(
                title,
                "update",
                "logarithmic" if is_log else "",
                x_range=_range_from_zero(points, last_step),
                y_range=_zoomed_range(line),
                whole_x=True,
                width=330,
                log_y=is_log,
            )
            chart = line_chart(frame, [line], events=events if name != "lr" else ())
            figures.append(Figure(title, chart))
    return figures


def _draw_speeds(monitor: Sequence[Metric], last_step: float) -> list[Figure]:
    figures = []
    for name, title, scale in _SPEED_METRICS:
        points = [(row.step, scale * row.values[name]) for row in monitor if name in row.values]
        if points:
            frame = Frame(
                title, "update", x_range=_range_from_zero(points, last_step), whole_x=True, width=250, height=170
            )
            figures.append(Figure(title, line_chart(frame, [_build_line(title, points, 80)])))
    return figures


def _build_line(name: str, points: Sequence[tuple[float, float]], bins: int) -> Line:
    means, band = bin_points(points, bins)
    return Line(name, "evolve", means, band, markers=len(means) == 1)


def _range_from_zero(points: Sequence[tuple[float, float]], last_step: float) -> tuple[float, float]:
    """Returns the range of the updates so far, and of all points."""
    xs = [x for x, _ in points]
    return min(0.0, *xs), max(1.0, last_step, *xs)


def _zoomed_range(line: Line) -> tuple[float, float] | None:
    """Returns the part of the axis for a curve far above 0; None: the axis begins at 0."""
    extremes = [y for _, y in line.points] + [end for _, *bounds in line.band for end in bounds]
    low, high = min(extremes), max(extremes)
    margin = 0.08 * (high - low)
    return (low - margin, high + margin) if low > high / 2 and margin > 0 else None


# ---------------------------------------------------------------- memory


def _memory_kinds(monitor: Sequence[Metric]) -> tuple[list[Kind], float | None, float | None]:
    """Returns the kinds of memory, the peak, and the memory of the process before; from the row with the highest
    peak.
    """
    rows = [row.values for row in monitor if "peak_bytes" in row.values]
    if not rows:
        return [], None, None
    peak_row = max(rows, key=lambda values: values["peak_bytes"])
    peak, process = max(0.0, peak_row["peak_bytes"]), peak_row.get("process_bytes")
    largest = {name: max(0.0, *(values.get(f"{name}_bytes", 0.0) for values in rows)) for name, _ in _MEMORY_KINDS}
    remaining = max(0.0, peak - sum(largest.values()) - max(0.0, process or 0.0))
    kinds = [Kind(title, largest[name], f"memory-{name}") for name, title in _MEMORY_KINDS]
    return [*kinds, Kind("activations and the rest", remaining, "memory-rest")], peak, process


def _draw_memory_bar(kinds: Sequence[Kind]) -> Markup | None:
    bars = [Bar(kind.name, kind.size / 2**20, kind.style) for kind in kinds if kind.size > 0]
    return stacked_bar(bars, label="memory by kind", unit="MiB") if bars else None


# ---------------------------------------------------------------- evaluations


def _group_evaluations(rows: Sequence[EvaluationRow], last_step: float) -> tuple[list[Series], list[Figure], int]:
    """Returns every number as a series over the snapshots, their charts, and the number of charts left out."""
    measures_per_series: dict[tuple[str, str, str], list[tuple[float, MeasuredValue]]] = defaultdict(list)
    settings_per_stage: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for measure in row.measures:
            measures_per_series[row.stage, measure.metric, row.settings].append((row.step, measure))
            settings_per_stage[row.stage].add(row.settings)
    series: list[Series] = []
    figures: list[Figure] = []
    for (stage, metric, settings), points in measures_per_series.items():
        known_points = sorted(
            ((step, measure) for step, measure in points if measure.value is not None), key=lambda pair: pair[0]
        )
        if not known_points:
            continue
        short_settings = settings[:8] if len(settings_per_stage[stage]) > 1 else ""
        series.append(_build_series(metric, short_settings, known_points))
        if len(series) <= _MAX_FIGURES:
            figures.append(_draw_evaluation(series[-1], known_points, last_step))
    return series, figures, len(series) - len(figures)


def _build_series(metric: str, settings: str, known_points: Sequence[tuple[float, MeasuredValue]]) -> Series:
    is_rate = metric.partition("/")[0] in _RATE_METRICS and all(
        0 <= (measure.value or 0.0) <= 1 for _, measure in known_points
    )
    choose_best = max if is_rate else min
    best_step, best = choose_best(known_points, key=lambda pair: pair[1].value or 0.0)
    newest_step, newest = known_points[-1]
    title = metric.replace("/", " ").replace("_", " ")
    return Series(metric, title, settings, is_rate, newest, newest_step, best, best_step, len(known_points))


def _draw_evaluation(series: Series, known_points: Sequence[tuple[float, MeasuredValue]], last_step: float) -> Figure:
    points = [(step, measure.value) for step, measure in known_points if measure.value is not None]
    band = [
        (step, measure.low, measure.high)
        for step, measure in known_points
        if measure.low is not None and measure.high is not None
    ]
    line = Line(series.metric, "evolve", points, band)
    frame = Frame(
        series.metric,
        "update",
        x_range=_range_from_zero(points, last_step),
        y_range=(0.0, 1.0) if series.rate else _zoomed_range(line),
        percent=series.rate,
        whole_x=True,
        width=250,
        height=180,
    )
    return Figure(series.title, line_chart(frame, [line]), series.settings)
