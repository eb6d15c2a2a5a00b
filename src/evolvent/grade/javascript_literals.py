"""Parsing of JavaScript literals in BFCL's items: the source text of an argument to a value, by its
parameter's type.

Source: berkeley-function-call-leaderboard, the types of its JavaScript category. Text that is not a literal of
the type stays text, and fails the type check later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.literals import Source, parse_string

__all__ = ["parse_javascript_literal"]

_WHOLE = re.compile(r"-?\d{1,400}")
_DECIMAL = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "integer": (_WHOLE, int),
    "float": (_DECIMAL, float),
    "Bigint": (re.compile(r"-?\d{1,400}n"), lambda text: int(text[:-1])),
}
_ARRAY = re.compile(r"\[(.*)\]|new\s+Array\s*\((.*)\)", re.DOTALL)


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
    if kind in _NUMBERS:
        pattern, convert = _NUMBERS[kind]
        return convert(text) if pattern.fullmatch(text) else text
    if kind == "Boolean":
        return text == "true" if text in ("true", "false") else text
    if kind in ("String", "any"):
        return _parse_string(text)
    try:
        collection = _parse_collection(text, kind, item)
    except InvalidAction:  # brackets that do not close: no literal
        return text
    if collection is not None or kind:
        return text if collection is None else collection
    return _parse_untyped(text)


def _parse_string(text: str) -> str:
    content = parse_string(text)
    return text if content is None else content


def _parse_untyped(text: str) -> Any:
    for kind in ("Boolean", "integer", "float", "Bigint"):
        value = parse_javascript_literal(text, kind)
        if not isinstance(value, str):
            return value
    return _parse_string(text)


def _parse_collection(text: str, kind: str, item: str) -> Any:
    """Parses the list or dict that a text writes; None where it writes none of this kind."""
    item = "" if item == "any" else item
    if kind in ("array", "") and (match := _ARRAY.fullmatch(text)):
        return [parse_javascript_literal(part, item) for part in Source(match[1] or match[2] or "").split()]
    if kind in ("dict", "") and text.startswith("{") and text.endswith("}"):
        pairs = [Source(part) for part in Source(text[1:-1]).split()]
        return dict(map(_parse_pair, pairs))
    return None


def _parse_pair(source: Source) -> tuple[str, Any]:
    key = source.read_raw(":")
    source.expect(":")
    return _parse_string(key), parse_javascript_literal(source.text[source.at :])
