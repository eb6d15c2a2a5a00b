"""A run that was made at commit 6754035, whose ledger keys hash `repr`, resumes: no finished stage is done again.

`tests/fixtures/make_run_version_1.py` made it, with the names of that commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.methods.poad import POADConfig, poad
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.rl.trainer import RLConfig
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from tests.archives import unpack
from tests.rl.acting import Echo

ARCHIVE = Path(__file__).parent / "fixtures" / "run_version_1.tar.gz"


class Strict(LocalBackend):
    """Plays nothing but the interrupted collection, and learns nothing."""

    def collect(self, policy, starts, stage, **more):
        assert stage.name == "evolve-1-collect-4b3bb8", f"{stage.name} is finished, but was begun again"
        starts = list(starts)
        self.replayed_starts = len(starts)
        return super().collect(policy, starts, stage, **more)

    def fit(self, policy, data, stage, **more):
        raise AssertionError(f"{stage.name} is finished, but was begun again")

    practise = fit


def small_policy() -> Policy:
    tokenizer = word_tokenizer(Echo().vocabulary(), context=64)
    config = tiny_config(len(tokenizer), "xs", context=64)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 16, 32, 1
    config.num_attention_heads = config.num_key_value_heads = 2
    config.head_dim = 8
    return Policy(init_tiny(config, seed=0), tokenizer, dialect_for(tokenizer, "words"))


@pytest.fixture
def folder(tmp_path):
    unpack(ARCHIVE, tmp_path)
    return tmp_path / "run"


def test_a_run_of_version_1_resumes_without_repeating_a_stage(folder):
    before = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    assert [row["verb"] for row in before] == ["collect", "fit", "evaluate", "evaluate", "practise"]
    assert not any("key_version" in row for row in before)
    world, train = Echo(), TrainConfig(lr=1e-3, warmup_steps=0, batch_tokens=256, epochs=1)
    tasks = world.tasks("train", world.tiers[0])
    optimizer = OptimizerConfig()  # the default of version 1
    verbs = Strict({"echo": world}, train, EvaluationPanel(limit=4), slots=8, max_tokens=3, optimizer=optimizer)
    with ev.Run(folder, verbs, seed=3, settings=verbs.settings()) as run:
        policy = small_policy()
        for _ in run.rounds(1):
            played = run.collect(policy, [ev.Start(task) for task in tasks[:8]])
            policy = run.fit(policy, played, weighted_nll)
            run.evaluate(policy, 1)
        practice = RLConfig(iterations=1, tasks_per_iteration=4, group_size=2)
        poad(policy, tasks[:8], config=POADConfig(whiten=False, practice=practice), run=run.arm("poad"))
        more = run.collect(policy, [ev.Start(task, sample=5) for task in tasks[:8]])
    assert len(played) == len(more) == 8
    assert verbs.replayed_starts == 5, "three of its episodes were kept"
    after = [json.loads(line) for line in (folder / "stages.jsonl").read_text().splitlines()]
    assert after[: len(before)] == before
    (row,) = after[len(before) :]
    assert row["name"] == "evolve-1-collect-4b3bb8" and row["key_version"] == 2
    assert row["result"]["episodes"] == 8


def test_a_stage_of_version_2_is_found_by_its_new_key(folder):
    """The second resumption reads the collection that the first one finished."""
    for expected in (5, None):
        world, train = Echo(), TrainConfig(lr=1e-3, warmup_steps=0, batch_tokens=256, epochs=1)
        tasks = world.tasks("train", world.tiers[0])
        verbs = Strict({"echo": world}, train, EvaluationPanel(limit=4), slots=8, max_tokens=3)
        with ev.Run(folder, verbs, seed=3, settings=verbs.settings()) as run:
            policy = small_policy()
            for _ in run.rounds(1):
                policy = run.fit(policy, run.collect(policy, [ev.Start(task) for task in tasks[:8]]), weighted_nll)
            run.collect(policy, [ev.Start(task, sample=5) for task in tasks[:8]])
        assert getattr(verbs, "replayed_starts", None) == expected


def test_other_settings_are_another_stage(folder):
    world, train = Echo(), TrainConfig(lr=1e-3, warmup_steps=0, batch_tokens=256, epochs=2)
    tasks = world.tasks("train", world.tiers[0])
    verbs = Strict({"echo": world}, train, EvaluationPanel(limit=4), slots=8, max_tokens=3)
    with ev.Run(folder, verbs, seed=3, settings=verbs.settings()) as run:
        policy = small_policy()
        for _ in run.rounds(1):
            played = run.collect(policy, [ev.Start(task) for task in tasks[:8]])
            with pytest.raises(AssertionError, match=r"fit\S* is finished, but was begun again"):
                run.fit(policy, played, weighted_nll)


def test_a_run_of_a_newer_version_is_refused_by_name(folder):
    path = folder / "stages.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["key_version"] = 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    verbs = Strict({"echo": Echo()}, TrainConfig(), EvaluationPanel(limit=4), slots=8, max_tokens=3)
    with pytest.raises(ev.ConfigError, match=r"written by a newer evolvent.*got 3, expected at most 2"):
        ev.Run(folder, verbs, seed=3, settings=verbs.settings())
