"""The text of calls, and its parsing: the original's `NAME with Action Input: {json}`, and a short form for small
models.

    Action: get_movie_cast with Action Input: {"movie_id": 7}        get_movie_cast 7
    Action: update_cell with Action Input: {"position": "B2", "value": 5}        update_cell B2 5

The short form gives the arguments in order. Punctuation may be spaced (`2024 - 05 - 03`, `[ 3 , 4 ]`), as
word-level models write it. Text is split and compared, never run: input is read as JSON, else as a Python
literal.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from evolvent.errors import InvalidAction
from evolvent.grade.markdown import unwrap
from evolvent.grade.thoughts import split_thoughts
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.base import Parsed
from evolvent.worlds.tools.engine import ANY, UNKNOWN_TOOL, Argument, ToolSpec

__all__ = ["STYLES", "Style", "ToolGrammar", "compact"]

Style = Literal["plain", "json"]
STYLES: tuple[Style, ...] = ("plain", "json")

_MAX_CALL_LENGTH = 8192  # characters of one call
_INPUT = re.compile(r"\s*with\s+Action\s+Input\s*:\s*")
_LABEL = re.compile(r"^[ \t>]*(?:\*\*|__)?Action(?:\*\*|__)?:(?:\*\*|__)?[ \t]*", re.MULTILINE)
_THOUGHT = re.compile(r"^\s*(?:\*\*|__)?Thought(?:\*\*|__)?:(?:\*\*|__)?\s*")
_BARE_ACTION = re.compile(r"[A-Za-z0-9_][^\n<>*`:◁▷|]*[^\s<>*`:◁▷|]")  # nothing around it: no label, no mark
_DATE = r"[0-9]{4}\s?-\s?[0-9]{2}\s?-\s?[0-9]{2}(?![\w-])"
_NUMBER = r"-?\s?[0-9]+(?:\s?\.\s?[0-9]+)?(?![\w.])"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TOKENS = re.compile(
    rf"\s*(?:(?P<date>{_DATE})|(?P<number>{_NUMBER})|(?P<quoted>{_QUOTED})|(?P<mark>[\[\],])|"
    r"(?P<word>[^\s\[\],]+))"
)
_BARE_TEXT = re.compile(r"[A-Za-z]\w*(?: [A-Za-z]\w*)*")
_DATE_TEXT, _DIGIT_TEXT = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"), re.compile("[0-9]{1,9}")
_RESERVED: Mapping[str, Any] = {"null": None, "None": None, "true": True, "false": False, "True": True, "False": False}
_EXPECTED = "expected the name of a tool and its arguments"
_MISSING = object()


class ToolGrammar:
    """The grammar of a tool world: parses every form of a call, and writes one of them.

    Args:
        specs: the tools by name.
        style: the written form: "plain" (the short form) or "json" (the original's).
    """

    def __init__(self, specs: Mapping[str, ToolSpec], style: Style = "plain") -> None:
        self.specs, self.style = specs, style
        self._names = {name: {argument.name for argument in spec.arguments} for name, spec in specs.items()}

    def parse(self, text: str) -> Parsed:
        """Parses the action after the last line that begins with `Action:` (else the whole text) and the thought before
        it.

        Raises:
            InvalidAction: the text contains no action.
        """
        if _BARE_ACTION.fullmatch(text) and "THINK" not in text:
            return Parsed(text, None)
        visible, inner_thought = split_thoughts(text)
        labels = list(_LABEL.finditer(visible))
        if not labels:
            preamble, action = "", visible.strip()
        else:
            preamble, action = visible[: labels[-1].start()], visible[labels[-1].end() :].strip()
        action = action if "\n" in action else unwrap(action.removesuffix("**"), ("`",))
        if not action:
            raise InvalidAction(_EXPECTED, value=text)
        thought = _THOUGHT.sub("", preamble).strip()
        return Parsed(action, "\n\n".join(filter(None, (inner_thought, thought))) or None)

    def render(self, parsed: Parsed) -> str:
        """Renders `Thought: ...`, an empty line and `Action: ...`; a short action without a thought stands alone."""
        if parsed.thought:
            return f"Thought: {parsed.thought}\n\nAction: {parsed.action}"
        return f"Action: {parsed.action}" if self.style == "json" else parsed.action

    def format_call(self, call: Call) -> str:
        """Formats a call as an action, in the grammar's style: `parse_call(format_call(call))` is the same call.

        A call of an unknown tool, or with arguments that its tool does not have, has no short form: it is written as
        JSON.
        """
        spec = self.specs.get(call.name)
        if self.style == "json" or spec is None or not self._names[call.name].issuperset(call.arguments):
            return f"{call.name} with Action Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"
        return _format_short(spec, call.arguments)

    def parse_call(self, text: str) -> Call:
        """Parses the call in an action or in a model's full text.

        Raises:
            InvalidAction: the text is not a call; the message says what was expected.
        """
        if len(text) > _MAX_CALL_LENGTH:
            raise InvalidAction(_EXPECTED, value=len(text))
        action = self.parse(text).action
        separator = _INPUT.search(action) if "Input" in action else None
        if separator is not None:
            name = action[: separator.start()].rpartition("\n")[2].rpartition("Action:")[2].strip()
            return Call(self._get_spec(name).name, _parse_object(action[separator.end() :].strip()))
        name, _, arguments_text = action.partition(" ")
        spec = self._get_spec(name)
        arguments_text = arguments_text.strip()
        return Call(
            spec.name,
            _parse_object(arguments_text)
            if arguments_text.startswith("{")
            else _parse_positional(spec, arguments_text),
        )

    def _get_spec(self, name: str) -> ToolSpec:
        spec = self.specs.get(name.removesuffix("()"))
        if spec is None:
            raise InvalidAction(UNKNOWN_TOOL, value=name)
        return spec


def _parse_object(text: str) -> dict[str, Any]:
    """Parses a JSON object or a Python dict literal."""
    try:
        arguments = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        arguments = _parse_literal(text)
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        raise InvalidAction("expected a JSON object of arguments", value=text)
    return arguments


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, Warning):
        return None


def _parse_positional(spec: ToolSpec, text: str) -> dict[str, Any]:
    """Parses arguments of the short form: each value goes to the next argument that can hold it."""
    values = _parse_values(text)
    if spec.arguments and len(values) > len(spec.arguments) and spec.arguments[-1].type in ("string", ANY):
        last = len(spec.arguments) - 1
        values = [*values[:last], (" ".join(source for source, _ in values[last:]), _MISSING)]
    arguments: dict[str, Any] = {}
    remaining = list(spec.arguments)
    for source, value in values:
        while remaining and not remaining[0].required and value is not None and not _fits(remaining[0], value):
            remaining.pop(0)
        if not remaining:
            raise InvalidAction(spec.usage, value=text)
        argument = remaining.pop(0)
        if value is None and not argument.required:
            continue
        arguments[argument.name] = (
            source if value is _MISSING or (argument.type == "string" and not _is_list(value)) else value
        )
    return arguments


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _fits(argument: Argument, value: Any) -> bool:
    """Returns whether a value may be meant for an optional argument."""
    if argument.type == "array":
        return _is_list(value)
    if argument.type in ("integer", "number"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if argument.type == "boolean":
        return isinstance(value, bool)
    return argument.type == ANY or not _is_list(value)


def _parse_values(text: str) -> list[tuple[str, Any]]:
    """Returns the values of a short form, each as written (without quotes) and as parsed."""
    tokens = list(_TOKENS.finditer(text))
    values: list[tuple[str, Any]] = []
    position = 0
    while position < len(tokens):
        start = tokens[position].start()
        value, position = _parse_value(tokens, position, depth=0)
        source = value if isinstance(value, str) else text[start : tokens[position - 1].end()].strip()
        values.append((source, value))
    return values


def _parse_value(tokens: Sequence[re.Match[str]], position: int, *, depth: int) -> tuple[Any, int]:
    """Parses the value that begins at a token, and returns it with the position after it."""
    token = tokens[position]
    if token["mark"] == "[":
        return _parse_list(tokens, position + 1, depth=depth + 1)
    if token["mark"]:
        raise InvalidAction("unexpected mark among the arguments", value=token[0])
    if token["date"]:
        return "".join(token["date"].split()), position + 1
    if token["number"]:
        return _parse_number("".join(token["number"].split())), position + 1
    if token["quoted"]:
        return _unquote(token["quoted"]), position + 1
    word = token["word"]
    return _RESERVED.get(word, word), position + 1


def _parse_list(tokens: Sequence[re.Match[str]], position: int, *, depth: int) -> tuple[list[Any], int]:
    elements: list[Any] = []
    while depth <= 4 and position < len(tokens):
        mark = tokens[position]["mark"]
        if mark == "]":
            return elements, position + 1
        if mark == ",":
            position += 1
            continue
        value, position = _parse_value(tokens, position, depth=depth)
        elements.append(value)
    raise InvalidAction("expected ] at the end of an array", value=len(elements))


def _parse_number(text: str) -> int | float | str:
    if len(text) > 19:
        return text
    return float(text) if "." in text else int(text)


def _unquote(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _format_short(spec: ToolSpec, arguments: Mapping[str, Any]) -> str:
    """Formats the short form of a call; an omitted argument before a present one of the same kind is written `null`."""
    values = [arguments.get(argument.name) for argument in spec.arguments]
    present = [argument for argument, value in zip(spec.arguments, values, strict=True) if value is not None]
    parts: list[str] = [spec.name]
    for index, (argument, value) in enumerate(zip(spec.arguments, values, strict=True)):
        if value is not None:
            is_last = (
                len(present) == index + 1 == len(spec.arguments)
            )  # then the rest of the text can only be its value
            parts.append(_format_value(value, is_text=argument.type == "string", is_last=is_last))
        elif any(
            _fits(argument, arguments[later_argument.name])
            for later_argument in present
            if later_argument in spec.arguments[index + 1 :]
        ):
            parts.append("null")
    return " ".join(parts)


def _format_value(value: Any, *, is_text: bool, is_last: bool = False) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return _format_text(value, is_text, is_last)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_format_value(element, is_text=False) for element in value)}]"
    return json.dumps(value)


@lru_cache(4096)
def _format_text(value: str, is_text: bool, is_last: bool) -> str:
    """Formats a text: bare where it is read back as the same text, else in quotes."""
    is_bare = _BARE_TEXT.fullmatch(value) and (is_last or " " not in value)
    if (
        (is_bare and value not in _RESERVED)
        or _DATE_TEXT.fullmatch(value)
        or (is_text and _DIGIT_TEXT.fullmatch(value))
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


def compact(value: Json) -> str:
    """Formats a result in few words. An object is its keys and values; rows with the same keys are a header and the
    rows.

    `{"cast": [{"id": 7, "name": "anna"}, {"id": 9, "name": "hugo"}]}` is `cast id name : 7 anna ; 9 hugo`.
    """
    if isinstance(value, Mapping):
        return " ".join(f"{key} {compact(element)}" for key, element in value.items())
    if isinstance(value, (list, tuple)):
        rows = [element for element in value if isinstance(element, Mapping)]
        if len(rows) == len(value) > 1 and all(row.keys() == rows[0].keys() for row in rows):
            return f"{' '.join(rows[0])} : {' ; '.join(' '.join(map(compact, row.values())) for row in rows)}"
        return " , ".join(map(compact, value)) or "nothing"
    if isinstance(value, str):
        return value or "nothing"
    return json.dumps(value)
