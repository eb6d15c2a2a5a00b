"""Detectors over belief summaries, alone and combined, that decide whether a belief is certain enough to stop.

A detector is a pure function of a summary and of earlier decisions. Its score says how certain the belief is,
lower being more certain, in the units of its threshold; stored scores can therefore be replayed at other
thresholds (`belief/comparison.py`). The same detectors end an agent's episode, a vote and a search.

Sources: AGDC (arXiv 2409.09541) for the standard deviations of a belief; adaptive consistency (arXiv
2305.11860) and early-stopping self-consistency (arXiv 2401.10480) for votes that end early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, Problem, unknown_name_problem

__all__ = [
    "DIMENSIONS",
    "Agreement",
    "AllOf",
    "AnyOf",
    "Decided",
    "Detector",
    "EntropyBelow",
    "HasMinimumVotes",
    "Patience",
    "Scattered",
    "StdBelow",
    "StopDecision",
    "TraceBelow",
    "min_further_votes",
]

DIMENSIONS = ("x", "y", "z", "rate", "wind_speed", "wind_from", "diffusivity", "lifetime")
"""Names of the unknowns of a plume, in the order of `BeliefSummary.mean`."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StopDecision:
    """The decision of a detector on B beliefs at one look.

    Args:
        stop: [B]. Whether to stop.
        score: [B]. Lower is more certain; infinite where it is undefined yet.
        reason: The criterion, in words.
        parts: Decisions that this one combines.
    """

    stop: NDArray[np.bool_]
    score: Floats
    reason: str
    parts: tuple[StopDecision, ...] = ()

    def clear_rows(self, rows: NDArray[np.bool_]) -> StopDecision:
        """Returns the decision without rows `[B]` whose episode has started again, for histories that are kept for a
        batch.
        """
        parts = tuple(part.clear_rows(rows) for part in self.parts)
        return StopDecision(self.stop & ~rows, np.where(rows, np.inf, self.score), self.reason, parts)


class Detector(Protocol):
    """A function that decides whether beliefs are certain enough."""

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        """Returns the decision on B beliefs.

        Args:
            summary: Summary of the beliefs.
            history: This detector's earlier decisions on them, the oldest first.
        Raises:
            ConfigError: the summary lacks a value that the detector needs.
        """
        ...


@runtime_checkable
class HasMinimumVotes(Protocol):
    """A detector of votes that knows the minimum number of further votes before a stop."""

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes [B] after which it could stop, 1 or more; none of the looks in between
        could stop.
        """
        ...


def min_further_votes(detector: Detector, summary: BeliefSummary) -> NDArray[np.int64]:
    """Returns the number of votes [B] that can be requested at once without excess; 1 where the detector does not
    know.
    """
    if isinstance(detector, HasMinimumVotes):
        return detector.soonest(summary)
    return np.ones(len(summary), np.int64)


# ---------------------------------------------------------------- beliefs over places and numbers


@dataclass(frozen=True, slots=True)
class StdBelow:
    """Stops where every standard deviation of the chosen unknowns is below `zeta` (AGDC: std = sqrt(diag Cov) <
    zeta).

    Args:
        zeta: Threshold in the units of the unknowns.
        dims: Names of the unknowns in `DIMENSIONS`, or their indices.
    Raises:
        ConfigError: zeta not above 0; no dimension, or an unknown one.
    """

    zeta: float
    dims: tuple[str | int, ...] = ("x", "y")

    def __post_init__(self) -> None:
        problems = _check_positive("zeta", self.zeta)
        problems += [] if self.dims else [Problem("dims", "is empty", f"choose from {', '.join(DIMENSIONS)}")]
        for dimension in self.dims:
            if isinstance(dimension, str) and dimension not in DIMENSIONS:
                problems.append(unknown_name_problem("dimension", dimension, DIMENSIONS, location="dims"))
            elif not isinstance(dimension, str) and dimension < 0:
                problems.append(Problem("dims", f"got dimension {dimension}, expected 0 or more"))
        if problems:
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        std = _require_field(summary.std, "std", self)
        columns = [DIMENSIONS.index(dimension) if isinstance(dimension, str) else dimension for dimension in self.dims]
        if max(columns) >= std.shape[1]:
            raise ConfigError(
                "detector dimension out of range",
                value=self.dims,
                expected=f"dimensions 0 to {std.shape[1] - 1}",
            )
        score = std[:, columns].max(axis=1)
        return StopDecision(score < self.zeta, score, f"std of {', '.join(map(str, self.dims))} below {self.zeta:g}")


@dataclass(frozen=True, slots=True)
class TraceBelow:
    """Stops where the spread sqrt(trace Cov(x, y)) is below `zeta`, a length.

    Raises:
        ConfigError: zeta not above 0.
    """

    zeta: float

    def __post_init__(self) -> None:
        if problems := _check_positive("zeta", self.zeta):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = _require_field(summary.spread, "spread", self).astype(np.float64)
        return StopDecision(score < self.zeta, score, f"spread below {self.zeta:g}")


@dataclass(frozen=True, slots=True)
class EntropyBelow:
    """Stops where the entropy is below a number of nats.

    The entropy of weighted particles is at most log N and is not that of a density: compare it at one N only. Of
    votes it is 0 after the first one; combine it with `Patience`.

    Raises:
        ConfigError: a threshold that is not finite.
    """

    nats: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.nats):
            raise ConfigError([Problem("nats", f"got {self.nats}, expected finite")])

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = summary.entropy.astype(np.float64)
        return StopDecision(score < self.nats, score, f"entropy below {self.nats:g} nats")


# ---------------------------------------------------------------- votes


@dataclass(frozen=True, slots=True)
class Decided:
    """Stops where the leader is ahead by more votes than can still come, so that the complete vote has the same
    answer.

    The score is the number of votes that can still come minus the lead; it stops where that is below 0.
    """

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = _require_field(summary.left, "left", self) - _lead_of(summary, self)
        return StopDecision(score < 0, score, "the leader cannot be caught")

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes, see `HasMinimumVotes`: each vote for the leader lowers the score by two."""
        return _clip_votes((_require_field(summary.left, "left", self) - _lead_of(summary, self)) // 2 + 1, summary)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Stops where at least the share `q` of the votes so far agrees. Lossy: the complete vote may differ.

    The score is 1 minus the leader's share of all votes, unparsable ones included; infinite before there are
    `least` votes.

    Args:
        q: Share of votes, above 0, at most 1.
        least: Minimum number of votes.
        patience: Number of consecutive looks with that share.
    Raises:
        ConfigError: numbers out of range; lists all of them.
    """

    q: float = 0.7
    least: int = 3
    patience: int = 1

    def __post_init__(self) -> None:
        problems = [] if 0 < self.q <= 1 else [Problem("q", f"got {self.q}, expected above 0 and at most 1")]
        problems += _check_counts(least=self.least, patience=self.patience)
        if problems:
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        leader, cast = _require_field(summary.leader, "leader", self), _require_field(summary.cast, "cast", self)
        share = np.divide(leader, cast, out=np.zeros(len(cast)), where=cast > 0)
        has_enough_votes = cast >= self.least
        reason = f"{self.q:g} of at least {self.least} votes agree"
        decision = StopDecision(
            has_enough_votes & (share >= self.q), np.where(has_enough_votes, 1 - share, np.inf), reason
        )
        return decision if self.patience == 1 else _require_consecutive(decision, history, self.patience)

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes, see `HasMinimumVotes`: if all were for the leader, `leader + k >= q
        (cast + k)`.
        """
        leader, cast = _require_field(summary.leader, "leader", self), _require_field(summary.cast, "cast", self)
        missing = self.q * cast - leader
        if self.q == 1:
            more = np.where(missing > 0, np.inf, 0.0)
        else:
            more = np.ceil(missing / (1 - self.q) - 1e-9)  # rounding must not make it late
        return _clip_votes(np.maximum(more, self.least - cast), summary)


@dataclass(frozen=True, slots=True)
class Scattered:
    """Stops where no answer has the share `q` of the votes so far, so that further votes would hardly agree.
    Lossy.

    It gives up where `Agreement` is never reached; combined with `AnyOf` they end both kinds of votes. The score is
    the leader's share of all votes, infinite before there are `least` votes.

    Args:
        q: Share of votes, above 0, at most 1.
        least: Minimum number of votes.
    Raises:
        ConfigError: numbers out of range; lists all of them.
    """

    q: float = 0.2
    least: int = 10

    def __post_init__(self) -> None:
        problems = [] if 0 < self.q <= 1 else [Problem("q", f"got {self.q}, expected above 0 and at most 1")]
        if problems := problems + _check_counts(least=self.least):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        leader, cast = _require_field(summary.leader, "leader", self), _require_field(summary.cast, "cast", self)
        share = np.divide(leader, cast, out=np.ones(len(cast)), where=cast > 0)
        score = np.where(cast >= self.least, share, np.inf)
        return StopDecision(score < self.q, score, f"fewer than {self.q:g} of at least {self.least} votes agree")

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes, see `HasMinimumVotes`: if none were for the leader, `leader < q (cast +
        k)`.
        """
        leader, cast = _require_field(summary.leader, "leader", self), _require_field(summary.cast, "cast", self)
        more = np.floor(leader / self.q - cast - 1e-9) + 1  # rounding must not make it late
        return _clip_votes(np.maximum(more, self.least - cast), summary)


# ---------------------------------------------------------------- combinations


@dataclass(frozen=True, slots=True)
class Patience:
    """Stops where a detector decided to stop at `looks` consecutive looks, the last one included.

    The score is the worst of them, infinite before there are that many. It must see every look: where looks are
    skipped because the detector cannot stop there (`min_further_votes`), the sequence is broken in any case.

    Raises:
        ConfigError: fewer than one look.
    """

    detector: Detector
    looks: int

    def __post_init__(self) -> None:
        if problems := _check_counts(looks=self.looks):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        current = self.detector(summary, [decision.parts[0] for decision in history])
        return _require_consecutive(current, history, self.looks)

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes of the detector, see `HasMinimumVotes`, since its first stop must be
        seen.
        """
        return min_further_votes(self.detector, summary)


class _CombinedDetector:
    """Detectors on the same summaries, each with its own history."""

    __slots__ = ("detectors",)

    def __init__(self, *detectors: Detector) -> None:
        if not detectors:
            raise ConfigError([Problem(type(self).__name__, "has no detector", "add at least one")])
        self.detectors = detectors

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """Returns the fewest further votes, see `HasMinimumVotes`: no look is skipped at which one of them could stop
        or must count.
        """
        fewest: NDArray[np.int64] = np.min(
            [min_further_votes(detector, summary) for detector in self.detectors], axis=0
        )
        return fewest

    def __eq__(self, candidate: object) -> bool:
        return (
            type(self) is type(candidate)
            and isinstance(candidate, _CombinedDetector)
            and self.detectors == candidate.detectors
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.detectors))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.detectors))})"

    def _combine(
        self,
        summary: BeliefSummary,
        history: Sequence[StopDecision],
        join: Callable[..., NDArray[np.bool_]],
        word: str,
    ) -> StopDecision:
        parts = tuple(
            detector(summary, [past.parts[index] for past in history]) for index, detector in enumerate(self.detectors)
        )
        stop = join([part.stop for part in parts], axis=0)
        return StopDecision(stop, np.where(stop, 0.0, 1.0), f" {word} ".join(part.reason for part in parts), parts)


class AnyOf(_CombinedDetector):
    """Stops where one of several detectors stops. The score is 0 where it stops and 1 elsewhere; the parts have
    theirs.

    Raises:
        ConfigError: no detector.
    """

    __slots__ = ()

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        return self._combine(summary, history, np.any, "or")


class AllOf(_CombinedDetector):
    """Stops where all of several detectors stop at the same look. The score is 0 where it stops and 1 elsewhere.

    Raises:
        ConfigError: no detector.
    """

    __slots__ = ()

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        return self._combine(summary, history, np.all, "and")


# ---------------------------------------------------------------- parts of detectors


def _require_consecutive(current: StopDecision, history: Sequence[StopDecision], looks: int) -> StopDecision:
    """Returns the decision on which the last `looks` parts agree; every decision in `history` has its part."""
    past = [decision.parts[0] for decision in history[len(history) - min(looks - 1, len(history)) :]]
    consecutive = [*past, current]
    reason = current.reason if looks == 1 else f"{current.reason}, {looks} times in a row"
    if len(consecutive) < looks:
        return StopDecision(np.zeros_like(current.stop), np.full(len(current.score), np.inf), reason, (current,))
    score = np.max([decision.score for decision in consecutive], axis=0)
    return StopDecision(np.all([decision.stop for decision in consecutive], axis=0), score, reason, (current,))


def _require_field(array: Floats | None, name: str, detector: Detector) -> Floats:
    if array is None:
        raise ConfigError(
            f"{type(detector).__name__} needs a quantity that this belief does not have",
            value=name,
            expected="a belief whose summary contains it",
            hint="choose another detector",
        )
    return array


def _lead_of(summary: BeliefSummary, detector: Detector) -> Floats:
    return _require_field(summary.leader, "leader", detector) - _require_field(summary.runner_up, "runner_up", detector)


def _clip_votes(more: Floats, summary: BeliefSummary) -> NDArray[np.int64]:
    """Limits a number of votes to what can be requested: at least 1, and at most the remaining votes where they are
    known.
    """
    max_votes = np.full(len(summary), np.inf) if summary.left is None else summary.left
    clipped = np.maximum(np.minimum(more, max_votes), 1)
    return np.where(np.isfinite(clipped), clipped, 1).astype(np.int64)


def _check_positive(name: str, value: float) -> list[Problem]:
    return [] if 0 < value < np.inf else [Problem(name, f"got {value}, expected finite and above 0")]


def _check_counts(**counts: int) -> list[Problem]:
    return [Problem(name, f"got {count}, expected 1 or more") for name, count in counts.items() if count < 1]
