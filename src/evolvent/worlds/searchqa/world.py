"""SearchQA: answer a question by searching a collection of short documents; the rules are those of AgentGym-RL's
world.

    Question: what is the home of the teacher of anna?   ->  search teacher of anna
    <information>the teacher of anna is boris. ...</information>  ->  search home of boris  ->  ...  ->  answer keldon

By default question and collection are generated anew for each task. The kind of a task is its chain of
relations; the tiers are those of `lookup`: `seen`, `evo` (a pair of relations never demonstrated), `combo` (the
chain never trained as a whole) and `longer` (one relation more). `SearchQA.from_files` plays a user's documents
and questions.
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
from evolvent.worlds.base import Grammar, Info, check_task, score_if_won
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.episode import SENTENCES, Rules, Scene, SearchQAEnv
from evolvent.worlds.searchqa.library import Library, read_library
from evolvent.worlds.searchqa.sources import Collection, GeneratedQuestions, Source
from evolvent.worlds.searchqa.tags import SearchGrammar

__all__ = ["SearchQA"]

_MAX_CACHED_SCENES = 1024  # scenes kept ready; an invented collection takes some 50 KB
_MAX_CACHED_NAMES = 4096
_LIBRARY_HORIZON = 10  # of a user's questions
_INSTRUCTIONS = {
    False: "Answer the question. Actions: search and words, which shows the three documents that fit best; answer and "
    "a name. For example: search teacher of anna; answer boris.",
    True: "Answer the question. To search, write <search> words </search>: the three documents that fit best are shown "
    "between <information> and </information>. To answer, write <answer> name </answer>. You may think first, between "
    "<think> and </think>. Only the first action counts.",
}
_ENDING_RULES = {False: " A wrong answer ends the episode.", True: " After a wrong answer you may go on."}


class SearchQA:
    """The world of questions over a collection of documents.

    Args:
        library: a user's documents and questions (None: generated ones).
        hops: maximum number of relations in a generated training question (3 to 5); `longer` has one more.
        text: "short" (`search words`, documents as they are) or "searchqa" (`<search>words</search>`, documents
            with number and title, as in AgentGym). None: short for generated questions, searchqa for a library.
            Both forms of actions are always read.
        until_right: only a right answer ends the episode, as in the original; else any answer does.
        format_score: the reward of a wrong answer, below 1. It does not count as success.
        penalty: the reward of an invalid action, 0 or less.
        sizes: panel sizes (None: the usual sizes, or all questions of a library).
        horizon: maximum number of actions of an episode (None: 2 * hops + 2, or 10 with a library).

    Raises:
        ConfigError: options out of range, all of them named.
    """

    version = "1"
    run_in_thread = False

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
            problems.append(Problem("hops", f"got {hops} relations in a question, expected 3, 4 or 5 (combo needs 3)"))
        if text not in (None, "short", "searchqa"):
            problems.append(Problem("text", f"unknown text {text!r}", "give 'short' or 'searchqa'"))
        if not 0.0 <= format_score < 1.0:
            problems.append(Problem("format_score", f"got {format_score}, expected 0 or more and less than 1"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if horizon is not None and horizon < 1:
            problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
        if problems:
            raise ConfigError(problems)
        self.library = library
        self._source: Source = (
            GeneratedQuestions(self.version, hops=hops, sizes=sizes or Sizes())
            if library is None
            else Collection(self.version, library=library, sizes=sizes)
        )
        self.text = text or ("short" if library is None else "searchqa")
        tags = self.text == "searchqa"
        self.name, self.tiers = self._source.name, self._source.tiers
        self.instructions = _INSTRUCTIONS[tags] + _ENDING_RULES[until_right]
        self.grammar: Grammar = SearchGrammar(tags)
        self.horizon = horizon or (2 * hops + 2 if library is None else _LIBRARY_HORIZON)
        self.reward_range = (min(0.0, penalty), 1.0)
        self._rules = Rules(tags, until_right, format_score, penalty)
        self._about = lru_cache(maxsize=_MAX_CACHED_NAMES)(self._actions_about)
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
        """Creates the world of a user's files of JSON lines; see `read_library` for the format.

        `world.library.invalid` names the rows that were left out. For other options: `SearchQA(read_library(...))`.
        """
        library = read_library(corpus, questions)
        return cls(library, until_right=until_right, penalty=penalty, sizes=sizes)

    @classmethod
    def from_folder(cls, folder: str | Path) -> SearchQA:
        """Creates the world of `corpus.jsonl` and `questions.jsonl` in a folder."""
        return cls.from_files(Path(folder) / "corpus.jsonl", Path(folder) / "questions.jsonl")

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._source.tasks(split, tier)

    def make(self, task: Task) -> SearchQAEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: a task of another world, or an invalid spec.
            VersionMismatch: a task of another version or of another collection.
        """
        return SearchQAEnv(task, self._get_scene(task))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the right answer, whatever came before; raw = the sum of the rewards, unit =
        1 or 0.
        """
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns searches and the answer that they reveal; None if no search is known to reveal it (tasks of a
        library).
        """
        check_task(self, task)
        plan = self._source.plan(task)
        return None if plan is None else [move.render(tags=self._rules.tags) for move in plan]

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names, and for a question in two spellings."""
        check_task(self, task)
        return self._source.key(task)

    def rename(self, task: Task, rng: Random) -> Task:
        """An invented task under other names: another id; the same key, kind, tier and split.

        Raises:
            ConfigError: for a task of a library, whose names mean something.
        """
        check_task(self, task)
        return self._source.rename(task, rng)

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word and mark of observations, listed actions and instructions, sorted; None with a library."""
        vocabulary_texts = self._source.vocabulary_texts()
        if vocabulary_texts is None:
            return None
        return sorted({word for text in (*vocabulary_texts, *SENTENCES, self.instructions) for word in words_of(text)})

    def _actions_about(self, name: str) -> tuple[str, ...]:
        return tuple(move.render(tags=self._rules.tags) for move in self._source.moves_about(name))

    def _get_scene(self, task: Task) -> Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            check_task(self, task)
            material = self._source.material(task)
            fixed_actions = tuple(move.render(tags=self._rules.tags) for move in material.fixed_moves)
            scene = Scene(material, fixed_actions, self._about, self._rules)
            while len(self._scenes) >= _MAX_CACHED_SCENES:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene
