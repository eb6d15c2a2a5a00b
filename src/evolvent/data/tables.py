"""Rows of a user's table: a list of dicts, a data set, a data frame, or a file of JSON, Parquet, CSV or TSV.

The format of a file follows from its content, not from its name. Rows become plain JSON values, so that equal rows
have equal digests whatever they were read from. Nothing is downloaded and no code of a data set is run.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

from evolvent.data.jsonl import Refusals, read_json_rows
from evolvent.errors import ConfigError, MissingExtra, SampleInvalid, StoreError, boundary
from evolvent.trajectory import Json

__all__ = ["Rows", "TableRow", "read_table"]

Rows = Iterable[Mapping[str, object]] | Mapping[str, Iterable[Mapping[str, object]]] | Path | str
"""Rows, rows by the name of their split, or the path of a file."""

_SPLITS = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
    "eval": "test",
}
_PARQUET_MAGIC = b"PAR1"
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row.

    Args:
        where: its file and line, or its number from 0, for messages.
        values: JSON values by column.
        split: the split of a data set by splits, or of the column `split`; None: not stated.
        problem: why it cannot be used; "": it can.
    """

    where: str
    values: Mapping[str, Json]
    split: str | None = None
    problem: str = ""


def read_table(rows: Rows) -> list[TableRow]:
    """Reads all rows; a row that is not an object is kept with its problem.

    Args:
        rows: a list of dicts, a data set or a dict of data sets by split, a data frame, or a path: a file of JSON lines
            or one JSON array, Parquet, CSV or TSV, or a folder that `datasets` saved.
    Raises:
        ConfigError: the file is missing, empty or unreadable, or the value is not a table.

    >>> read_table([{"prompt": "2 + 2?", "answer": 4}])[0].values
    {'prompt': '2 + 2?', 'answer': 4}
    """
    if isinstance(rows, str | Path):
        return _read_path(Path(rows))
    return _read_object(rows)


def _read_object(rows: object, *, split: str | None = None, name: str = "row") -> list[TableRow]:
    if isinstance(rows, Mapping):
        return _read_splits(rows)
    to_dict = getattr(rows, "to_dict", None)
    if to_dict is not None and hasattr(rows, "iloc"):  # a data frame of pandas
        rows = to_dict("records")
    elif hasattr(rows, "to_pylist"):  # a table of pyarrow
        rows = rows.to_pylist()
    if not isinstance(rows, Iterable) or isinstance(rows, bytes):
        raise ConfigError(
            "the dataset is not a table",
            value=type(rows).__name__,
            expected="a list of dicts, a datasets.Dataset, or a path to JSON lines, JSON, CSV or Parquet",
        )
    with boundary(ConfigError, "the dataset cannot be read"):
        return [_build_row(f"{name} {number}", row, split) for number, row in enumerate(rows)]


def _read_splits(splits: Mapping[object, object]) -> list[TableRow]:
    unknown = [name for name in splits if str(name).lower() not in _SPLITS]
    if unknown:
        raise ConfigError(
            "the dataset has an unknown split",
            value=str(unknown[0]),
            expected="splits named train, dev (or validation) and test",
            hint="pass a list of rows, or one data set",
        )
    table: list[TableRow] = []
    for name, rows in splits.items():
        table += _read_object(rows, split=_SPLITS[str(name).lower()], name=f"{name} row")
    return table


def _read_path(path: Path) -> list[TableRow]:
    if path.is_dir():
        return _read_folder(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}", hint="check the path") from error
    if not head.strip():
        raise ConfigError(f"{path} is empty", expected="rows of JSON lines, JSON, CSV or Parquet")
    if head.startswith(_PARQUET_MAGIC):
        return [_build_row(f"{path.name}:{number}", row, None) for number, row in enumerate(_read_parquet(path), 1)]
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return _read_json(path)
    return list(_read_csv(path))


def _read_folder(path: Path) -> list[TableRow]:
    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        raise ConfigError(
            f"{path} is a folder", expected="a file, or a folder that datasets.Dataset.save_to_disk wrote"
        )
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("data", "reading a Hugging Face data set") from error
    with boundary(ConfigError, f"{path} cannot be read as a data set"):
        return _read_object(datasets.load_from_disk(str(path)))


def _read_parquet(path: Path) -> list[Mapping[str, object]]:
    from pyarrow.parquet import read_table as read_parquet_table

    with boundary(ConfigError, f"{path} cannot be read as Parquet"):
        rows: list[Mapping[str, object]] = read_parquet_table(path).to_pylist()
        return rows


def _read_json(path: Path) -> list[TableRow]:
    refusals = Refusals()
    try:
        table = [_build_row(f"{path.name}:{line}", row, None) for line, row in read_json_rows(path, refusals)]
    except StoreError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    table += [TableRow(f"{path.name}:{row.line}", {}, problem=row.reason) for row in refusals.rows]
    return table


def _read_csv(path: Path) -> Iterator[TableRow]:
    """Yields the rows of a CSV or TSV file. All cells are text: `007` and `0.50` stay as they are written."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", expected="JSON lines, JSON, CSV or Parquet in UTF-8"
        ) from error
    header = text.split("\n", 1)[0]
    reader = csv.DictReader(text.splitlines(keepends=True), delimiter="\t" if "\t" in header else ",", strict=True)
    try:
        for row in reader:
            where = f"{path.name}:{reader.line_num}"
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                yield TableRow(where, {}, problem=f"the row does not have the {count} cells of the header")
            else:
                yield _build_row(where, row, None)
    except csv.Error as error:
        raise ConfigError(f"{path.name}:{reader.line_num} is not CSV: {error}") from error


def _build_row(where: str, row: object, split: str | None) -> TableRow:
    if not isinstance(row, Mapping):
        return TableRow(where, {}, problem=f"got {type(row).__name__}, expected an object with columns")
    try:
        values = {str(name): _to_json(value) for name, value in row.items()}
    except SampleInvalid as error:
        return TableRow(where, {}, problem=str(error))
    stated = values.get("split")
    if split is None and isinstance(stated, str) and stated.lower() in _SPLITS:
        split = _SPLITS[stated.lower()]
    return TableRow(where, values, split)


def _to_json(value: object, depth: int = 0) -> Json:
    """Converts a cell to JSON values; NaN becomes None, dates become ISO text.

    Raises:
        SampleInvalid: a value of another type, or nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise SampleInvalid("a cell is nested too deeply", expected=f"at most {_MAX_DEPTH} levels")
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(item, depth + 1) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    raise SampleInvalid("a cell is not JSON", value=type(value).__name__, expected="text, a number, a list or a dict")
