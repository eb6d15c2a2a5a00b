"""Expert: a plan with the fewest commands, and among those one with short routes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from evolvent.worlds.kitchen.rooms import BIN, BOARDS, PLATES, Kitchen, State
from evolvent.worlds.kitchen.rules import Action, apply_action, contains, find_nearest, has_room

__all__ = ["plan"]


def plan(kitchen: Kitchen, *, one_step: bool = False) -> tuple[Action, ...]:
    """Returns the actions that deliver the order from the start.

    A plate is chosen and cleared of wrong parts; then each part is brought in some order, chopped where required.
    All plates and orders of parts are tried. A board is free at the start, and every part leaves its board free.

    Args:
        one_step: take and put by separate commands, as in the published macro actions.
    """
    plans = [_build_plan(kitchen, plate, parts, one_step) for plate in PLATES for parts in permutations(kitchen.order)]
    return min(plans, key=lambda candidate: (len(candidate[0]), candidate[1]))[0]


def _build_plan(kitchen: Kitchen, plate: int, parts: tuple[int, ...], one_step: bool) -> tuple[tuple[Action, ...], int]:
    """Builds the plan for a plate and an order of parts; returns its actions and the number of single steps."""
    state, actions, steps = kitchen.start, [], 0
    while True:
        action = _next_action(kitchen, state, plate, parts=parts, one_step=one_step)
        outcome = apply_action(kitchen, state, action)
        state, steps = outcome.state, steps + outcome.num_steps
        actions.append(action)
        if action.verb == "deliver":
            return tuple(actions), steps


def _next_action(kitchen: Kitchen, state: State, plate: int, *, parts: tuple[int, ...], one_step: bool) -> Action:
    mask = state.plates[plate - PLATES[0]]
    if state.held_part >= 0:
        return Action(
            "put",
            state.held_part,
            -1,
            plate if state.held_part in kitchen.order else _nearest_free_board(kitchen, state),
        )
    wrong_parts = mask & ~kitchen.order_mask
    if wrong_parts:
        return Action("clear", -1, plate) if one_step else Action("move", wrong_parts.bit_length() - 1, plate, BIN)
    part = next((part for part in parts if not mask >> part & 1), None)
    if part is None:
        return Action("deliver", -1, plate)
    source = _find_source(kitchen, state, part, plates=not one_step)
    if source >= 0:
        return Action("take", part, source) if one_step else Action("move", part, source, plate)
    raw_part = part & ~1
    board = find_nearest(kitchen, state, raw_part, among=BOARDS)
    if board >= 0:
        return Action("chop", raw_part, board)
    shelf = find_nearest(kitchen, state, raw_part)
    return (
        Action("take", raw_part, shelf)
        if one_step
        else Action("move", raw_part, shelf, _nearest_free_board(kitchen, state))
    )


def _find_source(kitchen: Kitchen, state: State, part: int, *, plates: bool) -> int:
    """Finds the nearest place of a prepared part, a plate only where parts can be taken from plates; -1 for none."""
    place_number = find_nearest(kitchen, state, part)
    if place_number >= 0 or not plates:
        return place_number
    return next((place_number for place_number in PLATES if contains(kitchen, state, place_number, part=part)), -1)


def _nearest_free_board(kitchen: Kitchen, state: State) -> int:
    return min(_free_boards(state), key=lambda board: kitchen.distances[state.cook_cell][kitchen.access_cells[board]])


def _free_boards(state: State) -> Iterator[int]:
    return (board for board in BOARDS if has_room(state, board, 0))
