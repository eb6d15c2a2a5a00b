"""Expressions in the asserts of a data set: calls of the tested function, and a few builtins around them.

The tree is walked, nothing is run. Values returned by calls come out of a sandbox as builtin types, so
equality, order and truth here are Python's, regardless of changes by the code in the sandbox.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

__all__ = ["FAILURES", "Unsupported", "evaluate", "find_calls"]

# What an assert may raise when it meets a value that it does not expect: then it fails.
FAILURES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
_MAX_SIZE = 10**6  # elements or bits that an operator may make

_MAX_COLLISIONS = 32  # different elements of a set or keys of a dict that may share a hash


def _guard_hashing(collection: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a set or dict type so that it refuses many elements of one hash, which would take quadratic time."""

    def build(*arguments: Any) -> Any:
        keys_by_hash: dict[int, list[Any]] = {}
        for element in arguments[0] if arguments and not isinstance(arguments[0], Mapping) else ():
            key = element
            if collection is dict:
                key, _ = element
            same_hash = keys_by_hash.setdefault(hash(key), [])
            if key not in same_hash:
                same_hash.append(key)
            if len(same_hash) > _MAX_COLLISIONS:
                raise ValueError(f"more than {_MAX_COLLISIONS} elements of one hash")
        return collection(*arguments)

    return build


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "dict": _guard_hashing(dict),
    "float": float,
    "frozenset": _guard_hashing(frozenset),
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "round": round,
    "set": _guard_hashing(set),
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
    """Raised for an expression in an unsupported form."""


def _multiply(left: Any, right: Any) -> Any:
    for sequence, factor in ((left, right), (right, left)):
        if (
            isinstance(factor, int)
            and isinstance(sequence, str | bytes | list | tuple)
            and len(sequence) * factor > _MAX_SIZE
        ):
            raise OverflowError(f"a sequence of {len(sequence) * factor} elements")
    return left * right


def _raise_power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_SIZE:
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
    ast.Mult: _multiply,
    ast.Pow: _raise_power,
    ast.Mod: _modulo,
}


def find_calls(
    node: ast.expr, names: Collection[str]
) -> Iterator[tuple[ast.Call, tuple[object, ...], dict[str, object]]]:
    """Yields the calls of a function, under any of its names, from left to right, with the values of their
    arguments.

    Raises:
        Unsupported: arguments or surroundings in an unsupported form.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
        yield node, tuple(evaluate(part) for part in node.args), _evaluate_keywords(node)
        return
    _check(node)
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr) and not (isinstance(node, ast.Call) and part is node.func):
            yield from find_calls(part, names)
        elif isinstance(part, ast.keyword):
            yield from find_calls(part.value, names)


def _evaluate_keywords(node: ast.Call) -> dict[str, Any]:
    if any(argument.arg is None for argument in node.keywords):
        raise Unsupported("**")
    return {str(argument.arg): evaluate(argument.value) for argument in node.keywords}


def _dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _check(node: ast.expr) -> None:
    """Refuses a node that `evaluate` does not support."""
    is_supported = False
    match node:
        case ast.Constant() | ast.Tuple() | ast.List() | ast.Set() | ast.BoolOp() | ast.Compare():
            is_supported = True
        case ast.Dict(keys=keys):
            is_supported = None not in keys
        case ast.UnaryOp(op=sign):
            is_supported = type(sign) in _UNARY
        case ast.BinOp(op=sign):
            is_supported = type(sign) in _BINARY
        case ast.Subscript(slice=index):
            is_supported = not isinstance(index, ast.Slice)
        case ast.Attribute():
            is_supported = _dotted_name(node) in _NAMES
        case ast.Call(func=function, keywords=call_keywords):
            name = _dotted_name(function)
            is_supported = name in _FUNCTIONS and {argument.arg for argument in call_keywords} <= _KEYWORDS.get(
                name, set()
            )
    if not is_supported:
        raise Unsupported(ast.unparse(node)[:80])


def evaluate(node: ast.expr, returned: Mapping[ast.Call, Any] | None = None) -> Any:
    """Computes the value of an expression.

    Args:
        node: The expression.
        returned: Values of the calls of the tested function, by their node.
    Raises:
        Unsupported: an unsupported form.
        One of `FAILURES`: as in Python, and for results that are too large.
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
            return _evaluate_junction(parts, returned, is_conjunction=isinstance(junction, ast.And))
        case ast.Compare():
            return _evaluate_comparison(node, returned)
        case ast.Subscript(value=part, slice=index):
            return evaluate(part, returned)[evaluate(index, returned)]
        case ast.Attribute():
            return _NAMES[_dotted_name(node)]
        case ast.Call(func=function, args=parts):
            arguments = {str(argument.arg): evaluate(argument.value, returned) for argument in node.keywords}
            return _FUNCTIONS[_dotted_name(function)](*(evaluate(part, returned) for part in parts), **arguments)
    raise Unsupported(ast.unparse(node)[:80])


def _evaluate_junction(parts: list[ast.expr], returned: Mapping[ast.Call, Any] | None, *, is_conjunction: bool) -> Any:
    value: Any = is_conjunction
    for part in parts:
        value = evaluate(part, returned)
        if bool(value) is not is_conjunction:
            return value
    return value


def _evaluate_comparison(node: ast.Compare, returned: Mapping[ast.Call, Any] | None) -> bool:
    left = evaluate(node.left, returned)
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = evaluate(part, returned)
        if not _COMPARE[type(sign)](left, right):
            return False
        left = right
    return True
