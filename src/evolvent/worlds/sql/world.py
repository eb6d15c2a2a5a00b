"""SQL: answer a question about a database with one query, as in BIRD and in AgentGym's SQL environment.

    team(id, name, city, wins); player(id, goals, name, team_id)
    player.team_id = team.id
    Give the highest goals of players of teams whose city is arvik.
        ->  SELECT MAX(player.goals) FROM player JOIN team ON player.team_id = team.id WHERE team.city = 'arvik'

The reward is 1 if the query's result equals that of the gold query (`equal`), else 0. `SqlWorld()` has panels
of generated databases, rows and names drawn for each task (`kinds`, `draw`); `SqlWorld.from_bird(folder)` reads
a folder in the layout of BIRD. A model's queries run on a read-only database, within limits (`database`).

Generated tasks as a source of scenes, each with its own database.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Protocol

from evolvent.errors import ConfigError, Problem, find_nearest, unknown_name_problem
from evolvent.trajectory import Json, Score, Task
from evolvent.worlds.base import TIERS, Grammar, Info, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import DealtOnce, Panels, Sizes, check_names
from evolvent.worlds.sql.bird import Bird
from evolvent.worlds.sql.database import FILE_LIMITS, Limits
from evolvent.worlds.sql.domains import DOMAINS, KEYS, TERMS, VALUES
from evolvent.worlds.sql.draw import Draft, iterate_candidates
from evolvent.worlds.sql.episode import DONE, NUMBERS, Scene, SqlEnv
from evolvent.worlds.sql.equal import COMPARISONS, Comparison
from evolvent.worlds.sql.grammar import Fenced
from evolvent.worlds.sql.kinds import Kind, kinds_by_tier
from evolvent.worlds.sql.query import FIXED_WORDS
from evolvent.worlds.sql.schema import TEXTS, Text, render_prompt

__all__ = ["INSTRUCTIONS", "Generated", "Source", "SqlWorld", "closed_vocabulary"]


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


class Generated(DealtOnce):
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
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes, draw=iterate_candidates, recipe=self.recipe
        )

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
        return Scene(
            first_observation,
            draft.gold,
            draft.list_admissible,
            draft.create_database,
            self._compare,
            vocabulary,
            run_gold=draft.run_gold,
        )

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
                    "kind", f"unknown kind {spec.get('kind')!r}", f"did you mean {suggestion!r}?" if suggestion else ""
                )
            )
        for field, value in zip(("seed", "names"), numbers, strict=True):
            if type(value) is not int or not 0 <= value < 2**63:
                problems.append(Problem(field, f"got {value!r}, expected a whole number below 2 ** 63"))
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
        raise ConfigError("generated tasks do not have an AgentGym index", value=index, hint="use SqlWorld.from_bird")

    def vocabulary(self) -> Sequence[str] | None:
        """Returns the closed vocabulary, sorted; None if the database's own words are shown."""
        return sorted(closed_vocabulary()) if self._text == "short" else None


class Source(Protocol):
    """A source of tasks: a name and a version, panels, and the scene of each task."""

    name: str
    version: str
    tiers: tuple[str, ...]
    run_in_thread: bool
    instructions: str

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of an existing split and tier."""
        ...

    def scene(self, task: Task) -> Scene:
        """Returns the scene that all episodes of a task share; raises ConfigError for an invalid spec."""
        ...

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task."""
        ...

    def rename(self, task: Task, rng: Random) -> Task:
        """The task under other names; ConfigError where names mean something."""
        ...

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an index of AgentGym; raises ConfigError if there is none."""
        ...

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word that an episode can contain, or None if the vocabulary is open."""
        ...


class SqlWorld:
    """The SQL world.

    Args:
        rounds: number of queries per episode. With one, as in AgentGym, the first query that the database answers
            is the answer. With more, queries show their results, and `done` or the last round makes the last the
            answer.
        text: the form of schema and question (`schema`): "short" (the vocabulary is closed), "agentgym" or
            "create".
        compare: "rows", or "set" for BIRD's own execution accuracy (`equal`).
        penalty: the reward of a text that is not a query or that the database refuses, 0 or less.
        sizes: panel sizes.

    Raises:
        ConfigError: less than one round, an unknown text or comparison, a penalty that is positive or not finite.
    """

    grammar: Grammar = Fenced()

    def __init__(
        self,
        *,
        rounds: int = 1,
        text: Text = "short",
        compare: Comparison = "rows",
        penalty: float = 0.0,
        sizes: Sizes | None = None,
    ) -> None:
        _check_options(rounds, text, compare=compare, penalty=penalty)
        self._set_source(Generated(text=text, compare=compare, sizes=sizes or Sizes()), rounds, penalty)

    @classmethod
    def from_bird(
        cls,
        folder: str | Path,
        *,
        rounds: int = 1,
        text: Text = "create",
        compare: Comparison = "rows",
        penalty: float = 0.0,
        verify: bool = True,
        descriptions: bool = False,
        limits: Limits = FILE_LIMITS,
    ) -> SqlWorld:
        """Creates the world of BIRD, or of anything in its layout, from a user's folder (see `bird.Bird`).

        Args:
            folder: contains `train.json` or `dev.json` with their databases, or folders `train` and `dev` that do.
            text: "create" (CREATE TABLE statements, question and evidence), "agentgym" (its sentences, which leave the
                evidence out) or "short".
            verify: run the gold queries of a split when it is first used, and leave out those that fail or take too
                many steps. For all of BIRD that takes minutes; without it, such a task ends in `EnvLost`.
            descriptions: with "create", also show the notes of `database_description` on the columns.
            limits: the limits of a query, gold queries included.
        Raises:
            ConfigError: as the constructor; or a folder without a usable task.
        """
        _check_options(rounds, text, compare=compare, penalty=penalty)
        source = Bird(folder, text=text, compare=compare, verify=verify, descriptions=descriptions, limits=limits)
        world = cls.__new__(cls)
        world._set_source(source, rounds, penalty)
        return world

    def _set_source(self, source: Source, rounds: int, penalty: float) -> None:
        self._source, self.rounds, self.penalty = source, rounds, penalty
        self.name, self.version, self.tiers, self.run_in_thread = (
            source.name,
            source.version,
            source.tiers,
            source.run_in_thread,
        )
        self.horizon = rounds
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = source.instructions
        if rounds > 1:
            self.instructions += f" You have {rounds} queries; write {DONE} when the last one is your answer."

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Returns the problems of a folder found so far: broken rows, and gold queries without a result."""
        return self._source.problems if isinstance(self._source, Bird) else ()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        check_names(split, tier, self.tiers)
        return self._source.tasks(split, tier)

    def make(self, task: Task) -> SqlEnv:
        """Creates an Env for one task.

        Raises:
            ConfigError: a task of another world, or an invalid spec.
            VersionMismatch: a task of another version, or a row of a folder that has changed.
        """
        check_task(self, task)
        return SqlEnv(task, self._source.scene(task), rounds=self.rounds, penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the right result, whatever penalties came before; raw = the sum of the
        rewards.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the gold query, followed by `done` if an episode has several rounds."""
        check_task(self, task)
        gold = self._source.scene(task).gold
        return [gold] if self.rounds == 1 else [gold, DONE]

    def key(self, task: Task) -> str:
        """Returns the canonical form of a task, equal for tasks that differ only in names."""
        check_task(self, task)
        return self._source.key(task)

    def rename(self, task: Task, rng: Random) -> Task:
        """The same generated task under other names: another id, the same key, kind, tier and split.

        Raises:
            ConfigError: in a world over a user's databases, whose names mean something.
        """
        check_task(self, task)
        return self._source.rename(task, rng)

    def task_at_index(self, index: int) -> Task:
        """Returns the task at an item id of AgentGym: 0 to 9427 are BIRD's training rows, 9428 to 10961 its dev
        rows.

        Raises:
            ConfigError: the world is not over BIRD, or the folder has no usable row there.
        """
        return self._source.task_at_index(index)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations, instructions and legal actions, sorted; None if they are
        open.
        """
        vocabulary = self._source.vocabulary()
        return None if vocabulary is None else sorted({*vocabulary, *words_of(self.instructions)})


def _check_options(rounds: int, text: str, *, compare: str, penalty: float) -> None:
    problems = []
    if rounds < 1:
        problems.append(Problem("rounds", f"got {rounds}, expected at least 1"))
    if text not in TEXTS:
        problems.append(unknown_name_problem("text", text, TEXTS))
    if compare not in COMPARISONS:
        problems.append(unknown_name_problem("comparison", compare, COMPARISONS, location="compare"))
    if not -inf < penalty <= 0:
        problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
    if problems:
        raise ConfigError(problems)
