"""`evolvent` over several ranks, as torchrun starts them, but forked from a server that has torch in memory.

    with Launched(2, ["train", "sft", ...], cwd=tmp_path) as ranks:
        ranks.wait()                       # exit codes; ranks.said(1) is what rank 1 printed

The store that torchrun's agent would hold is in the test's process; without an agent rank 0 holds it. `before` names a
function, `module:name`, that every rank calls with its number first: to break something, where nothing else can. `env`
is set in every rank.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from tests.forks import context


def _rank(
    rank: int,
    size: int,
    place: tuple[int, bool],
    words: list[str],
    cwd: str,
    before: str,
    path: list[str],
    env: dict[str, str],
) -> None:
    port, agent = place
    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    os.chdir(cwd)
    for number, name in ((1, "out"), (2, "err")):
        handle = os.open(f".{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank))
    if size > 1:
        os.environ.update(
            WORLD_SIZE=str(size),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE=str(agent),
        )
    sys.argv = ["evolvent", *words]
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if before:
        module, _, name = before.partition(":")
        getattr(importlib.import_module(module), name)(rank)
    code = _script(words) if words[0].endswith(".py") else _command(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _command(words: list[str]) -> int:
    from evolvent.cli.main import main

    return main(words)


def _script(words: list[str]) -> int:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    return 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Launched:
    """`size` processes that run `evolvent WORDS`, or a script, in a folder; a context manager that leaves none."""

    def __init__(
        self,
        size: int,
        words: Sequence[object],
        *,
        cwd: Path,
        before: str = "",
        agent: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        from torch.distributed import TCPStore

        self.cwd, port = cwd, _free_port()
        for path in (cwd / f".{name}-{rank}" for name in ("out", "err") for rank in range(size)):
            path.unlink(missing_ok=True)  # of ranks launched here before, whose words `until` would take for new ones
        if size > 1 and agent:
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
            port = self.store.port
        more = ([str(word) for word in words], str(cwd), before, list(sys.path), dict(env or {}))
        forks = context()
        self.processes = [
            forks.Process(target=_rank, args=(rank, size, (port, agent), *more), daemon=True) for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def said(self, rank: int = 0) -> str:
        """What a rank has printed on both streams."""
        return "".join(path.read_text() for name in ("out", "err") if (path := self.cwd / f".{name}-{rank}").exists())

    def errors(self) -> list[str]:
        """What each rank has printed on its standard error."""
        paths = [self.cwd / f".err-{rank}" for rank in range(len(self.processes))]
        return [path.read_text() if path.exists() else "" for path in paths]

    def until(self, path: Path, lines: int, *, seconds: float = 120) -> None:
        """Wait until a file has so many lines; AssertionError where the ranks end before."""
        end = time.monotonic() + seconds
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            alive = [process for process in self.processes if process.exitcode is None]
            assert alive and time.monotonic() < end, [self.said(rank) for rank in range(len(self.processes))]
            time.sleep(0.02)

    def signal(self, number: int, *ranks: int) -> None:
        """Send a signal to some ranks, or to all."""
        for rank in ranks or range(len(self.processes)):
            os.kill(self.processes[rank].pid or 0, number)

    def wait(self, *ranks: int, seconds: float = 120) -> list[int | None]:
        """The exit codes of some ranks, or of all, in their order; None: it did not end in time."""
        end = time.monotonic() + seconds
        chosen = [self.processes[rank] for rank in ranks or range(len(self.processes))]
        for process in chosen:
            process.join(max(0.0, end - time.monotonic()))
        return [process.exitcode for process in chosen]

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
            process.join(10)
