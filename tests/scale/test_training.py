"""One training from its parts to a model folder: resumed, published while it runs, and whole or not there."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evolvent.errors import HashMismatch, Incomplete
from evolvent.learn.learner import FitReport
from evolvent.learn.objectives import value_objective, weighted_nll
from evolvent.learn.parallel.ranks import SINGLE_PROCESS
from evolvent.learn.preferences import add_returns
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import load_policy
from evolvent.models.snapshots import newest_snapshot
from evolvent.scale import training
from evolvent.scale.training import CheckpointConfig, TrainingJob, TrainingProgress, read_progress, run_training
from tests.faults.small_training import episode, small_config, small_parts, small_policy


def job(folder: Path, *, kind: str = "none", keeping: CheckpointConfig | None = None) -> TrainingJob:
    policy = small_policy()
    if kind != "none":
        policy = adapt(policy, AdapterConfig.model_validate({"kind": kind, "tokens": 2}), seed=0)
    return TrainingJob(
        folder,
        policy,
        weighted_nll,
        small_parts(policy),
        5,
        small_config(max_steps=9),
        checkpoints=keeping or CheckpointConfig(every=3),
    )


def run(made: TrainingJob, **more: Any) -> tuple[FitReport, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    return run_training(made, SINGLE_PROCESS, log=lambda row: rows.append(dict(row)), **more), rows


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_policy(folder).model.state_dict())


@pytest.mark.parametrize("kind", ["none", "lora", "prompt"])
def test_stopped_and_gone_on_with_it_ends_alike(tmp_path, kind):
    whole, rows = run(job(tmp_path / "whole", kind=kind))
    assert whole.finished and [row["step"] for row in rows if "lr" in row] == list(range(1, 10))
    asked: list[int] = []
    first, _ = run(job(tmp_path / "run", kind=kind), should_stop=lambda: bool(asked.append(1)) or len(asked) == 5)
    assert not first.finished and not (tmp_path / "run" / "model").exists()
    assert read_progress(tmp_path / "run") == TrainingProgress(5, first.tokens)
    seen: list[int] = []
    second, _ = run(job(tmp_path / "run", kind=kind), on_update=lambda metrics: seen.append(metrics.update))
    assert seen == [6, 7, 8, 9] and second == whole
    one, other = weights(tmp_path / "run" / "model"), weights(tmp_path / "whole" / "model")
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    assert load_policy(tmp_path / "run" / "model").version == 1


def test_a_finished_training_does_nothing_more(tmp_path):
    run(job(tmp_path))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "model").iterdir()}
    report, rows = run(job(tmp_path))
    assert report.updates == 9 and rows == []
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before


def test_nothing_is_reached_in_an_empty_folder(tmp_path):
    assert read_progress(tmp_path) == TrainingProgress() == read_progress(tmp_path / "nowhere")
    (tmp_path / "checkpoints" / "update-000000007").mkdir(parents=True)
    assert read_progress(tmp_path) == TrainingProgress(), "one without its marker does not count"


@pytest.mark.parametrize("kind", ["none", "lora"])
def test_snapshots_are_whole_models_and_one_that_fails_stops_nothing(tmp_path, monkeypatch, caplog, kind):
    monkeypatch.setattr(training, "_POLL_S", 0.0)
    whole, calls = training._Exporter.write, list[Path]()

    def write(self: Any, checkpoint: Path, folder: Path) -> None:
        calls.append(checkpoint)
        if len(calls) == 1:
            raise Incomplete(f"{checkpoint} is gone")
        whole(self, checkpoint, folder)

    monkeypatch.setattr(training._Exporter, "write", write)
    with caplog.at_level(logging.WARNING):
        report, _ = run(job(tmp_path, kind=kind, keeping=CheckpointConfig(every=1, last=9, snapshots=True)))
    assert report.finished and "no snapshot of update " in caplog.text and "is gone" in caplog.text
    newest = newest_snapshot(tmp_path)
    assert newest is not None and newest.step == 9
    one, other = weights(newest.path), weights(tmp_path / "model")
    assert all(one[name].equal(other[name]) for name in other)


def test_what_a_killed_process_left_is_not_taken_for_the_model(tmp_path):
    for name in (".writing-model", ".writing-adapter-start"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{", encoding="utf-8")
    run(job(tmp_path, kind="lora"))
    assert load_policy(tmp_path / "model").version == 1
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".writing")]


def test_a_damaged_checkpoint_becomes_no_model(tmp_path):
    made = job(tmp_path, kind="lora")
    exporter = training._Exporter.for_job(made, leads=True)
    run(made)
    newest = tmp_path / "checkpoints" / "update-000000009"
    raw = bytearray((newest / "model-00000.safetensors").read_bytes())
    raw[-3] ^= 4
    (newest / "model-00000.safetensors").write_bytes(raw)
    (tmp_path / "out").mkdir()
    with pytest.raises(HashMismatch, match="lora"):
        exporter.write(newest, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_head_is_kept_beside_an_adapter(tmp_path):
    made = job(tmp_path, kind="prefix")
    episodes = [replace(episode(number), score=type(episode(0).score)(1.0, 1.0, True)) for number in range(40)]
    parts = [add_returns(one, part) for one, part in zip(episodes, small_parts(made.policy), strict=True)]
    run(replace(made, objective=value_objective(), sequences=parts))
    policy = load_policy(tmp_path / "model")
    assert policy.value_head is not None
    trained = {f"value_head.{name}": weight for name, weight in policy.value_head.state_dict().items()}
    saved = training.open_checkpoint(tmp_path / "checkpoints" / "update-000000009").groups["model"]
    assert all(saved.whole(name).equal(weight) for name, weight in trained.items())
    assert trained["value_head.outer.bias"].abs().max() > 0
