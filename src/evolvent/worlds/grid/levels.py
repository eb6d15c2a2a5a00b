"""BabyAI's levels by name: rooms, things, missions and step limits as published (Chevalier-Boisvert et al. 2019; the
names are those that MiniGrid registers). The generator is our own: a name and a seed are the same episode on every
machine, but not the episode that MiniGrid draws from this seed.

`LEVELS` holds the forty levels of AgentGym's BabyAI, in its order: its index i is level LEVELS[i % 40], seed i // 40.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from evolvent.errors import ConfigError, unknown
from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.grid import families
from evolvent.worlds.grid.house import House, Unlucky
from evolvent.worlds.grid.map import LETTERS, Board
from evolvent.worlds.grid.mission import PUT, read_mission

__all__ = ["LEVELS", "NAMES", "draw_level", "level_name"]

_ATTEMPTS = 2000
Measures = tuple[int, int, int]  # of a house: the size of its rooms, columns, rows


@dataclass(frozen=True, slots=True)
class _Level:
    """A level: its family, the measures of its house, its limit, how strict it is, and the family's options.

    `limit` is in rooms: how many moves for each cell of a room; 0: all rooms, for each walk that the mission needs.
    `strict` says in how many of the first stages mistakes fail.
    """

    build: Callable[..., str]
    house: Measures
    limit: int
    strict: int
    options: Mapping[str, Any]


def _level(
    build: Callable[..., str], house: Measures = (8, 3, 3), *, limit: int = 0, strict: int = 0, **options: Any
) -> _Level:
    return _Level(build, house, limit, strict, options)


_ROOM, _SMALL_ROOM, _SMALL_HOUSE, _PAIR = (8, 1, 1), (7, 1, 1), (5, 2, 2), (6, 2, 1)
_SEQUENCE: Mapping[str, Any] = {"verbs": ("go to",), "locked": 0.0, "sides": False, "unblocking": False}
_SYNTH: Mapping[str, Any] = {"forms": ("one",), "implicit": False}

_TABLE: dict[str, _Level] = {
    "GoToRedBallGrey": _level(families.go_to_ball, _ROOM, grey=True),
    "GoToRedBall": _level(families.go_to_ball, _ROOM),
    "GoToRedBallNoDists": _level(families.go_to_ball, _ROOM, number=0),
    "GoToObj": _level(families.go_to_thing, _ROOM),
    "GoToObjS4": _level(families.go_to_thing, (4, 1, 1)),
    "GoToObjS6": _level(families.go_to_thing, (6, 1, 1)),
    "GoToLocal": _level(families.go_to_thing, _ROOM, number=8),
    "GoTo": _level(families.go_to_thing, number=18),
    "GoToOpen": _level(families.go_to_thing, number=18, opened=True),
    "GoToObjMaze": _level(families.go_to_thing),
    "GoToObjMazeOpen": _level(families.go_to_thing, opened=True),
    "GoToObjMazeS4R2": _level(families.go_to_thing, (4, 2, 2)),
    "GoToImpUnlock": _level(families.go_to_locked),
    "GoToSeq": _level(families.any_mission, **_SEQUENCE),
    "GoToSeqS5R2": _level(families.any_mission, _SMALL_HOUSE, number=4, **_SEQUENCE),
    "GoToRedBlueBall": _level(families.go_to_ball, _ROOM, colours=("red", "blue")),
    "GoToDoor": _level(families.go_to_thing, (7, 3, 3), number=0, doors=True),
    "GoToObjDoor": _level(families.go_to_thing, number=8, doors=True),
    "Open": _level(families.open_any),
    "OpenRedDoor": _level(families.open_red, (5, 2, 1)),
    "OpenDoor": _level(families.open_one),
    "OpenDoorDebug": _level(families.open_one, strict=1),
    "OpenDoorColor": _level(families.open_one, by="colour"),
    "OpenDoorLoc": _level(families.open_one, by="side"),
    "OpenTwoDoors": _level(families.open_two, (6, 3, 3), limit=20),
    "OpenRedBlueDoors": _level(families.open_two, (6, 3, 3), limit=20, colours=("red", "blue")),
    "OpenRedBlueDoorsDebug": _level(families.open_two, (6, 3, 3), limit=20, strict=1, colours=("red", "blue")),
    "Pickup": _level(families.pick_any),
    "UnblockPickup": _level(families.pick_any, number=20, blocked=True),
    "PickupLoc": _level(
        families.any_mission, _ROOM, verbs=("pick up",), forms=("one",), number=8, locked=0.0, unblocking=False
    ),
    "PickupDist": _level(families.pick_told, _SMALL_ROOM),
    "PickupDistDebug": _level(families.pick_told, _SMALL_ROOM, strict=1),
    "PickupAbove": _level(families.pick_above, (6, 3, 3), limit=8),
    "PutNextLocal": _level(families.put_here, _ROOM),
    "PutNextLocalS5N3": _level(families.put_here, (5, 1, 1), number=3),
    "PutNextLocalS6N4": _level(families.put_here, (6, 1, 1), number=4),
    "Unlock": _level(families.unlock),
    "UnlockLocal": _level(families.unlock_here),
    "UnlockLocalDist": _level(families.unlock_here, number=3),
    "KeyInBox": _level(families.unlock_here, boxed=True),
    "UnlockPickup": _level(families.pick_behind_lock, _PAIR),
    "UnlockPickupDist": _level(families.pick_behind_lock, _PAIR, number=4),
    "BlockedUnlockPickup": _level(families.pick_behind_lock, _PAIR, limit=16, blocked=True),
    "UnlockToUnlock": _level(families.pick_behind_locks, (6, 3, 1), limit=30),
    "ActionObjDoor": _level(families.act_here, (7, 3, 3)),
    "KeyCorridor": _level(families.pick_off_corridor, (6, 3, 3), limit=30),
    "Synth": _level(families.any_mission, sides=False, **_SYNTH),
    "SynthS5R2": _level(families.any_mission, (5, 3, 2), sides=False, **_SYNTH),
    "SynthLoc": _level(families.any_mission, **_SYNTH),
    "SynthSeq": _level(families.any_mission, implicit=False),
    "MiniBossLevel": _level(families.any_mission, _SMALL_HOUSE, number=7, locked=0.25),
    "BossLevel": _level(families.any_mission),
    "BossLevelNoUnlock": _level(families.any_mission, locked=0.0, implicit=False),
}
_TABLE |= {
    f"GoToLocalS{size}N{number}": _level(families.go_to_thing, (size, 1, 1), number=number)
    for size, numbers in ((5, (2,)), (6, (2, 3, 4)), (7, (4, 5)), (8, (2, 3, 4, 5, 6, 7)))
    for number in numbers
}
_TABLE |= {f"GoToObjMazeS{size}": _level(families.go_to_thing, (size, 3, 3)) for size in (4, 5, 6, 7)}
_TABLE |= {
    f"OpenDoorsOrderN{number}{debug}": _level(
        families.open_in_order, (6, 3, 3), limit=20, strict=2 * bool(debug), number=number
    )
    for number, debug in product((2, 4), ("", "Debug"))
}
_TABLE |= {
    f"PutNextS{size}N{number}": _level(families.put_across, (size, 2, 1), limit=8, number=number)
    for size, number in ((4, 1), (5, 1), (5, 2), (6, 3), (7, 4))
}
_TABLE |= {
    f"PutNextS{size}N{number}Carrying": _level(families.put_across, (size, 2, 1), limit=8, number=number, carried=True)
    for size, number in ((5, 2), (6, 3), (7, 4))
}
_TABLE |= {f"FindObjS{size}": _level(families.pick_somewhere, (size, 3, 3), limit=20) for size in (5, 6, 7)}
_TABLE |= {
    f"KeyCorridorS{size}R{rows}": _level(families.pick_off_corridor, (size, 3, rows), limit=30)
    for size, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
}
_TABLE |= {f"OneRoomS{size}": _level(families.pick_in_room, (size, 1, 1)) for size in (8, 12, 16, 20)}
_TABLE |= {
    f"MoveTwoAcrossS{size}N{number}": _level(families.put_two_across, (size, 2, 1), limit=16, number=number)
    for size, number in ((5, 2), (8, 9))
}

NAMES: tuple[str, ...] = tuple(f"BabyAI-{name}-v0" for name in _TABLE)
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


def level_name(name: str) -> str:
    """The full name of a level: `GoToObj` and `BabyAI-GoToObj-v0` are the same.

    Raises:
        ConfigError: for an unknown name, with the nearest one.
    """
    short = re.sub(r"-v\d+$", "", name.removeprefix("BabyAI-"))
    if short not in _TABLE:
        raise ConfigError([unknown("level", name, (*NAMES, *_TABLE))])
    return f"BabyAI-{short}-v0"


def draw_level(name: str, seed: int) -> dict[str, Json]:
    """The episode of a level and a seed, as the spec of a map (see `gridspec.build_scene`).

    Raises:
        ConfigError: for an unknown level.
    """
    full = level_name(name)
    level = _TABLE[full[len("BabyAI-") : -len("-v0")]]
    rng = Random(sample_seed("babyai level", full, seed))
    for _ in range(_ATTEMPTS):
        house = House(rng, level.house)
        try:
            text = level.build(house, **level.options)
            _check(house.board(), text)
        except Unlucky:
            continue
        return _spec(level, house, text)
    raise ConfigError(f"no episode of {full!r} with this seed", value=seed, hint="give another seed")


def _check(board: Board, text: str) -> None:
    """Nothing can be put next to itself, and nothing that has to be put somewhere is there already."""
    for atom in (atom for stage in read_mission(text, board).stages for atom in stage if atom.verb == PUT):
        cells = board.start.cells
        beside = {cells[at + step] for at, code in enumerate(cells) if code in atom.codes for step in board.ahead}
        if atom.codes & atom.fixed or beside & atom.fixed:
            raise Unlucky


def _spec(level: _Level, house: House, text: str) -> dict[str, Json]:
    spec: dict[str, Json] = {"map": house.text(), "mission": text}
    size, columns, rows = level.house
    walks = read_mission(text, house.board()).walks
    spec["moves"] = size**2 * (level.limit or walks * columns * rows)
    if level.strict:
        spec["strict"] = level.strict
    if house.hold:
        spec["hold"] = LETTERS[house.hold.colour] + LETTERS[house.hold.type]
    if house.inside:
        spec["inside"] = [[x, y, LETTERS[thing.colour] + LETTERS[thing.type]] for (x, y), thing in house.inside.items()]
    return spec
