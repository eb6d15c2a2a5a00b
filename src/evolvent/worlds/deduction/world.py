"""Deduction: who is what, rules about kinds of things, and a statement: is it true or false?

    anna is a dax . every wug is not red . ben is a fep . every dax is a wug . every fep is red .
    true or false : anna is red ?
        ->  anna is a dax ; every dax is a wug ; anna is a wug ; every wug is not red ; anna is not red ### false

In the manner of PrOntoQA (`draw`). The kind of a task is the chain of rule forms that its proof uses. Answers are dealt
in turn, and words do not tell them: every question holds a second chain to the opposite. `check_steps` knows the truth
of every step of a response, and `proof_grade` judges the whole proof.
"""

from __future__ import annotations

from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.grade.base import Grade
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.deduction.draw import ENDS, PARTS, deduce
from evolvent.worlds.deduction.ontology import Theory, read_fact, read_theory
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.question import Question, spans

__all__ = ["ANSWERS", "Deduction"]

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
    words = "is a not every or and everything that . true false : ?"

    def __init__(self, *, depth: int = 5, sizes: Sizes | None = None) -> None:
        if not 4 <= depth <= 15:
            raise ConfigError([Problem("depth", f"{depth} rules in a proof", "give 4 to 15")])
        self.depth = depth
        kinds = 4 * depth + 8  # no proof has more; fewer words are learned sooner
        pools = {"person": PEOPLE[:12], "kind": _KINDS[:kinds], "property": _PROPERTIES}
        super().__init__(
            Chains(self.name, PARTS, depth, fewest=1, ends=ENDS), pools, also={"kinds": kinds}, sizes=sizes
        )

    def draw(self, chain: Chain, seed: int) -> Question:
        rng = Random(sample_seed(self.name, seed, *chain))
        drawn = deduce(chain, rng, true=seed % 2 == 0)
        text = f"{' . '.join(drawn.given)}{_ASKS}{drawn.asked} ?"
        return Question(text, drawn.proof, "true" if drawn.true else "false", ANSWERS)

    def theory(self, task: Task) -> Theory:
        """What is given in a task."""
        return read_theory(self.question(task).text.partition(_ASKS)[0].split(" . "))

    def check_steps(self, task: Task, text: str) -> tuple[bool, ...]:
        """For each span of a response's rationale, whether it is given or follows by one rule (`Theory.check`)."""
        return self.theory(task).check(spans(text))

    def proof_grade(self, task: Task, text: str) -> Grade:
        """Whether a response proves its answer: the answer is right, every span holds, and the last one is the verdict.

        The verdict is the statement asked about or its opposite, whichever the answer claims. A right answer after a
        guess, or after a proof of something else, is no proof. `why` names the first span that does not follow.
        """
        question = self.question(task)
        found = self.grade(text, question)
        if not found.correct:
            return found
        steps = spans(text)
        wrong = next((step for step, right in zip(steps, self.check_steps(task, text), strict=True) if not right), None)
        if wrong is not None:
            return Grade(correct=False, extracted=found.extracted, why=f"it does not follow: {wrong[:100]}")
        asked = read_fact(question.text.partition(_ASKS)[2].removesuffix("?"))
        shown = read_fact(steps[-1]) if steps else None
        same = asked is not None and shown is not None and shown.who == asked.who and shown.what[:2] == asked.what[:2]
        if asked is None or shown is None or not same:
            return Grade(correct=False, extracted=found.extracted, why="the last step is not what was asked about")
        # A right step follows from what is given, which is free of contradictions: its sign is the answer's.
        return found
