"""The words form: tools and calls written in words that a small model knows, with names split into words.

    find hotel : search for a hotel ( city string the city ; nights integer number of nights ; breakfast boolean whether
    breakfast is included = False )
    user : please find a hotel in oslo for 3 nights
        ->  [find hotel(city="oslo", nights=3)]

It differs from the Python form in one respect: a space replaces an underscore of a name. A model over words can
thus spell an unseen name with words from its prompt. Spaces are ignored, so the spaced output of such a model
(`[ find hotel ( city = " oslo " , nights = 3 ) ]`) reads the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.grade.call_forms import decode_calls, spell_name
from evolvent.messages import Call, Message, Tool
from evolvent.schemas import json_schema

__all__ = ["decode_words", "encode_words", "resolve_names", "show_messages", "show_tools"]

MAX_TEXT_LENGTH = 65_536  # characters of a text that is read
_PIECE = re.compile(r"\"[^\"]*\"|'[^']*'|\w+|[^\w\s]")


def encode_words(calls: Sequence[Call]) -> str:
    """Writes calls in the words form, on one line; no calls are `[]`."""
    return "[" + ", ".join(f"{spell_name(call.name)}({_encode_arguments(call.arguments)})" for call in calls) + "]"


def _encode_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{spell_name(name)}={_encode_value(value)}" for name, value in arguments.items())


def _encode_value(value: Any) -> str:
    if isinstance(value, Mapping):
        items = [f"{json.dumps(spell_name(str(name)))}: {_encode_value(item)}" for name, item in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_encode_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def decode_words(text: str) -> tuple[Call, ...]:
    """Reads the words form, and the Python form; names come with underscores.

    Raises:
        InvalidAction: no calls can be read, or the text is longer than 65,536 characters.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidAction("a text that is too long for calls", value=len(text), expected=f"at most {MAX_TEXT_LENGTH}")
    parts: list[str] = []
    may_continue = False  # whether the part before is a word that another one may continue
    for piece in _PIECE.findall(text):
        if piece[0] in "\"'" and len(piece) > 1:
            parts.append(json.dumps(" ".join(piece[1:-1].split()), ensure_ascii=False))
            may_continue = False
            continue
        is_word = bool(re.match(r"\w", piece))
        if may_continue and is_word:
            if parts[-1][0].isdigit():
                raise InvalidAction("two words where one value belongs", value=f"{parts[-1]} {piece}", expected="one")
            parts.append("_")
        parts.append(piece)
        may_continue = is_word
    return decode_calls("".join(parts), form="python")


def resolve_names(calls: Sequence[Call], tools: Sequence[Tool]) -> tuple[Call, ...]:
    """Restores the exact names of tools and parameters in calls whose names differ only in spelling."""
    tools_by_spelling = {spell_name(tool.name): tool for tool in reversed(tools)}
    names = {tool.name for tool in tools}
    resolved_calls = []
    for call in calls:
        tool = None if call.name in names else tools_by_spelling.get(spell_name(call.name))
        tool = tool or next((offered_tool for offered_tool in tools if offered_tool.name == call.name), None)
        if tool is not None:
            call = Call(tool.name, _resolve_arguments(call.arguments, tool.parameters), call.id)
        resolved_calls.append(call)
    return tuple(resolved_calls)


def _resolve_arguments(value: Any, schema: Any) -> Any:
    if isinstance(value, list) and isinstance(schema, Mapping):
        return [_resolve_arguments(item, schema.get("items")) for item in value]
    if not isinstance(value, Mapping) or not isinstance(schema, Mapping):
        return value
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    names_by_spelling = {spell_name(name): name for name in reversed(list(properties))}
    resolved_values = {
        name if name in properties else names_by_spelling.get(spell_name(str(name)), name): item
        for name, item in value.items()
    }
    return {name: _resolve_arguments(item, properties.get(name)) for name, item in resolved_values.items()}


# ---------------------------------------------------------------------- what is seen


def show_tools(tools: Sequence[Tool]) -> str:
    """Renders tools, one per line: name, description, and parameters with type, description and default.

    Raises:
        SampleInvalid: parameters that are no schema in any dialect that `schemas` reads.
    """
    return "\n".join(
        f"{spell_name(tool.name)} : {tool.description} ( {_render_parameters(json_schema(tool.parameters))} )"
        for tool in tools
    )


def _render_parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    return (
        " ; ".join(_render_parameter(name, row) for name, row in properties.items())
        if isinstance(properties, Mapping)
        else ""
    )


def _render_parameter(name: str, schema: Any) -> str:
    schema = schema if isinstance(schema, Mapping) else {}
    kind = str(schema.get("type", "any"))
    if "enum" in schema:
        kind = "one of " + " ".join(map(str, schema["enum"]))
    elif kind == "array":
        kind = f"list of {schema.get('items', {}).get('type', 'any')}"
    text = f"{spell_name(name)} {kind} {schema.get('description', '')}".rstrip()
    if "properties" in schema:
        text += f" ( {_render_parameters(schema)} )"
    return f"{text} = {schema['default']}" if "default" in schema else text


def show_messages(messages: Sequence[Message], *, write: Callable[[Sequence[Call]], str] = encode_words) -> str:
    """Renders a conversation, one message per line with its speaker.

    Args:
        write: renders the calls of the assistant.
    """
    return "\n".join(f"{message.role} : {_render_content(message, write)}" for message in messages)


def _render_content(message: Message, write: Callable[[Sequence[Call]], str]) -> str:
    return " ".join(filter(None, (message.text, write(message.calls) if message.calls else "")))
