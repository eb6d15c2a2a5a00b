"""Stages of data processing: rows in, rows out, cached shard by shard under a fingerprint of everything they
depend on.

A stage is pure: its result for a row depends on the row, its position and the stage's parameters, never on
other rows. Therefore any worker can process a shard, a killed run continues at its shard, pipelines with the
same first stages share them, and N workers give the same bytes as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from evolvent.curate.kept import ShardResult, ShardSummary, cache_path, read_rows, read_summary, write_shard
from evolvent.curate.shards import Row, Shard, read_shard, row_to_line, write_rows
from evolvent.errors import ConfigError, NothingToLearn, SampleInvalid
from evolvent.trajectory import JsonObject

__all__ = ["DataStage", "TransformReport", "apply_stages", "shard_cache_path", "transform"]

_REFUSED = "refused: "  # before a reason, among the counts of a shard
_MAX_MESSAGES = 20  # rows of a shard whose refusal is kept word by word


class DataStage(Protocol):
    """One step of a pipeline. Equal name, version and parameters must mean equal results."""

    @property
    def name(self) -> str:
        """Returns the name of the stage in fingerprints."""
        ...

    @property
    def version(self) -> int:
        """Returns the version, which must change whenever the results of the stage change."""
        ...

    def parameters(self) -> JsonObject:
        """Returns everything that the results depend on (JSON values)."""
        ...

    def __call__(self, row: Row) -> Sequence[Row]:
        """Transforms a row into one row, none, or several.

        Raises:
            SampleInvalid: the row cannot be used; it is counted, and the others go on.
        """
        ...


@dataclass(frozen=True)
class TransformReport:
    """The result of running stages over shards.

    Args:
        read, rows: Number of rows that came in and went out.
        refused: Reason -> number of rows.
        messages: Messages about the first refused rows.
        reused: Number of shards from the cache.
        shards: Number of all shards.
        sha256: Digest of the result.
    """

    read: int
    rows: int
    refused: Mapping[str, int]
    messages: tuple[str, ...]
    reused: int
    shards: int
    sha256: str


def apply_stages(stages: Sequence[DataStage], rows: Iterable[Row]) -> Iterator[Row]:
    """Yields rows transformed by stages, lazily; a row that a stage refuses is left out."""
    for row in rows:
        try:
            yield from _apply_to_row(stages, row)
        except SampleInvalid:
            continue


def _apply_to_row(stages: Sequence[DataStage], row: Row) -> list[Row]:
    rows = [row]
    for stage in stages:
        rows = [result_row for current_row in rows for result_row in stage(current_row)]
    return rows


def shard_cache_path(stages: Sequence[DataStage], shard: Shard, cache: Path) -> Path:
    """Returns the cache path of a shard: a digest of the shard and of name, version and parameters of every stage."""
    stage_keys = [[stage.name, stage.version, dict(stage.parameters())] for stage in stages]
    return cache_path(cache, [stage_keys, shard.digest, shard.first])


def transform(
    shards: Sequence[Shard],
    stages: Sequence[DataStage],
    output: Path,
    *,
    cache: Path,
    workers: int = 1,
    may_be_empty: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> TransformReport:
    """Runs stages over shards and writes the resulting rows in the order of the shards.

    Args:
        shards: Shards of the data.
        stages: Stages in order.
        output: A `.jsonl` or `.parquet` file; it appears complete or not at all.
        cache: Folder of finished shards.
        workers: Number of processes; they must be able to import the stages.
        may_be_empty: Whether a result without rows is allowed.
        progress: Called after each shard with the number of finished shards and of all shards.
    Raises:
        NothingToLearn: rows came in and none went out. ConfigError: no workers. Other errors of a stage than
            SampleInvalid.
    """
    if workers < 1:
        raise ConfigError("number of workers out of range", value=workers, expected="at least 1")
    files = [shard_cache_path(stages, shard, cache) for shard in shards]
    summaries = [read_summary(file) for file in files]
    missing = [index for index, summary in enumerate(summaries) if summary is None]
    for number, (index, summary) in enumerate(
        _process_missing(shards, stages, files, missing=missing, workers=workers), 1
    ):
        summaries[index] = summary
        progress(len(shards) - len(missing) + number, len(shards))
    counts: Counter[str] = Counter()
    messages: list[str] = []
    for shard_summary in filter(None, summaries):
        counts.update(shard_summary.counts)
        messages += shard_summary.messages
    refused = {name.removeprefix(_REFUSED): count for name, count in counts.items() if name.startswith(_REFUSED)}
    if counts["read"] and not counts["rows"] and not may_be_empty:
        raise NothingToLearn("no row is left", value=refused, expected="stages that keep at least one row")
    _, sha256 = write_rows(output, read_rows(files))
    return TransformReport(
        counts["read"],
        counts["rows"],
        refused,
        tuple(messages[:_MAX_MESSAGES]),
        len(shards) - len(missing),
        len(shards),
        sha256,
    )


def _process_missing(
    shards: Sequence[Shard], stages: Sequence[DataStage], files: Sequence[Path], *, missing: Sequence[int], workers: int
) -> Iterator[tuple[int, ShardSummary]]:
    """Processes the missing shards; yields the index and the summary of each shard, in order."""
    if workers == 1 or len(missing) < 2:
        yield from ((index, _process_shard(shards[index], stages, files[index])) for index in missing)
        return
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")))
        stack.callback(pool.shutdown, cancel_futures=True)
        futures = [pool.submit(_process_shard, shards[index], stages, files[index]) for index in missing]
        yield from ((index, future.result()) for index, future in zip(missing, futures, strict=True))


def _process_shard(shard: Shard, stages: Sequence[DataStage], file: Path) -> ShardSummary:
    """Runs the stages over one shard and caches the result."""
    counts: Counter[str] = Counter({"read": shard.count})
    messages: list[str] = []
    result_rows: list[Row] = []
    for row_number, row in read_shard(shard):
        try:
            if isinstance(row, SampleInvalid):
                raise row
            stage_rows = _apply_to_row(stages, row)
            for stage_row in stage_rows:
                row_to_line(stage_row)
            result_rows += stage_rows
        except SampleInvalid as error:
            counts[_REFUSED + error.what] += 1
            if len(messages) < _MAX_MESSAGES:
                messages.append(f"{shard.path.name}, row {row_number}: {error}")
    counts["rows"] = len(result_rows)
    return write_shard(file, ShardResult(result_rows, counts, messages))
