"""View of the agent: the 7 x 7 cells in front of it, without those behind walls and closed doors, and its text.

The agent stands in the middle of the nearest row and looks away from it. Cells of the view are numbered row by
row from the agent's own, left to right, so that the agent is at 3 and the cell in front of it at 10. The
visible cells follow MiniGrid's rule (`Grid.process_vis`): sight spreads from a visible transparent cell to its
two neighbors in the row, to the cell ahead and to those on both sides of that one. Objects do not hide the
cells behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from evolvent.worlds.grid.map import BOX, DOOR, FLOOR, GOAL, WALL, Board, GridObject, Pose

__all__ = ["AGENT", "FULL_WORDS", "SIDE", "Sight", "VisibleObject", "describe", "describe_fully", "map_cell", "observe"]

SIDE = 7
AGENT = SIDE // 2
"""The agent's own cell in the view."""

GOAL_NAME = "goal"


class VisibleObject(NamedTuple):
    """An object in view: its name, its cell in the view, its position from the agent, and its rank among those of one
    name.

    `ahead` is 0 or more; `right` is negative on the left. `full_name` is the name with a door's state; `full_rank`
    is the rank among those of one full name.
    """

    name: str
    full_name: str
    grid_object: GridObject | None
    view_cell: int
    ahead: int
    right: int
    rank: int
    full_rank: int


class Sight(NamedTuple):
    """The objects in view, nearest first, and bit masks of cells of the view: walkable cells and empty floor."""

    objects: tuple[VisibleObject, ...]
    walkable: int
    floor: int


def _row_offsets(board: Board, direction: int) -> tuple[int, int]:
    """Returns the offsets of a cell's number for one step ahead, and for one step to the right."""
    return board.forward_offsets[direction], board.forward_offsets[(direction + 1) % 4]


def map_cell(board: Board, pose: Pose, view_cell: int) -> int:
    """Returns the number in the map of a cell of the view."""
    ahead, right = _row_offsets(board, pose.direction)
    row, column = divmod(view_cell, SIDE)
    return pose.cell + row * ahead + (column - AGENT) * right


@lru_cache(maxsize=1 << 14)
def _spread(visible: int, opaque: bytes) -> tuple[int, int]:
    """Extends the visible cells of a row, and returns them with the cells that they show of the next row."""
    beyond = 0
    for column in range(SIDE - 1):
        if visible >> column & 1 and not opaque[column]:
            visible |= 2 << column
            beyond |= 3 << column
    for column in range(SIDE - 1, 0, -1):
        if visible >> column & 1 and not opaque[column]:
            visible |= 1 << column - 1
            beyond |= 3 << column - 1
    return visible, beyond


@lru_cache(maxsize=1 << 14)
def _bits(flags: bytes) -> int:
    return sum(1 << column for column, flag in enumerate(flags) if flag)


def observe(board: Board, pose: Pose) -> Sight:
    """Computes the view from a pose.

    Of objects equally near (in steps ahead and aside) the one further ahead comes first, then the one further left;
    `rank` counts in that order.
    """
    cells, agent_cell, direction, _ = pose
    ahead, right = _row_offsets(board, direction)
    walkable = floor = 0
    object_cells: list[tuple[int, int, int, int]] = []
    visible = 1 << AGENT
    row_start = agent_cell - AGENT * right
    for row in range(SIDE):
        codes = cells[row_start : row_start + SIDE * right : right]
        visible, beyond = _spread(visible, codes.translate(board.opaque))
        walkable |= (_bits(codes.translate(board.walkable)) & visible) << SIDE * row
        floor |= (_bits(codes.translate(_IS_FLOOR)) & visible) << SIDE * row
        if max(codes) > 1:
            for column, code in enumerate(codes):
                if code > 1 and visible >> column & 1 and (row or column != AGENT):
                    object_cells.append((row + abs(column - AGENT), -row, column, code))
        visible = beyond
        if not visible:
            break
        row_start += ahead
    object_cells.sort()
    return Sight(_name_objects(board, object_cells), walkable, floor)


_IS_FLOOR = bytes(code == FLOOR for code in range(256))


def _name_objects(board: Board, object_cells: Sequence[tuple[int, int, int, int]]) -> tuple[VisibleObject, ...]:
    counts: dict[str, int] = {}
    visible_objects = []
    for _, negative_row, column, code in object_cells:
        grid_object = None if code == GOAL else board.objects[code]
        name = full_name = GOAL_NAME
        if grid_object is not None:
            name = full_name = grid_object.name
            if grid_object.type == DOOR:
                full_name = f"{grid_object.colour} {grid_object.state} {DOOR}"
        counts[name] = rank = counts.get(name, 0) + 1
        full_rank = rank
        if full_name != name:
            counts[full_name] = full_rank = counts.get(full_name, 0) + 1
        visible_objects.append(
            VisibleObject(
                name,
                full_name,
                grid_object,
                SIDE * -negative_row + column,
                -negative_row,
                column - AGENT,
                rank,
                full_rank,
            )
        )
    return tuple(visible_objects)


def _describe_side(visible: VisibleObject) -> str:
    """Describes the side, and the number of steps to walk."""
    side = "left" if visible.right < 0 else "right" if visible.right else "ahead"
    return f"{side} {visible.ahead + abs(visible.right)}"


def describe(board: Board, pose: Pose, sight: Sight) -> str:
    """Describes a view in the short form: `hold blue key . see red ball left 3 , grey door closed ahead 2`.

    An object comes with its side (`ahead`: straight before the agent) and its distance in steps.
    """
    held_object = board.objects[pose.held_code]
    parts = [
        f"{visible.name} {visible.grid_object.state} {_describe_side(visible)}"
        if visible.grid_object and visible.grid_object.state
        else f"{visible.name} {_describe_side(visible)}"
        for visible in sight.objects
    ]
    text = f"see {' , '.join(parts) or 'nothing'}"
    return f"hold {held_object.name} . {text}" if held_object else text


def describe_fully(board: Board, pose: Pose, sight: Sight) -> str:
    """Describes a view like AgentGym's BabyAI server: each object with its number and position, the wall or box
    straight ahead, and the carried object.
    """
    parts = [_OBJECTS_TEXT if sight.objects else _NO_OBJECTS_TEXT]
    parts += [
        f"There is a {visible.full_name} {visible.full_rank} {_describe_position(visible)}."
        for visible in sight.objects
    ]
    parts.append(_WALLS_TEXT)
    barrier = _find_barrier(board, pose)
    if barrier:
        parts.append(f"You are facing a {barrier[0]} {barrier[1]} steps away.")
    held_object = board.objects[pose.held_code]
    parts.append(f"You are carrying a {held_object.name}." if held_object else _EMPTY_HANDS_TEXT)
    return " ".join(parts)


_OBJECTS_TEXT = "In front of you in this room, you can see several objects:"
_NO_OBJECTS_TEXT = "You cannot see any objects within sight."
_WALLS_TEXT = "The room has walls around you."
_EMPTY_HANDS_TEXT = "You are not carrying anything."
FULL_WORDS: tuple[str, ...] = (
    _OBJECTS_TEXT,
    _NO_OBJECTS_TEXT,
    _WALLS_TEXT,
    _EMPTY_HANDS_TEXT,
    "There is a right in front of you steps away and to your left",
    "You are facing a wall box steps away. You are carrying a",
    'Available actions: ["',
)
"""Texts that hold every word of `describe_fully` but colours, types and numbers."""


def _describe_position(visible: VisibleObject) -> str:
    if not visible.right:
        return f"right in front of you {visible.ahead} steps away"
    side = "right" if visible.right > 0 else "left"
    return f"{visible.ahead} steps in front of you and {abs(visible.right)} steps to your {side}"


def _find_barrier(board: Board, pose: Pose) -> tuple[str, int] | None:
    """Finds the first wall or box straight ahead within the view, and its distance; a closed door hides everything
    behind.
    """
    for steps in range(1, SIDE):
        code = pose.cells[pose.cell + steps * board.forward_offsets[pose.direction]]
        grid_object = board.objects[code]
        if code == WALL or (grid_object is not None and grid_object.type == BOX):
            return ("wall" if grid_object is None else BOX), steps
        if board.opaque[code]:
            return None
    return None
