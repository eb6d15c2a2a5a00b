"""Reward models with a value head: the expected value of a solution, from the hidden state at the end of a
span.

TS-LLM (arXiv 2309.17179): the target at every span's end is the outcome (discount 1), or TD(lambda); the value
at the last one is the outcome reward model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Job
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.learn.preferences import append_readout
from evolvent.learn.token_sequences import TokenSequence
from evolvent.reward.endings import Ending, PathCache, check_scores, query_endings
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OutcomeScorer", "ValueScorer", "build_outcome_row", "build_value_row", "td_targets"]


# ------------------------------------------------------------------ training


def td_targets(
    outcome: float, spans: int, *, discount: float = 1.0, lam: float = 1.0, values: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """Computes targets at the ends of spans, `[T]`: `G_T = outcome`, `G_t = discount ((1 - lam) V_(t+1) + lam
    G_(t+1))`.

    The reward is paid at the end of the last span alone; with `lam` 1 and `discount` 1 every target is the outcome
    (arXiv 2309.17179; TD(lambda): Sutton and Barto, 2018, section 12.1).

    >>> td_targets(1.0, 3, discount=0.5).tolist()
    [0.25, 0.5, 1.0]

    Args:
        outcome: Reward at the end of the last span.
        spans: Number of spans T.
        discount: Discount, 0 to 1.
        lam: Lambda, 0 to 1.
        values: `[T]`. Values at the same ends; required where `lam` is below 1.
    Raises:
        ConfigError: `discount` or `lam` outside 0..1, values that are missing, too many or not finite.
    """
    value_array = None if values is None else np.asarray(values, np.float64)
    is_invalid = value_array is None or value_array.shape != (spans,) or not np.isfinite(value_array).all()
    rules = (
        (spans < 1, "spans", f"got {spans}, expected 1 or more"),
        (not 0 <= discount <= 1, "discount", f"got {discount}, expected from 0 to 1"),
        (not 0 <= lam <= 1, "lam", f"got {lam}, expected from 0 to 1"),
        (lam < 1 and is_invalid, "values", f"must be {spans} finite numbers where lam is below 1"),
        (not np.isfinite(outcome), "outcome", f"got {outcome}, expected finite"),
    )
    problems = [Problem(name, problem) for is_violated, name, problem in rules if is_violated]
    if problems:
        raise ConfigError(problems)
    targets = np.full(spans, float(outcome))
    for index in range(spans - 2, -1, -1):
        next_return = (
            targets[index + 1]
            if value_array is None or lam == 1
            else (1 - lam) * value_array[index + 1] + lam * targets[index + 1]
        )
        targets[index] = discount * next_return
    return targets


def build_value_row(solution: Solution, targets: Sequence[float], *, token: int) -> TokenSequence:
    """Builds a sequence whose values are learned at the ends of its spans, as column "returns", by
    `objectives.value`.

    A head reads the state of the token before a target: targets are right after the ends.

    Args:
        solution: The solution.
        targets: One for each span (see `td_targets`).
        token: Token after the last span, which is never fed.
    Raises:
        SampleInvalid: another number of targets than spans, or a target that is not finite.
    """
    if len(targets) != len(solution.spans) or not np.isfinite(targets).all():
        raise SampleInvalid(
            f"solution {solution.name!r} lacks a finite target for each span",
            value=len(targets),
            expected=len(solution.spans),
        )
    row = append_readout(solution.to_sequence(), token=token)
    weight, returns = np.zeros(len(row), np.float32), np.zeros(len(row), np.float32)
    ends = list(solution.ends)
    weight[ends], returns[ends] = 1.0, targets
    return replace(row, weight=weight, columns={"returns": returns})


def build_outcome_row(solution: Solution, outcome: float, *, token: int) -> TokenSequence:
    """Builds a read-out after the last span with the outcome in 0..1 as column "outcome", for `objectives.outcome`.

    Raises:
        SampleInvalid: an outcome out of range.
    """
    if not 0 <= outcome <= 1:
        raise SampleInvalid(
            f"the outcome of solution {solution.name!r} is out of range", value=outcome, expected="a number from 0 to 1"
        )
    row = append_readout(solution.to_sequence(), token=token)
    return replace(row, columns={"outcome": np.full(len(row), outcome, np.float32)})


# ------------------------------------------------------------------ scoring


@dataclass(slots=True)
class ValueScorer:
    """Scores the ends of spans by the value head's output, rescaled from its range to 0..1.

    Args:
        head: `[..., H] -> [...]`. The policy's value head.
        low, high: Values that mean 0 and 1; outcomes of +1 and -1 have low = -1.
        clip: Whether to clip scores to 0..1.
        model: Name of the engine; None: the only one.
        paths: Prefixes whose keys and values are kept.
    Raises:
        ConfigError: `low` is not below `high`.
    """

    head: nn.Module
    low: float = 0.0
    high: float = 1.0
    clip: bool = False
    model: str | None = None
    paths: PathCache = field(default_factory=PathCache, repr=False)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError([Problem("low", f"got {self.low}, expected below {self.high}")])

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Computes the value at each end, for a whole frontier at once; NaN where the head gives none.

        Raises:
            ScoringError: number of scores does not match the spans. Errors of the engine.
        """
        head_outputs = yield from _apply_head(self.head, queries, self.paths)
        rescaled = [
            [(value - self.low) / (self.high - self.low) for value in query_outputs] for query_outputs in head_outputs
        ]
        if self.clip:
            rescaled = [
                [float(np.clip(value, 0.0, 1.0)) for value in query_outputs] for query_outputs in rescaled
            ]  # NaN stays NaN
        return check_scores(queries, rescaled)

    def most(self, ends: int, length: int) -> Spent:
        """Returns no cost besides the path itself: the states at its ends are kept."""
        return Spent()


@dataclass(slots=True)
class OutcomeScorer:
    """Scores the probability that a solution is right, `s(v)` with s the logistic, by a head trained by
    `objectives.outcome`.

    It was trained on whole solutions: query it at their ends.

    Args:
        head: `[..., H] -> [...]`. The policy's value head.
        model: Name of the engine; None: the only one.
        paths: Prefixes whose keys and values are kept.
    """

    head: nn.Module
    model: str | None = None
    paths: PathCache = field(default_factory=PathCache, repr=False)

    def scores(self, queries: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        """Computes the probability at each queried end; NaN where the head gives none.

        Raises:
            ScoringError: number of scores does not match the spans. Errors of the engine.
        """
        head_outputs = yield from _apply_head(self.head, queries, self.paths)
        with np.errstate(over="ignore"):
            return check_scores(
                queries,
                [[float(1.0 / (1.0 + np.exp(-value))) for value in query_outputs] for query_outputs in head_outputs],
            )

    def most(self, ends: int, length: int) -> Spent:
        """Returns no cost besides the path itself: the states at its ends are kept."""
        return Spent()


def _apply_head(head: nn.Module, queries: Sequence[Ending], paths: PathCache) -> Job[list[list[float]]]:
    """Computes the head's output at all ends, by query."""
    import torch

    states_by_query = yield from query_endings(queries, paths, hidden=True)
    states = [state for query_states in states_by_query for state in query_states]
    if not states:
        return [[] for _ in states_by_query]
    weight = next(head.parameters())
    with torch.inference_mode():
        stacked = torch.from_numpy(np.stack(states)).to(device=weight.device, dtype=weight.dtype)
        flat = head(stacked).reshape(-1).double().cpu().numpy()
    cuts = np.cumsum([0, *map(len, states_by_query)]).tolist()
    return [flat[a:b].tolist() for a, b in pairwise(cuts)]
