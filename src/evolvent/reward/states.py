"""Training rows of value models from episodes: the outcome, at every position where a search may request a
value.

In a response these are the ends of its spans; in an episode of several turns the positions where the agent
acts, and the end of the world's last observation. `search/texts.py` and `search/environments.py` request values
at the same positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from evolvent.errors import EvolventError, Problem, SampleInvalid
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.dialects import Dialect
from evolvent.reward.process import PreparedRows
from evolvent.reward.solutions import Solution
from evolvent.reward.values import build_value_row
from evolvent.trajectory import Trajectory

__all__ = ["Spans", "build_span_row", "build_state_rows", "build_turn_row", "extract_solution"]

Spans = Callable[[Sequence[int]], Sequence[int]]  # where the spans of written tokens end, the last at their end
Column = Literal["returns", "outcome"]


def build_state_rows(
    trajectories: Iterable[Trajectory],
    dialect: Dialect,
    *,
    context: int,
    spans: Spans | None,
    column: Column = "outcome",
    low: float = 0.0,
) -> PreparedRows:
    """Builds training rows of episodes: their unit score at every state, and the episodes without a row, with the
    reason.

    Args:
        trajectories: The episodes.
        dialect: Dialect of the policy.
        context: Longer rows are refused.
        spans: Finds the ends of spans of a response, for worlds of one question; None: episodes of turns.
        column: "outcome" for `objectives.outcome`, "returns" for `objectives.value`.
        low: Value of an outcome of 0; TS-LLM has -1 (the column "returns" alone).
    """
    sequences, refused = [], []
    for trajectory in trajectories:
        try:
            row = (
                build_turn_row(trajectory, dialect)
                if spans is None
                else build_span_row(trajectory, spans, token=_placeholder_token(dialect))
            )
            score = trajectory.score.unit
            if score is None or not 0 <= score <= 1:
                raise SampleInvalid(f"episode {trajectory.id!r} is not scored", value=score, expected="a score in 0..1")
            if len(row) - 1 > context:
                raise SampleInvalid(
                    f"episode {trajectory.id!r} does not fit the context", value=len(row) - 1, expected=context
                )
        except EvolventError as error:
            refused.append(Problem(trajectory.id, str(error)))
            continue
        target = score if column == "outcome" else low + (1.0 - low) * score
        target_column = np.where(row.weight != 0, np.float32(target), np.float32(0))
        sequences.append(replace(row, columns={column: target_column}, unit=score, group=trajectory.group))
    return PreparedRows(sequences, refused)


def build_span_row(trajectory: Trajectory, spans: Spans, *, token: int) -> TokenSequence:
    """Builds the row of an episode of one turn, with weight 1 after the end of every span and returns of 0.

    Args:
        token: stands behind the last end, and is never fed.
    Raises:
        SampleInvalid: no response of one turn.
    """
    solution = extract_solution(trajectory, spans)
    return build_value_row(solution, [0.0] * len(solution.spans), token=token)


def extract_solution(trajectory: Trajectory, spans: Spans) -> Solution:
    """Returns the response of an episode of one turn, cut into the spans noted in its generation, otherwise by
    `spans`.

    Raises:
        SampleInvalid: not one generation that acted and read its prompt first.
    """
    acting_generations = [generation for generation in trajectory.generations if generation.acted]
    is_root = len(acting_generations) == 1 and acting_generations[0].extends is None
    sampled_positions = np.flatnonzero(acting_generations[0].sampled) if is_root else np.zeros(0, np.int64)
    if (
        not len(sampled_positions)
        or sampled_positions[0] == 0
        or len(sampled_positions) != len(acting_generations[0].ids) - sampled_positions[0]
    ):
        raise SampleInvalid(
            f"episode {trajectory.id!r} is not a single-turn response",
            value=f"{len(acting_generations)} generations",
            expected="one generation that follows its prompt",
        )
    ids, begin = acting_generations[0].ids.tolist(), int(sampled_positions[0])
    noted_ends = {end - begin for end in acting_generations[0].spans if begin < end < len(ids)}
    ends = [0, *(sorted(noted_ends | {len(ids) - begin}) if noted_ends else spans(ids[begin:]))]
    return Solution(
        tuple(ids[:begin]), tuple(tuple(ids[begin + a : begin + b]) for a, b in pairwise(ends)), trajectory.id
    )


def build_turn_row(trajectory: Trajectory, dialect: Dialect) -> TokenSequence:
    """Builds the row of an episode of turns, with weight 1 at the start of every action and after the last
    observation.

    Raises:
        SampleInvalid: no episode whose turns extend each other.
    """
    generations = list(trajectory.generations)
    is_chained = all(
        generation.extends == (index - 1 if index else None) for index, generation in enumerate(generations)
    )
    if not generations or not is_chained or len(generations) != len(trajectory.steps):
        raise SampleInvalid(
            f"episode {trajectory.id!r} does not have one generation per step",
            value=f"{len(generations)} generations, {len(trajectory.steps)} steps",
        )
    sizes = [len(generation.ids) for generation in generations]
    begins = np.cumsum([0, *sizes[:-1]])
    ids = np.concatenate([generation.ids for generation in generations])
    sampled = np.concatenate([generation.sampled for generation in generations])
    action_starts = [
        int(begin + np.argmax(generation.sampled))
        for begin, generation in zip(begins, generations, strict=True)
        if generation.sampled.any()
    ]
    zeros = np.zeros(len(ids), np.float32)
    step = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    row = TokenSequence(trajectory.id, ids, sampled, sampled, zeros, step, np.full(len(ids), -1, np.int32), zeros)
    last_observation = dialect.turn(str(trajectory.final_observation), stopped=generations[-1].stop != "length")
    extended_row = _append_tail(row, last_observation, _placeholder_token(dialect))
    weight = np.zeros(len(extended_row), np.float32)
    weight[[*action_starts, len(extended_row) - 1]] = 1.0
    return replace(extended_row, weight=weight)


def _placeholder_token(dialect: Dialect) -> int:
    """Returns a token for positions where no token is fed."""
    return min(dialect.stop_ids, default=0)


def _append_tail(sequence: TokenSequence, tail: Sequence[int], token: int) -> TokenSequence:
    """Appends the tokens that were read last, and one more, to a sequence."""
    tail_ids = np.asarray([*tail, token], np.int32)
    zeros, false_flags = np.zeros(len(tail_ids), np.float32), np.zeros(len(tail_ids), np.bool_)
    return replace(
        sequence,
        ids=np.concatenate([sequence.ids, tail_ids]),
        written=np.concatenate([sequence.written, false_flags]),
        sampled=np.concatenate([sequence.sampled, false_flags]),
        logprobs=np.concatenate([sequence.logprobs, zeros]),
        step=np.concatenate(
            [sequence.step, np.full(len(tail_ids), sequence.step[-1] if len(sequence) else 0, np.int32)]
        ),
        span=np.concatenate([sequence.span, np.full(len(tail_ids), -1, np.int32)]),
        weight=np.concatenate([sequence.weight, zeros]),
    )
