"""Calls as text, and back: the original's `NAME with Action Input: {json}`, and a short form for small models.

    Action: get_movie_cast with Action Input: {"movie_id": 7}        get_movie_cast 7
    Action: update_cell with Action Input: {"position": "B2", "value": 5}        update_cell B2 5

The short form gives the arguments in order. Marks may stand apart (`2024 - 05 - 03`, `[ 3 , 4 ]`), as models over words
write them. Text is split and compared, never run: input is read as JSON, else as a Python literal.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from evolvent.errors import InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.grammar import Parsed
from evolvent.worlds.tools.engine import ANY, UNKNOWN_TOOL, Argument, ToolSpec

__all__ = ["STYLES", "Style", "ToolGrammar", "compact"]

Style = Literal["plain", "json"]
STYLES: tuple[Style, ...] = ("plain", "json")

_LONGEST = 8192  # characters of one call
_INPUT = re.compile(r"\s*with\s+Action\s+Input\s*:\s*")
_LABEL = re.compile(r"^[ \t]*Action:[ \t]*", re.MULTILINE)
_THOUGHT = re.compile(r"^\s*Thought:\s*")
_DATE = r"[0-9]{4}\s?-\s?[0-9]{2}\s?-\s?[0-9]{2}(?![\w-])"
_NUMBER = r"-?\s?[0-9]+(?:\s?\.\s?[0-9]+)?(?![\w.])"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TOKENS = re.compile(
    rf"\s*(?:(?P<date>{_DATE})|(?P<number>{_NUMBER})|(?P<quoted>{_QUOTED})|(?P<mark>[\[\],])|"
    r"(?P<word>[^\s\[\],]+))"
)
_BARE = re.compile(r"[A-Za-z]\w*(?: [A-Za-z]\w*)*")
_TIGHT, _DIGITS = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"), re.compile("[0-9]{1,9}")
_RESERVED: Mapping[str, Any] = {"null": None, "None": None, "true": True, "false": False, "True": True, "False": False}
_EXPECTED = "expected the name of a tool and its arguments"
_MISSING = object()


class ToolGrammar:
    """The grammar of a tool world: reads every form of a call, and writes one of them.

    Args:
        specs: the tools by name.
        style: what is written: "plain" (the short form) or "json" (the original's).
    """

    def __init__(self, specs: Mapping[str, ToolSpec], style: Style = "plain") -> None:
        self.specs, self.style = specs, style

    def parse(self, text: str) -> Parsed:
        """The action after the last line that begins with `Action:` (else the whole text) and the thought before it.

        Raises:
            InvalidAction: where there is no text of an action.
        """
        labels = list(_LABEL.finditer(text))
        if not labels:
            before, action = "", text.strip()
        else:
            before, action = text[: labels[-1].start()], text[labels[-1].end() :].strip()
        if not action:
            raise InvalidAction(_EXPECTED, value=text)
        return Parsed(action, _THOUGHT.sub("", before).strip() or None)

    def render(self, parsed: Parsed) -> str:
        """`Thought: ...`, an empty line and `Action: ...`; an action in the short form without thought stands alone."""
        if parsed.thought:
            return f"Thought: {parsed.thought}\n\nAction: {parsed.action}"
        return f"Action: {parsed.action}" if self.style == "json" else parsed.action

    def write(self, call: Call) -> str:
        """The action that makes a call, in the grammar's style: `read(write(call))` is the same call.

        A call of no tool, or with arguments that its tool does not have, has no short form: it is written as JSON.
        """
        spec = self.specs.get(call.name)
        names = {one.name for one in spec.arguments} if spec else set()
        if self.style == "json" or spec is None or not names.issuperset(call.arguments):
            return f"{call.name} with Action Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"
        return _short(spec, call.arguments)

    def read(self, text: str) -> Call:
        """The call in an action or in a model's full text.

        Raises:
            InvalidAction: the text is no call; the message says what was expected.
        """
        if len(text) > _LONGEST:
            raise InvalidAction(_EXPECTED, value=len(text))
        action = self.parse(text).action
        mark = _INPUT.search(action)
        if mark is not None:
            name = action[: mark.start()].rpartition("\n")[2].rpartition("Action:")[2].strip()
            return Call(self._known(name).name, _object(action[mark.end() :].strip()))
        name, _, rest = action.partition(" ")
        spec = self._known(name)
        rest = rest.strip()
        return Call(spec.name, _object(rest) if rest.startswith("{") else _positional(spec, rest))

    def _known(self, name: str) -> ToolSpec:
        spec = self.specs.get(name.removesuffix("()"))
        if spec is None:
            raise InvalidAction(UNKNOWN_TOOL, value=name)
        return spec


def _object(text: str) -> dict[str, Any]:
    """A JSON object or a Python dict literal."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        found = _literal(text)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidAction("expected a JSON object of arguments", value=text)
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, Warning):
        return None


def _positional(spec: ToolSpec, text: str) -> dict[str, Any]:
    """Arguments of the short form: each value goes to the next argument that can hold it."""
    values = _values(text)
    if spec.arguments and len(values) > len(spec.arguments) and spec.arguments[-1].type in ("string", ANY):
        last = len(spec.arguments) - 1
        values = [*values[:last], (" ".join(source for source, _ in values[last:]), _MISSING)]
    found: dict[str, Any] = {}
    left = list(spec.arguments)
    for source, value in values:
        while left and not left[0].required and value is not None and not _fits(left[0], value):
            left.pop(0)
        if not left:
            raise InvalidAction(spec.expected, value=text)
        one = left.pop(0)
        if value is None and not one.required:
            continue
        found[one.name] = source if value is _MISSING or (one.type == "string" and not _is_list(value)) else value
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _fits(argument: Argument, value: Any) -> bool:
    """Whether a value may be meant for an optional argument."""
    if argument.type == "array":
        return _is_list(value)
    if argument.type in ("integer", "number"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if argument.type == "boolean":
        return isinstance(value, bool)
    return argument.type == ANY or not _is_list(value)


def _values(text: str) -> list[tuple[str, Any]]:
    """The values of a short form, each as it was written (quotes removed) and as it is read."""
    tokens = list(_TOKENS.finditer(text))
    values: list[tuple[str, Any]] = []
    place = 0
    while place < len(tokens):
        start = tokens[place].start()
        value, place = _value(tokens, place, depth=0)
        source = value if isinstance(value, str) else text[start : tokens[place - 1].end()].strip()
        values.append((source, value))
    return values


def _value(tokens: Sequence[re.Match[str]], place: int, *, depth: int) -> tuple[Any, int]:
    """The value that begins at a token, and the place after it."""
    token = tokens[place]
    if token["mark"] == "[":
        return _list(tokens, place + 1, depth=depth + 1)
    if token["mark"]:
        raise InvalidAction("unexpected mark among the arguments", value=token[0])
    if token["date"]:
        return "".join(token["date"].split()), place + 1
    if token["number"]:
        return _number("".join(token["number"].split())), place + 1
    if token["quoted"]:
        return _object_text(token["quoted"]), place + 1
    word = token["word"]
    return _RESERVED.get(word, word), place + 1


def _list(tokens: Sequence[re.Match[str]], place: int, *, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    while depth <= 4 and place < len(tokens):
        mark = tokens[place]["mark"]
        if mark == "]":
            return found, place + 1
        if mark == ",":
            place += 1
            continue
        value, place = _value(tokens, place, depth=depth)
        found.append(value)
    raise InvalidAction("expected ] at the end of an array", value=len(found))


def _number(text: str) -> int | float | str:
    if len(text) > 19:
        return text
    return float(text) if "." in text else int(text)


def _object_text(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _short(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """The short form of a call; arguments left out before a later one of the same kind are written `null`."""
    given = [one for one in spec.arguments if arguments.get(one.name) is not None]
    words: list[str] = [spec.name]
    for place, one in enumerate(spec.arguments):
        value = arguments.get(one.name)
        if value is not None:
            last = len(given) == place + 1 == len(spec.arguments)  # then the rest of the text can only be its value
            words.append(_write(value, text=one.type == "string", last=last))
        elif any(_fits(one, arguments[later.name]) for later in given if later in spec.arguments[place + 1 :]):
            words.append("null")
    return " ".join(words)


def _write(value: Any, *, text: bool, last: bool = False) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_write(one, text=False) for one in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    bare = _BARE.fullmatch(value) and (last or " " not in value)
    if (bare and value not in _RESERVED) or _TIGHT.fullmatch(value) or (text and _DIGITS.fullmatch(value)):
        return value
    return json.dumps(value, ensure_ascii=False)


def compact(value: Json) -> str:
    """A result as few words. An object is its keys and values; rows with the same keys are a head and the rows.

    `{"cast": [{"id": 7, "name": "anna"}, {"id": 9, "name": "hugo"}]}` is `cast id name : 7 anna ; 9 hugo`.
    """
    if isinstance(value, Mapping):
        return " ".join(f"{key} {compact(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        rows = [one for one in value if isinstance(one, Mapping)]
        if len(rows) == len(value) > 1 and all(row.keys() == rows[0].keys() for row in rows):
            return f"{' '.join(rows[0])} : {' ; '.join(' '.join(map(compact, row.values())) for row in rows)}"
        return " , ".join(map(compact, value)) or "nothing"
    if isinstance(value, str):
        return value or "nothing"
    return json.dumps(value)
