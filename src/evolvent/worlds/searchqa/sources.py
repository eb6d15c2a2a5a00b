"""Where questions come from: invented afresh for each task, or from a user's own collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from random import Random
from typing import Protocol

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Task
from evolvent.worlds.base import SPLITS, TIERS, split_of
from evolvent.worlds.panel import Candidate, Panels, Sizes, check_names
from evolvent.worlds.searchqa.answers import normalised
from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.episode import Material
from evolvent.worlds.searchqa.invented import (
    POOLS,
    RELATIONS,
    Chain,
    Draws,
    Facts,
    draw_facts,
    possible,
    tiers_of_chains,
)
from evolvent.worlds.searchqa.library import Library, Question
from evolvent.worlds.searchqa.pages import TOLD, documents_of
from evolvent.worlds.searchqa.tags import Move

__all__ = ["Collection", "Invented", "Source"]


class Source(Protocol):
    """Where a world's questions come from. Its methods raise ConfigError for a spec that is none of its own."""

    name: str
    tiers: tuple[str, ...]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The panel of a split and tier."""
        ...

    def material(self, task: Task) -> Material:
        """What a task is made of."""
        ...

    def moves(self, name: str) -> tuple[Move, ...]:
        """The moves that speak of a name."""
        ...

    def plan(self, task: Task) -> tuple[Move, ...] | None:
        """Moves that lead to the right answer by way of documents that hold it, where they are known."""
        ...

    def key(self, task: Task) -> str:
        """Equal for tasks that are the same up to names, or up to how they are written."""
        ...

    def renamed(self, task: Task, rng: Random) -> Task:
        """The task under other names; ConfigError where names mean something."""
        ...

    def words(self) -> tuple[str, ...] | None:
        """Texts with all words of its questions and documents, or None where these are open."""
        ...


class Invented:
    """Questions about invented facts, each with documents of its own.

    A task is (chain of relations, seed), and, where it was renamed, the seed of its names.

    Args:
        version: the world's.
        hops: most relations in a training question.
        sizes: of the panels.
    """

    name = "searchqa"
    tiers = TIERS

    def __init__(self, version: str, *, hops: int, sizes: Sizes) -> None:
        self._hops = hops
        self._panels = Panels(self.name, version, self.tiers, sizes=sizes, draw=self._draw)

    @cached_property
    def _chains(self) -> Mapping[str, tuple[Chain, ...]]:
        return tiers_of_chains(self._hops)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Tasks without end: one of every kind of the tier, then the next of every kind."""
        for seed in count():
            for chain in self._chains[tier]:
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed}
                yield Candidate(spec, " of ".join(reversed(chain)), tier, draw_facts(chain, seed).canonical())

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def _facts(self, task: Task) -> Facts:
        chain, seed, naming = (task.spec.get(key) for key in ("chain", "seed", "names"))
        problems = []
        if not possible(chain):
            problems.append(Problem("chain", f"{chain!r} is no chain of relations", f"known: {', '.join(RELATIONS)}"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"{seed!r} is no whole number", "give one"))
        if naming is not None and type(naming) is not int:
            problems.append(Problem("names", f"{naming!r} is no whole number", "give one, or leave it out"))
        if problems:
            raise ConfigError(problems)
        return draw_facts(tuple(task.spec["chain"]), task.spec["seed"], naming=naming)

    def material(self, task: Task) -> Material:
        facts = self._facts(task)
        documents = documents_of(facts, Draws("pages", task.spec["seed"], *facts.chain))
        index = Index(document.contents for document in documents)
        return Material(facts.question, (facts.answer,), documents, index, (facts.names[facts.start],))

    def moves(self, name: str) -> tuple[Move, ...]:
        of = next(kind for kind, pool in POOLS.items() if name in pool)
        searches = (Move("search", f"{r.name} of {name}") for r in RELATIONS.values() if r.of == of)
        return (*searches, Move("answer", name))

    def plan(self, task: Task) -> tuple[Move, ...]:
        """Search for the relations in their order, then answer: the shortest way."""
        facts = self._facts(task)
        path = [facts.names[entity] for entity in facts.walk()]
        searches = (Move("search", f"{r} of {name}") for r, name in zip(facts.chain, path, strict=False))
        return (*searches, Move("answer", path[-1]))

    def key(self, task: Task) -> str:
        return self._facts(task).canonical()

    def renamed(self, task: Task, rng: Random) -> Task:
        self._facts(task)
        spec = {**task.spec, "names": rng.getrandbits(31)}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def words(self) -> tuple[str, ...]:
        return (*(name for pool in POOLS.values() for name in pool), *RELATIONS, TOLD, "who what?")


class Collection:
    """The questions of a library. A task is a question with its answers and the digest of the documents.

    Args:
        version: the world's.
        library: documents and questions.
        sizes: most tasks of each split (None: all questions).
    """

    name = "searchqa_files"
    tiers = TIERS[:1]

    def __init__(self, version: str, *, library: Library, sizes: Sizes | None = None) -> None:
        self._library, self._version = library, version
        self._panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for question in library.questions:
            task = self._task(question)
            if sizes is None or len(self._panel[task.split]) < sizes.of(task.split):
                self._panel[task.split].append(task)

    def _task(self, question: Question) -> Task:
        spec: dict[str, Json] = {
            "corpus": self._library.digest,
            "question": question.text,
            "answers": list(question.answers),
        }
        if question.queries:
            spec["queries"] = list(question.queries)
        split = question.split or split_of({"key": normalised(question.text)}, salt=self.name)
        return Task(self.name, self._version, spec, question.kind, self.tiers[0], split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        check_names(split, tier, self.tiers)
        return tuple(self._panel[split])

    def _question(self, task: Task) -> Question:
        text, answers, queries = task.spec.get("question"), task.spec.get("answers"), task.spec.get("queries", [])
        problems = []
        if not isinstance(text, str) or not text:
            problems.append(Problem("question", f"{text!r} is no question", "give a text"))
        if not _texts(answers) or not answers:
            problems.append(Problem("answers", f"{answers!r} are no answers", "give a list of texts, at least one"))
        if not _texts(queries):
            problems.append(Problem("queries", f"{queries!r} are no queries", "give a list of texts"))
        if problems:
            raise ConfigError(problems)
        if task.spec.get("corpus") != self._library.digest:
            raise VersionMismatch(
                "a task of another collection", value=task.spec.get("corpus"), expected=self._library.digest
            )
        return Question(task.spec["question"], tuple(task.spec["answers"]), task.kind, task.split, tuple(queries))

    def material(self, task: Task) -> Material:
        question, library = self._question(task), self._library
        always = (Move("search", question.text),)
        return Material(question.text, question.answers, library.documents, library.index, always=always)

    def moves(self, name: str) -> tuple[Move, ...]:
        return Move("search", name), Move("answer", name)

    def plan(self, task: Task) -> tuple[Move, ...] | None:
        """The known queries, else the question itself; None unless what they find holds a golden answer."""
        question, library = self._question(task), self._library
        queries = question.queries or (question.text,)
        found = [library.documents[place].contents for query in queries for place in library.index.best(query)]
        read = f" {normalised(' '.join(found))} "
        told = next((answer for answer in question.answers if f" {normalised(answer)} " in read), None)
        return None if told is None else (*(Move("search", query) for query in queries), Move("answer", told))

    def key(self, task: Task) -> str:
        return normalised(self._question(task).text)

    def renamed(self, task: Task, rng: Random) -> Task:
        raise ConfigError("the names of a collection mean something", value=task.id, hint="use invented questions")

    def words(self) -> None:
        return None


def _texts(value: object) -> bool:
    """Whether this is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
