"""Texts for rStar's kinds of actions (`search/rstar.py`): prompts for a model, and the solutions that its replies
make.

An adapter samples replies to `build_prompt(solution, kind)`, stopping at `stop_strings(kind)`, and takes
`extend_solution(solution, kind, reply)` as the child, terminal where `is_ended`. There are no examples in the
prompts; a model that needs some has them put before. The wording is this library's own, not that of the paper
(arXiv 2408.06195).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evolvent.errors import ConfigError, unknown_name_problem

__all__ = ["MARK", "Solution", "Step", "build_prompt", "extend_solution", "is_ended", "read_answer", "stop_strings"]

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
    """A problem in its current wording, and the steps so far; `is_complete`: the last step is the rest of the
    solution.
    """

    problem: str
    steps: tuple[Step, ...] = ()
    is_complete: bool = False


def build_prompt(solution: Solution, kind: str) -> str:
    """Builds the prompt for an action of a kind; "mutual" (a masked part to be completed) asks as A2 does.

    Raises:
        ConfigError: an unknown kind, or A4 where the last step answers no sub-question.
    """
    kind, steps = _check_kind(kind), solution.steps
    if kind == "A4":
        steps = (*steps[:-1], replace(_last_question(solution), text=""))
    parts = ["Problem:\n" + solution.problem.strip()]
    if steps:
        parts.append(
            "Solution so far:\n" + "\n".join(_format_step(number, step) for number, step in enumerate(steps, 1))
        )
    reply_start = {"A3": "Question:", "A4": "Answer:"}.get(kind, "")  # what the reply goes on from
    return "\n\n".join([*parts, _TASKS[kind], reply_start])


def stop_strings(kind: str) -> tuple[str, ...]:
    """Returns strings that end a reply of a kind; A2 continues to the end.

    Raises:
        ConfigError: an unknown kind.
    """
    return {"A2": (), "A3": ("\n\n", "\nQuestion:")}.get(_check_kind(kind), ("\n",))


def extend_solution(solution: Solution, kind: str, reply: str) -> Solution | None:
    """Returns the solution after a reply; None where the reply is empty or, for A3, lacks a question or an answer.

    Raises:
        ConfigError: an unknown kind, or A4 where the last step answers no sub-question.
    """
    kind, text = _check_kind(kind), reply.strip()
    if kind == "A3":
        question, _, answer = text.removeprefix("Question:").partition("Answer:")
        step = Step(kind, " ".join(answer.split()), " ".join(question.split()))
        return replace(solution, steps=(*solution.steps, step)) if step.text and step.question else None
    if not text:
        return None
    if kind == "A5":
        return Solution(" ".join(text.split()))
    if kind == "A4":
        new_answer = replace(_last_question(solution), kind=kind, text=" ".join(text.removeprefix("Answer:").split()))
        return replace(solution, steps=(*solution.steps[:-1], new_answer)) if new_answer.text else None
    step = Step(kind, text if kind == "A2" else " ".join(text.split()))
    return Solution(solution.problem, (*solution.steps, step), is_complete=kind == "A2")


def is_ended(solution: Solution) -> bool:
    """Returns whether the solution is complete: its rest was written, or its last step states the final answer."""
    return solution.is_complete or read_answer(solution) is not None


def read_answer(solution: Solution) -> str | None:
    """Reads the final answer in the last step, without the full stop; returns None where there is none."""
    last_text = solution.steps[-1].text if solution.steps else ""
    matches = re.findall(re.escape(MARK) + r"[ :]*([^\n]+)", last_text, re.IGNORECASE)
    return (matches[-1].strip().removesuffix(".").strip() or None) if matches else None


def _last_question(solution: Solution) -> Step:
    if not solution.steps or not solution.steps[-1].question:
        raise ConfigError(
            "the solution has no sub-question to answer again",
            value=solution.steps[-1:] or "no steps",
            expected="a solution whose last step is of kind A3 or A4",
        )
    return solution.steps[-1]


def _format_step(number: int, step: Step) -> str:
    return f"{number}. " + (f"Question: {step.question} Answer: {step.text}" if step.question else step.text).rstrip()


def _check_kind(kind: str) -> str:
    if kind == "mutual":
        return "A2"
    if kind not in _TASKS:
        raise ConfigError([unknown_name_problem("kind of action", kind, [*_TASKS, "mutual"])])
    return kind
