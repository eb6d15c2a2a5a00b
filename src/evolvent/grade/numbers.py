r"""Grading of answers that are one number, as in word problems: the number is parsed and compared exactly.

The answer is searched in this order: after the last "####" (GSM8K's mark; "###", R3's, also counts, with or
without spaces between), in the last "\\boxed{...}", otherwise the last number of the text. Commas between
thousands, $ and % are stripped; "3/4" is a fraction. Numbers are compared as fractions, so 0.5 equals 1/2 and
nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import comb, factorial, isqrt

from evolvent.grade.base import Grade

__all__ = [
    "exact_value",
    "extract_number",
    "grade_number",
    "has_base",
    "has_ellipsis",
    "is_inexact",
    "parse_number",
    "text_after_mark",
]

_MAX_DIGITS = 60  # digits: what is longer is no answer, and reading it takes time that grows with the square
_MARK = re.compile(r"#(?:\s*#){2,}")
_SIGN = (
    r"(?:(?:^|(?<=[=:(]))\s*[-\u2212]\s*|(?<![\w)\]}])[-\u2212])?"  # apart from its number only where nothing is before
)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_MIXED = r"\s+\d{1,9}\s*/\s*\d{1,9}(?![\d.])"
_SCIENCE = r"[eE][-+]?\d{1,3}(?![\w.]*\d)"
_NUMBER = re.compile(
    rf"{_SIGN}(?:\\?\$\s*[-\u2212]?)?(?<![\w.])(?:{_DIGITS})(?:{_SCIENCE}|(?:{_MIXED}|\s*/\s*\d+(?!\.\d))?)"
)
_PARSED = re.compile(r"([-+]*)(?:(\d{1,9})\s+(?=\d+/))?(\d*)(?:\.(\d*))?(?:[eE]([-+]?\d{1,2})(?!\d*/)|/(\d+))?")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_MIXED_FRACTION = re.compile(r"(\d)\s*(?=\\[dt]?frac\s*\{)")
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
    """Parses a text as an exact number: 3, -0.5, 3/4, 3 1/2 or 1.5e3; None where it is not one, divides by zero or has
    more than 60 digits.
    """
    digits = _SPACE_AROUND_SIGNS.sub("", text.strip()).replace("\u2212", "-").rstrip(".")
    digits = re.sub(r"[,$%\\]", "", digits)
    match = _PARSED.fullmatch(digits)
    if match is None or not (match[3] or match[4]) or len(digits) > _MAX_DIGITS:
        return None
    integer_digits, decimal_digits, denominator = match[3] or "0", match[4] or "", int(match[6] or 1)
    if denominator == 0 or (match[2] and (match[6] is None or match[4] is not None)):
        return None
    value = Fraction(int(integer_digits + decimal_digits), 10 ** len(decimal_digits) * denominator)
    value = (value + int(match[2] or 0)) * Fraction(10) ** int(match[5] or 0)
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
    return _DECORATION.sub("", _FRACTION.sub(r"\1/\2", _MIXED_FRACTION.sub(r"\1 ", text)))


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


# ---------------------------------------------------------------------------------------------------- exact values

_MAX_BITS = 100_000
_MAX_FACTORIAL = 5_000
_MAX_CHARS = 400
_MAX_DEPTH = 40
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<based>[0-9][0-9A-F]*)_(?:\{(?P<base>\d{1,2})\}|(?P<digit>\d(?!\d)))"
    r"|(?P<repeat>\d*\.\d*(?:\\(?:overline|bar|dot)\s*\{?\s*\d+\s*\}?\d*)+)"
    r"|(?P<science>(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d{1,5}(?![\w.]))"
    r"|(?P<number>\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<command>\\[A-Za-z]+)"
    r"|(?P<sign>[-+*/^!(){}\[\]])"
    r")"
)
_REPEAT = re.compile(r"\\(?:overline|bar)\s*\{?\s*(\d+)\s*\}?$")
_DOTS = re.compile(r"\\dot\s*\{?\s*(\d)\s*\}?(?:(\d*)\\dot\s*\{?\s*(\d)\s*\}?)?$")
_ELLIPSIS = re.compile(r"\d\s*(?:\.{3}|…|\\(?:l|c)?dots)")
_BASED = re.compile(r"^-?[0-9][0-9A-F]*_(?:\{\d{1,2}\}|\d)$")
_UNREAD = re.compile(r"\\(?:overline|bar|dot)(?![a-z])\s*\{?\s*\d")


def has_base(text: str) -> bool:
    """Returns whether a normal form is one numeral with its base, such as `101_2`."""
    return _BASED.match(text) is not None


def has_ellipsis(text: str) -> bool:
    """Returns whether the digits of a number go on in dots."""
    return _ELLIPSIS.search(text) is not None


def is_inexact(text: str) -> bool:
    """Returns whether a number is written in a way that is not a finite expression: with dots, or a bar over digits."""
    return _ELLIPSIS.search(text) is not None or _UNREAD.search(text) is not None


def exact_value(text: str) -> Fraction | None:
    r"""Returns the value of a rational number in LaTeX; None for every other text, and for numbers that are too large.

    >>> exact_value(r"\frac{3}{4} + 2^{-2}"), exact_value(r"2.\overline{3}"), exact_value("110_2")
    (Fraction(1, 1), Fraction(7, 3), Fraction(6, 1))
    """
    if len(text) > _MAX_CHARS or not any(character.isdigit() for character in text):
        return None
    try:
        return _Parser(text).parse()
    except (_NotExact, ZeroDivisionError, IndexError):
        return None


class _NotExact(Exception):
    """The text is not an exact number."""


def _check(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > _MAX_BITS or value.denominator.bit_length() > _MAX_BITS:
        raise _NotExact
    return value


class _Parser:
    """Reads sums of products of powers, left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list[tuple[str, str]]()
        self._at = self._depth = 0
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _NotExact
            kind = match.lastgroup or ""
            kind = "based" if match["based"] is not None else kind
            self._tokens.append((kind, match[0].strip()))
            position = match.end()

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise _NotExact
        self._at += 1

    def parse(self) -> Fraction:
        value = self._sum()
        if self._at < len(self._tokens):
            raise _NotExact
        return value

    def _sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _NotExact
        value = self._product()
        while self._peek() in ("+", "-") and self._peek():
            sign = self._take()
            term = self._product()
            value = _check(value + term if sign == "+" else value - term)
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            sign = self._peek()
            if sign in ("*", r"\cdot", r"\times"):
                self._at += 1
                value = _check(value * self._signed())
            elif sign in ("/", r"\div"):
                self._at += 1
                value = _check(value / self._signed())
            elif sign in ("(", "{") or (sign in (r"\frac", r"\binom", r"\sqrt") and self._follows_bracket()):
                value = _check(value * self._power())
            else:
                return value

    def _follows_bracket(self) -> bool:
        """Returns whether the last token closed a bracket: a number before a fraction is a mixed number."""
        if self._tokens[self._at - 1][1] in (")", "}", "!"):
            return True
        raise _NotExact

    def _signed(self) -> Fraction:
        if self._peek() in ("-", "+") and self._peek():
            return -self._signed() if self._take() == "-" else self._signed()
        return self._power()

    def _power(self) -> Fraction:
        value = self._atom()
        while self._peek() == "!":
            self._at += 1
            if value.denominator != 1 or not 0 <= value <= _MAX_FACTORIAL:
                raise _NotExact
            value = Fraction(factorial(int(value)))
        if self._peek() != "^":
            return value
        self._at += 1
        exponent = self._group()
        if self._peek() == "!":
            raise _NotExact
        size = max(value.numerator.bit_length(), value.denominator.bit_length())
        if exponent.denominator != 1 or abs(exponent) * size > _MAX_BITS or (value == 0 and exponent <= 0):
            raise _NotExact
        return Fraction(value ** int(exponent))

    def _atom(self) -> Fraction:
        kind, text = self._kind(), self._peek()
        if kind == "number" or kind == "science":
            self._at += 1
            return _parse_decimal(text)
        if kind == "based":
            self._at += 1
            return Fraction(_parse_based(text))
        if kind == "repeat":
            self._at += 1
            return _parse_repeating(text)
        if text in ("(", "{"):
            self._at += 1
            value = self._sum()
            self._expect(")" if text == "(" else "}")
            return value
        if text in (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"):
            self._at += 1
            numerator = self._argument()
            return _check(numerator / self._argument())
        if text in (r"\binom", r"\dbinom", r"\tbinom"):
            self._at += 1
            return self._binomial()
        if text == r"\sqrt":
            self._at += 1
            return self._root()
        raise _NotExact

    def _binomial(self) -> Fraction:
        above, below = self._argument(), self._argument()
        if above.denominator != 1 or below.denominator != 1 or not 0 <= below <= above <= _MAX_FACTORIAL:
            raise _NotExact
        return Fraction(comb(int(above), int(below)))

    def _root(self) -> Fraction:
        if self._peek() == "[":
            raise _NotExact
        value = self._argument()
        numerator, denominator = isqrt(abs(value.numerator)), isqrt(value.denominator)
        if value < 0 or numerator**2 != value.numerator or denominator**2 != value.denominator:
            raise _NotExact
        return Fraction(numerator, denominator)

    def _group(self) -> Fraction:
        """Reads an exponent: a group in braces, or one digit."""
        if self._peek() == "{":
            self._at += 1
            value = self._sum()
            self._expect("}")
            return value
        return self._argument()

    def _argument(self) -> Fraction:
        """Reads an argument as TeX does: a group in braces, or one digit."""
        if self._peek() == "{":
            self._at += 1
            value = self._sum()
            self._expect("}")
            return value
        kind, text = self._tokens[self._at]
        if kind != "number" or not text[0].isdigit():
            raise _NotExact
        if len(text) == 1:
            self._at += 1
        else:
            self._tokens[self._at] = (kind, text[1:])
        return Fraction(int(text[0]))


def _parse_decimal(text: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    shift = int(exponent or 0) - len(decimals)
    if abs(shift) * 4 > _MAX_BITS:
        raise _NotExact
    value = Fraction(int((whole + decimals) or "0"))
    return value * Fraction(10) ** shift


def _parse_based(text: str) -> int:
    digits, _, base = text.partition("_")
    try:
        return int(digits, int(base.strip("{}")))
    except ValueError as error:
        raise _NotExact from error


def _parse_repeating(text: str) -> Fraction:
    """Reads a decimal whose last digits repeat: under a bar, or between two dots."""
    start = text.index("\\")
    whole, _, fixed = text[:start].partition(".")
    bar, dots = _REPEAT.match(text[start:]), _DOTS.match(text[start:])
    if bar is not None:
        repeated = bar[1]
    elif dots is not None:
        repeated = dots[1] + (dots[2] or "") + (dots[3] or "")
    else:
        raise _NotExact
    head = Fraction(int((whole + fixed) or "0"), 10 ** len(fixed))
    return head + Fraction(int(repeated), 10 ** len(fixed) * (10 ** len(repeated) - 1))
