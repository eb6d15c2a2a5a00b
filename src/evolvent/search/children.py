"""What a search tree is made of: actions that can be taken, and those that were not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Child", "Dropped", "State"]

State = Any


@dataclass(frozen=True, slots=True)
class Child:
    """One action that can be taken in a state, and what comes of it.

    Args:
        state: where it leads.
        action: the action for people, and to tell siblings apart.
        logprob: mean log-probability of its tokens; only its exponential's share among the siblings counts.
        value: of the state; None: nobody was asked. One that is not finite drops the child.
        scores: of the spans that the action is made of, where a process reward model scored them.
        terminal: whether the episode is over.
        generated: tokens that were sampled for it.
        count: how many equal samples it stands for.
        kind: as in the wish.
        problem: why it cannot be used; it is dropped and listed then. Empty: nothing is wrong.
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
    """A child that was not taken into the tree, or not gone to: under which node, its action, and why."""

    node: int
    action: str
    reason: str
