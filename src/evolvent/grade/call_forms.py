"""Parsing and formatting of calls in the forms of models: Python-like, JSON, XML-like, Java and JavaScript.

    python       [f(a=1), g.h(b="x")], or calls without the brackets; keyword arguments only
    json         [{"name": ..., "arguments": {...}}], or one such object; arguments may be an object or its JSON text
    xml          <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once or more (Hermes, Qwen), or
                 <function=NAME><parameter=P>value</parameter></function>, once or more (Qwen3-Coder)
    java         as python, but each argument stays source text: its literal is read by the type of its parameter
    javascript   as java

Nothing is evaluated. Each form may be inside a fence of backquotes. A list without calls means no calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.literals import MAX_CHARS, Source, format_python_literal, parse_json, parse_python_literal
from evolvent.messages import Call, Tool

__all__ = ["MAX_CALLS", "Form", "decode_calls", "encode_calls", "has_call", "spell_name"]

Form = Literal["python", "json", "xml", "java", "javascript"]
MAX_CALLS = 256
"""Calls of one answer; more are refused."""

_FENCE = re.compile(r"```[\w+-]*+[ \t]*+\n?(.*?)\n?```", re.DOTALL)
_NAME = re.compile(r"[^\s=,()\[\]{}\"'`:;#<>]+")
# A tag ends before the next of its kind begins: many that are never closed are passed over in linear time.
_TOOL_CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^\s<>]+)>((?:(?!<function=).)*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^\s<>]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL)


def decode_calls(text: str, *, form: Form, tools: Sequence[Tool] = ()) -> tuple[Call, ...]:
    """Parses the calls in a text, in their order. In "xml" other text may surround them.

    Args:
        text: The text.
        form: Form of the calls.
        tools: Callable tools: bare text of `<parameter=P>` stays text where the schema has the type string.
    Raises:
        InvalidAction: no calls of this form, positional arguments, a repeated argument, more than `MAX_CALLS`
            calls, more than `literals.MAX_CHARS` characters, or values nested deeper than `literals.MAX_DEPTH`.
        ConfigError: an unknown form.
    """
    if form not in get_args(Form):
        raise ConfigError("unknown call format", value=form, expected=list(get_args(Form)))
    if len(text) > MAX_CHARS:
        raise InvalidAction("a text that is too long to read", value=len(text), expected=f"{MAX_CHARS} characters")
    text = text.strip()
    fenced = _FENCE.fullmatch(text)
    inner = fenced[1].strip() if fenced else text
    if form == "json":
        calls = _rows_to_calls(parse_json(inner))
    elif form == "xml":
        calls = _parse_xml(inner, {tool.name: tool.parameters for tool in tools})
    else:
        calls = _parse_source(Source(inner, generics=form == "java"), _parse_literal if form == "python" else _read_raw)
    if len(calls) > MAX_CALLS:
        raise InvalidAction("an answer with too many calls", value=len(calls), expected=f"at most {MAX_CALLS}")
    return tuple(calls)


def has_call(text: str, *, form: Form) -> bool:
    """Returns whether a text can be parsed as at least one call (BFCL's relevance verdict)."""
    try:
        return bool(decode_calls(text, form=form))
    except InvalidAction:
        return False


def spell_name(name: str) -> str:
    """Splits a name into words, for models over whole words: `find_hotel` is `find hotel`. Underscores alone stay."""
    return " ".join(filter(None, re.split(r"[_\s]+", name))) or name


def encode_calls(calls: Sequence[Call], *, form: Form) -> str:
    """Formats calls in the form "python", "json" or "xml"; `decode_calls` parses the same calls from the text.

    JSON has no tuples: they become lists. Ids are written in "json" and "xml" only.

    Raises:
        SampleInvalid: a name that the form cannot hold, or a value that is none of JSON.
        ConfigError: another form.
    """
    try:
        if form == "python":
            return f"[{', '.join(map(_call_to_python, calls))}]"
        rows = [json.dumps(_call_to_row(call), ensure_ascii=False, allow_nan=False) for call in calls]
    except (InvalidAction, ValueError, TypeError) as error:
        raise SampleInvalid(f"cannot write calls as {form}: {error}", value=[call.name for call in calls]) from error
    if form == "json":
        return f"[{', '.join(rows)}]"
    if form == "xml":
        # no text inside may look like the end of a call; JSON may write "<" as an escape
        return "\n".join(f"<tool_call>\n{row.replace('<', chr(92) + 'u003c')}\n</tool_call>" for row in rows)
    raise ConfigError("call format cannot be written", value=form, expected=["python", "json", "xml"])


def _call_to_row(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)} | ({} if call.id is None else {"id": call.id})


def _call_to_python(call: Call) -> str:
    for name in (call.name, *call.arguments):
        if not _NAME.fullmatch(name):
            raise InvalidAction("a name that a Python-like call cannot hold", value=name)
    return (
        f"{call.name}({', '.join(f'{name}={format_python_literal(value)}' for name, value in call.arguments.items())})"
    )


def _parse_literal(source: Source) -> Any:
    return parse_python_literal(source)


def _read_raw(source: Source) -> Any:
    text = source.read_raw(",)")
    return text or source.fail("a value")


def _parse_source(source: Source, parse_value: Callable[[Source], Any]) -> list[Call]:
    is_list, calls = source.accept("["), list[Call]()
    while not (is_list and source.peek() == "]"):
        calls.append(_parse_call(source, parse_value))
        if not source.accept(","):
            break
    if is_list:
        source.expect("]")
    if source.peek():
        source.fail("nothing after the calls")
    return calls


def _parse_call(source: Source, parse_value: Callable[[Source], Any]) -> Call:
    name = source.match(_NAME)
    if name is None:
        source.fail("the name of a function")
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
    return Call(name[0], arguments)


def _rows_to_calls(value: Any) -> list[Call]:
    return [_row_to_call(row) for row in (value if isinstance(value, list) else [value])]


def _row_to_call(row: Any) -> Call:
    """Converts one JSON object to a call; fields besides name, arguments and id are ignored."""
    name = row.get("name") if isinstance(row, dict) else None
    arguments = row.get("arguments", {}) if isinstance(row, dict) else None
    if isinstance(arguments, str):
        arguments = parse_json(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise InvalidAction("JSON that is no call", value=row, expected='{"name": text, "arguments": object}')
    identity = row.get("id")
    return Call(name, arguments, identity if isinstance(identity, str) else None)


def _parse_xml(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    if not text:
        raise InvalidAction("an empty text where calls were expected", expected="<tool_call> or <function=NAME>")
    calls: list[Call] = []
    bodies = _TOOL_CALL.findall(text)
    for body in bodies:
        functions = _match_all(_FUNCTION, body)
        calls += (
            _rows_to_calls(parse_json(body))
            if functions is None
            else [_parse_function(function_match, schemas) for function_match in functions]
        )
    if not bodies:
        calls = [_parse_function(function_match, schemas) for function_match in _FUNCTION.finditer(text)]
    if not calls:
        raise InvalidAction("text that is no calls in XML", value=text, expected="<tool_call> or <function=NAME>")
    return calls


def _match_all(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """Returns the matches of a pattern where only white space surrounds them; otherwise None."""
    matches = list(pattern.finditer(text))
    text_between = "".join(text[start:end] for start, end in _gaps(matches, len(text)))
    return matches if matches and not text_between.strip() else None


def _gaps(matches: Sequence[re.Match[str]], end: int) -> list[tuple[int, int]]:
    return list(
        zip([0, *(match.end() for match in matches)], [*(match.start() for match in matches), end], strict=True)
    )


def _parse_function(match: re.Match[str], schemas: Mapping[str, Mapping[str, Any]]) -> Call:
    """Parses a call whose values are bare text: JSON where it parses to something else than text, otherwise the
    text.
    """
    properties = schemas.get(match[1], {}).get("properties")
    parameters = _match_all(_PARAMETER, match[2])
    if parameters is None and match[2].strip():
        raise InvalidAction("a function with other things than parameters", value=match[2], expected="<parameter=P>")
    arguments: dict[str, Any] = {}
    for parameter in parameters or ():
        if parameter[1] in arguments:
            raise InvalidAction("an argument twice in one call", value=parameter[1], expected="each once")
        schema = properties.get(parameter[1]) if isinstance(properties, Mapping) else None
        is_text = isinstance(schema, Mapping) and schema.get("type") == "string"
        arguments[parameter[1]] = parameter[2] if is_text else _parse_bare(parameter[2])
    return Call(match[1], arguments)


def _parse_bare(text: str) -> Any:
    try:
        value = parse_json(text)
    except InvalidAction:
        return text
    return text if isinstance(value, str) else value
