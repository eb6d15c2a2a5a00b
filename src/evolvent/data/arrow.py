"""Rows of Arrow tables as JSON lines would hold them, whoever wrote the table.

Fields of type JSON, which Hugging Face `datasets` writes where the types of rows differ, are decoded. A table gives
every nested object all fields that any row has, and fills the missing ones with null; those are left out again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from evolvent.trajectory import JsonObject

__all__ = ["iterate_batch_rows", "make_row_converter"]

_Converter = Callable[[Any], Any]


def iterate_batch_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[JsonObject]:
    """Yields the rows of batches of one schema."""
    convert: Callable[[pa.RecordBatch], list[JsonObject]] | None = None
    for batch in batches:
        convert = make_row_converter(batch.schema) if convert is None else convert
        yield from convert(batch)


def make_row_converter(schema: pa.Schema) -> Callable[[pa.RecordBatch], list[JsonObject]]:
    """Returns a function from a batch of a schema to its rows."""
    converters = {column.name: converter for column in schema if (converter := _find_converter(column.type))}

    def convert(batch: pa.RecordBatch) -> list[JsonObject]:
        rows: list[dict[str, Any]] = batch.to_pylist()
        for row in rows if converters else []:
            for name, converter in converters.items():
                row[name] = converter(row[name])
        return list[JsonObject](rows)

    return convert


def _find_converter(data_type: pa.DataType) -> _Converter | None:
    """Returns a function that converts a value of a type; None where it stays as it is."""
    if getattr(data_type, "extension_name", "") == "arrow.json":
        return _decode_json
    if pa.types.is_struct(data_type):
        return _make_struct_converter({field.name: _find_converter(field.type) for field in data_type})
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type):
        converter = _find_converter(data_type.value_type)
        return None if converter is None else _make_list_converter(converter)
    return None


def _decode_json(value: str | None) -> object:
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return value  # a text that was stored as it is


def _make_struct_converter(converters: dict[str, _Converter | None]) -> _Converter:
    def convert(value: dict[str, Any] | None) -> Any:
        if value is None:
            return None
        return {
            name: entry if (converter := converters[name]) is None else converter(entry)
            for name, entry in value.items()
            if entry is not None
        }

    return convert


def _make_list_converter(converter: _Converter) -> _Converter:
    return lambda values: None if values is None else [converter(value) for value in values]
