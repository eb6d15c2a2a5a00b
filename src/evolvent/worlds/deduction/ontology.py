"""Facts and rules about invented kinds, their consequences, and the step-by-step check of a proof.

Facts say what somebody is ("anna is a dax", "anna is not red"); rules say what every thing of a kind is. Everything is
a sentence of a small grammar, written and read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = ["Fact", "Predicate", "Rule", "Theory", "parse_fact", "parse_rule", "parse_theory"]


class Predicate(NamedTuple):
    """A kind ("a dax"), or a property that somebody has or lacks ("red", "not red")."""

    word: str
    kind: bool = True
    positive: bool = True

    def __str__(self) -> str:
        return f"a {self.word}" if self.kind else self.word if self.positive else f"not {self.word}"


class Fact(NamedTuple):
    """The statement that a subject has a predicate."""

    subject: str
    predicate: Predicate

    def __str__(self) -> str:
        return f"{self.subject} is {self.predicate}"


@dataclass(frozen=True, slots=True)
class Rule:
    """The statement that every member of all (`join` "and") or one (`join` "or") of `body` belongs to all of
    `heads`.

    Args:
        body: kinds, one or two.
        heads: the predicates that follow.
        join: "and" or "or"; it means nothing for one kind.
    """

    body: tuple[Predicate, ...]
    heads: tuple[Predicate, ...]
    join: str = "or"

    def __str__(self) -> str:
        then = " and ".join(map(str, self.heads))
        if len(self.body) > 1 and self.join == "and":
            return f"everything that is {self.body[0]} and {self.body[1]} is {then}"
        return f"every {' or '.join(kind.word for kind in self.body)} is {then}"

    def derive(self, subject: str, known_facts: Iterable[Fact]) -> tuple[Fact, ...]:
        """Returns the facts that the rule derives about a subject, as far as its body is known."""
        satisfied = [Fact(subject, kind) in known_facts for kind in self.body]
        applies = all(satisfied) if self.join == "and" else any(satisfied)
        return tuple(Fact(subject, head) for head in self.heads) if applies else ()


@dataclass(frozen=True, slots=True)
class Theory:
    """The given facts and rules."""

    facts: tuple[Fact, ...]
    rules: tuple[Rule, ...]

    def closure(self) -> frozenset[Fact]:
        """Computes all consequences: the rules are applied until no new fact appears."""
        derived = set(self.facts)
        people = sorted({fact.subject for fact in self.facts})
        while True:
            new = {fact for rule in self.rules for person in people for fact in rule.derive(person, derived)} - derived
            if not new:
                return frozenset(derived)
            derived |= new

    def check(self, steps: Sequence[str]) -> tuple[bool, ...]:
        """Checks each step of a proof.

        A step is valid if it is a given sentence, or a fact that follows by one rule from given facts or from earlier
        valid steps. Only words count: case, spaces and a final full stop do not.
        """
        derived, verdicts = set(self.facts), []
        rules = {_normalize(str(rule)) for rule in self.rules}
        for step in map(_normalize, steps):
            fact = parse_fact(step)
            if fact is None:
                verdicts.append(step in rules)
                continue
            is_valid = fact in derived or any(fact in rule.derive(fact.subject, derived) for rule in self.rules)
            verdicts.append(is_valid)
            if is_valid:
                derived.add(fact)
        return tuple(verdicts)


def parse_fact(text: str) -> Fact | None:
    """Parses the fact that a sentence states; returns None where it states none."""
    match = re.fullmatch(r"(\w+) is (.+)", _normalize(text))
    if match is None or match[1] in ("every", "everything", "that"):
        return None
    predicate = _parse_predicate(match[2])
    return None if predicate is None else Fact(match[1], predicate)


def parse_rule(text: str) -> Rule | None:
    """Parses the rule that a sentence states; returns None where it states none."""
    match = re.fullmatch(
        r"(?:every (\w+)(?: or (\w+))?|everything that is a (\w+) and a (\w+)) is (.+?)(?: and (.+))?", _normalize(text)
    )
    if match is None:
        return None
    body = tuple(Predicate(kind) for kind in match.groups()[:4] if kind)
    heads = [_parse_predicate(head) for head in match.groups()[4:] if head]
    parsed_heads = tuple(head for head in heads if head is not None)
    return Rule(body, parsed_heads, "and" if match[3] else "or") if len(parsed_heads) == len(heads) else None


def parse_theory(sentences: Sequence[str]) -> Theory:
    """Parses sentences into a theory.

    Raises:
        ConfigError: one that states neither a fact nor a rule.
    """
    facts, rules = [], []
    for sentence in sentences:
        fact, rule = parse_fact(sentence), parse_rule(sentence)
        if fact is not None:
            facts.append(fact)
        elif rule is not None:
            rules.append(rule)
        else:
            raise ConfigError("a sentence that states no fact and no rule", value=sentence)
    return Theory(tuple(facts), tuple(rules))


def _parse_predicate(text: str) -> Predicate | None:
    match = re.fullmatch(r"(a |not )?(\w+)", text)
    if match is None or match[2] in ("a", "not", "and", "or"):
        return None
    return Predicate(match[2], kind=match[1] == "a ", positive=match[1] != "not ")


def _normalize(text: str) -> str:
    return " ".join(text.lower().replace(".", " ").split())
