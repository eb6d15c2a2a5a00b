"""What a search asks for, and what it is told.

A search is a generator. It yields `Wanted`, always as much at once as it can use, is sent `Found`, and returns a
`SearchResult`. It knows neither texts nor environments: a state is whatever its adapter (`search/texts.py`,
`search/environments.py`) made.

The value of a state is an estimate of the whole episode's return, what was earned before it included. So a search
never adds rewards: at the end of an episode its value is what the episode earned.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from evolvent.errors import ConfigError, Problem
from evolvent.search.children import Child, Dropped, State
from evolvent.search.tree import Tree

__all__ = [
    "Budget",
    "Child",
    "Dropped",
    "EndedBy",
    "Expand",
    "Found",
    "Search",
    "SearchResult",
    "Spent",
    "State",
    "Wanted",
]

EndedBy = Literal["done", "generated", "computed", "expansions", "seconds"]


@dataclass(frozen=True, slots=True)
class Expand:
    """A wish for children of a state.

    Args:
        width: how many are sampled; equal ones are merged, so that fewer may come.
        whole: each is a continuation to the end of the episode, not one action.
        greedy: the likeliest one instead of samples.
        valued: their values are wanted too.
        kind: a kind of action, where there are several (`search/rstar.py`).
        first: number of the first sample, so that a later wish for the same state draws other ones.
        after: children that came of earlier wishes for it: where actions are listed, or the likeliest taken, those
            after them.
    """

    state: State
    width: int
    whole: bool = False
    greedy: bool = False
    valued: bool = True
    kind: str = ""
    first: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search wants next: children of states, values of states. It goes on when it has all of them.

    `left` is what it may still spend: what does not fit is not begun.
    """

    expand: Sequence[Expand] = ()
    evaluate: Sequence[State] = ()
    left: Budget = field(default_factory=lambda: Budget())


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used: tokens sampled, tokens fed to models, states expanded, states valued, seconds."""

    generated: int = 0
    computed: int = 0
    expansions: int = 0
    evaluations: int = 0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a search may spend; None: as much as it likes.

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
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        wrong = [(name, value) for name, value in given if value is not None and not value > 0]
        if wrong:
            raise ConfigError([Problem(f"budget.{name}", f"must be above 0, got {value}") for name, value in wrong])

    def over(self, spent: Spent, *, more: Spent | None = None) -> EndedBy | None:
        """Which limit would be broken by what was spent and `more`; None: none.

        Without `more`: which limit is reached, so that nothing is left of it.
        """
        whole = spent if more is None else spent + more
        for name in ("generated", "computed", "expansions", "seconds"):
            limit, used = getattr(self, name), getattr(whole, name)
            if limit is not None and (used >= limit if more is None else used > limit):
                return name
        return None

    def left(self, spent: Spent) -> Budget:
        """What remains after something was spent. Only for budgets of which no limit is reached.

        Raises:
            ConfigError: nothing is left of a limit.
        """
        limits = {each.name: getattr(self, each.name) for each in fields(self)}
        return Budget(**{name: None if most is None else most - getattr(spent, name) for name, most in limits.items()})


@dataclass(frozen=True, slots=True)
class Found:
    """What a search is told.

    Args:
        children: one entry a wish, in order; None: it did not fit what was left, and nothing was spent on it. Without
            an entry: the state has no legal action.
        values: one a state, None alike; NaN where no value could be found.
        spent: on all of this.
        short: which limit the first None did not fit.
    """

    children: Sequence[Sequence[Child] | None] = ()
    values: Sequence[float | None] = ()
    spent: Spent = field(default_factory=Spent)
    short: EndedBy | None = None

    @property
    def used(self) -> Spent:
        """What was spent, with the states that were expanded and valued for it."""
        expanded = sum(children is not None for children in self.children)
        return replace(self.spent, expansions=expanded, evaluations=sum(value is not None for value in self.values))


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """What a search has come to.

    Args:
        tree: everything that was looked at.
        finished: terminal nodes, in the order in which the search came to them; one that it came to again counts again.
        chosen: the node that the search decides for; None where no end was reached.
        spent: in all. ended_by: "done", or the limit that ended it.
        notes: what else a search has to say of itself, as JSON values.
    """

    tree: Tree
    finished: tuple[int, ...]
    chosen: int | None
    spent: Spent
    ended_by: EndedBy = "done"
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Children that were not taken, each with its reason."""
        return tuple(self.tree.dropped)


Search = Generator[Wanted, Found, SearchResult]
