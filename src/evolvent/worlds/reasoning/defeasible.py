"""Defeasible rules: what holds unless a preferred rule says otherwise, decided exactly.

A fact always holds. Otherwise rules decide: those that apply say what holds; where they disagree, the side wins whose
rules are preferred over every applying rule of the other side. Where no side wins, or no rule applies, nothing is
known. Rules must not depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = ["Literal", "Rule", "RuleBook"]


class Literal(NamedTuple):
    """That somebody can do something, or can not."""

    verb: str
    positive: bool = True

    def __str__(self) -> str:
        return f"can {'' if self.positive else 'not '}{self.verb}"


@dataclass(frozen=True, slots=True)
class Rule:
    """That whoever meets all conditions has the head, unless a preferred rule denies it."""

    conditions: tuple[Literal, ...]
    head: Literal

    def __str__(self) -> str:
        return f"whoever {' and '.join(map(str, self.conditions))} {self.head}"


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Facts, rules and preferences.

    Args:
        facts: (who, literal).
        rules: in the order of their numbers.
        preferred: (the number of a rule, the number of one that it beats).
    """

    facts: frozenset[tuple[str, Literal]]
    rules: tuple[Rule, ...]
    preferred: frozenset[tuple[int, int]]

    def holds(self, who: str, verb: str, above: Sequence[str] = ()) -> bool | None:
        """True: they can; False: they can not; None: not known.

        Args:
            above: the verbs on whose behalf this is asked.
        Raises:
            ConfigError: rules that depend on each other in a circle, or facts that contradict each other.
        """
        if verb in above:
            raise ConfigError("rules that depend on each other in a circle", value=[*above, verb])
        given = [positive for positive in (True, False) if (who, Literal(verb, positive)) in self.facts]
        if len(given) > 1:
            raise ConfigError("facts that contradict each other", value=f"{who} can and can not {verb}")
        if given:
            return given[0]
        applying = [
            (number, rule.head.positive)
            for number, rule in enumerate(self.rules)
            if rule.head.verb == verb
            and all(self.holds(who, one.verb, (*above, verb)) is one.positive for one in rule.conditions)
        ]
        for_it, against = ([number for number, says in applying if says is side] for side in (True, False))
        if self._beats(for_it, against):
            return True
        return False if self._beats(against, for_it) else None

    def _beats(self, side: Collection[int], other: Collection[int]) -> bool:
        """Whether a side says something, and something preferred to each rule of the other one."""
        return bool(side) and all(any((one, two) in self.preferred for one in side) for two in other)
