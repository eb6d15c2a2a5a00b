"""States: the rows of every thing in a task, drawn from a seed when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json, sample_rng
from evolvent.worlds.functions.domains import DOMAINS, Thing

__all__ = ["NUMBERS", "Row", "State", "things"]

Row = Mapping[str, Json]
NUMBERS = tuple(range(10, 100))
"""What rows are numbered with."""
_ROWS = 5  # of each thing
_USUAL = 0.5  # how often an optional attribute has its default


@cache
def things() -> Mapping[str, Thing]:
    """All things by noun."""
    return {thing.noun: thing for domain in DOMAINS.values() for thing in domain.things}


@dataclass(frozen=True)
class State:
    """The rows of all things. A value: what changes it gives a new one.

    Args:
        seed: what the rows are drawn from, of each thing apart.
        changed: noun -> rows, where they are others.
    """

    seed: int
    changed: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    def rows(self, noun: str) -> tuple[Row, ...]:
        """The rows of a thing: attributes and a `number` of its own; () for what is no thing."""
        return self.changed[noun] if noun in self.changed else _drawn(self.seed, noun)

    def row(self, noun: str, number: Json) -> Row:
        """The row with a number; raises InvalidAction where there is none."""
        for row in self.rows(noun):
            if row["number"] == number:
                return row
        known = [row["number"] for row in self.rows(noun)]
        raise InvalidAction(f"no {noun} has this number", value=number, expected=f"one of {known}")

    def with_rows(self, noun: str, rows: tuple[Row, ...]) -> State:
        """The state with other rows of a thing."""
        return replace(self, changed={**self.changed, noun: rows})


@lru_cache(maxsize=4096)
def _drawn(seed: int, noun: str) -> tuple[Row, ...]:
    return tuple(_draw(seed, things()[noun])) if noun in things() else ()


def _draw(seed: int, thing: Thing) -> Iterator[Row]:
    rng = sample_rng("functions state", seed, thing.noun)
    for place in rng.permutation(len(NUMBERS))[:_ROWS]:
        row: dict[str, Json] = {"number": NUMBERS[int(place)]}
        for slot in thing.slots:
            value = slot.draw(rng)
            row[slot.name] = slot.default if slot.optional and rng.random() < _USUAL else value
        yield row
