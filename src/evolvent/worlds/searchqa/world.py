"""SearchQA: answer a question by searching a collection of short documents; the rules are those of AgentGym-RL's world.

    Question: what is the home of the teacher of anna?   ->  search teacher of anna
    <information>the teacher of anna is boris. ...</information>  ->  search home of boris  ->  ...  ->  answer keldon

By default question and collection are invented afresh for each task. The kind of a task is its chain of relations; the
tiers are those of `lookup`: `seen`, `evo` (a pair of relations never demonstrated), `combo` (the chain never trained as
a whole) and `longer` (one relation more). `SearchQA.from_files` plays a user's own documents and questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from random import Random
from typing import Literal

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Score, Task
from evolvent.worlds.base import Info, check_task, score_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grammar import Grammar
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.episode import SENTENCES, Rules, Scene, SearchQAEnv
from evolvent.worlds.searchqa.library import Library, read_library
from evolvent.worlds.searchqa.sources import Collection, Invented, Source
from evolvent.worlds.searchqa.tags import SearchGrammar

__all__ = ["SearchQA"]

_KNOWN_TASKS = 1024  # scenes kept ready; an invented collection takes some 50 KB
_KNOWN_NAMES = 4096
_HORIZON = 10  # of a user's questions
_INSTRUCTIONS = {
    False: "Answer the question. Actions: search and words, which shows the three documents that fit best; answer and "
    "a name. For example: search teacher of anna; answer boris.",
    True: "Answer the question. To search, write <search> words </search>: the three documents that fit best are shown "
    "between <information> and </information>. To answer, write <answer> name </answer>. You may think first, between "
    "<think> and </think>. Only the first action counts.",
}
_ENDS = {False: " A wrong answer ends the episode.", True: " After a wrong answer you may go on."}


class SearchQA:
    """The world of questions over a collection of documents.

    Args:
        library: a user's documents and questions (None: invented ones).
        hops: most relations in an invented training question (3 to 5); `longer` has one more.
        text: "short" (`search words`, documents as they are) or "searchqa" (`<search>words</search>`, documents with
            number and title, as in AgentGym). None: short for invented questions, searchqa for a library. Both forms
            of actions are always read.
        until_right: only a right answer ends the episode, as in the original; else any answer does.
        format_score: the reward of a wrong answer, below 1. It counts as no success.
        penalty: the reward of an action that is none, 0 or less.
        sizes: how many tasks the panels hold (None: the usual sizes, or all questions of a library).
        horizon: how many actions an episode may take (None: 2 * hops + 2, or 10 with a library).

    Raises:
        ConfigError: options out of range, all of them named.
    """

    version = "1"
    blocking = False

    def __init__(
        self,
        library: Library | None = None,
        *,
        hops: int = 3,
        text: Literal["short", "searchqa"] | None = None,
        until_right: bool = False,
        format_score: float = 0.0,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        problems = []
        if not 3 <= hops <= 5:
            problems.append(Problem("hops", f"{hops} relations in a question", "give 3, 4 or 5: combo needs 3"))
        if text not in (None, "short", "searchqa"):
            problems.append(Problem("text", f"unknown text {text!r}", "give 'short' or 'searchqa'"))
        if not 0.0 <= format_score < 1.0:
            problems.append(Problem("format_score", f"a reward of {format_score}", "give 0 or more, and less than 1"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
        if problems:
            raise ConfigError(problems)
        self.library = library
        self._source: Source = (
            Invented(self.version, hops=hops, sizes=sizes or Sizes())
            if library is None
            else Collection(self.version, library=library, sizes=sizes)
        )
        self.text = text or ("short" if library is None else "searchqa")
        tags = self.text == "searchqa"
        self.name, self.tiers = self._source.name, self._source.tiers
        self.instructions = _INSTRUCTIONS[tags] + _ENDS[until_right]
        self.grammar: Grammar = SearchGrammar(tags)
        self.horizon = horizon or (2 * hops + 2 if library is None else _HORIZON)
        self.reward_range = (min(0.0, penalty), 1.0)
        self._rules = Rules(tags, until_right, format_score, penalty)
        self._about = lru_cache(maxsize=_KNOWN_NAMES)(self._actions_about)
        self._scenes: dict[str, Scene] = {}

    @classmethod
    def from_files(
        cls,
        corpus: str | Path,
        questions: str | Path,
        *,
        until_right: bool = False,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
    ) -> SearchQA:
        """The world of a user's files of JSON lines; see `read_library` for what is read.

        `world.library.invalid` names the rows that were left out. For other options: `SearchQA(read_library(...))`.
        """
        library = read_library(corpus, questions)
        return cls(library, until_right=until_right, penalty=penalty, sizes=sizes)

    @classmethod
    def from_folder(cls, folder: str | Path) -> SearchQA:
        """The world of `corpus.jsonl` and `questions.jsonl` in a folder."""
        return cls.from_files(Path(folder) / "corpus.jsonl", Path(folder) / "questions.jsonl")

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier; raises ConfigError for a name that does not exist."""
        return self._source.tasks(split, tier)

    def make(self, task: Task) -> SearchQAEnv:
        """An Env for a task of this world.

        Raises:
            ConfigError: for a task of another world or a spec that is none.
            VersionMismatch: for a task of another version or of another collection.
        """
        return SearchQAEnv(task, self._scene(task))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the right answer, whatever came before; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Searches and the answer that they show; None where no search is known that shows it (a library's tasks)."""
        check_task(self, task)
        plan = self._source.plan(task)
        return None if plan is None else [move.written(tags=self._rules.tags) for move in plan]

    def key(self, task: Task) -> str:
        """Equal for invented tasks that differ in names only, and for a question written in two ways."""
        check_task(self, task)
        return self._source.key(task)

    def renamed(self, task: Task, rng: Random) -> Task:
        """An invented task under other names: another id; the same key, kind, tier and split.

        Raises:
            ConfigError: for a task of a library, whose names mean something.
        """
        check_task(self, task)
        return self._source.renamed(task, rng)

    def vocabulary(self) -> Sequence[str] | None:
        """Every word and mark of observations, listed actions and instructions, sorted; None with a library."""
        words = self._source.words()
        if words is None:
            return None
        return sorted({word for text in (*words, *SENTENCES, self.instructions) for word in words_of(text)})

    def _actions_about(self, name: str) -> tuple[str, ...]:
        return tuple(move.written(tags=self._rules.tags) for move in self._source.moves(name))

    def _scene(self, task: Task) -> Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            check_task(self, task)
            material = self._source.material(task)
            listed = tuple(move.written(tags=self._rules.tags) for move in material.always)
            scene = Scene(material, listed, self._about, self._rules)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene
