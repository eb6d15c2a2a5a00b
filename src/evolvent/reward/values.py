"""Reward models with a value head: what a solution will be worth, read off the hidden state at the end of a span.

TS-LLM (arXiv 2309.17179): the target at every span's end is the outcome (discount 1), or TD(lambda); the value at the
last one is the outcome reward model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from evolvent.engine.asks import Work
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.learn.preferences import readout
from evolvent.learn.token_sequences import Parts
from evolvent.reward.endings import Ending, Paths, checked, read_endings
from evolvent.reward.solutions import Solution
from evolvent.search.records import Spent

__all__ = ["OutcomeScorer", "ValueScorer", "outcome_parts", "td_targets", "value_parts"]


# ------------------------------------------------------------------ training


def td_targets(
    outcome: float, spans: int, *, discount: float = 1.0, lam: float = 1.0, values: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """Targets at the ends of `spans` spans, `[T]`: `G_T = outcome`, `G_t = discount ((1 - lam) V_(t+1) + lam G_(t+1))`.

    The reward is paid at the end of the last span alone; with `lam` 1 and `discount` 1 every target is the outcome
    (arXiv 2309.17179; TD(lambda): Sutton and Barto, 2018, section 12.1).

    Args:
        values: `[T]`, of the value function at the same ends; needed where `lam` is below 1.
    Raises:
        ConfigError: `discount` or `lam` outside 0..1, values that are missing, too many or not finite.
    """
    given = None if values is None else np.asarray(values, np.float64)
    short = given is None or given.shape != (spans,) or not np.isfinite(given).all()
    rules = (
        (spans < 1, "spans", f"must be 1 or more, got {spans}"),
        (not 0 <= discount <= 1, "discount", f"must be from 0 to 1, got {discount}"),
        (not 0 <= lam <= 1, "lam", f"must be from 0 to 1, got {lam}"),
        (lam < 1 and short, "values", f"must be {spans} finite numbers where lam is below 1"),
        (not np.isfinite(outcome), "outcome", f"must be finite, got {outcome}"),
    )
    problems = [Problem(name, what) for wrong, name, what in rules if wrong]
    if problems:
        raise ConfigError(problems)
    targets = np.full(spans, float(outcome))
    for at in range(spans - 2, -1, -1):
        ahead = targets[at + 1] if given is None or lam == 1 else (1 - lam) * given[at + 1] + lam * targets[at + 1]
        targets[at] = discount * ahead
    return targets


def value_parts(solution: Solution, targets: Sequence[float], *, token: int) -> Parts:
    """A sequence whose values are learned at the ends of its spans, as column "returns", by `objectives.value`.

    A head reads the state of the token before a target: targets stand right behind the ends.

    Args:
        targets: one for each span (see `td_targets`). token: comes after the last span and is never fed.
    Raises:
        SampleInvalid: as many targets as spans are not there, or one that is not finite.
    """
    if len(targets) != len(solution.spans) or not np.isfinite(targets).all():
        raise SampleInvalid(
            f"solution {solution.name!r} has not one finite target for each span",
            value=len(targets),
            expected=len(solution.spans),
        )
    row = readout(solution.parts(), token=token)
    weight, returns = np.zeros(len(row), np.float32), np.zeros(len(row), np.float32)
    ends = list(solution.ends)
    weight[ends], returns[ends] = 1.0, targets
    return replace(row, weight=weight, columns={"returns": returns})


def outcome_parts(solution: Solution, outcome: float, *, token: int) -> Parts:
    """A read-out after the last span with the outcome in 0..1 as column "outcome", for `objectives.outcome`.

    Raises:
        SampleInvalid: an outcome out of range.
    """
    if not 0 <= outcome <= 1:
        raise SampleInvalid(
            f"the outcome of solution {solution.name!r} is out of range", value=outcome, expected="a number from 0 to 1"
        )
    row = readout(solution.parts(), token=token)
    return replace(row, columns={"outcome": np.full(len(row), outcome, np.float32)})


# ------------------------------------------------------------------ scoring


@dataclass(slots=True)
class ValueScorer:
    """The value head's output at the ends of spans, moved from its own range to 0..1.

    Args:
        head: `[..., H] -> [...]`, the policy's value head.
        low, high: the values that mean 0 and 1; outcomes of +1 and -1 have low = -1.
        clip: cut what lies outside of 0..1.
        model: which engine of several answers; None: the only one.
        paths: the prefixes whose keys and values are held.
    Raises:
        ConfigError: `low` is not below `high`.
    """

    head: nn.Module
    low: float = 0.0
    high: float = 1.0
    clip: bool = False
    model: str | None = None
    paths: Paths = field(default_factory=Paths, repr=False)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError([Problem("low", f"must be below {self.high}, got {self.low}")])

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """The value at each end, for a whole frontier at once; NaN where the head gives none.

        Raises:
            ScoringError: not one score for each span. Errors of the engine.
        """
        found = yield from _heads(self.head, asked, self.paths)
        moved = [[(value - self.low) / (self.high - self.low) for value in own] for own in found]
        if self.clip:
            moved = [[float(np.clip(value, 0.0, 1.0)) for value in own] for own in moved]  # NaN stays NaN
        return checked(asked, moved)

    def most(self, ends: int, length: int) -> Spent:
        """Nothing beside the path itself: the states at its ends are kept."""
        return Spent()


@dataclass(slots=True)
class OutcomeScorer:
    """The chance that a solution is right, `s(v)` with s the logistic, under a head trained by `objectives.outcome`.

    It was trained on whole solutions: ask it at their ends.

    Args:
        head: `[..., H] -> [...]`, the policy's value head.
        model: which engine of several answers; None: the only one.
        paths: the prefixes whose keys and values are held.
    """

    head: nn.Module
    model: str | None = None
    paths: Paths = field(default_factory=Paths, repr=False)

    def scores(self, asked: Sequence[Ending]) -> Work[list[tuple[float, ...]]]:
        """The chance at each end that is asked about; NaN where the head gives none.

        Raises:
            ScoringError: not one score for each span. Errors of the engine.
        """
        found = yield from _heads(self.head, asked, self.paths)
        with np.errstate(over="ignore"):
            return checked(asked, [[float(1.0 / (1.0 + np.exp(-value))) for value in own] for own in found])

    def most(self, ends: int, length: int) -> Spent:
        """Nothing beside the path itself: the states at its ends are kept."""
        return Spent()


def _heads(head: nn.Module, asked: Sequence[Ending], paths: Paths) -> Work[list[list[float]]]:
    """The head's output at all ends, by item."""
    found = yield from read_endings(asked, paths, hidden=True)
    states = [state for own in found for state in own]
    if not states:
        return [[] for _ in found]
    weight = next(head.parameters())
    with torch.inference_mode():
        stacked = torch.from_numpy(np.stack(states)).to(device=weight.device, dtype=weight.dtype)
        flat = head(stacked).reshape(-1).double().cpu().numpy()
    cuts = np.cumsum([0, *map(len, found)]).tolist()
    return [flat[a:b].tolist() for a, b in pairwise(cuts)]
