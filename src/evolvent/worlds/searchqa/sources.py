"""Sources of questions: generated anew for each task, or taken from a user's collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from random import Random
from typing import Protocol

from evolvent.errors import ConfigError, Problem, VersionMismatch
from evolvent.trajectory import Json, Task
from evolvent.worlds.base import SPLITS, TIERS, split_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes, check_names
from evolvent.worlds.searchqa.answers import normalize_answer
from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.episode import Material
from evolvent.worlds.searchqa.invented import (
    POOLS,
    RELATIONS,
    Chain,
    Draws,
    Facts,
    chains_by_tier,
    draw_facts,
    is_chain,
)
from evolvent.worlds.searchqa.library import Library, Question
from evolvent.worlds.searchqa.pages import FIXED_WORDS, build_documents
from evolvent.worlds.searchqa.tags import Move

__all__ = ["Collection", "GeneratedQuestions", "Source"]


class Source(Protocol):
    """A source of a world's questions. Its methods raise ConfigError for a spec that is not its own."""

    name: str
    tiers: tuple[str, ...]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the panel of a split and tier."""
        ...

    def material(self, task: Task) -> Material:
        """Returns the contents of a task."""
        ...

    def moves_about(self, name: str) -> tuple[Move, ...]:
        """Returns the moves that mention a name."""
        ...

    def plan(self, task: Task) -> tuple[Move, ...] | None:
        """Returns moves that lead to the right answer through documents that contain it, or None if they are
        unknown.
        """
        ...

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names or in spelling."""
        ...

    def rename(self, task: Task, rng: Random) -> Task:
        """The task under other names; ConfigError where names mean something."""
        ...

    def vocabulary_texts(self) -> tuple[str, ...] | None:
        """Returns texts with all words of its questions and documents, or None if these are open."""
        ...


class GeneratedQuestions(DealtOnce):
    """Questions about generated facts, each with its own documents.

    A task is (chain of relations, seed), and, if it was renamed, the seed of its names.

    Args:
        version: version of the world.
        hops: maximum number of relations in a training question.
        sizes: panel sizes.
    """

    name = "searchqa"
    tiers = TIERS

    def __init__(self, version: str, *, hops: int, sizes: Sizes) -> None:
        self._hops = hops
        self._panels = Panels(self.name, version, self.tiers, sizes=sizes, draw=self._draw, recipe=self.recipe)

    @cached_property
    def _chains(self) -> Mapping[str, tuple[Chain, ...]]:
        return chains_by_tier(self._hops)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end: one of every kind of the tier, then the next of every kind."""
        for seed in count():
            for chain in self._chains[tier]:
                spec: dict[str, Json] = {"chain": list(chain), "seed": seed}
                yield Candidate(spec, " of ".join(reversed(chain)), tier, draw_facts(chain, seed).digest())

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        return self._panels.tasks(split, tier)

    def _build_facts(self, task: Task) -> Facts:
        chain, seed, naming = (task.spec.get(key) for key in ("chain", "seed", "names"))
        problems = []
        if not is_chain(chain):
            problems.append(Problem("chain", f"unknown chain of relations {chain!r}", f"known: {', '.join(RELATIONS)}"))
        if type(seed) is not int:
            problems.append(Problem("seed", f"got {seed!r}, expected a whole number"))
        if naming is not None and type(naming) is not int:
            problems.append(Problem("names", f"got {naming!r}, expected a whole number", "correct it, or leave it out"))
        if problems:
            raise ConfigError(problems)
        return draw_facts(tuple(task.spec["chain"]), task.spec["seed"], naming=naming)

    def material(self, task: Task) -> Material:
        facts = self._build_facts(task)
        documents = build_documents(facts, Draws("pages", task.spec["seed"], *facts.chain))
        index = Index(document.contents for document in documents)
        return Material(facts.question, (facts.answer,), documents, index, (facts.names[facts.start_entity],))

    def moves_about(self, name: str) -> tuple[Move, ...]:
        subject_type = next(kind for kind, pool in POOLS.items() if name in pool)
        searches = (
            Move("search", f"{relation.name} of {name}")
            for relation in RELATIONS.values()
            if relation.subject_type == subject_type
        )
        return (*searches, Move("answer", name))

    def plan(self, task: Task) -> tuple[Move, ...]:
        """Returns searches for the relations in their order, then the answer: the shortest solution."""
        facts = self._build_facts(task)
        path = [facts.names[entity] for entity in facts.walk()]
        searches = (Move("search", f"{relation} of {name}") for relation, name in zip(facts.chain, path, strict=False))
        return (*searches, Move("answer", path[-1]))

    def key(self, task: Task) -> str:
        return self._build_facts(task).digest()

    def rename(self, task: Task, rng: Random) -> Task:
        self._build_facts(task)
        spec = {**task.spec, "names": rng.getrandbits(31)}
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def vocabulary_texts(self) -> tuple[str, ...]:
        return (*(name for pool in POOLS.values() for name in pool), *RELATIONS, FIXED_WORDS, "who what?")


class Collection:
    """The questions of a library. A task is a question with its answers and the digest of the documents.

    Args:
        version: version of the world.
        library: documents and questions.
        sizes: maximum number of tasks of each split (None: all questions).
    """

    name = "searchqa_files"
    tiers = TIERS[:1]

    def __init__(self, version: str, *, library: Library, sizes: Sizes | None = None) -> None:
        self._library, self._version = library, version
        self._panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for question in library.questions:
            task = self._build_task(question)
            if sizes is None or len(self._panel[task.split]) < sizes.of(task.split):
                self._panel[task.split].append(task)

    def _build_task(self, question: Question) -> Task:
        spec: dict[str, Json] = {
            "corpus": self._library.digest,
            "question": question.text,
            "answers": list(question.answers),
        }
        if question.queries:
            spec["queries"] = list(question.queries)
        split = question.split or split_of({"key": normalize_answer(question.text)}, salt=self.name)
        return Task(self.name, self._version, spec, question.kind, self.tiers[0], split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        check_names(split, tier, self.tiers)
        return tuple(self._panel[split])

    def _parse_question(self, task: Task) -> Question:
        text, answers, queries = task.spec.get("question"), task.spec.get("answers"), task.spec.get("queries", [])
        problems = []
        if not isinstance(text, str) or not text:
            problems.append(Problem("question", f"got {text!r}, expected text"))
        if not _are_texts(answers) or not answers:
            problems.append(Problem("answers", f"got {answers!r}, expected a list of at least one text"))
        if not _are_texts(queries):
            problems.append(Problem("queries", f"got {queries!r}, expected a list of texts"))
        if problems:
            raise ConfigError(problems)
        if task.spec.get("corpus") != self._library.digest:
            raise VersionMismatch(
                "the task belongs to another collection", value=task.spec.get("corpus"), expected=self._library.digest
            )
        return Question(task.spec["question"], tuple(task.spec["answers"]), task.kind, task.split, tuple(queries))

    def material(self, task: Task) -> Material:
        question, library = self._parse_question(task), self._library
        always = (Move("search", question.text),)
        return Material(question.text, question.answers, library.documents, library.index, fixed_moves=always)

    def moves_about(self, name: str) -> tuple[Move, ...]:
        return Move("search", name), Move("answer", name)

    def plan(self, task: Task) -> tuple[Move, ...] | None:
        """Returns the known queries, else the question itself, then the answer; None if no gold answer is in the
        results.
        """
        question, library = self._parse_question(task), self._library
        queries = question.queries or (question.text,)
        contents = [
            library.documents[position].contents for query in queries for position in library.index.search(query)
        ]
        normalized_contents = f" {normalize_answer(' '.join(contents))} "
        answer_in_contents = next(
            (answer for answer in question.answers if f" {normalize_answer(answer)} " in normalized_contents), None
        )
        return (
            None
            if answer_in_contents is None
            else (*(Move("search", query) for query in queries), Move("answer", answer_in_contents))
        )

    def key(self, task: Task) -> str:
        return normalize_answer(self._parse_question(task).text)

    def rename(self, task: Task, rng: Random) -> Task:
        raise ConfigError("names of a collection cannot change", value=task.id, hint="use generated questions")

    def vocabulary_texts(self) -> None:
        return None


def _are_texts(value: object) -> bool:
    """Returns whether the value is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
