"""The calculator. It has no state; results are numbers, refusals are sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse, to_integer

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


def _are_numbers(*values: Json) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


def _apply_to_list(numbers: Any, compute: Callable[[list[float]], float]) -> Json:
    """Computes a number from a list of numbers, or the refusal of an invalid list."""
    if not numbers:
        return refuse(_EMPTY)
    if not isinstance(numbers, list) or not _are_numbers(*numbers):
        return refuse(_NOT_NUMBERS)
    return {"result": compute(numbers)}


def _apply_to_pair(first: Json, second: Json, compute: Callable[[Any, Any], float]) -> Json:
    """Computes a number from two numbers."""
    return {"result": compute(first, second)} if _are_numbers(first, second) else refuse(_NOT_NUMBERS)


def _make_context(precision: Json) -> Context:
    digits = to_integer(precision)
    if digits is None or not 1 <= digits <= _DIGITS:
        raise InvalidAction(f"a precision of {precision!r} digits is not possible")
    return Context(prec=digits)


def _round_to_bits(value: Fraction, bits: int) -> Fraction:
    """Returns the nearest binary number with `bits` bits."""
    if not value:
        return value
    shift = bits - (abs(value.numerator).bit_length() - value.denominator.bit_length())
    scale = Fraction(2) ** shift
    while abs(value * scale) >= 2**bits:
        scale /= 2
    return round(value * scale) / scale


def _power(base: Any, exponent: Any) -> Any:
    """Computes the power; raises InvalidAction where it has too many digits."""
    integers = isinstance(base, int) and isinstance(exponent, int)
    if integers and abs(base) > 1 and exponent * math.log10(abs(base)) > _DIGITS:
        raise InvalidAction(f"{base} to the power of {exponent} is too large")
    return base**exponent


class Maths(Api):
    """`MathAPI`. The logarithm and the square root are given as floats, to as many digits as asked for."""

    wire = "MathAPI"
    document = "math_api.json"

    def _logarithm(self, value: Any, base: Any, precision: Any) -> Json:
        context = _make_context(precision)
        if not _are_numbers(value, base) or value <= 0 or base <= 0 or base == 1:
            return refuse(f"there is no logarithm of {value!r} to the base {base!r}")
        # A gold answer copies such a number digit by digit, so the steps are those of the data set's arithmetic: both
        # logarithms and their quotient are rounded to the bits of the precision, and three digits more are shown.
        wide_context = Context(prec=context.prec + 20)
        bits = max(1, round((context.prec + 1) * math.log2(10)))
        first, second = (_round_to_bits(Fraction(wide_context.ln(Decimal(operand))), bits) for operand in (value, base))
        quotient = _round_to_bits(first / second, bits)
        display_context = Context(prec=context.prec + 3)
        return {"result": float(display_context.divide(Decimal(quotient.numerator), Decimal(quotient.denominator)))}

    def _square_root(self, number: Any, precision: Any) -> Json:
        context = _make_context(precision)
        if not _are_numbers(number) or number < 0:
            return refuse(f"there is no square root of {number!r}")
        return {"result": float(context.sqrt(Decimal(number)))}

    def _mean(self, numbers: Any) -> Json:
        return _apply_to_list(numbers, lambda operands: sum(operands) / len(operands))

    def _deviation(self, numbers: Any) -> Json:
        def root_mean_square(operands: list[float]) -> float:
            mean = sum(operands) / len(operands)
            return math.sqrt(sum((operand - mean) ** 2 for operand in operands) / len(operands))

        return _apply_to_list(numbers, root_mean_square)

    def _si(self, value: Any, unit_in: Any, unit_out: Any) -> Json:
        if not _are_numbers(value):
            return refuse(_NOT_NUMBERS)
        if unit_in not in _METRES or unit_out not in _METRES:
            return refuse(f"{unit_in} cannot be converted to {unit_out}")
        return {"result": value * _METRES[unit_in] * (1 / _METRES[unit_out])}

    def _imperial(self, value: Any, unit_in: Any, unit_out: Any) -> Json:
        pair = (unit_in, unit_out)
        if not _are_numbers(value):
            return refuse(_NOT_NUMBERS)
        if unit_in == unit_out:
            return {"result": value}
        if pair in _TEMPERATURES:
            return {"result": _TEMPERATURES[pair](value)}
        return (
            {"result": value * _FACTORS[pair]}
            if pair in _FACTORS
            else refuse(f"{unit_in} cannot be converted to {unit_out}")
        )

    def _add(self, a: Any, b: Any) -> Json:
        return _apply_to_pair(a, b, lambda first, second: first + second)

    def _subtract(self, a: Any, b: Any) -> Json:
        return _apply_to_pair(a, b, lambda first, second: first - second)

    def _multiply(self, a: Any, b: Any) -> Json:
        return _apply_to_pair(a, b, lambda first, second: first * second)

    def _divide(self, a: Any, b: Any) -> Json:
        return (
            refuse("nothing can be divided by zero")
            if b == 0
            else _apply_to_pair(a, b, lambda first, second: first / second)
        )

    def _to_the_power(self, base: Any, exponent: Any) -> Json:
        return _apply_to_pair(base, exponent, _power)

    def _absolute(self, number: Any) -> Json:
        return {"result": abs(number)} if _are_numbers(number) else refuse(_NOT_NUMBERS)

    def _round(self, number: Any, decimal_places: Any = 0) -> Json:
        if not _are_numbers(number) or not isinstance(decimal_places, int):
            return refuse("that needs a number, and a whole number of places")
        return {"result": round(number, max(-_DIGITS, min(_DIGITS, decimal_places)))}

    def _percentage(self, part: Any, total: Any) -> Json:
        return (
            refuse("nothing is a part of zero")
            if total == 0
            else _apply_to_pair(part, total, lambda first, second: first / second * 100)
        )

    def _min(self, numbers: Any) -> Json:
        return _apply_to_list(numbers, min)

    def _max(self, numbers: Any) -> Json:
        return _apply_to_list(numbers, max)

    def _sum(self, numbers: Any) -> Json:
        return _apply_to_list(numbers, sum)

    operations = index_by_name(
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
