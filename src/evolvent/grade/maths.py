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
from fractions import Fraction
from importlib.util import find_spec
from threading import Lock
from types import TracebackType
from weakref import finalize

from evolvent.errors import GraderTimeout, ScoringError
from evolvent.grade.base import Grade
from evolvent.grade.latex import Parts, extract_answer, is_text, normalize, parse_plain_number, split_sequence
from evolvent.grade.markdown import strip_markdown
from evolvent.grade.numbers import exact_value, has_base, has_ellipsis, is_inexact
from evolvent.grade.quantities import Quantity, compare_words, read_quantity
from evolvent.workers import Workers

__all__ = ["MAX_ANSWER_CHARS", "MathsGrader", "decide"]

MAX_ANSWER_CHARS = 500
"""Characters: an answer that is longer is wrong. The longest of MATH-500 has 53."""
_ASSIGNED = re.compile(r"^[A-Za-z](?:_\w|\([A-Za-z]\))?(?:=|\\in(?![A-Za-z]))")
_ASSIGNMENT = re.compile(r"([A-Za-z](?:_\w)?)=([^=]+)")
_COMPARISON = re.compile(r"(<|>|\\(?:le|ge|lt|gt)(?![A-Za-z]))")
_VARIABLE = re.compile(r"[A-Za-z](?:_\w)?")
_TEXTS = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}")
_LONG_WORD = re.compile(r"[A-Za-z]{4,}")
# Geometry and derivatives, whose letters are no factors; a slash before a product.
_OPAQUE = re.compile(
    r"\\(?:triangle|angle|overline|vec|overrightarrow|widehat|hat|bar|prime|perp|parallel)(?![A-Za-z])|'"
)
_AMBIGUOUS_SLASH = re.compile(r"/\d+(?:[A-Za-z(]|\\(?!end)[a-z])")
_MATHS_MARKS = re.compile(r"^\s*\\[(\[]\s*|\s*\\[)\]](?=[.\s]*$)")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[x×]\s*10\s*\^")
_FUNCTION_OF_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*(\d+(?:\.\d+)?)\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)\s*[)}]?"
)
_CLOCK = re.compile(r"\d:\d")
_WARM_UP = (r"2\sqrt{2}", r"\sqrt{8}")  # the first comparison builds the parser, half a second
_TIMED_OUT = "GraderTimeout"
_UNDECIDED = "the strings do not decide, and math-verify is missing: pip install 'evolvent[math]'"
_NOT_COMPARABLE = "the answers differ in words or notation that math-verify would drop"


def decide(answer: str, gold: str) -> bool | None:
    r"""Returns whether an answer equals the gold answer, as far as strings and exact numbers decide; otherwise
    None.

    Decided are: equal normal forms; two rational numbers (exactly: .33 is not 1/3, and 1/2006! is not 1/2004!), with
    bases, repeating decimals and words such as "million"; two tuples or intervals part by part, two sets or lists of
    numbers in any order; inequalities and intervals; assignments; words where the gold answer is a \text{...}.
    Of "x=5" and "5" the first loses its variable. Words behind a number count as a unit unless they change it.
    """
    return _decide(answer, gold)[0]


def _decide(answer: str, gold: str) -> tuple[bool | None, bool]:
    """Returns the verdict, and whether an open one may be asked of math-verify, which drops words and bases."""
    if answer == gold and normalize(gold):
        return True, False
    answer, gold = _clean(answer), _clean(gold)
    if has_ellipsis(answer) != has_ellipsis(gold):
        return None, False
    spoken, expected = normalize(answer), normalize(gold)
    are_words = spoken.replace(" ", "").isalpha() and expected.replace(" ", "").isalpha()
    if are_words and (is_text(gold) or (is_text(answer) and len(expected) > 1)):
        return spoken.lower() == expected.lower(), False
    quantities = read_quantity(answer), read_quantity(gold)
    answer_form, gold_form = (normalize(quantity.core, drop_unit=False) for quantity in quantities)
    if _is_assigned(answer_form) != _is_assigned(gold_form):
        answer_form, gold_form = _drop_variable(answer_form), _drop_variable(gold_form)
    verdict = _compare_quantities(*quantities, answer_form, gold_form)
    if verdict is False:
        return False, False
    are_comparable = compare_words(*quantities)
    if are_comparable is None or not are_comparable:
        return are_comparable, False
    if (
        verdict is None
        and _LONG_WORD.search(_without_commands(answer_form))
        and _is_symbolic("", "", gold_form, gold_form)
    ):
        return False, False  # words where mathematics is expected
    return verdict, verdict is None and _is_symbolic(answer, gold, answer_form, gold_form)


def _clean(text: str) -> str:
    r"""Returns an answer without markdown, with `x` for times as a sign, and with radians inside of functions."""
    text = _TIMES_TEN.sub(r"\\times 10^", _MATHS_MARKS.sub("", strip_markdown(text)))
    return _FUNCTION_OF_DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", text)


def _core_form(text: str) -> str:
    """Returns what math-verify is asked about; it would read 1e-3 as Euler's number minus 3."""
    form = normalize(read_quantity(_clean(text)).core, drop_unit=False)
    value = exact_value(form) if "e" in form.lower() else None
    return form if value is None else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _is_assigned(form: str) -> bool:
    return "=" in form or r"\in" in form


def _drop_variable(form: str) -> str:
    """Drops the variable of `x=5`, and of every part of `x=1,x=2`; a list of several variables stays."""
    parts = split_sequence(form)
    if parts is None or parts[0]:
        return _ASSIGNED.sub("", form, count=1)
    matches = [_ASSIGNMENT.fullmatch(part) for part in parts[2]]
    if not all(matches):
        return _ASSIGNED.sub("", form, count=1) if "=" not in form.partition("=")[2] else form
    names = {match[1] for match in matches if match is not None}
    return ",".join(match[2] for match in matches if match is not None) if len(names) == 1 else form


def _compare_quantities(answer: Quantity, gold: Quantity, answer_form: str, gold_form: str) -> bool | None:
    """Compares the mathematics of two answers, each times the scale of its words, angles in degrees or radians."""
    if answer.scale != 1 or gold.scale != 1:
        answer_value, gold_value = exact_value(answer_form), exact_value(gold_form)
        if answer_value is None or gold_value is None:
            return None
        return answer_value * answer.scale == gold_value * gold.scale
    if answer.in_degrees != gold.in_degrees and (r"\pi" in answer_form or r"\pi" in gold_form):
        turns = [_pi_coefficient(form) for form in (answer_form, gold_form)]
        degrees = exact_value(answer_form if answer.in_degrees else gold_form)
        radians = turns[0] if gold.in_degrees else turns[1]
        return None if degrees is None or radians is None else degrees == 180 * radians
    return _compare_forms(answer_form, gold_form)


def _is_symbolic(answer: str, gold: str, answer_form: str, gold_form: str) -> bool:
    """Returns whether math-verify reads all of two forms."""
    for form in (answer_form, gold_form):
        if is_inexact(form) or has_base(form) or _CLOCK.search(form) or _LONG_WORD.search(_without_commands(form)):
            return False
    for form in (answer_form, gold_form):
        if _OPAQUE.search(form) or _AMBIGUOUS_SLASH.search(form):
            return False
    if _read_assignments(answer_form) is not None or _read_assignments(gold_form) is not None:
        return False
    return _TEXTS.findall(answer) == _TEXTS.findall(gold) or not _TEXTS.search(answer_form + gold_form)


def _without_commands(form: str) -> str:
    return re.sub(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+", " ", form)


def _compare_forms(answer_form: str, gold_form: str) -> bool | None:
    if answer_form == gold_form:
        return True if answer_form else None
    answer_number, gold_number = parse_plain_number(answer_form), parse_plain_number(gold_form)
    if answer_number is not None and gold_number is not None:
        return answer_number == gold_number
    if has_base(answer_form) != has_base(gold_form) and answer_form.split("_")[0] == gold_form.split("_")[0]:
        return None  # the base may have been left out
    answer_value, gold_value = exact_value(answer_form), exact_value(gold_form)
    if answer_value is not None and gold_value is not None:
        return answer_value == gold_value
    coefficients = _pi_coefficient(answer_form), _pi_coefficient(gold_form)
    if coefficients[0] is not None and coefficients[1] is not None:
        return coefficients[0] == coefficients[1]
    if (answer_value is not None and coefficients[1]) or (gold_value is not None and coefficients[0]):
        return False  # pi is irrational
    for compare in (_compare_assignments, _compare_regions):
        verdict = compare(answer_form, gold_form)
        if verdict is not None:
            return verdict
    answer_parts, gold_parts = split_sequence(answer_form), split_sequence(gold_form)
    if answer_parts is not None and gold_parts is not None:
        return _compare_sequences(answer_parts, gold_parts)
    return _compare_single_sets(answer_form, gold_form)


def _compare_single_sets(answer_form: str, gold_form: str) -> bool | None:
    r"""Compares sets of which one has a single element: \{1,1\} and \{1\}, \{5\} and 5."""
    answer_elements, gold_elements = _set_elements(answer_form), _set_elements(gold_form)
    if answer_elements is None or gold_elements is None:
        return None
    return _compare_unordered(answer_elements, gold_elements, is_set=True)


def _set_elements(form: str) -> tuple[str, ...] | None:
    if not (form.startswith(r"\{") and form.endswith(r"\}")):
        return None
    parts = split_sequence(form)
    return parts[2] if parts is not None else (form[2:-2],)


def _compare_sequences(answer_parts: Parts, gold_parts: Parts) -> bool | None:
    """Compares two sequences: sets and bare lists have no order; tuples and intervals have, and their brackets
    count.
    """
    is_unordered = [opening in ("", r"\{") for opening, _, _ in (answer_parts, gold_parts)]
    if all(is_unordered):
        is_set = answer_parts[0] == gold_parts[0] == r"\{"
        return _compare_unordered(answer_parts[2], gold_parts[2], is_set=is_set)
    are_numbers = all(parse_plain_number(part) is not None for part in (*answer_parts[2], *gold_parts[2]))
    if any(is_unordered):
        return None
    if answer_parts[:2] != gold_parts[:2] or len(answer_parts[2]) != len(gold_parts[2]):
        return False if are_numbers else None
    verdicts = [_compare_forms(a, b) for a, b in zip(answer_parts[2], gold_parts[2], strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _compare_unordered(answer_parts: Sequence[str], gold_parts: Sequence[str], *, is_set: bool) -> bool | None:
    """Compares lists in any order; a set has no element twice."""
    if Counter(answer_parts) == Counter(gold_parts) or (is_set and set(answer_parts) == set(gold_parts)):
        return True
    answer_values, gold_values = ([exact_value(part) for part in parts] for parts in (answer_parts, gold_parts))
    if None in answer_values or None in gold_values:
        return None
    return set(answer_values) == set(gold_values) if is_set else Counter(answer_values) == Counter(gold_values)


def _pi_coefficient(form: str) -> Fraction | None:
    r"""Returns c of a normal form that is c times \pi; None for another form."""
    if r"\pi" not in form or r"\pi^" in form:
        return None
    values = []
    for number in (1, 2):
        text = re.sub(r"(?<=[\d)}])\\pi", rf"\\cdot {number}", form)
        text = re.sub(r"\\pi(?=[(\d\\])", rf"{number}\\cdot ", text)
        values.append(exact_value(text.replace(r"\pi", str(number))))
    return values[0] if values[0] is not None and values[1] == 2 * values[0] else None


# ---------------------------------------------------------------------------------------------------- assignments


def _read_assignments(form: str) -> dict[str, str] | None:
    """Reads a list such as `x=1,y=2` with two variables or more, each of them once."""
    parts = split_sequence(form)
    inner = parts[2] if parts is not None else (form,)
    matches = [_ASSIGNMENT.fullmatch(part) for part in inner]
    if len(matches) < 2 or not all(matches):
        return None
    values = {match[1]: match[2] for match in matches if match is not None}
    return values if len(values) == len(matches) else None


def _compare_assignments(answer_form: str, gold_form: str) -> bool | None:
    """Compares assignments by their variables, and with a tuple in the order in which they are written.

    A list without brackets has no order, so that it never equals assignments, but may differ from them.
    """
    assigned = _read_assignments(answer_form), _read_assignments(gold_form)
    if assigned[0] is not None and assigned[1] is not None:
        if assigned[0].keys() != assigned[1].keys():
            return None
        return _all_equal([assigned[0][name] for name in assigned[1]], list(assigned[1].values()))
    if assigned[0] is None and assigned[1] is None:
        return None
    values = assigned[0] if assigned[0] is not None else assigned[1]
    parts = split_sequence(gold_form if assigned[0] is not None else answer_form)
    if values is None or parts is None or len(parts[2]) != len(values) or list(values) != sorted(values):
        return None
    verdict = _all_equal(list(values.values()), list(parts[2]))
    return verdict if parts[0] == "(" or not verdict else None


def _all_equal(forms: Sequence[str], others: Sequence[str]) -> bool | None:
    verdicts = [_compare_forms(form, other) for form, other in zip(forms, others, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


# ---------------------------------------------------------------------------------------------------- intervals

_Bound = tuple[str, bool]


def _compare_regions(answer_form: str, gold_form: str) -> bool | None:
    r"""Compares an inequality with an interval, or two inequalities: `x<3` is $(-\infty,3)$."""
    if not (_COMPARISON.search(answer_form) or _COMPARISON.search(gold_form)):
        return None
    variables = _compared_variables(answer_form), _compared_variables(gold_form)
    answer_region, gold_region = _read_region(answer_form), _read_region(gold_form)
    if all(variables) and variables[0] != variables[1]:
        return None
    if answer_region is None or gold_region is None or len(answer_region) != len(gold_region):
        return None
    verdicts = [
        verdict
        for left, right in zip(answer_region, gold_region, strict=True)
        for verdict in (
            _all_equal([left[0][0], left[1][0]], [right[0][0], right[1][0]]),
            left[0][1] == right[0][1],
            left[1][1] == right[1][1],
        )
    ]
    return False if False in verdicts else None if None in verdicts else True


def _compared_variables(form: str) -> set[str]:
    """Returns the variables of inequalities."""
    terms = re.split(rf"{_COMPARISON.pattern}|,", form)
    return {term for term in terms if term and _VARIABLE.fullmatch(term)} if _COMPARISON.search(form) else set()


def _read_region(form: str) -> list[tuple[_Bound, _Bound]] | None:
    r"""Reads intervals joined by \cup, or inequalities of one variable, of which several must not overlap."""
    if _COMPARISON.search(form):
        parts = split_sequence(form)
        pieces = [form] if parts is None else list(parts[2])
    else:
        pieces = _ASSIGNED.sub("", form, count=1).split(r"\cup")
    regions = [_read_piece(piece) for piece in pieces]
    if not regions or any(region is None for region in regions):
        return None
    found = sorted((region for region in regions if region is not None), key=lambda region: _order(region[0][0]))
    ends = [_order(region[1][0]) for region in found]
    starts = [_order(region[0][0]) for region in found]
    return found if all(end <= start for end, start in zip(ends, starts[1:], strict=False)) else None


def _order(bound: str) -> float:
    value = exact_value(bound)
    return float(value) if value is not None else float("-inf") if bound.startswith("-") else float("inf")


def _read_piece(piece: str) -> tuple[_Bound, _Bound] | None:
    parts = split_sequence(piece)
    if parts is not None:
        opening, closing, ends = parts
        if opening not in ("(", "[") or len(ends) != 2:
            return None
        return (ends[0], opening == "["), (ends[1], closing == "]")
    terms = _COMPARISON.split(piece)
    signs = [sign.replace("lt", "<").replace("gt", ">").lstrip("\\") for sign in terms[1::2]]
    sides = [term.strip() for term in terms[::2]]
    if len(sides) == 2:
        if _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(sides[0]):
            sides, signs = sides[::-1], [{"<": ">", ">": "<", "le": "ge", "ge": "le"}[signs[0]]]
        if not _VARIABLE.fullmatch(sides[0]):
            return None
        bound = (sides[1], signs[0] in ("le", "ge"))
        return ((r"-\infty", False), bound) if signs[0] in ("<", "le") else (bound, (r"\infty", False))
    if len(sides) != 3 or not _VARIABLE.fullmatch(sides[1]):
        return None
    if all(sign in (">", "ge") for sign in signs):
        sides, signs = sides[::-1], [{">": "<", "ge": "le"}[sign] for sign in signs[::-1]]
    if not all(sign in ("<", "le") for sign in signs):
        return None
    return (sides[0], signs[0] == "le"), (sides[2], signs[1] == "le")


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
        verdict, is_symbolic = _decide(answer, gold)
        if verdict is not None:
            return Grade(verdict, answer, "" if verdict else "another answer")
        if not is_symbolic:
            return Grade(correct=None, extracted=answer, why=_NOT_COMPARABLE)
        key = _core_form(gold), _core_form(answer)
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
