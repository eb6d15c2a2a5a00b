"""Houses: square rooms in rows and columns, with doors, things and the agent, drawn at random. What BabyAI's levels are
built on; the generator and its random numbers are our own.

Rooms share their walls, so a room of size 8 has 6 x 6 cells inside. Every two neighbours have one place for a door in
the wall between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from evolvent.worlds.grid.map import COLOURS, LETTERS, TYPES, Board, read_map
from evolvent.worlds.grid.mission import matches

__all__ = ["House", "Item", "Unlucky", "describe"]

Place = tuple[int, int]
_SIDES: tuple[Place, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up


class Unlucky(Exception):
    """What was drawn does not fit; draw again."""


@dataclass(frozen=True, slots=True)
class Item:
    """A thing or a door of a house."""

    type: str
    colour: str


class House:
    """A house being built.

    Args:
        rng: where all that is drawn comes from.
        measures: the size of a room, walls included, 3 or more; columns and rows of rooms.
    """

    def __init__(self, rng: Random, measures: tuple[int, int, int] = (8, 3, 3)) -> None:
        self.rng, (self.size, self.columns, self.rows) = rng, measures
        self.width, self.height = self.columns * (self.size - 1) + 1, self.rows * (self.size - 1) + 1
        self.agent: tuple[Place, int] | None = None
        self.hold: Item | None = None
        self.inside: dict[Place, Item] = {}
        self.locked: Place | None = None
        self.doors: dict[frozenset[Place], Item] = {}
        self._states: dict[frozenset[Place], str] = {}
        self._things: dict[Place, Item] = {}
        self._missing: set[frozenset[Place]] = set()
        self._gaps = {
            frozenset((room, other)): self._gap(room, side)
            for room in self.rooms
            for side, other in enumerate(self._around(room))
            if side < 2 and other
        }

    @property
    def rooms(self) -> list[Place]:
        """All rooms, as (column, row)."""
        return [(column, row) for row in range(self.rows) for column in range(self.columns)]

    @property
    def things(self) -> list[Item]:
        """All keys, balls and boxes that lie about."""
        return list(self._things.values())

    def _around(self, room: Place) -> list[Place | None]:
        """The neighbours to the right, below, to the left and above; None at the edge."""
        found = [(room[0] + x, room[1] + y) for x, y in _SIDES]
        return [at if 0 <= at[0] < self.columns and 0 <= at[1] < self.rows else None for at in found]

    def _gap(self, room: Place, side: int) -> Place:
        """Where the door in the right or lower wall of a room would be."""
        x, y = room[0] * (self.size - 1), room[1] * (self.size - 1)
        along = self.rng.randint(1, self.size - 2)
        return (x + self.size - 1, y + along) if side == 0 else (x + along, y + self.size - 1)

    def door(
        self, room: Place, side: int | None = None, *, colour: str | None = None, locked: bool | None = None
    ) -> Item:
        """Put a door into the wall of a room: on a side (0 right, 1 down, 2 left, 3 up), else on one that has none.

        Raises:
            Unlucky: if there is no wall left.
        """
        walls = [frozenset((room, other)) for other in self._around(room) if other]
        if side is not None:
            other = self._around(room)[side]
            walls = [frozenset((room, other))] if other else []
        free = [wall for wall in walls if wall not in self.doors and wall not in self._missing]
        if not free:
            raise Unlucky
        wall = self.rng.choice(free)
        found = Item("door", colour or self.rng.choice(COLOURS))
        locked = self.rng.random() < 0.5 if locked is None else locked
        self.doors[wall], self._states[wall] = found, "locked" if locked else "closed"
        if locked:
            self.locked = room
        return found

    @property
    def locked_colours(self) -> set[str]:
        """The colours of the doors that are locked."""
        return {door.colour for wall, door in self.doors.items() if self._states[wall] == "locked"}

    def no_wall(self, room: Place, side: int) -> None:
        """Take the wall on a side of a room away."""
        other = self._around(room)[side]
        if other is None:
            raise Unlucky
        self._missing.add(frozenset((room, other)))

    def open_doors(self) -> None:
        """Open every door."""
        self._states = dict.fromkeys(self._states, "open")

    def connect(self, *, colours: Sequence[str] = COLOURS) -> None:
        """Add closed doors, at random walls, until every room can be reached; none to a locked room."""
        for _ in range(1000):
            if len(self._reached()) == self.columns * self.rows:
                return
            room, side = self.rng.choice(self.rooms), self.rng.randrange(4)
            other = self._around(room)[side]
            if other is None or self.locked in (room, other):
                continue
            wall = frozenset((room, other))
            if wall not in self.doors and wall not in self._missing:
                self.door(room, side, colour=self.rng.choice(list(colours)), locked=False)
        raise Unlucky

    def _reached(self) -> set[Place]:
        start = self.room_of(self.agent[0]) if self.agent else self.rooms[0]
        reached, queue = {start}, [start]
        for room in queue:
            for other in self._around(room):
                wall = frozenset((room, other)) if other else frozenset()
                if other and other not in reached and (wall in self.doors or wall in self._missing):
                    reached.add(other)
                    queue.append(other)
        return reached

    def room_of(self, at: Place) -> Place:
        """The room that a cell lies in."""
        return at[0] // (self.size - 1), at[1] // (self.size - 1)

    def gap(self, room: Place, side: int) -> Place:
        """Where the door on a side of a room is, or would be."""
        other = self._around(room)[side]
        if other is None:
            raise Unlucky
        return self._gaps[frozenset((room, other))]

    def _free(self, room: Place) -> list[Place]:
        x, y = room[0] * (self.size - 1), room[1] * (self.size - 1)
        inner = [(x + i, y + j) for j in range(1, self.size - 1) for i in range(1, self.size - 1)]
        taken = {self.agent[0]} if self.agent else set()
        return [at for at in inner if at not in self._things and at not in taken]

    def put(self, room: Place, item: Item, *, at: Place | None = None) -> Item:
        """Put a thing into a room: to a place, else to a free one that is not beside the agent."""
        if at is None:
            free = self._free(room)
            if self.agent:
                (x, y), _ = self.agent
                free = [place for place in free if abs(place[0] - x) + abs(place[1] - y) > 1]
            if not free:
                raise Unlucky
            at = self.rng.choice(free)
        self._things[at] = item
        return item

    def add(self, room: Place, kind: str | None = None, colour: str | None = None) -> Item:
        """Put a thing into a room, with what is not given drawn."""
        kind = kind or self.rng.choice(TYPES)
        return self.put(room, Item(kind, colour or self.rng.choice(COLOURS)))

    def scatter(self, number: int, *, room: Place | None = None, unique: bool = True) -> list[Item]:
        """Put so many things into a room or anywhere; `unique`: all of another colour or type."""
        found: list[Item] = []
        while len(found) < number:
            item = Item(self.rng.choice(TYPES), self.rng.choice(COLOURS))
            if not unique or item not in self._things.values():
                found.append(self.put(room or self.rng.choice(self.rooms), item))
        return found

    def take(self, item: Item) -> None:
        """Let the agent carry one of the things from the beginning."""
        at = next(place for place, thing in self._things.items() if thing is item)
        del self._things[at]
        self.hold = item

    def hide(self, item: Item, box: Item) -> None:
        """Put a thing into a box that lies in the house."""
        at = next(place for place, thing in self._things.items() if thing is box)
        self.inside[at] = item

    def enter(self, room: Place | None = None) -> None:
        """Place the agent in a room (else any but a locked one), not right in front of anything."""
        rooms = [room] if room else [each for each in self.rooms if each != self.locked]
        for _ in range(1000):
            at, way = self.rng.choice(self._free(self.rng.choice(rooms)) or [(0, 0)]), self.rng.randrange(4)
            front = (at[0] + _SIDES[way][0], at[1] + _SIDES[way][1])
            if at != (0, 0) and front not in self._things and front not in self._door_cells():
                self.agent = (at, way)
                return
        raise Unlucky

    def _door_cells(self) -> set[Place]:
        return {self._gaps[wall] for wall in self.doors}

    def blocked(self) -> bool:
        """Whether anything can be reached only by moving something else."""
        if self.agent is None:
            return False
        reached, queue = {self.agent[0]}, [self.agent[0]]
        doors, open_cells = self._door_cells(), self._open_cells()
        for at in queue:
            if at in self._things:
                continue
            for x, y in _SIDES:
                then = (at[0] + x, at[1] + y)
                if then not in reached and (then in open_cells or then in doors):
                    reached.add(then)
                    queue.append(then)
        return not reached.issuperset([*self._things, *doors])

    def _open_cells(self) -> set[Place]:
        step = self.size - 1
        cells = {(x, y) for x in range(self.width) for y in range(self.height) if x % step and y % step}
        for wall in self._missing:
            (x, y), (to_x, to_y) = sorted(wall)
            if to_x > x:
                cells |= {(to_x * step, y * step + along) for along in range(1, step)}
            else:
                cells |= {(x * step + along, to_y * step) for along in range(1, step)}
        return cells

    def text(self) -> list[str]:
        """The map as text (see `map`)."""
        grid = [["##"] * self.width for _ in range(self.height)]
        for x, y in self._open_cells():
            grid[y][x] = ".."
        for wall, door in self.doors.items():
            x, y = self._gaps[wall]
            grid[y][x] = LETTERS[door.colour] + LETTERS[self._states[wall]]
        for (x, y), item in self._things.items():
            grid[y][x] = LETTERS[item.colour] + LETTERS[item.type]
        if self.agent:
            (x, y), way = self.agent
            grid[y][x] = ">v<^"[way] + "."
        return ["".join(row) for row in grid]

    def board(self) -> Board:
        """The board as it stands."""
        inside = {at: LETTERS[item.colour] + LETTERS[item.type] for at, item in self.inside.items()}
        hold = LETTERS[self.hold.colour] + LETTERS[self.hold.type] if self.hold else None
        return read_map(self.text(), inside=inside, hold=hold)


def describe(board: Board, colour: str | None, kind: str | None, *, side: str | None = None) -> str:
    """How a mission speaks of such things: `the red ball` if there is one, `a red ball` if there are more.

    Raises:
        Unlucky: if there is none.
    """
    codes = matches(board, colour, kind, side=side)
    number = sum(1 for code in codes if board.thing(code).state in ("", "open"))
    if not number:
        raise Unlucky
    words = ["the" if number == 1 else "a", colour, kind or "object", side]
    return " ".join(word for word in words if word)
