"""The parts that make tasks: sources describe a target, goals use it, and a navigator reads pages and acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from evolvent.worlds.site.browser import SiteEnv
from evolvent.worlds.site.database import Database
from evolvent.worlds.site.evaluators import Evaluation
from evolvent.worlds.site.nodes import WINDOW, Node, Page, build_url
from evolvent.worlds.site.router import HOMEPAGE

__all__ = ["RANKS", "Goal", "Navigator", "Slots", "Source", "pick"]

Slots = Mapping[str, str | int]
R = TypeVar("R")
T = TypeVar("T")
RANKS = ("", "second ", "third ")


def pick(rng: np.random.Generator, values: Sequence[T]) -> T:
    """Draws one of the values."""
    return values[int(rng.integers(len(values)))]


class Navigator:
    """A user who plays an episode: reads the page, scrolls to what is out of view, clicks, types and answers.

    Args:
        env: the environment, which is reset.
    """

    def __init__(self, env: SiteEnv) -> None:
        self._env = env
        self.actions: list[str] = []
        self.reward = 0.0
        env.reset()

    @property
    def page(self) -> Page:
        """Returns the page that is open."""
        return self._env.page

    def act(self, action: str) -> None:
        """Plays an action."""
        _, reward, _, _, _ = self._env.step(action)
        self.reward = float(reward or 0.0)
        self.actions.append(action)

    def find(self, *, role: str = "", name: str = "", key: str = "", index: int = 0) -> int:
        """Returns the position of a node with a role, name or key, the first by default; -1 if there is none."""

        def matches(node: Node) -> bool:
            return (not role or node.role == role) and (not name or node.name == name) and (not key or node.key == key)

        positions = [position for position, node in enumerate(self.page.nodes) if matches(node)]
        return positions[index] if index < len(positions) else -1

    def _reveal(self, position: int) -> int:
        """Scrolls to a node and returns its id."""
        screen = max(0, position - 1) // WINDOW
        while self._env.tab.scroll != screen:
            self.act("scroll [down]" if self._env.tab.scroll < screen else "scroll [up]")
        return self._env.tab.first_id + self.page.offsets[position]

    def click(self, *, role: str = "", name: str = "", key: str = "", index: int = 0) -> bool:
        """Clicks a node; returns whether there is one."""
        position = self.find(role=role, name=name, key=key, index=index)
        if position >= 0:
            self.act(f"click [{self._reveal(position)}]")
        return position >= 0

    def type(self, label: str, text: str | int, *, enter: bool = False) -> None:
        """Types in the field with a label."""
        positions = [position for position, node in enumerate(self.page.nodes) if node.name == label and node.field]
        self.act(f"type [{self._reveal(positions[0])}] [{text}] [{int(enter)}]")

    def read_node(self, key: str) -> str:
        """Scrolls to the first node with a key and returns its name; "" if there is none."""
        position = self.find(key=key)
        if position < 0:
            return ""
        self._reveal(position)
        return self.page.nodes[position].name

    def read_last(self, key: str) -> str:
        """Scrolls to the last node with a key and returns its name; "" if there is none."""
        positions = [position for position, node in enumerate(self.page.nodes) if node.key == key]
        if not positions:
            return ""
        self._reveal(positions[-1])
        return self.page.nodes[positions[-1]].name

    def visit(self, host: str) -> None:
        """Opens the front page of a site by the homepage."""
        self.act(f"goto [http://{HOMEPAGE}]")
        href = build_url(host)
        position = next(position for position, node in enumerate(self.page.nodes) if node.href == href)
        self.act(f"click [{self._reveal(position)}]")


@dataclass(frozen=True)
class Source(Generic[R]):
    """A way to describe a target.

    Args:
        name: part of the kind of tasks.
        entity: the kind of rows that it describes.
        host: the site where the search begins.
        phrase: the description, with the slots in braces.
        draw: (database, rng, is missing) -> the slots; they describe nothing where missing rows are asked for, if the
            database has such slots.
        resolve: (database, slots) -> the row, or None.
        navigate: opens the page of the row; returns False if there is none.
        can_miss: whether it may describe nothing.
    """

    name: str
    entity: str
    host: str
    phrase: str
    draw: Callable[[Database, np.random.Generator, bool], Slots]
    resolve: Callable[[Database, Slots], R | None]
    navigate: Callable[[Navigator, Slots], bool]
    can_miss: bool = True


@dataclass(frozen=True)
class Goal(Generic[R]):
    """Something to be asked of a target or to be done with it.

    Args:
        name: part of the kind of tasks.
        entity: the kind of rows that it is for.
        wordings: the objective, with `{target}` and the slots in braces.
        evaluate: (database, row, slots) -> the evaluators; None if the row has no answer.
        act: does it on the page of the target; returns the answer, "" for none.
        draw: (database, rng, row) -> slots of its own; None if it cannot be done with this row.
        is_question: whether it is solved by an answer.
        is_count: whether the answer is a number of things.
    """

    name: str
    entity: str
    wordings: tuple[str, ...]
    evaluate: Callable[[Database, R, Slots], Evaluation | None]
    act: Callable[[Navigator, Slots], str]
    draw: Callable[[Database, np.random.Generator, R], Slots | None] = lambda database, rng, row: {}
    is_question: bool = False
    is_count: bool = False
