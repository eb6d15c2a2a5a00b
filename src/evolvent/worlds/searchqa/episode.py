"""One episode of searching and answering: the scene of a question, and the Env that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from evolvent.errors import SessionGone
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, check_snapshot
from evolvent.worlds.searchqa.answers import exact_match
from evolvent.worlds.searchqa.bm25 import Index
from evolvent.worlds.searchqa.pages import Document, render_results
from evolvent.worlds.searchqa.tags import Move, parse_move

__all__ = ["SENTENCES", "Material", "Rules", "Scene", "SearchQAEnv"]

_RIGHT, _WRONG, _TRY_AGAIN = "right", "wrong", "wrong, try again"
_EXPECTED = {
    False: "expected search and words or answer and a name",
    True: "expected <search> words </search> or <answer> name </answer>",
}
SENTENCES: tuple[str, ...] = ("Question:", _RIGHT, _TRY_AGAIN, *_EXPECTED.values())
"""What an episode says besides questions and documents."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an episode.

    Args:
        tags: actions in tags and documents with a number and a title, as in AgentGym; else the short form.
        until_right: only a right answer ends the episode.
        format_score: the reward of a wrong answer.
        penalty: the reward of an invalid action.
    """

    tags: bool
    until_right: bool
    format_score: float
    penalty: float


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """The contents of a task.

    Args:
        question, answers: the question, and the gold answers.
        documents, index: the searched documents, and their index.
        names: names that the question contains.
        fixed_moves: moves that are always listed.
    """

    question: str
    answers: tuple[str, ...]
    documents: Sequence[Document]
    index: Index
    names: tuple[str, ...] = ()
    fixed_moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The state that all episodes of one task share.

    Args:
        material: the contents of the task.
        fixed_actions: the actions that are always listed.
        actions_about: returns the actions that mention a name.
        rules: the rules of the episode.
    """

    material: Material
    fixed_actions: tuple[str, ...]
    actions_about: Callable[[str], tuple[str, ...]]
    rules: Rules

    def search(self, query: str) -> list[Document]:
        """Returns the three documents that match a query best."""
        return [self.material.documents[position] for position in self.material.index.search(query)]

    def list_actions(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns the actions listed to an agent that has seen these names."""
        return (*self.fixed_actions, *chain.from_iterable(map(self.actions_about, names)))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot: whether the episode runs, and the names seen, in their order. Documents never change."""

    task: str
    running: bool
    names: tuple[str, ...]


class SearchQAEnv:
    """The environment of one question. Any query may be searched and any text may be the answer.

    `info["admissible"]` lists searches for, and answers with, the names seen so far in the question and the
    documents.
    """

    def __init__(self, task: Task, scene: Scene) -> None:
        self._task, self._scene = task, scene
        self._running = False
        self._names: tuple[str, ...] = ()
        self._admissible: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._running = True
        self._set_names(self._scene.material.names)
        return f"Question: {self._scene.material.question}", {"admissible": self._admissible}

    def _set_names(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._admissible = self._scene.list_actions(names)

    def step(self, action: Value) -> Reply:
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        rules, move = self._scene.rules, parse_move(str(action))
        if move is None:
            info = {"admissible": self._admissible, "invalid": True}
            return _EXPECTED[rules.tags], rules.penalty, False, False, info
        if move.verb == "answer":
            return self._grade_answer(move.text)
        documents = self._scene.search(move.text)
        names = tuple(dict.fromkeys(chain(self._names, *(document.names for document in documents))))
        if len(names) > len(self._names):
            self._set_names(names)
        return render_results(documents, numbered=rules.tags), 0.0, False, False, {"admissible": self._admissible}

    def _grade_answer(self, answer: str) -> Reply:
        rules = self._scene.rules
        is_right = exact_match(answer, self._scene.material.answers)
        self._running = rules.until_right and not is_right
        observation = _RIGHT if is_right else _TRY_AGAIN if self._running else _WRONG
        reward = 1.0 if is_right else rules.format_score
        return observation, reward, not self._running, False, {"admissible": self._admissible}

    def snapshot(self) -> object:
        return _Snapshot(self._task.id, self._running, self._names)

    def restore(self, snapshot: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        checked = check_snapshot(snapshot, _Snapshot, self._task)
        self._running = checked.running
        self._set_names(checked.names)

    def close(self) -> None:
        self._running = False
