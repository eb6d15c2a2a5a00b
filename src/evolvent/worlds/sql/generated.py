"""Generated tasks as a source of scenes: a database of its own for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from evolvent.errors import ConfigError, Problem, nearest
from evolvent.trajectory import Json, Task
from evolvent.worlds.base import TIERS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Panels, Sizes
from evolvent.worlds.sql.domains import DOMAINS, KEYS, TERMS, VALUES
from evolvent.worlds.sql.draw import Draft, candidates
from evolvent.worlds.sql.episode import DONE, NUMBERS, Scene
from evolvent.worlds.sql.equal import Comparison
from evolvent.worlds.sql.kinds import Kind, kinds_of_tiers
from evolvent.worlds.sql.query import FIXED_WORDS
from evolvent.worlds.sql.schema import Text, prompt

__all__ = ["INSTRUCTIONS", "Generated", "closed_words"]

INSTRUCTIONS = (
    "Answer the question with one SQL query for SQLite. You see the tables, how they are joined, and sometimes a hint. "
    "Write the query alone, or in a block of sql."
)
_ERRORS = (
    "expected one SELECT query near syntax error no such column table function ambiguous name incomplete input "
    "misuse of aggregate wrong number of arguments to not authorized to use the query is too complex takes too many "
    "steps unrecognized token SELECTs left and right do not have same result columns You can only execute one "
    "statement at a time : ? \" ( ) ' - ; , . no rows NULL"
)
_KNOWN_TASKS = 4096  # scenes kept ready


@cache
def closed_words() -> frozenset[str]:
    """Every word and mark of the observations and legal actions of generated tasks told `short`."""
    texts = [FIXED_WORDS, _ERRORS, INSTRUCTIONS, DONE, *TERMS, *KEYS, "name", *map(str, NUMBERS)]
    for entities in DOMAINS.values():
        for entity in entities:
            texts += [entity.name, entity.plural, *entity.names, *entity.texts, *entity.numbers]
            texts += [f"{entity.parent}_{key}" for key in KEYS if entity.parent]
            texts += [value for column in entity.texts for value in VALUES[column]]
    return frozenset(word for text in texts for word in words_of(text))


class Generated:
    """The generated tasks, in panels.

    Args:
        text: how schema and question are told; with `short` the vocabulary is closed.
        compare: when two results are the same.
        sizes: of the panels.
    """

    name = "sql"
    version = "1"
    tiers = TIERS
    blocking = False
    instructions = INSTRUCTIONS

    def __init__(self, *, text: Text, compare: Comparison, sizes: Sizes) -> None:
        self._text, self._compare = text, compare
        self._scenes: dict[str, Scene] = {}
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=candidates)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def scene(self, task: Task) -> Scene:
        """What all episodes of a task share; ConfigError for a spec that is none."""
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build(self.draft(task))
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _build(self, draft: Draft) -> Scene:
        first = prompt(draft.schema, draft.question, hint=draft.hint, text=self._text)
        words = closed_words() if self._text == "short" else None
        return Scene(first, draft.gold, draft.admissible, draft.database, self._compare, words)

    def draft(self, task: Task) -> Draft:
        """The draft that a task's spec names; ConfigError naming everything that is wrong with it."""
        spec = task.spec
        kind, numbers = Kind.read(spec.get("kind")), [spec.get("seed"), spec.get("names")]
        problems = []
        if kind is None:
            every = (str(known) for kinds in kinds_of_tiers().values() for known in kinds)
            near = nearest(str(spec.get("kind")), every)
            problems.append(
                Problem("kind", f"{spec.get('kind')!r} is no kind", f"did you mean {near!r}?" if near else "")
            )
        for where, value in zip(("seed", "names"), numbers, strict=True):
            if type(value) is not int or not 0 <= value < 2**63:
                problems.append(Problem(where, f"{value!r} is no whole number below 2 ** 63", "give one"))
        if kind is None or problems:
            raise ConfigError(problems)
        return Draft(kind, int(spec["seed"]), int(spec["names"]))

    def key(self, task: Task) -> str:
        """The canonical form of a task: equal for tasks that differ in names only."""
        return self.draft(task).canonical()

    def renamed(self, task: Task, rng: Random) -> Task:
        """The same outline under other names; another id, the same key, kind, tier and split."""
        self.draft(task)
        names = 1 + int(rng.random() * 2**31)
        spec: dict[str, Json] = {**task.spec, "names": names}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def indexed(self, index: int) -> Task:
        """Raises ConfigError: only BIRD's tasks have the indices of AgentGym."""
        raise ConfigError("generated tasks have no index of AgentGym's", value=index, hint="use SqlWorld.from_bird")

    def vocabulary(self) -> Sequence[str] | None:
        """The closed vocabulary, sorted; None where the database's own words are told."""
        return sorted(closed_words()) if self._text == "short" else None
