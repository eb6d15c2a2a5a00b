"""Messages, tools and calls of a conversation, and their OpenAI form (reading and writing are exact inverses)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import SampleInvalid
from evolvent.trajectory import JsonObject, canonical_json

__all__ = ["ROLES", "Call", "CallSample", "Instructions", "Message", "Tool", "parse_weight"]

ROLES = ("system", "developer", "user", "assistant", "tool")


_WEIGHT_WORDS = {"true": 1.0, "false": 0.0, "null": None, "none": None, "": None}


def _sample_error(message: str, value: object, expected: str) -> SampleInvalid:
    return SampleInvalid(message, value=value, expected=expected)


def parse_weight(value: object) -> float | None:
    """Parses the learning weight of a turn, as data sets spell it in `weight` and `loss`; None: not given.

    Tables fill missing fields with null, and text formats write every value as text.

    Raises:
        SampleInvalid: another text, or a number that is not finite.

    >>> [parse_weight(value) for value in (None, "null", 0, 0.0, "0.0", False, "false", True, 0.5)]
    [None, None, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5]
    """
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _WEIGHT_WORDS:
            return _WEIGHT_WORDS[word]
    elif value is None:
        return None
    try:
        weight = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        weight = math.nan
    if not math.isfinite(weight):
        raise _sample_error("the weight of a reply is not a number", value, "a finite number, true, false or null")
    return weight


class Instructions(str):
    """Instructions of a conversation, with example turns that stand before its first observation.

    Attributes:
        examples: the text that was read and the reply to it, of every example turn in order.
        closing: what was read at the end of the last example; it stands in one text with the first observation.

    >>> instructions = Instructions("Add.", examples=[("1 + 1", "2")], closing="right")
    >>> instructions.open_with("2 + 3")
    ([('1 + 1', '2')], 'right\\n\\n2 + 3')
    """

    examples: tuple[tuple[str, str], ...]
    closing: str

    def __new__(cls, text: str, examples: Iterable[tuple[str, str]] = (), closing: str = "") -> Instructions:
        instructions = super().__new__(cls, text)
        instructions.examples, instructions.closing = tuple(examples), closing
        return instructions

    def __getnewargs__(  # type: ignore[override]
        self,
    ) -> tuple[str, tuple[tuple[str, str], ...], str]:
        return str(self), self.examples, self.closing

    def open_with(self, observation: str) -> tuple[list[tuple[str, str]], str]:
        """Returns the example turns, and the text that the first reply answers."""
        return list(self.examples), f"{self.closing}\n\n{observation}" if self.closing else observation

    @property
    def digest(self) -> str:
        """Returns a digest of the text and the examples, 16 hexadecimal digits."""
        content = canonical_json([str(self), [list(turn) for turn in self.examples], self.closing])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function: its name, its arguments (JSON values), and the id that its answer refers to."""

    name: str
    arguments: JsonObject = field(default_factory=dict)
    id: str | None = None

    def as_openai(self) -> JsonObject:
        function = {"name": self.name, "arguments": canonical_json(dict(self.arguments))}
        return {**({"id": self.id} if self.id is not None else {}), "type": "function", "function": function}

    @classmethod
    def of_openai(cls, row: object) -> Call:
        """Reads `{"id"?, "type"?: "function", "function": {"name", "arguments": JSON text or object}}`.

        Raises:
            SampleInvalid: the row has another form; arguments must be a JSON object.
        """
        function = row.get("function") if isinstance(row, Mapping) else None
        if not isinstance(row, Mapping) or not isinstance(function, Mapping):
            raise _sample_error("invalid tool call", row, '{"function": {"name", "arguments"}}')
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                raise _sample_error("the arguments of a tool call are not JSON", arguments, "a JSON object") from error
        if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
            raise _sample_error("the tool call has no name or no object of arguments", function, "a name and an object")
        identity = row.get("id")
        return cls(name, dict(arguments), identity if isinstance(identity, str) else None)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called: its name, what it does, and the JSON schema of its parameters."""

    name: str
    description: str = ""
    parameters: JsonObject = field(default_factory=dict)

    def as_openai(self) -> JsonObject:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def of_openai(cls, row: object) -> Tool:
        """Reads `{"type": "function", "function": {"name", "description"?, "parameters"?}}`; raises SampleInvalid."""
        function = row.get("function") if isinstance(row, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _sample_error("invalid tool", row, '{"function": {"name", "description", "parameters"}}')
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise _sample_error("the parameters of a tool are not a JSON schema", parameters, "an object")
        return cls(function["name"], str(function.get("description") or ""), dict(parameters))


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        role: one of `ROLES`.
        content: its text; None where an assistant only calls tools.
        calls: the tool calls of an assistant.
        tool_call_id: in a tool's answer, the id of the call that it answers.
        extra: further fields of the OpenAI form, unchanged.
    """

    role: str
    content: str | None = ""
    calls: tuple[Call, ...] = ()
    tool_call_id: str | None = None
    extra: JsonObject = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.content or ""

    @property
    def weight(self) -> float:
        """Returns the learning weight that data sets give in `weight` and `loss`; 1 where they give none.

        Raises:
            SampleInvalid: see `parse_weight`.
        """
        weights = [parse_weight(self.extra.get(name)) for name in ("weight", "loss")]
        return math.prod(weight for weight in weights if weight is not None)

    def as_openai(self) -> JsonObject:
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.calls:
            row["tool_calls"] = [call.as_openai() for call in self.calls]
        if self.tool_call_id is not None:
            row["tool_call_id"] = self.tool_call_id
        return {**row, **self.extra}

    @classmethod
    def of_openai(cls, row: object) -> Message:
        """Reads `{"role", "content", "tool_calls"?, "tool_call_id"?}`; content may be text, null or text parts.

        Raises:
            SampleInvalid: the role is unknown, the content is not text, or the calls are invalid.
        """
        if not isinstance(row, Mapping) or row.get("role") not in ROLES:
            raise _sample_error("the message has no known role", row, f"a role of {', '.join(ROLES)}")
        calls = row.get("tool_calls") or ()
        if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
            raise _sample_error("tool_calls is not a list", calls, "a list of calls")
        tool_call_id = row.get("tool_call_id")
        standard_keys = ("role", "content", "tool_calls", "tool_call_id")
        return cls(
            row["role"],
            _parse_content(row.get("content")),
            tuple(Call.of_openai(call) for call in calls),
            tool_call_id if isinstance(tool_call_id, str) else None,
            {k: v for k, v in row.items() if k not in standard_keys},
        )


@dataclass(frozen=True, slots=True)
class CallSample:
    """A request that tools can answer, with the expected calls: the unit of function-calling data.

    Args:
        id: stable; random numbers drawn for a sample derive from it.
        messages: the conversation up to the answer, including earlier calls and their results.
        tools: the available tools, in the order in which they are shown.
        calls: the expected calls; empty where no tool fits or information is missing.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    calls: tuple[Call, ...] = ()

    @property
    def request(self) -> str:
        """Returns the last user message; "" where there is none."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")


def _parse_content(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise _sample_error("the content of a message is not text", value, "text, null or a list of text parts")
    return "".join(map(str, texts))
