"""Rules with exceptions: given facts, contradicting rules and preferences, decide whether a statement is proved,
disproved or unknown.

    the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can hum can not dance . ...
    rule 1 beats rule 2 . ... proved , disproved or unknown : the dog can not dance ?
        ->  the dog can sing ; the dog can hum ; rule 1 beats rule 2 ; the dog can dance ### disproved

Modeled on BoardgameQA (Kazemi et al., arXiv 2306.07934): `main` has some contradicting rules, `conflict` has
some at every step. Conclusions are decided exactly. The kind of a task is its chain of steps. A
question contains two chains to the same statement, for two animals, one of which is broken; the words are the
same either way.

Defeasible rules, decided exactly: a conclusion stands unless a preferred rule contradicts it.

A fact always holds. Otherwise the applicable rules decide. If they disagree, a side wins if each applicable
rule of the other side is beaten by a preferred rule of this side. If no side wins, or no rule applies, the
answer is unknown. Rules must not depend on each other in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal as Choice
from typing import NamedTuple

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question

__all__ = ["ANSWERS", "STEPS", "Literal", "Rule", "RuleBook", "Rules"]


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
            raise ConfigError("rules depend on each other in a cycle", value=[*pending_verbs, verb])
        known_facts = [positive for positive in (True, False) if (subject, Literal(verb, positive)) in self.facts]
        if len(known_facts) > 1:
            raise ConfigError("facts contradict each other", value=f"{subject} can and can not {verb}")
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


ANSWERS: tuple[str, ...] = ("proved", "disproved", "unknown")
STEPS = {"main": ("one", "two", "won", "idle"), "conflict": ("won", "won two", "won twice", "idle")}
"""Steps of a chain: a rule of one condition; of two; one that beats a rule against it (or is of two
conditions, or beats two such rules); one that a rule against it would beat, whose condition is not met."""
_ANIMALS = ("dog", "cat", "fox", "owl", "bear", "wolf", "crow", "goat", "hare", "lynx", "mole", "seal")
_VERBS = (
    "sing",
    "dance",
    "hum",
    "swim",
    "climb",
    "dig",
    "jump",
    "run",
    "fly",
    "bite",
    "paint",
    "cook",
    "read",
    "write",
    "count",
    "draw",
    "whistle",
    "skate",
    "ski",
    "row",
    "sail",
    "drive",
    "juggle",
    "knit",
    "sew",
    "bake",
    "carve",
    "fish",
    "hunt",
    "hide",
    "roll",
    "spin",
    "crawl",
    "float",
    "glide",
    "dive",
    "march",
    "clap",
    "wave",
    "nod",
    "wink",
    "yawn",
    "howl",
    "growl",
    "purr",
    "bark",
    "hiss",
    "chirp",
    "croak",
    "buzz",
    "limp",
    "leap",
    "trot",
    "stroll",
    "wander",
    "nap",
    "doze",
    "snore",
    "listen",
    "whisper",
    "shout",
    "argue",
    "gamble",
    "wrestle",
)
_MAX_DRAWS = 30  # draws until the wanted answer is the one that holds
_THIRD_ANIMAL = "the {animal2}"


@dataclass(slots=True)
class _Derivation:
    """The facts, rules and preferences from which the statement follows for one animal."""

    animal: str
    facts: list[Literal] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    beats: list[tuple[Rule, Rule]] = field(default_factory=list)
    idle_facts: list[Literal] = field(default_factory=list)
    steps: list[tuple[tuple[Literal, ...], Rule, tuple[Rule, ...]]] = field(default_factory=list)


_POOLS: Pools = {"animal": _ANIMALS, "verb": _VERBS}


class Rules(Generated):
    """The world of defeasible rules.

    Args:
        form: "main" or "conflict".
        steps: steps of the longest training chain, 3 to 5; `longer` has one more.
        sizes: panel sizes.
    Raises:
        ConfigError: an unknown form, or steps out of range.
    """

    chance = 1 / 3
    instructions = (
        "Is the statement proved, disproved or unknown? Rules hold unless a rule that beats them says the opposite. "
        "Write what leads to your answer, divided by ';', then '###' and the answer."
    )
    vocabulary_source = f"the can not rule whoever and beats . : ? , or so it is open whether {' '.join(ANSWERS)}"

    def __init__(
        self, *, form: Choice["main", "conflict"] = "main", steps: int = 4, sizes: Sizes | None = None
    ) -> None:
        problems = [] if form in STEPS else [unknown_name_problem("form", form, STEPS)]
        if not 3 <= steps <= 5:
            problems.append(Problem("steps", f"got {steps} steps in a chain, expected 3 to 5"))
        if problems:
            raise ConfigError(problems)
        self.form, self.steps = form, steps
        self.name = "rules" if form == "main" else "rules-conflict"
        self.vocabulary_source += " " + " ".join(map(str, range(1, 6 * (steps + 1) + 1)))
        super().__init__(Chains(self.name, STEPS[form], steps, min_length=2), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        rng, answer = Random(sample_seed(self.name, seed, *chain)), seed % len(ANSWERS)
        for _ in range(_MAX_DRAWS):
            draft = _draw_draft(chain, rng, is_decided=answer < 2)
            if draft is not None:
                return _build_question(draft, rng, ANSWERS[answer])
        return None


@dataclass(frozen=True, slots=True)
class _Draft:
    book: RuleBook
    derivation: _Derivation
    claim: Literal
    holds: bool | None
    facts: tuple[tuple[str, Literal], ...]


def _draw_draft(chain: Sequence[str], rng: Random, *, is_decided: bool) -> _Draft | None:
    """Draws two chains to one statement, the first intact (`is_decided`) or broken; None if the break changes
    nothing.
    """
    verbs = (f"{{verb{number}}}" for number in range(len(_VERBS)))
    goal, positive = next(verbs), rng.random() < 0.5
    pair = [
        _draw_derivation(chain, f"the {{animal{index}}}", Literal(goal, positive is (index == 0)), verbs=verbs, rng=rng)
        for index in range(2)
    ]
    broken_derivation = pair[is_decided]
    facts = [(derivation.animal, fact) for derivation in pair for fact in derivation.facts]
    for removed_fact in _choose_removed_facts(broken_derivation, rng):
        facts[facts.index((broken_derivation.animal, removed_fact))] = (_THIRD_ANIMAL, removed_fact)
        facts.append((broken_derivation.animal, Literal(next(verbs))))
    facts += [(_THIRD_ANIMAL, fact) for derivation in pair for fact in derivation.idle_facts]
    rng.shuffle(facts)
    rules = [rule for derivation in pair for rule in derivation.rules]
    rng.shuffle(rules)
    preferred = frozenset(
        (rules.index(winner), rules.index(loser)) for derivation in pair for winner, loser in derivation.beats
    )
    book = RuleBook(frozenset(facts), tuple(rules), preferred)
    holds = book.holds(pair[0].animal, goal)
    if (holds is None) is is_decided:
        return None
    return _Draft(book, pair[0], Literal(goal), holds, tuple(facts))


def _choose_removed_facts(derivation: _Derivation, rng: Random) -> list[Literal]:
    """Returns the facts that a third animal gets instead: a needed condition, and all conditions that oppose the
    last rule.
    """
    needed = {condition for _, rule, _ in derivation.steps for condition in rule.conditions}
    opposing_conditions = [opposing_rule.conditions[0] for opposing_rule in derivation.steps[-1][2]]
    return [rng.choice([fact for fact in derivation.facts if fact in needed]), *opposing_conditions]


def _draw_derivation(
    chain: Sequence[str], animal: str, goal: Literal, *, verbs: Iterator[str], rng: Random
) -> _Derivation:
    """Draws the facts, rules and preferences that lead one animal along a chain of steps to the goal."""
    current = Literal(next(verbs))
    derivation = _Derivation(animal, [current])
    for index, step in enumerate(chain):
        conclusion = goal if index == len(chain) - 1 else Literal(next(verbs), rng.random() < 0.5)
        conditions = [current]
        if step in ("two", "won two"):
            conditions.append(Literal(next(verbs)))
            derivation.facts.append(conditions[1])
        rng.shuffle(conditions)
        rule = Rule(tuple(conditions), conclusion)
        opposing_rules: list[Rule] = []
        for _ in range({"one": 0, "two": 0, "won twice": 2}.get(step, 1)):
            opposing_condition = Literal(next(verbs))
            opposing_rules.append(Rule((opposing_condition,), Literal(conclusion.verb, not conclusion.positive)))
            (derivation.idle_facts if step == "idle" else derivation.facts).append(opposing_condition)
            derivation.beats.append((opposing_rules[-1], rule) if step == "idle" else (rule, opposing_rules[-1]))
        derivation.rules += [rule, *opposing_rules]
        derivation.steps.append((tuple(conditions), rule, () if step == "idle" else tuple(opposing_rules)))
        current = conclusion
    return derivation


def _build_question(draft: _Draft, rng: Random, answer: str) -> Question:
    book, animal = draft.book, draft.derivation.animal
    claim = draft.claim if draft.holds is None else Literal(draft.claim.verb, draft.holds is (answer == "proved"))
    if draft.holds is None and rng.random() < 0.5:
        claim = Literal(claim.verb, not claim.positive)
    facts = [f"{name} {fact}" for name, fact in draft.facts]
    rules = [f"rule {number} : {rule}" for number, rule in enumerate(book.rules, 1)]
    preferences = [f"rule {winner + 1} beats rule {loser + 1}" for winner, loser in sorted(book.preferred)]
    rng.shuffle(preferences)
    text = " . ".join([*facts, *rules, *preferences, f"proved , disproved or unknown : {animal} {claim} ?"])
    return Question(text, tuple(_explain(draft)), answer, ANSWERS)


def _explain(draft: _Draft) -> Iterator[str]:
    """Yields the steps for the first animal as far as they lead: facts used, preferences used, conclusions."""
    book, animal = draft.book, draft.derivation.animal
    stated: set[Literal] = set()
    for conditions, rule, opposing_rules in draft.derivation.steps:
        active_rules = [
            opposing_rule for opposing_rule in opposing_rules if book.holds(animal, opposing_rule.conditions[0].verb)
        ]
        for fact in (*conditions, *(opposing_rule.conditions[0] for opposing_rule in active_rules)):
            if (animal, fact) in book.facts and fact not in stated:
                stated.add(fact)
                yield f"{animal} {fact}"
        if book.holds(animal, rule.head.verb) is not rule.head.positive:
            break
        number = book.rules.index(rule) + 1
        yield from (f"rule {number} beats rule {book.rules.index(opposing_rule) + 1}" for opposing_rule in active_rules)
        yield f"rule {number} : {animal} {rule.head}"
        stated.add(rule.head)
    if draft.holds is None:
        yield f"so it is open whether {animal} {draft.claim}"
