"""The ledger of a run: a line for every finished stage, and the cost so far of unfinished stages.

    stages.jsonl               one row a finished stage, by its key
    stages/NAME/spent.json     the cost of an interrupted try of a stage: added up when the stage is finished

So the cost of a stage does not depend on how often it was interrupted. The cost of a killed process since its last
note is lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from evolvent.errors import CorruptRecord
from evolvent.files import append_line, disk_errors, plain_json, write_atomic
from evolvent.trajectory import JsonObject

__all__ = ["Ledger", "read_rows", "read_stage_cost", "write_stage_cost"]


def read_rows(path: Path) -> Sequence[JsonObject]:
    """Reads the rows of a JSON-lines file. Text after the last newline is torn (its writer was killed) and left out.

    Raises:
        CorruptRecord: a broken line before it, or a line that is not an object.
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
        CorruptRecord: `stages.jsonl` is not a ledger.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stages.jsonl"
        self._rows: dict[str, JsonObject] = {}
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

    def get(self, key: str) -> JsonObject | None:
        """Returns the row of a finished stage, None if the stage is not finished."""
        return self._rows.get(key)

    def append(self, row: JsonObject) -> None:
        """Records a finished stage; it is on disk when this returns."""
        append_line(self._path, row)
        self._rows[row["key"]] = dict(row)


def read_stage_cost(stage: Path) -> dict[str, float]:
    """Returns the cost of interrupted tries of a stage, by name; empty if there were none."""
    path = stage / "spent.json"
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b"{}"
    try:
        return {str(name): float(value) for name, value in json.loads(raw).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"{path} cannot be read", offset=0, hint="remove it: the cost of the try is lost"
        ) from error


def write_stage_cost(stage: Path, cost: Mapping[str, float]) -> None:
    """Records the cost of a stage so far."""
    write_atomic(stage / "spent.json", plain_json(dict(cost)))
