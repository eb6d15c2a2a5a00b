"""The numbers of a run reach a tracker, each line once: while it runs, after a stop, whatever stands in the file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from evolvent.cli.main import main
from evolvent.cli.setup import tracking
from evolvent.cli.setup.tracking import TRACKERS
from evolvent.errors import StoreUnavailable

LINES = [
    {"time_s": 1.5, "cpu_s": 1.0, "stage": "a", "arm": "base", "round": 0, "kind": "fit", "step": 1, "loss": 2.0},
    {"time_s": 2.0, "cpu_s": 1.2, "stage": "a", "arm": "base", "round": 0, "kind": "fit", "step": 2, "loss": None},
    {"time_s": 3.0, "cpu_s": 2.0, "stage": "b", "arm": "evolve", "round": 1, "kind": "collect", "success": 0.25},
]


class Kept:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, values, *, step):
        self.rows.append((step, dict(values)))

    def close(self):
        self.closed += 1


@pytest.fixture
def kept(monkeypatch):
    tracker, told = Kept(), {}

    def make(run, project, config):
        told.update(config)
        return tracker

    monkeypatch.setattr(tracking, "TRACKERS", {"kept": make, **TRACKERS})
    tracker.told = told
    return tracker


def a_run(folder: Path, lines, state="running") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"state": state, "api_key": "sk-planted-0001"}), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def test_each_line_once(tmp_path, kept, capsys):
    run = a_run(tmp_path / "run", LINES[:2])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"time_s": 3.0, "cpu')  # half written
    assert main(["runs", "track", str(run), "--to", "kept"]) == 0
    assert kept.rows == [
        (1, {"base/fit/step": 1.0, "base/fit/loss": 2.0, "time_s": 1.5, "cpu_s": 1.0, "round": 0.0}),
        (2, {"base/fit/step": 2.0, "time_s": 2.0, "cpu_s": 1.2, "round": 0.0}),
    ]
    a_run(run, LINES, state="done")
    assert main(["runs", "track", str(run), "--to", "kept", "--follow"]) == 0
    assert [step for step, _ in kept.rows] == [1, 2, 3] and kept.rows[-1][1]["evolve/collect/success"] == 0.25
    assert kept.closed == 2 and "gave kept 1 lines" in capsys.readouterr().out
    assert "sk-planted" not in json.dumps(kept.told) and "state" in kept.told


def test_a_run_is_followed_to_its_end(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(tracking, "_POLL_INTERVAL_S", 0.01)
    run = a_run(tmp_path / "run", [])

    def written():
        for line in LINES:
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            time.sleep(0.02)
        (run / "run.json").write_text('{"state": "interrupted"}', encoding="utf-8")

    writer = threading.Timer(0.1, written)
    writer.start()
    assert main(["runs", "track", str(run), "--to", "kept", "--follow"]) == 0
    writer.join()
    assert [step for step, _ in kept.rows] == [1, 2, 3]


def test_a_run_that_was_killed_is_not_followed_for_ever(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(tracking, "_POLL_INTERVAL_S", 0.01)
    run = a_run(tmp_path / "run", LINES)
    (run / "trajectories").mkdir()
    held = "import sys, time; from evolvent.store.lock import WriterLock; from pathlib import Path\n"
    held += "lock = WriterLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    writer = subprocess.Popen(
        [sys.executable, "-c", held, str(run / "trajectories" / "writer.lock")], stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout.readline() == b"held\n"
        assert tracking._is_running(run)
        writer.kill()
        writer.wait()
        assert main(["runs", "track", str(run), "--to", "kept", "--follow"]) == 0
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert [step for step, _ in kept.rows] == [1, 2, 3]


@pytest.mark.parametrize(
    "line", [b"no json\n", b"[1]\n", b'{"loss": 1e999, "b": true, "t": "x"}\n', b"[" * 9999 + b"\n"]
)
def test_lines_that_are_none(tmp_path, kept, line):
    run = a_run(tmp_path / "run", [])
    (run / "metrics.jsonl").write_bytes(line)
    assert main(["runs", "track", str(run), "--to", "kept"]) == 0
    assert not any(kept.rows and values for _, values in kept.rows)


def test_what_a_tracker_took_before_it_broke_is_not_given_again(tmp_path, kept, monkeypatch):
    run, taken = a_run(tmp_path / "run", [*LINES, {"loss": 10**400, "step": 3}], "finished"), kept.log

    def breaks(values, *, step):
        if step == 3:
            raise StoreUnavailable("the tracker is away")
        taken(values, step=step)

    monkeypatch.setattr(kept, "log", breaks)
    assert main(["runs", "track", str(run), "--to", "kept"]) != 0
    monkeypatch.setattr(kept, "log", taken)
    assert main(["runs", "track", str(run), "--to", "kept"]) == 0
    assert [step for step, _ in kept.rows] == [1, 2, 3, 4]


def test_wrong_words(tmp_path, capsys):
    assert main(["runs", "track", str(tmp_path), "--to", "wandbb"]) == 2
    told = capsys.readouterr().err
    assert "did you mean 'wandb'?" in told and "is not a run" in told


def test_tensorboard_reads_what_was_given(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = a_run(tmp_path / "run", LINES, state="done")
    assert main(["runs", "track", str(run), "--to", "tensorboard"]) == 0
    events = EventAccumulator(str(run / "tracking" / "tensorboard"))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("base/fit/loss")] == [(1, 2.0)]


def test_trackio_keeps_what_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    run = a_run(tmp_path / "run", LINES, state="done")
    assert main(["runs", "track", str(run), "--to", "trackio", "--project", "tried"]) == 0
    assert any((tmp_path / "trackio").rglob("*tried*"))


def test_wandb_keeps_what_was_given(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = a_run(tmp_path / "run", LINES, state="done")
    assert main(["runs", "track", str(run), "--to", "wandb"]) == 0
    assert list((run / "tracking").rglob("*.wandb"))


def test_runs_of_one_name_stay_two_and_one_that_goes_on_stays_one(tmp_path, monkeypatch):
    """By the names of the files that wandb keeps until it is online: `run-ID.wandb`."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    runs = [a_run(tmp_path / where / "run: 1", LINES[:2]) for where in ("here", "there")]
    for run in runs:
        assert main(["runs", "track", str(run), "--to", "wandb"]) == 0
    assert main(["runs", "track", str(a_run(runs[0], LINES)), "--to", "wandb"]) == 0
    here, there = ({file.name for file in run.rglob("*.wandb")} for run in runs)
    assert len(here) == len(there) == 1 and here != there


def test_trackio_tells_runs_of_one_name_apart(tmp_path):
    pytest.importorskip("trackio")
    code = "import sys; from evolvent.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for where, lines in (("here", LINES[:2]), ("there", LINES), ("here", LINES)):
        run = a_run(tmp_path / where / "run", lines)
        words = ["runs", "track", str(run), "--to", "trackio", "--project", "two"]
        told = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept")}
        subprocess.run([sys.executable, "-c", code, *words], env=told, check=True, capture_output=True)
    with closing(sqlite3.connect(tmp_path / "kept" / "two.db")) as kept:
        counts = dict(kept.execute("SELECT run_name, COUNT(*) FROM metrics GROUP BY run_name"))
    assert sorted(counts.values()) == [3, 3] and all(name.startswith("run-") for name in counts)


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "trackio", None)
    assert main(["runs", "track", str(a_run(tmp_path / "run", LINES))]) == 1
    assert "evolvent[track]" in capsys.readouterr().err
