"""Generated tasks as a source of scenes, each with its own database."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from evolvent.errors import ConfigError, Problem, find_nearest
from evolvent.trajectory import Json, Task
from evolvent.worlds.base import TIERS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Panels, Sizes
from evolvent.worlds.sql.domains import DOMAINS, KEYS, TERMS, VALUES
from evolvent.worlds.sql.draw import Draft, iterate_candidates
from evolvent.worlds.sql.episode import DONE, NUMBERS, Scene
from evolvent.worlds.sql.equal import Comparison
from evolvent.worlds.sql.kinds import Kind, kinds_by_tier
from evolvent.worlds.sql.query import FIXED_WORDS
from evolvent.worlds.sql.schema import Text, render_prompt

__all__ = ["INSTRUCTIONS", "Generated", "closed_vocabulary"]

INSTRUCTIONS = (
    "Answer the question with one SQL query for SQLite. You see the tables, how they are joined, and sometimes a hint. "
    "Write the query alone, or in a block of sql."
)
_ERROR_WORDS = (
    "expected one SELECT query near syntax error no such column table function ambiguous name incomplete input "
    "misuse of aggregate wrong number of arguments to not authorized to use the query is too complex takes too many "
    "steps unrecognized token SELECTs left and right do not have same result columns You can only execute one "
    "statement at a time : ? \" ( ) ' - ; , . no rows NULL"
)
_MAX_CACHED_SCENES = 4096  # scenes kept ready


@cache
def closed_vocabulary() -> frozenset[str]:
    """Returns every word and mark of the observations and legal actions of generated tasks with the text `short`."""
    texts = [FIXED_WORDS, _ERROR_WORDS, INSTRUCTIONS, DONE, *TERMS, *KEYS, "name", *map(str, NUMBERS)]
    for entities in DOMAINS.values():
        for entity in entities:
            texts += [entity.name, entity.plural, *entity.names, *entity.texts, *entity.numbers]
            texts += [f"{entity.parent}_{key}" for key in KEYS if entity.parent]
            texts += [value for column in entity.texts for value in VALUES[column]]
    return frozenset(word for text in texts for word in words_of(text))


class Generated:
    """The generated tasks, in panels.

    Args:
        text: the form in which schema and question are written; with `short` the vocabulary is closed.
        compare: the rule by which two results are equal.
        sizes: panel sizes.
    """

    name = "sql"
    version = "1"
    tiers = TIERS
    run_in_thread = False
    instructions = INSTRUCTIONS

    def __init__(self, *, text: Text, compare: Comparison, sizes: Sizes) -> None:
        self._text, self._compare = text, compare
        self._scenes: dict[str, Scene] = {}
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes, draw=iterate_candidates)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def scene(self, task: Task) -> Scene:
        """Returns the scene that all episodes of a task share; raises ConfigError for an invalid spec."""
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build_scene(self.build_draft(task))
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _build_scene(self, draft: Draft) -> Scene:
        first_observation = render_prompt(draft.schema, draft.question, hint=draft.hint, text=self._text)
        vocabulary = closed_vocabulary() if self._text == "short" else None
        return Scene(first_observation, draft.gold, draft.admissible, draft.create_database, self._compare, vocabulary)

    def build_draft(self, task: Task) -> Draft:
        """Builds the draft that a task's spec names; raises ConfigError with everything that is wrong in it."""
        spec = task.spec
        kind, numbers = Kind.from_name(spec.get("kind")), [spec.get("seed"), spec.get("names")]
        problems = []
        if kind is None:
            kind_names = (str(known_kind) for kinds in kinds_by_tier().values() for known_kind in kinds)
            suggestion = find_nearest(str(spec.get("kind")), kind_names)
            problems.append(
                Problem(
                    "kind", f"{spec.get('kind')!r} is no kind", f"did you mean {suggestion!r}?" if suggestion else ""
                )
            )
        for field, value in zip(("seed", "names"), numbers, strict=True):
            if type(value) is not int or not 0 <= value < 2**63:
                problems.append(Problem(field, f"{value!r} is no whole number below 2 ** 63", "give one"))
        if kind is None or problems:
            raise ConfigError(problems)
        return Draft(kind, int(spec["seed"]), int(spec["names"]))

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task, equal for tasks that differ only in names."""
        return self.build_draft(task).digest()

    def rename(self, task: Task, rng: Random) -> Task:
        """The same outline under other names; another id, the same key, kind, tier and split."""
        self.build_draft(task)
        names = 1 + int(rng.random() * 2**31)
        spec: dict[str, Json] = {**task.spec, "names": names}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def task_at_index(self, index: int) -> Task:
        """Raises ConfigError: only BIRD's tasks have the indices of AgentGym."""
        raise ConfigError("generated tasks have no index of AgentGym's", value=index, hint="use SqlWorld.from_bird")

    def vocabulary(self) -> Sequence[str] | None:
        """Returns the closed vocabulary, sorted; None if the database's own words are shown."""
        return sorted(closed_vocabulary()) if self._text == "short" else None
