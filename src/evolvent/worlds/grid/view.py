"""What the agent sees: the 7 x 7 cells before it, with what walls and closed doors hide, and how that is told.

The agent stands in the middle of the nearest row and looks away from it. Cells of the view are numbered row by row from
the agent's own, left to right, so that the agent is at 3 and the cell in front of it at 10. Which cells are seen is
MiniGrid's rule (`Grid.process_vis`): sight spreads from a seen cell that can be seen through to its two neighbours in
the row, to the cell ahead and to those on both sides of that one. Things do not hide what is behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from evolvent.worlds.grid.map import BOX, DOOR, FLOOR, GOAL, WALL, Board, Pose, Thing

__all__ = ["AGENT", "FULL_WORDS", "SIDE", "Seen", "Sight", "ahead_of", "look", "tell", "tell_fully"]

SIDE = 7
AGENT = SIDE // 2
"""The agent's own cell in the view."""

GOAL_NAME = "goal"


class Seen(NamedTuple):
    """A thing in view: its name, its place in the view and from the agent, and its number among those of one name.

    `ahead` is 0 or more; `right` is negative on the left. `full` is the name with a door's state.
    """

    name: str
    full: str
    thing: Thing | None
    view: int
    ahead: int
    right: int
    nth: int
    nth_full: int


class Sight(NamedTuple):
    """One look: the things, nearest first, and sets of cells of the view as bits: walkable ones and empty floor."""

    things: tuple[Seen, ...]
    walkable: int
    floor: int


def _row_offsets(board: Board, way: int) -> tuple[int, int]:
    """What to add to a cell's number for one step ahead, and for one step to the right."""
    return board.ahead[way], board.ahead[(way + 1) % 4]


def ahead_of(board: Board, pose: Pose, view: int) -> int:
    """The number in the map of a cell of the view."""
    ahead, right = _row_offsets(board, pose.way)
    row, column = divmod(view, SIDE)
    return pose.at + row * ahead + (column - AGENT) * right


@lru_cache(maxsize=1 << 14)
def _spread(seen: int, opaque: bytes) -> tuple[int, int]:
    """All cells seen of a row, and those that they show of the next, from the cells seen of the row from before it."""
    beyond = 0
    for column in range(SIDE - 1):
        if seen >> column & 1 and not opaque[column]:
            seen |= 2 << column
            beyond |= 3 << column
    for column in range(SIDE - 1, 0, -1):
        if seen >> column & 1 and not opaque[column]:
            seen |= 1 << column - 1
            beyond |= 3 << column - 1
    return seen, beyond


@lru_cache(maxsize=1 << 14)
def _bits(flags: bytes) -> int:
    return sum(1 << column for column, flag in enumerate(flags) if flag)


def look(board: Board, pose: Pose) -> Sight:
    """What is seen from a pose.

    Of things equally near (in steps ahead and aside) the one further ahead comes first, then the one further left;
    `nth` counts in that order.
    """
    cells, at, way, _ = pose
    ahead, right = _row_offsets(board, way)
    walkable = floor = 0
    found: list[tuple[int, int, int, int]] = []
    seen = 1 << AGENT
    first = at - AGENT * right
    for row in range(SIDE):
        codes = cells[first : first + SIDE * right : right]
        seen, beyond = _spread(seen, codes.translate(board.opaque))
        walkable |= (_bits(codes.translate(board.walkable)) & seen) << SIDE * row
        floor |= (_bits(codes.translate(_FLOORS)) & seen) << SIDE * row
        if max(codes) > 1:
            for column, code in enumerate(codes):
                if code > 1 and seen >> column & 1 and (row or column != AGENT):
                    found.append((row + abs(column - AGENT), -row, column, code))
        seen = beyond
        if not seen:
            break
        first += ahead
    found.sort()
    return Sight(_named(board, found), walkable, floor)


_FLOORS = bytes(code == FLOOR for code in range(256))


def _named(board: Board, found: Sequence[tuple[int, int, int, int]]) -> tuple[Seen, ...]:
    counts: dict[str, int] = {}
    things = []
    for _, behind, column, code in found:
        thing = None if code == GOAL else board.things[code]
        name = full = GOAL_NAME
        if thing is not None:
            name = full = thing.name
            if thing.type == DOOR:
                full = f"{thing.colour} {thing.state} {DOOR}"
        counts[name] = nth = counts.get(name, 0) + 1
        nth_full = nth
        if full != name:
            counts[full] = nth_full = counts.get(full, 0) + 1
        things.append(Seen(name, full, thing, SIDE * -behind + column, -behind, column - AGENT, nth, nth_full))
    return tuple(things)


def _where(seen: Seen) -> str:
    """Short: the side, and the steps to walk."""
    side = "left" if seen.right < 0 else "right" if seen.right else "ahead"
    return f"{side} {seen.ahead + abs(seen.right)}"


def tell(board: Board, pose: Pose, sight: Sight) -> str:
    """The short text: `hold blue key . see red ball left 3 , grey door closed ahead 2`.

    A thing is told with the side it is on (`ahead`: straight before the agent) and how many steps away it is.
    """
    held = board.things[pose.hold]
    parts = [
        f"{s.name} {s.thing.state} {_where(s)}" if s.thing and s.thing.state else f"{s.name} {_where(s)}"
        for s in sight.things
    ]
    text = f"see {' , '.join(parts) or 'nothing'}"
    return f"hold {held.name} . {text}" if held else text


def tell_fully(board: Board, pose: Pose, sight: Sight) -> str:
    """The text in the manner of AgentGym's BabyAI server: each thing with its number and place, the wall or box
    straight ahead, and what is carried."""
    parts = [_MANY if sight.things else _NONE]
    parts += [f"There is a {seen.full} {seen.nth_full} {_place(seen)}." for seen in sight.things]
    parts.append(_WALLS)
    barrier = _barrier(board, pose)
    if barrier:
        parts.append(f"You are facing a {barrier[0]} {barrier[1]} steps away.")
    held = board.things[pose.hold]
    parts.append(f"You are carrying a {held.name}." if held else _EMPTY)
    return " ".join(parts)


_MANY = "In front of you in this room, you can see several objects:"
_NONE = "You cannot see any objects within sight."
_WALLS = "The room has walls around you."
_EMPTY = "You are not carrying anything."
FULL_WORDS: tuple[str, ...] = (
    _MANY,
    _NONE,
    _WALLS,
    _EMPTY,
    "There is a right in front of you steps away and to your left",
    "You are facing a wall box steps away. You are carrying a",
    'Available actions: ["',
)
"""Texts that hold every word of `tell_fully` but colours, types and numbers."""


def _place(seen: Seen) -> str:
    if not seen.right:
        return f"right in front of you {seen.ahead} steps away"
    side = "right" if seen.right > 0 else "left"
    return f"{seen.ahead} steps in front of you and {abs(seen.right)} steps to your {side}"


def _barrier(board: Board, pose: Pose) -> tuple[str, int] | None:
    """The first wall or box straight ahead within the view, and how far it is; a closed door hides what is behind."""
    for steps in range(1, SIDE):
        code = pose.cells[pose.at + steps * board.ahead[pose.way]]
        thing = board.things[code]
        if code == WALL or (thing is not None and thing.type == BOX):
            return ("wall" if thing is None else BOX), steps
        if board.opaque[code]:
            return None
    return None
