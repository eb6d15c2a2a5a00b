"""A stage at work: what it has cost so far, and what all arms of a run share. Used by `run.py` alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from evolvent.store.ledger import Ledger
from evolvent.store.store import Store
from evolvent.verbs import Stage

__all__ = ["Finished", "Open", "Shared"]

P = TypeVar("P")


@dataclass(frozen=True)
class Shared:
    """What all arms of a run share."""

    folder: Path
    seed: int
    store: Store
    ledger: Ledger
    began: float
    observers: list[Callable[[], None]]
    open: list[Open] = field(default_factory=list)


@dataclass(frozen=True)
class Finished(Generic[P]):
    """A practice that is over: nothing is left to play."""

    policy: P

    def rounds(self) -> Iterator[int]:
        """None."""
        return iter(())


@dataclass(frozen=True)
class Open:
    """A stage at work: its ledger row where it is finished; what running totals were when this try began.

    `before` is what earlier tries had cost. A fit counts from its checkpoints on its own. `inner` is what stages inside
    this one have cost (measurements of a practice), which is theirs. `until`: the totals when its work ended, where it
    says so itself (`alone`).
    """

    key: str
    stage: Stage
    finished: Mapping[str, Any] | None
    usage: Callable[[], Mapping[str, int]]
    before: Mapping[str, float]
    inner: Counter[str] = field(default_factory=Counter)
    since: dict[str, float] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.since.update(self._totals())

    def _totals(self) -> dict[str, float]:
        return {"seconds": time.monotonic(), "cpu_s": time.process_time(), **self.usage()}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Stage.alone`."""
        self.since.update(self._totals())
        try:
            yield
        finally:
            self.until.update(self._totals())

    def spent(self) -> dict[str, float]:
        """What the stage has cost in all: seconds, cpu_s, and the counts."""
        now = self.until or self._totals()
        now = {name: total - self.since.get(name, 0) for name, total in now.items()}
        return {name: value + self.before.get(name, 0) - self.inner[name] for name, value in now.items()}
