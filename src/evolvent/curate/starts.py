"""Episode starts in the middle of demonstrations: the cuts of a demonstration, and the cut of each episode.

A demonstration is cut into M intermediate states; with the beginning they are M + 1 stages. Reverse curricula
(R3, Xi et al., arXiv 2402.05808) start at all of them at once (`mix_starts`), or at one after another from the
end (`stage_starts`); AdaBack (Amani et al., arXiv 2506.18110) finds for each task the share to reveal
(`reveal_starts`). Each is a pure function: the same seed gives the same starts, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evolvent.agents.base import recorded_turn
from evolvent.errors import ConfigError, Problem, VocabularyMismatch
from evolvent.models.dialects import Dialect
from evolvent.trajectory import Branch, Start, Step, Trajectory, sample_rng

__all__ = [
    "CutPlacement",
    "Cuts",
    "Reveal",
    "check_vocabulary",
    "cut_points",
    "mix_starts",
    "reveal_starts",
    "stage_starts",
    "update_reveals",
]

Cuts = Mapping[str, Sequence[Branch]]
"""Where the demonstration of a task is cut, by the task's id; from near its end to near its beginning."""
CutPlacement = Literal["uniform", "spans", "steps"]
_SPAN_END = re.compile(r"[;\n]\s*|(?=#\s*#\s*#)")  # spans of a rationale, lines, and what stands before the answer


def cut_points(
    trajectory: Trajectory,
    dialect: Dialect,
    stages: int,
    *,
    placement: CutPlacement = "uniform",
    render: Callable[[Step], str] | None = None,
) -> tuple[Branch, ...]:
    """Chooses at most `stages` states of a demonstration, evenly spaced, from near its end to near its beginning.

    Args:
        trajectory: The demonstration.
        dialect: Dialect whose tokens are counted.
        stages: Maximum number of states, at least 0.
        placement: "uniform": before any token of an action. "spans": before a step, and at the ends of lines and
            spans (`;`) inside an action, before a `###`. "steps": before a step.
        render: Returns the text that an agent would write for a step; None: its action.
    Raises:
        ConfigError: fewer than 0 stages. VocabularyMismatch: a word that the dialect does not know.
    """
    if stages < 0:
        raise ConfigError([Problem("stages", f"got {stages}, expected 0 or more")])
    cuts: list[tuple[int, int]] = []
    for number, step in enumerate(trajectory.steps):
        ids = () if placement == "steps" else recorded_turn(step, dialect, render=render or _action_text).action
        token_cuts = range(1, len(ids)) if placement == "uniform" else _find_span_ends(ids, dialect)
        cuts += [(number, 0), *((number, token) for token in token_cuts)]
    cuts = cuts[1:]  # the first is the beginning
    if len(cuts) > stages:
        # The k-th of M lies at k / (M + 1) of the way, rounded half up: with more places than stages no two are equal.
        ends = (2 * k * (len(cuts) + 1) + stages + 1 for k in range(1, stages + 1))
        cuts = [cuts[end // (2 * stages + 2) - 1] for end in ends]
    return tuple(Branch(trajectory.id, step, token) for step, token in reversed(cuts))


def _action_text(step: Step) -> str:
    return str(step.action)


def _find_span_ends(ids: Sequence[int], dialect: Dialect) -> list[int]:
    """Finds the token counts at which spans of an action end, each after the last token of the span's text.

    A token that holds the end of one span and the beginning of the next belongs to the next.
    """
    action_text = dialect.text(ids)
    lengths = [len(dialect.text(ids[:count]).rstrip()) for count in range(1, len(ids))]
    ends = (len(action_text[: match.end()].rstrip()) for match in _SPAN_END.finditer(action_text))
    counts = {sum(length <= end for length in lengths) for end in ends}
    return sorted(count for count in counts if 0 < count < len(ids) - 1)


# ------------------------------------------------------------------ which cut an episode begins at


def mix_starts(starts: Sequence[Start], cuts: Cuts, *, seed: int, min_start_ratio: float = 0.0) -> list[Start]:
    """Places each start at one of its task's M + 1 stages, drawn uniformly, the beginning included (R3).

    Args:
        starts: Starts of episodes.
        cuts: Cuts of the demonstrations by task id.
        seed: Seed of the draws.
        min_start_ratio: Minimum share of starts at the beginning; where it exceeds 1 / (M + 1), the cuts share the
            rest.
    Raises:
        ConfigError: a share outside 0..1.
    """
    if not 0 <= min_start_ratio <= 1:
        raise ConfigError([Problem("whole", f"got {min_start_ratio}, expected a number from 0 to 1")])
    branched_starts = []
    for start in starts:
        task_cuts = cuts.get(start.task.id, ())
        share = max(min_start_ratio, 1 / (len(task_cuts) + 1))
        draw = float(sample_rng(seed, "mixed", start.task.id, start.sample).random())
        branch = None if draw < share else task_cuts[int((draw - share) / (1 - share) * len(task_cuts))]
        branched_starts.append(replace(start, branch=branch))
    return branched_starts


def stage_starts(starts: Sequence[Start], cuts: Cuts, *, iteration: int, iterations: int) -> list[Start]:
    """Places starts at one stage after another, equally long: nearest to the end first, the beginning last.

    Args:
        iteration: from 1 to `iterations`.
    Raises:
        ConfigError: an iteration outside of that.
    """
    if not 1 <= iteration <= iterations:
        raise ConfigError([Problem("iteration", f"got {iteration}, expected 1 to {iterations}")])
    branched_starts = []
    for start in starts:
        stages = [*cuts.get(start.task.id, ()), None]
        branched_starts.append(replace(start, branch=stages[(iteration - 1) * len(stages) // iterations]))
    return branched_starts


@dataclass(frozen=True, slots=True)
class Reveal:
    """Bounds of the share of its demonstration that a task is shown."""

    low: float = 0.0
    high: float = 1.0


def reveal_starts(starts: Sequence[Start], cuts: Cuts, reveals: Mapping[str, Reveal], *, seed: int) -> list[Start]:
    """Places all starts of a task at the cut that shows a share drawn uniformly between its bounds (AdaBack).

    Args:
        reveals: the bounds by task id; of others 0 and 1.
    """
    branched_starts = []
    for start in starts:
        task_cuts, bounds = cuts.get(start.task.id, ()), reveals.get(start.task.id, Reveal())
        share = sample_rng(seed, "adaptive", start.task.id).uniform(bounds.low, bounds.high)
        stage = min(
            int(share * (len(task_cuts) + 1) + 1e-6), len(task_cuts)
        )  # a bound that is a stage's share means that stage
        branched_starts.append(replace(start, branch=task_cuts[-stage] if stage else None))
    return branched_starts


def update_reveals(
    reveals: Mapping[str, Reveal], trajectories: Sequence[Trajectory], cuts: Cuts, *, threshold: float = 0.5
) -> dict[str, Reveal]:
    """Updates AdaBack's bounds after an iteration; tasks without episodes or scores keep theirs.

    With r the mean score (0..1) of a task's episodes that were shown the share s: (0, s) if r >= threshold, so that it
    is shown less; else (s, 1).
    """
    scores_by_task: dict[str, tuple[float, list[float]]] = {}
    for trajectory in trajectories:
        if trajectory.score.unit is not None:
            share = _revealed_share(trajectory.branch, cuts.get(trajectory.task.id, ()))
            scores_by_task.setdefault(trajectory.task.id, (share, []))[1].append(trajectory.score.unit)
    updated = {}
    for task, (share, scores) in scores_by_task.items():
        is_solved = sum(scores) / len(scores) >= threshold
        updated[task] = Reveal(0.0, share) if is_solved else Reveal(share, 1.0)
    return {**reveals, **updated}


def _revealed_share(branch: Branch | None, task_cuts: Sequence[Branch]) -> float:
    """Computes the share of a demonstration that a branch shows."""
    return 0.0 if branch is None else (len(task_cuts) - task_cuts.index(branch)) / (len(task_cuts) + 1)


def check_vocabulary(demonstration: Trajectory, *, vocabulary_size: int) -> Trajectory:
    """Returns the demonstration after a check that its tokens are within a vocabulary of that size.

    Raises:
        VocabularyMismatch: some are of another tokenizer.
    """
    ids = [
        int(generation.ids.max())
        for step in demonstration.steps
        for generation in step.generations
        if len(generation.ids)
    ]
    if max(ids, default=0) >= vocabulary_size:
        raise VocabularyMismatch(
            f"demonstration {demonstration.id!r} was written with another tokenizer",
            value=f"token {max(ids)}",
            expected=f"tokens below {vocabulary_size}",
            hint="collect demonstrations with this policy, or remove their generations",
        )
    return demonstration
