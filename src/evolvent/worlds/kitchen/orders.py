"""Possible orders and their tiers.

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
    "food_name",
    "is_chopped",
    "iterate_orders",
    "list_orders_by_tier",
    "parse_part",
    "part_name",
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
_NUM_EVO_PARTS = 5  # parts that are `evo`
_COMBO_RATIO = 5, 2  # of so many pairs so many are `combo`
_PUBLISHED: tuple[Order, ...] = ((1,), (1, 3))  # tomato salad, tomato and lettuce salad


def food_name(part: int) -> str:
    """Returns the name of a part's food."""
    return FOODS[part >> 1]


def is_chopped(part: int) -> bool:
    """Returns whether a part has to be chopped."""
    return bool(part & 1)


def part_name(part: int) -> str:
    """Returns the name of a part in orders: `chopped tomato`."""
    return f"{PREPARED[part & 1]} {food_name(part)}"


def parse_part(text: object) -> int | None:
    """Parses the name of a part; returns None if it names none."""
    return _PART_BY_NAME.get(text) if isinstance(text, str) else None


_PART_BY_NAME = {part_name(part): part for part in PARTS}


@cache
def list_orders_by_tier() -> Mapping[str, tuple[Order, ...]]:
    """Lists the orders of each tier, in an order drawn by their hash. The two published salads are `seen`."""
    published_parts = {part for order in _PUBLISHED for part in order}
    foods = [food for food in range(len(FOODS)) if 2 * food + 1 not in published_parts]
    foods.sort(key=lambda food: sample_seed("kitchen", "held back", food))
    evo_parts = {2 * food + sample_seed("kitchen", "way", food) % 2 for food in foods[:_NUM_EVO_PARTS]}
    demonstrated = [part for part in PARTS if part not in evo_parts]
    divisor, num_combo = _COMBO_RATIO
    combo_pairs = {
        pair
        for pair in _pairs_of_parts(demonstrated)
        if pair not in _PUBLISHED and sample_seed("pair", *pair) % divisor < num_combo
    }
    seen_pairs = {pair for pair in _pairs_of_parts(demonstrated) if pair not in combo_pairs}
    tiers: dict[str, list[Order]] = {
        "seen": [(part,) for part in demonstrated] + sorted(seen_pairs),
        "evo": [pair for pair in _pairs_of_parts(list(PARTS)) if evo_parts & set(pair)],
        "combo": sorted(combo_pairs),
        "longer": [
            triple for triple in combinations(demonstrated, 3) if seen_pairs.issuperset(combinations(triple, 2))
        ],
    }
    return MappingProxyType(
        {tier: tuple(sorted(orders, key=lambda order: sample_seed("order", *order))) for tier, orders in tiers.items()}
    )


def _pairs_of_parts(parts: list[int]) -> list[Order]:
    return [pair for pair in combinations(parts, 2) if pair[0] >> 1 != pair[1] >> 1]


def iterate_orders(orders: Sequence[Order]) -> Iterator[tuple[Order, int]]:
    """Yields (order, seed) without end: all orders with one seed after another."""
    for seed in count():
        for order in orders:
            yield order, seed
