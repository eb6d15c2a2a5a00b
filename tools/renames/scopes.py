"""Resolves names of a Python file: which binding every occurrence of a name belongs to, with byte-exact positions.

The standard library's `symtable` has no positions and `ast` of Python 3.11 misplaces names inside f-strings, so both
are
done here: scopes by the language's rules, and the expressions of f-strings are parsed from their own text.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, order=True)
class Span:
    """One occurrence of a name: 1-based line and the byte column where it starts."""

    line: int
    column: int


@dataclass(eq=False)
class Scope:
    """One scope. `owner` is the qualified name of the nearest function, class or module around it ("" for the
    module).
    """

    owner: str
    kind: str  # module, class, function, lambda, comprehension
    parent: Scope | None
    node: ast.AST
    bound: dict[str, list[Span]] = field(default_factory=dict)
    used: dict[str, list[Span]] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)
    outer: dict[str, str] = field(default_factory=dict)  # name -> "global" or "nonlocal"
    children: list[Scope] = field(default_factory=list)


@dataclass(eq=False)
class Definition:
    """A function or class: its qualified name, node and the span of its name."""

    name: str
    node: ast.AST
    span: Span


class Source:
    """A parsed file: its scopes, its definitions and the places of attributes and keywords."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.tree = ast.parse(text)
        self.definitions: list[Definition] = []
        self.attributes: list[tuple[str, Span, ast.Attribute]] = []
        self.keywords: list[tuple[str, Span, ast.Call]] = []
        self.imports: list[tuple[str, str, Span]] = []  # (module, name, span of the imported name)
        self._strings = list(_f_strings(self._tokens()))
        self.module = Scope("", "module", None, self.tree)
        for node in self.tree.body:
            self._visit(node, self.module)

    # ------------------------------------------------------------------ scopes

    def scopes(self, scope: Scope | None = None) -> Iterator[Scope]:
        """Yields every scope, outer ones first."""
        scope = scope or self.module
        yield scope
        for child in scope.children:
            yield from self.scopes(child)

    def resolve(self, scope: Scope, name: str) -> Scope | None:
        """Returns the scope that binds a name used in `scope`; None for builtins."""
        current: Scope | None = scope
        if scope.outer.get(name) == "global":
            return self.module if name in self.module.bound else None
        if scope.outer.get(name) == "nonlocal":
            current = scope.parent
        first = True
        while current is not None:
            if name in current.bound and (first or current.kind != "class") and name not in current.outer:
                return current
            first, current = False, current.parent
        return None

    def occurrences(self, owner: Scope, name: str) -> list[Span]:
        """Returns every place where a name that `owner` binds is written."""
        spans = set()
        for scope in self.scopes(owner):
            if self.resolve(scope, name) is owner:
                spans.update(scope.used.get(name, ()))
                spans.update(scope.bound.get(name, ()))
        return sorted(spans)

    def imported_modules(self) -> set[str]:
        """Returns the names of the file that are bound by imports of whole modules, or may be."""
        names = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        return names

    # ------------------------------------------------------------------ visiting

    def _visit(self, node: ast.AST, scope: Scope, shift: tuple[int, int] | None = None) -> None:
        if isinstance(node, Function):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, ast.Lambda):
            inner = self._enter(scope, scope.owner, "lambda", node)
            self._arguments(node.args, scope, inner, shift)
            self._visit(node.body, inner, shift)
        elif isinstance(node, Comprehension):
            self._comprehension(node, scope, shift)
        elif isinstance(node, ast.Name):
            span = self._span(node, shift)
            if isinstance(node.ctx, ast.Load):
                scope.used.setdefault(node.id, []).append(span)
            else:
                self._bind(scope, node.id, span)
        elif isinstance(node, ast.JoinedStr):
            self._joined(node, scope, shift)
        elif isinstance(node, ast.NamedExpr):
            target_scope = scope
            while target_scope.kind == "comprehension" and target_scope.parent is not None:
                target_scope = target_scope.parent
            self._bind(target_scope, node.target.id, self._span(node.target, shift))
            self._visit(node.value, scope, shift)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            kind = "global" if isinstance(node, ast.Global) else "nonlocal"
            for name in node.names:
                scope.outer[name] = kind
                scope.used.setdefault(name, []).extend(self._words(node, name))
        elif isinstance(node, ast.ExceptHandler):
            if node.name:
                scope.bound.setdefault(node.name, []).extend(self._words(node, node.name, limit=1, after=node.type))
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope, shift)
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            name = node.rest if isinstance(node, ast.MatchMapping) else node.name
            if name:
                scope.bound.setdefault(name, []).extend(self._words(node, name, last=True))
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope, shift)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node, scope)
        else:
            if isinstance(node, ast.Attribute) and shift is None:
                end = (node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr.encode()))
                self.attributes.append((node.attr, Span(*end), node))
            elif isinstance(node, ast.Attribute) and shift is not None:
                end_line, end_column = node.end_lineno or 1, (node.end_col_offset or 0) - len(node.attr.encode())
                self.attributes.append((node.attr, _shifted(end_line, end_column, shift), node))
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg:
                        self.keywords.append((keyword.arg, _shifted(keyword.lineno, keyword.col_offset, shift), node))
            for child in ast.iter_child_nodes(node):
                self._visit(child, scope, shift)

    def _enter(self, parent: Scope, owner: str, kind: str, node: ast.AST) -> Scope:
        scope = Scope(owner, kind, parent, node)
        parent.children.append(scope)
        return scope

    def _bind(self, scope: Scope, name: str, span: Span) -> None:
        if name in scope.outer:
            scope.used.setdefault(name, []).append(span)
        else:
            scope.bound.setdefault(name, []).append(span)

    def _qualified(self, scope: Scope, name: str) -> str:
        return f"{scope.owner}.{name}" if scope.owner else name

    def _function(self, node: Function, scope: Scope) -> None:
        span = self._words(node, node.name, limit=1, after_decorators=True)[0]
        name = self._qualified(scope, node.name)
        self.definitions.append(Definition(name, node, span))
        self._bind(scope, node.name, span)
        for decorator in node.decorator_list:
            self._visit(decorator, scope)
        inner = self._enter(scope, name, "function", node)
        self._arguments(node.args, scope, inner, None)
        if node.returns:
            self._visit(node.returns, scope)
        for child in node.body:
            self._visit(child, inner)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        span = self._words(node, node.name, limit=1, after_decorators=True)[0]
        name = self._qualified(scope, node.name)
        self.definitions.append(Definition(name, node, span))
        self._bind(scope, node.name, span)
        for child in (*node.decorator_list, *node.bases, *node.keywords):
            self._visit(child, scope)
        inner = self._enter(scope, name, "class", node)
        for statement in node.body:
            self._visit(statement, inner)

    def _arguments(self, args: ast.arguments, outer: Scope, inner: Scope, shift: tuple[int, int] | None) -> None:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        every += [arg for arg in (args.vararg, args.kwarg) if arg is not None]
        for arg in every:
            inner.parameters.add(arg.arg)
            inner.bound.setdefault(arg.arg, []).append(_shifted(arg.lineno, arg.col_offset, shift))
            if arg.annotation:
                self._visit(arg.annotation, outer, shift)
        for default in (*args.defaults, *(d for d in args.kw_defaults if d is not None)):
            self._visit(default, outer, shift)

    def _comprehension(self, node: Comprehension, scope: Scope, shift: tuple[int, int] | None) -> None:
        inner = self._enter(scope, scope.owner, "comprehension", node)
        for index, generator in enumerate(node.generators):
            self._visit(generator.iter, scope if index == 0 else inner, shift)
            self._visit(generator.target, inner, shift)
            for test in generator.ifs:
                self._visit(test, inner, shift)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._visit(part, inner, shift)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            start = Span(alias.lineno, alias.col_offset)
            if isinstance(node, ast.ImportFrom):
                self.imports.append((node.module or "", alias.name, start))
            if alias.asname:
                column = (alias.end_col_offset or 0) - len(alias.asname.encode())
                self._bind(scope, bound, Span(alias.end_lineno or alias.lineno, column))
            else:
                self._bind(scope, bound, start)

    # ------------------------------------------------------------------ positions

    def _span(self, node: ast.Name, shift: tuple[int, int] | None) -> Span:
        return _shifted(node.lineno, node.col_offset, shift)

    def _words(
        self,
        node: ast.AST,
        name: str,
        *,
        limit: int | None = None,
        last: bool = False,
        after: ast.AST | None = None,
        after_decorators: bool = False,
    ) -> list[Span]:
        """Finds the tokens of a node that are this name, where the syntax tree keeps no position."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        if after_decorators and node.decorator_list:  # type: ignore[attr-defined]
            line = node.lineno  # type: ignore[attr-defined]
        if after is not None:
            line, column = after.end_lineno or line, after.end_col_offset or column  # type: ignore[attr-defined]
        end_line, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        spans = []
        for token in self._tokens():
            place = (token.start[0], len(token.line[: token.start[1]].encode()))
            if (
                (line, column) <= place < (end_line, end_column)
                and token.type == tokenize.NAME
                and token.string == name
            ):
                spans.append(Span(*place))
        if last:
            return spans[-1:]
        return spans[:limit] if limit else spans

    def _tokens(self) -> list[tokenize.TokenInfo]:
        if not hasattr(self, "_cached_tokens"):
            self._cached_tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
            self._token_lines: dict[int, int] = {}
        return self._cached_tokens

    # ------------------------------------------------------------------ f-strings

    def _joined(self, node: ast.JoinedStr, scope: Scope, shift: tuple[int, int] | None) -> None:
        """Parses the expressions of an f-string from their text; `shift` is set inside another f-string's
        expression.
        """
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        outer = self._strings
        for place, token in outer:
            if start <= place < end:
                for line, column, text in _expressions(token, place):
                    wrapped = f"({text})"
                    span = _shifted(line, column - 1, shift)
                    self._strings = list(_f_strings(list(tokenize.generate_tokens(io.StringIO(wrapped).readline))))
                    self._visit(ast.parse(wrapped, mode="eval").body, scope, (span.line, span.column))
        self._strings = outer


def _f_strings(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[tuple[int, int], tokenize.TokenInfo]]:
    for token in tokens:
        if token.type == tokenize.STRING:
            prefix = token.string[: token.string.index(token.string[-1])].lower()
            if "f" in prefix:
                first_line = token.line.splitlines(keepends=True)[0]
                yield (token.start[0], len(first_line[: token.start[1]].encode())), token


def _shifted(line: int, column: int, shift: tuple[int, int] | None) -> Span:
    if shift is None:
        return Span(line, column)
    return Span(line + shift[0] - 1, column + shift[1] if line == 1 else column)


def _expressions(token: tokenize.TokenInfo, place: tuple[int, int]) -> Iterator[tuple[int, int, str]]:
    """Yields (line, byte column, text) of every expression in an f-string token, those of format specs too."""
    text = token.string
    quote = text.index(text[-1])
    width = 3 if text[quote : quote + 3] == text[-1] * 3 else 1
    yield from _fields(text, quote + width, len(text) - width, place)


def _fields(text: str, begin: int, end: int, place: tuple[int, int]) -> Iterator[tuple[int, int, str]]:
    index = begin
    while index < end:
        character = text[index]
        if character in "{}" and text[index : index + 2] in ("{{", "}}"):
            index += 2
        elif character == "{":
            close, colon = _field_end(text, index + 1, end)
            stop = colon if colon is not None else close
            expression = text[index + 1 : stop]
            bare = expression.rstrip()
            if bare[-2:-1] == "!" and bare[-1] in "rsa":
                bare = bare[:-2]
            if bare.endswith("=") and not bare.endswith(("==", "!=", "<=", ">=")):
                bare = bare[:-1]
            yield (*_position(text, index + 1, place), bare)
            if colon is not None:
                yield from _fields(text, colon + 1, close, place)
            index = close + 1
        else:
            index += 1


def _field_end(text: str, begin: int, end: int) -> tuple[int, int | None]:
    """Returns the index of the closing brace of a replacement field, and of the colon before its format spec."""
    depth, quote, colon, index = 0, "", None, begin
    while index < end:
        character = text[index]
        if quote:
            if character == quote:
                quote = ""
        elif colon is None and character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "}":
            if depth == 0:
                return index, colon
            depth -= 1
        elif character == ":" and depth == 0 and colon is None:
            colon = index
        index += 1
    raise ValueError(f"an f-string has no end of a field: {text!r}")


def _position(text: str, index: int, place: tuple[int, int]) -> tuple[int, int]:
    before = text[:index]
    lines = before.count("\n")
    if not lines:
        return place[0], place[1] + len(before.encode())
    return place[0] + lines, len(before[before.rindex("\n") + 1 :].encode())
