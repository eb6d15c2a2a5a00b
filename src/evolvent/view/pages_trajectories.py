"""Pages of trajectories: the list, which is a window onto any number of rows, and one episode turn by turn.

Comparison of runs: their curves on common axes, and two of them task by task.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from markupsafe import Markup

from evolvent.stats import paired_interval
from evolvent.trajectory import Annotation, Generation, JsonObject, Step, Trajectory, Value, sample_rng
from evolvent.view import charts
from evolvent.view.charts import ArmStyle, Line, bin_points, line_chart
from evolvent.view.credit import CreditTurn
from evolvent.view.data import Metric, ReportData
from evolvent.view.escape import clip, show_hidden
from evolvent.view.library import RunEntry
from evolvent.view.outcome import build_panels, main_arm
from evolvent.view.pages import Frame, build_address, render_template
from evolvent.view.queries import FILTERS, Answer, Query, TrajectoryIndex
from evolvent.view.sections import Figure, flatten_settings
from evolvent.view.shading import TokenColoring, find_colorings, shade_tokens
from evolvent.view.spelling import TokenTexts

__all__ = [
    "STYLES",
    "RunComparison",
    "TaskResult",
    "TrajectoryView",
    "compare_page",
    "compare_runs",
    "draw_curves",
    "list_page",
    "list_window",
    "parse_query",
    "trajectory_page",
]


STYLES: tuple[ArmStyle, ...] = ("evolve", "control", "up", "down", "plus", "cross", "base", "other")
"""Color and mark of each run that is compared, which are also how many there can be."""

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


_LABELS = {
    "world": "World",
    "tier": "Tier",
    "split": "Split",
    "kind": "Kind",
    "stage": "Stage",
    "ended_by": "Ended by",
    "outcome": "Outcome",
}
_SORTS = (
    ("seq", "oldest first"),
    ("seq-", "newest first"),
    ("length-", "longest first"),
    ("length", "shortest first"),
    ("unit-", "best score first"),
    ("unit", "worst score first"),
    ("kind", "by kind"),
    ("task", "by task"),
    ("world", "by world"),
)
_TURNS, _TOKENS = 100, 4000  # of a page
_CHARTS = 6


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """A trajectory with its annotations, its credit where the run stored it, and the ids of its neighbors in the
    list.
    """

    trajectory: Trajectory
    annotations: Sequence[Annotation]
    credit: Mapping[int, CreditTurn]
    before: str | None
    after: str | None


# ---------------------------------------------------------------------- the list


def parse_query(values: Mapping[str, str]) -> Query:
    """Parses the query of an address; ignores values that are not valid."""
    sort = values.get("sort", "seq")
    filters = {name: values[name] for name in FILTERS if values.get(name)}
    return Query(values.get("q", "")[:400], filters, sort.removesuffix("-"), sort.endswith("-"))


def _query_parameters(query: Query) -> dict[str, str]:
    sort = query.sort + ("-" if query.descending else "")
    return {"q": query.text, **query.where, "sort": "" if sort == "seq" else sort}


def list_page(frame: Frame, run: RunEntry, *, index: TrajectoryIndex, query: Query, first: int, count: int) -> str:
    """Renders the trajectory list from row `first` on; without the script the list is paged."""
    answer, choices = index.query(query, first=first, count=count), index.choices()
    base_path, parameters = f"/run/{run.key}", _query_parameters(query)
    earlier = build_address(f"{base_path}/trajectories", **parameters, first=max(0, answer.first - count) or "")
    later = build_address(f"{base_path}/trajectories", **parameters, first=answer.first + count)
    return render_template(
        "viewer_trajectories.html",
        frame,
        title=f"Trajectories of {run.name}",
        answer=_link_rows(answer, run, query),
        query=query,
        choices=choices,
        known={name: [choice for choice, _ in counted_choices] for name, counted_choices in choices.items()},
        filters=list(_LABELS.items()),
        sorts=_SORTS,
        found=_format_count(answer),
        here_address=f"{base_path}/trajectories",
        rows_address=f"{base_path}/rows",
        earlier=earlier if answer.first else "",
        later=later if answer.first + count < answer.found else "",
    )


def list_window(run: RunEntry, answer: Answer, query: Query) -> dict[str, object]:
    """Returns rows for the script: their HTML and how many there are."""
    html = render_template("viewer_rows.html", Frame(), title="", answer=_link_rows(answer, run, query))
    empty_message = "Nothing fits." if answer.read else "This run has stored no trajectory yet."
    return {
        "html": html,
        "first": answer.first,
        "found": answer.found,
        "whole": answer.whole,
        "told": _format_count(answer),
        "none": empty_message,
    }


def _link_rows(answer: Answer, run: RunEntry, query: Query) -> Any:
    parameters = _query_parameters(query)
    rows = [
        {**row, "address": build_address(f"/run/{run.key}/trajectory", id=row["traj"], **parameters)}
        for row in answer.rows
    ]
    return {"rows": rows, "first": answer.first, "found": answer.found, "read": answer.read, "whole": answer.whole}


def _format_count(answer: Answer) -> str:
    count_text = f"{answer.found:,}" if answer.found == answer.read else f"{answer.found:,} of {answer.read:,}"
    if answer.problem:
        return f"{count_text}; the store cannot be read further: {clip(show_hidden(answer.problem), 300)}"
    return count_text if answer.whole else f"{count_text} so far, reading"


# ---------------------------------------------------------------------- one of them


def trajectory_page(
    frame: Frame,
    run: RunEntry,
    opened: TrajectoryView,
    *,
    query: Query,
    color_by: str,
    first: int,
    spelling: TokenTexts,
) -> str:
    """Renders an episode turn by turn.

    Args:
        color_by: what tokens are colored by: "logprob", "credit", "value", or the name of a scorer after "@".
        first: the first turn that is shown.
    """
    trajectory = opened.trajectory
    base_path, parameters = f"/run/{run.key}/trajectory", _query_parameters(query)
    colorings = find_colorings(trajectory, opened.annotations, opened.credit)
    coloring = next((option for option in colorings if option.name == color_by), colorings[0] if colorings else None)
    first = max(0, min(first, max(0, len(trajectory.steps) - 1)))
    turns = list(_build_turns(opened, coloring, spelling, first=first))

    def link_to(traj: str | None, **extra_parameters: object) -> str:
        return build_address(base_path, id=traj, **parameters, **extra_parameters) if traj else ""

    color_name = "" if coloring is None or coloring.name == "logprob" else coloring.name
    return render_template(
        "viewer_trajectory.html",
        frame,
        title=f"{trajectory.task.kind or trajectory.id}, {run.name}",
        one=trajectory,
        turns=turns,
        outcome={True: "solved", False: "failed", None: "unscored"}[trajectory.success],
        first=first,
        before=link_to(opened.before, colour=color_name),
        after=link_to(opened.after, colour=color_name),
        parent=link_to(trajectory.branch.parent) if trajectory.branch else "",
        generated=trajectory.count_generated_tokens(),
        versions=_format_versions(trajectory),
        colours=[
            (option.name, option.label, link_to(trajectory.id, colour=option.name, first=first or ""))
            for option in colorings
        ],
        colour=coloring.name if coloring else "",
        scale=coloring.scale() if coloring else (),
        told=coloring.caption if coloring else "",
        is_colored=coloring is not None and coloring.has_numbers,
        spelled=spelling.known or bool(coloring and coloring.spelled),
        charts=_build_charts(trajectory, opened.annotations),
        earlier=link_to(trajectory.id, colour=color_name, first=max(0, first - _TURNS) or ""),
        later=link_to(trajectory.id, colour=color_name, first=first + _TURNS),
        final=_format_value(trajectory.final_observation),
        about=flatten_settings({"spec": dict(trajectory.task.spec), "meta": dict(trajectory.meta)}),
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    observation: str
    thought: str
    action: str
    reward: float | None
    invalid: bool
    agent: str
    notes: Sequence[tuple[str, str]]
    tokens: Sequence[tuple[Markup, str]]


def _build_turns(
    opened: TrajectoryView, coloring: TokenColoring | None, spelling: TokenTexts, *, first: int
) -> Iterator[_Turn]:
    tokens_left = _TOKENS
    for step_index, step in enumerate(opened.trajectory.steps[first : first + _TURNS], first):
        tokens: list[tuple[Markup, str]] = []
        for number, generation in enumerate(step.generations):
            if tokens_left <= 0 or coloring is None:
                tokens.append((Markup("<em>not shown: the page is full</em>"), "Tokens"))
                break
            token_html = shade_tokens(
                generation, (step_index, number), coloring=coloring, texts=spelling.texts, max_tokens=tokens_left
            )
            label = f"Tokens of turn {step_index + 1}" + (f", {number + 1}" if len(step.generations) > 1 else "")
            tokens.append((token_html, label))
            tokens_left -= len(generation.ids)
        yield _Turn(
            step_index + 1,
            _format_value(step.observation),
            step.thought or "",
            _format_value(step.action),
            step.reward,
            step.info.get("invalid") is True,
            step.agent or "",
            _list_notes(opened.annotations, step_index, step),
            tokens,
        )


def _list_notes(annotations: Sequence[Annotation], step_index: int, step: Step) -> list[tuple[str, str]]:
    """Lists the annotations of a step as a whole and the other entries of its record."""
    notes = [
        (note.scorer, _format_note(note.value))
        for note in annotations
        if note.target.step == step_index and note.target.generation is None and note.target.token is None
    ]
    notes += [(name, _format_note(value)) for name, value in step.info.items() if name not in ("invalid", "tool_calls")]
    if "tool_calls" in step.info:
        notes.append(("calls", clip(json.dumps(step.info["tool_calls"], ensure_ascii=False), 400)))
    return notes[:12]


def _format_note(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 200)


def _format_value(value: Value) -> str:
    """Formats a value: a text unchanged, an array as its shape and first numbers."""
    if not isinstance(value, np.ndarray):
        return value
    flat_values = value.reshape(-1)
    first_numbers = ", ".join(
        f"{number:.4g}" if isinstance(number, np.floating) else str(number) for number in flat_values[:24]
    )
    remainder = f", … {flat_values.size - 24} more" if flat_values.size > 24 else ""
    return f"{value.dtype} {list(value.shape)}: {first_numbers}{remainder}"


def _format_versions(trajectory: Trajectory) -> str:
    policy_versions = sorted({generation.policy_version for generation in trajectory.generations})
    return (
        ", ".join(map(str, policy_versions))
        if len(policy_versions) < 6
        else f"{policy_versions[0]} to {policy_versions[-1]}"
    )


def _build_charts(trajectory: Trajectory, annotations: Sequence[Annotation]) -> list[Figure]:
    """Builds charts over the steps: rewards and scores of steps, for series of at least three points."""
    rewards = [
        (float(step_index + 1), float(step.reward))
        for step_index, step in enumerate(trajectory.steps)
        if step.reward is not None
    ]
    series = {"reward": rewards if any(y for _, y in rewards) else []}
    for note in annotations:
        is_about_step = note.target.step is not None and note.target.generation is None and note.target.token is None
        if is_about_step and isinstance(note.value, (int, float)):
            series.setdefault(note.scorer, []).append((float((note.target.step or 0) + 1), float(note.value)))
    mean_log_probs = [
        (float(step_index + 1), mean_log_prob)
        for step_index, step in enumerate(trajectory.steps)
        if (mean_log_prob := _mean_log_prob(step.generations)) is not None
    ]
    series["mean log-probability of an action"] = mean_log_probs
    figures: list[Figure] = []
    for name, points in list(series.items()):
        finite = [(x, y) for x, y in points if np.isfinite(y)]
        if len(finite) >= 3 and len(figures) < _CHARTS:
            low, high = min(y for _, y in finite), max(y for _, y in finite)
            margin = max(0.06 * (high - low), 0.05 * abs(low))
            y_range = (low - margin, high + margin) if low < 0 else None
            frame = charts.Frame(name, "step", whole_x=True, width=300, height=150, y_range=y_range)
            line = charts.Line(name, "evolve", finite, markers=len(finite) <= 40)
            figures.append(Figure(clip(show_hidden(name), 60), charts.line_chart(frame, [line])))
    return figures


def _mean_log_prob(generations: Sequence[Generation]) -> float | None:
    log_probs_per_generation = [generation.informative_logprobs[generation.sampled] for generation in generations]
    log_probs = np.concatenate(log_probs_per_generation) if log_probs_per_generation else np.zeros(0)
    return float(log_probs.mean()) if log_probs.any() else None  # all of them are 0 at temperature 0
