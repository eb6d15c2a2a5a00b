"""The words form: tools and calls written in words that a small model knows, names in pieces.

    find hotel : search for a hotel ( city string the city ; nights integer number of nights ; breakfast boolean whether
    breakfast is included = False )
    user : please find a hotel in oslo for 3 nights
        ->  [find hotel(city="oslo", nights=3)]

It is the Python form but for one thing: an underscore of a name is written as a space. A model over words therefore
spells a name that it never saw from words that it has in front of it. Spaces do not matter, so what such a model writes
(`[ find hotel ( city = " oslo " , nights = 3 ) ]`) reads the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.call_forms import decode_calls, spelled
from evolvent.messages import Call, Message, Tool
from evolvent.schemas import json_schema

__all__ = ["decode_words", "encode_words", "resolved", "show_messages", "show_tools"]

LONGEST = 65_536  # characters of a text that is read
_PIECE = re.compile(r"\"[^\"]*\"|'[^']*'|\w+|[^\w\s]")


def encode_words(calls: Sequence[Call]) -> str:
    """Calls in the words form, on one line; no calls are `[]`."""
    return "[" + ", ".join(f"{spelled(call.name)}({_arguments(call.arguments)})" for call in calls) + "]"


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{spelled(name)}={_value(value)}" for name, value in arguments.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        items = [f"{json.dumps(spelled(str(name)))}: {_value(item)}" for name, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def decode_words(text: str) -> tuple[Call, ...]:
    """Reads the words form, and the Python form; names come with underscores.

    Raises:
        InvalidAction: no calls can be read, or the text is longer than 65,536 characters.
    """
    if len(text) > LONGEST:
        raise InvalidAction("a text that is too long for calls", value=len(text), expected=f"at most {LONGEST}")
    parts: list[str] = []
    word = False  # whether the part before is a word that another one may continue
    for piece in _PIECE.findall(text):
        if piece[0] in "\"'" and len(piece) > 1:
            parts.append(json.dumps(" ".join(piece[1:-1].split()), ensure_ascii=False))
            word = False
            continue
        another = bool(re.match(r"\w", piece))
        if word and another:
            if parts[-1][0].isdigit():
                raise InvalidAction("two words where one value belongs", value=f"{parts[-1]} {piece}", expected="one")
            parts.append("_")
        parts.append(piece)
        word = another
    return decode_calls("".join(parts), form="python")


def resolved(calls: Sequence[Call], tools: Sequence[Tool]) -> tuple[Call, ...]:
    """Calls with the names of these tools and of their parameters, where they are the same but for their spelling."""
    known = {spelled(tool.name): tool for tool in reversed(tools)}
    names = {tool.name for tool in tools}
    found = []
    for call in calls:
        tool = None if call.name in names else known.get(spelled(call.name))
        tool = tool or next((one for one in tools if one.name == call.name), None)
        if tool is not None:
            call = Call(tool.name, _renamed(call.arguments, tool.parameters), call.id)
        found.append(call)
    return tuple(found)


def _renamed(value: Any, schema: Any) -> Any:
    if isinstance(value, list) and isinstance(schema, Mapping):
        return [_renamed(item, schema.get("items")) for item in value]
    if not isinstance(value, Mapping) or not isinstance(schema, Mapping):
        return value
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    known = {spelled(name): name for name in reversed(list(properties))}
    named = {name if name in properties else known.get(spelled(str(name)), name): item for name, item in value.items()}
    return {name: _renamed(item, properties.get(name)) for name, item in named.items()}


# ---------------------------------------------------------------------- what is seen


def show_tools(tools: Sequence[Tool]) -> str:
    """Tools, one a line: name, description, and its parameters with type, description and default.

    Raises:
        SampleInvalid: parameters that are no schema in any dialect that `schemas` reads.
    """
    return "\n".join(
        f"{spelled(tool.name)} : {tool.description} ( {_parameters(json_schema(tool.parameters))} )" for tool in tools
    )


def _parameters(schema: Mapping[str, Any]) -> str:
    rows = schema.get("properties")
    return " ; ".join(_parameter(name, row) for name, row in rows.items()) if isinstance(rows, Mapping) else ""


def _parameter(name: str, row: Any) -> str:
    row = row if isinstance(row, Mapping) else {}
    kind = str(row.get("type", "any"))
    if "enum" in row:
        kind = "one of " + " ".join(map(str, row["enum"]))
    elif kind == "array":
        kind = f"list of {row.get('items', {}).get('type', 'any')}"
    text = f"{spelled(name)} {kind} {row.get('description', '')}".rstrip()
    if "properties" in row:
        text += f" ( {_parameters(row)} )"
    return f"{text} = {row['default']}" if "default" in row else text


def show_messages(messages: Sequence[Message], *, write: Callable[[Sequence[Call]], str] = encode_words) -> str:
    """A conversation, one message a line, after who speaks.

    Args:
        write: how calls of the assistant are written.
    """
    return "\n".join(f"{one.role} : {_said(one, write)}" for one in messages)


def _said(message: Message, write: Callable[[Sequence[Call]], str]) -> str:
    return " ".join(filter(None, (message.text, write(message.calls) if message.calls else "")))
