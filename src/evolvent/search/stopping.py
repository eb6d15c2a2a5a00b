"""Ending a search by its votes: the detectors of `belief/stopping.py` over answers and over root visits.

A vote is an end that a search reached. Where a detector foresees that it cannot stop before k more votes, k are
requested at once, so nothing is sampled that one vote at a time would not have sampled, and the checks are the
same.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.answers import AnswerBelief
from evolvent.belief.stopping import Detector, StopDecision, min_further_votes
from evolvent.belief.summary import BeliefSummary
from evolvent.search.aggregate import Answer, Same
from evolvent.trajectory import JsonObject

__all__ = ["Stop", "Visits", "Vote"]


@dataclass(frozen=True, slots=True)
class Stop:
    """The early stopping of a search: a detector, and the answers that it counts.

    Args:
        detector: checks the votes, or the visits of a root's children.
        answer: reads the answer of a finished state; None: the action is the answer.
        same: whether two answers are one; None: if they are equal. With the same `same` for the final count,
            `Decided` leaves their majority as it would have been.
    """

    detector: Detector
    answer: Answer | None = None
    same: Same | None = None


class Vote:
    """The votes of one search, up to a maximum number.

    Attributes:
        belief: the votes so far. history: the detector's decisions. stopped: whether it has decided to stop.
    """

    def __init__(self, stop: Stop, max_votes: int) -> None:
        self._stop = stop
        self.belief = AnswerBelief(max_votes, is_same=stop.same)
        self.history: list[StopDecision] = []

    @property
    def stopped(self) -> bool:
        """Returns whether the last check decided to stop."""
        return bool(self.history) and bool(self.history[-1].stop[0])

    def votes_needed(self) -> int:
        """Returns how many votes to request at once."""
        return int(min_further_votes(self._stop.detector, self.belief.summarize())[0])

    def cast(self, state: object, *, action: Hashable | None = None, count: int = 1, readable: bool = True) -> None:
        """Counts votes for the answer of a state.

        Args:
            action: the action there, for searches whose answers are not read. readable: False: the path reached no end;
                its vote has no answer.
        """
        answer = None
        if readable:
            answer = action if self._stop.answer is None else self._stop.answer(state)
        self.belief = self.belief.add(answer, count)

    def should_stop(self) -> bool:
        """Runs the detector and returns whether it stops the search."""
        self.history.append(self._stop.detector(self.belief.summarize(), self.history))
        return self.stopped

    def notes(self) -> JsonObject:
        """Returns notes for the search result: the reason of an early stop (or ""), votes cast and spared, the last
        score.

        A score that is not finite is None. Votes that exceeded the budget count as spared, and `stopped` is "".
        """
        last = self.history[-1] if self.history else None
        score = None if last is None or not np.isfinite(last.score[0]) else float(last.score[0])
        spared = self.belief.max_votes - self.belief.cast
        reason = last.reason if last is not None and self.stopped and spared else ""
        return {"stopped": reason, "votes": self.belief.cast, "spared": spared, "stop_score": score}


class Visits:
    """A detector over the visits of a root's children, for one move.

    With `Decided` the most visited child is the one that all simulations would have led to. Its subtree then has
    fewer visits, so later moves may differ.

    Attributes:
        history: the detector's decisions.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self.history: list[StopDecision] = []

    def should_stop(self, visits: NDArray[np.int64], left: int) -> bool:
        """Returns whether to make the move now.

        Args:
            visits: [A] of the children. left: simulations still to come.
        """
        counts = np.concatenate([np.sort(visits)[::-1].astype(np.float64), [0.0, 0.0]])
        positive_counts = counts[counts > 0]
        shares = (
            positive_counts / positive_counts.sum()
            if len(positive_counts)
            else np.full(max(len(visits), 1), 1 / max(len(visits), 1))
        )
        summary = BeliefSummary(
            entropy=np.array([max(0.0, float(-(shares * np.log(shares)).sum()))]),
            leader=counts[:1],
            runner_up=counts[1:2],
            cast=counts.sum(keepdims=True),
            left=np.array([float(left)]),
        )
        self.history.append(self._detector(summary, self.history))
        return bool(self.history[-1].stop[0])
