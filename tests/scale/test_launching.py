"""What a worker of Ray Train does, without Ray: the words of a rank, its process, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evolvent.errors import ConfigError
from evolvent.scale import ray_train
from evolvent.scale.ray_cluster import Placement
from evolvent.scale.ray_train import build_argv, train_on_cluster
from tests.conftest import SRC
from tests.faults import sums


def test_a_run_that_is_there_goes_on(tmp_path):
    run = tmp_path / "run"
    told = ["sft", "chats.jsonl", "--policy", "model"]
    assert build_argv(told, run, ranks=4) == ["train", *told, "--to", str(run), "--parallel.shard", "4"]
    run.mkdir()
    assert build_argv(told, run, ranks=4, layout="")[-2:] == ["--to", str(run)], "a folder without a run"
    (run / "config.toml").touch()
    assert build_argv(told, run, ranks=2, layout="replicate") == [
        "train",
        "--resume",
        str(run),
        "--parallel.replicate",
        "2",
    ]
    assert build_argv(told, run, ranks=2, layout="") == ["train", "--resume", str(run)]


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        train_on_cluster(
            ["sft", "data", "--to=runs/a", "--resume", "runs/b"], folder=tmp_path / "run", placement=Placement()
        )
    assert [problem.where for problem in caught.value.problems] == ["placing", "--to=runs/a", "--resume"]
    with pytest.raises(ConfigError, match="got 3, expected a number from 1 to 2"):
        train_on_cluster(["sft", "data"], folder=tmp_path / "run", placement=Placement(players=2), min_ranks=3)


def rank(folder: Path, *words: object) -> subprocess.Popen[str]:
    own = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", ray_train._BOOT, *map(str, words)],
        cwd=folder,
        env=own,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.long
def test_a_rank_ends_with_its_worker(tmp_path):
    """As the command would, where nobody is killed; outright, and at once, where its worker is gone."""
    data = sums.write(tmp_path / "data")
    asked = ("train", "sft", data / "messages.jsonl", "--policy", data / "policy", "--to", "run", "--train.max_steps")
    with rank(tmp_path, *asked, "many") as process:
        assert process.stdout is not None
        said = process.stdout.read()
        code = process.wait(60)
    assert code == 2 and "train.max_steps" in said and "Traceback" not in said
    log = tmp_path / "run" / "metrics.jsonl"
    with rank(tmp_path, *asked, 100_000) as process:
        while not log.exists() or len(sums.logged(tmp_path / "run")) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == -9
