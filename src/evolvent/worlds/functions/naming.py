"""Renaming: a conversation with other names of tools and parameters, replaced everywhere at once.

Descriptions, values and user messages stay, so that a tool and its parameters can be found by their function
alone. New names are two meaningless syllables; a model over words knows all syllables, but has seen hardly any
pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from evolvent.messages import Call, Message, Tool
from evolvent.worlds.functions.tasks import CallConversation, Turn

__all__ = ["SYLLABLES", "canonical_names", "fresh_names", "rename_talk"]

SYLLABLES = tuple(onset + ending for onset in "bdfgklmnprstvz" for ending in ("ax", "ov", "uk"))
Names = Mapping[str, tuple[str, Mapping[str, str]]]


def _parameter_names(schema: Any) -> list[str]:
    """Returns the names of all parameters of a schema, nested parameters included, without duplicates."""
    names: dict[str, None] = {}
    if isinstance(schema, Mapping):
        rows = schema.get("properties")
        for name, row in rows.items() if isinstance(rows, Mapping) else ():
            names |= dict.fromkeys([name, *_parameter_names(row)])
        names |= dict.fromkeys(_parameter_names(schema.get("items")))
    return list(names)


def fresh_names(tools: Sequence[Tool], rng: Random) -> Names:
    """Draws new names: tool -> (its name, parameter -> its name). Names are unique among tools and within a tool."""
    names = iter(rng.sample(range(len(SYLLABLES) ** 2), len(tools)))
    new_names: dict[str, tuple[str, Mapping[str, str]]] = {}
    for tool in tools:
        parameters = _parameter_names(tool.parameters)
        parameter_numbers = rng.sample(range(len(SYLLABLES) ** 2), len(parameters))
        new_names[tool.name] = (
            _syllable_pair(next(names)),
            dict(zip(parameters, map(_syllable_pair, parameter_numbers), strict=True)),
        )
    return new_names


def _syllable_pair(number: int) -> str:
    return f"{SYLLABLES[number // len(SYLLABLES)]}_{SYLLABLES[number % len(SYLLABLES)]}"


def canonical_names(tools: Sequence[Tool]) -> Names:
    """Returns names that depend only on the order, equal for conversations that differ in names only."""
    return {
        tool.name: (f"t{index}", {name: f"p{n}" for n, name in enumerate(_parameter_names(tool.parameters))})
        for index, tool in enumerate(tools)
    }


def rename_talk(talk: CallConversation, names: Names) -> CallConversation:
    """Renames tools and parameters in a conversation: in schemas and in calls, earlier calls included."""
    tools = []
    for tool in talk.tools:
        name, parameter_names = names[tool.name]
        tools.append(Tool(name, tool.description, _rename_schema(tool.parameters, parameter_names)))
    turns = tuple(
        Turn(_rename_calls(turn.calls, names), _rename_messages(turn.messages_after, names)) for turn in talk.turns
    )
    return CallConversation(_rename_messages(talk.messages, names), tuple(tools), turns)


def _rename_schema(schema: Any, parameter_names: Mapping[str, str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    renamed = dict(schema)
    if isinstance(schema.get("properties"), Mapping):
        renamed["properties"] = {
            parameter_names[name]: _rename_schema(row, parameter_names) for name, row in schema["properties"].items()
        }
    if isinstance(schema.get("required"), list):
        renamed["required"] = [parameter_names.get(name, name) for name in schema["required"]]
    if "items" in schema:
        renamed["items"] = _rename_schema(schema["items"], parameter_names)
    return renamed


def _rename_calls(calls: Sequence[Call], names: Names) -> tuple[Call, ...]:
    """Renames calls; a call of a tool that is no longer offered keeps its names."""
    renamed = []
    for call in calls:
        name, parameter_names = names.get(call.name, (call.name, {}))
        renamed.append(Call(name, _rename_values(call.arguments, parameter_names), call.id))
    return tuple(renamed)


def _rename_values(value: Any, parameter_names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {parameter_names.get(name, name): _rename_values(item, parameter_names) for name, item in value.items()}
    return [_rename_values(item, parameter_names) for item in value] if isinstance(value, list) else value


def _rename_messages(messages: Sequence[Message], names: Names) -> tuple[Message, ...]:
    return tuple(
        Message(message.role, message.content, _rename_calls(message.calls, names), message.tool_call_id, message.extra)
        for message in messages
    )
