"""Countdown: combine whole numbers, two at a time, until one remains, which should equal the target. Game24 is a
case.

    make 24 from 4 9 10 13  ->  13 - 10  ->  left 3 4 9  ->  9 - 3  ->  left 4 6  ->  6 * 4  ->  left 24

The kind of a task is the form of its canonical solution, such as "(b + c - d) * a", with a the smallest number. The
tiers go by the shape of the form, whatever the numbers. Twelve of the eighteen shapes of three numbers are
demonstrated. `evo` shapes are or hold one of the other six, which only exploring can find. Of the larger shapes that
hold none, half are `seen` and half `combo`: all their adjacent pairs of operators are trained, the whole never.
`longer` shapes have one number more than any trained and hold demonstrated pairs only. Up to four numbers every
solution of a task is of its tier, not only the canonical one; of five or more numbers nearly every target has solutions
of all tiers, and the canonical one decides.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, tee
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, score_if_won
from evolvent.worlds.numbers import (
    LIMIT,
    Form,
    Move,
    State,
    countdowns,
    form_of,
    moves,
    parts,
    plan,
    shape_of,
    solution_shapes,
    solve_probability,
)
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes

__all__ = ["UNDEMONSTRATED", "Countdown", "CountdownEnv", "tier_of_shape"]

UNDEMONSTRATED = frozenset({"n * n - n", "n * n / n", "n - n - n", "n / n / n", "n / n + n", "(n + n) / n"})
"""The shapes of three numbers that no demonstration shows. Each operator is still shown inside and around others."""

_MAX_LUCK = 0.1  # tasks that a uniform rollout solves more often are not dealt
_ALL_WAYS, _EXACT_LUCK = 4, 5  # up to so many numbers all solutions, and the exact luck, are looked at
_PATIENCE = 5000  # so many tasks in a row of other tiers, and a tier has no more
_KNOWN_TASKS = 4096  # tasks kept ready
_LINE = re.compile(r"([0-9]{1,9}) ?([-+*/]) ?([0-9]{1,9})(?: ?= ?([0-9]{1,9})(?: ?\( ?left: ?([0-9 ]{0,99})\))?)?")
_MALFORMED = "expected two numbers left and + - * or / between"
_SENTENCES = (
    _MALFORMED,
    "make from left",
    "the larger number comes first",
    "cannot divide by 0",
    "is not left",
    "that number is not left",
    "is left only once",
    "is no whole number",
    "is over",
    "then left",
    "= ( : )",
)


@lru_cache(maxsize=1 << 12)
def tier_of_shape(form: Form, max_train_numbers: int) -> str | None:
    """Returns the tier of a shape where training tasks have at most `max_train_numbers` numbers; None if it has no
    tier.
    """
    is_demonstrated = not any(str(part) in UNDEMONSTRATED for part in parts(form))
    if form.size > max_train_numbers:
        return "longer" if is_demonstrated else None
    if not is_demonstrated:
        return "evo"
    is_held_out = form.size > 3 and sample_seed("countdown", "seen", str(form)) % 2 == 0
    return "combo" if is_held_out else "seen"


class _SolvedTask(NamedTuple):
    """A generated task with the kind and tier of its canonical solution."""

    numbers: State
    target: int
    kind: str
    tier: str | None


@dataclass(frozen=True, slots=True)
class _StateView:
    """Text, legal actions and moves of a state, whatever the target."""

    text: str
    admissible: tuple[str, ...]
    moves: Mapping[str, Move]


@lru_cache(maxsize=1 << 13)
def _view_state(state: State, limit: int) -> _StateView:
    moves_by_text = {str(move): move for move in moves(state, limit)}
    return _StateView("left " + " ".join(map(str, state)), tuple(moves_by_text), moves_by_text)


def _parse_move(text: str, state: State, limit: int) -> Move | str:
    """Parses the move that a text asks for; returns the error sentence where it is not a legal move."""
    match = _LINE.fullmatch(" ".join(text.split()))
    if match is None:
        return _MALFORMED
    a, op, b = int(match[1]), match[2], int(match[3])
    for number in (a, b):
        if number not in state:
            return f"{number} is not left" if number <= limit else "that number is not left"
    if a == b and state.count(a) == 1:
        return f"{a} is left only once"
    if a < b and op in "+*":
        a, b = b, a
    move = _view_state(state, limit).moves.get(f"{a} {op} {b}")
    if move is None:
        return _explain_impossible(a, op, b, limit=limit)
    if match[4] is not None and int(match[4]) != move.result:
        return f"{move} is {move.result}"
    if match[5] is not None and sorted(map(int, match[5].split())) != list(move.left):
        return f"then left {' '.join(map(str, move.left))}"
    return move


def _explain_impossible(a: int, op: str, b: int, *, limit: int) -> str:
    """Explains why two remaining numbers cannot be combined by an operator."""
    if op == "-":
        return "the larger number comes first"
    if op == "/":
        return f"{a} / {b} is no whole number" if b else "cannot divide by 0"
    return f"{a} {op} {b} is over {limit}"


class CountdownEnv(StateEnv[State]):
    """One episode; its state is the tuple of remaining numbers."""

    def __init__(self, task: Task, numbers: State, target: int, *, limit: int, penalty: float) -> None:
        super().__init__(task, numbers)
        self._target, self._limit, self._penalty = target, limit, penalty

    @property
    def left(self) -> State:
        """Returns the remaining numbers, sorted; empty where no episode runs."""
        return self._state if self._running else ()

    def _observe_start(self) -> tuple[Value, Info]:
        observation = f"make {self._target} from {' '.join(map(str, self._start))}"
        return observation, {"admissible": _view_state(self._start, self._limit).admissible}

    def _transition(self, state: State, action: Value) -> tuple[State, Reply]:
        view = _view_state(state, self._limit)
        move: Move | str | None = view.moves.get(action) if isinstance(action, str) else None
        if move is None:
            move = _parse_move(str(action), state, self._limit)
        if isinstance(move, str):
            return state, (move, self._penalty, False, False, {"admissible": view.admissible, "invalid": True})
        next_view, over = _view_state(move.left, self._limit), len(move.left) == 1
        reward = float(over and move.result == self._target)
        return move.left, (next_view.text, reward, over, False, {"admissible": next_view.admissible})


class Countdown(DealtOnce):
    """The world of countdown tasks.

    `Countdown(numbers=4, target=24, low=1, high=13)` is Game24. Where the numbers and a fixed target allow few tasks,
    the panels are short.

    Args:
        numbers: how many numbers a training task has, 3 to 6, or the fewest and the most of them; `longer` has one
            more than the most. Three numbers hold one pair of operators only, so `combo` needs four.
        target: the target of all tasks; None: 1 to 100, drawn for each task.
        low, high: the smallest and the largest number given.
        limit: the largest number that a move may give, and the largest in the vocabulary.
        penalty: reward of an action that is none or cannot be (zero or negative).
        sizes: how many tasks the panels hold.

    Raises:
        ConfigError: for values out of range, all at once.
    """

    name = "countdown"
    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False

    def __init__(
        self,
        *,
        numbers: int | Sequence[int] = (3, 4),
        target: int | None = None,
        low: int = 1,
        high: int = 12,
        limit: int = LIMIT,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
    ) -> None:
        counts = (numbers, numbers) if isinstance(numbers, int) else tuple(numbers)
        min_numbers, max_numbers = counts if len(counts) == 2 else (0, 0)
        rules = (
            (3 <= min_numbers <= max_numbers <= 6, "numbers", f"got tasks of {numbers} numbers, expected 3 to 6", ""),
            (1 <= low <= high <= limit, "low", f"got numbers from {low} to {high}", f"use 1 <= low <= high <= {limit}"),
            (target is None or 1 <= target <= limit, "target", f"got {target}, expected 1 to {limit}", ""),
            (1 <= limit <= 10_000, "limit", f"got {limit}, expected 1 to 10000", ""),
            (-math.inf < penalty <= 0, "penalty", f"got {penalty}, expected 0 or less", ""),
        )
        problems = [Problem(setting, message, hint) for is_valid, setting, message, hint in rules if not is_valid]
        if problems:
            raise ConfigError(problems)
        self.fewest, self.most, self.target = min_numbers, max_numbers, target
        self.low, self.high, self.limit, self.penalty = low, high, limit, penalty
        self.horizon = 2 * (max_numbers + 1)
        self.reward_range = (penalty, 1.0)
        self.tiers = tuple(tier for tier in TIERS if tier != "combo" or max_numbers > 3)
        self.instructions = (
            "Make the target from the numbers. Each step combines two numbers that are left by + - * or /, the larger "
            "one first, for example '9 - 4'; the result takes their place. Results are whole numbers of at most "
            f"{limit}. Use all numbers: the last one left must be the target."
        )
        self._streams: dict[int, Iterator[_SolvedTask]] = {}
        self._known: dict[str, tuple[State, int]] = {}
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Draws the tasks of a tier, alternating between counts of numbers."""
        counts = [self.most + 1] if tier == "longer" else range(self.fewest, self.most + 1)
        streams = [self._solved_tasks(count) for count in counts if tier != "combo" or count > 3]
        while streams:
            for stream in tuple(streams):
                attempts = islice(stream, _PATIENCE)
                accepted_task = next(
                    (
                        solved_task
                        for solved_task in attempts
                        if solved_task.tier == tier and self._fits_its_tier(solved_task)
                    ),
                    None,
                )
                if accepted_task is None:
                    streams.remove(stream)
                    continue
                spec: dict[str, Json] = {"numbers": list(accepted_task.numbers), "target": accepted_task.target}
                if self.limit != LIMIT:
                    spec["limit"] = self.limit
                yield Candidate(spec, accepted_task.kind, tier, _key(accepted_task.numbers, accepted_task.target))

    def _solved_tasks(self, count: int) -> Iterator[_SolvedTask]:
        """Yields the tasks with `count` numbers from the first one on; each is generated and solved once for all
        tiers.
        """
        if count not in self._streams:
            self._streams[count] = tee(self._generate_solved_tasks(count), 1)[0]
        return copy.copy(self._streams[count])

    def _generate_solved_tasks(self, count: int) -> Iterator[_SolvedTask]:
        """Generates all tasks with `count` numbers and solves them."""
        for numbers, target in countdowns(count, low=self.low, high=self.high, target=self.target, limit=self.limit):
            form = form_of(numbers, plan(numbers, target, self.limit) or ())
            yield _SolvedTask(numbers, target, str(form), tier_of_shape(shape_of(form), self.most))

    def _fits_its_tier(self, solved_task: _SolvedTask) -> bool:
        """Returns whether a task is hard to solve by luck and has no solution of another tier."""
        numbers, target, _, tier = solved_task
        if len(numbers) <= _EXACT_LUCK and solve_probability(numbers, target, self.limit) > _MAX_LUCK:
            return False
        shapes = solution_shapes(numbers, target, self.limit) if len(numbers) <= _ALL_WAYS else ()
        return all(tier_of_shape(solution_shape, self.most) == tier for solution_shape in shapes)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks with the same numbers in any order and the same target."""
        return _key(*self._parse_task(task))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> CountdownEnv:
        """Creates an Env for any solvable task of this world with up to `most` + 1 numbers, dealt or not.

        Raises:
            ConfigError: for a task of another world, a spec that is none, or a target that cannot be reached.
            VersionMismatch: for a task of another version or limit.
        """
        return CountdownEnv(task, *self._parse_task(task), limit=self.limit, penalty=self.penalty)

    def _parse_task(self, task: Task) -> tuple[State, int]:
        numbers_and_target = self._known.get(task.id)
        if numbers_and_target is None:
            numbers_and_target = self._validate_task(task)
            while len(self._known) >= _KNOWN_TASKS:
                self._known.pop(next(iter(self._known)))
            self._known[task.id] = numbers_and_target
        return numbers_and_target

    def _validate_task(self, task: Task) -> tuple[State, int]:
        if task.world != self.name:
            raise ConfigError(f"the task does not belong to world {self.name!r}", value=task.world)
        for field_name, value, expected in (
            ("version", task.version, self.version),
            ("limit", task.spec.get("limit", LIMIT), self.limit),
        ):
            if value != expected:
                raise VersionMismatch(
                    f"the task belongs to another {field_name} of {self.name!r}", value=value, expected=expected
                )
        numbers, target, max_numbers = task.spec.get("numbers"), task.spec.get("target"), self.most + 1
        problems = []
        bounds = f"from 0 to {self.limit}"
        if (
            not isinstance(numbers, list)
            or not 2 <= len(numbers) <= max_numbers
            or not all(map(self._is_number, numbers))
        ):
            hint = f"give a list of 2 to {max_numbers} whole numbers {bounds}"
            problems.append(Problem("numbers", f"invalid numbers {numbers!r}", hint))
        if not self._is_number(target):
            problems.append(Problem("target", f"got {target!r}, expected a whole number {bounds}"))
        if problems:
            raise ConfigError(problems)
        state: State = tuple(sorted(task.spec["numbers"]))
        if plan(state, task.spec["target"], self.limit) is None:
            hint = "all results must be whole numbers from 0 to the limit"
            raise ConfigError(f"{target} cannot be made from {' '.join(map(str, state))}", hint=hint)
        return state, task.spec["target"]

    def _is_number(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= self.limit

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the target was made, whatever penalties came before; raw = sum of rewards."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the canonical solution, one move for each number but the last."""
        return [str(move) for move in plan(*self._parse_task(task), self.limit) or ()]

    def vocabulary(self) -> Sequence[str]:
        """Returns the numbers up to the limit, the operators, and the words of all sentences."""
        vocabulary = {word for text in _SENTENCES for word in text.split()}
        return sorted(vocabulary | {str(number) for number in range(self.limit + 1)})


def _key(numbers: State, target: int) -> str:
    return f"{' '.join(map(str, numbers))} -> {target}"
