"""Families of BabyAI's levels (Chevalier-Boisvert et al. 2019): each builds a house and a mission in it.

A family is a function of an empty house and options; it returns the mission's text, or raises `DrawRejected`
where the drawn house does not fit. `levels` assigns a family with its options to each level.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evolvent.worlds.grid.house import DrawRejected, House, Item, describe_items
from evolvent.worlds.grid.map import COLOURS, DOOR, TYPES
from evolvent.worlds.grid.mission import PUT, SIDES, find_codes

__all__ = [
    "act_here",
    "any_mission",
    "go_to_ball",
    "go_to_locked",
    "go_to_object",
    "open_any",
    "open_in_order",
    "open_one",
    "open_red",
    "open_two",
    "pick_above",
    "pick_any",
    "pick_behind_lock",
    "pick_behind_locks",
    "pick_described",
    "pick_in_room",
    "pick_off_corridor",
    "pick_somewhere",
    "put_across",
    "put_here",
    "put_two_across",
    "unlock",
    "unlock_here",
]

_KINDS = (*TYPES, DOOR)
_VERBS = ("go to", "pick up", "open", PUT)


# --- go to ---------------------------------------------------------------------------------------------------------


def go_to_ball(house: House, *, colours: Sequence[str] = ("red",), number: int = 7, grey: bool = False) -> str:
    """Places the red (or blue) ball in one room among other objects; `grey`: the others are all grey."""
    house.place_agent()
    ball = house.add_item((0, 0), "ball", house.rng.choice(list(colours)))
    for _ in range(number):
        distractor = house.add_item((0, 0), colour="grey" if grey else None)
        if len(colours) > 1 and distractor.type == "ball" and distractor.colour in colours:
            raise DrawRejected
    return _describe_go_to(house, ball)


def _describe_go_to(house: House, item: Item) -> str:
    _require_unblocked(house)
    return f"go to {describe_items(house.build_board(), item.colour, item.type)}"


def _require_unblocked(house: House) -> None:
    if house.has_blocked_items():
        raise DrawRejected


def go_to_object(house: House, *, number: int = 1, doors: bool = False, opened: bool = False) -> str:
    """Places objects anywhere in the house; `doors`: in the middle room, whose four doors are possible targets too."""
    start_room = (1, 1) if doors else None
    door_items = [house.add_door((1, 1)) for _ in range(4)] if doors else []
    house.place_agent(start_room)
    if not doors:
        house.connect()
    items = door_items + house.scatter(number, room_position=start_room, unique=False)
    if opened:
        house.open_doors()
    return _describe_go_to(house, house.rng.choice(items))


def _add_locked_room(house: House) -> tuple[Item, tuple[int, int]]:
    """Adds a room behind a locked door, with its key in another room."""
    locked_room = house.rng.choice(house.rooms)
    door = house.add_door(locked_room, locked=True)
    house.add_item(
        house.rng.choice([other_room for other_room in house.rooms if other_room != locked_room]), "key", door.colour
    )
    return door, locked_room


def go_to_locked(house: House) -> str:
    """Places the target in a room behind a locked door."""
    _, locked_room = _add_locked_room(house)
    house.place_agent()
    house.connect()
    for other_room in house.rooms:
        if other_room != locked_room:
            house.scatter(2, room_position=other_room, unique=False)
    _require_unblocked(house)
    item = house.add_item(locked_room)
    return f"go to {describe_items(house.build_board(), item.colour, item.type)}"


# --- open and unlock -----------------------------------------------------------------------------------------------


def open_any(house: House) -> str:
    """Draws any door of the house as the target."""
    house.place_agent()
    house.connect()
    house.scatter(18, unique=False)
    _require_unblocked(house)
    door = house.rng.choice(list(house.doors.values()))
    return f"open {describe_items(house.build_board(), door.colour, 'door')}"


def open_red(house: House) -> str:
    """Makes the red door, the only one, the target."""
    house.add_door((0, 0), 0, colour="red", locked=False)
    house.place_agent((0, 0))
    return "open the red door"


def open_one(house: House, *, attribute: str = "") -> str:
    """Draws one of the four doors of the middle room, told by its color or its side."""
    colours = house.rng.sample(COLOURS, 4)
    for side, colour in enumerate(colours):
        house.add_door((1, 1), side, colour=colour, locked=False)
    house.place_agent((1, 1))
    attribute = attribute or house.rng.choice(("colour", "side"))
    board = house.build_board()
    if attribute == "colour":
        return f"open {describe_items(board, colours[0], 'door')}"
    return f"open {describe_items(board, None, 'door', side=house.rng.choice(list(SIDES)))}"


def open_two(house: House, *, colours: Sequence[str] = ()) -> str:
    """Places two doors on opposite sides, to open one after the other."""
    first, second = colours or house.rng.sample(COLOURS, 2)
    house.add_door((1, 1), 2, colour=first, locked=False)
    house.add_door((1, 1), 0, colour=second, locked=False)
    house.place_agent((1, 1))
    return f"open the {first} door, then open the {second} door"


def open_in_order(house: House, *, number: int) -> str:
    """Draws one of some doors of the middle room, or two of them in a given order."""
    colours = house.rng.sample(COLOURS, number)
    for colour in colours:
        house.add_door((1, 1), colour=colour, locked=False)
    house.place_agent((1, 1))
    first, second = house.rng.sample(colours, 2)
    forms = (
        "open the {} door",
        "open the {} door, then open the {} door",
        "open the {} door after you open the {} door",
    )
    return house.rng.choice(forms).format(first, second)


def unlock(house: House) -> str:
    """Places a locked door somewhere in the house; with probability 0.5 it is the only door of its color."""
    door, locked_room = _add_locked_room(house)
    house.place_agent()
    other_colours = [colour for colour in COLOURS if colour != door.colour]
    house.connect(colours=other_colours if house.rng.random() < 0.5 else COLOURS)
    for other_room in house.rooms:
        if other_room != locked_room:
            house.scatter(3, room_position=other_room, unique=False)
    _require_unblocked(house)
    return f"open {describe_items(house.build_board(), door.colour, 'door')}"


def unlock_here(house: House, *, number: int = 0, boxed: bool = False) -> str:
    """Locks the door of the middle room; the key lies there, or in a box there."""
    door = house.add_door((1, 1), locked=True)
    if boxed:
        house.hide(Item("key", door.colour), house.add_item((1, 1), "box"))
    else:
        house.add_item((1, 1), "key", door.colour)
    house.scatter(number, room_position=(1, 1))
    house.place_agent((1, 1))
    return f"open {describe_items(house.build_board(), None, 'door')}"


# --- pick up -------------------------------------------------------------------------------------------------------


def pick_any(house: House, *, number: int = 18, blocked: bool = False) -> str:
    """Draws one of many objects as the target; `blocked`: some can only be reached by moving others."""
    house.place_agent()
    house.connect()
    item = house.rng.choice(house.scatter(number, unique=False))
    if house.has_blocked_items() != blocked:
        raise DrawRejected
    return f"pick up {describe_items(house.build_board(), item.colour, item.type)}"


def pick_described(house: House) -> str:
    """Draws one of five objects as the target, told by its type, its color, or both."""
    items = house.scatter(5)
    house.place_agent((0, 0))
    item = house.rng.choice(items)
    colour, kind = house.rng.choice(((item.colour, None), (None, item.type), (item.colour, item.type)))
    return f"pick up {describe_items(house.build_board(), colour, kind)}"


def pick_above(house: House) -> str:
    """Places the target in the room above."""
    item = house.add_item((1, 0))
    house.add_door((1, 1), 3, locked=False)
    house.place_agent((1, 1))
    house.connect()
    return f"pick up {describe_items(house.build_board(), item.colour, item.type)}"


def pick_behind_lock(house: House, *, number: int = 0, blocked: bool = False) -> str:
    """Places a box in the right room, locked, with the key in the left room; `blocked`: a ball blocks the door."""
    box = house.add_item((1, 0), "box")
    door = house.add_door((0, 0), 0, locked=True)
    if blocked:
        x, y = house.door_position((0, 0), 0)
        house.place_item((0, 0), Item("ball", house.rng.choice(COLOURS)), position=(x - 1, y))
    house.add_item((0, 0), "key", door.colour)
    house.scatter(number)
    house.place_agent((0, 0))
    return f"pick up {describe_items(house.build_board(), None if blocked else box.colour, 'box')}"


def pick_behind_locks(house: House) -> str:
    """Places the ball behind a locked door, its key behind another, and the key of that in the start room."""
    first, second = house.rng.sample(COLOURS, 2)
    house.add_door((0, 0), 0, colour=first, locked=True)
    house.add_item((2, 0), "key", first)
    house.add_door((1, 0), 0, colour=second, locked=True)
    house.add_item((1, 0), "key", second)
    house.add_item((0, 0), "ball")
    house.place_agent((1, 0))
    return "pick up the ball"


def pick_somewhere(house: House) -> str:
    """Places the target in any room."""
    item = house.add_item(house.rng.choice(house.rooms))
    house.place_agent((1, 1))
    house.connect()
    return f"pick up {describe_items(house.build_board(), None, item.type)}"


def pick_off_corridor(house: House) -> str:
    """Places a ball behind a locked door on the right of a corridor, with the key in a room on the left."""
    for row in range(1, house.rows):
        house.remove_wall((1, row), 3)
    row = house.rng.randrange(house.rows)
    door = house.add_door((2, row), 2, locked=True)
    house.add_item((2, row), "ball")
    house.add_item((0, house.rng.randrange(house.rows)), "key", door.colour)
    house.place_agent((1, house.rows // 2))
    house.connect()
    return f"pick up {describe_items(house.build_board(), None, 'ball')}"


def pick_in_room(house: House) -> str:
    """Places the ball in the only room."""
    house.add_item((0, 0), "ball")
    house.place_agent()
    return "pick up the ball"


# --- put next to, and mixed ----------------------------------------------------------------------------------------


def put_here(house: House, *, number: int = 8) -> str:
    """Places two objects to be put next to each other in one room."""
    house.place_agent()
    items = house.scatter(number)
    _require_unblocked(house)
    return _describe_put(house, *house.rng.sample(items, 2))


def _describe_put(house: House, moved_item: Item, fixed_item: Item) -> str:
    board = house.build_board()
    moved_text = describe_items(board, moved_item.colour, moved_item.type)
    return f"{PUT} {moved_text} next to {describe_items(board, fixed_item.colour, fixed_item.type)}"


def put_across(house: House, *, number: int, carried: bool = False) -> str:
    """Joins two rooms without a wall; an object of one room has to be put next to an object of the other."""
    house.place_agent((0, 0))
    sides = [house.scatter(number, room_position=(column, 0)) for column in (0, 1)]
    house.remove_wall((0, 0), 0)
    pair = [house.rng.choice(items) for items in sides]
    house.rng.shuffle(pair)
    if carried:
        house.give_to_agent(pair[0])
    return _describe_put(house, *pair)


def put_two_across(house: House, *, number: int) -> str:
    """Joins two rooms; two objects have to be put next to objects of the other room."""
    house.place_agent((0, 0))
    left, right = ([*house.scatter(number, room_position=(column, 0))] for column in (0, 1))
    house.remove_wall((0, 0), 0)
    (a, d), (b, c) = house.rng.sample(left, 2), house.rng.sample(right, 2)
    return f"{_describe_put(house, a, b)}, then {_describe_put(house, c, d)}"


def act_here(house: House) -> str:
    """Draws an object or a door of the middle room, to go to, pick up or open."""
    items = house.scatter(5, room_position=(1, 1))
    items += [house.add_door((1, 1), locked=False) for _ in range(4)]
    house.place_agent((1, 1))
    item = house.rng.choice(items)
    verb = house.rng.choice(("go to", "open" if item.type == "door" else "pick up"))
    return f"{verb} {describe_items(house.build_board(), item.colour, item.type)}"


def any_mission(
    house: House,
    *,
    number: int = 18,
    locked: float = 0.5,
    sides: bool = True,
    unblocking: bool = True,
    implicit: bool = True,
    verbs: Sequence[str] = _VERBS,
    forms: Sequence[str] = ("one", "and", "then"),
) -> str:
    """Generates any mission of BabyAI's language (its `LevelGen`).

    Args:
        number: number of objects.
        locked: probability of a locked room.
        sides: whether missions may describe objects by their side.
        unblocking: whether objects may block the way.
        implicit: whether the target may lie in the locked room.
    """
    if house.rng.random() < locked:
        _add_locked_room(house)
    house.connect()
    house.scatter(number, unique=False)
    house.place_agent()
    if not unblocking:
        _require_unblocked(house)
    teller = _MissionWriter(house, sides=sides, unblocking=unblocking, implicit=implicit)
    return teller.mission(verbs, forms)


class _MissionWriter:
    """Writer of random missions about a house."""

    def __init__(self, house: House, *, sides: bool, unblocking: bool, implicit: bool) -> None:
        self.house, self.rng, self.board = house, house.rng, house.build_board()
        self.sides, self.unblocking, self.implicit = sides, unblocking, implicit

    def mission(self, verbs: Sequence[str], forms: Sequence[str]) -> str:
        form = self.rng.choice(list(forms))
        if form != "then":
            return " and ".join(self.atom(verbs) for _ in range(2 if form == "and" else 1))
        first, second = (self.mission(verbs, ("one", "and")) for _ in range(2))
        return self.rng.choice((f"{first}, then {second}", f"{first} after you {second}"))

    def atom(self, verbs: Sequence[str]) -> str:
        verb = self.rng.choice(list(verbs))
        first = self.describe_object({"go to": _KINDS, "open": ("door",)}.get(verb, TYPES))
        return f"{verb} {first}" + (f" next to {self.describe_object(_KINDS)}" if verb == PUT else "")

    def describe_object(self, kinds: Sequence[str]) -> str:
        for _ in range(100):
            colour, kind = self.rng.choice((None, *COLOURS)), self.rng.choice(list(kinds))
            side = self.rng.choice(list(SIDES)) if self.sides and self.rng.random() < 0.5 else None
            if kind == "key" and self.unblocking and self._can_unlock(colour):
                continue
            try:
                description = describe_items(self.board, colour, kind, side=side)
            except DrawRejected:
                continue
            if self.implicit or not self._is_locked_in(find_codes(self.board, colour, kind, side=side)):
                return description
        raise DrawRejected

    def _can_unlock(self, colour: str | None) -> bool:
        """Checks whether a key of this color opens a locked door."""
        locked = self.house.locked_colours
        return bool(locked) and (colour is None or colour in locked)

    def _is_locked_in(self, codes: Collection[int]) -> bool:
        """Checks whether all these objects lie in the locked room."""
        cells = [cell for cell, code in enumerate(self.board.start.cells) if code in codes]
        if any(self.board.get_object(self.board.start.cells[cell]).type == "door" for cell in cells):
            return False
        return all(self.house.room_of(self.board.position(cell)) == self.house.locked for cell in cells)
