"""The tools of a world: which it offers, and a call of one as the text of an action, both ways.

A tool world tells the tools of a task (`toolbox`), and reads `NAME with Action Input: {json}` unless it writes calls
itself (`render`). Every other text world has one tool, `act`, whose argument is the action. Agents in the world of a
tool server (MCP) write calls as `CallGrammar` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from evolvent.errors import EvolventError, InvalidAction, SampleInvalid, boundary, nearest
from evolvent.messages import Call, Tool
from evolvent.serve.wire import decoded, plain
from evolvent.trajectory import Task
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = [
    "ACT",
    "CallGrammar",
    "CallWriter",
    "HasTools",
    "ToolSet",
    "action_of",
    "call_of",
    "named",
    "tools_of",
    "written",
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
        """The tools of a task."""
        ...


@runtime_checkable
class CallWriter(Protocol):
    """A world that says how a call is written as an action."""

    def render(self, call: Call) -> str:
        """The text of the action."""
        ...


def tools_of(world: World, task: Task) -> tuple[Tool, ...]:
    """The tools of a task; `(ACT,)` where the world has none.

    Raises:
        EvolventError: the world failed to tell.
    """
    if not isinstance(world, HasTools):
        return (ACT,)
    with boundary(EvolventError, f"world {world.name!r} failed in toolbox"):
        return tuple(world.toolbox(task).tools)


def named(tools: Sequence[Tool], name: object) -> Tool:
    """The tool of this name; InvalidAction with the nearest one where there is none."""
    for tool in tools:
        if tool.name == name:
            return tool
    known = [tool.name for tool in tools]
    near = nearest(str(name), known)
    raise InvalidAction(
        "an unknown tool",
        value=str(name),
        expected=", ".join(sorted(known)),
        hint=f"did you mean {near!r}?" if near else None,
    )


def action_of(world: World, call: Call, tools: Sequence[Tool]) -> str:
    """The text of the action that a call is.

    Arguments of a wrong type or too few of them are the world's to answer; only what cannot be written is refused.

    Raises:
        InvalidAction: no such tool, or arguments that are no JSON values.
    """
    named(tools, call.name)
    try:
        arguments = plain(call.arguments)
    except SampleInvalid as error:
        raise InvalidAction(
            "arguments that are no JSON", value=str(error), expected="an object of JSON values"
        ) from error
    whole = Call(call.name, arguments if isinstance(arguments, dict) else {}, call.id)
    if not isinstance(world, HasTools):
        action = whole.arguments.get("action")
        if not isinstance(action, str):
            raise InvalidAction("no text of an action", value=action, expected='{"action": "the text"}')
        return action
    if isinstance(world, CallWriter):
        with boundary(InvalidAction, f"world {world.name!r} cannot write this call"):
            return world.render(whole)
    name, _, inputs = written(whole).partition(" ")
    return f"{name} with Action Input: {inputs}"


def written(call: Call) -> str:
    """The compact form of a call, on one line: `NAME {json}`."""
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)}"


def call_of(text: str) -> Call:
    """The call that a text holds: `NAME {json}` or `NAME`, also as `NAME with Action Input: {json}`.

    Raises:
        InvalidAction: no name, or arguments that are no JSON object.
    """
    head, _, rest = text.strip().partition(" ")
    rest = rest.strip().removeprefix("with Action Input:").strip()
    brace = head.find("{")  # a name and its arguments without a space between
    if brace > 0:
        head, rest = head[:brace], f"{head[brace:]} {rest}".strip()
    arguments: Any = {}
    if rest:
        try:
            arguments = decoded(rest)
        except SampleInvalid as error:
            raise _unreadable(text) from error
    if not _NAME.fullmatch(head) or not isinstance(arguments, Mapping):
        raise _unreadable(text)
    return Call(head, dict(arguments))


def _unreadable(text: str) -> InvalidAction:
    return InvalidAction("no call of a tool", value=text, expected='NAME {"argument": value}')


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """A thought, then a call: what follows the last line that begins with `Action:`, else the last line."""

    def parse(self, text: str) -> Parsed:
        lines = text.strip().split("\n")
        marked = [number for number, line in enumerate(lines) if line.startswith("Action:")]
        start = marked[-1] if marked else len(lines) - 1
        call = call_of("\n".join(lines[start:]).removeprefix("Action:"))
        thought = "\n".join(lines[:start]).strip().removeprefix("Thought:").strip()
        return Parsed(written(call), thought or None)

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n" if parsed.thought else ""
        return f"{thought}Action: {parsed.action}"
