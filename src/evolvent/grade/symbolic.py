"""Equality of two mathematical expressions by math-verify (extra `math`), and by numbers of fifty digits.

This module is imported only where the extra is installed and a pair of answers needs it; its function runs in a
process that can be killed (`evolvent.workers`). math-verify 0.9 freezes on huge powers, its time limit needs
the main thread, and its comparison is not symmetric: the gold answer comes first.

math-verify folds the case of letters, rounds to six digits and takes a pair for a set. So what it accepts is compared
once more: both expressions are evaluated to fifty digits, their letters replaced by random rational numbers. The
method is Schwartz-Zippel testing: equal expressions agree at every point, different ones at almost none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from evolvent.errors import ScoringError, boundary

__all__ = ["is_same_expression"]

_FORMS = (LatexExtractionConfig(), ExprExtractionConfig())
_CASE = ConversionConfig(lowercase_symbols=False)
_NO_CASE = ConversionConfig(lowercase_symbols=True)
_DIGITS, _TOLERANCE, _NUM_POINTS = 50, sympy.Float(10) ** -30, 4
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?![\d.])")
_MAX_PARTS = 6


def is_same_expression(gold: str, answer: str) -> bool | None:
    """Returns whether an answer equals the gold answer; None where that stays open.

    Open are a gold answer that cannot be parsed as mathematics, and a pair that math-verify accepts and the numbers do
    not confirm, because it has no numbers or because only the case of letters differs.

    Args:
        gold, answer: LaTeX without dollars around it. An answer that cannot be parsed equals nothing.
    """
    parsed_gold = parse(f"${gold}$", _FORMS, parsing_timeout=None)
    if not parsed_gold:
        return None
    parsed_answer = parse(f"${answer}$", _FORMS, parsing_timeout=None)
    is_accepted = bool(parsed_answer) and bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))
    is_equal = _compare_texts(gold, answer, _CASE)
    if is_accepted and is_equal is False and _compare_texts(gold, answer, _NO_CASE):
        letters = set(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", gold)))
        return False if any(letter.swapcase() in letters for letter in letters) else None
    return is_equal if is_accepted or is_equal else False


def _compare_texts(gold: str, answer: str, config: ConversionConfig) -> bool | None:
    try:
        with boundary(ScoringError, "expressions that cannot be compared"):  # The parser and sympy may raise anything.
            return _compare(*(_parse(text, config) for text in (gold, answer)))
    except ScoringError:
        return None


def _parse(text: str, config: ConversionConfig) -> Any:
    exact = _DECIMAL.sub(lambda found: rf"(\frac{{{int(found[1] + found[2])}}}{{{10 ** len(found[2])}}})", text)
    expression = latex2sympy(exact, is_real=False, normalization_config=None, conversion_config=config)
    return expression.subs(sympy.Symbol("i", real=False), sympy.I).subs(sympy.Symbol("i"), sympy.I)


def _compare(gold: Any, answer: Any) -> bool | None:
    """Compares two expressions of sympy, part by part."""
    if isinstance(gold, sympy.MatrixBase) or isinstance(answer, sympy.MatrixBase):
        if not (isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase)):
            return None
        return gold.shape == answer.shape and _compare_lists(list(gold), list(answer))
    for kind in (sympy.Interval, sympy.Union, sympy.FiniteSet, sympy.Tuple):
        if isinstance(gold, kind) and isinstance(answer, kind):
            if isinstance(gold, sympy.Interval):
                are_alike = (gold.left_open, gold.right_open) == (answer.left_open, answer.right_open)
                return are_alike and _compare_lists([gold.start, gold.end], [answer.start, answer.end])
            return (
                _compare_lists(list(gold.args), list(answer.args))
                if kind is sympy.Tuple
                else _compare_unordered(list(gold.args), list(answer.args))
            )
    if isinstance(gold, sympy.core.relational.Relational) or isinstance(answer, sympy.core.relational.Relational):
        return _compare_relations(gold, answer)
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _have_equal_values(gold, answer)
    return True if gold == answer else None


def _compare_lists(gold: Sequence[Any], answer: Sequence[Any]) -> bool | None:
    if len(gold) != len(answer):
        return False
    verdicts = [_compare(left, right) for left, right in zip(gold, answer, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _compare_unordered(gold: Sequence[Any], answer: Sequence[Any]) -> bool | None:
    if len(gold) != len(answer):
        return False
    if len(gold) > _MAX_PARTS:
        return _compare_lists(sorted(gold, key=str), sorted(answer, key=str)) or None
    verdicts = [_compare_lists(gold, order) for order in permutations(answer)]
    return True if True in verdicts else None if None in verdicts else False


def _compare_relations(gold: Any, answer: Any) -> bool | None:
    """Compares equations and inequalities: both sides may be swapped, and multiplied by a number."""
    kinds = (sympy.Eq, sympy.Ne, sympy.core.relational.Relational)
    if not (isinstance(gold, kinds) and isinstance(answer, kinds)):
        return None
    swaps = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
    gold_side, answer_side = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    factor = _constant_ratio(gold_side, answer_side)
    if factor is None or factor == 0:
        return None if factor is None else False
    sign = answer.rel_op if factor > 0 else swaps.get(answer.rel_op, answer.rel_op)
    return bool(gold.rel_op == sign)


def _constant_ratio(gold: Any, answer: Any) -> Any:
    """Returns the number by which one expression is a multiple of the other; 0 for no such number, None if unknown."""
    ratios = [left / right for left, right in _values(gold, answer) if abs(right) > _TOLERANCE]
    if len(ratios) < 2 or not all(ratio.is_real for ratio in ratios):
        return None
    first = ratios[0]
    return first if all(abs(ratio - first) <= _TOLERANCE * abs(first) for ratio in ratios) else 0


def _have_equal_values(gold: Any, answer: Any) -> bool | None:
    """Compares two expressions at random points, relative to their size."""
    if gold in (sympy.oo, -sympy.oo, sympy.zoo) or answer in (sympy.oo, -sympy.oo, sympy.zoo):
        return bool(gold == answer)
    pairs = _values(gold, answer)
    if not pairs:
        return None
    return all(abs(left - right) <= _TOLERANCE * max(abs(left), abs(right)) for left, right in pairs)


def _values(gold: Any, answer: Any) -> list[tuple[Any, Any]]:
    """Evaluates two expressions with the same numbers for their letters, positive and negative ones."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    rng = random.Random(17)
    pairs = []
    for number in range(_NUM_POINTS * 2 if symbols else 1):
        point = {
            symbol: sympy.Rational(rng.randrange(1, 10_000), 3_571) * (-1 if number % 2 and rng.random() < 0.8 else 1)
            for symbol in symbols
        }
        values = [sympy.N(expression.subs(point), _DIGITS, maxn=2_000) for expression in (gold, answer)]
        if all(value.is_number and value.is_finite for value in values):
            pairs.append((values[0], values[1]))
    return pairs if len(pairs) >= (_NUM_POINTS if symbols else 1) else []
