"""Arrays in files: appended in constant memory, memory-mapped for reading, every block verified before its first
use.

Rows are little-endian, one after the other. An array whose rows are all equal needs no file. A block is a
mebibyte; its SHA-256 is stored, so that opening a file does not read all of it and damage is found before
training on it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evolvent.errors import BatchMismatch, HashMismatch, Incomplete
from evolvent.files import disk_errors

__all__ = ["BLOCK", "DIGEST", "ArrayReader", "ArrayWriter", "Layout"]

BLOCK = 1 << 20
DIGEST = 32  # bytes of a SHA-256


@dataclass(frozen=True, slots=True)
class Layout:
    """The manifest entry of an array: type, number of rows, shape of a row, and the row (as hex) where all are
    equal.
    """

    dtype: str
    rows: int
    row: tuple[int, ...] = ()
    constant: str | None = None

    @property
    def width(self) -> int:
        """Returns the bytes of a row."""
        return np.dtype(self.dtype).itemsize * prod(self.row)

    @property
    def size(self) -> int:
        """Returns the bytes of the file."""
        return 0 if self.constant is not None else self.rows * self.width

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of the file."""
        return -(-self.size // BLOCK)


class ArrayWriter:
    """Appends rows to a file, which is created when two rows differ.

    Args:
        path: must not exist yet.
        dtype: numbers or booleans.
        row: shape of a row.
    Raises:
        BatchMismatch: another type, or rows without numbers.
    """

    def __init__(self, path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._path, self._dtype, self._row = path, np.dtype(dtype).newbyteorder("<"), row
        if self._dtype.kind not in "biuf" or not all(row):
            raise BatchMismatch(f"{path.stem} holds no numbers", value=f"{self._dtype} {row}", expected="numbers")
        self._rows, self._constant = 0, b""
        self._file: BinaryIO | None = None
        self._digests: list[bytes] = []
        self._block, self._filled = hashlib.sha256(), 0

    def add(self, rows: NDArray[Any]) -> None:
        """Appends rows `[n, *row]`.

        Raises:
            BatchMismatch: the rows have another shape or type.
            NoSpace, StoreUnavailable: they cannot be written.
        """
        if rows.shape[1:] != self._row or rows.dtype.newbyteorder("<") != self._dtype:
            raise BatchMismatch(
                f"rows of {self._path.stem} differ from those before",
                value=f"{rows.dtype} {rows.shape[1:]}",
                expected=f"{self._dtype} {self._row}",
            )
        if not len(rows):
            return
        data = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).reshape(len(rows), -1)
        if self._file is None:
            self._constant = self._constant or data[0].tobytes()
            if (data == np.frombuffer(self._constant, np.uint8)).all():
                self._rows += len(rows)
                return
            self._create_file()
        self._write(data.data.cast("B"))
        self._rows += len(rows)

    def _create_file(self) -> None:
        """Creates the file and writes the equal rows so far."""
        with disk_errors(self._path):
            self._file = self._path.open("xb")
        remaining, rows_per_write = self._rows, max(1, BLOCK // len(self._constant))
        while remaining:
            self._write(memoryview(self._constant * min(remaining, rows_per_write)))
            remaining -= min(remaining, rows_per_write)

    def _write(self, data: memoryview) -> None:
        """Writes bytes and updates the digests of blocks."""
        if self._file is None:
            return
        with disk_errors(self._path):
            self._file.write(data)
        while data:
            piece = data[: BLOCK - self._filled]
            self._block.update(piece)
            self._filled += len(piece)
            data = data[len(piece) :]
            if self._filled == BLOCK:
                self._digests.append(self._block.digest())
                self._block, self._filled = hashlib.sha256(), 0

    def finish(self) -> tuple[Layout, bytes]:
        """Writes everything to disk; returns the manifest entry and the digests of the blocks."""
        if self._file is None:
            return Layout(self._dtype.str, self._rows, self._row, self._constant.hex()), b""
        with disk_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
        if self._filled:
            self._digests.append(self._block.digest())
            self._filled = 0
        return Layout(self._dtype.str, self._rows, self._row), b"".join(self._digests)

    def close(self) -> None:
        """Closes the file, whatever is in it."""
        if self._file is not None:
            with disk_errors(self._path):
                self._file.close()


class ArrayReader:
    """Reads rows of a file that an `ArrayWriter` wrote, by their numbers.

    Args:
        digests: of its blocks, one after the other.
    Raises:
        Incomplete: the file is missing.
        HashMismatch: the file has another size.
    """

    def __init__(self, path: Path, layout: Layout, digests: bytes) -> None:
        self._path, self._digests, self._width = path, digests, layout.width
        self._checked = np.zeros(layout.blocks, np.bool_)
        self._constant = layout.constant is not None
        if layout.constant is not None:
            self._bytes = np.frombuffer(bytes.fromhex(layout.constant), np.uint8)
        else:
            self._bytes = self._map_file(layout)
        self._rows = self._bytes.view(layout.dtype).reshape(-1, *layout.row)

    def _map_file(self, layout: Layout) -> NDArray[np.uint8]:
        path = self._path
        with disk_errors(path):
            file_size = path.stat().st_size if path.exists() else None
        if file_size is None:
            raise Incomplete(f"{path} is missing", expected=f"{layout.size} bytes")
        if file_size != layout.size or len(self._digests) != DIGEST * layout.blocks:
            raise HashMismatch(f"{path} is not what was written", value=f"{file_size} bytes", expected=f"{layout.size}")
        with disk_errors(path):
            return np.asarray(np.memmap(path, np.uint8, "r"))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Returns rows `start` to `stop` (exclusive), `[stop - start, *row]`: a read-only view.

        Raises:
            HashMismatch: a block of the file has changed since it was written.
        """
        if self._constant:
            return np.broadcast_to(self._rows[:1], (stop - start, *self._rows.shape[1:]))
        for block in range(start * self._width // BLOCK, -(-stop * self._width // BLOCK)):
            if not self._checked[block]:
                self._check_block(block)
        return self._rows[start:stop]

    def verify(self) -> None:
        """Checks every block now; raises HashMismatch."""
        for block in range(len(self._checked)):
            self._check_block(block)

    def _check_block(self, block: int) -> None:
        data = self._bytes[block * BLOCK : (block + 1) * BLOCK]
        if hashlib.sha256(data.data).digest() != self._digests[block * DIGEST : (block + 1) * DIGEST]:
            raise HashMismatch(
                f"{self._path} is not what was written",
                value=f"bytes {block * BLOCK} to {block * BLOCK + len(data) - 1} changed",
                hint="remove the folder and tokenise again",
            )
        self._checked[block] = True
