"""The expressions of a data set's asserts: calls of the function in question, and a few built-ins around them.

A tree is walked, nothing is run. What the calls return comes out of a box as built-in values, so equality, order and
truth here are Python's own, whatever the code in the box has made of them there.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

__all__ = ["FAILURES", "Unsupported", "calls_in", "evaluate"]

# What an assert may raise when it meets a value that it does not expect: then it fails.
FAILURES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
_LARGE = 10**6  # elements or bits that an operator may make

_SAME_HASH = 32  # different elements of a set or keys of a dict that may share a hash


def _hashed(kind: Callable[..., Any]) -> Callable[..., Any]:
    """A set or dict, refused where many elements share a hash: that would take time that grows with the square."""

    def made(*given: Any) -> Any:
        known: dict[int, list[Any]] = {}
        for one in given[0] if given and not isinstance(given[0], Mapping) else ():
            key = one
            if kind is dict:
                key, _ = one
            same = known.setdefault(hash(key), [])
            if key not in same:
                same.append(key)
            if len(same) > _SAME_HASH:
                raise ValueError(f"more than {_SAME_HASH} elements of one hash")
        return kind(*given)

    return made


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "dict": _hashed(dict),
    "float": float,
    "frozenset": _hashed(frozenset),
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "round": round,
    "set": _hashed(set),
    "sorted": sorted,
    "str": str,
    "sum": sum,
    "tuple": tuple,
    "math.isclose": math.isclose,
}
_KEYWORDS = {"math.isclose": {"rel_tol", "abs_tol"}, "sorted": {"reverse"}, "round": {"ndigits"}}
_NAMES: Mapping[str, object] = {"math.pi": math.pi, "math.inf": math.inf, "math.e": math.e, "math.nan": math.nan}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


class Unsupported(Exception):
    """The expression has a form that is not read here."""


def _times(left: Any, right: Any) -> Any:
    for many, one in ((left, right), (right, left)):
        if isinstance(one, int) and isinstance(many, str | bytes | list | tuple) and len(many) * one > _LARGE:
            raise OverflowError(f"a sequence of {len(many) * one} elements")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _LARGE:
        raise OverflowError(f"a number of {left.bit_length() * right} bits")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        raise TypeError("texts are not formatted here")
    return left % right


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: _times,
    ast.Pow: _power,
    ast.Mod: _modulo,
}


def calls_in(node: ast.expr, names: Collection[str]) -> Iterator[tuple[ast.Call, tuple[Any, ...], dict[str, Any]]]:
    """The calls of a function, under any of its names, from left to right, with the values of their arguments.

    Raises:
        Unsupported: arguments or surroundings in a form that is not read here.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
        yield node, tuple(evaluate(part) for part in node.args), _keywords(node)
        return
    _check(node)
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr) and not (isinstance(node, ast.Call) and part is node.func):
            yield from calls_in(part, names)
        elif isinstance(part, ast.keyword):
            yield from calls_in(part.value, names)


def _keywords(node: ast.Call) -> dict[str, Any]:
    if any(word.arg is None for word in node.keywords):
        raise Unsupported("**")
    return {str(word.arg): evaluate(word.value) for word in node.keywords}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _check(node: ast.expr) -> None:
    """Refuse a node that `evaluate` does not know."""
    known = False
    match node:
        case ast.Constant() | ast.Tuple() | ast.List() | ast.Set() | ast.BoolOp() | ast.Compare():
            known = True
        case ast.Dict(keys=keys):
            known = None not in keys
        case ast.UnaryOp(op=sign):
            known = type(sign) in _UNARY
        case ast.BinOp(op=sign):
            known = type(sign) in _BINARY
        case ast.Subscript(slice=place):
            known = not isinstance(place, ast.Slice)
        case ast.Attribute():
            known = _dotted(node) in _NAMES
        case ast.Call(func=function, keywords=words):
            name = _dotted(function)
            known = name in _FUNCTIONS and {word.arg for word in words} <= _KEYWORDS.get(name, set())
    if not known:
        raise Unsupported(ast.unparse(node)[:80])


def evaluate(node: ast.expr, returned: Mapping[ast.Call, Any] | None = None) -> Any:
    """The value of an expression.

    Args:
        returned: the values of the calls in question, by their node.

    Raises:
        Unsupported: a form that is not read here.
        One of `FAILURES`: as Python would, and for results that are too large.
    """
    if returned is not None and isinstance(node, ast.Call) and node in returned:
        return returned[node]
    _check(node)
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(evaluate(part, returned) for part in parts)
        case ast.List(elts=parts):
            return [evaluate(part, returned) for part in parts]
        case ast.Set(elts=parts):
            return {evaluate(part, returned) for part in parts}
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {evaluate(key, returned): evaluate(value, returned) for key, value in pairs if key is not None}
        case ast.UnaryOp(op=sign, operand=part):
            return _UNARY[type(sign)](evaluate(part, returned))
        case ast.BinOp(left=left, op=operation, right=right):
            return _BINARY[type(operation)](evaluate(left, returned), evaluate(right, returned))
        case ast.BoolOp(op=junction, values=parts):
            return _joined(parts, returned, every=isinstance(junction, ast.And))
        case ast.Compare():
            return _compared(node, returned)
        case ast.Subscript(value=part, slice=place):
            return evaluate(part, returned)[evaluate(place, returned)]
        case ast.Attribute():
            return _NAMES[_dotted(node)]
        case ast.Call(func=function, args=parts):
            words = {str(word.arg): evaluate(word.value, returned) for word in node.keywords}
            return _FUNCTIONS[_dotted(function)](*(evaluate(part, returned) for part in parts), **words)
    raise Unsupported(ast.unparse(node)[:80])


def _joined(parts: list[ast.expr], returned: Mapping[ast.Call, Any] | None, *, every: bool) -> Any:
    value: Any = every
    for part in parts:
        value = evaluate(part, returned)
        if bool(value) is not every:
            return value
    return value


def _compared(node: ast.Compare, returned: Mapping[ast.Call, Any] | None) -> bool:
    left = evaluate(node.left, returned)
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = evaluate(part, returned)
        if not _COMPARE[type(sign)](left, right):
            return False
        left = right
    return True
