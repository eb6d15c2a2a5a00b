"""Several models behind one driver: each ask goes to the engine of the model that it names.

A search writes with a policy and scores with a reward model. Both have an engine of their own with nodes of its own;
the driver sees one engine, merges what all searches ask of each model, and polls both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from evolvent.engine.asks import Ask, Engine, Finished, Node, Ticket, To, Usage
from evolvent.errors import ConfigError, Problem, unknown

__all__ = ["Several", "submitted"]

_COUNTS = ("generated", "computed", "recomputed", "padded", "shared", "forwards")


class Several:
    """An engine made of engines. An ask without a name goes to the first of them.

    Args:
        engines: by the model's name, in the order in which they are polled. One engine may have several names.
    Attributes:
        version, context: the first engine's. usage: of all since then, summed; `of(name).usage` is of one.
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
        """The models, in order."""
        return tuple(self._engines)

    def of(self, model: str) -> Engine:
        """The engine of a model.

        Raises:
            ConfigError: there is no such model; names the nearest.
        """
        engine = self._engines.get(model)
        if engine is None:
            raise ConfigError([unknown("model", model, self._engines)])
        return engine

    def sync(self, policy: Any) -> None:
        """The first engine takes these weights; the others keep theirs (`of(name).sync(...)` changes them)."""
        self._own[0].sync(policy)

    def submit(self, ask: Ask | To) -> Ticket:
        """Queue an ask. Raises ConfigError for a model that is not here, and what the model's engine raises."""
        engine = self.of(ask.model) if isinstance(ask, To) else self._own[0]
        inner = engine.submit(ask.ask if isinstance(ask, To) else ask)
        ticket = next(self._tickets)
        self._open[self._place(engine), inner] = ticket
        return ticket

    def poll(self) -> Sequence[Finished]:
        """At most one forward of each engine that has work; what became finished, in ticket order."""
        found = []
        for place, engine in enumerate(self._own):
            if engine.pending():
                done = [(self._open.pop((place, one.ticket), None), one) for one in engine.poll()]
                found += [replace(one, ticket=ticket) for ticket, one in done if ticket is not None]
        self._count()
        return sorted(found, key=lambda one: one.ticket)

    def pending(self) -> int:
        """How many tickets are open."""
        return len(self._open)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget tickets: nothing more is computed for them and they are not answered. Unknown ones are ignored."""
        gone = set(tickets)
        keys = [key for key, ticket in self._open.items() if ticket in gone]
        for place, engine in enumerate(self._own):
            engine.cancel([inner for at, inner in keys if at == place])
        for key in keys:
            del self._open[key]

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """While open, the keys and values of these nodes are kept, whichever engine they are of."""
        with ExitStack() as open_:
            for engine in self._own:  # one that is handed another's node counts it up and down, which changes nothing
                open_.enter_context(engine.hold(nodes))
            yield

    def _place(self, engine: Engine) -> int:
        return next(place for place, one in enumerate(self._own) if one is engine)

    def _count(self) -> None:
        """Add what the engines have counted since the last time."""
        now = [replace(engine.usage) for engine in self._own]
        for before, after in zip(self._seen, now, strict=True):
            for name in _COUNTS:
                setattr(self.usage, name, getattr(self.usage, name) + getattr(after, name) - getattr(before, name))
        self.usage.live = sum(usage.live for usage in now)
        self.usage.peak_live = max(self.usage.peak_live, self.usage.live)
        self._seen = now


def submitted(ask: Ask | To, engine: Engine) -> Ticket:
    """Submit an ask that may name a model.

    Raises:
        ConfigError: it names one, and the engine is not `Several`. What `submit` raises.
    """
    if not isinstance(ask, To):
        return engine.submit(ask)
    if not isinstance(engine, Several):
        raise ConfigError(
            "an ask names a model, but there is one engine alone", value=ask.model, expected="engine.several.Several"
        )
    return engine.submit(ask)
