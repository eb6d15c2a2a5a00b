"""Drawing a room for a goal: which furniture stands in it and what lies where. Every room drawn can be solved.

The object that the goal asks for lies in any of the receptacles that may hold it, and never where the goal wants it to
lie; over all rooms no receptacle is much likelier than another, so that a plan that wins in one room seldom does in
another. Ids are drawn, and with them the numbers of things.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from random import Random
from types import MappingProxyType

from evolvent.trajectory import canonical_json, sample_seed
from evolvent.worlds.household.game import TREATED_AT, Game, Goal, Layout, bits, names_of_ids
from evolvent.worlds.household.things import LIGHTS, OPENABLE, PROPERTIES, ROOMS, places_of

__all__ = ["SIZES", "canonical_key", "draw_game", "draw_layout", "rooms_for"]

SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"small": (6, 8), "medium": (9, 11), "large": (20, 24), "huge": (25, 27)}
)
"""Size of a room -> fewest and most receptacles in it."""
_LEAST_HIDING = 5  # receptacles that may hide the object
_KINDS, _LARGE_KINDS = 2, 7  # types of furniture besides those that the goal needs
_MOST_IN_ONE = 3
_MOST_OF_TYPE = 3
_CLUTTER = 0.6  # other things, per receptacle


@lru_cache(maxsize=4096)
def rooms_for(goal: Goal) -> tuple[str, ...]:
    """The types of rooms in which a goal makes sense."""
    found = []
    for name, room in ROOMS.items():
        places = places_of(name, goal.object)
        if goal.family == "look":
            fits = goal.target in LIGHTS and bool(places_of(name, goal.target))
        else:
            fits = goal.target in places
        treated = TREATED_AT.get(goal.family)
        if fits and (treated is None or treated in room.furniture) and len(_hiding(name, goal)) >= 3:
            found.append(name)
    able = f"{goal.family}able" if goal.family in TREATED_AT else "pickupable"
    return tuple(found) if {able, "pickupable"} <= set(PROPERTIES.get(goal.object, ())) else ()


@lru_cache(maxsize=4096)
def _hiding(room: str, goal: Goal) -> tuple[str, ...]:
    """The types of furniture that the object may lie in at the start: not those that every such room has."""
    always = (goal.target, TREATED_AT.get(goal.family))
    return tuple(kind for kind in places_of(room, goal.object) if kind not in always)


def _pick(rng: Random, choices: Sequence[str]) -> str:
    return choices[int(rng.random() * len(choices))]


def draw_layout(goal: Goal, seed: int, *, size: str) -> tuple[Layout, int]:
    """A room for a goal, and which of its two wordings the task has.

    Args:
        goal: one for which `rooms_for` names a room.
        seed: another seed, another room.
        size: a key of `SIZES`.
    """
    rng = Random(sample_seed("household", *goal, size, seed))
    room = _pick(rng, rooms_for(goal))
    layout = Layout()
    counts = _furniture(rng, room, goal, size)
    receptacles = [_stand(rng, layout, kind) for kind in sorted(counts) for _ in range(counts[kind])]
    layout.start = _new_id(rng, "loc", layout.stands.values())
    holders = set(counts)
    room_things = ROOMS[room].things
    layout.holds = {(kind, thing) for thing, places in room_things.items() for kind in places if kind in holders}
    copies = 1 + (goal.family == "two") + (rng.random() < 0.3)
    filled: Counter[str] = Counter()
    hiding = _weighted(receptacles, [one for one in receptacles if layout.receptacles[one] in _hiding(room, goal)])
    for _ in range(copies):
        _lay(rng, layout, goal.object, [one for one in hiding if filled[one] < _MOST_IN_ONE], filled)
    if goal.family == "look":
        stands = places_of(room, goal.target)
        _lay(rng, layout, goal.target, [one for one in receptacles if layout.receptacles[one] in stands], filled)
    _clutter(rng, layout, room, {goal.object, *LIGHTS}, filled)
    return layout, int(rng.random() < 0.5)


def _furniture(rng: Random, room: str, goal: Goal, size: str) -> Counter[str]:
    """How many of each type of furniture stand in the room: a few types, some of them many times.

    Few types of the possible ones make it rare that what held the object in one room is there in another, so that no
    plan wins often without looking.
    """
    large = size in ("large", "huge")
    limits = {kind: most[large] for kind, most in ROOMS[room].furniture.items()}
    least, most = SIZES[size]
    total = least + int(rng.random() * (most - least + 1))
    hiding = _hiding(room, goal)
    needed = [goal.target] if goal.family != "look" else [_pick(rng, places_of(room, goal.target))]
    if goal.family in TREATED_AT:
        needed.append(TREATED_AT[goal.family])
    counts = Counter(dict.fromkeys(needed, 1))
    kinds: list[str] = []
    while counts.total() < total:
        short = total - counts.total() <= _LEAST_HIDING - sum(counts[kind] for kind in hiding)
        free = [kind for kind in kinds if counts[kind] < limits[kind] and (kind in hiding or not short)]
        if not free or len(kinds) < (_LARGE_KINDS if large else _KINDS):
            choices = [kind for kind in (hiding if short or len(kinds) % 2 == 0 else limits) if kind not in kinds]
            choices = choices or [kind for kind in limits if kind not in kinds]
            kinds += [_pick(rng, choices)] if choices else []
            free = [kind for kind in (kinds[-1:] if choices else limits) if counts[kind] < limits[kind]]
        if free:
            counts[_pick(rng, free)] += 1
    return counts


def _weighted(receptacles: Sequence[str], choices: Sequence[str]) -> list[str]:
    """The choices, each as many times as its number says: `drawer 3` three times.

    A high number is in fewer rooms than a low one. So every name holds the object about as often, over all rooms.
    """
    names = names_of_ids(receptacles)
    return [one for one in choices for _ in range(int(names[one].rpartition(" ")[2]))]


def _new_id(rng: Random, kind: str, taken: Container[str]) -> str:
    """An id that is not taken: the type and a number drawn. Basins are written as ALFWorld writes them."""
    while True:
        number = f"{rng.getrandbits(24):08d}"
        one = f"{kind.removesuffix('basin')}_bar_{number}" + (f"_bar_{kind}" if kind.endswith("basin") else "")
        if one not in taken:
            return one


def _stand(rng: Random, layout: Layout, kind: str) -> str:
    one = _new_id(rng, kind, layout.receptacles)
    layout.receptacles[one] = kind
    layout.stands[one] = _new_id(rng, "loc", layout.stands.values())
    if kind in OPENABLE:
        layout.openable.add(one)
    return one


def _lay(rng: Random, layout: Layout, kind: str, choices: Sequence[str], filled: Counter[str]) -> None:
    """A new thing in one of these receptacles."""
    receptacle = _pick(rng, choices)
    one = _new_id(rng, kind, layout.objects)
    layout.objects[one] = kind
    layout.inside.append((one, receptacle))
    layout.lies.append((one, layout.stands[receptacle]))
    filled[receptacle] += 1
    for name in PROPERTIES[kind]:
        layout.properties.setdefault(name, set()).add(one)


def _clutter(rng: Random, layout: Layout, room: str, without: set[str], filled: Counter[str]) -> None:
    """Other things, each where it belongs, so that no receptacle holds too many."""
    things = [kind for kind in ROOMS[room].things if kind not in without]
    so_far: Counter[str] = Counter()
    for _ in range(round(_CLUTTER * len(layout.receptacles))):
        kind = _pick(rng, things)
        so_far[kind] += 1
        if so_far[kind] > _MOST_OF_TYPE:
            continue
        places = places_of(room, kind)
        free = [one for one, of in layout.receptacles.items() if of in places and filled[one] < _MOST_IN_ONE]
        if free:
            _lay(rng, layout, kind, free, filled)


def draw_game(goal: Goal, seed: int, *, size: str) -> Game:
    """The game of a goal and a seed; see `draw_layout`."""
    layout, wording = draw_layout(goal, seed, size=size)
    return Game(layout, goal, goal.say(wording))


def canonical_key(game: Game) -> str:
    """A digest that is equal for games that differ only in numbers, places and wording (64 hex digits)."""
    rows = sorted(
        [kind, bool(game.start.opened >> r & 1), sorted(game.object_types[o] for o in bits(game.start.contents[r]))]
        for r, kind in enumerate(game.types)
    )
    return hashlib.sha256(canonical_json([list(game.goal), rows]).encode()).hexdigest()
