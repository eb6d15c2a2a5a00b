"""Similarity of two tools, independent of their names: by their descriptions and by their parameters.

The measure is deliberately small: no model, no corpus, symmetric, and the same on every machine. It finds tools
that were renamed, or whose descriptions were slightly reworded. It does not understand: a pair that differs in
the one word that matters (scores of soccer, scores of basketball) is equally similar to it. Users with
embeddings can pass another measure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from evolvent.grade.matching import heaviest_matching, maximum_matching
from evolvent.messages import Call, Tool
from evolvent.schemas import find_argument_faults, json_schema

__all__ = ["accepts", "content_words", "measure_similarity"]

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_STOP_WORDS = frozenset(
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


_SYNONYMS = {  # verbs of what tools do, by their kind
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
    """Extracts the meaningful words of a text, as stems, with synonymous verbs merged; names are split."""
    text_words = [match.lower() for match in _WORD.findall(text)]
    stems = [_stem(word) for word in text_words if word not in _STOP_WORDS]
    return frozenset([_SYNONYMS.get(stem, stem) for stem in stems])


def _overlap(words_a: frozenset[str], words_b: frozenset[str]) -> float:
    """Computes Dice's coefficient, 0 to 1."""
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b)) if words_a and words_b else 0.0


def measure_similarity(tool_a: Tool, tool_b: Tool) -> float:
    """Computes the similarity of two tools, 0 to 1; 1 for a tool and its renamed copy.

    0.6 x Dice's coefficient of the content words of the descriptions + 0.4 x the similarity of the parameters: the best
    one-to-one pairing over the larger number of parameters, where a pair of one type counts 1/2 plus half of the
    overlap
    of the descriptions. Names count where descriptions are empty.

    Raises:
        SampleInvalid: an invalid schema.
    """
    description_words = [content_words(tool.description) or content_words(tool.name) for tool in (tool_a, tool_b)]
    description_overlap = _overlap(description_words[0], description_words[1])
    parameters_a, parameters_b = _list_parameters(tool_a), _list_parameters(tool_b)
    if not parameters_a and not parameters_b:
        return description_overlap
    num_parameters = max(len(parameters_a), len(parameters_b))
    parameter_overlap = (
        heaviest_matching([[_pair_similarity(a, b) for b in parameters_b] for a in parameters_a])
        if parameters_a and parameters_b
        else 0
    )
    return 0.6 * description_overlap + 0.4 * parameter_overlap / (1000 * num_parameters)


def _list_parameters(tool: Tool) -> list[tuple[str, frozenset[str]]]:
    parts: Mapping[str, Any] = json_schema(tool.parameters)["properties"]
    parameters = []
    for name, part in parts.items():
        parameter_schema = part if isinstance(part, Mapping) else {}
        description = str(parameter_schema.get("description") or "") or name
        parameters.append((str(parameter_schema.get("type", "")), content_words(description)))
    return parameters


def _pair_similarity(parameter_a: tuple[str, frozenset[str]], parameter_b: tuple[str, frozenset[str]]) -> int:
    """Computes the similarity of two parameters in thousandths. Integers and other numbers are one type here."""
    kinds = {"number" if kind == "integer" else kind for kind in (parameter_a[0], parameter_b[0])}
    return 0 if len(kinds) > 1 else 500 + round(500 * _overlap(parameter_a[1], parameter_b[1]))


def accepts(tool: Tool, call: Call) -> bool:
    """Returns whether a tool would accept the arguments of a call, whatever its parameters are called.

    Each argument must fit another parameter, and every required parameter must get an argument. A number fits where
    its text fits, and the other way round.

    Raises:
        SampleInvalid: an invalid schema.
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
    return _is_covered(fits) and _is_covered(by_name)


def _is_covered(fits: Sequence[Sequence[bool]]) -> bool:
    return -1 not in maximum_matching(fits)


def _fits(value: Any, schema: Any) -> bool:
    forms = [value]
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            forms.append(json.loads(value[:100]))
    elif isinstance(value, (int, float)):
        forms.append(json.dumps(value))
    wrapper = {"type": "object", "properties": {"value": schema}}
    return any(not find_argument_faults({"value": form}, wrapper) for form in forms)
