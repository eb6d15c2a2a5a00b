"""The calculator. It has no state; results are numbers, refusals are sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, operation, refusal, table, whole

__all__ = ["Maths"]

_DIGITS = 1000  # of precision, and of a power's result: more is no question but a way to keep a process busy
_METRES = {"km": 1000, "m": 1, "cm": 0.01, "mm": 0.001, "um": 1e-6, "nm": 1e-9}
_FACTORS = {
    ("cm", "in"): 0.393701,
    ("in", "cm"): 2.54,
    ("m", "ft"): 3.28084,
    ("ft", "m"): 0.3048,
    ("m", "yd"): 1.09361,
    ("yd", "m"): 0.9144,
    ("km", "miles"): 0.621371,
    ("miles", "km"): 1.60934,
    ("kg", "lb"): 2.20462,
    ("lb", "kg"): 0.453592,
}
_TEMPERATURES: dict[tuple[str, str], Callable[[float], float]] = {
    ("celsius", "fahrenheit"): lambda value: value * 1.8 + 32,
    ("fahrenheit", "celsius"): lambda value: (value - 32) * (5 / 9),
}
_NOT_NUMBERS = "that needs numbers"
_EMPTY = "there is nothing in the list"


def _number(*values: Json) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _of(numbers: Any, compute: Callable[[list[float]], float]) -> Json:
    """A number from a list of numbers, or the refusal of a list that is none."""
    if not numbers:
        return refusal(_EMPTY)
    if not isinstance(numbers, list) or not _number(*numbers):
        return refusal(_NOT_NUMBERS)
    return {"result": compute(numbers)}


def _two(first: Json, second: Json, compute: Callable[[Any, Any], float]) -> Json:
    """A number from two numbers."""
    return {"result": compute(first, second)} if _number(first, second) else refusal(_NOT_NUMBERS)


def _context(precision: Json) -> Context:
    digits = whole(precision)
    if digits is None or not 1 <= digits <= _DIGITS:
        raise InvalidAction(f"a precision of {precision!r} digits is not possible")
    return Context(prec=digits)


def _to_bits(value: Fraction, bits: int) -> Fraction:
    """The nearest binary number of so many bits."""
    if not value:
        return value
    shift = bits - (abs(value.numerator).bit_length() - value.denominator.bit_length())
    scale = Fraction(2) ** shift
    while abs(value * scale) >= 2**bits:
        scale /= 2
    return round(value * scale) / scale


def _power(base: Any, exponent: Any) -> Any:
    """The power; InvalidAction where it has more digits than anybody asks for."""
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and abs(base) > 1 and exponent * math.log10(abs(base)) > _DIGITS:
        raise InvalidAction(f"{base} to the power of {exponent} is too large")
    return base**exponent


class Maths(Api):
    """`MathAPI`. The logarithm and the square root are given as floats, to as many digits as asked for."""

    wire = "MathAPI"
    document = "math_api.json"

    def _logarithm(self, value: Any, base: Any, precision: Any) -> Json:
        context = _context(precision)
        if not _number(value, base) or value <= 0 or base <= 0 or base == 1:
            return refusal(f"there is no logarithm of {value!r} to the base {base!r}")
        # A gold answer copies such a number digit by digit, so the steps are those of the data set's arithmetic: both
        # logarithms and their quotient are rounded to the bits of the precision, and three digits more are shown.
        wide = Context(prec=context.prec + 20)
        bits = max(1, round((context.prec + 1) * math.log2(10)))
        first, second = (_to_bits(Fraction(wide.ln(Decimal(one))), bits) for one in (value, base))
        quotient = _to_bits(first / second, bits)
        shown = Context(prec=context.prec + 3)
        return {"result": float(shown.divide(Decimal(quotient.numerator), Decimal(quotient.denominator)))}

    def _square_root(self, number: Any, precision: Any) -> Json:
        context = _context(precision)
        if not _number(number) or number < 0:
            return refusal(f"there is no square root of {number!r}")
        return {"result": float(context.sqrt(Decimal(number)))}

    def _mean(self, numbers: Any) -> Json:
        return _of(numbers, lambda given: sum(given) / len(given))

    def _deviation(self, numbers: Any) -> Json:
        def root_mean_square(given: list[float]) -> float:
            mean = sum(given) / len(given)
            return math.sqrt(sum((one - mean) ** 2 for one in given) / len(given))

        return _of(numbers, root_mean_square)

    def _si(self, value: Any, unit_in: Any, unit_out: Any) -> Json:
        if not _number(value):
            return refusal(_NOT_NUMBERS)
        if unit_in not in _METRES or unit_out not in _METRES:
            return refusal(f"{unit_in} cannot be converted to {unit_out}")
        return {"result": value * _METRES[unit_in] * (1 / _METRES[unit_out])}

    def _imperial(self, value: Any, unit_in: Any, unit_out: Any) -> Json:
        pair = (unit_in, unit_out)
        if not _number(value):
            return refusal(_NOT_NUMBERS)
        if unit_in == unit_out:
            return {"result": value}
        if pair in _TEMPERATURES:
            return {"result": _TEMPERATURES[pair](value)}
        return (
            {"result": value * _FACTORS[pair]}
            if pair in _FACTORS
            else refusal(f"{unit_in} cannot be converted to {unit_out}")
        )

    def _add(self, a: Any, b: Any) -> Json:
        return _two(a, b, lambda one, other: one + other)

    def _subtract(self, a: Any, b: Any) -> Json:
        return _two(a, b, lambda one, other: one - other)

    def _multiply(self, a: Any, b: Any) -> Json:
        return _two(a, b, lambda one, other: one * other)

    def _divide(self, a: Any, b: Any) -> Json:
        return refusal("nothing can be divided by zero") if b == 0 else _two(a, b, lambda one, other: one / other)

    def _to_the_power(self, base: Any, exponent: Any) -> Json:
        return _two(base, exponent, _power)

    def _absolute(self, number: Any) -> Json:
        return {"result": abs(number)} if _number(number) else refusal(_NOT_NUMBERS)

    def _round(self, number: Any, decimal_places: Any = 0) -> Json:
        if not _number(number) or not isinstance(decimal_places, int):
            return refusal("that needs a number, and a whole number of places")
        return {"result": round(number, max(-_DIGITS, min(_DIGITS, decimal_places)))}

    def _percentage(self, part: Any, whole: Any) -> Json:
        return (
            refusal("nothing is a part of zero")
            if whole == 0
            else _two(part, whole, lambda one, other: one / other * 100)
        )

    def _min(self, numbers: Any) -> Json:
        return _of(numbers, min)

    def _max(self, numbers: Any) -> Json:
        return _of(numbers, max)

    def _sum(self, numbers: Any) -> Json:
        return _of(numbers, sum)

    operations = table(
        operation("absolute_value(number)", _absolute),
        operation("add(a, b)", _add),
        operation("divide(a, b)", _divide),
        operation("imperial_si_conversion(value, unit_in, unit_out)", _imperial),
        operation("logarithm(value, base, precision)", _logarithm),
        operation("max_value(numbers)", _max),
        operation("mean(numbers)", _mean),
        operation("min_value(numbers)", _min),
        operation("multiply(a, b)", _multiply),
        operation("percentage(part, whole)", _percentage),
        operation("power(base, exponent)", _to_the_power),
        operation("round_number(number, decimal_places=)", _round),
        operation("si_unit_conversion(value, unit_in, unit_out)", _si),
        operation("square_root(number, precision)", _square_root),
        operation("standard_deviation(numbers)", _deviation),
        operation("subtract(a, b)", _subtract),
        operation("sum_values(numbers)", _sum),
    )
