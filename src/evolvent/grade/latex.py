"""Answers in the style of MATH: extraction from a response, and a normal form for comparison.

The normal form is LaTeX without parts that change nothing: sizes of brackets, spaces, units, degrees, %, $,
commas between thousands. Fractions and roots have braces, mixed numbers are fractions. It is a string for
comparison, not for print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from evolvent.grade.markdown import strip_markdown
from evolvent.grade.numbers import extract_number, parse_number
from evolvent.grade.quantities import is_harmless

__all__ = ["Parts", "extract_answer", "extract_boxed", "is_text", "normalize", "parse_plain_number", "split_sequence"]

_ANSWERED = re.compile(r"\banswer\s*(?:is|:|=)\s*:?", re.IGNORECASE)
_MARK = re.compile(r"#(?:\s*#){3,}")  # GSM8K's; three are a heading in Markdown
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|\S)")
_EMPHASIS = re.compile(r"(?:\*\*|__|`)?(?=\S)([^\n]{1,200}?)(?<=\S)(?:\*\*|`)(?=[\s.,;:!]|$)")
_CONTRAST = re.compile(r",?\s+(?:not|and not|rather than|instead of|but not)\s")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_ARGUMENT_COUNTS = {
    "frac": 2,
    "dfrac": 2,
    "tfrac": 2,
    "binom": 2,
    "dbinom": 2,
    "tbinom": 2,
    "sqrt": 1,
    "overline": 1,
    "text": 1,
    "textbf": 1,
    "mathrm": 1,
    "mathbf": 1,
}
_PROSE = re.compile(r"[A-Za-z]{2}|\n")
_MAX_BARE_ANSWER = 500  # characters: what is longer is no bare answer
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)|;(?=\s|$)")
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
_IGNORED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?)(?:\.|(?![A-Za-z]))|\\[!,;:> ]|\\(?:q?quad|displaystyle|limits|hspace\{[^{}]*\})"
    r"(?![A-Za-z])|~|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])|\\?%|\\?\$|\\[()\[\]]"
)
_SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\leq(?:slant)?(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geq(?:slant)?(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\{,\}|,\\!\s*"), ","),
    (re.compile(r"\\varnothing(?![A-Za-z])|\\O(?![A-Za-z])|∅|^\s*\\\{\s*\\\}\s*$"), r"\\emptyset"),
)
_TEXT_COMMAND = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}"
_TEXT_COMMAND_ONLY = re.compile(_TEXT_COMMAND)
_TRAILING = re.compile(rf"(?<=\S)\s*{_TEXT_COMMAND}(?:\s*\^\s*\{{?[23]\}}?)?\s*$")
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
_SINGLE = re.compile(r"(?<!\\log)([_^])\{([0-9A-Za-z])\}(?!\d)")
_SPACED_SCRIPT = re.compile(r"([_^])\s*(\d)\s+(?=\d)")
_LOG_BASE = re.compile(r"\\log\s*_\s*(\w)(?!\w)")  # without braces the base would run into what follows
_POINT = re.compile(r"(?<!\d)\.(?=\d)")
_LETTER = re.compile(r"^\(([A-Za-z])\)$")
_SPACES = re.compile(r"(\\[A-Za-z]+)?\s+(?=([A-Za-z])?)")
_NUMBER = re.compile(r"([-+]*)(?:\\frac\{(-?\d+)\}\{(-?\d+)\}|(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?)")

Parts = tuple[str, str, tuple[str, ...]]
"""Opening bracket, closing bracket ("" for none), and what stands between the commas."""


def extract_boxed(text: str) -> str | None:
    r"""Extracts the content of the last closed \boxed{...} or \fbox{...}, inner braces included; also \boxed 5."""
    boxes = list(_BOX.finditer(text))
    for match in boxes[-1:]:
        if match[1] != "{":
            return _read_argument(text, match.start(1))[0]
        depth, position = 1, match.end()
        while position < len(text):
            sign = text[position]
            if sign == "\\":  # an escaped brace is a sign of its own
                position += 2
                continue
            depth += (sign == "{") - (sign == "}")
            if depth == 0:
                return text[match.end() : position].strip()
            position += 1
    return None


def _read_argument(text: str, start: int) -> tuple[str, int]:
    r"""Returns an argument as TeX reads it, and its end: one sign, or here a command with its own arguments too."""
    match = _COMMAND.match(text, start)
    if match is None:
        return text[start : start + 1], start + 1
    end = match.end()
    for _ in range(_ARGUMENT_COUNTS.get(match[0][1:], 0)):
        while text[end : end + 1].isspace():
            end += 1
        if text[end : end + 1] == "[" and match[0] == r"\sqrt" and "]" in text[end:]:
            end = text.index("]", end) + 1
        if text[end : end + 1] == "{":
            end = _find_group_end(text, end)
        else:
            end = _read_argument(text, end)[1] if text[end : end + 1] == "\\" and end < start + 200 else end + 1
    return text[start:end], end


def _find_group_end(text: str, start: int) -> int:
    """Returns the index behind the brace that closes the one at `start`; the end of the text where none does."""
    depth, position = 0, start
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        depth += (text[position] == "{") - (text[position] == "}")
        position += 1
        if depth == 0:
            return position
    return len(text)


def extract_answer(response: str) -> str | None:
    """Extracts the answer of a response as it is written; None where there is none.

    In this order: the last box; the line after the last "####"; the text after the last "answer is" up to the end of
    the sentence; the whole response where it has no words, or the text after its last "="; the last number. A box that
    is never closed is not an answer, and nothing else is searched then.
    """
    box_content = extract_boxed(response)
    if box_content is not None or _BOX.search(response):
        return box_content or None
    marked_parts = _MARK.split(response)
    if len(marked_parts) > 1:
        return strip_markdown(marked_parts[-1].strip().split("\n", 1)[0]) or None
    answer_ends = [match.end() for match in _ANSWERED.finditer(response)]
    if answer_ends:
        rest = response[answer_ends[-1] :].lstrip()
        emphasis = _EMPHASIS.match(rest)
        rest = strip_markdown(emphasis[1] if emphasis else rest)
        sentence = strip_markdown(_SENTENCE_END.split(rest, maxsplit=1)[0])
        sentence = strip_markdown(_CONTRAST.split(sentence, maxsplit=1)[0])
        if sentence:
            return sentence
    if len(response) <= _MAX_BARE_ANSWER and not _PROSE.search(_COMMAND.sub(" ", response)):
        return strip_markdown(strip_markdown(response).rpartition("=")[2]) or None
    return extract_number(response)


def normalize(text: str, *, drop_unit: bool = True) -> str:
    r"""Converts an answer to its normal form.

    Percents lose their sign: "10 %" is 10, as in the data set. Words after a number are a unit unless they change the
    number; `drop_unit` says whether units go. A text that is completely inside \\text{...} is its words, in lowercase.
    "x and y" and "x or y" are the list x,y.
    """
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text.strip().strip("$").strip()).replace(r"\\", _ROWS)
    stripped = text.rstrip(".,;")
    text = text[: len(stripped) + stripped.endswith((r"\right", r"\left"))]  # \right. is a bracket
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _IGNORED.sub("", text.replace(r"\ ", " ").replace("~", " ")).strip()
    text = _SHORT.sub(lambda match: rf"\frac{_add_braces(match[1])}{_add_braces(match[2])}", text)
    text_only = _TEXT_COMMAND_ONLY.fullmatch(text)
    text = (
        _LETTER.sub(r"\1", text_only[1].strip())
        if text_only
        else _TEXT_COMMAND_ONLY.sub(r" \1 ", _drop_unit(text) if drop_unit else text).strip()
    )
    text = _LETTER.sub(r"\1", _UNITS.sub(r"\1", text) if drop_unit else text)
    if not text.startswith(("(", "[", r"\{")):
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _SPACED_SCRIPT.sub(r"\1{\2}", _LOG_BASE.sub(r"\\log_{\1}", _MIXED.sub(_to_improper, text)))
    if text_only or _is_words(text):
        return " ".join(text.lower().split()) if len(text) > 1 else text
    text = _SPACES.sub(lambda match: (match[1] or "") + (" " if match[1] and match[2] else ""), _JOIN.sub(",", text))
    for pattern, replacement in (
        (_ROOT, r"\\sqrt{\1}"),
        (_SLASH, r"\\frac{\1}{\2}"),
        (_SINGLE, r"\1\2"),
        (_POINT, "0."),
    ):
        text = pattern.sub(replacement, text)
    return text.replace(_ROWS, r"\\")


def is_text(text: str) -> bool:
    r"""Returns whether a whole answer is a \\text{...} of letters and spaces: words, and not a product of variables."""
    match = _TEXT_COMMAND_ONLY.fullmatch(text.strip().strip("$"))
    return match is not None and re.fullmatch(r"[A-Za-z ]+", match[1]) is not None


def _drop_unit(text: str) -> str:
    r"""Drops a unit at the end; "x \\text{ or } y" has none there."""
    match = _TRAILING.search(text)
    if match is None or re.search(r"[\d})a-z]\s*$", text[: match.start()]) is None:
        return text
    after_number = _NUMBER.fullmatch(_SPACES.sub("", text[: match.start()])) is not None
    return text[: match.start()] if is_harmless(match[1], after_number=after_number) else text


def _is_words(text: str) -> bool:
    """Returns whether a text is words, not mathematics: letters, and one word of four or more ("abc" may be a
    product).
    """
    return re.fullmatch(r"[A-Za-z][A-Za-z ]*", text) is not None and max(map(len, text.split())) > 3


def _add_braces(part: str) -> str:
    return part if part.startswith("{") else f"{{{part}}}"


def _to_improper(match: re.Match[str]) -> str:
    numerator, denominator = int(match[2] or match[4]), int(match[3] or match[5])
    return rf"\frac{{{int(match[1]) * denominator + numerator}}}{{{denominator}}}"


def parse_plain_number(text: str) -> Fraction | None:
    """Parses a normal form as an exact number; None where it is not one, divides by zero or has more than 60 digits."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 80:
        return None
    if match[4]:
        return parse_number(text)
    numerator, denominator = parse_number(match[2]), parse_number(match[3])
    if numerator is None or not denominator:
        return None
    return -numerator / denominator if match[1].count("-") % 2 else numerator / denominator


def split_sequence(text: str) -> Parts | None:
    """Splits a normal form that is a tuple, interval, set or bare list of two or more parts; None for other forms."""
    for opening, closing in (("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"), (r"\{", r"\}")):
        inside = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and _is_balanced(inside):
            parts = tuple(_split_commas(inside))
            return (opening, closing, parts) if len(parts) > 1 else None
    parts = tuple(_split_commas(text))
    return ("", "", parts) if len(parts) > 1 and _is_balanced(text) else None


def _is_balanced(text: str) -> bool:
    """Returns whether all brackets of a text match."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _split_commas(text: str) -> Iterator[str]:
    """Yields the parts between commas outside brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]
