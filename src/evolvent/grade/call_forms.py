"""Parsing and formatting of calls in the forms of models: Python-like, JSON, Java, JavaScript, and public formats.

    python       [f(a=1), g.h(b="x")], or calls without the brackets; keyword arguments only
    json         [{"name": ..., "arguments": {...}}], or one such object; arguments may be an object or its JSON text,
                 and may be called parameters, input, args or tool_input
    xml          hermes or qwen3_coder, call by call
    java         as python, but each argument stays source text: its literal is read by the type of its parameter
    javascript   as java
    others       the formats of public models, see `grade.call_formats`

Nothing is evaluated. Each form may be inside a fence of backquotes, and behind a thought. A list without calls means no
calls. A call that cannot be read is refused: no part of it is read as another call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.call_formats import (
    CALL_FORMATS,
    CallFormat,
    CallSpan,
    parse_python_calls,
    read_json_calls,
    row_to_json,
    write_python,
)
from evolvent.grade.call_values import ParameterTypes
from evolvent.grade.literals import MAX_CHARS, Source, parse_python_literal
from evolvent.grade.thoughts import FindCall, find_thoughts, mask_thoughts, remove_thoughts
from evolvent.messages import Call, Tool

__all__ = [
    "MAX_CALLS",
    "Form",
    "attempts_call",
    "call_finder",
    "call_openings",
    "decode_calls",
    "encode_calls",
    "find_call_spans",
    "has_call",
    "spell_name",
]

Form = Literal[
    "python",
    "json",
    "xml",
    "java",
    "javascript",
    "hermes",
    "qwen3_coder",
    "llama3",
    "mistral",
    "deepseek",
    "glm",
    "kimi_k2",
    "minimax",
    "harmony",
    "lfm2",
    "gemma4",
    "pythonic",
]
MAX_CALLS = 256
"""Calls of one answer; more are refused."""

_FENCE = re.compile(r"```[\w+-]*+[ \t]*+\n?(.*?)\n?```", re.DOTALL)
_ATTEMPT = re.compile(
    r"(?:```[\w+-]*+\s*+)?"
    r"(?:\[?\s*+[\w.]++(?:\(|\s++\(\s*+\w++\s*+=)|\[?\s*+\{\s*+\"|\[TOOL_CALLS\]|<\|python_)"
)


_LEADING_MARKS = ("[TOOL_CALLS]", "<|python_tag|>")  # Mistral's and Llama's


def _read_python(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    yield from _read_source(Source(text), position, is_python=True)


def _read_foreign(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    yield from _read_source(Source(text), position, is_python=False)


def _read_java(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    yield from _read_source(Source(text, generics=True), position, is_python=False)


def _read_source(source: Source, position: int, *, is_python: bool) -> Iterator[CallSpan]:
    source.at = position
    any(source.accept(mark) for mark in _LEADING_MARKS)
    calls = parse_python_calls(source, parse_python_literal if is_python else _read_raw)
    yield CallSpan(position, source.at, tuple(calls))


def _read_raw(source: Source) -> str:
    text = source.read_raw(",)")
    return text or source.fail("a value")


def _read_json(text: str, position: int, types: ParameterTypes) -> Iterator[CallSpan]:
    source = Source(text)
    source.at = position
    any(source.accept(mark) for mark in _LEADING_MARKS)
    calls = read_json_calls(source, types)
    yield CallSpan(position, source.at, tuple(calls))


def _write_json(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(row_to_json, calls))}]"


_FORMATS: dict[str, CallFormat] = {
    "python": CallFormat((), _read_python, write_python),
    "json": CallFormat((), _read_json, _write_json),
    "java": CallFormat((), _read_java),
    "javascript": CallFormat((), _read_foreign),
    **CALL_FORMATS,
}


def _select_format(form: str) -> CallFormat:
    if form not in get_args(Form):
        raise ConfigError("unknown call format", value=form, expected=list(get_args(Form)))
    return _FORMATS[form]


def call_openings(form: Form) -> tuple[str, ...]:
    """Returns the marks with which calls of a form begin; () where calls are a whole reply without marks."""
    return _select_format(form).openings


def decode_calls(text: str, *, form: Form, tools: Sequence[Tool] = (), in_thought: bool = False) -> tuple[Call, ...]:
    """Parses the calls in a text, in their order. In forms with marks other text may surround them.

    Args:
        text: The text.
        form: Form of the calls.
        tools: Callable tools. Values that are written as bare text get the type that their schemas allow.
        in_thought: Whether the prompt opened a thought, so that the text begins inside it.
    Raises:
        InvalidAction: no calls of this form, a call that cannot be read, positional arguments, a repeated argument,
            more than `MAX_CALLS` calls, more than `literals.MAX_CHARS` characters, or values nested deeper than
            `literals.MAX_DEPTH`.
        ConfigError: an unknown form.
    """
    call_format, types = _select_format(form), ParameterTypes(tools)
    if len(text) > MAX_CHARS:
        raise InvalidAction("a text that is too long to read", value=len(text), expected=f"{MAX_CHARS} characters")
    text = remove_thoughts(text, is_open=in_thought, find_call=_CallFinder(call_format))
    fenced = _FENCE.fullmatch(text)
    inner = fenced[1].strip() if fenced else text
    spans = list(call_format.read(inner, 0, types))
    if call_format.openings and not spans:
        raise InvalidAction(
            f"text that is no calls in {form}", value=inner or "nothing", expected=" or ".join(call_format.openings)
        )
    if not call_format.openings and inner[spans[-1].end :].strip():
        raise InvalidAction("text after the calls", value=inner[spans[-1].end :][:40], expected="nothing")
    calls = [call for span in spans for call in span.calls]
    if len(calls) > MAX_CALLS:
        raise InvalidAction("an answer with too many calls", value=len(calls), expected=f"at most {MAX_CALLS}")
    return tuple(calls)


def find_call_spans(
    text: str, *, form: Form, tools: Sequence[Tool] = (), in_thought: bool = False
) -> tuple[list[tuple[int, int]], list[CallSpan]]:
    """Returns the bounds of the thoughts in a reply, and the spans of its calls outside of them.

    Args:
        text: The reply.
        form: Form of the calls, one with marks.
        tools: Callable tools.
        in_thought: Whether the prompt opened a thought.
    Raises:
        InvalidAction: a call that cannot be read.
    """
    call_format = _select_format(form)
    thoughts = find_thoughts(text, is_open=in_thought, find_call=_CallFinder(call_format))
    return thoughts, list(call_format.read(mask_thoughts(text, thoughts), 0, ParameterTypes(tools)))


def call_finder(form: Form) -> FindCall:
    """Returns the function that finds complete calls of a form, for `thoughts.find_thoughts`."""
    return _CallFinder(_select_format(form))


class _CallFinder:
    """Finds complete calls of a format, readable or not. An opening without its closing mark is passed over."""

    def __init__(self, call_format: CallFormat) -> None:
        self._format = call_format
        self._opening = re.compile("|".join(map(re.escape, call_format.openings))) if call_format.openings else None

    def __call__(self, text: str, position: int) -> tuple[int, int] | None:
        """Returns the bounds of the first call from a position; None without a call."""
        for _ in range(MAX_CALLS):
            try:
                span = next(self._format.read(text, position, ParameterTypes()), None)
                return None if span is None else (span.start, span.end)
            except InvalidAction:
                opening = self._opening.search(text, position) if self._opening else None
                if opening is None:
                    return None
                if (end := self._find_closing(text, opening)) >= 0:
                    return opening.start(), end
                position = opening.end()
        return None

    def _find_closing(self, text: str, opening: re.Match[str]) -> int:
        """Returns where the closing mark ends, if no other call begins before it; otherwise -1."""
        closing = self._format.closing
        if not closing or opening[0] != self._format.openings[0]:
            return -1
        start = text.find(closing, opening.end())
        return start + len(closing) if start >= 0 and text.find(opening[0], opening.end(), start) < 0 else -1


def has_call(text: str, *, form: Form) -> bool:
    """Returns whether a text can be parsed as at least one call (BFCL's relevance verdict)."""
    try:
        return bool(decode_calls(text, form=form))
    except InvalidAction:
        return False


def attempts_call(text: str, *, form: Form) -> bool:
    """Returns whether a text looks like a call, readable or not, behind its thoughts."""
    call_format = _select_format(form)
    body = remove_thoughts(text[:MAX_CHARS], find_call=_CallFinder(call_format))
    has_opening = any(mark in body for name in ("xml", form) for mark in _FORMATS[name].openings)
    return has_opening or _ATTEMPT.match(body) is not None


def spell_name(name: str) -> str:
    """Splits a name into words, for models over whole words: `find_hotel` is `find hotel`. Underscores alone stay."""
    return " ".join(filter(None, re.split(r"[_\s]+", name))) or name


def encode_calls(calls: Sequence[Call], *, form: Form, tools: Sequence[Tool] = ()) -> str:
    """Formats calls; `decode_calls` parses the same calls from the text.

    JSON has no tuples: they become lists. Ids are written in "json", "xml", "hermes" and "mistral" only.

    Args:
        calls: The calls.
        form: Form of the calls, not "java" or "javascript".
        tools: Callable tools, by whose schemas bare text is read.
    Raises:
        SampleInvalid: a name that the form cannot hold, a value that is none of JSON, or calls that would be read as
            others.
        ConfigError: another form.
    """
    call_format = _select_format(form)
    if call_format.write is None:
        writable = [name for name, each in _FORMATS.items() if each.write is not None]
        raise ConfigError("call format cannot be written", value=form, expected=writable)
    try:
        text = call_format.write(calls)
    except (InvalidAction, ValueError, TypeError) as error:
        raise SampleInvalid(f"cannot write calls as {form}: {error}", value=[call.name for call in calls]) from error
    if form not in _SAFE_FORMS and calls:
        _check_read_back(calls, text, form, tools)
    return text


_SAFE_FORMS = ("python", "json", "xml", "hermes")  # what they write is read back whatever it holds


def _check_read_back(calls: Sequence[Call], text: str, form: Form, tools: Sequence[Tool]) -> None:
    try:
        result = [(call.name, _to_json(call)) for call in decode_calls(text, form=form, tools=tools)]
    except InvalidAction as error:
        raise SampleInvalid(f"calls cannot be read back from {form}: {error}", value=text) from error
    if result != [(call.name, _to_json(call)) for call in calls]:
        raise SampleInvalid(f"calls change when they are read back from {form}", value=text, hint="use the form json")


def _to_json(call: Call) -> str:
    return json.dumps(dict(call.arguments), sort_keys=True)
