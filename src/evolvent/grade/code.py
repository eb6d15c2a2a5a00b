"""Code graded by values: asserts become calls, a sandbox answers them, and the returned values are compared
here.

Two forms. **Plain**: every assert is an expression around calls with literal arguments
(`evolvent.grade.expressions`); the sandbox sees the arguments, never the expected values. **Boxed**: tests with
loops or assignments run in a second sandbox without the code of a model; their `candidate` is a proxy, and each
call goes as values to the sandbox with the code. A test in neither form, or one that needs names that only the
graded code defines, is "weak": it is not graded.

Nothing is run here. `grade_code` receives a function that opens a sandbox, such as `SandboxPool.opener`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from evolvent.grade.base import Grade, shorten
from evolvent.grade.expressions import FAILURES, Unsupported, evaluate, find_calls
from evolvent.trajectory import JsonObject

__all__ = [
    "CodeTests",
    "Form",
    "OpenSandbox",
    "SandboxAnswer",
    "SandboxSession",
    "classify_tests",
    "grade_code",
    "parse_humaneval",
    "parse_mbpp",
]

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
        called: Name by which the tests call it.
        body: Statements of the tests.
        before: Program that defines the names used by the tests, where they run in a sandbox.
        names: Names defined by `before` and Python; a test that uses other names is weak.
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
        open_box: Opens a fresh sandbox for a source.
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
