"""JavaScript literals, as BFCL's items write them: the source text of an argument to a value, by its parameter's type.

Source: berkeley-function-call-leaderboard, the types of its JavaScript category. Text that is no literal of the type
stays text, and fails the type later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.literals import Source, string_value

__all__ = ["javascript_value"]

_WHOLE = re.compile(r"-?\d{1,400}")
_DECIMAL = re.compile(r"-?\d{1,300}(\.\d{1,300})?")
_NUMBERS: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "integer": (_WHOLE, int),
    "float": (_DECIMAL, float),
    "Bigint": (re.compile(r"-?\d{1,400}n"), lambda text: int(text[:-1])),
}
_ARRAY = re.compile(r"\[(.*)\]|new\s+Array\s*\((.*)\)", re.DOTALL)


def javascript_value(text: str, kind: str = "", item: str = "") -> Any:
    """The value of a JavaScript literal.

    Args:
        text: its source. A String may have quotes or not.
        kind: the parameter's type in BFCL's words; empty: told by the text, as inside of an object.
        item: the type of the elements of an array; empty or "any": told by the text.
    Returns:
        A boolean, number, string, list or dict; the text itself where it is no literal of the type.
    """
    text = text.strip()
    if kind in _NUMBERS:
        pattern, read = _NUMBERS[kind]
        return read(text) if pattern.fullmatch(text) else text
    if kind == "Boolean":
        return text == "true" if text in ("true", "false") else text
    if kind in ("String", "any"):
        return _string(text)
    try:
        found = _collected(text, kind, item)
    except InvalidAction:  # brackets that do not close: no literal
        return text
    if found is not None or kind:
        return text if found is None else found
    return _untyped(text)


def _string(text: str) -> str:
    found = string_value(text)
    return text if found is None else found


def _untyped(text: str) -> Any:
    for kind in ("Boolean", "integer", "float", "Bigint"):
        value = javascript_value(text, kind)
        if not isinstance(value, str):
            return value
    return _string(text)


def _collected(text: str, kind: str, item: str) -> Any:
    """The list or dict that a text writes; None where it writes none of this kind."""
    item = "" if item == "any" else item
    if kind in ("array", "") and (found := _ARRAY.fullmatch(text)):
        return [javascript_value(part, item) for part in Source(found[1] or found[2] or "").parts()]
    if kind in ("dict", "") and text.startswith("{") and text.endswith("}"):
        pairs = [Source(part) for part in Source(text[1:-1]).parts()]
        return dict(map(_pair, pairs))
    return None


def _pair(source: Source) -> tuple[str, Any]:
    key = source.raw(":")
    source.expect(":")
    return _string(key), javascript_value(source.text[source.at :])
