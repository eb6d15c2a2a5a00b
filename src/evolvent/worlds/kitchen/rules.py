"""The rules: what can be done in a state, what comes of it, and what it is worth.

Rewards are those published for Overcooked (TWOSOME, POAD): .2 for a subtask, 1 for a right delivery, -.1 for a wrong
one, -.001 for every single step of walking, taking, laying down and (three times) chopping. Subtasks are: a part of the
order is chopped; a part of the order lies on a plate as it should. Each is paid once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem
from evolvent.worlds.kitchen.rooms import BIN, BOARDS, HATCH, PLATES, SHELVES, Kitchen, State

__all__ = ["Act", "Change", "Rewards", "acts", "apply", "holds", "moves", "nearest", "refusal", "takes"]

_CHOPS = 3  # single steps of chopping
_FULL = 4  # things on a plate


@dataclass(frozen=True, slots=True)
class Rewards:
    """What is paid; the defaults are the published numbers.

    Raises:
        ConfigError: a reward that is not finite, or one with the wrong sign.
    """

    subtask: float = 0.2
    right: float = 1.0
    wrong: float = -0.1
    step: float = -0.001

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"a reward of {value}", f"give {sign}")
            for name, value, kept, sign in (
                ("subtask", self.subtask, self.subtask >= 0, "0 or more"),
                ("right", self.right, self.right > 0, "more than 0"),
                ("wrong", self.wrong, self.wrong <= 0, "0 or less"),
                ("step", self.step, self.step <= 0, "0 or less"),
            )
            if not (kept and isfinite(value))
        ]
        if problems:
            raise ConfigError(problems)


class Act(NamedTuple):
    """Something to do.

    Args:
        verb: "move" (take and lay down), "take", "put", "chop", "clear" (a plate, into the bin) or "deliver".
        part: the part that is meant; -1 where there is none.
        source, target: places, -1 where there is none. The board of `chop` and the plate of `clear` and `deliver` are
            sources.
    """

    verb: str
    part: int = -1
    source: int = -1
    target: int = -1


class Change(NamedTuple):
    """What comes of an act: the state after it, single steps, subtasks reached, and how a delivery was (or None)."""

    state: State
    steps: int
    reached: int = 0
    delivered: bool | None = None


def holds(kitchen: Kitchen, state: State, place: int, *, part: int) -> bool:
    """Whether a part lies in a place."""
    if place in SHELVES:
        return part in kitchen.shelves[place]
    if place in BOARDS:
        return state.boards[place - BOARDS[0]] == part
    return place in PLATES and bool(state.plates[place - PLATES[0]] >> part & 1)


def takes(state: State, place: int, part: int) -> bool:
    """Whether a place has room for a part: a free board, a plate without it that is not full, the bin."""
    if place in BOARDS:
        return state.boards[place - BOARDS[0]] < 0
    if place in PLATES:
        mask = state.plates[place - PLATES[0]]
        return not mask >> part & 1 and mask.bit_count() < _FULL
    return place == BIN


def refusal(kitchen: Kitchen, state: State, act: Act) -> str:
    """Why an act cannot be done now: "absent", "room", "hand", "chopped", "empty"; "" if it can."""
    if act.verb == "put":
        if state.held != act.part:
            return "hand"
        return "" if takes(state, act.target, act.part) else "room"
    if state.held >= 0:
        return "hand"
    if act.verb in ("deliver", "clear"):
        return "" if state.plates[act.source - PLATES[0]] else "empty"
    if not holds(kitchen, state, act.source, part=act.part):
        return "absent"
    if act.verb == "chop":
        return "chopped" if act.part & 1 else ""
    return "" if act.verb == "take" or (act.source != act.target and takes(state, act.target, act.part)) else "room"


def apply(kitchen: Kitchen, state: State, act: Act) -> Change:
    """Do an act that `refusal` allows."""
    if act.verb == "move":
        taken = _take(kitchen, state, act)
        laid = _put(kitchen, taken.state, act)
        return Change(laid.state, taken.steps + laid.steps, laid.reached)
    if act.verb == "take":
        return _take(kitchen, state, act)
    if act.verb == "put":
        return _put(kitchen, state, act)
    if act.verb == "chop":
        walked, at = _walk(kitchen, state, act.source)
        boards = _with(state.boards, act.source - BOARDS[0], act.part | 1)
        paid, reached = _pay(kitchen, state.paid, act.part | 1, laid=False)
        return Change(State(at, state.held, boards, state.plates, paid), walked + _CHOPS, reached)
    if act.verb == "clear":
        return _clear(kitchen, state, act.source)
    return _deliver(kitchen, state, act.source)


def _walk(kitchen: Kitchen, state: State, place: int) -> tuple[int, int]:
    cell = kitchen.cells[place]
    return kitchen.ways[state.at][cell], cell


def _with(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _take(kitchen: Kitchen, state: State, act: Act) -> Change:
    walked, at = _walk(kitchen, state, act.source)
    boards, plates = state.boards, state.plates
    if act.source in BOARDS:
        boards = _with(boards, act.source - BOARDS[0], -1)
    elif act.source in PLATES:
        plate = act.source - PLATES[0]
        plates = _with(plates, plate, plates[plate] & ~(1 << act.part))
    return Change(State(at, act.part, boards, plates, state.paid), walked + 1)


def _put(kitchen: Kitchen, state: State, act: Act) -> Change:
    walked, at = _walk(kitchen, state, act.target)
    boards, plates, paid, reached = state.boards, state.plates, state.paid, 0
    if act.target in BOARDS:
        boards = _with(boards, act.target - BOARDS[0], act.part)
    elif act.target in PLATES:
        plate = act.target - PLATES[0]
        plates = _with(plates, plate, plates[plate] | 1 << act.part)
        paid, reached = _pay(kitchen, paid, act.part, laid=True)
    return Change(State(at, -1, boards, plates, paid), walked + 1, reached)


def _pay(kitchen: Kitchen, paid: int, part: int, *, laid: bool) -> tuple[int, int]:
    """The subtasks reached after a part was chopped or laid on a plate, and how many of them are new."""
    if part not in kitchen.order:
        return paid, 0
    after = paid | 1 << 2 * kitchen.order.index(part) + laid
    return after, int(after != paid)


def _clear(kitchen: Kitchen, state: State, plate: int) -> Change:
    """Throw away all that lies on a plate and bring it back."""
    there, at = _walk(kitchen, state, plate)
    onward = kitchen.ways[at][kitchen.cells[BIN]]
    plates = _with(state.plates, plate - PLATES[0], 0)
    return Change(state._replace(at=at, plates=plates), there + 2 * onward + 2)


def _deliver(kitchen: Kitchen, state: State, plate: int) -> Change:
    """Carry a plate to the hatch. A wrong one comes back as it was."""
    there, at = _walk(kitchen, state, plate)
    onward = kitchen.ways[at][kitchen.cells[HATCH]]
    right = state.plates[plate - PLATES[0]] == kitchen.wanted
    return Change(state._replace(at=kitchen.cells[HATCH]), there + onward + 2, delivered=right)


def moves(kitchen: Kitchen, state: State) -> Iterator[Act]:
    """What can be done with whole commands: move from place to place, chop, deliver."""
    for part, place in _lying(kitchen, state):
        for target in (*BOARDS, *PLATES, BIN):
            act = Act("move", part, place, target)
            if not refusal(kitchen, state, act) and not (place in SHELVES and target == BIN):
                yield act
    for place, part in zip(BOARDS, state.boards, strict=True):
        if part >= 0 and not part & 1:
            yield Act("chop", part, place)
    yield from (Act("deliver", -1, place) for place, mask in zip(PLATES, state.plates, strict=True) if mask)


def acts(kitchen: Kitchen, state: State) -> Iterator[Act]:
    """What can be done with single commands: take, put, chop, clear a plate, deliver one."""
    if state.held >= 0:
        targets = (*BOARDS, *PLATES, BIN)
        yield from (Act("put", state.held, -1, to) for to in targets if takes(state, to, state.held))
        return
    for part in sorted({part for part, place in _lying(kitchen, state) if place not in PLATES}):
        yield Act("take", part, nearest(kitchen, state, part))
    for part in sorted({part for part in state.boards if part >= 0 and not part & 1}):
        yield Act("chop", part, nearest(kitchen, state, part, among=BOARDS))
    for place, mask in zip(PLATES, state.plates, strict=True):
        if mask:
            yield Act("clear", -1, place)
            yield Act("deliver", -1, place)


def nearest(kitchen: Kitchen, state: State, part: int, *, among: Sequence[int] = (*SHELVES, *BOARDS)) -> int:
    """The nearest of these places where a part lies, -1 if it lies in none; of equally near ones the first."""
    found = [place for place in among if holds(kitchen, state, place, part=part)]
    return min(found, key=lambda place: kitchen.ways[state.at][kitchen.cells[place]], default=-1)


def _lying(kitchen: Kitchen, state: State) -> Iterator[tuple[int, int]]:
    """Every (part, place) that something can be taken from."""
    for place, parts in enumerate(kitchen.shelves):
        yield from ((part, place) for part in parts)
    for place, part in zip(BOARDS, state.boards, strict=True):
        if part >= 0:
            yield part, place
    for place, mask in zip(PLATES, state.plates, strict=True):
        yield from ((part, place) for part in range(mask.bit_length()) if mask >> part & 1)
