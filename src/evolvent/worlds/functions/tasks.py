"""Tasks: a conversation as the spec of a task, read and checked, and calls without what only repeats a default.

A spec says everything, so that any conversation can be played, whoever wrote it, drew it or masked its names:

    {"messages": [...], "tools": [...], "rounds": [{"calls": [{"name", "arguments"}], "then": [...]}, ...]}

`messages` is the conversation up to the first answer and `then` what follows an answer (results, the next request),
both in OpenAI's form; `rounds` are the answers that are expected. Nothing of the generator is needed to play it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import json_schema
from evolvent.trajectory import Json, Task, canonical_json
from evolvent.worlds.functions.requests import Draft

__all__ = ["Talk", "Turn", "read_talk", "sample_at", "spec_of", "talk_of", "talk_of_sample", "without_defaults"]

_FIELDS = ("messages", "tools", "rounds")


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer that is expected, and the messages that follow it (none after the last)."""

    calls: tuple[Call, ...]
    then: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: what was said before the first answer, the tools, and the turns."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    turns: tuple[Turn, ...]


def talk_of(draft: Draft) -> Talk:
    """The conversation of a draft; calls are numbered, and results are tool messages of canonical JSON."""
    turns = []
    for place, one in enumerate(draft.rounds):
        calls = tuple(Call(call.name, call.arguments, f"call_{place}_{n}") for n, call in enumerate(one.calls))
        then: tuple[Message, ...] = ()
        if place + 1 < len(draft.rounds):
            results = zip(calls, one.results, strict=True)
            then = tuple(Message("tool", canonical_json(result), tool_call_id=call.id) for call, result in results)
            then += (Message("user", draft.rounds[place + 1].user),)
        turns.append(Turn(calls, then))
    return Talk((Message("user", draft.rounds[0].user),), draft.tools, tuple(turns))


def spec_of(talk: Talk) -> dict[str, Json]:
    """A conversation as the spec of a task: JSON values."""
    return {
        "messages": [message.as_openai() for message in talk.messages],
        "tools": [
            {"name": one.name, "description": one.description, "parameters": dict(one.parameters)} for one in talk.tools
        ],
        "rounds": [
            {
                "calls": [_written(call) for call in turn.calls],
                "then": [message.as_openai() for message in turn.then],
            }
            for turn in talk.turns
        ],
    }


def _written(call: Call) -> dict[str, Json]:
    row: dict[str, Json] = {"name": call.name, "arguments": dict(call.arguments)}
    return row if call.id is None else {**row, "id": call.id}


def read_talk(spec: Mapping[str, Any]) -> Talk:
    """The conversation of a spec.

    Raises:
        ConfigError: something is missing or malformed, or a call of a tool that is not offered.
    """
    problems = [
        Problem(field, f"{spec.get(field)!r} is no list", "give a list")
        for field in _FIELDS
        if not isinstance(spec.get(field), list)
    ]
    if not problems and not spec["rounds"]:
        problems.append(Problem("rounds", "nobody is to answer", "give at least one round"))
    if problems:
        raise ConfigError(problems)
    try:
        messages = tuple(map(Message.of_openai, spec["messages"]))
        tools = tuple(Tool.of_openai({"function": row}) for row in spec["tools"])
        turns = tuple(map(_turn, spec["rounds"]))
        for tool in tools:
            json_schema(tool.parameters)
    except SampleInvalid as error:
        raise ConfigError(
            "a conversation that cannot be played", value=str(error), expected="messages, tools and rounds"
        ) from error
    names = {tool.name for tool in tools}
    problems = [Problem("tools", f"{len(tools)} tools have {len(names)} names", "give each its own")] * (
        len(names) < len(tools)
    )
    problems += [
        Problem("rounds", f"a call of {call.name!r}, which is not offered", "offer it")
        for turn in turns
        for call in turn.calls
        if call.name not in names
    ]
    if problems:
        raise ConfigError(problems)
    return Talk(messages, tools, turns)


def _turn(row: Any) -> Turn:
    calls, then = (row.get(name, []) if isinstance(row, Mapping) else None for name in ("calls", "then"))
    if not isinstance(calls, list) or not isinstance(then, list):
        raise SampleInvalid("a round that is none", value=row, expected='{"calls": [...], "then": [...]}')
    return Turn(tuple(map(_call, calls)), tuple(map(Message.of_openai, then)))


def _call(row: Any) -> Call:
    return Call.of_openai({"function": row, "id": row.get("id") if isinstance(row, Mapping) else None})


def without_defaults(calls: Sequence[Call], tools: Sequence[Tool]) -> tuple[Call, ...]:
    """The calls without optional arguments that only repeat their default: said or not, they mean the same."""
    known = {tool.name: json_schema(tool.parameters) for tool in tools}
    return tuple(
        replace(call, arguments=_told(call, known[call.name])) if call.name in known else call for call in calls
    )


def _told(call: Call, schema: Mapping[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())

    def silent(name: str, value: Any) -> bool:
        row = properties.get(name)
        if name in required or not isinstance(row, Mapping) or "default" not in row:
            return False
        return type(value) is type(row["default"]) and bool(value == row["default"])

    return {name: value for name, value in call.arguments.items() if not silent(name, value)}


# ---------------------------------------------------------------------- as data


def sample_at(task: Task, turn: int = -1) -> CallSample:
    """The sample that a turn of a task is: the conversation so far, the tools, and the calls that are right.

    Args:
        turn: from 0; -1: the last one.
    Raises:
        ConfigError: a spec that is none, or a turn that there is not.
    """
    talk = read_talk(task.spec)
    if not -len(talk.turns) <= turn < len(talk.turns):
        raise ConfigError("a turn that the task does not have", value=turn, expected=f"below {len(talk.turns)}")
    place = turn % len(talk.turns)
    messages = list(talk.messages)
    for past in talk.turns[:place]:
        messages += [Message("assistant", None, past.calls), *past.then]
    name = task.id if len(talk.turns) == 1 else f"{task.id}/{place}"
    return CallSample(name, tuple(messages), talk.tools, talk.turns[place].calls)


def talk_of_sample(sample: CallSample) -> Talk:
    """A sample as a conversation of one turn; earlier calls and results stand in its messages."""
    return Talk(sample.messages, sample.tools, (Turn(sample.calls),))
