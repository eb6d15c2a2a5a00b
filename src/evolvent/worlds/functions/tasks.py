"""Tasks: a conversation as the spec of a task, parsed and checked, and calls without arguments that repeat a
default.

A spec is complete, so that any conversation can be played, whoever wrote it, drew it or masked its names:

    {"messages": [...], "tools": [...], "rounds": [{"calls": [{"name", "arguments"}], "then": [...]}, ...]}

`messages` is the conversation up to the first answer and `then` the messages after an answer (results, the next
request), both in OpenAI's form; `rounds` are the expected answers. Playing a spec does not need the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import json_schema
from evolvent.trajectory import Json, JsonObject, Task, canonical_json
from evolvent.worlds.functions.requests import Draft

__all__ = [
    "CallConversation",
    "Turn",
    "build_sample",
    "build_spec",
    "conversation_of_draft",
    "conversation_of_sample",
    "parse_spec",
    "remove_defaults",
]

_FIELDS = ("messages", "tools", "rounds")


@dataclass(frozen=True, slots=True)
class Turn:
    """An expected answer and the messages that follow it (none after the last)."""

    calls: tuple[Call, ...]
    messages_after: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class CallConversation:
    """A conversation: the messages before the first answer, the tools, and the turns."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]


def conversation_of_draft(draft: Draft) -> CallConversation:
    """Builds the conversation of a draft; calls are numbered, and results are tool messages of canonical JSON."""
    turns = []
    for index, round_ in enumerate(draft.rounds):
        calls = tuple(
            Call(call.name, call.arguments, f"call_{index}_{call_index}")
            for call_index, call in enumerate(round_.calls)
        )
        messages_after: tuple[Message, ...] = ()
        if index + 1 < len(draft.rounds):
            results = zip(calls, round_.results, strict=True)
            messages_after = tuple(
                Message("tool", canonical_json(result), tool_call_id=call.id) for call, result in results
            )
            messages_after += (Message("user", draft.rounds[index + 1].user),)
        turns.append(Turn(calls, messages_after))
    return CallConversation((Message("user", draft.rounds[0].user),), draft.tools, tuple(turns))


def build_spec(talk: CallConversation) -> dict[str, Json]:
    """Builds the spec of a conversation from JSON values."""
    return {
        "messages": [message.as_openai() for message in talk.messages],
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in talk.tools
        ],
        "rounds": [
            {
                "calls": [_encode_call(call) for call in turn.calls],
                "then": [message.as_openai() for message in turn.messages_after],
            }
            for turn in talk.turns
        ],
    }


def _encode_call(call: Call) -> dict[str, Json]:
    row: dict[str, Json] = {"name": call.name, "arguments": dict(call.arguments)}
    return row if call.id is None else {**row, "id": call.id}


def parse_spec(spec: JsonObject) -> CallConversation:
    """Parses the conversation of a spec.

    Raises:
        ConfigError: a part is missing or malformed, or a call uses a tool that is not offered.
    """
    problems = [
        Problem(field, f"got {spec.get(field)!r}, expected a list")
        for field in _FIELDS
        if not isinstance(spec.get(field), list)
    ]
    if not problems and not spec["rounds"]:
        problems.append(Problem("rounds", "got no rounds, expected at least one"))
    if problems:
        raise ConfigError(problems)
    try:
        messages = tuple(map(Message.of_openai, spec["messages"]))
        tools = tuple(Tool.of_openai({"function": row}) for row in spec["tools"])
        turns = tuple(map(_parse_turn, spec["rounds"]))
        for tool in tools:
            json_schema(tool.parameters)
    except SampleInvalid as error:
        raise ConfigError("invalid conversation", value=str(error), expected="messages, tools and rounds") from error
    names = {tool.name for tool in tools}
    problems = [Problem("tools", f"{len(tools)} tools have {len(names)} names", "use unique names")] * (
        len(names) < len(tools)
    )
    problems += [
        Problem("rounds", f"calls {call.name!r}, which is not offered", "add the tool to the list")
        for turn in turns
        for call in turn.calls
        if call.name not in names
    ]
    if problems:
        raise ConfigError(problems)
    return CallConversation(messages, tools, turns)


def _parse_turn(row: Any) -> Turn:
    calls, messages_after = (row.get(name, []) if isinstance(row, Mapping) else None for name in ("calls", "then"))
    if not isinstance(calls, list) or not isinstance(messages_after, list):
        raise SampleInvalid("invalid round", value=row, expected='{"calls": [...], "then": [...]}')
    return Turn(tuple(map(_parse_call, calls)), tuple(map(Message.of_openai, messages_after)))


def _parse_call(row: Any) -> Call:
    return Call.of_openai({"function": row, "id": row.get("id") if isinstance(row, Mapping) else None})


def remove_defaults(calls: Sequence[Call], tools: Sequence[Tool]) -> tuple[Call, ...]:
    """Removes optional arguments that repeat their default, because stated or not, they mean the same."""
    schemas = {tool.name: json_schema(tool.parameters) for tool in tools}
    return tuple(
        replace(call, arguments=_nondefault_arguments(call, schemas[call.name])) if call.name in schemas else call
        for call in calls
    )


def _nondefault_arguments(call: Call, schema: Mapping[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())

    def is_redundant(name: str, value: Any) -> bool:
        property_schema = properties.get(name)
        if name in required or not isinstance(property_schema, Mapping) or "default" not in property_schema:
            return False
        return type(value) is type(property_schema["default"]) and bool(value == property_schema["default"])

    return {name: value for name, value in call.arguments.items() if not is_redundant(name, value)}


# ---------------------------------------------------------------------- as data


def build_sample(task: Task, turn: int = -1) -> CallSample:
    """Builds the sample of a task's turn: the conversation so far, the tools, and the expected calls.

    Args:
        turn: index from 0; -1: the last turn.
    Raises:
        ConfigError: the spec is invalid, or the turn does not exist.
    """
    talk = parse_spec(task.spec)
    if not -len(talk.turns) <= turn < len(talk.turns):
        raise ConfigError("turn out of range", value=turn, expected=f"below {len(talk.turns)}")
    index = turn % len(talk.turns)
    messages = list(talk.messages)
    for past_turn in talk.turns[:index]:
        messages += [Message("assistant", None, past_turn.calls), *past_turn.messages_after]
    name = task.id if len(talk.turns) == 1 else f"{task.id}/{index}"
    return CallSample(name, tuple(messages), talk.tools, talk.turns[index].calls)


def conversation_of_sample(sample: CallSample) -> CallConversation:
    """Converts a sample to a conversation of one turn; its messages hold earlier calls and results."""
    return CallConversation(sample.messages, sample.tools, (Turn(sample.calls),))
