"""From many solutions to one answer: by the best score, by a vote weighted by scores, by majority.

Sources: OpenR (arXiv 2410.09671) for process rewards, TS-LLM (arXiv 2309.17179) for outcome rewards, self-consistency
(arXiv 2203.11171) for the majority.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from evolvent.errors import ConfigError, Problem
from evolvent.search.records import SearchResult, State
from evolvent.search.tree import Tree

__all__ = ["Answer", "Choice", "Rule", "Same", "Sample", "Span", "aggregate", "grouped", "samples_of", "together"]

Answer = Callable[[State], Hashable | None]  # reads the answer of a finished state; None: there is none to be read
Same = Callable[[Any, Any], bool]  # whether two answers are one, as the grader sees it
Span = Literal["min", "last", "prod", "outcome"]
Rule = Literal["max", "vote", "majority"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One solution of a problem.

    Args:
        answer: what it comes to; None: no answer could be read.
        scores: r_1..r_T of its spans, by a process reward model; empty: it was not scored.
        count: how many equal solutions it stands for.
        outcome: the score of the whole, by an outcome reward model.
        place: which search and which node of its tree it came from.
    Raises:
        ConfigError: a score that is not finite, or a count below 1.
    """

    answer: Hashable | None
    scores: tuple[float, ...] = ()
    count: int = 1
    outcome: float | None = None
    place: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"scores[{at}]", f"must be finite, got {score}")
            for at, score in enumerate(self.scores)
            if not math.isfinite(score)
        ]
        if self.outcome is not None and not math.isfinite(self.outcome):
            problems.append(Problem("outcome", f"must be finite, got {self.outcome}"))
        if self.count < 1:
            problems.append(Problem("count", f"must be 1 or more, got {self.count}"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer that was chosen, and what spoke for it.

    Args:
        answer: as it was first written; None: there was no other.
        weight: what spoke for it. chosen: the sample that stands for it, its best one; None: no sample counted.
        answers, weights: all answers that differ, in the order in which they were seen, and what spoke for each.
        shares: the weights over their sum; None where a weight is negative or all are 0.
        unscored: solutions that were left out, because the rule needs a score that they do not have.
        unread: solutions of which no answer could be read.
    """

    answer: Hashable | None
    weight: float
    chosen: int | None
    answers: tuple[Hashable | None, ...]
    weights: tuple[float, ...]
    shares: tuple[float, ...] | None
    unscored: int
    unread: int

    @property
    def share(self) -> float | None:
        """The share of the answer that was chosen; no other is larger."""
        return max(self.shares, default=None) if self.shares is not None else None


def aggregate(samples: Sequence[Sample], *, span: Span, rule: Rule, same: Same | None = None) -> Choice:
    """Choose among the answers of all solutions of one problem.

    A solution's v is the least (`min`) of its span scores, the `last`, their product (`prod`), or its `outcome`.
    `max` takes the answer of the largest v, `vote` that with the largest sum of v, `majority` that of most solutions
    (v = 1). A vote of outcomes first maps v to [0, 1] over all solutions of the problem, (v - min) / (max - min), as
    TS-LLM does; where all v are equal each becomes 1. Solutions without the score that a rule needs are left out and
    counted. Those without an answer win only where there is no other. Of equal weights the answer seen first wins.

    Args:
        samples: in the order in which they were found. same: whether two answers are one; None: if they are equal.
    Raises:
        ConfigError: an unknown span or rule.
    """
    _check(span, rule)
    counted = [at for at, sample in enumerate(samples) if rule == "majority" or _has(sample, span)]
    unscored = sum(sample.count for sample in samples) - sum(samples[at].count for at in counted)
    unread = sum(sample.count for sample in samples if sample.answer is None)
    if not counted:
        return Choice(None, 0.0, None, (), (), (), unscored, unread)
    values, power = _values([samples[at] for at in counted], span, rule)
    value = dict(zip(counted, values, strict=True))
    groups = _groups(samples, counted, same)
    weights = [_weight([(value[at], samples[at].count) for at in group], rule) for group in groups]
    best = max(range(len(groups)), key=weights.__getitem__)  # the first of equal ones
    answers = tuple(samples[group[0]].answer for group in groups)
    whole = tuple(_times(weight, power) for weight in weights)
    chosen = max(groups[best], key=value.__getitem__)
    return Choice(answers[best], whole[best], chosen, answers, whole, _shares(weights), unscored, unread)


def grouped(answers: Sequence[Hashable | None], *, same: Same | None = None) -> tuple[int, ...]:
    """The group of each answer, numbered in the order in which they were first seen; -1 for None.

    An answer is compared with the first of each group, `same(first, answer)`, and joins the first that fits; equal
    ones are of one group without being compared.
    """
    known: dict[Hashable, int] = {}
    firsts: list[Hashable] = []
    found = []
    for answer in answers:
        if answer is None:
            found.append(-1)
            continue
        if answer not in known:
            fits = (number for number, first in enumerate(firsts) if same is not None and same(first, answer))
            known[answer] = next(fits, len(firsts))
            if known[answer] == len(firsts):
                firsts.append(answer)
        found.append(known[answer])
    return tuple(found)


def samples_of(result: SearchResult, answer: Answer, *, number: int = 0) -> list[Sample]:
    """The solutions that a search came to, each once with its count, in the order in which it came to them.

    Their scores are those of all spans from the root to the end; a path without any has the values of its nodes
    instead, if all of them were valued. The outcome is the value of the end.

    Args:
        answer: reads the answer of a state. number: of the search, for `Sample.place`.
    """
    tree = result.tree
    found = []
    for node, count in Counter(result.finished).items():
        value = float(tree.value[node])
        scores = tree.spans(node) or _path_values(tree, node)
        found.append(
            Sample(answer(tree.states[node]), scores, count, value if math.isfinite(value) else None, (number, node))
        )
    return found


def together(results: Sequence[SearchResult], answer: Answer) -> list[Sample]:
    """The solutions of several searches of one problem: those of the first, then those of the second, and so on."""
    return [sample for number, each in enumerate(results) for sample in samples_of(each, answer, number=number)]


def _check(span: Span, rule: Rule) -> None:
    known = (("span", span, get_args(Span)), ("rule", rule, get_args(Rule)))
    wrong = [
        Problem(name, f"must be one of {', '.join(names)}, got {given!r}")
        for name, given, names in known
        if given not in names
    ]
    if wrong:
        raise ConfigError(wrong)


def _path_values(tree: Tree, node: int) -> tuple[float, ...]:
    values = tree.value[tree.path(node)[1:]]
    return tuple(map(float, values)) if np.isfinite(values).all() else ()


def _has(sample: Sample, span: Span) -> bool:
    return sample.outcome is not None if span == "outcome" else bool(sample.scores)


def _groups(samples: Sequence[Sample], counted: Sequence[int], same: Same | None) -> list[list[int]]:
    """The samples by answer; those without an answer only where there are no others."""
    readable = [at for at in counted if samples[at].answer is not None]
    if not readable:
        return [list(counted)]
    numbers = grouped([samples[at].answer for at in readable], same=same)
    groups: list[list[int]] = [[] for _ in range(max(numbers) + 1)]
    for at, number in zip(readable, numbers, strict=True):
        groups[number].append(at)
    return groups


def _values(samples: Sequence[Sample], span: Span, rule: Rule) -> tuple[list[float], int]:
    """v of each sample, and the power of two that all of them are still to be multiplied by."""
    if rule == "majority":
        return [1.0] * len(samples), 0
    if span == "prod":
        products = [_product(sample.scores) for sample in samples]
        powers = [power for digits, power in products if digits > 0] or [power for _, power in products]
        return [_times(digits, power - max(powers)) for digits, power in products], max(powers)
    if span != "outcome":
        return [min(sample.scores) if span == "min" else sample.scores[-1] for sample in samples], 0
    outcomes = [float(sample.outcome or 0.0) for sample in samples]
    if rule == "max":
        return outcomes, 0
    halves = [each / 2 for each in outcomes]  # so that the range of the largest numbers is a number too
    spread = max(halves) - min(halves)
    return [(each - min(halves)) / spread if spread > 0 else 1.0 for each in halves], 0


def _product(scores: Sequence[float]) -> tuple[float, int]:
    """The product as digits and a power of two, so that one of many small scores is not rounded to 0."""
    digits, power = 1.0, 0
    for score in scores:
        part, by = math.frexp(score)
        digits, more = math.frexp(digits * part)
        power += by + more
    return digits, power


def _times(value: float, power: int) -> float:
    """value * 2^power; infinite where that is too large for a float."""
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.copysign(math.inf, value)


def _weight(values: Sequence[tuple[float, int]], rule: Rule) -> float:
    if rule == "max":
        return max(value for value, _ in values)
    return math.fsum(value * count for value, count in values)


def _shares(weights: Sequence[float]) -> tuple[float, ...] | None:
    most = max(weights)
    if min(weights) < 0 or most <= 0:
        return None
    total = math.fsum(weight / most for weight in weights)
    return tuple(weight / most / total for weight in weights)
