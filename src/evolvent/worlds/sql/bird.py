"""BIRD as a source of scenes, over a user's folder.

The rows of `train.json` are the split `train`; of about every tenth of its databases they are the split `dev` instead,
so that no database is in both. The rows of `dev.json` are the split `test`. There is one tier, `seen`, and the kind of
a task is its database. A task names its row and a digest of what the row says, not the gold query.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

from evolvent.errors import ConfigError, EnvLost, Problem, VersionMismatch, unknown
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.sql.birdfiles import PARTS, Folder, Question, notes_of, read_part
from evolvent.worlds.sql.database import Database, Limits
from evolvent.worlds.sql.episode import Scene
from evolvent.worlds.sql.equal import Comparison
from evolvent.worlds.sql.schema import Schema, Text, prompt, read_schema

__all__ = ["ITEMS", "Bird"]

ITEMS: Mapping[str, range] = {"train": range(9428), "dev": range(9428, 10962)}
"""The item ids of AgentGym for BIRD's rows."""

_KNOWN_TASKS = 256  # scenes kept ready
_TABLES = 20  # of which the queries to choose from speak


class Bird:
    """The questions of a folder in BIRD's layout (see `birdfiles`).

    Args:
        folder: the folder.
        text: how schema and question are told.
        compare: when two results are the same.
        verify: whether the gold queries of a split are run before it is used.
        descriptions: whether the notes on columns are told, with the text "create".
        limits: how far a query may go.
    Attributes:
        problems: what could not be used so far.
    Raises:
        ConfigError: no folder, no part of BIRD in it, or not one row that can be used.
    """

    name = "bird"
    version = "1"
    tiers: tuple[str, ...] = ("seen",)
    blocking = True
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
            found = read_part(root, part)
            if found is not None:
                self._parts[part] = found
        if not self._parts:
            hint = "give a folder with train.json or dev.json, or with folders train and dev that have them"
            raise ConfigError("no questions in the layout of BIRD", value=str(root), hint=hint)
        self.problems = tuple(problem for found in self._parts.values() for problem in found.problems)
        if not any(found.questions for found in self._parts.values()):
            raise ConfigError(self.problems or f"no rows in {root}")
        self._panels: dict[str, tuple[Task, ...]] = {}
        self._schemas: dict[Path, tuple[Schema, Sequence[str]]] = {}
        self._scenes: OrderedDict[str, Scene] = OrderedDict()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split, in the order of the rows; what cannot be used is left out and told in `problems`."""
        if split not in self._panels:
            every = [question for found in self._parts.values() for question in found.questions.values()]
            chosen = [question for question in every if _split(question) == split]
            sound = self._verified(chosen) if self._verify else chosen
            self._panels[split] = tuple(self._task(question) for question in sound)
        return self._panels[split]

    def _verified(self, questions: Sequence[Question]) -> list[Question]:
        """The questions whose gold query has a result."""
        of_database: defaultdict[Path, list[Question]] = defaultdict(list)
        for question in questions:
            of_database[question.path].append(question)
        errors: dict[Question, str] = {}
        for path, asked in of_database.items():
            try:
                with closing(Database.opened(path, self._limits)) as database:
                    answers = [(question, database.run(question.gold)) for question in asked]
                errors |= {
                    question: f"the gold query fails: {answer.error}" for question, answer in answers if answer.error
                }
            except EnvLost as error:
                errors |= dict.fromkeys(asked, str(error))
        wrong = [question for question in questions if question in errors]
        self.problems += tuple(Problem(_where(question), errors[question], "the row is left out") for question in wrong)
        return [question for question in questions if question not in errors]

    def _task(self, question: Question) -> Task:
        spec = {"part": question.part, "row": question.row, "db": question.db, "digest": question.digest}
        return Task(self.name, self.version, spec, question.db, self.tiers[0], _split(question))

    def _question(self, task: Task) -> Question:
        spec = task.spec
        part, row = spec.get("part"), spec.get("row")
        problems = []
        if not isinstance(part, str) or part not in self._parts:
            problems.append(unknown("part", str(part), self._parts, where="part"))
        if type(row) is not int:
            problems.append(Problem("row", f"{row!r} is no whole number", "give the place of a row"))
        if problems:
            raise ConfigError(problems)
        question = self._parts[str(part)].questions.get(int(spec["row"]))
        if question is None:
            raise ConfigError(f"{part}.json has no such row that can be used", value=row)
        if spec.get("digest") != question.digest:
            raise VersionMismatch(
                f"{_where(question)} says something else", value=spec.get("digest"), expected=question.digest
            )
        return question

    def scene(self, task: Task) -> Scene:
        """What all episodes of a task share.

        Raises:
            ConfigError: a spec that names no row of the folder.
            VersionMismatch: a row that says something else than when the task was made.
            EnvLost: a database that cannot be read.
        """
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build(self._question(task))
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.popitem(last=False)
            self._scenes[task.id] = scene
        return scene

    def _build(self, question: Question) -> Scene:
        schema, notes = self._schema(question)
        hint = "" if self._text == "agentgym" else question.evidence
        listed = self._parts[question.part].listed.get(question.db, schema) if self._text == "agentgym" else schema
        first = prompt(listed, question.question, hint=hint, text=self._text, notes=notes)
        names = ['"' + table.name.replace('"', '""') + '"' for table in schema.tables[:_TABLES]]
        queries = [
            query for name in names for query in (f"SELECT COUNT(*) FROM {name}", f"SELECT * FROM {name} LIMIT 1")
        ]
        admissible = tuple(queries) or ("SELECT 1",)
        opened = partial(Database.opened, question.path, self._limits)
        return Scene(first, question.gold, admissible, opened, self._compare, kept=not self._limits.clock)

    def _schema(self, question: Question) -> tuple[Schema, Sequence[str]]:
        if question.path not in self._schemas:
            notes, problems = notes_of(question) if self._descriptions else ([], [])
            self.problems += tuple(problems)
            self._schemas[question.path] = read_schema(question.path, question.db), notes
        return self._schemas[question.path]

    def key(self, task: Task) -> str:
        """The database and the question: rows that ask the same of the same database are copies."""
        question = self._question(task)
        return f"{question.db}\n{' '.join(question.question.lower().split())}\n{question.evidence.lower()}"

    def renamed(self, task: Task, rng: Random) -> Task:
        """Raises ConfigError: the names of a user's databases mean something."""
        raise ConfigError("the names of a database of BIRD's mean something", value=task.id, hint="use generated tasks")

    def indexed(self, index: int) -> Task:
        """The task at an item id of AgentGym's; ConfigError naming the range, or the row that cannot be used."""
        part = next((part for part, items in ITEMS.items() if index in items), None)
        if part is None:
            raise ConfigError("no item id of AgentGym's", value=index, expected="0 to 10961")
        row = index - ITEMS[part].start
        found = self._parts.get(part)
        question = found.questions.get(row) if found else None
        if question is None:
            rows = f"{found.count} rows" if found else "no such part"
            raise ConfigError(f"{part}.json has no row {row} that can be used", value=index, expected=f"one of {rows}")
        return self._task(question)

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None


def _split(question: Question) -> str:
    if question.part == "dev":
        return "test"
    return "dev" if sample_seed("bird", "dev", question.db) % 10 == 0 else "train"


def _where(question: Question) -> str:
    return f"{question.part}.json, row {question.row}"
