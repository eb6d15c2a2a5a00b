"""What rStar's kinds of actions (`search/rstar.py`) are as texts: what a model is told, and what its reply makes.

An adapter samples replies to `prompt(solution, kind)`, stopping at `stops(kind)`, and takes `after(solution, kind,
reply)` as the child, terminal where it is `ended`. There are no examples in the prompts; a model that needs some has
them put before. The wording is this library's own, not that of the paper (arXiv 2408.06195).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evolvent.errors import ConfigError, unknown

__all__ = ["MARK", "Solution", "Step", "after", "answer_of", "ended", "prompt", "stops"]

MARK = "The answer is"
"""What a reply says before its final answer."""

_TASKS: Mapping[str, str] = {
    "A1": "Write the next step of the solution, one step only, in one line. If it solves the problem, end it with "
    f'"{MARK} ..." and the final answer.',
    "A2": f'Write the rest of the solution step by step. End it with "{MARK} ..." and the final answer.',
    "A3": "Ask the next smaller question whose answer brings the solution forward, and answer it. Use two lines, the "
    'first beginning with "Question:", the second with "Answer:". If the problem itself can be answered now, ask '
    f'that as the question and end the answer with "{MARK} ..." and the final answer.',
    "A4": "Answer the last of the smaller questions again, from the beginning, without relying on an earlier answer. "
    f'Write one line. Only if it solves the whole problem, end it with "{MARK} ..." and the final answer.',
    "A5": "Say the problem again in other words: list what is known, one fact after another, and end with what is "
    "asked for. Keep every number and condition. Write one paragraph and do not solve it.",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a solution. `question` is the sub-question that `text` answers, empty where there is none."""

    kind: str
    text: str
    question: str = ""


@dataclass(frozen=True, slots=True)
class Solution:
    """A problem as it is put now, and the steps that were taken; `whole`: the last step is the rest of the solution."""

    problem: str
    steps: tuple[Step, ...] = ()
    whole: bool = False


def prompt(solution: Solution, kind: str) -> str:
    """The text that asks for an action of a kind; "mutual" (a masked part to be completed) asks as A2 does.

    Raises:
        ConfigError: an unknown kind, or A4 where the last step answers no sub-question.
    """
    kind, steps = _known(kind), solution.steps
    if kind == "A4":
        steps = (*steps[:-1], replace(_asked_last(solution), text=""))
    parts = ["Problem:\n" + solution.problem.strip()]
    if steps:
        parts.append("Solution so far:\n" + "\n".join(_line(number, step) for number, step in enumerate(steps, 1)))
    begun = {"A3": "Question:", "A4": "Answer:"}.get(kind, "")  # what the reply goes on from
    return "\n\n".join([*parts, _TASKS[kind], begun])


def stops(kind: str) -> tuple[str, ...]:
    """Strings that end a reply of a kind; A2 goes on to the end.

    Raises:
        ConfigError: an unknown kind.
    """
    return {"A2": (), "A3": ("\n\n", "\nQuestion:")}.get(_known(kind), ("\n",))


def after(solution: Solution, kind: str, reply: str) -> Solution | None:
    """The solution after a reply; None where the reply is empty or, for A3, has not both a question and an answer.

    Raises:
        ConfigError: an unknown kind, or A4 where the last step answers no sub-question.
    """
    kind, text = _known(kind), reply.strip()
    if kind == "A3":
        asked, _, answer = text.removeprefix("Question:").partition("Answer:")
        step = Step(kind, " ".join(answer.split()), " ".join(asked.split()))
        return replace(solution, steps=(*solution.steps, step)) if step.text and step.question else None
    if not text:
        return None
    if kind == "A5":
        return Solution(" ".join(text.split()))
    if kind == "A4":
        again = replace(_asked_last(solution), kind=kind, text=" ".join(text.removeprefix("Answer:").split()))
        return replace(solution, steps=(*solution.steps[:-1], again)) if again.text else None
    step = Step(kind, text if kind == "A2" else " ".join(text.split()))
    return Solution(solution.problem, (*solution.steps, step), whole=kind == "A2")


def ended(solution: Solution) -> bool:
    """Whether there is nothing to add: the rest of it was written, or its last step says the final answer."""
    return solution.whole or answer_of(solution) is not None


def answer_of(solution: Solution) -> str | None:
    """What the last step says to be the final answer, without the full stop; None where it says none."""
    said = solution.steps[-1].text if solution.steps else ""
    found = re.findall(re.escape(MARK) + r"[ :]*([^\n]+)", said, re.IGNORECASE)
    return (found[-1].strip().removesuffix(".").strip() or None) if found else None


def _asked_last(solution: Solution) -> Step:
    if not solution.steps or not solution.steps[-1].question:
        raise ConfigError(
            "there is no sub-question to answer again",
            value=solution.steps[-1:] or "no steps",
            expected="a solution whose last step is of kind A3 or A4",
        )
    return solution.steps[-1]


def _line(number: int, step: Step) -> str:
    return f"{number}. " + (f"Question: {step.question} Answer: {step.text}" if step.question else step.text).rstrip()


def _known(kind: str) -> str:
    if kind == "mutual":
        return "A2"
    if kind not in _TASKS:
        raise ConfigError([unknown("kind of action", kind, [*_TASKS, "mutual"])])
    return kind
