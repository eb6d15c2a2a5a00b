"""The map of the grid world: cells, things, and the six moves that change it. The rules are MiniGrid's (2023).

A map is text, two characters a cell, so that people can read and draw one:

    ##########      `##` wall, `..` floor, `GG` the goal
    ##>.rb..##      `>.` `v.` `<.` `^.` the agent on floor, and where it looks
    ##..bk..rc      a colour (r g b p y, e for grey) and a thing: k key, b ball, x box,
    ##########      o open door, c closed door, l locked door

While an episode runs a map is one string of bytes, a byte a cell, in which every thing has a code of its own: a thing
stays itself wherever it is carried. A door has three codes, for its three states. Around the map lie as many walls as
an agent at its edge can look at, so that looking needs no bounds.
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
    "FIRST",
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
    "Pose",
    "Thing",
    "moved",
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
FIRST = 3

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
_PLAIN = {"..": FLOOR, "##": WALL, "GG": GOAL}
_AGENT = {">.": 0, "v.": 1, "<.": 2, "^.": 3}
_MOST_THINGS = 60
_MOST_CELLS = 64  # of a side


@dataclass(frozen=True, slots=True)
class Thing:
    """A key, ball, box or door. `state` is that of a door, else empty."""

    type: str
    colour: str
    state: str = ""

    @property
    def name(self) -> str:
        """Colour and type, as in `red ball`."""
        return f"{self.colour} {self.type}"


class Pose(NamedTuple):
    """All that can change: the cells, where the agent is, where it looks (0 east, 1 south, 2 west, 3 north), and the
    code of what it carries (0: nothing)."""

    cells: bytes
    at: int
    way: int
    hold: int


@dataclass(frozen=True, slots=True)
class Board:
    """What never changes in an episode.

    Args:
        stride: cells in a row, margin included.
        size: columns and rows, outer walls included.
        things: by code, what it is (None for floor, wall and goal); a door has three codes: open, closed, locked.
        inside: by code of a box, the code of what is in it.
        start: the pose at the beginning.
        opaque: translates cells: 1 where nothing is seen behind.
        walkable: translates cells: 1 where the agent can stand.
        ahead: by way, what to add to a cell's number to get the cell in front.
    """

    stride: int
    size: tuple[int, int]
    things: tuple[Thing | None, ...]
    inside: Mapping[int, int]
    start: Pose
    opaque: bytes
    walkable: bytes
    ahead: tuple[int, int, int, int]

    def place(self, cell: int) -> tuple[int, int]:
        """Column and row of a cell's number."""
        row, column = divmod(cell, self.stride)
        return column - MARGIN, row - MARGIN

    def cell(self, column: int, row: int) -> int:
        """The number of a cell."""
        return (row + MARGIN) * self.stride + column + MARGIN

    def thing(self, code: int) -> Thing:
        """What a code stands for; ConfigError for a code that is no thing."""
        found = self.things[code] if code < len(self.things) else None
        if found is None:
            raise ConfigError("a code that is no thing", value=code)
        return found


def moved(board: Board, pose: Pose, move: int) -> Pose | None:
    """The pose after one move, or None where the move changes nothing.

    A wall, a thing or a door that is not open stops the agent. It carries one thing at a time, and puts it down on
    empty floor in front. Toggling opens and closes a door, unlocks one with the key of its colour, and opens a box:
    what was in it then stands in its place.
    """
    cells, at, way, hold = pose
    if move == LEFT:
        return Pose(cells, at, (way - 1) % 4, hold)
    if move == RIGHT:
        return Pose(cells, at, (way + 1) % 4, hold)
    front = at + board.ahead[way]
    code = cells[front]
    if move == FORWARD:
        return Pose(cells, front, way, hold) if board.walkable[code] else None
    if move == DROP:
        return Pose(_put(cells, front, hold), at, way, 0) if hold and code == FLOOR else None
    thing = board.things[code]
    if thing is None:
        return None
    if move == PICKUP:
        return None if hold or thing.type == DOOR else Pose(_put(cells, front, FLOOR), at, way, code)
    if thing.type == BOX:
        return Pose(_put(cells, front, board.inside.get(code, FLOOR)), at, way, hold)
    if thing.type != DOOR or (thing.state == LOCKED and not _fits(board, hold, thing)):
        return None
    change = {OPEN: 1, CLOSED: -1, LOCKED: -2}[thing.state]
    return Pose(_put(cells, front, code + change), at, way, hold)


def _put(cells: bytes, at: int, code: int) -> bytes:
    return cells[:at] + bytes((code,)) + cells[at + 1 :]


def _fits(board: Board, hold: int, door: Thing) -> bool:
    held = board.things[hold]
    return held is not None and held.type == KEY and held.colour == door.colour


def read_map(
    rows: Sequence[str], *, inside: Mapping[tuple[int, int], str] | None = None, hold: str | None = None
) -> Board:
    """A board from its text.

    Args:
        rows: the rows of the map, all of the same length, two characters a cell (see the module).
        inside: what is in the boxes, by the box's (column, row).
        hold: what the agent carries at the beginning.

    Raises:
        ConfigError: with everything that is wrong with the text.
    """
    return _read(tuple(rows), tuple(sorted((inside or {}).items())), hold)


@lru_cache(maxsize=64)
def _read(rows: tuple[str, ...], inside: tuple[tuple[tuple[int, int], str], ...], hold: str | None) -> Board:
    problems = _problems(rows)
    if problems:
        raise ConfigError(problems)
    columns = len(rows[0]) // 2
    stride = columns + MARGIN
    cells = bytearray([WALL]) * (stride * (len(rows) + 2 * MARGIN) + MARGIN)
    things: list[Thing | None] = [None] * FIRST
    codes: dict[tuple[int, int], int] = {}
    start = way = 0
    for y, row in enumerate(rows):
        for x in range(columns):
            text, cell = row[2 * x : 2 * x + 2], (y + MARGIN) * stride + x + MARGIN
            if text in _AGENT:
                start, way = cell, _AGENT[text]
            cells[cell] = _PLAIN.get(text, FLOOR) if text in _PLAIN or text in _AGENT else _add(things, text)
            codes[x, y] = cells[cell]
    filled: dict[int, int] = {}
    for at, text in inside:
        box = things[codes.get(at, 0)]
        if box is None or box.type != BOX or not _portable(text):
            problems.append(Problem("inside", f"{text!r} in the box at {at}", "give a box's place and a key or ball"))
        else:
            filled[codes[at]] = _add(things, text)
    if hold is not None and not _portable(hold):
        problems.append(Problem("hold", f"{hold!r} cannot be carried", "give a key, ball or box, such as 'rk'"))
    if problems:
        raise ConfigError(problems)
    pose = Pose(bytes(cells), start, way, _add(things, hold) if hold else 0)
    opaque = bytes(code == WALL or (t is not None and t.state in (CLOSED, LOCKED)) for code, t in enumerate(things))
    free = bytes(code in (FLOOR, GOAL) or (t is not None and t.state == OPEN) for code, t in enumerate(things))
    pad = bytes(256 - len(things))
    ahead = (1, stride, -1, -stride)
    return Board(stride, (columns, len(rows)), tuple(things), filled, pose, opaque + pad, free + pad, ahead)


def _portable(text: str) -> bool:
    return len(text) == 2 and text[0] in _COLOUR_OF and text[1] in "kbx"


def _add(things: list[Thing | None], text: str) -> int:
    """Number a thing; the code of a door is that of its state."""
    colour, (kind, state) = _COLOUR_OF[text[0]], _TYPE_OF[text[1]]
    states = (OPEN, CLOSED, LOCKED) if kind == DOOR else ("",)
    code = len(things) + states.index(state)
    things += [Thing(kind, colour, each) for each in states]
    return code


def _problems(rows: Sequence[str]) -> list[Problem]:
    """What is wrong with the rows of a map."""
    texts = [row for row in rows if isinstance(row, str)]
    if len(texts) < len(rows) or len(rows) < 3 or len({len(row) for row in texts}) != 1:
        return [Problem("map", "no rectangle of text", "give at least three rows of the same length")]
    if len(texts[0]) % 2 or not 6 <= len(texts[0]) <= 2 * _MOST_CELLS or len(rows) > _MOST_CELLS:
        size = f"{len(rows)} rows of {len(texts[0])} characters"
        return [Problem("map", size, f"two characters a cell, 3 to {_MOST_CELLS} cells a side")]
    cells = [[row[x : x + 2] for x in range(0, len(row), 2)] for row in texts]
    flat = [text for row in cells for text in row]
    strange = sorted({text for text in flat if text not in _PLAIN and text not in _AGENT and not _is_thing(text)})
    problems = [Problem("map", f"{text!r} is no cell", "see evolvent.worlds.grid.map") for text in strange[:5]]
    agents = sum(text in _AGENT for text in flat)
    if agents != 1:
        problems.append(Problem("map", f"{agents} agents", "give one"))
    if sum(_is_thing(text) for text in flat) > _MOST_THINGS:
        problems.append(Problem("map", "too many things", f"at most {_MOST_THINGS}"))
    edge = [*cells[0], *cells[-1], *(row[0] for row in cells), *(row[-1] for row in cells)]
    if any(text != "##" and not (_is_thing(text) and text[1] in "ocl") for text in edge):
        problems.append(Problem("map", "open at its edge", "only walls and doors can be there"))
    return problems


def _is_thing(text: str) -> bool:
    return len(text) == 2 and text[0] in _COLOUR_OF and text[1] in _TYPE_OF
