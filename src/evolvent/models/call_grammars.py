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

from evolvent.errors import ConfigError, SampleInvalid, unknown
from evolvent.grade.call_forms import spelled
from evolvent.grade.literals import python_source
from evolvent.messages import Tool
from evolvent.models.call_schemas import Limits, Narrow, narrow

__all__ = ["FORMS", "CallForm", "Grammar", "grammar"]

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
_LARGEST = 10**15
_WHOLE = "/-?(0|[1-9][0-9]{0,14})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,17})?(e[-+]?[0-9]{1,2})?/"  # none of them is infinite
_WORD = r'/[^ "\\]+ /'
_SMALL = 1000  # so many whole numbers are written out; words of a text


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in Lark's notation, and the words that it spells (of a spaced one; else none)."""

    text: str
    words: frozenset[str] = frozenset()


def grammar(
    tools: Sequence[Tool],
    *,
    form: CallForm,
    limits: Limits,
    abstain: str | None = "[]",
    fenced: bool = False,
    spaced: bool = False,
    marks: Mapping[str, int] | None = None,
) -> Grammar:
    """The grammar of answers to a request with these tools.

    Args:
        abstain: what is written where nothing is called; None: something must be called.
        fenced: a fence of back-quotes may stand around the answer.
        spaced: for a vocabulary of whole words. marks: tokens that stand for a tag of "xml".
    Raises:
        SampleInvalid: tools that cannot be told apart, names that the form cannot hold, or see `call_schemas.narrow`.
        ConfigError: an unknown form; no tools, and something must be called.
    """
    if form not in FORMS:
        raise ConfigError([unknown("form", form, FORMS)])
    if not tools and abstain is None:
        raise ConfigError("something must be called, and there are no tools", hint="allow an answer without calls")
    if spaced and form != "words":
        raise ConfigError("a vocabulary of whole words writes calls in words", value=form, expected="words")
    if len({tool.name for tool in tools}) < len(tools):
        raise SampleInvalid("two tools with one name", value=[tool.name for tool in tools])
    made = _Rules(form, spaced, marks or {})
    narrowed = [(tool, narrow(tool, limits)) for tool in tools]
    answer = made.answer(narrowed, limits.calls) if tools else ""
    said = [] if abstain is None else [made.literal(abstain)]
    whole = " | ".join(filter(None, [answer, *said]))
    if fenced:
        whole = f'({whole}) | "```\\n" ({whole}) "\\n```"'
    first = "" if spaced else '" "? '
    return Grammar(f"{_HEAD}start: {first}({whole})\n" + "\n".join(made.rules) + "\n", frozenset(made.words))


@dataclass(slots=True)
class _Rules:
    """The rules so far. What methods return is an expression of the notation."""

    form: CallForm
    spaced: bool
    marks: Mapping[str, int]
    rules: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    known: dict[str, str] = field(default_factory=dict)

    def rule(self, body: str) -> str:
        """A name for an expression; equal ones have one name."""
        if body not in self.known:
            self.known[body] = f"r{len(self.known)}"
            self.rules.append(f"{self.known[body]}: {body}")
        return self.known[body]

    def literal(self, text: str) -> str:
        """This text, and nothing else."""
        if not self.spaced:
            return json.dumps(text, ensure_ascii=False)
        pieces = _PIECE.findall(text)
        self.words.update(pieces)
        return " ".join([json.dumps(f"{piece} ", ensure_ascii=False) for piece in pieces])

    def answer(self, tools: Sequence[tuple[Tool, Narrow]], most: int) -> str:
        """One call or more."""
        row = self.object_call if self.form in ("json", "xml") else self.python_call
        _distinct([self.spelled(tool.name) for tool, _ in tools], "tools")
        call = self.rule(" | ".join([row(tool, schema) for tool, schema in tools]))
        if self.form == "xml":
            call = self.rule(f'{self.tag("<tool_call>")} "\\n" {call} "\\n" {self.tag("</tool_call>")}')
            more = f'"\\n" {call}'
            return f"{call} {_times(more, 0, most - 1)}"
        return f"{self.literal('[')} {call} {_times(f'{self.separator} {call}', 0, most - 1)} {self.literal(']')}"

    def object_call(self, tool: Tool, schema: Narrow) -> str:
        """`{"name": ..., "arguments": {...}}`."""
        self.untagged(tool.name)
        opening = self.literal(f'{{"name": {_json(tool.name)}, "arguments": ')
        return f"{opening} {self.mapping(schema)} {self.literal('}')}"

    def python_call(self, tool: Tool, schema: Narrow) -> str:
        """`name(parameter=value, ...)`."""
        if schema["additionalProperties"] is not None:
            raise SampleInvalid(f"the tool {tool.name!r} does not name its parameters", hint="use the form json")
        names = [self.spelled(name) for name in schema["properties"]]
        _distinct(names, f"parameters of {tool.name!r}")
        _readable([self.spelled(tool.name), *names], words=self.form == "words")
        parts = [
            (f"{self.literal(f'{name}=')} {self.value(one)}", key in schema["required"])
            for name, (key, one) in zip(names, schema["properties"].items(), strict=True)
        ]
        inside = self.listed(parts, least=schema["minProperties"])
        return f"{self.literal(self.spelled(tool.name) + '(')} {inside} {self.literal(')')}"

    def tag(self, text: str) -> str:
        """A tag around a call, in letters or as the token that a tokenizer has for it."""
        return f"({self.literal(text)} | <[{self.marks[text]}]>)" if text in self.marks else self.literal(text)

    def untagged(self, text: str) -> None:
        """Raises SampleInvalid for a text that may look like a tag where there are tags."""
        if self.form == "xml" and _TAGGED.search(text):
            raise SampleInvalid("a name or value looks like a tag of a call", value=text, hint="use the form json")

    @property
    def separator(self) -> str:
        return self.literal(",") if self.spaced else '", "'

    def spelled(self, name: str) -> str:
        """A name as the form writes it."""
        return spelled(name) if self.form == "words" else name

    def schema(self, schema: Mapping[str, Any]) -> str:
        """A value that a JSON Schema describes, by llguidance's own rules."""
        return self.rule(f"%json {json.dumps({'x-guidance': _JSON, **schema}, ensure_ascii=False)}")

    def listed(self, parts: Sequence[tuple[str, bool]], *, least: int) -> str:
        """Parts in their order with separators between; a part is required or not, and `least` (0 or 1) are there."""
        tails = [""] * (len(parts) + 1)
        for at in range(len(parts) - 1, -1, -1):
            body, needed = parts[at]
            one = f"{self.separator} {self.rule(body)}"
            tails[at] = self.rule(f"{one if needed else f'({one})?'} {tails[at + 1]}".strip())
        heads, open_ = [], True
        for at, (body, needed) in enumerate(parts):
            heads.append(f"{self.rule(body)} {tails[at + 1]}".strip())
            if needed:
                open_ = False
                break
        if not heads:
            return ""
        return f"({' | '.join(heads)}){'?' if open_ and not least else ''}"

    def value(self, schema: Narrow) -> str:
        """A literal that a narrow schema describes."""
        if "anyOf" in schema:
            return self.rule(" | ".join([self.value(one) for one in schema["anyOf"]]))
        if "enum" in schema:
            return self.rule(" | ".join(self.constants(schema["enum"])))
        kind = schema["type"]
        if kind in ("integer", "number"):
            return self.number(schema)
        if kind == "string":
            return self.text(schema)
        if kind == "boolean":
            return self.rule(" | ".join(self.constants([True, False])))
        if kind == "null":
            return self.rule(" | ".join(self.constants([None])))
        return self.array(schema) if kind == "array" else self.mapping(schema)

    def constants(self, values: Sequence[Any]) -> list[str]:
        """Literals of values; in words a text that is not read back as it is cannot be one of them."""
        if self.form in ("json", "xml"):
            self.untagged(_json(values))
            return [self.literal(_json(value)) for value in values]
        if self.form == "python":
            return [self.literal(_source(value)) for value in values]
        kept = [value for value in values if _plain_words(value, spaced=self.spaced)]
        if not kept:
            raise SampleInvalid(
                "none of the accepted values can be written in words",
                value=list(values),
                hint="use the form json or python",
            )
        return [self.literal(_source(value)) for value in kept]  # with their keys: no schema gives those back

    def number(self, schema: Narrow) -> str:
        whole, bounded = schema["type"] == "integer", "minimum" in schema
        if not self.spaced:
            return self.schema(schema) if bounded else self.rule(_WHOLE if whole else _NUMBER)
        low, high = (schema["minimum"], schema["maximum"]) if bounded else (-_LARGEST, _LARGEST)
        if whole and high - low <= _SMALL:
            step = schema.get("multipleOf", 1)
            return self.rule(" | ".join(self.constants(range(low, high + 1, step))))
        if "multipleOf" in schema or high < _LARGEST or low not in (0, 1, -_LARGEST) or (low == 1 and not whole):
            raise SampleInvalid(
                "bounds of a number that words cannot hold",
                value=dict(schema),
                expected="whole numbers close together, or 0 or 1 as the lower bound",
            )
        digits = "/[1-9][0-9]{0,14} /" if low == 1 else "/(0|[1-9][0-9]{0,14}) /"
        sign = f"({self.literal('-')})? " if low < 0 else ""
        return self.rule(f"{sign}{digits}" + ("" if whole else f" ({self.literal('.')} /[0-9]{{1,15}} /)?"))

    def text(self, schema: Narrow) -> str:
        least, most = schema["minLength"], schema["maxLength"]
        if self.form == "xml":
            patterns = [{"pattern": one} for one in (_NO_TAG, schema.get("pattern")) if one]
            return self.schema({"type": "string", "minLength": least, "maxLength": most, "allOf": patterns})
        if self.form != "words":
            return self.schema(schema)
        if "pattern" in schema or least > 1:
            raise SampleInvalid(
                "a text that words cannot hold to its schema",
                value=dict(schema),
                expected="no pattern, and no least length above 1",
            )
        if not self.spaced:
            inner = f'[^"\\\\\\x00-\\x20\\x7f]( ?[^"\\\\\\x00-\\x20\\x7f]){{0,{max(most - 1, 0)}}}'
            return self.rule(f'/"{inner if least else f"({inner})?"}"/' if most else '"\\"\\""')
        mark = self.literal('"')
        return self.rule(f"{mark} {_times(_WORD, least, min(most, _SMALL))} {mark}")

    def array(self, schema: Narrow) -> str:
        first = [(self.value(one), True) for one in schema["prefixItems"]]
        least, most, items = schema["minItems"], schema["maxItems"], schema["items"]
        opening, closing = self.literal("["), self.literal("]")
        if items is None or most == len(first):
            return self.rule(f"{opening} {self.listed(first, least=0)} {closing}")
        item = self.rule(self.value(items))
        if first:
            more = _times(f"{self.separator} {item}", least - len(first), most - len(first))
            return self.rule(f"{opening} {self.listed(first, least=0)} {more} {closing}")
        inside = f"{item} {_times(f'{self.separator} {item}', max(least - 1, 0), most - 1)}"
        return self.rule(f"{opening} {inside if least else f'({inside})?'} {closing}")

    def mapping(self, schema: Narrow) -> str:
        opening, closing = self.literal("{"), self.literal("}")
        if schema["additionalProperties"] is not None:
            key = self.text({"type": "string", "minLength": 1, "maxLength": 8 if self.spaced else 64})
            one = f"{key} {self.colon} {self.value(schema['additionalProperties'])}"
            return self.rule(f"{opening} {one if schema['minProperties'] else f'({one})?'} {closing}")
        names = [self.spelled(name) for name in schema["properties"]]
        _distinct(names, "properties of an object")
        if self.form == "words" and any(set(name) & set(_QUOTES) for name in names):
            raise SampleInvalid("names of properties that words cannot hold", value=names, hint="use the form json")
        self.untagged(" ".join(names))
        parts = [
            (f"{self.literal(_json(name))} {self.colon} {self.value(one)}", key in schema["required"])
            for name, (key, one) in zip(names, schema["properties"].items(), strict=True)
        ]
        return self.rule(f"{opening} {self.listed(parts, least=schema['minProperties'])} {closing}")

    @property
    def colon(self) -> str:
        return self.literal(":") if self.spaced else '": "'


# ---------------------------------------------------------------------------------------------------- names


def _plain_words(value: Any, *, spaced: bool) -> bool:
    """Whether every text of a value is read back from words as it is."""
    if isinstance(value, Mapping):
        return all(_plain_words(one, spaced=spaced) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple)):
        return all(_plain_words(one, spaced=spaced) for one in value)
    if not isinstance(value, str):
        return not (isinstance(value, float) and spaced and "e" in repr(value))
    pieces = _PIECE.findall(value) if spaced else value.split()
    return value == " ".join(pieces) and not set(value) & set(_QUOTES)


def _source(value: Any) -> str:
    """A literal of Python whose texts stand in double quotes."""
    if isinstance(value, str):
        return _json(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_json(str(key))}: {_source(one)}' for key, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_source, value))}]"
    return python_source(value)


def _times(body: str, least: int, most: int) -> str:
    return f"({body}){{{least},{most}}}" if most else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _distinct(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise SampleInvalid(f"{what} that cannot be told apart", value=list(names), expected="different names")


def _readable(names: Sequence[str], *, words: bool) -> None:
    """Raises SampleInvalid for names that Python's form, or words, cannot hold."""
    for name in names:
        # In words a number ends a name, as it ends a value.
        broken = words and re.search(r"(?:^|\W)\d\w*\s\w", name) is not None
        if broken or not _NAME.fullmatch(name.replace(" ", "") if words else name):
            raise SampleInvalid("a name that the form of calls cannot hold", value=name, hint="use the form json")
