"""Comparison of runs: their curves on common axes, and two of them task by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from evolvent.stats import paired_interval
from evolvent.trajectory import JsonObject, sample_rng
from evolvent.view import charts
from evolvent.view.charts import ArmStyle, Line, bin_points, line_chart
from evolvent.view.data import Metric, ReportData
from evolvent.view.library import RunEntry
from evolvent.view.outcome import build_panels, main_arm
from evolvent.view.pages import Frame, build_address, render_template
from evolvent.view.queries import TrajectoryIndex
from evolvent.view.sections import Figure

__all__ = ["STYLES", "RunComparison", "TaskResult", "compare_page", "compare_runs", "draw_curves"]

STYLES: tuple[ArmStyle, ...] = ("evolve", "control", "up", "down", "plus", "cross", "base", "other")
"""Colour and mark of each run that is compared, which are also how many there can be."""

_METRICS = (
    ("loss", "Loss"),
    ("success", "Success while practising"),
    ("return", "Return while practising"),
    ("grad_norm", "Gradient norm"),
    ("lr", "Learning rate"),
    ("kl", "KL divergence of updates"),
    ("sampled_entropy", "Entropy of a token, nats"),
    ("tokens_per_s", "Tokens a second"),
)
_RATE_METRICS = frozenset({"success"})
_NUM_BINS, _MAX_ROWS = 100, 300
_OUTCOMES = ("a", "b", "both", "neither")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a run on a task: scored episodes, solved episodes, and the id of an episode, if stored."""

    n: int
    won: float
    traj: str | None

    @property
    def rate(self) -> float:
        """Returns the share of solved episodes."""
        return self.won / self.n


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs on the tasks that both have scored.

    Attributes:
        n: common tasks. only_a, only_b: tasks that only one has scored. counts: of "a", "b", "both", "neither".
        sentence: the paired difference with its interval. source: what was compared.
        rows: tasks of the chosen kind of outcome. left: how many of those are not among the rows.
        kinds: (kind, tasks, rate of the first, of the second), where they differ most first.
        whole: whether everything of both runs has been read.
    """

    n: int
    only_a: int
    only_b: int
    counts: Mapping[str, int]
    sentence: str
    source: str
    rows: Sequence[JsonObject]
    left: int
    kinds: Sequence[tuple[str, int, float, float]]
    whole: bool


_Task = tuple[str, str, str, str]  # id, world, tier, kind


def compare_page(
    frame: Frame, runs: Sequence[RunEntry], reports: Sequence[ReportData], *, versus: RunComparison | None, which: str
) -> str:
    """Renders the curves of several runs; for two runs also their tasks, listed by outcome."""
    styled_runs, which = list(zip(runs, STYLES, strict=False)), which if which in _OUTCOMES else "a"
    run_keys = [("run", run.key) for run in runs]
    query = "&".join(f"{name}={key}" for name, key in run_keys)
    return render_template(
        "viewer_compare.html",
        frame,
        title=" against ".join(run.name for run in runs[:2]),
        runs=styled_runs,
        curves=draw_curves(runs, reports),
        versus=versus,
        which=which,
        addresses={name: f"/compare?{query}&which={name}#tasks" for name in _OUTCOMES},
    )


# ---------------------------------------------------------------------- curves


def draw_curves(runs: Sequence[RunEntry], reports: Sequence[ReportData]) -> list[Figure]:
    """Draws success by round, then every number that some run has logged, each run a line."""
    figures = []
    common_panels = _find_common_panels(reports)
    lines = [
        Line(run.name, style, _mean_by_round(data, common_panels))
        for run, style, data in zip(runs, STYLES, reports, strict=False)
    ]
    if any(line.points for line in lines):
        frame = charts.Frame(
            "Success", "round", "success, %", y_range=(0, 1), percent=True, whole_x=True, width=330, height=210
        )
        caption = f"mean over {len(common_panels)} common panel{'s' if len(common_panels) > 1 else ''}"
        figures.append(Figure("Measured success", line_chart(frame, lines), caption))
    for name, title in _METRICS:
        lines = []
        for run, style, data in zip(runs, STYLES, reports, strict=False):
            points, band = bin_points(_logged_points(data, name), _NUM_BINS)
            lines.append(Line(run.name, style, points, band, markers=len(points) == 1))
        if any(line.points for line in lines):
            is_rate = name in _RATE_METRICS
            frame = charts.Frame(
                title,
                "update",
                whole_x=True,
                width=330,
                height=210,
                percent=is_rate,
                y_range=(0, 1) if is_rate else None,
            )
            figures.append(Figure(title, line_chart(frame, lines)))
    return figures


_Panel = tuple[str, str, str]


def _find_common_panels(reports: Sequence[ReportData]) -> frozenset[_Panel]:
    """Returns the panels that every run has measured, among runs that have measured any."""
    panels_per_run = [
        frozenset((panel_keys.world, panel_keys.tier, panel_keys.split) for panel_keys in build_panels(data))
        for data in reports
    ]
    return (
        frozenset.intersection(*measured_panels)
        if (measured_panels := [panel_keys for panel_keys in panels_per_run if panel_keys])
        else frozenset()
    )


def _mean_by_round(data: ReportData, common_panels: frozenset[_Panel]) -> list[tuple[float, float]]:
    """Returns (round, mean over the common panels) of the run's base and main arm, where all of them were measured."""
    main_name, means_per_round = main_arm(data), defaultdict[int, list[float]](list)
    for panel in build_panels(data):
        if (panel.world, panel.tier, panel.split) in common_panels:
            for row in (*panel.curves.get("base", ()), *panel.curves.get(main_name, ())):
                if row.mean is not None:
                    means_per_round[row.round].append(row.mean)
    return [
        (float(round_number), sum(means) / len(means))
        for round_number, means in sorted(means_per_round.items())
        if len(means) == len(common_panels)
    ]


def _logged_points(data: ReportData, name: str) -> list[tuple[float, float]]:
    """Returns (update counted over the whole run, value): the stages of the main arm in sequence."""
    main_name, points = main_arm(data), []
    stage_start, last_update, stage = 0.0, 0.0, ""
    for row in _training_rows(data.metrics, main_name):
        if name not in row.values:
            continue
        if row.stage != stage:
            stage_start, stage = (last_update + 1 if stage else 0.0), row.stage
        last_update = stage_start + row.step
        points.append((last_update, row.values[name]))
    return points


def _training_rows(rows: Sequence[Metric], main_name: str) -> list[Metric]:
    """Returns the training rows; where arms are named, those of the main arm and its base."""
    candidates = [row for row in rows if row.kind in ("fit", "practise", "")]
    arms = {row.arm for row in candidates} - {""}
    return [row for row in candidates if not arms or main_name not in arms or row.arm in ("", "base", main_name)]


# ---------------------------------------------------------------------- task by task


def compare_runs(
    reports: tuple[ReportData, ReportData],
    indexes: tuple[TrajectoryIndex, TrajectoryIndex],
    *,
    run_keys: tuple[str, str],
    which: str,
    is_complete: bool,
) -> RunComparison:
    """Compares which tasks two runs solve: by their last evaluations, else by their stored episodes.

    Args:
        run_keys: of the runs. which: the outcome whose tasks are listed: "a", "b", "both" or "neither".
    """
    tables = _evaluated_tasks(reports[0], indexes[0]), _evaluated_tasks(reports[1], indexes[1])
    source = "Tasks of the last evaluation of each."
    if not set(tables[0]) & set(tables[1]):
        tables = _stored_tasks(indexes[0]), _stored_tasks(indexes[1])
        source = "All scored episodes of each, whatever stage they are of."
    first_table, second_table = tables
    common_tasks = sorted(set(first_table) & set(second_table), key=lambda task: (task[1], task[2], task[3], task[0]))
    tasks_per_outcome: dict[str, list[_Task]] = {name: [] for name in _OUTCOMES}
    for task in common_tasks:
        tasks_per_outcome[_classify_outcome(first_table[task], second_table[task])].append(task)
    listed_tasks = tasks_per_outcome[which if which in tasks_per_outcome else "a"]
    rows = [
        {
            "task": task[0],
            "world": task[1],
            "tier": task[2],
            "kind": task[3],
            "sides": [_format_side(key, table[task]) for key, table in zip(run_keys, tables, strict=True)],
        }
        for task in listed_tasks[:_MAX_ROWS]
    ]
    return RunComparison(
        n=len(common_tasks),
        only_a=len(set(first_table) - set(second_table)),
        only_b=len(set(second_table) - set(first_table)),
        counts={name: len(tasks) for name, tasks in tasks_per_outcome.items()},
        rows=rows,
        left=len(listed_tasks) - len(rows),
        sentence=_build_sentence(common_tasks, first_table, second_table, seed=run_keys),
        source=source,
        kinds=_compare_kinds(common_tasks, first_table, second_table),
        whole=is_complete,
    )


def _evaluated_tasks(data: ReportData, index: TrajectoryIndex) -> dict[_Task, TaskResult]:
    """Returns the tasks of the main arm's last evaluation of every panel."""
    rows = [
        ((task, panel.world, panel.tier, kind), success, f"{result.stage}/{task}/0")
        for panel in build_panels(data)
        if (result := panel.last or panel.base)
        for task, kind, success in result.outcomes
        if success is not None
    ]
    stored = index.select_stored(traj for _, _, traj in rows)
    return {task: TaskResult(1, success, traj if traj in stored else None) for task, success, traj in rows}


def _stored_tasks(index: TrajectoryIndex) -> dict[_Task, TaskResult]:
    return {
        (task, row["world"], row["tier"], row["kind"]): TaskResult(row["n"], row["won"], row["traj"])
        for task, row in index.task_outcomes().items()
    }


def _classify_outcome(first_result: TaskResult, second_result: TaskResult) -> str:
    first_solved, second_solved = first_result.rate > 0.5, second_result.rate > 0.5
    return "both" if first_solved and second_solved else "a" if first_solved else "b" if second_solved else "neither"


def _format_side(key: str, side: TaskResult) -> dict[str, str]:
    text = ("solved" if side.rate > 0.5 else "failed") if side.n == 1 else f"{side.won:g} of {side.n}"
    return {"text": text, "address": build_address(f"/run/{key}/trajectory", id=side.traj) if side.traj else ""}


def _build_sentence(
    common_tasks: Sequence[_Task],
    first_table: Mapping[_Task, TaskResult],
    second_table: Mapping[_Task, TaskResult],
    *,
    seed: object,
) -> str:
    if not common_tasks:
        return ""
    first_rates, second_rates = (
        [first_table[task].rate for task in common_tasks],
        [second_table[task].rate for task in common_tasks],
    )
    strata = [f"{task[1]}\n{task[2]}" for task in common_tasks]
    rng = sample_rng("versus", seed)
    interval = paired_interval(
        first_rates, second_rates, levels=[[task[3] for task in common_tasks]], strata=strata, rng=rng
    ).clip(-1.0, 1.0)
    means = (
        f"{100 * sum(first_rates) / len(first_rates):.1f} % against {100 * sum(second_rates) / len(second_rates):.1f} %"
    )
    comparison = f"On {len(common_tasks):,} common tasks: {means}, a difference of {100 * interval.mean:+.1f} points"
    if isnan(interval.low) or interval.low == interval.high:
        return f"{comparison}; too few tasks, or too alike ones, for an interval.".replace("-", "−")
    verdict = "the interval excludes 0" if interval.excludes(0.0) else "no difference is shown"
    return f"{comparison} (95 % interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}); {verdict}.".replace(
        "-", "−"
    )


def _compare_kinds(
    common_tasks: Sequence[_Task], first_table: Mapping[_Task, TaskResult], second_table: Mapping[_Task, TaskResult]
) -> list[tuple[str, int, float, float]]:
    grouped: dict[str, list[_Task]] = defaultdict(list)
    for task in common_tasks:
        grouped[task[3]].append(task)

    def rate(table: Mapping[_Task, TaskResult], tasks: Sequence[_Task]) -> float:
        return sum(table[task].rate for task in tasks) / len(tasks)

    rows = [
        (kind, len(kind_tasks), rate(first_table, kind_tasks), rate(second_table, kind_tasks))
        for kind, kind_tasks in grouped.items()
    ]
    return sorted(rows, key=lambda row: (-abs(row[2] - row[3]), row[0]))[:60]
