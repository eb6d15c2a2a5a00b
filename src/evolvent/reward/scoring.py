"""Reward models on whole episodes, outside of a search: training rows, scores of spans, rewards instead of the
world's.

A search requests its values from an engine (`search/texts.py`). Here all tokens are known already: one
forward reads many episodes, each token once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.errors import ConfigError, SampleInvalid
from evolvent.learn.forward import compute_outputs
from evolvent.learn.objectives import Need, Objective, outcome, require_output, value_objective
from evolvent.learn.preferences import append_readout
from evolvent.learn.token_sequences import Batch, TokenSequence, flatten
from evolvent.models.policy import Policy
from evolvent.reward.offline import SiblingSpans, advantage_weights
from evolvent.reward.process import TagIds, build_tagged_tree
from evolvent.reward.solutions import Solution
from evolvent.reward.states import Spans, build_state_rows, extract_solution
from evolvent.rl.scored_rollout import ScoreKind, evaluate_targets, score_sequences
from evolvent.search.settings import SearchConfig
from evolvent.search.writing import Writing
from evolvent.trajectory import Generation, Score, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "Floats",
    "build_advantage_rows",
    "build_judge_rows",
    "collect_solutions",
    "group_siblings",
    "judge_objective",
    "make_span_splitter",
    "mark_spans",
    "replace_score",
    "score_episodes",
    "score_spans",
]

_log = logging.getLogger(__name__)
_TEACHER: tuple[Need, ...] = ("teacher",)
_VALUES: tuple[ScoreKind, ...] = ("values",)
Floats = NDArray[np.float64]
"""Scores of spans, `[T]`."""


# ------------------------------------------------------------------ spans


def make_span_splitter(policy: Policy, separators: Sequence[str], *, max_tokens: int, level: str = "span") -> Spans:
    """Returns the function that finds the ends of spans, as a search or a labeling with these settings does.

    Args:
        level: "token": every token is one.
    """
    if level == "token":
        return _token_ends
    return Writing.for_policy(policy, max_tokens=max_tokens, separators=tuple(separators)).spans


def _token_ends(ids: Sequence[int]) -> Sequence[int]:
    return range(1, len(ids) + 1)


def mark_spans(trajectory: Trajectory, spans: Spans) -> Trajectory:
    """Returns the episode with the ends of its spans noted in its generations, where credit assignment reads them."""

    def mark_generation(generation: Generation) -> Generation:
        sampled_positions = np.flatnonzero(generation.sampled)
        begin = int(sampled_positions[0]) if len(sampled_positions) else 0
        if not len(sampled_positions) or len(sampled_positions) != len(generation.ids) - begin:
            return generation
        ends = spans(generation.ids[begin:].tolist())
        return replace(generation, spans=tuple(begin + end for end in ends))

    steps = tuple(replace(step, generations=tuple(map(mark_generation, step.generations))) for step in trajectory.steps)
    return replace(trajectory, steps=steps)


def collect_solutions(trajectories: Iterable[Trajectory], spans: Spans) -> dict[str, Solution]:
    """Collects, by episode id, the episodes that are a response of one turn, cut into spans."""
    solutions = {}
    for trajectory in trajectories:
        try:
            solutions[trajectory.id] = extract_solution(trajectory, spans)
        except SampleInvalid as error:
            _log.debug("no solution: %s", error)
    return solutions


def score_spans(
    judge: Policy, solutions: Mapping[str, Solution], tags: TagIds, *, max_tokens_per_forward: int | None = None
) -> dict[str, Floats]:
    """Computes `p(good) [T]` at the end of every span under a process reward model, as `process.SpanScorer` does.

    Solutions that leave no space for a tag have no scores: they are left out.

    Args:
        judge: The process reward model.
        solutions: Solutions by name.
        tags: Token ids of the tag and the label words.
        max_tokens_per_forward: Maximum tokens of a forward, padding included; None: see
            `rl.scored_rollout.score_sequences`.
    """
    fitting = {name: solution for name, solution in solutions.items() if len(solution.ids) + 2 <= judge.context}
    trees = [build_tagged_tree(solution, [1.0] * len(solution.spans), tags) for solution in fitting.values()]

    def compute_good(model: PreTrainedModel, batch: Batch) -> Mapping[str, Tensor]:
        label_logits = require_output(compute_outputs(model, batch, needs=_TEACHER).teacher, "teacher").double()
        return {"good": torch.sigmoid(label_logits[:, 0] - label_logits[:, 1])}

    columns = evaluate_targets(judge.model, trees, compute_good, max_tokens_per_forward=max_tokens_per_forward)
    return {name: column["good"][tree.weight != 0] for name, tree, column in zip(fitting, trees, columns, strict=True)}


def group_siblings(solutions: Mapping[str, Solution], scores: Mapping[str, Floats]) -> list[SiblingSpans]:
    """Groups the spans that different solutions wrote after one prefix, each with its score as value.

    Of equal spans after one prefix there is one: its score depends on what comes before alone.

    Args:
        solutions: the solutions by name.
        scores: by name, `[num_spans]`. The score of each span of a solution; a solution without scores is left out.
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
        SiblingSpans(prompt, prefix, tuple(spans), tuple(spans.values()), f"siblings/{number}")
        for number, ((prompt, prefix), spans) in enumerate(families.items())
        if len(spans) > 1
    ]


def build_advantage_rows(
    solutions: Mapping[str, Solution], scores: Mapping[str, Floats], tasks: Mapping[str, str], *, beta: float
) -> list[TokenSequence]:
    """Builds solutions to imitate span by span, with the weights of advantage-weighted regression.

    The advantage of a span is the increase of the probability of a right end, `p_t - p_(t-1)`. Before the first
    span that probability is the mean over the task's solutions of the first score, `p_1`.

    Args:
        solutions: Solutions by name.
        scores: Scores of spans by name.
        tasks: Task ids by name.
        beta: Temperature of the weights.
    """
    firsts: dict[str, list[float]] = {}
    for name, span_values in scores.items():
        firsts.setdefault(tasks[name], []).append(float(span_values[0]))
    sequences = []
    for name, span_values in scores.items():
        sequence = solutions[name].to_sequence()
        gains = np.diff(span_values, prepend=float(np.mean(firsts[tasks[name]])))
        weights = np.append(advantage_weights(gains, beta=beta), 0.0)[sequence.span]  # -1, the prompt, is the last
        sequences.append(replace(sequence, weight=weights.astype(np.float32)))
    return sequences


# ------------------------------------------------------------------ the judge of a search


def judge_objective(search: SearchConfig) -> Objective:
    """Returns the objective of a search's value model, for rows of `build_judge_rows`.

    Raises:
        ConfigError: a judge that is not learned from outcomes.
    """
    if search.score not in ("value", "outcome"):
        raise ConfigError(
            f"a judge with score {search.score!r} cannot learn from outcomes",
            value=search.score,
            expected="score = 'value' or 'outcome'",
        )
    return value_objective() if search.score == "value" else outcome


def build_judge_rows(
    trajectories: Iterable[Trajectory],
    policy: Policy,
    search: SearchConfig,
    *,
    horizons: Mapping[str, int] | None = None,
) -> list[TokenSequence]:
    """Builds training rows for a search's value model: the unit score of each episode, wherever the search
    requests a value.

    With level "auto" the episodes of a world are turns where they may have several steps, as in `rollout/search`.
    Episodes without a score, or that do not fit, give no rows; their number is logged.

    Args:
        trajectories: The episodes.
        policy: The policy.
        search: Settings of the search.
        horizons: By world, maximum steps of an episode. For a missing world the longest of these episodes counts,
            which is uninformative where all ended at their first step.
    """
    max_steps = dict(horizons or {})
    worlds: dict[str, list[Trajectory]] = {}
    for episode in trajectories:
        worlds.setdefault(episode.task.world, []).append(episode)
    sequences: list[TokenSequence] = []
    for name, world_episodes in worlds.items():
        steps = max_steps.get(name) or max(len(episode.steps) for episode in world_episodes)
        is_multi_turn = search.level == "turn" or (search.level == "auto" and steps > 1)
        level = "token" if search.level == "token" else "span"
        spans = (
            None
            if is_multi_turn
            else make_span_splitter(policy, search.separators, max_tokens=search.max_tokens, level=level)
        )
        column: Literal["returns", "outcome"] = "returns" if search.score == "value" else "outcome"
        prepared = build_state_rows(world_episodes, policy.dialect, context=policy.context, spans=spans, column=column)
        if prepared.refused:
            _log.warning(
                "skipped %d of %d episodes of %s when training the judge: %s",
                len(prepared.refused),
                len(world_episodes),
                name,
                prepared.refused[0].what,
            )
        sequences += prepared.sequences
    return sequences


# ------------------------------------------------------------------ a reward model in the world's place


def score_episodes(
    model: Policy, trajectories: Sequence[Trajectory], *, max_tokens_per_forward: int | None = None
) -> list[float]:
    """Computes the reward of each episode by a reward model, in its own scale: the value head's output after the
    last token.

    NaN for an episode that is not one sequence of tokens within the context.

    Args:
        model: Trained by `learn.objectives.reward_pairs_objective` on read-outs (`learn.preferences.append_readout`).
        trajectories: The episodes.
        max_tokens_per_forward: Maximum tokens of a forward, padding included; None: see
            `rl.scored_rollout.score_sequences`.
    """
    sequences = flatten(
        trajectories, model.dialect, instructions=lambda task: "", context=model.context, stops=True
    ).sequences
    chains: dict[str, list[TokenSequence]] = {}
    for sequence in sequences:
        chains.setdefault(sequence.trajectory, []).append(sequence)
    token = min(model.dialect.stop_ids, default=0)
    single = {
        name: append_readout(episode_sequences[0], token=token)
        for name, episode_sequences in chains.items()
        if len(episode_sequences) == 1
    }
    columns = score_sequences(
        model, list(single.values()), needs=_VALUES, max_tokens_per_forward=max_tokens_per_forward
    )
    scores_by_id = {name: float(column["values"][-1]) for name, column in zip(single, columns, strict=True)}
    return [
        scores_by_id.get(sequence.id, float("nan")) if sequence.error is None else float("nan")
        for sequence in trajectories
    ]


def replace_score(trajectory: Trajectory, unit: float | None) -> Trajectory:
    """Returns the episode with another score instead of the world's, also in the rewards of its steps; None: not
    scored.

    Nothing is left of what the world paid. Whether it was a success is not known.
    """
    last = len(trajectory.steps) - 1
    steps = tuple(
        replace(step, reward=0.0 if number < last and unit is not None else unit)
        for number, step in enumerate(trajectory.steps)
    )
    return replace(trajectory, steps=steps, score=Score(unit, unit, None))
