"""A training whose ranks Ray Train starts, like torchrun: the same command, environment, losses and
checkpoints.

    cluster = parse_cluster("10.0.0.1:6379?players=16&gpus=1")
    argv = ["sft", "chats.jsonl", "--policy", "MODEL"]
    with connect(cluster):
        train_on_cluster(argv, folder=Path("runs/wide"), placement=cluster.placement)

A worker of Ray Train does the work of torchrun's agent on its host: it runs the store in which the ranks meet,
and `evolvent train` as a separate process, in the environment that `TorchTrainer` has set (RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR, MASTER_PORT). It is a process, because a training catches signals, which a thread of a
worker cannot. Only the command line is pickled; checkpoints are ours, in the folder of the run, which all nodes
share.
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
from evolvent.scale.ray_cluster import Placement

__all__ = ["Layout", "attended", "build_argv", "train_on_cluster"]

Layout = Literal["shard", "replicate", ""]

_log = logging.getLogger(__name__)
_BOOT = "from evolvent.scale.ray_train import attended; attended()"
_MAX_LINES = 20  # of what a rank said last, for its error


def build_argv(argv: Sequence[str], folder: Path, *, ranks: int, layout: Layout = "shard") -> list[str]:
    """Returns the arguments after `evolvent` of a training that starts in a folder, or resumes where the folder
    holds its run.

    Args:
        argv: Recipe, data and settings of a new run, without `--to`.
        folder: Folder of the run.
        ranks: Number of ranks.
        layout: Dimension of parallelism over all ranks ("": given in `argv`, and a resumed run keeps it).
    """
    first = ["--resume", str(folder)] if (folder / "config.toml").is_file() else [*argv, "--to", str(folder)]
    return ["train", *first, *([f"--parallel.{layout}", str(ranks)] if layout else [])]


def train_on_cluster(
    argv: Sequence[str],
    *,
    folder: Path,
    placement: Placement,
    layout: Layout = "shard",
    min_ranks: int | None = None,
    restarts: int = 3,
) -> str:
    """Runs a training to its end on the connected cluster; returns the last output of the first rank.

    Args:
        argv, layout: See `build_argv`. Paths in them are those of every node, relative ones from this folder.
        folder: Folder of the run, shared by all nodes. A run that it holds is resumed.
        placement: `players` is the number of ranks; each takes `cpus`, `gpus` and `resources` of its node.
        min_ranks: Minimum number of ranks, where the nodes have no more resources (None: all).
        restarts: Number of restarts of all ranks, from the last checkpoint, after one or its node was lost.
    Raises:
        MissingExtra: Ray Train is not installed. ConfigError: no number of ranks, or arguments that do not belong
            here.
        RankFailed: a rank failed more than `restarts` times; its output is in the error.
    """
    ranks = _check_arguments(argv, placement, min_ranks)
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError
    except ImportError as error:
        raise MissingExtra("ray", "training by Ray Train") from error
    folder = folder.absolute()
    rank_config = {"words": list(argv), "folder": str(folder), "layout": layout, "cwd": str(Path.cwd())}
    trainer = TorchTrainer(
        _run_rank,
        train_loop_config=rank_config,
        torch_config=TorchConfig(backend="gloo"),  # the workers' own; the ranks have theirs
        scaling_config=ScalingConfig(
            num_workers=ranks if min_ranks is None else (min_ranks, ranks),
            use_gpu=placement.gpus > 0,
            resources_per_worker=placement.ray_resources(),
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.parent / ".ray"),
            failure_config=FailureConfig(max_failures=restarts),
        ),
    )
    try:
        with _preserve_sigint():
            return str(trainer.fit().return_value)
    except TrainingFailedError as error:
        failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
        rank_output = next((str(failure) for failure in failures.values() if "error:" in str(failure)), str(error))
        hint = f"start it again to resume from {folder}"
        raise RankFailed("training on Ray failed", value=rank_output.strip()[-400:], hint=hint) from error


@contextmanager
def _preserve_sigint() -> Iterator[None]:
    """Restores this process's handler of Ctrl-C after the training, since Ray Train keeps its own."""
    is_main_thread, handler = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if is_main_thread and handler is not None:
            signal.signal(signal.SIGINT, handler)


def _check_arguments(argv: Sequence[str], placement: Placement, min_ranks: int | None) -> int:
    problems = []
    if placement.players is None:
        problems.append(Problem("placing", "has no number of ranks", "write ?players=N"))
    elif min_ranks is not None and not 1 <= min_ranks <= placement.players:
        problems.append(Problem("least", f"got {min_ranks}, expected a number from 1 to {placement.players}"))
    reserved = [argument for argument in argv if argument.partition("=")[0] in ("--to", "--resume")]
    problems += [Problem(argument, "is set by the launcher", "pass the folder instead") for argument in reserved]
    if problems or placement.players is None:
        raise ConfigError(problems)
    return placement.players


def _run_rank(rank_config: Mapping[str, Any]) -> str:
    """Runs the rank of a worker to its end; returns its last output.

    Raises:
        RankFailed: the rank ended otherwise.
    """
    argv = build_argv(
        rank_config["words"],
        Path(rank_config["folder"]),
        ranks=int(os.environ["WORLD_SIZE"]),
        layout=rank_config["layout"],
    )
    # The worker of rank 0 serves MASTER_PORT, as an agent of torchrun does: the ranks are its clients.
    environment = {**os.environ, "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", _BOOT, *argv],
        cwd=rank_config["cwd"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = _log_output(process.stdout)
            process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
    if process.returncode:
        raise RankFailed(f"rank {os.environ['RANK']} ended with code {process.returncode}", value=output[-200:])
    return output


def _log_output(stream: IO[str] | None) -> str:
    """Writes the output of a rank to the worker's log; returns its last lines."""
    last_lines: deque[str] = deque(maxlen=_MAX_LINES)
    for line in stream or ():
        _log.info("%s", line.rstrip())
        last_lines.append(line)
    return "".join(last_lines).strip()


def attended() -> None:
    """Runs `evolvent` with the arguments of this process as a rank, and ends it when its worker is gone.

    The worker holds the other end of this process's standard input. Whatever kills the worker closes that end; a
    rank that stayed would hold the lock of the run against its replacement.
    """

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be held when the interpreter ends
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    sys.argv[0] = "evolvent"
    runpy.run_module("evolvent", run_name="__main__")
