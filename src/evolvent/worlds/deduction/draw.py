"""Draws deductions: two people, a chain of rules for each, and a statement about one of them.

Both chains have the same form and end in the same property, which one of the two people has and the other lacks. So
the words of a question are the same whatever the answer: only the chain of the person in question decides.

Saparov and He, "Language Models Are Greedy Reasoners" (PrOntoQA, arXiv 2210.01240): chains over an invented ontology
with distractors; the rules with "and" and "or" are of the kind of its successor (arXiv 2305.15269).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from evolvent.worlds.deduction.ontology import Fact, Predicate, Rule, Theory

__all__ = ["ENDS", "PARTS", "DrawnDeduction", "draw_deduction"]

PARTS: tuple[str, ...] = ("is", "both", "or", "and")
"""The forms of rules: one kind to one; to two; one of two kinds; all of two kinds."""
ENDS: tuple[str, ...] = ("ends", "ends or", "ends and")
"""The forms of the last rule of a chain, which gives or denies the property."""


@dataclass(frozen=True, slots=True)
class DrawnDeduction:
    """A drawn deduction.

    Args:
        theory: the given facts and rules, in the order of the sentences.
        sentences: the same as text.
        statement: the statement to judge.
        true: whether it follows; otherwise its opposite does.
        proof: the sentences of the shortest proof, facts and rules in turn, conclusions included.
    """

    theory: Theory
    sentences: tuple[str, ...]
    statement: Fact
    true: bool
    proof: tuple[str, ...]


@dataclass(slots=True)
class _Chain:
    """The facts and rules that lead a person to the property, and the proof of it."""

    facts: list[Fact]
    rules: list[Rule]
    proof: list[str]


def draw_deduction(chain: Sequence[str], rng: Random, *, true: bool) -> DrawnDeduction:
    """Draws a deduction along a chain of rule forms, with a chosen answer; names are roles.

    Args:
        chain: forms of rules, the last one of `ENDS`.
        rng: source of all other choices.
        true: the answer.
    """
    kinds = iter([Predicate(f"{{kind{number}}}") for number in range(4 * len(chain) + 2)])
    positive = rng.random() < 0.5
    chains = [
        _draw_chain(
            chain,
            f"{{person{index}}}",
            Predicate("{property0}", kind=False, positive=has_property),
            kinds=kinds,
            rng=rng,
        )
        for index, has_property in enumerate((positive, not positive))
    ]
    sentences = [sentence for drawn_chain in chains for sentence in (*drawn_chain.facts, *drawn_chain.rules)]
    rng.shuffle(sentences)
    theory = Theory(
        tuple(premise for premise in sentences if isinstance(premise, Fact)),
        tuple(premise for premise in sentences if isinstance(premise, Rule)),
    )
    statement = Fact("{person0}", Predicate("{property0}", kind=False, positive=positive == true))
    return DrawnDeduction(theory, tuple(map(str, sentences)), statement, true, tuple(chains[0].proof))


def _draw_chain(
    chain: Sequence[str], person: str, goal: Predicate, *, kinds: Iterator[Predicate], rng: Random
) -> _Chain:
    """Draws the chain of one person, over its own kinds."""
    fact = Fact(person, next(kinds))
    drawn_chain = _Chain([fact], [], [str(fact)])
    for form in chain:
        head = goal if form in ENDS else next(kinds)
        join = form.removeprefix("ends").strip() or "is"
        body, heads = [fact.predicate], [head]
        if join in ("or", "and"):
            body.append(next(kinds))
        if join == "and":
            second_fact = Fact(person, body[1])
            drawn_chain.facts.append(second_fact)
            drawn_chain.proof.append(str(second_fact))
        if join == "both":
            heads.append(next(kinds))
        rng.shuffle(body)
        rng.shuffle(heads)
        rule = Rule(tuple(body), tuple(heads), "and" if join == "and" else "or")
        fact = Fact(person, head)
        drawn_chain.rules.append(rule)
        drawn_chain.proof += [str(rule), str(fact)]
    return drawn_chain
