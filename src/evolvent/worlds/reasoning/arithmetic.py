"""Arithmetic: compute the result of a number and a chain of operations.

    start with 47 ; add 7 ; halve ; times 3 ; what is it ?  ->  47 + 7 = 54 ; 54 / 2 = 27 ; 27 * 3 = 81 ### 81

All intermediate results are whole numbers from 1 to `top`. The kind of a task is its chain of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question, split_rationale

__all__ = ["OPERATIONS", "Arithmetic"]

OPERATIONS: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {
    "add": ("+", tuple(range(1, 10)), ("add", "+", "plus")),
    "double": ("*", (2,), ("double", "twice")),
    "take": ("-", tuple(range(1, 10)), ("take", "-", "minus")),
    "triple": ("*", (3,), ("triple", "thrice")),
    "times": ("*", (2, 3, 4, 5), ("times", "*")),
    "halve": ("/", (2,), ("halve", "half")),
    "over": ("/", (2, 3, 4, 5), ("over", "/")),
    "third": ("/", (3,), ("third",)),
}
"""Name -> symbol, operands, and the words it is told by. With one operand, that is not told."""

_MIN_RESULTS = 20  # a chain that comes to fewer numbers is guessed too easily
_DEPTH_TWO_SIZES = Sizes(train=400, dev=40, test=100)  # chains of two do not give more


def _apply_operation(symbol: str, x: int, operand: int, top: int) -> int | None:
    """Returns the result if it is a whole number from 1 to `top`, else None."""
    if symbol == "/":
        return x // operand if x % operand == 0 else None
    result = x + operand if symbol == "+" else x - operand if symbol == "-" else x * operand
    return result if 1 <= result <= top else None


@lru_cache(maxsize=1 << 14)
def _find_starts(chain: Chain, top: int) -> tuple[int, ...]:
    """Returns the numbers from which every operation of the chain can be applied."""
    if not chain:
        return tuple(range(1, top + 1))
    symbol, operands, _ = OPERATIONS[chain[0]]
    next_starts = frozenset(_find_starts(chain[1:], top))
    return tuple(
        x
        for x in range(1, top + 1)
        if any(_apply_operation(symbol, x, operand, top) in next_starts for operand in operands)
    )


@lru_cache(maxsize=1 << 14)
def _find_results(chain: Chain, top: int) -> frozenset[int]:
    """Returns the numbers that the complete chain can produce."""
    reachable = set(range(1, top + 1))
    for name in chain:
        symbol, operands, _ = OPERATIONS[name]
        candidates = {_apply_operation(symbol, x, operand, top) for x in reachable for operand in operands}
        reachable = {value for value in candidates if value is not None}
    return frozenset(reachable)


_POOLS: Pools = {name: phrases for name, (_, _, phrases) in OPERATIONS.items()}


class Arithmetic(Generated):
    """The world of chained arithmetic.

    Args:
        depth: operations in the longest training chain, 2 to 16; `longer` has one more. `combo` needs 3.
        top: the largest number, 30 to 200.
        sizes: panel sizes; with depth 2 the panels are smaller by default.
    Raises:
        ConfigError: values out of range, all at once.
    """

    name = "arithmetic"
    instructions = (
        "Work out the chain of operations. Write one equation for each, divided by ';', then '###' and the result. "
        "For example 'start with 4 ; add 3 ; double ; what is it ?' is answered by '4 + 3 = 7 ; 7 * 2 = 14 ### 14'."
    )

    def __init__(self, *, depth: int = 4, top: int = 60, sizes: Sizes | None = None) -> None:
        problems = []
        if not 2 <= depth <= 16:
            problems.append(Problem("depth", f"got {depth} operations in a question, expected 2 to 16"))
        if not 30 <= top <= 200:
            problems.append(Problem("top", f"got {top}, expected 30 to 200"))
        if problems:
            raise ConfigError(problems)
        self.depth, self.top = depth, top
        self.vocabulary_source = f"start with what is it ? + - * / = {' '.join(map(str, range(1, top + 1)))}"
        sizes = sizes or (_DEPTH_TWO_SIZES if depth == 2 else None)
        super().__init__(Chains(self.name, tuple(OPERATIONS), depth), _POOLS, extra_spec={"top": top}, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        if len(_find_results(chain, self.top)) < _MIN_RESULTS:
            return None
        starts = _find_starts(chain, self.top)
        rng = Random(sample_seed(self.name, self.top, seed, *chain))
        current = first = rng.choice(starts)
        clauses, rationale = [], []
        for position, name in enumerate(chain):
            symbol, operands, _ = OPERATIONS[name]
            next_starts = _find_starts(chain[position + 1 :], self.top)
            operand = rng.choice(
                [operand for operand in operands if _apply_operation(symbol, current, operand, self.top) in next_starts]
            )
            result = _apply_operation(symbol, current, operand, self.top) or 0
            clauses.append(f"{{{name}0}} {operand}" if len(operands) > 1 else f"{{{name}0}}")
            rationale.append(f"{current} {symbol} {operand} = {result}")
            current = result
        text = f"start with {first} ; {' ; '.join(clauses)} ; what is it ?"
        return Question(text, tuple(rationale), str(current))

    def check_steps(self, task: Task, text: str) -> tuple[bool, ...]:
        """Returns, for each span of a response's rationale, whether it is the true equation at its position in the
        chain.
        """
        expected_steps: Sequence[str] = self.question(task).rationale
        return tuple(
            position < len(expected_steps) and span == expected_steps[position]
            for position, span in enumerate(split_rationale(text))
        )
