"""Calls of generated tools, written by chat templates and by our own writers, and read back.

The templates are those that TRL ships, rendered by transformers, and mistral-common's own encoder: writers that know
nothing of our readers. A case is right when the calls come back as they were. A text may stand for two calls that both
fit the tools' schemas. It is ambiguous where the calls that were read are written as the same text, but for `True` and
`true`, which templates of one format spell either way. A text that holds marks of the format inside of a value may be
refused. Everything else is wrong.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, get_args

from benchmarks.templates import byte_level_tokenizer, template_names, template_text
from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.call_forms import Form, decode_calls, encode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.toolchat import ChatTools
from evolvent.schemas import find_argument_faults

__all__ = ["Tally", "Writer", "draw_case", "list_writers", "run_cases"]

# Texts that a reader may take for something else.
TEXTS = (
    *("90210", "true", "null", "None", "1e5", "-0.5", "NaN", '{"a": 1}', "[1, 2]", "['x']", '"quoted"', "True", ""),
    *("Oslo", "two words", "two\nlines", "a 'b' \"c\" \\d", "naïve 東京", "  around  ", "a=1, b=2", "f(x=1)", "x; y"),
    *("a <think>b</think> c", "</think>", "<b>bold</b>", "a, b: {c}", "```json\n{}\n```", "2024-01-02", "{", "]"),
)
MARKS = ("</parameter>", "</tool_call>", "</arg_value>", '<|"|>', "<tool_call>", "<|tool_call_end|>", "[TOOL_CALLS]")
NAMES = ("city", "n", "options", "arguments", "name", "parameters", "zip_code", "isOpen", "x-y", "id", "type")
_SUSPICIOUS = re.compile("|".join([re.escape(mark) for mark in MARKS] + ["<\\|", "</?think>"]))


def draw_text(rng: random.Random) -> str:
    """Draws a text; one of a hundred holds the mark of some format."""
    if rng.random() < 0.01:
        return f"a {rng.choice(MARKS)} b"
    return rng.choice(TEXTS)


def draw_schema(rng: random.Random, depth: int = 2) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Draws a schema and a function that draws values of it."""
    simple: dict[str, Callable[[], Any]] = {
        "string": lambda: draw_text(rng),
        "integer": lambda: rng.choice([0, 1, -7, 90210, 10**12]),
        "number": lambda: rng.choice([0.5, -2.25, 3, 1e-7, 1e22]),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
    }
    kind = rng.choice(
        [*simple, "string", "string", "nullable", "list", "anyOf", "oneOf", "allOf", "enum", "const", "any"]
        + (["array", "object", "array", "object"] if depth else [])
    )
    if kind in simple:
        return {"type": kind}, simple[kind]
    if kind in ("nullable", "list"):
        inner = rng.choice(["string", "integer", "boolean"])
        schema = {"type": [inner, "null"]} if kind == "list" else {"type": inner, "nullable": True}
        return schema, lambda: None if rng.random() < 0.3 else simple[inner]()
    if kind in ("anyOf", "oneOf"):
        names = rng.sample(["string", "integer", "boolean", "null"], 2)
        return {kind: [{"type": name} for name in names]}, lambda: simple[rng.choice(names)]()
    if kind == "allOf":
        name = rng.choice(["string", "integer"])
        return {"allOf": [{"type": name}, {"description": "as said"}]}, simple[name]
    if kind in ("enum", "const"):
        values = rng.choice([["5", "true", "x"], [5, 6], ["null"], [None, "a"], [1.5, "b"], [True, "false"]])
        if kind == "enum":
            return {"enum": values}, lambda: rng.choice(values)
        return {"const": values[0]}, lambda: values[0]
    if kind == "any":
        return {}, lambda: simple[rng.choice(list(simple))]()
    if kind == "array":
        item_schema, draw_item = draw_schema(rng, depth - 1)
        return {"type": "array", "items": item_schema}, lambda: [draw_item() for _ in range(rng.randrange(4))]
    fields = {name: draw_schema(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(1, 4))}
    schema = {"type": "object", "properties": {name: inner for name, (inner, _) in fields.items()}}
    return schema, lambda: {name: draw() for name, (_, draw) in fields.items() if rng.random() < 0.8}


def draw_case(rng: random.Random) -> tuple[tuple[Tool, ...], tuple[Call, ...]]:
    """Draws tools, and calls of them that fit their schemas."""
    tools, draws = list[Tool](), list[Callable[[], Call]]()
    for name in rng.sample(["get_weather", "search", "send-mail", "f"], rng.randrange(1, 3)):
        fields = {key: draw_schema(rng) for key in rng.sample(NAMES, rng.randrange(4))}
        properties = {key: schema for key, (schema, _) in fields.items()}
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        if properties and rng.random() < 0.2:
            moved = rng.choice(list(properties))
            parameters["$defs"] = {"Moved": properties[moved]}
            properties[moved] = {"$ref": "#/$defs/Moved"}
        tools.append(Tool(name, "Does it.", parameters))
        draws.append(
            lambda name=name, fields=fields: Call(name, {key: draw() for key, (_, draw) in fields.items()})  # type: ignore[misc]
        )
    return tuple(tools), tuple(rng.choice(draws)() for _ in range(rng.randrange(1, 4)))


_Read = Callable[[str, Sequence[Tool]], Sequence[Call]]


@dataclass(frozen=True)
class Writer:
    """A way to write calls, and the reader of its texts.

    Args:
        name: Name of the format or the template.
        write: Writes calls of tools; raises SampleInvalid for calls that the writer itself refuses.
        read: Reads a text.
        is_ours: Whether the writer is ours.
        single: Whether it writes one call at a time.
    """

    name: str
    write: Callable[[Sequence[Call], Sequence[Tool]], str]
    read: _Read
    is_ours: bool = False
    single: bool = False


def list_writers() -> list[Writer]:
    """Returns our writers of every form, the writers of TRL's templates, and mistral-common's."""
    ours = [_own_writer(form) for form in get_args(Form) if form not in ("java", "javascript")]
    return [*ours, *_template_writers(), *_mistral_writers()]


def _own_writer(form: Form) -> Writer:
    return Writer(
        f"own {form}",
        lambda calls, tools: encode_calls(calls, form=form, tools=tools),
        lambda text, tools: decode_calls(text, form=form, tools=tools),
        is_ours=True,
    )


@cache
def _template_writers() -> tuple[Writer, ...]:
    writers = []
    for name in template_names():
        tokenizer = byte_level_tokenizer(template_text(name))
        try:
            read = _chat_reader(ChatTools(tokenizer))
        except ConfigError:
            if not name.startswith("deepseekv3"):
                continue
            read = partial(_read_deepseek, in_thought=True)  # TRL's template writes calls and does not show tools
        writers.append(_template_writer(name, tokenizer, read))
    return tuple(writers)


def _chat_reader(prompt: ChatTools) -> _Read:
    return lambda text, tools: prompt.parse_calls(text, CallSample("s", (Message("user", "go"),), tuple(tools)))


def _read_deepseek(text: str, tools: Sequence[Tool], *, in_thought: bool) -> Sequence[Call]:
    return decode_calls(text, form="deepseek", tools=tools, in_thought=in_thought)


def _template_writer(name: str, tokenizer: Any, read: _Read) -> Writer:
    user = {"role": "user", "content": "go"}

    def render(rows: Sequence[Any], tools: Sequence[Tool], *, is_prompt: bool) -> str:
        shown = [tool.as_openai() for tool in tools]
        return str(tokenizer.apply_chat_template(rows, tools=shown, tokenize=False, add_generation_prompt=is_prompt))

    def write(calls: Sequence[Call], tools: Sequence[Tool], *, as_text: bool = False) -> str:
        functions = [
            {"name": call.name, "arguments": json.dumps(dict(call.arguments)) if as_text else dict(call.arguments)}
            for call in calls
        ]
        rows = [
            {"id": f"call{number:05d}", "type": "function", "function": function}
            for number, function in enumerate(functions)
        ]
        begun = render([user], tools, is_prompt=True)
        try:
            whole = render([user, {"role": "assistant", "content": "", "tool_calls": rows}], tools, is_prompt=False)
        except TypeError:
            if as_text:
                raise
            return write(calls, tools, as_text=True)
        base = re.sub(r"<think>\s*\Z", "", begun)
        if not whole.startswith(base):
            raise SampleInvalid("the template rewrites the prompt")
        rest = whole[len(base) :]
        return rest if base == begun or rest.startswith("<think>") else f"</think>{rest}"

    one, two = Call("f", {"a": 1}), Call("f", {"a": 2})
    tool = Tool("f", "", {"type": "object", "properties": {"a": {"type": "integer"}}})
    return Writer(name, write, read, single=len(_try_read(write, read, (one, two), (tool,))) < 2)


def _try_read(write: Any, read: Any, calls: Sequence[Call], tools: Sequence[Tool]) -> Sequence[Call]:
    from jinja2 import TemplateError

    try:
        return read(write(calls, tools), tools)  # type: ignore[no-any-return]
    except (TemplateError, InvalidAction, SampleInvalid):
        return ()


def _mistral_writers() -> Iterator[Writer]:
    """Yields the writers of mistral-common's tokenizers, whose control tokens are shown as text."""
    from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.tool_calls import FunctionCall, ToolCall
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    for version in ("v3", "v7"):
        tokenizer = getattr(MistralTokenizer, version)()

        def write(calls: Sequence[Call], tools: Sequence[Tool], tokenizer: Any = tokenizer) -> str:
            rows = [
                ToolCall(id=f"call{number:05d}", function=FunctionCall(name=c.name, arguments=json.dumps(c.arguments)))
                for number, c in enumerate(calls)
            ]
            reply = AssistantMessage(content="", tool_calls=rows)
            request = ChatCompletionRequest(messages=[UserMessage(content="go"), reply])  # type: ignore[var-annotated]
            text = str(tokenizer.instruct_tokenizer.encode_instruct(_as_instruct(tokenizer, request)).text)
            rest = text[text.rindex("[/INST]") + len("[/INST]") :].removesuffix("</s>")
            return rest.replace("▁", " ").replace("<0x0A>", "\n")

        yield Writer(
            f"mistral-common {version}", write, lambda text, tools: decode_calls(text, form="mistral", tools=tools)
        )


def _as_instruct(tokenizer: Any, request: Any) -> Any:
    return tokenizer._instruct_request_normalizer.from_chat_completion_request(request)


@dataclass
class Tally:
    """The cases of all writers, counted; `examples` tells the first wrong ones."""

    right: int = 0
    ambiguous: int = 0
    refused: int = 0
    unwritten: int = 0
    wrong: int = 0
    by_writer: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def _plain(calls: Sequence[Call]) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(dict(call.arguments), sort_keys=True)) for call in calls]


def run_case(writer: Writer, tools: Sequence[Tool], calls: Sequence[Call], tally: Tally) -> None:
    """Writes and reads the calls of one case, and counts what happened."""
    from jinja2 import TemplateError

    calls = calls[:1] if writer.single else calls
    try:
        text = writer.write(calls, tools)
    except (SampleInvalid, TemplateError):
        tally.unwritten += 1
        return
    values = json.dumps([call.arguments for call in calls], ensure_ascii=False)
    holds_marks = _SUSPICIOUS.search(values) is not None
    holds_marks |= writer.name.startswith("lfm2") and "'" in values  # these templates write quotes unescaped
    try:
        result = writer.read(text, tools)
    except InvalidAction as error:
        if holds_marks:
            tally.refused += 1
        else:
            _count_wrong(tally, writer, text, f"refused: {error}")
        return
    if _plain(result) == _plain(calls):
        tally.right += 1
        tally.by_writer[writer.name] += 1
    elif _fits(result, tools) and _spell_constants(_writes(writer, result, tools)) == _spell_constants(text):
        tally.ambiguous += 1
    else:
        _count_wrong(tally, writer, text, f"read as {_plain(result)}, written as {_plain(calls)}")


def _spell_constants(text: str) -> str:
    """Returns a text with Python's constants as JSON's: templates of one format differ in this (Qwen 3.5 and 3.6)."""
    return text.replace("True", "true").replace("False", "false").replace("None", "null")


def _writes(writer: Writer, calls: Sequence[Call], tools: Sequence[Tool]) -> str:
    try:
        return writer.write(calls, tools)
    except SampleInvalid:
        return ""


def _fits(calls: Sequence[Call], tools: Sequence[Tool]) -> bool:
    by_name = {tool.name: tool.parameters for tool in tools}
    return all(call.name in by_name and not find_argument_faults(call.arguments, by_name[call.name]) for call in calls)


def _count_wrong(tally: Tally, writer: Writer, text: str, reason: str) -> None:
    tally.wrong += 1
    if len(tally.examples) < 40:
        tally.examples.append(f"{writer.name}: {text!r}: {reason}")


def run_cases(num_cases: int, *, seed: int = 0, writers: Sequence[Writer] | None = None) -> Tally:
    """Draws cases and gives each to the next writer, until a number of them came back right."""
    tally, rng = Tally(), random.Random(seed)
    writers = list_writers() if writers is None else writers
    number = 0
    while tally.right < num_cases and number < 3 * num_cases:
        tools, calls = draw_case(rng)
        run_case(writers[number % len(writers)], tools, calls, tally)
        number += 1
    return tally
