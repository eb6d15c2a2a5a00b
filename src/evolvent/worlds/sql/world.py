"""SQL: answer a question about a database with one query, as in BIRD and in AgentGym's SQL environment.

    team(id, name, city, wins); player(id, goals, name, team_id)
    player.team_id = team.id
    Give the highest goals of players of teams whose city is arvik.
        ->  SELECT MAX(player.goals) FROM player JOIN team ON player.team_id = team.id WHERE team.city = 'arvik'

The reward is 1 if the query's result is that of the gold query (`equal` says when), else 0. `SqlWorld()` has panels of
generated databases, rows and names drawn for each task (`kinds`, `draw`); `SqlWorld.from_bird(folder)` reads a folder
in the layout of BIRD. What a model writes meets a database that can only be read, within limits (`database`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Protocol

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, check_task, score_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar
from evolvent.worlds.panel import Sizes, check_names
from evolvent.worlds.sql.bird import Bird
from evolvent.worlds.sql.database import FILE, Limits
from evolvent.worlds.sql.episode import DONE, Scene, SqlEnv
from evolvent.worlds.sql.equal import COMPARISONS, Comparison
from evolvent.worlds.sql.generated import Generated
from evolvent.worlds.sql.grammar import Fenced
from evolvent.worlds.sql.schema import TEXTS, Text

__all__ = ["Source", "SqlWorld"]


class Source(Protocol):
    """Where tasks come from: a name and a version, panels, and the scene of each task."""

    name: str
    version: str
    tiers: tuple[str, ...]
    blocking: bool
    instructions: str

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split and tier that exist."""
        ...

    def scene(self, task: Task) -> Scene:
        """What all episodes of a task share; ConfigError for a spec that is none."""
        ...

    def key(self, task: Task) -> str:
        """The canonical form of a task."""
        ...

    def renamed(self, task: Task, rng: Random) -> Task:
        """The task under other names; ConfigError where names mean something."""
        ...

    def indexed(self, index: int) -> Task:
        """The task at an index of AgentGym's; ConfigError where there is none."""
        ...

    def vocabulary(self) -> Sequence[str] | None:
        """Every word that an episode can hold; None where that is open."""
        ...


class SqlWorld:
    """The SQL world.

    Args:
        rounds: how many queries an episode has. With one, as in AgentGym, the first query that the database answers is
            the answer. With more, queries show their results, and `done` or the last round makes the last the answer.
        text: how schema and question are told (`schema`): "short" (the vocabulary is closed), "agentgym" or "create".
        compare: "rows", or "set" for BIRD's own execution accuracy (`equal`).
        penalty: the reward of a text that is no query or that the database refuses, 0 or less.
        sizes: the sizes of the panels.

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
        _check(rounds, text, compare=compare, penalty=penalty)
        self._over(Generated(text=text, compare=compare, sizes=sizes or Sizes()), rounds, penalty)

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
        limits: Limits = FILE,
    ) -> SqlWorld:
        """BIRD itself, or anything in its layout, on a user's folder (`bird.Bird` says what is read).

        Args:
            folder: holds `train.json` or `dev.json` with their databases, or folders `train` and `dev` that do.
            text: "create" (CREATE TABLE statements, question and evidence), "agentgym" (its sentences, which leave the
                evidence out) or "short".
            verify: run the gold queries of a split when it is first used, and leave out those that fail or take too
                many steps. For all of BIRD that takes minutes; without it, such a task ends in `EnvLost`.
            descriptions: with "create", also tell what `database_description` says of the columns.
            limits: how far a query may go, gold queries too.
        Raises:
            ConfigError: as the constructor; or a folder without a task that can be used.
        """
        _check(rounds, text, compare=compare, penalty=penalty)
        source = Bird(folder, text=text, compare=compare, verify=verify, descriptions=descriptions, limits=limits)
        world = cls.__new__(cls)
        world._over(source, rounds, penalty)
        return world

    def _over(self, source: Source, rounds: int, penalty: float) -> None:
        self._source, self.rounds, self.penalty = source, rounds, penalty
        self.name, self.version, self.tiers, self.blocking = source.name, source.version, source.tiers, source.blocking
        self.horizon = rounds
        self.reward_range = (min(0.0, penalty), 1.0)
        self.instructions = source.instructions
        if rounds > 1:
            self.instructions += f" You have {rounds} queries; write {DONE} when the last one is your answer."

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be used of a folder so far: broken rows, and gold queries without a result."""
        return self._source.problems if isinstance(self._source, Bird) else ()

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        check_names(split, tier, self.tiers)
        return self._source.tasks(split, tier)

    def make(self, task: Task) -> SqlEnv:
        """An Env for one task.

        Raises:
            ConfigError: for a task of another world, or a spec that is none.
            VersionMismatch: for a task of another version, or a row of a folder that has changed.
        """
        check_task(self, task)
        return SqlEnv(task, self._source.scene(task), rounds=self.rounds, penalty=self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the right result, whatever penalties came before; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """The gold query."""
        check_task(self, task)
        gold = self._source.scene(task).gold
        return [gold] if self.rounds == 1 else [gold, DONE]

    def key(self, task: Task) -> str:
        """The canonical form of a task: equal for tasks that differ in names only."""
        check_task(self, task)
        return self._source.key(task)

    def renamed(self, task: Task, rng: Random) -> Task:
        """The same generated task under other names: another id, the same key, kind, tier and split.

        Raises:
            ConfigError: in a world over a user's databases, whose names mean something.
        """
        check_task(self, task)
        return self._source.renamed(task, rng)

    def indexed(self, index: int) -> Task:
        """The task at an item id of AgentGym's: 0 to 9427 are BIRD's training rows, 9428 to 10961 its dev rows.

        Raises:
            ConfigError: in a world that is not over BIRD, or where the folder has no usable row there.
        """
        return self._source.indexed(index)

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations, instructions and legal actions, sorted; None where that is open."""
        words = self._source.vocabulary()
        return None if words is None else sorted({*words, *words_of(self.instructions)})


def _check(rounds: int, text: str, *, compare: str, penalty: float) -> None:
    problems = []
    if rounds < 1:
        problems.append(Problem("rounds", f"{rounds} rounds", "give at least 1"))
    if text not in TEXTS:
        problems.append(unknown("text", text, TEXTS))
    if compare not in COMPARISONS:
        problems.append(unknown("comparison", compare, COMPARISONS, where="compare"))
    if not -inf < penalty <= 0:
        problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
    if problems:
        raise ConfigError(problems)
