"""The values that cross the boundary of a sandbox: exact built-in classes as tagged JSON.

Output of a sandbox is hostile: `decode` takes any value and returns a value or raises `Malformed`, in bounded time.
What comes out can be printed and written: integers are as long as Python prints them, text is valid Unicode. This file
runs on both sides of the boundary. Each import inside costs time in every sandbox, so it has none at run time.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, whose import takes longer than the start of the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

__all__ = [
    "HEADER_BYTES",
    "MAX_DEPTH",
    "MAX_FRAME_BYTES",
    "MAX_INTEGER_BITS",
    "Malformed",
    "OpaqueValue",
    "Value",
    "decode",
    "encode",
    "escape_unprintable",
]

MAX_DEPTH = 64  # levels of nesting of a value
MAX_FRAME_BYTES = 2**20  # bytes of one frame
HEADER_BYTES = 4  # bytes of its length, little-endian
MAX_INTEGER_BITS = 14_284  # 4,300 digits: str() and json.dumps() of longer ones raise (sys.get_int_max_str_digits)
_MAX_NODES = MAX_FRAME_BYTES // 12  # the shortest tagged value has so many bytes
_MAX_NAME = 80  # characters of the name of a class
_MAX_SAME_HASH = (
    32  # elements of one set or dict that may share a hash: more of them are an attack on the reader's time
)

# Built-in values of exactly these classes: None, bool, int, float, complex, str, bytes, and list, tuple, set, frozenset
# and dict of them; or `OpaqueValue`.
Value: TypeAlias = "Any"


class Malformed(ValueError):
    """A frame that is not in the form of the sandbox's answers, or a value that is too large to be sent."""


class OpaqueValue:
    """A value of any other class: it is equal to nothing, not even to itself, and neither true nor false.

    Args:
        kind: name of its class, as the sandbox reports it; for messages only.
    """

    __slots__ = ("kind",)
    __hash__ = object.__hash__

    def __init__(self, kind: str = "") -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a value of another class: {self.kind or 'unknown'}>"

    def __eq__(self, operand: object) -> bool:
        return False

    def __ne__(self, operand: object) -> bool:
        return True

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is neither true nor false")


def escape_unprintable(text: str, max_chars: int) -> str:
    r"""Returns text of one line that any terminal, log or file takes: all but printable characters are escaped.

    >>> escape_unprintable("red\x1b[31m, half \ud800, and more", 27)
    'red\\x1b[31m, half \\ud800, a'
    """
    if len(text) <= max_chars and text.isprintable():
        return text
    escaped = "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text[:max_chars]
    )
    return escaped[:max_chars]


def encode(value: Value, depth: int = MAX_DEPTH, *, strict: bool = True) -> dict[str, object]:
    """Encodes a value as tagged JSON: `{"t": class, "v": content}`, int and float in hex, dict as pairs.

    A class is compared by identity, so a subclass is "other". The number of parts is bounded, because a small value
    that holds itself twice, and so on, is endless when it is written out.

    Args:
        value: the value.
        depth: levels of nesting at most.
        strict: refuse what `decode` refuses, for what comes out of a sandbox; it takes what its host sends.

    Raises:
        Malformed: more than `depth` levels (as a value that holds itself has), too many parts, an integer that Python
            does not print, or text that is not valid Unicode.
    """
    return _encode(value, depth, [_MAX_NODES], strict=strict)


def _encode(value: Value, depth: int, nodes_left: list[int], *, strict: bool) -> dict[str, Any]:
    nodes_left[0] -= 1
    if depth < 0 or nodes_left[0] < 0:
        raise Malformed(f"the value has more than {MAX_DEPTH} levels or {_MAX_NODES} parts")
    kind = type(value)
    if value is None:
        return {"t": "none"}
    if kind is bool or kind is str:
        nodes_left[0] -= 0 if kind is bool else len(value) // 8
        if strict and kind is str and nodes_left[0] >= 0:
            _check_unicode(value)
        return {"t": kind.__name__, "v": value}
    if kind is int:
        if strict:
            _check_length(value)
        return {"t": "int", "v": hex(value)}
    if kind is float:
        return {"t": "float", "v": value.hex()}
    if kind is complex:
        return {"t": "complex", "v": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"t": "bytes", "v": value.hex()}
    if kind is dict:
        pairs = [
            [_encode(key, depth - 1, nodes_left, strict=strict), _encode(item, depth - 1, nodes_left, strict=strict)]
            for key, item in value.items()
        ]
        return {"t": "dict", "v": pairs}
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return {"t": kind.__name__, "v": [_encode(item, depth - 1, nodes_left, strict=strict) for item in value]}
    name = getattr(value, "kind", "") if kind is OpaqueValue else kind.__name__
    return {"t": "other", "v": name[:_MAX_NAME] if type(name) is str else ""}


def decode(row: object, depth: int = MAX_DEPTH, *, strict: bool = True) -> Value:
    """Decodes the value of tagged JSON, built anew from exact built-in classes.

    Args:
        row: the tagged JSON.
        depth: levels of nesting at most.
        strict: refuse what cannot be printed or written, for what comes out of a sandbox; it takes what its host sends.

    Raises:
        Malformed: not the form that `encode` writes, too deep, an integer that Python does not print, text that is no
            Unicode, or many elements of one hash in a set or a dict.
    """
    if depth < 0 or not isinstance(row, dict) or not isinstance(row.get("t"), str) or not row.keys() <= {"t", "v"}:
        raise Malformed(f"no tagged value, or more than {MAX_DEPTH} levels")
    kind, content = row["t"], row.get("v")
    if kind == "none":
        return None
    if kind in ("list", "tuple", "set", "frozenset", "dict"):
        if not isinstance(content, list):
            raise Malformed(f"a {kind} without a list of its elements")
        return _decode_container(kind, content, depth, strict=strict)
    if kind == "bool" and isinstance(content, bool):
        return content
    if kind == "str" and isinstance(content, str):
        if strict:
            _check_unicode(content)
        return content
    if kind == "other":
        return OpaqueValue(escape_unprintable(content, _MAX_NAME) if isinstance(content, str) else "")
    reader = _READERS.get(kind)
    value: Value = None
    try:
        if reader is not None:
            value = reader(content)
    except (TypeError, ValueError, OverflowError):
        pass
    if value is None:
        raise Malformed(f"no value of class {kind[:_MAX_NAME]!r}")
    if kind == "int" and strict:
        _check_length(value)
    return value


def _check_length(value: int) -> None:
    """Refuses integers whose repr raises where they arrive."""
    if value.bit_length() > MAX_INTEGER_BITS:
        raise Malformed(f"an integer of {value.bit_length()} bits, at most {MAX_INTEGER_BITS}, which Python can print")


def _check_unicode(text: str) -> None:
    """Refuses text that cannot be written as UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(f"text is not valid Unicode: half a character at position {error.start}") from None


def _parse_complex(content: Any) -> complex:
    real, imaginary = content
    return complex(float.fromhex(real), float.fromhex(imaginary))


_READERS: dict[str, Callable[[Any], Value]] = {
    "int": lambda content: int(content, 16),
    "float": float.fromhex,
    "complex": _parse_complex,
    "bytes": bytes.fromhex,
}


def _decode_container(kind: str, content: list[Any], depth: int, *, strict: bool) -> Value:
    if kind == "dict":
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
            raise Malformed("the dict is not a list of pairs")
        keys = [decode(key, depth - 1, strict=strict) for key, _ in content]
        _check_hashes(keys)
        return dict(zip(keys, (decode(item, depth - 1, strict=strict) for _, item in content), strict=True))
    items = [decode(item, depth - 1, strict=strict) for item in content]
    if kind == "list":
        return items
    if kind == "tuple":
        return tuple(items)
    _check_hashes(items)
    return set(items) if kind == "set" else frozenset(items)


def _check_hashes(items: Iterable[Value]) -> None:
    """Refuses elements whose time would grow with the square: k * (2**61 - 1) has the hash 0 for every k."""
    counts: dict[int, int] = {}
    for item in items:
        try:
            hash_value = hash(item)
        except TypeError:
            raise Malformed(f"unhashable element: {type(item).__name__}") from None
        counts[hash_value] = counts.get(hash_value, 0) + 1
        if counts[hash_value] > _MAX_SAME_HASH:
            raise Malformed(f"more than {_MAX_SAME_HASH} elements of one hash")
