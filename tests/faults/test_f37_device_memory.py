"""Fault 37: a batch too large for the memory: a sentence with shape and knobs, no process left, and the knob helps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evolvent.errors import DeviceMemory
from evolvent.learn.forward import report_memory_errors
from evolvent.models.policy import load_policy
from tests.faults import sums
from tests.faults.launched import Launched


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = sums.write(tmp_path_factory.mktemp("memory"))
    sums.lines(folder / "many.jsonl", sums.questions() * 40)
    return folder


def train(data: Path, folder: Path, *more: object) -> tuple[list[int | None], str]:
    """In a process that may take 400 MB more than it has before it begins."""
    words = [
        "train",
        "sft",
        data / "many.jsonl",
        "--policy",
        data / "policy",
        "--to",
        "run",
        "--train.max_steps",
        1,
        "--train.batch_tokens",
        30_000,
        "--threads",
        1,
        *more,
    ]
    with Launched(1, words, cwd=folder, before="tests.faults.broken_ranks:narrow") as ranks:
        return ranks.wait(), ranks.said()


def test_it_is_told_with_its_shape_and_the_knob_helps(data, tmp_path):
    codes, said = train(data, tmp_path)
    error = said.splitlines()[-1]
    assert codes == [1] and said.count("error: ") == 1
    assert error.startswith("error: a batch does not fit the device's memory: got rows x tokens (3240, 7)")
    assert "train.max_tokens_per_forward" in error and "parallel.recompute" in error
    (tmp_path / "again").mkdir()
    codes, said = train(data, tmp_path / "again", "--train.max_tokens_per_forward", 1000)
    assert codes == [0], said
    assert load_policy(tmp_path / "again" / "run" / "model").version == 1


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match="mat1 and mat2"), report_memory_errors((2, 3), "less"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    with pytest.raises(DeviceMemory, match=r"\(2, 3\)\. Less"), report_memory_errors((2, 3), "less"):
        raise torch.OutOfMemoryError("CUDA out of memory")
