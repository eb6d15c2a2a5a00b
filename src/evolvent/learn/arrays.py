"""Flat arrays in files: appended in constant memory, mapped when read, every block checked before it is first used.

Little-endian rows, one after the other. An array whose rows are all equal needs no file. A block is a mebibyte; its
SHA-256 is kept, so that opening need not read it all and damage is found before it is learned.
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
    """What a manifest says of an array: type, rows, shape of a row, and the row (as hex) where all are equal."""

    dtype: str
    rows: int
    row: tuple[int, ...] = ()
    constant: str | None = None

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * prod(self.row)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return 0 if self.constant is not None else self.rows * self.width

    @property
    def blocks(self) -> int:
        """Blocks of the file."""
        return -(-self.size // BLOCK)


class ArrayWriter:
    """Appends rows to a file, which is made when two rows differ.

    Args:
        path: where no file is yet. dtype: numbers or truth values. row: shape of a row.
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
        """Append rows `[n, *row]`.

        Raises:
            BatchMismatch: rows of another shape or type. NoSpace, StoreUnavailable: they cannot be written.
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
            self._begin()
        self._write(data.data.cast("B"))
        self._rows += len(rows)

    def _begin(self) -> None:
        """From here on there is a file; it begins with the equal rows so far."""
        with disk_errors(self._path):
            self._file = self._path.open("xb")
        left, most = self._rows, max(1, BLOCK // len(self._constant))
        while left:
            self._write(memoryview(self._constant * min(left, most)))
            left -= min(left, most)

    def _write(self, data: memoryview) -> None:
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
        """Put everything on disk; returns what a manifest must say of it, and the digests of its blocks."""
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
        """Let the file go, whatever is in it."""
        if self._file is not None:
            with disk_errors(self._path):
                self._file.close()


class ArrayReader:
    """Rows of a file that an `ArrayWriter` wrote, by their numbers.

    Args:
        digests: of its blocks, one after the other.
    Raises:
        Incomplete: no file. HashMismatch: a file of another size.
    """

    def __init__(self, path: Path, layout: Layout, digests: bytes) -> None:
        self._path, self._digests, self._width = path, digests, layout.width
        self._checked = np.zeros(layout.blocks, np.bool_)
        self._constant = layout.constant is not None
        if layout.constant is not None:
            self._bytes = np.frombuffer(bytes.fromhex(layout.constant), np.uint8)
        else:
            self._bytes = self._mapped(layout)
        self._rows = self._bytes.view(layout.dtype).reshape(-1, *layout.row)

    def _mapped(self, layout: Layout) -> NDArray[np.uint8]:
        path = self._path
        with disk_errors(path):
            found = path.stat().st_size if path.exists() else None
        if found is None:
            raise Incomplete(f"{path} is missing", expected=f"{layout.size} bytes")
        if found != layout.size or len(self._digests) != DIGEST * layout.blocks:
            raise HashMismatch(f"{path} is not what was written", value=f"{found} bytes", expected=f"{layout.size}")
        with disk_errors(path):
            return np.asarray(np.memmap(path, np.uint8, "r"))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The rows `start` to `stop` (exclusive), `[stop - start, *row]`: a view that cannot be written to.

        Raises:
            HashMismatch: a block of the file has changed since it was written.
        """
        if self._constant:
            return np.broadcast_to(self._rows[:1], (stop - start, *self._rows.shape[1:]))
        for block in range(start * self._width // BLOCK, -(-stop * self._width // BLOCK)):
            if not self._checked[block]:
                self._check(block)
        return self._rows[start:stop]

    def verify(self) -> None:
        """Check every block now; raises HashMismatch."""
        for block in range(len(self._checked)):
            self._check(block)

    def _check(self, block: int) -> None:
        data = self._bytes[block * BLOCK : (block + 1) * BLOCK]
        if hashlib.sha256(data.data).digest() != self._digests[block * DIGEST : (block + 1) * DIGEST]:
            raise HashMismatch(
                f"{self._path} is not what was written",
                value=f"bytes {block * BLOCK} to {block * BLOCK + len(data) - 1} changed",
                hint="remove the folder and tokenise again",
            )
        self._checked[block] = True
