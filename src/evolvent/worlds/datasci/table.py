"""The table of scores: what every pipeline reaches on every data set. A step of the world is a look into it."""

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
        scores: data set -> canonical pipeline -> cross-validated ROC-AUC, rounded to 4 digits. A pipeline that the data
            set has too few columns for is not in it.
        facts: data set -> what a task says of it (`sets.facts_of`).
        sklearn: the version of scikit-learn that made it.
    """

    scores: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, Mapping[str, str]]
    sklearn: str

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of scores and facts, whatever the file's compression and order."""
        units = {
            name: {text: round(area * 10**DIGITS) for text, area in of.items()} for name, of in self.scores.items()
        }
        facts = {name: dict(of) for name, of in self.facts.items()}
        return hashlib.sha256(canonical_json([units, facts]).encode()).hexdigest()

    def best(self, name: str) -> str:
        """The best pipeline of a data set; of equally good ones the shortest, then the first in alphabetical order."""
        return self._bests[name]

    @cached_property
    def _bests(self) -> Mapping[str, str]:
        return {
            name: min(of, key=lambda text: (-of[text], len(text.split()), text)) for name, of in self.scores.items()
        }

    def mark(self, name: str) -> float:
        """The score that is a success: the lowest that at most a tenth of the pipelines reach, or else the highest."""
        areas = sorted(self.scores[name].values(), reverse=True)
        most = int(_BEST * len(areas))
        good = [area for area in areas[:most] if area > areas[most]]
        return good[-1] if good else areas[0]

    def write(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; hash, version and facts stand in the file's metadata.

        Raises:
            NoSpace, StoreUnavailable: the file cannot be written.
        """
        rows = [(name, text, area) for name, of in self.scores.items() for text, area in of.items()]
        names, texts, areas = zip(*rows, strict=True)
        head = {
            "format": FORMAT,
            "sklearn": self.sklearn,
            "digest": self.digest,
            "facts": {name: dict(of) for name, of in self.facts.items()},
        }
        columns = {
            "data": pa.array(names).dictionary_encode(),
            "pipeline": pa.array(texts).dictionary_encode(),
            "auc": pa.array(areas, pa.float64()),
        }
        table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(head, sort_keys=True).encode()})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomic(path, buffer.getvalue())


def table_path() -> Path:
    """Where the library's own table lies."""
    return Path(__file__).with_name("scores.parquet")


def read_table(path: Path | None = None) -> Table:
    """A table from its file (None: the library's own).

    Raises:
        CorruptRecord: the file is missing or no table. UnknownSchema: a newer format. HashMismatch: rows were changed.
    """
    path = path or table_path()
    try:
        read = pq.read_table(path)
        head = json.loads((read.schema.metadata or {})[_KEY])
        columns = [read.column(name).to_pylist() for name in ("data", "pipeline", "auc")]
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptRecord(
            f"{path} is no table of scores: {error}",
            offset=0,
            hint="make one: python -m evolvent.worlds.datasci.rebuild FILE",
        ) from error
    if head.get("format") != FORMAT:
        raise UnknownSchema("a table of scores in another format", value=head.get("format"), expected=FORMAT)
    scores: dict[str, dict[str, float]] = {name: {} for name in head["facts"]}
    for name, text, area in zip(*columns, strict=True):
        scores.setdefault(name, {})[text] = area
    table = Table(scores, head["facts"], str(head["sklearn"]))
    if table.digest != head["digest"]:
        raise HashMismatch(f"{path} was changed", value=table.digest, expected=head["digest"])
    return table
