"""What judges say of whole episodes, outside of a search: training rows, scores of spans, rewards in the world's place.

A search asks an engine for its values (`search/scoring.py`). Here all is written already: one forward reads many
episodes, each token once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.learn.forward import outputs
from evolvent.learn.objectives import Need, Objective, given, outcome, value
from evolvent.learn.packing import Batch
from evolvent.learn.preferences import readout
from evolvent.learn.token_sequences import Parts, flatten
from evolvent.models.policy import Policy
from evolvent.reward.offline import Siblings, advantage_weights
from evolvent.reward.process import TagIds, labelled
from evolvent.reward.solutions import Solution
from evolvent.reward.states import Spans, solution_of, states
from evolvent.rl.scoring import Look, look, said_of
from evolvent.search.settings import SearchConfig
from evolvent.search.writing import Writing
from evolvent.trajectory import Generation, Score, Trajectory

__all__ = [
    "Floats",
    "advantage_parts",
    "cut",
    "episode_rewards",
    "judge_objective",
    "judge_parts",
    "rescored",
    "siblings_of",
    "solutions_in",
    "span_scores",
    "spans_of",
]

_log = logging.getLogger(__name__)
_TEACHER: tuple[Need, ...] = ("teacher",)
_VALUES: tuple[Look, ...] = ("values",)
Floats = NDArray[np.float64]
"""Scores of spans, `[T]`."""


# ------------------------------------------------------------------ spans


def spans_of(policy: Policy, separators: Sequence[str], *, max_tokens: int, level: str = "span") -> Spans:
    """Where the spans of written tokens end: as a search or a labelling with these settings has them.

    Args:
        level: "token": every token is one.
    """
    if level == "token":
        return _every_token
    return Writing.of(policy, max_tokens=max_tokens, separators=tuple(separators)).spans


def _every_token(ids: Sequence[int]) -> Sequence[int]:
    return range(1, len(ids) + 1)


def cut(trajectory: Trajectory, spans: Spans) -> Trajectory:
    """The same episode with the ends of its spans noted in its generations, where credit looks for them."""

    def noted(generation: Generation) -> Generation:
        written = np.flatnonzero(generation.sampled)
        begin = int(written[0]) if len(written) else 0
        if not len(written) or len(written) != len(generation.ids) - begin:
            return generation
        ends = spans(generation.ids[begin:].tolist())
        return replace(generation, spans=tuple(begin + end for end in ends))

    steps = tuple(replace(step, generations=tuple(map(noted, step.generations))) for step in trajectory.steps)
    return replace(trajectory, steps=steps)


def solutions_in(trajectories: Iterable[Trajectory], spans: Spans) -> dict[str, Solution]:
    """By the episode's id, those that are a response of one turn, cut into spans."""
    found = {}
    for one in trajectories:
        try:
            found[one.id] = solution_of(one, spans)
        except SampleInvalid as error:
            _log.debug("no solution: %s", error)
    return found


def span_scores(
    judge: Policy, solutions: Mapping[str, Solution], tags: TagIds, *, tokens: int | None = None
) -> dict[str, Floats]:
    """`p(good) [T]` at the end of every span under a process reward model, as `process.SpanScorer` has it.

    Solutions that leave no room for a tag have no scores: they are left out.

    Args:
        tokens: most tokens of a forward, padding included; None: see `learn.look.said_of`.
    """
    fitting = {name: one for name, one in solutions.items() if len(one.ids) + 2 <= judge.context}
    trees = [labelled(one, [1.0] * len(one.spans), tags) for one in fitting.values()]

    def read(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        words = given(outputs(model, batch, needs=_TEACHER).teacher, "teacher").double()
        return {"good": torch.sigmoid(words[:, 0] - words[:, 1])}

    said = said_of(judge.model, trees, read, tokens=tokens)
    return {name: column["good"][tree.weight != 0] for name, tree, column in zip(fitting, trees, said, strict=True)}


def siblings_of(solutions: Mapping[str, Solution], scores: Mapping[str, Floats]) -> list[Siblings]:
    """The spans that were written after one prefix by different solutions, each valued by its score.

    Of equal spans after one prefix there is one: its score depends on what comes before alone.
    """
    families: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[int, ...], float]] = {}
    for name, solution in solutions.items():
        if name not in scores:
            continue
        prefix: tuple[int, ...] = ()
        for span, score in zip(solution.spans, scores[name].tolist(), strict=True):
            families.setdefault((solution.prompt, prefix), {}).setdefault(span, score)
            prefix += span
    return [
        Siblings(prompt, prefix, tuple(spans), tuple(spans.values()), f"siblings/{number}")
        for number, ((prompt, prefix), spans) in enumerate(families.items())
        if len(spans) > 1
    ]


def advantage_parts(
    solutions: Mapping[str, Solution], scores: Mapping[str, Floats], tasks: Mapping[str, str], *, beta: float
) -> list[Parts]:
    """Solutions to be imitated span by span, with the weights of advantage-weighted regression.

    The advantage of a span is how much more likely a right end is behind it than before it, `p_t - p_(t-1)`. Before the
    first span that is the mean over the task's solutions of what follows, `p_1`.

    Args:
        tasks: by the names of the solutions.
    """
    firsts: dict[str, list[float]] = {}
    for name, own in scores.items():
        firsts.setdefault(tasks[name], []).append(float(own[0]))
    made = []
    for name, own in scores.items():
        parts = solutions[name].parts()
        gains = np.diff(own, prepend=float(np.mean(firsts[tasks[name]])))
        weights = np.append(advantage_weights(gains, beta=beta), 0.0)[parts.span]  # -1, the prompt, is the last
        made.append(replace(parts, weight=weights.astype(np.float32)))
    return made


# ------------------------------------------------------------------ the judge of a search


def judge_objective(how: SearchConfig) -> Objective:
    """What the judge of a search learns by, from `judge_parts`.

    Raises:
        ConfigError: a judge that is not learned from outcomes.
    """
    if how.score not in ("value", "outcome"):
        raise ConfigError(
            f"a judge of the form {how.score!r} is not learned from outcomes",
            value=how.score,
            expected="score = 'value' or 'outcome'",
        )
    return value() if how.score == "value" else outcome


def judge_parts(
    trajectories: Iterable[Trajectory], policy: Policy, how: SearchConfig, *, horizons: Mapping[str, int] | None = None
) -> list[Parts]:
    """Training rows for the judge of a search: the unit score of each episode, wherever the search may ask for a value.

    With level "auto" the episodes of a world are turns where they may have several steps, as in `rollout/searching`.
    Episodes without a score, or that do not fit, teach nothing; how many they are is logged.

    Args:
        horizons: by world, how many steps an episode may take. Of a world that is not named, the longest of these
            episodes has to tell, which it cannot where all ended at their first step.
    """
    most = dict(horizons or {})
    worlds: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        worlds.setdefault(one.task.world, []).append(one)
    parts: list[Parts] = []
    for name, own in worlds.items():
        steps = most.get(name) or max(len(one.steps) for one in own)
        turns = how.level == "turn" or (how.level == "auto" and steps > 1)
        level = "token" if how.level == "token" else "span"
        spans = None if turns else spans_of(policy, how.separators, max_tokens=how.max_tokens, level=level)
        column: Literal["returns", "outcome"] = "returns" if how.score == "value" else "outcome"
        prepared = states(own, policy.dialect, context=policy.context, spans=spans, column=column)
        if prepared.refused:
            _log.warning(
                "%d of %d episodes of %s teach the judge nothing: %s",
                len(prepared.refused),
                len(own),
                name,
                prepared.refused[0].what,
            )
        parts += prepared.parts
    return parts


# ------------------------------------------------------------------ a reward model in the world's place


def episode_rewards(model: Policy, trajectories: Sequence[Trajectory], *, tokens: int | None = None) -> list[float]:
    """What a reward model gives each episode, in its own scale: the value head's output behind the last token.

    NaN for an episode that is not one sequence of tokens within the context.

    Args:
        model: trained by `learn.objectives.reward_pairs` on read-outs (`learn.preferences.readout`).
        tokens: most tokens of a forward, padding included; None: see `learn.look.look`.
    """
    made = flatten(trajectories, model.dialect, instructions=lambda task: "", context=model.context, stops=True).parts
    chains: dict[str, list[Parts]] = {}
    for one in made:
        chains.setdefault(one.trajectory, []).append(one)
    token = min(model.dialect.stop_ids, default=0)
    single = {name: readout(own[0], token=token) for name, own in chains.items() if len(own) == 1}
    said = look(model, list(single.values()), needs=_VALUES, tokens=tokens)
    known = {name: float(column["values"][-1]) for name, column in zip(single, said, strict=True)}
    return [known.get(one.id, float("nan")) if one.error is None else float("nan") for one in trajectories]


def rescored(trajectory: Trajectory, unit: float | None) -> Trajectory:
    """The episode with another score in place of the world's, in the rewards of its steps too; None: not scored.

    Nothing is left of what the world paid. Whether it was a success is not known.
    """
    last = len(trajectory.steps) - 1
    steps = tuple(
        replace(step, reward=0.0 if number < last and unit is not None else unit)
        for number, step in enumerate(trajectory.steps)
    )
    return replace(trajectory, steps=steps, score=Score(unit, unit, None))
