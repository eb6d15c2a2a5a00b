"""Tools as functions: their JSON schema follows from signature and docstring, and they run when the model calls them.

    def find_price(item: str, currency: Literal["eur", "usd"] = "eur") -> float:
        '''Looks up a price.

        Args:
            item: name of the item.
        '''

Types may be str, int, float, bool, list, dict, Literal, enums, unions, Optional, dataclasses, TypedDict and models of
pydantic. Calls are read in every form that models write (JSON, Python, XML) and are never evaluated. Arguments are
checked and converted before the function runs. A tool may be async.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict

from evolvent.errors import ConfigError, EvolventError, InvalidAction, WorldError, boundary, find_location, shorten_path
from evolvent.grade.call_forms import Form, decode_calls, spell_name
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.toolprompt import Compact
from evolvent.worlds.prompts.rewards import await_result, find_name

__all__ = ["FunctionTool", "ToolFunction", "ToolResult", "read_calls"]

ToolFunction: TypeAlias = Callable[..., object]
"""A function with annotated parameters that a model may call."""
_MAX_RESULT = 20_000  # characters of a result that the model reads
_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_TAG = re.compile(r"<tool_call>|<function=")
_MARK = re.compile(r"\[TOOL_CALLS\]|<\|python_tag\|>")
_FENCED_CALL = re.compile(r"```[\w+-]*[ \t]*\n?\s*[\[{]")
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters)\s*:?\s*$")
_OTHER_SECTION = re.compile(r"^(?:Returns?|Raises|Yields?|Examples?|Notes?)\s*:?\s*$")
_GOOGLE = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[\w\[\], .|]+\s+)?(\w+)\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Args:
        text: what the model reads.
        problem: the error of the function with file and line; "": it ran.
    """

    text: str
    problem: str = ""


class FunctionTool:
    """A function as a tool.

    Args:
        function: the function; its name, docstring and annotations describe it to the model.
    Attributes:
        tool: name, description and JSON schema.
    Raises:
        ConfigError: a parameter without a type, a type without a JSON schema, or parameters that have no name.

    >>> def add(a: int, b: int = 1) -> int:
    ...     '''Adds two numbers.'''
    ...     return a + b
    >>> FunctionTool(add).run({"a": 2}).text
    '3'
    """

    def __init__(self, function: ToolFunction) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigError("the tool is not a function", value=repr(function)[:80], expected="a Python function")
        self.function = function
        self.name = find_name(function)
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = "" if code is None else f" at {shorten_path(code.co_filename)}:{code.co_firstlineno}"
        self.title = f"tool {self.name!r}{place}"
        with boundary(ConfigError, f"the annotations of {self.title} cannot be read"):
            hints = get_type_hints(_annotated_function(function), include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    f"{self.title} takes arguments without names", value=str(parameter), expected="named parameters"
                )
            if parameter.name not in hints:
                raise ConfigError(
                    f"{self.title} has a parameter without a type",
                    value=parameter.name,
                    expected=f"an annotation such as {parameter.name}: str",
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            # Fields have names of their own: `json`, `schema` and `_x` mean something else in a model of pydantic.
            annotation: Any = Annotated[_portable_type(hints[parameter.name]), Field(alias=parameter.name)]
            fields[f"parameter_{len(fields)}"] = (annotation, default)
        with boundary(ConfigError, f"{self.title} has a type without a JSON schema"):
            self._arguments = create_model(
                self.name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
            )
            schema = _without_titles(self._arguments.model_json_schema())
        summary, descriptions = _read_docstring(inspect.getdoc(function) or "")
        for name, description in descriptions.items():
            if name in schema.get("properties", {}):
                schema["properties"][name].setdefault("description", description)
        schema.pop("additionalProperties", None)
        schema.pop("description", None)
        self.tool = Tool(self.name, summary, {"properties": {}, **schema})

    def run(self, arguments: Mapping[str, object]) -> ToolResult:
        """Runs the function with checked arguments.

        A wrong argument or an error of the function becomes the text that the model reads, as in every agent loop.
        """
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, row['loc'])) or 'arguments'}: {row['msg']}" for row in error.errors()[:3]]
            return ToolResult(f"error: {self.name}: {'; '.join(faults)}")
        values = {str(info.alias): getattr(checked, name) for name, info in self._arguments.model_fields.items()}
        try:
            with boundary(WorldError, f"tool {self.name!r} failed"):
                value = self.function(**values)
                if inspect.isawaitable(value):
                    value = await_result(value)
                return ToolResult(_format_result(value))
        except EvolventError as error:
            cause = error.__cause__ or error
            place = find_location(cause)
            problem = f"tool {self.name!r} raised {type(cause).__name__}{f' at {place}' if place else ''}: got {cause}"
            return ToolResult(f"error: {type(cause).__name__}: {cause}"[:_MAX_RESULT], problem)


def _portable_type(annotation: Any) -> Any:
    """Returns a type with the TypedDicts of `typing` as those of `typing_extensions`, which pydantic reads anywhere."""
    if is_typeddict(annotation):
        members = {name: _portable_type(member) for name, member in get_type_hints(annotation).items()}
        return TypedDict(annotation.__name__, members, total=annotation.__total__)  # type: ignore[operator]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (None, Literal, Annotated) or not any(map(_has_typed_dict, parts)):
        return annotation
    portable = tuple(map(_portable_type, parts))
    return Union[portable] if origin in (Union, UnionType) else origin[portable]  # noqa: UP007


def _has_typed_dict(annotation: Any) -> bool:
    return is_typeddict(annotation) or any(map(_has_typed_dict, get_args(annotation)))


def _annotated_function(function: ToolFunction) -> ToolFunction:
    """Returns the function that holds the annotations: that of a partial, or the method `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(inspect.unwrap(function)) else type(function).__call__


def _format_result(value: object) -> str:
    """Returns a result as text, or as JSON: dataclasses, models of pydantic, enums, sets and arrays included."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_to_jsonable)
    return text if len(text) <= _MAX_RESULT else f"{text[:_MAX_RESULT]} ... ({len(text) - _MAX_RESULT} more characters)"


def _to_jsonable(value: object) -> object:
    if hasattr(value, "tolist"):  # numpy, torch
        return value.tolist()
    return to_jsonable_python(value, fallback=str)


def _without_titles(schema: Any) -> Any:
    """Returns a schema without the titles that pydantic adds; properties of the name `title` stay."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "title" or not isinstance(value, str)}
    return {
        name: {key: _without_titles(item) for key, item in value.items()}
        if name in ("properties", "$defs") and isinstance(value, dict)
        else value
        if name in ("default", "enum", "const")
        else _without_titles(value)
        for name, value in kept.items()
    }


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Returns the description of a function, and those of its parameters (Google's or Sphinx's form)."""
    summary: list[str] = []
    descriptions: dict[str, str] = {}
    section, last = "summary", ""
    for line in text.splitlines():
        if _SECTION.match(line):
            section = "parameters"
        elif _OTHER_SECTION.match(line) or line.strip().startswith((":return", ":raises")):
            section = "other"
        elif sphinx := _SPHINX.match(line):
            section, last = "sphinx", sphinx[1]
            descriptions[last] = sphinx[2].strip()
        elif section == "parameters" and (google := _GOOGLE.match(line)):
            last = google[1]
            descriptions[last] = google[2].strip()
        elif section in ("parameters", "sphinx") and last and line.strip():
            descriptions[last] = f"{descriptions[last]} {line.strip()}".strip()
        elif section == "summary":
            summary.append(line)
    return " ".join("\n".join(summary).split()), descriptions


def read_calls(text: str, tools: Sequence[Tool]) -> tuple[str, tuple[Call, ...]]:
    """Reads the calls at the end of a reply, in whatever form the model writes them.

    Returns:
        the text before the calls, and the calls. A reply without readable calls is text alone.

    >>> add = Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}})
    >>> read_calls('Let me see. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [add])
    ('Let me see. ', (Call(name='add', arguments={'a': 1}, id=None),))
    """
    if not tools:
        return text, ()
    thought = _THOUGHT.match(text)
    start = thought.end() if thought else 0
    tag = _TAG.search(text, start)
    mark = _MARK.search(text, start)
    fence = _FENCED_CALL.search(text, start)
    forms: tuple[str, ...]
    if tag is not None:
        start, forms = tag.start(), ("xml",)
    elif mark is not None:
        start, forms = mark.end(), ("json", "python")
    elif text[start:].lstrip()[:1] in ("[", "{"):
        forms = ("json", "python")
    elif fence is not None:
        start, forms = fence.start(), ("json", "python")
    else:
        return text, ()
    sample = CallSample("reply", (Message("user", ""),), tuple(tools))
    for form in forms:
        try:
            calls = _decode(text[start:], form, sample)
        except InvalidAction:
            continue
        names = {spell_name(tool.name): tool.name for tool in tools}
        is_meant = form == "xml" or '"arguments"' in text or any(spell_name(call.name) in names for call in calls)
        if calls and is_meant:
            named = tuple(Call(names.get(spell_name(call.name), call.name), call.arguments) for call in calls)
            return text[:start], named
    return text, ()


def _decode(text: str, form: str, sample: CallSample) -> tuple[Call, ...]:
    if form == "python":
        return Compact().parse_calls(text, sample)
    body = text.strip()
    if form == "json" and '"parameters"' in body and '"arguments"' not in body:  # Llama's form
        body = re.sub(r"(?<=\})\s*;\s*(?=\{)", ",", body.replace('"parameters"', '"arguments"'))
        body = body if body.startswith("[") else f"[{body}]"
    known: Form = "xml" if form == "xml" else "json"
    return decode_calls(body, form=known, tools=sample.tools)
