"""One episode of searching and answering: the question's scene, and the Env that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, own_moment
from evolvent.worlds.searchqa.answers import exact_match
from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.pages import Document, shown
from evolvent.worlds.searchqa.tags import Move, read_move

__all__ = ["SENTENCES", "Material", "Rules", "Scene", "SearchQAEnv"]

_RIGHT, _WRONG, _AGAIN = "right", "wrong", "wrong, try again"
_EXPECTED = {
    False: "expected search and words or answer and a name",
    True: "expected <search> words </search> or <answer> name </answer>",
}
SENTENCES: tuple[str, ...] = ("Question:", _RIGHT, _AGAIN, *_EXPECTED.values())
"""What an episode says besides questions and documents."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How an episode is played.

    Args:
        tags: actions in tags and documents with a number and a title, as in AgentGym; else the short form.
        until_right: only a right answer ends the episode.
        format_score: the reward of a wrong answer.
        penalty: the reward of an action that is none.
    """

    tags: bool
    until_right: bool
    format_score: float
    penalty: float


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What a task is made of.

    Args:
        question, answers: what is asked, and the golden answers.
        documents, index: what is searched.
        names: names that the question tells.
        always: moves that are listed whatever was met.
    """

    question: str
    answers: tuple[str, ...]
    documents: Sequence[Document]
    index: Index
    names: tuple[str, ...] = ()
    always: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What all episodes of one task share.

    Args:
        material: what the task is made of.
        always: the actions that are listed whatever was met.
        about: the actions that speak of a name.
        rules: how it is played.
    """

    material: Material
    always: tuple[str, ...]
    about: Callable[[str], tuple[str, ...]]
    rules: Rules

    def found(self, query: str) -> list[Document]:
        """The three documents that fit a query best."""
        return [self.material.documents[place] for place in self.material.index.best(query)]

    def admissible(self, names: Sequence[str]) -> tuple[str, ...]:
        """The actions listed to an agent that has met these names."""
        return (*self.always, *chain.from_iterable(map(self.about, names)))


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: whether the episode runs, and the names met, in their order. Documents never change."""

    task: str
    running: bool
    names: tuple[str, ...]


class SearchQAEnv:
    """One question. Any query may be searched and any text be answered.

    `info["admissible"]` lists searches for, and answers of, the names met so far in the question and the documents.
    """

    def __init__(self, task: Task, scene: Scene) -> None:
        self._task, self._scene = task, scene
        self._running = False
        self._names: tuple[str, ...] = ()
        self._admissible: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        self._meet(self._scene.material.names)
        return f"Question: {self._scene.material.question}", {"admissible": self._admissible}

    def _meet(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._admissible = self._scene.admissible(names)

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        rules, move = self._scene.rules, read_move(str(action))
        if move is None:
            info = {"admissible": self._admissible, "invalid": True}
            return _EXPECTED[rules.tags], rules.penalty, False, False, info
        if move.verb == "answer":
            return self._judge(move.words)
        found = self._scene.found(move.words)
        names = tuple(dict.fromkeys(chain(self._names, *(document.names for document in found))))
        if len(names) > len(self._names):
            self._meet(names)
        return shown(found, numbered=rules.tags), 0.0, False, False, {"admissible": self._admissible}

    def _judge(self, answer: str) -> Reply:
        rules = self._scene.rules
        right = exact_match(answer, self._scene.material.answers)
        self._running = rules.until_right and not right
        told = _RIGHT if right else _AGAIN if self._running else _WRONG
        reward = 1.0 if right else rules.format_score
        return told, reward, not self._running, False, {"admissible": self._admissible}

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, self._names)

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        moment = own_moment(value, _Moment, self._task)
        self._running = moment.running
        self._meet(moment.names)

    def close(self) -> None:
        self._running = False
