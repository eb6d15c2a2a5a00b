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

from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.trajectory import Score, Task, Value, canonical_json
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.crafting import words_of
from evolvent.worlds.datasci.pipelines import MODELS, SCALES, SELECTS, SIZES, WORDS, pipelines, read_pipeline
from evolvent.worlds.datasci.table import Table, read_table
from evolvent.worlds.datasci.tasks import first_text, panel, read_spec, words_told
from evolvent.worlds.grammar import Grammar, Plain
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
class _Board:
    """What all tasks of one data set share: what can be written, what it scores, and what is good enough."""

    admissible: tuple[str, ...]
    scores: Mapping[str, float]
    mark: float

    @classmethod
    def of(cls, table: Table, name: str) -> _Board:
        scores = dict(table.scores[name])
        return cls(tuple(text for text in map(str, pipelines()) if text in scores), scores, table.mark(name))


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot. The only state is whether the episode runs."""

    task: str
    running: bool


class DataSciEnv:
    """One task. `info` holds `admissible`; after a pipeline that can be fitted `auc`, `mark` and `won`."""

    def __init__(self, task: Task, first: str, board: _Board, *, penalty: float) -> None:
        self._task, self._first, self._board, self._penalty = task, first, board, penalty
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        return self._first, {"admissible": self._board.admissible}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        board, text = self._board, str(action)
        area = board.scores.get(text)
        if area is None:
            found = read_pipeline(text)
            area = None if isinstance(found, str) else board.scores.get(str(found))
            if area is None:
                said = found if isinstance(found, str) else f"the data have fewer columns than {found.size}"
                info = {"admissible": board.admissible, "invalid": True, "expected": _strange(text)}
                return said, self._penalty, False, False, info
        self._running = False
        known = {"admissible": board.admissible, "auc": area, "mark": board.mark, "won": area >= board.mark}
        return _SCORED, area, True, False, known

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._running = own_moment(value, _Moment, self._task).running

    def close(self) -> None:
        self._running = False


def _strange(text: str) -> str:
    """For people: the words that are none of the language, and those that are."""
    lower = {word.lower() for word in WORDS}
    words = [word for word in text.replace(";", " ; ").split() if word.lower() not in lower]
    return f"{', '.join(words[:5]) or 'all words are known'}; allowed: {' '.join(WORDS)}"


def score_fit(rewards: Sequence[float | None], info: Info) -> Score:
    """Raw = the sum of the rewards; unit = the ROC-AUC, 0 without one; success = it reached the data set's mark.

    Any reward of None makes the whole episode unscored.
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) != len(rewards):
        return Score(None, None, None)
    return Score(float(sum(known)), float(info.get("auc", 0.0)), bool(info.get("won", False)))


class DataSci:
    """The world of pipelines. The test panel holds data sets that are never trained on.

    Success is a score that at most a tenth of all pipelines reach on that data set (`Table.mark`).

    Args:
        table: the scores (None: the library's own).
        penalty: the reward of a text that is no pipeline or cannot be fitted, 0 or less; -1 as published.
        sizes: most tasks of each panel.
        horizon: how many tries an episode has.
    Raises:
        ConfigError: a penalty that is positive or not finite, a horizon below 1 or above 64.
        CorruptRecord, HashMismatch: the table was damaged.
    """

    name = "datasci"
    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    blocking = False

    def __init__(
        self, *, table: Table | None = None, penalty: float = -1.0, sizes: Sizes | None = None, horizon: int = _HORIZON
    ) -> None:
        problems = []
        if not 1 <= horizon <= _LONGEST_HORIZON:
            problems.append(Problem("horizon", f"{horizon} tries", f"give 1 to {_LONGEST_HORIZON}"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for no pipeline", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.table = read_table() if table is None else table
        self.penalty, self.horizon, self.sizes = penalty, horizon, sizes or Sizes()
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = _instructions()
        self._boards: dict[str, _Board] = {}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Data sets of that split x wordings of that split x hints; ConfigError for a name that does not exist."""
        check_names(split, tier, self.tiers)
        return panel(self, split, self.table, most=self.sizes.of(split))

    def key(self, task: Task) -> str:
        """What makes a task: data set, wording and hint."""
        return canonical_json(list(read_spec(self, task, self.table)))

    def make(self, task: Task) -> DataSciEnv:
        """An Env for a task of this world; ConfigError or VersionMismatch for any other."""
        name, form, hint = read_spec(self, task, self.table)
        if name not in self._boards:
            self._boards[name] = _Board.of(self.table, name)
        first = first_text(self.table, name, form, hint=hint)
        return DataSciEnv(task, first, self._boards[name], penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """See `score_fit`."""
        return score_fit(rewards, info)

    def expert(self, task: Task) -> Sequence[str]:
        """The best pipeline of the table."""
        return [self.table.best(read_spec(self, task, self.table)[0])]

    def vocabulary(self) -> Sequence[str]:
        """Every word and mark of observations and pipelines, sorted."""
        return sorted({word for text in (*WORDS, *words_told(), *_SENTENCES) for word in words_of(text)})


def _instructions() -> str:
    """What an agent is told: the language with all its words."""
    models = (
        " ".join((model, *(f"{name} {'|'.join(values)}" for name, values in of.items())))
        for model, of in MODELS.items()
    )
    return (
        "Write a pipeline for the data that reaches a high ROC-AUC in cross-validation. Clauses in this order, of "
        f"which the first two may be left out: scale {'|'.join(SCALES)} ; select {'|'.join(SELECTS)} {'|'.join(SIZES)} "
        f"; model M with its parameters, as in 'model knn k 5' ; end. Models: {', '.join(models)}."
    )
