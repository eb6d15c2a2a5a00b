"""Prompts with tools: a request and the tools that may be called, as a model reads them, and the calls it is to write.

Three ways: the chat template of a Hugging Face tokenizer (`toolchat.ChatTools`), Hammer's prompt of four blocks
(`FourBlocks`, arXiv 2410.04587; our wording, a sandboxed jinja template), one line a tool for small models over words
(`Compact`). Each reads back what it writes. Text of users and tools that spells a control mark of the prompt
is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.grade.call_forms import Form, decode_calls, encode_calls, spelled
from evolvent.messages import ROLES, Call, CallSample, Message, Tool
from evolvent.models.dialects import Dialect
from evolvent.schemas import is_flat, json_schema

__all__ = ["Compact", "FourBlocks", "Rendered", "ToolPrompt", "ToolTokens", "refuse_marks"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and what is to be written after it."""

    prompt: str
    target: str


@dataclass(frozen=True, slots=True)
class ToolTokens:
    """The same as token ids: `prompt [P]` is read, `target [T]` is written, its stop token last."""

    prompt: list[int]
    target: list[int]


class ToolPrompt(Protocol):
    """One way of showing tools and of writing calls."""

    def render(self, sample: CallSample) -> Rendered:
        """The text of a sample; raises SampleInvalid where it cannot be written."""
        ...

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """The tokens of a sample in a policy's dialect."""
        ...

    def read(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """The calls that a written text makes; raises InvalidAction where it makes none that can be read."""
        ...


def _texts(sample: CallSample) -> Iterator[str]:
    """Everything in a sample that somebody else wrote."""
    for tool in sample.tools:
        yield f"{tool.name}\n{tool.description}\n{json.dumps(tool.parameters, ensure_ascii=False, default=str)}"
    for message in sample.messages:
        yield message.text
        yield from (json.dumps([call.name, call.arguments], ensure_ascii=False, default=str) for call in message.calls)


def refuse_marks(sample: CallSample, marks: Sequence[str]) -> None:
    """Raises SampleInvalid where tools or messages of a sample hold one of these texts."""
    try:
        found = next((mark for text in _texts(sample) for mark in marks if mark in text), None)
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"sample {sample.id!r} holds what JSON does not have", value=str(error)) from error
    if found is not None:
        raise SampleInvalid(
            f"sample {sample.id!r} spells a control mark of the prompt",
            value=found,
            hint="it could forge a turn or a tool",
        )


_TURN = re.compile(rf"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*(?:{'|'.join(ROLES)})\s*:", re.IGNORECASE)


def _refuse_turns(sample: CallSample) -> None:
    """Raises SampleInvalid where a line of a text begins as a turn does."""
    said = [message.text for message in sample.messages] + [tool.description for tool in sample.tools]
    found = next((match for text in said if (match := _TURN.search(text)) is not None), None)
    if found is not None:
        raise SampleInvalid(
            f"sample {sample.id!r} spells the beginning of a turn", value=found[0].strip(), hint="it could forge one"
        )


def _bare(calls: Sequence[Call]) -> tuple[Call, ...]:
    return tuple(Call(call.name, call.arguments) for call in calls)


# ---------------------------------------------------------------------------------------------------- Hammer


@cache
def _hammer() -> Any:
    from jinja2 import PackageLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    loader = PackageLoader("evolvent.models", "templates")
    return ImmutableSandboxedEnvironment(loader=loader, undefined=StrictUndefined).get_template("hammer.jinja")


class FourBlocks:
    """Hammer's prompt: task, tools as JSON, format and query, each in a block; the answer is a fenced JSON list.

    A conversation of more than one message stands in the query, each message after who speaks.
    """

    form: Form = "json"

    def render(self, sample: CallSample) -> Rendered:
        """Raises SampleInvalid for a sample that spells the bounds of a block, or values that JSON does not have."""
        refuse_marks(sample, ("[BEGIN OF ", "[END OF "))
        if len(sample.messages) > 1:
            _refuse_turns(sample)
        rows = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in sample.tools]
        turns = [{"role": one.role, "text": _said(one, self._fenced)} for one in sample.messages]
        try:
            tools = json.dumps(rows, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleInvalid(f"sample {sample.id!r} has tools that are no JSON", value=str(error)) from error
        return Rendered(_hammer().render(tools=tools, turns=turns), self._fenced(sample.calls))

    @staticmethod
    def _fenced(calls: Sequence[Call]) -> str:
        return f"```\n{encode_calls([Call(call.name, call.arguments) for call in calls], form='json')}\n```"

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """Raises SampleInvalid, see `render`; VocabularyMismatch from a dialect of closed vocabulary."""
        return _in_dialect(self.render(sample), dialect)

    def read(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Raises InvalidAction."""
        return decode_calls(text, form="json")


def _said(message: Message, write: Any) -> str:
    return " ".join(filter(None, (message.text, write(message.calls) if message.calls else "")))


def _in_dialect(rendered: Rendered, dialect: Dialect) -> ToolTokens:
    return ToolTokens(dialect.open("", rendered.prompt), dialect.action(rendered.target))


# ---------------------------------------------------------------------------------------------------- Compact


class Compact:
    """One line a tool, then the conversation; calls in Python's form on one line.

        find hotel ( city : string the city , nights : integer ? how many = 3 ) : search for a hotel
        user : a hotel in oslo please
            ->  [find hotel(city="oslo")]

    A `?` marks what may be left out. Names are written in pieces, an underscore as a space, so that a model over whole
    words spells a name that it never saw. Such a model also writes its texts with spaces around every mark; read back,
    a text gets the spelling that the sample has for it (`3 : 30 pm` is the `3:30 pm` of the request).
    """

    form: Form = "python"

    def render(self, sample: CallSample) -> Rendered:
        """Raises SampleInvalid: a schema that is none, two names of one spelling, or a call that cannot be written."""
        for names in ([tool.name for tool in sample.tools], *(_parameters(tool) for tool in sample.tools)):
            if len({spelled(name) for name in names}) < len(list(names)):
                raise SampleInvalid(f"sample {sample.id!r} has two names that are spelled alike", value=list(names))
        _refuse_turns(sample)
        lines = [f"{spelled(tool.name)} ( {self._parameters(tool)} ) : {tool.description}" for tool in sample.tools]
        lines += [f"{one.role} : {_said(one, self._calls)}" for one in sample.messages]
        target = self._calls(sample.calls)
        if any(self.read(text, sample) != _bare(sample.calls) for text in (target, " ".join(_PIECE.findall(target)))):
            raise SampleInvalid(f"sample {sample.id!r} holds calls that are not read back as they are", value=target)
        return Rendered("\n".join(lines), target)

    @staticmethod
    def _parameters(tool: Tool) -> str:
        schema = json_schema(tool.parameters)
        needed = schema.get("required", ())
        return " , ".join(_parameter(name, one, name in needed) for name, one in schema["properties"].items())

    @staticmethod
    def _calls(calls: Sequence[Call]) -> str:
        return "[" + ", ".join([f"{spelled(call.name)}({_arguments(call.arguments)})" for call in calls]) + "]"

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """Raises SampleInvalid, see `render`; VocabularyMismatch from a dialect of closed vocabulary."""
        return _in_dialect(self.render(sample), dialect)

    def read(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Raises InvalidAction."""
        known = {spelled(tool.name): tool for tool in sample.tools}
        seen = "\n".join(_texts(sample))
        found = []
        for call in decode_calls(_joined(text), form="python"):
            tool = known.get(spelled(call.name))
            names = {spelled(name): name for name in _parameters(tool)} if tool else {}
            arguments = {names.get(spelled(key), key): _restored(one, seen) for key, one in call.arguments.items()}
            found.append(Call(tool.name if tool else call.name, arguments))
        return tuple(found)


def _parameters(tool: Tool) -> list[str]:
    found = tool.parameters if is_flat(tool.parameters) else tool.parameters.get("properties")
    return list(found) if isinstance(found, Mapping) else []


def _parameter(name: str, one: Any, needed: bool) -> str:
    schema = one if isinstance(one, Mapping) else {}
    parts = [spelled(name), ":", _kind(schema), "" if needed else "?", str(schema.get("description") or "")]
    if "default" in schema:
        parts += ["=", _literal(schema["default"])]
    return " ".join(filter(None, parts))


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in a few words."""
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_literal, schema["enum"]))
    kind = schema.get("type", "any")
    if "anyOf" in schema:
        return " | ".join(_kind(one) if isinstance(one, Mapping) else "any" for one in schema["anyOf"])
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_kind(schema['items'])}"
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        needed = schema.get("required", ())
        return (
            f"object ( {' , '.join(_parameter(key, one, key in needed) for key, one in schema['properties'].items())} )"
        )
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _literal(value: Any) -> str:
    """A value as Python writes it."""
    return encode_calls([Call("f", {"x": value})], form="python")[len("[f(x=") : -len(")]")]


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join([f"{spelled(key)}={_literal(_respelled(one))}" for key, one in arguments.items()])


def _respelled(value: Any) -> Any:
    """A value with the keys of its objects in pieces; they are names."""
    if isinstance(value, Mapping):
        return {spelled(key): _respelled(one) for key, one in value.items()}
    return [_respelled(one) for one in value] if isinstance(value, (list, tuple)) else value


_PIECE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\w+|[^\w\s]", re.DOTALL)


def _joined(text: str) -> str:
    """Python's form of calls whose names are written in pieces; other spaces do not matter to it."""
    found: list[str] = []
    word = False
    for piece in _PIECE.findall(text):
        another = piece[0].isalnum() or piece[0] == "_"
        if word and another:
            if found[-1][0].isdigit():
                raise InvalidAction("two words where one value belongs", value=f"{found[-1]} {piece}", expected="one")
            found.append("_")
        found.append(piece)
        word = another
    return "".join(found)


def _restored(value: Any, seen: str) -> Any:
    """A value with its texts, and the keys of its objects, as a sample spells them, where it does."""
    if isinstance(value, Mapping):
        return {_restored(key, seen): _restored(one, seen) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_restored(one, seen) for one in value]
    if not isinstance(value, str) or not value.strip():
        return value
    if value.strip() in seen:
        return value.strip()
    pieces = re.findall(r"[^\W_]+|[^\w\s]", value)
    spread = r"[\s_]*".join(map(re.escape, pieces))
    match = re.search(rf"(?<!\w){spread}(?!\w)", seen) if len(pieces) <= 1000 else None
    return match[0] if match else " ".join(value.split()) if value != value.strip() else value
