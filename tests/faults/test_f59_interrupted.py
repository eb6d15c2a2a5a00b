"""Fault 59: Ctrl-C, SIGTERM and SIGKILL at any moment: no child left, what is finished stays, resuming ends equal."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from evolvent.store.store import Store
from tests.faults.launched import Launched

TINY = (
    "--worlds",
    "lookup",
    "--method.iterations",
    "1",
    "--method.samples_per_task",
    "2",
    "--method.clone_tokens",
    "6000",
    "--method.round_tokens",
    "2000",
    "--demonstrations",
    "40",
    "--explore",
    "15",
    "--panel.limit",
    "10",
)
# (how many lines of metrics have been written, what arrives then, the exit code, the state that is left). The first
# arrives at a command as users start it, the others at one that is forked from a process with torch in memory.
MOMENTS = [
    (4, signal.SIGINT, 130, "interrupted"),
    (20, signal.SIGKILL, -9, "running"),
    (30, signal.SIGTERM, 143, "interrupted"),
]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def strike(pid: int, run: Path, after: int, number: signal.Signals, alive: Callable[[], bool]) -> list[psutil.Process]:
    """Send a signal when the run has written so many lines; returns the children that the process had."""
    end = time.monotonic() + 120
    while lines(run / "metrics.jsonl") < after:
        assert alive() and time.monotonic() < end, "ended before, or said nothing"
        time.sleep(0.005)
    children = psutil.Process(pid).children(recursive=True)
    os.kill(pid, number)
    return children


def started(command, words: Sequence[str], run: Path, after: int, number: signal.Signals) -> tuple[int | None, str]:
    """The exit code of a command that is struck, and what it said."""
    process = command.start("evolve", *words, cwd=run.parent)
    children = strike(process.pid, run, after, number, lambda: process.poll() is None)
    said = process.communicate(timeout=60)[1]
    assert not [child for child in children if child.is_running()]
    return process.returncode, said


def forked(words: Sequence[str], run: Path, after: int, number: signal.Signals) -> tuple[int | None, str]:
    """The same of a forked one."""
    with Launched(1, ["evolve", *words], cwd=run.parent) as launched:
        (process,) = launched.processes
        children = strike(process.pid or 0, run, after, number, process.is_alive)
        (code,) = launched.wait(seconds=60)
        assert not [child for child in children if child.is_running()]
        return code, launched.errors()[0]


def completed(words: Sequence[str], folder: Path) -> None:
    with Launched(1, ["evolve", *words], cwd=folder) as process:
        assert process.wait() == [0], process.said()


def outcome(run: Path) -> tuple[list[object], list[tuple[object, ...]]]:
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row.pop("computed")  # what an interrupted stage computed is computed again
    episodes = [(t.id, t.actions, t.success) for t in Store.open(run / "trajectories").trajectories()]
    return sorted(rows, key=str), sorted(episodes)


@pytest.mark.long
def test_interrupted_three_times_and_resumed(command, tmp_path):
    completed([*TINY, "--to", "whole"], tmp_path)
    total = lines(tmp_path / "whole" / "metrics.jsonl")
    assert total > MOMENTS[-1][0], f"the last moment is too late: {total} lines"
    run = tmp_path / "halting"
    words: tuple[str, ...] = (*TINY, "--to", "halting")
    for after, number, code, state in MOMENTS:
        after = max(after, lines(run / "metrics.jsonl") + 1)
        first = words[0] != "--resume"
        found, said = started(command, words, run, after, number) if first else forked(words, run, after, number)
        assert (found, json.loads((run / "run.json").read_text(encoding="utf-8"))["state"]) == (code, state)
        assert "Traceback" not in said
        if number != signal.SIGKILL:
            assert "go on with: evolvent evolve --resume halting" in said
        outcome_so_far = list(Store.open(run / "trajectories").ids())
        assert all("/" in name for name in outcome_so_far), "what is there can be read at any time"
        words = ("--resume", "halting")
    completed(words, tmp_path)
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["state"] == "finished"
    assert outcome(run) == outcome(tmp_path / "whole")


def test_two_writers_on_one_run(command, tmp_path):
    words = ("collect", "--worlds", "lookup", "--limit", "5", "--to", "run")
    assert command(*words, cwd=tmp_path).returncode == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    with Store.open(tmp_path / "run" / "trajectories", writing=True):
        second = command("collect", "--resume", "run", cwd=tmp_path)
    assert second.returncode == 1
    assert second.stderr.startswith("error: ") and "Process " in second.stderr and second.stderr.count("\n") == 1
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert command("collect", "--resume", "run", cwd=tmp_path).returncode == 0
