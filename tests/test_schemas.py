"""Schemas of every dialect against ones written by hand, hostile schemas, and arguments held to them."""

import copy
import json
import math

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import SampleInvalid
from evolvent.messages import Tool
from evolvent.schemas import check_tools, find_argument_faults, is_flat, json_schema, parse_tool

OPENAI = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": ["integer", "null"], "minimum": 1},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
BFCL = {
    "type": "dict",
    "properties": {
        "size": {"type": "float"},
        "pair": {"type": "tuple", "items": {"type": "integer"}},
        "what": {"type": "any"},
        "map": {"type": "HashMap", "properties": {"a": {"type": "String"}}},
        "free": {"type": ""},
        "extra": {"type": "boolean", "optional": True},
    },
    "required": ["size", "extra"],
}
FLAT = {
    "names": {"type": "List[str]", "description": "all"},
    "limit": {"type": "int, optional"},
    "page": {"type": "int", "default": 1},
    "type": {"type": "str", "description": "a parameter with the name of a keyword"},
    "properties": {"type": "Dict[str, Tuple[int, float]]", "required": False},
}


def test_json_schema_stays_and_references_are_written_out():
    found = json_schema(OPENAI)
    assert found == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1},
            "days": {"type": ["integer", "null"], "minimum": 1},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert json_schema(found) == found, "reading is idempotent"


def test_bfcl_by_hand():
    assert json_schema(BFCL) == {
        "type": "object",
        "properties": {
            "size": {"type": "number"},
            "pair": {"type": "array", "items": {"type": "integer"}},
            "what": {},
            "map": {"type": "object", "properties": {"a": {"type": "string"}}},
            "free": {},
            "extra": {"type": "boolean"},
        },
        "required": ["size"],
        "additionalProperties": False,
    }


def test_the_flat_form_by_hand():
    assert is_flat(FLAT) and not is_flat(OPENAI) and not is_flat(BFCL) and not is_flat({})
    assert not is_flat({"properties": {"a": {"type": "int"}}}), "a schema may leave out its type"
    assert is_flat({"properties": {"type": "string"}}), "a parameter may be called properties"
    assert json_schema(FLAT) == {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {"type": "string"}, "description": "all"},
            "limit": {"type": "integer"},
            "page": {"type": "integer", "default": 1},
            "type": {"type": "string", "description": "a parameter with the name of a keyword"},
            "properties": {
                "type": "object",
                "additionalProperties": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "number"}]},
            },
        },
        "required": ["names", "type"],
        "additionalProperties": False,
    }
    assert json_schema({}) == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("Optional[int]", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (
            "Union[int, typing.List[str]]",
            {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
        ),
        ("int | None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("Literal['a', 'b']", {"enum": ["a", "b"]}),
        ("Callable[[float], float]", {"type": "string"}),
        ("Union[Any, int]", {}),
        ("set", {"type": "array"}),
    ],
)
def test_types_as_python_writes_them(text, schema):
    assert json_schema({"a": {"type": text}})["properties"]["a"] == schema


@pytest.mark.parametrize("text", ["int[", "colour", "List[colour]", "f(1)", "int]" * 50, "[" * 190, "__import__('os')"])
def test_a_type_that_is_none_is_refused(text):
    with pytest.raises(SampleInvalid, match="at a"):
        json_schema({"a": {"type": text}})


def schema(one, **more):
    return {"type": "object", "properties": {"a": one}, **more}


def nested(levels):
    one = {"type": "string"}
    for _ in range(levels):
        one = {"type": "array", "items": one}
    return schema(one)


CHAIN = {f"c{n}": {"$ref": f"#/$defs/c{n + 1}"} for n in range(2_000)} | {"c2000": {"type": "string"}}
BOMB = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(24)}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (schema({"type": "colour"}), "unknown type"),
        (schema({"type": 3}), "the type is int"),
        (schema("string"), "the schema is str"),
        (schema({"type": "string"}, required="a"), "required"),
        (schema({"type": "string"}, required=["b"]), "'b', which is not a property"),
        (schema({"type": "array", "items": 3}), "the schema is int"),
        (schema({"anyOf": {"type": "string"}}), "anyOf"),
        (schema({"enum": "ab"}), "enum"),
        (schema({"minimum": "1"}), "minimum"),
        (schema({"minimum": math.nan}), "minimum"),
        (schema({"minimum": 10**400}), "minimum"),
        (schema({"multipleOf": 0}), "multipleOf"),
        (schema({"type": "string", "pattern": "("}), "pattern"),
        (schema({"type": "string", "pattern": r"(?=a)b"}), "pattern"),
        (schema({"$ref": "http://example.org/a.json"}), "remote references are not fetched"),
        (schema({"$ref": "file.json#/a"}), "remote references are not fetched"),
        (schema({"$ref": "#/$defs/none"}), "unresolved"),
        (schema({"$ref": "#"}), "recursive"),
        (
            schema({"$ref": "#/$defs/n"}, **{"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}}),
            "recursive",
        ),
        (schema({"$ref": "#/$defs/d0"}, **{"$defs": {**BOMB, "d24": {"type": "string"}}}), "too large"),
        (schema({"$ref": "#/$defs/c0"}, **{"$defs": CHAIN}), "references"),
        (nested(40), "too large"),
        (nested(5_000), "too large"),
        (schema({"type": "object", "patternProperties": {"^x": {}}}), "patternProperties"),
        (schema({"$dynamicRef": "#n"}), "dynamicRef"),
        ({"type": "array", "items": {"type": "string"}}, "the parameters of a tool are not an object"),
        ({"a": {"type": "str"}, "b": "str"}, "unknown|a schema|no property|malformed|is str"),
    ],
)
def test_a_malformed_schema_is_refused_with_a_sentence(bad, why):
    if "b" in bad:  # neither a schema nor flat: read as a schema without types, which names no parameter
        assert json_schema(bad)["properties"] == {}
        return
    with pytest.raises(SampleInvalid, match=why):
        json_schema(bad)


def test_reading_leaves_the_schema_as_it_was():
    before = copy.deepcopy(OPENAI)
    json_schema(OPENAI)
    assert before == OPENAI


def test_faults_by_hand():
    assert find_argument_faults({"city": "Oslo", "days": None, "where": {"lat": 1}}, OPENAI) == ()
    assert find_argument_faults({"days": 0, "where": {}, "extra": 1}, OPENAI) == (
        "'city' is a required property",
        "Additional properties are not allowed ('extra' was unexpected)",
        "days: 0 is less than the minimum of 1",
        "where: 'lat' is a required property",
    )
    assert find_argument_faults({"size": 1, "pair": (1, 2), "what": [{}], "free": None}, BFCL) == ()
    assert find_argument_faults({"size": True}, BFCL), "a truth value is no number"
    assert find_argument_faults({"size": 1.0, "pair": [1, "2"]}, BFCL) == ("pair.1: '2' is not of type 'integer'",)


def test_hostile_arguments_are_faults_and_end_soon():
    many = schema({"type": "array", "uniqueItems": True})
    assert find_argument_faults({"a": [{"x": n} for n in range(50_000)]}, many) == ()
    assert find_argument_faults({"a": [1, {"x": 1}, {"x": 1.0}]}, many), "1 and 1.0 are one number of JSON"
    assert find_argument_faults({"a": [1, True, "1"]}, many) == ()
    slow = schema({"type": "string", "pattern": "^(a+)+$"})
    assert find_argument_faults({"a": "a" * 5_000 + "b"}, slow) and not find_argument_faults({"a": "aaa"}, slow)
    assert "\ud800".encode("utf-8", "replace") == b"?" and find_argument_faults({"a": "\ud800"}, slow)
    deep = json.loads("[" * 100 + "]" * 100)
    whole = schema({})
    for value in (deep, float("nan"), 10**400, {1: 2}, object(), list(range(250_000))):
        (fault,) = find_argument_faults({"a": value}, whole)
        assert fault
    assert len(find_argument_faults({"a": "x" * 10_000_000}, schema({"type": "integer"}))[0]) <= 300
    assert find_argument_faults([], whole) and find_argument_faults("text", whole)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["", "x", "yy"]),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
def test_faults_agree_with_jsonschema(arguments):
    parts = {
        "a": {
            "anyOf": [
                {"type": "integer", "maximum": 2},
                {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            ]
        },
        "b": {"type": ["string", "null"], "pattern": "^x?$"},
        "c": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    }
    whole = {"type": "object", "properties": parts, "required": ["b"], "additionalProperties": False}
    assert (find_argument_faults(arguments, whole) == ()) == jsonschema.Draft202012Validator(whole).is_valid(arguments)


def test_tools_of_every_provider_are_one():
    parts = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = Tool("f", "does", parts)
    for row in (
        {"type": "function", "function": {"name": "f", "description": "does", "parameters": parts}},
        {"type": "function", "name": "f", "description": "does", "parameters": parts, "strict": True},
        {"name": "f", "description": "does", "parameters": parts},
        {"name": "f", "description": "does", "inputSchema": parts},
        {"name": "f", "description": "does", "input_schema": parts},
    ):
        assert parse_tool(row) == tool
    assert parse_tool({"name": "f"}) == Tool("f", "", {})
    for bad in (
        {},
        {"name": ""},
        {"name": "f", "parameters": []},
        [],
        {"name": "f", "parameters": {}, "inputSchema": {}},
    ):
        with pytest.raises(SampleInvalid):
            parse_tool(bad)


def test_every_problem_of_tools_is_told():
    good = Tool("f", "", {"type": "object", "properties": {}})
    bad = [good, Tool("f"), Tool("1f"), Tool("a.b"), Tool("x" * 65), Tool("g", "", {"type": "array"})]
    assert check_tools([good]) == ()
    assert [problem.where for problem in check_tools(bad)] == [
        "tools[1]",
        "tools[2]",
        "tools[3]",
        "tools[4]",
        "tools[5].parameters",
    ]
    assert [problem.where for problem in check_tools([Tool("a.b")], dotted=True)] == []
