"""Tools that compute: each has its own formula, inputs and request phrases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.trajectory import Json, JsonObject
from evolvent.worlds.functions.slots import Slot, array_slot, choice_slot, integer_slot, number_slot

__all__ = ["FORMULAS", "Formula"]


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
