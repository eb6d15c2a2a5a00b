"""One episode of searching and answering: the scene of a question, and the Env that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Info, Reply, StateEnv
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


class _State(NamedTuple):
    """The names seen so far, in their order, and the actions listed for them. Documents never change."""

    names: tuple[str, ...]
    admissible: tuple[str, ...]


class SearchQAEnv(StateEnv[_State]):
    """The environment of one question. Any query may be searched and any text may be the answer.

    `info["admissible"]` lists searches for, and answers with, the names seen so far in the question and the
    documents.
    """

    def __init__(self, task: Task, scene: Scene) -> None:
        super().__init__(task, _State(scene.material.names, scene.list_actions(scene.material.names)))
        self._scene = scene

    def _observe_start(self) -> tuple[Value, Info]:
        return f"Question: {self._scene.material.question}", {"admissible": self._start.admissible}

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        rules, move = self._scene.rules, parse_move(str(action))
        if move is None:
            info = {"admissible": state.admissible, "invalid": True}
            return state, (_EXPECTED[rules.tags], rules.penalty, False, False, info)
        if move.verb == "answer":
            return state, self._grade_answer(move.text, {"admissible": state.admissible})
        documents = self._scene.search(move.text)
        names = tuple(dict.fromkeys(chain(state.names, *(document.names for document in documents))))
        if len(names) > len(state.names):
            state = _State(names, self._scene.list_actions(names))
        observation = render_results(documents, numbered=rules.tags)
        return state, (observation, 0.0, False, False, {"admissible": state.admissible})

    def _grade_answer(self, answer: str, info: Info) -> Reply:
        rules = self._scene.rules
        is_right = exact_match(answer, self._scene.material.answers)
        is_over = is_right or not rules.until_right
        observation = _RIGHT if is_right else _WRONG if is_over else _TRY_AGAIN
        reward = 1.0 if is_right else rules.format_score
        return observation, reward, is_over, False, info
