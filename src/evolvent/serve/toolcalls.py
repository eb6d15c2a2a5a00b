"""The tools of a world, and the conversion between a call of a tool and the text of an action.

A tool world lists the tools of a task (`toolbox`), and reads `NAME with Action Input: {json}` unless it writes calls
itself (`render`). Every other text world has one tool, `act`, whose argument is the action. Agents in the world of a
tool server (MCP) write calls as `CallGrammar` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from evolvent.errors import EvolventError, InvalidAction, SampleInvalid, boundary, find_nearest, user_boundary
from evolvent.grade.markdown import unwrap
from evolvent.grade.thoughts import split_thoughts
from evolvent.messages import Call, Tool
from evolvent.serve.wire import decode_json, to_json
from evolvent.trajectory import Task
from evolvent.worlds.base import Parsed, World

__all__ = [
    "ACT",
    "CallGrammar",
    "CallWriter",
    "HasTools",
    "ToolSet",
    "find_tool",
    "format_action",
    "format_call",
    "list_tools",
    "parse_call",
]

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")  # what MCP allows, and a colon
ACT = Tool(
    "act",
    "Take one action in the environment; the answer is what is seen next.",
    {
        "type": "object",
        "properties": {"action": {"type": "string", "description": "The text of the action."}},
        "required": ["action"],
        "additionalProperties": False,
    },
)


class ToolSet(Protocol):
    """The tools of a task."""

    @property
    def tools(self) -> Sequence[Tool]: ...


@runtime_checkable
class HasTools(Protocol):
    """A world whose actions are calls of tools."""

    def toolbox(self, task: Task) -> ToolSet:
        """Returns the tools of a task."""
        ...


@runtime_checkable
class CallWriter(Protocol):
    """A world that defines how a call is written as an action."""

    def render(self, call: Call) -> str:
        """Returns the text of the action."""
        ...


def list_tools(world: World, task: Task) -> tuple[Tool, ...]:
    """Returns the tools of a task; `(ACT,)` if the world has none.

    Raises:
        EvolventError: the world failed to list them.
    """
    if not isinstance(world, HasTools):
        return (ACT,)
    with user_boundary(EvolventError, f"world {world.name!r} failed in toolbox"):
        return tuple(world.toolbox(task).tools)


def find_tool(tools: Sequence[Tool], name: object) -> Tool:
    """Returns the tool of this name; raises InvalidAction with the nearest name if there is none."""
    for tool in tools:
        if tool.name == name:
            return tool
    names = [tool.name for tool in tools]
    similar = find_nearest(str(name), names)
    raise InvalidAction(
        "an unknown tool",
        value=str(name),
        expected=", ".join(sorted(names)),
        hint=f"did you mean {similar!r}?" if similar else None,
    )


def format_action(world: World, call: Call, tools: Sequence[Tool]) -> str:
    """Formats a call as the text of an action.

    Arguments of a wrong type or missing arguments are the world's to answer; only arguments that cannot be written are
    refused.

    Raises:
        InvalidAction: no such tool, or arguments that are not JSON values.
    """
    find_tool(tools, call.name)
    try:
        arguments = to_json(call.arguments)
    except SampleInvalid as error:
        raise InvalidAction(
            "arguments that are no JSON", value=str(error), expected="an object of JSON values"
        ) from error
    full_call = Call(call.name, arguments if isinstance(arguments, dict) else {}, call.id)
    if not isinstance(world, HasTools):
        action = full_call.arguments.get("action")
        if not isinstance(action, str):
            raise InvalidAction("the action is not text", value=action, expected='{"action": "the text"}')
        return action
    if isinstance(world, CallWriter):
        with boundary(InvalidAction, f"world {world.name!r} cannot write this call"):
            return world.render(full_call)
    name, _, inputs = format_call(full_call).partition(" ")
    return f"{name} with Action Input: {inputs}"


def format_call(call: Call) -> str:
    """Formats a call in its compact form, on one line: `NAME {json}`."""
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)}"


def parse_call(text: str) -> Call:
    """Parses the call in a text: `NAME {json}` or `NAME`, also as `NAME with Action Input: {json}`.

    Raises:
        InvalidAction: no name, or arguments that are not a JSON object.
    """
    head, _, arguments_text = text.strip().partition(" ")
    arguments_text = arguments_text.strip().removeprefix("with Action Input:").strip()
    brace = head.find("{")  # a name and its arguments without a space between
    if brace > 0:
        head, arguments_text = head[:brace], f"{head[brace:]} {arguments_text}".strip()
    arguments: Any = {}
    if arguments_text:
        try:
            arguments = decode_json(arguments_text)
        except SampleInvalid as error:
            raise _parse_error(text) from error
    if not _NAME.fullmatch(head) or not isinstance(arguments, Mapping):
        raise _parse_error(text)
    return Call(head, dict(arguments))


def _parse_error(text: str) -> InvalidAction:
    return InvalidAction("no call of a tool", value=text, expected='NAME {"argument": value}')


_ACTION_LABEL = re.compile(r"(?:\*\*|__)?Action(?:\*\*|__)?:(?:\*\*|__)?")
_THOUGHT_LABEL = re.compile(r"\A(?:\*\*|__)?Thought(?:\*\*|__)?:(?:\*\*|__)?")


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """A thought, then a call: the text after the last line that begins with `Action:`, else the last line."""

    def parse(self, text: str) -> Parsed:
        visible, inner_thought = split_thoughts(text)
        lines = visible.split("\n")
        action_lines = [number for number, line in enumerate(lines) if _ACTION_LABEL.match(line)]
        start = action_lines[-1] if action_lines else len(lines) - 1
        call = parse_call(unwrap(_ACTION_LABEL.sub("", "\n".join(lines[start:]), count=1), ("`",)))
        thought = _THOUGHT_LABEL.sub("", "\n".join(lines[:start]).strip(), count=1).strip()
        return Parsed(format_call(call), "\n\n".join(filter(None, (inner_thought, thought))) or None)

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n" if parsed.thought else ""
        return f"{thought}Action: {parsed.action}"
