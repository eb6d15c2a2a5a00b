"""Snapshots: whole or absent whatever kills the writer, never deleted while they are read, nobody waits for anybody."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from evolvent.errors import (
    CheckpointError,
    ConfigError,
    HashMismatch,
    Incomplete,
    Locked,
    NoSpace,
    StoreUnavailable,
    UnsafePath,
)
from evolvent.models import snapshots
from evolvent.models.snapshots import lease, newest_snapshot, publish_snapshot, read_run_state

OWN = {"LATEST.json", "leases", "gate.lock", "writer.lock"}


def writer(step, *, size=2000):
    """Writes a folder whose every file says the same step."""

    def write(folder):
        (folder / "config.json").write_text(json.dumps({"step": step}))
        for part in (1, 2):
            save_file({f"w{part}": np.full(size, step, np.float32)}, folder / f"model-0000{part}-of-00002.safetensors")
        names = {f"w{part}": f"model-0000{part}-of-00002.safetensors" for part in (1, 2)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
        (folder / "tokenizer.json").write_text(json.dumps({"step": step}))

    return write


def steps_in(folder):
    """The steps that the files of a folder speak of; more than one would be a mixture."""
    found = {int(json.loads((folder / name).read_text())["step"]) for name in ("config.json", "tokenizer.json")}
    for part in (1, 2):
        weights = load_file(folder / f"model-0000{part}-of-00002.safetensors")[f"w{part}"]
        found |= set(weights.astype(int).tolist())
    return found


def folders(run):
    return sorted(path.name for path in (run / "snapshots").iterdir() if path.name not in OWN)


def test_the_newest_is_found_and_older_ones_are_given_up(tmp_path):
    assert newest_snapshot(tmp_path) is None
    for step in (0, 5, 10, 15):
        path = publish_snapshot(tmp_path, step, writer(step))
        assert path == tmp_path / "snapshots" / f"step-{step:06d}"
    assert folders(tmp_path) == ["step-000010", "step-000015"]
    found = newest_snapshot(tmp_path)
    assert (found.step, found.path, found.serial) == (15, path, 4)
    row = json.loads((tmp_path / "snapshots" / "LATEST.json").read_text())
    assert row["path"] == "step-000015" and row["published"] == ["step-000010", "step-000015"]
    with lease(tmp_path) as taken:
        assert taken == found and steps_in(taken.path) == {15}


def test_a_leased_snapshot_is_never_deleted(tmp_path):
    publish_snapshot(tmp_path, 1, writer(1), keep=1)
    with lease(tmp_path) as first:
        for step in range(2, 8):
            publish_snapshot(tmp_path, step, writer(step), keep=1)
        assert steps_in(first.path) == {1}
        with lease(tmp_path) as second, lease(tmp_path) as third:
            assert second == third and second.step == 7
            publish_snapshot(tmp_path, 8, writer(8), keep=1)
            assert folders(tmp_path) == ["step-000001", "step-000007", "step-000008"]
    publish_snapshot(tmp_path, 9, writer(9), keep=1)
    assert folders(tmp_path) == ["step-000009"]
    assert not list((tmp_path / "snapshots" / "leases").iterdir())


READER = """
import sys, time
from pathlib import Path
from evolvent.models.snapshots import lease
with lease(Path(sys.argv[1])) as snapshot:
    print(snapshot.step, flush=True)
    time.sleep(600)
"""


def test_the_lease_of_a_killed_reader_is_stale(tmp_path):
    publish_snapshot(tmp_path, 1, writer(1), keep=1)
    reader = subprocess.Popen([sys.executable, "-c", READER, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout.readline().strip() == "1"
        (file,) = (tmp_path / "snapshots" / "leases").iterdir()
        said = json.loads(file.read_text())
        assert (said["pid"], said["snapshot"]) == (reader.pid, "step-000001") and said["host"]
        publish_snapshot(tmp_path, 2, writer(2), keep=1)
        assert folders(tmp_path) == ["step-000001", "step-000002"]
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    assert file.exists(), "nobody could tidy up"
    publish_snapshot(tmp_path, 3, writer(3), keep=1)
    assert folders(tmp_path) == ["step-000003"] and not file.exists()


def test_the_lease_of_another_host_is_respected(tmp_path):
    publish_snapshot(tmp_path, 1, writer(1), keep=1)
    file = tmp_path / "snapshots" / "leases" / "77-abcd.json"
    file.write_text(json.dumps({"pid": 77, "host": "elsewhere", "snapshot": "step-000001"}))
    for step in (2, 3):
        publish_snapshot(tmp_path, step, writer(step), keep=1)
    assert folders(tmp_path) == ["step-000001", "step-000003"]
    file.unlink()
    publish_snapshot(tmp_path, 4, writer(4), keep=1)
    assert folders(tmp_path) == ["step-000004"]


def test_a_writer_does_not_wait_for_a_stopped_reader(tmp_path):
    """A reader that was stopped while it holds the gate keeps nobody from publishing, only from tidying up."""
    publish_snapshot(tmp_path, 1, writer(1), keep=1)
    gate = snapshots._try_lock(tmp_path / "snapshots" / "gate.lock")
    publish_snapshot(tmp_path, 2, writer(2), keep=1)
    assert newest_snapshot(tmp_path).step == 2 and folders(tmp_path) == ["step-000001", "step-000002"]
    snapshots._unlock(gate)
    publish_snapshot(tmp_path, 3, writer(3), keep=1)
    assert folders(tmp_path) == ["step-000003"]


def test_a_reader_gives_up_in_time(tmp_path, monkeypatch):
    publish_snapshot(tmp_path, 1, writer(1))
    gate = snapshots._try_lock(tmp_path / "snapshots" / "gate.lock")
    monkeypatch.setattr(snapshots, "_GATE_S", 0.05)
    with pytest.raises(StoreUnavailable, match=r"gate\.lock"), lease(tmp_path):
        pass
    snapshots._unlock(gate)
    with lease(tmp_path) as taken:
        assert taken.step == 1


def test_a_second_writer_is_refused(tmp_path):
    def write(folder):
        with pytest.raises(Locked, match=str(os.getpid())):
            publish_snapshot(tmp_path, 2, writer(2))
        writer(1)(folder)

    publish_snapshot(tmp_path, 1, write)
    assert newest_snapshot(tmp_path).step == 1


def test_a_training_that_went_back_publishes_beside(tmp_path):
    """What is newest is what was published last, whatever its step; a folder that somebody may read is not changed."""
    for step in (100, 200):
        publish_snapshot(tmp_path, step, writer(step))
    with lease(tmp_path) as taken:
        again = publish_snapshot(tmp_path, 150, writer(150))
        assert newest_snapshot(tmp_path).step == 150 and folders(tmp_path) == ["step-000150", "step-000200"]
        twice = publish_snapshot(tmp_path, 200, writer(200))
        assert twice.name == "step-000200.1" and taken.path.name == "step-000200" and again.exists()
    publish_snapshot(tmp_path, 210, writer(210))
    assert folders(tmp_path) == ["step-000200.1", "step-000210"]


def test_an_adapter_is_a_snapshot_too(tmp_path):
    """With its base in a folder below, whose weight files are part of what was published."""

    def write(folder):
        (folder / "adapter_config.json").write_text("{}")
        save_file({"a": np.zeros(4, np.float32)}, folder / "adapter_model.safetensors")
        (folder / "base").mkdir()
        writer(3)(folder / "base")

    path = publish_snapshot(tmp_path, 3, write)
    with lease(tmp_path) as taken:
        assert steps_in(taken.path / "base") == {3}
    damaged(path / "base", "missing")
    with pytest.raises(Incomplete, match="model-00002"), lease(tmp_path):
        pass


# ---------------------------------------------------------------------- killed


def publish_and_die(run, event):
    """In a child process: publish step 2, killed at its n-th file operation (as Python's audit events count them)."""
    child = os.fork()
    if child == 0:
        try:
            left = [event]

            def hook(name, arguments):
                if name in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "fcntl.flock"):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            publish_snapshot(run, 2, writer(2, size=50), keep=1)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_every_file_operation(tmp_path):
    seen, event = set(), 0
    while True:
        run = tmp_path / str(event)
        publish_snapshot(run, 1, writer(1, size=50), keep=1)
        code = publish_and_die(run, event)
        with lease(run) as taken:
            assert steps_in(taken.path) == {taken.step}
            seen.add(taken.step)
        assert publish_snapshot(run, 3, writer(3, size=50), keep=1) == newest_snapshot(run).path
        assert folders(run) == ["step-000003"], "what the killed writer left is gone"
        if code == 0:
            break
        assert code == -signal.SIGKILL
        event += 1
    assert event > 25 and seen == {1, 2}


PUBLISHER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_snapshots import writer
from evolvent.models.snapshots import publish_snapshot
step = int(sys.argv[2])
while True:
    step += 1
    publish_snapshot(Path(sys.argv[1]), step, writer(step, size=20_000), keep=1)
"""


def test_killed_at_random_moments_while_others_read(tmp_path):
    """Writers are killed and started again; a reader that never pauses sees whole snapshots, and never an older one."""
    rng, step, reads = random.Random(0), 0, 0
    publish_snapshot(tmp_path, 0, writer(0, size=20_000), keep=1)
    for _ in range(6):
        words = [sys.executable, "-c", textwrap.dedent(PUBLISHER), str(tmp_path), str(step), str(Path(__file__).parent)]
        process = subprocess.Popen(words)
        enough = step + rng.randrange(2, 12)
        delay = rng.random() * 0.02
        while process.poll() is None:
            with lease(tmp_path) as taken:
                assert steps_in(taken.path) == {taken.step}
                assert taken.step >= step
                step, reads = taken.step, reads + 1
            if step >= enough:
                time.sleep(delay)
                process.kill()
        assert process.wait() == -signal.SIGKILL
        with lease(tmp_path) as taken:  # what it published between the last read and its end
            assert taken.step >= step
            step = taken.step
    assert reads > 20 and step > 10
    # A writer killed between its two renames leaves a folder that was never published: the step gets another name then.
    newest = publish_snapshot(tmp_path, step + 1, writer(step + 1), keep=1)
    assert newest.name.startswith(f"step-{step + 1:06d}") and folders(tmp_path) == [newest.name]


# ---------------------------------------------------------------------- trouble


def test_what_cannot_be_published_changes_nothing(tmp_path):
    publish_snapshot(tmp_path, 1, writer(1))
    with pytest.raises(Incomplete, match="is not a model folder"):
        publish_snapshot(tmp_path, 2, lambda folder: (folder / "config.json").write_text("{}"))
    with pytest.raises(CheckpointError, match="ZeroDivisionError") as caught:
        publish_snapshot(tmp_path, 2, lambda folder: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(KeyboardInterrupt):
        publish_snapshot(tmp_path, 2, lambda folder: signal.raise_signal(signal.SIGINT))
    for step, keep in ((-1, 2), (3, 0)):
        with pytest.raises(ConfigError):
            publish_snapshot(tmp_path, step, writer(3), keep=keep)
    assert folders(tmp_path) == ["step-000001"] and newest_snapshot(tmp_path).step == 1


def test_a_full_disk_keeps_the_one_before(tmp_path):
    publish_snapshot(tmp_path, 1, writer(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def large(folder):
        (folder / "config.json").write_bytes(b" " * 100_000)

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(NoSpace):
            publish_snapshot(tmp_path, 2, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert folders(tmp_path) == ["step-000001"]
    with lease(tmp_path) as taken:
        assert steps_in(taken.path) == {1}


def damaged(path, kind):
    weights = path / "model-00002-of-00002.safetensors"
    data = weights.read_bytes()
    if kind == "cut":
        weights.write_bytes(data[:-1])
    elif kind == "missing":
        weights.unlink()
    elif kind == "header":
        weights.write_bytes(struct.pack("<Q", 1 << 60) + data[8:])
    elif kind == "other":
        save_file({"w2": np.zeros((2, 1000), np.float32)}, weights)
    elif kind == "gone":
        path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [
        ("cut", Incomplete, "is truncated"),
        ("missing", Incomplete, "model-00002"),
        ("header", Incomplete, "does not have a safetensors header"),
        ("other", HashMismatch, "the snapshot has changed since it was published"),
        ("gone", Incomplete, "the newest snapshot is missing"),
    ],
)
def test_a_damaged_snapshot_is_refused_by_its_name(tmp_path, kind, error, told):
    damaged(publish_snapshot(tmp_path, 7, writer(7)), kind)
    with pytest.raises(error, match=told) as caught, lease(tmp_path):
        pass
    assert "step-000007" in str(caught.value)
    assert not list((tmp_path / "snapshots" / "leases").iterdir()), "a refused lease leaves nothing behind"
    publish_snapshot(tmp_path, 8, writer(8))
    with lease(tmp_path) as taken:
        assert taken.step == 8


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', "null", "[" * 100_000])
def test_a_damaged_pointer_is_refused_and_written_anew(tmp_path, text):
    publish_snapshot(tmp_path, 1, writer(1))
    (tmp_path / "snapshots" / "LATEST.json").write_text(text)
    with pytest.raises(Incomplete, match="is not a snapshot pointer"):
        newest_snapshot(tmp_path)
    with pytest.raises(Incomplete, match="is not a snapshot pointer"), lease(tmp_path):
        pass
    publish_snapshot(tmp_path, 2, writer(2))
    assert newest_snapshot(tmp_path).step == 2


@pytest.mark.parametrize("name", ["../other", "/etc", "step-000001/inner", "leases", "step-%2e%2e/x", ""])
def test_a_pointer_that_leaves_its_folder_is_refused(tmp_path, name):
    publish_snapshot(tmp_path, 1, writer(1))
    path = tmp_path / "snapshots" / "LATEST.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "path": name}))
    with pytest.raises((UnsafePath, Incomplete)), lease(tmp_path):
        pass


def test_there_is_nothing_to_lease(tmp_path):
    with pytest.raises(Incomplete, match="does not hold a snapshot"), lease(tmp_path):
        pass
    assert not (tmp_path / "snapshots").exists()


def test_what_a_run_says_of_itself(tmp_path):
    assert read_run_state(tmp_path) is None
    for text, state in (('{"state": "running"}', "running"), ('{"state": 3}', None), ("[]", None), ("{", None)):
        (tmp_path / "run.json").write_text(text)
        assert read_run_state(tmp_path) == state


def test_the_reading_side_needs_no_torch():
    code = "import sys, evolvent.models.snapshots; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
