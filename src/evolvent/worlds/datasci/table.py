"""The table of scores: the result of every pipeline on every data set. A step of the world is a lookup."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evolvent.errors import CorruptRecord, HashMismatch, UnknownSchema
from evolvent.files import write_atomic
from evolvent.store.parquet_limits import open_parquet
from evolvent.trajectory import canonical_json

__all__ = ["DIGITS", "FORMAT", "Table", "read_table", "table_path"]

FORMAT = 1
DIGITS = 4  # of a score
_BEST = 0.1  # the share of pipelines that is good enough
_KEY = b"evolvent"


@dataclass(frozen=True)
class Table:
    """Scores and facts of data sets.

    Args:
        scores: data set -> canonical pipeline -> cross-validated ROC-AUC, rounded to 4 digits. A pipeline that
            needs more columns than the data set has is missing.
        facts: data set -> its description in a task (`sets.describe_data`).
        sklearn: the version of scikit-learn that made it.
    """

    scores: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Mapping[str, str]]
    sklearn: str

    @cached_property
    def digest(self) -> str:
        """Returns the SHA-256 (64 hex digits) of scores and facts, whatever the file's compression and order."""
        units = {
            name: {text: round(area * 10**DIGITS) for text, area in entries.items()}
            for name, entries in self.scores.items()
        }
        facts = {name: dict(entries) for name, entries in self.facts.items()}
        return hashlib.sha256(canonical_json([units, facts]).encode()).hexdigest()

    def best(self, name: str) -> str:
        """Returns the best pipeline of a data set; among equals the shortest, then the first in alphabetical order."""
        return self._best_pipelines[name]

    @cached_property
    def _best_pipelines(self) -> Mapping[str, str]:
        return {
            name: min(areas, key=lambda text: (-areas[text], len(text.split()), text))
            for name, areas in self.scores.items()
        }

    def success_threshold(self, name: str) -> float:
        """Returns the score that counts as success: the lowest that at most a tenth of the pipelines reach, or else
        the highest.
        """
        areas = sorted(self.scores[name].values(), reverse=True)
        num_best = int(_BEST * len(areas))
        areas_above = [area for area in areas[:num_best] if area > areas[num_best]]
        return areas_above[-1] if areas_above else areas[0]

    def write(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; hash, version and facts stand in the file's metadata.

        Raises:
            NoSpace, StoreUnavailable: the file cannot be written.
        """
        rows = [(name, text, area) for name, entries in self.scores.items() for text, area in entries.items()]
        names, texts, areas = zip(*rows, strict=True)
        header = {
            "format": FORMAT,
            "sklearn": self.sklearn,
            "digest": self.digest,
            "facts": {name: dict(entries) for name, entries in self.facts.items()},
        }
        columns = {
            "data": pa.array(names).dictionary_encode(),
            "pipeline": pa.array(texts).dictionary_encode(),
            "auc": pa.array(areas, pa.float64()),
        }
        table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(header, sort_keys=True).encode()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomic(path, buffer.getvalue())


def table_path() -> Path:
    """Returns the path of the library's own table."""
    return Path(__file__).with_name("scores.parquet")


def read_table(path: Path | None = None) -> Table:
    """Reads a table from its file (None: the library's own).

    Raises:
        CorruptRecord: the file is missing or no table. UnknownSchema: a newer format. HashMismatch: rows were changed.
    """
    path = path or table_path()
    try:
        with open_parquet(path).file as file:
            read = file.read()
        header = json.loads((read.schema.metadata or {})[_KEY])
        columns = [read.column(name).to_pylist() for name in ("data", "pipeline", "auc")]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptRecord(
            f"{path} is not a table of scores: {error}",
            offset=0,
            hint="create one: python -m evolvent.worlds.datasci.rebuild FILE",
        ) from error
    if header.get("format") != FORMAT:
        raise UnknownSchema("the table of scores has another format", value=header.get("format"), expected=FORMAT)
    scores: dict[str, dict[str, float]] = {name: {} for name in header["facts"]}
    for name, text, area in zip(*columns, strict=True):
        scores.setdefault(name, {})[text] = area
    table = Table(scores, header["facts"], str(header["sklearn"]))
    if table.digest != header["digest"]:
        raise HashMismatch(f"{path} was changed", value=table.digest, expected=header["digest"])
    return table
