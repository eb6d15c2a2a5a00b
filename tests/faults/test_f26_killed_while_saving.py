"""Kill -9 at every system call that makes a checkpoint durable: the newest complete one is whole, old or new."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from evolvent.learn import checkpoint as module
from evolvent.learn.checkpoint import Checkpointer, Saved


def saved(value: float) -> Saved:
    names = [f"w{i}" for i in range(4)]
    return Saved(
        {"model": {n: torch.full((4,), value) for n in names}, "random": {"torch": torch.zeros(3)}}, {"v": value}
    )


def save_and_die(folder: Path, call: int) -> int:
    """In a child process: save a second checkpoint, killed before its `call`-th fsync or rename. The exit code."""
    child = os.fork()
    if child == 0:
        left = [call]

        def counted(function):  # type: ignore[no-untyped-def]
            def call_or_die(*arguments):  # type: ignore[no-untyped-def]
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments)

            return call_or_die

        os.fsync, Path.rename = counted(os.fsync), counted(Path.rename)  # type: ignore[method-assign]
        Checkpointer(folder, keep=1).save(2, saved(2.0))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_any_kill_leaves_a_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", 32)  # two shards of the model, so that a kill falls between them
    seen = set()
    for call in range(40):
        folder = tmp_path / str(call)
        Checkpointer(folder).save(1, saved(1.0))
        code = save_and_die(folder, call)
        keeper = Checkpointer(folder)
        found = keeper.load()
        assert found is not None
        value = found.values["v"]
        assert all(torch.equal(t, torch.full((4,), value)) for t in found.tensors["model"].values())
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        seen.add(value)
        if code == 0:
            assert value == 2.0
            break
        assert code == -signal.SIGKILL
    assert call > 6 and seen == {1.0, 2.0}


def test_a_full_disk_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    from evolvent.errors import NoSpace

    keeper = Checkpointer(tmp_path)
    good = keeper.save(1, saved(1.0))
    large = Saved({"model": {"w": torch.zeros(100_000)}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(NoSpace, match="earlier checkpoints are intact"):
            keeper.save(2, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    assert keeper.load() is not None
