"""Families of BabyAI's levels (Chevalier-Boisvert et al. 2019): each builds a house and tells a mission about it.

A family is a function of an empty house and options; it returns the mission's text, or raises `Unlucky` where what it
drew does not fit. Which level is which family with which options is written in `levels`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evolvent.worlds.grid.house import House, Item, Unlucky, describe
from evolvent.worlds.grid.map import COLOURS, DOOR, TYPES
from evolvent.worlds.grid.mission import PUT, SIDES, matches

__all__ = [
    "act_here",
    "any_mission",
    "go_to_ball",
    "go_to_locked",
    "go_to_thing",
    "open_any",
    "open_in_order",
    "open_one",
    "open_red",
    "open_two",
    "pick_above",
    "pick_any",
    "pick_behind_lock",
    "pick_behind_locks",
    "pick_in_room",
    "pick_off_corridor",
    "pick_somewhere",
    "pick_told",
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
    """The red (or blue) ball in one room, among others; `grey`: all others are grey."""
    house.enter()
    ball = house.add((0, 0), "ball", house.rng.choice(list(colours)))
    for _ in range(number):
        other = house.add((0, 0), colour="grey" if grey else None)
        if len(colours) > 1 and other.type == "ball" and other.colour in colours:
            raise Unlucky
    return _go(house, ball)


def _go(house: House, item: Item) -> str:
    _unblocked(house)
    return f"go to {describe(house.board(), item.colour, item.type)}"


def _unblocked(house: House) -> None:
    if house.blocked():
        raise Unlucky


def go_to_thing(house: House, *, number: int = 1, doors: bool = False, opened: bool = False) -> str:
    """One of some things, anywhere in the house; `doors`: in the middle room, which has four doors that count too."""
    room = (1, 1) if doors else None
    found = [house.door((1, 1)) for _ in range(4)] if doors else []
    house.enter(room)
    if not doors:
        house.connect()
    items = found + house.scatter(number, room=room, unique=False)
    if opened:
        house.open_doors()
    return _go(house, house.rng.choice(items))


def _locked_away(house: House) -> tuple[Item, tuple[int, int]]:
    """A room behind a locked door, and its key in another room."""
    room = house.rng.choice(house.rooms)
    door = house.door(room, locked=True)
    house.add(house.rng.choice([each for each in house.rooms if each != room]), "key", door.colour)
    return door, room


def go_to_locked(house: House) -> str:
    """Something in a room behind a locked door."""
    _, room = _locked_away(house)
    house.enter()
    house.connect()
    for each in house.rooms:
        if each != room:
            house.scatter(2, room=each, unique=False)
    _unblocked(house)
    item = house.add(room)
    return f"go to {describe(house.board(), item.colour, item.type)}"


# --- open and unlock -----------------------------------------------------------------------------------------------


def open_any(house: House) -> str:
    """Any door of the house."""
    house.enter()
    house.connect()
    house.scatter(18, unique=False)
    _unblocked(house)
    door = house.rng.choice(list(house.doors.values()))
    return f"open {describe(house.board(), door.colour, 'door')}"


def open_red(house: House) -> str:
    """The only door."""
    house.door((0, 0), 0, colour="red", locked=False)
    house.enter((0, 0))
    return "open the red door"


def open_one(house: House, *, by: str = "") -> str:
    """One of the four doors of the middle room, by its colour or its side."""
    colours = house.rng.sample(COLOURS, 4)
    for side, colour in enumerate(colours):
        house.door((1, 1), side, colour=colour, locked=False)
    house.enter((1, 1))
    by = by or house.rng.choice(("colour", "side"))
    board = house.board()
    if by == "colour":
        return f"open {describe(board, colours[0], 'door')}"
    return f"open {describe(board, None, 'door', side=house.rng.choice(list(SIDES)))}"


def open_two(house: House, *, colours: Sequence[str] = ()) -> str:
    """Two doors on opposite sides, one after the other."""
    first, second = colours or house.rng.sample(COLOURS, 2)
    house.door((1, 1), 2, colour=first, locked=False)
    house.door((1, 1), 0, colour=second, locked=False)
    house.enter((1, 1))
    return f"open the {first} door, then open the {second} door"


def open_in_order(house: House, *, number: int) -> str:
    """One of some doors of the middle room, or two of them in a given order."""
    colours = house.rng.sample(COLOURS, number)
    for colour in colours:
        house.door((1, 1), colour=colour, locked=False)
    house.enter((1, 1))
    first, second = house.rng.sample(colours, 2)
    forms = (
        "open the {} door",
        "open the {} door, then open the {} door",
        "open the {} door after you open the {} door",
    )
    return house.rng.choice(forms).format(first, second)


def unlock(house: House) -> str:
    """A locked door somewhere in the house; with even odds the only one of its colour."""
    door, room = _locked_away(house)
    house.enter()
    others = [colour for colour in COLOURS if colour != door.colour]
    house.connect(colours=others if house.rng.random() < 0.5 else COLOURS)
    for each in house.rooms:
        if each != room:
            house.scatter(3, room=each, unique=False)
    _unblocked(house)
    return f"open {describe(house.board(), door.colour, 'door')}"


def unlock_here(house: House, *, number: int = 0, boxed: bool = False) -> str:
    """The locked door of the middle room; the key lies there, or in a box there."""
    door = house.door((1, 1), locked=True)
    if boxed:
        house.hide(Item("key", door.colour), house.add((1, 1), "box"))
    else:
        house.add((1, 1), "key", door.colour)
    house.scatter(number, room=(1, 1))
    house.enter((1, 1))
    return f"open {describe(house.board(), None, 'door')}"


# --- pick up -------------------------------------------------------------------------------------------------------


def pick_any(house: House, *, number: int = 18, blocked: bool = False) -> str:
    """One of many things; `blocked`: not all can be reached without moving others."""
    house.enter()
    house.connect()
    item = house.rng.choice(house.scatter(number, unique=False))
    if house.blocked() != blocked:
        raise Unlucky
    return f"pick up {describe(house.board(), item.colour, item.type)}"


def pick_told(house: House) -> str:
    """One of five things, told by its type, its colour, or both."""
    items = house.scatter(5)
    house.enter((0, 0))
    item = house.rng.choice(items)
    colour, kind = house.rng.choice(((item.colour, None), (None, item.type), (item.colour, item.type)))
    return f"pick up {describe(house.board(), colour, kind)}"


def pick_above(house: House) -> str:
    """Something in the room above."""
    item = house.add((1, 0))
    house.door((1, 1), 3, locked=False)
    house.enter((1, 1))
    house.connect()
    return f"pick up {describe(house.board(), item.colour, item.type)}"


def pick_behind_lock(house: House, *, number: int = 0, blocked: bool = False) -> str:
    """A box in the right room, behind a locked door whose key lies in the left one; `blocked`: a ball bars the door."""
    box = house.add((1, 0), "box")
    door = house.door((0, 0), 0, locked=True)
    if blocked:
        x, y = house.gap((0, 0), 0)
        house.put((0, 0), Item("ball", house.rng.choice(COLOURS)), at=(x - 1, y))
    house.add((0, 0), "key", door.colour)
    house.scatter(number)
    house.enter((0, 0))
    return f"pick up {describe(house.board(), None if blocked else box.colour, 'box')}"


def pick_behind_locks(house: House) -> str:
    """The ball is behind a locked door whose key is behind another; the key of that lies here."""
    first, second = house.rng.sample(COLOURS, 2)
    house.door((0, 0), 0, colour=first, locked=True)
    house.add((2, 0), "key", first)
    house.door((1, 0), 0, colour=second, locked=True)
    house.add((1, 0), "key", second)
    house.add((0, 0), "ball")
    house.enter((1, 0))
    return "pick up the ball"


def pick_somewhere(house: House) -> str:
    """Something in any room."""
    item = house.add(house.rng.choice(house.rooms))
    house.enter((1, 1))
    house.connect()
    return f"pick up {describe(house.board(), None, item.type)}"


def pick_off_corridor(house: House) -> str:
    """A ball behind a locked door on the right of a corridor; the key is in a room on the left."""
    for row in range(1, house.rows):
        house.no_wall((1, row), 3)
    row = house.rng.randrange(house.rows)
    door = house.door((2, row), 2, locked=True)
    house.add((2, row), "ball")
    house.add((0, house.rng.randrange(house.rows)), "key", door.colour)
    house.enter((1, house.rows // 2))
    house.connect()
    return f"pick up {describe(house.board(), None, 'ball')}"


def pick_in_room(house: House) -> str:
    """The ball in the only room."""
    house.add((0, 0), "ball")
    house.enter()
    return "pick up the ball"


# --- put next to, and mixed ----------------------------------------------------------------------------------------


def put_here(house: House, *, number: int = 8) -> str:
    """One thing next to another in one room."""
    house.enter()
    items = house.scatter(number)
    _unblocked(house)
    return _put(house, *house.rng.sample(items, 2))


def _put(house: House, moved: Item, fixed: Item) -> str:
    board = house.board()
    return f"{PUT} {describe(board, moved.colour, moved.type)} next to {describe(board, fixed.colour, fixed.type)}"


def put_across(house: House, *, number: int, carried: bool = False) -> str:
    """Two rooms without a wall between; one thing has to come beside one that began in the other room."""
    house.enter((0, 0))
    sides = [house.scatter(number, room=(column, 0)) for column in (0, 1)]
    house.no_wall((0, 0), 0)
    pair = [house.rng.choice(items) for items in sides]
    house.rng.shuffle(pair)
    if carried:
        house.take(pair[0])
    return _put(house, *pair)


def put_two_across(house: House, *, number: int) -> str:
    """Two things, each next to one that began in the other room."""
    house.enter((0, 0))
    left, right = ([*house.scatter(number, room=(column, 0))] for column in (0, 1))
    house.no_wall((0, 0), 0)
    (a, d), (b, c) = house.rng.sample(left, 2), house.rng.sample(right, 2)
    return f"{_put(house, a, b)}, then {_put(house, c, d)}"


def act_here(house: House) -> str:
    """Go to a thing or a door of the middle room, pick the thing up, or open the door."""
    items = house.scatter(5, room=(1, 1))
    items += [house.door((1, 1), locked=False) for _ in range(4)]
    house.enter((1, 1))
    item = house.rng.choice(items)
    verb = house.rng.choice(("go to", "open" if item.type == "door" else "pick up"))
    return f"{verb} {describe(house.board(), item.colour, item.type)}"


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
    """Anything BabyAI's language can say (its `LevelGen`).

    Args:
        number: of things.
        locked: how likely there is a locked room.
        sides: missions may tell things by their side.
        unblocking: things may bar the way.
        implicit: what a mission is about may lie in the locked room.
    """
    if house.rng.random() < locked:
        _locked_away(house)
    house.connect()
    house.scatter(number, unique=False)
    house.enter()
    if not unblocking:
        _unblocked(house)
    teller = _Teller(house, sides=sides, unblocking=unblocking, implicit=implicit)
    return teller.mission(verbs, forms)


class _Teller:
    """Draws the words of a mission about a house."""

    def __init__(self, house: House, *, sides: bool, unblocking: bool, implicit: bool) -> None:
        self.house, self.rng, self.board = house, house.rng, house.board()
        self.sides, self.unblocking, self.implicit = sides, unblocking, implicit

    def mission(self, verbs: Sequence[str], forms: Sequence[str]) -> str:
        form = self.rng.choice(list(forms))
        if form != "then":
            return " and ".join(self.atom(verbs) for _ in range(2 if form == "and" else 1))
        first, second = (self.mission(verbs, ("one", "and")) for _ in range(2))
        return self.rng.choice((f"{first}, then {second}", f"{first} after you {second}"))

    def atom(self, verbs: Sequence[str]) -> str:
        verb = self.rng.choice(list(verbs))
        first = self.thing({"go to": _KINDS, "open": ("door",)}.get(verb, TYPES))
        return f"{verb} {first}" + (f" next to {self.thing(_KINDS)}" if verb == PUT else "")

    def thing(self, kinds: Sequence[str]) -> str:
        for _ in range(100):
            colour, kind = self.rng.choice((None, *COLOURS)), self.rng.choice(list(kinds))
            side = self.rng.choice(list(SIDES)) if self.sides and self.rng.random() < 0.5 else None
            if kind == "key" and self.unblocking and self._opens(colour):
                continue
            try:
                words = describe(self.board, colour, kind, side=side)
            except Unlucky:
                continue
            if self.implicit or not self._locked_in(matches(self.board, colour, kind, side=side)):
                return words
        raise Unlucky

    def _opens(self, colour: str | None) -> bool:
        """Whether such a key opens a locked door."""
        locked = self.house.locked_colours
        return bool(locked) and (colour is None or colour in locked)

    def _locked_in(self, codes: Collection[int]) -> bool:
        """Whether all these things lie in the locked room."""
        cells = [at for at, code in enumerate(self.board.start.cells) if code in codes]
        if any(self.board.thing(self.board.start.cells[at]).type == "door" for at in cells):
            return False
        return all(self.house.room_of(self.board.place(at)) == self.house.locked for at in cells)
