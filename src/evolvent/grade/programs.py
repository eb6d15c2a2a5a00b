"""Programs as answers (P-CoT): a response as the body of `solution`, and the evaluation of straight-line
programs.

A straight-line program assigns numbers to names and returns one: `a = 3 ; b = a * 4 ; return b`. Evaluating it
here, by walking its syntax tree, gives exactly Python's result at a thousandth of the cost of a sandbox.
Nothing is executed; a program of another form is not evaluated here (`evaluate_straight` returns None) and
needs a sandbox.
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

__all__ = ["ENTRY", "TOLERANCE", "ProgramResult", "assemble_solution", "evaluate_straight", "is_near"]

ENTRY = "solution"
TOLERANCE = Fraction(1, 100)
"""R3: equal if |answer - gold| is at most this."""
Number = int | float

_MAX_CHARS, _MAX_DEPTH, _MAX_BITS, _MAX_POWER = 4000, 40, 1024, 64
_HEAD = re.compile(rf"\s*def\s+{ENTRY}\s*\(\s*\)\s*(?:->\s*\w+\s*)?:[ \t]*")
_NEEDS_SANDBOX = re.compile(r"\\|[0-9](?![eE][-+0-9])[A-Za-z_]")  # the parser warns of some of these
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
class ProgramResult:
    """The result of a straight-line program.

    Args:
        value: The returned number; None where the program raised, returned nothing, or is not Python.
        error: Reason for a missing value.
    """

    value: Number | None
    error: str = ""


class _NotStraight(Exception):
    """Raised for a program that is not straight-line, so that a sandbox must run it."""


class _PythonError(Exception):
    """Raised where Python would raise an error."""


def assemble_solution(response: str) -> str:
    """Builds the source of `solution` from its body, which is a response up to its first blank line.

    The first line may lack its indent, since prompts often end with it, and the head may be written again.
    """
    head = _HEAD.match(response)
    body = response[head.end() :] if head else response
    lines = body.strip("\n").split("\n")
    end = next((index for index, line in enumerate(lines) if not line.strip()), len(lines))
    first_line, following_lines = (lines[0].strip(), lines[1:end]) if end else ("", [])
    margin = min((len(line) - len(line.lstrip()) for line in following_lines), default=0)
    opens_block = (
        first_line.endswith(":")
        and bool(following_lines)
        and len(following_lines[0]) - len(following_lines[0].lstrip()) == margin
    )
    inner = textwrap.indent("\n".join(line[margin:] for line in following_lines), "        " if opens_block else "    ")
    return f"def {ENTRY}():\n    {first_line}\n{inner}".rstrip() + "\n"


def is_near(value: object, gold: Fraction) -> bool:
    """Returns whether a value is a finite number at most 0.01 from the gold answer; booleans are not numbers."""
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return abs(Fraction(value) - gold) <= TOLERANCE
    return False


def evaluate_straight(source: str) -> ProgramResult | None:
    """Computes the value of `solution()`, where the source is a straight-line program; None where it needs a
    sandbox.

    Straight-line: assignments to names (also `+=` and similar), docstrings and one kind of return; numbers, names,
    + - * / // % **, and abs, float, int, max and min. No text over 4,000 characters, no integer of more than 1,024
    bits, no power above 64.
    """
    if len(source) > _MAX_CHARS or _NEEDS_SANDBOX.search(source):
        return None
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return ProgramResult(None, f"SyntaxError: {error.msg}")
    except (ValueError, RecursionError, MemoryError):
        return None
    function = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.name != ENTRY:
        return None
    if function.decorator_list or any(
        ast.iter_child_nodes(function.args)
    ):  # what is called is not this body, or not so
        return None
    body = function.body
    if not all(isinstance(line, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) for line in body):
        return None
    try:
        return _evaluate_body(body)
    except _NotStraight:
        return None
    except _PythonError as raised:
        return ProgramResult(None, str(raised))


def _evaluate_body(body: list[ast.stmt]) -> ProgramResult:
    """Computes the lines in order. All are checked first: an unsupported line after the return changes what names
    mean.
    """
    targets = [_assigned_name(line) for line in body]
    scope: dict[str, Number | None] = {name: None for name in targets if name}
    for line, name in zip(body, targets, strict=True):
        if isinstance(line, ast.Return):
            if line.value is None:
                return ProgramResult(None, "it returns nothing")
            return ProgramResult(_evaluate(line.value, scope))
        if isinstance(line, ast.Assign):
            scope[name] = _evaluate(line.value, scope)
        elif isinstance(line, ast.AugAssign):
            left = _evaluate(ast.Name(name), scope)
            scope[name] = _evaluate_binary(type(line.op), left, _evaluate(line.value, scope))
    return ProgramResult(None, "it returns nothing")


def _assigned_name(line: ast.stmt) -> str:
    """Returns the name that a line assigns to; empty where there is none."""
    if isinstance(line, ast.Expr):
        if not (isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)):
            raise _NotStraight
        return ""
    if isinstance(line, ast.Return):
        return ""
    targets = [line.target] if isinstance(line, ast.AugAssign) else line.targets if isinstance(line, ast.Assign) else []
    target = targets[0] if len(targets) == 1 else None
    if not isinstance(target, ast.Name):
        raise _NotStraight
    return target.id


def _evaluate(node: ast.expr, scope: dict[str, Number | None], depth: int = 0) -> Number:
    if depth > _MAX_DEPTH:
        raise _NotStraight
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _check_size(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return _look_up(node.id, scope)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        inner = _evaluate(node.operand, scope, depth + 1)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        left = _evaluate(node.left, scope, depth + 1)
        return _evaluate_binary(type(node.op), left, _evaluate(node.right, scope, depth + 1))
    if isinstance(node, ast.Call):
        return _evaluate_call(node, scope, depth)
    raise _NotStraight


def _look_up(name: str, scope: dict[str, Number | None]) -> Number:
    value = scope.get(name)
    if value is not None:
        return value
    if name not in scope and name in _BUILTINS:
        raise _NotStraight
    raise _PythonError(f"NameError: {name} has no value")


def _evaluate_call(node: ast.Call, scope: dict[str, Number | None], depth: int) -> Number:
    """Computes a call of a supported function with plain numbers; a name that the program assigns is not supported."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    function = _CALLS.get(name)
    is_arity_valid = len(node.args) >= 2 if name in ("max", "min") else len(node.args) == 1
    if function is None or name in scope or node.keywords or not is_arity_valid:
        raise _NotStraight
    return _apply(function, *(_evaluate(part, scope, depth + 1) for part in node.args))


def _evaluate_binary(op: type[ast.operator], left: Number, right: Number) -> Number:
    operation = _BINARY.get(op)
    if operation is None:
        raise _NotStraight
    if op is ast.Pow and (abs(right) > _MAX_POWER or abs(left) >= 1 << _MAX_POWER):
        raise _NotStraight
    return _apply(operation, left, right)


def _apply(function: Callable[..., Number], *values: Number) -> Number:
    try:
        result = function(*values)
    except (ArithmeticError, ValueError) as error:
        raise _PythonError(f"{type(error).__name__}: {error}") from error
    return _check_size(result)


def _check_size(value: Number) -> Number:
    """Returns the value; raises an error for a complex number or an integer too large for fast arithmetic."""
    if type(value) not in (int, float) or (isinstance(value, int) and value.bit_length() > _MAX_BITS):
        raise _NotStraight
    return value
