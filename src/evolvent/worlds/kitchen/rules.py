"""The rules: the possible actions of a state, their effects, and their rewards.

Rewards are those published for Overcooked (TWOSOME, POAD): .2 for a subtask, 1 for a right delivery, -.1 for a
wrong one, -.001 for every single step of walking, taking, laying down and (three times) chopping. Subtasks are:
a part of the order is chopped; a part of the order lies on a plate as it should. Each is paid once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem
from evolvent.worlds.kitchen.rooms import BIN, BOARDS, HATCH, PLATES, SHELVES, Kitchen, State

__all__ = [
    "Action",
    "ActionOutcome",
    "Rewards",
    "apply_action",
    "contains",
    "find_nearest",
    "find_refusal",
    "has_room",
    "list_commands",
    "list_macro_actions",
]

_CHOP_STEPS = 3  # single steps of chopping
_PLATE_CAPACITY = 4  # things on a plate


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of the kitchen; the defaults are the published numbers.

    Raises:
        ConfigError: a reward that is not finite, or one with the wrong sign.
    """

    subtask: float = 0.2
    right: float = 1.0
    wrong: float = -0.1
    step: float = -0.001

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"got a reward of {value}, expected {sign}")
            for name, value, has_right_sign, sign in (
                ("subtask", self.subtask, self.subtask >= 0, "0 or more"),
                ("right", self.right, self.right > 0, "more than 0"),
                ("wrong", self.wrong, self.wrong <= 0, "0 or less"),
                ("step", self.step, self.step <= 0, "0 or less"),
            )
            if not (has_right_sign and isfinite(value))
        ]
        if problems:
            raise ConfigError(problems)


class Action(NamedTuple):
    """An action.

    Args:
        verb: "move" (take and lay down), "take", "put", "chop", "clear" (a plate, into the bin) or "deliver".
        part: the part, -1 where there is none.
        source, target: places, -1 where there is none. The board of `chop` and the plate of `clear` and `deliver`
            are sources.
    """

    verb: str
    part: int = -1
    source: int = -1
    target: int = -1


class ActionOutcome(NamedTuple):
    """The outcome of an action: the next state, the number of single steps and of new subtasks, and whether a delivery
    was right (None: no delivery).
    """

    state: State
    num_steps: int
    num_subtasks: int = 0
    is_right_delivery: bool | None = None


def contains(kitchen: Kitchen, state: State, place_number: int, *, part: int) -> bool:
    """Returns whether a part lies in a place."""
    if place_number in SHELVES:
        return part in kitchen.shelves[place_number]
    if place_number in BOARDS:
        return state.boards[place_number - BOARDS[0]] == part
    return place_number in PLATES and bool(state.plates[place_number - PLATES[0]] >> part & 1)


def has_room(state: State, place_number: int, part: int) -> bool:
    """Returns whether a place has room for a part: a free board, a plate without it that is not full, the bin."""
    if place_number in BOARDS:
        return state.boards[place_number - BOARDS[0]] < 0
    if place_number in PLATES:
        mask = state.plates[place_number - PLATES[0]]
        return not mask >> part & 1 and mask.bit_count() < _PLATE_CAPACITY
    return place_number == BIN


def find_refusal(kitchen: Kitchen, state: State, action: Action) -> str:
    """Returns the reason why an action is impossible: "absent", "room", "hand", "chopped", "empty"; "" if it is
    possible.
    """
    if action.verb == "put":
        if state.held_part != action.part:
            return "hand"
        return "" if has_room(state, action.target, action.part) else "room"
    if state.held_part >= 0:
        return "hand"
    if action.verb in ("deliver", "clear"):
        return "" if state.plates[action.source - PLATES[0]] else "empty"
    if not contains(kitchen, state, action.source, part=action.part):
        return "absent"
    if action.verb == "chop":
        return "chopped" if action.part & 1 else ""
    return (
        ""
        if action.verb == "take" or (action.source != action.target and has_room(state, action.target, action.part))
        else "room"
    )


def apply_action(kitchen: Kitchen, state: State, action: Action) -> ActionOutcome:
    """Applies a possible action, one for which `find_refusal` returns ""."""
    if action.verb == "move":
        take_outcome = _apply_take(kitchen, state, action)
        put_outcome = _apply_put(kitchen, take_outcome.state, action)
        return ActionOutcome(
            put_outcome.state, take_outcome.num_steps + put_outcome.num_steps, put_outcome.num_subtasks
        )
    if action.verb == "take":
        return _apply_take(kitchen, state, action)
    if action.verb == "put":
        return _apply_put(kitchen, state, action)
    if action.verb == "chop":
        num_steps, cook_cell = _walk_to(kitchen, state, action.source)
        boards = _replace_at(state.boards, action.source - BOARDS[0], action.part | 1)
        reached_subtasks, num_subtasks = _update_subtasks(
            kitchen, state.reached_subtasks, action.part | 1, is_on_plate=False
        )
        return ActionOutcome(
            State(cook_cell, state.held_part, boards, state.plates, reached_subtasks),
            num_steps + _CHOP_STEPS,
            num_subtasks,
        )
    if action.verb == "clear":
        return _apply_clear(kitchen, state, action.source)
    return _apply_deliver(kitchen, state, action.source)


def _walk_to(kitchen: Kitchen, state: State, place_number: int) -> tuple[int, int]:
    cell = kitchen.access_cells[place_number]
    return kitchen.distances[state.cook_cell][cell], cell


def _replace_at(values: tuple[int, ...], index: int, new_value: int) -> tuple[int, ...]:
    return (*values[:index], new_value, *values[index + 1 :])


def _apply_take(kitchen: Kitchen, state: State, action: Action) -> ActionOutcome:
    num_steps, cook_cell = _walk_to(kitchen, state, action.source)
    boards, plates = state.boards, state.plates
    if action.source in BOARDS:
        boards = _replace_at(boards, action.source - BOARDS[0], -1)
    elif action.source in PLATES:
        plate = action.source - PLATES[0]
        plates = _replace_at(plates, plate, plates[plate] & ~(1 << action.part))
    return ActionOutcome(State(cook_cell, action.part, boards, plates, state.reached_subtasks), num_steps + 1)


def _apply_put(kitchen: Kitchen, state: State, action: Action) -> ActionOutcome:
    num_steps, cook_cell = _walk_to(kitchen, state, action.target)
    boards, plates, reached_subtasks, num_subtasks = state.boards, state.plates, state.reached_subtasks, 0
    if action.target in BOARDS:
        boards = _replace_at(boards, action.target - BOARDS[0], action.part)
    elif action.target in PLATES:
        plate = action.target - PLATES[0]
        plates = _replace_at(plates, plate, plates[plate] | 1 << action.part)
        reached_subtasks, num_subtasks = _update_subtasks(kitchen, reached_subtasks, action.part, is_on_plate=True)
    return ActionOutcome(State(cook_cell, -1, boards, plates, reached_subtasks), num_steps + 1, num_subtasks)


def _update_subtasks(kitchen: Kitchen, reached_subtasks: int, part: int, *, is_on_plate: bool) -> tuple[int, int]:
    """Updates the reached subtasks after a part was chopped or put on a plate; also returns the number of new ones."""
    if part not in kitchen.order:
        return reached_subtasks, 0
    updated = reached_subtasks | 1 << 2 * kitchen.order.index(part) + is_on_plate
    return updated, int(updated != reached_subtasks)


def _apply_clear(kitchen: Kitchen, state: State, plate: int) -> ActionOutcome:
    """Moves all parts of a plate to the bin and the plate back."""
    distance_to_plate, plate_cell = _walk_to(kitchen, state, plate)
    distance_to_bin = kitchen.distances[plate_cell][kitchen.access_cells[BIN]]
    plates = _replace_at(state.plates, plate - PLATES[0], 0)
    return ActionOutcome(
        state._replace(cook_cell=plate_cell, plates=plates), distance_to_plate + 2 * distance_to_bin + 2
    )


def _apply_deliver(kitchen: Kitchen, state: State, plate: int) -> ActionOutcome:
    """Moves a plate to the hatch. A wrong plate comes back unchanged."""
    distance_to_plate, plate_cell = _walk_to(kitchen, state, plate)
    distance_to_hatch = kitchen.distances[plate_cell][kitchen.access_cells[HATCH]]
    is_right = state.plates[plate - PLATES[0]] == kitchen.order_mask
    return ActionOutcome(
        state._replace(cook_cell=kitchen.access_cells[HATCH]),
        distance_to_plate + distance_to_hatch + 2,
        is_right_delivery=is_right,
    )


def list_commands(kitchen: Kitchen, state: State) -> Iterator[Action]:
    """Yields the possible actions among full commands: move from place to place, chop, deliver."""
    for part, source in _available_parts(kitchen, state):
        for target in (*BOARDS, *PLATES, BIN):
            action = Action("move", part, source, target)
            if not find_refusal(kitchen, state, action) and not (source in SHELVES and target == BIN):
                yield action
    for source, part in zip(BOARDS, state.boards, strict=True):
        if part >= 0 and not part & 1:
            yield Action("chop", part, source)
    yield from (Action("deliver", -1, source) for source, mask in zip(PLATES, state.plates, strict=True) if mask)


def list_macro_actions(kitchen: Kitchen, state: State) -> Iterator[Action]:
    """Yields the possible actions among single commands: take, put, chop, clear a plate, deliver a plate."""
    if state.held_part >= 0:
        targets = (*BOARDS, *PLATES, BIN)
        yield from (
            Action("put", state.held_part, -1, target) for target in targets if has_room(state, target, state.held_part)
        )
        return
    for part in sorted({part for part, place_number in _available_parts(kitchen, state) if place_number not in PLATES}):
        yield Action("take", part, find_nearest(kitchen, state, part))
    for part in sorted({part for part in state.boards if part >= 0 and not part & 1}):
        yield Action("chop", part, find_nearest(kitchen, state, part, among=BOARDS))
    for place_number, mask in zip(PLATES, state.plates, strict=True):
        if mask:
            yield Action("clear", -1, place_number)
            yield Action("deliver", -1, place_number)


def find_nearest(kitchen: Kitchen, state: State, part: int, *, among: Sequence[int] = (*SHELVES, *BOARDS)) -> int:
    """Finds the nearest of these places where a part lies, -1 if there is none; ties go to the first."""
    places_with_part = [place_number for place_number in among if contains(kitchen, state, place_number, part=part)]
    return min(
        places_with_part,
        key=lambda place_number: kitchen.distances[state.cook_cell][kitchen.access_cells[place_number]],
        default=-1,
    )


def _available_parts(kitchen: Kitchen, state: State) -> Iterator[tuple[int, int]]:
    """Yields every (part, place) that a part can be taken from."""
    for place_number, parts in enumerate(kitchen.shelves):
        yield from ((part, place_number) for part in parts)
    for place_number, part in zip(BOARDS, state.boards, strict=True):
        if part >= 0:
            yield part, place_number
    for place_number, mask in zip(PLATES, state.plates, strict=True):
        yield from ((part, place_number) for part in range(mask.bit_length()) if mask >> part & 1)
