"""Slots: the parameters of tools, their descriptions, and the phrases that state their values.

A slot is a parameter with phrases. `schema` returns its JSON schema, `draw` draws a value, `render_phrase`
renders a phrase in which a user states that value. Phrases hold the value as it stands (numbers as digits), so
every value can be read off a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from numpy.random import Generator

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json

__all__ = [
    "Kind",
    "Slot",
    "array_slot",
    "boolean_slot",
    "choice_slot",
    "integer_slot",
    "number_slot",
    "object_slot",
    "pick",
    "text_slot",
]

Kind = Literal["string", "integer", "number", "boolean", "array", "object"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter and its phrases.

    Args:
        name: name of the parameter, in snake case.
        kind: its type in JSON Schema.
        about: its description.
        phrases: phrases that state a value, with `{}` in its place; for a boolean, phrases that state true.
        values: values that may be drawn; for an array, its possible items.
        false_phrases: for a boolean, phrases that state false.
        is_enum: whether the schema lists the values (enum).
        default: value of an omitted optional parameter; None: the parameter is required.
        parts: for an object, its own slots, each of which may be omitted, but not all.
    Raises:
        ConfigError: a phrase has no place for the value, or no value can be drawn.
    """

    name: str
    kind: Kind
    about: str
    phrases: tuple[str, ...]
    values: tuple[Json, ...] = ()
    false_phrases: tuple[str, ...] = ()
    is_enum: bool = False
    default: Json = None
    parts: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if self.kind != "boolean" and any(phrase.count("{}") != 1 for phrase in self.phrases):
            problems.append(
                Problem(self.name, f"got the phrases {self.phrases}", "give each phrase one place for the value")
            )
        if not self.phrases or not (self.values or self.parts or (self.kind == "boolean" and self.false_phrases)):
            problems.append(Problem(self.name, "the slot has no phrases or values", "add phrases and values"))
        if problems:
            raise ConfigError(problems)

    @property
    def optional(self) -> bool:
        return self.default is not None

    def with_default(self, default: Json) -> Slot:
        """Returns the same slot as an optional one with a default."""
        return replace(self, default=default)

    def schema(self) -> dict[str, Json]:
        """Returns the JSON Schema of the parameter, with its description and default."""
        row: dict[str, Json] = {"type": self.kind, "description": self.about}
        if self.kind == "array":
            row["items"] = {"type": "integer" if isinstance(self.values[0], int) else "string"}
            row["minItems"] = 1
        elif self.kind == "object":
            row["properties"] = {part.name: part.schema() for part in self.parts}
            row |= {"minProperties": 1, "additionalProperties": False}
        elif self.is_enum:
            row["enum"] = list(self.values)
        return row | ({"default": self.default} if self.optional else {})

    def draw(self, rng: Generator) -> Json:
        """Draws a value; arrays have 2 or 3 different items, objects at least one part."""
        if self.kind == "boolean":
            return bool(rng.integers(2))
        if self.kind == "array":
            indices = rng.permutation(len(self.values))[: 2 + int(rng.integers(2))]
            return [self.values[int(index)] for index in indices]
        if self.kind == "object":
            part_indices = rng.permutation(len(self.parts))[: 1 + int(rng.integers(min(2, len(self.parts))))]
            return {self.parts[index].name: self.parts[index].draw(rng) for index in sorted(map(int, part_indices))}
        return pick(rng, self.values)

    def render_phrase(self, value: Json, rng: Generator) -> str:
        """Renders a phrase that states a value of `draw`."""
        if self.kind == "boolean":
            return pick(rng, self.phrases if value else self.false_phrases)
        return pick(rng, self.phrases).format(self._format_value(value, rng))

    def _format_value(self, value: Json, rng: Generator) -> str:
        if isinstance(value, Mapping):
            part_phrases = [part.render_phrase(value[part.name], rng) for part in self.parts if part.name in value]
            return " and ".join(part_phrases)
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = [str(item) for item in value]
            return ", ".join(items[:-1]) + f" and {items[-1]}"
        return str(value)


def pick(rng: Generator, items: Sequence[T]) -> T:
    """Picks one of the items uniformly."""
    return items[int(rng.integers(len(items)))]


def _split_phrases(phrases: str) -> tuple[str, ...]:
    return tuple(phrases.split(" | "))


def _split_title(title: str) -> tuple[str, str]:
    """Splits `name : description` into name and description."""
    name, _, about = title.partition(" : ")
    return name, about


def text_slot(title: str, phrases: str, values: str) -> Slot:
    """Makes a slot of free text; the title is `name : description`, ` | ` separates phrases, spaces separate values."""
    name, about = _split_title(title)
    return Slot(name, "string", about, _split_phrases(phrases), tuple(values.split()))


def choice_slot(title: str, phrases: str, values: str) -> Slot:
    """Makes a slot whose values the schema lists; written like `text_slot`."""
    return replace(text_slot(title, phrases, values), is_enum=True)


def integer_slot(title: str, phrases: str, values: Sequence[int]) -> Slot:
    """Makes a slot of whole numbers; title and phrases as in `text_slot`."""
    name, about = _split_title(title)
    return Slot(name, "integer", about, _split_phrases(phrases), tuple(values))


def number_slot(title: str, phrases: str, units: Sequence[int]) -> Slot:
    """Makes a slot of numbers with one decimal that is not 0: one of `units` plus .2, .5 or .8."""
    name, about = _split_title(title)
    values = tuple(round(unit + tenth / 10, 1) for unit in units for tenth in (2, 5, 8))
    return Slot(name, "number", about, _split_phrases(phrases), values)


def boolean_slot(title: str, phrases: str, denials: str) -> Slot:
    """Makes a slot of true or false, with the phrases for each."""
    name, about = _split_title(title)
    return Slot(name, "boolean", about, _split_phrases(phrases), false_phrases=_split_phrases(denials))


def array_slot(title: str, phrases: str, values: str | Sequence[int]) -> Slot:
    """Makes a slot of lists of 2 or 3 values: words, written like those of `text_slot`, or whole numbers."""
    name, about = _split_title(title)
    return Slot(
        name, "array", about, _split_phrases(phrases), tuple(values.split() if isinstance(values, str) else values)
    )


def object_slot(title: str, phrases: str, *parts: Slot) -> Slot:
    """Makes a slot of a nested object with optional parts."""
    name, about = _split_title(title)
    return Slot(
        name, "object", about, _split_phrases(phrases), parts=tuple(replace(part, default=None) for part in parts)
    )
