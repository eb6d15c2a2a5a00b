"""Fault 75: a run that an older commit wrote: it opens, resumes without repeating a finished stage, and is shown.

Three commits wrote one each: `tests/fixtures/make_run_version_1.py` and `make_run_version_2.py` made them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import evolvent as ev
from evolvent.cli.main import main
from evolvent.errors import ConfigError
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.methods.poad import POADConfig, poad
from evolvent.models.policy import load_policy
from evolvent.rl.trainer import RLConfig
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.store.store import Store
from tests.archives import unpack
from tests.rl.acting import Echo
from tests.test_run_version_1 import small_policy
from tests.view.viewed import viewed

FIXTURES = Path(__file__).parents[1] / "fixtures"
COMMITS = {"6754035": "run_version_1.tar.gz", "317e5bfd": "run_317e5bfd.tar.xz", "8fad32f1": "run_8fad32f1.tar.xz"}


class Strict(LocalBackend):
    """Plays nothing but the interrupted collection, and learns nothing."""

    replayed_starts = 0

    def collect(self, policy, starts, stage, **more):
        starts = list(starts)
        assert {start.sample for start in starts} == {5}, f"{stage.name} is finished, but was begun again"
        self.replayed_starts = len(starts)
        return super().collect(policy, starts, stage, **more)

    def fit(self, policy, data, stage, **more):
        raise AssertionError(f"{stage.name} is finished, but was begun again")

    practise = fit


@pytest.fixture(params=COMMITS)
def commit(request) -> str:
    return request.param


@pytest.fixture
def folder(tmp_path, commit) -> Path:
    unpack(FIXTURES / COMMITS[commit], tmp_path)
    return tmp_path / "run"


def test_it_resumes_without_repeating_a_stage(folder, commit):
    before = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    assert [row["verb"] for row in before] == ["collect", "fit", "evaluate", "evaluate", "practise"]
    world, train = Echo(), TrainConfig(lr=1e-3, warmup_steps=0, batch_tokens=256, epochs=1)
    tasks = world.tasks("train", world.tiers[0])
    optimizer = OptimizerConfig()  # the default of these commits
    backend = Strict({"echo": world}, train, EvaluationPanel(limit=4), slots=8, max_tokens=3, optimizer=optimizer)
    with ev.Run(folder, backend, seed=3, settings=backend.settings()) as run:
        policy = small_policy()
        for _ in run.rounds(1):
            played = run.collect(policy, [ev.Start(task) for task in tasks[:8]])
            policy = run.fit(policy, played, weighted_nll)
            run.evaluate(policy, 1)
        practice = RLConfig(iterations=1, tasks_per_iteration=4, group_size=2)
        poad(policy, tasks[:8], config=POADConfig(whiten=False, practice=practice), run=run.arm("poad"))
        more = run.collect(policy, [ev.Start(task, sample=5) for task in tasks[:8]])
    assert len(played) == len(more) == 8
    assert backend.replayed_starts == 5, "three of its episodes were kept"
    after = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    assert after[: len(before)] == before and len(after) == len(before) + 1


def test_its_episodes_and_policies_open(folder):
    stores = [path.parent for path in folder.rglob("manifest.jsonl")] or [path.parent for path in folder.rglob("log")]
    trajectories = [trajectory for path in stores for trajectory in Store.open(path).trajectories()]
    assert len(trajectories) >= 11 and all(trajectory.steps for trajectory in trajectories)
    policies = [path.parent for path in folder.rglob("config.json")]
    assert policies and all(load_policy(path).parameters() > 1_000 for path in policies)


def test_it_is_shown(folder, capsys):
    assert main(["runs", "list", str(folder.parent)]) == 0
    assert main(["runs", "show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "evaluate" in shown or "echo" in shown
    with viewed(folder.parent) as viewer:
        assert "echo" in viewer.get(f"/run/{viewer.key('run')}")


def test_a_ledger_of_the_future_is_refused_by_name(folder):
    path = folder / "stages.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    path.write_text(path.read_text() + json.dumps(row | {"key_version": 99}) + "\n")
    backend = Strict({"echo": Echo()}, TrainConfig(), EvaluationPanel(limit=4), slots=8, max_tokens=3)
    with pytest.raises(ConfigError, match=r"written by a newer evolvent.*got 99"):
        ev.Run(folder, backend, seed=3, settings=backend.settings())
