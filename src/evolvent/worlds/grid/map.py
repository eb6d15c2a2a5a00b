"""The map of the grid world: cells, objects, and the six moves that change it. The rules are MiniGrid's (2023).

A map is text, two characters per cell, so that people can read and draw one:

    ##########      `##` wall, `..` floor, `GG` the goal
    ##>.rb..##      `>.` `v.` `<.` `^.` the agent on floor, and its direction
    ##..bk..rc      a color (r g b p y, e for grey) and an object: k key, b ball, x box,
    ##########      o open door, c closed door, l locked door

While an episode runs a map is one string of bytes, one byte per cell, in which every object has its own code,
so that it keeps its identity wherever it is carried. A door has three codes, for its three states. The map is
padded with as many walls as an agent at its edge can look at, so that looking needs no bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem

__all__ = [
    "BALL",
    "BOX",
    "CLOSED",
    "COLOURS",
    "DOOR",
    "DROP",
    "FIRST_OBJECT_CODE",
    "FLOOR",
    "FORWARD",
    "GOAL",
    "KEY",
    "LEFT",
    "LETTERS",
    "LOCKED",
    "MARGIN",
    "OPEN",
    "PICKUP",
    "RIGHT",
    "TOGGLE",
    "TYPES",
    "WALL",
    "Board",
    "GridObject",
    "Pose",
    "apply_move",
    "read_map",
]

COLOURS: tuple[str, ...] = ("red", "green", "blue", "purple", "yellow", "grey")
KEY = "key"
BALL = "ball"
BOX = "box"
DOOR = "door"
TYPES: tuple[str, ...] = (KEY, BALL, BOX)
"""What can be carried."""
OPEN = "open"
CLOSED = "closed"
LOCKED = "locked"

# codes of cells; things are numbered from FIRST
FLOOR = 0
WALL = 1
GOAL = 2
FIRST_OBJECT_CODE = 3

# the moves, numbered as in MiniGrid
LEFT = 0
RIGHT = 1
FORWARD = 2
PICKUP = 3
DROP = 4
TOGGLE = 5

LETTERS: Mapping[str, str] = {
    "red": "r",
    "green": "g",
    "blue": "b",
    "purple": "p",
    "yellow": "y",
    "grey": "e",
    KEY: "k",
    BALL: "b",
    BOX: "x",
    OPEN: "o",
    CLOSED: "c",
    LOCKED: "l",
}
"""The letters of a map's text: of colours, then of things and of the states of doors."""

MARGIN = 6  # how far an agent looks ahead
_COLOUR_OF = {LETTERS[colour]: colour for colour in COLOURS}
_TYPE_OF = {LETTERS[kind]: (kind, "") for kind in TYPES} | {
    LETTERS[state]: (DOOR, state) for state in (OPEN, CLOSED, LOCKED)
}
_CELLS_WITHOUT_COLOUR = {"..": FLOOR, "##": WALL, "GG": GOAL}
_AGENT_DIRECTIONS = {">.": 0, "v.": 1, "<.": 2, "^.": 3}
_MAX_OBJECTS = 60
_MAX_SIDE = 64  # of a side


@dataclass(frozen=True, slots=True)
class GridObject:
    """A key, ball, box or door. `state` is the state of a door, else empty."""

    type: str
    colour: str
    state: str = ""

    @property
    def name(self) -> str:
        """Returns color and type, as in `red ball`."""
        return f"{self.colour} {self.type}"


class Pose(NamedTuple):
    """The changing state: the cells, the agent's cell and direction (0 east, 1 south, 2 west, 3 north), and the code
    of the carried object (0: nothing).
    """

    cells: bytes
    cell: int
    direction: int
    held_code: int


@dataclass(frozen=True, slots=True)
class Board:
    """The constant part of an episode.

    Args:
        stride: cells in a row, margin included.
        size: columns and rows, outer walls included.
        objects: the object of each code (None for floor, wall and goal); a door has three codes: open, closed,
            locked.
        inside: by code of a box, the code of its content.
        start: the pose at the start.
        opaque: maps codes to 1 where nothing behind is visible.
        walkable: maps codes to 1 where the agent can stand.
        forward_offsets: by direction, the offset from a cell's number to that of the cell in front.
    """

    stride: int
    size: tuple[int, int]
    objects: tuple[GridObject | None, ...]
    inside: Mapping[int, int]
    start: Pose
    opaque: bytes
    walkable: bytes
    forward_offsets: tuple[int, int, int, int]

    def position(self, cell: int) -> tuple[int, int]:
        """Returns column and row of a cell number."""
        row, column = divmod(cell, self.stride)
        return column - MARGIN, row - MARGIN

    def cell_number(self, column: int, row: int) -> int:
        """Returns the number of a cell."""
        return (row + MARGIN) * self.stride + column + MARGIN

    def get_object(self, code: int) -> GridObject:
        """Returns the object of a code; raises ConfigError for a code without an object."""
        grid_object = self.objects[code] if code < len(self.objects) else None
        if grid_object is None:
            raise ConfigError("unknown object code", value=code)
        return grid_object


def apply_move(board: Board, pose: Pose, move: int) -> Pose | None:
    """Returns the pose after one move, or None if the move changes nothing.

    Walls, objects and doors that are not open stop the agent. It carries one object at a time, and puts it down on
    empty floor in front. Toggling opens and closes a door, unlocks a door with the key of its color, and replaces a
    box by its content.
    """
    cells, cell, direction, held_code = pose
    if move == LEFT:
        return Pose(cells, cell, (direction - 1) % 4, held_code)
    if move == RIGHT:
        return Pose(cells, cell, (direction + 1) % 4, held_code)
    front_cell = cell + board.forward_offsets[direction]
    code = cells[front_cell]
    if move == FORWARD:
        return Pose(cells, front_cell, direction, held_code) if board.walkable[code] else None
    if move == DROP:
        return (
            Pose(_replace_cell(cells, front_cell, held_code), cell, direction, 0)
            if held_code and code == FLOOR
            else None
        )
    grid_object = board.objects[code]
    if grid_object is None:
        return None
    if move == PICKUP:
        return (
            None
            if held_code or grid_object.type == DOOR
            else Pose(_replace_cell(cells, front_cell, FLOOR), cell, direction, code)
        )
    if grid_object.type == BOX:
        return Pose(_replace_cell(cells, front_cell, board.inside.get(code, FLOOR)), cell, direction, held_code)
    if grid_object.type != DOOR or (grid_object.state == LOCKED and not _can_unlock(board, held_code, grid_object)):
        return None
    change = {OPEN: 1, CLOSED: -1, LOCKED: -2}[grid_object.state]
    return Pose(_replace_cell(cells, front_cell, code + change), cell, direction, held_code)


def _replace_cell(cells: bytes, cell: int, code: int) -> bytes:
    return cells[:cell] + bytes((code,)) + cells[cell + 1 :]


def _can_unlock(board: Board, held_code: int, door: GridObject) -> bool:
    held_object = board.objects[held_code]
    return held_object is not None and held_object.type == KEY and held_object.colour == door.colour


def read_map(
    rows: Sequence[str], *, inside: Mapping[tuple[int, int], str] | None = None, hold: str | None = None
) -> Board:
    """Reads a board from its text.

    Args:
        rows: the rows of the map, all of the same length, two characters per cell (see the module).
        inside: content of the boxes, by the box's (column, row).
        hold: the object that the agent carries at the start.

    Raises:
        ConfigError: lists all problems of the text.
    """
    return _build_board(tuple(rows), tuple(sorted((inside or {}).items())), hold)


@lru_cache(maxsize=64)
def _build_board(rows: tuple[str, ...], inside: tuple[tuple[tuple[int, int], str], ...], hold: str | None) -> Board:
    problems = _find_problems(rows)
    if problems:
        raise ConfigError(problems)
    columns = len(rows[0]) // 2
    stride = columns + MARGIN
    cells = bytearray([WALL]) * (stride * (len(rows) + 2 * MARGIN) + MARGIN)
    objects: list[GridObject | None] = [None] * FIRST_OBJECT_CODE
    codes: dict[tuple[int, int], int] = {}
    start = direction = 0
    for y, row in enumerate(rows):
        for x in range(columns):
            text, cell = row[2 * x : 2 * x + 2], (y + MARGIN) * stride + x + MARGIN
            if text in _AGENT_DIRECTIONS:
                start, direction = cell, _AGENT_DIRECTIONS[text]
            cells[cell] = (
                _CELLS_WITHOUT_COLOUR.get(text, FLOOR)
                if text in _CELLS_WITHOUT_COLOUR or text in _AGENT_DIRECTIONS
                else _add_object(objects, text)
            )
            codes[x, y] = cells[cell]
    inside_codes: dict[int, int] = {}
    for position, text in inside:
        box = objects[codes.get(position, 0)]
        if box is None or box.type != BOX or not _is_portable(text):
            problems.append(
                Problem("inside", f"got {text!r} in the box at {position}", "give a box's place and a key or ball")
            )
        else:
            inside_codes[codes[position]] = _add_object(objects, text)
    if hold is not None and not _is_portable(hold):
        problems.append(Problem("hold", f"{hold!r} cannot be carried", "give a key, ball or box, such as 'rk'"))
    if problems:
        raise ConfigError(problems)
    pose = Pose(bytes(cells), start, direction, _add_object(objects, hold) if hold else 0)
    opaque = bytes(
        code == WALL or (grid_object is not None and grid_object.state in (CLOSED, LOCKED))
        for code, grid_object in enumerate(objects)
    )
    walkable = bytes(
        code in (FLOOR, GOAL) or (grid_object is not None and grid_object.state == OPEN)
        for code, grid_object in enumerate(objects)
    )
    padding = bytes(256 - len(objects))
    ahead = (1, stride, -1, -stride)
    return Board(
        stride, (columns, len(rows)), tuple(objects), inside_codes, pose, opaque + padding, walkable + padding, ahead
    )


def _is_portable(text: str) -> bool:
    return len(text) == 2 and text[0] in _COLOUR_OF and text[1] in "kbx"


def _add_object(objects: list[GridObject | None], text: str) -> int:
    """Adds an object to the list and returns its code; for a door, the code of its state."""
    colour, (kind, state) = _COLOUR_OF[text[0]], _TYPE_OF[text[1]]
    states = (OPEN, CLOSED, LOCKED) if kind == DOOR else ("",)
    code = len(objects) + states.index(state)
    objects += [GridObject(kind, colour, door_state) for door_state in states]
    return code


def _find_problems(rows: Sequence[str]) -> list[Problem]:
    """Lists the problems of the rows of a map."""
    texts = [row for row in rows if isinstance(row, str)]
    if len(texts) < len(rows) or len(rows) < 3 or len({len(row) for row in texts}) != 1:
        return [Problem("map", "the rows do not form a rectangle", "use at least three rows of the same length")]
    if len(texts[0]) % 2 or not 6 <= len(texts[0]) <= 2 * _MAX_SIDE or len(rows) > _MAX_SIDE:
        size = f"{len(rows)} rows of {len(texts[0])} characters"
        return [Problem("map", size, f"use two characters per cell and 3 to {_MAX_SIDE} cells per side")]
    cells = [[row[x : x + 2] for x in range(0, len(row), 2)] for row in texts]
    flat = [text for row in cells for text in row]
    unknown_texts = sorted(
        {
            text
            for text in flat
            if text not in _CELLS_WITHOUT_COLOUR and text not in _AGENT_DIRECTIONS and not _is_object(text)
        }
    )
    problems = [Problem("map", f"unknown cell {text!r}", "see evolvent.worlds.grid.map") for text in unknown_texts[:5]]
    agents = sum(text in _AGENT_DIRECTIONS for text in flat)
    if agents != 1:
        problems.append(Problem("map", f"got {agents} agents, expected one"))
    if sum(_is_object(text) for text in flat) > _MAX_OBJECTS:
        problems.append(Problem("map", "too many objects", f"at most {_MAX_OBJECTS}"))
    edge = [*cells[0], *cells[-1], *(row[0] for row in cells), *(row[-1] for row in cells)]
    if any(text != "##" and not (_is_object(text) and text[1] in "ocl") for text in edge):
        problems.append(Problem("map", "the edge is open", "put only walls and doors there"))
    return problems


def _is_object(text: str) -> bool:
    return len(text) == 2 and text[0] in _COLOUR_OF and text[1] in _TYPE_OF
