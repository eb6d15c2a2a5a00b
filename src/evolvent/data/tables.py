"""Rows of a user's table: a list of dicts, a data set, a data frame, or a file of JSON, Parquet, Arrow, CSV or TSV.

The format of a file follows from its content; JSON, CSV and TSV may be packed by gzip. `iterate_rows` yields the rows
of a file one by one; `read_table` makes plain JSON values of them, so that equal rows have equal digests whatever they
were read from. Nothing is downloaded and no code of a data set is run.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

from evolvent.data.jsonl import iterate_json_rows, open_unpacked
from evolvent.errors import ConfigError, MissingExtra, SampleInvalid, StoreError, boundary
from evolvent.files import safe_join
from evolvent.trajectory import Json

__all__ = ["Rows", "TableRow", "find_saved_files", "iterate_rows", "read_table"]

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
_PARQUET_MAGIC, _ARROW_MAGICS = b"PAR1", (b"ARROW1", b"\xff\xff\xff\xff")  # a file, and a stream of Arrow
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_MAX_DEPTH = 64
_UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as `surrogateescape` keeps them
_MAX_CELL_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row.

    Args:
        where: its file and line, or its number from 0, for messages.
        values: JSON values by column.
        split: the split of a data set by splits, or of the column `split`; None: not stated. A row whose column `split`
            has another value than a split has a problem.
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
    return [
        TableRow(location, {}, problem=str(row)) if isinstance(row, SampleInvalid) else _build_row(location, row, None)
        for location, row in iterate_rows(path)
    ]


def _read_folder(path: Path) -> list[TableRow]:
    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        raise ConfigError(
            f"{path} is a folder", expected="a file, or a folder that datasets.Dataset.save_to_disk wrote"
        )
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("data", "reading a Hugging Face data set") from error
    from evolvent.store.arrow_limits import check_arrow

    with boundary(ConfigError, f"{path} cannot be read as a data set"):
        for shard in sorted(path.rglob("*.arrow")):
            check_arrow(shard)
        return _read_object(datasets.load_from_disk(str(path)))


# ------------------------------------------------------------------ files


def iterate_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yields the rows of a file as (`FILE:LINE`, row), in constant memory; items of arrays and tables count from 1.

    A row that cannot be read is yielded as a `SampleInvalid`; the rows behind it are read on.

    Args:
        path: a file of JSON lines, one JSON array, Parquet, Arrow, CSV or TSV, or a folder that `datasets` saved, whose
            rows count from 0.
    Raises:
        ConfigError: the file is missing, empty or unreadable, or the folder is another one.
    """
    if path.is_dir():
        return _iterate_saved(path)
    try:
        with open_unpacked(path) as file:
            head = file.read(4096)
    except StoreError as error:
        if not path.exists():
            raise ConfigError(f"{path} cannot be read: the file does not exist", hint="check the path") from error
        raise ConfigError(f"{path} cannot be read: {error.value or error}", hint="check the path") from error
    if not head.strip():
        raise ConfigError(f"{path} is empty", expected="rows of JSON lines, JSON, CSV or Parquet")
    if head.startswith((_PARQUET_MAGIC, *_ARROW_MAGICS)):
        return _iterate_columns(path, is_parquet=head.startswith(_PARQUET_MAGIC))
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")
    is_table = re.search(rb"[,\t]", head.lstrip().partition(b"\n")[0]) is not None
    if is_json or (not is_table and path.name.removesuffix(".gz").endswith(_JSON_SUFFIXES)):
        return _iterate_json(path)
    return _iterate_csv(path)


def _iterate_saved(folder: Path) -> Iterator[tuple[str, object]]:
    files = find_saved_files(folder)
    if not files:
        raise ConfigError(
            f"{folder} is a folder", expected="a file, or a folder that datasets.Dataset.save_to_disk wrote"
        )
    rows = (row for file in files for _, row in _iterate_columns(file, is_parquet=False))
    return ((f"{folder.name}:{number}", row) for number, row in enumerate(rows))


def find_saved_files(folder: Path) -> list[Path]:
    """Finds the Arrow files of a data set that `datasets` saved in a folder; none where the folder is another one.

    Raises:
        ConfigError: the description of the data set cannot be read.
    """
    state = folder / "state.json"
    if not state.is_file():
        return []
    with boundary(ConfigError, f"{state} cannot be read"):
        return [safe_join(folder, str(entry["filename"])) for entry in json.loads(state.read_bytes())["_data_files"]]


def _iterate_columns(path: Path, *, is_parquet: bool) -> Iterator[tuple[str, object]]:

    from evolvent.data.arrow import iterate_batch_rows
    from evolvent.store.arrow_limits import iterate_arrow
    from evolvent.store.parquet_limits import open_parquet

    with boundary(ConfigError, f"{path} cannot be read as {'Parquet' if is_parquet else 'Arrow'}"):
        if is_parquet:
            parquet = open_parquet(path)
            with parquet.file:
                rows = iterate_batch_rows(parquet.iterate_batches())
                yield from ((f"{path.name}:{number}", row) for number, row in enumerate(rows, 1))
        else:
            rows = iterate_batch_rows(iterate_arrow(path))
            yield from ((f"{path.name}:{number}", row) for number, row in enumerate(rows, 1))


def _iterate_json(path: Path) -> Iterator[tuple[str, object]]:
    try:
        yield from ((f"{path.name}:{line}", row) for line, row in iterate_json_rows(path))
    except StoreError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


@contextmanager
def _allow_large_cells() -> Iterator[None]:
    """Raises the limit of the csv module, which all readers of the process share, and restores it."""
    limit = csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_BYTES))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _iterate_csv(path: Path) -> Iterator[tuple[str, object]]:
    """Yields the rows of a CSV or TSV file. All cells are text: `007` and `0.50` stay as they are written."""
    try:
        with open_unpacked(path) as file:
            header = file.readline()
            header.decode()  # a file in another encoding is refused as a whole
            delimiter = "\t" if b"\t" in header else ","
            file.seek(0)
            lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
            reader.fieldnames = _check_header(path, reader.fieldnames or ())
            while True:
                try:
                    with _allow_large_cells():
                        row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield f"{path.name}:{reader.reader.line_num}", SampleInvalid(f"the row is not CSV: {error}")
                    continue
                location = f"{path.name}:{reader.line_num}"
                if None in row or None in row.values():
                    count = len(reader.fieldnames or ())
                    yield location, SampleInvalid(f"the row does not have the {count} cells of the header")
                elif any(_UNDECODED.search(cell) for cell in row.values()):
                    yield location, SampleInvalid("the row is not UTF-8")
                else:
                    yield location, row
    except (StoreError, UnicodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", expected="JSON lines, JSON, CSV or Parquet in UTF-8"
        ) from error


def _check_header(path: Path, names: Sequence[str]) -> list[str]:
    """Returns the names of the columns without spaces around them.

    Raises:
        ConfigError: two columns have the same name, and the cells of the last would hide the others.
    """
    names = [name.strip() for name in names]
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        raise ConfigError(f"{path} has two columns of the same name", value=repeated[0], hint="rename one of them")
    return names


def _build_row(location: str, row: object, split: str | None) -> TableRow:
    if not isinstance(row, Mapping):
        return TableRow(location, {}, problem=f"got {type(row).__name__}, expected an object with columns")
    values: dict[str, Json] = {}
    for name, value in row.items():
        try:
            values[str(name)] = _to_json(value)
        except SampleInvalid as error:
            return TableRow(location, {}, problem=f"column {str(name)!r}: {error}")
    stated = values.get("split")
    if split is None and stated not in (None, ""):
        split = _SPLITS.get(str(stated).strip().lower())
        if split is None:
            expected = "train, dev (or validation) or test"
            problem = SampleInvalid("column 'split' has an unknown value", value=stated, expected=expected)
            return TableRow(location, {}, problem=str(problem))
    return TableRow(location, values, split)


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
