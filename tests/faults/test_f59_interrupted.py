"""Fault 59: Ctrl-C, SIGTERM and SIGKILL at any moment: no child left, what is finished stays, resuming ends equal."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil

from evolvent.store.store import Store

TINY = (
    "--worlds", "lookup", "--method.iterations", "1", "--method.samples", "2", "--method.clone_tokens", "6000",
    "--method.round_tokens", "2000", "--demonstrations", "40", "--explore", "15", "--panel.limit", "10",
)  # fmt: skip
# (how many lines of metrics have been written, what arrives then, the exit code, the state that is left)
MOMENTS = [
    (4, signal.SIGINT, 130, "interrupted"),
    (20, signal.SIGKILL, -9, "running"),
    (30, signal.SIGTERM, 143, "interrupted"),
]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def strike(process: subprocess.Popen[str], run: Path, after: int, number: signal.Signals) -> tuple[int, str]:
    """Send a signal when the run has written so many lines; returns the exit code and what was said."""
    end = time.monotonic() + 120
    while lines(run / "metrics.jsonl") < after:
        assert process.poll() is None, f"ended before: {process.communicate()}"
        assert time.monotonic() < end
        time.sleep(0.005)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert not [child for child in children if child.is_running()]
    return process.returncode, said


def outcome(run: Path) -> tuple[list[object], list[tuple[object, ...]]]:
    rows = [json.loads(line) for line in (run / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row.pop("computed")  # what an interrupted stage computed is computed again
    episodes = [(t.id, t.actions, t.success) for t in Store.open(run / "trajectories").trajectories()]
    return sorted(rows, key=str), sorted(episodes)


def test_interrupted_three_times_and_resumed(command, tmp_path):
    whole = command("evolve", *TINY, "--to", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    total = lines(tmp_path / "whole" / "metrics.jsonl")
    assert total > MOMENTS[-1][0], f"the last moment is too late: {total} lines"
    run = tmp_path / "halting"
    words: tuple[str, ...] = (*TINY, "--to", "halting")
    for after, number, code, state in MOMENTS:
        process = command.start("evolve", *words, cwd=tmp_path)
        found, said = strike(process, run, max(after, lines(run / "metrics.jsonl") + 1), number)
        assert (found, json.loads((run / "run.json").read_text(encoding="utf-8"))["state"]) == (code, state)
        assert "Traceback" not in said
        if number != signal.SIGKILL:
            assert "go on with: evolvent evolve --resume halting" in said
        outcome_so_far = list(Store.open(run / "trajectories").ids())
        assert all("/" in name for name in outcome_so_far), "what is there can be read at any time"
        words = ("--resume", "halting")
    last = command("evolve", *words, cwd=tmp_path)
    assert last.returncode == 0, last.stderr
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["state"] == "finished"
    assert outcome(run) == outcome(tmp_path / "whole")


def test_two_writers_on_one_run(command, tmp_path):
    words = ("collect", "--worlds", "lookup", "--limit", "5", "--to", "run")
    assert command(*words, cwd=tmp_path).returncode == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    with Store.open(tmp_path / "run" / "trajectories", writing=True):
        second = command("collect", "--resume", "run", cwd=tmp_path)
    assert second.returncode == 1
    assert second.stderr.startswith("error: ") and "process " in second.stderr and second.stderr.count("\n") == 1
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    assert command("collect", "--resume", "run", cwd=tmp_path).returncode == 0
