"""Parquet files are measured by their metadata before they are read: a kilobyte may hold gigabytes.

A file expands in three ways: its pages are compressed, a value that repeats is stored once with a count, and texts
stand in a dictionary that every row points into. The first two are in the metadata. Dictionaries are not: where they
could expand beyond the limit, they are read without the rows, and the lengths of the rows are added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evolvent.errors import LimitExceeded

__all__ = ["CheckedParquet", "check_expansion", "check_parquet", "open_parquet"]

MIN_LIMIT = 2**30  # bytes that any file may expand to
MAX_RATIO = 1_000  # a larger file may expand to so many times its size
MIN_ROWS = 2**24  # rows that any file may have; a larger file, one for each of its bytes
MAX_CHUNK = 2**30  # bytes of one column of one row group
_BATCH_BYTES, _BATCH_ROWS = 2**27, 1024
_PLAIN = frozenset(("PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"))  # every text is stored by itself
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True, slots=True)
class CheckedParquet:
    """An open file that expands to no more than its limit.

    Attributes:
        batch_rows: the number of rows that fit into memory at once.
    """

    file: pq.ParquetFile
    batch_rows: int

    def iterate_batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows in batches that fit into memory."""
        yield from self.file.iter_batches(batch_size=self.batch_rows, columns=columns)


def open_parquet(path: Path) -> CheckedParquet:
    """Opens a Parquet file after checking what it expands to. Close its `file` when it has been read.

    Raises:
        LimitExceeded: it would expand to too much. pyarrow.ArrowException, OSError: it cannot be read.
    """
    with ExitStack() as closing:
        file = closing.enter_context(pq.ParquetFile(path))
        checked = CheckedParquet(file, check_parquet(file, path))
        closing.pop_all()
    return checked


def check_parquet(file: pq.ParquetFile, path: Path) -> int:
    """Checks what a file expands to; returns the number of rows that may be read at once.

    Raises:
        LimitExceeded: more rows or bytes than allowed.
    """
    metadata, size = file.metadata, path.stat().st_size
    limit = max(MIN_LIMIT, MAX_RATIO * size)
    check_expansion(path, "rows", metadata.num_rows, max(MIN_ROWS, size))
    total, largest = 0, 1
    leaves: dict[int, tuple[str, list[int]]] = {}  # by column: its path, and the row groups whose dictionary may expand
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            num_bytes = max(chunk.total_uncompressed_size, chunk.num_values * _width(file, column))
            check_expansion(path, "bytes in one column", num_bytes, max(MAX_CHUNK, size))
            total += num_bytes
            is_shared = chunk.has_dictionary_page or not _PLAIN.issuperset(chunk.encodings)
            if chunk.physical_type == "BYTE_ARRAY" and is_shared:
                leaves.setdefault(column, (chunk.path_in_schema, []))[1].append(group)
            else:
                largest += max(num_bytes // max(1, metadata.num_rows), 1)
    check_expansion(path, "bytes", total, limit)
    for column, (name, groups) in leaves.items():
        sizes = [metadata.row_group(group).column(column) for group in groups]
        bounds = [chunk.num_values * chunk.total_uncompressed_size for chunk in sizes]
        if sum(bounds) <= limit - total and max(bounds, default=0) <= _BATCH_BYTES:
            continue
        for group in groups:
            expanded, longest = _measure(path, name, group)
            total += expanded
            largest = max(largest, longest)
            check_expansion(path, "bytes", total, limit)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // largest))


def _width(file: pq.ParquetFile, column: int) -> int:
    schema = file.schema.column(column)
    if schema.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return int(schema.length)
    return _WIDTHS.get(schema.physical_type, 0)


def _measure(path: Path, column: str, group: int) -> tuple[int, int]:
    """Adds up the lengths of the texts of a column in a row group, without writing them out; also the longest."""
    with pq.ParquetFile(path, read_dictionary=[column]) as file:
        arrays = file.read_row_group(group, columns=[column]).column(0).chunks
    total, longest = 0, 0
    for array in arrays:
        for leaf in _iterate_leaves(array):
            lengths = _measure_leaf(leaf)
            total += int(pc.sum(lengths).as_py() or 0)
            longest = max(longest, int(pc.max(lengths).as_py() or 0))
    return total, longest


def _iterate_leaves(array: pa.Array) -> Iterator[pa.Array]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from _iterate_leaves(array.storage)
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _iterate_leaves(part)
    elif pa.types.is_map(kind):
        yield from _iterate_leaves(array.keys)
        yield from _iterate_leaves(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _iterate_leaves(array.flatten())
    else:
        yield array


def _measure_leaf(array: pa.Array) -> Any:
    if isinstance(array, pa.DictionaryArray):
        return _as_bytes(array.dictionary).take(array.indices)
    return _as_bytes(array)


def _as_bytes(array: pa.Array) -> Any:
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    if is_text or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return pc.cast(pc.binary_length(array), pa.int64())
    return pa.array([array.nbytes], pa.int64())


def check_expansion(path: Path, noun: str, value: int, limit: int) -> None:
    """Checks a size of what a file expands to.

    Raises:
        LimitExceeded: it is above the limit.
    """
    if value > limit:
        raise LimitExceeded(
            f"{path} expands to too much: {noun}",
            value=f"{value:,}",
            expected=f"at most {limit:,} of a file of this size",
            hint="split the file, or write it with less repetition",
        )
