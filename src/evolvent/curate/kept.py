"""Shards that were made before: rows under a fingerprint of all that they depend on, with what was counted on the way.

The summary is written last and holds the hash of the rows: where it is and fits, the shard is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.curate.shards import Row, write_rows
from evolvent.files import plain_json, write_atomic
from evolvent.trajectory import canonical_json

__all__ = ["Made", "Summary", "joined", "keep", "kept", "place"]

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Made:
    """What a shard has become.

    Args:
        rows: in order. counts: what happened, by name. told: sentences for people.
        final: whether it may be kept; else it is made again next time.
    """

    rows: Sequence[Row]
    counts: Mapping[str, int]
    told: Sequence[str] = ()
    final: bool = True


@dataclass(frozen=True, slots=True)
class Summary:
    """What was counted when a shard was made, and what was said about it."""

    counts: Mapping[str, int]
    told: tuple[str, ...]


def place(cache: Path, inputs: Sequence[Any]) -> Path:
    """The file of the rows that follow from these inputs (JSON values)."""
    return cache / f"{hashlib.sha256(canonical_json([_FORMAT, *inputs]).encode()).hexdigest()}.jsonl"


def keep(file: Path, made: Made) -> Summary:
    """Write the rows of a shard, and its summary where it is final.

    Raises:
        SampleInvalid: rows that are no JSON. NoSpace, StoreUnavailable: see `files.atomic_writer`.
    """
    _, digest = write_rows(file, made.rows)
    if made.final:
        row = {"counts": dict(made.counts), "told": list(made.told), "sha256": digest}
        write_atomic(file.with_suffix(".json"), plain_json(row) + "\n")
    return Summary(dict(made.counts), tuple(made.told))


def kept(file: Path) -> Summary | None:
    """The summary of a shard that is there as it was written; None where it has to be made."""
    try:
        row = json.loads(file.with_suffix(".json").read_bytes())
        with file.open("rb") as rows:
            whole = hashlib.file_digest(rows, "sha256").hexdigest() == row["sha256"]
        return Summary(dict(row["counts"]), tuple(row["told"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):  # absent, cut off, or of another format
        return None


def joined(files: Iterable[Path]) -> Iterator[Row]:
    """The rows of several files, one after another."""
    for file in files:
        with file.open("rb") as lines:
            yield from map(json.loads, lines)
