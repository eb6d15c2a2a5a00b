"""States: the rows of every thing in a task, drawn from a seed on first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json, sample_rng
from evolvent.worlds.functions.domains import DOMAINS, Thing

__all__ = ["NUMBERS", "Row", "State", "things_by_noun"]

Row = Mapping[str, Json]
NUMBERS = tuple(range(10, 100))
"""What rows are numbered with."""
_ROWS_PER_THING = 5  # of each thing
_DEFAULT_PROBABILITY = 0.5  # how often an optional attribute has its default


@cache
def things_by_noun() -> Mapping[str, Thing]:
    """Returns all things by noun."""
    return {thing_type.noun: thing_type for domain in DOMAINS.values() for thing_type in domain.thing_types}


@dataclass(frozen=True)
class State:
    """The rows of all things. States are immutable: an operation returns a new one.

    Args:
        seed: seed of the rows, which are drawn independently for each thing.
        replaced_rows: noun -> rows, where they differ from the drawn rows.
    """

    seed: int
    replaced_rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    def rows(self, noun: str) -> tuple[Row, ...]:
        """Returns the rows of a thing: its attributes and a unique `number`; () for an unknown noun."""
        return self.replaced_rows[noun] if noun in self.replaced_rows else _draw_rows(self.seed, noun)

    def row(self, noun: str, number: Json) -> Row:
        """Returns the row with a number; raises InvalidAction if there is none."""
        for row in self.rows(noun):
            if row["number"] == number:
                return row
        numbers = [row["number"] for row in self.rows(noun)]
        raise InvalidAction(f"no {noun} has this number", value=number, expected=f"one of {numbers}")

    def with_rows(self, noun: str, rows: tuple[Row, ...]) -> State:
        """Returns a state with other rows of a thing."""
        return replace(self, replaced_rows={**self.replaced_rows, noun: rows})


@lru_cache(maxsize=4096)
def _draw_rows(seed: int, noun: str) -> tuple[Row, ...]:
    return tuple(_generate_rows(seed, things_by_noun()[noun])) if noun in things_by_noun() else ()


def _generate_rows(seed: int, thing_type: Thing) -> Iterator[Row]:
    rng = sample_rng("functions state", seed, thing_type.noun)
    for number_index in rng.permutation(len(NUMBERS))[:_ROWS_PER_THING]:
        row: dict[str, Json] = {"number": NUMBERS[int(number_index)]}
        for slot in thing_type.slots:
            value = slot.draw(rng)
            row[slot.name] = slot.default if slot.optional and rng.random() < _DEFAULT_PROBABILITY else value
        yield row
