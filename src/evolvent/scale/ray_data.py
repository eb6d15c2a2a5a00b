"""Stages of data on a cluster: a shard is a task, and N workers give the bytes of one.

What a task has made comes back as the bytes of a finished shard, and this process keeps it under its fingerprint, so
that a killed run goes on at the shard where it was, on the cluster or without it. The data has to lie under the same
path on every node. Stages are frozen dataclasses of installed modules; they travel by Ray's own serialisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evolvent.curate.kept import kept
from evolvent.curate.shards import Shard
from evolvent.curate.stages import Done, Stage, file_of, transform
from evolvent.deadline import Deadline
from evolvent.errors import EndpointError, EngineError, EvolventError, boundary
from evolvent.files import write_atomic
from evolvent.scale.ray_cluster import Placing, room
from evolvent.scale.ray_players import error_of
from evolvent.scale.ray_versions import check_versions, versions

__all__ = ["made_shard", "transform_on"]


def made_shard(
    row: Mapping[str, Any], stages: Sequence[Stage], versions: Mapping[str, str]
) -> tuple[bytes, bytes, tuple[str, str] | None]:
    """The task: the bytes of a finished shard and of its summary, or the kind and text of an error.

    Args:
        versions: of the run; where there are others here, the error says so.
    """
    shard = Shard(**{**row, "path": Path(row["path"])})
    try:
        check_versions(versions)
        with boundary(EngineError, "a stage failed"), TemporaryDirectory(prefix="evolvent-") as made:
            cache = Path(made)
            transform([shard], stages, cache / "rows.jsonl", cache=cache, may_be_empty=True)
            file = file_of(stages, shard, cache)
            return file.read_bytes(), file.with_suffix(".json").read_bytes(), None
    except EvolventError as error:
        return b"", b"", (type(error).__name__, str(error))


_AHEAD = 2  # tasks of a place: one that runs, one that waits
_RETRIES = 3  # times that Ray does a shard again whose worker or node was lost


def transform_on(
    shards: Sequence[Shard],
    stages: Sequence[Stage],
    to: Path,
    *,
    ray: Any,
    cache: Path,
    placing: Placing | None = None,
    may_be_empty: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Done:
    """`curate.stages.transform` with the shards that are missing made on a cluster; the same file, byte for byte.

    Args:
        ray: Ray's module, connected (`ray_cluster.connected`).
        placing: what a task takes of its node; `players` tasks at once, and as long a wait, as for players.
    Raises:
        NothingToLearn, ConfigError: see `transform`. EndpointError: the cluster is gone, or it lost a shard four times.
        VersionMismatch: a node has other packages than this process.
    """
    placing = placing or Placing()
    files = [file_of(stages, shard, cache) for shard in shards]
    missing = [at for at, file in enumerate(files) if kept(file) is None]
    places = placing.players or (room(ray, placing) if missing else 1)
    tasks = ((at, shards[at]) for at in missing)
    for number, (at, found) in enumerate(_made(ray, tasks, stages, placing=placing, at_once=_AHEAD * places), 1):
        rows, summary = found
        write_atomic(files[at], rows)
        write_atomic(files[at].with_suffix(".json"), summary)  # last: where it is and fits, the shard is whole
        progress(len(shards) - len(missing) + number, len(shards))
    done = transform(shards, stages, to, cache=cache, may_be_empty=may_be_empty)
    return replace(done, reused=done.reused - len(missing))


def _made(
    ray: Any, tasks: Iterator[tuple[int, Shard]], stages: Sequence[Stage], *, placing: Placing, at_once: int
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """What the tasks have made, as they end."""
    needs = {"num_cpus": placing.cpus, "num_gpus": placing.gpus, "resources": dict(placing.resources)}
    task = ray.remote(made_shard).options(**needs, max_retries=_RETRIES, scheduling_strategy="SPREAD")
    own, waiting = versions(), dict[Any, int]()
    silence = Deadline(placing.silent_s)
    try:
        while True:
            for at, shard in islice(tasks, at_once - len(waiting)):
                waiting[task.remote({**asdict(shard), "path": str(shard.path)}, tuple(stages), own)] = at
            if not waiting:
                return
            found, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
            for one in found:
                silence = Deadline(placing.silent_s)
                yield waiting.pop(one), _told(ray, one)
            if silence.expired:
                raise EndpointError("no shard has come back from the Ray cluster", value=f"for {placing.silent_s:g} s")
    finally:
        for one in waiting:
            ray.cancel(one, force=True)


def _told(ray: Any, task: Any) -> tuple[bytes, bytes]:
    """The rows and the summary of a shard."""
    lost = ray.exceptions
    try:
        rows, summary, error = ray.get(task)
    except lost.RayTaskError as problem:
        raise EngineError("a stage failed on the Ray cluster", value=str(problem)[-400:]) from problem
    except lost.RayError as problem:
        raise EndpointError("the Ray cluster lost a shard again and again", value=str(problem)[:200]) from problem
    if error is not None:
        raise error_of(*error)
    return rows, summary
