from __future__ import annotations

import collections
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.sandbox.box import encode_frame, parse_frame
from evolvent.sandbox.values import (
    HEADER_BYTES,
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    Malformed,
    OpaqueValue,
    decode,
    encode,
    escape_unprintable,
)

SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
HASHABLE = st.recursive(SIMPLE, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4) | st.sets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["none", "int", "float", "set", "dict", "complex", "bytes", "other"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["t", "v", "x"]), inner, max_size=3),
    max_leaves=20,
)


def through(value):
    """A value as it arrives: encoded, as JSON in a frame, decoded."""
    return decode(parse_frame(encode_frame(encode(value))[HEADER_BYTES:]))


def same(left, right):
    """Equal, with equal classes on all levels."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(VALUES)
def test_what_arrives_is_what_was_sent(value):
    assert same(through(value), value)


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (None, {"t": "none"}),
        (True, {"t": "bool", "v": True}),
        (-255, {"t": "int", "v": "-0xff"}),
        (0.5, {"t": "float", "v": "0x1.0000000000000p-1"}),
        (b"\x00\xff", {"t": "bytes", "v": "00ff"}),
        (1 + 2j, {"t": "complex", "v": ["0x1.0000000000000p+0", "0x1.0000000000000p+1"]}),
        ((1,), {"t": "tuple", "v": [{"t": "int", "v": "0x1"}]}),
        ({"a": []}, {"t": "dict", "v": [[{"t": "str", "v": "a"}, {"t": "list", "v": []}]]}),
        (frozenset(), {"t": "frozenset", "v": []}),
        (collections.Counter("a"), {"t": "other", "v": "Counter"}),
        (len, {"t": "other", "v": "builtin_function_or_method"}),
    ],
)
def test_the_form(value, row):
    assert encode(value) == row


def test_signs_infinities_and_long_numbers():
    assert math.copysign(1, through(-0.0)) == -1
    assert through([math.inf, -math.inf]) == [math.inf, -math.inf]
    assert math.isnan(through(math.nan))
    assert through(7**5000) == 7**5000 and len(str(through(10**4299))) == 4300


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"t": "int", "v": hex(10**4300)}, "an integer of 14285 bits, at most 14284, which Python can print"),
        ({"t": "int", "v": hex(-(1 << 3_000_000))}, "an integer of 3000001 bits"),
        ({"t": "str", "v": "half \ud800"}, "half a character at position 5"),
    ],
    ids=["a digit too many", "millions of bits", "half a character"],
)
def test_what_cannot_be_printed_or_written_is_malformed_on_either_side(row, said):
    value = decode(row, strict=False)
    nested = {"t": "dict", "v": [[{"t": "str", "v": "key"}, {"t": "tuple", "v": [row]}]]}
    for inner in (row, nested, {"t": "set", "v": [row]}, {"t": "dict", "v": [[row, {"t": "none"}]]}):
        with pytest.raises(Malformed, match=said):
            decode(inner)
    for outer in (value, [value], {"key": (value,)}, {value: 1}, frozenset([value])):
        with pytest.raises(Malformed, match=said):
            encode(outer)
        assert encode(outer, strict=False)


def test_a_sandbox_takes_what_its_host_sends():
    assert decode({"t": "str", "v": "\ud800"}, strict=False) == "\ud800"
    assert decode({"t": "int", "v": hex(7**9000)}, strict=False) == 7**9000


def test_names_of_classes_are_printable():
    arrived = decode({"t": "other", "v": "\x1b[31m\ud800" + "x" * 200})
    assert arrived.kind.startswith("\\x1b[31m\\ud800x") and len(arrived.kind) == 80


@given(st.text(st.characters(), max_size=40), st.integers(1, 60))
def test_escaped_text_is_one_printable_line(text, most):
    escaped = escape_unprintable(text, most)
    assert escaped.isprintable() and len(escaped) <= most and escaped.encode("utf-8")[:0] == b""
    assert escaped == text or len(text) > most or not text.isprintable()


class Agrees(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        return True


@pytest.mark.parametrize(
    "value", [Agrees("x"), collections.OrderedDict(), type("Int", (int,), {})(1), object(), range(3)]
)
def test_other_classes_equal_nothing(value):
    arrived = through(value)
    assert type(arrived) is OpaqueValue
    assert arrived != value and value != 3 and arrived != arrived
    assert [arrived] != [through(value)] and arrived not in [1, "x", None]
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(arrived)
    assert type(through({"a": [value]})["a"][0]) is OpaqueValue


def test_what_holds_itself_is_malformed():
    row = []
    row.append(row)
    with pytest.raises(Malformed):
        encode(row)
    twice = []
    for _ in range(60):
        twice = [twice, twice]
    with pytest.raises(Malformed):
        encode(twice)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_depth_has_an_end_on_both_sides():
    assert through(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(Malformed):
        encode(nested(MAX_DEPTH + 1))
    row = encode(nested(MAX_DEPTH))
    with pytest.raises(Malformed):
        decode({"t": "list", "v": [row]})


@settings(max_examples=300)
@given(JUNK)
def test_junk_is_a_value_or_malformed(junk):
    try:
        value = decode(junk)
    except Malformed:
        return
    assert (
        isinstance(value, OpaqueValue) or same(decode(encode(value)), value) or value != value or "nan" in repr(value)
    )


@pytest.mark.parametrize(
    "row",
    [
        1,
        [],
        {},
        {"t": "int"},
        {"t": "int", "v": 3},
        {"t": "int", "v": "z"},
        {"t": "float", "v": "x"},
        {"t": "bool", "v": 1},
        {"t": "str", "v": None},
        {"t": "bytes", "v": "0"},
        {"t": "complex", "v": ["0x0"]},
        {"t": "list", "v": "ab"},
        {"t": "list", "v": [1]},
        {"t": "dict", "v": [[{"t": "none"}]]},
        {"t": "set", "v": [{"t": "list", "v": []}]},
        {"t": "dict", "v": [[{"t": "set", "v": []}, {"t": "none"}]]},
        {"t": "none", "x": 1},
        {"t": "float", "v": "0x1p999999"},
        {"t": "object", "v": 1},
        {"t": ["int"], "v": 1},
    ],
)
def test_no_value(row):
    with pytest.raises(Malformed):
        decode(row)


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
def test_numbers_of_one_hash_are_refused(kind):
    """hash(k * (2**61 - 1)) is 0: 25,000 of them in a set would take minutes."""
    numbers = [encode(k * (2**61 - 1)) for k in range(25_000)]
    assert hash(3 * (2**61 - 1)) == 0
    with pytest.raises(Malformed, match="of one hash"):
        decode({"t": kind, "v": [[number, {"t": "none"}] for number in numbers] if kind == "dict" else numbers})


@pytest.mark.parametrize("body", [b"", b"[1]", b"1", b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_no_frame(body):
    with pytest.raises(Malformed):
        parse_frame(body)


def test_a_frame_has_its_length_in_front():
    data = encode_frame({"a": "\u00e9"})
    assert data == b"\x0e\x00\x00\x00" + b'{"a":"\\u00e9"}'
    assert parse_frame(data[HEADER_BYTES:]) == {"a": "\u00e9"} == json.loads(data[HEADER_BYTES:])
    with pytest.raises(Malformed, match="at most"):
        encode_frame({"a": "x" * MAX_FRAME_BYTES})
