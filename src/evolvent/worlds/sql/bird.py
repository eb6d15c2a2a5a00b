"""BIRD as a source of scenes, over a user's folder.

The rows of `train.json` are the split `train`, except that about every tenth of its databases belongs to the
split `dev`, so that no database is in both. The rows of `dev.json` are the split `test`. There is one tier,
`seen`, and the kind of a task is its database. A task names its row and a digest of the row's content, not the
gold query.

Reads the layout of BIRD: questions in one JSON file, a SQLite file per database, notes on columns as CSV.

    train/train.json        train/train_databases/DB/DB.sqlite
    dev/dev.json            dev/dev_databases/DB/DB.sqlite
    dev/dev_tables.json     dev/dev_databases/DB/database_description/TABLE.csv

The folders `train` and `dev` may be left out, as may one of the two parts, the lists of tables and the notes.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from evolvent.errors import ConfigError, EnvLost, Problem, UnsafePath, VersionMismatch, unknown_name_problem
from evolvent.files import safe_join
from evolvent.trajectory import Task, canonical_json, sample_seed
from evolvent.worlds.sql.database import Database, Limits
from evolvent.worlds.sql.episode import Scene
from evolvent.worlds.sql.equal import Comparison
from evolvent.worlds.sql.schema import Schema, Text, parse_listed_schema, read_schema, render_prompt

__all__ = ["ITEMS", "PARTS", "Bird", "Folder", "Question", "read_notes", "read_part"]


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
            problems.append(Problem(f"{part}.json, row {row}", parsed, "the row is skipped"))
    listed_schemas, list_problems = _read_listed_schemas(folder / f"{part}_tables.json")
    return Folder(questions, len(rows), listed_schemas, (*problems, *list_problems))


def _read_json_array(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    if not isinstance(rows, list):
        raise ConfigError(
            f"{path.name} does not hold an array of rows", value=type(rows).__name__, expected="a JSON array"
        )
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
            problems.append(
                Problem(f"{path.name}, row {row}", str(error), "the names of the database are used instead")
            )
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
            problems.append(Problem(file_name, f"cannot be read ({error})", "its descriptions are skipped"))
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


ITEMS: Mapping[str, range] = {"train": range(9428), "dev": range(9428, 10962)}
"""The item ids of AgentGym for BIRD's rows."""

_MAX_CACHED_SCENES = 256  # scenes kept ready
_MAX_LISTED_TABLES = 20  # of which the queries to choose from speak


class Bird:
    """The questions of a folder in BIRD's layout; see the module.

    Args:
        folder: the folder.
        text: the form in which schema and question are written.
        compare: the rule by which two results are equal.
        verify: whether the gold queries of a split are run before it is used.
        descriptions: whether the notes on columns are shown, with the text "create".
        limits: the limits of a query.
    Attributes:
        problems: the problems found so far.
    Raises:
        ConfigError: a missing folder, no part of BIRD in it, or no usable row.
    """

    name = "bird"
    version = "1"
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = True
    instructions = (
        "You see a SQLite database and a question. Explain how to solve it, then answer with one SQL query, as:\n"
        "Thought: your thought\n\nAction:\n```sql\nSELECT ...\n```\nOnly the last block counts."
    )

    def __init__(
        self, folder: str | Path, *, text: Text, compare: Comparison, verify: bool, descriptions: bool, limits: Limits
    ) -> None:
        self._text, self._compare, self._verify, self._limits = text, compare, verify, limits
        self._descriptions = descriptions
        root = Path(folder)
        self._parts: dict[str, Folder] = {}
        for part in PARTS:
            folder_part = read_part(root, part)
            if folder_part is not None:
                self._parts[part] = folder_part
        if not self._parts:
            hint = "pass a folder with train.json or dev.json, or with the folders train and dev that contain them"
            raise ConfigError("no questions in the BIRD layout", value=str(root), hint=hint)
        self.problems = tuple(problem for folder_part in self._parts.values() for problem in folder_part.problems)
        if not any(folder_part.questions for folder_part in self._parts.values()):
            raise ConfigError(self.problems or f"no rows in {root}")
        self._panels: dict[str, tuple[Task, ...]] = {}
        self._schemas: dict[Path, tuple[Schema, Sequence[str]]] = {}
        self._scenes: OrderedDict[str, Scene] = OrderedDict()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of a split, in the order of the rows; unusable rows are left out and listed in
        `problems`.
        """
        if split not in self._panels:
            all_questions = [
                question for folder_part in self._parts.values() for question in folder_part.questions.values()
            ]
            split_questions = [question for question in all_questions if _choose_split(question) == split]
            usable = self._verify_questions(split_questions) if self._verify else split_questions
            self._panels[split] = tuple(self._build_task(question) for question in usable)
        return self._panels[split]

    def _verify_questions(self, questions: Sequence[Question]) -> list[Question]:
        """Returns the questions whose gold query has a result."""
        by_database: defaultdict[Path, list[Question]] = defaultdict(list)
        for question in questions:
            by_database[question.path].append(question)
        errors: dict[Question, str] = {}
        for path, database_questions in by_database.items():
            try:
                with closing(Database.open_file(path, self._limits)) as database:
                    answers = [(question, database.run(question.gold)) for question in database_questions]
                errors |= {
                    question: f"the gold query fails: {answer.error}" for question, answer in answers if answer.error
                }
            except EnvLost as error:
                errors |= dict.fromkeys(database_questions, str(error))
        failed = [question for question in questions if question in errors]
        self.problems += tuple(
            Problem(_row_name(question), errors[question], "the row is skipped") for question in failed
        )
        return [question for question in questions if question not in errors]

    def _build_task(self, question: Question) -> Task:
        spec = {"part": question.part, "row": question.row, "db": question.db, "digest": question.digest}
        return Task(self.name, self.version, spec, question.db, self.tiers[0], _choose_split(question))

    def _find_question(self, task: Task) -> Question:
        spec = task.spec
        part, row = spec.get("part"), spec.get("row")
        problems = []
        if not isinstance(part, str) or part not in self._parts:
            problems.append(unknown_name_problem("part", str(part), self._parts, location="part"))
        if type(row) is not int:
            problems.append(Problem("row", f"got {row!r}, expected the number of a row"))
        if problems:
            raise ConfigError(problems)
        question = self._parts[str(part)].questions.get(int(spec["row"]))
        if question is None:
            raise ConfigError(f"row of {part}.json not found", value=row)
        if spec.get("digest") != question.digest:
            raise VersionMismatch(
                f"the content of {_row_name(question)} has changed", value=spec.get("digest"), expected=question.digest
            )
        return question

    def scene(self, task: Task) -> Scene:
        """Returns the scene that all episodes of a task share.

        Raises:
            ConfigError: a spec that names no row of the folder.
            VersionMismatch: a row whose content has changed since the task was made.
            EnvLost: a database that cannot be read.
        """
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build_scene(self._find_question(task))
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.popitem(last=False)
            self._scenes[task.id] = scene
        return scene

    def _build_scene(self, question: Question) -> Scene:
        schema, notes = self._read_schema(question)
        hint = "" if self._text == "agentgym" else question.evidence
        shown_schema = (
            self._parts[question.part].listed_schemas.get(question.db, schema) if self._text == "agentgym" else schema
        )
        first_observation = render_prompt(shown_schema, question.question, hint=hint, text=self._text, notes=notes)
        quoted_names = ['"' + table.name.replace('"', '""') + '"' for table in schema.tables[:_MAX_LISTED_TABLES]]
        queries = [
            query
            for name in quoted_names
            for query in (f"SELECT COUNT(*) FROM {name}", f"SELECT * FROM {name} LIMIT 1")
        ]
        admissible = tuple(queries) or ("SELECT 1",)
        open_database = partial(Database.open_file, question.path, self._limits)
        return Scene(
            first_observation,
            question.gold,
            partial(tuple, admissible),
            open_database,
            self._compare,
            cacheable=not self._limits.clock,
        )

    def _read_schema(self, question: Question) -> tuple[Schema, Sequence[str]]:
        if question.path not in self._schemas:
            notes, problems = read_notes(question) if self._descriptions else ([], [])
            self.problems += tuple(problems)
            self._schemas[question.path] = read_schema(question.path, question.db), notes
        return self._schemas[question.path]

    def key(self, task: Task) -> str:
        """Returns the database and the question: rows with the same question about the same database are copies."""
        question = self._find_question(task)
        return f"{question.db}\n{' '.join(question.question.lower().split())}\n{question.evidence.lower()}"

    def rename(self, task: Task, rng: Random) -> Task:
        """Raises ConfigError: the names of a user's databases mean something."""
        raise ConfigError("names of a BIRD database cannot change", value=task.id, hint="use generated tasks")

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an item id of AgentGym; raises ConfigError with the range, or with the unusable row."""
        part = next((part for part, items in ITEMS.items() if index in items), None)
        if part is None:
            raise ConfigError("AgentGym item id out of range", value=index, expected="0 to 10961")
        row = index - ITEMS[part].start
        folder_part = self._parts.get(part)
        question = folder_part.questions.get(row) if folder_part else None
        if question is None:
            rows = f"{folder_part.count} rows" if folder_part else "part not found"
            raise ConfigError(f"{part}.json does not have a usable row {row}", value=index, expected=f"one of {rows}")
        return self._build_task(question)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None


def _choose_split(question: Question) -> str:
    if question.part == "dev":
        return "test"
    return "dev" if sample_seed("bird", "dev", question.db) % 10 == 0 else "train"


def _row_name(question: Question) -> str:
    return f"{question.part}.json, row {question.row}"
