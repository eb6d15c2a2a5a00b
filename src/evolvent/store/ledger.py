"""The ledger of a run: a line for every finished stage, and what unfinished ones have cost so far.

    stages.jsonl               one row a finished stage, by its key
    stages/NAME/spent.json     what an interrupted try of a stage had cost: added up when it is finished

So the cost of a stage does not depend on how often it was interrupted. What a killed process had done since its last
note is lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evolvent.errors import CorruptRecord
from evolvent.files import append_line, disk_errors, plain_json, write_atomic

__all__ = ["Ledger", "read_rows", "read_spent", "write_spent"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file. What follows the last newline is torn (its writer was killed) and left out.

    Raises:
        CorruptRecord: a broken line before it, or one that is no object.
    """
    with disk_errors(path):
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows, offset = [], 0
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorruptRecord(f"{path} has a broken line", offset=offset, value=line[:80]) from error
        if not isinstance(row, dict):
            raise CorruptRecord(f"{path} has a line that is no object", offset=offset, value=line[:80])
        rows.append(row)
        offset += len(line) + 1
    return rows


class Ledger:
    """The finished stages of a run, by key.

    Raises:
        CorruptRecord: `stages.jsonl` is no ledger.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stages.jsonl"
        self._rows: dict[str, dict[str, Any]] = {}
        for row in read_rows(self._path):
            if not isinstance(row.get("key"), str):
                raise CorruptRecord(f"{self._path} has a row that is no finished stage", offset=0, value=str(row)[:80])
            self._rows[row["key"]] = row

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def key_version(self) -> int:
        """Returns the newest version of the keys of its rows; rows without one are of version 1."""
        return max((int(row.get("key_version", 1)) for row in self._rows.values()), default=1)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The row of a finished stage."""
        return self._rows.get(key)

    def append(self, row: Mapping[str, Any]) -> None:
        """Note a finished stage; it is on disk when this returns."""
        append_line(self._path, row)
        self._rows[row["key"]] = dict(row)


def read_spent(stage: Path) -> dict[str, float]:
    """What interrupted tries of a stage have cost, by name; nothing where there was none."""
    path = stage / "spent.json"
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b"{}"
    try:
        return {str(name): float(value) for name, value in json.loads(raw).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"{path} cannot be read", offset=0, hint="remove it: the cost of the try is lost"
        ) from error


def write_spent(stage: Path, spent: Mapping[str, float]) -> None:
    """Note what a stage has cost so far."""
    write_atomic(stage / "spent.json", plain_json(dict(spent)))
