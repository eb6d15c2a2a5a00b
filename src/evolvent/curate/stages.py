"""Stages of data: rows in, rows out, kept shard by shard under a fingerprint of everything they depend on.

A stage is pure: what it makes of a row depends on the row, its place and the stage's own parameters, never on other
rows. Therefore a shard is done by whoever is free, a killed run goes on at the shard where it was, pipelines that begin
alike share what they have in common, and N workers give the bytes of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

from evolvent.curate.kept import Made, Summary, joined, keep, kept, place
from evolvent.curate.shards import Row, Shard, line_of, read_shard, write_rows
from evolvent.errors import ConfigError, NothingToLearn, SampleInvalid

__all__ = ["Done", "Stage", "applied", "file_of", "transform"]

_REFUSED = "refused: "  # before a reason, among the counts of a shard
_TOLD = 20  # rows of a shard whose refusal is kept word by word


class Stage(Protocol):
    """One step of a pipeline. Equal name, version and parameters have to mean equal results."""

    @property
    def name(self) -> str:
        """How it is known in fingerprints."""
        ...

    @property
    def version(self) -> int:
        """Goes up whenever its results change."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """Everything its results depend on (JSON values)."""
        ...

    def __call__(self, row: Row) -> Sequence[Row]:
        """What becomes of a row: one row, none, or several.

        Raises:
            SampleInvalid: the row cannot be used; it is counted, and the others go on.
        """
        ...


@dataclass(frozen=True)
class Done:
    """What a run of stages has made.

    Args:
        rows: how many rows came in and went out.
        refused: reason -> how many rows.
        told: the first refused rows, word by word.
        reused: shards that were found, not made.
        shards: all of them.
        sha256: of the result.
    """

    read: int
    rows: int
    refused: Mapping[str, int]
    told: tuple[str, ...]
    reused: int
    shards: int
    sha256: str


def applied(stages: Sequence[Stage], rows: Iterable[Row]) -> Iterator[Row]:
    """Rows through stages, lazily, whatever they come from; a row that a stage refuses is left out."""
    for row in rows:
        try:
            yield from _through(stages, row)
        except SampleInvalid:
            continue


def _through(stages: Sequence[Stage], row: Row) -> list[Row]:
    rows = [row]
    for stage in stages:
        rows = [made for one in rows for made in stage(one)]
    return rows


def file_of(stages: Sequence[Stage], shard: Shard, cache: Path) -> Path:
    """Where a shard is kept: a digest of its own one and of name, version and parameters of every stage, in order."""
    own = [[stage.name, stage.version, dict(stage.parameters())] for stage in stages]
    return place(cache, [own, shard.digest, shard.first])


def transform(
    shards: Sequence[Shard],
    stages: Sequence[Stage],
    to: Path,
    *,
    cache: Path,
    workers: int = 1,
    may_be_empty: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Done:
    """Run stages over shards and write what comes out, in the order of the shards.

    Args:
        to: a `.jsonl` or `.parquet` file; it appears whole or not at all.
        cache: where finished shards are kept.
        workers: processes; stages have to be importable by them.
        progress: told after each shard how many of how many are done.
    Raises:
        NothingToLearn: rows came in and none went out. ConfigError: no workers. What a stage raises but SampleInvalid.
    """
    if workers < 1:
        raise ConfigError("workers", value=workers, expected="at least 1")
    files = [file_of(stages, shard, cache) for shard in shards]
    found = [kept(file) for file in files]
    missing = [at for at, summary in enumerate(found) if summary is None]
    for number, (at, summary) in enumerate(_made(shards, stages, files, missing=missing, workers=workers), 1):
        found[at] = summary
        progress(len(shards) - len(missing) + number, len(shards))
    counts: Counter[str] = Counter()
    told: list[str] = []
    for one in filter(None, found):
        counts.update(one.counts)
        told += one.told
    refused = {name.removeprefix(_REFUSED): count for name, count in counts.items() if name.startswith(_REFUSED)}
    if counts["read"] and not counts["rows"] and not may_be_empty:
        raise NothingToLearn("no row is left", value=refused, expected="stages that leave some")
    _, sha256 = write_rows(to, joined(files))
    return Done(
        counts["read"], counts["rows"], refused, tuple(told[:_TOLD]), len(shards) - len(missing), len(shards), sha256
    )


def _made(
    shards: Sequence[Shard], stages: Sequence[Stage], files: Sequence[Path], *, missing: Sequence[int], workers: int
) -> Iterator[tuple[int, Summary]]:
    """Make what is missing; yields the place and the summary of each shard, in order."""
    if workers == 1 or len(missing) < 2:
        yield from ((at, _make(shards[at], stages, files[at])) for at in missing)
        return
    with ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")))
        stack.callback(pool.shutdown, cancel_futures=True)
        todo = [pool.submit(_make, shards[at], stages, files[at]) for at in missing]
        yield from ((at, one.result()) for at, one in zip(missing, todo, strict=True))


def _make(shard: Shard, stages: Sequence[Stage], file: Path) -> Summary:
    """Do one shard, and keep it."""
    counts: Counter[str] = Counter({"read": shard.count})
    told: list[str] = []
    made: list[Row] = []
    for at, row in read_shard(shard):
        try:
            if isinstance(row, SampleInvalid):
                raise row
            found = _through(stages, row)
            for one in found:
                line_of(one)
            made += found
        except SampleInvalid as error:
            counts[_REFUSED + error.what] += 1
            if len(told) < _TOLD:
                told.append(f"{shard.path.name}, row {at}: {error}")
    counts["rows"] = len(made)
    return keep(file, Made(made, counts, told))
