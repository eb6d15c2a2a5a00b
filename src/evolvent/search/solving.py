"""rStar's solutions as responses of a world: in which form it reads an answer, who is asked, and the record of it.

A solution is written in rStar's own prompts and ends with "The answer is ..."; what a world reads is its steps, one
a line, with the answer once more in the form that this world looks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, Problem, VocabularyMismatch
from evolvent.grade.latex import plain
from evolvent.search.rstar_prompts import Solution, Step, answer_of, ended, prompt
from evolvent.search.settings import ForestConfig
from evolvent.search.solutions import Completer, SolutionState
from evolvent.search.writing import Writing
from evolvent.trajectory import Generation, Score, Task, Trajectory, Value
from evolvent.trajectory import Step as Turn
from evolvent.worlds.base import World
from evolvent.worlds.extras.reasoning_gym import ReasoningGym
from evolvent.worlds.reasoning.graded import Graded
from evolvent.worlds.reasoning.maths import Maths
from evolvent.worlds.reasoning.question import MARK
from evolvent.worlds.reasoning.world import Questions

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["check_solver", "completer", "form_of", "key_of", "response", "solution_trajectory", "unsolvable"]

Form = Callable[[str], str]


def form_of(world: World) -> Form | None:
    """How a world wants an answer to be written; None: it asks for no answer that a solution could end in.

    Known are the worlds of questions (`### 18`), of competition mathematics (a box) and of Reasoning Gym; those whose
    grader is yours are given the solution as it is. Programs are no solutions in words.
    """
    if isinstance(world, Graded):
        return lambda answer: ""
    if isinstance(world, Maths):
        return lambda answer: f"\\boxed{{{answer}}}"
    if isinstance(world, ReasoningGym):
        return lambda answer: f"<answer>{answer}</answer>"
    if isinstance(world, Questions) and getattr(world, "form", "cot") == "cot":
        return lambda answer: f"{MARK} {answer}"
    return None


def unsolvable(name: str, world: World, level: str) -> list[Problem]:
    """Why rStar makes no sense in a world; empty where it does.

    Args:
        level: what an action was asked to be ("auto": nothing was asked).
    """
    if world.horizon > 1:
        return [
            Problem(
                "method",
                f"'rstar' solves one question in words, and {name!r} is played turn by turn",
                "mcts, gumbel, beam, ...",
            )
        ]
    if form_of(world) is None:
        return [
            Problem(
                "method",
                f"'rstar' writes a solution that ends in an answer, and {name!r} asks for none",
                "problems, problems:FOLDER, arithmetic, maths:FILE, ...",
            )
        ]
    if level not in ("auto", "span"):
        return [Problem("level", f"{level!r}, and rstar's actions are thoughts, sub-questions and solutions", "'auto'")]
    return []


def check_solver(policy: Policy, *, what: str = "policy") -> None:
    """Refuse a model that cannot read what rStar asks, before anything is asked.

    Raises:
        ConfigError: a policy of whole words that does not know those of the prompts.
    """
    asked = Solution("", (Step("A3", "", "?"),))
    try:
        for kind in ("A1", "A2", "A3", "A4", "A5"):
            policy.dialect.open("", prompt(asked, kind))
    except VocabularyMismatch as error:
        raise ConfigError(
            [
                Problem(
                    what,
                    "rstar asks in plain English, and this model knows the words of its worlds alone",
                    "a model with an open vocabulary",
                )
            ]
        ) from error


def completer(policy: Policy, how: ForestConfig, *, model: str | None = None) -> Completer:
    """Who writes replies with a policy: its dialect around each prompt, as one turn of a conversation.

    Args:
        model: its name among several engines; None: the engine that writes.
    """
    writing = Writing.of(
        policy,
        max_tokens=how.max_tokens,
        span_tokens=how.span_tokens,
        sampling=Sampling(how.temperature, how.top_k, how.top_p),
    )
    return Completer(partial(policy.dialect.open, ""), writing, model)


def response(world: World, solution: Solution) -> str:
    """What a solution says to a world: its steps, one a line, and its answer in the world's form.

    Raises:
        ConfigError: a world in which rStar makes no sense.
    """
    form = form_of(world)
    if form is None:
        raise ConfigError([Problem("world", f"{world.name!r} asks for no answer")])
    answer = answer_of(solution)
    lines = [f"{step.question} {step.text}".strip() for step in solution.steps]
    return "\n".join([*lines, *([form(answer)] if answer is not None else [])]).strip()


def key_of(world: World, answer: str) -> str:
    """An answer as it is compared where the world's own grader is too slow to be asked while a tree grows."""
    return plain(answer) if isinstance(world, Maths) else " ".join(answer.split())


def solution_trajectory(
    state: SolutionState, task: Task, *, said: str, name: str, observation: Value, score: Score, sample: int = 0
) -> Trajectory:
    """A solution as an episode of one step, with what the model read and wrote for each of its steps.

    The action is put together of the replies. All of them acted but a rephrased problem, which is not in the action.
    """
    generations: list[Generation] = []
    at: SolutionState | None = state
    while at is not None:
        if at.generation is not None:
            generations.append(replace(at.generation, acted=bool(at.solution.steps)))
        at = at.above
    step = Turn(observation, said, score.raw, None, tuple(generations[::-1]))
    return Trajectory(
        name, task, (step,), "", "world" if ended(state.solution) else "horizon", score, sample, None, None, task.id
    )
