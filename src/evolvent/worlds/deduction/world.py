"""Deduction: facts about people, rules about kinds of things, and a statement to judge as true or false.

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
from evolvent.worlds.deduction.draw import ENDS, PARTS, draw_deduction
from evolvent.worlds.deduction.ontology import Theory, parse_fact, parse_theory
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.chains import Chain, Chains
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.question import Question, split_rationale

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
    vocabulary_source = "is a not every or and everything that . true false : ?"

    def __init__(self, *, depth: int = 5, sizes: Sizes | None = None) -> None:
        if not 4 <= depth <= 15:
            raise ConfigError([Problem("depth", f"{depth} rules in a proof", "give 4 to 15")])
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
