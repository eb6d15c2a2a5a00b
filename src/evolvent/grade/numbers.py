r"""Grading of answers that are one number, as in word problems: the number is parsed and compared exactly.

The answer is searched in this order: after the last "####" (GSM8K's mark; "###", R3's, also counts, with or
without spaces between), in the last "\\boxed{...}", otherwise the last number of the text. Commas between
thousands, $ and % are stripped; "3/4" is a fraction. Numbers are compared as fractions, so 0.5 equals 1/2 and
nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction

from evolvent.grade.base import Grade

__all__ = ["extract_number", "grade_number", "parse_number", "text_after_mark"]

_MAX_DIGITS = 60  # digits: what is longer is no answer, and reading it takes time that grows with the square
_MARK = re.compile(r"#(?:\s*#){2,}")
_SIGN = (
    r"(?:(?:^|(?<=[=:(]))\s*[-\u2212]\s*|(?<![\w)\]}])[-\u2212])?"  # apart from its number only where nothing is before
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"{_SIGN}(?:\\?\$\s*[-\u2212]?)?(?<![\w.])(?:{_DIGITS})(?:\s*/\s*\d+(?!\.\d))?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SPACE_AROUND_SIGNS = re.compile(
    r"(?<=[-+/$%\u2212])\s+|(?<!\s)\s+(?=[-+/$%\u2212])"
)  # each run of spaces is looked at once
_DECORATION = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[,!;: ]|\{,\}|\\[()\[\]]")


def text_after_mark(text: str) -> str | None:
    """Returns the text after the last answer mark ("###" or longer, spaces allowed between); None where there is
    none.
    """
    parts = _MARK.split(text)
    return parts[-1].strip() if len(parts) > 1 else None


def extract_number(text: str) -> str | None:
    """Extracts the number that a response gives as its answer, as written; None where there is none.

    After a mark the first number of the line counts, or the one after its last "="; an empty answer after a mark is
    none, whatever came before.
    """
    marked_text = text_after_mark(text)
    if marked_text is not None:
        line = marked_text.split("\n", 1)[0]
        return _first_number(line.rpartition("=")[2]) or _first_number(line)
    boxed = _extract_boxed(text)
    if boxed is not None:
        return _first_number(_simplify(boxed))
    numbers = [match[0] for match in _NUMBER.finditer(_simplify(text))]
    return numbers[-1].strip() if numbers else None


def parse_number(text: str) -> Fraction | None:
    """Parses a text as an exact number; None where it is not one, divides by zero or has more than 60 digits."""
    digits = _SPACE_AROUND_SIGNS.sub("", text.strip()).replace("\u2212", "-").rstrip(".")
    digits = re.sub(r"[,$%\\]", "", digits)
    match = re.fullmatch(r"([-+]*)(\d*)(?:\.(\d*))?(?:/(\d+))?", digits)
    if match is None or not (match[2] or match[3]) or len(digits) > _MAX_DIGITS:
        return None
    integer_digits, decimal_digits, denominator = match[2] or "0", match[3] or "", int(match[4] or 1)
    if denominator == 0:
        return None
    value = Fraction(int(integer_digits + decimal_digits), 10 ** len(decimal_digits) * denominator)
    return -value if match[1].count("-") % 2 else value


def grade_number(response: str, gold: str) -> Grade:
    """Returns whether a response gives the number `gold`.

    Returns:
        The grade; `correct` is None where the gold answer is not a number. A response without a number is False,
            with
        `extracted` None.
    """
    gold_number = parse_number(gold)
    if gold_number is None:
        return Grade(correct=None, extracted=None, why="the gold answer is no number")
    text = extract_number(response)
    value = None if text is None else parse_number(text)
    if text is None or value is None:
        return Grade(correct=False, extracted=None, why="no number in the response")
    return Grade(correct=value == gold_number, extracted=text, why="" if value == gold_number else "another number")


def _first_number(text: str) -> str | None:
    """Extracts the first number of a text, as written."""
    plain_text = _simplify(text)
    if parse_number(plain_text) is not None:
        return plain_text.strip()
    match = _NUMBER.search(plain_text)
    return None if match is None else match[0].strip()


def _simplify(text: str) -> str:
    """Replaces LaTeX fractions by a/b, and removes units and spacing commands."""
    return _DECORATION.sub("", _FRACTION.sub(r"\1/\2", text))


def _extract_boxed(text: str) -> str | None:
    r"""Extracts the content of the last \\boxed{...}, inner braces included; None where none is closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for position in range(begin - 1, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return text[begin:position]
    return None
