"""Parsed sources: comments, strings, docstrings and code tokens, and the spans where no line may be inserted.

Positions are character offsets into the source as given. A byte order mark, line ends, tabs and form feeds stay
where they are; nothing is normalized. A token is a pair (kind, text). Besides the words of the language there
is a kind "newline" between tokens on different lines, since several languages read line ends, and "text" for
text that a grammar leaves unnamed, so that two sources with equal tokens differ in comments, blanks and blank
lines only.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evolvent.curate.languages import Language, get_language
from evolvent.errors import MissingExtra

if TYPE_CHECKING:
    import tree_sitter

__all__ = ["MAX_CHARS", "ParsedSource", "Span", "parse_source"]

MAX_CHARS = 4_000_000  # a longer source is not read; generated tables and minified bundles are
NEWLINE = ("newline", "")
Kinds = dict[int, tuple[str, str]]  # number of a node kind -> its name, and what it is here
_ERROR = 65_535  # the number of tree-sitter's errors, in every grammar
_BOM = "\ufeff"
_SHEBANG = re.compile(r"\ufeff?#!(?!\[)[^\n]*")  # `#![...]` is Rust's
_SILENT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER})
_F_START, _F_END = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
_LITERAL_TOKENS = frozenset({tokenize.COMMENT, tokenize.STRING, _F_START, _F_END})
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Span(NamedTuple):
    """Characters `start` to `end` (exclusive) of a source."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """The parts of one source, in order.

    Args:
        tokens: (kind, text) of every code token; comments are not among them.
        comments: Comments without the shebang.
        strings: String and character literals that are not docstrings.
        docstrings: Docstrings of Python; other languages document in comments.
        closed: Spans strictly inside which an inserted line would not surely be a comment; -1 is before all.
        fault: Reason why the source may not be changed; "" where it parses.
        tree: Python's syntax tree; None for other languages.
    """

    tokens: tuple[tuple[str, str], ...] = ()
    comments: tuple[Span, ...] = ()
    strings: tuple[Span, ...] = ()
    docstrings: tuple[Span, ...] = ()
    closed: tuple[Span, ...] = ()
    fault: str = ""
    tree: ast.Module | None = None


def parse_source(source: str, language: str) -> ParsedSource:
    """Parses a source. A source that does not parse has a `fault`, and keeps the parts that its parser recovered.

    Raises:
        ConfigError: for a language that is not in `LANGUAGES`.
        MissingExtra: where the language's packages are not installed.
    """
    language_spec = get_language(language)
    fault = _find_unreadable(source)
    if fault:
        return ParsedSource(fault=fault)
    offset = len(_BOM) if source.startswith(_BOM) else 0
    readers = {"python": _parse_python, "tree-sitter": _parse_tree, "pygments": _parse_lexed}
    parsed = readers[language_spec.reader](source[offset:], language_spec)
    pattern, reason = language_spec.refused
    if pattern and not parsed.fault and re.search(pattern, source):
        parsed = replace(parsed, fault=f"it holds {reason}")
    return _shift(parsed, offset, source)


def _find_unreadable(source: str) -> str:
    if len(source) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS:,} characters"
    if "\0" in source:
        return "it holds a NUL character"
    # Languages disagree on whether a bare carriage return ends a line, so nobody could say what a line is.
    if "\r" in source and "\r" in source.replace("\r\n", ""):
        return "it holds a carriage return that ends no line"
    if not source.isascii() and re.search("[\ud800-\udfff]", source):
        return "it holds characters that no encoding has"
    return ""


def _shift(parsed: ParsedSource, offset: int, source: str) -> ParsedSource:
    """Moves every position by the byte order mark, and removes the shebang from the comments."""
    if offset:

        def shift(spans: tuple[Span, ...]) -> tuple[Span, ...]:
            return tuple(Span(start + offset, end + offset) for start, end in spans)

        parsed = replace(
            parsed,
            comments=shift(parsed.comments),
            strings=shift(parsed.strings),
            docstrings=shift(parsed.docstrings),
            closed=shift(parsed.closed),
        )
    shebang = _SHEBANG.match(source)
    if shebang and parsed.comments and parsed.comments[0].start < shebang.end():
        parsed = replace(parsed, comments=parsed.comments[1:])
    return parsed


def _line_starts(source: str) -> list[int]:
    return [0, *accumulate(len(line) + 1 for line in source.split("\n"))]


# ---------------------------------------------------------------------------------------------------------- Python
def _parse_python(source: str, language: Language) -> ParsedSource:
    try:
        tree = ast.parse(source)
        # What the tokenizer of this Python refuses, its parser refuses too; the other way round it does not hold.
        lexemes = list(tokenize.generate_tokens(io.StringIO(source, newline="\n").readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ParsedSource(fault=f"it does not parse: {type(error).__name__}")
    names = tokenize.tok_name
    tokens = tuple([(names[kind], text) for kind, text, _, _, _ in lexemes if kind not in _SILENT])
    starts = _line_starts(source)
    comments, literals, depth, opened = [], [], 0, 0
    for kind, _, (row, column), (end_row, end_column), _ in [
        lexeme for lexeme in lexemes if lexeme[0] in _LITERAL_TOKENS
    ]:
        start, end = starts[row - 1] + column, starts[end_row - 1] + end_column
        if kind == tokenize.COMMENT:
            comments.append(Span(start, end))
        elif kind == tokenize.STRING:
            literals += [] if depth else [Span(start, end)]
        elif kind == _F_START:  # from Python 3.12 on an f-string is several tokens, and may hold another one
            opened, depth = opened if depth else start, depth + 1
        else:
            depth -= 1
            literals += [] if depth else [Span(opened, end)]
    docstrings = tuple(_find_docstrings(tree, source, starts))
    begins, ends = (
        [span.start for span in docstrings],
        [-1, *(span.end for span in docstrings)],
    )  # in order, side by side
    strings = tuple(span for span in literals if span.start >= ends[bisect_right(begins, span.start)])
    closed = tuple(span for span in literals if "\n" in source[span.start : span.end])
    return ParsedSource(tokens, tuple(comments), strings, docstrings, closed, "", tree)


def _find_docstrings(tree: ast.Module, source: str, starts: list[int]) -> Iterator[Span]:
    """Yields the docstrings of modules, classes and functions (PEP 257), in the order of the source."""
    literals, pending = [], list[Any]([tree])
    while pending:
        node = pending.pop()
        if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                literals.append(value)
        for name in _BLOCKS:  # only statements: expressions hold no documented blocks
            pending.extend(getattr(node, name, ()) if not isinstance(node, ast.expr) else ())
    for value in sorted(literals, key=lambda value: (value.lineno, value.col_offset)):
        end = starts[(value.end_lineno or value.lineno) - 1], value.end_col_offset or 0
        yield Span(
            _to_character_offset(source, starts[value.lineno - 1], value.col_offset), _to_character_offset(source, *end)
        )


def _to_character_offset(source: str, line_start: int, column: int) -> int:
    """Converts a column of `ast`, in bytes of UTF-8, to a character offset."""
    end = source.find("\n", line_start)
    line = source[line_start : end if end >= 0 else len(source)]
    return line_start + (column if line.isascii() else len(line.encode()[:column].decode()))


# ----------------------------------------------------------------------------------------------------- tree-sitter
@cache
def _load_grammar(name: str) -> tuple[tree_sitter.Language, Kinds]:
    """Builds a language's grammar, cached, and maps each node kind number to its name and role."""
    language = get_language(name)
    module, function = language.grammar
    try:
        grammar = import_module("tree_sitter").Language(getattr(import_module(module), function)())
    except ImportError as error:
        raise MissingExtra("code", f"reading sources with {module}") from error
    roles = [(language.closed, "closed"), (language.strings, "string"), (language.comments, "comment")]
    kinds = {_ERROR: ("ERROR", "error")}
    for number in range(grammar.node_kind_count):
        kind = grammar.node_kind_for_id(number) or ""
        is_named = grammar.node_kind_is_named(number)  # `string` is also a keyword of TypeScript
        role = next((role for group, role in roles if is_named and kind in group), "")
        role = "doubtful" if kind in language.only_if else role
        kinds[number] = (language.same.get(kind, kind), "newline" if kind in ("\n", "\r\n") else role)
    return grammar, kinds


def _parse_tree(source: str, language: Language) -> ParsedSource:
    grammar, kinds = _load_grammar(language.name)
    data = source.encode()
    tree = import_module("tree_sitter").Parser(grammar).parse(data)
    leaves, closed, error_bytes = _collect_leaves(tree.walk(), kinds, language)
    if not source.isascii():
        character_offsets = _byte_to_character(data)
        leaves = [(number, character_offsets[start], character_offsets[end]) for number, start, end in leaves]
        closed = [Span(character_offsets[start], character_offsets[end]) for start, end in closed]
    tokens: list[tuple[str, str]] = []
    comments: list[Span] = []
    strings: list[Span] = []
    last = 0
    for number, start, end in leaves:
        if start > last:
            _add_gap(source[last:start], tokens)
        last = end
        kind, role = kinds[number]
        if role == "comment":
            last = start + len(source[start:end].rstrip("\r\n"))  # a line comment of Rust may hold its line end
            comments.append(Span(start, last))
            if "\n" in source[start:last]:
                _add_gap("\n", tokens)
        elif role == "newline":
            _add_gap("\n", tokens)
        elif start < end:
            tokens.append((kind, source[start:end]))
            if role == "string":
                strings.append(Span(start, end))
    _add_gap(source[last:], tokens)
    if tokens and tokens[-1] == NEWLINE:
        tokens.pop()
    closed = [span for span in (*closed, *strings, *comments) if "\n" in source[span.start : span.end]]
    if language.opening:
        heads = (end for number, _, end in leaves if kinds[number][0] == language.opening)
        closed.append(Span(-1, next(heads, len(source) + 1)))
    parses = not tree.root_node.has_error or (language.tolerance and error_bytes <= language.tolerance * len(data))
    fault = "" if parses else "it does not parse"
    return ParsedSource(tuple(tokens), tuple(comments), tuple(strings), (), tuple(sorted(closed)), fault)


def _add_gap(gap: str, tokens: list[tuple[str, str]]) -> None:
    """Adds the tokens between two nodes: line ends, and rarely text for which the grammar has no node."""
    if gap == " ":
        return
    for number, line in enumerate(gap.split("\n")):
        if number and tokens and tokens[-1] != NEWLINE:
            tokens.append(NEWLINE)
        if line and not line.isspace():
            tokens.extend(("text", part) for part in line.split())


def _collect_leaves(
    cursor: tree_sitter.TreeCursor, kinds: Kinds, language: Language
) -> tuple[list[tuple[int, int, int]], list[Span], int]:
    """Returns tokens and comments as (kind number, first byte, last byte + 1), closed nodes, and the bytes of
    errors.
    """
    leaves: list[tuple[int, int, int]] = []
    closed: list[Span] = []
    error_bytes = 0
    first_child, next_sibling, to_parent = cursor.goto_first_child, cursor.goto_next_sibling, cursor.goto_parent
    while True:
        node: Any = cursor.node
        number = node.kind_id
        role = kinds[number][1]
        if not role:  # the usual case first: this loop is most of the cost of reading
            if first_child():
                continue
            leaves.append((number, node.start_byte, node.end_byte))
        elif role in ("closed", "doubtful", "error"):
            error_bytes += node.end_byte - node.start_byte if role == "error" else 0
            if role != "doubtful" or node.children[0].type == language.only_if[node.type]:
                closed.append(Span(node.start_byte, node.end_byte))
            if first_child():
                continue
            leaves.append((number, node.start_byte, node.end_byte))
        else:
            leaves.append((number, node.start_byte, node.end_byte))
        while not next_sibling():
            if not to_parent():
                return leaves, closed, error_bytes


def _byte_to_character(data: bytes) -> list[int]:
    """Computes, for every byte of UTF-8 and for the end, the number of characters that begin before it."""
    begins = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    return [0, *np.cumsum(begins).tolist()]


# -------------------------------------------------------------------------------------------------------- pygments
@cache
def _lexer(alias: str) -> Any:
    try:
        return import_module("pygments.lexers").get_lexer_by_name(alias)
    except ImportError as error:
        raise MissingExtra("code", "reading sources with pygments") from error


def _parse_lexed(source: str, language: Language) -> ParsedSource:
    """Parses by a lexer alone: adjoining pieces of a string or comment are one; an unknown character is a fault."""
    token_types = import_module("pygments.token")
    silent = (token_types.Comment.Preproc, token_types.Comment.PreprocFile)
    tokens: list[tuple[str, str]] = []
    comments: list[Span] = []
    strings: list[Span] = []
    fault = ""
    for start, kind, text in _lexer(language.grammar[1]).get_tokens_unprocessed(source):
        end = start + len(text)
        if kind in token_types.Comment and kind not in silent:
            joins = comments and comments[-1].end == start
            begins = comments.pop().start if joins else start
            comments.append(Span(begins, start + len(text.rstrip("\r\n"))))
        elif kind in token_types.String:
            if strings and strings[-1].end == start:
                strings[-1] = Span(strings[-1].start, end)
            else:
                strings.append(Span(start, end))
            tokens.append((str(kind), text))
        elif text.strip():
            fault = "it does not parse" if kind in token_types.Error else fault
            tokens.append((str(kind), text.strip()))
        if "\n" in text and kind not in token_types.String and tokens and tokens[-1] != NEWLINE:
            tokens.append(NEWLINE)
    while tokens and tokens[-1] == NEWLINE:
        tokens.pop()
    closed = tuple(span for span in (*strings, *comments) if "\n" in source[span.start : span.end])
    return ParsedSource(tuple(tokens), tuple(comments), tuple(strings), (), tuple(sorted(closed)), fault)
