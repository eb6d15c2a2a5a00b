"""Prompts with tools: a request and the available tools in the model's form, and the calls that it should write.

Three ways: the chat template of a Hugging Face tokenizer (`toolchat.ChatTools`), Hammer's prompt of four blocks
(`FourBlocks`, arXiv 2410.04587; our wording, a sandboxed jinja template), one line per tool for small models
over words (`Compact`). Each reads back what it writes. Text of users and tools that spells a control mark of
the prompt is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.grade.call_forms import Form, decode_calls, encode_calls, spell_name
from evolvent.messages import ROLES, Call, CallSample, Message, Tool
from evolvent.models.dialects import Dialect
from evolvent.schemas import is_flat, json_schema

__all__ = ["Compact", "FourBlocks", "RenderedSample", "ToolPrompt", "ToolTokens", "refuse_marks"]


@dataclass(frozen=True, slots=True)
class RenderedSample:
    """A prompt, and the target text after it."""

    prompt: str
    target: str


@dataclass(frozen=True, slots=True)
class ToolTokens:
    """The same as token ids: `prompt [P]` is read, `target [T]` is written, its stop token last."""

    prompt: list[int]
    target: list[int]


class ToolPrompt(Protocol):
    """A format that shows tools and writes calls."""

    def render(self, sample: CallSample) -> RenderedSample:
        """Renders a sample as text; raises SampleInvalid where it cannot be written."""
        ...

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """Returns the tokens of a sample in a policy's dialect."""
        ...

    def parse_calls(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Parses the calls of a written text; raises InvalidAction where it has no readable calls."""
        ...


def _outside_texts(sample: CallSample) -> Iterator[str]:
    """Yields every text of a sample that comes from outside."""
    for tool in sample.tools:
        yield f"{tool.name}\n{tool.description}\n{json.dumps(tool.parameters, ensure_ascii=False, default=str)}"
    for message in sample.messages:
        yield message.text
        yield from (json.dumps([call.name, call.arguments], ensure_ascii=False, default=str) for call in message.calls)


def refuse_marks(sample: CallSample, marks: Sequence[str]) -> None:
    """Raises SampleInvalid where tools or messages of a sample contain one of these texts."""
    try:
        match = next((mark for text in _outside_texts(sample) for mark in marks if mark in text), None)
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"sample {sample.id!r} holds a value that is not JSON: {error}") from error
    if match is not None:
        raise SampleInvalid(
            f"sample {sample.id!r} contains a control mark of the prompt",
            value=match,
            hint="remove the mark: it could forge a turn or a tool",
        )


_TURN = re.compile(rf"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*(?:{'|'.join(ROLES)})\s*:", re.IGNORECASE)


def _refuse_turns(sample: CallSample) -> None:
    """Raises SampleInvalid where a line of a text begins as a turn does."""
    texts = [message.text for message in sample.messages] + [tool.description for tool in sample.tools]
    match = next((turn_match for text in texts if (turn_match := _TURN.search(text)) is not None), None)
    if match is not None:
        raise SampleInvalid(
            f"sample {sample.id!r} contains the beginning of a turn",
            value=match[0].strip(),
            hint="remove it: it could forge a turn",
        )


def _without_ids(calls: Sequence[Call]) -> tuple[Call, ...]:
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

    A conversation of more than one message stands in the query, each message after its speaker's role.
    """

    form: Form = "json"

    def render(self, sample: CallSample) -> RenderedSample:
        """Renders a sample. Raises SampleInvalid for text that spells the bounds of a block, or values outside JSON."""
        refuse_marks(sample, ("[BEGIN OF ", "[END OF "))
        if len(sample.messages) > 1:
            _refuse_turns(sample)
        rows = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in sample.tools]
        turns = [{"role": message.role, "text": _message_text(message, self._fenced)} for message in sample.messages]
        try:
            tools = json.dumps(rows, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise SampleInvalid(f"tools of sample {sample.id!r} are not JSON", value=str(error)) from error
        return RenderedSample(_hammer().render(tools=tools, turns=turns), self._fenced(sample.calls))

    @staticmethod
    def _fenced(calls: Sequence[Call]) -> str:
        return f"```\n{encode_calls([Call(call.name, call.arguments) for call in calls], form='json')}\n```"

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """Returns the tokens of a sample. Raises SampleInvalid, see `render`; VocabularyMismatch from a closed
        vocabulary.
        """
        return _tokenize_sample(self.render(sample), dialect)

    def parse_calls(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Parses the calls of a text. Raises InvalidAction."""
        return decode_calls(text, form="json", tools=sample.tools)


def _message_text(message: Message, format_calls: Any) -> str:
    return " ".join(filter(None, (message.text, format_calls(message.calls) if message.calls else "")))


def _tokenize_sample(rendered: RenderedSample, dialect: Dialect) -> ToolTokens:
    return ToolTokens(dialect.open("", rendered.prompt), dialect.action(rendered.target))


# ---------------------------------------------------------------------------------------------------- Compact


class Compact:
    """One line per tool, then the conversation; calls in Python's form on one line.

        find hotel ( city : string the city , nights : integer ? how many = 3 ) : search for a hotel
        user : a hotel in oslo please
            ->  [find hotel(city="oslo")]

    A `?` marks an optional parameter. Names are written in pieces, an underscore as a space, so that a model over
    whole words can spell a name that it never saw. Such a model also writes its texts with spaces around every
    mark; read back, a text gets the spelling that the sample has for it (`3 : 30 pm` is the `3:30 pm` of the
    request).
    """

    form: Form = "python"

    def render(self, sample: CallSample) -> RenderedSample:
        """Renders a sample. Raises SampleInvalid: an invalid schema, two names of one spelling, or a call that
        cannot be written.
        """
        for names in ([tool.name for tool in sample.tools], *(_parameter_names(tool) for tool in sample.tools)):
            if len({spell_name(name) for name in names}) < len(list(names)):
                raise SampleInvalid(f"sample {sample.id!r} has two names with the same spelling", value=list(names))
        _refuse_turns(sample)
        lines = [
            f"{spell_name(tool.name)} ( {self._format_parameters(tool)} ) : {tool.description}" for tool in sample.tools
        ]
        lines += [f"{message.role} : {_message_text(message, self._format_calls)}" for message in sample.messages]
        target = self._format_calls(sample.calls)
        for text in (target, " ".join(_PIECE.findall(target))):
            try:
                is_same = self.parse_calls(text, sample) == _without_ids(sample.calls)
            except InvalidAction:  # a name that begins with a digit
                is_same = False
            if not is_same:
                raise SampleInvalid(f"calls of sample {sample.id!r} change when they are read back", value=target)
        return RenderedSample("\n".join(lines), target)

    @staticmethod
    def _format_parameters(tool: Tool) -> str:
        schema = json_schema(tool.parameters)
        required = schema.get("required", ())
        return " , ".join(
            _format_parameter(name, schema_of_parameter, name in required)
            for name, schema_of_parameter in schema["properties"].items()
        )

    @staticmethod
    def _format_calls(calls: Sequence[Call]) -> str:
        return (
            "[" + ", ".join([f"{spell_name(call.name)}({_format_arguments(call.arguments)})" for call in calls]) + "]"
        )

    def tokens(self, sample: CallSample, dialect: Dialect) -> ToolTokens:
        """Returns the tokens of a sample. Raises SampleInvalid, see `render`; VocabularyMismatch from a closed
        vocabulary.
        """
        return _tokenize_sample(self.render(sample), dialect)

    def parse_calls(self, text: str, sample: CallSample) -> tuple[Call, ...]:
        """Parses the calls of a text. Raises InvalidAction."""
        tools_by_name = {spell_name(tool.name): tool for tool in sample.tools}
        sample_text = "\n".join(_outside_texts(sample))
        calls = []
        for call in decode_calls(_join_names(text), form="python"):
            tool = tools_by_name.get(spell_name(call.name))
            names = {spell_name(name): name for name in _parameter_names(tool)} if tool else {}
            arguments = {
                names.get(spell_name(key), key): _restore_spelling(argument, sample_text)
                for key, argument in call.arguments.items()
            }
            calls.append(Call(tool.name if tool else call.name, arguments))
        return tuple(calls)


def _parameter_names(tool: Tool) -> list[str]:
    properties = tool.parameters if is_flat(tool.parameters) else tool.parameters.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []


def _format_parameter(name: str, parameter_schema: Any, is_required: bool) -> str:
    schema = parameter_schema if isinstance(parameter_schema, Mapping) else {}
    parts = [
        spell_name(name),
        ":",
        _format_type(schema),
        "" if is_required else "?",
        str(schema.get("description") or ""),
    ]
    if "default" in schema:
        parts += ["=", _format_literal(schema["default"])]
    return " ".join(filter(None, parts))


def _format_type(schema: Mapping[str, Any]) -> str:
    """Formats a type in a few words."""
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(_format_literal, schema["enum"]))
    kind = schema.get("type", "any")
    if "anyOf" in schema:
        return " | ".join(_format_type(branch) if isinstance(branch, Mapping) else "any" for branch in schema["anyOf"])
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_format_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        needed = schema.get("required", ())
        properties = schema["properties"].items()
        return f"object ( {' , '.join(_format_parameter(key, branch, key in needed) for key, branch in properties)} )"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _format_literal(value: Any) -> str:
    """Formats a value as a Python literal."""
    return encode_calls([Call("f", {"x": value})], form="python")[len("[f(x=") : -len(")]")]


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(
        [f"{spell_name(key)}={_format_literal(_respell_keys(argument))}" for key, argument in arguments.items()]
    )


def _respell_keys(value: Any) -> Any:
    """Converts the keys of a value's objects to pieces, because they are names."""
    if isinstance(value, Mapping):
        return {spell_name(key): _respell_keys(element) for key, element in value.items()}
    return [_respell_keys(element) for element in value] if isinstance(value, (list, tuple)) else value


_PIECE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\w+|[^\w\s]", re.DOTALL)


def _join_names(text: str) -> str:
    """Joins names that are written in pieces, as Python's form of calls requires; other spaces are irrelevant to it."""
    pieces: list[str] = []
    first_word = ""  # of the name that is being joined; a later one may begin with a digit
    for piece in _PIECE.findall(text):
        is_word = piece[0].isalnum() or piece[0] == "_"
        if first_word and is_word:
            if first_word[0].isdigit():
                raise InvalidAction("two words where one value belongs", value=f"{pieces[-1]} {piece}", expected="one")
            pieces.append("_")
        pieces.append(piece)
        first_word = (first_word or piece) if is_word else ""
    return "".join(pieces)


def _restore_spelling(value: Any, sample_text: str) -> Any:
    """Returns a value with its texts and object keys in the sample's spelling, where the sample contains them."""
    if isinstance(value, Mapping):
        return {
            _restore_spelling(key, sample_text): _restore_spelling(element, sample_text)
            for key, element in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_restore_spelling(element, sample_text) for element in value]
    if not isinstance(value, str) or not value.strip():
        return value
    if value.strip() in sample_text:
        return value.strip()
    pieces = re.findall(r"[^\W_]+|[^\w\s]", value)
    spread = r"[\s_]*".join(map(re.escape, pieces))
    match = re.search(rf"(?<!\w){spread}(?!\w)", sample_text) if len(pieces) <= 1000 else None
    return match[0] if match else " ".join(value.split()) if value != value.strip() else value
