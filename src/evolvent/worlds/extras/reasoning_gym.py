"""Reasoning Gym (Stojanovski et al. 2025): puzzles of a hundred generators, with one question and one answer each.

A task is a dataset's name and a seed; the dataset's own scorer scores the answer. Some of those scorers run the
answer as a program (`eval`, or a parser that uses it). Model text is never run here: such datasets are refused
unless the caller declares the answers trusted.

Some scorers pay full marks for wrong answers. Their marks are corrected here, each with the line of reasoning-gym
0.1.25 that is corrected. `benchmarks/package_tasks.py` answers every dataset rightly, wrongly and with nonsense.
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
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
_FULL = 1.0 - 1e-9  # marks that count as full: some are sums of shares
_EXAMPLES = ("possible_answer", "example_answer", "example_correct_answer")  # in the metadata of entries without answer
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
        return Score(raw, min(1.0, max(0.0, raw)), raw >= _FULL)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the answer that comes with the question, or an example of one; None for datasets with neither."""
        check_task(self, task)
        question = self._open_session(task)
        question.begin()
        answer = question.entry.get("answer")
        if answer is None:
            answer = next(
                (question.entry["metadata"][key] for key in _EXAMPLES if key in question.entry["metadata"]), None
            )
        return None if answer is None else [answer if isinstance(answer, str) else json.dumps(answer)]


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
            mark = min(1.0, max(0.0, mark)) if math.isfinite(mark) else 0.0
            correct = _MARKS.get(self._dataset)
            if correct is not None:
                mark = correct(answer, self.entry, mark)
        except _ANSWER_ERRORS as error:
            log.debug("the scorer of %s raised over an answer: %r", self._dataset, error)
            mark, info = 0.0, {"invalid": True}
        return _RIGHT if mark >= _FULL else _WRONG, mark, True, False, info

    def close(self) -> None:
        self._made = None


def _mark_halting(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Compares the words: the package compares their truth values, and "False" is true
    (algorithmic/game_of_life_halting.py, line 398).
    """
    return float(answer.lower() == str(entry["answer"]).lower())


def _mark_coin_flip(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Asks for the probability: the package pays full marks for its first digit, as it divides the matching characters
    by the shorter text (probability/coin_flip.py, line 147), and for 0 where it is below .0001 (line 133).
    """
    expected, value = float(Fraction(entry["answer"])), float(Fraction(answer.replace(",", "")))
    if mark < _FULL or abs(value - expected) <= min(1e-4, 0.005 * expected):
        return mark
    texts = (f"{value:.10g}", f"{expected:.10g}")
    matching = next((index for index, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), None)
    return (min(map(len, texts)) if matching is None else matching) / max(map(len, texts))


def _mark_number_sorting(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Asks for the numbers of the question: the package lets each differ by 1 (algorithmic/number_sorting.py, line
    154).
    """
    if mark < _FULL:
        return mark
    lists = [json.loads(text.replace("'", '"')) for text in (answer, entry["answer"])]
    numbers, expected = ([Decimal(str(number)) for number in values] for values in lists)
    return mark if numbers == expected else 0.0


def _mark_gsm_symbolic(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Reads the sign: the package never sees one (arithmetic/gsm_symbolic/gsm_symbolic.py, line 166)."""
    number = re.search(r"\b-?\d", answer)
    is_negative = number is not None and answer[: number.start()].endswith("-")
    return 0.01 if mark >= _FULL and is_negative and float(entry["answer"]) > 0 else mark


def _mark_propositional(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Asks for the variables: of premises that contradict each other the package pays for every word
    (logic/propositional_logic.py, line 324).
    """
    names = "".join(map(re.escape, entry["metadata"]["variables"]))
    return mark if re.fullmatch(rf"[{names}∧∨¬→↔()\s]*", answer) else 0.0


def _mark_puzzle24(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Asks for the numbers of the question: the package takes any four (games/puzzle24.py, line 122)."""
    numbers = sorted(map(int, re.findall(r"\d+", answer)))
    return mark if mark < _FULL or numbers == sorted(map(int, entry["metadata"]["numbers"])) else 0.01


def _mark_figlet(answer: str, entry: Mapping[str, Any], mark: float) -> float:
    """Pays the share of the letters: the package pays .1 for each, so that ten are enough (cognition/figlet_fonts.py,
    line 231).
    """
    word, expected = answer.replace(" ", "").lower(), entry["answer"].strip().lower()
    if word == expected or mark < _FULL:
        return mark
    num_equal = sum(letter == right for letter, right in zip(word, expected, strict=False))
    return float(num_equal / max(len(word), len(expected)))


def _mark_without_surplus(read: Callable[[str], Any]) -> Callable[[str, Mapping[str, Any], float], float]:
    """Returns a correction for answers that hold the right one and more, which the package pays in full.

    Such an answer is paid as the package's default does (dataset.py, line 71): by the share of the right one.
    """

    def mark_answer(answer: str, entry: Mapping[str, Any], mark: float) -> float:
        if mark < _FULL or read(answer) == read(entry["answer"]):
            return mark
        return min(0.9, len(entry["answer"]) / len(answer))

    return mark_answer


_MARKS: Mapping[str, Callable[[str, Mapping[str, Any], float], float]] = {
    "game_of_life_halting": _mark_halting,
    "coin_flip": _mark_coin_flip,
    "number_sorting": _mark_number_sorting,
    "gsm_symbolic": _mark_gsm_symbolic,
    "propositional_logic": _mark_propositional,
    "puzzle24": _mark_puzzle24,
    "figlet_font": _mark_figlet,
    # Rows and columns beyond the grid are not looked at (algorithmic/game_of_life.py, line 131).
    "game_of_life": _mark_without_surplus(json.loads),
    # Words beyond the last are not looked at (algorithmic/word_sorting.py, line 138).
    "word_sorting": _mark_without_surplus(lambda text: [word.strip() for word in text.split(",")]),
    # Letters beyond the last are not looked at; the deduction for them asks for a sum of exactly 1
    # (algorithmic/spell_backward.py, line 86).
    "spell_backward": _mark_without_surplus(str.lower),
    # Words beyond the last are not looked at (algorithmic/letter_jumble.py, line 136).
    "letter_jumble": _mark_without_surplus(lambda text: text.strip().lower()),
}
"""Corrections of a mark by (answer, entry, mark), by dataset."""


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
