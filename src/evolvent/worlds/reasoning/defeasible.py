"""Defeasible rules, decided exactly: a conclusion stands unless a preferred rule contradicts it.

A fact always holds. Otherwise the applicable rules decide. If they disagree, a side wins if each applicable
rule of the other side is beaten by a preferred rule of this side. If no side wins, or no rule applies, the
answer is unknown. Rules must not depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = ["Literal", "Rule", "RuleBook"]


class Literal(NamedTuple):
    """The statement that somebody can, or cannot, do something."""

    verb: str
    positive: bool = True

    def __str__(self) -> str:
        return f"can {'' if self.positive else 'not '}{self.verb}"


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule that whoever meets all conditions also satisfies the head, unless a preferred rule denies it."""

    conditions: tuple[Literal, ...]
    head: Literal

    def __str__(self) -> str:
        return f"whoever {' and '.join(map(str, self.conditions))} {self.head}"


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Facts, rules and preferences.

    Args:
        facts: pairs (name of the animal or person, literal).
        rules: in the order of their numbers.
        preferred: pairs (number of a rule, number of a rule that it beats).
    """

    facts: frozenset[tuple[str, Literal]]
    rules: tuple[Rule, ...]
    preferred: frozenset[tuple[int, int]]

    def holds(self, subject: str, verb: str, pending_verbs: Sequence[str] = ()) -> bool | None:
        """Returns True if the subject can do it, False if the subject cannot, None if it is unknown.

        Args:
            pending_verbs: the verbs whose decision depends on this one.
        Raises:
            ConfigError: rules that depend on each other in a circle, or facts that contradict each other.
        """
        if verb in pending_verbs:
            raise ConfigError("rules that depend on each other in a circle", value=[*pending_verbs, verb])
        known_facts = [positive for positive in (True, False) if (subject, Literal(verb, positive)) in self.facts]
        if len(known_facts) > 1:
            raise ConfigError("facts that contradict each other", value=f"{subject} can and can not {verb}")
        if known_facts:
            return known_facts[0]
        applicable = [
            (number, rule.head.positive)
            for number, rule in enumerate(self.rules)
            if rule.head.verb == verb
            and all(
                self.holds(subject, condition.verb, (*pending_verbs, verb)) is condition.positive
                for condition in rule.conditions
            )
        ]
        supporting, opposing = (
            [number for number, positive_head in applicable if positive_head is side] for side in (True, False)
        )
        if self._beats(supporting, opposing):
            return True
        return False if self._beats(opposing, supporting) else None

    def _beats(self, side: Collection[int], opponents: Collection[int]) -> bool:
        """Returns whether a side has rules, and a preferred rule against each rule of the opponents."""
        return bool(side) and all(any((winner, loser) in self.preferred for winner in side) for loser in opponents)
