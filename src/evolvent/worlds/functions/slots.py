"""Slots: what a tool takes, how it is described, and how a request says it.

A slot is a parameter with a phrasebook. `schema` is its JSON schema, `draw` a value, `say` a phrase that a user would
use for that value. Phrases hold the value as it stands (numbers as digits), so every value can be read off a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from numpy.random import Generator

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json

__all__ = ["Kind", "Slot", "amount", "choice", "flag", "group", "pick", "several", "text", "whole"]

Kind = Literal["string", "integer", "number", "boolean", "array", "object"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter and its phrasebook.

    Args:
        name: of the parameter, in snake case.
        kind: its type in JSON schema.
        about: its description.
        phrases: how a value is said, with `{}` in its place; of a boolean: how true is said.
        values: what may be drawn; of an array: its items.
        denials: of a boolean: how false is said.
        closed: whether the schema lists the values (enum).
        default: of an optional parameter, what holds where it is left out; None: it is required.
        parts: of an object: its own slots, each of which may be left out, but not all.
    Raises:
        ConfigError: a phrase without a place for the value, or a slot that nothing can be drawn for.
    """

    name: str
    kind: Kind
    about: str
    phrases: tuple[str, ...]
    values: tuple[Json, ...] = ()
    denials: tuple[str, ...] = ()
    closed: bool = False
    default: Json = None
    parts: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if self.kind != "boolean" and any(phrase.count("{}") != 1 for phrase in self.phrases):
            problems.append(Problem(self.name, f"phrases {self.phrases}", "give each one place for the value"))
        if not self.phrases or not (self.values or self.parts or (self.kind == "boolean" and self.denials)):
            problems.append(Problem(self.name, "a slot that cannot be drawn or said", "give phrases and values"))
        if problems:
            raise ConfigError(problems)

    @property
    def optional(self) -> bool:
        return self.default is not None

    def with_default(self, default: Json) -> Slot:
        """The same slot as an optional one."""
        return replace(self, default=default)

    def schema(self) -> dict[str, Json]:
        """The JSON schema of the parameter, with its description and default."""
        row: dict[str, Json] = {"type": self.kind, "description": self.about}
        if self.kind == "array":
            row["items"] = {"type": "integer" if isinstance(self.values[0], int) else "string"}
            row["minItems"] = 1
        elif self.kind == "object":
            row["properties"] = {part.name: part.schema() for part in self.parts}
            row |= {"minProperties": 1, "additionalProperties": False}
        elif self.closed:
            row["enum"] = list(self.values)
        return row | ({"default": self.default} if self.optional else {})

    def draw(self, rng: Generator) -> Json:
        """A value; arrays have 2 or 3 different items, objects at least one part."""
        if self.kind == "boolean":
            return bool(rng.integers(2))
        if self.kind == "array":
            places = rng.permutation(len(self.values))[: 2 + int(rng.integers(2))]
            return [self.values[int(place)] for place in places]
        if self.kind == "object":
            kept = rng.permutation(len(self.parts))[: 1 + int(rng.integers(min(2, len(self.parts))))]
            return {self.parts[place].name: self.parts[place].draw(rng) for place in sorted(map(int, kept))}
        return pick(rng, self.values)

    def say(self, value: Json, rng: Generator) -> str:
        """A phrase for a value that `draw` may give."""
        if self.kind == "boolean":
            return pick(rng, self.phrases if value else self.denials)
        return pick(rng, self.phrases).format(self._told(value, rng))

    def _told(self, value: Json, rng: Generator) -> str:
        if isinstance(value, Mapping):
            said = [part.say(value[part.name], rng) for part in self.parts if part.name in value]
            return " and ".join(said)
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = [str(item) for item in value]
            return ", ".join(items[:-1]) + f" and {items[-1]}"
        return str(value)


def pick(rng: Generator, items: Sequence[T]) -> T:
    """One of the items, drawn evenly."""
    return items[int(rng.integers(len(items)))]


def _listed(phrases: str) -> tuple[str, ...]:
    return tuple(phrases.split(" | "))


def _titled(title: str) -> tuple[str, str]:
    """The name and the description in `name : description`."""
    name, _, about = title.partition(" : ")
    return name, about


def text(title: str, phrases: str, values: str) -> Slot:
    """A free text. The title is `name : description`; phrases are separated by ` | `, values (words) by spaces."""
    name, about = _titled(title)
    return Slot(name, "string", about, _listed(phrases), tuple(values.split()))


def choice(title: str, phrases: str, values: str) -> Slot:
    """One of the values that the schema lists; written like `text`."""
    return replace(text(title, phrases, values), closed=True)


def whole(title: str, phrases: str, values: Sequence[int]) -> Slot:
    """One of some whole numbers; title and phrases as in `text`."""
    name, about = _titled(title)
    return Slot(name, "integer", about, _listed(phrases), tuple(values))


def amount(title: str, phrases: str, units: Sequence[int]) -> Slot:
    """A number with one decimal that is not 0: one of some whole numbers and .2, .5 or .8."""
    name, about = _titled(title)
    values = tuple(round(unit + tenth / 10, 1) for unit in units for tenth in (2, 5, 8))
    return Slot(name, "number", about, _listed(phrases), values)


def flag(title: str, phrases: str, denials: str) -> Slot:
    """A yes or no, and how each is said."""
    name, about = _titled(title)
    return Slot(name, "boolean", about, _listed(phrases), denials=_listed(denials))


def several(title: str, phrases: str, values: str | Sequence[int]) -> Slot:
    """A list of 2 or 3 of the values: words, written like those of `text`, or whole numbers."""
    name, about = _titled(title)
    return Slot(name, "array", about, _listed(phrases), tuple(values.split() if isinstance(values, str) else values))


def group(title: str, phrases: str, *parts: Slot) -> Slot:
    """A nested object of optional parts."""
    name, about = _titled(title)
    return Slot(name, "object", about, _listed(phrases), parts=tuple(replace(part, default=None) for part in parts))
