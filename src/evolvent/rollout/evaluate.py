"""Panels: the tasks of an evaluation, and their results with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.stats import wilson_interval
from evolvent.trajectory import JsonObject, Start, Step, Task, Trajectory
from evolvent.worlds.base import SPLITS, World

__all__ = ["Evaluation", "example_row", "is_invalid", "panel_starts", "summarize_outcomes"]

_MAX_TEXTS, _MAX_TEXT = 3, 200  # invalid replies that are kept of a panel, and characters of each


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of one policy on one panel of tasks.

    `outcomes` holds (task id, kind, success) with success None where an episode could not be scored; then `mean` and
    its 95 % interval `low`, `high` are withheld (None), never averaged over the rest. `mean_return` is the mean of the
    episodes' rewards where these say more than success does; None: they are 1 for a success and 0 otherwise.

    Of `replies` in all, `invalid` were not actions of the world; `invalid_texts` holds the most frequent of them, with
    their counts. `metrics` holds means of the world's own numbers at the end of an episode, by name.
    """

    world: str
    tier: str
    split: str
    n: int
    successes: int | None
    mean: float | None
    low: float | None
    high: float | None
    errors: int
    generated: int
    computed: int
    outcomes: tuple[tuple[str, str, bool | None], ...]
    replies: int = 0
    invalid: int = 0
    invalid_texts: tuple[tuple[str, int], ...] = ()
    mean_return: float | None = None
    metrics: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        names = ("world", "tier", "split", "n", "mean", "low", "high", "mean_return", "errors")
        return f"Evaluation({', '.join(f'{name}={self._shorten(name)}' for name in names)})"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    def _shorten(self, name: str) -> str:
        value = getattr(self, name)
        return f"{value:.3g}" if isinstance(value, float) else repr(value)

    @classmethod
    def from_row(cls, row: JsonObject) -> Evaluation:
        """Returns the evaluation of a stored JSON row; other keys of the row are ignored."""
        values = {name: row[name] for name in cls.__slots__ if name in row}  # older rows count no replies
        values["outcomes"] = tuple((task, kind, success) for task, kind, success in row["outcomes"])
        values["invalid_texts"] = tuple((text, count) for text, count in row.get("invalid_texts", ()))
        values["metrics"] = tuple((name, value) for name, value in row.get("metrics", ()))
        return cls(**values)


def panel_starts(
    worlds: Mapping[str, World], *, split: str, tiers: Sequence[str] | None = None, limit: int | None = None
) -> list[Start]:
    """Returns one start per task of every panel (all tiers by default, at most `limit` tasks each).

    Raises:
        ConfigError: an unknown split or tier, or a panel with fewer than two tasks: no interval can be given for it.
    """
    problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
    known_tiers = {tier for world in worlds.values() for tier in world.tiers}
    problems += [unknown_name_problem("tier", tier, known_tiers) for tier in tiers or () if tier not in known_tiers]
    if problems:
        raise ConfigError(problems)
    starts: list[Start] = []
    for name, world in worlds.items():
        for tier in tiers or world.tiers:
            tasks: Sequence[Task] = world.tasks(split, tier)[:limit] if tier in world.tiers else ()
            if len(tasks) < 2 and tier in world.tiers:
                problem = f"got {len(tasks)} task(s), expected at least 2 for a rate with an interval"
                problems.append(Problem(f"{name}/{tier}/{split}", problem, "raise the limit or choose another split"))
            starts += [Start(task) for task in tasks]
    if problems:
        raise ConfigError(problems)
    return starts


def summarize_outcomes(trajectories: Iterable[Trajectory], *, computed: int = 0) -> list[Evaluation]:
    """Computes success per world and tier with Wilson intervals; `computed` tokens are divided by generated tokens.

    A panel in which an episode could not be scored has no mean: it is withheld, not averaged over the rest.
    """
    panels: dict[tuple[str, str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        task = trajectory.task
        panels.setdefault((task.world, task.tier, task.split), []).append(trajectory)
    generated_by_panel = {key: sum(t.count_generated_tokens() for t in panel) for key, panel in panels.items()}
    total_generated = max(1, sum(generated_by_panel.values()))
    rows = []
    for key, panel in panels.items():
        outcomes = tuple((t.task.id, t.task.kind, t.success) for t in panel)
        errors = sum(success is None for _, _, success in outcomes)
        wins = None if errors else sum(bool(success) for _, _, success in outcomes)
        interval = None if wins is None else wilson_interval(wins, len(panel))
        rows.append(
            Evaluation(
                *key,
                n=len(panel),
                successes=wins,
                mean=None if wins is None else wins / len(panel),
                low=None if interval is None else interval.low,
                high=None if interval is None else interval.high,
                errors=errors,
                generated=generated_by_panel[key],
                computed=round(computed * generated_by_panel[key] / total_generated),
                outcomes=outcomes,
                replies=sum(len(t.steps) for t in panel),
                **_count_invalid_replies(panel),
                mean_return=_mean_return(panel),
                metrics=_mean_metrics(panel),
            )
        )
    return rows


def _count_invalid_replies(panel: Sequence[Trajectory]) -> dict[str, Any]:
    """Counts the replies that were not actions, and their most frequent texts."""
    texts = [str(step.action) for trajectory in panel for step in trajectory.steps if is_invalid(step)]
    frequent = Counter(text[:_MAX_TEXT] for text in texts).most_common(_MAX_TEXTS)
    return {"invalid": len(texts), "invalid_texts": tuple(frequent)}


def is_invalid(step: Step) -> bool:
    """Returns whether a step's reply was not an action of its world: it could not be read, or was refused."""
    return bool(step.info.get("invalid") or step.info.get("unparsed"))


def _mean_return(panel: Sequence[Trajectory]) -> float | None:
    """Returns the mean reward of the episodes; None where it is the success rate, or an episode was not scored."""
    returns = [trajectory.score.raw for trajectory in panel if trajectory.score.raw is not None]
    says_more = any(trajectory.score.raw != float(bool(trajectory.success)) for trajectory in panel)
    return float(np.mean(returns)) if says_more and len(returns) == len(panel) else None


def _mean_metrics(panel: Sequence[Trajectory]) -> tuple[tuple[str, float], ...]:
    """Returns the mean of each number that the world notes (`metrics`), of its last note in each episode."""
    values: dict[str, list[float]] = {}
    for trajectory in panel:
        notes = [step.info["metrics"] for step in trajectory.steps if isinstance(step.info.get("metrics"), Mapping)]
        for name, value in (notes[-1] if notes else {}).items():
            if isinstance(value, int | float):
                values.setdefault(str(name), []).append(float(value))
    return tuple((name, float(np.mean(numbers))) for name, numbers in values.items())


def example_row(trajectory: Trajectory, *, instructions: str, word: Callable[[int], str]) -> dict[str, object]:
    """Returns an episode as JSON values for display, token by token; `word` returns the text of one token id."""
    steps = []
    for step in trajectory.steps:
        logprobs = np.concatenate(
            [g.informative_logprobs[g.sampled] for g in step.generations] or [np.zeros(0, np.float32)]
        )
        mean = float(logprobs.mean()) if len(logprobs) else None
        invalid = is_invalid(step)
        steps.append(
            {
                "observation": str(step.observation),
                "action": str(step.action),
                "reward": step.reward,
                "invalid": invalid,
                "logprob": mean,
            }
        )
    tokens = [
        {"text": word(int(index)), "sampled": bool(sampled), "logprob": float(logprob) if sampled else None}
        for g in trajectory.generations
        for index, sampled, logprob in zip(g.ids, g.sampled, g.informative_logprobs, strict=True)
    ]
    task = trajectory.task
    return {
        "task": task.id,
        "world": task.world,
        "tier": task.tier,
        "kind": task.kind,
        "success": trajectory.success,
        "ended_by": trajectory.ended_by,
        "instructions": instructions,
        "steps": steps,
        "tokens": tokens,
        "final_observation": str(trajectory.final_observation),
    }
