"""Schemas of a tool's parameters: every dialect of the data is read as one JSON Schema.

Dialects: JSON Schema (OpenAI, MCP, Anthropic), BFCL's (`dict`, `float`, `tuple`, `any`, names of Java's classes), and
the flat one of xLAM and Hammer (a mapping from parameter to `{type, description, default}`, with types like `List[str]`
and `int, optional`). All become JSON Schema, draft 2020-12, with limits that keep data from doing harm: references are
local, not recursive, and written out in place, so that a schema is a finite tree of bounded size; patterns are regular
expressions in the strict sense, matched in linear time; nothing is ever fetched.

Checks arguments against a tool's schema, and tools against each other.
"""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from evolvent.errors import Problem, SampleInvalid
from evolvent.messages import Tool
from evolvent.trajectory import JsonObject, canonical_json

__all__ = [
    "LEGAL_NAME",
    "MAX_DEPTH",
    "MAX_NODES",
    "MAX_VALUES",
    "TYPES",
    "check_tools",
    "compile_pattern",
    "find_argument_faults",
    "is_flat",
    "json_schema",
    "parse_tool",
]


MAX_DEPTH = 32  # schemas deeper than this are refused, and values are never looked at further
MAX_NODES = 10_000  # largest schema, references written out; a reference can double what it names, again and again
TYPES: Mapping[str, str] = {
    "string": "string",
    "str": "string",
    "text": "string",
    "char": "string",
    "character": "string",
    "date": "string",
    "datetime": "string",
    "time": "string",
    "callable": "string",
    "function": "string",
    "file": "string",
    "integer": "integer",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bigint": "integer",
    "number": "number",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "boolean": "boolean",
    "bool": "boolean",
    "null": "null",
    "none": "null",
    "nonetype": "null",
    "array": "array",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "arraylist": "array",
    "sequence": "array",
    "iterable": "array",
    "object": "object",
    "dict": "object",
    "hashmap": "object",
    "map": "object",
    "dictionary": "object",
    "mapping": "object",
    "any": "",
    "": "",
}
"""Names of types, in lower case, and what JSON Schema calls them; "" holds anything."""
_SCHEMA_KEYWORDS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAP_KEYWORDS = ("properties", "dependentSchemas")
_COPIED_KEYWORDS = frozenset(
    (
        "enum",
        "const",
        "default",
        "description",
        "title",
        "examples",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minContains",
        "maxContains",
        "minProperties",
        "maxProperties",
        "dependentRequired",
    )
)
_MAX_NUMBER = sys.float_info.max
_REFUSED_KEYWORDS = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
_OPTIONAL = re.compile(r",\s*optional$", re.IGNORECASE)


def parse_tool(row: object) -> Tool:
    """Parses the tool in a row: OpenAI's forms, BFCL's, xLAM's and Hammer's, MCP's (`inputSchema`), Anthropic's.

    The parameters stay as they are written, for prompts show them so; `json_schema` reads them.

    Raises:
        SampleInvalid: none of these forms, or no name.
    """
    if isinstance(row, Mapping) and isinstance(row.get("function"), Mapping):
        return Tool.of_openai(row)
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not row["name"]:
        raise SampleInvalid("the tool has no name", value=row, expected='{"name", "description", "parameters"}')
    schemas = [row[key] for key in ("parameters", "inputSchema", "input_schema") if row.get(key) is not None]
    if len(schemas) > 1 or any(not isinstance(schema, Mapping) for schema in schemas):
        raise SampleInvalid("the parameters of a tool are not a JSON schema", value=schemas, expected="one object")
    description = row.get("description")
    return Tool(row["name"], description if isinstance(description, str) else "", dict(schemas[0]) if schemas else {})


def is_flat(parameters: Mapping[str, object]) -> bool:
    """Returns whether parameters are of the flat form: a mapping from each parameter's name to its description."""
    if isinstance(parameters.get("type"), (str, list)) or any(key in parameters for key in ("$ref", *_LIST_KEYWORDS)):
        return False
    properties = parameters.get("properties")
    is_object_schema = isinstance(properties, Mapping) and all(
        isinstance(schema, (Mapping, bool)) for schema in properties.values()
    )
    return (
        not is_object_schema and bool(parameters) and all(isinstance(schema, Mapping) for schema in parameters.values())
    )


def json_schema(parameters: JsonObject) -> JsonObject:
    """Returns the parameters of a tool as JSON Schema (draft 2020-12): an object schema without references.

    Names of types are translated. The outermost object takes no argument that it does not name unless it allows them
    (`additionalProperties`, or a combination of schemas); inner objects are as open as they declare. A parameter of the
    flat form is required unless it has a default or its type is optional. A recursive reference is refused: it
    describes an infinite tree, from which neither a masked prompt nor a check of bounded cost can be made.

    Raises:
        SampleInvalid: with the path, if the schema is malformed, has an unknown type, is deeper than `MAX_DEPTH` or
            larger than `MAX_NODES`, or has a reference that is remote, unresolved or recursive.
    """
    reader = _Reader(parameters)
    if is_flat(parameters):
        properties = {str(name): reader.read_node(node, (str(name),)) for name, node in parameters.items()}
        required = [name for name, node in parameters.items() if _is_required_flat(node)]
        schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    else:
        schema = reader.read_node(parameters, ())
    if schema.get("type", "object") != "object":
        raise SampleInvalid("the parameters of a tool are not an object", value=schema.get("type"), expected="object")
    schema = {"type": "object", "properties": {}, **schema}
    if not any(key in schema for key in ("additionalProperties", "anyOf", "oneOf", "allOf", "if")):
        schema["additionalProperties"] = False
    return schema


# ---------------------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Reader:
    """Reads the schema of one tool; `nodes` counts the nodes read, `open_references` lists the references being
    followed.
    """

    root: Mapping[str, Any]
    nodes: int = 0
    open_references: list[str] = field(default_factory=list)

    def read_node(self, node: object, path: tuple[str, ...]) -> Any:
        """Reads a node as JSON Schema. Booleans are schemas too."""
        self.nodes += 1
        if len(path) > MAX_DEPTH or self.nodes > MAX_NODES:
            raise _schema_error(
                "the schema is too large",
                path,
                f"at most {MAX_DEPTH} levels and {MAX_NODES} nodes after expanding references",
            )
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            raise _schema_error(f"the schema is {type(node).__name__}", path, "an object")
        for key in _REFUSED_KEYWORDS:
            if key in node:
                raise _schema_error(f"unsupported keyword {key!r}", path, "a schema without it")
        schema = {**self._read_type(node, path), **{key: node[key] for key in _COPIED_KEYWORDS & node.keys()}}
        for key in _SCHEMA_KEYWORDS:
            if key in node and not (key == "items" and isinstance(node[key], list)):
                schema[key] = self.read_node(node[key], (*path, key))
        for key in _LIST_KEYWORDS:
            if key in node:
                schema[key] = self._read_list(node[key], (*path, key))
        if isinstance(node.get("items"), list):  # what drafts before 2020-12 called prefixItems
            schema["prefixItems"] = self._read_list(node["items"], (*path, "items"))
        for key in _MAP_KEYWORDS:
            if key in node:
                schema[key] = self._read_map(node[key], (*path, key))
        schema |= self._read_required(node, schema.get("properties", {}), path)
        self._read_patterns(node, schema, path)
        _check_keywords(schema, path)
        return self._resolve_reference(node["$ref"], schema, path) if "$ref" in node else schema

    def _read_list(self, nodes: object, path: tuple[str, ...]) -> list[Any]:
        if not isinstance(nodes, list):
            raise _schema_error(f"{path[-1]} is {type(nodes).__name__}", path, "a list of schemas")
        return [self.read_node(node, (*path, str(number))) for number, node in enumerate(nodes)]

    def _read_map(self, nodes: object, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(nodes, Mapping):
            raise _schema_error(f"{path[-1]} is {type(nodes).__name__}", path, "an object of schemas")
        return {str(name): self.read_node(node, (*path, str(name))) for name, node in nodes.items()}

    def _read_type(self, node: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        type_value = node.get("type", "object" if "properties" in node else "")
        if isinstance(type_value, list) and all(isinstance(type_name, str) for type_name in type_value):
            names = [TYPES.get(type_name.lower(), None) for type_name in type_value]
            if None in names:
                raise _schema_error(f"unknown type {type_value!r}", path, "a type of JSON Schema or of BFCL")
            return {} if "" in names else {"type": sorted({str(name) for name in names})}
        if not isinstance(type_value, str):
            raise _schema_error(f"the type is {type(type_value).__name__}", path, "the name of a type")
        schema = _parse_type(type_value, path)
        if node.get("nullable") is True and isinstance(schema.get("type"), str):  # OpenAPI 3.0
            schema["type"] = [schema["type"], "null"]
        return schema

    def _read_required(
        self, node: Mapping[str, Any], properties: Mapping[str, Any], path: tuple[str, ...]
    ) -> dict[str, Any]:
        """Reads the names in `required`; a parameter may also call itself required (draft 3) or optional (BFCL)."""
        required = node.get("required")
        names = required if isinstance(required, list) else []
        if not isinstance(required, (list, bool, type(None))) or not all(isinstance(part, str) for part in names):
            raise _schema_error(f"required is {required!r}", path, "a list of names")
        source_properties = node.get("properties")
        parts: Mapping[str, Any] = source_properties if isinstance(source_properties, Mapping) else {}
        described_parts = {name: part for name, part in parts.items() if isinstance(part, Mapping)}
        names = [*names, *(name for name, part in described_parts.items() if part.get("required") is True)]
        names = [name for name in dict.fromkeys(names) if described_parts.get(name, {}).get("optional") is not True]
        absent = [name for name in names if "properties" in node and name not in properties]
        if absent:
            raise _schema_error(
                f"required lists {absent[0]!r}, which is not a property", path, "a name among the properties"
            )
        return {"required": names} if names else {}

    def _read_patterns(self, node: Mapping[str, Any], schema: dict[str, Any], path: tuple[str, ...]) -> None:
        if "pattern" in schema:
            compile_pattern(schema["pattern"], path)
        patterns = node.get("patternProperties")
        if not patterns:
            return
        if not isinstance(patterns, Mapping) or set(patterns) - {"^(.*)$", "^.*$", ".*", ""} or len(patterns) > 1:
            raise _schema_error("patternProperties", path, "additionalProperties instead")
        ((_, pattern_schema),) = patterns.items()
        schema["additionalProperties"] = self.read_node(pattern_schema, (*path, "patternProperties"))

    def _resolve_reference(self, target: object, siblings: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Resolves a local reference in place; its sibling keywords apply too."""
        if not isinstance(target, str) or not target.startswith("#"):
            raise _schema_error(
                f"reference to {target!r}", path, "a local reference (#/$defs/NAME); remote references are not fetched"
            )
        if target in self.open_references:
            raise _schema_error(f"recursive reference to {target!r}", path, "a schema that is a finite tree")
        if len(self.open_references) >= MAX_DEPTH:
            raise _schema_error("chain of references is too long", path, f"at most {MAX_DEPTH} nested references")
        node: Any = self.root
        for part in target.lstrip("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, Mapping) and part in node:
                node = node[part]
            else:
                raise _schema_error(f"unresolved reference to {target!r}", path, "a definition in the schema")
        self.open_references.append(target)
        resolved = self.read_node(node, path)
        self.open_references.pop()
        annotations = {"description", "title", "default", "examples"}
        if isinstance(resolved, Mapping) and set(siblings) <= annotations:
            return {**resolved, **siblings}
        return {
            **{key: siblings[key] for key in annotations & set(siblings)},
            "allOf": [resolved, {k: v for k, v in siblings.items() if k not in annotations}],
        }


def _schema_error(problem: str, path: tuple[str, ...], expected: str) -> SampleInvalid:
    return SampleInvalid(f"{problem} at {'.'.join(path[:8]) or 'the top'}", expected=expected)


def _check_keywords(schema: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Checks the values of keywords that hold no schema."""
    for key, value in schema.items():
        if key == "enum" and not isinstance(value, list):
            raise _schema_error("enum is not a list", path, "a list of values")
        if key in ("uniqueItems",) and not isinstance(value, bool):
            raise _schema_error(f"{key} is {value!r}", path, "true or false")
        if key.lower().startswith(("min", "max", "exclusive", "multiple")):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER
            counted = key.endswith(("Items", "Length", "Properties", "Contains"))
            if not number or (counted and value < 0) or (key == "multipleOf" and value <= 0):
                raise _schema_error(f"{key} is {value!r}", path, "a valid number")
    dependencies = schema.get("dependentRequired", {})
    if not isinstance(dependencies, Mapping) or not all(isinstance(names, list) for names in dependencies.values()):
        raise _schema_error("dependentRequired is not an object of lists", path, "names by name")


def _is_required_flat(parameter: Mapping[str, Any]) -> bool:
    required = parameter.get("required")
    if isinstance(required, bool):
        return required
    text = parameter.get("type")
    optional = parameter.get("optional") is True or (isinstance(text, str) and "optional" in text.lower())
    return not optional and "default" not in parameter


# ---------------------------------------------------------------------------------------------------- types


def _parse_type(text: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Parses a type by its name, or as Python writes it: `List[Tuple[str, int]]`, `Union[int, str]`, `int,
    optional`.
    """
    plain = TYPES.get(text.strip().lower())
    if plain is not None:
        return {"type": plain} if plain else {}
    refused = _schema_error(f"an unknown type {text[:80]!r}", path, "a type of JSON Schema, BFCL or Python")
    try:
        tree = ast.parse(_OPTIONAL.sub("", text[:200].strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refused from error
    schema = _type_from_tree(tree)
    if schema is None:
        raise refused
    return schema


def _type_from_tree(node: ast.expr) -> dict[str, Any] | None:
    """Converts a syntax tree to a type; returns None if it is not a type."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _combine_types([_type_from_tree(node.left), _type_from_tree(node.right)])
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    head = node.value if isinstance(node, ast.Subscript) else node
    name = head.id if isinstance(head, ast.Name) else head.attr if isinstance(head, ast.Attribute) else ""
    kind = TYPES.get(name.lower()) if name else None
    inner = node.slice if isinstance(node, ast.Subscript) else None
    nodes = inner.elts if isinstance(inner, ast.Tuple) else [inner] if inner is not None else []
    if name.lower() == "literal":
        values = [child.value for child in nodes if isinstance(child, ast.Constant)]
        return {"enum": values} if len(values) == len(nodes) else None
    parts = [{}] if name.lower() == "callable" else [_type_from_tree(child) for child in nodes]
    if name.lower() in ("union", "optional"):
        return _combine_types([*parts, *([{"type": "null"}] if name.lower() == "optional" else [])])
    if kind is None or None in parts:
        return None
    schema: dict[str, Any] = {"type": kind} if kind else {}
    if name.lower() == "tuple" and len(parts) > 1:
        return {**schema, "prefixItems": parts}
    if kind == "array" and parts:
        return {**schema, "items": parts[0]}
    return {**schema, "additionalProperties": parts[1]} if kind == "object" and len(parts) == 2 else schema


def _combine_types(schemas: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    if None in schemas or not schemas:
        return None
    return {} if {} in schemas else {"anyOf": schemas}


def compile_pattern(pattern: object, path: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """Returns a predicate that tests whether a pattern matches somewhere in a text, in time linear in the text.

    Raises:
        SampleInvalid: the pattern is invalid, is too long, or needs look-around or references; names the path.
    """
    import pyarrow
    from pyarrow import compute

    def matches(text: str) -> bool:
        return bool(compute.match_substring_regex(pyarrow.array([text]), str(pattern))[0].as_py())

    try:
        if isinstance(pattern, str) and len(pattern) <= 1000:
            matches("")
            return matches
    except (pyarrow.ArrowInvalid, UnicodeError) as error:
        raise _schema_error(
            f"unsupported pattern {pattern!r}", path, "a regular expression without look-around or references"
        ) from error
    raise _schema_error(
        f"unsupported pattern {str(pattern)[:80]!r}", path, "a regular expression of at most 1,000 characters"
    )


MAX_VALUES = 200_000  # most values in the arguments of a call
LEGAL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")  # what every provider of models takes


def find_argument_faults(arguments: Mapping[str, object], parameters: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the faults of the arguments of a call, one sentence a fault, in the order of their paths; () where
    valid.

    Args:
        arguments: JSON values; a tuple counts as a list. Anything else, NaN, and more than `MAX_VALUES` values or
            `MAX_DEPTH` levels are faults.
        parameters: parameters of the tool, in any dialect.
    Raises:
        SampleInvalid: a schema that `json_schema` refuses.
    """
    validator = _make_validator(_canonical_schema(parameters))
    json_fault = _find_json_fault(arguments)
    if json_fault is not None:
        return (json_fault,)
    errors = sorted(
        validator.iter_errors(arguments), key=lambda error: (list(map(str, error.absolute_path)), error.message)
    )
    return tuple([_format_error(error) for error in errors])


def check_tools(tools: Sequence[Tool], *, dotted: bool = False) -> tuple[Problem, ...]:
    """Returns the problems of tools that are offered together: duplicate names, illegal names, invalid schemas.

    Args:
        dotted: whether parts of a name may be joined by dots, as BFCL's are.
    """
    problems: list[Problem] = []
    names: set[str] = set()
    for number, tool in enumerate(tools):
        path = f"tools[{number}]"
        if tool.name in names:
            problems.append(Problem(path, f"tool name {tool.name!r} occurs twice", "use unique tool names"))
        names.add(tool.name)
        parts = tool.name.split(".") if dotted else [tool.name]
        if len(tool.name) > 64 or not all(LEGAL_NAME.fullmatch(part) for part in parts):
            hint = "use at most 64 letters, digits, _ and -, without a digit first"
            problems.append(Problem(path, f"{tool.name[:80]!r} is not a legal name", hint))
        try:
            json_schema(tool.parameters)
        except SampleInvalid as error:
            problems.append(Problem(f"{path}.parameters", str(error)))
    return tuple(problems)


def _canonical_schema(parameters: Mapping[str, Any]) -> str:
    try:
        return canonical_json(dict(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("the schema is not JSON", value=str(error), expected="JSON values") from error


@lru_cache(2048)
def _make_validator(text: str) -> Any:
    """Returns the validator of arguments for the schema with this text; it is cached."""
    import jsonschema

    base = jsonschema.Draft202012Validator
    kinds = base.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, (list, tuple)),
            "object": lambda _, value: isinstance(value, Mapping),
        }
    )
    validator_class = jsonschema.validators.extend(
        base, {"pattern": _check_pattern, "uniqueItems": _check_unique}, type_checker=kinds
    )
    return validator_class(json_schema(json.loads(text)))


def _check_pattern(validator: Any, pattern: str, value: object, _: object) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not compile_pattern(pattern)(value.encode("utf-8", "replace").decode()):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _check_unique(validator: Any, unique: bool, value: object, _: object) -> Iterator[Any]:
    """Checks uniqueness by sorting keys: comparing every pair takes hours for a list that a model writes in seconds."""
    from jsonschema import ValidationError

    if (
        unique
        and isinstance(value, (list, tuple))
        and len({canonical_json(_normalize_numbers(element)) for element in value}) < len(value)
    ):
        yield ValidationError("a value is given twice in a list of different ones")


def _normalize_numbers(value: object) -> object:
    """Converts equal numbers to one form: JSON has one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _normalize_numbers(element) for name, element in value.items()}
    return [_normalize_numbers(element) for element in value] if isinstance(value, (list, tuple)) else value


def _find_json_fault(arguments: object) -> str | None:
    """Returns the reason why arguments are not JSON values of a reasonable size, or None."""
    pending: list[tuple[object, int]] = [(arguments, 0)]
    if not isinstance(arguments, Mapping):
        return f"the arguments are {type(arguments).__name__}, not an object"
    for count in range(MAX_VALUES + 1):
        if not pending:
            return None
        value, level = pending.pop()
        if count == MAX_VALUES or level > MAX_DEPTH:
            break
        if isinstance(value, Mapping):
            if not all(isinstance(name, str) for name in value):
                return "an object has a key that is no text"
            pending += [(child, level + 1) for child in value.values()]
        elif isinstance(value, (list, tuple)):
            pending += [(child, level + 1) for child in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{value!r} is no number of JSON"
        elif isinstance(value, int) and value.bit_length() > 1000:
            return "a whole number is too large"
        elif value is not None and not isinstance(value, (str, int, float)):
            return f"a value is {type(value).__name__}, which JSON does not have"
    return f"the arguments have more than {MAX_VALUES} values or {MAX_DEPTH} levels"


def _format_error(error: Any) -> str:
    path = ".".join(map(str, error.absolute_path))
    text = f"{path}: {error.message}" if path else str(error.message)
    return text if len(text) <= 300 else text[:297] + "..."
