"""Applies tables of renames and docstrings to a checkout; see tables.py for their form.

    python tools/renames/apply.py tools/renames/tables/*.txt --server "pyright-langserver --stdio" [--log FILE] [--dry]

Names of one file are resolved by scopes.py. Attributes and keywords of calls are resolved by a language server
(pyright),
asked for the definition of each occurrence; what it cannot type is renamed where only one meaning is left, and listed
in
the log otherwise. Entries whose scope or name is gone are skipped, so the program may be run again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict, deque
from concurrent.futures import Future
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from logging import Logger
from pathlib import Path
from queue import Queue
from random import Random
from socket import socket
from sqlite3 import Connection
from subprocess import CompletedProcess, Popen
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).parent))
from scopes import Definition, Function, Source, Span
from tables import Entry, owned, parse_table

FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
Place = tuple[str, Span]
LINE_WIDTH = 120
_OUTSIDE_TYPES: tuple[type, ...] = (
    *(str, bytes, int, float, list, tuple, dict, set, type, Path, Counter, deque, Random, Logger, Thread, Event),
    *(Queue, Popen, CompletedProcess, Connection, Future, re.Pattern, re.Match, datetime, Fraction, Decimal, ast.AST),
    *(argparse.ArgumentParser, argparse.Namespace, socket),
)
_OUTSIDE_NAMES = {name for outside in _OUTSIDE_TYPES for name in dir(outside)} | {
    "all",
    "quick",
    "empty",
    "view",
    "door",
}


class LanguageServer:
    """A language server over standard input and output; answers where a name is defined."""

    def __init__(self, command: str, root: Path) -> None:
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._number, self._root = 0, root
        folder = {"uri": f"file://{root}", "name": root.name}
        capabilities = {"workspace": {"configuration": True, "workspaceFolders": True}}
        self._request(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": folder["uri"],
                "capabilities": capabilities,
                "workspaceFolders": [folder],
            },
        )
        self._notify("initialized", {})

    def open(self, path: str, text: str) -> None:
        """Opens a document."""
        document = {"uri": f"file://{self._root}/{path}", "languageId": "python", "version": 1, "text": text}
        self._notify("textDocument/didOpen", {"textDocument": document})

    def close(self, path: str) -> None:
        """Closes a document."""
        self._notify("textDocument/didClose", {"textDocument": {"uri": f"file://{self._root}/{path}"}})

    def definitions(self, path: str, line: int, character: int) -> list[tuple[str, int, int]]:
        """Returns (path, 0-based line, UTF-16 column) of every definition of the name at a position."""
        where = {
            "textDocument": {"uri": f"file://{self._root}/{path}"},
            "position": {"line": line, "character": character},
        }
        rows = self._request("textDocument/definition", where) or []
        found = []
        for row in rows if isinstance(rows, list) else [rows]:
            uri = unquote(row["uri"]).removeprefix(f"file://{self._root}/")
            found.append((uri, row["range"]["start"]["line"], row["range"]["start"]["character"]))
        return found

    def hover(self, path: str, line: int, character: int) -> str:
        """Returns the server's description of the name at a position, its type included."""
        where = {
            "textDocument": {"uri": f"file://{self._root}/{path}"},
            "position": {"line": line, "character": character},
        }
        row = self._request("textDocument/hover", where)
        contents = row["contents"] if row else ""
        return str(contents.get("value", "") if isinstance(contents, dict) else contents)

    def stop(self) -> None:
        """Ends the server."""
        self._process.kill()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps(message).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _notify(self, method: str, params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _request(self, method: str, params: Any) -> Any:
        self._number += 1
        number = self._number
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == number and "method" not in message:
                return message.get("result")
            if "method" in message and "id" in message:
                count = len(message["params"].get("items", ())) if message["method"] == "workspace/configuration" else 0
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": [{}] * count or None})

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while (line := self._process.stdout.readline()) != b"\r\n":
            if not line:
                raise RuntimeError("the language server ended")
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message


class Renamer:
    """Collects edits over a whole checkout and writes them at once."""

    def __init__(self, root: Path, entries: list[Entry]) -> None:
        self.root, self.entries = root, entries
        self.sources = {
            str(path.relative_to(root)): Source(path.read_text(encoding="utf-8"))
            for folder in FOLDERS
            for path in sorted((root / folder).rglob("*.py"))
            if "fixtures" not in path.parts
        }
        self.edits: dict[str, dict[Span, tuple[str, str]]] = defaultdict(dict)
        self.texts: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # byte offsets, replacement
        self.targets: dict[Place, str] = {}  # where a renamed member, parameter or global is defined
        self.members: dict[str, set[str | None]] = defaultdict(set)  # old member name -> new names (None: stays)
        self.keywords: dict[tuple[str, str], set[str | None]] = defaultdict(set)  # (callable, old parameter) -> new
        self.log: list[str] = []
        self.field_options: dict[str, set[str | None]] = defaultdict(set)  # field -> new names over all classes
        self.class_members: set[str] = set()  # old names of renamed methods, fields and class attributes
        self.globals: set[str] = set()  # old names of renamed functions, classes and constants of modules
        self.former_fields: dict[str, dict[str, str]] = defaultdict(dict)  # class -> old field -> new field
        self.former_classes: dict[str, str] = {}  # old class -> new class

    # ------------------------------------------------------------------ what the tables say

    def collect(self) -> None:
        """Turns the entries into edits of names and docstrings and into targets for references."""
        by_scope = {(entry.path, entry.scope): entry for entry in self.entries}
        self._spread_over_families(by_scope)
        self._spread_class_attributes(by_scope)
        for entry in [*by_scope.values()]:
            source = self.sources.get(entry.path)
            if source is None:
                self.log.append(f"{entry.path}: no such file")
                continue
            definition = next((d for d in source.definitions if d.name == entry.scope), None)
            if entry.scope and definition is None:
                self.log.append(f"{entry.path}: @ {entry.scope}: no such scope")
                continue
            if entry.new_name and definition is not None:
                self._rename_definition(entry.path, source, definition, entry.new_name)
            for old, new in entry.names.items():
                self._rename_names(entry, source, old, new)
            self._edit_docstring(entry, source, definition)
        self._collect_unrenamed()

    def _rename_definition(self, path: str, source: Source, definition: Definition, new: str) -> None:
        old, outer = definition.name.rpartition(".")[2], definition.name.rpartition(".")[0]
        if old == new:
            return
        homes = [scope for scope in owned(source, outer) if old in scope.bound and scope.kind != "comprehension"]
        for home in homes:
            for span in source.occurrences(home, old):
                self.edits[path][span] = (old, new)
        self.targets[path, definition.span] = new
        is_class = isinstance(definition.node, ast.ClassDef) and path.startswith("src/")
        if is_class and self._has_fields(source, definition.name):
            self.former_classes[old] = new
        if homes and homes[0].kind == "class":
            for span in homes[0].bound[old]:
                self.targets[path, span] = new
            self.members[old].add(new)
            self.class_members.add(old)
        elif not outer:
            self.members[old].add(new)
            self.globals.add(old)
            self._rename_import(path, source, old, new)

    def _rename_names(self, entry: Entry, source: Source, old: str, new: str) -> None:
        homes = [scope for scope in owned(source, entry.scope) if old in scope.bound]
        if not homes:
            self.log.append(f"{entry.path}: @ {entry.scope}: does not bind {old!r}")
            return
        if old == new:
            return
        for home in homes:
            for span in source.occurrences(home, old):
                self.edits[entry.path][span] = (old, new)
            if home.kind == "class":
                for span in home.bound[old]:
                    self.targets[entry.path, span] = new
                self.members[old].add(new)
                self.class_members.add(old)
                self.keywords[entry.scope.rpartition(".")[2], old].add(new)
                if self._has_fields(source, entry.scope) and entry.path.startswith("src/"):
                    self.former_fields[entry.scope.rpartition(".")[2]][old] = new
            elif home.kind == "function" and old in home.parameters:
                for span in home.bound[old]:
                    self.targets[entry.path, span] = new
                self.keywords[_callable_name(entry.scope), old].add(new)
            elif home.kind == "module":
                for span in home.bound[old]:
                    self.targets[entry.path, span] = new
                self.members[old].add(new)
                self.globals.add(old)
                self._rename_import(entry.path, source, old, new)

    def _rename_import(self, path: str, source: Source, old: str, new: str) -> None:
        """Renames a module's global where other files import it, and in `__all__`."""
        module = _module_name(path)
        self._rename_exports(path, source, old, new)
        for other, reader in self.sources.items():
            for imported_module, name, span in reader.imports:
                if name != old or not self._same_module(imported_module, module, old):
                    continue
                self.edits[other][span] = (old, new)
                for scope in reader.scopes():
                    if span in scope.bound.get(old, ()):
                        if scope is reader.module:
                            self._rename_exports(other, reader, old, new)
                        for used in reader.occurrences(scope, old):
                            self.edits[other][used] = (old, new)

    def _same_module(self, imported: str, module: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Says whether a name imported from one module is defined in another, also where modules hand it on."""
        if imported == module:
            return True
        stem = imported.replace(".", "/")
        for path in (f"src/{stem}.py", f"src/{stem}/__init__.py", f"{stem}.py", f"{stem}/__init__.py"):
            source = self.sources.get(path)
            if source is not None and imported not in seen:
                origins = [origin for origin, imported_name, _ in source.imports if imported_name == name]
                return any(self._same_module(origin, module, name, seen | {imported}) for origin in origins)
        return False

    def _rename_exports(self, path: str, source: Source, old: str, new: str) -> None:
        """Renames a global in the `__all__` of its module."""
        for line, text in enumerate(source.lines, 1):
            for match in re.finditer(rb'"(%s)"' % re.escape(old.encode()), text):
                if self._in_exports(source, line):
                    self.edits[path][Span(line, match.start(1))] = (old, new)

    def _in_exports(self, source: Source, line: int) -> bool:
        return any(
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id in ("__all__", "_HOMES") for t in node.targets)
            and node.lineno <= line <= (node.end_lineno or 0)
            for node in source.tree.body
        )

    def _has_fields(self, source: Source, scope: str) -> bool:
        """Says whether a class is a configuration or a dataclass, whose fields are part of identities."""
        node = next((d.node for d in source.definitions if d.name == scope), None)
        if not isinstance(node, ast.ClassDef):
            return False
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            return True
        names, todo = set(), [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        while todo:
            name = todo.pop()
            if name not in names:
                names.add(name)
                todo += [base for _, _, bases in self._classes().get(name, ()) for base in bases]
        return bool(names & {"Config", "BaseModel"})

    def write_former_names(self) -> None:
        """Adds the renamed classes and fields to `former_names.py`, under their present names."""
        path = self.root / "src/evolvent/former_names.py"
        text = path.read_text(encoding="utf-8")
        tables = {
            node.target.id: ast.literal_eval(node.value)
            for node in ast.parse(text).body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        }
        classes, fields = dict(tables["FORMER_CLASSES"]), {k: dict(v) for k, v in tables["FORMER_FIELDS"].items()}
        for old, new in self.former_classes.items():
            classes[new] = classes.pop(old, old)
            if old in fields:
                fields[new] = fields.pop(old)
        for old_class, renames in self.former_fields.items():
            row = fields.setdefault(self.former_classes.get(old_class, old_class), {})
            for old, new in renames.items():
                row[new] = row.pop(old, old)
        for name, value in (("FORMER_CLASSES", classes), ("FORMER_FIELDS", fields)):
            literal = json.dumps(value, indent=4, sort_keys=True)
            pattern = re.compile(rf'^({name}: [^=]+ = )\{{.*?\}}\n(?=""")', re.MULTILINE | re.DOTALL)
            text = pattern.sub(lambda match, literal=literal: f"{match[1]}{literal}\n", text)
        path.write_text(text, encoding="utf-8")

    # ------------------------------------------------------------------ families of classes

    def _classes(self) -> dict[str, list[tuple[str, Definition, list[str]]]]:
        """Returns every class by its last name: (path, definition, last names of its bases)."""
        if not hasattr(self, "_class_table"):
            table: dict[str, list[tuple[str, Definition, list[str]]]] = defaultdict(list)
            for path, source in self.sources.items():
                for definition in source.definitions:
                    if isinstance(definition.node, ast.ClassDef):
                        bases = []
                        for base in definition.node.bases:
                            base = base.value if isinstance(base, ast.Subscript) else base
                            bases.append(base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", ""))
                        table[definition.name.rpartition(".")[2]].append((path, definition, bases))
            self._class_table = table
        return self._class_table

    def _heirs(self, path: str, name: str) -> list[tuple[str, Definition]]:
        """Returns the classes that derive from a class, and those that have all methods of a Protocol."""
        rows = [row for group in self._classes().values() for row in group]
        short, heirs, known = name.rpartition(".")[2], [], {name.rpartition(".")[2]}
        grown = True
        while grown:
            grown = False
            for _, definition, bases in rows:
                last = definition.name.rpartition(".")[2]
                if last not in known and known & set(bases):
                    known.add(last)
                    grown = True
        heirs = [(other, d) for other, d, bases in rows if known & set(bases)]
        mine = next((d for other, d, _ in rows if other == path and d.name == name), None)
        bases = next((b for other, d, b in rows if other == path and d.name == name), [])
        if mine is not None and "Protocol" in bases:
            methods = {n.name for n in mine.node.body if isinstance(n, Function)}  # type: ignore[attr-defined]
            for other, definition, _ in rows:
                theirs = self._all_methods(definition.name.rpartition(".")[2])
                if methods and methods <= theirs and (other, definition) not in heirs and definition is not mine:
                    heirs.append((other, definition))
        return [(other, d) for other, d in heirs if not (other == path and d.name == name) and short]

    def _all_methods(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """Returns the methods of a class, inherited ones included."""
        methods: set[str] = set()
        for _, definition, bases in self._classes().get(name, ()):
            methods |= {n.name for n in definition.node.body if isinstance(n, Function)}  # type: ignore[attr-defined]
            for base in bases:
                if base not in seen:
                    methods |= self._all_methods(base, seen | {name})
        return methods

    def _with_ancestors(self, rows: list[tuple[str, Definition]]) -> list[tuple[str, Definition]]:
        """Returns classes and all classes of the checkout that they derive from."""
        found, todo = list(rows), [d.name.rpartition(".")[2] for _, d in rows]
        seen = set(todo)
        while todo:
            for _, _, bases in self._classes().get(todo.pop(), ()):
                for base in bases:
                    if base not in seen:
                        seen.add(base)
                        todo.append(base)
                        found += [(path, definition) for path, definition, _ in self._classes().get(base, ())]
        return found

    def _spread_over_families(self, by_scope: dict[tuple[str, str], Entry]) -> None:
        """Gives overriding methods the new names, and their parameters those, of the methods that they override."""
        for (path, scope), entry in list(by_scope.items()):
            source = self.sources.get(path)
            outer = scope.rpartition(".")[0]
            node = next((d.node for d in source.definitions if d.name == outer), None) if source else None
            if source is None or not isinstance(node, ast.ClassDef):
                continue
            method = scope.rpartition(".")[2]
            if method in ("__init__", "__post_init__"):
                continue
            parameters = owned(source, scope)[0].parameters if owned(source, scope) else set()
            renamed = {old: new for old, new in entry.names.items() if old in parameters}
            if not entry.new_name and not renamed:
                continue
            for other, definition in self._heirs(path, outer):
                target = f"{definition.name}.{method}"
                heir = self.sources[other]
                if not any(d.name == target for d in heir.definitions):
                    continue
                row = by_scope.setdefault((other, target), Entry(other, target, 0))
                if entry.new_name and row.new_name not in (None, entry.new_name):
                    self.log.append(f"{other}: {target} -> {row.new_name}, but its base says {entry.new_name}")
                row.new_name = entry.new_name or row.new_name
                theirs = owned(heir, target)[0].parameters
                for old, new in renamed.items():
                    if old in theirs:
                        row.names[old] = new

    def _spread_class_attributes(self, by_scope: dict[tuple[str, str], Entry]) -> None:
        """Gives class attributes of related classes, and those that methods set on `self`, the new names."""
        for (path, scope), entry in list(by_scope.items()):
            source = self.sources.get(path)
            mine = next((d for d in source.definitions if d.name == scope), None) if source else None
            if mine is None or not isinstance(mine.node, ast.ClassDef) or not entry.names:
                continue
            for other, definition in [(path, mine), *self._with_ancestors(self._heirs(path, scope))]:
                heir = self.sources[other]
                bound = {name for s in owned(heir, definition.name) if s.kind == "class" for name in s.bound}
                for old, new in list(entry.names.items()):
                    if old in bound and (other, definition.name) != (path, scope):
                        row = by_scope.setdefault((other, definition.name), Entry(other, definition.name, 0))
                        row.names.setdefault(old, new)
                    self._rename_self_attribute(other, heir, definition, old, new)

    def _rename_self_attribute(self, path: str, source: Source, definition: Definition, old: str, new: str) -> None:
        start, end = definition.node.lineno, definition.node.end_lineno  # type: ignore[attr-defined]
        for name, span, node in source.attributes:
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if name == old and is_self and isinstance(node.ctx, ast.Store) and start <= span.line <= end:
                self.edits[path][span] = (old, new)
                self.targets[path, span] = new

    def _collect_unrenamed(self) -> None:
        """Notes members and parameters of the package that keep a name which elsewhere is renamed."""
        for path, source in self.sources.items():
            if not path.startswith("src/"):
                continue
            for scope in source.scopes():
                for name, spans in scope.bound.items():
                    if scope.kind == "class":
                        self.field_options[name].add(self.targets.get((path, spans[0])))
                    if any((path, span) in self.targets for span in spans):
                        continue
                    if scope.kind in ("class", "module") and name in self.members:
                        self.members[name].add(None)
                    if scope.kind == "class" and (scope.owner.rpartition(".")[2], name) in self.keywords:
                        self.keywords[scope.owner.rpartition(".")[2], name].add(None)
                    if scope.kind == "function" and name in scope.parameters:
                        key = (_callable_name(scope.owner), name)
                        if key in self.keywords:
                            self.keywords[key].add(None)
            for name, _, node in source.attributes:
                if name in self.members and isinstance(node.ctx, ast.Store):
                    self.members[name].add(None)

    # ------------------------------------------------------------------ docstrings

    def _edit_docstring(self, entry: Entry, source: Source, definition: Definition | None) -> None:
        node: Any = definition.node if definition is not None else source.tree
        old = ast.get_docstring(node, clean=True)
        renamed = dict(entry.names)
        text = entry.docstring if entry.docstring is not None else old
        if entry.docstring is not None:
            text = textwrap.dedent(entry.docstring).strip()
        elif entry.summary is not None and old is not None:
            _, blank, rest = old.partition("\n\n")
            text = entry.summary + (blank + rest if blank else "")
            if not blank and re.search(r"\n(Args|Returns|Raises|Yields):", old):
                text = entry.summary + "\n\n" + old[re.search(r"\n(Args|Returns|Raises|Yields):", old).start() + 1 :]  # type: ignore[union-attr]
        elif entry.summary is not None:
            text = entry.summary
        if text is None:
            return
        if entry.docstring is None:
            text = _rename_mentions(text, renamed)
        if text == old:
            return
        indent = "" if not entry.scope else " " * (node.col_offset + 4)
        literal = _literal(text, indent)
        offsets = _offsets(source)
        if old is not None:
            expression = node.body[0]
            start = offsets[expression.lineno - 1] + expression.col_offset
            end = offsets[expression.end_lineno - 1] + expression.end_col_offset
            self.texts[entry.path].append((start, end, literal))
        else:
            first = node.body[0]
            line = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
            start = offsets[line - 1]
            if first.lineno == node.lineno:
                self.log.append(f"{entry.path}: @ {entry.scope}: a body on the line of its head has no docstring")
                return
            self.texts[entry.path].append((start, start, indent + literal + "\n" + ("\n" if not entry.scope else "")))

    # ------------------------------------------------------------------ references

    def resolve_references(self, server: LanguageServer, folders: tuple[str, ...] = FOLDERS) -> None:
        """Asks the server for the definition of every attribute and keyword that may be renamed, in some folders."""
        words = {old for _, old in self.keywords}
        for path, source in self.sources.items():
            if not path.startswith(folders):
                continue
            places: list[tuple[str, Span, ast.AST]] = []
            modules = source.imported_modules()
            for row in source.attributes:
                value = row[2].value
                is_module = isinstance(value, ast.Name) and value.id in modules
                if row[0] in self.members and (is_module or not self._is_global_only(row[0])):
                    places.append(row)
            calls = [row for row in source.keywords if row[0] in words]
            if not places and not calls:
                continue
            server.open(path, source.text)
            for name, span, node in places:
                self._resolve(server, path, source, name, span, self.members[name], ast.unparse(node))
            for name, span, call in calls:
                callee = _last_name(call.func)
                options = self.keywords.get((callee, name), set())
                if callee == "replace" and call.args:
                    options = self._field_options(server, path, source, name, call.args[0])
                elif callee == "_replace" and isinstance(call.func, ast.Attribute):
                    options = self._field_options(server, path, source, name, call.func.value)
                self._resolve(server, path, source, name, span, options, f"{callee}({name}=)")
            server.close(path)

    def _field_options(
        self, server: LanguageServer, path: str, source: Source, name: str, value: ast.expr
    ) -> set[str | None]:
        """Returns the new names of a field of the object that `replace` copies; by its type where that is known."""
        line = source.lines[(value.end_lineno or 1) - 1]
        column = (value.end_col_offset or 1) - 1
        shown = server.hover(path, (value.end_lineno or 1) - 1, len(line[:column].decode().encode("utf-16-le")) // 2)
        for class_name in re.findall(r"\b[A-Z]\w+", shown):
            if (class_name, name) in self.keywords:
                return self.keywords[class_name, name]
            if class_name in self._classes():
                return {None}
        return self.field_options.get(name, set())

    def _is_global_only(self, name: str) -> bool:
        return name in self.globals and name not in self.class_members

    def _resolve(
        self,
        server: LanguageServer,
        path: str,
        source: Source,
        name: str,
        span: Span,
        options: set[str | None],
        shown: str,
    ) -> None:
        if span in self.edits[path]:
            return
        before = source.lines[span.line - 1][: span.column].decode()
        found = server.definitions(path, span.line - 1, len(before.encode("utf-16-le")) // 2)
        news = set()
        for where, line, character in found:
            target = self.sources.get(where)
            if target is None:
                news.add(None)
                continue
            text = target.lines[line].decode()
            column = len(text.encode("utf-16-le")[: 2 * character].decode("utf-16-le").encode())
            news.add(self.targets.get((where, Span(line + 1, column))))
        outside = found and all(where not in self.sources for where, _, _ in found)
        is_copy = shown.startswith(("replace(", "_replace("))
        if found and not (outside and is_copy):
            if len(news) == 1:
                new = news.pop()
            else:
                new = next(iter(news - {None})) if len(news - {None}) == 1 else None
                self.log.append(f"{path}:{span.line}: {shown}: definitions disagree, took {new}")
        elif len(options) == 1 and not (name in _OUTSIDE_NAMES and shown.endswith(f".{name}")):
            new = next(iter(options))
        else:
            if options:
                self.log.append(f"{path}:{span.line}: {shown}: unresolved, one of {sorted(map(str, options))}")
            return
        if new is not None and new != name:
            self.edits[path][span] = (name, new)

    def rename_strings(self) -> None:
        """Renames names handed to setattr, getattr, hasattr, delattr and attrgetter as literal strings."""
        for path, source in self.sources.items():
            for node in ast.walk(source.tree):
                if not isinstance(node, ast.Call) or _last_name(node.func) not in (
                    "setattr",
                    "getattr",
                    "hasattr",
                    "delattr",
                    "attrgetter",
                    "delitem",
                ):
                    continue
                for argument in node.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        last = argument.value.rpartition(".")[2]
                        options = self.members.get(last, set())
                        if len(options) == 1:
                            new = next(iter(options))
                            column = argument.col_offset + 1 + len(argument.value.encode()) - len(last.encode())
                            if new is not None:
                                self.edits[path][Span(argument.lineno, column)] = (last, new)
                        elif options:
                            self.log.append(f"{path}:{node.lineno}: string {argument.value!r}: one of {options}")

    def rename_quoted_annotations(self) -> None:
        """Renames classes in annotations that are written as strings."""
        for path, source in self.sources.items():
            renamed = {old: new for (old, new) in set(self.edits.get(path, {}).values()) if old[:1].isupper()}
            if not renamed:
                continue
            offsets = _offsets(source)
            for node in ast.walk(source.tree):
                if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                    continue
                if not re.fullmatch(r"[\w.]+(?:(?: \| |\[|, )[\w.\]]+)+", node.value):
                    continue
                text = re.sub(r"\w+", lambda match, renamed=renamed: renamed.get(match[0], match[0]), node.value)
                if text != node.value and node.lineno == node.end_lineno:
                    start = offsets[node.lineno - 1] + node.col_offset + 1
                    self.texts[path].append((start, start + len(node.value.encode()), text))

    # ------------------------------------------------------------------ writing

    def write(self) -> int:
        """Writes all edits; returns the number of renamed occurrences."""
        count = 0
        for path, source in self.sources.items():
            offsets = _offsets(source)
            changes = list(self.texts.get(path, ()))
            for span, (old, new) in self.edits.get(path, {}).items():
                start = offsets[span.line - 1] + span.column
                written = source.lines[span.line - 1][span.column : span.column + len(old.encode())].decode()
                if written != old:
                    self.log.append(f"{path}:{span.line}: expected {old!r}, got {written!r}")
                    continue
                changes.append((start, start + len(old.encode()), new))
                count += 1
            if not changes:
                continue
            data = b"".join(source.lines)
            for start, end, text in sorted(changes, reverse=True):
                data = data[:start] + text.encode() + data[end:]
            try:
                ast.parse(data)
            except SyntaxError as error:
                self.log.append(f"{path}: would not parse: {error}")
                Path("/".join((str(self.root), path + ".broken"))).write_bytes(data)
                continue
            (self.root / path).write_bytes(data)
        return count


def _callable_name(scope: str) -> str:
    """Returns the name by which a function is called: that of the class for `__init__`."""
    outer, _, last = scope.rpartition(".")
    return outer.rpartition(".")[2] if last in ("__init__", "__new__", "__call__") and outer else last


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _module_name(path: str) -> str:
    parts = list(Path(path).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _offsets(source: Source) -> list[int]:
    offsets, total = [], 0
    for line in source.lines:
        offsets.append(total)
        total += len(line)
    return offsets


def _rename_mentions(text: str, renamed: dict[str, str]) -> str:
    for old, new in renamed.items():
        text = re.sub(rf"`{re.escape(old)}`", f"`{new}`", text)
        text = re.sub(rf"(?m)^(\s+(?:\w+, )*){re.escape(old)}((?:, \w+)*: )", rf"\1{new}\2", text)
        text = re.sub(rf"(?<=\. ){re.escape(old)}(?=: [\[`a-z])", new, text)
    return text


def _literal(text: str, indent: str) -> str:
    """Returns a docstring literal whose paragraphs of the summary are wrapped to the line width."""
    first, blank, rest = text.partition("\n\n")
    width = LINE_WIDTH - len(indent) - 3  # the closing quotes
    if "\n" not in first and len(first) + 3 > width:
        first = textwrap.fill(first, width=width, initial_indent="...", break_long_words=False, break_on_hyphens=False)[
            3:
        ]
    body = first + blank + rest
    lines = body.splitlines()
    raw = "r" if "\\" in body else ""
    if len(lines) == 1:
        closing = " " if body.endswith('"') else ""
        return f'{raw}"""{body}{closing}"""'
    return (
        f'{raw}"""'
        + "\n".join([lines[0], *[(indent + line if line.strip() else "") for line in lines[1:]]])
        + f'\n{indent}"""'
    )


def main(argv: list[str] | None = None) -> int:
    """Applies tables; prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--server", default="pyright-langserver --stdio")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--folders", nargs="*", help="where references are resolved; everywhere when left out")
    parser.add_argument("--dry", action="store_true", help="resolve everything, write nothing but the log")
    options = parser.parse_args(argv)
    entries = [e for path in options.tables for e in parse_table(path.read_text(encoding="utf-8"), str(path))]
    renamer = Renamer(options.root.resolve(), entries)
    renamer.collect()
    folders = tuple(options.folders or FOLDERS)
    server = LanguageServer(options.server, options.root.resolve())
    try:
        renamer.resolve_references(server, folders)
    finally:
        server.stop()
    renamer.rename_strings()
    renamer.rename_quoted_annotations()
    count = sum(map(len, renamer.edits.values())) if options.dry else renamer.write()
    if options.log:
        options.log.write_text("\n".join(renamer.log) + "\n", encoding="utf-8")
    if not options.dry:
        renamer.write_former_names()
    documents = sum(map(len, renamer.texts.values()))
    print(f"{len(entries)} scopes, {count} names, {documents} docstrings, {len(renamer.log)} notes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
