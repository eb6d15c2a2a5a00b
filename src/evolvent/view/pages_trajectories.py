"""Pages of trajectories: the list, which is a window onto any number of rows, and one episode turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from evolvent.trajectory import Annotation, Generation, Step, Trajectory, Value
from evolvent.view import charts
from evolvent.view.credit import CreditTurn
from evolvent.view.escape import clip, show_hidden
from evolvent.view.library import RunEntry
from evolvent.view.pages import Frame, build_address, render_template
from evolvent.view.queries import FILTERS, Answer, Query, TrajectoryIndex
from evolvent.view.sections import Figure, flatten_settings
from evolvent.view.shading import TokenColoring, find_colorings, shade_tokens
from evolvent.view.spelling import TokenTexts

__all__ = ["TrajectoryView", "list_page", "list_window", "parse_query", "trajectory_page"]

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
    log_probs_per_generation = [generation.logprobs[generation.sampled] for generation in generations]
    log_probs = np.concatenate(log_probs_per_generation) if log_probs_per_generation else np.zeros(0)
    return float(log_probs.mean()) if len(log_probs) else None
