"""Parsing of literals of Python, JSON, Java and JavaScript; no text is ever evaluated.

A model's arguments are text until they are parsed here. Values are those of JSON, and tuples of Python. Text
that is not a literal (a name, a call, a subscript) stays source text, as the data sets expect of a variable.
Length and depth of every text are bounded first, and parsing takes time in proportion to its length.
"""

from __future__ import annotations

import json
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from evolvent.errors import InvalidAction

__all__ = [
    "MAX_CHARS",
    "MAX_DEPTH",
    "Source",
    "format_python_literal",
    "parse_json",
    "parse_json_prefix",
    "parse_python_literal",
    "parse_string",
]

MAX_CHARS = 1 << 18
"""Characters of a text that is read; longer ones are refused before they are looked at."""
MAX_DEPTH = 64
"""Brackets inside of brackets."""
_MAX_BITS, _MAX_POWER, _MAX_NUMBER_CHARS = 1024, 64, 400

_STRING = r"'''(?:[^\\]|\\.)*?'''" + r'|"""(?:[^\\]|\\.)*?"""' + r"|'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"'
_DELIMITERS = rf"{_STRING}|`(?:[^`\\]|\\.)*`|[\[\](){{}}'\"`,:;=]"
_TYPES = r"[\w\s,.?\[\]]*"
_OPAQUE = re.compile(_DELIMITERS, re.DOTALL)
_OPAQUE_GENERIC = re.compile(rf"(?<=\w)<{_TYPES}(?:<{_TYPES}>{_TYPES})*>|{_DELIMITERS}", re.DOTALL)
_ONE_STRING = re.compile(r"'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"' + r"|`(?:[^`\\]|\\.)*`", re.DOTALL)
_SPACE = re.compile(r"\s*")
_CLOSING = {"(": ")", "[": "]", "{": "}"}

_PYTHON_STRING = re.compile(rf"([rRuU]?)({_STRING})", re.DOTALL)
_PYTHON_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9_]+)?"
)
_PYTHON_SIMPLE = re.compile(
    r"""\s*(?:'([^'\\\n]*)'|"([^"\\\n]*)"|(-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)|(True|False|None))(?=\s*[],:)}])"""
)
_PYTHON_NAME = re.compile(r"[^\W\d]\w*")
_OPERATOR = re.compile(r"\*\*|//|[-+*/%]")
_LEVELS: Mapping[str, int] = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4}
_SIGN_LEVEL = 3  # how tightly a sign binds: looser than **
_CONSTANTS: Mapping[str, object] = {"True": True, "False": False, "None": None}
_JSON_CONSTANTS: Mapping[str, object] = {"true": True, "false": False, "null": None}
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|N\{([^{}]*)\}|(.))", re.DOTALL
)
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_FOREIGN_ESCAPES = {"/": "/", "`": "`"}  # escapes of other languages


class Source:
    """A text that is parsed from left to right.

    Args:
        text: The text, at most `MAX_CHARS` characters.
        generics: Whether `<...>` after a name holds type parameters, as in Java, whose commas do not separate.
        strict: Whether only literals are read: names and arithmetic are refused, and JSON's `true`, `false` and
            `null` are constants too.
    Raises:
        InvalidAction: a longer text.
    """

    def __init__(self, text: str, *, generics: bool = False, strict: bool = False) -> None:
        if len(text) > MAX_CHARS:
            raise InvalidAction("a text that is too long to read", value=len(text), expected=f"{MAX_CHARS} characters")
        self.text, self.at, self.depth, self._generics, self.strict = text, 0, 0, generics, strict

    def skip_space(self) -> None:
        """Moves past white space."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def peek(self) -> str:
        """Returns the next character that is not white space; empty at the end."""
        self.skip_space()
        return self.text[self.at : self.at + 1]

    def accept(self, mark: str) -> bool:
        """Returns whether `mark` comes next, and moves past it."""
        self.skip_space()
        is_next = self.text.startswith(mark, self.at)
        self.at += len(mark) * is_next
        return is_next

    def expect(self, mark: str) -> None:
        """Moves past `mark`; raises InvalidAction where it does not come next."""
        if not self.accept(mark):
            self.fail(repr(mark))

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Matches `pattern` here and moves past the match; returns None where it is missing or empty."""
        self.skip_space()
        match = pattern.match(self.text, self.at)
        if match is None or not match[0]:
            return None
        self.at = match.end()
        return match

    def fail(self, expected: str) -> NoReturn:
        """Raises InvalidAction with the expected and the actual text."""
        next_text = self.text[self.at : self.at + 40] or "the end"
        raise InvalidAction(f"text that cannot be read at character {self.at}", value=next_text, expected=expected)

    def enter(self) -> None:
        """Starts a deeper level; `leave` ends it."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidAction("a value that is nested too deep", value=self.depth, expected=f"{MAX_DEPTH} levels")

    def leave(self) -> None:
        """Ends a level."""
        self.depth -= 1

    def read_raw(self, stops: str) -> str:
        """Returns the text up to one of the characters in `stops` outside all brackets and quotes.

        Raises:
            InvalidAction: brackets or quotes that do not close, or brackets nested deeper than `MAX_DEPTH`.
        """
        begin, position, closing_brackets = self.at, self.at, list[str]()
        opaque = _OPAQUE_GENERIC if self._generics else _OPAQUE
        while match := opaque.search(self.text, position):
            mark = match[0]
            if not closing_brackets and mark in stops:
                break
            position = match.end()
            if mark in _CLOSING:
                closing_brackets.append(_CLOSING[mark])
                if self.depth + len(closing_brackets) > MAX_DEPTH:
                    raise InvalidAction(
                        "a value that is nested too deep", value=len(closing_brackets), expected=MAX_DEPTH
                    )
            elif mark in ("'", '"', "`") or (
                mark in ")]}" and (not closing_brackets or closing_brackets.pop() != mark)
            ):
                self.at = match.start()
                self.fail("brackets and quotes that close")
        self.at = match.start() if match else len(self.text)
        if closing_brackets:
            self.fail(f"a closing {closing_brackets[-1]!r}")
        return self.text[begin : self.at].strip()

    def split(self, mark: str = ",") -> list[str]:
        """Splits the remaining text at `mark` outside brackets and quotes; nothing follows a final mark."""
        parts = list[str]()
        while self.peek():
            parts.append(self.read_raw(mark))
            if not self.accept(mark):
                break
        return parts


def parse_string(text: str) -> str | None:
    """Parses a text that is exactly one string literal, in single, double or back quotes; otherwise returns None.

    Escapes are resolved; unknown ones keep their backslash, as in Python.
    """
    return _unescape(text[1:-1], _ESCAPES | _FOREIGN_ESCAPES) if _ONE_STRING.fullmatch(text) else None


def _unescape(text: str, escapes: Mapping[str, str] = _ESCAPES) -> str:
    return _ESCAPE.sub(lambda match: _resolve_escape(match, escapes), text) if "\\" in text else text


def _resolve_escape(match: re.Match[str], escapes: Mapping[str, str]) -> str:
    octal, short, middle, long, name, character = match.groups()
    if name is not None:
        try:
            return unicodedata.lookup(name)
        except KeyError:
            return match[0]
    if character is not None:
        return escapes.get(character, match[0])
    code = int(octal, 8) if octal else int(short or middle or long, 16)
    return chr(code) if code <= 0x10FFFF else match[0]


def _string_body(literal: str) -> str:
    """Returns the text between the quotes of a string literal."""
    width = 3 if literal[:3] in ("'''", '"""') and len(literal) >= 6 else 1
    return literal[width:-width]


def parse_python_literal(source: Source) -> object:
    """Parses the next Python literal: None, a boolean, a number, a string, a list, a tuple or a dict.

    Arithmetic of numbers is computed: + - * / // % ** over integers of at most 1,024 bits, powers up to 64. A name, and
    a call or a subscript of a name, is returned as source text.

    Raises:
        InvalidAction: other text, a number too large or not finite, a dict key that is not a text, a repeated key.
    """
    if match := _PYTHON_SIMPLE.match(source.text, source.at):  # most values, ten times faster
        source.at = match.end()
        single, double, number, constant = match.groups()
        if number is not None:
            return float(number) if "." in number else int(number)
        return _CONSTANTS[constant] if constant else single if single is not None else double
    return _parse_binary(source, 0)


def _parse_binary(source: Source, level: int) -> Any:
    """Parses operators that bind tighter than `level`, by precedence climbing."""
    source.enter()
    left = _parse_operand(source)
    while True:
        source.skip_space()
        match = _OPERATOR.match(source.text, source.at)
        mark = match[0] if match else ""
        if match is None or source.strict or _LEVELS[mark] <= level:
            break
        source.at = match.end()
        # ** groups to the right, all others to the left
        left = _compute(mark, left, _parse_binary(source, _LEVELS[mark] - (mark == "**")))
    source.leave()
    return left


def _parse_operand(source: Source) -> Any:
    mark = source.peek()
    if mark in ("-", "+") and mark:
        source.expect(mark)
        value = _check_number(_parse_binary(source, _SIGN_LEVEL), mark)
        return -value if mark == "-" else value
    if mark in "[({" and mark:
        return _parse_collection(source, mark)
    if match := source.match(_PYTHON_STRING):
        return _parse_strings(source, match)
    if (mark.isdigit() or mark == ".") and (match := source.match(_PYTHON_NUMBER)):
        return _parse_number(match[0])
    return _parse_name(source)


def _parse_strings(source: Source, match: re.Match[str] | None) -> str:
    """Joins adjacent string literals into one string."""
    parts = list[str]()
    while match is not None:
        body = _string_body(match[2])
        parts.append(body if match[1] in ("r", "R") else _unescape(body))
        match = source.match(_PYTHON_STRING)
    return "".join(parts)


def _parse_number(text: str) -> Any:
    try:
        if len(text) > _MAX_NUMBER_CHARS:
            raise ValueError("too long")
        is_integer = text[:2].lower() in ("0x", "0o", "0b") or not set(text) & set(".eE")
        value = int(text, 0) if is_integer else float(text)
    except ValueError as error:
        raise InvalidAction("a number that cannot be read", value=text[:40], expected="a number of Python") from error
    return _check_size(value)


def _check_size(value: Any) -> Any:
    """Returns a number unchanged; raises InvalidAction for too large, infinite and complex numbers."""
    is_small = value.bit_length() <= _MAX_BITS if isinstance(value, int) else isinstance(value, float)
    if not is_small or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidAction("a number that is too large", value=type(value).__name__, expected="at most 1,024 bits")
    return value


def _check_number(value: Any, mark: str) -> Any:
    if type(value) not in (int, float):
        raise InvalidAction(f"{mark} of what is no number", value=str(value)[:40], expected="numbers")
    return value


def _compute(mark: str, left: Any, right: Any) -> Any:
    _check_number(left, mark)
    _check_number(right, mark)
    if mark == "**" and abs(right) > _MAX_POWER:
        raise InvalidAction("a power that is too large", value=right, expected=f"at most {_MAX_POWER}")
    try:
        return _check_size(_OPERATIONS[mark](left, right))
    except ArithmeticError as error:
        raise InvalidAction(f"arithmetic without a result: {error}", value=f"{left} {mark} {right}"[:60]) from error


def _parse_collection(source: Source, mark: str) -> Any:
    source.expect(mark)
    closing = _CLOSING[mark]
    if mark == "{":
        return _parse_pairs(source)
    items, has_comma = list[Any](), False
    while not source.accept(closing):
        items.append(parse_python_literal(source))
        has_comma = source.accept(",")
        if not has_comma:
            source.expect(closing)
            break
    if mark == "(":
        return items[0] if len(items) == 1 and not has_comma else tuple(items)
    return items


def _parse_pairs(source: Source) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    while not source.accept("}"):
        key = parse_python_literal(source)
        source.expect(":")
        if not isinstance(key, str) or key in entries:
            raise InvalidAction("a key of a dict that is no text or stands there twice", value=str(key)[:40])
        entries[key] = parse_python_literal(source)
        if not source.accept(","):
            source.expect("}")
            break
    return entries


def _parse_name(source: Source) -> Any:
    """Parses a constant, or returns the source text of a name with its suffixes: `.part`, `(...)`, `[...]`."""
    source.skip_space()
    begin = source.at
    name = source.match(_PYTHON_NAME)
    if name is None or source.text[source.at : source.at + 1] in ("'", '"'):
        source.at = begin
        source.fail("a literal of Python")
    if name[0] in _CONSTANTS:
        return _CONSTANTS[name[0]]
    if source.strict:
        if name[0] in _JSON_CONSTANTS:
            return _JSON_CONSTANTS[name[0]]
        source.at = begin
        source.fail("a literal")
    end = source.at
    while mark := source.peek():
        if mark == ".":
            source.expect(".")
            if source.match(_PYTHON_NAME) is None:
                source.fail("a name after the dot")
        elif mark in "([":
            source.expect(mark)
            source.read_raw(_CLOSING[mark])
            source.expect(_CLOSING[mark])
        else:
            break
        end = source.at
    source.at = end
    return source.text[begin:end]


def format_python_literal(value: object) -> str:
    """Formats a value as a literal that `parse_python_literal` parses.

    Raises:
        InvalidAction: a value that no literal stands for.
    """
    if value is None or isinstance(value, (bool, str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(format_python_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(format_python_literal, value))}]"
    if isinstance(value, Mapping):
        entries = [f"{format_python_literal(key)}: {format_python_literal(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(entries)}}}"
    raise InvalidAction("a value that has no literal", value=repr(value), expected="JSON values and tuples")


def parse_json(text: str) -> object:
    """Parses a JSON text.

    Raises:
        InvalidAction: no JSON, NaN or an infinity, a key twice in one object, too long, or nested too deep.
    """
    source = Source(text)
    value = parse_json_prefix(source)
    if source.peek():
        raise InvalidAction("text after JSON", value=text[source.at : source.at + 40], expected="the end of the text")
    return value


def parse_json_prefix(source: Source) -> object:
    """Parses the next JSON value and moves past it.

    Raises:
        InvalidAction: see `parse_json`.
    """
    source.skip_space()
    text = source.text
    try:
        value, source.at = _JSON.raw_decode(text, source.at)
    except (ValueError, RecursionError) as error:
        raise InvalidAction(f"text that is no JSON ({str(error)[:80]})", value=text, expected="JSON") from error
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise InvalidAction("a value that is nested too deep", value=depth, expected=f"{MAX_DEPTH} levels")
        if any(isinstance(node, float) and not math.isfinite(node) for node in level):
            raise InvalidAction("a number that is not finite", value=text, expected="finite numbers")
        containers = [
            node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list))
        ]
        level = [node for children in containers for node in children]
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("an object with a key twice")
    return entries


_JSON = json.JSONDecoder(object_pairs_hook=_build_object, parse_constant=_refuse_constant)
