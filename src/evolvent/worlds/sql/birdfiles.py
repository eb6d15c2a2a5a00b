"""Reads the layout of BIRD: questions in one JSON file, a SQLite file per database, notes on columns as CSV.

    train/train.json        train/train_databases/DB/DB.sqlite
    dev/dev.json            dev/dev_databases/DB/DB.sqlite
    dev/dev_tables.json     dev/dev_databases/DB/database_description/TABLE.csv

The folders `train` and `dev` may be left out, as may one of the two parts, the lists of tables and the notes.
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
from evolvent.worlds.sql.schema import Schema, parse_listed_schema

__all__ = ["PARTS", "Folder", "Question", "read_notes", "read_part"]

PARTS: tuple[str, ...] = ("train", "dev")
_FIELDS = {"db_id": "the name of a database", "question": "a question", "SQL": "its gold query"}
_MAX_NOTE_LENGTH = 400  # characters


@dataclass(frozen=True, slots=True)
class Question:
    """A usable row.

    Args:
        part, row: "train" or "dev", and the index of the row in that file, from 0.
        db, path: the name and the file of its database.
        question, evidence, gold: the question, the knowledge it needs, and the query that answers it.
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
        """Returns 16 hex digits of a hash over the row's content."""
        text = canonical_json([self.db, self.question, self.evidence, self.gold])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Folder:
    """The usable content of a part of BIRD.

    Args:
        questions: row -> question; unusable rows are missing.
        count: number of rows of the file.
        listed_schemas: name of a database -> its schema, with the names of the list of tables.
        problems: the problems, each with its file and row.
    """

    questions: Mapping[int, Question]
    count: int
    listed_schemas: Mapping[str, Schema]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _PartReader:
    part: str
    folder: Path
    files: dict[str, Path | str] = field(default_factory=dict)

    def find_database(self, db: str) -> Path | str:
        """Returns the file of a database, or the reason why there is none."""
        if db not in self.files:
            self.files[db] = self._locate_database(db)
        return self.files[db]

    def _locate_database(self, db: str) -> Path | str:
        try:
            path = safe_join(self.folder / f"{self.part}_databases", f"{db}/{db}.sqlite")
        except UnsafePath as error:
            return str(error)
        return path if path.is_file() else f"there is no file {self.part}_databases/{db}/{db}.sqlite"

    def parse_question(self, row: int, entry: object) -> Question | str:
        """Parses the question of a row, or returns the problem of the row."""
        if not isinstance(entry, Mapping):
            return f"{type(entry).__name__} where an object was expected"
        missing = [
            f"no {name} ({description})"
            for name, description in _FIELDS.items()
            if not isinstance(entry.get(name), str) or not entry[name].strip()
        ]
        if missing:
            return ", ".join(missing)
        path = self.find_database(entry["db_id"])
        if isinstance(path, str):
            return path
        evidence = entry.get("evidence")
        evidence = evidence.strip() if isinstance(evidence, str) else ""
        gold = entry["SQL"].strip()
        return Question(self.part, row, entry["db_id"], path, entry["question"].strip(), evidence, gold)


def read_part(root: Path, part: str) -> Folder | None:
    """Reads a part of a folder in BIRD's layout; returns None if the folder has no such part.

    Raises:
        ConfigError: a file of questions that is not a JSON array.
    """
    folder = next((candidate for candidate in (root, root / part) if (candidate / f"{part}.json").is_file()), None)
    if folder is None:
        return None
    reader, questions, problems = _PartReader(part, folder), {}, []
    rows = _read_json_array(folder / f"{part}.json")
    for row, entry in enumerate(rows):
        parsed = reader.parse_question(row, entry)
        if isinstance(parsed, Question):
            questions[row] = parsed
        else:
            problems.append(Problem(f"{part}.json, row {row}", parsed, "the row is left out"))
    listed_schemas, list_problems = _read_listed_schemas(folder / f"{part}_tables.json")
    return Folder(questions, len(rows), listed_schemas, (*problems, *list_problems))


def _read_json_array(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    if not isinstance(rows, list):
        raise ConfigError(f"{path.name} holds no array of rows", value=type(rows).__name__, expected="a JSON array")
    return rows


def _read_listed_schemas(path: Path) -> tuple[dict[str, Schema], list[Problem]]:
    """Reads the schemas of a list of tables, by database; the list may be missing."""
    if not path.is_file():
        return {}, []
    schemas: dict[str, Schema] = {}
    problems = []
    for row, entry in enumerate(_read_json_array(path)):
        try:
            schema = parse_listed_schema(entry)
            schemas[schema.name] = schema
        except ConfigError as error:
            problems.append(Problem(f"{path.name}, row {row}", str(error), "the database's own names are told instead"))
    return schemas, problems


def read_notes(question: Question) -> tuple[list[str], list[Problem]]:
    """Reads the notes of `database_description` on the columns of a database, as SQL comments, and the problems."""
    folder = question.path.parent / "database_description"
    notes: list[str] = []
    problems = []
    for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        try:
            notes += _read_table_notes(path)
        except (OSError, csv.Error) as error:
            file_name = f"{question.db}/database_description/{path.name}"
            problems.append(Problem(file_name, f"cannot be read ({error})", "its notes are left out"))
    return notes, problems


def _read_table_notes(path: Path) -> Iterator[str]:
    """Yields the notes of one table; bytes that are not UTF-8, which some of BIRD's files contain, are replaced."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            descriptions = [row.get(name) or "" for name in ("column_description", "value_description")]
            note = " ".join(" ".join(descriptions).split())
            column = (row.get("original_column_name") or "").strip()
            if column and note:
                yield f"-- {path.stem}.{column}: {note[:_MAX_NOTE_LENGTH]}"
