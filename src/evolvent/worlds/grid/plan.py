"""Actions of the grid world: the six moves by name, and macros that walk by a shortest path.

    turn left   turn right   move forward   pick up   drop   toggle
    go to red ball 1              stand before it and face it
    pick up red ball 1            go to it, then pick up
    drop next to red ball 1       drop what is carried on an empty cell beside it
    go through red door 1         stand in the doorway of an open door
    toggle and go through red door 1    go to a closed door (or a locked one, with its key), toggle, one step forward
    go to goal                    stand on the goal

A macro uses the current view only: it names objects in view and walks over free cells in view. Its moves are
those of a shortest path of moves, turns included. `red ball 2` is the second nearest of the red balls in view;
see `view.observe` for the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from evolvent.worlds.grid.map import (
    CLOSED,
    DOOR,
    DROP,
    FORWARD,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    Board,
    GridObject,
    Pose,
    apply_move,
)
from evolvent.worlds.grid.view import AGENT, SIDE, Sight, VisibleObject

__all__ = ["BESIDE", "FACE", "MOVES", "STAND", "Macro", "expand_macro", "list_actions", "shortest_path"]

MOVES: Mapping[str, int] = {
    "turn left": LEFT,
    "turn right": RIGHT,
    "move forward": FORWARD,
    "pick up": PICKUP,
    "drop": DROP,
    "toggle": TOGGLE,
}
"""The moves by name."""

# where a walk ends: facing a cell, on it, or facing an empty cell beside it
FACE = 0
STAND = 1
BESIDE = 2


class Macro(NamedTuple):
    """A walk and the moves after it. `view_cell` is the target cell in the view; there is no walk where it is
    negative.
    """

    goal: int
    view_cell: int
    final_moves: tuple[int, ...]


_CELLS = SIDE * SIDE
_LEFT_EDGE = sum(1 << SIDE * row for row in range(SIDE))
_NOT_LEFT = ((1 << _CELLS) - 1) ^ _LEFT_EDGE
_NOT_RIGHT = ((1 << _CELLS) - 1) ^ (_LEFT_EDGE << SIDE - 1)
_START = 1 << AGENT


def _adjacent_cells(cells: int) -> int:
    """Returns all cells of the view beside any of these cells."""
    return ((cells & _NOT_RIGHT) << 1 | (cells & _NOT_LEFT) >> 1 | cells << SIDE | cells >> SIDE) & ((1 << _CELLS) - 1)


@lru_cache(maxsize=1 << 14)
def _reachable_cells(walkable: int) -> int:
    """Returns the cells of the view that can be reached over walkable cells."""
    reached, extended = 0, _START
    while extended != reached:
        reached = extended
        extended = reached | _adjacent_cells(reached) & walkable
    return reached


def _build_steps() -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Builds the poses one move away, by pose in the view (4 * cell + direction; 0 ahead, 1 right, 2 back, 3 left).

    Each is (move, pose, whether it moves to another cell); forward comes first, then left, then right.
    """
    table = []
    for cell in range(_CELLS):
        row, column = divmod(cell, SIDE)
        for direction in range(4):
            to_row, to_column = row + (1, 0, -1, 0)[direction], column + (0, 1, 0, -1)[direction]
            steps = []
            if 0 <= to_row < SIDE and 0 <= to_column < SIDE:
                steps.append((FORWARD, 4 * (SIDE * to_row + to_column) + direction, 1))
            steps += [(LEFT, 4 * cell + (direction - 1) % 4, 0), (RIGHT, 4 * cell + (direction + 1) % 4, 0)]
            table.append(tuple(steps))
    return tuple(table)


_STEPS = _build_steps()


def _build_neighbours() -> tuple[tuple[tuple[int, int], ...], ...]:
    """Lists the cells beside each cell of the view, each with the pose there that faces it."""
    table: list[list[tuple[int, int]]] = [[] for _ in range(_CELLS)]
    for pose, steps in enumerate(_STEPS):
        if steps[0][0] == FORWARD:
            table[steps[0][1] >> 2].append((pose >> 2, pose))
    return tuple(map(tuple, table))


_NEIGHBOURS = _build_neighbours()


def _end_poses(goal: int, view_cell: int, reachable: int, floor: int) -> frozenset[int]:
    """Returns the poses in which a walk may end."""
    if goal == STAND:
        return frozenset(range(4 * view_cell, 4 * view_cell + 4)) if reachable >> view_cell & 1 else frozenset()
    faced_cells = [view_cell] if goal == FACE else [cell for cell, _ in _NEIGHBOURS[view_cell] if floor >> cell & 1]
    return frozenset(pose for front in faced_cells for cell, pose in _NEIGHBOURS[front] if reachable >> cell & 1)


@lru_cache(maxsize=1 << 15)
def shortest_path(goal: int, view_cell: int, walkable: int, *, floor: int = 0) -> tuple[int, ...] | None:
    """Returns the moves of a shortest path to a cell of the view; None where there is none.

    Args:
        goal: FACE the cell, STAND on it, or face an empty cell BESIDE it.
        view_cell: the cell.
        walkable, floor: bit masks of the cells that can be walked on, and that an object can be put on.
    """
    ends = _end_poses(goal, view_cell, _reachable_cells(walkable), floor)
    start = 4 * AGENT
    if start in ends or not ends:
        return () if ends else None
    predecessors: dict[int, tuple[int, int]] = {start: (start, -1)}
    queue = [start]
    for pose in queue:
        for move, next_pose, is_step in _STEPS[pose]:
            if next_pose in predecessors or (is_step and not walkable >> (next_pose >> 2) & 1):
                continue
            predecessors[next_pose] = (pose, move)
            if next_pose in ends:
                return _moves_to(predecessors, next_pose)
            queue.append(next_pose)
    return None


def _moves_to(predecessors: Mapping[int, tuple[int, int]], pose: int) -> tuple[int, ...]:
    moves = []
    while predecessors[pose][1] >= 0:
        pose, move = predecessors[pose]
        moves.append(move)
    return tuple(reversed(moves))


def list_actions(board: Board, pose: Pose, sight: Sight, *, short_text: bool = True) -> dict[str, Macro]:
    """Lists every possible action by name; each changes the state.

    Args:
        short_text: use the short names, `red door 1` among all red doors. Else AgentGym's, `red closed door 1`
            among the closed ones, `pickup red ball 1`; and without `drop next to`, which is ours.
    """
    macros = {name: Macro(FACE, -1, (move,)) for name, move in MOVES.items() if _changes(board, pose, move)}
    reachable = _reachable_cells(sight.walkable)
    facing_cells = _adjacent_cells(reachable)
    pick_up = "pick up" if short_text else "pickup"
    for visible in sight.objects:
        view_cell, grid_object = visible.view_cell, visible.grid_object
        name = f"{visible.name} {visible.rank}" if short_text else f"{visible.full_name} {visible.full_rank}"
        if grid_object is None:
            if reachable >> view_cell & 1:
                macros["go to goal"] = Macro(STAND, view_cell, ())
        elif facing_cells >> view_cell & 1:
            is_in_front = view_cell == AGENT + SIDE
            if not is_in_front:
                macros[f"go to {name}"] = Macro(FACE, view_cell, ())
            if grid_object.type == DOOR:
                _add_door_action(macros, board, pose, visible, name=name, reachable=reachable)
            elif not pose.held_code:
                macros[f"{pick_up} {name}"] = Macro(FACE, view_cell, (PICKUP,))
        if (
            short_text
            and pose.held_code
            and grid_object is not None
            and _adjacent_cells(_adjacent_cells(1 << view_cell) & sight.floor) & reachable
        ):
            macros[f"drop next to {name}"] = Macro(BESIDE, view_cell, (DROP,))
    return macros


def _add_door_action(
    macros: dict[str, Macro], board: Board, pose: Pose, visible: VisibleObject, *, name: str, reachable: int
) -> None:
    door = visible.grid_object
    held_object = board.objects[pose.held_code]
    if door is None:
        return
    if door.state == OPEN:
        if reachable >> visible.view_cell & 1:
            macros[f"go through {name}"] = Macro(STAND, visible.view_cell, ())
    elif door.state == CLOSED or (door.state == LOCKED and held_object is not None and _can_unlock(held_object, door)):
        macros[f"toggle and go through {name}"] = Macro(FACE, visible.view_cell, (TOGGLE, FORWARD))


def _can_unlock(held_object: GridObject, door: GridObject) -> bool:
    return held_object.type == "key" and held_object.colour == door.colour


def _changes(board: Board, pose: Pose, move: int) -> bool:
    return move in (LEFT, RIGHT) or apply_move(board, pose, move) is not None


def expand_macro(macro: Macro, sight: Sight) -> Sequence[int]:
    """Returns the moves of a macro."""
    if macro.view_cell < 0:
        return macro.final_moves
    walk = shortest_path(macro.goal, macro.view_cell, sight.walkable, floor=sight.floor if macro.goal == BESIDE else 0)
    return (*(walk or ()), *macro.final_moves)
