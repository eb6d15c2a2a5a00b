"""Programs as answers (P-CoT): the text of a response as the body of `solution`, and straight-line ones worked out.

A straight-line program assigns numbers to names and returns one: `a = 3 ; b = a * 4 ; return b`. Working it out here,
by walking its syntax tree, gives exactly what Python gives and costs a thousandth of a sandbox. Nothing is executed;
what is not of this form is not judged here (`run_straight` gives None) and belongs in a box.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["ENTRY", "TOLERANCE", "Ran", "assemble", "near", "run_straight"]

ENTRY = "solution"
TOLERANCE = Fraction(1, 100)
"""R3: equal if |answer - gold| is at most this."""
Number = int | float

_LONGEST, _DEEPEST, _LARGEST_BITS, _LARGEST_POWER = 4000, 40, 1024, 64
_HEAD = re.compile(rf"\s*def\s+{ENTRY}\s*\(\s*\)\s*(?:->\s*\w+\s*)?:[ \t]*")
_LEFT_TO_BOXES = re.compile(r"\\|[0-9](?![eE][-+0-9])[A-Za-z_]")  # the parser warns of some of these
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., Number]] = {"abs": abs, "float": float, "int": int, "max": max, "min": min}
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Ran:
    """What a straight-line program came to.

    Args:
        value: the number it returned; None where it raised, returned nothing, or is no Python.
        error: why there is no value.
    """

    value: Number | None
    error: str = ""


class _Unfit(Exception):
    """Not straight-line: for a box to run."""


class _Raised(Exception):
    """Python would raise here."""


def assemble(response: str) -> str:
    """The source of `solution`, of which a response is the body. It ends at the first blank line.

    The first line may lack its indent, since prompts often end with it, and the head may be written again.
    """
    head = _HEAD.match(response)
    body = response[head.end() :] if head else response
    lines = body.strip("\n").split("\n")
    end = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
    first, rest = (lines[0].strip(), lines[1:end]) if end else ("", [])
    margin = min((len(line) - len(line.lstrip()) for line in rest), default=0)
    opens = first.endswith(":") and bool(rest) and len(rest[0]) - len(rest[0].lstrip()) == margin
    inner = textwrap.indent("\n".join(line[margin:] for line in rest), "        " if opens else "    ")
    return f"def {ENTRY}():\n    {first}\n{inner}".rstrip() + "\n"


def near(value: object, gold: Fraction) -> bool:
    """Whether a value is a finite number at most 0.01 from the gold answer; True and False are no numbers."""
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return abs(Fraction(value) - gold) <= TOLERANCE
    return False


def run_straight(source: str) -> Ran | None:
    """What `solution()` gives, where the source is a straight-line program; None where only a box can say.

    Straight-line: assignments to names (also `+=` and kin), docstrings and one kind of return; numbers, names,
    + - * / // % **, and abs, float, int, max and min. No text over 4,000 characters, no whole number of more than
    1,024 bits, no power above 64.
    """
    if len(source) > _LONGEST or _LEFT_TO_BOXES.search(source):
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return Ran(None, f"SyntaxError: {error.msg}")
    except (ValueError, RecursionError, MemoryError):
        return None
    whole = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(whole, ast.FunctionDef) or whole.name != ENTRY:
        return None
    if whole.decorator_list or any(ast.iter_child_nodes(whole.args)):  # what is called is not this body, or not so
        return None
    body = whole.body
    if not all(isinstance(line, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) for line in body):
        return None
    try:
        return _run(body)
    except _Unfit:
        return None
    except _Raised as raised:
        return Ran(None, str(raised))


def _run(body: list[ast.stmt]) -> Ran:
    """The lines in order. All of them are looked at first: an unfit one after the return decides what names mean."""
    targets = [_target(line) for line in body]
    scope: dict[str, Number | None] = {name: None for name in targets if name}
    for line, name in zip(body, targets, strict=True):
        if isinstance(line, ast.Return):
            if line.value is None:
                return Ran(None, "it returns nothing")
            return Ran(_value(line.value, scope))
        if isinstance(line, ast.Assign):
            scope[name] = _value(line.value, scope)
        elif isinstance(line, ast.AugAssign):
            left = _value(ast.Name(name), scope)
            scope[name] = _binary(type(line.op), left, _value(line.value, scope))
    return Ran(None, "it returns nothing")


def _target(line: ast.stmt) -> str:
    """The name that a line assigns to; empty where it assigns to none."""
    if isinstance(line, ast.Expr):
        if not (isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)):
            raise _Unfit
        return ""
    if isinstance(line, ast.Return):
        return ""
    targets = [line.target] if isinstance(line, ast.AugAssign) else line.targets if isinstance(line, ast.Assign) else []
    target = targets[0] if len(targets) == 1 else None
    if not isinstance(target, ast.Name):
        raise _Unfit
    return target.id


def _value(node: ast.expr, scope: dict[str, Number | None], depth: int = 0) -> Number:
    if depth > _DEEPEST:
        raise _Unfit
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _small(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return _looked_up(node.id, scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _value(node.operand, scope, depth + 1)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left = _value(node.left, scope, depth + 1)
        return _binary(type(node.op), left, _value(node.right, scope, depth + 1))
    if isinstance(node, ast.Call):
        return _called(node, scope, depth)
    raise _Unfit


def _looked_up(name: str, scope: dict[str, Number | None]) -> Number:
    found = scope.get(name)
    if found is not None:
        return found
    if name not in scope and name in _BUILTINS:
        raise _Unfit
    raise _Raised(f"NameError: {name} has no value")


def _called(node: ast.Call, scope: dict[str, Number | None], depth: int) -> Number:
    """A call of one of the few functions known, with plain numbers; a name that the program assigns is none of them."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    known = _CALLS.get(name)
    arguments = len(node.args) >= 2 if name in ("max", "min") else len(node.args) == 1
    if known is None or name in scope or node.keywords or not arguments:
        raise _Unfit
    return _checked(known, *(_value(part, scope, depth + 1) for part in node.args))


def _binary(op: type[ast.operator], left: Number, right: Number) -> Number:
    known = _BINARY.get(op)
    if known is None:
        raise _Unfit
    if op is ast.Pow and (abs(right) > _LARGEST_POWER or abs(left) >= 1 << _LARGEST_POWER):
        raise _Unfit
    return _checked(known, left, right)


def _checked(function: Callable[..., Number], *values: Number) -> Number:
    try:
        found = function(*values)
    except (ArithmeticError, ValueError) as error:
        raise _Raised(f"{type(error).__name__}: {error}") from error
    return _small(found)


def _small(value: Number) -> Number:
    """The value, unless it is a complex number or a whole number that takes long to work with."""
    if type(value) not in (int, float) or (isinstance(value, int) and value.bit_length() > _LARGEST_BITS):
        raise _Unfit
    return value
