"""The driver: one loop under rollouts, searches and annotators.

It runs many works at once, merges what they ask into full forwards, sends each its answers as soon as they are there,
and gives a free slot to the next work at once. Nothing waits for the slowest. Calls that may take long run on daemon
threads with deadlines; one that hangs is abandoned, and the others go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from evolvent.engine.asks import Answer, Ask, Engine, Ticket, To, Wait, Work
from evolvent.engine.blocking_calls import Outcome, Waits, unwrapped
from evolvent.engine.multi_model import submitted
from evolvent.errors import ConfigError, EngineError, EvolventError, boundary

__all__ = ["Counts", "Done", "blocking", "drive"]

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """A work that has ended: its place in the order of works, and its value or the exception that ended it."""

    index: int
    value: T | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Counts:
    """What a driver has counted: steps of works, asks handed to the engine, waits, and threads lost to hung calls."""

    steps: int = 0
    asks: int = 0
    waits: int = 0
    leaked: int = 0


@dataclass(slots=True, eq=False)
class _Task(Generic[T]):
    """A work that is alive: the answers it has so far and how many are still missing.

    It runs in a context of its own, as tasks of asyncio do: what it tells the logs of itself is told of it alone.
    """

    index: int
    work: Work[T]
    context: Context = field(default_factory=copy_context)
    answers: list[Answer] = field(default_factory=list)
    missing: int = 0
    turn: int = 0  # counts what it yielded: answers to earlier asks are ignored


def drive(
    works: Iterable[Work[T]], engine: Engine | None, *, slots: int, threads: int = 32, counts: Counts | None = None
) -> Generator[Done[T], None, None]:
    """Run works to their ends; yields them in order of completion.

    An exception inside a work ends that work only (`Done.error`). Errors of the engine and of waits are thrown into the
    work that asked, which may handle them. When the caller stops, or is interrupted, all works are closed and what they
    still ask of the engine is cancelled.

    Args:
        engine: None for works that only wait or return at once.
        slots: at most so many works are alive.
        threads: at most so many waits run at once; hung ones no longer count.
        counts: filled while running.

    Raises:
        ConfigError: slots or threads below 1.
    """
    if slots < 1 or threads < 1:
        raise ConfigError("a driver needs slots and threads", value=(slots, threads), expected="1 or more of each")
    return _Driver[T](engine, slots, Waits(threads), counts or Counts()).run(iter(works))


class _Driver(Generic[T]):
    def __init__(self, engine: Engine | None, slots: int, waits: Waits, counts: Counts) -> None:
        self._engine, self._slots, self._waits, self._counts = engine, slots, waits, counts
        self._alive: dict[int, _Task[T]] = {}
        self._ready: deque[tuple[_Task[T], Exception | None]] = deque()
        self._later: list[_Task[T]] = []  # asked for nothing: they go on after the others had their turn
        self._tickets: dict[Ticket, tuple[_Task[T], int, int]] = {}
        self._calls: dict[int, tuple[_Task[T], int, int]] = {}

    def run(self, works: Iterator[Work[T]]) -> Generator[Done[T], None, None]:
        """The loop."""
        begun, more = 0, True
        try:
            while True:
                while more and len(self._alive) < self._slots:
                    work = next(works, None)
                    if work is None:
                        more = False
                        break
                    task = self._alive[begun] = _Task(begun, work)
                    self._ready.append((task, None))
                    begun += 1
                while self._ready:
                    done = self._step(*self._ready.popleft())
                    if done is not None:
                        del self._alive[done.index]
                        yield done
                        if more:
                            break  # a slot is free: the next work begins before the others go on
                if self._ready or (more and len(self._alive) < self._slots):
                    continue
                if not self._alive:
                    return
                self._collect()
                self._ready.extend((task, None) for task in self._later)
                self._later.clear()
        finally:
            self._close()

    def _step(self, task: _Task[T], error: Exception | None) -> Done[T] | None:
        """Send a work its answers (or throw an error into it) until it asks for something, or ends."""
        work = task.work
        try:
            with boundary(EvolventError, "a work failed"):
                try:
                    answers: Sequence[Answer] | None = task.answers if task.turn else None
                    go_on, given = (work.send, answers) if error is None else (work.throw, error)
                    asks = task.context.run(go_on, given)  # type: ignore[arg-type]
                except StopIteration as stop:
                    return Done(task.index, stop.value)
        except EvolventError as problem:
            return Done(task.index, error=unwrapped(problem))
        self._counts.steps += 1
        task.turn += 1
        task.missing = len(asks)
        task.answers = [None] * len(asks)
        if not asks:
            self._later.append(task)
        for at, ask in enumerate(asks):
            refused = self._ask(task, at, ask)
            if refused is not None:
                self._answer(task, task.turn, at, None, refused)
                break
        return None

    def _ask(self, task: _Task[T], at: int, ask: Ask | To | Wait) -> Exception | None:
        """Hand an ask on; returns the error of one that is refused."""
        if isinstance(ask, Wait):
            self._counts.waits += 1
            self._calls[self._waits.start(ask, task.context)] = (task, task.turn, at)
            return None
        if self._engine is None:
            return ConfigError(
                "a work asks a model, but the driver has no engine",
                value=type(ask).__name__,
                expected="an engine handed to drive",
            )
        self._counts.asks += 1
        try:
            with boundary(EngineError, "the engine failed to take an ask"):
                self._tickets[submitted(ask, self._engine)] = (task, task.turn, at)
        except EvolventError as problem:
            return problem
        return None

    def _answer(self, task: _Task[T], turn: int, at: int, answer: Answer, error: Exception | None) -> None:
        """Note an answer; a work whose answers are all there, or that has an error, becomes ready."""
        if turn != task.turn or task.missing == 0:
            return
        if error is not None:
            task.missing = 0
            self._cancel(task)
            self._ready.append((task, error))
            return
        task.answers[at] = answer
        task.missing -= 1
        if not task.missing:
            self._ready.append((task, None))

    def _collect(self) -> None:
        """One poll of the engine, and whatever waits have brought; sleeps only when the engine has nothing to do."""
        engine = self._engine
        if engine is not None and self._tickets:
            for finished in engine.poll():
                where = self._tickets.pop(finished.ticket, None)
                if where is not None:
                    self._answer(*where, finished.answer, finished.error)
        if self._calls:
            for outcome in self._waits.collect(block=not (self._ready or self._tickets or self._later)):
                self._heard(outcome)
            self._counts.leaked = self._waits.leaked

    def _heard(self, outcome: Outcome) -> None:
        where = self._calls.pop(outcome.number, None)
        if where is not None:
            self._answer(*where, outcome.value, outcome.error)

    def _cancel(self, task: _Task[T] | None = None) -> None:
        """Take back what is still asked of the engine, by one work or (None) by all: nobody waits for it any more."""
        gone = [ticket for ticket, (asker, _, _) in self._tickets.items() if task is None or asker is task]
        if self._engine is not None and gone:
            self._engine.cancel(gone)
        for ticket in gone:
            del self._tickets[ticket]

    def _close(self) -> None:
        """Close all works, so that their `finally` blocks run, take back open asks, and let the threads go."""
        self._waits.close()
        try:
            for task in self._alive.values():
                try:
                    with boundary(EvolventError, "a work failed while it was closed"):
                        task.context.run(task.work.close)
                except EvolventError as problem:
                    log.warning("%s", problem)
        finally:
            self._alive.clear()
            self._cancel()


def blocking(asks: Sequence[Ask | To], engine: Engine) -> list[Any]:
    """Ask and wait for all answers: `submit` and `poll` for scripts that do one thing at a time.

    Raises:
        EngineError: the first error among the answers.
    """
    tickets: list[Ticket] = []
    found: dict[Ticket, Any] = {}
    try:
        tickets.extend(submitted(ask, engine) for ask in asks)
        while len(found) < len(tickets):
            for finished in engine.poll():
                if finished.ticket not in tickets:
                    continue
                if finished.error is not None:
                    raise finished.error
                found[finished.ticket] = finished.answer
    finally:
        engine.cancel(tickets)
    return [found[ticket] for ticket in tickets]
