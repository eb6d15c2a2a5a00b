"""F1 of the names and of the arguments of function calls, over a set of items.

Source: the evaluations of Hammer (arXiv 2410.04587; MadeAgents/Hammer, evaluation/evaluate.py). The released
script looks up every predicted call independently, so that a correct call repeated five times counts five times
and F1 reaches 1.667; here calls are matched one to one, so that no score exceeds 1. Where no name repeats in an
item and every expected call has arguments, the numbers equal those of the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evolvent.errors import BatchMismatch
from evolvent.grade.matching import heaviest_matching
from evolvent.messages import Call

__all__ = ["CallScore", "MatchCounts", "score_calls"]


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """Counts of correct, predicted and expected parts, over all items."""

    correct: int
    predicted: int
    expected: int

    @property
    def precision(self) -> float:
        """Returns correct over predicted; 1 where nothing was predicted or expected, 0 where only nothing was
        predicted.
        """
        return self.correct / self.predicted if self.predicted else float(not self.expected)

    @property
    def recall(self) -> float:
        """Returns correct over expected; 1 where nothing was expected or predicted, 0 where only nothing was
        expected.
        """
        return self.correct / self.expected if self.expected else float(not self.predicted)

    @property
    def f1(self) -> float:
        """Returns the harmonic mean of precision and recall, 2 correct / (predicted + expected)."""
        total = self.predicted + self.expected
        return 2 * self.correct / total if total else 1.0


@dataclass(frozen=True, slots=True)
class CallScore:
    """The scores of a set of items.

    Args:
        items: Number of items.
        names: Counts of function names. An answer that cannot be parsed counts as one predicted name.
        arguments: Counts of pairs of parameter and value as text; pairs with value "" are ignored.
        abstained: Share of items without expected calls on which a parsable answer called nothing; None where there
            are no such items.
        unparsable: Share of answers that cannot be parsed.
    """

    items: int
    names: MatchCounts
    arguments: MatchCounts
    abstained: float | None
    unparsable: float


def score_calls(predicted: Sequence[Sequence[Call] | None], gold: Sequence[Sequence[Call]]) -> CallScore:
    """Computes micro-averaged scores; calls are matched one to one in each item to maximize the correct arguments.

    Args:
        predicted: For each item its calls; None where the answer could not be parsed.
        gold: For each item the expected calls.
    Raises:
        BatchMismatch: the numbers of items differ.
    """
    if len(predicted) != len(gold):
        raise BatchMismatch("number of predictions does not match the items", value=len(predicted), expected=len(gold))
    names, arguments = [0, 0, 0], [0, 0, 0]
    for predicted_calls, gold_calls in zip(predicted, gold, strict=True):
        calls = predicted_calls or ()
        names[0] += (Counter(call.name for call in calls) & Counter(call.name for call in gold_calls)).total()
        names[1] += len(calls) if predicted_calls is not None else 1
        names[2] += len(gold_calls)
        arguments[0] += _count_matches(calls, gold_calls)
        arguments[1] += sum(len(_argument_pairs(call)) for call in calls)
        arguments[2] += sum(len(_argument_pairs(call)) for call in gold_calls)
    is_abstained = [
        predicted_calls is not None and not predicted_calls
        for predicted_calls, gold_calls in zip(predicted, gold, strict=True)
        if not gold_calls
    ]
    num_unparsable = sum(predicted_calls is None for predicted_calls in predicted)
    return CallScore(
        len(gold),
        MatchCounts(*names),
        MatchCounts(*arguments),
        sum(is_abstained) / len(is_abstained) if is_abstained else None,
        num_unparsable / len(gold) if gold else 0.0,
    )


def _argument_pairs(call: Call) -> set[tuple[str, str]]:
    return {(name, str(value)) for name, value in call.arguments.items() if value != ""}


def _count_matches(calls: Sequence[Call], gold_calls: Sequence[Call]) -> int:
    """Counts the most pairs that agree when calls of one name are matched one to one."""
    total = 0
    for name in {call.name for call in gold_calls}:
        rows = [_argument_pairs(call) for call in gold_calls if call.name == name]
        columns = [_argument_pairs(call) for call in calls if call.name == name]
        total += heaviest_matching([[len(row & column) for column in columns] for row in rows])
    return total
