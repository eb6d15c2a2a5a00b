"""Parsing of Java and JavaScript literals in BFCL's items: the source text of an argument to a value, by the type
of its parameter.

Source: berkeley-function-call-leaderboard, the types of its Java and JavaScript categories. Text that is not a
literal of the type stays text, and fails the type check later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.literals import Source, parse_string

__all__ = ["parse_java_literal", "parse_javascript_literal"]


_WHOLE = re.compile(r"-?\d{1,400}")
_DECIMAL = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_JAVASCRIPT_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "integer": (_WHOLE, int),
    "float": (_DECIMAL, float),
    "Bigint": (re.compile(r"-?\d{1,400}n"), lambda text: int(text[:-1])),
}
_JAVASCRIPT_ARRAY = re.compile(r"\[(.*)\]|new\s+Array\s*\((.*)\)", re.DOTALL)


def parse_javascript_literal(text: str, kind: str = "", item: str = "") -> object:
    """Parses a JavaScript literal.

    Args:
        text: Its source. A String may have quotes or not.
        kind: Type of the parameter in BFCL's words; empty: inferred from the text, as inside an object.
        item: Type of the elements of an array; empty or "any": inferred from the text.
    Returns:
        A boolean, number, string, list or dict; the text itself where it is not a literal of the type.
    """
    text = text.strip()
    if kind in _JAVASCRIPT_NUMBERS:
        pattern, convert = _JAVASCRIPT_NUMBERS[kind]
        return convert(text) if pattern.fullmatch(text) else text
    if kind == "Boolean":
        return text == "true" if text in ("true", "false") else text
    if kind in ("String", "any"):
        return _parse_javascript_string(text)
    try:
        collection = _parse_javascript_collection(text, kind, item)
    except InvalidAction:  # brackets that do not close: no literal
        return text
    if collection is not None or kind:
        return text if collection is None else collection
    return _parse_javascript_untyped(text)


def _parse_javascript_string(text: str) -> str:
    content = parse_string(text)
    return text if content is None else content


def _parse_javascript_untyped(text: str) -> Any:
    for kind in ("Boolean", "integer", "float", "Bigint"):
        value = parse_javascript_literal(text, kind)
        if not isinstance(value, str):
            return value
    return _parse_javascript_string(text)


def _parse_javascript_collection(text: str, kind: str, item: str) -> Any:
    """Parses the list or dict that a text writes; None where it writes none of this kind."""
    item = "" if item == "any" else item
    if kind in ("array", "") and (match := _JAVASCRIPT_ARRAY.fullmatch(text)):
        return [parse_javascript_literal(part, item) for part in Source(match[1] or match[2] or "").split()]
    if kind in ("dict", "") and text.startswith("{") and text.endswith("}"):
        pairs = [Source(part) for part in Source(text[1:-1]).split()]
        return dict(map(_parse_pair, pairs))
    return None


def _parse_pair(source: Source) -> tuple[str, Any]:
    key = source.read_raw(":")
    source.expect(":")
    return _parse_javascript_string(key), parse_javascript_literal(source.text[source.at :])


_LONG = re.compile(r"-?\d{1,400}[lL]")
_FLOAT = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?[fF]")
_DOUBLE = re.compile(r"-?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?")
_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "byte": (_WHOLE, int),
    "short": (_WHOLE, int),
    "integer": (_WHOLE, int),
    "long": (_LONG, lambda text: int(text[:-1])),
    "float": (_FLOAT, lambda text: float(text[:-1])),
    "double": (_DOUBLE, float),
}
_ARRAY = re.compile(r"new\s+[\w.]+(?:<[^{}]*>)?\s*(?:\[\s*\]\s*)+\{(.*)\}", re.DOTALL)
_AS_LIST = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*Arrays\.asList\s*\((.*)\)\s*\)", re.DOTALL)
_ADD_CALLS = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*\)\s*(?:\{\s*\{(.*)\}\s*\})?", re.DOTALL)
_PUT_CALLS = re.compile(r"new\s+HashMap\s*<[^()]*>\s*\(\s*\)\s*(?:\{\s*(?:\{(.*)\}\s*)?\})?", re.DOTALL)
_ADD_OR_PUT = re.compile(r"(add|put)\s*\((.*)\)", re.DOTALL)


def parse_java_literal(text: str, kind: str = "", item: str = "") -> object:
    """Parses a Java literal.

    Args:
        text: Its source. A char keeps its quotes; a String may have quotes or not.
        kind: Type of the parameter in BFCL's words; empty: inferred from the text, as inside a HashMap.
        item: Type of the elements of an Array or ArrayList; empty or "any": inferred from the text.
    Returns:
        A boolean, number, string, list or dict; the text itself where it is not a literal of the type.
    """
    text = text.strip()
    if kind in _NUMBERS:
        pattern, convert = _NUMBERS[kind]
        return convert(text) if pattern.fullmatch(text) else text
    if kind == "boolean":
        return text == "true" if text in ("true", "false") else text
    if kind in ("String", "any"):
        return _parse_string(text)
    if kind == "char":
        return text
    try:
        collection = _parse_collection(text, kind, item)
    except InvalidAction:  # brackets that do not close: no literal
        return text
    if collection is not None or kind:
        return text if collection is None else collection
    return _parse_untyped(text)


def _parse_string(text: str) -> str:
    content = parse_string(text) if text.startswith('"') else None
    return text if content is None else content


def _parse_untyped(text: str) -> Any:
    for kind in ("boolean", "long", "float", "integer", "double"):
        value = parse_java_literal(text, kind)
        if not isinstance(value, str):
            return value
    return _parse_string(text)


def _parse_collection(text: str, kind: str, item: str) -> Any:
    """Parses the list or dict that a text creates; None where it creates none of this kind."""
    item = "" if item == "any" else item
    if kind in ("Array", "") and (match := _ARRAY.fullmatch(text)):
        return [parse_java_literal(part, item) for part in Source(match[1], generics=True).split()]
    if kind in ("ArrayList", "") and (match := _AS_LIST.fullmatch(text)):
        return [_parse_list_element(part, item) for part in Source(match[1], generics=True).split()]
    if kind in ("ArrayList", "") and (match := _ADD_CALLS.fullmatch(text)):
        add_calls = _parse_initializer(match[1] or "", "add")
        if add_calls is None or any(len(arguments) != 1 for arguments in add_calls):
            return None
        return [_parse_list_element(arguments[0], item) for arguments in add_calls]
    if kind in ("HashMap", "") and (match := _PUT_CALLS.fullmatch(text)):
        put_calls = _parse_initializer(match[1] or "", "put")
        if put_calls is None or any(len(arguments) != 2 for arguments in put_calls):
            return None
        return {_parse_string(key): parse_java_literal(value) for key, value in put_calls}
    return None


def _parse_list_element(text: str, item: str) -> Any:
    """Parses an element of an ArrayList; characters lose their quotes, as in the data set."""
    content = parse_string(text) if item == "char" else None
    return parse_java_literal(text, item) if content is None else content


def _parse_initializer(body: str, name: str) -> list[list[str]] | None:
    """Parses the arguments of the statements of a double-brace initializer; None where one does not call `name`."""
    matches = [_ADD_OR_PUT.fullmatch(line) for line in Source(body, generics=True).split(";")]
    if any(match is None or match[1] != name for match in matches):
        return None
    return [Source(match[2], generics=True).split() for match in matches if match is not None]
