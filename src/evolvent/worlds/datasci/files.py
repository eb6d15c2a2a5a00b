"""Data sets of a user's CSV files, for programs that are judged on them (`DataSciCode`).

    wine.csv    acidity,sugar,color,quality     ->  columns of numbers; classes 0, 1, ... from the last column
                7.4,1.9,red,good

The label is the column named label, target, class or y, else the last one. Columns of numbers stay, with gaps filled by
their median; columns of up to 20 different texts become one column for each text; other columns are left out. The first
row names the columns. A success is the score of the best of six common pipelines on the same data, or at most .01 less,
because other folds and a little noise are drawn for each task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from evolvent.errors import ConfigError, MissingExtra, Problem
from evolvent.trajectory import sample_rng
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.sets import DataSet, describe_data
from evolvent.worlds.datasci.table import Table

__all__ = ["REFERENCES", "CsvSets", "read_csv_sets"]

REFERENCES: tuple[str, ...] = (
    "scale standard ; model logreg C 1 ; end",
    "scale standard ; model knn k 15 ; end",
    "model tree depth 4 ; end",
    "model forest trees 50 depth none ; end",
    "model gnb ; end",
    "scale standard ; select pca half ; model logreg C 1 ; end",
)
"""The pipelines whose best score is the threshold of success."""
_LABEL_NAMES = ("label", "target", "class", "y")
_TOLERANCE = 0.01
_MAX_TEXTS = 20  # different texts of a column that are told apart
_MAX_CLASSES = 50
_MIN_PER_CLASS = 10  # rows: two for each of five folds
_MAX_VALUES = 150_000  # rows x columns: what a sandbox is handed at once


@dataclass(frozen=True)
class CsvSets:
    """The data sets of a folder or file.

    Args:
        sets: by name, the name of the file without its ending.
        table: scores of the reference pipelines, and facts.
        problems: files that are left out, and what was left out of the others.
    """

    sets: Mapping[str, DataSet]
    table: Table
    problems: tuple[Problem, ...]

    @property
    def digest(self) -> str:
        """Returns a digest of the rows and labels of all data sets, 12 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, data in sorted(self.sets.items()):
            digest.update(f"{name} {data.rows.shape} ".encode() + data.rows.tobytes() + data.labels.tobytes())
        return digest.hexdigest()[:12]

    def success_threshold(self, name: str) -> float:
        """Returns the score that counts as success."""
        return max(self.table.scores[name].values()) - _TOLERANCE


def read_csv_sets(path: Path) -> CsvSets:
    """Reads a CSV file, or all of a folder.

    Raises:
        ConfigError: there is no CSV file, or none is usable; every file with its reason.
        MissingExtra: scikit-learn is not installed.
    """
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError([Problem("datasci", f"{path} holds no CSV file", "name a file, or a folder of .csv files")])
    sets: dict[str, DataSet] = {}
    problems: list[Problem] = []
    for file in files:
        data = _read_csv(file, problems)
        if data is not None:
            sets[file.stem] = data
    if not sets:
        raise ConfigError(problems)
    return CsvSets(sets, _score_references(sets), tuple(problems))


def _read_csv(file: Path, problems: list[Problem]) -> DataSet | None:
    """Reads a file; returns None where it cannot be used, and tells why in `problems`."""
    try:
        table = csv.read_csv(file)
    except (OSError, pa.ArrowException) as error:
        problems.append(Problem(file.name, f"cannot be read: {error}", "the file is left out"))
        return None
    label_name = next((name for name in table.column_names if name.lower() in _LABEL_NAMES), table.column_names[-1])
    reason, labels = _parse_labels(table.column(label_name), label_name)
    columns, dropped = _parse_columns(table.drop_columns([label_name]))
    if dropped:
        problems.append(
            Problem(file.name, f"left out the columns {', '.join(dropped)}", "only numbers and few texts are read")
        )
    if not reason and not columns:
        reason = "holds no column of numbers beside the label"
    if reason:
        problems.append(Problem(file.name, reason, "the file is left out"))
        return None
    rows, row_indices = np.stack(columns, axis=1), np.arange(len(labels))
    if rows.size > _MAX_VALUES:
        limit = max(1, _MAX_VALUES // rows.shape[1])
        row_indices = np.sort(sample_rng("datasci", file.stem).permutation(len(labels))[:limit])
        problems.append(Problem(file.name, f"uses {limit} of {len(labels)} rows, drawn at random"))
    return DataSet(
        file.stem, rows[row_indices], np.unique(labels[row_indices], return_inverse=True)[1].astype(np.int64)
    )


def _parse_labels(column: pa.ChunkedArray, name: str) -> tuple[str, NDArray[np.int64]]:
    """Returns the reason why a column is not a label, empty where it is, and the class of each row."""
    texts = pc.cast(column, pa.string())
    if texts.null_count or pc.any(pc.equal(texts, "")).as_py():
        return f"has rows without a label in column {name!r}", np.zeros(0, np.int64)
    classes, labels, counts = np.unique(
        texts.to_numpy(zero_copy_only=False).astype(str), return_inverse=True, return_counts=True
    )
    if not 2 <= len(classes) <= _MAX_CLASSES:
        return f"has {len(classes)} classes in column {name!r}, expected 2 to {_MAX_CLASSES}", labels
    if counts.min() < _MIN_PER_CLASS:
        rare = str(classes[counts.argmin()])
        return f"has {counts.min()} rows of the class {rare!r}, expected at least {_MIN_PER_CLASS}", labels
    return "", labels


def _parse_columns(table: pa.Table) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Returns columns of numbers, and the names of those that are left out."""
    columns: list[NDArray[np.float64]] = []
    dropped: list[str] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            values = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
            finite = np.isfinite(values)
            if not finite.any():
                dropped.append(name)
                continue
            columns.append(np.where(finite, values, np.median(values[finite])))
            continue
        texts = sorted(filter(None, column.unique().to_pylist())) if pa.types.is_string(column.type) else []
        if not 0 < len(texts) <= _MAX_TEXTS:
            dropped.append(name)
            continue
        cells = column.to_pylist()
        columns += [np.array([cell == text for cell in cells], np.float64) for text in texts]
    return columns, dropped


def _score_references(sets: Mapping[str, DataSet]) -> Table:
    try:
        import sklearn
    except ImportError as error:
        raise MissingExtra("datasci", "data sets of files") from error
    from evolvent.worlds.datasci.rebuild import score_pipelines

    pipelines = [pipeline for pipeline in map(read_pipeline, REFERENCES) if isinstance(pipeline, Pipeline)]
    scores = {name: score_pipelines(data, pipelines) for name, data in sets.items()}
    return Table(scores, {name: describe_data(data) for name, data in sets.items()}, str(sklearn.__version__))
