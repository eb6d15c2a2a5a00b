"""Bounds of schemas and grammars, so that no valid request ends the process that compiles them.

A grammar that the library cannot hold ends the whole process. Schemas are therefore counted first, well below what it
stands, and a grammar that is not small is compiled in a process that can be killed before it is compiled in this one.

Measured with llguidance 1.9.1 on one core: the bounds hold on a stack of 512 KiB; the trial has 1 MiB, an eighth of
what a thread has here. Grammars of `MAX_DIRECT_CHARS` characters without the keywords of `_COSTLY` compile in less than
.2 s, and the largest `multipleOf` that is taken in .09 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from evolvent.errors import SampleInvalid
from evolvent.workers import SharedWorker

__all__ = [
    "MAX_ENUM",
    "MAX_GRAMMAR_CHARS",
    "MAX_LEVELS",
    "MAX_MULTIPLE",
    "MAX_PATTERN_CHARS",
    "MAX_PROPERTIES",
    "MAX_ROW_ITEMS",
    "MAX_VALUES",
    "check_schemas",
    "compile_grammar",
    "count_values",
    "try_grammar",
]

MAX_PROPERTIES = 1_000  # of one object
MAX_ENUM = 10_000  # values of one enumeration
MAX_VALUES = 30_000  # JSON values of all schemas of a request
MAX_LEVELS = 64  # of nested JSON
MAX_MULTIPLE = 10_000
MAX_PATTERN_CHARS = 1_000
MAX_GRAMMAR_CHARS = 2**20
MAX_ROW_ITEMS = 20_000  # of the parser; one object of `MAX_PROPERTIES` optional properties needs more than its 2,000
MAX_DIRECT_CHARS = 2**14  # a grammar up to here, without costly keywords, needs no trial
_COSTLY = frozenset(("pattern", "patternProperties", "multipleOf", "format", "$ref", "allOf", "not", "if"))
_MAX_DIRECT_COUNT = 1_000  # a repetition up to here needs no trial
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_TRIAL_S, _TRIAL_MIB, _TRIAL_STACK = 10.0, 512, 2**20


def check_schemas(schemas: Iterable[object]) -> bool:
    """Checks the schemas of a request against the bounds; returns whether they need a trial.

    Raises:
        SampleInvalid: one of them is beyond a bound, which is named.
    """
    is_costly = False
    for num_values, (value, level) in enumerate(_iterate_values(schemas), 1):
        _check_bound("JSON values", num_values, MAX_VALUES)
        _check_bound("levels", level, MAX_LEVELS)
        if isinstance(value, Mapping):
            is_costly |= _check_object(value)
    return is_costly


def count_values(schema: object, num_before: int = 0) -> int:
    """Counts the JSON values of a schema after others, references written out.

    Raises:
        SampleInvalid: together they are more than three times `MAX_VALUES`.
    """
    num_values = num_before
    for num_values, _ in enumerate(_iterate_values([schema]), num_before + 1):
        _check_bound("JSON values with references written out", num_values, 3 * MAX_VALUES)
    return num_values


def _iterate_values(values: Iterable[object]) -> Iterator[tuple[object, int]]:
    pending: list[tuple[object, int]] = [(value, 1) for value in values]
    while pending:
        value, level = pending.pop()
        yield value, level
        if isinstance(value, Mapping):
            pending += [(child, level + 1) for child in value.values()]
        elif isinstance(value, list | tuple):
            pending += [(child, level + 1) for child in value]


def _check_object(schema: Mapping[Any, Any]) -> bool:
    properties, values = schema.get("properties"), schema.get("enum")
    _check_bound("keys of an object", len(schema), MAX_PROPERTIES)
    if isinstance(properties, Mapping):
        _check_bound("properties of an object", len(properties), MAX_PROPERTIES)
    if isinstance(values, list | tuple):
        _check_bound("values of an enumeration", len(values), MAX_ENUM)
    if isinstance(pattern := schema.get("pattern"), str):
        _check_bound("characters of a pattern", len(pattern), MAX_PATTERN_CHARS)
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int | float) and isfinite(multiple):
        _check_bound("the multiple of a number", multiple, MAX_MULTIPLE)
    counts = [schema.get(key, 0) for key in _COUNTS]
    is_large = any(isinstance(count, int | float) and count > _MAX_DIRECT_COUNT for count in counts)
    return is_large or not _COSTLY.isdisjoint(schema)


def _check_bound(noun: str, value: float, bound: int) -> None:
    if value > bound:
        raise SampleInvalid(
            f"the schema is too large to constrain: {noun}",
            value=f"{value:,}",
            expected=f"at most {bound:,}",
            hint="simplify the schema, or decode without the constraint",
        )


def compile_grammar(text: str, *, needs_trial: bool) -> None:
    """Checks that a grammar can be compiled in this process, in another one if it may be costly.

    Args:
        text: in llguidance's notation.
        needs_trial: as `check_schemas` returned it; a long grammar is tried in any case.
    Raises:
        SampleInvalid: the grammar is too long, or compiling it exceeds the limits of time, memory or stack.
    """
    _check_bound("characters of its grammar", len(text), MAX_GRAMMAR_CHARS)
    if not needs_trial and len(text) <= MAX_DIRECT_CHARS:
        return
    _, failure = _TRIAL.call(text)
    if failure:
        raise SampleInvalid(
            "the schema is too complex to constrain",
            value=failure,
            expected=f"a grammar that compiles within {_TRIAL.wall_s:g} s and {_TRIAL.memory_mb} MiB",
            hint="simplify the schema, or decode without the constraint",
        )


def try_grammar(text: str) -> str:
    """Compiles a grammar over bytes on a small stack, and returns the library's error; "" for a good grammar."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    limits = LLParserLimits(max_items_in_row=MAX_ROW_ITEMS)
    errors: list[str] = []

    def compile_text() -> None:
        matcher = LLMatcher(LLTokenizer(TokenizerWrapper(_Bytes())), text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        copied = matcher.deep_copy()
        errors.append(copied.get_error() if copied.is_error() else "")

    previous = threading.stack_size(_TRIAL_STACK)
    try:
        thread = threading.Thread(target=compile_text)
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    return errors[0][:300]


class _Bytes:
    """A vocabulary of the 256 bytes and an end, as llguidance wants it."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        """Returns no tokens; grammars are matched here without forced text."""
        return []


_TRIAL = SharedWorker(try_grammar, wall_s=_TRIAL_S, memory_mb=_TRIAL_MIB, warmup_args=['start: "a"\n'])
