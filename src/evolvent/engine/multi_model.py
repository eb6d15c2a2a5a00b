"""Several models behind one driver: each ask goes to the engine of the model that it names.

A search writes with a policy and scores with a reward model. Each model has its own engine with its own nodes;
the driver sees one engine, merges the asks of all searches for each model, and polls both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from evolvent.engine.asks import Ask, Engine, Finished, Node, RoutedAsk, Ticket, Usage
from evolvent.errors import ConfigError, Problem, unknown_name_problem

__all__ = ["MultiModelEngine", "submit_ask"]

_COUNTS = ("generated", "computed", "recomputed", "padded", "shared", "forwards")


class MultiModelEngine:
    """An engine composed of engines. An ask without a model name goes to the first of them.

    Args:
        engines: by the model's name, in the order in which they are polled. One engine may have several names.
    Attributes:
        version, context: those of the first engine.
        usage: the sum over all engines since construction; `engine_of(name).usage` is of one engine.
    Raises:
        ConfigError: no engine.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        if not engines:
            raise ConfigError([Problem("engines", "none was given", "at least one, by its model's name")])
        self._engines = dict(engines)
        self._own = list({id(engine): engine for engine in self._engines.values()}.values())
        self._tickets = itertools.count()
        self._open: dict[tuple[int, Ticket], Ticket] = {}  # (place of the engine, its ticket) -> ours
        self._seen = [replace(engine.usage) for engine in self._own]
        self.usage = Usage()

    @property
    def version(self) -> int:
        return self._own[0].version

    @property
    def context(self) -> int:
        return self._own[0].context

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the model names in order."""
        return tuple(self._engines)

    def engine_of(self, model: str) -> Engine:
        """Returns the engine of a model.

        Raises:
            ConfigError: there is no such model; names the nearest.
        """
        engine = self._engines.get(model)
        if engine is None:
            raise ConfigError([unknown_name_problem("model", model, self._engines)])
        return engine

    def sync(self, policy: Any) -> None:
        """Updates the first engine's weights; the others keep theirs (`engine_of(name).sync(...)` changes them)."""
        self._own[0].sync(policy)

    def submit(self, ask: Ask | RoutedAsk) -> Ticket:
        """Submits an ask. Raises ConfigError for an unknown model, and the errors of the model's engine."""
        engine = self.engine_of(ask.model) if isinstance(ask, RoutedAsk) else self._own[0]
        engine_ticket = engine.submit(ask.ask if isinstance(ask, RoutedAsk) else ask)
        ticket = next(self._tickets)
        self._open[self._index_of(engine), engine_ticket] = ticket
        return ticket

    def poll(self) -> Sequence[Finished]:
        """Runs at most one forward of each engine with open asks and returns finished tickets in ticket order."""
        finished_tickets = []
        for index, engine in enumerate(self._own):
            if engine.pending():
                pairs = [(self._open.pop((index, finished.ticket), None), finished) for finished in engine.poll()]
                finished_tickets += [
                    replace(finished, ticket=ticket) for ticket, finished in pairs if ticket is not None
                ]
        self._update_usage()
        return sorted(finished_tickets, key=lambda finished: finished.ticket)

    def pending(self) -> int:
        """Returns the number of open tickets."""
        return len(self._open)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancels tickets: nothing more is computed for them, and they are not answered. Unknown tickets are
        ignored.
        """
        cancelled = set(tickets)
        keys = [key for key, ticket in self._open.items() if ticket in cancelled]
        for index, engine in enumerate(self._own):
            engine.cancel([engine_ticket for owner, engine_ticket in keys if owner == index])
        for key in keys:
            del self._open[key]

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Keeps the keys and values of these nodes, in all engines, while the context manager is open."""
        with ExitStack() as stack:
            for engine in self._own:  # one that is handed another's node counts it up and down, which changes nothing
                stack.enter_context(engine.hold(nodes))
            yield

    def _index_of(self, engine: Engine) -> int:
        return next(index for index, candidate in enumerate(self._own) if candidate is engine)

    def _update_usage(self) -> None:
        """Adds the engines' counts since the last call."""
        now = [replace(engine.usage) for engine in self._own]
        for before, after in zip(self._seen, now, strict=True):
            for name in _COUNTS:
                setattr(self.usage, name, getattr(self.usage, name) + getattr(after, name) - getattr(before, name))
        self.usage.live = sum(usage.live for usage in now)
        self.usage.peak_live = max(self.usage.peak_live, self.usage.live)
        self._seen = now


def submit_ask(ask: Ask | RoutedAsk, engine: Engine) -> Ticket:
    """Submits an ask that may name a model.

    Raises:
        ConfigError: it names a model, and the engine is not a `MultiModelEngine`. The errors of `submit`.
    """
    if not isinstance(ask, RoutedAsk):
        return engine.submit(ask)
    if not isinstance(engine, MultiModelEngine):
        raise ConfigError(
            "an ask names a model, but there is one engine alone", value=ask.model, expected="engine.several.Several"
        )
    return engine.submit(ask)
