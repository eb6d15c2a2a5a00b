"""The expert: as few commands as any plan can have, and of those plans one with short ways."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from evolvent.worlds.kitchen.rooms import BIN, BOARDS, PLATES, Kitchen, State
from evolvent.worlds.kitchen.rules import Act, apply, holds, nearest, takes

__all__ = ["plan"]


def plan(kitchen: Kitchen, *, single: bool = False) -> tuple[Act, ...]:
    """Acts that deliver the order from the start.

    A plate is chosen and cleared of what is not wanted; then each part is brought in some order, chopped where it must
    be. All plates and orders of parts are tried. A board is free at the start, and every part leaves its board free.

    Args:
        single: take and put by commands of their own, as in the macro actions published.
    """
    tried = [_walked(kitchen, plate, parts, single) for plate in PLATES for parts in permutations(kitchen.order)]
    return min(tried, key=lambda found: (len(found[0]), found[1]))[0]


def _walked(kitchen: Kitchen, plate: int, parts: tuple[int, ...], single: bool) -> tuple[tuple[Act, ...], int]:
    """One plan played from the start, and its single steps."""
    state, done, steps = kitchen.start, [], 0
    while True:
        act = _next(kitchen, state, plate, parts=parts, single=single)
        change = apply(kitchen, state, act)
        state, steps = change.state, steps + change.steps
        done.append(act)
        if act.verb == "deliver":
            return tuple(done), steps


def _next(kitchen: Kitchen, state: State, plate: int, *, parts: tuple[int, ...], single: bool) -> Act:
    mask = state.plates[plate - PLATES[0]]
    if state.held >= 0:
        return Act("put", state.held, -1, plate if state.held in kitchen.order else _free_board(kitchen, state))
    wrong = mask & ~kitchen.wanted
    if wrong:
        return Act("clear", -1, plate) if single else Act("move", wrong.bit_length() - 1, plate, BIN)
    part = next((part for part in parts if not mask >> part & 1), None)
    if part is None:
        return Act("deliver", -1, plate)
    source = _source(kitchen, state, part, plates=not single)
    if source >= 0:
        return Act("take", part, source) if single else Act("move", part, source, plate)
    raw = part & ~1
    board = nearest(kitchen, state, raw, among=BOARDS)
    if board >= 0:
        return Act("chop", raw, board)
    shelf = nearest(kitchen, state, raw)
    return Act("take", raw, shelf) if single else Act("move", raw, shelf, _free_board(kitchen, state))


def _source(kitchen: Kitchen, state: State, part: int, *, plates: bool) -> int:
    """Where a part lies ready: the nearest place, a plate only where things can be taken from plates; -1 for none."""
    place = nearest(kitchen, state, part)
    if place >= 0 or not plates:
        return place
    return next((place for place in PLATES if holds(kitchen, state, place, part=part)), -1)


def _free_board(kitchen: Kitchen, state: State) -> int:
    return min(_free_boards(state), key=lambda place: kitchen.ways[state.at][kitchen.cells[place]])


def _free_boards(state: State) -> Iterator[int]:
    return (place for place in BOARDS if takes(state, place, 0))
