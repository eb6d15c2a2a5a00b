"""DataSciCoding with free Python code: a program that defines a model is fitted in a sandbox and judged outside.

    fit a model to data with some rows , ... . hint : model knn
        ->  from sklearn.neighbors import KNeighborsClassifier
            model = KNeighborsClassifier(15)
        ->  scored

Rules as published (POAD, 2405.15821): the ROC-AUC of five folds ends the episode; a failure earns -1 and its text is
the next observation. Tasks are those of `world`. The score never comes from the box.

The area under the ROC curve, from labels and the scores or probabilities of a program.

Cross-validation of untrusted code: the input of the sandboxes, their output, and the score, computed outside.

Each fold has its own sandbox. It gets the rows and labels to learn from and the rows to judge, never their labels: in
a shared sandbox, the training rows of one fold would reveal the answers of another. The sandbox returns class
probabilities; they are compared with the labels here.

The sets that ship with scikit-learn lie in every sandbox that has scikit-learn, labels included, and a program might
look them up. So rows are shuffled, columns change places, units and zero points, classes change numbers, all by a
generator that is drawn outside, with a little noise. That makes looking up harder than fitting. It is not a proof;
where scores must be beyond doubt, use data that no package holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.sandbox.limits import CallRequest, CodeRunner, Outcome, SandboxLimits
from evolvent.sandbox.pool import SandboxPool
from evolvent.trajectory import Score, Task, Value, canonical_json, sample_rng
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv
from evolvent.worlds.code.answers import extract_source
from evolvent.worlds.datasci.files import CsvSets
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.sets import DataSet, load_set
from evolvent.worlds.datasci.table import Table, read_table
from evolvent.worlds.datasci.tasks import build_panel, first_text, parse_spec
from evolvent.worlds.datasci.world import score_fit
from evolvent.worlds.panel import Sizes, check_names

__all__ = [
    "ENTRY",
    "HARNESS",
    "LIMITS",
    "PACKAGES",
    "DataSciCode",
    "DataSciCodeEnv",
    "ProgramScore",
    "area_of_probabilities",
    "area_under_curve",
    "cross_validate",
    "deal_folds",
    "disguise",
    "render_program",
]


ENTRY = "evolvent_answer"
HARNESS = f"""

def {ENTRY}(rows, labels, asked, columns):
    import numpy
    rows = numpy.frombuffer(rows, "<f4").astype(float).reshape(-1, columns)
    asked = numpy.frombuffer(asked, "<f4").astype(float).reshape(-1, columns)
    labels = numpy.frombuffer(labels, "u1").astype(int)
    if "predict" in globals():
        found = predict(rows, labels, asked)
    else:
        made = globals().get("model", globals().get("pipeline"))
        if made is None:
            raise NameError("define model or pipeline, or a function predict(rows, labels, asked)")
        found = made.fit(rows, labels).predict_proba(asked)
    return [[float(chance) for chance in row] for row in found]
"""
"""What is run in the box after the program. It is not trusted either: only its answer counts."""
_NOISE = 1e-3  # of a column's spread


@dataclass(frozen=True, slots=True)
class ProgramScore:
    """The result of a program: the mean area of the folds, or None and the error; whether it ran without isolation."""

    area: float | None
    error: str = ""
    unsafe: bool = False


def disguise(data: DataSet, rng: np.random.Generator) -> DataSet:
    """Returns the same problem with rows, columns, units and class numbers drawn anew: nearly the same areas, but
    for noise.
    """
    order, columns = rng.permutation(len(data.rows)), rng.permutation(data.rows.shape[1])
    rows = data.rows[order][:, columns]
    spread = rows.std(axis=0)
    rows = rows + _NOISE * spread * rng.normal(size=rows.shape)
    unit = np.exp(rng.uniform(-0.3, 0.3, rows.shape[1]))
    rows = rows * unit + rng.uniform(-1, 1, rows.shape[1]) * spread
    return DataSet(data.name, rows, rng.permutation(data.classes)[data.labels[order]])


def deal_folds(labels: NDArray[np.int64], count: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Splits the rows into test folds: every class is dealt evenly, in its own random order.

    Args:
        labels: `[num_rows]`. The class of each row.
        count: number of folds.
        rng: source of the random orders.
    Returns:
        the ascending row indices of each fold; together they are all rows.
    """
    fold_of_row = np.empty(len(labels), np.int64)
    start = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        fold_of_row[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)
    return [np.flatnonzero(fold_of_row == fold) for fold in range(count)]


def cross_validate(
    source: str,
    data: DataSet,
    test_indices_per_fold: Sequence[NDArray[np.int64]],
    *,
    runner: CodeRunner,
    limits: SandboxLimits,
) -> ProgramScore:
    """Fits and scores a program on every fold; the first failure ends it.

    Args:
        source: the program.
        data: the data set.
        test_indices_per_fold: the test rows of each fold.
        runner: runs the code.
        limits: of all folds together in wall time, of each in everything else.
    """
    deadline = time.monotonic() + limits.wall_s
    areas, unsafe = [], False
    for test_indices in test_indices_per_fold:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return ProgramScore(None, f"timeout: more than {limits.wall_s:g} s", unsafe)
        request = _build_request(data, test_indices)
        (outcome,) = runner.observe(source + HARNESS, [request], replace(limits, wall_s=remaining_s))
        unsafe = unsafe or outcome.unsafe
        probabilities = _parse_probabilities(outcome, len(test_indices), data.classes)
        if isinstance(probabilities, str):
            return ProgramScore(None, probabilities, unsafe)
        areas.append(area_of_probabilities(data.labels[test_indices], probabilities))
    return ProgramScore(float(np.mean(areas)), "", unsafe)


def _build_request(data: DataSet, test_indices: NDArray[np.int64]) -> CallRequest:
    """Builds the request of a fold: rows to learn from with their labels, and test rows without labels."""
    train_indices = np.setdiff1d(np.arange(len(data.labels)), test_indices)
    rows, labels = data.rows[train_indices].astype("<f4").tobytes(), data.labels[train_indices].astype("u1").tobytes()
    return CallRequest(ENTRY, (rows, labels, data.rows[test_indices].astype("<f4").tobytes(), data.rows.shape[1]))


def _parse_probabilities(outcome: Outcome, rows: int, classes: int) -> NDArray[np.float64] | str:
    """Parses the probabilities of an answer, `[rows, classes]`; returns the error text where they are malformed."""
    if not outcome.ok:
        return f"{outcome.status}: {outcome.error}" if outcome.status != "raised" else outcome.error
    value = outcome.value
    expected = f"expected {rows} rows of {classes} finite probabilities"
    if type(value) is not list or len(value) != rows:
        return f"{expected}, got {len(value) if type(value) is list else type(value).__name__}"
    if not all(
        type(row) is list and len(row) == classes and all(type(probability) is float for probability in row)
        for row in value
    ):
        return f"{expected} in each row"
    probabilities = np.array(value, np.float64)
    return probabilities if bool(np.isfinite(probabilities).all()) else expected


def area_under_curve(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """Computes the probability that a positive scores higher than a negative, ties counted half (Mann and Whitney).

    With rank sum R_pos of the P positives among P + N rows: area = (R_pos - P (P + 1) / 2) / (P N).

    Args:
        truth: `[N]`. Which rows are positive; both classes must occur.
        scores: `[N]`. Finite scores.

    >>> float(area_under_curve(np.array([False, True, True]), np.array([0.2, 0.2, 0.9])))
    0.75
    """
    _, group_index, group_sizes = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(group_sizes) - (group_sizes - 1) / 2)[group_index]
    positive = int(truth.sum())
    negative = len(truth) - positive
    return float((rank[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


def area_of_probabilities(labels: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Computes the ROC-AUC of class probabilities: of the second class of two, else the mean of one versus the rest.

    Args:
        labels: `[N]`. Classes 0 to C - 1, each of them at least once.
        probabilities: `[N, C]`. Finite; rows need not add up to 1.
    """
    classes = probabilities.shape[1]
    if classes == 2:
        return area_under_curve(labels == 1, probabilities[:, 1])
    return float(np.mean([area_under_curve(labels == label, probabilities[:, label]) for label in range(classes)]))


LIMITS = SandboxLimits(cpu_s=60, wall_s=60.0, memory_mb=4096, total_mb=2048, files=256)
"""What one try may use: 60 s for all folds."""
PACKAGES = ("numpy", "sklearn")
"""What a program may import beside the standard library."""
_LONGEST = 20_000  # characters of a program
_SHOWN = 500  # of an error
_MOST_TRIES = 8


class DataSciCodeEnv(StateEnv[None]):
    """One task. `info` after a program that could be fitted: `auc`, `mark`, `won`; `unsafe` where it ran unisolated."""

    def __init__(self, world: DataSciCode, task: Task, first_observation: str, *, name: str) -> None:
        super().__init__(task, None)
        self._world, self._first, self._name = world, first_observation, name

    def _observe_start(self) -> tuple[Value, Info]:
        return self._first, {}

    def _transition(self, state: None, action: Value) -> tuple[None, Reply]:
        program_score = self._world.judge(str(action), self._task)
        info: dict[str, object] = {"unsafe": True} if program_score.unsafe else {}
        if program_score.area is None:
            return None, (program_score.error[:_SHOWN], self._world.penalty, False, False, {**info, "invalid": True})
        threshold = self._world.success_threshold(self._name)
        won = program_score.area >= threshold
        last_info = {**info, "auc": program_score.area, "mark": threshold, "won": won}
        return None, ("scored", program_score.area, True, False, last_info)


class DataSciCode:
    """The world of free scikit-learn code.

    Args:
        runner: runs the code (None: the world's own sandboxes, which may import scikit-learn; they start with the
            first program and `close` releases them).
        table: source of data sets, facts and thresholds (None: the library's own).
        files: data sets of a user's CSV files in place of the library's (`files.read_csv_sets`). They are the same in
            every split, which differ in their wordings.
        salt: changes how the data are disguised; keep it secret where programs may try to look answers up.
        count: number of folds.
        limits: limits of a try.
        penalty: the reward of a failing program, 0 or less; -1 as published.
        sizes: maximum number of tasks of each panel.
        horizon: number of tries of an episode, 1 to 8.
    Raises:
        ConfigError: numbers out of their range; all of them at once.
        MissingExtra: scikit-learn is not installed (with the first program).
        IsolationUnavailable: this host cannot isolate (with the first program).
    """

    name = "datasci-code"
    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = True
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
        files: CsvSets | None = None,
        salt: str = "",
        count: int = 5,
        limits: SandboxLimits = LIMITS,
        penalty: float = -1.0,
        sizes: Sizes | None = None,
        horizon: int = 1,
    ) -> None:
        rules = (
            (2 <= count <= 10, "count", f"{count} folds", "give 2 to 10"),
            (1 <= horizon <= _MOST_TRIES, "horizon", f"{horizon} tries", f"give 1 to {_MOST_TRIES}"),
            (-math.inf < penalty <= 0, "penalty", f"a reward of {penalty} for a failure", "give 0 or less"),
        )
        problems = [Problem(setting, message, hint) for is_valid, setting, message, hint in rules if not is_valid]
        if problems:
            raise ConfigError(problems)
        self._given, self._lock = runner, Lock()
        self._own: SandboxPool | None = None
        if files is not None:
            table = files.table
        self.table = read_table() if table is None else table
        self.problems = () if files is None else files.problems
        self._files = files
        if files is not None:  # tasks of files that were changed since are refused
            self.name, self.version = "datasci-code-files", f"{type(self).version}-{files.digest}"
        self.salt, self.count, self.limits, self.penalty = salt, count, limits, penalty
        self.sizes, self.horizon = sizes or Sizes(), horizon
        self.reward_range = (min(0.0, penalty), 1.0)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns data sets x wordings x hints of a split; raises ConfigError for an unknown name."""
        check_names(split, tier, self.tiers)
        names = None if self._files is None else self._files.sets
        return build_panel(self, split, self.table, max_tasks=self.sizes.of(split), names=names)

    def key(self, task: Task) -> str:
        """Returns the identity of a task: data set, wording and hint."""
        return canonical_json(list(parse_spec(self, task, self.table)))

    def make(self, task: Task) -> DataSciCodeEnv:
        """Creates an Env for a task of this world; raises ConfigError or VersionMismatch for any other."""
        name, form, hint = parse_spec(self, task, self.table)
        return DataSciCodeEnv(self, task, first_text(self.table, name, form, hint=hint), name=name)

    def success_threshold(self, name: str) -> float:
        """Returns the score of a data set that counts as success."""
        return (self._files or self.table).success_threshold(name)

    def judge(self, text: str, task: Task) -> ProgramScore:
        """Scores the program in a text on the task's data. Any number of threads may call it at once.

        Raises:
            MissingExtra, IsolationUnavailable: see the class.
        """
        source = extract_source(text)
        if len(source) > _LONGEST:
            return ProgramScore(None, f"a program of more than {_LONGEST} characters")
        name, _, _ = parse_spec(self, task, self.table)
        rng = sample_rng("datasci", self.salt, task.id)
        data = disguise(load_set(name) if self._files is None else self._files.sets[name], rng)
        return cross_validate(
            source, data, deal_folds(data.labels, self.count, rng), runner=self._code_runner(), limits=self.limits
        )

    @property
    def needs_isolation(self) -> bool:
        """Returns whether programs are run in sandboxes of this host."""
        return self._given is None

    def _code_runner(self) -> CodeRunner:
        if self._given is not None:
            return self._given
        with self._lock:
            if self._own is None:
                self._own = SandboxPool(packages=PACKAGES, ahead=1)
            return self._own

    def close(self) -> None:
        """Releases the sandboxes that the world opened; a runner passed by the caller stays open."""
        with self._lock:
            if self._own is not None:
                self._own.close()
            self._own = None

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode; see `score_fit`."""
        return score_fit(rewards, info)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the table's best pipeline as a program."""
        best = read_pipeline(self.table.best(parse_spec(self, task, self.table)[0]))
        if isinstance(best, str):
            raise ConfigError("the best entry of the table is not a pipeline", value=best)
        return [render_program(best)]

    def vocabulary(self) -> None:
        """Returns None: programs hold any words."""


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


def render_program(pipeline: Pipeline) -> str:
    """Renders a pipeline of the small language as a program: a function `predict`, since `half` depends on the data."""
    size = "max(1, rows.shape[1] // 2)" if pipeline.size == "half" else pipeline.size
    arguments = [f"{_PARAMETERS[name]}={value.replace('none', 'None')}" for name, value in pipeline.params]
    arguments += ["random_state=0"] if pipeline.model in ("tree", "forest") else []
    arguments_by_step = {
        pipeline.select: f"k={size}" if pipeline.select == "kbest" else size,
        pipeline.model: ", ".join(arguments),
    }
    steps = [step for step in (pipeline.scale, pipeline.select, pipeline.model) if step]
    imports = [f"from sklearn.{_IMPORTS[step][0]} import {_IMPORTS[step][1]}" for step in steps]
    constructors = ", ".join(f"{_IMPORTS[step][1]}({arguments_by_step.get(step, '')})" for step in steps)
    return "\n".join(
        (
            *imports,
            "from sklearn.pipeline import make_pipeline",
            "",
            "",
            "def predict(rows, labels, asked):",
            f"    model = make_pipeline({constructors})",
            "    return model.fit(rows, labels).predict_proba(asked)",
            "",
        )
    )
