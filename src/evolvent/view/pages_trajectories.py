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
from evolvent.view.escape import clip, plain
from evolvent.view.library import RunPlace
from evolvent.view.pages import Frame, address, rendered
from evolvent.view.queries import FILTERS, Answer, Query, TrajectoryIndex
from evolvent.view.sections import Figure, flat
from evolvent.view.shading import Colour, colours_of, shaded
from evolvent.view.spelling import Spelling

__all__ = ["Opened", "list_page", "list_window", "query_of", "trajectory_page"]

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
class Opened:
    """A trajectory with what belongs to it: annotations, its credit where the run has kept it, and its neighbours."""

    trajectory: Trajectory
    annotations: Sequence[Annotation]
    credit: Mapping[int, CreditTurn]
    before: str | None
    after: str | None


# ---------------------------------------------------------------------- the list


def query_of(values: Mapping[str, str]) -> Query:
    """The question that an address asks; what is no question is passed over."""
    sort = values.get("sort", "seq")
    where = {name: values[name] for name in FILTERS if values.get(name)}
    return Query(values.get("q", "")[:400], where, sort.removesuffix("-"), sort.endswith("-"))


def _asked(query: Query) -> dict[str, str]:
    sort = query.sort + ("-" if query.descending else "")
    return {"q": query.text, **query.where, "sort": "" if sort == "seq" else sort}


def list_page(frame: Frame, run: RunPlace, *, index: TrajectoryIndex, query: Query, first: int, count: int) -> str:
    """The list from a row on; without the script it is read page by page."""
    answer, choices = index.ask(query, first=first, count=count), index.choices()
    base, asked = f"/run/{run.key}", _asked(query)
    earlier = address(f"{base}/trajectories", **asked, first=max(0, answer.first - count) or "")
    later = address(f"{base}/trajectories", **asked, first=answer.first + count)
    return rendered(
        "viewer_trajectories.html",
        frame,
        title=f"Trajectories of {run.name}",
        answer=_linked(answer, run, query),
        query=query,
        choices=choices,
        known={name: [one for one, _ in found] for name, found in choices.items()},
        filters=list(_LABELS.items()),
        sorts=_SORTS,
        found=_told(answer),
        here_address=f"{base}/trajectories",
        rows_address=f"{base}/rows",
        earlier=earlier if answer.first else "",
        later=later if answer.first + count < answer.found else "",
    )


def list_window(run: RunPlace, answer: Answer, query: Query) -> dict[str, Any]:
    """Some rows as the script takes them: their HTML, and how many there are."""
    html = rendered("viewer_rows.html", Frame(), title="", answer=_linked(answer, run, query))
    none = "Nothing fits." if answer.read else "This run has stored no trajectory yet."
    return {
        "html": html,
        "first": answer.first,
        "found": answer.found,
        "whole": answer.whole,
        "told": _told(answer),
        "none": none,
    }


def _linked(answer: Answer, run: RunPlace, query: Query) -> Any:
    asked = _asked(query)
    rows = [{**row, "address": address(f"/run/{run.key}/trajectory", id=row["traj"], **asked)} for row in answer.rows]
    return {"rows": rows, "first": answer.first, "found": answer.found, "read": answer.read, "whole": answer.whole}


def _told(answer: Answer) -> str:
    share = f"{answer.found:,}" if answer.found == answer.read else f"{answer.found:,} of {answer.read:,}"
    if answer.problem:
        return f"{share}; the store cannot be read further: {clip(plain(answer.problem), 300)}"
    return share if answer.whole else f"{share} so far, reading"


# ---------------------------------------------------------------------- one of them


def trajectory_page(
    frame: Frame, run: RunPlace, opened: Opened, *, query: Query, colour: str, first: int, spelling: Spelling
) -> str:
    """An episode turn by turn.

    Args:
        colour: what tokens are coloured by: "logprob", "credit", "value", or the name of a scorer after "@".
        first: the first turn that is shown.
    """
    one = opened.trajectory
    base, asked = f"/run/{run.key}/trajectory", _asked(query)
    colours = colours_of(one, opened.annotations, opened.credit)
    chosen = next((each for each in colours if each.name == colour), colours[0] if colours else None)
    first = max(0, min(first, max(0, len(one.steps) - 1)))
    turns = list(_turns(opened, chosen, spelling, first=first))

    def to(traj: str | None, **more: object) -> str:
        return address(base, id=traj, **asked, **more) if traj else ""

    own = "" if chosen is None or chosen.name == "logprob" else chosen.name
    return rendered(
        "viewer_trajectory.html",
        frame,
        title=f"{one.task.kind or one.id}, {run.name}",
        one=one,
        turns=turns,
        outcome={True: "solved", False: "failed", None: "unscored"}[one.success],
        first=first,
        before=to(opened.before, colour=own),
        after=to(opened.after, colour=own),
        parent=to(one.branch.parent) if one.branch else "",
        generated=one.generated(),
        versions=_versions(one),
        colours=[(each.name, each.label, to(one.id, colour=each.name, first=first or "")) for each in colours],
        colour=chosen.name if chosen else "",
        scale=chosen.scale() if chosen else (),
        told=chosen.told if chosen else "",
        spelled=spelling.known or bool(chosen and chosen.spelled),
        charts=_charts(one, opened.annotations),
        earlier=to(one.id, colour=own, first=max(0, first - _TURNS) or ""),
        later=to(one.id, colour=own, first=first + _TURNS),
        final=_text(one.final_observation),
        about=flat({"spec": dict(one.task.spec), "meta": dict(one.meta)}),
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


def _turns(opened: Opened, colour: Colour | None, spelling: Spelling, *, first: int) -> Iterator[_Turn]:
    left = _TOKENS
    for place, step in enumerate(opened.trajectory.steps[first : first + _TURNS], first):
        tokens: list[tuple[Markup, str]] = []
        for number, generation in enumerate(step.generations):
            if left <= 0 or colour is None:
                tokens.append((Markup("<em>not shown: the page is full</em>"), "Tokens"))
                break
            drawn = shaded(generation, (place, number), colour=colour, texts=spelling.texts, most=left)
            label = f"Tokens of turn {place + 1}" + (f", {number + 1}" if len(step.generations) > 1 else "")
            tokens.append((drawn, label))
            left -= len(generation.ids)
        yield _Turn(
            place + 1,
            _text(step.observation),
            step.thought or "",
            _text(step.action),
            step.reward,
            step.info.get("invalid") is True,
            step.agent or "",
            _notes(opened.annotations, place, step),
            tokens,
        )


def _notes(annotations: Sequence[Annotation], place: int, step: Step) -> list[tuple[str, str]]:
    """What was noted about a step as a whole, and what its record says beside."""
    found = [
        (note.scorer, _said(note.value))
        for note in annotations
        if note.place.step == place and note.place.generation is None and note.place.token is None
    ]
    found += [(name, _said(value)) for name, value in step.info.items() if name not in ("invalid", "tool_calls")]
    if "tool_calls" in step.info:
        found.append(("calls", clip(json.dumps(step.info["tool_calls"], ensure_ascii=False), 400)))
    return found[:12]


def _said(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 200)


def _text(value: Value) -> str:
    """A text as it is, an array as its shape and its first numbers."""
    if not isinstance(value, np.ndarray):
        return value
    flat_values = value.reshape(-1)
    shown = ", ".join(f"{one:.4g}" if isinstance(one, np.floating) else str(one) for one in flat_values[:24])
    more = f", … {flat_values.size - 24} more" if flat_values.size > 24 else ""
    return f"{value.dtype} {list(value.shape)}: {shown}{more}"


def _versions(one: Trajectory) -> str:
    found = sorted({generation.policy_version for generation in one.generations})
    return ", ".join(map(str, found)) if len(found) < 6 else f"{found[0]} to {found[-1]}"


def _charts(one: Trajectory, annotations: Sequence[Annotation]) -> list[Figure]:
    """Numbers over the steps: rewards, and what scorers said of steps, where there are at least three."""
    rewards = [
        (float(place + 1), float(step.reward)) for place, step in enumerate(one.steps) if step.reward is not None
    ]
    series = {"reward": rewards if any(y for _, y in rewards) else []}
    for note in annotations:
        whole = note.place.step is not None and note.place.generation is None and note.place.token is None
        if whole and isinstance(note.value, (int, float)):
            series.setdefault(note.scorer, []).append((float((note.place.step or 0) + 1), float(note.value)))
    surprise = [
        (float(place + 1), found)
        for place, step in enumerate(one.steps)
        if (found := _surprise(step.generations)) is not None
    ]
    series["mean log-probability of an action"] = surprise
    figures: list[Figure] = []
    for name, points in list(series.items()):
        finite = [(x, y) for x, y in points if np.isfinite(y)]
        if len(finite) >= 3 and len(figures) < _CHARTS:
            low, high = min(y for _, y in finite), max(y for _, y in finite)
            room = max(0.06 * (high - low), 0.05 * abs(low))
            reach = (low - room, high + room) if low < 0 else None
            frame = charts.Frame(name, "step", whole_x=True, width=300, height=150, y_range=reach)
            line = charts.Line(name, "evolve", finite, markers=len(finite) <= 40)
            figures.append(Figure(clip(plain(name), 60), charts.line_chart(frame, [line])))
    return figures


def _surprise(generations: Sequence[Generation]) -> float | None:
    every = [generation.logprobs[generation.sampled] for generation in generations]
    found = np.concatenate(every) if every else np.zeros(0)
    return float(found.mean()) if len(found) else None
