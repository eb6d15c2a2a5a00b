"""A small SQLite database as the bytes of its file, written without SQL.

Creating tables by statements takes SQLite longer than reading them from a file: three tables with rows .24 ms instead
of .11, where the connection is used again. The file format is published and stable
(https://www.sqlite.org/fileformat2.html): page 1 holds the header and the schema, every table is one leaf page of a
b-tree, and a row is a record of serial types and values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["TableRows", "build_image"]

TableRows = tuple[str, str, Sequence[tuple[object, ...]]]
"""A table: its name, its CREATE TABLE statement, and its rows in ascending order of the integer primary key, which is
their first column.
"""

_PAGE_SIZE = 4096
_HEADER_SIZE, _LEAF_HEADER_SIZE, _POINTER_SIZE = 100, 8, 2
_LEAF_TABLE = 13
_MAX_VARINT_2 = 1 << 14  # numbers below have two bytes at most
_HEADER = struct.Struct(">16sHBBBBBBIIIIIIIIIIII20xII")
_LEAF_HEADER = struct.Struct(">BHHHB")
_SQLITE_VERSION = 3_040_000  # of the library that wrote the file; readers do not depend on it


def build_image(tables: Sequence[TableRows]) -> bytes | None:
    """Returns the bytes of a database of texts and whole numbers; None where something is too large for this form."""
    schema = [
        (number, ("table", name, name, number + 1, create)) for number, (name, create, _) in enumerate(tables, 1)
    ]
    try:
        pages = [_build_page([_build_cell(rowid, b"", row) for rowid, row in schema], _HEADER_SIZE)]
        for _, _, rows in tables:  # the primary key is the row id, and NULL in the record
            pages.append(_build_page([_build_cell(row[0], b"\0", row[1:]) for row in rows], 0))
    except (_TooLargeError, struct.error):
        return None
    changes, cookie, schema_format, utf_8 = 1, 1, 4, 1
    payload_shares, free_pages, cache_sizes, unused = (64, 32, 32), (0, 0), (0, 0), (0, 0, 0)
    schema_fields = (cookie, schema_format, *cache_sizes, utf_8, *unused)
    page_fields = (_PAGE_SIZE, 1, 1, 0, *payload_shares, changes, len(pages), *free_pages)
    header = _HEADER.pack(b"SQLite format 3\0", *page_fields, *schema_fields, changes, _SQLITE_VERSION)
    return b"".join([header, *pages])


class _TooLargeError(Exception):
    """A value or a table that does not fit."""


def _build_page(cells: Sequence[bytes], offset: int) -> bytes:
    """Returns a leaf page of a table without its first `offset` bytes: pointers, free space, and cells from the end."""
    pointers, position = [], _PAGE_SIZE
    for cell in cells:
        position -= len(cell)
        pointers.append(position)
    start = offset + _LEAF_HEADER_SIZE + _POINTER_SIZE * len(cells)
    if position < start:
        raise _TooLargeError
    header = _LEAF_HEADER.pack(_LEAF_TABLE, 0, len(cells), position, 0)
    pointer_array = struct.pack(f">{len(cells)}H", *pointers)
    return b"".join([header, pointer_array, bytes(position - start), *reversed(cells)])


def _build_cell(rowid: object, types: bytes, values: Sequence[object]) -> bytes:
    """Returns a cell: the sizes, the row id, and a record of serial types and values."""
    encoded = list(map(_encode_value, values))
    types += b"".join([value_type for value_type, _ in encoded])
    body = b"".join([part for _, part in encoded])
    header_size = len(types) + 1
    if header_size > 127:
        raise _TooLargeError
    return (
        _encode_varint(header_size + len(body)) + _encode_varint(rowid) + _encode_varint(header_size) + types + body
    )


@lru_cache(8192, typed=True)
def _encode_value(value: object) -> tuple[bytes, bytes]:
    """Returns a value's serial type and its bytes."""
    if isinstance(value, str):
        text = value.encode()
        return _encode_varint(13 + 2 * len(text)), text
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
        width = 1 if -128 <= value < 128 else 2 if -(1 << 15) <= value < 1 << 15 else 4
        return bytes([width]), value.to_bytes(width, "big", signed=True)  # types 1, 2 and 4 are named by their widths
    raise _TooLargeError


@lru_cache(4096)
def _encode_varint(number: object) -> bytes:
    if not isinstance(number, int) or not 0 <= number < _MAX_VARINT_2:
        raise _TooLargeError
    return bytes([number] if number < 128 else [128 | number >> 7, number & 127])
