"""Catalogue of tools: each with its phrases, its split, and the effect of a call on a state.

Splits go by tool. Of the six tools of a thing two are held out: one whose request describes the thing, and one
that needs a number. Things alternate in giving them to dev and to test, and the verbs rotate, so that training
contains all verbs and all nouns of held-out tools, but never together. The domains of `UNSEEN` are held out
entirely.

Tools that compute: each has its own formula, inputs and request phrases.

Operations on things: their phrases, and their effects on the rows of a state.

An operation returns the next state and its result; it changes nothing in place. Each verb belongs to one
operation, so a request that names a thing and a verb fits a single tool.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from evolvent.errors import InvalidAction, find_nearest
from evolvent.messages import Call, Tool
from evolvent.schemas import find_argument_faults
from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.functions.domains import DAYS, DOMAINS, PEOPLE, Thing
from evolvent.worlds.functions.slots import (
    Slot,
    array_slot,
    choice_slot,
    integer_slot,
    number_slot,
    object_slot,
    text_slot,
)
from evolvent.worlds.functions.states import NUMBERS, Row, State, things_by_noun

__all__ = [
    "FORMULAS",
    "NUMBER",
    "OPERATIONS",
    "UNSEEN",
    "Effect",
    "Entry",
    "Formula",
    "Operation",
    "catalogue",
    "run_call",
    "select_entries",
]


Effect = Callable[[State, Thing, JsonObject], tuple[State, Json]]

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


@dataclass(frozen=True, slots=True)
class Formula:
    """A computation.

    Args:
        domain: maths, health or units.
        about: the description.
        heads: openings of a request; no two formulas share one.
        slots: its inputs.
        compute: computes the result of given inputs; a fraction is rounded to three decimals.
    """

    domain: str
    about: str
    heads: tuple[str, ...]
    slots: tuple[Slot, ...]
    compute: Callable[[JsonObject], Json]


RADIUS = number_slot("radius : the radius", "with radius {} | of radius {}", range(1, 20))
WIDTH = number_slot("width : how wide it is", "with width {} | {} wide", range(1, 20))
LENGTH = number_slot("length : how long it is", "with length {} | {} long", range(1, 20))
DEPTH = number_slot("depth : how deep it is", "with depth {} | {} deep", range(1, 20))
VALUES = array_slot("values : the numbers", "of {} | for {}", tuple(range(2, 60)))
FIRST = integer_slot("first : the first number", "of {} | for {}", range(2, 61))
SECOND = integer_slot("second : the second number", "with {} | against {}", range(2, 61))
PERCENT = integer_slot("percent : share in percent", "at {} percent | with {} percent", range(1, 31))
SUM = number_slot("sum : sum of money", "on {} | for a sum of {}", range(10, 60))
YEARS = integer_slot("years : number of years", "over {} years | in {} years", range(2, 31))
MASS = number_slot("weight : weight in kilos", "weighing {} kilos | of {} kilos", range(40, 99))
STATURE = integer_slot("height : height in centimetres", "with {} centimetres | {} centimetres tall", range(60, 100))
AGE = integer_slot("age : age in years", "aged {} | {} years old", range(18, 91))
PLACES = integer_slot("digits : digits after the point", "to {} digits | with {} digits", range(1, 4)).with_default(2)


def _make_converter(factors: Mapping[str, float]) -> Callable[[Mapping[str, Any]], Json]:
    return lambda given: given["value"] * factors[given["source"]] / factors[given["target"]]


def _unit_slots(names: str) -> tuple[Slot, ...]:
    return (
        number_slot("value : the quantity", "of {} | for {}", range(1, 60)),
        choice_slot("source : unit that it is in", "from {} | given in {}", names),
        choice_slot("target : unit that is wanted", "to {} | as {}", names),
    )


LENGTHS = {"metres": 1.0, "miles": 1609.344, "yards": 0.9144, "inches": 0.0254}
MASSES = {"kilos": 1.0, "pounds": 0.45359237, "ounces": 0.028349523125, "tons": 1000.0}
TIMES = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
VOLUMES = {"litres": 1.0, "gallons": 3.785411784, "pints": 0.473176473, "cups": 0.2365882365}

FORMULAS: Mapping[str, Formula] = {
    "circle_area": Formula(
        "maths",
        "area of a circle",
        ("get the area of a circle", "measure the area of a circle"),
        (RADIUS, PLACES),
        lambda g: round(math.pi * g["radius"] ** 2, g["digits"]),
    ),
    "circle_rim": Formula(
        "maths",
        "length around a circle",
        ("get the length around a circle",),
        (RADIUS, PLACES),
        lambda g: round(2 * math.pi * g["radius"], g["digits"]),
    ),
    "box_volume": Formula(
        "maths",
        "volume of a box",
        ("get the volume of a box", "measure the volume of a box"),
        (WIDTH, LENGTH, DEPTH),
        lambda g: g["width"] * g["length"] * g["depth"],
    ),
    "floor_area": Formula(
        "maths",
        "area of a floor",
        ("get the area of a floor", "measure the area of a floor"),
        (WIDTH, LENGTH),
        lambda g: g["width"] * g["length"],
    ),
    "mean_value": Formula(
        "maths",
        "mean of numbers",
        ("get the mean", "work out the mean"),
        (VALUES,),
        lambda g: statistics.fmean(g["values"]),
    ),
    "total_value": Formula(
        "maths", "total of numbers", ("get the total", "work out the total"), (VALUES,), lambda g: sum(g["values"])
    ),
    "largest_value": Formula(
        "maths",
        "largest of numbers",
        ("get the largest", "work out the largest"),
        (VALUES,),
        lambda g: max(g["values"]),
    ),
    "common_divisor": Formula(
        "maths",
        "largest common divisor",
        ("get the common divisor",),
        (FIRST, SECOND),
        lambda g: math.gcd(g["first"], g["second"]),
    ),
    "interest_total": Formula(
        "maths",
        "money with interest",
        ("get the interest", "work out the interest"),
        (SUM, PERCENT, YEARS),
        lambda g: g["sum"] * (1 + g["percent"] / 100) ** g["years"],
    ),
    "tip_amount": Formula(
        "maths",
        "tip on a bill",
        ("get the tip", "work out the tip"),
        (SUM, PERCENT),
        lambda g: g["sum"] * g["percent"] / 100,
    ),
    "mass_index": Formula(
        "health",
        "body mass index",
        ("get the mass index", "work out the mass index"),
        (MASS, STATURE),
        lambda g: g["weight"] / (g["height"] / 100) ** 2,
    ),
    "water_need": Formula(
        "health",
        "water that a body needs",
        ("get the water need", "work out the water need"),
        (MASS, choice_slot("season : time of the year", "in {} | during {}", "summer winter spring")),
        lambda g: 0.033 * g["weight"] * (1.2 if g["season"] == "summer" else 1.0),
    ),
    "pulse_limit": Formula(
        "health",
        "highest pulse at an age",
        ("get the pulse limit", "work out the pulse limit"),
        (AGE,),
        lambda g: 220 - g["age"],
    ),
    "energy_need": Formula(
        "health",
        "energy that a body needs",
        ("get the energy need", "work out the energy need"),
        (MASS, STATURE, AGE),
        lambda g: 10 * g["weight"] + 6.25 * g["height"] - 5 * g["age"],
    ),
    "length_change": Formula(
        "units",
        "convert a length",
        ("convert a length", "express a length"),
        _unit_slots("metres miles yards inches"),
        _make_converter(LENGTHS),
    ),
    "mass_change": Formula(
        "units",
        "convert a mass",
        ("convert a mass", "express a mass"),
        _unit_slots("kilos pounds ounces tons"),
        _make_converter(MASSES),
    ),
    "time_change": Formula(
        "units",
        "convert a time",
        ("convert a time", "express a time"),
        _unit_slots("seconds minutes hours days"),
        _make_converter(TIMES),
    ),
    "volume_change": Formula(
        "units",
        "convert a volume",
        ("convert a volume", "express a volume"),
        _unit_slots("litres gallons pints cups"),
        _make_converter(VOLUMES),
    ),
}


UNSEEN: Mapping[str, str] = MappingProxyType({"farming": "dev", "museum": "test", "space": "test"})
"""Domains of which no tool is in training, and the split that they belong to."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tool and the phrases that request it.

    Args:
        tool: the offered tool; its name is verb and noun.
        domain, verb, noun: of a formula the verb is its name, and the noun is "".
        heads: openings of a request for the tool; no two tools share one.
        follow_up_heads: openings about the thing of the conversation; empty where the tool needs no number.
        slots: its parameters, in the order of the schema.
        split: "train", "dev" or "test".
    """

    tool: Tool
    domain: str
    verb: str
    noun: str
    heads: tuple[str, ...]
    follow_up_heads: tuple[str, ...]
    slots: tuple[Slot, ...]
    split: str

    @property
    def is_unseen(self) -> bool:
        """Returns whether training has no tool of this domain."""
        return self.domain in UNSEEN

    @property
    def starts_conversation(self) -> bool:
        """Returns whether the result is a numbered thing that the next request can be about."""
        return self.verb in ("find", "book", "order", "plan", "add")


@cache
def catalogue() -> Mapping[str, Entry]:
    """Builds the mapping of all tools by name, in a fixed order."""
    all_entries = [*_thing_entries(), *_formula_entries()]
    return MappingProxyType({entry.tool.name: entry for entry in all_entries})


@cache
def select_entries(split: str, *, is_unseen: bool) -> tuple[Entry, ...]:
    """Selects the tools of a split: those of the domains in training, or those of unseen domains."""
    return tuple(entry for entry in catalogue().values() if (entry.split, entry.is_unseen) == (split, is_unseen))


def _thing_entries() -> Iterator[Entry]:
    turn = 0
    for domain_index, (name, domain) in enumerate(DOMAINS.items()):
        for thing_type in domain.thing_types:
            held_out_verbs = (
                domain.starts[(turn // 2 + domain_index) % 3],
                domain.follows[(turn // 2 + domain_index // 2) % 3],
            )
            for verb in (*domain.starts, *domain.follows):
                split = (
                    UNSEEN.get(name) or ("test", "dev")[turn % 2]
                    if name in UNSEEN or verb in held_out_verbs
                    else "train"
                )
                yield _build_entry(name, thing_type, verb, split=split)
            turn += name not in UNSEEN


def _build_entry(domain: str, thing_type: Thing, verb: str, *, split: str) -> Entry:
    operation, article = OPERATIONS[verb], "an" if thing_type.noun[0] in "aeiou" else "a"
    placeholders = {"a": f"{article} {thing_type.noun}", "s": thing_type.plural, "n": thing_type.noun}
    slots = tuple(
        replace(slot, about=slot.about.format(thing_type.noun, **placeholders)) if "{" in slot.about else slot
        for slot in operation.slots_of(thing_type)
    )
    heads = tuple(head.format(the=f"the {thing_type.noun}", **placeholders) for head in operation.heads)
    follow_up_heads = tuple(
        head.format(the=f"that {thing_type.noun}", **placeholders) for head in operation.heads if operation.needs_number
    )
    tool = Tool(f"{verb}_{thing_type.noun}", operation.about.format(**placeholders), _build_schema(slots))
    return Entry(tool, domain, verb, thing_type.noun, heads, follow_up_heads, slots, split)


def _formula_entries() -> Iterator[Entry]:
    for index, (name, formula) in enumerate(FORMULAS.items()):
        split = {1: "dev", 4: "test"}.get(index % 6, "train")
        tool = Tool(name, formula.about, _build_schema(formula.slots))
        yield Entry(tool, formula.domain, name, "", formula.heads, (), formula.slots, split)


def _build_schema(slots: tuple[Slot, ...]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": {slot.name: slot.schema() for slot in slots},
        "required": [slot.name for slot in slots if not slot.optional],
        "additionalProperties": False,
    }


# ---------------------------------------------------------------------- calls


def run_call(call: Call, state: State) -> tuple[State, Json]:
    """Runs a call and returns the next state and the result (JSON values). The given state does not change.

    Raises:
        InvalidAction: the tool is unknown, its schema refuses the arguments, or a row does not exist.
    """
    entry = catalogue().get(call.name)
    if entry is None:
        nearest_name = find_nearest(call.name, catalogue())
        raise InvalidAction(
            "an unknown tool",
            value=call.name,
            expected="a tool of the catalogue",
            hint=f"did you mean {nearest_name!r}?" if nearest_name else None,
        )
    schema_faults = find_argument_faults(call.arguments, entry.tool.parameters)
    if schema_faults:
        raise InvalidAction(
            f"arguments that {call.name!r} refuses", value="; ".join(schema_faults), expected="its schema"
        )
    arguments = {slot.name: slot.default for slot in entry.slots if slot.optional} | dict(call.arguments)
    if not entry.noun:
        value = FORMULAS[entry.verb].compute(arguments)
        return state, round(value, 3) if isinstance(value, float) else value
    return OPERATIONS[entry.verb].effect(state, things_by_noun()[entry.noun], arguments)
