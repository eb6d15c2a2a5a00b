"""Grading of answers that are one number, as word problems have them: read the number, compare it exactly.

Where the answer stands, in this order: after the last "####" (GSM8K's mark; "###", R3's, will do, with or without
spaces between), in the last "\\boxed{...}", else the last number of the text. Commas between thousands, $ and % are
stripped; "3/4" is a fraction. Numbers are compared as fractions, so 0.5 equals 1/2 and nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction

from evolvent.grade.base import Grade

__all__ = ["after_mark", "grade_number", "number_of", "number_text"]

_LONGEST = 60  # digits: what is longer is no answer, and reading it takes time that grows with the square
_MARK = re.compile(r"#(?:\s*#){2,}")
_SIGN = (
    r"(?:(?:^|(?<=[=:(]))\s*[-\u2212]\s*|(?<![\w)\]}])[-\u2212])?"  # apart from its number only where nothing is before
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"{_SIGN}(?:\\?\$\s*[-\u2212]?)?(?<![\w.])(?:{_DIGITS})(?:\s*/\s*\d+(?!\.\d))?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_AROUND = re.compile(r"(?<=[-+/$%\u2212])\s+|(?<!\s)\s+(?=[-+/$%\u2212])")  # each run of spaces is looked at once
_DECORATION = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[,!;: ]|\{,\}|\\[()\[\]]")


def after_mark(text: str) -> str | None:
    """What follows the last mark of the answer ("###" or longer, spaces allowed between); None where there is none."""
    parts = _MARK.split(text)
    return parts[-1].strip() if len(parts) > 1 else None


def number_text(text: str) -> str | None:
    """The number that a response gives as its answer, as it is written there; None where it gives none.

    After a mark the first number of the line counts, or the one after its last "="; an empty answer after a mark is
    none, whatever came before.
    """
    marked = after_mark(text)
    if marked is not None:
        line = marked.split("\n", 1)[0]
        return _first(line.rpartition("=")[2]) or _first(line)
    boxed = _boxed(text)
    if boxed is not None:
        return _first(_plain(boxed))
    found = [match[0] for match in _NUMBER.finditer(_plain(text))]
    return found[-1].strip() if found else None


def number_of(text: str) -> Fraction | None:
    """The number that a text is, exactly; None where it is none, divides by zero or has more than 60 digits."""
    bare = _AROUND.sub("", text.strip()).replace("\u2212", "-").rstrip(".")
    bare = re.sub(r"[,$%\\]", "", bare)
    found = re.fullmatch(r"([-+]*)(\d*)(?:\.(\d*))?(?:/(\d+))?", bare)
    if found is None or not (found[2] or found[3]) or len(bare) > _LONGEST:
        return None
    whole, part, below = found[2] or "0", found[3] or "", int(found[4] or 1)
    if below == 0:
        return None
    value = Fraction(int(whole + part), 10 ** len(part) * below)
    return -value if found[1].count("-") % 2 else value


def grade_number(response: str, gold: str) -> Grade:
    """Whether a response gives the number `gold`.

    Returns:
        correct: None where the gold answer is no number: then nothing can be said. A response without a number is
        False, with `extracted` None.
    """
    right = number_of(gold)
    if right is None:
        return Grade(correct=None, extracted=None, why="the gold answer is no number")
    text = number_text(response)
    value = None if text is None else number_of(text)
    if text is None or value is None:
        return Grade(correct=False, extracted=None, why="no number in the response")
    return Grade(correct=value == right, extracted=text, why="" if value == right else "another number")


def _first(text: str) -> str | None:
    """The first number of a text, written out."""
    plain = _plain(text)
    if number_of(plain) is not None:
        return plain.strip()
    found = _NUMBER.search(plain)
    return None if found is None else found[0].strip()


def _plain(text: str) -> str:
    """LaTeX fractions as a/b, units and spacing commands gone."""
    return _DECORATION.sub("", _FRACTION.sub(r"\1/\2", text))


def _boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...}, braces inside included; None where there is none that is closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[begin:place]
    return None
