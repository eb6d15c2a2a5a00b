"""Exact, pure countdown arithmetic: moves, reachable numbers, chances of random play, plans and their forms.

A state is a sorted tuple of whole numbers, none negative. A move takes two of them and puts a whole result in their
place, so that n numbers are played in n - 1 moves. The moves are those of the Game24 of TS-LLM (arXiv 2309.17179),
with whole results only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import comb
from random import Random
from typing import NamedTuple, TypeVar

from evolvent.errors import ConfigError
from evolvent.trajectory import sample_seed

__all__ = [
    "LIMIT",
    "OPERATORS",
    "Form",
    "Move",
    "State",
    "combine",
    "countdowns",
    "form_of",
    "game24_lines",
    "is_reachable",
    "moves",
    "parts",
    "plan",
    "replay",
    "shape_of",
    "solution_shapes",
    "solve_probability",
]

LIMIT = 200
"""The largest number that a move may give, unless told otherwise."""
OPERATORS = "+-*/"

_WHOLE = 4  # up to so many numbers, all that can be reached is worked out at once, whatever the target
_FEW = 5000  # so many multisets are all gone through; of more, so many are drawn at a time
_TURNS = 20  # a multiset comes with a twentieth of the targets at a time, so that panels hold many multisets
_LARGEST = 100  # the largest target drawn

State = tuple[int, ...]
T = TypeVar("T")


class Move(NamedTuple):
    """`a op b = result`, and the state that it leaves."""

    a: int
    op: str
    b: int
    result: int
    left: State

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"


@lru_cache(maxsize=1 << 12)
def moves(state: State, limit: int = LIMIT) -> tuple[Move, ...]:
    """Returns all distinct moves, by result (1 first, 0 last), then in the order + - * / and by their numbers.

    For two numbers a >= b: a + b, a - b and a * b; a / b and b / a where they are whole (b / a is only for b = 0).
    No result is over `limit`. Equal numbers give equal moves, which count once.
    """
    distinct_moves: set[Move] = set()
    state = tuple(sorted(state))
    for i, j in combinations(range(len(state)), 2):
        other_numbers = state[:i] + state[i + 1 : j] + state[j + 1 :]
        for a, op, b, result in _results(state[j], state[i]):
            if result <= limit:
                distinct_moves.add(Move(a, op, b, result, tuple(sorted((*other_numbers, result)))))
    return tuple(sorted(distinct_moves, key=_sort_key))


def _sort_key(move: Move) -> tuple[bool, int, int, int, int]:
    """Orders moves; results of 0 come last, since a multiplication by one would otherwise dominate every plan."""
    return move.result == 0, move.result, OPERATORS.index(move.op), move.a, move.b


def _results(a: int, b: int) -> list[tuple[int, str, int, int]]:
    """Lists every `x op y = result` of two numbers a >= b."""
    results = [(a, "+", b, a + b), (a, "-", b, a - b), (a, "*", b, a * b)]
    if b and a % b == 0:
        results.append((a, "/", b, a // b))
    elif a and not b:
        results.append((0, "/", a, 0))
    return results


@lru_cache(maxsize=1 << 17)
def _outcomes(state: State, limit: int) -> int:
    """Computes a bit set in which bit v is set if the state, of two numbers or more, can be reduced to v alone."""
    outcomes = 0
    if len(state) == 2:  # most calls end here, and need no moves
        for _, _, _, result in _results(max(state), min(state)):
            outcomes |= (result <= limit) << result
        return outcomes
    for left in {move.left for move in moves(state, limit)}:
        outcomes |= _outcomes(left, limit)
    return outcomes


def is_reachable(state: State, target: int, limit: int = LIMIT) -> bool:
    """Returns whether the state can be reduced to the target alone: exact."""
    if len(state) < 2 or target < 0:
        return state == (target,)
    return bool(_outcomes(state, limit) >> target & 1) if len(state) <= _WHOLE else _search_moves(state, target, limit)


@lru_cache(maxsize=1 << 16)
def _search_moves(state: State, target: int, limit: int) -> bool:
    return any(is_reachable(move.left, target, limit) for move in moves(state, limit))


def solve_probability(state: State, target: int, limit: int = LIMIT) -> float:
    """Computes the probability (0..1) that uniformly random distinct legal moves end at the target.

    Worked out over all moves, not sampled; it costs a millisecond for five numbers and thirty times more for each more.
    """
    return _success_probability(state, target, limit) if is_reachable(state, target, limit) else 0.0


@lru_cache(maxsize=1 << 16)
def _success_probability(state: State, target: int, limit: int) -> float:
    if len(state) == 1:
        return 1.0
    legal_moves = moves(state, limit)
    solvable_states = [move.left for move in legal_moves if is_reachable(move.left, target, limit)]
    return sum(_success_probability(left, target, limit) for left in solvable_states) / len(legal_moves)


def plan(state: State, target: int, limit: int = LIMIT) -> tuple[Move, ...] | None:
    """Returns the canonical solution: at each state the first of `moves` that keeps the target reachable; None if
    unsolvable.

    The next move depends on the state and the target alone, so the tail of a plan is the plan of the remaining
    state.
    """
    if not is_reachable(state, target, limit):
        return None
    steps: list[Move] = []
    while len(state) > 1:
        steps.append(next(move for move in moves(state, limit) if is_reachable(move.left, target, limit)))
        state = steps[-1].left
    return tuple(steps)


def replay(numbers: Sequence[int], steps: Sequence[Move], *, leaves: Sequence[T], join: Callable[[str, T, T], T]) -> T:
    """Evaluates a plan in any algebra.

    `leaves` stand for the numbers and `join(op, left, right)` for a move. Of equal numbers the first is taken, and
    results come after all numbers.

    Raises:
        ConfigError: a move takes a number that is not there, or the plan leaves more than one number.
    """
    pool = list(zip(numbers, leaves, strict=True))
    for move in steps:
        operands: list[T] = []
        for value in (move.a, move.b):
            index = next((index for index, (number, _) in enumerate(pool) if number == value), None)
            if index is None:
                raise ConfigError(f"the plan uses {value}, which is not available", value=[n for n, _ in pool])
            operands.append(pool.pop(index)[1])
        pool.append((move.result, join(move.op, *operands)))
    if len(pool) != 1:
        raise ConfigError("the plan does not leave one number", value=[n for n, _ in pool])
    return pool[0][1]


def game24_lines(numbers: Sequence[int], steps: Sequence[Move]) -> list[str]:
    """Writes a plan in the lines of TS-LLM's Game24: `a op b = c (left: ...)` per move, then `The answer is ... =
    c`.
    """
    lines = [f"{move} = {move.result} (left: {' '.join(map(str, move.left))})" for move in steps]
    answer = replay(numbers, steps, leaves=[str(number) for number in numbers], join=_join_text)
    return [*lines, f"The answer is {answer} = {steps[-1].result if steps else numbers[0]}"]


def _join_text(op: str, left: str, right: str) -> str:
    first, second = (f"({side})" if " " in side else side for side in (left, right))
    return f"{first} {op} {second}"


class Form(NamedTuple):
    """An expression up to regrouping: a sum (`op` "+") or product ("*") of forms, or a leaf (`op` is its name).

    `up` are the terms added or the factors, `down` the terms subtracted or the divisors, both sorted; a sum never
    holds a sum, nor a product a product. So (a + b) - c and (a - c) + b are one form.
    """

    op: str
    up: tuple[Form, ...] = ()
    down: tuple[Form, ...] = ()

    def __str__(self) -> str:
        if not self.up:
            return self.op
        add, remove = (" + ", " - ") if self.op == "+" else (" * ", " / ")
        inner = [[f"({form})" if form.op == "+" else str(form) for form in side] for side in (self.up, self.down)]
        return add.join(inner[0]) + "".join(remove + text for text in inner[1])

    @property
    def size(self) -> int:
        """Returns how many numbers the form takes."""
        return sum(form.size for form in (*self.up, *self.down)) if self.up else 1


_ANY = Form("n")


@lru_cache(maxsize=1 << 14)
def combine(op: str, left: Form, right: Form) -> Form:
    """Returns the form of `left op right`, `op` one of + - * /."""
    layer = "+" if op in "+-" else "*"
    return _build_layer(layer, (left,), (right,)) if op in "-/" else _build_layer(layer, (left, right), ())


def _build_layer(op: str, up: tuple[Form, ...], down: tuple[Form, ...]) -> Form:
    """Builds one sum or product; members of the same kind are flattened, and a single member is no layer."""
    above: list[Form] = []
    below: list[Form] = []
    for members, same, opposite in ((up, above, below), (down, below, above)):
        for form in members:
            if form.op == op:
                same.extend(form.up)
                opposite.extend(form.down)
            else:
                same.append(form)
    return above[0] if len(above) == 1 and not below else Form(op, tuple(sorted(above)), tuple(sorted(below)))


def form_of(numbers: Sequence[int], steps: Sequence[Move]) -> Form:
    """Returns the form of a plan with leaves named by size: a is the smallest number, b the next, and so on.

    Among equal numbers the earlier letter is used first. `str(form_of(...))` is, say, "b * c - a".
    """
    leaves = [Form(chr(ord("a") + index)) for index in range(len(numbers))]
    return replay(sorted(numbers), steps, leaves=leaves, join=combine)


def shape_of(form: Form) -> Form:
    """Returns the form with all leaves alike ("n"): the nesting of operators, whatever the numbers."""
    if not form.up:
        return _ANY
    return Form(form.op, tuple(sorted(map(shape_of, form.up))), tuple(sorted(map(shape_of, form.down))))


@lru_cache(maxsize=1 << 12)
def parts(form: Form) -> frozenset[Form]:
    """Returns the shapes of three numbers inside a shape, which remain when all but three of its numbers are struck
    out.

    They are its adjacent pairs of operators, up to regrouping: n * n - n - n has the parts n * n - n and n - n - n.
    """
    if form.size <= 3:
        return frozenset([form])
    return frozenset(part for smaller in _strike_one_number(form) for part in parts(smaller))


def _strike_one_number(form: Form) -> set[Form]:
    """Returns the forms with one number fewer; a form never consists of subtracted terms or divisors alone."""
    smaller_forms: set[Form] = set()
    for index, member in enumerate((*form.up, *form.down)):
        for smaller in _strike_one_number(member) if member.up else (None,):
            sides = [*form.up, *form.down]
            sides[index : index + 1] = [smaller] if smaller else []
            ups = len(form.up) - (smaller is None and index < len(form.up))
            if ups:
                smaller_forms.add(_build_layer(form.op, tuple(sides[:ups]), tuple(sides[ups:])))
    return smaller_forms


def solution_shapes(state: State, target: int, limit: int = LIMIT) -> Iterator[Form]:
    """Yields the shape of every solution at least once, depth first, so that a caller may stop early."""
    visited: set[tuple[tuple[int, Form], ...]] = set()
    stack = [tuple((number, _ANY) for number in sorted(state))]
    while stack:
        pool = stack.pop()
        if len(pool) == 1 and pool[0][0] == target:
            yield pool[0][1]
        for i, j in combinations(range(len(pool)), 2):
            remaining_pairs = pool[:i] + pool[i + 1 : j] + pool[j + 1 :]
            other_numbers = [number for number, _ in remaining_pairs]
            for result, merged_form in _merge_pair(pool[j], pool[i], limit):
                if (
                    result == target
                    if not remaining_pairs
                    else is_reachable(tuple(sorted((*other_numbers, result))), target, limit)
                ):
                    next_pool = tuple(sorted((*remaining_pairs, (result, merged_form))))
                    if next_pool not in visited:
                        visited.add(next_pool)
                        stack.append(next_pool)


def _merge_pair(larger: tuple[int, Form], smaller: tuple[int, Form], limit: int) -> Iterator[tuple[int, Form]]:
    """Yields the results and shapes of all moves of two numbers. Equal numbers combine either way round."""
    for x, op, y, result in _results(larger[0], smaller[0]):
        if result <= limit:
            first, second = (larger, smaller) if x == larger[0] else (smaller, larger)
            yield result, combine(op, first[1], second[1])
            if x == y:
                yield result, combine(op, second[1], first[1])


def countdowns(
    count: int, *, low: int, high: int, target: int | None = None, limit: int = LIMIT
) -> Iterator[tuple[State, int]]:
    """Yields solvable tasks (numbers, target) of `count` numbers, always the same ones in the same order.

    Up to 5,000 multisets are all gone through twenty times, each time with another twentieth of the targets. Of more,
    5,000 are drawn twenty times, each with a twentieth of the targets.

    Args:
        low, high: the smallest and the largest number.
        target: the target of all tasks; None: 1 to 100 (at most `limit`), in a drawn order.
    """
    targets = list(range(1, min(_LARGEST, limit) + 1)) if target is None else [target]
    Random(sample_seed("countdown targets", len(targets))).shuffle(targets)
    is_exhaustive = comb(high - low + count, count) <= _FEW
    for turn in range(_TURNS):
        rng = Random(sample_seed("countdown numbers", count, low, high, turn))
        if is_exhaustive:
            multisets = list(combinations_with_replacement(range(low, high + 1), count))
            rng.shuffle(multisets)
        else:
            multisets = [tuple(sorted(rng.randint(low, high) for _ in range(count))) for _ in range(_FEW)]
        for numbers in multisets:
            first = sample_seed("countdown target", *numbers) % len(targets)
            order = targets[first:] + targets[:first]
            for chosen_target in order[turn if is_exhaustive else 0 :: _TURNS]:
                if is_reachable(numbers, chosen_target, limit):
                    yield numbers, chosen_target
