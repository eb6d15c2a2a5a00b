"""What a judge learns from episodes: the outcome, at every place where a search may ask for a value.

In a response such places are the ends of its spans, in an episode of several turns those where the agent is to act, and
where the world has had its last word. `search/texts.py` and `search/environments.py` ask at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from evolvent.errors import EvolventError, Problem, SampleInvalid
from evolvent.learn.token_sequences import Parts
from evolvent.models.dialects import Dialect
from evolvent.reward.process import Prepared
from evolvent.reward.solutions import Solution
from evolvent.reward.values import value_parts
from evolvent.trajectory import Trajectory

__all__ = ["Spans", "solution_of", "span_states", "states", "turn_states"]

Spans = Callable[[Sequence[int]], Sequence[int]]  # where the spans of written tokens end, the last at their end
Column = Literal["returns", "outcome"]


def states(
    trajectories: Iterable[Trajectory],
    dialect: Dialect,
    *,
    context: int,
    spans: Spans | None,
    column: Column = "outcome",
    low: float = 0.0,
) -> Prepared:
    """Training rows of episodes: their unit score at every state, and the episodes that gave none, with the reason.

    Args:
        context: longer rows are refused.
        spans: of a response, for worlds of one question; None: episodes of turns.
        column: "outcome" for `objectives.outcome`, "returns" for `objectives.value`.
        low: what an outcome of 0 is worth; TS-LLM has -1 (the column "returns" alone).
    """
    parts, refused = [], []
    for one in trajectories:
        try:
            row = turn_states(one, dialect) if spans is None else span_states(one, spans, token=_token(dialect))
            score = one.score.unit
            if score is None or not 0 <= score <= 1:
                raise SampleInvalid(f"episode {one.id!r} is not scored", value=score, expected="a score in 0..1")
            if len(row) - 1 > context:
                raise SampleInvalid(f"episode {one.id!r} does not fit", value=len(row) - 1, expected=context)
        except EvolventError as error:
            refused.append(Problem(one.id, str(error)))
            continue
        target = score if column == "outcome" else low + (1.0 - low) * score
        found = np.where(row.weight != 0, np.float32(target), np.float32(0))
        parts.append(replace(row, columns={column: found}, unit=score, group=one.group))
    return Prepared(parts, refused)


def span_states(trajectory: Trajectory, spans: Spans, *, token: int) -> Parts:
    """The response of an episode of one turn, with weight 1 behind the end of every span and returns of 0.

    Args:
        token: stands behind the last end, and is never fed.
    Raises:
        SampleInvalid: no response of one turn.
    """
    solution = solution_of(trajectory, spans)
    return value_parts(solution, [0.0] * len(solution.spans), token=token)


def solution_of(trajectory: Trajectory, spans: Spans) -> Solution:
    """The response of an episode of one turn, cut into the spans that its generation noted, or else by `spans`.

    Raises:
        SampleInvalid: not one generation that acted and read its prompt first.
    """
    acted = [generation for generation in trajectory.generations if generation.acted]
    root = len(acted) == 1 and acted[0].extends is None
    written = np.flatnonzero(acted[0].sampled) if root else np.zeros(0, np.int64)
    if not len(written) or written[0] == 0 or len(written) != len(acted[0].ids) - written[0]:
        raise SampleInvalid(
            f"episode {trajectory.id!r} is no response of one turn",
            value=f"{len(acted)} generations",
            expected="one that read its prompt, and then wrote",
        )
    ids, begin = acted[0].ids.tolist(), int(written[0])
    noted = {end - begin for end in acted[0].spans if begin < end < len(ids)}
    ends = [0, *(sorted(noted | {len(ids) - begin}) if noted else spans(ids[begin:]))]
    return Solution(
        tuple(ids[:begin]), tuple(tuple(ids[begin + a : begin + b]) for a, b in pairwise(ends)), trajectory.id
    )


def turn_states(trajectory: Trajectory, dialect: Dialect) -> Parts:
    """An episode of turns, with weight 1 at the first token of every action, and behind the last observation.

    Raises:
        SampleInvalid: no episode whose turns extend each other.
    """
    generations = list(trajectory.generations)
    chained = all(each.extends == (at - 1 if at else None) for at, each in enumerate(generations))
    if not generations or not chained or len(generations) != len(trajectory.steps):
        raise SampleInvalid(
            f"episode {trajectory.id!r} is no conversation of one generation a step",
            value=f"{len(generations)} generations, {len(trajectory.steps)} steps",
        )
    sizes = [len(each.ids) for each in generations]
    begins = np.cumsum([0, *sizes[:-1]])
    ids = np.concatenate([each.ids for each in generations])
    sampled = np.concatenate([each.sampled for each in generations])
    first = [
        int(begin + np.argmax(each.sampled))
        for begin, each in zip(begins, generations, strict=True)
        if each.sampled.any()
    ]
    none = np.zeros(len(ids), np.float32)
    step = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    row = Parts(trajectory.id, ids, sampled, sampled, none, step, np.full(len(ids), -1, np.int32), none)
    last = dialect.turn(str(trajectory.final_observation), stopped=generations[-1].stop != "length")
    whole = _with_end(row, last, _token(dialect))
    weight = np.zeros(len(whole), np.float32)
    weight[[*first, len(whole) - 1]] = 1.0
    return replace(whole, weight=weight)


def _token(dialect: Dialect) -> int:
    """One to stand where no token is fed."""
    return min(dialect.stop_ids, default=0)


def _with_end(parts: Parts, tail: Sequence[int], token: int) -> Parts:
    """The tokens, what was read after them, and one more."""
    more = np.asarray([*tail, token], np.int32)
    none, no = np.zeros(len(more), np.float32), np.zeros(len(more), np.bool_)
    return replace(
        parts,
        ids=np.concatenate([parts.ids, more]),
        written=np.concatenate([parts.written, no]),
        sampled=np.concatenate([parts.sampled, no]),
        logprobs=np.concatenate([parts.logprobs, none]),
        step=np.concatenate([parts.step, np.full(len(more), parts.step[-1] if len(parts) else 0, np.int32)]),
        span=np.concatenate([parts.span, np.full(len(more), -1, np.int32)]),
        weight=np.concatenate([parts.weight, none]),
    )
