"""rStar's solutions as responses of a world: the form of its answers, the models that reply, and the trajectory.

A solution is written in rStar's own prompts and ends with "The answer is ..."; the world's response is its
steps, one per line, with the answer repeated in the form that this world expects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, Problem, VocabularyMismatch
from evolvent.grade.latex import normalize
from evolvent.search.rstar_prompts import Solution, Step, build_prompt, is_ended, read_answer
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

__all__ = [
    "answer_form",
    "answer_key",
    "check_solver",
    "format_response",
    "make_completer",
    "solution_trajectory",
    "solver_problems",
]

Form = Callable[[str], str]


def answer_form(world: World) -> Form | None:
    """Returns how a world wants an answer to be written; None: its tasks have no answer that a solution could end
    in.

    Known are the worlds of questions (`### 18`), of competition mathematics (a box) and of Reasoning Gym; worlds
    with custom graders get the solution as it is. Programs are not solutions in words.
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


def solver_problems(name: str, world: World, level: str) -> list[Problem]:
    """Returns why rStar does not apply to a world; empty where it does.

    Args:
        level: the requested unit of an action ("auto": none was requested).
    """
    if world.horizon > 1:
        return [
            Problem(
                "method",
                f"'rstar' solves single questions, but world {name!r} has several turns",
                "use mcts, gumbel, beam, ...",
            )
        ]
    if answer_form(world) is None:
        return [
            Problem(
                "method",
                f"'rstar' writes solutions that end in an answer, but world {name!r} does not ask for an answer",
                "use problems, problems:FOLDER, arithmetic, maths:FILE, ...",
            )
        ]
    if level not in ("auto", "span"):
        return [
            Problem(
                "level",
                f"got {level!r}, but the actions of rstar are thoughts, sub-questions and solutions",
                "set level to 'auto'",
            )
        ]
    return []


def check_solver(policy: Policy, *, setting: str = "policy") -> None:
    """Refuses a model that cannot read rStar's prompts, before anything is submitted.

    Raises:
        ConfigError: a policy of whole words that does not know those of the prompts.
    """
    probe = Solution("", (Step("A3", "", "?"),))
    try:
        for kind in ("A1", "A2", "A3", "A4", "A5"):
            policy.dialect.open("", build_prompt(probe, kind))
    except VocabularyMismatch as error:
        raise ConfigError(
            [
                Problem(
                    setting,
                    "rstar prompts in plain English, but this model knows only the words of its worlds",
                    "use a model with an open vocabulary",
                )
            ]
        ) from error


def make_completer(policy: Policy, config: ForestConfig, *, model: str | None = None) -> Completer:
    """Returns a completer that writes replies with a policy: its dialect around each prompt, as one conversation
    turn.

    Args:
        model: its name among several engines; None: the engine that writes.
    """
    writing = Writing.for_policy(
        policy,
        max_tokens=config.max_tokens,
        span_tokens=config.span_tokens,
        sampling=Sampling(config.temperature, config.top_k, config.top_p),
    )
    return Completer(partial(policy.dialect.open, ""), writing, model)


def format_response(world: World, solution: Solution) -> str:
    """Formats a solution as a response for a world: its steps, one per line, and its answer in the world's form.

    Raises:
        ConfigError: a world in which rStar makes no sense.
    """
    form = answer_form(world)
    if form is None:
        raise ConfigError([Problem("world", f"world {world.name!r} does not ask for an answer")])
    answer = read_answer(solution)
    lines = [f"{step.question} {step.text}".strip() for step in solution.steps]
    return "\n".join([*lines, *([form(answer)] if answer is not None else [])]).strip()


def answer_key(world: World, answer: str) -> str:
    """Returns the form in which answers are compared where the world's own grader is too slow to call during a
    search.
    """
    return normalize(answer) if isinstance(world, Maths) else " ".join(answer.split())


def solution_trajectory(
    state: SolutionState, task: Task, *, response: str, name: str, observation: Value, score: Score, sample: int = 0
) -> Trajectory:
    """Converts a solution to an episode of one step, with the tokens that the model read and wrote for each of its
    steps.

    The action is composed of the replies. All of them acted but a rephrased problem, which is not in the action.
    """
    generations: list[Generation] = []
    ancestor: SolutionState | None = state
    while ancestor is not None:
        if ancestor.generation is not None:
            generations.append(replace(ancestor.generation, acted=bool(ancestor.solution.steps)))
        ancestor = ancestor.above
    step = Turn(observation, response, score.raw, None, tuple(generations[::-1]))
    return Trajectory(
        name, task, (step,), "", "world" if is_ended(state.solution) else "horizon", score, sample, None, None, task.id
    )
