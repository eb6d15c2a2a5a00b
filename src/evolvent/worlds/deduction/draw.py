"""Drawing deductions: two people, a chain of rules for each, and a statement about one of them.

Both chains have the same form and end in the same property, which one of the two people has and the other has not. So
the words of a question are the same whatever the answer: only following the chain from the one asked about tells.

Saparov and He, "Language Models Are Greedy Reasoners" (PrOntoQA, arXiv 2210.01240): chains over an invented ontology
with distractors; the rules with "and" and "or" are of the kind of its successor (arXiv 2305.15269).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from evolvent.worlds.deduction.ontology import Fact, Predicate, Rule, Theory

__all__ = ["ENDS", "PARTS", "Deduced", "deduce"]

PARTS: tuple[str, ...] = ("is", "both", "or", "and")
"""The forms of rules: one kind to one; to two; one of two kinds; all of two kinds."""
ENDS: tuple[str, ...] = ("ends", "ends or", "ends and")
"""The forms of the last rule of a chain, which gives or denies the property."""


@dataclass(frozen=True, slots=True)
class Deduced:
    """A deduction, drawn.

    Args:
        theory: what is given, in the order in which it is told.
        given: the same as sentences.
        asked: the statement.
        true: whether it follows; else its opposite does.
        proof: the sentences of the shortest proof, facts and rules in turn, conclusions included.
    """

    theory: Theory
    given: tuple[str, ...]
    asked: Fact
    true: bool
    proof: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """The facts and rules that lead somebody to the property, and the proof of it."""

    facts: list[Fact]
    rules: list[Rule]
    proof: list[str]


def deduce(chain: Sequence[str], rng: Random, *, true: bool) -> Deduced:
    """A deduction along a chain of rule forms, with the answer wanted; names are roles.

    Args:
        chain: forms of rules, the last one of `ENDS`.
        rng: where everything else comes from.
        true: the answer wanted.
    """
    kinds = iter([Predicate(f"{{kind{number}}}") for number in range(4 * len(chain) + 2)])
    positive = rng.random() < 0.5
    chains = [
        _led(chain, f"{{person{place}}}", Predicate("{property0}", kind=False, positive=has), kinds=kinds, rng=rng)
        for place, has in enumerate((positive, not positive))
    ]
    given = [sentence for led in chains for sentence in (*led.facts, *led.rules)]
    rng.shuffle(given)
    theory = Theory(
        tuple(one for one in given if isinstance(one, Fact)), tuple(one for one in given if isinstance(one, Rule))
    )
    asked = Fact("{person0}", Predicate("{property0}", kind=False, positive=positive == true))
    return Deduced(theory, tuple(map(str, given)), asked, true, tuple(chains[0].proof))


def _led(chain: Sequence[str], who: str, goal: Predicate, *, kinds: Iterator[Predicate], rng: Random) -> _Chain:
    """The chain of one person, over kinds of its own."""
    have = Fact(who, next(kinds))
    led = _Chain([have], [], [str(have)])
    for form in chain:
        then = goal if form in ENDS else next(kinds)
        join = form.removeprefix("ends").strip() or "is"
        body, heads = [have.what], [then]
        if join in ("or", "and"):
            body.append(next(kinds))
        if join == "and":
            more = Fact(who, body[1])
            led.facts.append(more)
            led.proof.append(str(more))
        if join == "both":
            heads.append(next(kinds))
        rng.shuffle(body)
        rng.shuffle(heads)
        rule = Rule(tuple(body), tuple(heads), "and" if join == "and" else "or")
        have = Fact(who, then)
        led.rules.append(rule)
        led.proof += [str(rule), str(have)]
    return led
