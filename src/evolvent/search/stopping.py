"""Ending a search by what its votes say: the detectors of `belief/stopping.py` over answers and over root visits.

A vote is an end that a search came to. Where a detector foresees that it cannot stop before k more votes, k are asked
for at once, so nothing is sampled that one vote at a time would not have sampled, and the looks are the same.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.answers import AnswerBelief
from evolvent.belief.stopping import Detector, StopDecision, soonest
from evolvent.belief.summary import BeliefSummary
from evolvent.search.aggregate import Answer, Same

__all__ = ["Stop", "Visits", "Vote"]


@dataclass(frozen=True, slots=True)
class Stop:
    """When a search ends early, and by which answers.

    Args:
        detector: looks at the votes, or at the visits of a root's children.
        answer: reads the answer of a finished state; None: what was done is the answer.
        same: whether two answers are one; None: if they are equal. With the `same` that the votes are counted with at
            the end, `Decided` leaves their majority as it would have been.
    """

    detector: Detector
    answer: Answer | None = None
    same: Same | None = None


class Vote:
    """The votes of one search, of at most so many.

    Attributes:
        belief: the votes so far. history: what the detector has said. stopped: whether it has said stop.
    """

    def __init__(self, stop: Stop, most: int) -> None:
        self._stop = stop
        self.belief = AnswerBelief(most, same=stop.same)
        self.history: list[StopDecision] = []

    @property
    def stopped(self) -> bool:
        """Whether the last look said stop."""
        return bool(self.history) and bool(self.history[-1].stop[0])

    def ahead(self) -> int:
        """How many votes to ask for at once."""
        return int(soonest(self._stop.detector, self.belief.summary())[0])

    def cast(self, state: Any, *, done: Hashable | None = None, count: int = 1, readable: bool = True) -> None:
        """Count votes for the answer of a state.

        Args:
            done: what was done there, for searches whose answers nobody reads. readable: False: it came to no end; it
                is a vote that nobody can read.
        """
        answer = None
        if readable:
            answer = done if self._stop.answer is None else self._stop.answer(state)
        self.belief = self.belief.add(answer, count)

    def look(self) -> bool:
        """Have the detector look; whether it says stop."""
        self.history.append(self._stop.detector(self.belief.summary(), self.history))
        return self.stopped

    def notes(self) -> dict[str, Any]:
        """What a search says of it: why it stopped early ("" where it did not), votes cast and spared, the last score.

        A score that is not finite is None. Votes that a budget had no room for count as spared, and `stopped` is "".
        """
        last = self.history[-1] if self.history else None
        score = None if last is None or not np.isfinite(last.score[0]) else float(last.score[0])
        spared = self.belief.most - self.belief.cast
        why = last.reason if last is not None and self.stopped and spared else ""
        return {"stopped": why, "votes": self.belief.cast, "spared": spared, "stop_score": score}


class Visits:
    """A detector over the visits of a root's children, for one move.

    With `Decided` the most visited child is the one that all simulations would have led to. What is searched below it
    has fewer visits then, so later moves may differ.

    Attributes:
        history: what the detector has said.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self.history: list[StopDecision] = []

    def look(self, visits: NDArray[np.int64], left: int) -> bool:
        """Whether to make the move now.

        Args:
            visits: [A] of the children. left: simulations still to come.
        """
        counts = np.concatenate([np.sort(visits)[::-1].astype(np.float64), [0.0, 0.0]])
        seen = counts[counts > 0]
        shares = seen / seen.sum() if len(seen) else np.full(max(len(visits), 1), 1 / max(len(visits), 1))
        summary = BeliefSummary(
            entropy=np.array([max(0.0, float(-(shares * np.log(shares)).sum()))]),
            leader=counts[:1],
            runner_up=counts[1:2],
            cast=counts.sum(keepdims=True),
            left=np.array([float(left)]),
        )
        self.history.append(self._detector(summary, self.history))
        return bool(self.history[-1].stop[0])
