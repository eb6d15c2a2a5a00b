"""The elements of a search tree: actions that can be taken, and dropped actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Child", "Dropped", "State"]

State: TypeAlias = Any
"""The state of a search: its domain has its own class, which the search hands back to it."""


@dataclass(frozen=True, slots=True)
class Child:
    """One action that can be taken in a state, and its outcome.

    Args:
        state: the resulting state.
        action: the action for people, and to tell siblings apart.
        logprob: mean log-probability of its tokens; only its exponential's share among the siblings counts.
        value: of the state; None: it was not requested. A value that is not finite drops the child.
        scores: of the spans that the action consists of, where a process reward model scored them.
        terminal: whether the episode is over.
        generated: tokens that were sampled for it.
        count: how many equal samples it represents.
        kind: as in the request.
        problem: the reason why it cannot be used; it is dropped and listed then. Empty: nothing is wrong.
    """

    state: State
    action: str = ""
    logprob: float = 0.0
    value: float | None = None
    scores: tuple[float, ...] = ()
    terminal: bool = False
    generated: int = 0
    count: int = 1
    kind: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A child that was not added to the tree, or is not selectable: its parent node, its action, and the reason."""

    node: int
    action: str
    reason: str
