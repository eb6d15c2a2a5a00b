"""Actions of the grid world: the six moves by name, and macros that walk by a shortest path.

    turn left   turn right   move forward   pick up   drop   toggle
    go to red ball 1              stand before it and face it
    pick up red ball 1            go to it, then pick up
    drop next to red ball 1       drop what is carried on an empty cell beside it
    go through red door 1         stand in the doorway of an open door
    toggle and go through red door 1    go to a closed door (or a locked one, with its key), toggle, one step forward
    go to goal                    stand on the goal

A macro knows what is seen now and nothing else: it speaks of things in view and walks over cells in view that are free.
Its moves are those of a shortest path of moves, turns included. `red ball 2` is the second nearest of the red balls in
view; see `view.look` for the order.
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
    Pose,
    Thing,
    moved,
)
from evolvent.worlds.grid.view import AGENT, SIDE, Seen, Sight

__all__ = ["BESIDE", "FACE", "MOVES", "STAND", "Macro", "actions", "moves_of", "path"]

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
    """A walk and the moves after it. `view` is the cell of the view that it is about; no walk where it is negative."""

    goal: int
    view: int
    then: tuple[int, ...]


_CELLS = SIDE * SIDE
_LEFT_EDGE = sum(1 << SIDE * row for row in range(SIDE))
_NOT_LEFT = ((1 << _CELLS) - 1) ^ _LEFT_EDGE
_NOT_RIGHT = ((1 << _CELLS) - 1) ^ (_LEFT_EDGE << SIDE - 1)
_START = 1 << AGENT


def _beside(cells: int) -> int:
    """All cells of the view beside any of these cells."""
    return ((cells & _NOT_RIGHT) << 1 | (cells & _NOT_LEFT) >> 1 | cells << SIDE | cells >> SIDE) & ((1 << _CELLS) - 1)


@lru_cache(maxsize=1 << 14)
def _reached(walkable: int) -> int:
    """The cells of the view that can be walked to over walkable ones."""
    reached, more = 0, _START
    while more != reached:
        reached = more
        more = reached | _beside(reached) & walkable
    return reached


def _steps() -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """By pose in the view (4 * cell + way; 0 ahead, 1 right, 2 back, 3 left): the poses one move away.

    Each is (move, pose, whether it moves to another cell); forward comes first, then left, then right.
    """
    table = []
    for cell in range(_CELLS):
        row, column = divmod(cell, SIDE)
        for way in range(4):
            to_row, to_column = row + (1, 0, -1, 0)[way], column + (0, 1, 0, -1)[way]
            found = []
            if 0 <= to_row < SIDE and 0 <= to_column < SIDE:
                found.append((FORWARD, 4 * (SIDE * to_row + to_column) + way, 1))
            found += [(LEFT, 4 * cell + (way - 1) % 4, 0), (RIGHT, 4 * cell + (way + 1) % 4, 0)]
            table.append(tuple(found))
    return tuple(table)


_STEPS = _steps()


def _neighbours() -> tuple[tuple[tuple[int, int], ...], ...]:
    """By cell of the view: the cells beside it, each with the pose there that faces it."""
    table: list[list[tuple[int, int]]] = [[] for _ in range(_CELLS)]
    for pose, steps in enumerate(_STEPS):
        if steps[0][0] == FORWARD:
            table[steps[0][1] >> 2].append((pose >> 2, pose))
    return tuple(map(tuple, table))


_NEIGHBOURS = _neighbours()


def _ends(goal: int, view: int, reached: int, floor: int) -> frozenset[int]:
    """The poses in which a walk may end."""
    if goal == STAND:
        return frozenset(range(4 * view, 4 * view + 4)) if reached >> view & 1 else frozenset()
    fronts = [view] if goal == FACE else [cell for cell, _ in _NEIGHBOURS[view] if floor >> cell & 1]
    return frozenset(pose for front in fronts for cell, pose in _NEIGHBOURS[front] if reached >> cell & 1)


@lru_cache(maxsize=1 << 15)
def path(goal: int, view: int, walkable: int, *, floor: int = 0) -> tuple[int, ...] | None:
    """The moves of a shortest path to a cell of the view; None where there is none.

    Args:
        goal: FACE the cell, STAND on it, or face an empty cell BESIDE it.
        view: the cell.
        walkable, floor: cells that can be walked on, and that something can be put on, as bits.
    """
    ends = _ends(goal, view, _reached(walkable), floor)
    start = 4 * AGENT
    if start in ends or not ends:
        return () if ends else None
    came: dict[int, tuple[int, int]] = {start: (start, -1)}
    queue = [start]
    for pose in queue:
        for move, then, other in _STEPS[pose]:
            if then in came or (other and not walkable >> (then >> 2) & 1):
                continue
            came[then] = (pose, move)
            if then in ends:
                return _moves(came, then)
            queue.append(then)
    return None


def _moves(came: Mapping[int, tuple[int, int]], pose: int) -> tuple[int, ...]:
    found = []
    while came[pose][1] >= 0:
        pose, move = came[pose]
        found.append(move)
    return tuple(reversed(found))


def actions(board: Board, pose: Pose, sight: Sight, *, plain: bool = True) -> dict[str, Macro]:
    """Every action that is possible now, by name; each changes something.

    Args:
        plain: the short names, `red door 1` among all red doors. Else AgentGym's, `red closed door 1` among the closed
            ones, `pickup red ball 1`; and without `drop next to`, which is ours.
    """
    found = {name: Macro(FACE, -1, (move,)) for name, move in MOVES.items() if _changes(board, pose, move)}
    reached = _reached(sight.walkable)
    facing = _beside(reached)
    pick_up = "pick up" if plain else "pickup"
    for seen in sight.things:
        view, thing = seen.view, seen.thing
        name = f"{seen.name} {seen.nth}" if plain else f"{seen.full} {seen.nth_full}"
        if thing is None:
            if reached >> view & 1:
                found["go to goal"] = Macro(STAND, view, ())
        elif facing >> view & 1:
            here = view == AGENT + SIDE
            if not here:
                found[f"go to {name}"] = Macro(FACE, view, ())
            if thing.type == DOOR:
                _add_door(found, board, pose, seen, name=name, reached=reached)
            elif not pose.hold:
                found[f"{pick_up} {name}"] = Macro(FACE, view, (PICKUP,))
        if plain and pose.hold and thing is not None and _beside(_beside(1 << view) & sight.floor) & reached:
            found[f"drop next to {name}"] = Macro(BESIDE, view, (DROP,))
    return found


def _add_door(found: dict[str, Macro], board: Board, pose: Pose, seen: Seen, *, name: str, reached: int) -> None:
    door = seen.thing
    held = board.things[pose.hold]
    if door is None:
        return
    if door.state == OPEN:
        if reached >> seen.view & 1:
            found[f"go through {name}"] = Macro(STAND, seen.view, ())
    elif door.state == CLOSED or (door.state == LOCKED and held is not None and _opens(held, door)):
        found[f"toggle and go through {name}"] = Macro(FACE, seen.view, (TOGGLE, FORWARD))


def _opens(held: Thing, door: Thing) -> bool:
    return held.type == "key" and held.colour == door.colour


def _changes(board: Board, pose: Pose, move: int) -> bool:
    return move in (LEFT, RIGHT) or moved(board, pose, move) is not None


def moves_of(macro: Macro, sight: Sight) -> Sequence[int]:
    """The moves that an action is made of."""
    if macro.view < 0:
        return macro.then
    walk = path(macro.goal, macro.view, sight.walkable, floor=sight.floor if macro.goal == BESIDE else 0)
    return (*(walk or ()), *macro.then)
