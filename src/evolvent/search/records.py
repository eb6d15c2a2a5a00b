"""The requests of a search, and the responses to them.

A search is a generator. It yields `Request`s, always as much at once as it can use, is sent `Response`s, and
returns a `SearchResult`. It knows neither texts nor environments: a state is an object of its adapter
(`search/texts.py`, `search/environments.py`).

The value of a state is an estimate of the whole episode's return, earlier rewards included. So a search never
adds rewards: at the end of an episode its value is the episode's return.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from evolvent.errors import ConfigError, Problem
from evolvent.search.children import Child, Dropped, State
from evolvent.search.tree import Tree
from evolvent.trajectory import JsonObject

__all__ = [
    "Budget",
    "Child",
    "Dropped",
    "EndedBy",
    "ExpandRequest",
    "Request",
    "Response",
    "Search",
    "SearchResult",
    "Spent",
    "State",
]

EndedBy = Literal["done", "generated", "computed", "expansions", "seconds"]


@dataclass(frozen=True, slots=True)
class ExpandRequest:
    """A request for children of a state.

    Args:
        width: how many are sampled; equal ones are merged, so that fewer may come.
        to_end: each is a continuation to the end of the episode, not one action.
        greedy: the likeliest one instead of samples.
        valued: their values are requested too.
        kind: a kind of action, where there are several (`search/rstar.py`).
        first: number of the first sample, so that a later request for the same state draws other ones.
        after: children that came of earlier requests for it: where actions are listed, or the likeliest taken,
            those after them.
    """

    state: State
    width: int
    to_end: bool = False
    greedy: bool = False
    valued: bool = True
    kind: str = ""
    first: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A search's next request: children of states, values of states. The search continues when it has all of them.

    `left` is the remaining budget: expansions and values that do not fit are not begun.
    """

    expand: Sequence[ExpandRequest] = ()
    evaluate: Sequence[State] = ()
    left: Budget = field(default_factory=lambda: Budget())


@dataclass(frozen=True, slots=True)
class Spent:
    """The amounts used: tokens sampled, tokens fed to models, states expanded, states valued, seconds."""

    generated: int = 0
    computed: int = 0
    expansions: int = 0
    evaluations: int = 0
    seconds: float = 0.0

    def __add__(self, addend: Spent) -> Spent:
        return Spent(*(getattr(self, amount.name) + getattr(addend, amount.name) for amount in fields(self)))


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum that a search may spend; None: unlimited.

    Args:
        generated, computed: tokens sampled; tokens fed to models. expansions: of states. seconds: on the clock.
    Raises:
        ConfigError: a limit below 1 token or expansion, or no seconds.
    """

    generated: int | None = None
    computed: int | None = None
    expansions: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        limits = ((limit.name, getattr(self, limit.name)) for limit in fields(self))
        invalid = [(name, value) for name, value in limits if value is not None and not value > 0]
        if invalid:
            raise ConfigError([Problem(f"budget.{name}", f"got {value}, expected above 0") for name, value in invalid])

    def over(self, spent: Spent, *, more: Spent | None = None) -> EndedBy | None:
        """Returns the limit that the spent amount and `more` would exceed, or None.

        Without `more` it returns the limit that is reached, so that nothing is left of it.
        """
        total = spent if more is None else spent + more
        for name in ("generated", "computed", "expansions", "seconds"):
            limit, used = getattr(self, name), getattr(total, name)
            if limit is not None and (used >= limit if more is None else used > limit):
                return name
        return None

    def left(self, spent: Spent) -> Budget:
        """Returns the budget that remains after an expense. Only for budgets of which no limit is reached.

        Raises:
            ConfigError: nothing is left of a limit.
        """
        limits = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        return Budget(
            **{name: None if amount is None else amount - getattr(spent, name) for name, amount in limits.items()}
        )


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request.

    Args:
        children: one entry per expansion, in order; None: it did not fit the remaining budget, and nothing was
            spent on it. An empty entry: the state has no legal action.
        values: one per state, None alike; NaN where no value could be found.
        spent: on all of this.
        short: which limit the first None did not fit.
    """

    children: Sequence[Sequence[Child] | None] = ()
    values: Sequence[float | None] = ()
    spent: Spent = field(default_factory=Spent)
    short: EndedBy | None = None

    @property
    def used(self) -> Spent:
        """Returns the spent amount, including the counts of expanded and valued states."""
        expanded = sum(children is not None for children in self.children)
        return replace(self.spent, expansions=expanded, evaluations=sum(value is not None for value in self.values))


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """The result of a search.

    Args:
        tree: the whole tree of the search.
        finished: terminal nodes, in the order in which the search reached them; repeated ones count again.
        best_node: the node that the search selects; None where no end was reached.
        spent: in all. ended_by: "done", or the limit that ended it.
        notes: further facts about the search, as JSON values.
    """

    tree: Tree
    finished: tuple[int, ...]
    best_node: int | None
    spent: Spent
    ended_by: EndedBy = "done"
    notes: JsonObject = field(default_factory=dict)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Returns the dropped children, each with its reason."""
        return tuple(self.tree.dropped)


Search = Generator[Request, Response, SearchResult]
