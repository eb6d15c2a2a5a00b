"""Kitchens: a 7x7 room with its stations along the walls, what lies where at the start, and how long every way is.

Three maps, as in the published game: an open floor, a counter that juts into it, and a counter that all but divides it.
Shelves give out as many of their foods as are taken. Boards hold one thing, plates up to four.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from evolvent.trajectory import Json, canonical_json, sample_seed
from evolvent.worlds.kitchen.orders import PARTS, Order

__all__ = [
    "BIN",
    "BOARDS",
    "HATCH",
    "LEVELS",
    "MAPS",
    "NAMES",
    "PLACES",
    "PLATES",
    "SHELVES",
    "SIDE",
    "Kitchen",
    "Level",
    "State",
    "canonical_key",
    "draw_kitchen",
]

SIDE = 7
SHELVES = range(3)
BOARDS = range(3, 5)
PLATES = range(5, 7)
BIN = 7
HATCH = 8
"""The numbers of the places."""
PLACES = range(9)
MAPS: Mapping[str, frozenset[tuple[int, int]]] = MappingProxyType(
    {
        "open": frozenset(),
        "jutting": frozenset({(1, 3), (2, 3)}),
        "divided": frozenset({(1, 3), (2, 3), (3, 3), (4, 3)}),
    }
)
"""Map -> cells of the floor that are taken by counters, (row, column)."""
NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "shelf": (
            "shelf",
            "left shelf",
            "shelf by the window",
            "shelf near the old door",
            "upper shelf",
            "white shelf",
            "shelf behind the long blue curtain",
        ),
        "board": ("board", "wooden board", "board by the sink", "board with the broken handle", "first board"),
        "plate": ("plate", "blue plate", "plate with the golden rim", "deep plate", "plate near the old stove"),
    }
)
"""What the places of a task may be called: from one word to six, drawn for each task."""
_HOLDS = 4  # things on a plate
_HELPS = 0.5  # how often that is a part of the order


@dataclass(frozen=True, slots=True)
class Level:
    """How rich kitchens are.

    Args:
        foods: how many of the foods there are.
        offered: how many of them lie on a task's shelves.
        names: how many of the names of each kind of place are used.
        stray: how often a board or a plate holds something at the start.
    """

    foods: int
    offered: int
    names: int
    stray: float


LEVELS: Mapping[str, Level] = MappingProxyType({"full": Level(10, 6, 7, 0.4), "small": Level(4, 3, 3, 0.0)})
"""The kitchens of the panels, and small ones, in which a small model learns within minutes."""


class State(NamedTuple):
    """Everything that changes.

    Args:
        at: the cell of the floor where the cook stands.
        held: the part in hand, -1 for none.
        boards: the part on each board, -1 for none.
        plates: the parts on each plate, as bit masks.
        paid: the subtasks that were reached, as a bit mask: two a part of the order, chopped and laid on a plate.
    """

    at: int
    held: int
    boards: tuple[int, ...]
    plates: tuple[int, ...]
    paid: int


@dataclass(frozen=True, slots=True)
class Kitchen:
    """One task's kitchen.

    Args:
        order: the parts that are wanted, sorted.
        shelves: the parts on each shelf (all of them whole).
        names: what each place is called.
        cells: the cell of the floor before each place.
        ways: steps from one cell to another.
        start: the state at the start.
    """

    order: Order
    shelves: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    cells: tuple[int, ...]
    ways: tuple[tuple[int, ...], ...]
    start: State

    @property
    def wanted(self) -> int:
        """The order as a bit mask of parts."""
        return sum(1 << part for part in self.order)


@cache
def _ways(name: str) -> tuple[tuple[int, ...], ...]:
    """Steps between any two cells of a map; -1 where a counter stands."""
    inner = range(1, SIDE - 1)
    free = {(row, col) for row in inner for col in inner} - MAPS[name]
    found = []
    for cell in range(SIDE * SIDE):
        row, col = divmod(cell, SIDE)
        steps = {(row, col): 0} if (row, col) in free else {}
        queue = deque(steps)
        while queue:
            row, col = queue.popleft()
            for there in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
                if there in free and there not in steps:
                    steps[there] = steps[row, col] + 1
                    queue.append(there)
        found.append(tuple(steps.get(divmod(other, SIDE), -1) for other in range(SIDE * SIDE)))
    return tuple(found)


@cache
def _walls(name: str) -> tuple[int, ...]:
    """The cells of the floor along the walls, once for each station that can be served from there."""
    inner, last = range(1, SIDE - 1), SIDE - 2
    cells = [(1, i) for i in inner] + [(last, i) for i in inner] + [(i, 1) for i in inner] + [(i, last) for i in inner]
    return tuple(row * SIDE + col for row, col in cells if (row, col) not in MAPS[name])


def _sample(rng: Random, choices: Sequence[int], n: int) -> list[int]:
    """n of the choices without repetition, by `random()` alone: the same on every version of Python."""
    return sorted(choices, key=lambda _: rng.random())[:n]


def draw_kitchen(order: Order, seed: int, *, level: str = "full") -> Kitchen:
    """The kitchen of an order and a seed: the map, the stations, their names, and what lies where. It can be solved.

    Args:
        level: a key of `LEVELS`; the order's foods are among its foods.
    """
    rng, of = Random(sample_seed("kitchen", level, *order, seed)), LEVELS[level]
    name = tuple(MAPS)[int(rng.random() * len(MAPS))]
    cells = tuple(_sample(rng, _walls(name), len(PLACES)))
    named = [
        NAMES[kind][i]
        for kind, places in (("shelf", SHELVES), ("board", BOARDS), ("plate", PLATES))
        for i in _sample(rng, range(len(NAMES[kind][: of.names])), len(places))
    ]
    foods = [part >> 1 for part in order]
    others = [food for food in range(of.foods) if food not in foods]
    offered = _sample(rng, [*foods, *_sample(rng, others, of.offered - len(foods))], of.offered)
    shelves = tuple(tuple(sorted(2 * food for food in offered[i::3])) for i in range(3))
    boards = [_stray(rng, order, of.stray) for _ in BOARDS]
    plates = [_stray(rng, order, of.stray) for _ in PLATES]
    boards[rng.random() < 0.5] = -1  # a free board at the start
    plates = [-1 if part >= 0 and (part,) == order else part for part in plates]
    masks = tuple(1 << part if part >= 0 else 0 for part in plates)
    cell = cells[int(rng.random() * len(cells))]
    start = State(cell, -1, tuple(boards), masks, _reached(order, boards, masks))
    return Kitchen(order, shelves, (*named, "bin", "hatch"), cells, _ways(name), start)


def _stray(rng: Random, order: Order, often: float) -> int:
    """What lies on a board or plate at the start: nothing, a part of the order, or anything."""
    if rng.random() >= often:
        return -1
    choices: Sequence[int] = order if rng.random() < _HELPS else PARTS
    return choices[int(rng.random() * len(choices))]


def _reached(order: Order, boards: Sequence[int], plates: Sequence[int]) -> int:
    """The subtasks that the start brings along; nothing is paid for them."""
    paid = 0
    for i, part in enumerate(order):
        laid = any(mask >> part & 1 for mask in plates)
        paid |= (part & 1 and (laid or part in boards)) << 2 * i | laid << 2 * i + 1
    return paid


def canonical_key(kitchen: Kitchen, *, named: bool = False) -> str:
    """A digest that is equal for kitchens that differ only in names and places (64 hex digits).

    Args:
        named: tell kitchens of other names apart too.
    """
    start = kitchen.start
    facts: list[Json] = [
        list(kitchen.order),
        sorted(map(list, kitchen.shelves)),
        sorted(start.boards),
        sorted(start.plates),
    ]
    if named:
        facts = [list(kitchen.order), *map(list, kitchen.shelves), list(kitchen.names), *start.boards, *start.plates]
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()
