"""Aggregation of many solutions to one answer: by the best score, by a vote weighted by scores, by majority.

Sources: OpenR (arXiv 2410.09671) for process rewards, TS-LLM (arXiv 2309.17179) for outcome rewards,
self-consistency (arXiv 2203.11171) for the majority.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from evolvent.errors import ConfigError, Problem
from evolvent.search.records import SearchResult, State
from evolvent.search.tree import Tree

__all__ = [
    "Answer",
    "Choice",
    "Rule",
    "Same",
    "Sample",
    "Span",
    "aggregate",
    "collect_all_samples",
    "collect_samples",
    "group_answers",
]

Answer = Callable[[State], Hashable | None]  # reads the answer of a finished state; None: there is none to be read
Same = Callable[[object, object], bool]  # whether two answers are one, as the grader sees it
Span = Literal["min", "last", "prod", "outcome"]
Rule = Literal["max", "vote", "majority"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One solution of a problem.

    Args:
        answer: its answer; None: no answer could be read.
        scores: r_1..r_T of its spans, by a process reward model; empty: it was not scored.
        count: how many equal solutions it represents.
        outcome: the score of the complete solution, by an outcome reward model.
        origin: the search and the node of its tree that it came from.
    Raises:
        ConfigError: a score that is not finite, or a count below 1.
    """

    answer: Hashable | None
    scores: tuple[float, ...] = ()
    count: int = 1
    outcome: float | None = None
    origin: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem(f"scores[{index}]", f"got {score}, expected finite")
            for index, score in enumerate(self.scores)
            if not math.isfinite(score)
        ]
        if self.outcome is not None and not math.isfinite(self.outcome):
            problems.append(Problem("outcome", f"got {self.outcome}, expected finite"))
        if self.count < 1:
            problems.append(Problem("count", f"got {self.count}, expected 1 or more"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class Choice:
    """The selected answer and its weight.

    Args:
        answer: as it was first written; None: there was no other.
        weight: the total weight of the answer. best_sample: the index of its best sample; None: no sample counted.
        answers, weights: all different answers, in the order in which they were seen, and their weights.
        shares: the weights over their sum; None where a weight is negative or all are 0.
        unscored: solutions that were left out, because the rule needs a score that they do not have.
        unread: solutions of which no answer could be read.
    """

    answer: Hashable | None
    weight: float
    best_sample: int | None
    answers: tuple[Hashable | None, ...]
    weights: tuple[float, ...]
    shares: tuple[float, ...] | None
    unscored: int
    unread: int

    @property
    def share(self) -> float | None:
        """Returns the share of the selected answer; no other is larger."""
        return max(self.shares, default=None) if self.shares is not None else None


def aggregate(samples: Sequence[Sample], *, span: Span, rule: Rule, same: Same | None = None) -> Choice:
    """Chooses among the answers of all solutions of one problem.

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
    _check_options(span, rule)
    counted = [index for index, sample in enumerate(samples) if rule == "majority" or _has_score(sample, span)]
    unscored = sum(sample.count for sample in samples) - sum(samples[index].count for index in counted)
    unread = sum(sample.count for sample in samples if sample.answer is None)
    if not counted:
        return Choice(None, 0.0, None, (), (), (), unscored, unread)
    values, power = _sample_values([samples[index] for index in counted], span, rule)
    value_by_index = dict(zip(counted, values, strict=True))
    groups = _group_samples(samples, counted, same)
    weights = [_weight([(value_by_index[index], samples[index].count) for index in group], rule) for group in groups]
    best = max(range(len(groups)), key=weights.__getitem__)  # the first of equal ones
    answers = tuple(samples[group[0]].answer for group in groups)
    total_weights = tuple(_scale(weight, power) for weight in weights)
    best_sample = max(groups[best], key=value_by_index.__getitem__)
    return Choice(
        answers[best], total_weights[best], best_sample, answers, total_weights, _shares(weights), unscored, unread
    )


def group_answers(answers: Sequence[Hashable | None], *, same: Same | None = None) -> tuple[int, ...]:
    """Groups answers and returns the group of each, numbered in the order in which they were first seen; -1 for
    None.

    An answer is compared with the first of each group, `same(first, answer)`, and joins the first that fits; equal
    answers are in one group without being compared.
    """
    number_by_answer: dict[Hashable, int] = {}
    firsts: list[Hashable] = []
    numbers = []
    for answer in answers:
        if answer is None:
            numbers.append(-1)
            continue
        if answer not in number_by_answer:
            fits = (number for number, first in enumerate(firsts) if same is not None and same(first, answer))
            number_by_answer[answer] = next(fits, len(firsts))
            if number_by_answer[answer] == len(firsts):
                firsts.append(answer)
        numbers.append(number_by_answer[answer])
    return tuple(numbers)


def collect_samples(result: SearchResult, answer: Answer, *, number: int = 0) -> list[Sample]:
    """Collects the solutions of a search, each once with its count, in the order in which the search reached them.

    Their scores are those of all spans from the root to the end; a path without any has the values of its nodes
    instead, if all of them were valued. The outcome is the value of the end.

    Args:
        answer: reads the answer of a state. number: of the search, for `Sample.origin`.
    """
    tree = result.tree
    samples = []
    for node, count in Counter(result.finished).items():
        value = float(tree.value[node])
        scores = tree.spans(node) or _path_values(tree, node)
        samples.append(
            Sample(answer(tree.states[node]), scores, count, value if math.isfinite(value) else None, (number, node))
        )
    return samples


def collect_all_samples(results: Sequence[SearchResult], answer: Answer) -> list[Sample]:
    """Collects the solutions of several searches of one problem, search by search."""
    return [
        sample for number, result in enumerate(results) for sample in collect_samples(result, answer, number=number)
    ]


def _check_options(span: Span, rule: Rule) -> None:
    options = (("span", span, get_args(Span)), ("rule", rule, get_args(Rule)))
    problems = [
        Problem(name, f"got {value!r}, expected one of {', '.join(allowed)}")
        for name, value, allowed in options
        if value not in allowed
    ]
    if problems:
        raise ConfigError(problems)


def _path_values(tree: Tree, node: int) -> tuple[float, ...]:
    values = tree.value[tree.path(node)[1:]]
    return tuple(map(float, values)) if np.isfinite(values).all() else ()


def _has_score(sample: Sample, span: Span) -> bool:
    return sample.outcome is not None if span == "outcome" else bool(sample.scores)


def _group_samples(samples: Sequence[Sample], counted: Sequence[int], same: Same | None) -> list[list[int]]:
    """Groups the samples by answer; samples without an answer count only where there are no others."""
    readable = [index for index in counted if samples[index].answer is not None]
    if not readable:
        return [list(counted)]
    numbers = group_answers([samples[index].answer for index in readable], same=same)
    groups: list[list[int]] = [[] for _ in range(max(numbers) + 1)]
    for index, number in zip(readable, numbers, strict=True):
        groups[number].append(index)
    return groups


def _sample_values(samples: Sequence[Sample], span: Span, rule: Rule) -> tuple[list[float], int]:
    """Returns v of each sample, and the power of two by which all of them are still to be multiplied."""
    if rule == "majority":
        return [1.0] * len(samples), 0
    if span == "prod":
        products = [_scaled_product(sample.scores) for sample in samples]
        powers = [power for digits, power in products if digits > 0] or [power for _, power in products]
        return [_scale(digits, power - max(powers)) for digits, power in products], max(powers)
    if span != "outcome":
        return [min(sample.scores) if span == "min" else sample.scores[-1] for sample in samples], 0
    outcomes = [float(sample.outcome or 0.0) for sample in samples]
    if rule == "max":
        return outcomes, 0
    halves = [half / 2 for half in outcomes]  # so that the range of the largest numbers is a number too
    spread = max(halves) - min(halves)
    return [(half - min(halves)) / spread if spread > 0 else 1.0 for half in halves], 0


def _scaled_product(scores: Sequence[float]) -> tuple[float, int]:
    """Computes the product as digits and a power of two, so that a product of many small scores is not rounded to 0."""
    digits, power = 1.0, 0
    for score in scores:
        part, exponent = math.frexp(score)
        digits, carry = math.frexp(digits * part)
        power += exponent + carry
    return digits, power


def _scale(value: float, power: int) -> float:
    """Computes value * 2^power; infinite where that is too large for a float."""
    try:
        return math.ldexp(value, power)
    except OverflowError:
        return math.copysign(math.inf, value)


def _weight(values: Sequence[tuple[float, int]], rule: Rule) -> float:
    if rule == "max":
        return max(value for value, _ in values)
    return math.fsum(value * count for value, count in values)


def _shares(weights: Sequence[float]) -> tuple[float, ...] | None:
    largest = max(weights)
    if min(weights) < 0 or largest <= 0:
        return None
    total = math.fsum(weight / largest for weight in weights)
    return tuple(weight / largest / total for weight in weights)
