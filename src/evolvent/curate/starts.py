"""Starts in the middle of demonstrations: where one is cut, and at which cut an episode begins.

A demonstration is cut into M states on its way; with the beginning they are M + 1 stages. Reverse curricula (R3, Xi et
al., arXiv 2402.05808) begin at all of them at once (`mixed`), or at one after another from the end (`staged`); AdaBack
(Amani et al., arXiv 2506.18110) finds for each task how much it must be shown (`adaptive`). Each is a pure function:
the same seed gives the same starts, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evolvent.agents.base import turn_of
from evolvent.errors import ConfigError, Problem, VocabularyMismatch
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Branch, Start, Step, Trajectory, sample_rng

__all__ = ["Cuts", "Places", "Reveal", "adapted", "adaptive", "cut_points", "mixed", "readable", "staged"]

Cuts = Mapping[str, Sequence[Branch]]
"""Where the demonstration of a task is cut, by the task's id; from near its end to near its beginning."""
Places = Literal["uniform", "spans", "steps"]
_SPAN_END = re.compile(r"[;\n]\s*|(?=#\s*#\s*#)")  # spans of a rationale, lines, and what stands before the answer


def cut_points(
    trajectory: Trajectory,
    dialect: Dialect,
    stages: int,
    *,
    at: Places = "uniform",
    render: Callable[[Step], str] | None = None,
) -> tuple[Branch, ...]:
    """At most `stages` states on the way of a demonstration, evenly chosen, from near its end to near its beginning.

    Args:
        dialect: whose tokens are counted.
        at: "uniform": before any token of an action. "spans": before a step, and at the ends of lines and spans (`;`)
            inside an action, before a `###`. "steps": before a step.
        render: the text that an agent would write for a step; None: its action.
    Raises:
        ConfigError: fewer than 0 stages. VocabularyMismatch: a word that the dialect does not know.
    """
    if stages < 0:
        raise ConfigError([Problem("stages", f"{stages} states on the way of a demonstration", "give 0 or more")])
    places: list[tuple[int, int]] = []
    for number, step in enumerate(trajectory.steps):
        ids = () if at == "steps" else turn_of(step, dialect, render=render or _action).action
        inside = range(1, len(ids)) if at == "uniform" else _span_ends(ids, dialect)
        places += [(number, 0), *((number, token) for token in inside)]
    places = places[1:]  # the first is the beginning
    if len(places) > stages:
        # The k-th of M lies at k / (M + 1) of the way, rounded half up: with more places than stages no two are equal.
        ends = (2 * k * (len(places) + 1) + stages + 1 for k in range(1, stages + 1))
        places = [places[end // (2 * stages + 2) - 1] for end in ends]
    return tuple(Branch(trajectory.id, step, token) for step, token in reversed(places))


def _action(step: Step) -> str:
    return str(step.action)


def _span_ends(ids: Sequence[int], dialect: Dialect) -> list[int]:
    """Where spans end among the tokens of an action: after the last token that says no more than the span does.

    A token that holds the end of one span and the beginning of the next belongs to the next.
    """
    said = dialect.text(ids)
    lengths = [len(dialect.text(ids[:count]).rstrip()) for count in range(1, len(ids))]
    ends = (len(said[: found.end()].rstrip()) for found in _SPAN_END.finditer(said))
    counts = {sum(length <= end for length in lengths) for end in ends}
    return sorted(count for count in counts if 0 < count < len(ids) - 1)


# ------------------------------------------------------------------ which cut an episode begins at


def mixed(starts: Sequence[Start], cuts: Cuts, *, seed: int, whole: float = 0.0) -> list[Start]:
    """R3: each start at one of its task's M + 1 stages, drawn uniformly, the beginning among them.

    Args:
        whole: least share of starts at the beginning; where it is more than 1 / (M + 1), the cuts share the rest.
    Raises:
        ConfigError: a share outside 0..1.
    """
    if not 0 <= whole <= 1:
        raise ConfigError([Problem("whole", f"a share of {whole}", "give a number from 0 to 1")])
    found = []
    for start in starts:
        own = cuts.get(start.task.id, ())
        share = max(whole, 1 / (len(own) + 1))
        drawn = float(sample_rng(seed, "mixed", start.task.id, start.sample).random())
        branch = None if drawn < share else own[int((drawn - share) / (1 - share) * len(own))]
        found.append(replace(start, branch=branch))
    return found


def staged(starts: Sequence[Start], cuts: Cuts, *, iteration: int, iterations: int) -> list[Start]:
    """The stages one after another, equally long: nearest to the end first, the beginning last.

    Args:
        iteration: from 1 to `iterations`.
    Raises:
        ConfigError: an iteration outside of that.
    """
    if not 1 <= iteration <= iterations:
        raise ConfigError([Problem("iteration", f"{iteration} of {iterations}", f"give 1 to {iterations}")])
    found = []
    for start in starts:
        stages = [*cuts.get(start.task.id, ()), None]
        found.append(replace(start, branch=stages[(iteration - 1) * len(stages) // iterations]))
    return found


@dataclass(frozen=True, slots=True)
class Reveal:
    """How much of its demonstration a task is shown: a share between `low` and `high`."""

    low: float = 0.0
    high: float = 1.0


def adaptive(starts: Sequence[Start], cuts: Cuts, reveals: Mapping[str, Reveal], *, seed: int) -> list[Start]:
    """AdaBack: all starts of a task at the cut that shows it a share drawn uniformly between its bounds.

    Args:
        reveals: the bounds by task id; of others 0 and 1.
    """
    found = []
    for start in starts:
        own, bounds = cuts.get(start.task.id, ()), reveals.get(start.task.id, Reveal())
        share = sample_rng(seed, "adaptive", start.task.id).uniform(bounds.low, bounds.high)
        stage = min(int(share * (len(own) + 1) + 1e-6), len(own))  # a bound that is a stage's share means that stage
        found.append(replace(start, branch=own[-stage] if stage else None))
    return found


def adapted(
    reveals: Mapping[str, Reveal], played: Sequence[Trajectory], cuts: Cuts, *, threshold: float = 0.5
) -> dict[str, Reveal]:
    """AdaBack's bounds after an iteration. Tasks that were not played, or whose episodes have no score, keep theirs.

    With r the mean score (0..1) of a task's episodes that were shown the share s: (0, s) if r >= threshold, so that it
    is shown less; else (s, 1).
    """
    shown: dict[str, tuple[float, list[float]]] = {}
    for one in played:
        if one.score.unit is not None:
            share = _share(one.branch, cuts.get(one.task.id, ()))
            shown.setdefault(one.task.id, (share, []))[1].append(one.score.unit)
    now = {}
    for task, (share, scores) in shown.items():
        solved = sum(scores) / len(scores) >= threshold
        now[task] = Reveal(0.0, share) if solved else Reveal(share, 1.0)
    return {**reveals, **now}


def _share(branch: Branch | None, own: Sequence[Branch]) -> float:
    """The share of a demonstration that a branch shows."""
    return 0.0 if branch is None else (len(own) - own.index(branch)) / (len(own) + 1)


def readable(demonstration: Trajectory, *, words: int) -> Trajectory:
    """The same; its tokens are handed to a policy of so many words as they are.

    Raises:
        VocabularyMismatch: some are of another tokenizer.
    """
    ids = [int(one.ids.max()) for step in demonstration.steps for one in step.generations if len(one.ids)]
    if max(ids, default=0) >= words:
        raise VocabularyMismatch(
            f"the demonstration {demonstration.id!r} was written with another tokenizer",
            value=f"token {max(ids)}",
            expected=f"tokens below {words}",
            hint="demonstrate with this policy, or leave out its generations",
        )
    return demonstration
