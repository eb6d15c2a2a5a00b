"""Grammars of calls: for tools and a form, every answer that parses, names an offered tool and fits its schema.

The text is a grammar in the Lark dialect of llguidance, whose JSON Schema is used for texts and bounded numbers alone.
"words" is Python's form with names in pieces (`[find hotel(city="oslo")]`); `spaced` writes it for a vocabulary of
whole words, a space behind every word and mark. Arguments stand in the order of their schema, and separators are those
of `grade.calls.encode_calls`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evolvent.errors import ConfigError, SampleInvalid, unknown_name_problem
from evolvent.grade.call_forms import spell_name
from evolvent.grade.literals import format_python_literal
from evolvent.messages import Tool
from evolvent.models.call_schemas import AnswerLimits, Narrow, close_exclusive_bounds, narrow_schema
from evolvent.models.grammar_limits import MAX_GRAMMAR_CHARS, count_values
from evolvent.trajectory import JsonObject

__all__ = ["FORMS", "CallForm", "Grammar", "build_grammar"]

CallForm = Literal["words", "python", "json", "xml"]
FORMS: tuple[str, ...] = ("words", "python", "json", "xml")
_HEAD = '%llguidance {"no_forcing": true}\n'  # forced text would be tokenized in another way than models write it
_JSON: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',  # no \u: half of a pair is no character
}
_NAME = re.compile(r"[^\s=,()\[\]{}\"'`:;#<>]+")
_PIECE = re.compile(r"\w+|[^\w\s]")
_TAGGED = re.compile(r"<[<t/fp]")  # how a tag of a call may begin
_NO_TAG = "^([^<]|<+[^<t/fp])*<*$"
_QUOTES = "\"\\'"
_MAX_NUMBER = 10**15
_WHOLE = "/-?(0|[1-9][0-9]{0,14})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,17})?(e[-+]?[0-9]{1,2})?/"  # none of them is infinite
_WORD = r'/[^ "\\]+ /'
_MAX_ENUMERATED = 1000  # so many whole numbers are written out; words of a text


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in Lark's notation, and its vocabulary (of a spaced grammar; otherwise empty)."""

    text: str
    vocabulary: frozenset[str] = frozenset()


def build_grammar(
    tools: Sequence[Tool],
    *,
    form: CallForm,
    limits: AnswerLimits,
    abstain: str | None = "[]",
    fenced: bool = False,
    spaced: bool = False,
    marks: Mapping[str, int] | None = None,
    answer_schema: JsonObject | None = None,
) -> Grammar:
    """Builds the grammar of answers to a request with these tools.

    Args:
        abstain: the text of an answer without calls; None: a call is required.
        fenced: a fence of back-quotes may stand around the answer.
        spaced: for a vocabulary of whole words. marks: tokens that stand for a tag of "xml".
        answer_schema: an answer without calls may also be JSON of this schema.
    Raises:
        SampleInvalid: tools that cannot be told apart, names that the form cannot hold, or see
            `call_schemas.narrow_schema`.
        ConfigError: an unknown form; no tools, and a call is required.
    """
    if form not in FORMS:
        raise ConfigError([unknown_name_problem("form", form, FORMS)])
    if not tools and abstain is None:
        raise ConfigError(
            "a call is required, but the tool list is empty", hint="add tools, or allow an answer without calls"
        )
    if spaced and form != "words":
        raise ConfigError("a word-level vocabulary supports only one call format", value=form, expected="words")
    if len({tool.name for tool in tools}) < len(tools):
        raise SampleInvalid("two tools have the same name", value=[tool.name for tool in tools])
    builder = _RuleBuilder(form, spaced, marks or {})
    narrowed, num_values = list[tuple[Tool, Narrow]](), 0
    for tool in tools:
        narrowed.append((tool, narrow_schema(tool, limits)))
        num_values = count_values(narrowed[-1][1], num_values)
    answer = builder.answer(narrowed, limits.calls) if tools else ""
    alternatives = [] if abstain is None else [builder.literal(abstain)]
    expression = " | ".join(filter(None, [answer, *alternatives]))
    if fenced:
        expression = f'({expression}) | "```\\n" ({expression}) "\\n```"'
    if answer_schema is not None:
        expression = f"{expression} | {builder.json_rule(close_exclusive_bounds(answer_schema))}"
    prefix = "" if spaced else '" "? '
    return Grammar(
        f"{_HEAD}start: {prefix}({expression})\n" + "\n".join(builder.rules) + "\n", frozenset(builder.vocabulary)
    )


@dataclass(slots=True)
class _RuleBuilder:
    """The rules so far. Methods return expressions in the grammar's notation."""

    form: CallForm
    spaced: bool
    marks: Mapping[str, int]
    rules: list[str] = field(default_factory=list)
    vocabulary: set[str] = field(default_factory=set)
    rule_names: dict[str, str] = field(default_factory=dict)
    num_chars: int = 0

    def add_rule(self, body: str) -> str:
        """Returns the name of an expression; equal expressions share one name."""
        if body not in self.rule_names:
            self.num_chars += len(body)
            if self.num_chars > MAX_GRAMMAR_CHARS:
                raise SampleInvalid(
                    "the schemas are too large to constrain",
                    value=f"more than {MAX_GRAMMAR_CHARS:,} characters of grammar",
                    expected="fewer tools, or simpler schemas",
                )
            self.rule_names[body] = f"r{len(self.rule_names)}"
            self.rules.append(f"{self.rule_names[body]}: {body}")
        return self.rule_names[body]

    def literal(self, text: str) -> str:
        """Returns an expression for exactly this text."""
        if not self.spaced:
            return json.dumps(text, ensure_ascii=False)
        pieces = _PIECE.findall(text)
        self.vocabulary.update(pieces)
        return " ".join([json.dumps(f"{piece} ", ensure_ascii=False) for piece in pieces])

    def answer(self, tools: Sequence[tuple[Tool, Narrow]], max_calls: int) -> str:
        """Returns an expression for one or more calls."""
        build_call = self.object_call if self.form in ("json", "xml") else self.python_call
        _check_distinct([self.spell(tool.name) for tool, _ in tools], "tools")
        call = self.add_rule(" | ".join([build_call(tool, schema) for tool, schema in tools]))
        if self.form == "xml":
            call = self.add_rule(f'{self.tag("<tool_call>")} "\\n" {call} "\\n" {self.tag("</tool_call>")}')
            next_call = f'"\\n" {call}'
            return f"{call} {_repeat(next_call, 0, max_calls - 1)}"
        return f"{self.literal('[')} {call} {_repeat(f'{self.separator} {call}', 0, max_calls - 1)} {self.literal(']')}"

    def object_call(self, tool: Tool, schema: Narrow) -> str:
        """Builds a call of the form `{"name": ..., "arguments": {...}}`."""
        self.refuse_tag(tool.name)
        opening = self.literal(f'{{"name": {_json(tool.name)}, "arguments": ')
        return f"{opening} {self.mapping(schema)} {self.literal('}')}"

    def python_call(self, tool: Tool, schema: Narrow) -> str:
        """Builds a call of the form `name(parameter=value, ...)`."""
        if schema["additionalProperties"] is not None:
            raise SampleInvalid(f"the tool {tool.name!r} does not name its parameters", hint="set the form to json")
        names = [self.spell(name) for name in schema["properties"]]
        _check_distinct(names, f"parameters of {tool.name!r}")
        _check_readable([self.spell(tool.name), *names], in_words=self.form == "words")
        parts = [
            (f"{self.literal(f'{name}=')} {self.value(property_schema)}", key in schema["required"])
            for name, (key, property_schema) in zip(names, schema["properties"].items(), strict=True)
        ]
        arguments = self.sequence(parts, min_count=schema["minProperties"])
        return f"{self.literal(self.spell(tool.name) + '(')} {arguments} {self.literal(')')}"

    def tag(self, text: str) -> str:
        """Returns a tag around a call, as letters or as the tokenizer's token for it."""
        return f"({self.literal(text)} | <[{self.marks[text]}]>)" if text in self.marks else self.literal(text)

    def refuse_tag(self, text: str) -> None:
        """Raises SampleInvalid for a text that may look like a tag in a form with tags."""
        if self.form == "xml" and _TAGGED.search(text):
            raise SampleInvalid("a name or value looks like the tag of a call", value=text, hint="set the form to json")

    @property
    def separator(self) -> str:
        return self.literal(",") if self.spaced else '", "'

    def spell(self, name: str) -> str:
        """Returns a name in the form's spelling."""
        return spell_name(name) if self.form == "words" else name

    def json_rule(self, schema: Mapping[str, Any]) -> str:
        """Returns a rule for a JSON Schema, by llguidance's own rules."""
        return self.add_rule(f"%json {json.dumps({'x-guidance': _JSON, **schema}, ensure_ascii=False)}")

    def sequence(self, parts: Sequence[tuple[str, bool]], *, min_count: int) -> str:
        """Joins parts in order with separators; each part is required or optional, and `min_count` (0 or 1) are
        there.
        """
        bodies = [self.add_rule(body) for body, _ in parts]
        cells = [
            f"{self.separator} {body}" if is_required else f"({self.separator} {body})?"
            for body, (_, is_required) in zip(bodies, parts, strict=True)
        ]
        segments: dict[tuple[int, int], str] = {}
        heads, may_be_empty = [], True
        for index, (_, is_required) in enumerate(parts):
            heads.append(" ".join([bodies[index], *self.tail(cells, segments, index + 1)]))
            if is_required:
                may_be_empty = False
                break
        if not heads:
            return ""
        return f"({' | '.join(heads)}){'?' if may_be_empty and not min_count else ''}"

    def join(self, cells: Sequence[str], segments: dict[tuple[int, int], str], low: int, high: int) -> str:
        """Returns the rule of `cells[low:high]` in order, which is not empty: it holds two halves, each a rule.

        So rules are as deep as the logarithm of their number; in a chain they would be as deep as it is long.
        """
        if (low, high) not in segments:
            middle = (low + high) // 2
            halves = [self.join(cells, segments, *half) for half in ((low, middle), (middle, high)) if high - low > 1]
            segments[low, high] = self.add_rule(" ".join(halves) or cells[low])
        return segments[low, high]

    def tail(self, cells: Sequence[str], segments: dict[tuple[int, int], str], start: int) -> list[str]:
        """Returns the rules of `cells[start:]` in order: no more than the logarithm of their number."""
        rules, low, high = list[str](), 0, len(cells)
        while low < start < high:
            middle = (low + high) // 2
            if start < middle:
                rules.append(self.join(cells, segments, middle, high))
                high = middle
            else:
                low = middle
        return [self.join(cells, segments, low, high), *reversed(rules)] if start < high else []

    def value(self, schema: Narrow) -> str:
        """Returns an expression for a literal that a narrow schema describes."""
        if "anyOf" in schema:
            return self.add_rule(" | ".join([self.value(branch) for branch in schema["anyOf"]]))
        if "enum" in schema:
            return self.add_rule(" | ".join(self.constants(schema["enum"])))
        kind = schema["type"]
        if kind in ("integer", "number"):
            return self.number(schema)
        if kind == "string":
            return self.text(schema)
        if kind == "boolean":
            return self.add_rule(" | ".join(self.constants([True, False])))
        if kind == "null":
            return self.add_rule(" | ".join(self.constants([None])))
        return self.array(schema) if kind == "array" else self.mapping(schema)

    def constants(self, values: Sequence[Any]) -> list[str]:
        """Returns literals of values; in words, values that are not read back unchanged are left out."""
        if self.form in ("json", "xml"):
            self.refuse_tag(_json(values))
            return [self.literal(_json(value)) for value in values]
        if self.form == "python":
            return [self.literal(_source(value)) for value in values]
        writable = [value for value in values if _plain_words(value, spaced=self.spaced)]
        if not writable:
            raise SampleInvalid(
                "cannot write any accepted value in words",
                value=list(values),
                hint="set the form to json or python",
            )
        return [self.literal(_source(value)) for value in writable]  # with their keys: no schema gives those back

    def number(self, schema: Narrow) -> str:
        is_integer, is_bounded = schema["type"] == "integer", "minimum" in schema
        if not self.spaced:
            return self.json_rule(schema) if is_bounded else self.add_rule(_WHOLE if is_integer else _NUMBER)
        low, high = (schema["minimum"], schema["maximum"]) if is_bounded else (-_MAX_NUMBER, _MAX_NUMBER)
        if is_integer and high - low <= _MAX_ENUMERATED:
            step = schema.get("multipleOf", 1)
            return self.add_rule(" | ".join(self.constants(range(low, high + 1, step))))
        if (
            "multipleOf" in schema
            or high < _MAX_NUMBER
            or low not in (0, 1, -_MAX_NUMBER)
            or (low == 1 and not is_integer)
        ):
            raise SampleInvalid(
                "cannot express the bounds of a number in words",
                value=dict(schema),
                expected="a small range of whole numbers, or 0 or 1 as the lower bound",
            )
        digits = "/[1-9][0-9]{0,14} /" if low == 1 else "/(0|[1-9][0-9]{0,14}) /"
        sign = f"({self.literal('-')})? " if low < 0 else ""
        return self.add_rule(f"{sign}{digits}" + ("" if is_integer else f" ({self.literal('.')} /[0-9]{{1,15}} /)?"))

    def text(self, schema: Narrow) -> str:
        min_length, max_length = schema["minLength"], schema["maxLength"]
        if self.form == "xml":
            patterns = [{"pattern": pattern} for pattern in (_NO_TAG, schema.get("pattern")) if pattern]
            return self.json_rule(
                {"type": "string", "minLength": min_length, "maxLength": max_length, "allOf": patterns}
            )
        if self.form != "words":
            return self.json_rule(schema)
        if "pattern" in schema or min_length > 1:
            raise SampleInvalid(
                "cannot constrain a text to its schema in words",
                value=dict(schema),
                expected="a text without pattern and with minLength of at most 1",
            )
        if not self.spaced:
            inner = f'[^"\\\\\\x00-\\x20\\x7f]( ?[^"\\\\\\x00-\\x20\\x7f]){{0,{max(max_length - 1, 0)}}}'
            return self.add_rule(f'/"{inner if min_length else f"({inner})?"}"/' if max_length else '"\\"\\""')
        mark = self.literal('"')
        return self.add_rule(f"{mark} {_repeat(_WORD, min_length, min(max_length, _MAX_ENUMERATED))} {mark}")

    def array(self, schema: Narrow) -> str:
        prefix_items = [(self.value(item_schema), True) for item_schema in schema["prefixItems"]]
        min_items, max_items, items = schema["minItems"], schema["maxItems"], schema["items"]
        opening, closing = self.literal("["), self.literal("]")
        if items is None or max_items == len(prefix_items):
            return self.add_rule(f"{opening} {self.sequence(prefix_items, min_count=0)} {closing}")
        item = self.add_rule(self.value(items))
        if prefix_items:
            further_items = _repeat(
                f"{self.separator} {item}", min_items - len(prefix_items), max_items - len(prefix_items)
            )
            return self.add_rule(f"{opening} {self.sequence(prefix_items, min_count=0)} {further_items} {closing}")
        inside = f"{item} {_repeat(f'{self.separator} {item}', max(min_items - 1, 0), max_items - 1)}"
        return self.add_rule(f"{opening} {inside if min_items else f'({inside})?'} {closing}")

    def mapping(self, schema: Narrow) -> str:
        opening, closing = self.literal("{"), self.literal("}")
        if schema["additionalProperties"] is not None:
            key = self.text({"type": "string", "minLength": 1, "maxLength": 8 if self.spaced else 64})
            property_schema = f"{key} {self.colon} {self.value(schema['additionalProperties'])}"
            return self.add_rule(
                f"{opening} {property_schema if schema['minProperties'] else f'({property_schema})?'} {closing}"
            )
        names = [self.spell(name) for name in schema["properties"]]
        _check_distinct(names, "properties of an object")
        if self.form == "words" and any(set(name) & set(_QUOTES) for name in names):
            raise SampleInvalid("cannot write property names in words", value=names, hint="set the form to json")
        self.refuse_tag(" ".join(names))
        parts = [
            (f"{self.literal(_json(name))} {self.colon} {self.value(property_schema)}", key in schema["required"])
            for name, (key, property_schema) in zip(names, schema["properties"].items(), strict=True)
        ]
        return self.add_rule(f"{opening} {self.sequence(parts, min_count=schema['minProperties'])} {closing}")

    @property
    def colon(self) -> str:
        return self.literal(":") if self.spaced else '": "'


# ---------------------------------------------------------------------------------------------------- names


def _plain_words(value: Any, *, spaced: bool) -> bool:
    """Returns whether every text of a value is read back from words unchanged."""
    if isinstance(value, Mapping):
        return all(_plain_words(element, spaced=spaced) for pair in value.items() for element in pair)
    if isinstance(value, (list, tuple)):
        return all(_plain_words(element, spaced=spaced) for element in value)
    if not isinstance(value, str):
        return not (isinstance(value, float) and spaced and "e" in repr(value))
    pieces = _PIECE.findall(value) if spaced else value.split()
    return value == " ".join(pieces) and not set(value) & set(_QUOTES)


def _source(value: Any) -> str:
    """Returns a Python literal with its texts in double quotes."""
    if isinstance(value, str):
        return _json(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_json(str(key))}: {_source(element)}' for key, element in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_source, value))}]"
    return format_python_literal(value)


def _repeat(body: str, min_count: int, max_count: int) -> str:
    return f"({body}){{{min_count},{max_count}}}" if max_count else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check_distinct(names: Sequence[str], noun: str) -> None:
    if len(set(names)) < len(names):
        raise SampleInvalid(f"ambiguous {noun}", value=list(names), expected="different names")


def _check_readable(names: Sequence[str], *, in_words: bool) -> None:
    """Raises SampleInvalid for names that Python's form, or words, cannot hold."""
    for name in names:
        # In words a number ends a name, as it ends a value.
        has_inner_number = in_words and re.search(r"(?:^|\W)\d\w*\s\w", name) is not None
        if has_inner_number or not _NAME.fullmatch(name.replace(" ", "") if in_words else name):
            raise SampleInvalid("the call format cannot write a name", value=name, hint="set the form to json")
