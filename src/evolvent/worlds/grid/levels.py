"""BabyAI's levels by name: rooms, objects, missions and step limits as published (Chevalier-Boisvert et al. 2019),
under the names that MiniGrid registers.

The generator is our own: a name and a seed are the same episode on every machine, but not the episode that
MiniGrid draws from this seed. `LEVELS` holds the forty levels of AgentGym's BabyAI, in its order: its index i
is level LEVELS[i % 40], seed i // 40.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.grid import families
from evolvent.worlds.grid.house import DrawRejected, House
from evolvent.worlds.grid.map import LETTERS, Board
from evolvent.worlds.grid.mission import PUT, read_mission

__all__ = ["LEVELS", "NAMES", "draw_level", "full_level_name"]

_ATTEMPTS = 2000
Dimensions = tuple[int, int, int]  # of a house: the size of its rooms, columns, rows


@dataclass(frozen=True, slots=True)
class _Level:
    """A level: its family, the dimensions of its house, its limit, its strictness, and the family's options.

    `limit` is in rooms: number of moves for each cell of a room; 0: all rooms, for each walk that the mission
    needs. `num_strict_stages` is the number of first stages in which mistakes fail.
    """

    build: Callable[..., str]
    dimensions: Dimensions
    limit: int
    num_strict_stages: int
    options: Mapping[str, Any]


def _make_level(
    build: Callable[..., str],
    dimensions: Dimensions = (8, 3, 3),
    *,
    limit: int = 0,
    num_strict_stages: int = 0,
    **options: Any,
) -> _Level:
    return _Level(build, dimensions, limit, num_strict_stages, options)


_ROOM, _SMALL_ROOM, _SMALL_HOUSE, _PAIR = (8, 1, 1), (7, 1, 1), (5, 2, 2), (6, 2, 1)
_SEQUENCE_OPTIONS: Mapping[str, Any] = {"verbs": ("go to",), "locked": 0.0, "sides": False, "unblocking": False}
_SYNTH_OPTIONS: Mapping[str, Any] = {"forms": ("one",), "implicit": False}

_LEVELS_BY_NAME: dict[str, _Level] = {
    "GoToRedBallGrey": _make_level(families.go_to_ball, _ROOM, grey=True),
    "GoToRedBall": _make_level(families.go_to_ball, _ROOM),
    "GoToRedBallNoDists": _make_level(families.go_to_ball, _ROOM, number=0),
    "GoToObj": _make_level(families.go_to_object, _ROOM),
    "GoToObjS4": _make_level(families.go_to_object, (4, 1, 1)),
    "GoToObjS6": _make_level(families.go_to_object, (6, 1, 1)),
    "GoToLocal": _make_level(families.go_to_object, _ROOM, number=8),
    "GoTo": _make_level(families.go_to_object, number=18),
    "GoToOpen": _make_level(families.go_to_object, number=18, opened=True),
    "GoToObjMaze": _make_level(families.go_to_object),
    "GoToObjMazeOpen": _make_level(families.go_to_object, opened=True),
    "GoToObjMazeS4R2": _make_level(families.go_to_object, (4, 2, 2)),
    "GoToImpUnlock": _make_level(families.go_to_locked),
    "GoToSeq": _make_level(families.any_mission, **_SEQUENCE_OPTIONS),
    "GoToSeqS5R2": _make_level(families.any_mission, _SMALL_HOUSE, number=4, **_SEQUENCE_OPTIONS),
    "GoToRedBlueBall": _make_level(families.go_to_ball, _ROOM, colours=("red", "blue")),
    "GoToDoor": _make_level(families.go_to_object, (7, 3, 3), number=0, doors=True),
    "GoToObjDoor": _make_level(families.go_to_object, number=8, doors=True),
    "Open": _make_level(families.open_any),
    "OpenRedDoor": _make_level(families.open_red, (5, 2, 1)),
    "OpenDoor": _make_level(families.open_one),
    "OpenDoorDebug": _make_level(families.open_one, num_strict_stages=1),
    "OpenDoorColor": _make_level(families.open_one, attribute="colour"),
    "OpenDoorLoc": _make_level(families.open_one, attribute="side"),
    "OpenTwoDoors": _make_level(families.open_two, (6, 3, 3), limit=20),
    "OpenRedBlueDoors": _make_level(families.open_two, (6, 3, 3), limit=20, colours=("red", "blue")),
    "OpenRedBlueDoorsDebug": _make_level(
        families.open_two, (6, 3, 3), limit=20, num_strict_stages=1, colours=("red", "blue")
    ),
    "Pickup": _make_level(families.pick_any),
    "UnblockPickup": _make_level(families.pick_any, number=20, blocked=True),
    "PickupLoc": _make_level(
        families.any_mission, _ROOM, verbs=("pick up",), forms=("one",), number=8, locked=0.0, unblocking=False
    ),
    "PickupDist": _make_level(families.pick_described, _SMALL_ROOM),
    "PickupDistDebug": _make_level(families.pick_described, _SMALL_ROOM, num_strict_stages=1),
    "PickupAbove": _make_level(families.pick_above, (6, 3, 3), limit=8),
    "PutNextLocal": _make_level(families.put_here, _ROOM),
    "PutNextLocalS5N3": _make_level(families.put_here, (5, 1, 1), number=3),
    "PutNextLocalS6N4": _make_level(families.put_here, (6, 1, 1), number=4),
    "Unlock": _make_level(families.unlock),
    "UnlockLocal": _make_level(families.unlock_here),
    "UnlockLocalDist": _make_level(families.unlock_here, number=3),
    "KeyInBox": _make_level(families.unlock_here, boxed=True),
    "UnlockPickup": _make_level(families.pick_behind_lock, _PAIR),
    "UnlockPickupDist": _make_level(families.pick_behind_lock, _PAIR, number=4),
    "BlockedUnlockPickup": _make_level(families.pick_behind_lock, _PAIR, limit=16, blocked=True),
    "UnlockToUnlock": _make_level(families.pick_behind_locks, (6, 3, 1), limit=30),
    "ActionObjDoor": _make_level(families.act_here, (7, 3, 3)),
    "KeyCorridor": _make_level(families.pick_off_corridor, (6, 3, 3), limit=30),
    "Synth": _make_level(families.any_mission, sides=False, **_SYNTH_OPTIONS),
    "SynthS5R2": _make_level(families.any_mission, (5, 3, 2), sides=False, **_SYNTH_OPTIONS),
    "SynthLoc": _make_level(families.any_mission, **_SYNTH_OPTIONS),
    "SynthSeq": _make_level(families.any_mission, implicit=False),
    "MiniBossLevel": _make_level(families.any_mission, _SMALL_HOUSE, number=7, locked=0.25),
    "BossLevel": _make_level(families.any_mission),
    "BossLevelNoUnlock": _make_level(families.any_mission, locked=0.0, implicit=False),
}
_LEVELS_BY_NAME |= {
    f"GoToLocalS{size}N{number}": _make_level(families.go_to_object, (size, 1, 1), number=number)
    for size, numbers in ((5, (2,)), (6, (2, 3, 4)), (7, (4, 5)), (8, (2, 3, 4, 5, 6, 7)))
    for number in numbers
}
_LEVELS_BY_NAME |= {f"GoToObjMazeS{size}": _make_level(families.go_to_object, (size, 3, 3)) for size in (4, 5, 6, 7)}
_LEVELS_BY_NAME |= {
    f"OpenDoorsOrderN{number}{debug}": _make_level(
        families.open_in_order, (6, 3, 3), limit=20, num_strict_stages=2 * bool(debug), number=number
    )
    for number, debug in product((2, 4), ("", "Debug"))
}
_LEVELS_BY_NAME |= {
    f"PutNextS{size}N{number}": _make_level(families.put_across, (size, 2, 1), limit=8, number=number)
    for size, number in ((4, 1), (5, 1), (5, 2), (6, 3), (7, 4))
}
_LEVELS_BY_NAME |= {
    f"PutNextS{size}N{number}Carrying": _make_level(
        families.put_across, (size, 2, 1), limit=8, number=number, carried=True
    )
    for size, number in ((5, 2), (6, 3), (7, 4))
}
_LEVELS_BY_NAME |= {
    f"FindObjS{size}": _make_level(families.pick_somewhere, (size, 3, 3), limit=20) for size in (5, 6, 7)
}
_LEVELS_BY_NAME |= {
    f"KeyCorridorS{size}R{rows}": _make_level(families.pick_off_corridor, (size, 3, rows), limit=30)
    for size, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
}
_LEVELS_BY_NAME |= {f"OneRoomS{size}": _make_level(families.pick_in_room, (size, 1, 1)) for size in (8, 12, 16, 20)}
_LEVELS_BY_NAME |= {
    f"MoveTwoAcrossS{size}N{number}": _make_level(families.put_two_across, (size, 2, 1), limit=16, number=number)
    for size, number in ((5, 2), (8, 9))
}

NAMES: tuple[str, ...] = tuple(f"BabyAI-{name}-v0" for name in _LEVELS_BY_NAME)
"""Every level that can be named."""

LEVELS: tuple[str, ...] = tuple(
    f"BabyAI-{name}-v0"
    for name in (
        "GoToRedBallGrey",
        "GoToRedBall",
        "GoToRedBallNoDists",
        "GoToObjS6",
        "GoToLocalS8N7",
        "GoToObjMazeS7",
        "GoToImpUnlock",
        "GoToSeqS5R2",
        "GoToRedBlueBall",
        "GoToDoor",
        "GoToObjDoor",
        "Open",
        "OpenRedDoor",
        "OpenDoorLoc",
        "OpenRedBlueDoorsDebug",
        "OpenDoorsOrderN4Debug",
        "Pickup",
        "UnblockPickup",
        "PickupLoc",
        "PickupDistDebug",
        "PickupAbove",
        "PutNextLocalS6N4",
        "PutNextS7N4Carrying",
        "Unlock",
        "UnlockLocalDist",
        "KeyInBox",
        "UnlockPickupDist",
        "BlockedUnlockPickup",
        "UnlockToUnlock",
        "ActionObjDoor",
        "FindObjS7",
        "KeyCorridorS6R3",
        "OneRoomS20",
        "MoveTwoAcrossS8N9",
        "SynthS5R2",
        "SynthLoc",
        "SynthSeq",
        "MiniBossLevel",
        "BossLevel",
        "BossLevelNoUnlock",
    )
)
"""The forty levels of AgentGym's BabyAI in its order."""


def full_level_name(name: str) -> str:
    """Returns the full name of a level: `GoToObj` and `BabyAI-GoToObj-v0` are the same.

    Raises:
        ConfigError: the name is unknown; suggests the nearest name.
    """
    short_name = re.sub(r"-v\d+$", "", name.removeprefix("BabyAI-"))
    if short_name not in _LEVELS_BY_NAME:
        raise ConfigError([unknown_name_problem("level", name, (*NAMES, *_LEVELS_BY_NAME))])
    return f"BabyAI-{short_name}-v0"


def draw_level(name: str, seed: int) -> dict[str, Json]:
    """Draws the episode of a level and a seed, as the spec of a map (see `gridspec.build_scene`).

    Raises:
        ConfigError: the level is unknown.
    """
    full_name = full_level_name(name)
    level = _LEVELS_BY_NAME[full_name[len("BabyAI-") : -len("-v0")]]
    rng = Random(sample_seed("babyai level", full_name, seed))
    for _ in range(_ATTEMPTS):
        house = House(rng, level.dimensions)
        try:
            text = level.build(house, **level.options)
            _reject_trivial_put(house.build_board(), text)
        except DrawRejected:
            continue
        return _build_spec(level, house, text)
    raise ConfigError(f"level {full_name!r} has no episode for this seed", value=seed, hint="use another seed")


def _reject_trivial_put(board: Board, text: str) -> None:
    """Raises DrawRejected if an object has to be put next to itself, or is there already."""
    for atom in (atom for stage in read_mission(text, board).stages for atom in stage if atom.verb == PUT):
        cells = board.start.cells
        adjacent_codes = {
            cells[cell + step]
            for cell, code in enumerate(cells)
            if code in atom.codes
            for step in board.forward_offsets
        }
        if atom.codes & atom.landmark_codes or adjacent_codes & atom.landmark_codes:
            raise DrawRejected


def _build_spec(level: _Level, house: House, text: str) -> dict[str, Json]:
    spec: dict[str, Json] = {"map": house.render(), "mission": text}
    size, columns, rows = level.dimensions
    num_walks = read_mission(text, house.build_board()).num_walks
    spec["moves"] = size**2 * (level.limit or num_walks * columns * rows)
    if level.num_strict_stages:
        spec["strict"] = level.num_strict_stages
    if house.hold:
        spec["hold"] = LETTERS[house.hold.colour] + LETTERS[house.hold.type]
    if house.inside:
        spec["inside"] = [[x, y, LETTERS[item.colour] + LETTERS[item.type]] for (x, y), item in house.inside.items()]
    return spec
