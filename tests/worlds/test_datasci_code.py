"""Free code: areas against scikit-learn, what a box is told, what answers are refused, and real boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone
from evolvent.sandbox.bubblewrap import isolation
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits
from evolvent.sandbox.pool import SandboxPool
from evolvent.sandbox.values import OpaqueValue
from evolvent.trajectory import Task
from evolvent.worlds.datasci.code import (
    ENTRY,
    PACKAGES,
    DataSciCode,
    area_of_probabilities,
    area_under_curve,
    cross_validate,
    deal_folds,
    disguise,
    render_program,
)
from evolvent.worlds.datasci.pipelines import Pipeline, pipelines
from evolvent.worlds.datasci.sets import SETS, load_set
from evolvent.worlds.datasci.table import read_table

metrics = pytest.importorskip("sklearn.metrics")
TABLE = read_table()
LIMITS = SandboxLimits(cpu_s=60, wall_s=120.0, memory_mb=4096, total_mb=2048, files=256)


class Answering:
    """A runner that answers with a function of the request, and remembers what it was asked."""

    def __init__(self, answer: Callable[[CallRequest], Outcome]) -> None:
        self.answer, self.asked, self.jobs = answer, [], 0

    def observe(self, source: str, requests: Sequence[CallRequest], limits: SandboxLimits) -> tuple[Outcome, ...]:
        self.jobs += 1
        self.asked += requests
        return tuple(self.answer(request) for request in requests)


def rows_asked(request: CallRequest) -> np.ndarray:
    _, _, asked, columns = request.args
    return np.frombuffer(asked, "<f4").reshape(-1, columns)


def task_of(world: DataSciCode, name: str = "rings") -> Task:
    return next(task for task in world.tasks(SETS[name], "seen") if task.spec["data"] == name)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_the_area_is_the_chance_to_rank_right(pairs):
    """Against all pairs, ties counted half, and against scikit-learn."""
    truth, scores = np.array([one for one, _ in pairs]), np.array([float(score) for _, score in pairs])
    if truth.all() or not truth.any():
        return
    ranked = [(a > b) + (a == b) / 2 for a, b in product(scores[truth], scores[~truth])]
    assert area_under_curve(truth, scores) == pytest.approx(np.mean(ranked), abs=1e-12)
    assert area_under_curve(truth, scores) == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-12)


def test_many_classes_are_one_versus_the_rest():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    chances = rng.dirichlet([1.0] * 3, 60)
    expected = metrics.roc_auc_score(labels, chances, multi_class="ovr")
    assert area_of_probabilities(labels, chances) == pytest.approx(expected, abs=1e-12)
    assert area_of_probabilities(labels % 2, chances[:, :2]) == pytest.approx(
        metrics.roc_auc_score(labels % 2, chances[:, 1]), abs=1e-12
    )


def test_folds_deal_every_class_evenly():
    labels = load_set("rare").labels
    asked = deal_folds(labels, 5, np.random.default_rng(3))
    assert sorted(row for rows in asked for row in rows) == list(range(len(labels)))
    for label in (0, 1):
        counts = [int((labels[rows] == label).sum()) for rows in asked]
        assert max(counts) - min(counts) <= 1 and min(counts) > 0


def test_a_disguise_keeps_the_problem_and_hides_the_rows():
    data = load_set("iris")
    rng = np.random.default_rng(5)
    other = disguise(data, rng)
    assert sorted(np.bincount(other.labels)) == sorted(np.bincount(data.labels))
    plain = {tuple(np.round(row, 1)) for row in data.rows}
    assert not plain & {tuple(np.round(row, 1)) for row in other.rows}
    correlations = [np.sort(np.linalg.eigvalsh(np.corrcoef(of.rows.T))) for of in (data, other)]
    assert np.allclose(*correlations, atol=0.01)


def test_a_box_never_gets_the_labels_of_what_is_asked():
    """One job a fold; rows to learn from and rows asked share nothing; no label of the second is in the request."""
    data = load_set("wine")
    known: list[int] = []

    def answer(request: CallRequest) -> Outcome:
        known.append(len(request.args[1]))
        return Outcome("value", [[0.2, 0.3, 0.5]] * len(rows_asked(request)))

    runner = Answering(answer)
    asked = deal_folds(data.labels, 5, np.random.default_rng(0))
    judged = cross_validate("", data, asked, runner=runner, limits=LIMITS)
    assert judged.area == 0.5 and not judged.error
    assert runner.jobs == len(runner.asked) == 5
    for request, rows, labels in zip(runner.asked, asked, known, strict=True):
        assert request.entry == ENTRY and len(request.args) == 4 and not request.kwargs
        learned = np.frombuffer(request.args[0], "<f4").reshape(-1, 13)
        assert len(learned) == labels == len(data.labels) - len(rows)
        assert np.array_equal(rows_asked(request), data.rows[rows].astype("<f4"))
        assert not {row.tobytes() for row in learned} & {row.tobytes() for row in rows_asked(request)}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "got NoneType"),
        ([[0.5, 0.5]], "got 1"),
        ("x" * 60, "got str"),
        ({"auc": 1.0}, "got dict"),
        ([[0.5]] * 60, "in each row"),
        ([[0.5, float("nan")]] * 60, "finite"),
        ([[1, 0]] * 60, "in each row"),
        ([[0.5, True]] * 60, "in each row"),
        (OpaqueValue("Always"), "got OpaqueValue"),
        ([[0.5, OpaqueValue("float")]] * 60, "in each row"),
    ],
)
def test_answers_that_are_none(value, said):
    data = load_set("rings")
    runner = Answering(lambda request: Outcome("value", value))
    judged = cross_validate(
        "", data, deal_folds(data.labels, 5, np.random.default_rng(0)), runner=runner, limits=LIMITS
    )
    assert judged.area is None and said in judged.error and "expected 60 rows of 2" in judged.error
    assert runner.jobs == 1


def test_failures_are_the_next_observation():
    for outcome, said in (
        (Outcome("raised", error="ValueError"), "ValueError"),
        (Outcome("timeout", error="late"), "timeout: late"),
        (Outcome("killed", error="signal 9", unsafe=True), "killed: signal 9"),
    ):
        world = DataSciCode(Answering(lambda request, outcome=outcome: outcome), table=TABLE, horizon=2)
        env = world.make(task_of(world))
        env.reset()
        text, reward, over, _, info = env.step("model = 1")
        assert (text, reward, over, info["invalid"]) == (said, -1.0, False, True)
        assert info.get("unsafe", False) is outcome.unsafe
    text = env.step("x" * 30_000)[0]
    assert text == "a program of more than 20000 characters"


def test_all_folds_together_have_the_wall_limit():
    runner = Answering(lambda request: Outcome("value", [[0.5, 0.5]] * len(rows_asked(request))))
    data = load_set("rings")
    asked = deal_folds(data.labels, 5, np.random.default_rng(0))
    judged = cross_validate("", data, asked, runner=runner, limits=SandboxLimits(wall_s=1e-9))
    assert judged.area is None and judged.error.startswith("timeout") and runner.jobs <= 1


def test_every_pipeline_has_a_program_that_compiles():
    for one in pipelines()[::7]:
        compile(render_program(one), "program", "exec")
    assert "SelectKBest(k=max(1, rows.shape[1] // 2))" in render_program(Pipeline("gnb", select="kbest", size="half"))


def test_settings_and_tasks_that_are_none():
    with pytest.raises(ConfigError) as caught:
        DataSciCode(table=TABLE, count=1, horizon=9, penalty=1.0)
    assert len(caught.value.problems) == 3
    world = DataSciCode(Answering(lambda request: Outcome("killed")), table=TABLE)
    assert world.run_in_thread and world.vocabulary() is None and world.horizon == 1
    env, other = world.make(task_of(world)), world.make(task_of(world, "moons"))
    with pytest.raises(SessionGone):
        env.step("")
    env.reset()
    moment = env.snapshot()
    env.close()
    with pytest.raises(SessionGone):
        env.step("")
    env.restore(moment)
    assert env.step("")[1] == -1.0
    with pytest.raises(ConfigError, match="snapshot"):
        other.restore(moment)
    world.close()


@pytest.fixture(scope="module")
def boxes() -> Iterator[SandboxPool]:
    isolation()
    with SandboxPool(packages=PACKAGES, ahead=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def world(boxes: SandboxPool) -> DataSciCode:
    return DataSciCode(boxes, table=TABLE, count=2, limits=LIMITS)


@pytest.mark.long
def test_the_best_pipeline_as_a_program_reaches_its_mark(world: DataSciCode):
    task = task_of(world)
    env = world.make(task)
    env.reset()
    text, reward, over, _, info = env.step(f"Here it is:\n```python\n{world.expert(task)[0]}```\n")
    assert text == "scored" and over and reward == info["auc"] > 0.95
    assert world.score([reward], info).unit == reward and "unsafe" not in info


@pytest.mark.long
def test_a_model_or_a_function_is_what_counts(world: DataSciCode):
    """A model object works like a function; chances turned round, the area turned round; a printed score nothing."""
    task = task_of(world)
    good = world.judge(
        "from sklearn.tree import DecisionTreeClassifier\nmodel = DecisionTreeClassifier(max_depth=4)", task
    )
    turned = world.judge(
        "from sklearn.tree import DecisionTreeClassifier\ndef predict(rows, labels, asked):\n"
        "    return 1 - DecisionTreeClassifier(max_depth=4).fit(rows, labels).predict_proba(asked)\n",
        task,
    )
    assert good.area is not None and turned.area is not None
    assert good.area > 0.9 and turned.area < 0.1
    lying = world.judge("print('auc 1.0')\ndef predict(rows, labels, asked):\n    return 1.0\n", task)
    assert lying.area is None and "not iterable" in lying.error


@pytest.mark.long
def test_nothing_is_remembered_from_fold_to_fold(world: DataSciCode):
    """A program that keeps the labels it saw, in memory and on disk, finds nothing kept when the next fold asks."""
    source = (
        "import os\nSEEN = globals().setdefault('SEEN', [])\ndef predict(rows, labels, asked):\n"
        "    if SEEN or os.path.exists('seen'):\n        return [[0.0, 1.0]] * (len(asked) + 1)\n"
        "    SEEN.append(labels)\n    open('seen', 'w').write('x')\n    return [[0.5, 0.5]] * len(asked)\n"
    )
    assert world.judge(source, task_of(world)).area == 0.5
