"""F1 of the names and of the arguments of function calls, over a set of items.

Source: the evaluations of Hammer (arXiv 2410.04587; MadeAgents/Hammer, evaluation/evaluate.py). The released script
looks up every predicted call by itself, so that a right call said five times counts five times and F1 reaches 1.667;
here calls are matched one to one, so that no score is above 1. Where no name repeats in an item and every expected call
has arguments, the numbers are those of the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evolvent.errors import BatchMismatch
from evolvent.grade.matching import heaviest_matching
from evolvent.messages import Call

__all__ = ["CallScore", "Share", "f1"]


@dataclass(frozen=True, slots=True)
class Share:
    """What was right, among what was predicted and among what was expected: counts over all items."""

    right: int
    predicted: int
    expected: int

    @property
    def precision(self) -> float:
        """Right among predicted; 1 where nothing was predicted and nothing expected, 0 where only nothing was."""
        return self.right / self.predicted if self.predicted else float(not self.expected)

    @property
    def recall(self) -> float:
        """Right among expected; 1 where nothing was expected and nothing predicted, 0 where only nothing was."""
        return self.right / self.expected if self.expected else float(not self.predicted)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, 2 right / (predicted + expected)."""
        both = self.predicted + self.expected
        return 2 * self.right / both if both else 1.0


@dataclass(frozen=True, slots=True)
class CallScore:
    """The scores of a set.

    Args:
        items: how many.
        names: of functions. An answer that cannot be read counts as one predicted name.
        arguments: pairs of parameter and value as text; values "" are none.
        abstained: the share of items without expected calls on which a readable answer called nothing; None where
            there are no such items.
        unparsable: the share of answers that cannot be read.
    """

    items: int
    names: Share
    arguments: Share
    abstained: float | None
    unparsable: float


def f1(predicted: Sequence[Sequence[Call] | None], gold: Sequence[Sequence[Call]]) -> CallScore:
    """Micro-averaged scores, calls matched one to one in each item so that as many arguments as possible are right.

    Args:
        predicted: for each item its calls; None where the answer could not be read.
        gold: for each item the calls that are expected.
    Raises:
        BatchMismatch: not equally many items on both sides.
    """
    if len(predicted) != len(gold):
        raise BatchMismatch("predictions that are not one for each item", value=len(predicted), expected=len(gold))
    names, arguments = [0, 0, 0], [0, 0, 0]
    for said, wanted in zip(predicted, gold, strict=True):
        calls = said or ()
        names[0] += (Counter(call.name for call in calls) & Counter(call.name for call in wanted)).total()
        names[1] += len(calls) if said is not None else 1
        names[2] += len(wanted)
        arguments[0] += _right_pairs(calls, wanted)
        arguments[1] += sum(len(_pairs(call)) for call in calls)
        arguments[2] += sum(len(_pairs(call)) for call in wanted)
    empty = [said is not None and not said for said, wanted in zip(predicted, gold, strict=True) if not wanted]
    unread = sum(said is None for said in predicted)
    return CallScore(
        len(gold),
        Share(*names),
        Share(*arguments),
        sum(empty) / len(empty) if empty else None,
        unread / len(gold) if gold else 0.0,
    )


def _pairs(call: Call) -> set[tuple[str, str]]:
    return {(name, str(value)) for name, value in call.arguments.items() if value != ""}


def _right_pairs(calls: Sequence[Call], wanted: Sequence[Call]) -> int:
    """The most pairs that agree when calls of one name are matched one to one."""
    total = 0
    for name in {call.name for call in wanted}:
        rows = [_pairs(call) for call in wanted if call.name == name]
        columns = [_pairs(call) for call in calls if call.name == name]
        total += heaviest_matching([[len(row & column) for column in columns] for row in rows])
    return total
