"""164 small problems in HumanEval's format, made here: prompt, solution, `check(candidate)`.

They have the forms that judges meet: plain equality, tolerance, truth, sets, loops, and helpers of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from textwrap import indent

__all__ = ["COUNT", "Problem", "made"]

COUNT = 164


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, field by field as HumanEval has it."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


Row = tuple[str, str, str, list[str]]  # head, what it says, body, lines of the check


def _shift(k: int, rng: Random) -> Row:
    given = [rng.randrange(-50, 50) for _ in range(4)]
    lines = [f"assert candidate({x}) == {x + k}" for x in given]
    return "shift(x: int) -> int", f"x plus {k}.", f"return x + {k}", lines


def _scale(k: int, rng: Random) -> Row:
    given = [[rng.randrange(9) for _ in range(size)] for size in (0, 3, 5)]
    lines = [f"assert candidate({row}) == {[x * k for x in row]}" for row in given]
    return "scale(row: list) -> list", f"Each element times {k}.", f"return [x * {k} for x in row]", lines


def _mean(k: int, rng: Random) -> Row:
    given = [[rng.randrange(1, 90) for _ in range(k % 5 + 1)] for _ in range(3)]
    lines = [f"assert abs(candidate({row}) - {sum(row) / len(row)}) < 1e-6" for row in given]
    return "mean(row: list) -> float", "The mean of a row that is not empty.", "return sum(row) / len(row)", lines


def _multiple(k: int, rng: Random) -> Row:
    given = [k * rng.randrange(20) + offset for offset in (0, 1, 0, 1)]
    lines = [f"assert {'' if x % k == 0 else 'not '}candidate({x})" for x in given]
    return "multiple(x: int) -> bool", f"Whether x is a multiple of {k}.", f"return x % {k} == 0", lines


def _letters(k: int, rng: Random) -> Row:
    given = ["".join(rng.choice("abcde") for _ in range(k % 9 + 2)) for _ in range(3)]
    lines = [f"assert candidate({text!r}) == { ({c: text.count(c) for c in text}) }" for text in given]
    return (
        "letters(text: str) -> dict",
        "How often each letter occurs.",
        "return {c: text.count(c) for c in text}",
        lines,
    )


def _ends(k: int, rng: Random) -> Row:
    given = [[rng.randrange(99) for _ in range(k % 4 + 1)] for _ in range(3)]
    lines = [f"assert tuple(candidate({row})) == {(min(row), max(row))}" for row in given]
    return "ends(row: list) -> tuple", "The least and the greatest.", "return min(row), max(row)", lines


def _common(k: int, rng: Random) -> Row:
    pairs = [([rng.randrange(k + 3) for _ in range(5)], [rng.randrange(k + 3) for _ in range(5)]) for _ in range(3)]
    lines = [f"assert set(candidate({a}, {b})) == {set(a) & set(b) or 'set()'}" for a, b in pairs]
    return "common(a: list, b: list) -> list", "What both hold.", "return list(set(a) & set(b))", lines


def _looped(k: int, rng: Random) -> Row:
    lines = [f"for x in range({k + 5}):", f"    assert candidate(x) == sum(range(x)) + {k}"]
    return "below(x: int) -> int", f"The sum of all numbers below x, plus {k}.", f"return x * (x - 1) // 2 + {k}", lines


def _inverse(k: int, rng: Random) -> Row:
    words = ["".join(rng.choice("abcdefghij") for _ in range(6)) for _ in range(3)]
    lines = [f"for word in {words}:", "    assert candidate(encode(word)) == word"]
    return "decode(text: str) -> str", "What was encoded.", f"return ''.join(chr(ord(c) - {k}) for c in text)", lines


_FAMILIES: tuple[Callable[[int, Random], Row], ...] = (
    _shift,
    _scale,
    _mean,
    _multiple,
    _letters,
    _ends,
    _common,
    _looped,
    _inverse,
)


def made(seed: int = 0) -> list[Problem]:
    """The problems: equal seeds make equal ones."""
    found = []
    for number in range(COUNT):
        family, k = _FAMILIES[number % len(_FAMILIES)], number // len(_FAMILIES) + 2
        head, says, body, lines = family(k, Random(seed * COUNT + number))
        before = ""
        if family is _inverse:
            before = f"def encode(text: str) -> str:\n    return ''.join(chr(ord(c) + {k}) for c in text)\n\n\n"
        prompt = f'{before}def {head}:\n    """{says}"""\n'
        test = "def check(candidate):\n" + indent("\n".join(lines), "    ") + "\n"
        found.append(Problem(f"made/{number}", prompt, head.split("(")[0], f"    {body}\n", test))
    return found
