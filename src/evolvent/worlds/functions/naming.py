"""Other names: a conversation told again with tools and parameters called otherwise, everywhere at once.

Descriptions, values and what users say stay, so that a tool and its parameters can be found by what they do alone. New
names are two syllables that mean nothing; a model over words knows all syllables, and met hardly any of their pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from evolvent.messages import Call, Message, Tool
from evolvent.worlds.functions.tasks import Talk, Turn

__all__ = ["SYLLABLES", "canonical_names", "fresh_names", "renamed_talk"]

SYLLABLES = tuple(first + rest for first in "bdfgklmnprstvz" for rest in ("ax", "ov", "uk"))
Names = Mapping[str, tuple[str, Mapping[str, str]]]


def _parameters(schema: Any) -> list[str]:
    """The names of all parameters of a schema, nested ones too, each once."""
    found: dict[str, None] = {}
    if isinstance(schema, Mapping):
        rows = schema.get("properties")
        for name, row in rows.items() if isinstance(rows, Mapping) else ():
            found |= dict.fromkeys([name, *_parameters(row)])
        found |= dict.fromkeys(_parameters(schema.get("items")))
    return list(found)


def fresh_names(tools: Sequence[Tool], rng: Random) -> Names:
    """New names: tool -> (its name, parameter -> its name). No two tools share one, nor two parameters of a tool."""
    names = iter(rng.sample(range(len(SYLLABLES) ** 2), len(tools)))
    found: dict[str, tuple[str, Mapping[str, str]]] = {}
    for tool in tools:
        parameters = _parameters(tool.parameters)
        own = rng.sample(range(len(SYLLABLES) ** 2), len(parameters))
        found[tool.name] = (_pair(next(names)), dict(zip(parameters, map(_pair, own), strict=True)))
    return found


def _pair(number: int) -> str:
    return f"{SYLLABLES[number // len(SYLLABLES)]}_{SYLLABLES[number % len(SYLLABLES)]}"


def canonical_names(tools: Sequence[Tool]) -> Names:
    """Names that tell nothing but the order: equal for conversations that differ in names only."""
    return {
        tool.name: (f"t{place}", {name: f"p{n}" for n, name in enumerate(_parameters(tool.parameters))})
        for place, tool in enumerate(tools)
    }


def renamed_talk(talk: Talk, names: Names) -> Talk:
    """The conversation under other names: tools, schemas, and calls, earlier ones too."""
    tools = []
    for tool in talk.tools:
        name, own = names[tool.name]
        tools.append(Tool(name, tool.description, _schema(tool.parameters, own)))
    turns = tuple(Turn(_calls(turn.calls, names), _messages(turn.then, names)) for turn in talk.turns)
    return Talk(_messages(talk.messages, names), tuple(tools), turns)


def _schema(schema: Any, own: Mapping[str, str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    new = dict(schema)
    if isinstance(schema.get("properties"), Mapping):
        new["properties"] = {own[name]: _schema(row, own) for name, row in schema["properties"].items()}
    if isinstance(schema.get("required"), list):
        new["required"] = [own.get(name, name) for name in schema["required"]]
    if "items" in schema:
        new["items"] = _schema(schema["items"], own)
    return new


def _calls(calls: Sequence[Call], names: Names) -> tuple[Call, ...]:
    """A call of a tool that is not offered (earlier in the conversation) keeps its names."""
    new = []
    for call in calls:
        name, own = names.get(call.name, (call.name, {}))
        new.append(Call(name, _values(call.arguments, own), call.id))
    return tuple(new)


def _values(value: Any, own: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {own.get(name, name): _values(item, own) for name, item in value.items()}
    return [_values(item, own) for item in value] if isinstance(value, list) else value


def _messages(messages: Sequence[Message], names: Names) -> tuple[Message, ...]:
    return tuple(
        Message(one.role, one.content, _calls(one.calls, names), one.tool_call_id, one.extra) for one in messages
    )
