"""Kill -9 at every system call that makes a checkpoint durable: the newest complete one is whole, old or new."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evolvent.errors import NoSpace
from evolvent.learn import checkpoint as module
from evolvent.learn.checkpoint import Checkpointer, Saved


def saved(value: float) -> Saved:
    names = [f"w{i}" for i in range(4)]
    return Saved(
        {"model": {n: torch.full((4,), value) for n in names}, "random": {"torch": torch.zeros(3)}}, {"v": value}
    )


def save_and_die(folder: Path, call: int) -> int:
    """In a child process: save a second checkpoint, killed before a system call. The exit code.

    Args:
        call: before which of its calls to fsync, rename, unlink and rmdir.
    """
    child = os.fork()
    if child == 0:
        left = [call]

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call_or_die(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return call_or_die

        try:
            for name in ("fsync", "rename", "unlink", "rmdir"):
                setattr(os, name, counted(getattr(os, name)))
            Checkpointer(folder, keep=1).save(2, saved(2.0))
            os._exit(0)
        finally:
            os._exit(1)
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
        assert found is not None and all(keeper.load(path) for path in keeper.complete())
        value = found.values["v"]
        assert all(torch.equal(t, torch.full((4,), value)) for t in found.tensors["model"].values())
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        seen.add(value)
        if code == 0:
            assert value == 2.0
            break
        assert code == -signal.SIGKILL
    assert call > 10 and seen == {1.0, 2.0}


def test_a_full_disk_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
