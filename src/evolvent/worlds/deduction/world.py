"""Deduction: facts about people, rules about kinds of things, and a statement to judge as true or false.

    anna is a dax . every wug is not red . ben is a fep . every dax is a wug . every fep is red .
    true or false : anna is red ?
        ->  anna is a dax ; every dax is a wug ; anna is a wug ; every wug is not red ; anna is not red ### false

In the manner of PrOntoQA (`draw`). The kind of a task is the chain of rule forms that its proof uses. Answers are dealt
in turn, and words do not tell them: every question holds a second chain to the opposite. `check_steps` knows the truth
of every step of a response, and `Deduction.grade_proof` judges the whole proof.

Draws deductions: two people, a chain of rules for each, and a statement about one of them.

Both chains have the same form and end in the same property, which one of the two people has and the other lacks. So
the words of a question are the same whatever the answer: only the chain of the person in question decides.

Saparov and He, "Language Models Are Greedy Reasoners" (PrOntoQA, arXiv 2210.01240): chains over an invented ontology
with distractors; the rules with "and" and "or" are of the kind of its successor (arXiv 2305.15269).

Facts and rules about invented kinds, their consequences, and the step-by-step check of a proof.

Facts say what somebody is ("anna is a dax", "anna is not red"); rules say what every thing of a kind is. Everything is
a sentence of a small grammar, written and read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem
from evolvent.grade.base import Grade
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.question import Question, split_rationale

__all__ = [
    "ANSWERS",
    "ENDS",
    "PARTS",
    "Deduction",
    "DrawnDeduction",
    "Fact",
    "Predicate",
    "Rule",
    "Theory",
    "draw_deduction",
    "parse_fact",
    "parse_rule",
    "parse_theory",
]


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
            raise ConfigError("the sentence states neither a fact nor a rule", value=sentence)
    return Theory(tuple(facts), tuple(rules))


def _parse_predicate(text: str) -> Predicate | None:
    match = re.fullmatch(r"(a |not )?(\w+)", text)
    if match is None or match[2] in ("a", "not", "and", "or"):
        return None
    return Predicate(match[2], kind=match[1] == "a ", positive=match[1] != "not ")


def _normalize(text: str) -> str:
    return " ".join(text.lower().replace(".", " ").split())


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


ANSWERS: tuple[str, ...] = ("true", "false")
_ASKS = " . true or false : "
_ONSETS, _RIMES = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"], ["ax", "ep", "im", "og", "ub"]
_KINDS = tuple(f"{onset}{rime}" for rime in _RIMES for onset in _ONSETS)
_PROPERTIES = ("red", "blue", "old", "small", "loud", "shy", "kind", "cold", "sweet", "heavy", "wet", "bright")


class Deduction(Generated):
    """The world of deductions.

    Args:
        depth: rules in the longest training proof, 4 to 15; `longer` has one more.
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: a depth out of range.
    """

    name = "deduction"
    chance = 0.5
    instructions = (
        "Say whether the statement is true or false. Write the proof step by step: what is given and what follows, "
        "divided by ';', then '###' and true or false."
    )
    vocabulary_source = "is a not every or and everything that . true false : ?"

    def __init__(self, *, depth: int = 5, sizes: Sizes | None = None) -> None:
        if not 4 <= depth <= 15:
            raise ConfigError([Problem("depth", f"got {depth} rules in a proof, expected 4 to 15")])
        self.depth = depth
        kinds = 4 * depth + 8  # no proof has more; fewer words are learned sooner
        pools = {"person": PEOPLE[:12], "kind": _KINDS[:kinds], "property": _PROPERTIES}
        super().__init__(
            Chains(self.name, PARTS, depth, min_length=1, ends=ENDS), pools, extra_spec={"kinds": kinds}, sizes=sizes
        )

    def draw(self, chain: Chain, seed: int) -> Question:
        rng = Random(sample_seed(self.name, seed, *chain))
        deduction = draw_deduction(chain, rng, true=seed % 2 == 0)
        text = f"{' . '.join(deduction.sentences)}{_ASKS}{deduction.statement} ?"
        return Question(text, deduction.proof, "true" if deduction.true else "false", ANSWERS)

    def theory(self, task: Task) -> Theory:
        """Returns the given facts and rules of a task."""
        return parse_theory(self.question(task).text.partition(_ASKS)[0].split(" . "))

    def check_steps(self, task: Task, text: str) -> tuple[bool, ...]:
        """Checks, for each span of a response's rationale, whether it is given or follows by one rule
        (`Theory.check`).
        """
        return self.theory(task).check(split_rationale(text))

    def grade_proof(self, task: Task, text: str) -> Grade:
        """Scores the proof of a response: the answer is right, every span holds, and the last span is the verdict.

        The verdict is the statement in question or its opposite, whichever the answer claims. A right answer after a
        guess, or after a proof of something else, is not a proof. `why` names the first span that does not follow.
        """
        question = self.question(task)
        answer_grade = self.grade(text, question)
        if not answer_grade.correct:
            return answer_grade
        steps = split_rationale(text)
        invalid_step = next(
            (step for step, is_valid in zip(steps, self.check_steps(task, text), strict=True) if not is_valid), None
        )
        if invalid_step is not None:
            return Grade(
                correct=False, extracted=answer_grade.extracted, why=f"it does not follow: {invalid_step[:100]}"
            )
        statement = parse_fact(question.text.partition(_ASKS)[2].removesuffix("?"))
        conclusion = parse_fact(steps[-1]) if steps else None
        is_about_statement = (
            statement is not None
            and conclusion is not None
            and conclusion.subject == statement.subject
            and conclusion.predicate[:2] == statement.predicate[:2]
        )
        if statement is None or conclusion is None or not is_about_statement:
            return Grade(
                correct=False, extracted=answer_grade.extracted, why="the last step is not what was asked about"
            )
        # A right step follows from what is given, which is free of contradictions: its sign is the answer's.
        return answer_grade
