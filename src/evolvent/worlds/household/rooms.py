"""Random rooms for a goal: the furniture and the objects in it. Every drawn room can be solved.

The goal's object lies in any of the receptacles that may hold it, and never in the goal's target. Over all
rooms no receptacle is much likelier than another, so that a plan that wins in one room seldom wins in another.
Ids are drawn, and with them the numbers in names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from random import Random
from types import MappingProxyType

from evolvent.trajectory import canonical_json, sample_seed
from evolvent.worlds.household.game import APPLIANCE_OF_TREATMENT, Game, Goal, Layout, iterate_bits, names_of_ids
from evolvent.worlds.household.things import LIGHTS, OPENABLE, PROPERTIES, ROOMS, furniture_for

__all__ = ["SIZES", "canonical_key", "draw_game", "draw_layout", "rooms_for"]

SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"small": (6, 8), "medium": (9, 11), "large": (20, 24), "huge": (25, 27)}
)
"""Size of a room -> fewest and most receptacles in it."""
_MIN_HIDING_PLACES = 5  # receptacles that may hide the object
_EXTRA_KINDS, _EXTRA_KINDS_LARGE = 2, 7  # types of furniture besides those that the goal needs
_MAX_PER_RECEPTACLE = 3
_MAX_PER_TYPE = 3
_CLUTTER_RATIO = 0.6  # other things, per receptacle


@lru_cache(maxsize=4096)
def rooms_for(goal: Goal) -> tuple[str, ...]:
    """Returns the types of rooms in which a goal makes sense."""
    room_names = []
    for name, room_type in ROOMS.items():
        locations = furniture_for(name, goal.object)
        if goal.family == "look":
            is_suitable = goal.target in LIGHTS and bool(furniture_for(name, goal.target))
        else:
            is_suitable = goal.target in locations
        appliance = APPLIANCE_OF_TREATMENT.get(goal.family)
        if (
            is_suitable
            and (appliance is None or appliance in room_type.furniture)
            and len(_hiding_furniture(name, goal)) >= 3
        ):
            room_names.append(name)
    required_property = f"{goal.family}able" if goal.family in APPLIANCE_OF_TREATMENT else "pickupable"
    return tuple(room_names) if {required_property, "pickupable"} <= set(PROPERTIES.get(goal.object, ())) else ()


@lru_cache(maxsize=4096)
def _hiding_furniture(room_name: str, goal: Goal) -> tuple[str, ...]:
    """Returns the types of furniture that the object may lie in at the start, except those in every such room."""
    always_present = (goal.target, APPLIANCE_OF_TREATMENT.get(goal.family))
    return tuple(kind for kind in furniture_for(room_name, goal.object) if kind not in always_present)


def _pick(rng: Random, choices: Sequence[str]) -> str:
    return choices[int(rng.random() * len(choices))]


def draw_layout(goal: Goal, seed: int, *, size: str) -> tuple[Layout, int]:
    """Draws a room for a goal, and the index of the task's wording.

    Args:
        goal: a goal for which `rooms_for` names a room.
        seed: different seeds give different rooms.
        size: a key of `SIZES`.
    """
    rng = Random(sample_seed("household", *goal, size, seed))
    room_name = _pick(rng, rooms_for(goal))
    layout = Layout()
    counts = _draw_furniture(rng, room_name, goal, size)
    receptacles = [_add_furniture(rng, layout, kind) for kind in sorted(counts) for _ in range(counts[kind])]
    layout.start = _draw_id(rng, "loc", layout.place_of_receptacle.values())
    furniture_types = set(counts)
    locations_by_object = ROOMS[room_name].locations_by_object
    layout.allowed_contents = {
        (kind, object_type)
        for object_type, locations in locations_by_object.items()
        for kind in locations
        if kind in furniture_types
    }
    copies = 1 + (goal.family == "two") + (rng.random() < 0.3)
    num_objects: Counter[str] = Counter()
    hiding_places = _weight_by_number(
        receptacles,
        [
            receptacle
            for receptacle in receptacles
            if layout.receptacles[receptacle] in _hiding_furniture(room_name, goal)
        ],
    )
    for _ in range(copies):
        _add_object(
            rng,
            layout,
            goal.object,
            [receptacle for receptacle in hiding_places if num_objects[receptacle] < _MAX_PER_RECEPTACLE],
            num_objects,
        )
    if goal.family == "look":
        light_furniture = furniture_for(room_name, goal.target)
        _add_object(
            rng,
            layout,
            goal.target,
            [receptacle for receptacle in receptacles if layout.receptacles[receptacle] in light_furniture],
            num_objects,
        )
    _add_clutter(rng, layout, room_name, {goal.object, *LIGHTS}, num_objects)
    return layout, int(rng.random() < 0.5)


def _draw_furniture(rng: Random, room_name: str, goal: Goal, size: str) -> Counter[str]:
    """Draws the number of pieces of each type of furniture in the room: a few types, some of them many times.

    With few of the possible types, the furniture that held the object in one room is rarely in another, so that no
    plan wins often without looking.
    """
    is_large = size in ("large", "huge")
    limits = {kind: max_receptacles[is_large] for kind, max_receptacles in ROOMS[room_name].furniture.items()}
    min_receptacles, max_receptacles = SIZES[size]
    total = min_receptacles + int(rng.random() * (max_receptacles - min_receptacles + 1))
    hiding_kinds = _hiding_furniture(room_name, goal)
    needed = [goal.target] if goal.family != "look" else [_pick(rng, furniture_for(room_name, goal.target))]
    if goal.family in APPLIANCE_OF_TREATMENT:
        needed.append(APPLIANCE_OF_TREATMENT[goal.family])
    counts = Counter(dict.fromkeys(needed, 1))
    kinds: list[str] = []
    while counts.total() < total:
        needs_hiding_places = total - counts.total() <= _MIN_HIDING_PLACES - sum(counts[kind] for kind in hiding_kinds)
        available = [
            kind for kind in kinds if counts[kind] < limits[kind] and (kind in hiding_kinds or not needs_hiding_places)
        ]
        if not available or len(kinds) < (_EXTRA_KINDS_LARGE if is_large else _EXTRA_KINDS):
            choices = [
                kind
                for kind in (hiding_kinds if needs_hiding_places or len(kinds) % 2 == 0 else limits)
                if kind not in kinds
            ]
            choices = choices or [kind for kind in limits if kind not in kinds]
            kinds += [_pick(rng, choices)] if choices else []
            available = [kind for kind in (kinds[-1:] if choices else limits) if counts[kind] < limits[kind]]
        if available:
            counts[_pick(rng, available)] += 1
    return counts


def _weight_by_number(receptacles: Sequence[str], choices: Sequence[str]) -> list[str]:
    """Returns the choices, each as often as its number: `drawer 3` three times.

    A high number occurs in fewer rooms than a low one. So every name holds the object about as often, over all
    rooms.
    """
    names = names_of_ids(receptacles)
    return [receptacle for receptacle in choices for _ in range(int(names[receptacle].rpartition(" ")[2]))]


def _draw_id(rng: Random, kind: str, used_ids: Container[str]) -> str:
    """Draws an unused id: the type and a number. Basins are written as ALFWorld writes them."""
    while True:
        number = f"{rng.getrandbits(24):08d}"
        id_ = f"{kind.removesuffix('basin')}_bar_{number}" + (f"_bar_{kind}" if kind.endswith("basin") else "")
        if id_ not in used_ids:
            return id_


def _add_furniture(rng: Random, layout: Layout, kind: str) -> str:
    receptacle = _draw_id(rng, kind, layout.receptacles)
    layout.receptacles[receptacle] = kind
    layout.place_of_receptacle[receptacle] = _draw_id(rng, "loc", layout.place_of_receptacle.values())
    if kind in OPENABLE:
        layout.openable.add(receptacle)
    return receptacle


def _add_object(rng: Random, layout: Layout, kind: str, choices: Sequence[str], num_objects: Counter[str]) -> None:
    """Adds a new object to one of these receptacles."""
    receptacle = _pick(rng, choices)
    object_id = _draw_id(rng, kind, layout.objects)
    layout.objects[object_id] = kind
    layout.object_receptacles.append((object_id, receptacle))
    layout.object_places.append((object_id, layout.place_of_receptacle[receptacle]))
    num_objects[receptacle] += 1
    for name in PROPERTIES[kind]:
        layout.properties.setdefault(name, set()).add(object_id)


def _add_clutter(rng: Random, layout: Layout, room_name: str, without: set[str], num_objects: Counter[str]) -> None:
    """Adds other objects in suitable receptacles, none of which gets too many."""
    object_types = [kind for kind in ROOMS[room_name].locations_by_object if kind not in without]
    counts: Counter[str] = Counter()
    for _ in range(round(_CLUTTER_RATIO * len(layout.receptacles))):
        kind = _pick(rng, object_types)
        counts[kind] += 1
        if counts[kind] > _MAX_PER_TYPE:
            continue
        locations = furniture_for(room_name, kind)
        available = [
            receptacle
            for receptacle, furniture_type in layout.receptacles.items()
            if furniture_type in locations and num_objects[receptacle] < _MAX_PER_RECEPTACLE
        ]
        if available:
            _add_object(rng, layout, kind, available, num_objects)


def draw_game(goal: Goal, seed: int, *, size: str) -> Game:
    """Draws the game of a goal and a seed; see `draw_layout`."""
    layout, wording = draw_layout(goal, seed, size=size)
    return Game(layout, goal, goal.describe(wording))


def canonical_key(game: Game) -> str:
    """Hashes a game (64 hex digits); the key is equal for games that differ only in numbers, places and wording."""
    rows = sorted(
        [
            kind,
            bool(game.start.opened >> receptacle & 1),
            sorted(game.object_types[object_number] for object_number in iterate_bits(game.start.contents[receptacle])),
        ]
        for receptacle, kind in enumerate(game.types)
    )
    return hashlib.sha256(canonical_json([list(game.goal), rows]).encode()).hexdigest()
