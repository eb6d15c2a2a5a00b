"""Reasoning Gym (Stojanovski et al. 2025): puzzles of a hundred generators, with one question and one answer each.

A task is a dataset's name and a seed; the dataset's own scorer scores the answer. Some of those scorers run the
answer as a program (`eval`, or a parser that uses it). Model text is never run here: such datasets are refused
unless the caller declares the answers trusted.
"""

from __future__ import annotations

import ast
import inspect
import logging
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from evolvent.errors import ConfigError, EnvLost, Problem, boundary, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, canonical_json
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.wrapped import (
    Extra,
    WrappedWorld,
    common_problems,
    make_candidate,
    read_number,
    redirect_prints,
    widen_sizes,
)
from evolvent.worlds.panel import Candidate, Sizes

__all__ = ["ReasoningGym", "runs_answers"]

log = logging.getLogger(__name__)
REASONING_GYM = Extra("reasoning", "reasoning-gym", "puzzles by Reasoning Gym")
_MAX_ANSWER_LENGTH = 20_000  # characters of an answer
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_EVALUATING_FUNCTIONS = {"eval", "exec", "parse_expr", "sympify"}
_SCORER_NAMES = {"entry", "metadata", "self"}  # what a scorer may run: its own data
_RIGHT, _WRONG = "right", "wrong"
# What a scorer that does not check a text may raise over it: a wrong answer.
_ANSWER_ERRORS = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    SyntaxError,
    RecursionError,
)


class ReasoningGym(WrappedWorld):
    """Questions of one or several datasets.

    Args:
        datasets: names as Reasoning Gym has them, such as "leg_counting".
        config: options of the dataset's generator, if there is a single dataset; part of every task.
        trusted: also play datasets whose scorers run the answer as a program. Only for answers that you wrote.
        sizes: the panel sizes; the datasets take turns.

    Raises:
        ConfigError: no names, options that are not JSON, or options for several datasets.
        MissingExtra: reasoning-gym is not installed.
    """

    name = "reasoning"
    horizon = 1
    reward_range = (0.0, 1.0)
    instructions = (
        "Answer the question. Your reply is the answer alone, in the form that the question asks for; or write it "
        "between <answer> and </answer>."
    )

    def __init__(
        self,
        datasets: str | Sequence[str],
        *,
        config: Mapping[str, Json] | None = None,
        trusted: bool = False,
        sizes: Sizes | None = None,
    ) -> None:
        names = (datasets,) if isinstance(datasets, str) else tuple(datasets)
        problems = common_problems()
        if not names or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
            problems.append(Problem("datasets", f"got {list(names)!r}, expected different names such as leg_counting"))
        if config and len(names) > 1:
            problems.append(Problem("config", "got options for several datasets", "use a single dataset"))
        try:
            self.config: Mapping[str, Json] = dict(config or {})
            canonical_json(self.config)
        except (TypeError, ValueError):
            problems.append(Problem("config", f"got {config!r}, expected JSON names with numbers, texts or lists"))
        if problems:
            raise ConfigError(problems)
        self.datasets, self.trusted = names, trusted
        super().__init__(REASONING_GYM, sizes=widen_sizes(sizes, len(names)))

    def _draw(self, tier: str) -> Iterator[Candidate]:
        config_spec: dict[str, Json] = {"config": dict(self.config)} if self.config else {}
        for seed in count():
            for name in self.datasets:
                yield make_candidate({"dataset": name, "seed": seed, **config_spec}, name)

    def _open_session(self, task: Task) -> _QuestionSession:
        names = ("dataset", "seed", "config") if "config" in task.spec else ("dataset", "seed")
        seed = read_number(task.spec, "seed", names=names)
        config = task.spec.get("config", {})
        if not isinstance(config, Mapping):
            raise ConfigError([Problem("config", f"got {config!r}, expected names and values")])
        return _QuestionSession(str(task.spec["dataset"]), seed, config, trusted=self.trusted)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw and unit = the scorer's mark, 0 to 1; success = full marks."""
        known_rewards = [reward for reward in rewards if reward is not None]
        if len(known_rewards) != len(rewards):
            return Score(None, None, None)
        raw = math.fsum(known_rewards)
        return Score(raw, min(1.0, max(0.0, raw)), raw >= 1.0 - 1e-9)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the answer that comes with the question; None for datasets without answers."""
        check_task(self, task)
        question = self._open_session(task)
        question.begin()
        answer = question.entry.get("answer")
        return None if answer is None else [str(answer)]


class _QuestionSession:
    """An episode: one question, one answer."""

    def __init__(self, dataset: str, seed: int, config: Mapping[str, Any], *, trusted: bool) -> None:
        self._dataset, self._seed, self._config, self._trusted = dataset, seed, config, trusted
        self._made: Any = None
        self.entry: Mapping[str, Any] = {}

    def begin(self) -> tuple[str, Info]:
        if self._made is None:
            self._made = self._create_dataset()
            with boundary(EnvLost, f"the dataset {self._dataset} could not make a question", seed=self._seed):
                self.entry = self._made[0]
        return str(self.entry["question"]).strip(), {}

    def _create_dataset(self) -> Any:
        factory = REASONING_GYM.load_module("reasoning_gym.factory")
        redirect_prints("reasoning_gym")
        if self._dataset not in factory.DATASETS:
            raise ConfigError([unknown_name_problem("dataset", self._dataset, factory.DATASETS)])
        if not self._trusted and runs_answers(factory.DATASETS[self._dataset][0]):
            raise ConfigError(
                f"the scorer of {self._dataset} runs the answer as a program",
                hint="choose another dataset, or set trusted=True for answers that no model wrote",
            )
        with boundary(ConfigError, f"the dataset {self._dataset} refuses its options", config=dict(self._config)):
            return factory.create_dataset(self._dataset, **{**self._config, "size": 1, "seed": self._seed})

    def act(self, action: str) -> Reply:
        marked = _ANSWER.findall(action)
        answer = (marked[-1] if marked else action)[:_MAX_ANSWER_LENGTH].strip()
        info: dict[str, object] = {}
        try:
            mark = float(self._made.score_answer(answer, self.entry))
        except _ANSWER_ERRORS as error:
            log.debug("the scorer of %s raised over an answer: %r", self._dataset, error)
            mark, info = 0.0, {"invalid": True}
        mark = min(1.0, max(0.0, mark)) if math.isfinite(mark) else 0.0
        return _RIGHT if mark >= 1.0 - 1e-9 else _WRONG, mark, True, False, info

    def close(self) -> None:
        self._made = None


def runs_answers(dataset: type) -> bool:
    """Checks whether a dataset's scorer runs anything but its own data; True also if its source cannot be read."""
    scorer: Any = getattr(dataset, "score_answer", None)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(scorer)))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(node, ast.Call) and _is_risky(node) for node in ast.walk(tree))


def _is_risky(call: ast.Call) -> bool:
    """Checks whether a call runs a foreign text or passes it to the scorer of another dataset."""
    name = _function_name(call.func)
    if name == "score_answer":
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        return not (isinstance(receiver, ast.Call) and _function_name(receiver.func) == "super")
    names = {inner.id for argument in call.args for inner in ast.walk(argument) if isinstance(inner, ast.Name)}
    return name in _EVALUATING_FUNCTIONS and not names <= _SCORER_NAMES


def _function_name(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
