"""Schemas of a tool's parameters: every dialect that data comes in, read as one JSON Schema, and arguments held to it.

Dialects: JSON Schema (OpenAI, MCP, Anthropic), BFCL's (`dict`, `float`, `tuple`, `any`, names of Java's classes), and
the flat one of xLAM and Hammer (a mapping from parameter to `{type, description, default}`, with types like `List[str]`
and `int, optional`). All become JSON Schema, draft 2020-12, with limits that keep data from doing harm: references are
local, not recursive, and written out in place, so that a schema is a finite tree of bounded size; patterns are regular
expressions in the strict sense, matched in linear time; nothing is ever fetched.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import SampleInvalid
from evolvent.messages import Tool

__all__ = ["DEPTH", "NODES", "TYPES", "is_flat", "json_schema", "matcher", "tool_of"]

DEPTH = 32  # schemas deeper than this are refused, and values are never looked at further
NODES = 10_000  # largest schema, references written out; a reference can double what it names, again and again
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
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "dependentSchemas")
_KEPT = frozenset(
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
_LARGEST = sys.float_info.max
_REFUSED = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
_OPTIONAL = re.compile(r",\s*optional$", re.IGNORECASE)


def tool_of(row: object) -> Tool:
    """The tool that a row tells: OpenAI's forms, BFCL's, xLAM's and Hammer's, MCP's (`inputSchema`), Anthropic's.

    The parameters stay as they are written, for prompts show them so; `json_schema` reads them.

    Raises:
        SampleInvalid: none of these forms, or no name.
    """
    if isinstance(row, Mapping) and isinstance(row.get("function"), Mapping):
        return Tool.of_openai(row)
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not row["name"]:
        raise SampleInvalid("a tool without a name", value=row, expected='{"name", "description", "parameters"}')
    given = [row[key] for key in ("parameters", "inputSchema", "input_schema") if row.get(key) is not None]
    if len(given) > 1 or any(not isinstance(one, Mapping) for one in given):
        raise SampleInvalid("parameters of a tool that are no JSON schema", value=given, expected="one object")
    description = row.get("description")
    return Tool(row["name"], description if isinstance(description, str) else "", dict(given[0]) if given else {})


def is_flat(parameters: Mapping[str, Any]) -> bool:
    """Whether parameters are of the flat form: a mapping from each parameter's name to what it is."""
    if isinstance(parameters.get("type"), (str, list)) or any(key in parameters for key in ("$ref", *_LISTS)):
        return False
    listed = parameters.get("properties")
    whole = isinstance(listed, Mapping) and all(isinstance(one, (Mapping, bool)) for one in listed.values())
    return not whole and bool(parameters) and all(isinstance(one, Mapping) for one in parameters.values())


def json_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a tool as JSON Schema (draft 2020-12): an object schema without references.

    Names of types are translated. The outermost object takes no argument that it does not name unless it says so
    (`additionalProperties`, or a combination of schemas); inner objects are as open as they say. A parameter of the
    flat form is required unless it has a default or its type is optional. A recursive reference is refused: what it
    describes is no finite tree, and neither a masked prompt nor a check of bounded cost can be made of it.

    Raises:
        SampleInvalid: with the path, for what is malformed, an unknown type, deeper than `DEPTH`, larger than `NODES`,
            or has a reference that is remote, unresolved or recursive.
    """
    reader = _Reader(parameters)
    if is_flat(parameters):
        known = {str(name): reader.read(one, (str(name),)) for name, one in parameters.items()}
        needed = [name for name, one in parameters.items() if _required_of_flat(one)]
        found: dict[str, Any] = {"type": "object", "properties": known, "required": needed}
    else:
        found = reader.read(parameters, ())
    if found.get("type", "object") != "object":
        raise SampleInvalid("the parameters of a tool are no object", value=found.get("type"), expected="object")
    found = {"type": "object", "properties": {}, **found}
    if not any(key in found for key in ("additionalProperties", "anyOf", "oneOf", "allOf", "if")):
        found["additionalProperties"] = False
    return found


# ---------------------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Reader:
    """Reads the schema of one tool; `nodes` counts what was read, `inside` the references that are being followed."""

    root: Mapping[str, Any]
    nodes: int = 0
    inside: list[str] = field(default_factory=list)

    def read(self, node: object, path: tuple[str, ...]) -> Any:
        """A node in JSON Schema's words. Booleans are schemas too."""
        self.nodes += 1
        if len(path) > DEPTH or self.nodes > NODES:
            raise _bad(
                "a schema that is too large", path, f"at most {DEPTH} levels and {NODES} nodes, references written out"
            )
        if isinstance(node, bool):
            return node
        if not isinstance(node, Mapping):
            raise _bad(f"a schema that is {type(node).__name__}", path, "an object")
        for key in _REFUSED:
            if key in node:
                raise _bad(f"the keyword {key!r}", path, "a schema without it")
        found = {**self._type(node, path), **{key: node[key] for key in _KEPT & node.keys()}}
        for key in _ONE:
            if key in node and not (key == "items" and isinstance(node[key], list)):
                found[key] = self.read(node[key], (*path, key))
        for key in _LISTS:
            if key in node:
                found[key] = self._list(node[key], (*path, key))
        if isinstance(node.get("items"), list):  # what drafts before 2020-12 called prefixItems
            found["prefixItems"] = self._list(node["items"], (*path, "items"))
        for key in _MAPS:
            if key in node:
                found[key] = self._map(node[key], (*path, key))
        found |= self._required(node, found.get("properties", {}), path)
        self._patterns(node, found, path)
        _well_formed(found, path)
        return self._resolved(node["$ref"], found, path) if "$ref" in node else found

    def _list(self, nodes: object, path: tuple[str, ...]) -> list[Any]:
        if not isinstance(nodes, list):
            raise _bad(f"{path[-1]} that is {type(nodes).__name__}", path, "a list of schemas")
        return [self.read(one, (*path, str(number))) for number, one in enumerate(nodes)]

    def _map(self, nodes: object, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(nodes, Mapping):
            raise _bad(f"{path[-1]} that are {type(nodes).__name__}", path, "an object of schemas")
        return {str(name): self.read(one, (*path, str(name))) for name, one in nodes.items()}

    def _type(self, node: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        given = node.get("type", "object" if "properties" in node else "")
        if isinstance(given, list) and all(isinstance(one, str) for one in given):
            names = [TYPES.get(one.lower(), None) for one in given]
            if None in names:
                raise _bad(f"an unknown type {given!r}", path, "a type of JSON Schema or of BFCL")
            return {} if "" in names else {"type": sorted({str(name) for name in names})}
        if not isinstance(given, str):
            raise _bad(f"a type that is {type(given).__name__}", path, "the name of a type")
        found = _typed(given, path)
        if node.get("nullable") is True and isinstance(found.get("type"), str):  # OpenAPI 3.0
            found["type"] = [found["type"], "null"]
        return found

    def _required(self, node: Mapping[str, Any], known: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Names in `required`; a parameter may also say of itself that it is required (draft 3) or optional (BFCL)."""
        given = node.get("required")
        names = given if isinstance(given, list) else []
        if not isinstance(given, (list, bool, type(None))) or not all(isinstance(one, str) for one in names):
            raise _bad(f"required that is {given!r}", path, "a list of names")
        whole = node.get("properties")
        parts: Mapping[str, Any] = whole if isinstance(whole, Mapping) else {}
        own = {name: one for name, one in parts.items() if isinstance(one, Mapping)}
        names = [*names, *(name for name, one in own.items() if one.get("required") is True)]
        names = [name for name in dict.fromkeys(names) if own.get(name, {}).get("optional") is not True]
        absent = [name for name in names if "properties" in node and name not in known]
        if absent:
            raise _bad(f"required names {absent[0]!r}, which is no property", path, "a name among the properties")
        return {"required": names} if names else {}

    def _patterns(self, node: Mapping[str, Any], found: dict[str, Any], path: tuple[str, ...]) -> None:
        if "pattern" in found:
            matcher(found["pattern"], path)
        patterns = node.get("patternProperties")
        if not patterns:
            return
        if not isinstance(patterns, Mapping) or set(patterns) - {"^(.*)$", "^.*$", ".*", ""} or len(patterns) > 1:
            raise _bad("patternProperties", path, "additionalProperties, which every reader of schemas knows")
        ((_, every),) = patterns.items()
        found["additionalProperties"] = self.read(every, (*path, "patternProperties"))

    def _resolved(self, target: object, beside: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """What a local reference names, in its place; what stands beside it holds too."""
        if not isinstance(target, str) or not target.startswith("#"):
            raise _bad(f"a reference to {target!r}", path, "a local one (#/$defs/NAME); none is fetched")
        if target in self.inside:
            raise _bad(f"a recursive reference to {target!r}", path, "a schema that is a finite tree")
        if len(self.inside) >= DEPTH:
            raise _bad("references that name references", path, f"at most {DEPTH} of them, one inside the other")
        node: Any = self.root
        for part in target.lstrip("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, Mapping) and part in node:
                node = node[part]
            else:
                raise _bad(f"an unresolved reference to {target!r}", path, "something that the schema holds")
        self.inside.append(target)
        named = self.read(node, path)
        self.inside.pop()
        said = {"description", "title", "default", "examples"}
        if isinstance(named, Mapping) and set(beside) <= said:
            return {**named, **beside}
        return {
            **{key: beside[key] for key in said & set(beside)},
            "allOf": [named, {k: v for k, v in beside.items() if k not in said}],
        }


def _bad(what: str, path: tuple[str, ...], expected: str) -> SampleInvalid:
    return SampleInvalid(f"{what} at {'.'.join(path[:8]) or 'the top'}", expected=expected)


def _well_formed(found: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """The values of keywords that hold no schema."""
    for key, value in found.items():
        if key == "enum" and not isinstance(value, list):
            raise _bad("an enum that is no list", path, "a list of values")
        if key in ("uniqueItems",) and not isinstance(value, bool):
            raise _bad(f"{key} that is {value!r}", path, "true or false")
        if key.lower().startswith(("min", "max", "exclusive", "multiple")):
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST
            counted = key.endswith(("Items", "Length", "Properties", "Contains"))
            if not number or (counted and value < 0) or (key == "multipleOf" and value <= 0):
                raise _bad(f"{key} that is {value!r}", path, "a number that makes sense there")
    needs = found.get("dependentRequired", {})
    if not isinstance(needs, Mapping) or not all(isinstance(names, list) for names in needs.values()):
        raise _bad("dependentRequired that is no object of lists", path, "names by name")


def _required_of_flat(one: Mapping[str, Any]) -> bool:
    said = one.get("required")
    if isinstance(said, bool):
        return said
    text = one.get("type")
    optional = one.get("optional") is True or (isinstance(text, str) and "optional" in text.lower())
    return not optional and "default" not in one


# ---------------------------------------------------------------------------------------------------- types


def _typed(text: str, path: tuple[str, ...]) -> dict[str, Any]:
    """A type by its name, or as Python writes it: `List[Tuple[str, int]]`, `Union[int, str]`, `int, optional`."""
    plain = TYPES.get(text.strip().lower())
    if plain is not None:
        return {"type": plain} if plain else {}
    refused = _bad(f"an unknown type {text[:80]!r}", path, "a type of JSON Schema, BFCL or Python")
    try:
        tree = ast.parse(_OPTIONAL.sub("", text[:200].strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refused from error
    found = _of_tree(tree)
    if found is None:
        raise refused
    return found


def _of_tree(node: ast.expr) -> dict[str, Any] | None:
    """A type from its syntax tree; None where it is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _any_of([_of_tree(node.left), _of_tree(node.right)])
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    head = node.value if isinstance(node, ast.Subscript) else node
    name = head.id if isinstance(head, ast.Name) else head.attr if isinstance(head, ast.Attribute) else ""
    kind = TYPES.get(name.lower()) if name else None
    inner = node.slice if isinstance(node, ast.Subscript) else None
    nodes = inner.elts if isinstance(inner, ast.Tuple) else [inner] if inner is not None else []
    if name.lower() == "literal":
        values = [one.value for one in nodes if isinstance(one, ast.Constant)]
        return {"enum": values} if len(values) == len(nodes) else None
    parts = [{}] if name.lower() == "callable" else [_of_tree(one) for one in nodes]
    if name.lower() in ("union", "optional"):
        return _any_of([*parts, *([{"type": "null"}] if name.lower() == "optional" else [])])
    if kind is None or None in parts:
        return None
    found: dict[str, Any] = {"type": kind} if kind else {}
    if name.lower() == "tuple" and len(parts) > 1:
        return {**found, "prefixItems": parts}
    if kind == "array" and parts:
        return {**found, "items": parts[0]}
    return {**found, "additionalProperties": parts[1]} if kind == "object" and len(parts) == 2 else found


def _any_of(several: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    if None in several or not several:
        return None
    return {} if {} in several else {"anyOf": several}


def matcher(pattern: object, path: tuple[str, ...] = ()) -> Callable[[str], bool]:
    """Whether a pattern matches somewhere in a text, by an automaton: linear in the text, whatever the pattern.

    Raises:
        SampleInvalid: naming the path; a pattern that is none, is too long, or needs look-around or references.
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
        raise _bad(
            f"the pattern {pattern!r}", path, "a regular expression without look-around or references"
        ) from error
    raise _bad(f"the pattern {str(pattern)[:80]!r}", path, "a regular expression of at most 1,000 characters")
