"""Code, judged by values: asserts become calls, a box answers them, and what comes back is compared here.

Two forms. **Plain**: every assert is an expression around calls with literal arguments (`evolvent.grade.expressions`);
the box sees the arguments, never what is expected. **Boxed**: tests with loops or assignments run in a second box that
holds no code of a model; their `candidate` is a proxy, and each call goes as values to the box with the code. A test in
neither form, or one that needs names which only the judged code defines, is "weak": it is not guessed.

Nothing is run here. `judge` is handed a function that opens a box; `Boxes.opener` is one.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from evolvent.grade.base import Grade, shown
from evolvent.grade.expressions import FAILURES, Unsupported, calls_in, evaluate

__all__ = ["Answer", "Form", "Open", "Session", "Tests", "form", "humaneval", "judge", "mbpp"]

Form = Literal["plain", "boxed", "weak"]
_RUN = "run_the_test"


class Answer(Protocol):
    """What a box says to one call."""

    @property
    def status(self) -> str:
        """ "value" where it returned, "raised" where it raised; anything else ends the box."""
        ...

    @property
    def value(self) -> Any:
        """What it returned."""
        ...

    @property
    def error(self) -> str:
        """What went wrong, one line."""
        ...


class Session(Protocol):
    """An open box with a source in it."""

    def ask(self, entry: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Answer:
        """Call a function of the source."""
        ...

    def end(self) -> bool:
        """End it; whether it had nothing more to say."""
        ...


# (source, functions that it may call and that are answered outside) -> a box for a `with` block
Open = Callable[[str, Mapping[str, Callable[..., Any]]], AbstractContextManager[Session]]


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of one problem.

    Args:
        entry: the function in question, as the code names it.
        called: the name by which the tests call it.
        body: the statements of the tests.
        before: a program that defines what the tests use, where they run in a box.
        names: what `before` and Python define; a test that uses other names is weak.
    """

    entry: str
    called: str
    body: tuple[ast.stmt, ...]
    before: str
    names: frozenset[str]

    @property
    def names_of_code(self) -> frozenset[str]:
        """The names by which a test may call the function in question."""
        return frozenset((self.entry, self.called))


def humaneval(prompt: str, test: str, entry: str) -> Tests:
    """Tests in HumanEval's form: a program that defines `check(candidate)`; it may use what the prompt defines.

    Raises:
        SyntaxError: the prompt or the test is no Python.
        ValueError: no function `check` of one argument.
    """
    tree = ast.parse(test)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            rest = [part for part in tree.body if part is not node]
            before = ast.unparse(ast.Module([*_without(prompt, entry), *rest], []))
            return Tests(entry, node.args.args[0].arg, tuple(node.body), before, _defined(before))
    raise ValueError(f"no function check(candidate) in {test[:80]!r}")


def _without(program: str, entry: str) -> list[ast.stmt]:
    """The statements of a program but the function in question, of which a prompt has the head alone."""
    body = ast.parse(program).body
    return [node for node in body if not (isinstance(node, ast.FunctionDef) and node.name == entry)]


def mbpp(asserts: str, *, imports: str = "", entry: str = "") -> Tests:
    """Tests in MBPP's form: asserts that call the function by its own name, and imports.

    Args:
        entry: the function's name; "": the one name that the asserts call and nobody defines.

    Raises:
        SyntaxError: no Python.
        ValueError: no entry is given, and the asserts call several unknown names, or none.
    """
    body = tuple(ast.parse(asserts).body)
    names = _defined(imports)
    if not entry:
        called = {
            node.func.id
            for part in body
            for node in ast.walk(part)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        } - names
        if len(called) != 1:
            raise ValueError(f"the asserts call {sorted(called) or 'nothing'}, not one function")
        entry = called.pop()
    return Tests(entry, entry, body, imports, names)


def _defined(program: str) -> frozenset[str]:
    """The names at the top level of a program, and Python's own."""
    found = set(dir(builtins))
    for node in ast.parse(program).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            found.update(_stored(node))
    return frozenset(found)


def _stored(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def form(tests: Tests) -> Form:
    """How the tests can be run."""
    if _plain(tests) is not None:
        return "plain"
    stored = {name for part in tests.body for name in _stored(part)}
    stored |= {node.arg for part in tests.body for node in ast.walk(part) if isinstance(node, ast.arg)}
    stored |= {name for part in tests.body for name in _defined(ast.unparse(part))}
    return "boxed" if _used(tests) <= stored | tests.names | tests.names_of_code else "weak"


def _used(tests: Tests) -> set[str]:
    return {node.id for part in tests.body for node in ast.walk(part) if isinstance(node, ast.Name)}


_Calls = list[tuple[ast.Call, tuple[Any, ...], dict[str, Any]]]


def _plain(tests: Tests) -> list[tuple[ast.expr, _Calls]] | None:
    """The asserts with their calls; None where they are more than that."""
    found: list[tuple[ast.expr, _Calls]] = []
    for statement in tests.body:
        if isinstance(statement, ast.Pass) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        if not isinstance(statement, ast.Assert):
            return None
        try:
            found.append((statement.test, list(calls_in(statement.test, tests.names_of_code))))
        except (Unsupported, *FAILURES):
            return None
    return found


def judge(source: str, tests: Tests, open_box: Open) -> Grade:
    """Whether the code passes its tests.

    Args:
        source: the code, whole.
        tests: from `humaneval` or `mbpp`.
        open_box: opens a fresh box for a source.

    Returns:
        `correct` is None where the tests are weak, or where they have no call of the code; `why` says what failed.
    """
    if not tests.names_of_code & _used(tests):
        return Grade(None, why="weak: the tests never call the code")
    plain = _plain(tests)
    if plain is not None:
        return _judge_plain(source, tests, plain, open_box=open_box)
    if form(tests) == "weak":
        return Grade(None, why="weak: the tests need names that only the code defines")
    return _judge_boxed(source, tests, open_box)


def _judge_plain(source: str, tests: Tests, asserts: list[tuple[ast.expr, _Calls]], *, open_box: Open) -> Grade:
    why = ""
    with open_box(source, {}) as box:
        for test, calls in asserts:
            returned = {}
            for node, args, kwargs in calls:
                answer = box.ask(tests.entry, args, kwargs)
                if answer.status != "value":
                    return Grade(False, why=f"{ast.unparse(node)[:200]}: {answer.status}: {answer.error}")
                returned[node] = answer.value
            why = _failure(test, returned)
            if why:
                return Grade(False, why=why)
        if not box.end():
            return Grade(False, why="malformed: more answers than calls")
    return Grade(True)


def _failure(test: ast.expr, returned: Mapping[ast.Call, Any]) -> str:
    """Why an assert fails; "" where it holds."""
    try:
        holds = bool(evaluate(test, returned))
    except FAILURES as error:
        return f"{ast.unparse(test)[:200]}: {type(error).__name__}: {shown(error, str)}"
    if holds:
        return ""
    got = ", ".join(map(shown, returned.values()))
    return f"{ast.unparse(test)[:200]}: returned {got}"


def _judge_boxed(source: str, tests: Tests, open_box: Open) -> Grade:
    body = ast.unparse(ast.Module(list(tests.body), []))
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    program = f"{tests.before}\ndef {_RUN}():\n{lines}    return True\n"
    lost: list[str] = []
    with open_box(source, {}) as code:

        def candidate(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Answer:
            answer = code.ask(tests.entry, args, kwargs)
            if answer.status not in ("value", "raised"):
                lost.append(f"{answer.status}: {answer.error}")
            return answer

        with open_box(program, dict.fromkeys(tests.names_of_code, candidate)) as box:
            answer = box.ask(_RUN)
        if lost:
            return Grade(False, why=lost[0])
        if answer.status != "value" or answer.value is not True:
            return Grade(False, why=f"the test: {answer.status}: {answer.error}")
        if not code.end():
            return Grade(False, why="malformed: more answers than calls")
    return Grade(True)
