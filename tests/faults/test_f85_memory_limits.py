"""Fault 85: a machine of 4 GiB, and a limit of a control group: free memory is what the tightest of them leaves.

All groups above a process count, and pages that the kernel gives back do not. Where the work does not fit, a command
says one sentence before anything is played or trained; the budget of the engine is half of what is free.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evolvent.cli.main import main
from evolvent.engine.local import LocalEngine
from evolvent.models import placement
from evolvent.models.placement import available_bytes, find_memory_limit
from tests.faults import sums

CPU, GIB = torch.device("cpu"), 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Builds the files of a kernel; returns a function that writes one."""
    folder = tmp_path / "kernel"
    monkeypatch.setattr(placement, "_PROC", folder / "proc")
    monkeypatch.setattr(placement, "_CGROUPS", folder / "cgroup")

    def write(**files: object) -> None:
        for name, text in files.items():
            path = folder / name.replace("__", "/").replace("_DOT_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="ascii")

    write(proc__meminfo=f"MemTotal: {4 * 2**20} kB\nMemAvailable: {3 * 2**20} kB")
    return write


def group(path: str, limit: object, usage: int, inactive: int = 0) -> dict[str, object]:
    """The files of a group of version 2."""
    return {
        f"cgroup__{path}memory_DOT_max": limit,
        f"cgroup__{path}memory_DOT_current": usage,
        f"cgroup__{path}memory_DOT_stat": f"anon 5\ninactive_file {inactive}",
    }


def test_without_a_group_the_system_says(machine):
    assert find_memory_limit() == (3 * GIB, "free main memory")
    machine(proc__self__cgroup="0::/user/work")
    assert available_bytes(CPU) == 3 * GIB


def test_the_groups_own_limit(machine):
    machine(proc__self__cgroup="0::/user/work", **group("user__work__", GIB, 900 * 2**20, 500 * 2**20))
    assert find_memory_limit() == (GIB - 400 * 2**20, "the limit of the control group")
    machine(**group("user__work__", "max", 900 * 2**20))
    assert available_bytes(CPU) == 3 * GIB


def test_the_tightest_group_above_counts(machine):
    files = group("user__work__", 2 * GIB, 2**20) | group("user__", GIB // 2, 2**20) | group("", "max", 2**20)
    machine(proc__self__cgroup="0::/user/work", **files)
    assert available_bytes(CPU) == GIB // 2 - 2**20


def test_groups_of_version_1(machine):
    name = "cgroup__memory__work__memory_DOT_"
    machine(
        proc__self__cgroup="5:cpu,memory:/work\n1:name=systemd:/",
        **{f"{name}limit_in_bytes": GIB, f"{name}usage_in_bytes": GIB, f"{name}stat": "total_inactive_file 4096"},
    )
    assert available_bytes(CPU) == 4096


def test_inside_a_container_the_mount_is_the_group(machine):
    """Its name is that outside, which the mount inside does not have."""
    machine(proc__self__cgroup="0::/docker/ab12", **group("", GIB, GIB // 4))
    assert available_bytes(CPU) == GIB * 3 // 4
    machine(**group("", GIB, 2 * GIB))
    assert available_bytes(CPU) == 0


def test_the_engine_keeps_to_half_of_it(machine, tmp_path):
    from evolvent.models.policy import load_policy

    policy = load_policy(sums.write(tmp_path) / "policy")
    assert LocalEngine(policy).memory_bytes == 3 * GIB // 2
    machine(proc__self__cgroup="0::/", **group("", GIB, GIB // 2))
    assert LocalEngine(policy).memory_bytes == GIB // 4


@pytest.mark.parametrize("verb", ["evolve", "eval", "train grpo", "train sft"])
def test_a_command_says_it_before_anything_is_done(machine, tmp_path, capsys, verb):
    sums.write(tmp_path)
    sums.lines(tmp_path / "rows.jsonl", sums.questions())
    machine(proc__self__cgroup="0::/job", **group("job__", GIB, GIB - 2**25))
    words = {
        "train sft": [str(tmp_path / "rows.jsonl"), "--policy", str(tmp_path / "policy")],
        "train grpo": ["--policy", "xs", "--worlds", "lookup"],
        "eval": ["--policy", "xs", "--worlds", "lookup"],
        "evolve": ["--policy", "xs", "--worlds", "lookup"],
    }[verb]
    assert main([*verb.split(), *words, "--output_dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "error: the work does not fit the limit of the control group: got 0.03 GB, expected at least" in said
    assert not (Path(tmp_path) / "run").exists()


def test_defaults_run_on_a_machine_of_4_gib(machine, tmp_path, capsys):
    words = ["--policy", "xs", "--worlds", "lookup", "--panel.limit", "2", "--output_dir", str(tmp_path / "run")]
    assert main(["eval", *words]) == 0, capsys.readouterr().err
