"""Reads and checks tables of renames and docstrings; `sheet` prints what a folder still needs.

    python tools/renames/tables.py sheet src/evolvent/engine        # vague names, participles, docstrings without a
    verb
    python tools/renames/tables.py check tools/renames/tables/engine.txt

A table:

    == src/evolvent/engine/local.py
    @ LocalEngine.told -> error_message     the scope; with an arrow the function, method or class itself is renamed
    found -> tickets                        a parameter, local name (function) or field, class attribute (class)
    = Submits asks and returns their tickets.      replaces the first paragraph of the docstring
    @                                       the module: its constants, and its docstring

A whole docstring stands between two lines of three double quotes instead of `=`.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import keyword
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
from scopes import Scope, Source  # noqa: E402

from benchmarks.house_language import PARTICIPLES, QUESTION_WORDS, VAGUE_NAMES, is_verb  # noqa: E402


@dataclass
class Entry:
    """What a table says of one scope of one file."""

    path: str
    scope: str
    line: int
    new_name: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    summary: str | None = None
    docstring: str | None = None


def parse_table(text: str, where: str = "table") -> list[Entry]:
    """Reads a table.

    Raises:
        ValueError: a line of no known form; names the line.
    """
    entries: list[Entry] = []
    path, lines, number = "", text.splitlines(), 0
    while number < len(lines):
        line = lines[number].rstrip()
        number += 1
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("== "):
            path = stripped[3:].strip()
        elif stripped.startswith("@"):
            scope, _, new = stripped[1:].partition("->")
            entries.append(Entry(path, scope.strip(), number, new.strip().rpartition(".")[2] or None))
        elif stripped == '"""':
            start = number
            while lines[number].strip() != '"""':
                number += 1
            entries[-1].docstring = "\n".join(lines[start:number])
            number += 1
        elif stripped.startswith("= "):
            entries[-1].summary = stripped[2:].strip()
        elif "->" in stripped and entries:
            old, _, new = stripped.partition("->")
            entries[-1].names[old.strip()] = new.strip()
        else:
            raise ValueError(f"{where}:{number}: expected '==', '@', '=', 'old -> new' or a docstring, got {line!r}")
    return entries


def owned(source: Source, owner: str) -> list[Scope]:
    """Returns the scopes of a function, class or module: itself, and the comprehensions and lambdas in it."""
    return [scope for scope in source.scopes() if scope.owner == owner]


def check_entry(entry: Entry, source: Source) -> list[str]:
    """Returns what is wrong with an entry, one sentence each."""
    known = {definition.name for definition in source.definitions}
    if entry.scope and entry.scope not in known:
        return [f"unknown scope {entry.scope!r}"]
    problems = []
    scopes = owned(source, entry.scope)
    inside = [s for s in source.scopes() if s.owner == entry.scope or s.owner.startswith(entry.scope + ".")]
    for old, new in entry.names.items():
        binders = [scope for scope in scopes if old in scope.bound]
        if not binders:
            problems.append(f"{entry.scope or 'module'} does not bind {old!r}")
            continue
        if not new.isidentifier() or keyword.iskeyword(new):
            problems.append(f"{new!r} is not a name")
        if binders[0].kind != "class" and new not in entry.names and old != new:
            for scope in inside:
                if new in scope.bound or new in scope.used:
                    problems.append(f"{entry.scope or 'module'}: {new!r} is used there already (for {old!r})")
                    break
        if new in dir(builtins) and binders[0].kind != "class":
            problems.append(f"{entry.scope}: {new!r} hides a builtin (for {old!r})")
    kept = list(entry.names.values())
    for new in {name for name in kept if kept.count(name) > 1}:
        olds = [old for old, value in entry.names.items() if value == new]
        homes = [{id(scope) for scope in scopes if old in scope.bound} for old in olds]
        if any(a & b for i, a in enumerate(homes) for b in homes[i + 1 :]):
            problems.append(f"{entry.scope}: {olds} would all become {new!r}")
    for text in (entry.summary, entry.docstring):
        if text is not None and not is_verb_first(text, entry.scope, known, source):
            problems.append(f"{entry.scope}: the docstring does not begin with a verb: {text.strip()[:40]!r}")
    return problems


def is_verb_first(text: str, scope: str, known: set[str], source: Source) -> bool:
    """Says whether a function's docstring opens with a verb by the house's measure of language."""
    node = next((d.node for d in source.definitions if d.name == scope), None)
    if isinstance(node, ast.ClassDef) or node is None:
        return True
    return is_verb(text.split()[0])


def needs(source: Source) -> list[tuple[str, list[str], bool, str]]:
    """Returns (scope, vague names, is a participle, opening of a docstring without a verb) of every scope with a
    need.
    """
    nodes = {"": source.tree, **{d.name: d.node for d in source.definitions}}
    rows = []
    for owner, node in nodes.items():
        vague = set()
        for scope in owned(source, owner):
            if scope.kind == "lambda":
                continue
            vague |= {name for name in scope.bound if name in VAGUE_NAMES and _is_variable(scope, name, source)}
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        participle = is_function and node.name.strip("_") in PARTICIPLES
        doc, opening = ast.get_docstring(node), ""  # type: ignore[arg-type]
        if doc and doc.split():
            word = doc.split()[0].strip("`.,:;")
            if (is_function and not is_verb(word)) or word in QUESTION_WORDS:
                opening = " ".join(doc.split()[:6])
        if vague or participle or opening:
            rows.append((owner, sorted(vague), participle, opening))
    return rows


def _is_variable(scope: Scope, name: str, source: Source) -> bool:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    child = {d.name.rpartition(".")[2] for d in source.definitions if d.name.rpartition(".")[0] == scope.owner}
    return name in scope.parameters or (name not in imported and name not in child)


def main(argv: list[str] | None = None) -> int:
    """Prints a sheet or checks tables; returns 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("sheet", "check"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args(argv)
    if options.verb == "sheet":
        for folder in options.paths:
            for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
                rows = needs(Source(path.read_text(encoding="utf-8")))
                if rows:
                    print(f"== {path}")
                for scope, vague, participle, opening in rows:
                    marks = [*vague, *(["RENAME"] if participle else []), *([f"DOC {opening!r}"] if opening else [])]
                    print(f"@ {scope}  | {'  '.join(marks)}")
        return 0
    wrong = 0
    for table in options.paths:
        done: dict[str, list[Entry]] = {}
        for entry in parse_table(table.read_text(encoding="utf-8"), str(table)):
            done.setdefault(entry.path, []).append(entry)
        for path, entries in done.items():
            if not Path(path).exists():
                print(f"{table}: no file {path}")
                wrong += 1
                continue
            source = Source(Path(path).read_text(encoding="utf-8"))
            for entry in entries:
                for problem in check_entry(entry, source):
                    print(f"{table}:{entry.line}: {path}: {problem}")
                    wrong += 1
            by_scope = {entry.scope: entry for entry in entries}
            for scope, vague, participle, opening in needs(source):
                entry = by_scope.get(scope, Entry(path, scope, 0))
                left = [name for name in vague if name not in entry.names]
                left += ["RENAME"] if participle and not entry.new_name else []
                left += ["DOC"] if opening and entry.summary is None and entry.docstring is None else []
                if left:
                    print(f"{path}: @ {scope}: left {' '.join(left)}")
    print(f"{wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
