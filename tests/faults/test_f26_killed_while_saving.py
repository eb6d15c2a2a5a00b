"""Fault 26: kill -9 at every system call that writes a checkpoint: the newest complete one is whole, old or new.

One process that saves at once or on a thread, and two ranks of which either is killed: what lives on ends with an error
that names the other, and the next start finds a whole checkpoint and cleans up.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from evolvent.errors import NoSpace, RankFailed, StoreUnavailable
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.models import writing
from evolvent.models.pieces import Region
from evolvent.models.writing import SaveJob, TensorPart

CALLS = ("write", "fsync", "rename", "replace", "unlink", "rmdir")
RANK_FAILED = 7


def saved(value: float) -> CheckpointContent:
    names = [f"w{i}" for i in range(4)]
    return CheckpointContent(
        {"model": {n: torch.full((4,), value) for n in names}, "random": {"torch": torch.zeros(3)}}, {"v": value}
    )


def dying(action: Callable[[], None], call: int | None) -> int:
    """Process id of a child that does something, killed before one of its system calls in `CALLS`; None: of none."""
    child = os.fork()
    if child:
        return child
    left = [call]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call_or_die(*arguments: Any, **options: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call_or_die

    try:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        action()
        os._exit(0)
    except RankFailed:
        os._exit(RANK_FAILED)
    except (FileNotFoundError, StoreUnavailable):
        os._exit(RANK_FAILED + 1)  # rank 0 has removed what this one was writing
    finally:
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def found_in(folder: Path) -> float:
    """The value of the newest checkpoint after a new start, which has all in it; nothing else is left."""
    keeper = Checkpointer(folder)
    found = keeper.load()
    assert found is not None and all(keeper.load(path) for path in keeper.list_complete())
    assert sorted(folder.iterdir()) == keeper.list_complete()
    value: float = found.values["v"]
    assert len(found.tensors["model"]) == 4
    assert all(torch.equal(t, torch.full((4,), value)) for t in found.tensors["model"].values())
    return value


@pytest.mark.parametrize("wait", [True, False])
def test_any_kill_leaves_a_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool) -> None:
    """Shards hold two of the four weights, so that kills fall between them and within them."""
    monkeypatch.setattr(writing, "_SHARD_BYTES", 32)
    seen = []
    for call in range(80):
        folder = tmp_path / str(call)
        Checkpointer(folder).save(1, saved(1.0))
        code = ended(dying(lambda f=folder: Checkpointer(f, keep=1).save(2, saved(2.0), wait=wait).wait(), call))  # type: ignore[misc]
        seen.append(found_in(folder))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert call > 25 and seen == sorted(seen) and set(seen) == {1.0, 2.0}


def half(folder: Path, rank: int, timeout: float) -> SaveJob:
    """The share of one of two ranks in saving the second checkpoint: two rows of every weight each."""
    region = Region((2 * rank,), (2,))
    parts = {f"w{i}": TensorPart((4,), region, torch.full((2,), 2.0)) for i in range(4)}
    return SaveJob(
        folder / "update-000000002",
        folder / ".writing-000000002-a-1",
        {"model": parts},
        b'{"v": 2.0}',
        rank=rank,
        size=2,
        timeout=timeout,
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_either_of_two_ranks_is_killed(tmp_path: Path, victim: int) -> None:
    """The other gives up at its deadline, or ends well if all was written; then the first start cleans up."""
    seen = []
    for call in [*range(0, 32, 4), None]:
        folder = tmp_path / str(call)
        Checkpointer(folder).save(1, saved(1.0))
        jobs = [half(folder, rank, 30 if call is None else 0.3) for rank in (0, 1)]
        children = [dying(job.run, call if rank == victim else None) for rank, job in enumerate(jobs)]
        killed, other = (ended(children[rank]) for rank in (victim, 1 - victim))
        seen.append(found_in(folder))
        gave_up = (RANK_FAILED, RANK_FAILED + 1)  # a victim that is late finds that rank 0 has removed its files
        assert other in (0, *gave_up) and killed in (-signal.SIGKILL, 0, *gave_up)
        assert (other == 0) == (seen[-1] == 2.0)
    assert (killed, other) == (0, 0) and seen[0] == 1.0 and seen[-1] == 2.0


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """From outside, in the middle of writing some megabytes on a thread."""
    big = {"model": {f"w{i}": torch.full((4,), 2.0) for i in range(4)}, "more": {"x": torch.zeros(2_000_000)}}
    Checkpointer(tmp_path).save(1, saved(1.0))
    for number in range(6):
        child = dying(
            lambda: Checkpointer(tmp_path).save(2, CheckpointContent(big, {"v": 2.0}), wait=False).wait(), None
        )  # type: ignore[arg-type,return-value]
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob(".writing-*/*")) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(0.003 * number)
        os.kill(child, signal.SIGKILL)
        ended(child)
        if found_in(tmp_path) == 2.0:
            break


def test_a_full_disk_keeps_the_old_one(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    good = keeper.save(1, saved(1.0)).path
    large = CheckpointContent({"model": {"w": torch.zeros(100_000)}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(NoSpace, match="Free some space, then start again; the run resumes"):
            keeper.save(2, large)
        with pytest.raises(NoSpace, match="Free some space, then start again; the run resumes"):
            keeper.save(2, large, wait=False).wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
    assert keeper.load() is not None
