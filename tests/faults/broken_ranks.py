"""What is done to a rank before its command begins: see `Launched(before=...)`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any


def raises(rank: int) -> None:
    """Rank 1 has a fault of the program itself in its eighth update."""
    from evolvent.learn.learner import Learner

    whole = Learner.update

    def update(self: Any, batches: Any) -> Any:
        if rank == 1 and self.updates == 7:
            raise KeyError("something is wrong with rank 1")
        return whole(self, batches)

    Learner.update = update  # type: ignore[method-assign]


def waiting(rank: int) -> None:
    """After its sixteenth update it writes a line into `waits`, and waits for a file `go` to appear."""
    from evolvent.learn.learner import Learner

    whole = Learner.update

    def update(self: Any, batches: Any) -> Any:
        if self.updates == 16:
            Path("waits").write_text("now\n", encoding="ascii")
            while not Path("go").exists():
                time.sleep(0.01)
        return whole(self, batches)

    Learner.update = update  # type: ignore[method-assign]


def slow_to_read(rank: int) -> None:
    """Reading the data takes three seconds longer."""
    from evolvent.cli.train import job

    whole = job.write_tokens

    def write(*words: Any, **more: Any) -> Any:
        sys.stdout.write("reading\n")
        time.sleep(3)
        return whole(*words, **more)

    job.write_tokens = write


def narrow(rank: int) -> None:
    """Limits this process to 400 MB more than it has.

    One arena for all threads (M_ARENA_MAX is -8): glibc reserves up to 128 MB of addresses for the first allocation of
    each further thread, so the number of threads that run at a time would decide what is left for a batch. With one
    arena, the whole batch of fault 37 needs more than 500 MB, and its parts of 1000 tokens less than 100 MB. A command
    asks for 270 MB before it begins, and has some 30 by then.
    """
    import ctypes
    import resource

    ctypes.CDLL(None).mallopt(-8, 1)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 400_000_000, size + 400_000_000))
