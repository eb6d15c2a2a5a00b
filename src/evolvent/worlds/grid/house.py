"""Houses: square rooms in rows and columns, with randomly drawn doors, objects and agent, the basis of BabyAI's
levels.

The generator and its random numbers are our own. Rooms share their walls, so a room of size 8 has 6 x 6 cells
inside. Every two neighbors have one position for a door in the wall between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from evolvent.worlds.grid.map import COLOURS, LETTERS, TYPES, Board, read_map
from evolvent.worlds.grid.mission import find_codes

__all__ = ["DrawRejected", "House", "Item", "describe_items"]

Position = tuple[int, int]
_SIDES: tuple[Position, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))  # right, down, left, up


class DrawRejected(Exception):
    """The drawn house is invalid; draw again."""


@dataclass(frozen=True, slots=True)
class Item:
    """An object or a door of a house."""

    type: str
    colour: str


class House:
    """A house under construction.

    Args:
        rng: source of all random draws.
        dimensions: the size of a room, walls included, 3 or more; columns and rows of rooms.
    """

    def __init__(self, rng: Random, dimensions: tuple[int, int, int] = (8, 3, 3)) -> None:
        self.rng, (self.size, self.columns, self.rows) = rng, dimensions
        self.width, self.height = self.columns * (self.size - 1) + 1, self.rows * (self.size - 1) + 1
        self.agent: tuple[Position, int] | None = None
        self.hold: Item | None = None
        self.inside: dict[Position, Item] = {}
        self.locked: Position | None = None
        self.doors: dict[frozenset[Position], Item] = {}
        self._states: dict[frozenset[Position], str] = {}
        self._things: dict[Position, Item] = {}
        self._missing: set[frozenset[Position]] = set()
        self._gaps = {
            frozenset((room_position, neighbor)): self._draw_door_position(room_position, side)
            for room_position in self.rooms
            for side, neighbor in enumerate(self._neighbors(room_position))
            if side < 2 and neighbor
        }

    @property
    def rooms(self) -> list[Position]:
        """Returns all rooms, as (column, row)."""
        return [(column, row) for row in range(self.rows) for column in range(self.columns)]

    @property
    def objects(self) -> list[Item]:
        """Returns all keys, balls and boxes outside boxes."""
        return list(self._things.values())

    def _neighbors(self, room_position: Position) -> list[Position | None]:
        """Returns the rooms to the right, below, to the left and above; None at the edge."""
        positions = [(room_position[0] + x, room_position[1] + y) for x, y in _SIDES]
        return [
            position if 0 <= position[0] < self.columns and 0 <= position[1] < self.rows else None
            for position in positions
        ]

    def _draw_door_position(self, room_position: Position, side: int) -> Position:
        """Draws the position of a possible door in the right or lower wall of a room."""
        x, y = room_position[0] * (self.size - 1), room_position[1] * (self.size - 1)
        offset = self.rng.randint(1, self.size - 2)
        return (x + self.size - 1, y + offset) if side == 0 else (x + offset, y + self.size - 1)

    def add_door(
        self, room_position: Position, side: int | None = None, *, colour: str | None = None, locked: bool | None = None
    ) -> Item:
        """Adds a door to a wall of a room: on a side (0 right, 1 down, 2 left, 3 up), else on a wall without a door.

        Raises:
            DrawRejected: no wall is left.
        """
        walls = [frozenset((room_position, neighbor)) for neighbor in self._neighbors(room_position) if neighbor]
        if side is not None:
            neighbor = self._neighbors(room_position)[side]
            walls = [frozenset((room_position, neighbor))] if neighbor else []
        free_walls = [wall for wall in walls if wall not in self.doors and wall not in self._missing]
        if not free_walls:
            raise DrawRejected
        wall = self.rng.choice(free_walls)
        new_door = Item("door", colour or self.rng.choice(COLOURS))
        locked = self.rng.random() < 0.5 if locked is None else locked
        self.doors[wall], self._states[wall] = new_door, "locked" if locked else "closed"
        if locked:
            self.locked = room_position
        return new_door

    @property
    def locked_colours(self) -> set[str]:
        """Returns the colors of the locked doors."""
        return {door.colour for wall, door in self.doors.items() if self._states[wall] == "locked"}

    def remove_wall(self, room_position: Position, side: int) -> None:
        """Removes the wall on a side of a room."""
        neighbor = self._neighbors(room_position)[side]
        if neighbor is None:
            raise DrawRejected
        self._missing.add(frozenset((room_position, neighbor)))

    def open_doors(self) -> None:
        """Opens every door."""
        self._states = dict.fromkeys(self._states, "open")

    def connect(self, *, colours: Sequence[str] = COLOURS) -> None:
        """Adds closed doors, at random walls, until every room can be reached; none to a locked room."""
        for _ in range(1000):
            if len(self._reachable_rooms()) == self.columns * self.rows:
                return
            room_position, side = self.rng.choice(self.rooms), self.rng.randrange(4)
            neighbor = self._neighbors(room_position)[side]
            if neighbor is None or self.locked in (room_position, neighbor):
                continue
            wall = frozenset((room_position, neighbor))
            if wall not in self.doors and wall not in self._missing:
                self.add_door(room_position, side, colour=self.rng.choice(list(colours)), locked=False)
        raise DrawRejected

    def _reachable_rooms(self) -> set[Position]:
        start = self.room_of(self.agent[0]) if self.agent else self.rooms[0]
        reached, queue = {start}, [start]
        for room_position in queue:
            for neighbor in self._neighbors(room_position):
                wall = frozenset((room_position, neighbor)) if neighbor else frozenset()
                if neighbor and neighbor not in reached and (wall in self.doors or wall in self._missing):
                    reached.add(neighbor)
                    queue.append(neighbor)
        return reached

    def room_of(self, position: Position) -> Position:
        """Returns the room that contains a cell."""
        return position[0] // (self.size - 1), position[1] // (self.size - 1)

    def door_position(self, room_position: Position, side: int) -> Position:
        """Returns the position of the door on a side of a room, whether the door exists or not."""
        neighbor = self._neighbors(room_position)[side]
        if neighbor is None:
            raise DrawRejected
        return self._gaps[frozenset((room_position, neighbor))]

    def _free_cells(self, room_position: Position) -> list[Position]:
        x, y = room_position[0] * (self.size - 1), room_position[1] * (self.size - 1)
        inner = [(x + i, y + j) for j in range(1, self.size - 1) for i in range(1, self.size - 1)]
        occupied = {self.agent[0]} if self.agent else set()
        return [position for position in inner if position not in self._things and position not in occupied]

    def place_item(self, room_position: Position, item: Item, *, position: Position | None = None) -> Item:
        """Places an item in a room: at a position, else on a random free cell that is not beside the agent."""
        if position is None:
            free_cells = self._free_cells(room_position)
            if self.agent:
                (x, y), _ = self.agent
                free_cells = [cell for cell in free_cells if abs(cell[0] - x) + abs(cell[1] - y) > 1]
            if not free_cells:
                raise DrawRejected
            position = self.rng.choice(free_cells)
        self._things[position] = item
        return item

    def add_item(self, room_position: Position, kind: str | None = None, colour: str | None = None) -> Item:
        """Adds an item to a room; omitted attributes are drawn."""
        kind = kind or self.rng.choice(TYPES)
        return self.place_item(room_position, Item(kind, colour or self.rng.choice(COLOURS)))

    def scatter(self, number: int, *, room_position: Position | None = None, unique: bool = True) -> list[Item]:
        """Adds a number of items to a room or anywhere; `unique`: no two have the same color and type."""
        items: list[Item] = []
        while len(items) < number:
            item = Item(self.rng.choice(TYPES), self.rng.choice(COLOURS))
            if not unique or item not in self._things.values():
                items.append(self.place_item(room_position or self.rng.choice(self.rooms), item))
        return items

    def give_to_agent(self, item: Item) -> None:
        """Moves an item to the agent, which carries it from the start."""
        position = next(item_position for item_position, placed_item in self._things.items() if placed_item is item)
        del self._things[position]
        self.hold = item

    def hide(self, item: Item, box: Item) -> None:
        """Hides an item in a box of the house."""
        position = next(item_position for item_position, placed_item in self._things.items() if placed_item is box)
        self.inside[position] = item

    def place_agent(self, room_position: Position | None = None) -> None:
        """Places the agent in a room (else any but a locked one), not directly in front of anything."""
        rooms = (
            [room_position]
            if room_position
            else [unlocked_room for unlocked_room in self.rooms if unlocked_room != self.locked]
        )
        for _ in range(1000):
            position, direction = (
                self.rng.choice(self._free_cells(self.rng.choice(rooms)) or [(0, 0)]),
                self.rng.randrange(4),
            )
            front = (position[0] + _SIDES[direction][0], position[1] + _SIDES[direction][1])
            if position != (0, 0) and front not in self._things and front not in self._door_cells():
                self.agent = (position, direction)
                return
        raise DrawRejected

    def _door_cells(self) -> set[Position]:
        return {self._gaps[wall] for wall in self.doors}

    def has_blocked_items(self) -> bool:
        """Checks whether anything can be reached only by moving something else."""
        if self.agent is None:
            return False
        reached, queue = {self.agent[0]}, [self.agent[0]]
        doors, open_cells = self._door_cells(), self._open_cells()
        for position in queue:
            if position in self._things:
                continue
            for x, y in _SIDES:
                next_position = (position[0] + x, position[1] + y)
                if next_position not in reached and (next_position in open_cells or next_position in doors):
                    reached.add(next_position)
                    queue.append(next_position)
        return not reached.issuperset([*self._things, *doors])

    def _open_cells(self) -> set[Position]:
        step = self.size - 1
        cells = {(x, y) for x in range(self.width) for y in range(self.height) if x % step and y % step}
        for wall in self._missing:
            (x, y), (to_x, to_y) = sorted(wall)
            if to_x > x:
                cells |= {(to_x * step, y * step + offset) for offset in range(1, step)}
            else:
                cells |= {(x * step + offset, to_y * step) for offset in range(1, step)}
        return cells

    def render(self) -> list[str]:
        """Renders the map as text (see `map`)."""
        grid = [["##"] * self.width for _ in range(self.height)]
        for x, y in self._open_cells():
            grid[y][x] = ".."
        for wall, door in self.doors.items():
            x, y = self._gaps[wall]
            grid[y][x] = LETTERS[door.colour] + LETTERS[self._states[wall]]
        for (x, y), item in self._things.items():
            grid[y][x] = LETTERS[item.colour] + LETTERS[item.type]
        if self.agent:
            (x, y), direction = self.agent
            grid[y][x] = ">v<^"[direction] + "."
        return ["".join(row) for row in grid]

    def build_board(self) -> Board:
        """Builds the board of the current house."""
        inside = {position: LETTERS[item.colour] + LETTERS[item.type] for position, item in self.inside.items()}
        hold = LETTERS[self.hold.colour] + LETTERS[self.hold.type] if self.hold else None
        return read_map(self.render(), inside=inside, hold=hold)


def describe_items(board: Board, colour: str | None, kind: str | None, *, side: str | None = None) -> str:
    """Describes items as a mission does: `the red ball` if there is one, `a red ball` if there are more.

    Raises:
        DrawRejected: there is none.
    """
    codes = find_codes(board, colour, kind, side=side)
    count = sum(1 for code in codes if board.get_object(code).state in ("", "open"))
    if not count:
        raise DrawRejected
    parts = ["the" if count == 1 else "a", colour, kind or "object", side]
    return " ".join(word for word in parts if word)
