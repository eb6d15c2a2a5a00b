"""Rules with exceptions: facts, rules that may contradict each other, preferences; is a statement proved, disproved or
unknown?

    the dog can sing . rule 1 : whoever can sing can dance . rule 2 : whoever can hum can not dance . ...
    rule 1 beats rule 2 . ... proved , disproved or unknown : the dog can not dance ?
        ->  the dog can sing ; the dog can hum ; rule 1 beats rule 2 ; the dog can dance ### disproved

In the manner of BoardgameQA (Kazemi et al., arXiv 2306.07934): `main` has some contradicting rules, `conflict` has some
at every step. What holds is decided exactly (`defeasible`). The kind of a task is its chain of steps. A question holds
two chains to the same statement, for two animals, one of which is broken; the words are the same either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal as Choice

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.trajectory import sample_seed
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.defeasible import Literal, Rule, RuleBook
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.naming import Pools
from evolvent.worlds.reasoning.question import Question

__all__ = ["ANSWERS", "STEPS", "Rules"]

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
_TRIES = 30  # draws until the wanted answer is the one that holds
_THIRD = "the {animal2}"


@dataclass(slots=True)
class _Led:
    """What leads one animal to the statement."""

    who: str
    facts: list[Literal] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    beats: list[tuple[Rule, Rule]] = field(default_factory=list)
    idle: list[Literal] = field(default_factory=list)
    steps: list[tuple[tuple[Literal, ...], Rule, tuple[Rule, ...]]] = field(default_factory=list)


_POOLS: Pools = {"animal": _ANIMALS, "verb": _VERBS}


class Rules(Generated):
    """The world of defeasible rules.

    Args:
        form: "main" or "conflict".
        steps: steps of the longest training chain, 3 to 5; `longer` has one more.
        sizes: how many tasks the panels hold.
    Raises:
        ConfigError: an unknown form, or steps out of range.
    """

    chance = 1 / 3
    instructions = (
        "Is the statement proved, disproved or unknown? Rules hold unless a rule that beats them says the opposite. "
        "Write what leads to your answer, divided by ';', then '###' and the answer."
    )
    words = f"the can not rule whoever and beats . : ? , or so it is open whether {' '.join(ANSWERS)}"

    def __init__(
        self, *, form: Choice["main", "conflict"] = "main", steps: int = 4, sizes: Sizes | None = None
    ) -> None:
        problems = [] if form in STEPS else [unknown("form", form, STEPS)]
        if not 3 <= steps <= 5:
            problems.append(Problem("steps", f"{steps} steps in a chain", "give 3 to 5"))
        if problems:
            raise ConfigError(problems)
        self.form, self.steps = form, steps
        self.name = "rules" if form == "main" else "rules-conflict"
        self.words += " " + " ".join(map(str, range(1, 6 * (steps + 1) + 1)))
        super().__init__(Chains(self.name, STEPS[form], steps, fewest=2), _POOLS, sizes=sizes)

    def draw(self, chain: Chain, seed: int) -> Question | None:
        rng, answer = Random(sample_seed(self.name, seed, *chain)), seed % len(ANSWERS)
        for _ in range(_TRIES):
            drawn = _drawn(chain, rng, known=answer < 2)
            if drawn is not None:
                return _told(drawn, rng, ANSWERS[answer])
        return None


@dataclass(frozen=True, slots=True)
class _Drawn:
    book: RuleBook
    first: _Led
    claim: Literal
    holds: bool | None
    facts: tuple[tuple[str, Literal], ...]


def _drawn(chain: Sequence[str], rng: Random, *, known: bool) -> _Drawn | None:
    """Two chains to one statement, the first one whole (`known`) or broken; None where the break changes nothing."""
    verbs = (f"{{verb{number}}}" for number in range(len(_VERBS)))
    goal, positive = next(verbs), rng.random() < 0.5
    pair = [
        _led(chain, f"the {{animal{place}}}", Literal(goal, positive is (place == 0)), verbs=verbs, rng=rng)
        for place in range(2)
    ]
    broken = pair[known]
    facts = [(led.who, fact) for led in pair for fact in led.facts]
    for lost in _lost(broken, rng):
        facts[facts.index((broken.who, lost))] = (_THIRD, lost)
        facts.append((broken.who, Literal(next(verbs))))
    facts += [(_THIRD, fact) for led in pair for fact in led.idle]
    rng.shuffle(facts)
    rules = [rule for led in pair for rule in led.rules]
    rng.shuffle(rules)
    preferred = frozenset((rules.index(one), rules.index(two)) for led in pair for one, two in led.beats)
    book = RuleBook(frozenset(facts), tuple(rules), preferred)
    holds = book.holds(pair[0].who, goal)
    if (holds is None) is known:
        return None
    return _Drawn(book, pair[0], Literal(goal), holds, tuple(facts))


def _lost(led: _Led, rng: Random) -> list[Literal]:
    """The facts that a third animal gets instead: a condition of a rule that leads on, and all that speaks against the
    last rule, which would else decide."""
    needed = {condition for _, rule, _ in led.steps for condition in rule.conditions}
    against = [other.conditions[0] for other in led.steps[-1][2]]
    return [rng.choice([fact for fact in led.facts if fact in needed]), *against]


def _led(chain: Sequence[str], who: str, goal: Literal, *, verbs: Iterator[str], rng: Random) -> _Led:
    """The facts, rules and preferences that lead one animal along a chain of steps to the goal."""
    have = Literal(next(verbs))
    led = _Led(who, [have])
    for place, step in enumerate(chain):
        then = goal if place == len(chain) - 1 else Literal(next(verbs), rng.random() < 0.5)
        conditions = [have]
        if step in ("two", "won two"):
            conditions.append(Literal(next(verbs)))
            led.facts.append(conditions[1])
        rng.shuffle(conditions)
        rule = Rule(tuple(conditions), then)
        against: list[Rule] = []
        for _ in range({"one": 0, "two": 0, "won twice": 2}.get(step, 1)):
            other = Literal(next(verbs))
            against.append(Rule((other,), Literal(then.verb, not then.positive)))
            (led.idle if step == "idle" else led.facts).append(other)
            led.beats.append((against[-1], rule) if step == "idle" else (rule, against[-1]))
        led.rules += [rule, *against]
        led.steps.append((tuple(conditions), rule, () if step == "idle" else tuple(against)))
        have = then
    return led


def _told(drawn: _Drawn, rng: Random, answer: str) -> Question:
    book, who = drawn.book, drawn.first.who
    claim = drawn.claim if drawn.holds is None else Literal(drawn.claim.verb, drawn.holds is (answer == "proved"))
    if drawn.holds is None and rng.random() < 0.5:
        claim = Literal(claim.verb, not claim.positive)
    facts = [f"{name} {fact}" for name, fact in drawn.facts]
    rules = [f"rule {number} : {rule}" for number, rule in enumerate(book.rules, 1)]
    beats = [f"rule {one + 1} beats rule {two + 1}" for one, two in sorted(book.preferred)]
    rng.shuffle(beats)
    text = " . ".join([*facts, *rules, *beats, f"proved , disproved or unknown : {who} {claim} ?"])
    return Question(text, tuple(_rationale(drawn)), answer, ANSWERS)


def _rationale(drawn: _Drawn) -> Iterator[str]:
    """The steps of the asked animal as far as they go: facts used, preferences used, what follows."""
    book, who = drawn.book, drawn.first.who
    told: set[Literal] = set()
    for conditions, rule, against in drawn.first.steps:
        met = [other for other in against if book.holds(who, other.conditions[0].verb)]
        for fact in (*conditions, *(other.conditions[0] for other in met)):
            if (who, fact) in book.facts and fact not in told:
                told.add(fact)
                yield f"{who} {fact}"
        if book.holds(who, rule.head.verb) is not rule.head.positive:
            break
        number = book.rules.index(rule) + 1
        yield from (f"rule {number} beats rule {book.rules.index(other) + 1}" for other in met)
        yield f"rule {number} : {who} {rule.head}"
        told.add(rule.head)
    if drawn.holds is None:
        yield f"so it is open whether {who} {drawn.claim}"
