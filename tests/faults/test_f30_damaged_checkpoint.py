"""Fault 30: a shard missing, a byte flipped, another model's shape, moments missing: refused, nothing is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_training import small_config, small_parts, small_policy, train

from evolvent.errors import CheckpointError, HashMismatch, Incomplete, ShapeMismatch, StateMissing
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder, max_steps=3)
    return folder


def resumed_refused(folder: Path, kind: type[CheckpointError], match: str, *, layers: int = 2) -> None:
    """Resuming raises, and model and optimizer are as they were before."""
    policy = small_policy(dropout=0.1, layers=layers)
    before = [weight.clone() for weight in policy.model.parameters()]
    learner = Learner(policy, weighted_nll, small_config(max_steps=3), seed=5)
    with pytest.raises(kind, match=match):
        learner.fit(small_parts(policy), checkpoint=Checkpointer(folder))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert not learner.optimizer.state


def rewritten(source: Path, target: Path, change: Callable[[dict[str, dict[str, torch.Tensor]]], None]) -> None:
    """A checkpoint whose hashes fit, with other tensors in it."""
    saved = Checkpointer(source).load()
    assert saved is not None
    tensors = {group: dict(content) for group, content in saved.tensors.items()}
    change(tensors)
    Checkpointer(target).save(3, CheckpointContent(tensors, saved.values))


def test_a_missing_file(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "update-000000003" / "optimizer-00000.safetensors").unlink()
    resumed_refused(tmp_path, Incomplete, r"optimizer-00000\.safetensors is missing.*exp_avg")


@pytest.mark.parametrize("group", ["model", "optimizer"])
def test_one_flipped_byte(trained: Path, tmp_path: Path, group: str) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "update-000000003" / f"{group}-00000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    resumed_refused(
        tmp_path,
        HashMismatch,
        rf"{group}-00000\.safetensors has changed since it was written: got changed tensors \['.*norm",
    )


def test_another_model(trained: Path) -> None:
    resumed_refused(trained, ShapeMismatch, r"tensors that the model does not have.*layers\.1", layers=1)
    resumed_refused(trained, ShapeMismatch, r"no tensor 'model\.layers\.2", layers=3)


def test_another_shape(trained: Path, tmp_path: Path) -> None:
    def widen(tensors: dict[str, dict[str, torch.Tensor]]) -> None:
        tensors["model"]["model.norm.weight"] = torch.ones(17)

    rewritten(trained, tmp_path, widen)
    resumed_refused(tmp_path, ShapeMismatch, r"'model\.norm\.weight'.*got \(17,\), expected \(16,\)")


def test_missing_moments(trained: Path, tmp_path: Path) -> None:
    def forget(tensors: dict[str, dict[str, torch.Tensor]]) -> None:
        del tensors["optimizer"]["exp_avg_sq/model.norm.weight"]

    rewritten(trained, tmp_path, forget)
    resumed_refused(tmp_path, StateMissing, r"optimizer state has no tensor 'exp_avg_sq/model\.norm\.weight'")


def test_no_optimizer_state_at_all(trained: Path, tmp_path: Path) -> None:
    rewritten(trained, tmp_path, lambda tensors: tensors["optimizer"].clear())
    resumed_refused(tmp_path, StateMissing, r"no tensor 'step/")
