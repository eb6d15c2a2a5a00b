"""What can be done with a thing: the operations, how they are said, and what they do to the rows of a state.

An operation returns the state after it and its result; it changes nothing in place. Verbs belong to one operation each,
so a request that names a thing and a verb fits one tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.functions.domains import DAYS, PEOPLE, Thing
from evolvent.worlds.functions.slots import Slot, choice, group, several, text, whole
from evolvent.worlds.functions.states import NUMBERS, Row, State

__all__ = ["NUMBER", "OPERATIONS", "Effect", "Operation"]

Effect = Callable[[State, Thing, Mapping[str, Any]], tuple[State, Json]]

NUMBER = whole("number : number of the {}", "with number {} | number {}", NUMBERS)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on a thing.

    Args:
        about: the description, with `{a}` (a hotel) and `{s}` (hotels).
        heads: how it is asked for, with `{a}`, `{s}`, or `{the}` for a thing that the number names.
        takes: the slots of the tool that does it with a thing; an attribute's description may have `{}` for the noun.
        effect: what it does.
        numbered: whether it is about one row that a number names.
    """

    about: str
    heads: tuple[str, ...]
    takes: Callable[[Thing], tuple[Slot, ...]]
    effect: Effect
    numbered: bool = False


def _attributes(thing: Thing) -> tuple[Slot, ...]:
    return thing.slots


def _first(thing: Thing) -> tuple[Slot, ...]:
    """What is counted by: one attribute."""
    return thing.slots[:1]


def _sorted_by(thing: Thing) -> tuple[Slot, ...]:
    names = " ".join(slot.name for slot in thing.slots)
    most = whole("most : how many at most", "but at most {} | no more than {}", range(2, 10))
    return choice("by : what to sort by", "sorted by {} | ordered by {}", names), most.with_default(5)


def _changed(thing: Thing) -> tuple[Slot, ...]:
    return NUMBER, group("changes : what to change", "to be {} | so that it is {}", *thing.slots)


def _postponed(thing: Thing) -> tuple[Slot, ...]:
    to = text("day : the new day", "to {} | over to {}", DAYS)
    return NUMBER, to, whole("hour : hour of the day", "at {} o'clock | at hour {}", range(24)).with_default(12)


def _compared(thing: Thing) -> tuple[Slot, ...]:
    return (several("numbers : numbers of the {s}", "with numbers {} | numbered {}", NUMBERS),)


def _rated(thing: Thing) -> tuple[Slot, ...]:
    return NUMBER, whole("stars : one to five stars", "with {} stars | at {} stars", range(1, 6))


def _shared(thing: Thing) -> tuple[Slot, ...]:
    return NUMBER, several("people : who gets to see it", "with {} | among {}", PEOPLE)


def _given(thing: Thing) -> tuple[Slot, ...]:
    return NUMBER, text("person : who takes care of it", "to {} | over to {}", PEOPLE)


def _number(thing: Thing) -> tuple[Slot, ...]:
    return (NUMBER,)


# ---------------------------------------------------------------------- what they do


def _replaced(state: State, thing: Thing, row: Row, changes: Row) -> tuple[State, Json]:
    new = {**row, **changes}
    return state.with_rows(thing.noun, tuple(new if old is row else old for old in state.rows(thing.noun))), dict(new)


def _matching(state: State, thing: Thing, given: Row) -> list[Row]:
    return [row for row in state.rows(thing.noun) if all(row[name] == value for name, value in given.items())]


def _find(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    found = _matching(state, thing, given)
    if not found:
        raise InvalidAction(f"there is no such {thing.noun}", value=dict(given), expected="attributes of one")
    return state, dict(found[0])


def _create(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    rows = state.rows(thing.noun)
    taken = {row["number"] for row in rows}
    last = NUMBERS.index(rows[-1]["number"]) + 1 if rows else 0
    number = next((n for n in (*NUMBERS[last:], *NUMBERS[:last]) if n not in taken), None)
    if number is None:
        raise InvalidAction(f"there is no number left for another {thing.noun}", value=len(taken), expected="fewer")
    row = {"number": number, **given}
    return state.with_rows(thing.noun, (*rows, row)), row


def _count(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    return state, len(_matching(state, thing, given))


def _rank(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    rows = sorted(state.rows(thing.noun), key=lambda row: (str(row[given["by"]]), str(row["number"])))
    return state, [row["number"] for row in rows[: given["most"]]]


def _delete(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    gone = state.row(thing.noun, given["number"])
    return state.with_rows(thing.noun, tuple(row for row in state.rows(thing.noun) if row is not gone)), dict(gone)


def _show(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    return state, dict(state.row(thing.noun, given["number"]))


def _note(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    row = state.row(thing.noun, given["number"])
    return _replaced(state, thing, row, {name: value for name, value in given.items() if name != "number"})


def _update(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    return _replaced(state, thing, state.row(thing.noun, given["number"]), given["changes"])


def _compare(state: State, thing: Thing, given: Mapping[str, Any]) -> tuple[State, Json]:
    rows = [state.row(thing.noun, number) for number in given["numbers"]]
    return state, {slot.name: [row[slot.name] for row in rows] for slot in thing.slots}


OPERATIONS: Mapping[str, Operation] = {
    "find": Operation("search for {a}", ("find {a}", "look for {a}", "search {a}"), _attributes, _find),
    "book": Operation("reserve {a}", ("book {a}", "reserve {a}"), _attributes, _create),
    "order": Operation("buy {a}", ("order {a}", "buy {a}"), _attributes, _create),
    "plan": Operation("arrange {a}", ("plan {a}", "arrange {a}", "set up {a}"), _attributes, _create),
    "add": Operation("enter a new {n}", ("add {a}", "enter {a}", "create {a}"), _attributes, _create),
    "count": Operation(
        "tell how many {s} there are", ("count the {s}", "tell me how many {s} there are"), _first, _count
    ),
    "rank": Operation("list the {s} in order", ("list the {s}", "rank the {s}"), _sorted_by, _rank),
    "cancel": Operation("call off {a}", ("cancel {the}", "call off {the}"), _number, _delete, numbered=True),
    "delete": Operation("remove {a}", ("delete {the}", "remove {the}"), _number, _delete, numbered=True),
    "show": Operation("tell all about {a}", ("show {the}", "describe {the}"), _number, _show, numbered=True),
    "rate": Operation("grade {a}", ("rate {the}", "grade {the}"), _rated, _note, numbered=True),
    "share": Operation("let others see {a}", ("share {the}", "spread {the}"), _shared, _note, numbered=True),
    "update": Operation("change {a}", ("update {the}", "change {the}"), _changed, _update, numbered=True),
    "move": Operation("put off {a}", ("move {the}", "put off {the}"), _postponed, _note, numbered=True),
    "assign": Operation("hand over {a}", ("assign {the}", "hand {the}", "give {the}"), _given, _note, numbered=True),
    "compare": Operation("compare {s} with each other", ("compare the {s}", "weigh the {s}"), _compared, _compare),
}
