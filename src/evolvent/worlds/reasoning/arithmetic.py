"""Arithmetic: a number, and a chain of operations told one after another; what comes out?

    start with 47 ; add 7 ; halve ; times 3 ; what is it ?  ->  47 + 7 = 54 ; 54 / 2 = 27 ; 27 * 3 = 81 ### 81

Every number on the way is whole, from 1 to `top`. The kind of a task is its chain of operations.
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
from evolvent.worlds.reasoning.question import Question, spans

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

_FEW_RESULTS = 20  # a chain that comes to fewer numbers is guessed too easily
_OF_TWO = Sizes(train=400, dev=40, test=100)  # chains of two do not give more


def _result(symbol: str, x: int, operand: int, top: int) -> int | None:
    """The whole number from 1 to `top` that comes out; None where it is none."""
    if symbol == "/":
        return x // operand if x % operand == 0 else None
    found = x + operand if symbol == "+" else x - operand if symbol == "-" else x * operand
    return found if 1 <= found <= top else None


@lru_cache(maxsize=1 << 14)
def _starts(chain: Chain, top: int) -> tuple[int, ...]:
    """The numbers from which the whole chain can be gone."""
    if not chain:
        return tuple(range(1, top + 1))
    symbol, operands, _ = OPERATIONS[chain[0]]
    after = frozenset(_starts(chain[1:], top))
    return tuple(x for x in range(1, top + 1) if any(_result(symbol, x, by, top) in after for by in operands))


@lru_cache(maxsize=1 << 14)
def _results(chain: Chain, top: int) -> frozenset[int]:
    """The numbers that the whole chain can come to."""
    found = set(range(1, top + 1))
    for name in chain:
        symbol, operands, _ = OPERATIONS[name]
        made = {_result(symbol, x, by, top) for x in found for by in operands}
        found = {value for value in made if value is not None}
    return frozenset(found)


_POOLS: Pools = {name: told for name, (_, _, told) in OPERATIONS.items()}


class Arithmetic(Generated):
    """The world of chained arithmetic.

    Args:
        depth: operations in the longest training chain, 2 to 16; `longer` has one more. `combo` needs 3.
        top: the largest number, 30 to 200.
        sizes: how many tasks the panels hold; of depth 2 there are fewer than elsewhere.
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
            problems.append(Problem("depth", f"{depth} operations in a question", "give 2 to 16"))
        if not 30 <= top <= 200:
            problems.append(Problem("top", f"numbers up to {top}", "give 30 to 200"))
        if problems:
            raise ConfigError(problems)
        self.depth, self.top = depth, top
        self.words = f"start with what is it ? + - * / = {' '.join(map(str, range(1, top + 1)))}"
        sizes = sizes or (_OF_TWO if depth == 2 else None)
        super().__init__(Chains(self.name, tuple(OPERATIONS), depth), _POOLS, also={"top": top}, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        if len(_results(chain, self.top)) < _FEW_RESULTS:
            return None
        starts = _starts(chain, self.top)
        rng = Random(sample_seed(self.name, self.top, seed, *chain))
        x = first = rng.choice(starts)
        told, rationale = [], []
        for place, name in enumerate(chain):
            symbol, operands, _ = OPERATIONS[name]
            after = _starts(chain[place + 1 :], self.top)
            by = rng.choice([by for by in operands if _result(symbol, x, by, self.top) in after])
            made = _result(symbol, x, by, self.top) or 0
            told.append(f"{{{name}0}} {by}" if len(operands) > 1 else f"{{{name}0}}")
            rationale.append(f"{x} {symbol} {by} = {made}")
            x = made
        text = f"start with {first} ; {' ; '.join(told)} ; what is it ?"
        return Question(text, tuple(rationale), str(x))

    def check_steps(self, task: Task, text: str) -> tuple[bool, ...]:
        """For each span of a response's rationale, whether it is the true equation of its place in the chain."""
        right: Sequence[str] = self.question(task).rationale
        return tuple(place < len(right) and span == right[place] for place, span in enumerate(spans(text)))
