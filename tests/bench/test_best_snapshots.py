"""The best snapshots stay, by any metric of any evaluator; a restarted watcher goes on with the ranking."""

from __future__ import annotations

import json

import pytest

from evolvent.bench.best import BestConfig, BestSnapshots
from evolvent.bench.measures import Evaluator, Measure
from evolvent.bench.watch import Watcher
from evolvent.errors import ConfigError, CorruptRecord
from evolvent.models.policy import load_policy
from tests.bench.small_policies import publish

SCORES = {0: 0.2, 1: 0.9, 2: None, 3: 0.5, 4: 0.9, 5: float("nan"), 6: 0.1}


def watched(run, steps, best):
    """Publishes and evaluates snapshots whose measures are those of SCORES."""
    step = 0
    names = ("loss", "bleu")
    evaluator = Evaluator(
        "generation", lambda policy, engine: [Measure(name, SCORES[step], None, None, 9) for name in names]
    )
    with Watcher(run, [evaluator], best=best) as watcher:
        for step in steps:
            publish(run, step)
            watcher.evaluate_newest()


def ranking(run):
    return [(row["step"], row["value"]) for row in json.loads((run / "best" / "best.json").read_text())]


def test_the_best_stay_although_training_removes_them(tmp_path):
    """Two stay: of 0.2, 0.9, nothing, 0.5, 0.9, nan and 0.1 those of steps 1 and 4."""
    best = BestConfig(metric="generation/bleu", keep=2)
    watched(tmp_path, range(4), best)
    assert ranking(tmp_path) == [(1, 0.9), (3, 0.5)]
    watched(tmp_path, range(4, 7), best)
    assert ranking(tmp_path) == [(1, 0.9), (4, 0.9)]
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["best.json", "step-000001", "step-000004"]
    assert not (tmp_path / "snapshots" / "step-000001").exists()
    assert load_policy(tmp_path / "best" / "step-000001").context > 0
    with pytest.raises(ConfigError, match="ranks snapshots by another metric"):
        BestSnapshots(tmp_path, BestConfig(metric="bleu"))


@pytest.mark.parametrize(("order", "steps"), [("auto", [6, 0]), ("max", [1, 3])])
def test_the_least_loss_is_the_best(tmp_path, order, steps):
    watched(tmp_path, (0, 1, 3, 6), BestConfig(metric="loss", keep=2, order=order))
    assert [step for step, _ in ranking(tmp_path)] == steps


def test_metric_that_no_evaluator_measures_is_refused_after_the_first_snapshot(tmp_path):
    message = r"best.metric: unknown metric 'generation/blue' \(did you mean 'generation/bleu'"
    with pytest.raises(ConfigError, match=message):
        watched(tmp_path, range(1), BestConfig(metric="generation/blue"))
    assert not (tmp_path / "best").exists()
    watched(tmp_path, range(2, 4), BestConfig(metric="bleu", keep=1))  # withheld in step 2, which is no mistake
    assert ranking(tmp_path) == [(3, 0.5)]


def test_rankings_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text('[{"step": 1}]')
    with pytest.raises(CorruptRecord, match="does not rank snapshots"):
        BestSnapshots(tmp_path, BestConfig(metric="loss"))
    with pytest.raises(ConfigError, match="no metric to rank snapshots by"):
        BestSnapshots(tmp_path, BestConfig())
