"""Generated programming problems for `benchmarks.comments`: small functions composed of operations, with tests.

A problem is a chain of one to three operations on a list of whole numbers, a whole number or a text. The same chain is
told in the forms of HumanEval (signature and docstring, the body is written) and MBPP (an instruction and tests, the
whole function is written), and as a piece of a corpus. Train, dev and test have no composition in common: the
operations of a chain, whatever their order and the numbers in them, decide its split. Names of functions say nothing.

Tests are chosen, not drawn: those arguments on which most of the near misses give another value. A near miss is the
chain with one operation replaced by another, or with another number in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.curate.commenting import Source
from evolvent.files import write_atomic
from evolvent.trajectory import sample_rng, sample_seed

__all__ = [
    "FORMS",
    "OPERATIONS",
    "SPLITS",
    "Operation",
    "Problem",
    "low_value",
    "problems",
    "reply",
    "source",
    "split_of",
    "write_suite",
]

FORMS = ("humaneval", "mbpp")
SPLITS = ("train", "dev", "test")
NAMES = ("alder", "birch", "cedar", "elm", "fir", "hazel", "larch", "maple", "oak", "pine", "rowan", "willow")
_SPLIT_OF = ("test", "test", "dev", *("train",) * 7)
_TAKEN = {"L": ("xs", "a list of numbers"), "I": ("n", "a number"), "S": ("s", "a text")}
_LEAST_CAUGHT, _DRAWN_ARGUMENTS = 0.95, 40
Value = Any  # a list of whole numbers, a whole number or a text


@dataclass(frozen=True)
class Operation:
    """One step.

    Args:
        name: of it. takes, gives: L (a list of whole numbers), I (a whole number) or S (a text).
        code: an expression of Python; {v} is what it takes, {c} a number.
        said: what it does, in words; several ways of saying it.
        numbers: those that {c} may be; (0,) where there is none.
        run: the same, on values.
    """

    name: str
    takes: str
    gives: str
    code: str
    said: tuple[str, ...]
    run: Callable[[Any, int], Value]
    numbers: tuple[int, ...] = (0,)


_C, _SHORT = (2, 3, 4, 5), (1, 2, 3)
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "even",
        "L",
        "L",
        "[x for x in {v} if x % 2 == 0]",
        ("keep the even numbers",),
        lambda v, c: [x for x in v if x % 2 == 0],
    ),
    Operation(
        "odd",
        "L",
        "L",
        "[x for x in {v} if x % 2 == 1]",
        ("keep the odd numbers",),
        lambda v, c: [x for x in v if x % 2 == 1],
    ),
    Operation(
        "above",
        "L",
        "L",
        "[x for x in {v} if x > {c}]",
        ("keep those above {c}",),
        lambda v, c: [x for x in v if x > c],
        _C,
    ),
    Operation(
        "below",
        "L",
        "L",
        "[x for x in {v} if x < {c}]",
        ("keep those below {c}",),
        lambda v, c: [x for x in v if x < c],
        _C,
    ),
    Operation(
        "added", "L", "L", "[x + {c} for x in {v}]", ("raise each of them by {c}",), lambda v, c: [x + c for x in v], _C
    ),
    Operation(
        "less", "L", "L", "[x - {c} for x in {v}]", ("lower each of them by {c}",), lambda v, c: [x - c for x in v], _C
    ),
    Operation(
        "times",
        "L",
        "L",
        "[x * {c} for x in {v}]",
        ("multiply each of them by {c}",),
        lambda v, c: [x * c for x in v],
        _C,
    ),
    Operation("square", "L", "L", "[x * x for x in {v}]", ("square each of them",), lambda v, c: [x * x for x in v]),
    Operation("negate", "L", "L", "[-x for x in {v}]", ("negate each of them",), lambda v, c: [-x for x in v]),
    Operation(
        "cap",
        "L",
        "L",
        "[min(x, {c}) for x in {v}]",
        ("cap each of them at {c}",),
        lambda v, c: [min(x, c) for x in v],
        _C,
    ),
    Operation("sort", "L", "L", "sorted({v})", ("sort them",), lambda v, c: sorted(v)),
    Operation("turn", "L", "L", "{v}[::-1]", ("reverse their order",), lambda v, c: v[::-1]),
    Operation("head", "L", "L", "{v}[:{c}]", ("keep the first {c}",), lambda v, c: v[:c], _SHORT),
    Operation("tail", "L", "L", "{v}[{c}:]", ("drop the first {c}",), lambda v, c: v[c:], _SHORT),
    Operation("append", "L", "L", "{v} + [{c}]", ("append {c}",), lambda v, c: [*v, c], _C),
    Operation(
        "steps",
        "L",
        "L",
        "[b - a for a, b in zip({v}, {v}[1:])]",
        ("take differences of neighbours",),
        lambda v, c: [b - a for a, b in pairwise(v)],
    ),
    Operation("sum", "L", "I", "sum({v})", ("add them up",), lambda v, c: sum(v)),
    Operation("most", "L", "I", "max({v}, default=0)", ("find the maximum",), lambda v, c: max(v, default=0)),
    Operation("least", "L", "I", "min({v}, default=0)", ("find the minimum",), lambda v, c: min(v, default=0)),
    Operation("count", "L", "I", "len({v})", ("count them",), lambda v, c: len(v)),
    Operation("plus", "I", "I", "{v} + {c}", ("raise it by {c}",), lambda v, c: v + c, _C),
    Operation("minus", "I", "I", "{v} - {c}", ("lower it by {c}",), lambda v, c: v - c, _C),
    Operation("fold", "I", "I", "{v} * {c}", ("multiply it by {c}",), lambda v, c: v * c, _C),
    Operation("power", "I", "I", "{v} * {v}", ("square it",), lambda v, c: v * v),
    Operation("mod", "I", "I", "{v} % {c}", ("take it modulo {c}",), lambda v, c: v % c, _C),
    Operation(
        "digits",
        "I",
        "L",
        "[int(d) for d in str(abs({v}))]",
        ("split it into digits",),
        lambda v, c: [int(d) for d in str(abs(v))],
    ),
    Operation("back", "S", "S", "{v}[::-1]", ("write it backwards",), lambda v, c: v[::-1]),
    Operation("swap", "S", "S", "{v}.swapcase()", ("swap the case of its letters",), lambda v, c: v.swapcase()),
    Operation("begin", "S", "S", "{v}[:{c}]", ("cut it after {c} letters",), lambda v, c: v[:c], _SHORT),
    Operation("letters", "S", "S", "''.join(sorted({v}))", ("sort its letters",), lambda v, c: "".join(sorted(v))),
    Operation("double", "S", "S", "{v} + {v}", ("repeat it",), lambda v, c: v + v),
    Operation("length", "S", "I", "len({v})", ("count its letters",), lambda v, c: len(v)),
)
_BY_NAME = {one.name: one for one in OPERATIONS}
Chain = tuple[tuple[str, int], ...]  # (name of an operation, its number)


@dataclass(frozen=True)
class Problem:
    """A chain of operations, with its name, its words and the arguments that its tests call it with."""

    chain: Chain
    name: str
    said: tuple[str, ...]
    arguments: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """The operations in their order; the numbers in them apart."""
        return " ".join(name for name, _ in self.chain)

    @property
    def taken(self) -> str:
        """The name of the parameter."""
        return _TAKEN[_BY_NAME[self.chain[0][0]].takes][0]

    @property
    def told(self) -> str:
        """All steps in one line of words."""
        return ", then ".join(filter(None, (", ".join(self.said[:-1]), self.said[-1])))

    @property
    def body(self) -> tuple[str, ...]:
        """The lines of the function below its signature, one an operation, without indentation."""
        lines, before = [], self.taken
        for place, (name, number) in enumerate(self.chain):
            code = _BY_NAME[name].code.replace("{v}", before).replace("{c}", str(number))
            before = ("first", "second")[min(place, 1)]
            lines.append(f"return {code}" if place == len(self.chain) - 1 else f"{before} = {code}")
        return tuple(lines)

    @property
    def program(self) -> str:
        """The function, without a word about it."""
        return "\n".join((f"def {self.name}({self.taken}):", *(f"    {line}" for line in self.body), ""))

    def value(self, argument: Value) -> Value:
        """What the function returns."""
        return _value(self.chain, argument)

    def row(self, form: str, number: int) -> dict[str, Any]:
        """The problem as a row of HumanEval or of MBPP."""
        calls = [(f"({one!r})", repr(self.value(one))) for one in self.arguments]
        if form == "humaneval":
            about = _TAKEN[_BY_NAME[self.chain[0][0]].takes][1]
            lines = "".join(f"    assert candidate{call} == {value}\n" for call, value in calls)
            return {
                "task_id": f"made/{number}",
                "entry_point": self.name,
                "prompt": f'def {self.name}({self.taken}):\n    """Take {about}, {self.told}."""',
                "canonical_solution": "\n" + "\n".join(f"    {line}" for line in self.body) + "\n",
                "test": f"def check(candidate):\n{lines}",
            }
        return {
            "task_id": number,
            "text": f"Write a function to {self.told}.",
            "code": self.program,
            "test_list": [f"assert {self.name}{call} == {value}" for call, value in calls],
        }


def _value(chain: Chain, value: Value) -> Value:
    for name, number in chain:
        value = _BY_NAME[name].run(value, number)
    return value


def split_of(chain: Chain) -> str:
    """Where all chains of these operations belong, in any order: many orders come to the same function.

    Single operations are training's: whoever is to compose them has seen each.
    """
    number = sample_seed("made", *sorted(name for name, _ in chain))
    return "train" if len(chain) == 1 else _SPLIT_OF[number % len(_SPLIT_OF)]


@cache
def problems(split: str, count: int, *, seed: int, tests: int = 2) -> tuple[Problem, ...]:
    """So many different problems of a split. Another count gives the same ones, more or fewer."""
    rng, found = sample_rng("made problems", split, seed), dict[tuple[Chain, str], Problem]()
    while len(found) < count:
        chain, name = _chain(rng), str(rng.choice(NAMES))
        key = (chain, name if len(chain) == 1 else "")  # there are few single operations: they come in many functions
        if key in found or split_of(chain) != split:
            continue
        said = tuple(str(rng.choice(_BY_NAME[name].said)).replace("{c}", str(number)) for name, number in chain)
        arguments = _arguments(chain, rng, tests)
        if arguments:
            found[key] = Problem(chain, name, said, arguments)
    return tuple(found.values())


def _chain(rng: np.random.Generator) -> Chain:
    """One to three operations that fit one another, none twice in a row; most begin with a list."""
    kind, steps = str(rng.choice(["L", "L", "I", "S"])), int(rng.integers(1, 4))
    chain: list[tuple[str, int]] = []
    for _ in range(steps):
        fitting = [one for one in OPERATIONS if one.takes == kind and (not chain or one.name != chain[-1][0])]
        step = fitting[int(rng.integers(len(fitting)))]
        chain.append((step.name, int(rng.choice(step.numbers))))
        kind = step.gives
    return tuple(chain)


# --------------------------------------------------------------------------------------------------------- tests
def _misses(chain: Chain) -> Iterator[Chain]:
    """Chains with one operation replaced by another of its kind, or with another number."""
    for place, (name, number) in enumerate(chain):
        own = _BY_NAME[name]
        for other in OPERATIONS:
            if (other.takes, other.gives) != (own.takes, own.gives):
                continue
            numbers = other.numbers if other is own else (number if number in other.numbers else other.numbers[0],)
            for each in numbers:
                if (other.name, each) != (name, number):
                    yield (*chain[:place], (other.name, each), *chain[place + 1 :])


@cache
def _drawn(kind: str) -> tuple[Value, ...]:
    """Arguments to choose tests from."""
    rng, made = sample_rng("made arguments", kind), list[Value]()
    letters = list("abcdABCD")
    for _ in range(_DRAWN_ARGUMENTS):
        if kind == "L":
            made.append([int(one) for one in rng.integers(0, 10, size=rng.integers(3, 6))])
        elif kind == "I":
            made.append(int(rng.integers(10, 1000)))
        else:
            made.append("".join(rng.choice(letters, size=rng.integers(3, 6))))
    return tuple(made)


def _arguments(chain: Chain, rng: np.random.Generator, tests: int) -> tuple[Value, ...]:
    """The arguments that tell the chain from most of its near misses; none where they cannot."""
    offered = _drawn(_BY_NAME[chain[0][0]].takes)
    own = [_value(chain, one) for one in offered]
    if len({repr(one) for one in own}) < 3:
        return ()
    told = np.asarray(
        [[_value(miss, one) != value for one, value in zip(offered, own, strict=True)] for miss in _misses(chain)]
    )
    if not told.size:
        return ()
    left, chosen = np.ones(len(told), bool), list[int]()
    order = rng.permutation(len(offered))
    for _ in range(tests):
        caught = told[left].sum(0)
        best = max((int(at) for at in order if at not in chosen), key=lambda at: caught[at])
        chosen.append(best)
        left &= ~told[:, best]
    return tuple(offered[at] for at in chosen) if left.mean() <= 1 - _LEAST_CAUGHT else ()


# --------------------------------------------------------------------------------------- what is learned and asked
def write_suite(folder: Path, form: str, split: str, made: Sequence[Problem]) -> Path:
    """The problems as a file of HumanEval or MBPP; returns its path, which says the split."""
    path = folder / form / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps(one.row(form, number)) for number, one in enumerate(made)]
    write_atomic(path, "\n".join(rows) + "\n")
    return path


def source(problem: Problem, name: str, *, noted: bool) -> Source:
    """A problem's function as a piece of a corpus; bare, or with a comment on each line and one on several."""
    if not noted:
        return Source(name, problem.program, "python")
    lines = [
        part for said, line in zip(problem.said, problem.body, strict=True) for part in (f"    # {said}", f"    {line}")
    ]
    head = (
        (f"# {problem.told}",) if len(problem.said) > 1 else ()
    )  # a comment that comes again would be a repeated line
    return Source(name, "\n".join((*head, f"def {problem.name}({problem.taken}):", *lines, "")), "python")


def reply(problem: Problem, form: str) -> str:
    """What a model learns to answer: the body, or the whole function."""
    return problem.program.partition("\n")[2] if form == "humaneval" else problem.program


def low_value(count: int, *, seed: int) -> tuple[Source, ...]:
    """Code that teaches nothing: tables of numbers, and code with the mark of a generator.

    Rules find the mark, rows that come again, and tables of numbers; tables of names only a reader can tell.
    """
    made = []
    for number in range(count):
        rng = sample_rng("made low value", seed, number)
        cells = NAMES if number % 2 else tuple("0123456789")
        quote = "'" if number % 2 else ""
        rows = [", ".join(f"{quote}{one}{quote}" for one in rng.choice(cells, size=4)) for _ in range(6)]
        if number % 3 == 0:
            rows = [rows[int(at)] for at in rng.integers(0, 2, size=6)]
        head = ("# This file was generated by a tool.",) if number % 3 == 1 else ()
        lines = (*head, f"{rng.choice(NAMES)} = [", *(f"    [{row}]," for row in rows), "]", "")
        made.append(Source(f"low/{seed}/{number}", "\n".join(lines), "python"))
    return tuple(made)
