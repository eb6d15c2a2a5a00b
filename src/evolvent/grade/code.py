"""Code graded by values: asserts become calls, a sandbox answers them, and the returned values are compared
here.

Two forms. **Plain**: every assert is an expression around calls with literal arguments; the sandbox sees the
arguments, never the expected values. **Boxed**: tests with loops or assignments run in a second sandbox without the
code of a model; their `candidate` is a proxy, and each call goes as values to the sandbox with the code. A test in
neither form, or one that needs names that only the graded code defines, is "weak": it is not graded.

Nothing is run here. `grade_code` receives a function that opens a sandbox, such as `SandboxPool.opener`.

Expressions in the asserts of a data set: calls of the tested function, and a few builtins around them.

The tree is walked, nothing is run. Values returned by calls come out of a sandbox as builtin types, so
equality, order and truth here are Python's, regardless of changes by the code in the sandbox.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from evolvent.grade.base import Grade, shorten
from evolvent.trajectory import JsonObject

__all__ = [
    "FAILURES",
    "CodeTests",
    "Form",
    "OpenSandbox",
    "SandboxAnswer",
    "SandboxSession",
    "Unsupported",
    "classify_tests",
    "evaluate",
    "find_calls",
    "grade_code",
    "parse_humaneval",
    "parse_mbpp",
]


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
        raise TypeError("text formatting is not supported")
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


Form = Literal["plain", "boxed", "weak"]
_RUN = "run_the_test"


class SandboxAnswer(Protocol):
    """The answer of a sandbox to one call."""

    @property
    def status(self) -> str:
        """Returns "value" where the call returned, "raised" where it raised; any other status ends the sandbox."""
        ...

    @property
    def value(self) -> object:
        """Returns the returned value."""
        ...

    @property
    def error(self) -> str:
        """Returns the error, one line."""
        ...


class SandboxSession(Protocol):
    """An open sandbox with a source in it."""

    def ask(self, entry: str, args: tuple[object, ...] = (), kwargs: JsonObject | None = None) -> SandboxAnswer:
        """Calls a function of the source."""
        ...

    def end(self) -> bool:
        """Ends the session; returns whether no further output followed."""
        ...


HostFunction: TypeAlias = Callable[..., Any]
"""A function outside of the sandbox that the program in it calls."""
# (source, functions that it may call and that are answered outside) -> a box for a `with` block
OpenSandbox = Callable[[str, Mapping[str, HostFunction]], AbstractContextManager[SandboxSession]]


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The tests of one problem.

    Args:
        entry: Name of the tested function in the code.
        called_name: Name by which the tests call it.
        body: Statements of the tests.
        preamble: Program that defines the names used by the tests, where they run in a sandbox.
        defined_names: Names defined by `preamble` and Python; a test that uses other names is weak.
    """

    entry: str
    called_name: str
    body: tuple[ast.stmt, ...]
    preamble: str
    defined_names: frozenset[str]

    @property
    def entry_names(self) -> frozenset[str]:
        """Returns the names by which a test may call the tested function."""
        return frozenset((self.entry, self.called_name))


def parse_humaneval(prompt: str, test: str, entry: str) -> CodeTests:
    """Parses tests in HumanEval's form: a program that defines `check(candidate)` and may use names of the prompt.

    Raises:
        SyntaxError: the prompt or the test is no Python.
        ValueError: no function `check` of one argument.
    """
    tree = ast.parse(test)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            other_statements = [part for part in tree.body if part is not node]
            preamble = ast.unparse(ast.Module([*_drop_function(prompt, entry), *other_statements], []))
            return CodeTests(entry, node.args.args[0].arg, tuple(node.body), preamble, _defined_names(preamble))
    raise ValueError(f"no function check(candidate) in {test[:80]!r}")


def _drop_function(program: str, entry: str) -> list[ast.stmt]:
    """Returns the statements of a program without the tested function, of which a prompt holds only the signature."""
    body = ast.parse(program).body
    return [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]


def parse_mbpp(asserts: str, *, imports: str = "", entry: str = "") -> CodeTests:
    """Parses tests in MBPP's form: asserts that call the function by its name, and imports.

    Args:
        asserts: Source of the asserts.
        imports: Source of the imports.
        entry: Name of the function; "": the one name that the asserts call and nobody defines.
    Raises:
        SyntaxError: not Python.
        ValueError: no entry is given, and the asserts call several unknown names, or none.
    """
    body = tuple(ast.parse(asserts).body)
    names = _defined_names(imports)
    if not entry:
        called_names = {
            node.func.id
            for part in body
            for node in ast.walk(part)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        } - names
        if len(called_names) != 1:
            raise ValueError(f"the asserts call {sorted(called_names) or 'nothing'}, not one function")
        entry = called_names.pop()
    return CodeTests(entry, entry, body, imports, names)


def _defined_names(program: str) -> frozenset[str]:
    """Returns the names at the top level of a program, and Python's builtins."""
    names = set(dir(builtins))
    for node in ast.parse(program).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            names.update(_assigned_names(node))
    return frozenset(names)


def _assigned_names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def classify_tests(tests: CodeTests) -> Form:
    """Returns the form in which the tests can be run."""
    if _parse_plain(tests) is not None:
        return "plain"
    local_names = {name for part in tests.body for name in _assigned_names(part)}
    local_names |= {node.arg for part in tests.body for node in ast.walk(part) if isinstance(node, ast.arg)}
    local_names |= {name for part in tests.body for name in _defined_names(ast.unparse(part))}
    return "boxed" if _used_names(tests) <= local_names | tests.defined_names | tests.entry_names else "weak"


def _used_names(tests: CodeTests) -> set[str]:
    return {node.id for part in tests.body for node in ast.walk(part) if isinstance(node, ast.Name)}


_Calls = list[tuple[ast.Call, tuple[Any, ...], dict[str, Any]]]


def _parse_plain(tests: CodeTests) -> list[tuple[ast.expr, _Calls]] | None:
    """Returns the asserts with their calls; None where the tests hold other statements."""
    asserts: list[tuple[ast.expr, _Calls]] = []
    for statement in tests.body:
        if isinstance(statement, ast.Pass) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        if not isinstance(statement, ast.Assert):
            return None
        try:
            asserts.append((statement.test, list(find_calls(statement.test, tests.entry_names))))
        except (Unsupported, *FAILURES):
            return None
    return asserts


def grade_code(source: str, tests: CodeTests, open_sandbox: OpenSandbox) -> Grade:
    """Returns whether code passes its tests.

    Args:
        source: The complete code.
        tests: Tests from `humaneval` or `mbpp`.
        open_sandbox: Opens a fresh sandbox for a source.
    Returns:
        The grade; `correct` is None where the tests are weak or never call the code; `why` names the failure.
    """
    if not tests.entry_names & _used_names(tests):
        return Grade(None, why="weak: the tests never call the code")
    asserts = _parse_plain(tests)
    if asserts is not None:
        return _grade_plain(source, tests, asserts, open_sandbox=open_sandbox)
    if classify_tests(tests) == "weak":
        return Grade(None, why="weak: the tests need names that only the code defines")
    return _grade_boxed(source, tests, open_sandbox)


def _grade_plain(
    source: str, tests: CodeTests, asserts: list[tuple[ast.expr, _Calls]], *, open_sandbox: OpenSandbox
) -> Grade:
    failure = ""
    with open_sandbox(source, {}) as sandbox:
        for test, calls in asserts:
            returned = {}
            for node, args, kwargs in calls:
                answer = sandbox.ask(tests.entry, args, kwargs)
                if answer.status != "value":
                    return Grade(False, why=f"{ast.unparse(node)[:200]}: {answer.status}: {answer.error}")
                returned[node] = answer.value
            failure = _find_failure(test, returned)
            if failure:
                return Grade(False, why=failure)
        if not sandbox.end():
            return Grade(False, why="malformed: more answers than calls")
    return Grade(True)


def _find_failure(test: ast.expr, returned: Mapping[ast.Call, Any]) -> str:
    """Returns the reason why an assert fails; "" where it holds."""
    try:
        is_true = bool(evaluate(test, returned))
    except FAILURES as error:
        return f"{ast.unparse(test)[:200]}: {type(error).__name__}: {shorten(error, str)}"
    if is_true:
        return ""
    returned_text = ", ".join(map(shorten, returned.values()))
    return f"{ast.unparse(test)[:200]}: returned {returned_text}"


def _grade_boxed(source: str, tests: CodeTests, open_sandbox: OpenSandbox) -> Grade:
    body = ast.unparse(ast.Module(list(tests.body), []))
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    program = f"{tests.preamble}\ndef {_RUN}():\n{lines}    return True\n"
    sandbox_errors: list[str] = []
    with open_sandbox(source, {}) as code_sandbox:

        def candidate(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SandboxAnswer:
            answer = code_sandbox.ask(tests.entry, args, kwargs)
            if answer.status not in ("value", "raised"):
                sandbox_errors.append(f"{answer.status}: {answer.error}")
            return answer

        with open_sandbox(program, dict.fromkeys(tests.entry_names, candidate)) as test_sandbox:
            answer = test_sandbox.ask(_RUN)
        if sandbox_errors:
            return Grade(False, why=sandbox_errors[0])
        if answer.status != "value" or answer.value is not True:
            return Grade(False, why=f"the test: {answer.status}: {answer.error}")
        if not code_sandbox.end():
            return Grade(False, why="malformed: more answers than calls")
    return Grade(True)
