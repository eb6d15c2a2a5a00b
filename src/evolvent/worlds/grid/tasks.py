"""Embedded grid tasks: a small map with a mission, drawn for a kind.

Rooms lie in a row, four to five cells wide, with a door between each two; then the whole is turned. Beside what the
mission asks for lie things that share its colour or its type, so that every word of the mission counts. The spec of a
task is the map itself and the mission: it needs no generator to be played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.house import Unlucky
from evolvent.worlds.grid.kinds import AtomKind, Kind
from evolvent.worlds.grid.map import CLOSED, COLOURS, DOOR, KEY, LETTERS, LOCKED, TYPES, Board
from evolvent.worlds.grid.mission import Progress
from evolvent.worlds.grid.scene import Scene, act, turn_of
from evolvent.worlds.grid.spec import Grid, build_scene, canonical_key, turned
from evolvent.worlds.grid.view import look
from evolvent.worlds.panel import Candidate

__all__ = ["candidates", "draw_task"]

_ATTEMPTS = 60
_MOST = 9  # actions that an expert may take
_WORDS = 150  # of an expert's episode
_MISTAKES = 2  # actions that an episode may take beyond those of the expert
_CROWD = 5  # things and doors of the first room
_WAYS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_VERBS = {"go": "go to", "pick": "pick up", "open": "open"}
Place = tuple[int, int]


@dataclass(slots=True)
class _Item:
    """Something to be placed.

    Args:
        room: where a thing lies, or the room left of a door; -1 for a door in an outer wall of the first room.
        visible: whether it has to be in view at the beginning; None: either.
    """

    colour: str
    type: str
    room: int
    state: str = ""
    visible: bool | None = None
    at: Place = (0, 0)


@dataclass(slots=True)
class _Draft:
    """A map being drawn: the inner sizes of the rooms, what is in them, and the agent, which is in the first."""

    rng: Random
    height: int
    widths: Sequence[int]
    items: list[_Item] = field(default_factory=list)
    agent: Place = (0, 0)
    way: int = 0

    def left(self, room: int) -> int:
        """The first inner column of a room."""
        return 1 + sum(width + 1 for width in self.widths[:room])

    def cells(self, room: int) -> list[Place]:
        """The inner cells of a room."""
        first = self.left(room)
        return [(x, y) for x in range(first, first + self.widths[room]) for y in range(1, self.height + 1)]

    def from_agent(self, at: Place) -> tuple[int, int]:
        """How far ahead of the agent and how far to its right a place is."""
        (to_x, to_y), x, y = _WAYS[self.way], at[0] - self.agent[0], at[1] - self.agent[1]
        return x * to_x + y * to_y, y * to_x - x * to_y

    def sees(self, at: Place) -> bool:
        """Whether the agent has a place of its own room in view."""
        ahead, right = self.from_agent(at)
        return 0 <= ahead <= 6 and abs(right) <= 3


def candidates(kinds: Sequence[Kind], tier: str) -> Iterator[Candidate]:
    """Tasks without end: one of every kind, then the next of every kind."""
    for seed in count():
        for kind in kinds:
            spec = draw_task(kind, seed)
            if spec is not None:
                yield Candidate(spec, str(kind), tier, canonical_key(spec))


def draw_task(kind: Kind, seed: int) -> dict[str, Json] | None:
    """The spec of a task of a kind that the expert fulfils, or None if this seed finds none."""
    rng = Random(sample_seed("grid task", str(kind), seed))
    for _ in range(_ATTEMPTS):
        try:
            return _attempt(kind, rng)
        except Unlucky:
            continue
    return None


def _attempt(kind: Kind, rng: Random) -> dict[str, Json]:
    draft = _Draft(rng, rng.randint(4, 5), [rng.randint(4, 5) for _ in range(1 + len(kind.ways))])
    targets = _cast(draft, kind)
    _arrange(draft)
    told = [_tell(draft, atom, items) for atom, items in zip(kind.atoms, targets, strict=True)]
    spec: dict[str, Json] = {"map": _rows(draft), "mission": _join(kind, told)}
    scene = build_scene(spec)
    plan = solve(scene, most=_MOST) if _is_in_view(draft, scene.board) else None
    if plan is None or _length(scene, plan) > _WORDS:
        raise Unlucky
    return {**spec, "tries": len(plan) + _MISTAKES}


def _length(scene: Scene, plan: Sequence[str]) -> int:
    """How many words the episode of a plan has."""
    pose, progress = scene.board.start, Progress()
    words = len(scene.mission.text.split())
    for action in plan:
        turn = turn_of(scene, pose)
        words += len(turn.text.split()) + len(action.split())
        pose, progress, _, _ = act(scene, turn, action, progress=progress)
    return words


# --- what there is -------------------------------------------------------------------------------------------------


def _cast(draft: _Draft, kind: Kind) -> list[list[_Item]]:
    """Draw the doors between the rooms, the keys, what the atoms are about, and what else lies about.

    Returns:
        For each atom, what it is about, in the order in which it is told.
    """
    rng = draft.rng
    colours = rng.sample(COLOURS, len(COLOURS))  # of doors: no two have the same
    for room, part in enumerate(kind.ways):
        _add_door(draft, _Item(colours.pop(), DOOR, room, LOCKED if part == "lock" else CLOSED), colours[-1])
    targets = [_targets(draft, atom, colours, first=atom is kind.atoms[0]) for atom in kind.atoms]
    wanted = [
        (item, form)
        for atom, items in zip(kind.atoms, targets, strict=True)
        for item, form in zip(items, atom.words.split("-"), strict=True)
    ]
    for item, form in wanted:
        for decoy in _decoys(rng, item, form, alone=len(wanted) == 1):
            if not any(_would_be(decoy, other, words) for other, words in wanted):
                draft.items.append(decoy)
    for item, form in wanted:
        if any(other is not item and _would_be(other, item, form) for other in draft.items):
            raise Unlucky
    if sum(item.room <= 0 for item in draft.items) > _CROWD:
        raise Unlucky
    return targets


def _add_door(draft: _Draft, door: _Item, other: str) -> None:
    """Add a door and, if it is locked, its key and another one, in the room before it."""
    room = max(door.room, 0)
    if door.visible is None and room == 0:
        door.visible = True
    draft.items.append(door)
    if door.state == LOCKED:
        draft.items += [
            _Item(colour, KEY, room, visible=True if room == 0 else None) for colour in (door.colour, other)
        ]


def _targets(draft: _Draft, atom: AtomKind, colours: list[str], *, first: bool) -> list[_Item]:
    """The things, or the door, that an atom is about, added to the draft."""
    rng, visible = draft.rng, atom.access != "turn"
    if atom.verb == "open":
        between = [item for item in draft.items if item.type == DOOR and item.room == 0]
        if between and first:
            return between
        door = _Item(colours.pop(), DOOR, -1, LOCKED if atom.access == "lock" else CLOSED, visible)
        _add_door(draft, door, colours[-1])
        return [door]
    items = []
    for place, _ in enumerate(forms := atom.words.split("-")):
        room = len(atom.ways) if place == len(forms) - 1 else 0
        shown = visible or place > 0 if room == 0 else None
        items.append(_Item(rng.choice(COLOURS), rng.choice(TYPES), room, visible=shown))
    draft.items += items
    return items


def _decoys(rng: Random, item: _Item, form: str, *, alone: bool) -> list[_Item]:
    """Things that share the colour or the type of a target, as its words call for: two, one where there are others."""
    others = [colour for colour in COLOURS if colour != item.colour]
    if item.type == DOOR:
        doors = [_Item(rng.choice(others), DOOR, -1, CLOSED, visible=True if form == "side" else None)]
        things = [_Item(item.colour, rng.choice(TYPES), 0)] if alone else []
        return things + (doors if form != "type" else [])
    types = [each for each in TYPES if each != item.type]
    same_colour = _Item(item.colour, rng.choice(types), item.room)
    same_type = _Item(rng.choice(others), item.type, item.room, visible=item.visible if form == "side" else None)
    neither = _Item(rng.choice(others), rng.choice(types), item.room)
    found = {"type": [same_colour, neither], "colour": [neither, same_type]}.get(form, [same_colour, same_type])
    return found if alone else [rng.choice(found)]


def _would_be(item: _Item, other: _Item, form: str) -> bool:
    """Whether words that tell `other` would tell `item` as well. Sides are looked at when all is placed."""
    if form == "side":
        return False
    return (form == "colour" or item.type == other.type) and (form == "type" or item.colour == other.colour)


# --- where it is ---------------------------------------------------------------------------------------------------


def _arrange(draft: _Draft) -> None:
    """Place the doors, the agent and the things, so that what should be in view is in view.

    The cells before doors stay free, and the two behind a door between rooms.
    """
    rng = draft.rng
    taken, clear = _place_doors(draft)
    for item in draft.items:
        if item.type != DOOR and item.room > 0:
            item.at = _pick(rng, draft.cells(item.room), taken | clear)
            taken.add(item.at)
    draft.agent, draft.way = _pick(rng, draft.cells(0), taken), rng.randrange(4)
    taken.add(draft.agent)
    for item in draft.items:
        if item.type != DOOR and item.room == 0:
            cells = [at for at in draft.cells(0) if item.visible is None or draft.sees(at) == item.visible]
            item.at = _pick(rng, cells, taken | clear)
            taken.add(item.at)
        elif item.room <= 0 and item.visible is not None and draft.sees(item.at) != item.visible:
            raise Unlucky


def _place_doors(draft: _Draft) -> tuple[set[Place], set[Place]]:
    """Place the doors; returns their places and the cells that stay free."""
    rng, height = draft.rng, draft.height
    taken: set[Place] = set()
    clear: set[Place] = set()
    for item in draft.items:
        if item.type != DOOR:
            continue
        if item.room >= 0:  # in the middle of the wall: from there the whole next room is in view
            x, y = draft.left(item.room) + draft.widths[item.room], rng.randint(max(1, height - 3), min(4, height))
            clear |= {(x - 1, y), (x + 1, y), (x + 2, y)}
        else:
            x, y = _pick(rng, _outer_wall(draft), taken)
            clear.add((min(max(x, 1), draft.widths[0]), min(max(y, 1), height)))
        item.at = (x, y)
        if item.at in taken:
            raise Unlucky
        taken.add(item.at)
    return taken, clear


def _outer_wall(draft: _Draft) -> list[Place]:
    """The cells of the first room's outer walls, corners left out."""
    width, height = draft.widths[0], draft.height
    places = [(x, y) for x in range(1, width + 1) for y in (0, height + 1)]
    return places + [(x, y) for x in ((0,) if draft.widths[1:] else (0, width + 1)) for y in range(1, height + 1)]


def _pick(rng: Random, places: Sequence[Place], taken: set[Place]) -> Place:
    free = [at for at in places if at not in taken]
    if not free:
        raise Unlucky
    return rng.choice(free)


def _is_in_view(draft: _Draft, board: Board) -> bool:
    """Whether exactly what should be in view at the beginning is in view."""
    seen = {(each.thing.colour, each.thing.type) for each in look(board, board.start).things if each.thing}
    return all(((i.colour, i.type) in seen) == i.visible for i in draft.items if i.visible is not None)


# --- how it is told ------------------------------------------------------------------------------------------------


def _tell(draft: _Draft, atom: AtomKind, items: Sequence[_Item]) -> str:
    words = [_words(draft, item, form, atom.access) for item, form in zip(items, atom.words.split("-"), strict=True)]
    return f"put {words[0]} next to {words[1]}" if atom.verb == "put" else f"{_VERBS[atom.verb]} {words[0]}"


def _words(draft: _Draft, item: _Item, form: str, access: str) -> str:
    if form != "side":
        told = {"full": f"{item.colour} {item.type}", "type": item.type, "colour": f"{item.colour} object"}
        return f"the {told[form]}"
    alike = [each for each in draft.items if each.type == item.type and each.room <= 0]
    ahead, right = zip(*(draft.from_agent(each.at) for each in alike), strict=True)
    here = next(number for number, each in enumerate(alike) if each is item)
    on_side = [-a for a in ahead] if access == "turn" else [r if right[here] > 0 else -r for r in right]
    if on_side[here] <= 0 or sum(value > 0 for value in on_side) > 1:
        raise Unlucky
    return f"the {item.type} " + (
        "behind you" if access == "turn" else "on your right" if right[here] > 0 else "on your left"
    )


def _join(kind: Kind, told: Sequence[str]) -> str:
    if kind.joint == "after":
        return f"{told[0]} after you {told[1]}"
    if kind.joint == "and then":
        return f"{told[0]} and {told[1]}, then {told[2]}"
    return {"": "", "and": " and ", "then": ", then "}[kind.joint].join(told)


def _rows(draft: _Draft) -> list[str]:
    """The map as text, turned at random."""
    grid: Grid = [["##"] * draft.left(len(draft.widths)) for _ in range(draft.height + 2)]
    cells = {at: ".." for room in range(len(draft.widths)) for at in draft.cells(room)}
    cells |= {item.at: LETTERS[item.colour] + LETTERS[item.state or item.type] for item in draft.items}
    cells[draft.agent] = ">v<^"[draft.way] + "."
    grid = [[cells.get((x, y), text) for x, text in enumerate(row)] for y, row in enumerate(grid)]
    for _ in range(draft.rng.randrange(4)):
        grid = turned(grid)
    return ["".join(row) for row in grid]
