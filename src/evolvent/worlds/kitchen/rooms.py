"""Kitchens: a 7x7 room with stations along the walls, its content at the start, and the distances between cells.

Three maps, as in the published game: an open floor, a counter that extends into it, and a counter that almost
divides it. Shelves supply unlimited amounts of their foods. Boards hold one part, plates up to four.
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
_PLATE_CAPACITY = 4  # things on a plate
_USEFUL_PROBABILITY = 0.5  # how often that is a part of the order


@dataclass(frozen=True, slots=True)
class Level:
    """Richness of kitchens.

    Args:
        num_foods: number of foods.
        num_offered: number of foods on a task's shelves.
        num_names: number of names used for each kind of place.
        stray_probability: probability that a board or a plate holds a part at the start.
    """

    num_foods: int
    num_offered: int
    num_names: int
    stray_probability: float


LEVELS: Mapping[str, Level] = MappingProxyType({"full": Level(10, 6, 7, 0.4), "small": Level(4, 3, 3, 0.0)})
"""The kitchens of the panels, and small ones, in which a small model learns within minutes."""


class State(NamedTuple):
    """The changing state of an episode.

    Args:
        cook_cell: the cell of the floor where the cook stands.
        held_part: the part in hand, -1 for none.
        boards: the part on each board, -1 for none.
        plates: the parts on each plate, as bit masks.
        reached_subtasks: bit mask of the reached subtasks: two for each part of the order, chopped and put on a
            plate.
    """

    cook_cell: int
    held_part: int
    boards: tuple[int, ...]
    plates: tuple[int, ...]
    reached_subtasks: int


@dataclass(frozen=True, slots=True)
class Kitchen:
    """One task's kitchen.

    Args:
        order: the ordered parts, sorted.
        shelves: the parts on each shelf (all of them whole).
        names: the name of each place.
        access_cells: the cell of the floor in front of each place.
        distances: number of steps from one cell to another.
        start: the state at the start.
    """

    order: Order
    shelves: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    access_cells: tuple[int, ...]
    distances: tuple[tuple[int, ...], ...]
    start: State

    @property
    def order_mask(self) -> int:
        """Returns the order as a bit mask of parts."""
        return sum(1 << part for part in self.order)


@cache
def _compute_distances(name: str) -> tuple[tuple[int, ...], ...]:
    """Computes the steps between any two cells of a map; -1 where a counter stands."""
    inner_range = range(1, SIDE - 1)
    free = {(row, col) for row in inner_range for col in inner_range} - MAPS[name]
    distances = []
    for cell in range(SIDE * SIDE):
        row, col = divmod(cell, SIDE)
        steps = {(row, col): 0} if (row, col) in free else {}
        queue = deque(steps)
        while queue:
            row, col = queue.popleft()
            for neighbour in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
                if neighbour in free and neighbour not in steps:
                    steps[neighbour] = steps[row, col] + 1
                    queue.append(neighbour)
        distances.append(tuple(steps.get(divmod(target, SIDE), -1) for target in range(SIDE * SIDE)))
    return tuple(distances)


@cache
def _wall_cells(name: str) -> tuple[int, ...]:
    """Lists the cells of the floor along the walls, once for each station that is accessible from there."""
    inner_range, last = range(1, SIDE - 1), SIDE - 2
    cells = (
        [(1, i) for i in inner_range]
        + [(last, i) for i in inner_range]
        + [(i, 1) for i in inner_range]
        + [(i, last) for i in inner_range]
    )
    return tuple(row * SIDE + col for row, col in cells if (row, col) not in MAPS[name])


def _sample_without_replacement(rng: Random, choices: Sequence[int], count: int) -> list[int]:
    """Samples n of the choices without repetition, by `random()` alone: the same on every version of Python."""
    return sorted(choices, key=lambda _: rng.random())[:count]


def draw_kitchen(order: Order, seed: int, *, level: str = "full") -> Kitchen:
    """Draws the kitchen of an order and a seed: the map, the stations, their names and their content. It can be
    solved.

    Args:
        level: a key of `LEVELS`; the order's foods are among its foods.
    """
    rng, level_settings = Random(sample_seed("kitchen", level, *order, seed)), LEVELS[level]
    map_name = tuple(MAPS)[int(rng.random() * len(MAPS))]
    cells = tuple(_sample_without_replacement(rng, _wall_cells(map_name), len(PLACES)))
    station_names = [
        NAMES[kind][i]
        for kind, stations in (("shelf", SHELVES), ("board", BOARDS), ("plate", PLATES))
        for i in _sample_without_replacement(rng, range(len(NAMES[kind][: level_settings.num_names])), len(stations))
    ]
    foods = [part >> 1 for part in order]
    other_foods = [food for food in range(level_settings.num_foods) if food not in foods]
    offered = _sample_without_replacement(
        rng,
        [*foods, *_sample_without_replacement(rng, other_foods, level_settings.num_offered - len(foods))],
        level_settings.num_offered,
    )
    shelves = tuple(tuple(sorted(2 * food for food in offered[i::3])) for i in range(3))
    boards = [_draw_stray_part(rng, order, level_settings.stray_probability) for _ in BOARDS]
    plates = [_draw_stray_part(rng, order, level_settings.stray_probability) for _ in PLATES]
    boards[rng.random() < 0.5] = -1  # a free board at the start
    plates = [-1 if part >= 0 and (part,) == order else part for part in plates]
    masks = tuple(1 << part if part >= 0 else 0 for part in plates)
    cell = cells[int(rng.random() * len(cells))]
    start = State(cell, -1, tuple(boards), masks, _reached_at_start(order, boards, masks))
    return Kitchen(order, shelves, (*station_names, "bin", "hatch"), cells, _compute_distances(map_name), start)


def _draw_stray_part(rng: Random, order: Order, probability: float) -> int:
    """Draws the part on a board or plate at the start: none (-1), a part of the order, or any part."""
    if rng.random() >= probability:
        return -1
    choices: Sequence[int] = order if rng.random() < _USEFUL_PROBABILITY else PARTS
    return choices[int(rng.random() * len(choices))]


def _reached_at_start(order: Order, boards: Sequence[int], plates: Sequence[int]) -> int:
    """Returns the subtasks that are fulfilled at the start; they earn nothing."""
    reached = 0
    for i, part in enumerate(order):
        is_on_plate = any(mask >> part & 1 for mask in plates)
        reached |= (part & 1 and (is_on_plate or part in boards)) << 2 * i | is_on_plate << 2 * i + 1
    return reached


def canonical_key(kitchen: Kitchen, *, with_names: bool = False) -> str:
    """Hashes a kitchen (64 hex digits); the key is equal for kitchens that differ only in names and positions.

    Args:
        with_names: make the key differ for kitchens with other names too.
    """
    start = kitchen.start
    facts: list[Json] = [
        list(kitchen.order),
        sorted(map(list, kitchen.shelves)),
        sorted(start.boards),
        sorted(start.plates),
    ]
    if with_names:
        facts = [list(kitchen.order), *map(list, kitchen.shelves), list(kitchen.names), *start.boards, *start.plates]
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()
