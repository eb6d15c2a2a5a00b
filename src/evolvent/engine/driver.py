"""The driver: one loop under rollouts, searches and annotators.

It runs many jobs at once, merges their asks into full forwards, sends each its answers as soon as they are
available, and gives a free slot to the next job at once. No job waits for the slowest. Calls that may take long
run on daemon threads with deadlines; a call that hangs is abandoned, and the others continue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from evolvent.engine.asks import Answer, Ask, BlockingCall, Engine, Job, RoutedAsk, Ticket
from evolvent.engine.blocking_calls import BlockingCallPool, Outcome, unwrap_boundary
from evolvent.engine.multi_model import submit_ask
from evolvent.errors import ConfigError, EngineError, EvolventError, boundary

__all__ = ["DriverCounts", "JobResult", "ask_and_wait", "run_jobs"]

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobResult(Generic[T]):
    """The result of a finished job: its index in the order of jobs, and its value or the exception that ended it."""

    index: int
    value: T | None = None
    error: Exception | None = None


@dataclass(slots=True)
class DriverCounts:
    """Counters of a driver: steps of jobs, asks submitted to the engine, blocking calls, and threads lost to hung
    calls.
    """

    steps: int = 0
    asks: int = 0
    waits: int = 0
    leaked: int = 0


@dataclass(slots=True, eq=False)
class _Task(Generic[T]):
    """A live job: its answers so far and the number that is still missing.

    It runs in its own context, as asyncio tasks do, so that its log fields apply to it alone.
    """

    index: int
    job: Job[T]
    context: Context = field(default_factory=copy_context)
    answers: list[Answer] = field(default_factory=list)
    missing: int = 0
    turn: int = 0  # counts what it yielded: answers to earlier asks are ignored


def run_jobs(
    jobs: Iterable[Job[T]], engine: Engine | None, *, slots: int, threads: int = 32, counts: DriverCounts | None = None
) -> Generator[JobResult[T], None, None]:
    """Runs jobs to their ends and yields their results in order of completion.

    An exception inside a job ends that job only (`JobResult.error`). Errors of the engine and of blocking calls are
    thrown into the job that asked, which may handle them. When the caller stops, or is interrupted, all jobs are
    closed and their open asks are cancelled.

    Args:
        engine: None for jobs that only make blocking calls or return at once.
        slots: maximum number of live jobs.
        threads: maximum number of blocking calls that run at once; hung calls no longer count.
        counts: filled while running.

    Raises:
        ConfigError: slots or threads below 1.
    """
    if slots < 1 or threads < 1:
        raise ConfigError("a driver needs slots and threads", value=(slots, threads), expected="1 or more of each")
    return _Driver[T](engine, slots, BlockingCallPool(threads), counts or DriverCounts()).run(iter(jobs))


class _Driver(Generic[T]):
    def __init__(self, engine: Engine | None, slots: int, call_pool: BlockingCallPool, counts: DriverCounts) -> None:
        self._engine, self._slots, self._waits, self._counts = engine, slots, call_pool, counts
        self._alive: dict[int, _Task[T]] = {}
        self._ready: deque[tuple[_Task[T], Exception | None]] = deque()
        self._later: list[_Task[T]] = []  # asked for nothing: they go on after the others had their turn
        self._tickets: dict[Ticket, tuple[_Task[T], int, int]] = {}
        self._calls: dict[int, tuple[_Task[T], int, int]] = {}

    def run(self, jobs: Iterator[Job[T]]) -> Generator[JobResult[T], None, None]:
        """Runs the main loop and yields results."""
        started_count, has_more = 0, True
        try:
            while True:
                while has_more and len(self._alive) < self._slots:
                    job = next(jobs, None)
                    if job is None:
                        has_more = False
                        break
                    task = self._alive[started_count] = _Task(started_count, job)
                    self._ready.append((task, None))
                    started_count += 1
                while self._ready:
                    job_result = self._step(*self._ready.popleft())
                    if job_result is not None:
                        del self._alive[job_result.index]
                        yield job_result
                        if has_more:
                            break  # a slot is free: the next work begins before the others go on
                if self._ready or (has_more and len(self._alive) < self._slots):
                    continue
                if not self._alive:
                    return
                self._collect()
                self._ready.extend((task, None) for task in self._later)
                self._later.clear()
        finally:
            self._close()

    def _step(self, task: _Task[T], error: Exception | None) -> JobResult[T] | None:
        """Sends a job its answers (or throws an error into it) until it asks for something or ends."""
        job = task.job
        try:
            with boundary(EvolventError, "a work failed"):
                try:
                    answers: Sequence[Answer] | None = task.answers if task.turn else None
                    resume, payload = (job.send, answers) if error is None else (job.throw, error)
                    asks = task.context.run(resume, payload)  # type: ignore[arg-type]
                except StopIteration as stop:
                    return JobResult(task.index, stop.value)
        except EvolventError as problem:
            return JobResult(task.index, error=unwrap_boundary(problem))
        self._counts.steps += 1
        task.turn += 1
        task.missing = len(asks)
        task.answers = [None] * len(asks)
        if not asks:
            self._later.append(task)
        for index, ask in enumerate(asks):
            refusal = self._submit_ask(task, index, ask)
            if refusal is not None:
                self._record_answer(task, task.turn, index, None, refusal)
                break
        return None

    def _submit_ask(self, task: _Task[T], index: int, ask: Ask | RoutedAsk | BlockingCall) -> Exception | None:
        """Submits an ask and returns the error of a refused ask."""
        if isinstance(ask, BlockingCall):
            self._counts.waits += 1
            self._calls[self._waits.start(ask, task.context)] = (task, task.turn, index)
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
                self._tickets[submit_ask(ask, self._engine)] = (task, task.turn, index)
        except EvolventError as problem:
            return problem
        return None

    def _record_answer(self, task: _Task[T], turn: int, index: int, answer: Answer, error: Exception | None) -> None:
        """Records an answer; a job with all answers, or with an error, becomes ready."""
        if turn != task.turn or task.missing == 0:
            return
        if error is not None:
            task.missing = 0
            self._cancel(task)
            self._ready.append((task, error))
            return
        task.answers[index] = answer
        task.missing -= 1
        if not task.missing:
            self._ready.append((task, None))

    def _collect(self) -> None:
        """Collects one poll of the engine and the finished blocking calls; sleeps only when the engine is idle."""
        engine = self._engine
        if engine is not None and self._tickets:
            for finished in engine.poll():
                slot = self._tickets.pop(finished.ticket, None)
                if slot is not None:
                    self._record_answer(*slot, finished.answer, finished.error)
        if self._calls:
            for outcome in self._waits.collect(block=not (self._ready or self._tickets or self._later)):
                self._record_outcome(outcome)
            self._counts.leaked = self._waits.leaked

    def _record_outcome(self, outcome: Outcome) -> None:
        slot = self._calls.pop(outcome.number, None)
        if slot is not None:
            self._record_answer(*slot, outcome.value, outcome.error)

    def _cancel(self, task: _Task[T] | None = None) -> None:
        """Cancels open asks in the engine, of one job or (None) of all jobs."""
        cancelled = [ticket for ticket, (asker, _, _) in self._tickets.items() if task is None or asker is task]
        if self._engine is not None and cancelled:
            self._engine.cancel(cancelled)
        for ticket in cancelled:
            del self._tickets[ticket]

    def _close(self) -> None:
        """Closes all jobs so that their `finally` blocks run, cancels open asks, and releases the threads."""
        self._waits.close()
        try:
            for task in self._alive.values():
                try:
                    with boundary(EvolventError, "a work failed while it was closed"):
                        task.context.run(task.job.close)
                except EvolventError as problem:
                    log.warning("%s", problem)
        finally:
            self._alive.clear()
            self._cancel()


def ask_and_wait(asks: Sequence[Ask | RoutedAsk], engine: Engine) -> list[Any]:
    """Submits asks and waits for all answers; for scripts that do one thing at a time.

    Raises:
        EngineError: the first error among the answers.
    """
    tickets: list[Ticket] = []
    answers: dict[Ticket, Any] = {}
    try:
        tickets.extend(submit_ask(ask, engine) for ask in asks)
        while len(answers) < len(tickets):
            for finished in engine.poll():
                if finished.ticket not in tickets:
                    continue
                if finished.error is not None:
                    raise finished.error
                answers[finished.ticket] = finished.answer
    finally:
        engine.cancel(tickets)
    return [answers[ticket] for ticket in tickets]
