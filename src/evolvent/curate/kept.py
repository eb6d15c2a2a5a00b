"""Cache of finished shards: rows under a fingerprint of everything they depend on, with counts.

The summary is written last and holds the hash of the rows: a shard is complete where its summary exists and
matches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evolvent.curate.shards import Row, write_rows
from evolvent.files import plain_json, write_atomic
from evolvent.trajectory import canonical_json

__all__ = ["ShardResult", "ShardSummary", "cache_path", "read_rows", "read_summary", "write_shard"]

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of processing a shard.

    Args:
        rows: Rows in order.
        counts: Event -> number of rows.
        messages: Sentences for people.
        final: Whether the result may be cached; otherwise it is recomputed next time.
    """

    rows: Sequence[Row]
    counts: Mapping[str, int]
    messages: Sequence[str] = ()
    final: bool = True


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """Counts and messages of a finished shard."""

    counts: Mapping[str, int]
    messages: tuple[str, ...]


def cache_path(cache: Path, inputs: Sequence[object]) -> Path:
    """Returns the file of the rows that follow from these inputs (JSON values)."""
    return cache / f"{hashlib.sha256(canonical_json([_FORMAT, *inputs]).encode()).hexdigest()}.jsonl"


def write_shard(file: Path, result: ShardResult) -> ShardSummary:
    """Writes the rows of a shard, and its summary where it is final.

    Raises:
        SampleInvalid: rows that are no JSON. NoSpace, StoreUnavailable: see `files.atomic_writer`.
    """
    _, digest = write_rows(file, result.rows)
    if result.final:
        row = {"counts": dict(result.counts), "told": list(result.messages), "sha256": digest}
        write_atomic(file.with_suffix(".json"), plain_json(row) + "\n")
    return ShardSummary(dict(result.counts), tuple(result.messages))


def read_summary(file: Path) -> ShardSummary | None:
    """Returns the summary of a shard whose rows are as they were written; None where it must be recomputed."""
    try:
        row = json.loads(file.with_suffix(".json").read_bytes())
        with file.open("rb") as rows:
            is_complete = hashlib.file_digest(rows, "sha256").hexdigest() == row["sha256"]
        return ShardSummary(dict(row["counts"]), tuple(row["told"])) if is_complete else None
    except (OSError, ValueError, KeyError, TypeError):  # absent, cut off, or of another format
        return None


def read_rows(files: Iterable[Path]) -> Iterator[Row]:
    """Yields the rows of several files, one after another."""
    for file in files:
        with file.open("rb") as stream:
            yield from map(json.loads, stream)
