"""What can be ordered, and the tiers of orders.

A part is a food, chopped or whole; an order is a set of parts of different foods.

- `seen` orders have one or two parts and are demonstrated;
- `evo` orders hold a part that no demonstration has, of a food that demonstrations have prepared the other way;
- `combo` orders are pairs of demonstrated parts that are never ordered together;
- `longer` orders have three demonstrated parts, each two of which are ordered together in `seen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, count
from types import MappingProxyType

from evolvent.trajectory import sample_seed

__all__ = [
    "FOODS",
    "PARTS",
    "PREPARED",
    "Order",
    "food_of",
    "is_chopped",
    "orders_of_tiers",
    "read_part",
    "rounds",
    "say_part",
]

FOODS = (
    "tomato",
    "lettuce",
    "onion",
    "carrot",
    "mushroom",
    "cucumber",
    "celery",
    "red pepper",
    "goat cheese",
    "spring onion",
)
"""The foods. Some have names of two words, so that the length of an action says nothing about its worth."""
PREPARED = ("whole", "chopped")
PARTS = range(2 * len(FOODS))
"""A part is a number: twice that of its food, plus one if it is chopped."""
Order = tuple[int, ...]
_HELD_BACK = 5  # parts that are `evo`
_KEPT_APART = 5, 2  # of so many pairs so many are `combo`
_PUBLISHED: tuple[Order, ...] = ((1,), (1, 3))  # tomato salad, tomato and lettuce salad


def food_of(part: int) -> str:
    """The name of a part's food."""
    return FOODS[part >> 1]


def is_chopped(part: int) -> bool:
    """Whether a part is to be chopped."""
    return bool(part & 1)


def say_part(part: int) -> str:
    """A part in words, as orders name it: `chopped tomato`."""
    return f"{PREPARED[part & 1]} {food_of(part)}"


def read_part(text: object) -> int | None:
    """The part of these words, None where they name none."""
    return _BY_WORDS.get(text) if isinstance(text, str) else None


_BY_WORDS = {say_part(part): part for part in PARTS}


@cache
def orders_of_tiers() -> Mapping[str, tuple[Order, ...]]:
    """Tier -> its orders, in an order drawn by their hash. The two published salads are `seen`."""
    fixed = {part for order in _PUBLISHED for part in order}
    foods = [food for food in range(len(FOODS)) if 2 * food + 1 not in fixed]
    foods.sort(key=lambda food: sample_seed("kitchen", "held back", food))
    held_back = {2 * food + sample_seed("kitchen", "way", food) % 2 for food in foods[:_HELD_BACK]}
    shown = [part for part in PARTS if part not in held_back]
    of, kept = _KEPT_APART
    apart = {pair for pair in _pairs(shown) if pair not in _PUBLISHED and sample_seed("pair", *pair) % of < kept}
    together = {pair for pair in _pairs(shown) if pair not in apart}
    tiers: dict[str, list[Order]] = {
        "seen": [(part,) for part in shown] + sorted(together),
        "evo": [pair for pair in _pairs(list(PARTS)) if held_back & set(pair)],
        "combo": sorted(apart),
        "longer": [three for three in combinations(shown, 3) if together.issuperset(combinations(three, 2))],
    }
    return MappingProxyType(
        {tier: tuple(sorted(orders, key=lambda order: sample_seed("order", *order))) for tier, orders in tiers.items()}
    )


def _pairs(parts: list[int]) -> list[Order]:
    return [pair for pair in combinations(parts, 2) if pair[0] >> 1 != pair[1] >> 1]


def rounds(orders: Sequence[Order]) -> Iterator[tuple[Order, int]]:
    """(order, seed) without end: all orders with one seed after another."""
    for seed in count():
        for order in orders:
            yield order, seed
