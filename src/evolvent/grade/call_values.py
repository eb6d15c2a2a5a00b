"""Values of bare text in a call: what `90210` or `True` means is decided by the schema of its parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.grade.literals import Source, parse_json, parse_python_literal
from evolvent.messages import Tool
from evolvent.schemas import find_argument_faults, json_schema

__all__ = ["ParameterTypes"]

_COMBINATIONS = ("allOf", "anyOf", "oneOf")
_EVERY_TYPE = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))


class ParameterTypes:
    """The types of the parameters of some tools.

    Args:
        tools: The tools. A tool with a schema that cannot be read counts as one without a schema.
    """

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._schemas: dict[str, Mapping[str, Any]] = {}

    def parameter_names(self, tool_name: str) -> frozenset[str]:
        """Returns the names of the parameters that the schema of a tool lists."""
        return frozenset(
            name for schema in _with_branches(self._schema(tool_name)) for name in schema.get("properties") or ()
        )

    def read_bare(self, tool_name: str, parameter: str, text: str) -> object:
        """Reads the value of bare text.

        Candidates are the text as JSON, as a literal of Python, and the text itself. Those that the schema accepts are
        left, else those of an allowed type, else all. Where the text itself is left beside another value, the other
        one counts only if it is written as the text is.
        """
        candidates = _list_candidates(text)
        if len(candidates) > 1:
            candidates = self._select_fitting(candidates, self._parameter_schema(tool_name, parameter))
        if text in candidates and candidates[0] != text and not _is_written_so(candidates[0], text):
            return text
        return candidates[0]

    def _select_fitting(self, candidates: list[Any], schema: Mapping[str, Any] | None) -> list[Any]:
        if schema is None:
            return candidates
        wrapper = {"type": "object", "properties": {"value": schema}}
        try:
            fitting = [
                value
                for value in candidates
                # BFCL's schemas say {"type": "string", "default": null} of texts that may be null.
                if (value is None and "default" in schema and schema["default"] is None)
                or not find_argument_faults({"value": value}, wrapper)
            ]
        except SampleInvalid:
            fitting = []
        types = _allowed_types(schema)
        return fitting or [value for value in candidates if _type_names(value) & types] or candidates

    def _schema(self, tool_name: str) -> Mapping[str, Any]:
        if tool_name not in self._schemas:
            tool = self._tools.get(tool_name)
            try:
                self._schemas[tool_name] = json_schema(tool.parameters) if tool else {}
            except SampleInvalid:
                self._schemas[tool_name] = tool.parameters if tool else {}
        return self._schemas[tool_name]

    def _parameter_schema(self, tool_name: str, parameter: str) -> Mapping[str, Any] | None:
        """Returns the schema of a parameter; None where any value is accepted."""
        branches = _with_branches(self._schema(tool_name))
        schemas = [
            schema["properties"][parameter]
            for schema in branches
            if isinstance(schema.get("properties"), Mapping) and parameter in schema["properties"]
        ]
        schemas = schemas or [schema["additionalProperties"] for schema in branches if "additionalProperties" in schema]
        named = [schema for schema in schemas if isinstance(schema, Mapping)]
        if len(named) < len(schemas) or not named:
            return None
        return named[0] if len(named) == 1 else {"anyOf": named}


def _with_branches(schema: object) -> list[Mapping[str, Any]]:
    """Returns a schema and the schemas that it combines."""
    if not isinstance(schema, Mapping):
        return []
    branches = [branch for key in _COMBINATIONS for branch in schema.get(key) or () if isinstance(branch, Mapping)]
    return [schema, *(inner for branch in branches for inner in _with_branches(branch))]


def _is_written_so(value: Any, text: str) -> bool:
    """Returns whether a writer of the value may write the text: JSON of any spacing, or a constant of Python."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value) == text.strip()
    return not isinstance(value, (list, dict)) or _parses_as_json(text)


def _parses_as_json(text: str) -> bool:
    try:
        parse_json(text)
    except InvalidAction:
        return False
    return True


def _list_candidates(text: str) -> list[Any]:
    """Returns the values that a bare text may stand for, the text itself before a text in quotes."""
    candidates, quoted = list[Any](), list[Any]()
    try:
        value = parse_json(text)
        (quoted if isinstance(value, str) else candidates).append(value)
    except InvalidAction:
        pass
    stripped = text.strip()
    if not candidates and (stripped in ("True", "False", "None") or stripped[:1] in ("[", "{", "(")):
        try:
            source = Source(stripped, strict=True)
            value = _tuples_to_lists(parse_python_literal(source))
            candidates += [] if source.peek() or isinstance(value, str) else [value]
        except InvalidAction:
            pass
    return [*candidates, text, *quoted]


def _tuples_to_lists(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_tuples_to_lists(element) for element in value]
    if isinstance(value, dict):
        return {key: _tuples_to_lists(element) for key, element in value.items()}
    return value


def _allowed_types(schema: object) -> frozenset[str]:
    """Returns the JSON types that a schema may accept."""
    if not isinstance(schema, Mapping):
        return _EVERY_TYPE
    kinds = schema.get("type", _EVERY_TYPE)
    types = frozenset((kinds,) if isinstance(kinds, str) else kinds)
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        types &= frozenset[str]().union(*map(_type_names, values))
    for branch in schema.get("allOf") or ():
        types &= _allowed_types(branch)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            types &= frozenset[str]().union(*map(_allowed_types, schema[key]))
    return types


def _type_names(value: object) -> frozenset[str]:
    """Returns the names of a JSON value's type; whole numbers have two."""
    if value is None:
        return frozenset(("null",))
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, (int, float)):
        is_whole = isinstance(value, int) or value.is_integer()
        return frozenset(("number", "integer") if is_whole else ("number",))
    return frozenset(("string" if isinstance(value, str) else "object" if isinstance(value, Mapping) else "array",))
