from __future__ import annotations

import ast
import json
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import InvalidAction
from evolvent.grade.code import evaluate
from evolvent.grade.foreign_literals import parse_java_literal, parse_javascript_literal
from evolvent.grade.literals import (
    MAX_CHARS,
    MAX_DEPTH,
    Source,
    format_python_literal,
    parse_json,
    parse_python_literal,
    parse_string,
)


def read(text):
    source = Source(text)
    value = parse_python_literal(source)
    if source.peek():
        source.fail("nothing after the literal")
    return value


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-1",
        "+2",
        "1_000",
        "0xff",
        "0o17",
        "0b101",
        "1.5",
        ".5",
        "5.",
        "1e3",
        "2.5e-3",
        "True",
        "False",
        "None",
        "''",
        '"a"',
        "'a' \"b\"",
        "'''a'b\"c'''",
        '"""x\ny"""',
        r"'\n\t\\\'\"\x41é\N{BULLET}\101'",
        r"r'\d'",
        r"u'x'",
        "'\\\nline'",
        "[]",
        "[1, 'a', [2.0, None]]",
        "[1,]",
        "()",
        "(1,)",
        "(1, 2)",
        "(1)",
        "{}",
        "{'a': 1, 'b': {'c': [()]}}",
        "2**3**2",
        "-2**2",
        "2**-1",
        "1-2-3",
        "2*3+4*5",
        "(2+3)*4",
        "7//2",
        "-7//2",
        "7%3",
        "8/2/2",
        "- -1",
        "1.5*2",
        "{'a': 1/4,}",
        "[-1, -2.5, 3*3]",
    ],
)
def test_python_as_python_reads_it(text):
    expected = evaluate(ast.parse(text, mode="eval").body)  # the evaluator of asserts, held to Python by its own tests
    value = read(text)
    assert value == expected
    assert type(value) is type(expected)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60)
@given(VALUES)
def test_python_there_and_back(value):
    assert read(format_python_literal(value)) == value
    assert ast.literal_eval(format_python_literal(value)) == value


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="'\"\\nxu041N{}\n ab/`", max_size=12))
def test_strings_as_python_reads_them(text):
    for literal in (f"'{text}'", f'"{text}"', f"'''{text}'''", f'"""{text}"""'):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of unknown escapes, which keep their backslash
                expected = ast.literal_eval(literal)
        except (SyntaxError, ValueError):
            continue
        assert read(literal) == expected


def test_each_language_has_its_own_escapes():
    for text in (r"'a\/b'", r"'a\`b'"):
        assert read(text) == text[1:-1]
        assert parse_string(text) == text[1:-1].replace("\\", "")


@pytest.mark.parametrize(
    "text",
    ["x", "a.b.c", "data['sales']", "f(1, 'a)')", "f(x=[1])[0].y", "true", "null"],
)
def test_names_stay_text(text):
    assert read(text) == text
    assert read(f"[1, {text}]") == [1, text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1",
        "1]",
        "[1 2]",
        "'a",
        "{1: 2}",
        "{'a': 1, 'a': 2}",
        "{'a'}",
        "{1, 2}",
        "1 if x else 2",
        "lambda: 1",
        "f'{x}'",
        "b'a'",
        "not x",
        "'a' + 'b'",
        "'a' * 3",
        "[1] * 3",
        "-'a'",
        "-True",
        "1 + x",
        "1/0",
        "1%0",
        "0**-1",
        "(-8)**0.5",
        "10**65",
        "2**64**2",
        "9**64 * 9**64 * 9**64 * 9**64 * 9**64 * 9**64",
        "1e999",
        "1e308*10",
        "1j",
        "007",
        "0x",
        "*x",
        "[*x]",
        "x = 1",
        "1 < 2",
        "x[1",
        "a.",
        "...",
        "`x`",
    ],
)
def test_what_python_literals_are_not(text):
    with pytest.raises(InvalidAction):
        read(text)


def test_sizes_are_bounded():
    assert read("[" * (MAX_DEPTH // 2) + "]" * (MAX_DEPTH // 2)) is not None
    nested = "[" * 10_000 + "]" * 10_000
    for reader in (read, parse_json):
        for text in (nested, " " * (MAX_CHARS + 1), "1" * 10_000_000):
            with pytest.raises(InvalidAction):
                reader(text)
    for text in (
        "-" * 100_000 + "1",
        "(" * 100_000,
        "{'a':" * 200 + "1",
        "f" + "(" * 5000,
        "1" * 5000,
        "2**2" * 20_000,
    ):
        with pytest.raises(InvalidAction):
            read(text)
    assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(InvalidAction):
        parse_json("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


@settings(deadline=None, max_examples=80)
@given(VALUES)
def test_json_as_json_reads_it(value):
    text = json.dumps(value)
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[1e999]", "{'a': 1}", '{"a": 1, "a": 2}', "[1,]", "", "nul"])
def test_what_json_is_not(text):
    with pytest.raises(InvalidAction):
        parse_json(text)


def test_text_is_cut_outside_of_brackets_and_quotes():
    assert Source("a, b(1, 2), 'x,y', [3, {4: \"]\"}],").split() == ["a", "b(1, 2)", "'x,y'", '[3, {4: "]"}]']
    assert Source('add(1); add(";");').split(";") == ["add(1)", 'add(";")']
    assert Source("new M<A, B<C, D>>(), x", generics=True).split() == ["new M<A, B<C, D>>()", "x"]
    assert Source("a<b, c").split() == ["a<b", "c"]
    for text in ("(1", "1)", "(1]", "'a", "[" * 65):
        with pytest.raises(InvalidAction):
            Source(text).split()


def test_one_string():
    assert parse_string('"a\\"b\\n"') == 'a"b\n'
    assert parse_string("'it'") == "it"
    assert parse_string("`t`") == "t"
    assert parse_string('"a" + "b"') is None
    assert parse_string("a") is None


@pytest.mark.parametrize(
    ("text", "kind", "item", "value"),
    [
        ("5", "integer", "", 5),
        ("-7", "short", "", -7),
        ("5L", "integer", "", "5L"),
        ("5", "long", "", "5"),
        ("5L", "long", "", 5),
        ("5l", "long", "", 5),
        ("0.5f", "float", "", 0.5),
        ("3e2F", "float", "", 300.0),
        ("0.5", "float", "", "0.5"),
        ("0.5", "double", "", 0.5),
        ("5", "double", "", 5.0),
        ("0.5f", "double", "", "0.5f"),
        ("true", "boolean", "", True),
        ("True", "boolean", "", "True"),
        ("'a'", "char", "", "'a'"),
        ("abc", "String", "", "abc"),
        ('"a\\"b"', "String", "", 'a"b'),
        ("5", "any", "", "5"),
        ('"5"', "integer", "", '"5"'),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ("new int[] { }", "Array", "integer", []),
        ('new String[]{"a, b", "c"}', "Array", "String", ["a, b", "c"]),
        ('new Object[]{"x", 42, true, 2L}', "Array", "any", ["x", 42, True, 2]),
        ("xs", "Array", "String", "xs"),
        ("new int[]{1, 2.5}", "Array", "integer", [1, "2.5"]),
        ("new long[]{1}", "Array", "long", ["1"]),
        ("new ArrayList<Integer>(Arrays.asList(1, 2))", "ArrayList", "integer", [1, 2]),
        ("new ArrayList<>() {{ add(1); add(2); }}", "ArrayList", "integer", [1, 2]),
        ("new ArrayList<String>()", "ArrayList", "String", []),
        ("new ArrayList<Character>(Arrays.asList('a'))", "ArrayList", "char", ["a"]),
        ("new char[]{'a'}", "Array", "char", ["'a'"]),
        ("new ArrayList<>() {{ remove(1); }}", "ArrayList", "integer", "new ArrayList<>() {{ remove(1); }}"),
        ('new HashMap<String, Object>() {{ put("k", "v;)"); put("n", 5L); }}', "HashMap", "", {"k": "v;)", "n": 5}),
        ("new HashMap<>()", "HashMap", "", {}),
        ("new HashMap<>() {{ }}", "HashMap", "", {}),
        ("env", "HashMap", "", "env"),
        ('new HashMap<>() {{ put("a", new int[]{1}); }}', "HashMap", "", {"a": [1]}),
        ("new int[]{1, (2}", "Array", "integer", "new int[]{1, (2}"),
        ("{1, 2}", "Array", "integer", "{1, 2}"),
    ],
)
def test_java(text, kind, item, value):
    found = parse_java_literal(text, kind, item)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "item", "value"),
    [
        ("5", "integer", "", 5),
        ("5.0", "integer", "", "5.0"),
        ("5", "float", "", 5.0),
        ("-0.5", "float", "", -0.5),
        ("5e3", "float", "", "5e3"),
        ("5n", "Bigint", "", 5),
        ("5", "Bigint", "", "5"),
        ("true", "Boolean", "", True),
        ("1", "Boolean", "", "1"),
        ("'it'", "String", "", "it"),
        ('"it"', "String", "", "it"),
        ("it", "String", "", "it"),
        ("[1, 'two', true]", "array", "", [1, "two", True]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[]", "array", "String", []),
        ("['a, b']", "array", "String", ["a, b"]),
        ("[[1], [2, 3]]", "array", "array", [[1], [2, 3]]),
        ("[60, 30]", "array", "float", [60.0, 30.0]),
        ("items", "array", "String", "items"),
        ("[1", "array", "integer", "[1"),
        ('{a: 1, \'b\': {c: [x, "y"]}, "d": 5n}', "dict", "", {"a": 1, "b": {"c": ["x", "y"]}, "d": 5}),
        ("{}", "dict", "", {}),
        ("{a}", "dict", "", "{a}"),
        ("{n: '5'}", "dict", "", {"n": "5"}),
        ("() => { return {a: 1}; }", "any", "", "() => { return {a: 1}; }"),
    ],
)
def test_javascript(text, kind, item, value):
    found = parse_javascript_literal(text, kind, item)
    assert found == value
    assert type(found) is type(value)


def test_infinities_have_no_literal():
    for value in (math.inf, math.nan, {1, 2}, b"a"):
        with pytest.raises(InvalidAction):
            format_python_literal(value)
