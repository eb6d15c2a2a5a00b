"""Java literals, as BFCL's items write them: the source text of an argument to a value, by its parameter's type.

Source: berkeley-function-call-leaderboard, the types of its Java category. Text that is no literal of the type stays
text, and fails the type later.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.literals import Source, string_value

__all__ = ["java_value"]

_WHOLE = re.compile(r"-?\d{1,400}")
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
_LISTED = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*Arrays\.asList\s*\((.*)\)\s*\)", re.DOTALL)
_ADDED = re.compile(r"new\s+ArrayList\s*<[^()]*>\s*\(\s*\)\s*(?:\{\s*\{(.*)\}\s*\})?", re.DOTALL)
_PUT = re.compile(r"new\s+HashMap\s*<[^()]*>\s*\(\s*\)\s*(?:\{\s*(?:\{(.*)\}\s*)?\})?", re.DOTALL)
_CALLED = re.compile(r"(add|put)\s*\((.*)\)", re.DOTALL)


def java_value(text: str, kind: str = "", item: str = "") -> Any:
    """The value of a Java literal.

    Args:
        text: its source. A char keeps its quotes; a String may have them or not.
        kind: the parameter's type in BFCL's words; empty: told by the text, as inside of a HashMap.
        item: the type of the elements of an Array or ArrayList; empty or "any": told by the text.
    Returns:
        A boolean, number, string, list or dict; the text itself where it is no literal of the type.
    """
    text = text.strip()
    if kind in _NUMBERS:
        pattern, read = _NUMBERS[kind]
        return read(text) if pattern.fullmatch(text) else text
    if kind == "boolean":
        return text == "true" if text in ("true", "false") else text
    if kind in ("String", "any"):
        return _string(text)
    if kind == "char":
        return text
    try:
        found = _collected(text, kind, item)
    except InvalidAction:  # brackets that do not close: no literal
        return text
    if found is not None or kind:
        return text if found is None else found
    return _untyped(text)


def _string(text: str) -> str:
    found = string_value(text) if text.startswith('"') else None
    return text if found is None else found


def _untyped(text: str) -> Any:
    for kind in ("boolean", "long", "float", "integer", "double"):
        value = java_value(text, kind)
        if not isinstance(value, str):
            return value
    return _string(text)


def _collected(text: str, kind: str, item: str) -> Any:
    """The list or dict that a text creates; None where it creates none of this kind."""
    item = "" if item == "any" else item
    if kind in ("Array", "") and (found := _ARRAY.fullmatch(text)):
        return [java_value(part, item) for part in Source(found[1], generics=True).parts()]
    if kind in ("ArrayList", "") and (found := _LISTED.fullmatch(text)):
        return [_listed(part, item) for part in Source(found[1], generics=True).parts()]
    if kind in ("ArrayList", "") and (found := _ADDED.fullmatch(text)):
        added = _calls(found[1] or "", "add")
        if added is None or any(len(one) != 1 for one in added):
            return None
        return [_listed(one[0], item) for one in added]
    if kind in ("HashMap", "") and (found := _PUT.fullmatch(text)):
        put = _calls(found[1] or "", "put")
        if put is None or any(len(one) != 2 for one in put):
            return None
        return {_string(key): java_value(value) for key, value in put}
    return None


def _listed(text: str, item: str) -> Any:
    """An element of an ArrayList; characters lose their quotes there, as in the data set."""
    plain = string_value(text) if item == "char" else None
    return java_value(text, item) if plain is None else plain


def _calls(body: str, name: str) -> list[list[str]] | None:
    """The arguments of the statements of a double-brace initialiser; None where one is no call of `name`."""
    found = [_CALLED.fullmatch(line) for line in Source(body, generics=True).parts(";")]
    if any(one is None or one[1] != name for one in found):
        return None
    return [Source(one[2], generics=True).parts() for one in found if one is not None]
