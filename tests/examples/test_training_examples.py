"""The scripts about training: each runs as it stands, in an empty directory, and shows what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evolvent.models.policy import load_policy
from evolvent.models.tuned import kind_of
from tests.faults import sums
from tests.faults.launched import Launched

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path, *words: object) -> list[str]:
    """The lines that an example prints, run in this folder; from a process that has torch in memory."""
    with Launched(1, [EXAMPLES / f"{name}.py", *words], cwd=folder) as process:
        assert process.wait() == [0], process.said()
        return [line for line in process.said().splitlines() if line]


def ends(line: str) -> tuple[float, float]:
    """The first and the last loss of `loss 4.02 -> 0.00`."""
    first, last = re.findall(r"loss ([\d.]+) -> ([\d.]+)", line)[0]
    return float(first), float(last)


def test_lora_of_a_model_that_is_made(tmp_path):
    lines = run("lora_sft", tmp_path)
    assert lines[0] == "100 conversations, 0 left out" and "30,720 weights learned beside 161,920" in lines[1]
    first, last = ends(lines[1])
    assert first > 3 and last < 0.1
    tuned, plain = (load_policy(tmp_path / "runs" / "lora-sft" / name) for name in ("adapter", "model"))
    assert kind_of(tuned.model) == "lora" and kind_of(plain.model) is None


def test_lora_of_ones_own_model_and_data(tmp_path):
    data = sums.write(tmp_path / "data")
    lines = run("lora_sft", tmp_path, data / "policy", data / "messages.jsonl")
    assert lines[0] == "81 conversations, 0 left out" and ends(lines[1])[1] < ends(lines[1])[0]
    tuned = load_policy(tmp_path / "runs" / "lora-sft" / "adapter")
    assert tuned.base is not None and tuned.base.folder == data / "policy"


def test_adalomo(tmp_path):
    lines = run("adalomo_full", tmp_path)
    first, last = ends(lines[0])
    assert last < first - 1 and float(re.findall(r"state: ([\d.]+)%", lines[1])[0]) < 5
    assert load_policy(tmp_path / "runs" / "adalomo").parameters() > 100_000


def torchrun(size: int, folder: Path, *words: object) -> str:
    """What the parallel example prints, started as its first lines say."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    done = subprocess.run(
        [*program, str(EXAMPLES / "parallel_training.py"), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "one rank speaks"
    return done.stdout


@pytest.mark.parametrize(
    ("size", "layout", "name"),
    [(2, (1, 2, 1), "shard 2"), pytest.param(8, (2, 2, 2), "pp 2 x shard 2 x tp 2", marks=pytest.mark.long)],
    ids=["2 ranks", "8 ranks"],
)
def test_parallel_training_equals_one_process(tmp_path, size, layout, name):
    (alone := tmp_path / "alone").mkdir()
    (apart := tmp_path / "apart").mkdir()
    one = run("parallel_training", alone)[0]
    line = torchrun(size, apart, *layout)
    assert one.startswith("one process: 30 updates, loss 8.") and line.startswith(f"{name}: 30 updates, loss 8.")
    assert ends(line) == pytest.approx(ends(one), abs=3e-6)
    again = run("parallel_training", apart)[0]
    assert ends(again) == ends(line), "its checkpoint is of no layout: nothing is done again"
    whole, other = (load_policy(folder / "runs" / "parallel" / "model").model.state_dict() for folder in (alone, apart))
    assert all(weight.allclose(other[key], atol=1e-4) for key, weight in whole.items())
