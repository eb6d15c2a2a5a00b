"""Readers and writers of the call formats of public models: one pair for each format.

    hermes       <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen 2.5 and 3)
    qwen3_coder  <tool_call><function=NAME><parameter=P>value</parameter></function></tool_call> (Qwen3-Coder, Nemotron)
    glm          <tool_call>NAME<arg_key>P</arg_key><arg_value>value</arg_value></tool_call> (GLM 4.5 and later)
    minimax      <minimax:tool_call><invoke name="NAME"><parameter name="P">value</parameter></invoke>...; also other
                 prefixes (`atem:function_calls`), and the <tool_calls> of JSON lines of MiniMax-M1
    llama3       {"name": ..., "parameters": {...}}, several with semicolons, or <|python_tag|>NAME.call(P=value)
    mistral      [TOOL_CALLS] [{"name": ..., "arguments": {...}}], or [TOOL_CALLS]NAME[ARGS]{...}
    deepseek     <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, then fenced JSON, or (V3.1)
                 <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    kimi_k2      <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
    harmony      to=functions.NAME<|channel|>commentary json<|message|>{...}<|call|> (gpt-oss)
    gemma4       <|tool_call>call:NAME{P:<|"|>text<|"|>}<tool_call|>; FunctionGemma's marks too
    lfm2         <|tool_call_start|>[NAME(P=value)]<|tool_call_end|>
    pythonic     [NAME(P=value)] with literals alone (Llama 4)

A reader returns spans: the bounds of calls in the text, and the calls. Text around the spans is not a call. A call that
begins and cannot be read is an error for the whole text. Values of bare text have the type that their schema allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evolvent.errors import InvalidAction
from evolvent.grade.call_values import ParameterTypes
from evolvent.grade.literals import (
    Source,
    format_python_literal,
    parse_json,
    parse_json_prefix,
    parse_python_literal,
)
from evolvent.messages import Call

__all__ = [
    "CALL_FORMATS",
    "CallFormat",
    "CallSpan",
    "calls_in_harmony",
    "harmony_text",
    "parse_python_calls",
    "read_json_calls",
    "row_to_json",
    "write_python",
]

_ARGUMENT_KEYS = ("arguments", "parameters", "input", "args", "tool_input", "kwargs")
_NAME_KEYS = ("name", "tool_name")
_INDIFFERENT_KEYS = ("id", "type", "index", "tool_call_id")
_NAME = re.compile(r"[^\s=,()\[\]{}\"'`:;#<>]+")


class CallSpan(NamedTuple):
    """The calls of one stretch of a text.

    Args:
        start: Index of its first character.
        end: Index behind its last character.
        calls: The calls.
    """

    start: int
    end: int
    calls: tuple[Call, ...]


Reader = Callable[[str, int, ParameterTypes], Iterator[CallSpan]]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One format of calls.

    Args:
        openings: Marks with which calls begin; empty where calls are a whole reply without marks.
        closing: The mark that ends what the first of the openings begins; empty where there is none.
        read: Yields the spans of calls in a text from a position on.
        write: Writes calls; raises InvalidAction for a call that the format cannot hold. None: they cannot be written.
    """

    openings: tuple[str, ...]
    read: Reader
    write: Callable[[Sequence[Call]], str] | None = None
    closing: str = ""


# ---------------------------------------------------------------------------------------------------- JSON objects


def _row_to_call(row: Any, types: ParameterTypes) -> Call:
    """Converts one JSON object to a call.

    The arguments may have a synonym as key, may be JSON text, and may be missing where the object has no other field.
    OpenAI's form with the key `function` is read too.

    Raises:
        InvalidAction: an object without name, with two fields for arguments, or with fields that would be lost.
    """
    if isinstance(row, dict) and isinstance(row.get("function"), dict) and not row.keys() & {*_NAME_KEYS}:
        identity = row.get("id")
        inner = _row_to_call(row["function"], types)
        return Call(inner.name, inner.arguments, identity if isinstance(identity, str) else None)
    fields = {str(key).lower(): key for key in row} if isinstance(row, dict) else {}
    names = [fields[key] for key in _NAME_KEYS if key in fields]
    given = [fields[key] for key in _ARGUMENT_KEYS if key in fields]
    if len(names) != 1 or len(given) > 1 or len(fields) < len(row):
        raise _refuse_row(row)
    name, arguments = row[names[0]], row[given[0]] if given else {}
    if isinstance(arguments, str):
        arguments = parse_json(arguments or "{}")
    others = {str(key) for key in row} - {*names, *given}
    others -= {*_INDIFFERENT_KEYS}
    lost = others & types.parameter_names(str(name)) if given else others
    if not isinstance(name, str) or not name or not isinstance(arguments, dict) or lost:
        raise _refuse_row(row)
    identity = row.get("id")
    return Call(name, arguments, identity if isinstance(identity, str) else None)


def _refuse_row(row: object) -> InvalidAction:
    return InvalidAction("JSON that is no call", value=row, expected='{"name": text, "arguments": object}')


def _value_to_calls(value: Any, types: ParameterTypes) -> list[Call]:
    return [_row_to_call(row, types) for row in (value if isinstance(value, list) else [value])]


def read_json_calls(source: Source, types: ParameterTypes) -> list[Call]:
    """Reads JSON objects or lists of them up to other text; semicolons or commas may separate them."""
    calls = _value_to_calls(parse_json_prefix(source), types)
    while True:
        before = source.at
        has_mark = source.accept(";") or source.accept(",")
        if source.peek() not in ("{", "[") or (not has_mark and "\n" not in source.text[before : source.at]):
            source.at = before
            return calls
        calls += _value_to_calls(parse_json_prefix(source), types)


def row_to_json(call: Call, key: str = "arguments") -> str:
    """Writes a call as a JSON object."""
    row = {"name": call.name, key: dict(call.arguments)} | ({} if call.id is None else {"id": call.id})
    return json.dumps(row, ensure_ascii=False, allow_nan=False)


def _write_arguments(call: Call) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False)


def _read_object(source: Source, name: str) -> Call:
    arguments = parse_json_prefix(source)
    if not name or not isinstance(arguments, dict):
        raise InvalidAction("arguments that are not an object", value=arguments, expected="a JSON object")
    return Call(name, arguments)


def _find_openings(text: str, position: int, pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Source]]:
    """Yields each opening mark after the last span, with a source behind the mark; the caller moves the source."""
    while match := pattern.search(text, position):
        source = Source(text)
        source.at = match.end()
        yield match, source
        position = source.at


# ---------------------------------------------------------------------------------------------------- tags


class _Tags(NamedTuple):
    """The tags of a format whose values are bare text."""

    call: re.Pattern[str]
    call_end: str
    parameter: re.Pattern[str]
    parameter_end: str
    trims_newline: bool = False


_QWEN = _Tags(
    re.compile(r"<function=([^\s<>]+)>"),
    "</function>",
    re.compile(r"<parameter=([^\s<>]+)>"),
    "</parameter>",
    trims_newline=True,
)
_GLM = _Tags(
    re.compile(r"([^\s<>{}\[\]]+)\s*+(?=<arg_key>|</tool_call>)"),
    "",
    re.compile(r"<arg_key>\s*+([^<>]*?)\s*</arg_key>\s*+<arg_value>"),
    "</arg_value>",
)


def _read_tagged_call(source: Source, name: str, tags: _Tags, types: ParameterTypes, following: str) -> Call:
    """Reads the parameters of a call up to its end.

    A value ends at the first closing tag behind which another parameter or the end of the call (`following`) comes, so
    that a value may hold the tag itself.
    """
    arguments: dict[str, Any] = {}
    value_end = re.compile(f"{re.escape(tags.parameter_end)}\\s*+(?={tags.parameter.pattern}|{following})")
    while parameter := source.match(tags.parameter):
        closing = value_end.search(source.text, parameter.end())
        if closing is None:
            source.fail(tags.parameter_end)
        text = source.text[parameter.end() : closing.start()]
        if tags.trims_newline:
            text = text.removeprefix("\n").removesuffix("\n")
        if parameter[1] in arguments:
            raise InvalidAction("an argument twice in one call", value=parameter[1], expected="each once")
        # The name of a parameter in quotes may hold entities; in all other formats a name is bare.
        arguments[parameter[1]] = types.read_bare(name, parameter[1], text)
        source.at = closing.end()
    if tags.call_end:
        source.expect(tags.call_end)
    return Call(name, arguments)


def _read_function(source: Source, types: ParameterTypes) -> Call | None:
    """Reads `<function=NAME>` with parameters in tags, or with a JSON object (Llama 3.1)."""
    match = source.match(_QWEN.call)
    if match is None:
        return None
    if source.peek() == "{":
        call = _read_object(source, match[1])
        source.expect(_QWEN.call_end)
        return call
    return _read_tagged_call(source, match[1], _QWEN, types, re.escape(_QWEN.call_end))


def _read_tool_call_tags(
    text: str, position: int, types: ParameterTypes, *, json_rows: bool, functions: bool, glm: bool
) -> Iterator[CallSpan]:
    opening = re.compile(r"<tool_call>|<function=" if functions else r"<tool_call>")
    for match, source in _find_openings(text, position, opening):
        calls: list[Call] = []
        is_wrapped = match[0] == "<tool_call>"
        source.at = source.at if is_wrapped else match.start()
        if json_rows and is_wrapped and source.peek() in ("{", "["):
            calls = read_json_calls(source, types)
        elif functions and (call := _read_function(source, types)) is not None:
            calls.append(call)
            while is_wrapped and (call := _read_function(source, types)) is not None:
                calls.append(call)
        elif glm and (name := source.match(_GLM.call)) is not None:
            calls.append(_read_tagged_call(source, name[1], _GLM, types, "</tool_call>"))
        else:
            source.fail("a call")
        if is_wrapped:
            source.expect("</tool_call>")
        yield CallSpan(match.start(), source.at, tuple(calls))


def _read_xml(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    """Reads the calls of Hermes and of Qwen3-Coder."""
    return _read_tool_call_tags(text, position, types, json_rows=True, functions=True, glm=False)


def _read_hermes(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    return _read_tool_call_tags(text, position, types, json_rows=True, functions=False, glm=False)


def _read_qwen3_coder(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    return _read_tool_call_tags(text, position, types, json_rows=False, functions=True, glm=False)


def _read_glm(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    return _read_tool_call_tags(text, position, types, json_rows=False, functions=False, glm=True)


def _write_hermes(calls: Sequence[Call]) -> str:
    """Writes calls in the format of Hermes."""
    # No text inside may look like the end of a call; JSON may write "<" as an escape.
    rows = [row_to_json(call).replace("<", "\\u003c") for call in calls]
    return "\n".join(f"<tool_call>\n{row}\n</tool_call>" for row in rows)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def _write_qwen3_coder(calls: Sequence[Call]) -> str:
    bodies = [
        "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in call.arguments.items())
        for call in calls
    ]
    return "\n".join(
        f"<tool_call>\n<function={call.name}>\n{body}</function>\n</tool_call>"
        for call, body in zip(calls, bodies, strict=True)
    )


def _write_glm(calls: Sequence[Call]) -> str:
    bodies = [
        "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n"
            for key, value in call.arguments.items()
        )
        for call in calls
    ]
    return "\n".join(f"<tool_call>{call.name}\n{body}</tool_call>" for call, body in zip(calls, bodies, strict=True))


# What MiniMax-M2, Muse and DeepSeek V3.2 write before their names: `minimax:`, `atem:`, `｜DSML｜`.
_WRAPPER = re.compile(r"<((?:[\w-]+:|｜DSML｜)?)(tool_calls?|function_calls)>")
_INVOKE = re.compile(r"<((?:[\w-]+:|｜DSML｜)?)invoke name=\"?([^\"<>]+?)\"?>")


def _read_minimax(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    for match, source in _find_openings(text, position, _WRAPPER):
        calls: list[Call] = []
        if source.peek() == "{":
            calls = read_json_calls(source, types)
        while not calls or source.peek() == "<":
            invoke = source.match(_INVOKE)
            if invoke is None:
                break
            prefix = re.escape(invoke[1])
            tags = _Tags(
                _INVOKE,
                f"</{invoke[1]}invoke>",
                re.compile(rf"<{prefix}parameter name=\"?([^\"<>]+?)\"?(?: string=\"(?:true|false)\")?>"),
                f"</{invoke[1]}parameter>",
            )
            calls.append(_read_tagged_call(source, invoke[2], tags, types, f"</{prefix}invoke>"))
        if not calls:
            source.fail("a call")
        source.expect(f"</{match[1]}{match[2]}>")
        yield CallSpan(match.start(), source.at, tuple(calls))


def _write_minimax(calls: Sequence[Call]) -> str:
    bodies = [
        f'<invoke name="{call.name}">\n'
        + "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in call.arguments.items())
        + "</invoke>\n"
        for call in calls
    ]
    return f"<minimax:tool_call>\n{''.join(bodies)}</minimax:tool_call>"


# ---------------------------------------------------------------------------------------------------- control marks

_PYTHON_TAG = "<|python_tag|>"
_BUILTIN = re.compile(r"([\w.-]+)\.call(?=\()")


def _whole(source: Source) -> None:
    if source.peek():
        source.fail("nothing after the calls")


def _read_llama3(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    source = Source(text, strict=True)
    source.at = position
    source.skip_space()
    start, has_tag = source.at, source.accept(_PYTHON_TAG)
    if has_tag and (builtin := source.match(_BUILTIN)) is not None:
        calls = [_parse_python_call(source, builtin[1], parse_python_literal)]
    else:
        calls = read_json_calls(source, types)
    _whole(source)
    yield CallSpan(start, source.at, tuple(calls))


def _write_llama3(calls: Sequence[Call]) -> str:
    return "; ".join(row_to_json(Call(call.name, call.arguments), "parameters") for call in calls)


_TOOL_CALLS = "[TOOL_CALLS]"
_MISTRAL_NAME = re.compile(r"([^\s\[\]{}]+)\s*+(?:\[CALL_ID\]\s*+([^\s\[\]{}]+)\s*+)?(?:\[ARGS\])?(?=\s*+\{)")


def _read_mistral(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    if _TOOL_CALLS not in text[position:]:
        source = Source(text)
        source.at = position
        calls = read_json_calls(source, types)
        _whole(source)
        yield CallSpan(position, source.at, tuple(calls))
        return
    for match, source in _find_openings(text, position, re.compile(re.escape(_TOOL_CALLS))):
        calls = []
        if source.peek() in ("[", "{"):
            calls = read_json_calls(source, types)
        else:
            while name := source.match(_MISTRAL_NAME):
                call = _read_object(source, name[1])
                calls.append(Call(call.name, call.arguments, name[2]))
            if not calls:
                source.fail("NAME[ARGS]{...} or a JSON list")
        yield CallSpan(match.start(), source.at, tuple(calls))


def _write_mistral(calls: Sequence[Call]) -> str:
    return "".join(
        f"{_TOOL_CALLS}{call.name}{f'[CALL_ID]{call.id}' if call.id else ''}[ARGS]{_write_arguments(call)}"
        for call in calls
    )


_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_DEEPSEEK_HEAD = re.compile(rf"\s*+([^<>\s]+)\s*+{_SEPARATOR}")
_DEEPSEEK_FENCED = re.compile(r"([^\s`{}<>]+)\s*+```(?:json)?\s*+(?=\{)")


def _read_deepseek(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    for match, source in _find_openings(text, position, re.compile(f"{_SECTION}|{_CALL}")):
        calls, source.at = list[Call](), match.start()
        is_section = source.accept(_SECTION)
        while source.accept(_CALL):
            head = source.match(_DEEPSEEK_HEAD)
            if head is None:
                source.fail(f"NAME{_SEPARATOR}")
            fenced = source.match(_DEEPSEEK_FENCED)
            calls.append(_read_object(source, fenced[1] if fenced else head[1]))
            if fenced:
                source.expect("```")
            source.expect(_CALL_END)
        if is_section:
            source.expect(_SECTION_END)
        yield CallSpan(match.start(), source.at, tuple(calls))


def _write_deepseek(calls: Sequence[Call]) -> str:
    bodies = [f"{_CALL}function{_SEPARATOR}{c.name}\n```json\n{_write_arguments(c)}\n```{_CALL_END}" for c in calls]
    return f"{_SECTION}{chr(10).join(bodies)}{_SECTION_END}"


_KIMI_SECTION, _KIMI_SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_ARGUMENTS, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s<>:]+)(?::\d+)?(?=\s*+<\|tool_call_argument_begin\|>)")


def _read_kimi(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    pattern = re.compile(f"{re.escape(_KIMI_SECTION)}|{re.escape(_KIMI_CALL)}")
    for match, source in _find_openings(text, position, pattern):
        calls, source.at = list[Call](), match.start()
        is_section = source.accept(_KIMI_SECTION)
        while source.accept(_KIMI_CALL):
            identity = source.match(_KIMI_ID)
            if identity is None:
                source.fail("functions.NAME:NUMBER")
            source.expect(_KIMI_ARGUMENTS)
            call = _read_object(source, identity[1])
            calls.append(Call(call.name, call.arguments, identity[0]))
            source.expect(_KIMI_CALL_END)
        if is_section:
            source.expect(_KIMI_SECTION_END)
        yield CallSpan(match.start(), source.at, tuple(calls))


def _write_kimi(calls: Sequence[Call]) -> str:
    bodies = [
        f"{_KIMI_CALL}functions.{call.name}:{number}{_KIMI_ARGUMENTS}{_write_arguments(call)}{_KIMI_CALL_END}"
        for number, call in enumerate(calls)
    ]
    return f"{_KIMI_SECTION}{''.join(bodies)}{_KIMI_SECTION_END}"


_MESSAGE, _START = "<|message|>", "<|start|>"
_HARMONY_MESSAGE = re.compile(re.escape(_MESSAGE))
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<>]+)")
_HARMONY_END = re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>|\Z")


def _read_harmony(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    while match := _HARMONY_MESSAGE.search(text, position):
        start = max(position, text.rfind(_START, position, match.start()))
        source = Source(text)
        source.at = match.end()
        recipient = _RECIPIENT.search(text, start, match.start())
        if recipient is None:
            closing = _HARMONY_END.search(text, source.at)
            position = closing.end() if closing else len(text)
            continue
        call = _read_object(source, recipient[1])
        source.skip_space()
        closing = _HARMONY_END.match(text, source.at)
        if closing is None:
            source.fail("<|call|>")
        position = closing.end()
        yield CallSpan(start, position, (call,))


def calls_in_harmony(text: str) -> bool:
    """Returns whether a reply in harmony holds a message to a function."""
    return any(_RECIPIENT.search(header) for header, _ in _harmony_messages(text))


def harmony_text(text: str) -> str:
    """Returns what a reply in harmony says: the contents of messages that are neither thoughts nor calls."""
    messages = list(_harmony_messages(text))
    contents = [
        content
        for header, content in messages
        if "<|channel|>analysis" not in header and _RECIPIENT.search(header) is None
    ]
    return "\n".join(contents) if messages else text


def _harmony_messages(text: str) -> Iterator[tuple[str, str]]:
    """Yields the header and the content of each message."""
    position = 0
    while match := _HARMONY_MESSAGE.search(text, position):
        header = text[position : match.start()]
        closing = _HARMONY_END.search(text, match.end())
        end, position = (closing.start(), closing.end()) if closing else (len(text), len(text))
        yield header, text[match.end() : end]


def _write_harmony(calls: Sequence[Call]) -> str:
    messages = [
        f" to=functions.{call.name}<|channel|>commentary json{_MESSAGE}{_write_arguments(call)}<|call|>"
        for call in calls
    ]
    return f"{_START}assistant".join(messages)


# ---------------------------------------------------------------------------------------------------- Gemma

_GEMMA_OPENING = re.compile(r"(<\|tool_call>|<start_function_call>)\s*+call:([^\s{}<>]+)\s*+\{")
_GEMMA_MARK = re.compile(r"<\|tool_call>|<start_function_call>")
_GEMMA_KEY = re.compile(r"([^:{}\[\],]+?)\s*+:")
_GEMMA_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?=\s*+[,\]}])")
_GEMMA_WORD = re.compile(r"(true|false|null|True|False|None)(?=\s*+[,\]}])")
_GEMMA_WORDS = {"true": True, "false": False, "null": None}


def _read_gemma(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    for match, source in _find_openings(text, position, _GEMMA_MARK):
        source.at = match.start()
        opening = source.match(_GEMMA_OPENING)
        if opening is None:
            source.fail("call:NAME{")
        is_function_gemma = opening[1] == "<start_function_call>"
        quote = "<escape>" if is_function_gemma else '<|"|>'
        arguments = _read_gemma_object(source, quote)
        source.expect("<end_function_call>" if is_function_gemma else "<tool_call|>")
        yield CallSpan(match.start(), source.at, (Call(opening[2], arguments),))


def _read_gemma_object(source: Source, quote: str) -> dict[str, Any]:
    """Reads keys and values behind an opening brace."""
    source.enter()
    entries: dict[str, Any] = {}
    while not source.accept("}"):
        if source.accept(quote):
            key = _read_quoted(source, quote)
            source.expect(":")
        else:
            match = source.match(_GEMMA_KEY)
            if match is None:
                source.fail("a name")
            key = match[1]
        if key in entries:
            raise InvalidAction("an argument twice in one call", value=key, expected="each once")
        entries[key] = _read_gemma_value(source, quote)
        if not source.accept(","):
            source.expect("}")
            break
    source.leave()
    return entries


def _read_quoted(source: Source, quote: str) -> str:
    end = source.text.find(quote, source.at)
    if end < 0:
        source.fail(f"a closing {quote}")
    text = source.text[source.at : end]
    source.at = end + len(quote)
    return text


def _read_gemma_value(source: Source, quote: str) -> Any:
    if source.accept(quote):
        return _read_quoted(source, quote)
    if source.accept("{"):
        return _read_gemma_object(source, quote)
    if source.accept("["):
        source.enter()
        items: list[Any] = []
        while not source.accept("]"):
            items.append(_read_gemma_value(source, quote))
            if not source.accept(","):
                source.expect("]")
                break
        source.leave()
        return items
    if word := source.match(_GEMMA_WORD):
        return _GEMMA_WORDS.get(word[0], {"True": True, "False": False}.get(word[0]))
    if number := source.match(_GEMMA_NUMBER):
        return parse_json(number[0])
    return source.fail("a value")


def _write_gemma(calls: Sequence[Call]) -> str:
    return "".join(f"<|tool_call>call:{call.name}{_gemma_value(dict(call.arguments))}<tool_call|>" for call in calls)


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_gemma_value(element)}' for key, element in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_gemma_value, value))}]"
    return json.dumps(value, allow_nan=False)


# ---------------------------------------------------------------------------------------------------- Python


def _call_to_python(call: Call) -> str:
    """Writes a call as a Python expression."""
    for name in (call.name, *call.arguments):
        if not _NAME.fullmatch(name):
            raise InvalidAction("a name that a Python-like call cannot hold", value=name)
    return (
        f"{call.name}({', '.join(f'{name}={format_python_literal(value)}' for name, value in call.arguments.items())})"
    )


def write_python(calls: Sequence[Call]) -> str:
    """Writes calls as a list of Python expressions."""
    return f"[{', '.join(map(_call_to_python, calls))}]"


def parse_python_calls(source: Source, parse_value: Callable[[Source], object]) -> list[Call]:
    """Reads one call or more, in brackets or without."""
    is_list, calls = source.accept("["), list[Call]()
    while not (is_list and source.peek() == "]"):
        name = source.match(_NAME)
        if name is None:
            source.fail("the name of a function")
        calls.append(_parse_python_call(source, name[0], parse_value))
        if not source.accept(","):
            break
    if is_list:
        source.expect("]")
    return calls


def _parse_python_call(source: Source, name: str, parse_value: Callable[[Source], object]) -> Call:
    """Reads the arguments of a call behind its name."""
    source.expect("(")
    arguments: dict[str, Any] = {}
    while not source.accept(")"):
        parameter = source.match(_NAME)
        if parameter is None or source.peek() != "=":
            source.fail("a keyword argument, name=value")
        source.expect("=")
        if parameter[0] in arguments:
            raise InvalidAction("an argument twice in one call", value=parameter[0], expected="each once")
        arguments[parameter[0]] = parse_value(source)
        if not source.accept(","):
            source.expect(")")
            break
    return Call(name, arguments)


def _read_between(text: str, position: int, opening: str, closing: str) -> Iterator[CallSpan]:
    """Reads Python-like calls between two marks; without any mark they are the whole text."""
    if opening not in text[position:]:
        source = Source(text, strict=True)
        source.at = position
        calls = parse_python_calls(source, parse_python_literal)
        _whole(source)
        yield CallSpan(position, source.at, tuple(calls))
        return
    for match, source in _find_openings(text, position, re.compile(re.escape(opening))):
        source.strict = True
        calls = parse_python_calls(source, parse_python_literal)
        source.expect(closing)
        yield CallSpan(match.start(), source.at, tuple(calls))


_LFM2_START, _LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"


def _read_lfm2(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    return _read_between(text, position, _LFM2_START, _LFM2_END)


def _write_lfm2(calls: Sequence[Call]) -> str:
    return f"{_LFM2_START}{write_python(calls)}{_LFM2_END}"


def _read_pythonic(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    return _read_between(text, position, "<|python_start|>", "<|python_end|>")


CALL_FORMATS: Mapping[str, CallFormat] = {
    "xml": CallFormat(("<tool_call>", "<function="), _read_xml, _write_hermes, "</tool_call>"),
    "hermes": CallFormat(("<tool_call>",), _read_hermes, _write_hermes, "</tool_call>"),
    "qwen3_coder": CallFormat(("<tool_call>", "<function="), _read_qwen3_coder, _write_qwen3_coder, "</tool_call>"),
    "glm": CallFormat(("<tool_call>",), _read_glm, _write_glm, "</tool_call>"),
    "minimax": CallFormat(
        ("<minimax:tool_call>", "<atem:function_calls>", "<｜DSML｜function_calls>", "<tool_calls>"),
        _read_minimax,
        _write_minimax,
    ),
    "llama3": CallFormat((), _read_llama3, _write_llama3),
    "mistral": CallFormat((), _read_mistral, _write_mistral),
    "deepseek": CallFormat((_SECTION, _CALL), _read_deepseek, _write_deepseek, _SECTION_END),
    "kimi_k2": CallFormat((_KIMI_SECTION, _KIMI_CALL), _read_kimi, _write_kimi, _KIMI_SECTION_END),
    "harmony": CallFormat((" to=", "<|channel|>", _START), _read_harmony, _write_harmony),
    "gemma4": CallFormat(("<|tool_call>", "<start_function_call>"), _read_gemma, _write_gemma, "<tool_call|>"),
    "lfm2": CallFormat((_LFM2_START,), _read_lfm2, _write_lfm2, _LFM2_END),
    "pythonic": CallFormat((), _read_pythonic, write_python),
}
"""The formats by name."""
