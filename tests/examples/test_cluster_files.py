"""Templates for clusters: their syntax, and what they start where Slurm's programs are stand-ins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
STANDIN = '#!/bin/sh\necho "$(basename "$0") $*" >> "$SAID"\ncase "$1" in show) echo first; seq 20000;; esac\n'


def started(tmp_path: Path, name: str, *words: str) -> list[str]:
    """The programs that a template calls, in order, with their words."""
    for program in ("srun", "scontrol"):
        (tmp_path / program).write_text(STANDIN, encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SAID": str(tmp_path / "said")}
    done = subprocess.run(
        ["bash", str(FOLDER / name), *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return (tmp_path / "said").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.sbatch")))
def test_it_is_a_script(name):
    subprocess.run(["bash", "-n", str(FOLDER / name)], check=True, timeout=60)


def test_a_training_begins_and_goes_on(tmp_path):
    run = tmp_path / "run"
    first = started(tmp_path, "train.sbatch", "chats.jsonl", "model", str(run))
    assert first[0].startswith("scontrol show hostnames")
    torchrun = "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint first:29500"
    assert torchrun in first[-1] and first[-1].endswith(f"train sft chats.jsonl --policy model --to {run}")
    run.mkdir()
    (run / "config.toml").touch()
    assert started(tmp_path, "train.sbatch", "chats.jsonl", "model", str(run))[-1].endswith(f"train --resume {run}")
