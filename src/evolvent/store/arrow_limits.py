"""Arrow files and streams are measured by their messages before a batch is unpacked, and validated before it is read.

A stream expands in four ways: its buffers are compressed, a column of nulls has a length and no bytes, texts stand in a
dictionary or a run that many rows share, and views of texts overlap. The first two are in the message of a batch, whose
flatbuffer is read here: the number of rows, the length of every column, and the size that each buffer unpacks to. The
others are measured in the batch, before its rows are written out as Python objects.

Format: https://arrow.apache.org/docs/format/Columnar.html (encapsulated messages; `Message.fbs`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from evolvent.errors import ConfigError
from evolvent.store import parquet_limits as limits

__all__ = ["check_arrow", "iterate_arrow"]

_MAGIC, _MAGIC_BYTES = b"ARROW1", 8  # of a file, before the same messages as in a stream
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages
_BATCH_BYTES, _BATCH_ROWS = 2**27, 1024  # of the rows that are written out at once


def check_arrow(path: Path) -> None:
    """Checks what the batches of an Arrow file or stream unpack to, without unpacking one.

    Raises:
        LimitExceeded: more rows or bytes than allowed. pyarrow.ArrowException, OSError: it cannot be read.
    """
    with pa.memory_map(str(path)) as source:
        _seek_messages(source)
        _check_messages(source, path)


def iterate_arrow(path: Path) -> Iterator[pa.RecordBatch]:
    """Yields the rows of an Arrow file or stream in batches that fit into memory, measured and validated.

    Raises:
        LimitExceeded: it would expand to too much. pyarrow.ArrowException, OSError: it cannot be read.
    """
    with pa.memory_map(str(path)) as source:
        _seek_messages(source)
        start = source.tell()
        _check_messages(source, path)
        source.seek(start)
        size, total = source.size(), 0
        for batch in pa.ipc.open_stream(source):
            batch.validate(full=True)  # of a damaged batch, offsets may point anywhere
            num_bytes = sum(_measure_column(column, path) for column in batch.columns)
            total += num_bytes
            limits.check_expansion(path, "bytes", total, max(limits.MIN_LIMIT, limits.MAX_RATIO * size))
            at_once = max(1, min(_BATCH_ROWS, batch.num_rows * _BATCH_BYTES // max(1, num_bytes)))
            for first in range(0, batch.num_rows, at_once):
                yield batch.slice(first, at_once)


def _seek_messages(source: pa.NativeFile) -> None:
    """Goes to the first message. A file holds a stream behind its magic; its index of batches is not used."""
    source.seek(0)
    is_file = source.read(len(_MAGIC)) == _MAGIC
    source.seek(_MAGIC_BYTES if is_file else 0)


def _check_messages(source: pa.NativeFile, path: Path) -> None:
    size = source.size()
    rows, total = 0, 0
    for message in pa.ipc.MessageReader.open_stream(source):
        try:
            num_rows, num_bytes = _measure_message(message)
        except (struct.error, IndexError) as error:
            raise pa.ArrowInvalid("a message is damaged") from error
        rows, total = rows + num_rows, total + num_bytes
        limits.check_expansion(path, "rows", rows, max(limits.MIN_ROWS, size))
        limits.check_expansion(path, "bytes in one batch", num_bytes, max(limits.MAX_CHUNK, size))
        limits.check_expansion(path, "bytes", total, max(limits.MIN_LIMIT, limits.MAX_RATIO * size))


def _measure_message(message: pa.ipc.Message) -> tuple[int, int]:
    """Returns the rows of a message, and the bytes that it unpacks to; at least one for every value of its columns."""
    table = message.metadata.to_pybytes()
    fields = _read_table(table, _follow(table, 0))
    kind = table[fields[1]] if 1 in fields else 0
    if kind not in (_DICTIONARY, _BATCH):
        return 0, 0
    fields = _read_table(table, _follow(table, fields[2]))
    if kind == _DICTIONARY:
        fields = _read_table(table, _follow(table, fields[1]))
    num_rows = _unpack("<q", table, fields[0]) if 0 in fields else 0
    num_values = sum(length for length, _ in _read_pairs(table, fields, 1))
    buffers = _read_pairs(table, fields, 2)
    if 3 not in fields:
        num_bytes = sum(length for _, length in buffers)
    else:
        body = message.body
        num_bytes = sum(_unpacked_size(body, offset, length) for offset, length in buffers)
    if num_rows < 0 or num_values < 0 or num_bytes < 0:
        raise pa.ArrowInvalid("a message has a negative size")
    return (num_rows if kind == _BATCH else 0), max(num_values, num_bytes)


def _unpacked_size(body: pa.Buffer, offset: int, length: int) -> int:
    """Returns the size that a compressed buffer names in its first eight bytes; -1 there: it is stored as it is."""
    if length == 0:
        return 0
    if offset < 0 or length < 8 or offset + length > body.size:
        raise pa.ArrowInvalid("a buffer lies outside of its message")
    size = _unpack("<q", body.slice(offset, 8).to_pybytes(), 0)
    return length - 8 if size == -1 else size


def _unpack(form: str, table: bytes, position: int) -> int:
    if position < 0:
        raise IndexError(position)
    return int(struct.unpack_from(form, table, position)[0])


def _follow(table: bytes, position: int) -> int:
    return position + _unpack("<I", table, position)


def _read_table(table: bytes, position: int) -> dict[int, int]:
    """Returns the positions of the fields that a flatbuffer's table has, by their numbers."""
    vtable = position - _unpack("<i", table, position)
    num_fields = (_unpack("<H", table, vtable) - 4) // 2
    offsets = [_unpack("<H", table, vtable + 4 + 2 * number) for number in range(num_fields)]
    return {number: position + offset for number, offset in enumerate(offsets) if offset}


def _read_pairs(table: bytes, fields: dict[int, int], number: int) -> list[tuple[int, int]]:
    """Returns a vector of pairs of 64-bit integers: (length, nulls) of columns, or (offset, length) of buffers."""
    if number not in fields:
        return []
    vector = _follow(table, fields[number])
    count = _unpack("<I", table, vector)
    if count * 16 > len(table):
        raise IndexError(count)
    numbers = struct.unpack_from(f"<{2 * count}q", table, vector + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _measure_column(array: pa.Array, path: Path) -> int:
    """Returns the bytes of the values of a column once each row has its own."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _measure_column(array.storage, path)
    if pa.types.is_struct(kind):
        return sum(_measure_column(part, path) for part in array.flatten())
    if pa.types.is_map(kind):
        return _measure_column(array.keys, path) + _measure_column(array.items, path)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _measure_column(array.flatten(), path)
    if pa.types.is_dictionary(kind):
        sizes = _value_sizes(array.dictionary, path)
        used = array.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(sizes[used].sum()) if len(used) else 0
    if pa.types.is_run_end_encoded(kind):
        lengths = np.diff(array.run_ends.to_numpy(zero_copy_only=False).astype(np.int64), prepend=0)
        return int((_value_sizes(array.values, path) * lengths).sum())
    return int(_value_sizes(array, path).sum())


def _value_sizes(array: pa.Array, path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the bytes of every value of a column without parts.

    Raises:
        ConfigError: a type that is not read.
    """
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)[::4]
        return views[array.offset : array.offset + len(array)].astype(np.int64)
    if isinstance(array, pa.DictionaryArray) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise ConfigError(f"{path} has a column that is not read", value=str(kind), expected="plain types")
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_nested(kind):  # a value of a dictionary: the whole of it, for each
        return np.full(len(array), max(1, array.nbytes), np.int64)
    return np.full(len(array), max(1, array.nbytes // max(1, len(array))), np.int64)
