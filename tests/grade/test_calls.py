from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid
from evolvent.grade.calls import (
    CallGrade,
    GoldCall,
    decode_calls,
    encode_calls,
    exact_gold_calls,
    grade_calls,
    has_call,
)
from evolvent.grade.literals import MAX_CHARS
from evolvent.grade.matching import heaviest_matching, maximum_matching
from evolvent.messages import Call, Tool


def tool(*required, named="f", **properties):
    schemas = {name: {"type": one} if isinstance(one, str) else one for name, one in properties.items()}
    return Tool(named, "", {"type": "dict", "properties": schemas, "required": list(required)})


def verdict(value, accepted, schema, *, language="python"):
    """The verdict on one argument."""
    return grade_calls(
        [Call("f", {"a": value})], [GoldCall("f", {"a": tuple(accepted)})], [tool(a=schema)], language=language
    )


def of(kind, items):
    return {"type": kind, "items": {"type": items}}


@pytest.mark.parametrize(
    ("schema", "value", "accepted", "kind"),
    [
        # rule 4: the exact class
        ("string", "x", ["x"], ""),
        ("string", 5, ["5"], "type"),
        ("integer", 5, [5], ""),
        ("integer", 5.0, [5], "type"),
        ("integer", True, [1], "type"),
        ("integer", "5", [5], "type"),
        ("float", 5.5, [5.5], ""),
        ("float", 5, [5.0], ""),
        ("float", 5, [5], ""),
        ("number", 5, [5], ""),
        ("float", True, [1.0], "type"),
        ("boolean", True, [True], ""),
        ("boolean", 1, [True], "type"),
        ("boolean", "true", [True], "type"),
        ("array", [1], [[1]], ""),
        ("array", (1,), [[1]], "type"),
        ("tuple", (1, 2), [[1, 2]], ""),
        ("tuple", [1, 2], [[1, 2]], ""),
        ("dict", {"k": 1}, [{"k": [1]}], ""),
        ("dict", "k", [{"k": [1]}], "type"),
        ("any", "x", ["x"], ""),
        ("any", 5, ["5"], "type"),
        ("any", 5, [5], ""),
        ("string", None, ["x"], "type"),
        ("string", None, [None], ""),
        ("integer", 10**400, [5], "value"),
        ("float", 10**400, [5.0], "type"),
        # elements, one level deep, against each accepted list
        (of("array", "integer"), [1, 2], [[1, 2]], ""),
        (of("array", "integer"), [1.0], [[1]], "type"),
        (of("array", "float"), [1, 2], [[1, 2]], ""),
        (of("array", "float"), [1, 2], [[1.0, 2.0]], "type"),
        (of("array", "float"), [1, 2], [[1.0, 2.0], [1, 2]], ""),
        (of("array", "string"), [], [[]], ""),
        (of("array", "integer"), ["1"], [[1], ""], "value"),  # "" lets any element pass; the values still differ
        (of("array", "array"), [[1], [2]], [[[1], [2]]], ""),
        # a variable: the class of the first accepted value other than "", compared as it stands
        ("integer", "n", ["n"], ""),
        ("integer", "N", ["n"], "value"),
        ("array", "my list", ["my list"], ""),
        ("array", "mylist", ["my list"], "value"),
        ("integer", "n", ["", "n"], ""),
        ("integer", 5, ["n"], "value"),
        ("string", 5, [5, "x"], ""),
        ("string", "x", [5, "x"], ""),
        ("string", "X", [5, "x"], "value"),
        ("integer", "x", [5, "x"], "type"),
        # rule 5: values
        ("string", "NewYork", ["new york"], ""),
        ("string", "April 1, 2024", ["april1/2024"], ""),
        ("string", "a-b_c*d^e.f", ["abcdef"], ""),
        ("string", "it's", ['it"s'], ""),
        ("string", "a+b", ["ab"], "value"),
        ("string", "a\tb", ["ab"], "value"),
        ("string", "x", ["y", "X"], ""),
        ("integer", 6, [5], "value"),
        ("boolean", False, [True], "value"),
        ("string", "", ["", "x"], ""),
        (of("array", "string"), ["New York"], [["newyork"]], ""),
        (of("array", "string"), ["b", "a"], [["a", "b"]], "value"),
        (of("array", "string"), ["a"], [["b"], ["a"]], ""),
        (of("array", "string"), ["a"], [["a", "b"]], "value"),
        (of("array", "string"), [], [["a"], ""], "value"),
        (of("array", "dict"), [], ["", [{"k": [1]}]], "value"),
        ("dict", {"k": "New York"}, [{"k": ["newyork"]}], ""),
        ("dict", {"k": 2}, [{"k": [1, 2]}], ""),
        ("dict", {"k": 3}, [{"k": [1, 2]}], "value"),
        ("dict", {"k": 1, "z": 1}, [{"k": [1]}], "value"),
        ("dict", {}, [{"k": [1]}], "value"),
        ("dict", {}, [{"k": [1, ""]}], ""),
        ("dict", {}, [{}], ""),
        ("dict", {"k": True}, [{"k": [1]}], "value"),
        ("dict", {"k": ["a"]}, [{"k": [["a"]]}], ""),
        ("dict", {"k": ["A"]}, [{"k": [["a"]]}], "value"),
        ("dict", {"k": 1}, ["", {"k": [1]}], ""),
        ("dict", {"k": "word"}, [{"k": "word"}], ""),
        ("dict", {"k": 1}, [{"z": [1]}, {"k": [1]}], ""),
        (of("array", "dict"), [{"k": 1}, {"k": "B"}], [[{"k": [1]}, {"k": ["b"]}]], ""),
        (of("array", "dict"), [{"k": 2}, {"k": 1}], [[{"k": [1]}, {"k": [2]}]], "value"),
        (of("array", "dict"), [{"k": 1}], [[{"k": [1]}, {"k": [2]}]], "value"),
        (of("array", "dict"), [5], [[{"k": [1]}]], "type"),
        (of("array", "integer"), [True], [[1]], "type"),
        ({"type": "array"}, [True], [[1]], "value"),
        # schemas of other dialects
        ("object", {"k": 1}, [{"k": [1]}], ""),
        ({"type": ["string", "null"]}, None, ["x", None], ""),
        ({}, 5, [5], ""),
        ({}, "5", [5], "value"),
        ({"anyOf": [{"type": "string"}]}, "X", ["x"], ""),
    ],
)
def test_one_value(schema, value, accepted, kind):
    found = verdict(value, accepted, schema)
    assert (found.valid, found.kind) == (not kind, kind), found
    if kind:
        assert found.path == "calls[0].arguments.a"
        assert found.detail


def test_counts_names_and_parameters():
    tools = [tool("a", a="integer", b="string", c="string"), tool(named="g.h")]
    gold = [GoldCall("f", {"a": (1,), "b": ("", "x"), "d": (1, "")})]

    def judged(*calls, **options):
        found = grade_calls(calls, gold, tools, **options)
        return found.kind, found.path

    assert judged(Call("f", {"a": 1})) == ("", "")
    assert judged(Call("f", {"a": 1, "b": "x"})) == ("", "")
    assert judged() == ("count", "calls")
    assert judged(Call("f", {"a": 1}), Call("f", {"a": 1})) == ("count", "calls")
    assert judged(Call("g.h", {"a": 1})) == ("name", "calls[0].name")
    assert judged(Call("f", {"b": "x"})) == ("missing", "calls[0].arguments.a")
    assert judged(Call("f", {"a": 1, "c": "x"})) == ("unexpected", "calls[0].arguments.c")  # in the schema only
    assert judged(Call("f", {"a": 1, "d": 1})) == ("unexpected", "calls[0].arguments.d")  # in the answer only
    strict = [GoldCall("f", {"a": (1,), "b": ("x",)})]
    assert grade_calls([Call("f", {"a": 1})], strict, tools) == CallGrade(
        False, "missing", "calls[0].arguments.b", "a parameter is missing that may not be left out here"
    )
    assert grade_calls([], [], tools).valid


def test_dots_that_became_underscores():
    tools, gold = [tool(named="g.h.i")], [GoldCall("g.h.i", {})]
    assert grade_calls([Call("g_h_i")], gold, tools, underscore_names=True).valid
    assert grade_calls([Call("g.h.i")], gold, tools, underscore_names=True).kind == "name"
    assert grade_calls([Call("g_h_i")], gold, tools).kind == "name"


def test_a_right_answer_is_right_in_any_order():
    """BFCL's parallel_178: the released checker gives the first call to the first expected one that fits."""
    tools = [tool("x", x="string")]
    gold = [GoldCall("f", {"x": ("a", "b")}), GoldCall("f", {"x": ("a",)})]
    for order in itertools.permutations([Call("f", {"x": "a"}), Call("f", {"x": "b"})]):
        assert grade_calls(order, gold, tools).valid
    assert not grade_calls([Call("f", {"x": "b"})] * 2, gold, tools).valid
    assert grade_calls([Call("f", {"x": "a"})] * 2, gold, tools).valid
    assert grade_calls([Call("f", {"x": "b"}), Call("f", {"x": "a"})], gold, tools, ordered=True).valid
    found = grade_calls([Call("f", {"x": "a"}), Call("f", {"x": "b"})], gold, tools, ordered=True)
    assert (found.kind, found.path) == ("value", "calls[1].arguments.x")


def test_the_nearest_call_is_named():
    tools = [tool("x", x="integer"), tool(named="g")]
    found = grade_calls([Call("g"), Call("f", {"x": 3})], [GoldCall("f", {"x": (1,)}), GoldCall("g", {})], tools)
    assert (found.kind, found.path) == ("value", "calls[1].arguments.x")
    assert "3 is none of the accepted (1,)" in found.detail


GOLDS = st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4)


@settings(deadline=None, max_examples=80)
@given(GOLDS, st.data())
def test_any_assignment_counts(golds, data):
    """Brute force over all assignments of calls to what is expected."""
    said = data.draw(st.lists(st.integers(0, 3), min_size=len(golds), max_size=len(golds)))
    wanted = any(all(x in gold for x, gold in zip(p, golds, strict=True)) for p in itertools.permutations(said))
    calls = [Call("f", {"x": one}) for one in said]
    gold = [GoldCall("f", {"x": tuple(sorted(one))}) for one in golds]
    assert grade_calls(calls, gold, [tool("x", x="integer")]).valid is wanted


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_matchings_beside_brute_force(rows, columns, data):
    weights = data.draw(
        st.lists(st.lists(st.integers(0, 4), min_size=columns, max_size=columns), min_size=rows, max_size=rows)
    )
    if rows <= columns:
        sums = [[weights[r][c] for r, c in enumerate(p)] for p in itertools.permutations(range(columns), rows)]
    else:
        sums = [[weights[r][c] for c, r in enumerate(p)] for p in itertools.permutations(range(rows), columns)]
    assert heaviest_matching(weights) == max(map(sum, sums))
    fits = [[weight > 2 for weight in row] for row in weights]
    matched = maximum_matching(fits)
    used = [column for column in matched if column >= 0]
    assert len(set(used)) == len(used) == max(sum(weight > 2 for weight in one) for one in sums)
    assert all(fits[row][column] for row, column in enumerate(matched) if column >= 0)


@pytest.mark.parametrize(
    ("language", "schema", "text", "accepted", "kind"),
    [
        ("java", "integer", "5", [5], ""),
        ("java", "integer", "5.0", [5], "type"),
        ("java", "long", "5", [5], "type"),
        ("java", "long", "5L", [5], ""),
        ("java", "String", "abc", ["ABC"], ""),
        ("java", "String", '"abc"', ["abc"], ""),
        ("java", "any", "20.5", [20.5, "20.5"], ""),
        ("java", "boolean", "true", [True], ""),
        ("java", "HashMap", "env", ["env"], ""),
        ("java", "HashMap", "Env", ["env"], "value"),
        ("java", "HashMap", 'new HashMap<>() {{ put("k", 5); }}', [{"k": [5]}], ""),
        ("java", of("ArrayList", "any"), 'new ArrayList<>(Arrays.asList("a", 4, true))', [["a", 4, True]], ""),
        ("java", of("Array", "String"), 'new String[]{"a", "b"}', [["a", "b"]], ""),
        ("java", of("Array", "integer"), "new int[]{1, 2.5}", [[1, 2]], "type"),
        ("java", "integer", 5, [5], "type"),
        ("javascript", "float", "5", [5.0], ""),
        ("javascript", "Bigint", "5", [5], "type"),
        ("javascript", of("array", "float"), "[60, 30]", [[60, 30]], ""),
        ("javascript", "dict", "{}", ["", {}], ""),
        ("javascript", "dict", "{a: [1, 2]}", [{"a": [[1, 2]]}], ""),
        ("javascript", "Boolean", "yes", [True], "type"),
    ],
)
def test_source_text(language, schema, text, accepted, kind):
    found = verdict(text, accepted, schema, language=language)
    assert (found.valid, found.kind) == (not kind, kind), found


def test_exact_gold():
    calls = [Call("f", {"s": "New York", "d": {"k": [1, {"z": None}]}, "e": "", "t": (1, 2)}), Call("g")]
    tools = [tool(s="string", d="object", e="string", t="anything at all"), tool(named="g")]
    gold = exact_gold_calls(calls)
    assert grade_calls(calls[::-1], gold, tools).valid
    said = dict(calls[0].arguments)
    for change in (
        {"s": "newyork"},
        {"d": {"k": [1, {}]}},
        {"d": {"k": [True, {"z": None}]}},
        {"e": "x"},
        {"t": [2, 1]},
    ):
        assert grade_calls([Call("f", said | change), calls[1]], gold, tools).kind == "value", change
    without = {name: value for name, value in said.items() if name != "e"}
    assert grade_calls([Call("f", without), calls[1]], gold, tools).kind == "missing"
    assert grade_calls([Call("f", said | {"t": [1, 2]}), calls[1]], gold, tools).valid  # JSON has no tuples
    assert grade_calls([Call("f", said | {"x": 1}), calls[1]], gold, tools).kind == "unexpected"


@pytest.mark.parametrize(
    ("calls", "gold", "tools", "words"),
    [
        ([], [GoldCall("x", {})], [tool()], "an expected call names an unknown tool"),
        ([], [GoldCall("f", {})], [tool(), tool()], "two tools have the same name"),
        ([], [GoldCall("f", {}), GoldCall("x", {})], [tool(), tool()], "an expected call names an unknown tool"),
        ([Call("f", {"a": 1})], [GoldCall("f", {"a": (1,)})], [tool(a="strnig")], "unknown type"),
        ([Call("f", {"a": 1})], [GoldCall("f", {"a": (1,)})], [tool(a={"type": 5})], "unknown type"),
        ([Call("f", {"a": [1]})], [GoldCall("f", {"a": ([1],)})], [tool(a=of("array", "whole"))], "unknown type"),
    ],
)
def test_items_that_are_none(calls, gold, tools, words):
    with pytest.raises(SampleInvalid, match=words):
        grade_calls(calls, gold, tools)
    with pytest.raises(ConfigError, match="language"):
        grade_calls(calls, gold, tools, language="cobol")


F, G = Call("f", {"a": 1}), Call("g.h", {"b": "x"})


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        ("python", "[f(a=1), g.h(b='x')]", (F, G)),
        ("python", "f(a=1)", (F,)),
        ("python", "f(a=1), g.h(b='x')", (F, G)),
        ("python", "[]", ()),
        ("python", "```python\n[f(a=1,)]\n```", (F,)),
        ("python", " [ f ( a = 1 ) ] ", (F,)),
        ("python", "get-it(x-y=-1, from='z')", (Call("get-it", {"x-y": -1, "from": "z"}),)),
        ("python", "f(a=2**3, b=1/4, c=-1)", (Call("f", {"a": 8, "b": 0.25, "c": -1}),)),
        ("python", "f(a=data['x'], b=g(c=1))", (Call("f", {"a": "data['x']", "b": "g(c=1)"}),)),
        ("json", '[{"name": "f", "arguments": {"a": 1}}, {"name": "g.h", "arguments": {"b": "x"}}]', (F, G)),
        ("json", '{"name": "f", "arguments": {"a": 1}}', (F,)),
        ("json", "```json\n[]\n```", ()),
        ("json", "[]", ()),
        ("json", '{"name": "f", "arguments": "{\\"a\\": 1}", "type": "function"}', (F,)),
        ("json", '{"name": "f"}', (Call("f"),)),
        ("json", '{"name": "f", "id": "c1", "arguments": {}}', (Call("f", {}, "c1"),)),
        (
            "xml",
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
            '<tool_call>{"name": "g.h", "arguments": {"b": "x"}}</tool_call>',
            (F, G),
        ),
        (
            "xml",
            "<function=f><parameter=a>\n1\n</parameter></function>\n"
            "<function=g.h><parameter=b>x</parameter></function>",
            (F, G),
        ),
        (
            "xml",
            '<tool_call>\n<function=f>\n<parameter=a>\n[1, "x"]\n</parameter>\n'
            "<parameter=b>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>",
            (Call("f", {"a": [1, "x"], "b": "two\nlines"}),),
        ),
        ("xml", "<function=f></function>", (Call("f"),)),
        (
            "java",
            '[A.b(x=new HashMap<String, Object>() {{ put("a", 1); }}, y="q,)", z=5L)]',
            (Call("A.b", {"x": 'new HashMap<String, Object>() {{ put("a", 1); }}', "y": '"q,)"', "z": "5L"}),),
        ),
        (
            "javascript",
            "f(a={k: 1, l: [1, 2]}, b=(x) => x, c=true)",
            (Call("f", {"a": "{k: 1, l: [1, 2]}", "b": "(x) => x", "c": "true"}),),
        ),
    ],
)
def test_read(form, text, calls):
    assert decode_calls(text, form=form) == calls
    assert has_call(text, form=form) is bool(calls)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("python", "f(1)"),
        ("python", "f(a=1, 2)"),
        ("python", "f(**x)"),
        ("python", "f(a=1, a=2)"),
        ("python", "[f(a=1)"),
        ("python", "f(a=1) and more"),
        ("python", "I cannot help with that."),
        ("python", ""),
        ("python", "[f]"),
        ("python", "f(a==1)"),
        ("python", "f(a=open('x') + 1)"),
        ("python", "f()()"),
        ("python", "f(a=1 b=2)"),
        ("json", "no"),
        ("json", "[1]"),
        ("json", '{"name": 5}'),
        ("json", '{"arguments": {}}'),
        ("json", '["f"]'),
        ("json", '{"name": "f", "arguments": [1]}'),
        ("json", '{"name": "f", "arguments": "["}'),
        ("json", '{"name": "f", "arguments": {"a": NaN}}'),
        ("json", '{"name": "f", "arguments": {"a": 1, "a": 2}}'),
        ("json", "text ```json\n[]\n```"),
        ("xml", ""),
        ("xml", "no"),
        ("xml", "<tool_call>{</tool_call>"),
        ("xml", '<tool_call>{"name": "f"}'),
        ("xml", "<function=f>x</function>"),
        ("xml", "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"),
        ("java", "f(a=)"),
        ("java", "f(a=(1)"),
        ("javascript", "f('x')"),
    ],
)
def test_what_cannot_be_read(form, text):
    with pytest.raises(InvalidAction):
        decode_calls(text, form=form)
    assert not has_call(text, form=form)


def test_what_is_too_large():
    huge = "x" * 10_000_000
    deep = "[" * 10_000 + "]" * 10_000
    many = ", ".join(["f()"] * 300)
    for form, text in [
        ("python", f"f(a='{huge}')"),
        ("json", f'{{"name": "f", "arguments": {{"a": "{huge}"}}}}'),
        ("xml", huge),
        ("python", f"f(a={deep})"),
        ("json", f'{{"name": "f", "arguments": {{"a": {deep}}}}}'),
        ("java", f"f(a={deep})"),
        ("xml", f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'),
        ("python", many),
        ("python", "f(a=9**9**9)"),
        ("python", "f(a='x'*10**9)"),
        ("python", "f(a=" + "-" * 99_999 + "1)"),
    ]:
        with pytest.raises(InvalidAction):
            decode_calls(text, form=form)


NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,8}", fullmatch=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["</tool_call>", "```", "<function=f>", "'\"\\", "]", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(st.builds(Call, NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=3).map(tuple)


@settings(deadline=None, max_examples=60)
@given(CALLS)
def test_there_and_back(calls):
    for form in ("python", "json"):
        assert decode_calls(encode_calls(calls, form=form), form=form) == calls
    if calls:
        assert decode_calls(encode_calls(calls, form="xml"), form="xml") == calls


def test_what_cannot_be_written():
    tuples = Call("f", {"t": (1, (2,))})
    assert decode_calls(encode_calls([tuples], form="python"), form="python") == (tuples,)
    assert encode_calls([F, Call("g", {}, "c1")], form="json") == (
        '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, "id": "c1"}]'
    )
    for calls, form in [
        ([Call("two words")], "python"),
        ([Call("f", {"a=b": 1})], "python"),
        ([Call("f", {"a": {1, 2}})], "python"),
        ([Call("f", {"a": float("nan")})], "json"),
        ([Call("f", {"a": b"x"})], "json"),
    ]:
        with pytest.raises(SampleInvalid):
            encode_calls(calls, form=form)
    with pytest.raises(ConfigError):
        encode_calls([F], form="java")
    with pytest.raises(ConfigError):
        decode_calls("f()", form="yaml")


def test_text_may_stand_around_calls_in_xml():
    said = 'I will look.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\nDone.'
    assert decode_calls(said, form="xml") == (Call("f", {"a": 1}),) and has_call(said, form="xml")


def test_bare_text_is_what_the_schema_says():
    said = "<function=post><parameter=zip>12345</parameter><parameter=n>3</parameter></function>"
    schema = {"type": "object", "properties": {"zip": {"type": "string"}, "n": {"type": "integer"}}}
    assert decode_calls(said, form="xml") == (Call("post", {"zip": 12345, "n": 3}),)
    assert decode_calls(said, form="xml", tools=[Tool("post", "", schema)]) == (Call("post", {"zip": "12345", "n": 3}),)


def test_a_fence_that_is_not_closed_is_read_in_linear_time():
    """Time that grew with the square of a run of blanks would be a quarter of an hour here."""
    many = " " * (MAX_CHARS - 100)
    for form in ("python", "json", "xml", "java", "javascript"):
        with pytest.raises(InvalidAction):
            decode_calls(f"```{many}x", form=form)
    assert decode_calls(f"```json{many}\n[]\n```", form="json") == ()
