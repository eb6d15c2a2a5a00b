"""One training whose ranks Ray Train starts, as torchrun would: the same command, environment, losses and checkpoints.

    cluster = where("10.0.0.1:6379?players=16&gpus=1")
    with connected(cluster):
        train_on(["sft", "chats.jsonl", "--policy", "MODEL"], folder=Path("runs/wide"), placing=cluster.placing)

A worker of Ray Train does what torchrun's agent does on its host: it keeps the store in which the ranks meet and runs
`evolvent train` as a process of its own, in the environment that `TorchTrainer` has set (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT). A process, because a training catches signals, which a thread of a worker cannot. Nothing is
pickled but these few words; checkpoints are ours, in the folder of the run, which all nodes share.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from evolvent.errors import ConfigError, MissingExtra, Problem, RankFailed
from evolvent.scale.ray_cluster import Placing

__all__ = ["Layout", "attended", "train_on", "words_of"]

Layout = Literal["shard", "replicate", ""]

_log = logging.getLogger(__name__)
_BOOT = "from evolvent.scale.ray_train import attended; attended()"
_LINES = 20  # of what a rank said last, for its error


def words_of(words: Sequence[str], folder: Path, *, ranks: int, layout: Layout = "shard") -> list[str]:
    """The words after `evolvent` of a training that begins in a folder, or goes on where the folder holds its run.

    Args:
        words: recipe, data and settings of a new run, without `--to`. layout: the dimension over which all ranks lie
            ("": `words` say it, and a run that goes on keeps it).
    """
    first = ["--resume", str(folder)] if (folder / "config.toml").is_file() else [*words, "--to", str(folder)]
    return ["train", *first, *([f"--parallel.{layout}", str(ranks)] if layout else [])]


def train_on(
    words: Sequence[str],
    *,
    folder: Path,
    placing: Placing,
    layout: Layout = "shard",
    least: int | None = None,
    restarts: int = 3,
) -> str:
    """Train to the end on the cluster that this process is connected to; returns what the first rank said last.

    Args:
        words, layout: see `words_of`. Paths in them are those of every node, relative ones from this folder.
        folder: of the run. All nodes share it. A run that it holds goes on.
        placing: `players` is the number of ranks; each takes `cpus`, `gpus` and `resources` of its node.
        least: ranks to go on with where the nodes have room for no more (None: all).
        restarts: how often all ranks are begun again, from the last checkpoint, after one or its node was lost.
    Raises:
        MissingExtra: Ray Train is not installed. ConfigError: no number of ranks, or words that do not belong here.
        RankFailed: a rank failed once more than `restarts` times; what it said is in the error.
    """
    ranks = _checked(words, placing, least)
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError
    except ImportError as error:
        raise MissingExtra("ray", "training by Ray Train") from error
    folder = folder.absolute()
    told = {"words": list(words), "folder": str(folder), "layout": layout, "cwd": str(Path.cwd())}
    trainer = TorchTrainer(
        _rank,
        train_loop_config=told,
        torch_config=TorchConfig(backend="gloo"),  # the workers' own; the ranks have theirs
        scaling_config=ScalingConfig(
            num_workers=ranks if least is None else (least, ranks),
            use_gpu=placing.gpus > 0,
            resources_per_worker=placing.needs(),
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.parent / ".ray"),
            failure_config=FailureConfig(max_failures=restarts),
        ),
    )
    try:
        with _own_interrupt():
            return str(trainer.fit().return_value)
    except TrainingFailedError as error:
        failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
        said = next((str(one) for one in failures.values() if "error:" in str(one)), str(error))
        hint = f"what is in {folder} goes on when it is started again"
        raise RankFailed("the training on Ray failed", value=said.strip()[-400:], hint=hint) from error


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """What this process does on Ctrl-C is as it was before, once the training has ended: Ray Train keeps its own."""
    here, before = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if here and before is not None:
            signal.signal(signal.SIGINT, before)


def _checked(words: Sequence[str], placing: Placing, least: int | None) -> int:
    problems = []
    if placing.players is None:
        problems.append(Problem("placing", "says no number of ranks", "write ?players=N"))
    elif least is not None and not 1 <= least <= placing.players:
        problems.append(Problem("least", f"got {least}, expected a number from 1 to {placing.players}"))
    taken = [word for word in words if word.partition("=")[0] in ("--to", "--resume")]
    problems += [Problem(word, "is set by the launcher", "name the folder instead") for word in taken]
    if problems or placing.players is None:
        raise ConfigError(problems)
    return placing.players


def _rank(told: Mapping[str, Any]) -> str:
    """What a worker does: run its rank to the end; returns what that said last.

    Raises:
        RankFailed: the rank ended otherwise.
    """
    words = words_of(told["words"], Path(told["folder"]), ranks=int(os.environ["WORLD_SIZE"]), layout=told["layout"])
    # The worker of rank 0 serves MASTER_PORT, as an agent of torchrun does: the ranks are its clients.
    own = {**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _BOOT, *words],
        cwd=told["cwd"],
        env=own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            said = _heard(process.stdout)
            process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
    if process.returncode:
        raise RankFailed(f"rank {os.environ['RANK']} ended with code {process.returncode}", value=said[-200:])
    return said


def _heard(stream: IO[str] | None) -> str:
    """Put what a rank says into the worker's log; returns its last lines."""
    last: deque[str] = deque(maxlen=_LINES)
    for line in stream or ():
        _log.info("%s", line.rstrip())
        last.append(line)
    return "".join(last).strip()


def attended() -> None:
    """The main function of a rank: `evolvent` with the words of this process, and its end when its worker is gone.

    The worker holds the other end of this process's standard input. Whatever kills it closes that end, and a rank that
    stayed would hold the lock of the run against those that are begun in its place.
    """

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    sys.argv[0] = "evolvent"
    runpy.run_module("evolvent", run_name="__main__")
