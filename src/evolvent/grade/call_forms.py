"""Calls as models write them, read and written: Python-like, JSON, XML-like, Java and JavaScript. Nothing is evaluated.

    python       [f(a=1), g.h(b="x")], or calls without the brackets; keyword arguments only
    json         [{"name": ..., "arguments": {...}}], or one such object; arguments may be an object or JSON text of one
    xml          <tool_call>{"name": ..., "arguments": {...}}</tool_call>, once or more (Hermes, Qwen), or
                 <function=NAME><parameter=P>value</parameter></function>, once or more (Qwen3-Coder)
    java         as python, and each argument stays source text: its literal is read by the type of its parameter
    javascript   as java

Any of them may stand inside a fence of back-quotes. A list without calls is read as no calls at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.literals import LONGEST, Source, json_value, python_source, python_value
from evolvent.messages import Call, Tool

__all__ = ["MOST_CALLS", "Form", "decode_calls", "encode_calls", "made_call", "spelled"]

Form = Literal["python", "json", "xml", "java", "javascript"]
MOST_CALLS = 256
"""Calls of one answer; more are refused."""

_FENCE = re.compile(r"```[\w+-]*+[ \t]*+\n?(.*?)\n?```", re.DOTALL)
_NAME = re.compile(r"[^\s=,()\[\]{}\"'`:;#<>]+")
# A tag ends before the next of its kind begins: many that are never closed are passed over in linear time.
_TOOL_CALL = re.compile(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^\s<>]+)>((?:(?!<function=).)*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^\s<>]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>", re.DOTALL)


def decode_calls(text: str, *, form: Form, tools: Sequence[Tool] = ()) -> tuple[Call, ...]:
    """The calls that a text makes, in their order. In "xml" other text may stand around them.

    Args:
        tools: what may be called: bare text of `<parameter=P>` stays text where the schema says string.

    Raises:
        InvalidAction: no calls of this form, positional arguments, an argument twice, more than `MOST_CALLS` calls,
            more than `literals.LONGEST` characters, or values nested deeper than `literals.DEEPEST`.
        ConfigError: an unknown form.
    """
    if form not in get_args(Form):
        raise ConfigError("an unknown form of calls", value=form, expected=list(get_args(Form)))
    if len(text) > LONGEST:
        raise InvalidAction("a text that is too long to read", value=len(text), expected=f"{LONGEST} characters")
    text = text.strip()
    fenced = _FENCE.fullmatch(text)
    inner = fenced[1].strip() if fenced else text
    if form == "json":
        found = _of_json(json_value(inner))
    elif form == "xml":
        found = _of_xml(inner, {tool.name: tool.parameters for tool in tools})
    else:
        found = _of_source(Source(inner, generics=form == "java"), _literal if form == "python" else _raw)
    if len(found) > MOST_CALLS:
        raise InvalidAction("an answer with too many calls", value=len(found), expected=f"at most {MOST_CALLS}")
    return tuple(found)


def made_call(text: str, *, form: Form) -> bool:
    """Whether a text calls anything: it can be read, and as at least one call (BFCL's relevance verdict)."""
    try:
        return bool(decode_calls(text, form=form))
    except InvalidAction:
        return False


def spelled(name: str) -> str:
    """A name as words, for models over whole words: `find_hotel` is `find hotel`. One of underscores only stays."""
    return " ".join(filter(None, re.split(r"[_\s]+", name))) or name


def encode_calls(calls: Sequence[Call], *, form: Form) -> str:
    """The text of calls in the form "python", "json" or "xml"; `decode_calls` reads the same calls from it.

    JSON has no tuples: they become lists. Ids are written in "json" and "xml" only.

    Raises:
        SampleInvalid: a name that the form cannot hold, or a value that is none of JSON.
        ConfigError: another form.
    """
    try:
        if form == "python":
            return f"[{', '.join(map(_as_python, calls))}]"
        rows = [json.dumps(_as_row(call), ensure_ascii=False, allow_nan=False) for call in calls]
    except (InvalidAction, ValueError, TypeError) as error:
        raise SampleInvalid(f"calls that {form} cannot write: {error}", value=[call.name for call in calls]) from error
    if form == "json":
        return f"[{', '.join(rows)}]"
    if form == "xml":
        # no text inside may look like the end of a call; JSON may write "<" as an escape
        return "\n".join(f"<tool_call>\n{row.replace('<', chr(92) + 'u003c')}\n</tool_call>" for row in rows)
    raise ConfigError("a form that is not written", value=form, expected=["python", "json", "xml"])


def _as_row(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)} | ({} if call.id is None else {"id": call.id})


def _as_python(call: Call) -> str:
    for name in (call.name, *call.arguments):
        if not _NAME.fullmatch(name):
            raise InvalidAction("a name that a Python-like call cannot hold", value=name)
    return f"{call.name}({', '.join(f'{name}={python_source(value)}' for name, value in call.arguments.items())})"


def _literal(source: Source) -> Any:
    return python_value(source)


def _raw(source: Source) -> Any:
    text = source.raw(",)")
    return text or source.fail("a value")


def _of_source(source: Source, value: Callable[[Source], Any]) -> list[Call]:
    listed, found = source.take("["), list[Call]()
    while not (listed and source.peek() == "]"):
        found.append(_call(source, value))
        if not source.take(","):
            break
    if listed:
        source.expect("]")
    if source.peek():
        source.fail("nothing after the calls")
    return found


def _call(source: Source, value: Callable[[Source], Any]) -> Call:
    name = source.match(_NAME)
    if name is None:
        source.fail("the name of a function")
    source.expect("(")
    arguments: dict[str, Any] = {}
    while not source.take(")"):
        parameter = source.match(_NAME)
        if parameter is None or source.peek() != "=":
            source.fail("a keyword argument, name=value")
        source.expect("=")
        if parameter[0] in arguments:
            raise InvalidAction("an argument twice in one call", value=parameter[0], expected="each once")
        arguments[parameter[0]] = value(source)
        if not source.take(","):
            source.expect(")")
            break
    return Call(name[0], arguments)


def _of_json(value: Any) -> list[Call]:
    return [_of_row(row) for row in (value if isinstance(value, list) else [value])]


def _of_row(row: Any) -> Call:
    """One object of a call; fields beside name, arguments and id are passed over."""
    name = row.get("name") if isinstance(row, dict) else None
    arguments = row.get("arguments", {}) if isinstance(row, dict) else None
    if isinstance(arguments, str):
        arguments = json_value(arguments or "{}")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise InvalidAction("JSON that is no call", value=row, expected='{"name": text, "arguments": object}')
    identity = row.get("id")
    return Call(name, arguments, identity if isinstance(identity, str) else None)


def _of_xml(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    if not text:
        raise InvalidAction("an empty text where calls were expected", expected="<tool_call> or <function=NAME>")
    found: list[Call] = []
    bodies = _TOOL_CALL.findall(text)
    for body in bodies:
        functions = _whole(_FUNCTION, body)
        found += _of_json(json_value(body)) if functions is None else [_of_function(one, schemas) for one in functions]
    if not bodies:
        found = [_of_function(one, schemas) for one in _FUNCTION.finditer(text)]
    if not found:
        raise InvalidAction("text that is no calls in XML", value=text, expected="<tool_call> or <function=NAME>")
    return found


def _whole(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """What a pattern finds, where nothing else but white space stands around it; else None."""
    found = list(pattern.finditer(text))
    around = "".join(text[left:right] for left, right in _gaps(found, len(text)))
    return found if found and not around.strip() else None


def _gaps(found: Sequence[re.Match[str]], end: int) -> list[tuple[int, int]]:
    return list(zip([0, *(one.end() for one in found)], [*(one.start() for one in found), end], strict=True))


def _of_function(found: re.Match[str], schemas: Mapping[str, Mapping[str, Any]]) -> Call:
    """A call whose values are bare text: JSON where it is one that is no text, else the text itself."""
    properties = schemas.get(found[1], {}).get("properties")
    parameters = _whole(_PARAMETER, found[2])
    if parameters is None and found[2].strip():
        raise InvalidAction("a function with other things than parameters", value=found[2], expected="<parameter=P>")
    arguments: dict[str, Any] = {}
    for parameter in parameters or ():
        if parameter[1] in arguments:
            raise InvalidAction("an argument twice in one call", value=parameter[1], expected="each once")
        schema = properties.get(parameter[1]) if isinstance(properties, Mapping) else None
        text = isinstance(schema, Mapping) and schema.get("type") == "string"
        arguments[parameter[1]] = parameter[2] if text else _bare(parameter[2])
    return Call(found[1], arguments)


def _bare(text: str) -> Any:
    try:
        value = json_value(text)
    except InvalidAction:
        return text
    return text if isinstance(value, str) else value
