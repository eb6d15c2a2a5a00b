"""Countdown: combine whole numbers, two at a time, until one is left: it should be the target. Game24 is one of these.

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

from evolvent.errors import ConfigError, Problem, SessionGone, VersionMismatch
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import TIERS, Info, Reply, own_moment, score_won
from evolvent.worlds.grammar import Grammar, Plain
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
    shape,
    solution_shapes,
    solve_probability,
)
from evolvent.worlds.panel import Candidate, Panels, Sizes

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
def tier_of_shape(found: Form, most: int) -> str | None:
    """The tier of a shape, where training tasks have at most `most` numbers; None for what is in no tier."""
    plain = not any(str(part) in UNDEMONSTRATED for part in parts(found))
    if found.size > most:
        return "longer" if plain else None
    if not plain:
        return "evo"
    kept_back = found.size > 3 and sample_seed("countdown", "seen", str(found)) % 2 == 0
    return "combo" if kept_back else "seen"


class _Drawn(NamedTuple):
    """A task drawn, and the kind and tier of its canonical solution."""

    numbers: State
    target: int
    kind: str
    tier: str | None


@dataclass(frozen=True, slots=True)
class _Turn:
    """What can be done in a state, whatever the target."""

    shown: str
    admissible: tuple[str, ...]
    moves: Mapping[str, Move]


@lru_cache(maxsize=1 << 13)
def _turn(state: State, limit: int) -> _Turn:
    found = {str(move): move for move in moves(state, limit)}
    return _Turn("left " + " ".join(map(str, state)), tuple(found), found)


def _read(text: str, state: State, limit: int) -> Move | str:
    """The move that a text asks for, or the sentence that says what is wrong with it."""
    found = _LINE.fullmatch(" ".join(text.split()))
    if found is None:
        return _MALFORMED
    a, op, b = int(found[1]), found[2], int(found[3])
    for number in (a, b):
        if number not in state:
            return f"{number} is not left" if number <= limit else "that number is not left"
    if a == b and state.count(a) == 1:
        return f"{a} is left only once"
    if a < b and op in "+*":
        a, b = b, a
    move = _turn(state, limit).moves.get(f"{a} {op} {b}")
    if move is None:
        return _impossible(a, op, b, limit=limit)
    if found[4] is not None and int(found[4]) != move.result:
        return f"{move} is {move.result}"
    if found[5] is not None and sorted(map(int, found[5].split())) != list(move.left):
        return f"then left {' '.join(map(str, move.left))}"
    return move


def _impossible(a: int, op: str, b: int, *, limit: int) -> str:
    """Why two numbers that are left cannot be combined so."""
    if op == "-":
        return "the larger number comes first"
    if op == "/":
        return f"{a} / {b} is no whole number" if b else "cannot divide by 0"
    return f"{a} {op} {b} is over {limit}"


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: the numbers left; none where no episode runs."""

    task: str
    state: State


class CountdownEnv:
    """One episode: the numbers left. It forks by keeping them."""

    def __init__(self, task: Task, numbers: State, target: int, *, limit: int, penalty: float) -> None:
        self._task, self._numbers, self._target = task, numbers, target
        self._limit, self._penalty = limit, penalty
        self._state: State = ()

    @property
    def left(self) -> State:
        """The numbers left, sorted; empty where no episode runs."""
        return self._state

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._state = self._numbers
        observation = f"make {self._target} from {' '.join(map(str, self._numbers))}"
        return observation, {"admissible": _turn(self._state, self._limit).admissible}

    def step(self, action: Value) -> Reply:
        if not self._state:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        turn = _turn(self._state, self._limit)
        move: Move | str | None = turn.moves.get(action) if isinstance(action, str) else None
        if move is None:
            move = _read(str(action), self._state, self._limit)
        if isinstance(move, str):
            return move, self._penalty, False, False, {"admissible": turn.admissible, "invalid": True}
        then, over = _turn(move.left, self._limit), len(move.left) == 1
        self._state = () if over else move.left
        reward = float(over and move.result == self._target)
        return then.shown, reward, over, False, {"admissible": then.admissible}

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._state)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._state = moment.state

    def close(self) -> None:
        self._state = ()


class Countdown:
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
    blocking = False

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
        fewest, most = counts if len(counts) == 2 else (0, 0)
        rules = (
            (3 <= fewest <= most <= 6, "numbers", f"tasks of {numbers} numbers", "give 3 to 6"),
            (1 <= low <= high <= limit, "low", f"numbers from {low} to {high}", f"give 1 <= low <= high <= {limit}"),
            (target is None or 1 <= target <= limit, "target", f"{target} is out of reach", f"give 1 to {limit}"),
            (1 <= limit <= 10_000, "limit", f"{limit} is no limit", "give 1 to 10000"),
            (-math.inf < penalty <= 0, "penalty", f"{penalty} is not a penalty", "give 0 or a negative number"),
        )
        problems = [Problem(where, what, hint) for kept, where, what, hint in rules if not kept]
        if problems:
            raise ConfigError(problems)
        self.fewest, self.most, self.target = fewest, most, target
        self.low, self.high, self.limit, self.penalty = low, high, limit, penalty
        self.horizon = 2 * (most + 1)
        self.reward_range = (penalty, 1.0)
        self.tiers = tuple(tier for tier in TIERS if tier != "combo" or most > 3)
        self.instructions = (
            "Make the target from the numbers. Each step combines two numbers that are left by + - * or /, the larger "
            "one first, for example '9 - 4'; the result takes their place. Results are whole numbers of at most "
            f"{limit}. Use all numbers: the last one left must be the target."
        )
        self._streams: dict[int, Iterator[_Drawn]] = {}
        self._known: dict[str, tuple[State, int]] = {}
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """The tasks of a tier, of each count of numbers in turn."""
        counts = [self.most + 1] if tier == "longer" else range(self.fewest, self.most + 1)
        streams = [self._of_count(count) for count in counts if tier != "combo" or count > 3]
        while streams:
            for stream in tuple(streams):
                chances = islice(stream, _PATIENCE)
                drawn = next((one for one in chances if one.tier == tier and self._belongs(one)), None)
                if drawn is None:
                    streams.remove(stream)
                    continue
                spec: dict[str, Json] = {"numbers": list(drawn.numbers), "target": drawn.target}
                if self.limit != LIMIT:
                    spec["limit"] = self.limit
                yield Candidate(spec, drawn.kind, tier, _key(drawn.numbers, drawn.target))

    def _of_count(self, count: int) -> Iterator[_Drawn]:
        """The tasks of so many numbers from the first one on, drawn and solved once, whichever tier asks."""
        if count not in self._streams:
            self._streams[count] = tee(self._drawn(count), 1)[0]
        return copy.copy(self._streams[count])

    def _drawn(self, count: int) -> Iterator[_Drawn]:
        """All tasks of so many numbers, solved."""
        for numbers, target in countdowns(count, low=self.low, high=self.high, target=self.target, limit=self.limit):
            form = form_of(numbers, plan(numbers, target, self.limit) or ())
            yield _Drawn(numbers, target, str(form), tier_of_shape(shape(form), self.most))

    def _belongs(self, drawn: _Drawn) -> bool:
        """Whether a task is hard to solve by luck, and can be solved in no way of another tier."""
        numbers, target, _, tier = drawn
        if len(numbers) <= _EXACT_LUCK and solve_probability(numbers, target, self.limit) > _MAX_LUCK:
            return False
        ways = solution_shapes(numbers, target, self.limit) if len(numbers) <= _ALL_WAYS else ()
        return all(tier_of_shape(way, self.most) == tier for way in ways)

    def key(self, task: Task) -> str:
        """Equal for tasks of the same numbers, in any order, and the same target; what panels are dealt by."""
        return _key(*self._task(task))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> CountdownEnv:
        """An Env for a task of this world: any solvable one of up to `most` + 1 numbers, dealt or not.

        Raises:
            ConfigError: for a task of another world, a spec that is none, or a target that cannot be reached.
            VersionMismatch: for a task of another version or limit.
        """
        return CountdownEnv(task, *self._task(task), limit=self.limit, penalty=self.penalty)

    def _task(self, task: Task) -> tuple[State, int]:
        found = self._known.get(task.id)
        if found is None:
            found = self._check(task)
            while len(self._known) >= _KNOWN_TASKS:
                self._known.pop(next(iter(self._known)))
            self._known[task.id] = found
        return found

    def _check(self, task: Task) -> tuple[State, int]:
        if task.world != self.name:
            raise ConfigError(f"not a task of the world {self.name!r}", value=task.world)
        for what, value, expected in (
            ("version", task.version, self.version),
            ("limit", task.spec.get("limit", LIMIT), self.limit),
        ):
            if value != expected:
                raise VersionMismatch(f"a task of another {what} of {self.name!r}", value=value, expected=expected)
        numbers, target, most = task.spec.get("numbers"), task.spec.get("target"), self.most + 1
        problems = []
        bounds = f"from 0 to {self.limit}"
        if not isinstance(numbers, list) or not 2 <= len(numbers) <= most or not all(map(self._is_number, numbers)):
            hint = f"give a list of 2 to {most} whole numbers {bounds}"
            problems.append(Problem("numbers", f"{numbers!r} are no numbers to combine", hint))
        if not self._is_number(target):
            problems.append(Problem("target", f"{target!r} is no target", f"give a whole number {bounds}"))
        if problems:
            raise ConfigError(problems)
        state: State = tuple(sorted(task.spec["numbers"]))
        if plan(state, task.spec["target"], self.limit) is None:
            hint = "whole results only, none negative or over the limit"
            raise ConfigError(f"{target} cannot be made from {' '.join(map(str, state))}", hint=hint)
        return state, task.spec["target"]

    def _is_number(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= self.limit

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the target was made, whatever penalties came before; raw = sum of rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """The canonical solution: one move for each number but the last."""
        return [str(move) for move in plan(*self._task(task), self.limit) or ()]

    def vocabulary(self) -> Sequence[str]:
        """The numbers up to the limit, the operators, and the words of all sentences."""
        words = {word for text in _SENTENCES for word in text.split()}
        return sorted(words | {str(number) for number in range(self.limit + 1)})


def _key(numbers: State, target: int) -> str:
    return f"{' '.join(map(str, numbers))} -> {target}"
