"""DataSciCoding with free Python code: a program that defines a model is fitted in a box and judged outside.

    fit a model to data with some rows , ... . hint : model knn
        ->  from sklearn.neighbors import KNeighborsClassifier
            model = KNeighborsClassifier(15)
        ->  scored

Rules as published (POAD, 2405.15821): the ROC-AUC of five folds ends the episode; a failure earns -1 and its text is
the next observation. Tasks are those of `world`. The score never comes from the box (`folds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.sandbox.limits import CodeRunner, Limits
from evolvent.sandbox.pool import Boxes
from evolvent.trajectory import Score, Task, Value, canonical_json, sample_rng
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.code.answers import source_in
from evolvent.worlds.datasci.folds import Judged, cross_validate, disguised, folds
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.sets import load_set
from evolvent.worlds.datasci.table import Table, read_table
from evolvent.worlds.datasci.tasks import first_text, panel, read_spec
from evolvent.worlds.datasci.world import score_fit
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.panel import Sizes, check_names

__all__ = ["LIMITS", "PACKAGES", "DataSciCode", "DataSciCodeEnv", "code_of"]

LIMITS = Limits(cpu_s=60, wall_s=60.0, memory_mb=4096, total_mb=2048, files=256)
"""What one try may use: 60 s for all folds."""
PACKAGES = ("numpy", "sklearn")
"""What a program may import beside the standard library."""
_LONGEST = 20_000  # characters of a program
_SHOWN = 500  # of an error
_MOST_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and how many tries it had."""

    task: str
    running: bool
    tries: int


class DataSciCodeEnv:
    """One task. `info` after a program that could be fitted: `auc`, `mark`, `won`; `unsafe` where it ran unisolated."""

    def __init__(self, world: DataSciCode, task: Task, first: str, *, name: str) -> None:
        self._world, self._task, self._first, self._name = world, task, first, name
        self._tries, self._running = 0, False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._tries, self._running = 0, True
        return self._first, {}

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        judged = self._world.judge(str(action), self._task)
        self._tries += 1
        info: dict[str, object] = {"unsafe": True} if judged.unsafe else {}
        if judged.area is None:
            return judged.error[:_SHOWN], self._world.penalty, False, False, {**info, "invalid": True}
        self._running = False
        mark = self._world.table.mark(self._name)
        won = judged.area >= mark
        return "scored", judged.area, True, False, {**info, "auc": judged.area, "mark": mark, "won": won}

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._tries)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running, self._tries = moment.running, moment.tries

    def close(self) -> None:
        self._running = False


class DataSciCode:
    """The world of free scikit-learn code.

    Args:
        runner: who runs code (None: boxes of its own that may import scikit-learn, started with the first program and
            given back by `close`).
        table: whose data sets, facts and marks are used (None: the library's own).
        salt: changes how the data are disguised; keep it to yourself where programs may try to look answers up.
        count: how many folds.
        limits: of a try.
        penalty: the reward of a program that fails, 0 or less; -1 as published.
        sizes: most tasks of each panel.
        horizon: how many tries an episode has, 1 to 8.
    Raises:
        ConfigError: numbers out of their range; all of them at once.
        MissingExtra: scikit-learn is not installed (with the first program).
        IsolationUnavailable: this host cannot isolate (with the first program).
    """

    name = "datasci-code"
    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    blocking = True
    instructions = (
        "Write a Python program that defines `model` or `pipeline`, an estimator of scikit-learn with predict_proba, "
        "or a function predict(rows, labels, asked) that returns a probability of every class for each row asked. It "
        "is fitted and judged by cross-validated ROC-AUC. numpy and scikit-learn can be imported; one minute."
    )

    def __init__(
        self,
        runner: CodeRunner | None = None,
        *,
        table: Table | None = None,
        salt: str = "",
        count: int = 5,
        limits: Limits = LIMITS,
        penalty: float = -1.0,
        sizes: Sizes | None = None,
        horizon: int = 1,
    ) -> None:
        rules = (
            (2 <= count <= 10, "count", f"{count} folds", "give 2 to 10"),
            (1 <= horizon <= _MOST_TRIES, "horizon", f"{horizon} tries", f"give 1 to {_MOST_TRIES}"),
            (-math.inf < penalty <= 0, "penalty", f"a reward of {penalty} for a failure", "give 0 or less"),
        )
        problems = [Problem(where, what, hint) for kept, where, what, hint in rules if not kept]
        if problems:
            raise ConfigError(problems)
        self._given, self._lock = runner, Lock()
        self._own: Boxes | None = None
        self.table = read_table() if table is None else table
        self.salt, self.count, self.limits, self.penalty = salt, count, limits, penalty
        self.sizes, self.horizon = sizes or Sizes(), horizon
        self.reward_range = (min(0.0, penalty), 1.0)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Data sets of that split x wordings of that split x hints; ConfigError for a name that does not exist."""
        check_names(split, tier, self.tiers)
        return panel(self, split, self.table, most=self.sizes.of(split))

    def key(self, task: Task) -> str:
        """What makes a task: data set, wording and hint."""
        return canonical_json(list(read_spec(self, task, self.table)))

    def make(self, task: Task) -> DataSciCodeEnv:
        """An Env for a task of this world; ConfigError or VersionMismatch for any other."""
        name, form, hint = read_spec(self, task, self.table)
        return DataSciCodeEnv(self, task, first_text(self.table, name, form, hint=hint), name=name)

    def judge(self, text: str, task: Task) -> Judged:
        """Fit and judge the program in a text on the task's data. Any number of threads may ask at once.

        Raises:
            MissingExtra, IsolationUnavailable: see the class.
        """
        source = source_in(text)
        if len(source) > _LONGEST:
            return Judged(None, f"a program of more than {_LONGEST} characters")
        name, _, _ = read_spec(self, task, self.table)
        rng = sample_rng("datasci", self.salt, task.id)
        data = disguised(load_set(name), rng)
        return cross_validate(
            source, data, folds(data.labels, self.count, rng), runner=self._boxes(), limits=self.limits
        )

    def _boxes(self) -> CodeRunner:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = Boxes(packages=PACKAGES, ahead=1)
            return self._own

    def close(self) -> None:
        """Give back the boxes that the world opened; a runner that was handed in stays open."""
        with self._lock:
            if self._own is not None:
                self._own.close()
            self._own = None

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """See `score_fit`."""
        return score_fit(rewards, info)

    def expert(self, task: Task) -> Sequence[str]:
        """The table's best pipeline as a program."""
        best = read_pipeline(self.table.best(read_spec(self, task, self.table)[0]))
        if isinstance(best, str):
            raise ConfigError("a table whose best is no pipeline", value=best)
        return [code_of(best)]

    def vocabulary(self) -> None:
        """Programs hold any words."""


_IMPORTS: Mapping[str, tuple[str, str]] = {
    "standard": ("preprocessing", "StandardScaler"),
    "minmax": ("preprocessing", "MinMaxScaler"),
    "robust": ("preprocessing", "RobustScaler"),
    "maxabs": ("preprocessing", "MaxAbsScaler"),
    "kbest": ("feature_selection", "SelectKBest"),
    "pca": ("decomposition", "PCA"),
    "logreg": ("linear_model", "LogisticRegression"),
    "knn": ("neighbors", "KNeighborsClassifier"),
    "tree": ("tree", "DecisionTreeClassifier"),
    "forest": ("ensemble", "RandomForestClassifier"),
    "gnb": ("naive_bayes", "GaussianNB"),
}
_PARAMETERS = {"C": "C", "k": "n_neighbors", "depth": "max_depth", "trees": "n_estimators"}


def code_of(pipeline: Pipeline) -> str:
    """A pipeline of the small language as a program: a function `predict`, since `half` depends on the data."""
    size = "max(1, rows.shape[1] // 2)" if pipeline.size == "half" else pipeline.size
    given = [f"{_PARAMETERS[name]}={value.replace('none', 'None')}" for name, value in pipeline.params]
    given += ["random_state=0"] if pipeline.model in ("tree", "forest") else []
    inside = {pipeline.select: f"k={size}" if pipeline.select == "kbest" else size, pipeline.model: ", ".join(given)}
    steps = [step for step in (pipeline.scale, pipeline.select, pipeline.model) if step]
    imports = [f"from sklearn.{_IMPORTS[step][0]} import {_IMPORTS[step][1]}" for step in steps]
    made = ", ".join(f"{_IMPORTS[step][1]}({inside.get(step, '')})" for step in steps)
    return "\n".join(
        (
            *imports,
            "from sklearn.pipeline import make_pipeline",
            "",
            "",
            "def predict(rows, labels, asked):",
            f"    model = make_pipeline({made})",
            "    return model.fit(rows, labels).predict_proba(asked)",
            "",
        )
    )
