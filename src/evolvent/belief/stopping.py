"""When a belief is sure enough to stop: detectors over summaries, alone and combined.

A detector is a pure function of a summary and of what was decided before. Its score says how sure the belief is, lower
being surer, in the units of its threshold; stored scores can therefore be replayed at other thresholds
(`belief/replay.py`). The same detectors end an agent's episode, a vote and a search.

Sources: AGDC (arXiv 2409.09541) for the standard deviations of a belief; adaptive consistency (arXiv 2305.11860) and
early-stopping self-consistency (arXiv 2401.10480) for votes that end early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, Problem, unknown

__all__ = [
    "DIMENSIONS",
    "Agreement",
    "AllOf",
    "AnyOf",
    "Decided",
    "Detector",
    "EntropyBelow",
    "Foreseeing",
    "Patience",
    "Scattered",
    "StdBelow",
    "StopDecision",
    "TraceBelow",
    "soonest",
]

DIMENSIONS = ("x", "y", "z", "rate", "wind_speed", "wind_from", "diffusivity", "lifetime")
"""Names of the unknowns of a plume, in the order of `BeliefSummary.mean`."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StopDecision:
    """What a detector said of B beliefs at one look.

    Args:
        stop: [B] whether to stop.
        score: [B] lower is surer; infinite where nothing can be said yet.
        reason: what it was looked for, in words.
        parts: the decisions that this one was put together from.
    """

    stop: NDArray[np.bool_]
    score: Floats
    reason: str
    parts: tuple[StopDecision, ...] = ()

    def cleared(self, rows: NDArray[np.bool_]) -> StopDecision:
        """The same, with nothing said of the rows `[B]` whose episode has begun anew: a history that is kept for a
        batch forgets them."""
        parts = tuple(part.cleared(rows) for part in self.parts)
        return StopDecision(self.stop & ~rows, np.where(rows, np.inf, self.score), self.reason, parts)


class Detector(Protocol):
    """Anything that can say whether beliefs are sure enough."""

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        """Look at B beliefs.

        Args:
            history: this detector's own decisions on them so far, the first look first.
        Raises:
            ConfigError: the summary lacks what the detector looks at.
        """
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A detector of votes that knows how many more it takes at least."""

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """[B] the fewest further votes after which it could stop, 1 or more. None of the looks in between could."""
        ...


def soonest(detector: Detector, summary: BeliefSummary) -> NDArray[np.int64]:
    """[B] votes that can be asked for at once without asking for one too many; 1 where the detector cannot tell."""
    if isinstance(detector, Foreseeing):
        return detector.soonest(summary)
    return np.ones(len(summary), np.int64)


# ---------------------------------------------------------------- beliefs over places and numbers


@dataclass(frozen=True, slots=True)
class StdBelow:
    """Every standard deviation of the chosen unknowns is below `zeta` (AGDC: std = sqrt(diag Cov) < zeta).

    Args:
        zeta: in the units of the unknowns. dims: their names in `DIMENSIONS`, or their numbers.
    Raises:
        ConfigError: zeta not above 0; no dimension, or one that there is not.
    """

    zeta: float
    dims: tuple[str | int, ...] = ("x", "y")

    def __post_init__(self) -> None:
        problems = _positive("zeta", self.zeta)
        problems += [] if self.dims else [Problem("dims", "names no dimension", f"some of {', '.join(DIMENSIONS)}")]
        for each in self.dims:
            if isinstance(each, str) and each not in DIMENSIONS:
                problems.append(unknown("dimension", each, DIMENSIONS, where="dims"))
            elif not isinstance(each, str) and each < 0:
                problems.append(Problem("dims", f"dimension {each}", "0 or more"))
        if problems:
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        std = _told(summary.std, "std", self)
        at = [DIMENSIONS.index(each) if isinstance(each, str) else each for each in self.dims]
        if max(at) >= std.shape[1]:
            raise ConfigError(
                "a detector looks at an unknown that the belief does not have",
                value=self.dims,
                expected=f"dimensions 0 to {std.shape[1] - 1}",
            )
        score = std[:, at].max(axis=1)
        return StopDecision(score < self.zeta, score, f"std of {', '.join(map(str, self.dims))} below {self.zeta:g}")


@dataclass(frozen=True, slots=True)
class TraceBelow:
    """The spread sqrt(trace Cov(x, y)) is below `zeta`, a length.

    Raises:
        ConfigError: zeta not above 0.
    """

    zeta: float

    def __post_init__(self) -> None:
        if problems := _positive("zeta", self.zeta):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = _told(summary.spread, "spread", self).astype(np.float64)
        return StopDecision(score < self.zeta, score, f"spread below {self.zeta:g}")


@dataclass(frozen=True, slots=True)
class EntropyBelow:
    """The entropy is below so many nats.

    The entropy of weighted particles ends at log N and is not that of a density: compare it at one N only. Of votes it
    is 0 after the first one; combine it with `Patience`.

    Raises:
        ConfigError: a threshold that is not finite.
    """

    nats: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.nats):
            raise ConfigError([Problem("nats", f"must be finite, got {self.nats}")])

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = summary.entropy.astype(np.float64)
        return StopDecision(score < self.nats, score, f"entropy below {self.nats:g} nats")


# ---------------------------------------------------------------- votes


@dataclass(frozen=True, slots=True)
class Decided:
    """The leader is ahead by more votes than may still come: whatever comes, the whole vote has the same answer.

    The score is the votes that may still come less the lead; it stops where that is below 0.
    """

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        score = _told(summary.left, "left", self) - _lead(summary, self)
        return StopDecision(score < 0, score, "the leader cannot be caught")

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """See `Foreseeing`: each further vote for the leader brings it two nearer, one ahead and one fewer to come."""
        return _votes((_told(summary.left, "left", self) - _lead(summary, self)) // 2 + 1, summary)


@dataclass(frozen=True, slots=True)
class Agreement:
    """At least the share `q` of the votes so far agree. Lossy: the whole vote may come out otherwise.

    The score is 1 less the leader's share of all votes cast, those that could not be read included; infinite before
    there are `least` votes.

    Args:
        q: above 0, at most 1. least: votes that it takes. patience: looks in a row at which it must be so.
    Raises:
        ConfigError: a number out of range; all of them.
    """

    q: float = 0.7
    least: int = 3
    patience: int = 1

    def __post_init__(self) -> None:
        problems = [] if 0 < self.q <= 1 else [Problem("q", f"must be above 0 and at most 1, got {self.q}")]
        problems += _counts(least=self.least, patience=self.patience)
        if problems:
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        leader, cast = _told(summary.leader, "leader", self), _told(summary.cast, "cast", self)
        share = np.divide(leader, cast, out=np.zeros(len(cast)), where=cast > 0)
        enough = cast >= self.least
        reason = f"{self.q:g} of at least {self.least} votes agree"
        now = StopDecision(enough & (share >= self.q), np.where(enough, 1 - share, np.inf), reason)
        return now if self.patience == 1 else _in_a_row(now, history, self.patience)

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """See `Foreseeing`: if all further votes were for the leader, `leader + k >= q (cast + k)`."""
        leader, cast = _told(summary.leader, "leader", self), _told(summary.cast, "cast", self)
        missing = self.q * cast - leader
        if self.q == 1:
            more = np.where(missing > 0, np.inf, 0.0)
        else:
            more = np.ceil(missing / (1 - self.q) - 1e-9)  # rounding must not make it late
        return _votes(np.maximum(more, self.least - cast), summary)


@dataclass(frozen=True, slots=True)
class Scattered:
    """No answer has the share `q` of the votes so far: more of them would hardly agree on anything. Lossy.

    It gives up where `Agreement` is never reached; put together with `AnyOf` they end both kinds of votes. The score is
    the leader's share of all votes cast, infinite before there are `least` votes.

    Args:
        q: above 0, at most 1. least: votes that it takes.
    Raises:
        ConfigError: a number out of range; all of them.
    """

    q: float = 0.2
    least: int = 10

    def __post_init__(self) -> None:
        problems = [] if 0 < self.q <= 1 else [Problem("q", f"must be above 0 and at most 1, got {self.q}")]
        if problems := problems + _counts(least=self.least):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        leader, cast = _told(summary.leader, "leader", self), _told(summary.cast, "cast", self)
        share = np.divide(leader, cast, out=np.ones(len(cast)), where=cast > 0)
        score = np.where(cast >= self.least, share, np.inf)
        return StopDecision(score < self.q, score, f"fewer than {self.q:g} of at least {self.least} votes agree")

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """See `Foreseeing`: if no further vote were for the leader, `leader < q (cast + k)`."""
        leader, cast = _told(summary.leader, "leader", self), _told(summary.cast, "cast", self)
        more = np.floor(leader / self.q - cast - 1e-9) + 1  # rounding must not make it late
        return _votes(np.maximum(more, self.least - cast), summary)


# ---------------------------------------------------------------- combinations


@dataclass(frozen=True, slots=True)
class Patience:
    """A detector must have said stop at `looks` looks in a row, the last one included.

    The score is the worst of them, infinite before there are so many. It must see every look: where looks are left out
    because a detector foresees that they cannot stop (`soonest`), the row is broken in any case.

    Raises:
        ConfigError: fewer than one look.
    """

    detector: Detector
    looks: int

    def __post_init__(self) -> None:
        if problems := _counts(looks=self.looks):
            raise ConfigError(problems)

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        now = self.detector(summary, [each.parts[0] for each in history])
        return _in_a_row(now, history, self.looks)

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """See `Foreseeing`: that of the detector, for its first stop must be seen."""
        return soonest(self.detector, summary)


class _Several:
    """Detectors that look at the same summaries, each with its own history."""

    __slots__ = ("detectors",)

    def __init__(self, *detectors: Detector) -> None:
        if not detectors:
            raise ConfigError([Problem(type(self).__name__, "names no detector", "give at least one")])
        self.detectors = detectors

    def soonest(self, summary: BeliefSummary) -> NDArray[np.int64]:
        """See `Foreseeing`: no look is left out that one of them could stop at, or must count."""
        fewest: NDArray[np.int64] = np.min([soonest(each, summary) for each in self.detectors], axis=0)
        return fewest

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Several) and self.detectors == other.detectors

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.detectors))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.detectors))})"

    def _looked(
        self,
        summary: BeliefSummary,
        history: Sequence[StopDecision],
        join: Callable[..., NDArray[np.bool_]],
        word: str,
    ) -> StopDecision:
        parts = tuple(each(summary, [past.parts[at] for past in history]) for at, each in enumerate(self.detectors))
        stop = join([part.stop for part in parts], axis=0)
        return StopDecision(stop, np.where(stop, 0.0, 1.0), f" {word} ".join(part.reason for part in parts), parts)


class AnyOf(_Several):
    """One of several detectors is enough. The score is 0 where it stops and 1 elsewhere; the parts have theirs.

    Raises:
        ConfigError: no detector.
    """

    __slots__ = ()

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        return self._looked(summary, history, np.any, "or")


class AllOf(_Several):
    """All of several detectors at the same look. The score is 0 where it stops and 1 elsewhere.

    Raises:
        ConfigError: no detector.
    """

    __slots__ = ()

    def __call__(self, summary: BeliefSummary, history: Sequence[StopDecision]) -> StopDecision:
        return self._looked(summary, history, np.all, "and")


# ---------------------------------------------------------------- parts of detectors


def _in_a_row(now: StopDecision, history: Sequence[StopDecision], looks: int) -> StopDecision:
    """The decision that the last `looks` parts agree on; every decision in `history` has its part."""
    past = [each.parts[0] for each in history[len(history) - min(looks - 1, len(history)) :]]
    row = [*past, now]
    reason = now.reason if looks == 1 else f"{now.reason}, {looks} times in a row"
    if len(row) < looks:
        return StopDecision(np.zeros_like(now.stop), np.full(len(now.score), np.inf), reason, (now,))
    score = np.max([each.score for each in row], axis=0)
    return StopDecision(np.all([each.stop for each in row], axis=0), score, reason, (now,))


def _told(array: Floats | None, name: str, detector: Detector) -> Floats:
    if array is None:
        raise ConfigError(
            f"{type(detector).__name__} looks at what this belief does not have",
            value=name,
            expected="a belief whose summary tells it",
            hint="choose another detector",
        )
    return array


def _lead(summary: BeliefSummary, detector: Detector) -> Floats:
    return _told(summary.leader, "leader", detector) - _told(summary.runner_up, "runner_up", detector)


def _votes(more: Floats, summary: BeliefSummary) -> NDArray[np.int64]:
    """A number of votes as one that can be asked for: at least 1, and where it is known no more than may come."""
    most = np.full(len(summary), np.inf) if summary.left is None else summary.left
    within = np.maximum(np.minimum(more, most), 1)
    return np.where(np.isfinite(within), within, 1).astype(np.int64)


def _positive(name: str, value: float) -> list[Problem]:
    return [] if 0 < value < np.inf else [Problem(name, f"must be finite and above 0, got {value}")]


def _counts(**counts: int) -> list[Problem]:
    return [Problem(name, f"must be 1 or more, got {count}") for name, count in counts.items() if count < 1]
