"""Grading of answers in mathematics: by strings, then exact numbers, then math-verify in a process that can be
killed.

`decide` needs no extra packages and returns True or False only where it is certain. Undecided pairs, such as
sqrt(8) and 2 sqrt(2), go to math-verify (`pip install 'evolvent[math]'`); without it the grade is None, which
means unknown and not wrong. So does a comparison that takes too long (9**9**9): since a busy machine delays any
answer, the comparison is repeated once when the pair comes again.
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
from evolvent.grade.latex import Parts, extract_answer, is_text, normalize, parse_plain_number, split_sequence
from evolvent.workers import Workers

__all__ = ["MAX_ANSWER_CHARS", "MathsGrader", "decide"]

MAX_ANSWER_CHARS = 500
"""Characters: an answer that is longer is wrong. The longest of MATH-500 has 53."""
_ASSIGNED = re.compile(r"^[A-Za-z](?:\([A-Za-z]\))?(?:=|\\in(?![A-Za-z]))")
_WARM_UP = (r"2\sqrt{2}", r"\sqrt{8}")  # the first comparison builds the parser, half a second
_TIMED_OUT = "GraderTimeout"
_UNDECIDED = "the strings do not decide, and math-verify is missing: pip install 'evolvent[math]'"


def decide(answer: str, gold: str) -> bool | None:
    r"""Returns whether an answer equals the gold answer, as far as strings and exact numbers decide; otherwise
    None.

    Decided are: equal normal forms; two numbers (as fractions, nothing is rounded: .33 is not 1/3); two tuples or
    intervals part by part, two sets or lists of numbers in any order; words where the gold answer is a \text{...}.
    Of "x=5" and "5" the first loses its variable.
    """
    answer_form, gold_form = normalize(answer), normalize(gold)
    if ("=" in answer_form or r"\in" in answer_form) != ("=" in gold_form or r"\in" in gold_form):
        answer_form, gold_form = _ASSIGNED.sub("", answer_form, count=1), _ASSIGNED.sub("", gold_form, count=1)
    if is_text(gold) and answer_form.replace(" ", "").isalpha():
        return answer_form.lower() == gold_form
    return _compare_forms(answer_form, gold_form)


def _compare_forms(answer_form: str, gold_form: str) -> bool | None:
    if answer_form == gold_form:
        return True if answer_form else None
    answer_number, gold_number = parse_plain_number(answer_form), parse_plain_number(gold_form)
    if answer_number is not None and gold_number is not None:
        return answer_number == gold_number
    answer_parts, gold_parts = split_sequence(answer_form), split_sequence(gold_form)
    if answer_parts is not None and gold_parts is not None:
        return _compare_sequences(answer_parts, gold_parts)
    return None


def _compare_sequences(answer_parts: Parts, gold_parts: Parts) -> bool | None:
    """Compares two sequences: sets and bare lists have no order; tuples and intervals have, and their brackets
    count.
    """
    is_unordered = [opening in ("", r"\{") for opening, _, _ in (answer_parts, gold_parts)]
    if all(is_unordered):
        return _compare_unordered(answer_parts[2], gold_parts[2])
    are_numbers = all(parse_plain_number(part) is not None for part in (*answer_parts[2], *gold_parts[2]))
    if any(is_unordered):
        return None
    if answer_parts[:2] != gold_parts[:2] or len(answer_parts[2]) != len(gold_parts[2]):
        return False if are_numbers else None
    verdicts = [_compare_forms(a, b) for a, b in zip(answer_parts[2], gold_parts[2], strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _compare_unordered(answer_parts: Sequence[str], gold_parts: Sequence[str]) -> bool | None:
    if Counter(answer_parts) == Counter(gold_parts):
        return True
    answer_numbers, gold_numbers = (
        [parse_plain_number(part) for part in answer_parts],
        [parse_plain_number(part) for part in gold_parts],
    )
    if None in answer_numbers or None in gold_numbers:
        return None
    return Counter(answer_numbers) == Counter(gold_numbers)


class MathsGrader:
    """A grader of answers in mathematics, safe for many threads. It is a `Grader`: `grader(response, gold)`.

    Args:
        wall_s: Maximum seconds of one comparison by math-verify.
        memory_mb: Maximum memory of one comparison in MiB, beyond that of its imports.
        max_processes: Maximum number of processes.
        cache_size: Number of cached verdicts; the least recently used is dropped.
    Raises:
        ConfigError: invalid limits.
    """

    def __init__(
        self, *, wall_s: float = 5.0, memory_mb: int = 512, max_processes: int = 2, cache_size: int = 4096
    ) -> None:
        self._limits = (wall_s, memory_mb, max_processes)
        self._room = cache_size
        self._verdicts: OrderedDict[tuple[str, str], tuple[Grade, bool]] = OrderedDict()  # and whether it stays
        self._lock = Lock()
        self._workers: Workers | None = None
        self._ending: finalize[..., MathsGrader] | None = None  # of a grader that nobody closes

    def __call__(self, response: str, gold: str) -> Grade:
        """Returns whether a response gives the gold answer.

        Returns:
            The grade. `correct` is None where it is undecided; `why` is "GraderTimeout" for a comparison that took too
                long,
            and names a missing extra. A response without an answer is False, with `extracted` None.
        """
        answer = extract_answer(response)
        if answer is None:
            return Grade(correct=False, extracted=None, why="no answer in the response")
        return self.compare(answer, gold)

    def compare(self, answer: str, gold: str) -> Grade:
        """Returns whether an answer, without the surrounding response, equals the gold answer; also used to count
        votes.
        """
        if len(answer) > MAX_ANSWER_CHARS:
            return Grade(correct=False, extracted=answer[:60], why=f"an answer of {len(answer)} characters")
        verdict = decide(answer, gold)
        if verdict is not None:
            return Grade(verdict, answer, "" if verdict else "another answer")
        key = (normalize(gold), normalize(answer))
        with self._lock:
            cached, is_final = self._verdicts.get(key, (None, False))
            if cached is not None and is_final:
                self._verdicts.move_to_end(key)
                return replace(cached, extracted=answer)
        verified = self._verify(*key)
        with self._lock:
            self._verdicts[key] = verified, verified.why != _TIMED_OUT or cached is not None
            self._verdicts.move_to_end(key)
            while len(self._verdicts) > self._room:
                self._verdicts.popitem(last=False)
        return replace(verified, extracted=answer)

    def _verify(self, gold: str, answer: str) -> Grade:
        if find_spec("math_verify") is None:
            return Grade(correct=None, extracted=answer, why=_UNDECIDED)
        try:
            verdict = self._pool().call(gold, answer)
        except ImportError as error:  # installed, but broken
            return Grade(correct=None, extracted=answer, why=f"{_UNDECIDED} ({error})")
        except GraderTimeout:
            return Grade(correct=None, extracted=answer, why=_TIMED_OUT)
        except ScoringError as error:
            return Grade(correct=None, extracted=answer, why=f"ScoringError: {error}")
        if verdict is None:
            return Grade(correct=None, extracted=answer, why="the gold answer cannot be read as mathematics")
        return Grade(bool(verdict), answer, "" if verdict else "another answer")

    def _pool(self) -> Workers:
        """Starts the processes when the first comparison needs them, and returns them: importing sympy takes a
        second.
        """
        from evolvent.grade.symbolic import is_same_expression

        with self._lock:
            if self._workers is None:
                wall_s, memory_mb, max_processes = self._limits
                self._workers = Workers(
                    is_same_expression,
                    wall_s=wall_s,
                    memory_mb=memory_mb,
                    max_processes=max_processes,
                    warmup_args=_WARM_UP,
                )
                self._ending = finalize(self, self._workers.close)
            return self._workers

    def close(self) -> None:
        """Ends the processes. Repeated calls have no effect, and a later comparison starts new processes."""
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
