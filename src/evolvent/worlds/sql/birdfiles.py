"""Reading the layout of BIRD: questions in one JSON file, a SQLite file for each database, notes on columns as CSV.

    train/train.json        train/train_databases/DB/DB.sqlite
    dev/dev.json            dev/dev_databases/DB/DB.sqlite
    dev/dev_tables.json     dev/dev_databases/DB/database_description/TABLE.csv

The folders `train` and `dev` may be left out, and so may one of the two parts, the lists of tables and the notes.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, Problem, UnsafePath
from evolvent.files import safe_join
from evolvent.trajectory import canonical_json
from evolvent.worlds.sql.schema import Schema, listed_schema

__all__ = ["PARTS", "Folder", "Question", "notes_of", "read_part"]

PARTS: tuple[str, ...] = ("train", "dev")
_FIELDS = {"db_id": "the name of a database", "question": "a question", "SQL": "its gold query"}
_LONGEST_NOTE = 400  # characters


@dataclass(frozen=True, slots=True)
class Question:
    """A row that can be used.

    Args:
        part, row: "train" or "dev", and the row's place in that file, from 0.
        db, path: the name and the file of its database.
        question, evidence, gold: what is asked, what has to be known, the query that answers it.
    """

    part: str
    row: int
    db: str
    path: Path
    question: str
    evidence: str
    gold: str

    @property
    def digest(self) -> str:
        """16 hex digits over all that the row says."""
        text = canonical_json([self.db, self.question, self.evidence, self.gold])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Folder:
    """A part of BIRD as far as it can be used.

    Args:
        questions: row -> question; rows that cannot be used are missing.
        count: how many rows the file has.
        listed: name of a database -> its schema by the names of the list of tables.
        problems: what cannot be used, each with its file and row.
    """

    questions: Mapping[int, Question]
    count: int
    listed: Mapping[str, Schema]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Reading:
    part: str
    folder: Path
    files: dict[str, Path | str] = field(default_factory=dict)

    def database(self, db: str) -> Path | str:
        """The file of a database, or why there is none."""
        if db not in self.files:
            self.files[db] = self._find(db)
        return self.files[db]

    def _find(self, db: str) -> Path | str:
        try:
            path = safe_join(self.folder / f"{self.part}_databases", f"{db}/{db}.sqlite")
        except UnsafePath as error:
            return str(error)
        return path if path.is_file() else f"there is no file {self.part}_databases/{db}/{db}.sqlite"

    def question(self, row: int, entry: object) -> Question | str:
        """The question of a row, or what is wrong with it."""
        if not isinstance(entry, Mapping):
            return f"{type(entry).__name__} where an object was expected"
        wrong = [
            f"no {name} ({what})"
            for name, what in _FIELDS.items()
            if not isinstance(entry.get(name), str) or not entry[name].strip()
        ]
        if wrong:
            return ", ".join(wrong)
        path = self.database(entry["db_id"])
        if isinstance(path, str):
            return path
        evidence = entry.get("evidence")
        evidence = evidence.strip() if isinstance(evidence, str) else ""
        gold = entry["SQL"].strip()
        return Question(self.part, row, entry["db_id"], path, entry["question"].strip(), evidence, gold)


def read_part(root: Path, part: str) -> Folder | None:
    """A part of a folder in BIRD's layout; None where it has no such part.

    Raises:
        ConfigError: a file of questions that is no JSON array.
    """
    folder = next((at for at in (root, root / part) if (at / f"{part}.json").is_file()), None)
    if folder is None:
        return None
    reading, questions, problems = _Reading(part, folder), {}, []
    rows = _json_array(folder / f"{part}.json")
    for row, entry in enumerate(rows):
        found = reading.question(row, entry)
        if isinstance(found, Question):
            questions[row] = found
        else:
            problems.append(Problem(f"{part}.json, row {row}", found, "the row is left out"))
    listed, more = _listed(folder / f"{part}_tables.json")
    return Folder(questions, len(rows), listed, (*problems, *more))


def _json_array(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    if not isinstance(rows, list):
        raise ConfigError(f"{path.name} holds no array of rows", value=type(rows).__name__, expected="a JSON array")
    return rows


def _listed(path: Path) -> tuple[dict[str, Schema], list[Problem]]:
    """The schemas of a list of tables, by database; the list may be missing."""
    if not path.is_file():
        return {}, []
    found: dict[str, Schema] = {}
    problems = []
    for row, entry in enumerate(_json_array(path)):
        try:
            schema = listed_schema(entry)
            found[schema.name] = schema
        except ConfigError as error:
            problems.append(Problem(f"{path.name}, row {row}", str(error), "the database's own names are told instead"))
    return found, problems


def notes_of(question: Question) -> tuple[list[str], list[Problem]]:
    """What `database_description` says of the columns of a database, as comments of SQL, and what cannot be read."""
    folder = question.path.parent / "database_description"
    notes: list[str] = []
    problems = []
    for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        try:
            notes += _notes(path)
        except (OSError, csv.Error) as error:
            where = f"{question.db}/database_description/{path.name}"
            problems.append(Problem(where, f"cannot be read ({error})", "its notes are left out"))
    return notes, problems


def _notes(path: Path) -> Iterator[str]:
    """The notes of one table; bytes that are no UTF-8, of which BIRD's files have some, become marks."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            said = [row.get(name) or "" for name in ("column_description", "value_description")]
            note = " ".join(" ".join(said).split())
            column = (row.get("original_column_name") or "").strip()
            if column and note:
                yield f"-- {path.stem}.{column}: {note[:_LONGEST_NOTE]}"
