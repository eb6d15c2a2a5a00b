"""DataSciCoding in a small language: write a pipeline, get its cross-validated ROC-AUC. Microseconds a step.

    fit a model to data with some rows , 10 or more columns , two classes , ... . hint : model knn
        ->  scale standard ; select kbest 5 ; model knn k 5 ; end  ->  scored

Published rules (POAD, 2405.15821): a pipeline that can be fitted earns its ROC-AUC and ends the episode; anything else
earns -1, and the error is the next observation. What pipelines reach is looked up in a table that ships with the
library (`table`, `rebuild`), so nothing is executed; `code` is the same with free Python code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Score, Task, Value, canonical_json
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv
from evolvent.worlds.crafting import words_of
from evolvent.worlds.datasci.pipelines import MODELS, SCALES, SELECTS, SIZES, WORDS, pipelines, read_pipeline
from evolvent.worlds.datasci.table import Table, read_table
from evolvent.worlds.datasci.tasks import build_panel, first_text, parse_spec, task_words
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["DataSci", "DataSciEnv", "score_fit"]

_SCORED = "scored"
_SENTENCES = (
    _SCORED,
    "too long",
    "the last clause is end",
    "that begins no clause : expected scale , select or model",
    "the order is scale ; select ; model ; end",
    "expected a clause model",
    "expected and one of",
    "takes no parameter , not that and",
    "is given twice",
    "the data have fewer columns than",
)
_HORIZON, _LONGEST_HORIZON = 8, 64


@dataclass(frozen=True, slots=True)
class _ScoreBoard:
    """Data that all tasks of a data set share: the legal pipelines, their scores and the success threshold."""

    admissible: tuple[str, ...]
    scores: Mapping[str, float]
    threshold: float

    @classmethod
    def of(cls, table: Table, name: str) -> _ScoreBoard:
        scores = dict(table.scores[name])
        return cls(
            tuple(text for text in map(str, pipelines()) if text in scores), scores, table.success_threshold(name)
        )


class DataSciEnv(StateEnv[None]):
    """One task. `info` holds `admissible`; after a pipeline that can be fitted `auc`, `mark` and `won`."""

    def __init__(self, task: Task, first: str, board: _ScoreBoard, *, penalty: float) -> None:
        super().__init__(task, None)
        self._first, self._board, self._penalty = first, board, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._first, {"admissible": self._board.admissible}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        board, text = self._board, str(action)
        area = board.scores.get(text)
        if area is None:
            pipeline = read_pipeline(text)
            area = None if isinstance(pipeline, str) else board.scores.get(str(pipeline))
            if area is None:
                message = pipeline if isinstance(pipeline, str) else f"the data have fewer columns than {pipeline.size}"
                info = {"admissible": board.admissible, "invalid": True, "expected": _explain_unknown_words(text)}
                return None, (message, self._penalty, False, False, info)
        info_at_end = {
            "admissible": board.admissible,
            "auc": area,
            "mark": board.threshold,
            "won": area >= board.threshold,
        }
        return None, (_SCORED, area, True, False, info_at_end)


def _explain_unknown_words(text: str) -> str:
    """Lists, for people, the words of a text that are outside the language, and the words of the language."""
    lower = {word.lower() for word in WORDS}
    unknown_words = [word for word in text.replace(";", " ; ").split() if word.lower() not in lower]
    return f"{', '.join(unknown_words[:5]) or 'all words are known'}; allowed: {' '.join(WORDS)}"


def score_fit(rewards: Sequence[float | None], info: Info) -> Score:
    """Scores an episode: raw = the sum of the rewards; unit = the ROC-AUC, 0 without one; success = the threshold is
    reached.

    Any reward of None makes the whole episode unscored.
    """
    known_rewards = [reward for reward in rewards if reward is not None]
    if len(known_rewards) != len(rewards):
        return Score(None, None, None)
    return Score(float(sum(known_rewards)), float(info.get("auc", 0.0)), bool(info.get("won", False)))


class DataSci:
    """The world of pipelines. The test panel holds data sets that are never trained on.

    Success is a score that at most a tenth of all pipelines reach on that data set (`Table.success_threshold`).

    Args:
        table: the scores (None: the library's own).
        penalty: the reward of a text that is not a pipeline or cannot be fitted, 0 or less; -1 as published.
        sizes: maximum number of tasks of each panel.
        horizon: number of tries of an episode.
    Raises:
        ConfigError: a penalty that is positive or not finite, a horizon below 1 or above 64.
        CorruptRecord, HashMismatch: the table was damaged.
    """

    name = "datasci"
    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = False

    def __init__(
        self, *, table: Table | None = None, penalty: float = -1.0, sizes: Sizes | None = None, horizon: int = _HORIZON
    ) -> None:
        problems = []
        if not 1 <= horizon <= _LONGEST_HORIZON:
            problems.append(Problem("horizon", f"got {horizon}, expected 1 to {_LONGEST_HORIZON}"))
        if not -math.inf < penalty <= 0:
            problems.append(
                Problem("penalty", f"got a reward of {penalty} for an invalid pipeline, expected 0 or less")
            )
        if problems:
            raise ConfigError(problems)
        self.table = read_table() if table is None else table
        self.penalty, self.horizon, self.sizes = penalty, horizon, sizes or Sizes()
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = _build_instructions()
        self._boards: dict[str, _ScoreBoard] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns data sets x wordings x hints of a split; raises ConfigError for an unknown name."""
        check_names(split, tier, self.tiers)
        return build_panel(self, split, self.table, max_tasks=self.sizes.of(split))

    def key(self, task: Task) -> str:
        """Returns the identity of a task: data set, wording and hint."""
        return canonical_json(list(parse_spec(self, task, self.table)))

    def make(self, task: Task) -> DataSciEnv:
        """Creates an Env for a task of this world; raises ConfigError or VersionMismatch for any other."""
        name, form, hint = parse_spec(self, task, self.table)
        if name not in self._boards:
            self._boards[name] = _ScoreBoard.of(self.table, name)
        first_observation = first_text(self.table, name, form, hint=hint)
        return DataSciEnv(task, first_observation, self._boards[name], penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode; see `score_fit`."""
        return score_fit(rewards, info)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the best pipeline of the table."""
        return [self.table.best(parse_spec(self, task, self.table)[0])]

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and pipelines, sorted."""
        return sorted({word for text in (*WORDS, *task_words(), *_SENTENCES) for word in words_of(text)})


def _build_instructions() -> str:
    """Builds the instructions of an agent: the language with all its words."""
    models = (
        " ".join((model, *(f"{name} {'|'.join(values)}" for name, values in parameters.items())))
        for model, parameters in MODELS.items()
    )
    return (
        "Write a pipeline for the data that reaches a high ROC-AUC in cross-validation. Clauses in this order, of "
        f"which the first two may be left out: scale {'|'.join(SCALES)} ; select {'|'.join(SELECTS)} {'|'.join(SIZES)} "
        f"; model M with its parameters, as in 'model knn k 5' ; end. Models: {', '.join(models)}."
    )
