"""Lists every message that the package raises or warns with: its place, its exception and its template as source text.

python tools/list_messages.py [--json] [--grep PATTERN] [FOLDER_OR_FILE ...]

A message is the call of an exception class or of a helper behind `raise`, an exception or a `Problem` that is built
anywhere else, and the call of `warnings.warn` or of a logger's `warning` or `error`. Fields are shown as they stand in
the source; where an argument is a local name, the texts that the function assigns to it follow after a bar.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "evolvent"
HELPERS = {"_check_settings"}  # they build a Problem from each (is wrong, setting, message)
LOG_METHODS = {"warning", "error", "exception", "critical"}
Literals = tuple[str, ...]
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Bindings = dict[str, list[ast.expr]]


@dataclass(frozen=True, slots=True)
class Message:
    """One message: file and line of its call, the exception class or function, its source, and its literal texts."""

    file: str
    line: int
    exception: str
    template: str
    literals: Literals

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.exception}: {self.template}"


def list_messages(paths: Iterable[Path] = (PACKAGE,)) -> list[Message]:
    """Returns the messages of all Python files below `paths`, by file and line."""
    files = sorted({file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))})
    nodes = {file: _read_nodes(file) for file in {*PACKAGE.rglob("*.py"), *files}}
    classes = _exception_classes(definition for read in nodes.values() for definition in read.classes)
    return [message for file in files for message in _list_file(file, nodes[file], classes)]


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a file that messages are found by: its classes, what is raised, and each call with the innermost
    function around it.
    """

    classes: list[ast.ClassDef]
    raised: set[int]
    calls: list[tuple[ast.Call, Function | None]]


@cache
def _read_nodes(file: Path) -> _Nodes:
    nodes = _Nodes([], set(), [])
    waiting: list[tuple[ast.AST, Function | None]] = [(ast.parse(file.read_text(encoding="utf-8"), str(file)), None)]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, ast.Call):
            nodes.calls.append((node, function))
        elif isinstance(node, ast.Raise):
            nodes.raised.add(id(node.exc))
        elif isinstance(node, ast.ClassDef):
            nodes.classes.append(node)
        elif isinstance(node, Function):
            function = node
        waiting += [(child, function) for child in ast.iter_child_nodes(node)]
    nodes.calls.sort(key=lambda call: (call[0].lineno, call[0].col_offset))
    return nodes


def _exception_classes(definitions: Iterable[ast.ClassDef]) -> frozenset[str]:
    """Returns the names of all exception classes: the built-in ones and those that the files derive from them."""
    names = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    names |= {"HTTPException", "Problem", "ArgumentTypeError"}
    bases = {node.name: {_last_name(base) for base in node.bases} for node in definitions}
    while new := {name for name, parents in bases.items() if parents & names} - names:
        names |= new
    return frozenset(names)


def _list_file(file: Path, nodes: _Nodes, classes: frozenset[str]) -> Iterator[Message]:
    bindings: dict[Function | None, Bindings] = {None: {}}
    for call, function in nodes.calls:
        name = _last_name(call.func)
        if (id(call) in nodes.raised or name in classes | HELPERS or _is_warning(call.func)) and (
            call.args or call.keywords
        ):
            template = ", ".join(
                [ast.unparse(argument) for argument in call.args]
                + [f"{keyword.arg or '**'}={ast.unparse(keyword.value)}" for keyword in call.keywords]
            )
            if function is not None and function not in bindings:
                bindings[function] = _read_bindings(function)
            sources = _assigned_sources(call, bindings[function], classes)
            literals = [text for node in (*_arguments(call), *sources.values()) for text in _literals(node)]
            template += "".join(f" | {source}" for source in sources)
            where = file.relative_to(ROOT) if ROOT in file.parents else file
            yield Message(where.as_posix(), call.lineno, name, template, tuple(dict.fromkeys(literals)))


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)


def _read_bindings(function: Function) -> Bindings:
    """Returns the local names of a function with all values that it assigns to them."""
    bindings: Bindings = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            pairs: list[tuple[ast.expr, ast.expr | None]] = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = [(node.target, node.iter)]
        else:
            continue
        for target, value in pairs:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and value is not None:
                    bindings.setdefault(name.id, []).append(value)
    return bindings


def _assigned_sources(call: ast.Call, bindings: Bindings, classes: frozenset[str]) -> dict[str, ast.expr]:
    """Returns the texts behind the local names in the arguments of the call, as `name = source`."""
    sources: dict[str, ast.expr] = {}
    seen: set[str] = set()
    waiting = list(_arguments(call))
    while waiting:
        names = {node.id: None for node in ast.walk(waiting.pop()) if isinstance(node, ast.Name)}
        for name in [name for name in names if name not in seen]:
            seen.add(name)
            for value in bindings.get(name, ()):
                if isinstance(value, ast.Name):
                    waiting.append(value)
                elif any(" " in text for text in _literals(value)) and not _builds_message(value, classes):
                    sources[f"{name} = {ast.unparse(value)}"] = value
    return sources


def _builds_message(value: ast.expr, classes: frozenset[str]) -> bool:
    return any(isinstance(node, ast.Call) and _last_name(node.func) in classes for node in ast.walk(value))


def _last_name(node: ast.expr) -> str:
    """Returns the last part of a dotted name: `warn` of `warnings.warn`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def _is_warning(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr != "warn" and function.attr not in LOG_METHODS:
        return False
    owner = ast.unparse(function.value)
    return (owner == "warnings" and function.attr == "warn") or (
        "log" in owner.lower() and function.attr in LOG_METHODS
    )


def _literals(node: ast.AST) -> Iterator[str]:
    """Yields the texts of an expression as a reader sees them, each field of an f-string being `{}`."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _literals(part.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _literals(child)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the messages, one a line or as a JSON array; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE], help="files or folders, default: the package")
    parser.add_argument("--json", action="store_true", help="print a JSON array of objects")
    parser.add_argument("--grep", metavar="PATTERN", help="only messages whose line matches this regular expression")
    args = parser.parse_args(argv)
    messages = list_messages([path.resolve() for path in args.paths])
    if args.grep:
        messages = [message for message in messages if re.search(args.grep, str(message))]
    if args.json:
        json.dump([asdict(message) for message in messages], sys.stdout, indent=1)
        print()
    else:
        for message in messages:
            print(message)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
