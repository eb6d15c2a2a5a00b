"""A run that only trained, as the page shows it: curves, evaluations of snapshots, speed, memory by kind, cost."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from markupsafe import Markup

from evolvent.view.charts import Bar, Event, Frame, Line, binned, line_chart, stacked_bar
from evolvent.view.data import Evaluated, Measured, Metric, ReportData, RunInfo
from evolvent.view.sections import Figure

__all__ = ["Kind", "Memory", "Series", "Training", "peak_memory", "training_page"]

_CURVES = (("loss", "Loss"), ("grad_norm", "Gradient norm"), ("lr", "Learning rate"))
_SPEEDS = (
    ("tokens_per_s", "Tokens a second", 1.0),
    ("gemm_share", "GEMM share, %", 100.0),
    ("data_wait", "Waiting for data, %", 100.0),
    ("pad_fraction", "Padding, %", 100.0),
)
_KINDS = (("parameters", "parameters"), ("gradients", "gradients"), ("optimizer", "optimizer state"))
_RATES = frozenset({"accuracy", "macro_f1", "exact_match", "token_f1", "f1", "precision", "recall", "success"})
_SIZES = ("pp", "replicate", "shard", "tp")
_LAST = 10  # updates whose mean is the loss at the end
_FIGURES, _EVENTS, _ROWS = 24, 200, 500  # most of each that are drawn


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
    newest: Measured
    newest_step: float
    best: Measured
    best_step: float
    count: int


@dataclass(frozen=True, slots=True)
class Training:
    """What the page of a training shows; numbers are None where no row holds them.

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
    measured: Sequence[tuple[Evaluated, Measured]]
    failed: Sequence[Evaluated]
    evaluating: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory at the peak of the leading rank, in bytes: by kind, whole, and what the process held before."""

    kinds: Sequence[Kind]
    bar: Markup | None
    peak: float | None
    process: float | None


def peak_memory(rows: Sequence[Metric]) -> Memory:
    """The memory of whatever a run has trained; nothing of a run that has logged none."""
    kinds, peak, process = _memory(rows)
    return Memory(kinds, _bar(kinds), peak, process)


def training_page(data: ReportData) -> Training | None:
    """What is shown of a run of `evolvent train`; None for runs that did more, or something else."""
    if data.results or data.stages or data.info.method.partition(" ")[0] != "train":
        return None
    updates, repeated = _in_order([row for row in data.metrics if "lr" in row.values])
    monitor, _ = _in_order([row for row in data.metrics if "tokens_per_s" in row.values and "lr" not in row.values])
    losses = [row.values["loss"] for row in updates if "loss" in row.values]
    skipped = tuple(int(row.step) for row in updates if row.values.get("skipped"))
    seconds, cpu = _spent(data.metrics)
    kinds, peak, process = _memory(monitor)
    last = updates[-1].step if updates else 0.0
    series, figures, hidden = _evaluations(data.evaluations, last)
    learned, fed, padded = (sum(row.values.get(name, 0.0) for row in updates) for name in ("tokens", "fed", "padded"))
    return Training(
        updates=len(updates),
        goal=_whole(data.info.config, "train", "updates"),
        learned=learned,
        unit=_unit(data.info),
        fed=fed,
        padded=padded,
        repeated=repeated,
        skipped=skipped,
        first=losses[0] if losses else None,
        last=statistics.fmean(losses[-_LAST:]) if losses else None,
        ends=min(_LAST, len(losses)),
        tokens_per_s=_middle(monitor, "tokens_per_s"),
        gemm_share=_middle(monitor, "gemm_share"),
        ceiling=_middle(monitor, "gemm_per_s"),
        data_wait=_middle(monitor, "data_wait"),
        seconds=seconds,
        cpu_s=cpu,
        ranks=prod(_whole(data.info.config, "parallel", name) or 1 for name in _SIZES),
        curves=_curves(updates, skipped, last),
        speeds=_speeds(monitor, last),
        memory=kinds,
        peak=peak,
        process=process,
        memory_bar=_bar(kinds),
        evaluations=figures,
        series=series,
        hidden=hidden,
        measured=[(row, one) for row in data.evaluations for one in row.measures][-_ROWS:],
        failed=[row for row in data.evaluations if row.error],
        evaluating=sum(row.seconds for row in data.evaluations),
    )


# ---------------------------------------------------------------- rows


def _in_order(rows: Sequence[Metric]) -> tuple[list[Metric], int]:
    """The rows by update, and how many were given up: a resumed training begins again at its checkpoint."""
    kept: list[Metric] = []
    given_up = 0
    for row in rows:
        while kept and kept[-1].step >= row.step:
            kept.pop()
            given_up += 1
        kept.append(row)
    return kept, given_up


def _spent(rows: Sequence[Metric]) -> tuple[float, float | None]:
    """Seconds and CPU seconds; the clock begins anew in every process that went on with the run."""
    seconds, cpu, before = 0.0, 0.0, None
    for row in [*rows, None]:
        if before is not None and (row is None or row.time_s < before.time_s):
            seconds, cpu = seconds + before.time_s, cpu + (before.cpu_s or 0.0)
        before = row
    return seconds, cpu if any(row.cpu_s is not None for row in rows) else None


def _whole(config: Mapping[str, Any], *names: str) -> int | None:
    value: Any = config
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else None


def _unit(info: RunInfo) -> str:
    """What an update's `tokens` count: of objectives over pairs these."""
    recipe = info.method.partition(" ")[2]
    paired = recipe == "dpo" or (recipe == "reward" and info.config.get("kind", "pairs") == "pairs")
    return "pairs" if paired else "tokens"


def _middle(rows: Sequence[Metric], name: str) -> float | None:
    found = [row.values[name] for row in rows if name in row.values]
    return statistics.median(found) if found else None


# ---------------------------------------------------------------- curves


def _curves(updates: Sequence[Metric], skipped: Sequence[int], last: float) -> list[Figure]:
    """Loss, gradient norm and learning rate by update; skipped updates are marked on the first two."""
    figures = []
    events = [Event(f"update {number}: skipped, not finite", float(number)) for number in skipped[:_EVENTS]]
    for name, title in _CURVES:
        points = [(row.step, row.values[name]) for row in updates if name in row.values]
        if points:
            line = _line(title, points, 200 if name == "lr" else 120)
            frame = Frame(title, "update", x_range=_from_0(points, last), y_range=_reach(line), whole_x=True, width=330)
            chart = line_chart(frame, [line], events=events if name != "lr" else ())
            figures.append(Figure(title, chart))
    return figures


def _speeds(monitor: Sequence[Metric], last: float) -> list[Figure]:
    figures = []
    for name, title, scale in _SPEEDS:
        points = [(row.step, scale * row.values[name]) for row in monitor if name in row.values]
        if points:
            frame = Frame(title, "update", x_range=_from_0(points, last), whole_x=True, width=250, height=170)
            figures.append(Figure(title, line_chart(frame, [_line(title, points, 80)])))
    return figures


def _line(name: str, points: Sequence[tuple[float, float]], bins: int) -> Line:
    means, band = binned(points, bins)
    return Line(name, "evolve", means, band, markers=len(means) == 1)


def _from_0(points: Sequence[tuple[float, float]], last: float) -> tuple[float, float]:
    """The updates so far, and whatever else has a point."""
    xs = [x for x, _ in points]
    return min(0.0, *xs), max(1.0, last, *xs)


def _reach(line: Line) -> tuple[float, float] | None:
    """The part of the axis that a curve far above 0 is drawn on; None: from 0."""
    ends = [y for _, y in line.points] + [end for _, *between in line.band for end in between]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low)
    return (low - room, high + room) if low > high / 2 and room > 0 else None


# ---------------------------------------------------------------- memory


def _memory(monitor: Sequence[Metric]) -> tuple[list[Kind], float | None, float | None]:
    """Kinds of memory, the peak, and what the process held before; from the row with the highest peak."""
    rows = [row.values for row in monitor if "peak_bytes" in row.values]
    if not rows:
        return [], None, None
    fullest = max(rows, key=lambda values: values["peak_bytes"])
    peak, process = max(0.0, fullest["peak_bytes"]), fullest.get("process_bytes")
    most = {name: max(0.0, *(values.get(f"{name}_bytes", 0.0) for values in rows)) for name, _ in _KINDS}
    rest = max(0.0, peak - sum(most.values()) - max(0.0, process or 0.0))
    kinds = [Kind(title, most[name], f"memory-{name}") for name, title in _KINDS]
    return [*kinds, Kind("activations and the rest", rest, "memory-rest")], peak, process


def _bar(kinds: Sequence[Kind]) -> Markup | None:
    bars = [Bar(kind.name, kind.size / 2**20, kind.style) for kind in kinds if kind.size > 0]
    return stacked_bar(bars, label="memory by kind", unit="MiB") if bars else None


# ---------------------------------------------------------------- evaluations


def _evaluations(rows: Sequence[Evaluated], last: float) -> tuple[list[Series], list[Figure], int]:
    """Every number as a series over the snapshots, their charts, and how many charts are left out."""
    found: dict[tuple[str, str, str], list[tuple[float, Measured]]] = defaultdict(list)
    ways: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for one in row.measures:
            found[row.stage, one.metric, row.settings].append((row.step, one))
            ways[row.stage].add(row.settings)
    series: list[Series] = []
    figures: list[Figure] = []
    for (stage, metric, settings), measured in found.items():
        known = sorted(((step, one) for step, one in measured if one.value is not None), key=lambda pair: pair[0])
        if not known:
            continue
        told = settings[:8] if len(ways[stage]) > 1 else ""
        series.append(_series(metric, told, known))
        if len(series) <= _FIGURES:
            figures.append(_evaluation(series[-1], known, last))
    return series, figures, len(series) - len(figures)


def _series(metric: str, settings: str, known: Sequence[tuple[float, Measured]]) -> Series:
    rate = metric.partition("/")[0] in _RATES and all(0 <= (one.value or 0.0) <= 1 for _, one in known)
    better = max if rate else min
    best_step, best = better(known, key=lambda pair: pair[1].value or 0.0)
    newest_step, newest = known[-1]
    title = metric.replace("/", " ").replace("_", " ")
    return Series(metric, title, settings, rate, newest, newest_step, best, best_step, len(known))


def _evaluation(series: Series, known: Sequence[tuple[float, Measured]], last: float) -> Figure:
    points = [(step, one.value) for step, one in known if one.value is not None]
    band = [(step, one.low, one.high) for step, one in known if one.low is not None and one.high is not None]
    line = Line(series.metric, "evolve", points, band)
    frame = Frame(
        series.metric,
        "update",
        x_range=_from_0(points, last),
        y_range=(0.0, 1.0) if series.rate else _reach(line),
        percent=series.rate,
        whole_x=True,
        width=250,
        height=180,
    )
    return Figure(series.title, line_chart(frame, [line]), series.settings)
