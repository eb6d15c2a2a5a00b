"""Word problems as templates: people who have things, each told by the one before, and a question at the end.

    anna has 12 apples . boris has 5 more apples than anna . how many apples do anna and boris have together ?

A story is drawn from a chain of relations that ends with what is asked. Names are roles (`naming`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["ASKED", "MOST", "RELATIONS", "WORDS", "Line", "Story", "tell"]

MOST = 99
"""The largest number in a story."""
RELATIONS: tuple[str, ...] = ("more", "buys", "times", "fewer", "loses", "share")
ASKED: tuple[str, ...] = ("own", "both", "gap")
WORDS = (
    "has more than fewer times as many and . then how do does have together ? in all "
    "def solution ( ) : = + - * / return"
)
_FIRST, _MORE = 60, 30  # the largest number to begin with; what is added or taken is below the second
_SYMBOLS = {"more": "+", "buys": "+", "times": "*", "fewer": "-", "loses": "-", "share": "/"}
_SENTENCES = {
    "more": "{new} has {n} more {thing} than {old} .",
    "fewer": "{new} has {n} fewer {thing} than {old} .",
    "times": "{new} has {n} times as many {thing} as {old} .",
    "share": "{old} has {n} times as many {thing} as {new} .",
    "buys": "then {old} {gets} {n} {thing} .",
    "loses": "then {old} {loses} {n} {thing} .",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One step of the solution: `who` has `left symbol by = value`; the first has a value only.

    Args:
        who: the person's role.
        source: whose number `left` is.
    """

    who: str
    value: int
    source: str = ""
    left: int = 0
    symbol: str = ""
    by: int = 0


@dataclass(frozen=True, slots=True)
class Story:
    """A problem: its sentences, the steps of its solution, what is asked, and the answer.

    Args:
        asked: one of `ASKED`: what the last person has, the last two together, or the larger's lead.
        pair: the two people that `both` and `gap` ask of, the larger first for `gap`.
    """

    sentences: tuple[str, ...]
    lines: tuple[Line, ...]
    asked: str
    pair: tuple[str, str]
    answer: int

    @property
    def question(self) -> str:
        """The sentence that asks."""
        first, second = self.pair
        if self.asked == "own":
            return f"how many {{thing0}} does {second} have ?"
        if self.asked == "both":
            return f"how many {{thing0}} do {first} and {second} have {{together0}} ?"
        return f"how many more {{thing0}} does {first} have than {second} ?"

    @property
    def rationale(self) -> tuple[str, ...]:
        """The solution in equations."""
        told = [
            f"{line.who} has {line.left} {line.symbol} {line.by} = {line.value}"
            if line.symbol
            else f"{line.who} has {line.value}"
            for line in self.lines
        ]
        if self.asked != "own":
            first, second = self.holdings
            told.append(f"{first} {'+' if self.asked == 'both' else '-'} {second} = {self.answer}")
        return tuple(told)

    @property
    def program(self) -> str:
        """The solution as the body of a function, on one line; people are its variables."""
        told = [
            f"{line.who} = {line.source} {line.symbol} {line.by}" if line.symbol else f"{line.who} = {line.value}"
            for line in self.lines
        ]
        first, second = self.pair
        sign = {"own": "", "both": f"{first} + ", "gap": f"{first} - "}[self.asked]
        return " ; ".join([*told, f"return {sign}{second}"])

    @property
    def holdings(self) -> tuple[int, int]:
        """What the two people asked of have at the end."""
        last = {line.who: line.value for line in self.lines}
        return last[self.pair[0]], last[self.pair[1]]


def tell(relations: Sequence[str], asked: str, rng: Random) -> Story | None:
    """A story of these relations; None where the draw leaves 1 to `MOST` or there is nobody to compare with."""
    lines = [Line("{person0}", rng.randint(2, _FIRST))]
    sentences = [f"{{person0}} has {lines[0].value} {{thing0}} ."]
    for relation in relations:
        line = _line(relation, lines, rng)
        if line is None:
            return None
        words = {"new": line.who, "old": lines[-1].who, "n": line.by, "thing": "{thing0}"}
        sentences.append(_SENTENCES[relation].format(**words, gets="{gets0}", loses="{loses0}"))
        lines.append(line)
    people = list(dict.fromkeys(line.who for line in lines))
    if asked != "own" and len(people) < 2:
        return None
    pair = (people[-2], people[-1]) if len(people) > 1 else (people[-1], people[-1])
    last = {line.who: line.value for line in lines}
    if asked == "gap" and last[pair[0]] < last[pair[1]]:
        pair = (pair[1], pair[0])
    first, second = last[pair[0]], last[pair[1]]
    answer = {"own": last[people[-1]], "both": first + second, "gap": first - second}[asked]
    if not 1 <= answer <= MOST:
        return None
    noise = rng.randint(1, len(sentences))
    sentences[noise:noise] = _noise(len(people), rng)
    return Story(tuple(sentences), tuple(lines), asked, pair, answer)


def _line(relation: str, lines: Sequence[Line], rng: Random) -> Line | None:
    """The next step; None where no number fits."""
    before = lines[-1]
    symbol = _SYMBOLS[relation]
    fitting = [by for by in range(2, 6 if symbol in "*/" else _MORE) if _made(before.value, symbol, by) is not None]
    if not fitting:
        return None
    by = rng.choice(fitting)
    people = len({line.who for line in lines})
    who = before.who if relation in ("buys", "loses") else f"{{person{people}}}"
    return Line(who, _made(before.value, symbol, by) or 0, before.who, before.value, symbol, by)


def _made(left: int, symbol: str, by: int) -> int | None:
    if symbol == "/":
        return left // by if left % by == 0 else None
    made = left + by if symbol == "+" else left - by if symbol == "-" else left * by
    return made if 1 <= made <= MOST else None


def _noise(people: int, rng: Random) -> list[str]:
    """In half of the stories, somebody who has nothing to do with it."""
    if rng.random() < 0.5:
        return []
    return [f"{{person{people}}} has {rng.randint(2, _FIRST)} {{thing0}} ."]
