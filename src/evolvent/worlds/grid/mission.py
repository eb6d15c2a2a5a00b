"""Missions of the grid world: BabyAI's language (Chevalier-Boisvert et al. 2019), parsed, resolved and checked.

    go to the red ball                                  facing it
    pick up a blue key                                  by picking it up, with empty hands before
    open the green door                                 by toggling it
    put the red ball next to the blue box               by dropping it on a cell beside it
    ... and ...                                         both, in any order
    ..., then ...        ... after you ...              in this order; in the other

An object is described by its type or as an `object`, optionally with its color and its side: `on your left`,
`on your right`, `in front of you`, `behind you`. Sides refer to the room and direction in which the agent
starts. The objects of a mission are fixed at the start: a ball on the left remains that ball wherever it is
carried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError
from evolvent.worlds.grid.map import COLOURS, DOOR, DROP, GOAL, OPEN, PICKUP, TOGGLE, TYPES, WALL, Board, Pose

__all__ = [
    "GO",
    "OPEN_DOOR",
    "PICK",
    "PUT",
    "SIDES",
    "Atom",
    "Mission",
    "Progress",
    "find_codes",
    "read_mission",
    "update_progress",
]

GO = "go to"
PICK = "pick up"
OPEN_DOOR = "open"
PUT = "put"
SIDES: dict[str, tuple[int, int]] = {
    "on your left": (0, -1),
    "on your right": (0, 1),
    "in front of you": (1, 0),
    "behind you": (-1, 0),
}
"""The sides of the agent: which of (ahead, right) is positive (1) or negative (-1)."""

_TARGET = rf"(?:the|a|an) (?:({'|'.join(COLOURS)}) )?({'|'.join(TYPES)}|{DOOR}|object|goal)(?: ({'|'.join(SIDES)}))?"
_ATOM = re.compile(rf"(?:({GO}|{PICK}|{OPEN_DOOR}) {_TARGET})|(?:put {_TARGET} next to {_TARGET})")
_EXPECTED = "such as 'go to the red ball' or 'open the door, then put a key next to the box on your left'"


@dataclass(frozen=True, slots=True)
class Atom:
    """One action: a verb, the possible objects (by code), and for `put`, the objects to put them next to."""

    verb: str
    codes: frozenset[int]
    landmark_codes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Mission:
    """A mission on a board: stages one after another; the atoms of a stage may be done in any order.

    Args:
        text: the mission as the agent reads it.
        stages: the atoms of each stage.
        num_strict_stages: in this many first stages, picking up another object or toggling another door fails: the
            rule of BabyAI's debugging levels. (There the move that opens the first of two doors fails the second;
            not here.)
    """

    text: str
    stages: tuple[tuple[Atom, ...], ...]
    num_strict_stages: int = 0

    @property
    def num_walks(self) -> int:
        """Returns the number of walks: one per atom, two to put an object somewhere (BabyAI's `num_navs_needed`)."""
        return sum(2 if atom.verb == PUT else 1 for stage in self.stages for atom in stage)


class Progress(NamedTuple):
    """Progress of a mission: the stage, and a bit mask of its finished atoms."""

    stage: int = 0
    done_mask: int = 0


def read_mission(text: object, board: Board, *, num_strict_stages: int = 0) -> Mission:
    """Parses a mission on a board.

    Raises:
        ConfigError: the text is not a mission, or mentions an object that does not exist.
    """
    if not isinstance(text, str):
        raise ConfigError("the mission is not text", value=text, expected=_EXPECTED)
    parts = text.split(", then ")
    if len(parts) == 1:
        parts = text.split(" after you ")[::-1]
    if len(parts) > 2:
        raise ConfigError("the mission has more than two stages", value=text, expected=_EXPECTED)
    return Mission(
        text,
        tuple(tuple(_parse_atom(part, board) for part in stage.split(" and ")) for stage in parts),
        num_strict_stages,
    )


def _parse_atom(text: str, board: Board) -> Atom:
    match = _ATOM.fullmatch(text)
    if match is None:
        raise ConfigError("invalid mission", value=text, expected=_EXPECTED)
    verb, *groups = match.groups()
    target_codes = [
        find_codes(board, *groups[group_index : group_index + 2], side=groups[group_index + 2])
        for group_index in ((0,) if verb else (3, 6))
    ]
    if not all(target_codes):
        raise ConfigError("the mission names an object that is not on the map", value=text)
    kinds = [groups[group_index + 1] for group_index in ((0,) if verb else (3, 6))]
    if verb == OPEN_DOOR and kinds[0] != DOOR:
        raise ConfigError("a mission can open only doors", value=text, expected="open the red door")
    if (verb in (PICK, None) and kinds[0] in (DOOR, "goal")) or (verb == PICK and not target_codes[0]):
        raise ConfigError("the agent can carry only keys, balls and boxes", value=text, expected="pick up the red ball")
    return Atom(verb or PUT, target_codes[0], target_codes[1] if not verb else frozenset())


def find_codes(board: Board, colour: str | None, kind: str | None, *, side: str | None = None) -> frozenset[int]:
    """Finds the codes of all objects of a color (None: any), a type (None or `object`: any) and a side (None:
    anywhere).

    Only objects on the map or carried at the start count, not those inside boxes. All codes of a door count.
    """
    if kind == "goal":
        return frozenset({GOAL}) if GOAL in board.start.cells else frozenset()
    codes: set[int] = set()
    room_cells = _start_room_cells(board) if side else frozenset()
    for cell, code in enumerate(board.start.cells):
        grid_object = board.objects[code]
        if (
            grid_object is None
            or (colour and grid_object.colour != colour)
            or (kind not in (None, "object", grid_object.type))
        ):
            continue
        if side is None or (cell in room_cells and _is_on_side(board, cell, side)):
            codes.update(_codes_of_object(board, code))
    held_object = board.objects[board.start.held_code]
    if (
        held_object
        and side is None
        and colour in (None, held_object.colour)
        and kind in (None, "object", held_object.type)
    ):
        codes.add(board.start.held_code)
    return frozenset(codes)


def _codes_of_object(board: Board, code: int) -> range:
    grid_object = board.get_object(code)
    first = code - {"": 0, OPEN: 0, "closed": 1, "locked": 2}[grid_object.state]
    return range(first, first + (3 if grid_object.type == DOOR else 1))


def _start_room_cells(board: Board) -> frozenset[int]:
    """Returns the cells of the agent's first room, with the doors around it."""
    cells, ahead = board.start.cells, board.forward_offsets
    room_cells, queue = {board.start.cell}, [board.start.cell]
    for cell in queue:
        grid_object = board.objects[cells[cell]]
        if grid_object is not None and grid_object.type == DOOR:
            continue
        for step in ahead:
            if cell + step not in room_cells and cells[cell + step] != WALL:
                room_cells.add(cell + step)
                queue.append(cell + step)
    return frozenset(room_cells)


def _is_on_side(board: Board, cell: int, side: str) -> bool:
    ahead, right = SIDES[side]
    (x, y), (from_x, from_y) = board.position(cell), board.position(board.start.cell)
    to_x, to_y = ((1, 0), (0, 1), (-1, 0), (0, -1))[board.start.direction]
    forward_distance = (x - from_x) * to_x + (y - from_y) * to_y
    right_distance = (y - from_y) * to_x - (x - from_x) * to_y
    return ahead * forward_distance + right * right_distance > 0


def update_progress(
    board: Board, mission: Mission, progress: Progress, *, before: Pose, move: int, after: Pose
) -> tuple[Progress, bool | None]:
    """Updates the progress after a move; also returns True if the mission is fulfilled, False if it has failed, else
    None.
    """
    stage, done_mask = progress
    if stage < mission.num_strict_stages and _is_failed(
        board, mission.stages[stage], before=before, move=move, after=after
    ):
        return progress, False
    while True:
        atoms = mission.stages[stage]
        for number, atom in enumerate(atoms):
            if not done_mask >> number & 1 and _is_fulfilled(board, atom, before=before, move=move, after=after):
                done_mask |= 1 << number
        if done_mask + 1 < 1 << len(atoms):
            return Progress(stage, done_mask), None
        stage, done_mask = stage + 1, 0
        if stage == len(mission.stages):
            return Progress(stage, 0), True


def _is_fulfilled(board: Board, atom: Atom, *, before: Pose, move: int, after: Pose) -> bool:
    """Checks whether a move fulfills an atom."""
    if atom.verb == GO:
        front = after.cells[after.cell + board.forward_offsets[after.direction]]
        return (front in atom.codes and front != GOAL) or (GOAL in atom.codes and after.cells[after.cell] == GOAL)
    if atom.verb == PICK:
        return move == PICKUP and after.held_code in atom.codes
    front_cell = after.cell + board.forward_offsets[after.direction]
    if atom.verb == OPEN_DOOR:
        front = after.cells[front_cell]
        return move == TOGGLE and front in atom.codes and board.get_object(front).state == OPEN
    if move != DROP or before.held_code not in atom.codes:
        return False
    return any(after.cells[front_cell + step] in atom.landmark_codes for step in board.forward_offsets)


def _is_failed(board: Board, atoms: Sequence[Atom], *, before: Pose, move: int, after: Pose) -> bool:
    """Checks whether a move breaks a strict stage: another object was picked up, or another door was toggled."""
    if any(_is_fulfilled(board, atom, before=before, move=move, after=after) for atom in atoms):
        return False
    front = board.objects[after.cells[after.cell + board.forward_offsets[after.direction]]]
    toggled_door = move == TOGGLE and front is not None and front.type == DOOR
    picked_up = move == PICKUP and after.held_code
    return any((atom.verb == OPEN_DOOR and toggled_door) or (atom.verb == PICK and picked_up) for atom in atoms)
