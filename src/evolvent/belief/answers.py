"""A belief over answers: the votes of samples, with equivalent texts counted as one answer.

The detectors of `belief/stopping.py` read its summary, so that a vote ends as soon as it is decided, or nearly
so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError
from evolvent.grade.numbers import parse_number

__all__ = ["AnswerBelief", "Normalize", "Same", "normalize_answer", "probability_summary"]

Same = Callable[[object, object], bool]
Normalize = Callable[[Hashable], Hashable | None]


def normalize_answer(answer: Hashable) -> Hashable | None:
    """Returns the exact number of a text ("0.50" and "1/2"); other texts in lowercase without extra spaces.

    An empty text is no answer. What is no text stays as it is.
    """
    if not isinstance(answer, str):
        return answer
    number = parse_number(answer)
    return number if number is not None else " ".join(answer.casefold().split()) or None


@dataclass(frozen=True, slots=True)
class AnswerBelief:
    """Votes for answers, up to a maximum number.

    As in `search.aggregate`: an answer joins the first equal or equivalent one; None is a vote that could not be
    parsed; of equal counts the answer seen first leads.

    Args:
        max_votes: Maximum number of votes.
        votes: (answer as first seen, votes) in the order in which they were first seen.
        unparsable: Votes without an answer.
        normalize: Function that makes equivalent answers equal; `normalize_answer` for texts and numbers; None: no
            change.
        is_same: Function that returns whether two different answers are equivalent, such as a grader.
    Raises:
        ConfigError: a maximum below 1, or more votes than the maximum.
    """

    max_votes: int
    votes: tuple[tuple[Hashable, int], ...] = ()
    unparsable: int = 0
    normalize: Normalize | None = None
    is_same: Same | None = None

    def __post_init__(self) -> None:
        if self.max_votes < 1 or not 0 <= self.cast <= self.max_votes or self.unparsable < 0:
            raise ConfigError(
                "number of votes out of range", value=self.cast, expected=f"0 to {self.max_votes}, of 1 or more"
            )

    @property
    def cast(self) -> int:
        """Returns the number of votes so far."""
        return self.unparsable + sum(count for _, count in self.votes)

    @property
    def leader(self) -> Hashable | None:
        """Returns the answer with the most votes; None where no vote could be parsed."""
        return max(self.votes, key=lambda vote: vote[1], default=(None, 0))[0]

    def add(self, answer: Hashable | None, count: int = 1) -> AnswerBelief:
        """Adds `count` votes for an answer and returns the new belief.

        Raises:
            ConfigError: more votes than there is room for.
        """
        normalized = answer if answer is None or self.normalize is None else self.normalize(answer)
        if normalized is None:
            return replace(self, unparsable=self.unparsable + count)
        index = next(
            (
                index
                for index, (voted_answer, _) in enumerate(self.votes)
                if voted_answer == normalized or self._is_equivalent(voted_answer, normalized)
            ),
            None,
        )
        if index is None:
            return replace(self, votes=(*self.votes, (normalized, count)))
        votes = list(self.votes)
        votes[index] = (votes[index][0], votes[index][1] + count)
        return replace(self, votes=tuple(votes))

    def summarize(self) -> BeliefSummary:
        """Computes the summary for detectors, as a batch of one: B = 1.

        The entropy is that of the shares of the parsed answers; before the first answer it is log(most), as if every
        vote could be for another answer.
        """
        counts = np.sort([count for _, count in self.votes])[::-1].astype(np.float64)
        top_two = np.concatenate([counts, [0.0, 0.0]])[:2]
        shares = counts / counts.sum() if len(counts) else np.full(self.max_votes, 1 / self.max_votes)
        entropy = max(0.0, float(-(shares * np.log(shares)).sum()))  # rounding may bring it below 0
        return BeliefSummary(
            entropy=np.array([entropy]),
            leader=top_two[:1],
            runner_up=top_two[1:],
            cast=np.array([float(self.cast)]),
            left=np.array([float(self.max_votes - self.cast)]),
        )

    def _is_equivalent(self, voted_answer: Hashable, normalized: Hashable) -> bool:
        return self.is_same is not None and self.is_same(voted_answer, normalized)


def probability_summary(probability: NDArray[np.float64]) -> BeliefSummary:
    """Converts probabilities `[B]` of a statement to votes: one vote in all, of which the leader has that
    probability.

    `Agreement(q, least=1)` stops where the probability is at least q; its score is 1 minus the probability.

    Args:
        probability: `[B]`. Probability of each statement.
    Raises:
        ConfigError: a number outside 0 to 1.
    """
    is_invalid = ~((probability >= 0) & (probability <= 1))
    if is_invalid.any():
        raise ConfigError("belief is not a probability", value=float(probability[is_invalid][0]), expected="0 to 1")
    probabilities = np.stack([probability, 1 - probability])
    entropy = -(probabilities * np.log(np.where(probabilities > 0, probabilities, 1.0))).sum(axis=0)
    return BeliefSummary(
        entropy=np.maximum(entropy, 0.0),
        leader=probabilities[0],
        runner_up=probabilities[1],
        cast=np.ones(len(probability)),
        left=np.zeros(len(probability)),
    )
