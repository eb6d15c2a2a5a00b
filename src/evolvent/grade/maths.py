"""Grading of answers in mathematics: strings, then exact numbers, then math-verify in a process that can be killed.

`decide` needs nothing installed and says True or False only where it is sure. What it cannot decide, such as whether
sqrt(8) is 2 sqrt(2), is asked of math-verify (`pip install 'evolvent[math]'`); without it the verdict is None, which is
not wrong but unknown. So is the verdict on an answer that takes too long (9**9**9): as a busy machine makes any answer
take long, it is asked of again once, when it comes again.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from threading import Lock
from types import TracebackType
from weakref import finalize

from evolvent.errors import GraderTimeout, ScoringError
from evolvent.grade.base import Grade
from evolvent.grade.latex import Parts, answer_of, is_text, number, parts_of, plain
from evolvent.workers import Workers

__all__ = ["LONGEST", "MathsGrader", "decide"]

LONGEST = 500
"""Characters: an answer that is longer is wrong. The longest of MATH-500 has 53."""
_ASSIGNED = re.compile(r"^[A-Za-z](?:\([A-Za-z]\))?(?:=|\\in(?![A-Za-z]))")
_FIRST = (r"2\sqrt{2}", r"\sqrt{8}")  # the first comparison builds the parser, half a second
_LATE = "GraderTimeout"
_UNDECIDED = "the strings do not decide, and math-verify is missing: pip install 'evolvent[math]'"


def decide(answer: str, gold: str) -> bool | None:
    r"""Whether an answer equals the gold answer, as far as strings and exact numbers tell; None: they do not.

    Sure are: equal plain forms; two numbers (as fractions, nothing is rounded: .33 is not 1/3); two tuples or intervals
    part by part, two sets or lists of numbers in any order; words where the gold answer is a \text{...}. Of "x=5" and
    "5" the first loses its variable.
    """
    a, b = plain(answer), plain(gold)
    if ("=" in a or r"\in" in a) != ("=" in b or r"\in" in b):
        a, b = _ASSIGNED.sub("", a, count=1), _ASSIGNED.sub("", b, count=1)
    if is_text(gold) and a.replace(" ", "").isalpha():
        return a.lower() == b
    return _compared(a, b)


def _compared(a: str, b: str) -> bool | None:
    if a == b:
        return True if a else None
    left, right = number(a), number(b)
    if left is not None and right is not None:
        return left == right
    mine, theirs = parts_of(a), parts_of(b)
    if mine is not None and theirs is not None:
        return _sequences(mine, theirs)
    return None


def _sequences(mine: Parts, theirs: Parts) -> bool | None:
    """Two sequences: a set and a bare list have no order; tuples and intervals have, and their brackets count."""
    unordered = [opening in ("", r"\{") for opening, _, _ in (mine, theirs)]
    if all(unordered):
        return _any_order(mine[2], theirs[2])
    known = all(number(part) is not None for part in (*mine[2], *theirs[2]))
    if any(unordered):
        return None
    if mine[:2] != theirs[:2] or len(mine[2]) != len(theirs[2]):
        return False if known else None
    verdicts = [_compared(a, b) for a, b in zip(mine[2], theirs[2], strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _any_order(mine: Sequence[str], theirs: Sequence[str]) -> bool | None:
    if Counter(mine) == Counter(theirs):
        return True
    left, right = [number(part) for part in mine], [number(part) for part in theirs]
    if None in left or None in right:
        return None
    return Counter(left) == Counter(right)


class MathsGrader:
    """The grader of answers in mathematics; many threads may use one. It is a `Grader`: `grader(response, gold)`.

    Args:
        wall_s, memory_mb: limits of one comparison by math-verify (seconds; MiB beyond what its imports take).
        most: processes at a time.
        known: verdicts kept, those used last.

    Raises:
        ConfigError: limits that make no sense.
    """

    def __init__(self, *, wall_s: float = 5.0, memory_mb: int = 512, most: int = 2, known: int = 4096) -> None:
        self._limits = (wall_s, memory_mb, most)
        self._room = known
        self._verdicts: OrderedDict[tuple[str, str], tuple[Grade, bool]] = OrderedDict()  # and whether it stays
        self._lock = Lock()
        self._workers: Workers | None = None
        self._ending: finalize[..., MathsGrader] | None = None  # of a grader that nobody closes

    def __call__(self, response: str, gold: str) -> Grade:
        """Whether a response gives the gold answer.

        Returns:
            correct: None where nothing can be said; `why` is "GraderTimeout" for a comparison that took too long, and
            names the extra where that is missing. A response without an answer is False, with `extracted` None.
        """
        answer = answer_of(response)
        if answer is None:
            return Grade(correct=False, extracted=None, why="no answer in the response")
        return self.compare(answer, gold)

    def compare(self, answer: str, gold: str) -> Grade:
        """Whether an answer, without the response around it, equals the gold answer; used to count votes too."""
        if len(answer) > LONGEST:
            return Grade(correct=False, extracted=answer[:60], why=f"an answer of {len(answer)} characters")
        verdict = decide(answer, gold)
        if verdict is not None:
            return Grade(verdict, answer, "" if verdict else "another answer")
        key = (plain(gold), plain(answer))
        with self._lock:
            known, sure = self._verdicts.get(key, (None, False))
            if known is not None and sure:
                self._verdicts.move_to_end(key)
                return replace(known, extracted=answer)
        found = self._verified(*key)
        with self._lock:
            self._verdicts[key] = found, found.why != _LATE or known is not None
            self._verdicts.move_to_end(key)
            while len(self._verdicts) > self._room:
                self._verdicts.popitem(last=False)
        return replace(found, extracted=answer)

    def _verified(self, gold: str, answer: str) -> Grade:
        if find_spec("math_verify") is None:
            return Grade(correct=None, extracted=answer, why=_UNDECIDED)
        try:
            verdict = self._pool().call(gold, answer)
        except ImportError as error:  # installed, but broken
            return Grade(correct=None, extracted=answer, why=f"{_UNDECIDED} ({error})")
        except GraderTimeout:
            return Grade(correct=None, extracted=answer, why=_LATE)
        except ScoringError as error:
            return Grade(correct=None, extracted=answer, why=f"ScoringError: {error}")
        if verdict is None:
            return Grade(correct=None, extracted=answer, why="the gold answer cannot be read as mathematics")
        return Grade(bool(verdict), answer, "" if verdict else "another answer")

    def _pool(self) -> Workers:
        """The processes, begun when the first comparison needs them: importing sympy takes a second."""
        from evolvent.grade.symbolic import same

        with self._lock:
            if self._workers is None:
                wall_s, memory_mb, most = self._limits
                self._workers = Workers(same, wall_s=wall_s, memory_mb=memory_mb, most=most, first=_FIRST)
                self._ending = finalize(self, self._workers.close)
            return self._workers

    def close(self) -> None:
        """End the processes; calling it twice is harmless, and a later comparison begins new ones."""
        with self._lock:
            ending, self._ending, self._workers = self._ending, None, None
        if ending is not None:
            ending()

    def __enter__(self) -> MathsGrader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
