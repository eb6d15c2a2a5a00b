"""Answers as MATH writes them: where a response gives one, and the plain form in which two of them are compared.

The plain form is LaTeX without what changes nothing: sizes of brackets, spaces, units, degrees, %, $, commas between
thousands. Fractions and roots have braces, mixed numbers are fractions. It is a string for comparison, not for print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from evolvent.grade.numbers import number_of, number_text

__all__ = ["Parts", "answer_of", "boxed", "is_text", "number", "parts_of", "plain"]

_ANSWERED = re.compile(r"\banswer\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_MARK = re.compile(r"#(?:\s*#){3,}")  # GSM8K's; three are a heading in Markdown
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|\S)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_PROSE = re.compile(r"[A-Za-z]{2}|\n")
_LINE = 500  # characters: what is longer is no bare answer
_ENDS = re.compile(r"\n|\.(?=\s|$)|;(?=\s|$)")
_SIGNS = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "°": r"^\circ ",
    "∞": r"\infty ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "√": r"\sqrt ",
    "\u00a0": " ",
    "\u202f": " ",
}
_SIGN = re.compile("|".join(_SIGNS))
_GONE = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?)(?:\.|(?![A-Za-z]))|\\[!,;:> ]|\\(?:q?quad|displaystyle|limits|hspace\{[^{}]*\})"
    r"(?![A-Za-z])|~|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|\\?%|\\?\$|\\[()\[\]]"
)
_SAME = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\leq(?:slant)?(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geq(?:slant)?(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\{,\}|,\\!\s*"), ","),
)
_WRAP = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}"
_WRAPPED = re.compile(_WRAP)
_TRAILING = re.compile(rf"(?<=\S)\s*{_WRAP}(?:\s*\^\s*\{{?[23]\}}?)?\s*$")
_ROWS = "\ue000"  # stands for \\\\, which ends a row of a matrix
_JOIN = re.compile(r"(?:,\s*)?\b(?:and|or)\b")
_UNIT = (
    r"(?:cm|mm|km|kg|ft|mph|square|sq|cubic|inch(?:es)?|foot|feet|yards?|miles?|(?:centi|milli|kilo)?met(?:er|re)s?"
    r"|degrees?|radians?|dollars?|cents?|units?|hours?|minutes?|seconds?|days?|weeks?|months?|years?|pounds?|grams?"
    r"|ways|points?|percent|people|students|per)"
)
_UNITS = re.compile(rf"^(-?[\d.,/]+|-?\\frac\s*\{{\d+\}}\s*\{{\d+\}})(?:\s+{_UNIT}\b)+(?:\s*\^\s*\{{?[23]\}}?)?$")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_MIXED = re.compile(
    r"(?<![\w.}])(\d{1,9})(?:\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\w.])|\s*\\frac\s*\{\s*(\d{1,9})\s*\}\s*\{\s*(\d{1,9})\s*\})"
)
_SHORT = re.compile(r"\\frac\s*(\{[^{}]*\}|[0-9A-Za-z])\s*(\{[^{}]*\}|[0-9A-Za-z])")
_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_SLASH = re.compile(r"(?<![\w.})\]!^*/\\])(\d+|[A-Za-z])/(\d+|[A-Za-z])(?![\w.({\\^!/])")
_SINGLE = re.compile(r"([_^])\{([0-9A-Za-z])\}")
_POINT = re.compile(r"(?<!\d)\.(?=\d)")
_LETTER = re.compile(r"^\(([A-Za-z])\)$")
_SPACES = re.compile(r"(\\[A-Za-z]+)?\s+(?=([A-Za-z])?)")
_NUMBER = re.compile(r"([-+]*)(?:\\frac\{(-?\d+)\}\{(-?\d+)\}|(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?)")

Parts = tuple[str, str, tuple[str, ...]]
"""Opening bracket, closing bracket ("" for none), and what stands between the commas."""


def boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{...} or \fbox{...} that is closed, braces inside included; also \boxed 5."""
    opening = list(_BOX.finditer(text))
    for found in opening[-1:]:
        if found[1] != "{":
            return found[1]
        depth, place = 1, found.end()
        while place < len(text):
            sign = text[place]
            if sign == "\\":  # an escaped brace is a sign of its own
                place += 2
                continue
            depth += (sign == "{") - (sign == "}")
            if depth == 0:
                return text[found.end() : place].strip()
            place += 1
    return None


def answer_of(response: str) -> str | None:
    """What a response gives as its answer, as it is written there; None where it gives none.

    In this order: the last box; the line after the last "####"; what follows the last "answer is" up to the end of the
    sentence; the whole response where it has no words, or what follows its last "="; the last number. A box that is
    never closed is no answer, and nothing else is looked for.
    """
    inside = boxed(response)
    if inside is not None or _BOX.search(response):
        return inside or None
    marked = _MARK.split(response)
    if len(marked) > 1:
        return marked[-1].strip().split("\n", 1)[0].strip() or None
    said = [found.end() for found in _ANSWERED.finditer(response)]
    if said:
        told = _ENDS.split(response[said[-1] :].lstrip(), maxsplit=1)[0].strip()
        if told:
            return told
    if len(response) <= _LINE and not _PROSE.search(_COMMAND.sub(" ", response)):
        return response.rpartition("=")[2].strip() or None
    return number_text(response)


def plain(text: str) -> str:
    """The plain form of an answer.

    Percents lose their sign: "10 %" is 10, as the data set has it. What follows a number as words is a unit. A text in
    \\text{...} as a whole is its words, in small letters. "x and y" and "x or y" are the list x,y.
    """
    text = _SIGN.sub(lambda found: _SIGNS[found[0]], text.strip().strip("$").strip()).replace(r"\\", _ROWS)
    bare = text.rstrip(".,;")
    text = text[: len(bare) + bare.endswith((r"\right", r"\left"))]  # \right. is a bracket
    for pattern, same in _SAME:
        text = pattern.sub(same, text)
    text = _GONE.sub("", text.replace(r"\ ", " ").replace("~", " ")).strip()
    text = _SHORT.sub(lambda found: rf"\frac{_braced(found[1])}{_braced(found[2])}", text)
    whole = _WRAPPED.fullmatch(text)
    text = _LETTER.sub(r"\1", whole[1].strip()) if whole else _WRAPPED.sub(r" \1 ", _unit_gone(text)).strip()
    text = _LETTER.sub(r"\1", _UNITS.sub(r"\1", text))
    if not text.startswith(("(", "[", r"\{")):
        text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _MIXED.sub(_improper, text)
    if whole or _words(text):
        return " ".join(text.lower().split()) if len(text) > 1 else text
    text = _SPACES.sub(lambda found: (found[1] or "") + (" " if found[1] and found[2] else ""), _JOIN.sub(",", text))
    for pattern, same in (
        (_ROOT, r"\\sqrt{\1}"),
        (_SLASH, r"\\frac{\1}{\2}"),
        (_SINGLE, r"\1\2"),
        (_POINT, "0."),
    ):
        text = pattern.sub(same, text)
    return text.replace(_ROWS, r"\\")


def is_text(text: str) -> bool:
    """Whether an answer as a whole is a \\text{...} of letters and spaces: words, and no product of variables."""
    found = _WRAPPED.fullmatch(text.strip().strip("$"))
    return found is not None and re.fullmatch(r"[A-Za-z ]+", found[1]) is not None


def _unit_gone(text: str) -> str:
    """Without a unit at the end; "x \\text{ or } y" has none there."""
    found = _TRAILING.search(text)
    return text[: found.start()] if found and re.search(r"[\d})a-z]\s*$", text[: found.start()]) else text


def _words(text: str) -> bool:
    """Whether a text is words, not mathematics: letters, and one word of four or more ("abc" may be a product)."""
    return re.fullmatch(r"[A-Za-z][A-Za-z ]*", text) is not None and max(map(len, text.split())) > 3


def _braced(part: str) -> str:
    return part if part.startswith("{") else f"{{{part}}}"


def _improper(found: re.Match[str]) -> str:
    above, below = int(found[2] or found[4]), int(found[3] or found[5])
    return rf"\frac{{{int(found[1]) * below + above}}}{{{below}}}"


def number(text: str) -> Fraction | None:
    """The number that a plain form is, exactly; None where it is none, divides by zero or has more than 60 digits."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 80:
        return None
    if found[4]:
        return number_of(text)
    above, below = number_of(found[2]), number_of(found[3])
    if above is None or not below:
        return None
    return -above / below if found[1].count("-") % 2 else above / below


def parts_of(text: str) -> Parts | None:
    """A plain form as a tuple, an interval, a set or a bare list of two or more parts; None where it is none."""
    for opening, closing in (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"), (r"\{", r"\}")):
        inside = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and _closed(inside):
            parts = tuple(_split(inside))
            return (opening, closing, parts) if len(parts) > 1 else None
    parts = tuple(_split(text))
    return ("", "", parts) if len(parts) > 1 and _closed(text) else None


def _closed(text: str) -> bool:
    """Whether every bracket opened here is closed here and no other."""
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _split(text: str) -> Iterator[str]:
    """What stands between the commas that are in no bracket."""
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
