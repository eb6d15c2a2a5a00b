"""Stages of data on a cluster: a shard is a task, and N workers give the same bytes as one.

The result of a task returns as the bytes of a finished shard, and this process caches it under its fingerprint,
so that a killed run continues at its shard, on the cluster or without it. The data must have the same path on
every node. Stages are frozen dataclasses of installed modules; Ray serializes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from evolvent.curate.kept import read_summary
from evolvent.curate.shards import Shard
from evolvent.curate.stages import DataStage, TransformReport, shard_cache_path, transform
from evolvent.deadline import Deadline
from evolvent.errors import EndpointError, EngineError, EvolventError, boundary
from evolvent.files import write_atomic
from evolvent.scale.ray_cluster import Placement, count_player_slots
from evolvent.scale.ray_players import make_error
from evolvent.scale.ray_versions import check_versions, read_versions
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["process_shard", "transform_on_cluster"]


def process_shard(
    row: JsonObject, stages: Sequence[DataStage], versions: Mapping[str, str]
) -> tuple[bytes, bytes, tuple[str, str] | None]:
    """Runs the task: returns the bytes of a finished shard and of its summary, or the kind and text of an error.

    Args:
        versions: of the run; where there are others here, the error says so.
    """
    shard = Shard(**{**row, "path": Path(row["path"])})
    try:
        check_versions(versions)
        with boundary(EngineError, "a stage failed"), TemporaryDirectory(prefix="evolvent-") as folder:
            cache = Path(folder)
            transform([shard], stages, cache / "rows.jsonl", cache=cache, may_be_empty=True)
            file = shard_cache_path(stages, shard, cache)
            return file.read_bytes(), file.with_suffix(".json").read_bytes(), None
    except EvolventError as error:
        return b"", b"", (type(error).__name__, str(error))


_AHEAD = 2  # tasks of a place: one that runs, one that waits
_RETRIES = 3  # times that Ray does a shard again whose worker or node was lost


def transform_on_cluster(
    shards: Sequence[Shard],
    stages: Sequence[DataStage],
    output: Path,
    *,
    ray: ModuleType,
    cache: Path,
    placement: Placement | None = None,
    may_be_empty: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> TransformReport:
    """Runs `curate.stages.transform` with the missing shards made on a cluster; the file is the same, byte for
    byte.

    Args:
        shards: Shards of the data.
        stages: Stages in order.
        output: A `.jsonl` or `.parquet` file; it appears complete or not at all.
        ray: Ray's module, connected (`ray_cluster.connect`).
        cache: Folder of finished shards.
        placement: Resources of a task; `players` tasks run at once, and the waiting times are those of players.
        may_be_empty: Whether a result without rows is allowed.
        progress: Called after each shard with the number of finished shards and of all shards.
    Raises:
        NothingToLearn, ConfigError: see `transform`. EndpointError: the cluster is gone, or it lost a shard four
            times.
        VersionMismatch: a node has other packages than this process.
    """
    placement = placement or Placement()
    files = [shard_cache_path(stages, shard, cache) for shard in shards]
    missing = [index for index, file in enumerate(files) if read_summary(file) is None]
    num_workers = placement.players or (count_player_slots(ray, placement) if missing else 1)
    tasks = ((index, shards[index]) for index in missing)
    for number, (index, shard_files) in enumerate(
        _run_tasks(ray, tasks, stages, placement=placement, max_pending=_AHEAD * num_workers), 1
    ):
        rows, summary = shard_files
        write_atomic(files[index], rows)
        write_atomic(files[index].with_suffix(".json"), summary)  # last: where it is and fits, the shard is whole
        progress(len(shards) - len(missing) + number, len(shards))
    report = transform(shards, stages, output, cache=cache, may_be_empty=may_be_empty)
    return replace(report, reused=report.reused - len(missing))


def _run_tasks(
    ray: Any, tasks: Iterator[tuple[int, Shard]], stages: Sequence[DataStage], *, placement: Placement, max_pending: int
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yields the results of the tasks, as they end."""
    needs = {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "resources": dict(placement.resources)}
    task = ray.remote(process_shard).options(**needs, max_retries=_RETRIES, scheduling_strategy="SPREAD")
    local_versions, pending = read_versions(), dict[Any, int]()
    silence_deadline = Deadline(placement.silent_s)
    try:
        while True:
            for index, shard in islice(tasks, max_pending - len(pending)):
                pending[task.remote({**asdict(shard), "path": str(shard.path)}, tuple(stages), local_versions)] = index
            if not pending:
                return
            finished_refs, _ = ray.wait(list(pending), num_returns=1, timeout=1.0)
            for task_ref in finished_refs:
                silence_deadline = Deadline(placement.silent_s)
                yield pending.pop(task_ref), _get_result(ray, task_ref)
            if silence_deadline.expired:
                raise EndpointError("the Ray cluster has not returned a shard", value=f"for {placement.silent_s:g} s")
    finally:
        for task_ref in pending:
            ray.cancel(task_ref, force=True)


def _get_result(ray: Any, task: Any) -> tuple[bytes, bytes]:
    """Returns the rows and the summary of a shard."""
    ray_errors = ray.exceptions
    try:
        rows, summary, error = ray.get(task)
    except ray_errors.RayTaskError as problem:
        raise EngineError("a stage failed on the Ray cluster", value=str(problem)[-400:]) from problem
    except ray_errors.RayError as problem:
        raise EndpointError("the Ray cluster lost a shard repeatedly", value=str(problem)[:200]) from problem
    if error is not None:
        raise make_error(*error)
    return rows, summary
