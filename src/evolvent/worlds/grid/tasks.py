"""Embedded grid tasks: a small map with a mission, drawn for a kind.

Rooms lie in a row, four to five cells wide, with a door between each two; then the map is rotated. Distractors
share the color or type of the mission's objects, so that every word of the mission counts. The spec of a task
is the map itself and the mission: playing it does not need the generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.house import DrawRejected
from evolvent.worlds.grid.kinds import AtomKind, Kind
from evolvent.worlds.grid.map import CLOSED, COLOURS, DOOR, KEY, LETTERS, LOCKED, TYPES, Board
from evolvent.worlds.grid.mission import Progress
from evolvent.worlds.grid.scene import Scene, apply_action, build_turn
from evolvent.worlds.grid.spec import Grid, build_scene, canonical_key, rotate_grid
from evolvent.worlds.grid.view import observe
from evolvent.worlds.panel import Candidate

__all__ = ["draw_task", "iterate_candidates"]

_ATTEMPTS = 60
_MAX_PLAN_LENGTH = 9  # actions that an expert may take
_MAX_WORDS = 150  # of an expert's episode
_SPARE_ACTIONS = 2  # actions that an episode may take beyond those of the expert
_MAX_FIRST_ROOM_ITEMS = 5  # things and doors of the first room
_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_VERBS = {"go": "go to", "pick": "pick up", "open": "open"}
Position = tuple[int, int]


@dataclass(slots=True)
class _Item:
    """An item to be placed.

    Args:
        room_index: the room of an object, or the room left of a door; -1 for a door in an outer wall of the first
            room.
        should_be_visible: whether the agent must see it at the start; None: either.
    """

    colour: str
    type: str
    room_index: int
    state: str = ""
    should_be_visible: bool | None = None
    position: Position = (0, 0)


@dataclass(slots=True)
class _Draft:
    """A map under construction: the inner sizes of the rooms, their items, and the agent, which is in the first
    room.
    """

    rng: Random
    height: int
    widths: Sequence[int]
    items: list[_Item] = field(default_factory=list)
    agent: Position = (0, 0)
    direction: int = 0

    def first_column(self, room_index: int) -> int:
        """Returns the first inner column of a room."""
        return 1 + sum(width + 1 for width in self.widths[:room_index])

    def cells(self, room_index: int) -> list[Position]:
        """Returns the inner cells of a room."""
        first = self.first_column(room_index)
        return [(x, y) for x in range(first, first + self.widths[room_index]) for y in range(1, self.height + 1)]

    def relative_to_agent(self, position: Position) -> tuple[int, int]:
        """Returns how far ahead of the agent and how far to its right a position is."""
        (to_x, to_y), x, y = _DIRECTIONS[self.direction], position[0] - self.agent[0], position[1] - self.agent[1]
        return x * to_x + y * to_y, y * to_x - x * to_y

    def is_visible(self, position: Position) -> bool:
        """Returns whether a position of the agent's room is in its view."""
        ahead, right = self.relative_to_agent(position)
        return 0 <= ahead <= 6 and abs(right) <= 3


def iterate_candidates(kinds: Sequence[Kind], tier: str) -> Iterator[Candidate]:
    """Yields tasks without end: one of every kind, then the next of every kind."""
    for seed in count():
        for kind in kinds:
            spec = draw_task(kind, seed)
            if spec is not None:
                yield Candidate(spec, str(kind), tier, canonical_key(spec))


def draw_task(kind: Kind, seed: int) -> dict[str, Json] | None:
    """Draws the spec of a task that the expert fulfills, or returns None if this seed finds none."""
    rng = Random(sample_seed("grid task", str(kind), seed))
    for _ in range(_ATTEMPTS):
        try:
            return _try_to_draw(kind, rng)
        except DrawRejected:
            continue
    return None


def _try_to_draw(kind: Kind, rng: Random) -> dict[str, Json]:
    draft = _Draft(rng, rng.randint(4, 5), [rng.randint(4, 5) for _ in range(1 + len(kind.doors))])
    targets = _draw_items(draft, kind)
    _place_items(draft)
    descriptions = [_describe_atom(draft, atom, items) for atom, items in zip(kind.atoms, targets, strict=True)]
    spec: dict[str, Json] = {"map": _render_map(draft), "mission": _join_descriptions(kind, descriptions)}
    scene = build_scene(spec)
    plan = solve(scene, max_actions=_MAX_PLAN_LENGTH) if _is_view_correct(draft, scene.board) else None
    if plan is None or _count_words(scene, plan) > _MAX_WORDS:
        raise DrawRejected
    return {**spec, "tries": len(plan) + _SPARE_ACTIONS}


def _count_words(scene: Scene, plan: Sequence[str]) -> int:
    """Counts the words of the episode of a plan."""
    pose, progress = scene.board.start, Progress()
    num_words = len(scene.mission.text.split())
    for action in plan:
        turn = build_turn(scene, pose)
        num_words += len(turn.text.split()) + len(action.split())
        pose, progress, _, _ = apply_action(scene, turn, action, progress=progress)
    return num_words


# --- what there is -------------------------------------------------------------------------------------------------


def _draw_items(draft: _Draft, kind: Kind) -> list[list[_Item]]:
    """Draws the doors between the rooms, the keys, the targets of the atoms, and the distractors.

    Returns:
        For each atom, its targets, in reading order.
    """
    rng = draft.rng
    colours = rng.sample(COLOURS, len(COLOURS))  # of doors: no two have the same
    for room_index, part in enumerate(kind.doors):
        _add_door(draft, _Item(colours.pop(), DOOR, room_index, LOCKED if part == "lock" else CLOSED), colours[-1])
    targets = [_draw_targets(draft, atom, colours, first=atom is kind.atoms[0]) for atom in kind.atoms]
    described_items = [
        (item, form)
        for atom, items in zip(kind.atoms, targets, strict=True)
        for item, form in zip(items, atom.wording.split("-"), strict=True)
    ]
    for item, form in described_items:
        for decoy in _draw_decoys(rng, item, form, is_only_target=len(described_items) == 1):
            if not any(
                _matches_description(decoy, other_item, other_form) for other_item, other_form in described_items
            ):
                draft.items.append(decoy)
    for item, form in described_items:
        if any(other_item is not item and _matches_description(other_item, item, form) for other_item in draft.items):
            raise DrawRejected
    if sum(item.room_index <= 0 for item in draft.items) > _MAX_FIRST_ROOM_ITEMS:
        raise DrawRejected
    return targets


def _add_door(draft: _Draft, door: _Item, other_colour: str) -> None:
    """Adds a door and, if it is locked, its key and another one, in the room before it."""
    room_index = max(door.room_index, 0)
    if door.should_be_visible is None and room_index == 0:
        door.should_be_visible = True
    draft.items.append(door)
    if door.state == LOCKED:
        draft.items += [
            _Item(colour, KEY, room_index, should_be_visible=True if room_index == 0 else None)
            for colour in (door.colour, other_colour)
        ]


def _draw_targets(draft: _Draft, atom: AtomKind, colours: list[str], *, first: bool) -> list[_Item]:
    """Draws the objects, or the door, that an atom is about, and adds them to the draft."""
    rng, should_be_visible = draft.rng, atom.access != "turn"
    if atom.verb == "open":
        connecting_doors = [item for item in draft.items if item.type == DOOR and item.room_index == 0]
        if connecting_doors and first:
            return connecting_doors
        door = _Item(colours.pop(), DOOR, -1, LOCKED if atom.access == "lock" else CLOSED, should_be_visible)
        _add_door(draft, door, colours[-1])
        return [door]
    items = []
    for index, _ in enumerate(forms := atom.wording.split("-")):
        room_index = len(atom.doors) if index == len(forms) - 1 else 0
        is_shown = should_be_visible or index > 0 if room_index == 0 else None
        items.append(_Item(rng.choice(COLOURS), rng.choice(TYPES), room_index, should_be_visible=is_shown))
    draft.items += items
    return items


def _draw_decoys(rng: Random, item: _Item, form: str, *, is_only_target: bool) -> list[_Item]:
    """Draws decoys that share the color or the type of a target: two for a single target, else one."""
    other_colours = [colour for colour in COLOURS if colour != item.colour]
    if item.type == DOOR:
        doors = [_Item(rng.choice(other_colours), DOOR, -1, CLOSED, should_be_visible=True if form == "side" else None)]
        objects = [_Item(item.colour, rng.choice(TYPES), 0)] if is_only_target else []
        return objects + (doors if form != "type" else [])
    types = [other_type for other_type in TYPES if other_type != item.type]
    same_colour = _Item(item.colour, rng.choice(types), item.room_index)
    same_type = _Item(
        rng.choice(other_colours),
        item.type,
        item.room_index,
        should_be_visible=item.should_be_visible if form == "side" else None,
    )
    neither = _Item(rng.choice(other_colours), rng.choice(types), item.room_index)
    decoys = {"type": [same_colour, neither], "colour": [neither, same_type]}.get(form, [same_colour, same_type])
    return decoys if is_only_target else [rng.choice(decoys)]


def _matches_description(item: _Item, described_item: _Item, form: str) -> bool:
    """Checks whether the description of `described_item` fits `item` as well; sides are checked after placement."""
    if form == "side":
        return False
    return (form == "colour" or item.type == described_item.type) and (
        form == "type" or item.colour == described_item.colour
    )


# --- where it is ---------------------------------------------------------------------------------------------------


def _place_items(draft: _Draft) -> None:
    """Places the doors, the agent and the objects, so that exactly the required items are in view.

    The cells before doors stay free, and the two behind a door between rooms.
    """
    rng = draft.rng
    occupied, keep_free = _place_doors(draft)
    for item in draft.items:
        if item.type != DOOR and item.room_index > 0:
            item.position = _pick_free(rng, draft.cells(item.room_index), occupied | keep_free)
            occupied.add(item.position)
    draft.agent, draft.direction = _pick_free(rng, draft.cells(0), occupied), rng.randrange(4)
    occupied.add(draft.agent)
    for item in draft.items:
        if item.type != DOOR and item.room_index == 0:
            cells = [
                position
                for position in draft.cells(0)
                if item.should_be_visible is None or draft.is_visible(position) == item.should_be_visible
            ]
            item.position = _pick_free(rng, cells, occupied | keep_free)
            occupied.add(item.position)
        elif (
            item.room_index <= 0
            and item.should_be_visible is not None
            and draft.is_visible(item.position) != item.should_be_visible
        ):
            raise DrawRejected


def _place_doors(draft: _Draft) -> tuple[set[Position], set[Position]]:
    """Places the doors; returns their positions and the cells that stay free."""
    rng, height = draft.rng, draft.height
    occupied: set[Position] = set()
    keep_free: set[Position] = set()
    for item in draft.items:
        if item.type != DOOR:
            continue
        if item.room_index >= 0:  # in the middle of the wall: from there the whole next room is in view
            x, y = (
                draft.first_column(item.room_index) + draft.widths[item.room_index],
                rng.randint(max(1, height - 3), min(4, height)),
            )
            keep_free |= {(x - 1, y), (x + 1, y), (x + 2, y)}
        else:
            x, y = _pick_free(rng, _outer_wall_cells(draft), occupied)
            keep_free.add((min(max(x, 1), draft.widths[0]), min(max(y, 1), height)))
        item.position = (x, y)
        if item.position in occupied:
            raise DrawRejected
        occupied.add(item.position)
    return occupied, keep_free


def _outer_wall_cells(draft: _Draft) -> list[Position]:
    """Returns the cells of the first room's outer walls, without corners."""
    width, height = draft.widths[0], draft.height
    cells = [(x, y) for x in range(1, width + 1) for y in (0, height + 1)]
    return cells + [(x, y) for x in ((0,) if draft.widths[1:] else (0, width + 1)) for y in range(1, height + 1)]


def _pick_free(rng: Random, positions: Sequence[Position], occupied: set[Position]) -> Position:
    free_positions = [position for position in positions if position not in occupied]
    if not free_positions:
        raise DrawRejected
    return rng.choice(free_positions)


def _is_view_correct(draft: _Draft, board: Board) -> bool:
    """Checks whether exactly the required items are in view at the start."""
    visible_objects = {
        (visible.grid_object.colour, visible.grid_object.type)
        for visible in observe(board, board.start).objects
        if visible.grid_object
    }
    return all(
        ((item.colour, item.type) in visible_objects) == item.should_be_visible
        for item in draft.items
        if item.should_be_visible is not None
    )


# --- how it is told ------------------------------------------------------------------------------------------------


def _describe_atom(draft: _Draft, atom: AtomKind, items: Sequence[_Item]) -> str:
    descriptions = [
        _describe_item(draft, item, form, atom.access)
        for item, form in zip(items, atom.wording.split("-"), strict=True)
    ]
    return (
        f"put {descriptions[0]} next to {descriptions[1]}"
        if atom.verb == "put"
        else f"{_VERBS[atom.verb]} {descriptions[0]}"
    )


def _describe_item(draft: _Draft, item: _Item, form: str, access: str) -> str:
    if form != "side":
        descriptions = {"full": f"{item.colour} {item.type}", "type": item.type, "colour": f"{item.colour} object"}
        return f"the {descriptions[form]}"
    same_type_items = [other for other in draft.items if other.type == item.type and other.room_index <= 0]
    ahead, right = zip(*(draft.relative_to_agent(other.position) for other in same_type_items), strict=True)
    item_index = next(number for number, other in enumerate(same_type_items) if other is item)
    on_side = [-a for a in ahead] if access == "turn" else [r if right[item_index] > 0 else -r for r in right]
    if on_side[item_index] <= 0 or sum(value > 0 for value in on_side) > 1:
        raise DrawRejected
    return f"the {item.type} " + (
        "behind you" if access == "turn" else "on your right" if right[item_index] > 0 else "on your left"
    )


def _join_descriptions(kind: Kind, descriptions: Sequence[str]) -> str:
    if kind.connector == "after":
        return f"{descriptions[0]} after you {descriptions[1]}"
    if kind.connector == "and then":
        return f"{descriptions[0]} and {descriptions[1]}, then {descriptions[2]}"
    return {"": "", "and": " and ", "then": ", then "}[kind.connector].join(descriptions)


def _render_map(draft: _Draft) -> list[str]:
    """Renders the map as text, rotated at random."""
    grid: Grid = [["##"] * draft.first_column(len(draft.widths)) for _ in range(draft.height + 2)]
    cells = {position: ".." for room_index in range(len(draft.widths)) for position in draft.cells(room_index)}
    cells |= {item.position: LETTERS[item.colour] + LETTERS[item.state or item.type] for item in draft.items}
    cells[draft.agent] = ">v<^"[draft.direction] + "."
    grid = [[cells.get((x, y), text) for x, text in enumerate(row)] for y, row in enumerate(grid)]
    for _ in range(draft.rng.randrange(4)):
        grid = rotate_grid(grid)
    return ["".join(row) for row in grid]
