"""Missions of the grid world: BabyAI's language (Chevalier-Boisvert et al. 2019), read, resolved and judged.

    go to the red ball                                  facing it
    pick up a blue key                                  by picking it up, with empty hands before
    open the green door                                 by toggling it
    put the red ball next to the blue box               by dropping it on a cell beside it
    ... and ...                                         both, in any order
    ..., then ...        ... after you ...              in this order; in the other

A thing is told by its type or as an `object`, perhaps with its colour, and perhaps with its side: `on your left`, `on
your right`, `in front of you`, `behind you`. Sides speak of the room in which the agent begins, and of where it looks
then. What a mission speaks of is fixed at the beginning: a ball on the left stays that ball wherever it is carried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError
from evolvent.worlds.grid.map import COLOURS, DOOR, DROP, GOAL, OPEN, PICKUP, TOGGLE, TYPES, WALL, Board, Pose

__all__ = ["GO", "OPEN_DOOR", "PICK", "PUT", "SIDES", "Atom", "Mission", "Progress", "judge", "matches", "read_mission"]

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

_WHAT = rf"(?:the|a|an) (?:({'|'.join(COLOURS)}) )?({'|'.join(TYPES)}|{DOOR}|object|goal)(?: ({'|'.join(SIDES)}))?"
_ATOM = re.compile(rf"(?:({GO}|{PICK}|{OPEN_DOOR}) {_WHAT})|(?:put {_WHAT} next to {_WHAT})")
_EXPECTED = "such as 'go to the red ball' or 'open the door, then put a key next to the box on your left'"


@dataclass(frozen=True, slots=True)
class Atom:
    """One thing to do: what, with which things (by code), and for `put`, next to which."""

    verb: str
    codes: frozenset[int]
    fixed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Mission:
    """A mission on a board: stages one after another; the atoms of a stage may be done in any order.

    Args:
        text: as the agent is told.
        stages: what is to be done.
        strict: in so many of the first stages picking up something else, or toggling another door, fails: the rule of
            BabyAI's debugging levels. (There the move that opens the first of two doors fails the second; not here.)
    """

    text: str
    stages: tuple[tuple[Atom, ...], ...]
    strict: int = 0

    @property
    def walks(self) -> int:
        """How many walks it needs: one an atom, two to put something somewhere (BabyAI's `num_navs_needed`)."""
        return sum(2 if atom.verb == PUT else 1 for stage in self.stages for atom in stage)


class Progress(NamedTuple):
    """How far a mission is: the stage, and which of its atoms are done, as bits."""

    stage: int = 0
    done: int = 0


def read_mission(text: object, board: Board, *, strict: int = 0) -> Mission:
    """The mission that a text tells on a board.

    Raises:
        ConfigError: the text is no mission, or speaks of something that is not there.
    """
    if not isinstance(text, str):
        raise ConfigError("a mission that is no text", value=text, expected=_EXPECTED)
    parts = text.split(", then ")
    if len(parts) == 1:
        parts = text.split(" after you ")[::-1]
    if len(parts) > 2:
        raise ConfigError("a mission of more than two stages", value=text, expected=_EXPECTED)
    return Mission(text, tuple(tuple(_atom(part, board) for part in stage.split(" and ")) for stage in parts), strict)


def _atom(text: str, board: Board) -> Atom:
    found = _ATOM.fullmatch(text)
    if found is None:
        raise ConfigError("not a mission", value=text, expected=_EXPECTED)
    verb, *groups = found.groups()
    whats = [matches(board, *groups[at : at + 2], side=groups[at + 2]) for at in ((0,) if verb else (3, 6))]
    if not all(whats):
        raise ConfigError("a mission about something that is not on the map", value=text)
    kinds = [groups[at + 1] for at in ((0,) if verb else (3, 6))]
    if verb == OPEN_DOOR and kinds[0] != DOOR:
        raise ConfigError("only doors can be opened by a mission", value=text, expected="open the red door")
    if (verb in (PICK, None) and kinds[0] in (DOOR, "goal")) or (verb == PICK and not whats[0]):
        raise ConfigError("only keys, balls and boxes can be carried", value=text, expected="pick up the red ball")
    return Atom(verb or PUT, whats[0], whats[1] if not verb else frozenset())


def matches(board: Board, colour: str | None, kind: str | None, *, side: str | None = None) -> frozenset[int]:
    """The codes of all things of a colour (None: any), a type (None or `object`: any) and a side (None: anywhere).

    Only what is on the map or carried at the beginning counts, not what lies in boxes. All codes of a door count.
    """
    if kind == "goal":
        return frozenset({GOAL}) if GOAL in board.start.cells else frozenset()
    found: set[int] = set()
    room = _room(board) if side else frozenset()
    for at, code in enumerate(board.start.cells):
        thing = board.things[code]
        if thing is None or (colour and thing.colour != colour) or (kind not in (None, "object", thing.type)):
            continue
        if side is None or (at in room and _on_side(board, at, side)):
            found.update(_all_codes(board, code))
    held = board.things[board.start.hold]
    if held and side is None and colour in (None, held.colour) and kind in (None, "object", held.type):
        found.add(board.start.hold)
    return frozenset(found)


def _all_codes(board: Board, code: int) -> range:
    thing = board.thing(code)
    first = code - {"": 0, OPEN: 0, "closed": 1, "locked": 2}[thing.state]
    return range(first, first + (3 if thing.type == DOOR else 1))


def _room(board: Board) -> frozenset[int]:
    """The cells of the room that the agent begins in, with the doors around it."""
    cells, ahead = board.start.cells, board.ahead
    room, queue = {board.start.at}, [board.start.at]
    for at in queue:
        here = board.things[cells[at]]
        if here is not None and here.type == DOOR:
            continue
        for step in ahead:
            if at + step not in room and cells[at + step] != WALL:
                room.add(at + step)
                queue.append(at + step)
    return frozenset(room)


def _on_side(board: Board, at: int, side: str) -> bool:
    ahead, right = SIDES[side]
    (x, y), (from_x, from_y) = board.place(at), board.place(board.start.at)
    to_x, to_y = ((1, 0), (0, 1), (-1, 0), (0, -1))[board.start.way]
    forth = (x - from_x) * to_x + (y - from_y) * to_y
    aside = (y - from_y) * to_x - (x - from_x) * to_y
    return ahead * forth + right * aside > 0


def judge(
    board: Board, mission: Mission, progress: Progress, *, before: Pose, move: int, after: Pose
) -> tuple[Progress, bool | None]:
    """What a move means for the mission: the progress, and True if it is fulfilled, False if it has failed."""
    stage, done = progress
    if stage < mission.strict and _fails(board, mission.stages[stage], before=before, move=move, after=after):
        return progress, False
    while True:
        atoms = mission.stages[stage]
        for number, atom in enumerate(atoms):
            if not done >> number & 1 and _fulfils(board, atom, before=before, move=move, after=after):
                done |= 1 << number
        if done + 1 < 1 << len(atoms):
            return Progress(stage, done), None
        stage, done = stage + 1, 0
        if stage == len(mission.stages):
            return Progress(stage, 0), True


def _fulfils(board: Board, atom: Atom, *, before: Pose, move: int, after: Pose) -> bool:
    """Whether a move fulfils an atom."""
    if atom.verb == GO:
        front = after.cells[after.at + board.ahead[after.way]]
        return (front in atom.codes and front != GOAL) or (GOAL in atom.codes and after.cells[after.at] == GOAL)
    if atom.verb == PICK:
        return move == PICKUP and after.hold in atom.codes
    front_at = after.at + board.ahead[after.way]
    if atom.verb == OPEN_DOOR:
        front = after.cells[front_at]
        return move == TOGGLE and front in atom.codes and board.thing(front).state == OPEN
    if move != DROP or before.hold not in atom.codes:
        return False
    return any(after.cells[front_at + step] in atom.fixed for step in board.ahead)


def _fails(board: Board, atoms: Sequence[Atom], *, before: Pose, move: int, after: Pose) -> bool:
    """Whether a move breaks a strict stage: something else picked up, or a door toggled that then is not as wanted."""
    if any(_fulfils(board, atom, before=before, move=move, after=after) for atom in atoms):
        return False
    front = board.things[after.cells[after.at + board.ahead[after.way]]]
    toggled = move == TOGGLE and front is not None and front.type == DOOR
    picked = move == PICKUP and after.hold
    return any((atom.verb == OPEN_DOOR and toggled) or (atom.verb == PICK and picked) for atom in atoms)
