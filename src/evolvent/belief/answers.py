"""A belief over answers: the votes of samples, texts that mean the same counted as one.

The detectors of `belief/stopping.py` look at its summary, so that a vote ends as soon as it is decided, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError
from evolvent.grade.numbers import number_of

__all__ = ["AnswerBelief", "Normalise", "Same", "normal_answer", "probability_summary"]

Same = Callable[[Any, Any], bool]
Normalise = Callable[[Hashable], Hashable | None]


def normal_answer(answer: Hashable) -> Hashable | None:
    """Texts of one number as that number, exactly ("0.50" and "1/2"); other texts without case and extra spaces.

    An empty text is no answer. What is no text stays as it is.
    """
    if not isinstance(answer, str):
        return answer
    number = number_of(answer)
    return number if number is not None else " ".join(answer.casefold().split()) or None


@dataclass(frozen=True, slots=True)
class AnswerBelief:
    """Votes for answers, of at most so many.

    As in `search.aggregate`: an answer joins the first one that it is equal to or the `same` as; None is a vote cast
    that nobody could read; of equal counts the answer seen first leads.

    Args:
        most: votes that may be cast in all.
        votes: (answer as first seen, votes) in the order in which they were first seen. unread: votes without answer.
        normalise: what makes answers of one meaning equal; `normal_answer` for texts and numbers; None: as they are.
        same: whether two answers that differ are one all the same, as a grader sees it.
    Raises:
        ConfigError: room for no vote, or more votes than there is room for.
    """

    most: int
    votes: tuple[tuple[Hashable, int], ...] = ()
    unread: int = 0
    normalise: Normalise | None = None
    same: Same | None = None

    def __post_init__(self) -> None:
        if self.most < 1 or not 0 <= self.cast <= self.most or self.unread < 0:
            raise ConfigError("votes that cannot be", value=self.cast, expected=f"0 to {self.most}, of 1 or more")

    @property
    def cast(self) -> int:
        """Votes so far."""
        return self.unread + sum(count for _, count in self.votes)

    @property
    def leader(self) -> Hashable | None:
        """The answer of most votes; None: none could be read."""
        return max(self.votes, key=lambda vote: vote[1], default=(None, 0))[0]

    def add(self, answer: Hashable | None, count: int = 1) -> AnswerBelief:
        """The belief after `count` further votes for an answer.

        Raises:
            ConfigError: more votes than there is room for.
        """
        read = answer if answer is None or self.normalise is None else self.normalise(answer)
        if read is None:
            return replace(self, unread=self.unread + count)
        at = next((at for at, (known, _) in enumerate(self.votes) if known == read or self._same(known, read)), None)
        if at is None:
            return replace(self, votes=(*self.votes, (read, count)))
        votes = list(self.votes)
        votes[at] = (votes[at][0], votes[at][1] + count)
        return replace(self, votes=tuple(votes))

    def summary(self) -> BeliefSummary:
        """What a detector looks at, as a batch of one: B = 1.

        The entropy is that of the shares of the answers read; before there is any it is log(most), as if every vote
        might be for another answer.
        """
        counts = np.sort([count for _, count in self.votes])[::-1].astype(np.float64)
        two = np.concatenate([counts, [0.0, 0.0]])[:2]
        shares = counts / counts.sum() if len(counts) else np.full(self.most, 1 / self.most)
        entropy = max(0.0, float(-(shares * np.log(shares)).sum()))  # rounding may bring it below 0
        return BeliefSummary(
            entropy=np.array([entropy]),
            leader=two[:1],
            runner_up=two[1:],
            cast=np.array([float(self.cast)]),
            left=np.array([float(self.most - self.cast)]),
        )

    def _same(self, known: Hashable, read: Hashable) -> bool:
        return self.same is not None and self.same(known, read)


def probability_summary(chance: NDArray[np.float64]) -> BeliefSummary:
    """Chances `[B]` that something holds, as votes: one vote in all, of which the leader has the chance.

    `Agreement(q, least=1)` stops where the chance is q or more; its score is 1 less the chance.

    Raises:
        ConfigError: a number that is no chance.
    """
    wrong = ~((chance >= 0) & (chance <= 1))
    if wrong.any():
        raise ConfigError("a belief that is no chance", value=float(chance[wrong][0]), expected="0 to 1")
    both = np.stack([chance, 1 - chance])
    entropy = -(both * np.log(np.where(both > 0, both, 1.0))).sum(axis=0)
    return BeliefSummary(
        entropy=np.maximum(entropy, 0.0),
        leader=both[0],
        runner_up=both[1],
        cast=np.ones(len(chance)),
        left=np.zeros(len(chance)),
    )
