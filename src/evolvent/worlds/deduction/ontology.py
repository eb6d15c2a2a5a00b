"""Facts and rules about invented kinds of things, what follows from them, and the check of a proof step by step.

Facts say what somebody is ("anna is a dax", "anna is not red"); rules say what every thing of a kind is. Everything is
a sentence of a small grammar, written and read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import ConfigError

__all__ = ["Fact", "Predicate", "Rule", "Theory", "read_fact", "read_rule", "read_theory"]


class Predicate(NamedTuple):
    """What can be said of somebody: a kind ("a dax"), or a property that they have or have not ("red", "not red")."""

    word: str
    kind: bool = True
    positive: bool = True

    def __str__(self) -> str:
        return f"a {self.word}" if self.kind else self.word if self.positive else f"not {self.word}"


class Fact(NamedTuple):
    """That somebody is something."""

    who: str
    what: Predicate

    def __str__(self) -> str:
        return f"{self.who} is {self.what}"


@dataclass(frozen=True, slots=True)
class Rule:
    """That whoever is all (`join` "and") or one (`join` "or") of `body` is all of `heads`.

    Args:
        body: kinds, one or two.
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

    def gives(self, who: str, known: Iterable[Fact]) -> tuple[Fact, ...]:
        """What the rule says about somebody, as far as its body is known of them."""
        met = [Fact(who, kind) in known for kind in self.body]
        fires = all(met) if self.join == "and" else any(met)
        return tuple(Fact(who, head) for head in self.heads) if fires else ()


@dataclass(frozen=True, slots=True)
class Theory:
    """Facts and rules that are given."""

    facts: tuple[Fact, ...]
    rules: tuple[Rule, ...]

    def closure(self) -> frozenset[Fact]:
        """All that follows: the rules are applied until nothing new comes."""
        known = set(self.facts)
        people = sorted({fact.who for fact in self.facts})
        while True:
            new = {fact for rule in self.rules for who in people for fact in rule.gives(who, known)} - known
            if not new:
                return frozenset(known)
            known |= new

    def check(self, steps: Sequence[str]) -> tuple[bool, ...]:
        """The truth of each step of a proof.

        A step is right if it is a sentence that is given, or a fact that follows by one rule from facts that are given
        or were right steps before. Words only count: case, spaces and a last full stop do not.
        """
        known, verdicts = set(self.facts), []
        rules = {_plain(str(rule)) for rule in self.rules}
        for step in map(_plain, steps):
            fact = read_fact(step)
            if fact is None:
                verdicts.append(step in rules)
                continue
            right = fact in known or any(fact in rule.gives(fact.who, known) for rule in self.rules)
            verdicts.append(right)
            if right:
                known.add(fact)
        return tuple(verdicts)


def read_fact(text: str) -> Fact | None:
    """The fact that a sentence states; None where it states none."""
    found = re.fullmatch(r"(\w+) is (.+)", _plain(text))
    if found is None or found[1] in ("every", "everything", "that"):
        return None
    what = _predicate(found[2])
    return None if what is None else Fact(found[1], what)


def read_rule(text: str) -> Rule | None:
    """The rule that a sentence states; None where it states none."""
    found = re.fullmatch(
        r"(?:every (\w+)(?: or (\w+))?|everything that is a (\w+) and a (\w+)) is (.+?)(?: and (.+))?", _plain(text)
    )
    if found is None:
        return None
    body = tuple(Predicate(kind) for kind in found.groups()[:4] if kind)
    heads = [_predicate(head) for head in found.groups()[4:] if head]
    known = tuple(head for head in heads if head is not None)
    return Rule(body, known, "and" if found[3] else "or") if len(known) == len(heads) else None


def read_theory(sentences: Sequence[str]) -> Theory:
    """What these sentences give.

    Raises:
        ConfigError: one that states neither a fact nor a rule.
    """
    facts, rules = [], []
    for sentence in sentences:
        fact, rule = read_fact(sentence), read_rule(sentence)
        if fact is not None:
            facts.append(fact)
        elif rule is not None:
            rules.append(rule)
        else:
            raise ConfigError("a sentence that states no fact and no rule", value=sentence)
    return Theory(tuple(facts), tuple(rules))


def _predicate(text: str) -> Predicate | None:
    found = re.fullmatch(r"(a |not )?(\w+)", text)
    if found is None or found[2] in ("a", "not", "and", "or"):
        return None
    return Predicate(found[2], kind=found[1] == "a ", positive=found[1] != "not ")


def _plain(text: str) -> str:
    return " ".join(text.lower().replace(".", " ").split())
