"""Operations on things: their phrases, and their effects on the rows of a state.

An operation returns the next state and its result; it changes nothing in place. Each verb belongs to one
operation, so a request that names a thing and a verb fits a single tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.functions.domains import DAYS, PEOPLE, Thing
from evolvent.worlds.functions.slots import Slot, array_slot, choice_slot, integer_slot, object_slot, text_slot
from evolvent.worlds.functions.states import NUMBERS, Row, State

__all__ = ["NUMBER", "OPERATIONS", "Effect", "Operation"]

Effect = Callable[[State, Thing, Mapping[str, object]], tuple[State, Json]]

NUMBER = integer_slot("number : number of the {}", "with number {} | number {}", NUMBERS)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on a thing.

    Args:
        about: the description, with `{a}` (a hotel) and `{s}` (hotels).
        heads: openings of a request, with `{a}`, `{s}`, or `{the}` for a thing that the number names.
        slots_of: returns the slots of the tool for a thing; an attribute's description may have `{}` for the noun.
        effect: computes the next state and the result.
        needs_number: whether it acts on one row that a number names.
    """

    about: str
    heads: tuple[str, ...]
    slots_of: Callable[[Thing], tuple[Slot, ...]]
    effect: Effect
    needs_number: bool = False


def _attribute_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return thing_type.slots


def _first_attribute(thing_type: Thing) -> tuple[Slot, ...]:
    """Returns the attribute by which things are counted."""
    return thing_type.slots[:1]


def _ranking_slots(thing_type: Thing) -> tuple[Slot, ...]:
    names = " ".join(slot.name for slot in thing_type.slots)
    limit_slot = integer_slot("most : how many at most", "but at most {} | no more than {}", range(2, 10))
    return choice_slot("by : what to sort by", "sorted by {} | ordered by {}", names), limit_slot.with_default(5)


def _update_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return NUMBER, object_slot("changes : what to change", "to be {} | so that it is {}", *thing_type.slots)


def _move_slots(thing_type: Thing) -> tuple[Slot, ...]:
    day_slot = text_slot("day : the new day", "to {} | over to {}", DAYS)
    return (
        NUMBER,
        day_slot,
        integer_slot("hour : hour of the day", "at {} o'clock | at hour {}", range(24)).with_default(12),
    )


def _comparison_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return (array_slot("numbers : numbers of the {s}", "with numbers {} | numbered {}", NUMBERS),)


def _rating_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return NUMBER, integer_slot("stars : one to five stars", "with {} stars | at {} stars", range(1, 6))


def _sharing_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return NUMBER, array_slot("people : who gets to see it", "with {} | among {}", PEOPLE)


def _assignment_slots(thing_type: Thing) -> tuple[Slot, ...]:
    return NUMBER, text_slot("person : who takes care of it", "to {} | over to {}", PEOPLE)


def _number_slot(thing_type: Thing) -> tuple[Slot, ...]:
    return (NUMBER,)


# ---------------------------------------------------------------------- what they do


def _replace_row(state: State, thing_type: Thing, row: Row, changes: Row) -> tuple[State, Json]:
    new_row = {**row, **changes}
    return state.with_rows(
        thing_type.noun,
        tuple(new_row if existing_row is row else existing_row for existing_row in state.rows(thing_type.noun)),
    ), dict(new_row)


def _find_matching_rows(state: State, thing_type: Thing, attributes: Row) -> list[Row]:
    return [row for row in state.rows(thing_type.noun) if all(row[name] == value for name, value in attributes.items())]


def _find(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    matching_rows = _find_matching_rows(state, thing_type, arguments)
    if not matching_rows:
        raise InvalidAction(f"there is no such {thing_type.noun}", value=dict(arguments), expected="attributes of one")
    return state, dict(matching_rows[0])


def _create(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    rows = state.rows(thing_type.noun)
    used_numbers = {row["number"] for row in rows}
    start = NUMBERS.index(rows[-1]["number"]) + 1 if rows else 0
    number = next(
        (candidate for candidate in (*NUMBERS[start:], *NUMBERS[:start]) if candidate not in used_numbers), None
    )
    if number is None:
        raise InvalidAction(
            f"there is no number left for another {thing_type.noun}", value=len(used_numbers), expected="fewer"
        )
    row = {"number": number, **arguments}
    return state.with_rows(thing_type.noun, (*rows, row)), row


def _count(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    return state, len(_find_matching_rows(state, thing_type, arguments))


def _rank(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    rows = sorted(state.rows(thing_type.noun), key=lambda row: (str(row[arguments["by"]]), str(row["number"])))
    return state, [row["number"] for row in rows[: arguments["most"]]]


def _delete(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    deleted_row = state.row(thing_type.noun, arguments["number"])
    return state.with_rows(
        thing_type.noun, tuple(row for row in state.rows(thing_type.noun) if row is not deleted_row)
    ), dict(deleted_row)


def _show(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    return state, dict(state.row(thing_type.noun, arguments["number"]))


def _set_attributes(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    row = state.row(thing_type.noun, arguments["number"])
    return _replace_row(state, thing_type, row, {name: value for name, value in arguments.items() if name != "number"})


def _update(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    return _replace_row(state, thing_type, state.row(thing_type.noun, arguments["number"]), arguments["changes"])


def _compare(state: State, thing_type: Thing, arguments: Mapping[str, Any]) -> tuple[State, Json]:
    rows = [state.row(thing_type.noun, number) for number in arguments["numbers"]]
    return state, {slot.name: [row[slot.name] for row in rows] for slot in thing_type.slots}


OPERATIONS: Mapping[str, Operation] = {
    "find": Operation("search for {a}", ("find {a}", "look for {a}", "search {a}"), _attribute_slots, _find),
    "book": Operation("reserve {a}", ("book {a}", "reserve {a}"), _attribute_slots, _create),
    "order": Operation("buy {a}", ("order {a}", "buy {a}"), _attribute_slots, _create),
    "plan": Operation("arrange {a}", ("plan {a}", "arrange {a}", "set up {a}"), _attribute_slots, _create),
    "add": Operation("enter a new {n}", ("add {a}", "enter {a}", "create {a}"), _attribute_slots, _create),
    "count": Operation(
        "tell how many {s} there are", ("count the {s}", "tell me how many {s} there are"), _first_attribute, _count
    ),
    "rank": Operation("list the {s} in order", ("list the {s}", "rank the {s}"), _ranking_slots, _rank),
    "cancel": Operation("call off {a}", ("cancel {the}", "call off {the}"), _number_slot, _delete, needs_number=True),
    "delete": Operation("remove {a}", ("delete {the}", "remove {the}"), _number_slot, _delete, needs_number=True),
    "show": Operation("tell all about {a}", ("show {the}", "describe {the}"), _number_slot, _show, needs_number=True),
    "rate": Operation("grade {a}", ("rate {the}", "grade {the}"), _rating_slots, _set_attributes, needs_number=True),
    "share": Operation(
        "let others see {a}", ("share {the}", "spread {the}"), _sharing_slots, _set_attributes, needs_number=True
    ),
    "update": Operation("change {a}", ("update {the}", "change {the}"), _update_slots, _update, needs_number=True),
    "move": Operation("put off {a}", ("move {the}", "put off {the}"), _move_slots, _set_attributes, needs_number=True),
    "assign": Operation(
        "hand over {a}",
        ("assign {the}", "hand {the}", "give {the}"),
        _assignment_slots,
        _set_attributes,
        needs_number=True,
    ),
    "compare": Operation(
        "compare {s} with each other", ("compare the {s}", "weigh the {s}"), _comparison_slots, _compare
    ),
}
