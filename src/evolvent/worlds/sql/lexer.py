"""The analysis of a SQL text before SQLite sees it. The text is split into tokens and never run.

This module has no grammar of SQL. It decides whether a text is a query and whether its rows are ordered. It removes
the spaces of a word tokenizer, and bounds the size of a text when SQLite prepares it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

__all__ = ["UNBOUNDED", "Token", "expansion", "is_ordered", "is_query", "remove_spaces", "tokenize"]

# White space and letters as SQLite has them: everything beyond ASCII is a letter.
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\f\r]+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<string>'(?:[^']|'')*(?:'|\Z))
      | (?P<name>"(?:[^"]|"")*(?:"|\Z)|`(?:[^`]|``)*(?:`|\Z)|\[[^\]]*(?:\]|\Z))
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
      | (?P<number>[0-9][A-Za-z0-9_.]*)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUERY_KEYWORDS = frozenset({"select", "with", "values"})
_KEYWORDS = (
    "all and as asc between by case cast cross desc distinct else end except exists from glob group having in inner "
    "intersect is join left like limit not null offset on or order outer over partition recursive select then union "
    "using values when where with"
)
_NON_COLUMN_WORDS = frozenset(_KEYWORDS.split())
_SPLIT_OPERATORS = frozenset({"< =", "> =", "< >", "! =", "= =", "| |"})
_DECIMAL = re.compile(r"([0-9]) \. ([0-9])")
_MAX_SELECTS = 60
UNBOUNDED = 10**9
"""What `expansion` says of a text that is too large to be measured, or goes in a circle."""


class Token(NamedTuple):
    """A piece of SQL: `kind` is space (comments too), string, name (quoted), word, number or mark."""

    kind: str
    text: str

    @property
    def word(self) -> str:
        """Returns a bare word in lower case; empty for all other tokens."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def identifier(self) -> str:
        """Returns the name that a word, a quoted name or a string can stand for, in lower case; else empty."""
        if self.kind in ("name", "string"):
            quote = self.text[0]
            return self.text[1:-1].replace(quote * 2, quote).lower()
        return self.word


@lru_cache(maxsize=4)
def tokenize(text: str) -> tuple[Token, ...]:
    """Splits a text into tokens; joined, they are the text again. An unclosed token extends to the end."""
    return tuple([Token(token_match.lastgroup or "mark", token_match.group()) for token_match in _TOKEN.finditer(text)])


def _tokenize_without_spaces(text: str) -> list[Token]:
    return [token for token in tokenize(text) if token.kind != "space"]


def is_query(text: str) -> bool:
    """Returns whether the first word can begin a query: SELECT, WITH or VALUES."""
    first = next((token for token in tokenize(text) if token.kind != "space"), None)
    return first is not None and first.word in _QUERY_KEYWORDS


def is_ordered(text: str) -> bool:
    """Returns whether the query has its own ORDER BY, outside all parentheses."""
    if "order" not in text.lower():
        return False
    depth, previous_word = 0, ""
    for token in _tokenize_without_spaces(text):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and (previous_word, token.word) == ("order", "by"):
            return True
        previous_word = token.word
    return False


def remove_spaces(text: str) -> str:
    """Removes the spaces that a word tokenizer leaves inside literals, operators and decimal numbers.

    >>> remove_spaces("SELECT name FROM team WHERE city = ' arvik ' AND wins > = 1 . 5")
    "SELECT name FROM team WHERE city = 'arvik' AND wins >= 1.5"

    It is valid for databases in which no value begins or ends with a space.
    """
    pieces = [""]
    for token in tokenize(text):
        piece = token.text
        if token.kind == "string" and len(piece) > 1 and piece.endswith("'"):
            pieces += [f"'{piece[1:-1].strip(' ')}'", ""]
        elif token.kind in ("string", "name"):
            pieces += [piece, ""]
        elif pieces[-1].endswith(" ") and pieces[-1][-2:] + piece in _SPLIT_OPERATORS:
            pieces[-1] = pieces[-1][:-1] + piece
        else:
            pieces[-1] += piece
    return "".join(piece if index % 2 else _DECIMAL.sub(r"\1.\2", piece) for index, piece in enumerate(pieces))


class _Select(NamedTuple):
    """A query in parentheses (the whole text has none): the positions of its parentheses, and its name if WITH defines
    it.
    """

    first_index: int
    last_index: int
    name: str


def expansion(text: str) -> int:
    """Computes a rough upper bound on the number of copies of expressions that SQLite makes to prepare the text.

    To prepare a query, SQLite puts the expression of a column in every position that names it, and the body of a
    WITH clause in every position that names that. If queries are nested, copies are copied: five hundred characters
    can take minutes and gigabytes, and preparation cannot be interrupted. So at each level the size of the inner
    queries is multiplied by the number of names that may stand for a column. A billion means too many to count.
    """
    if text.lower().count("select") < 2:
        return 1
    tokens = _tokenize_without_spaces(text)
    selects = _find_selects(tokens)
    if len(selects) > _MAX_SELECTS:
        return UNBOUNDED
    return _ExpansionMeter(tokens, selects).measure(selects[0])


class _ExpansionMeter:
    """The sizes of the queries of one text."""

    def __init__(self, tokens: Sequence[Token], selects: Sequence[_Select]) -> None:
        self._tokens, self._selects = tokens, selects
        self._sizes: dict[_Select, int] = {}
        self._names = {select.name for select in selects if select.name}
        self._within: dict[_Select, list[int]] = {select: [] for select in selects}
        self._nested: dict[_Select, list[_Select]] = {select: [] for select in selects}
        innermost = [selects[0]]
        opening = {select.first_index: select for select in selects}
        for index in range(len(tokens)):
            if index in opening:
                self._nested[innermost[-1]].append(opening[index])
                innermost.append(opening[index])
            self._within[innermost[-1]].append(index)
            if index == innermost[-1].last_index:
                innermost.pop()

    def measure(self, select: _Select) -> int:
        """Computes the size of a query; a query met again during its own measurement is circular."""
        if select not in self._sizes:
            self._sizes[select] = UNBOUNDED
            inner_sizes = [self.measure(inner) for inner in self._nested[select] if not inner.name]
            columns, doublings = 1, 0
            for index in self._within[select]:
                inner_sizes.append(self._measure_body(index))
                columns += _is_column(self._tokens, index)
                doublings += self._tokens[index].word in ("natural", "using")
            self._sizes[select] = min(UNBOUNDED, columns * 2 ** min(doublings, 30) * (1 + sum(inner_sizes)))
        return self._sizes[select]

    def _measure_body(self, index: int) -> int:
        """Measures the largest body that a name can stand for; enclosing bodies are recursion and are not copied."""
        if self._tokens[index].identifier not in self._names or not _is_table(self._tokens, index):
            return 0
        name = self._tokens[index].identifier
        bodies = [
            body for body in self._selects if body.name == name and not body.first_index < index < body.last_index
        ]
        return max((self.measure(body) for body in bodies), default=0)


def _adjacent_tokens(tokens: Sequence[Token], index: int) -> tuple[Token, Token]:
    empty = Token("mark", "")
    return tokens[index - 1] if index else empty, tokens[index + 1] if index + 1 < len(tokens) else empty


def _is_table(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether the token is at a position where a table can be named."""
    before, after = _adjacent_tokens(tokens, index)
    return (before.word in ("from", "join", "in") or before.text in (",", "(")) and after.text not in (".", "(")


def _is_column(tokens: Sequence[Token], index: int) -> bool:
    """Returns whether the token can stand for one or more columns: a name, the number of a column, or `*`."""
    token, (before, after) = tokens[index], _adjacent_tokens(tokens, index)
    if token.kind in ("word", "name"):
        return token.word not in _NON_COLUMN_WORDS and after.text not in (".", "(")
    if token.kind == "number":
        return before.word == "by" or before.text == ","
    return token.text == "*" and (before.word in ("select", "distinct", "all") or before.text in (",", "."))


def _find_selects(tokens: Sequence[Token]) -> list[_Select]:
    """Finds the whole text, then every `( SELECT ...`, with the name in `name [(columns)] AS [NOT] [MATERIALIZED]
    (`.
    """
    closing = _match_parentheses(tokens)
    opening = {last: first for first, last in closing.items()}
    selects = [_Select(-1, len(tokens), "")]
    for index, token in enumerate(tokens):
        if token.text == "(" and _adjacent_tokens(tokens, index)[1].word in _QUERY_KEYWORDS:
            selects.append(_Select(index, closing.get(index, len(tokens)), _defined_name(tokens, index, opening)))
    return selects


def _defined_name(tokens: Sequence[Token], index: int, opening: dict[int, int]) -> str:
    """Returns the name that WITH gives to the query that opens here; empty if it gives none."""
    position = index - 1
    while position > 0 and tokens[position].word in ("materialized", "not"):
        position -= 1
    if position < 1 or tokens[position].word != "as":
        return ""
    position = opening.get(position - 1, position) - 1  # over the list of columns, where there is one
    return tokens[position].identifier if position >= 0 else ""


def _match_parentheses(tokens: Sequence[Token]) -> dict[int, int]:
    """Returns position of each `(` -> position of its `)`."""
    closing: dict[int, int] = {}
    open_indices: list[int] = []
    for index, token in enumerate(tokens):
        if token.text == "(":
            open_indices.append(index)
        elif token.text == ")" and open_indices:
            closing[open_indices.pop()] = index
    return closing
