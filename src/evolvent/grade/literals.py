"""Literals of Python, JSON, Java and JavaScript to values, by reading them: no text is ever evaluated.

A model's arguments are text until they are read here. Values are what JSON knows, and tuples of Python. What is no
literal (a name, a call, a subscript) stays its own source text, as the data sets expect of a variable.
Every text is bounded before it is looked at, in length and in depth, and reading takes time in proportion to it.
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

__all__ = ["DEEPEST", "LONGEST", "Source", "json_value", "python_source", "python_value", "string_value"]

LONGEST = 1 << 18
"""Characters of a text that is read; longer ones are refused before they are looked at."""
DEEPEST = 64
"""Brackets inside of brackets."""
_LARGEST_BITS, _LARGEST_POWER, _LONGEST_NUMBER = 1024, 64, 400

_STRING = r"'''(?:[^\\]|\\.)*?'''" + r'|"""(?:[^\\]|\\.)*?"""' + r"|'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"'
_MARKS = rf"{_STRING}|`(?:[^`\\]|\\.)*`|[\[\](){{}}'\"`,:;=]"
_TYPES = r"[\w\s,.?\[\]]*"
_OPAQUE = re.compile(_MARKS, re.DOTALL)
_OPAQUE_GENERIC = re.compile(rf"(?<=\w)<{_TYPES}(?:<{_TYPES}>{_TYPES})*>|{_MARKS}", re.DOTALL)
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
_SIGNED = 3  # how tightly a sign binds: looser than **
_CONSTANTS: Mapping[str, object] = {"True": True, "False": False, "None": None}
_FOLD: Mapping[str, Callable[[Any, Any], Any]] = {
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
_PLAIN = {
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
_NOT_PYTHON = {"/": "/", "`": "`"}  # escapes of other languages


class Source:
    """A text that is read from left to right.

    Args:
        text: at most `LONGEST` characters.
        generics: `<...>` after a name is a parameter of a type, as in Java, and its commas divide nothing.
    Raises:
        InvalidAction: a longer text.
    """

    def __init__(self, text: str, *, generics: bool = False) -> None:
        if len(text) > LONGEST:
            raise InvalidAction("a text that is too long to read", value=len(text), expected=f"{LONGEST} characters")
        self.text, self.at, self.depth, self._generics = text, 0, 0, generics

    def skip(self) -> None:
        """Go past white space."""
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        self.skip()
        return self.text[self.at : self.at + 1]

    def take(self, mark: str) -> bool:
        """Whether `mark` comes next; then it is read."""
        self.skip()
        found = self.text.startswith(mark, self.at)
        self.at += len(mark) * found
        return found

    def expect(self, mark: str) -> None:
        """Read `mark`; InvalidAction where it does not come next."""
        if not self.take(mark):
            self.fail(repr(mark))

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What `pattern` finds here, read; None where it finds nothing or nothing but emptiness."""
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None or not found[0]:
            return None
        self.at = found.end()
        return found

    def fail(self, expected: str) -> NoReturn:
        """Raise InvalidAction, saying what was expected and what stands here."""
        here = self.text[self.at : self.at + 40] or "the end"
        raise InvalidAction(f"text that cannot be read at character {self.at}", value=here, expected=expected)

    def enter(self) -> None:
        """One level deeper; `leave` goes back up."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise InvalidAction("a value that is nested too deep", value=self.depth, expected=f"{DEEPEST} levels")

    def leave(self) -> None:
        """One level up."""
        self.depth -= 1

    def raw(self, stops: str) -> str:
        """The text up to one of the characters in `stops` that stands outside of all brackets and quotes.

        Raises:
            InvalidAction: brackets or quotes that do not close, or brackets nested deeper than `DEEPEST`.
        """
        begin, at, open_ones = self.at, self.at, list[str]()
        opaque = _OPAQUE_GENERIC if self._generics else _OPAQUE
        while found := opaque.search(self.text, at):
            mark = found[0]
            if not open_ones and mark in stops:
                break
            at = found.end()
            if mark in _CLOSING:
                open_ones.append(_CLOSING[mark])
                if self.depth + len(open_ones) > DEEPEST:
                    raise InvalidAction("a value that is nested too deep", value=len(open_ones), expected=DEEPEST)
            elif mark in ("'", '"', "`") or (mark in ")]}" and (not open_ones or open_ones.pop() != mark)):
                self.at = found.start()
                self.fail("brackets and quotes that close")
        self.at = found.start() if found else len(self.text)
        if open_ones:
            self.fail(f"a closing {open_ones[-1]!r}")
        return self.text[begin : self.at].strip()

    def parts(self, mark: str = ",") -> list[str]:
        """The rest of the text, cut at `mark` outside of brackets and quotes; nothing after a last mark."""
        found = list[str]()
        while self.peek():
            found.append(self.raw(mark))
            if not self.take(mark):
                break
        return found


def string_value(text: str) -> str | None:
    """What a text says that is one string literal and nothing else, in single, double or back quotes; else None.

    Escapes are resolved; unknown ones keep their backslash, as in Python.
    """
    return _unescaped(text[1:-1], _PLAIN | _NOT_PYTHON) if _ONE_STRING.fullmatch(text) else None


def _unescaped(text: str, known: Mapping[str, str] = _PLAIN) -> str:
    return _ESCAPE.sub(lambda found: _resolved(found, known), text) if "\\" in text else text


def _resolved(found: re.Match[str], known: Mapping[str, str]) -> str:
    octal, short, middle, long, name, other = found.groups()
    if name is not None:
        try:
            return unicodedata.lookup(name)
        except KeyError:
            return found[0]
    if other is not None:
        return known.get(other, found[0])
    code = int(octal, 8) if octal else int(short or middle or long, 16)
    return chr(code) if code <= 0x10FFFF else found[0]


def _body(literal: str) -> str:
    """What stands between the quotes of a string literal."""
    width = 3 if literal[:3] in ("'''", '"""') and len(literal) >= 6 else 1
    return literal[width:-width]


def python_value(source: Source) -> Any:
    """The Python literal that comes next: None, a boolean, a number, a string, a list, a tuple or a dict.

    Arithmetic of numbers is worked out: + - * / // % ** over whole numbers of at most 1,024 bits, powers up to 64.
    A name, and a call or a subscript of one, is its own source text.

    Raises:
        InvalidAction: something else, a number too large or not finite, a key of a dict that is no text, a key twice.
    """
    if found := _PYTHON_SIMPLE.match(source.text, source.at):  # most values, ten times faster
        source.at = found.end()
        single, double, number, constant = found.groups()
        if number is not None:
            return float(number) if "." in number else int(number)
        return _CONSTANTS[constant] if constant else single if single is not None else double
    return _binary(source, 0)


def _binary(source: Source, level: int) -> Any:
    """Operators that bind tighter than `level`, by precedence climbing."""
    source.enter()
    left = _operand(source)
    while True:
        source.skip()
        found = _OPERATOR.match(source.text, source.at)
        mark = found[0] if found else ""
        if found is None or _LEVELS[mark] <= level:
            break
        source.at = found.end()
        # ** groups to the right, all others to the left
        left = _folded(mark, left, _binary(source, _LEVELS[mark] - (mark == "**")))
    source.leave()
    return left


def _operand(source: Source) -> Any:
    mark = source.peek()
    if mark in ("-", "+") and mark:
        source.expect(mark)
        value = _number(_binary(source, _SIGNED), mark)
        return -value if mark == "-" else value
    if mark in "[({" and mark:
        return _collection(source, mark)
    if found := source.match(_PYTHON_STRING):
        return _strings(source, found)
    if (mark.isdigit() or mark == ".") and (found := source.match(_PYTHON_NUMBER)):
        return _read_number(found[0])
    return _named(source)


def _strings(source: Source, found: re.Match[str] | None) -> str:
    """String literals beside one another are one string."""
    parts = list[str]()
    while found is not None:
        body = _body(found[2])
        parts.append(body if found[1] in ("r", "R") else _unescaped(body))
        found = source.match(_PYTHON_STRING)
    return "".join(parts)


def _read_number(text: str) -> Any:
    try:
        if len(text) > _LONGEST_NUMBER:
            raise ValueError("too long")
        whole = text[:2].lower() in ("0x", "0o", "0b") or not set(text) & set(".eE")
        value = int(text, 0) if whole else float(text)
    except ValueError as error:
        raise InvalidAction("a number that cannot be read", value=text[:40], expected="a number of Python") from error
    return _finite(value)


def _finite(value: Any) -> Any:
    """A number as it is; too large ones, infinities and complex ones are refused."""
    small = value.bit_length() <= _LARGEST_BITS if isinstance(value, int) else isinstance(value, float)
    if not small or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidAction("a number that is too large", value=type(value).__name__, expected="at most 1,024 bits")
    return value


def _number(value: Any, mark: str) -> Any:
    if type(value) not in (int, float):
        raise InvalidAction(f"{mark} of what is no number", value=str(value)[:40], expected="numbers")
    return value


def _folded(mark: str, left: Any, right: Any) -> Any:
    _number(left, mark)
    _number(right, mark)
    if mark == "**" and abs(right) > _LARGEST_POWER:
        raise InvalidAction("a power that is too large", value=right, expected=f"at most {_LARGEST_POWER}")
    try:
        return _finite(_FOLD[mark](left, right))
    except ArithmeticError as error:
        raise InvalidAction(f"arithmetic without a result: {error}", value=f"{left} {mark} {right}"[:60]) from error


def _collection(source: Source, mark: str) -> Any:
    source.expect(mark)
    closing = _CLOSING[mark]
    if mark == "{":
        return _pairs(source)
    items, comma = list[Any](), False
    while not source.take(closing):
        items.append(python_value(source))
        comma = source.take(",")
        if not comma:
            source.expect(closing)
            break
    if mark == "(":
        return items[0] if len(items) == 1 and not comma else tuple(items)
    return items


def _pairs(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while not source.take("}"):
        key = python_value(source)
        source.expect(":")
        if not isinstance(key, str) or key in found:
            raise InvalidAction("a key of a dict that is no text or stands there twice", value=str(key)[:40])
        found[key] = python_value(source)
        if not source.take(","):
            source.expect("}")
            break
    return found


def _named(source: Source) -> Any:
    """A constant, or the source text of a name with all that hangs on it: `.part`, `(...)`, `[...]`."""
    source.skip()
    begin = source.at
    name = source.match(_PYTHON_NAME)
    if name is None or source.text[source.at : source.at + 1] in ("'", '"'):
        source.at = begin
        source.fail("a literal of Python")
    if name[0] in _CONSTANTS:
        return _CONSTANTS[name[0]]
    end = source.at
    while mark := source.peek():
        if mark == ".":
            source.expect(".")
            if source.match(_PYTHON_NAME) is None:
                source.fail("a name after the dot")
        elif mark in "([":
            source.expect(mark)
            source.raw(_CLOSING[mark])
            source.expect(_CLOSING[mark])
        else:
            break
        end = source.at
    source.at = end
    return source.text[begin:end]


def python_source(value: Any) -> str:
    """The literal of a value, as `python_value` reads it.

    Raises:
        InvalidAction: a value that no literal stands for.
    """
    if value is None or isinstance(value, (bool, str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(python_source, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(python_source, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{python_source(key)}: {python_source(entry)}' for key, entry in value.items())}}}"
    raise InvalidAction("a value that has no literal", value=repr(value), expected="JSON values and tuples")


def json_value(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidAction: no JSON, NaN or an infinity, a key twice in one object, too long, or nested too deep.
    """
    Source(text)
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise InvalidAction(f"text that is no JSON ({str(error)[:80]})", value=text, expected="JSON") from error
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST + 1:
            raise InvalidAction("a value that is nested too deep", value=depth, expected=f"{DEEPEST} levels")
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            raise InvalidAction("a number that is not finite", value=text, expected="finite numbers")
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for many in inside for one in many]
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object with a key twice")
    return found
