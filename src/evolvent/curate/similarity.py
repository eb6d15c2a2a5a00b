"""How alike two tools are, whatever they are called: by what their descriptions say and by what they take.

A small measure on purpose: no model, no corpus, symmetric, and the same on every machine. It finds tools that were
renamed, or whose descriptions were reworded a little. It does not understand: a pair that differs in the one word that
matters (scores of soccer, scores of basketball) is as alike to it. Who has embeddings hands in another measure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from evolvent.grade.matching import heaviest_matching, maximum_matching
from evolvent.messages import Call, Tool
from evolvent.schemas import faults, json_schema

__all__ = ["accepts", "content_words", "similarity"]

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_EMPTY = frozenset(
    (
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "for",
        "from",
        "given",
        "has",
        "have",
        "how",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "may",
        "must",
        "of",
        "on",
        "one",
        "optional",
        "or",
        "other",
        "parameter",
        "particular",
        "per",
        "provided",
        "should",
        "specific",
        "specified",
        "such",
        "that",
        "the",
        "their",
        "them",
        "then",
        "these",
        "this",
        "those",
        "to",
        "used",
        "user",
        "using",
        "value",
        "via",
        "was",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "will",
        "with",
        "your",
        "default",
        "defaults",
        "e",
        "g",
        "eg",
        "function",
        "tool",
    )
)


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    for ending in ("ing", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


_ALIKE = {  # verbs of what tools do, by their kind
    _stem(word): group[0]
    for group in (
        (
            "get",
            "retrieve",
            "fetch",
            "obtain",
            "return",
            "provide",
            "show",
            "display",
            "give",
            "find",
            "search",
            "look",
            "lookup",
            "list",
            "query",
            "check",
            "locate",
        ),
        ("create", "add", "make", "insert", "register", "generate", "new"),
        ("delete", "remove", "drop", "cancel", "clear", "erase"),
        ("update", "change", "modify", "edit", "set", "adjust", "alter"),
        ("compute", "calculate", "determine", "evaluate", "work"),
        ("send", "post", "submit", "deliver"),
        ("book", "reserve", "reservation"),
        ("buy", "purchase", "order"),
        ("current", "present", "now", "currently"),
        ("location", "place", "city", "town"),
    )
    for word in group
}


def content_words(text: str) -> frozenset[str]:
    """The words of a text that say something, without endings, verbs by their kind; names are taken apart."""
    words = [match.lower() for match in _WORD.findall(text)]
    stems = [_stem(word) for word in words if word not in _EMPTY]
    return frozenset([_ALIKE.get(stem, stem) for stem in stems])


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """Dice's coefficient, 0 to 1."""
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def similarity(one: Tool, other: Tool) -> float:
    """How alike two tools are, 0 to 1; 1 for a tool and its renamed copy. Names count where descriptions are empty.

    0.6 x Dice's coefficient of the content words of the descriptions + 0.4 x the likeness of the parameters: the best
    one-to-one pairing, a pair of one type counts 1/2 plus half of the overlap of the descriptions, over the larger
    number of parameters.

    Raises:
        SampleInvalid: a schema that is none.
    """
    said = [content_words(tool.description) or content_words(tool.name) for tool in (one, other)]
    words = _overlap(said[0], said[1])
    mine, theirs = _parameters(one), _parameters(other)
    if not mine and not theirs:
        return words
    most = max(len(mine), len(theirs))
    pairs = heaviest_matching([[_pair(a, b) for b in theirs] for a in mine]) if mine and theirs else 0
    return 0.6 * words + 0.4 * pairs / (1000 * most)


def _parameters(tool: Tool) -> list[tuple[str, frozenset[str]]]:
    parts: Mapping[str, Any] = json_schema(tool.parameters)["properties"]
    found = []
    for name, part in parts.items():
        told = part if isinstance(part, Mapping) else {}
        said = str(told.get("description") or "") or name
        found.append((str(told.get("type", "")), content_words(said)))
    return found


def _pair(one: tuple[str, frozenset[str]], other: tuple[str, frozenset[str]]) -> int:
    """In thousandths. Whole and other numbers are one type here."""
    kinds = {"number" if kind == "integer" else kind for kind in (one[0], other[0])}
    return 0 if len(kinds) > 1 else 500 + round(500 * _overlap(one[1], other[1]))


def accepts(tool: Tool, call: Call) -> bool:
    """Whether a tool would take the arguments of a call, whatever its parameters are called: each argument fits another
    parameter, and every required one gets its argument. A number fits where its text does, and the other way round.

    Raises:
        SampleInvalid: a schema that is none.
    """
    schema = json_schema(tool.parameters)
    names = list(schema["properties"])
    needed = [name for name in schema.get("required", ()) if name in names]
    fits = [[_fits(value, schema["properties"][name]) for name in names] for value in call.arguments.values()]
    if len(needed) > len(fits) or len(fits) > len(names):
        return False
    # Required parameters must all be matched, and all arguments. A graph has a matching that covers a set of rows and a
    # set of columns exactly if it has one that covers each (Mendelsohn and Dulmage, 1958).
    by_name = [[row[names.index(name)] for row in fits] for name in needed]
    return _covered(fits) and _covered(by_name)


def _covered(fits: Sequence[Sequence[bool]]) -> bool:
    return -1 not in maximum_matching(fits)


def _fits(value: Any, schema: Any) -> bool:
    ways = [value]
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            ways.append(json.loads(value[:100]))
    elif isinstance(value, (int, float)):
        ways.append(json.dumps(value))
    whole = {"type": "object", "properties": {"value": schema}}
    return any(not faults({"value": way}, whole) for way in ways)
