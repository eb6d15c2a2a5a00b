"""The driver: one loop under rollouts, searches and annotators.

It runs many jobs at once, merges their asks into full forwards, sends each its answers as soon as they are
available, and gives a free slot to the next job at once. No job waits for the slowest. Calls that may take long
run on daemon threads with deadlines; a call that hangs is abandoned, and the others continue.

Calls that may take long, on daemon threads with deadlines. A call that hangs is abandoned, not waited for.

Python cannot end a thread. A hung one is left behind (it holds up neither the driver nor the end of the process),
counted as leaked, and another takes its place.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from evolvent.engine.asks import Answer, Ask, BlockingCall, Engine, Finished, Job, Node, RoutedAsk, Ticket, Usage
from evolvent.errors import (
    ConfigError,
    EngineError,
    EvolventError,
    Problem,
    StepTimeout,
    WorldError,
    boundary,
    unknown_name_problem,
    user_boundary,
)

__all__ = [
    "BlockingCallPool",
    "DriverCounts",
    "JobResult",
    "MultiModelEngine",
    "Outcome",
    "ask_and_wait",
    "run_jobs",
    "submit_ask",
    "unwrap_boundary",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a blocking call: the number it was started with, and its value or exception."""

    number: int
    value: Answer = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _RunningCall:
    number: int
    blocking_call: BlockingCall
    context: Context
    started: float | None = None  # set by the thread that runs it
    worker: _Worker | None = None
    over: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    """One thread; `abandoned` tells it to stop after the call that it hangs in."""

    calls: SimpleQueue[_RunningCall | None] = field(default_factory=SimpleQueue)
    abandoned: bool = False


class BlockingCallPool:
    """Runs blocking calls on a limited number of threads; threads that hang do not count.

    Attributes:
        leaked: threads left behind in hung calls.
    """

    def __init__(self, threads: int) -> None:
        self.leaked = 0
        self._threads, self._count, self._number = threads, 0, 0
        self._idle: list[_Worker] = []
        self._queue: deque[_RunningCall] = deque()
        self._running: dict[int, _RunningCall] = {}
        self._heard: SimpleQueue[tuple[_RunningCall, Outcome]] = SimpleQueue()

    def start(self, blocking_call: BlockingCall, context: Context | None = None) -> int:
        """Starts a call as soon as a thread is free and returns the number that its outcome will carry.

        Args:
            context: the call runs in a copy of it; None: of the present one.
        """
        self._number += 1
        self._queue.append(
            _RunningCall(self._number, blocking_call, copy_context() if context is None else context.copy())
        )
        self._dispatch()
        return self._number

    def collect(self, *, block: bool) -> Iterator[Outcome]:
        """Yields available outcomes, including those of calls past their deadlines; with `block`, waits for the
        first one.
        """
        first = True
        while True:
            try:
                waiting = block and first
                call, outcome = self._heard.get(block=waiting, timeout=self._seconds_to_deadline() if waiting else None)
            except Empty:
                break
            first = False
            if not call.over:
                self._finish(call)
                yield outcome
        yield from self._expire()

    def close(self) -> None:
        """Releases all threads; running calls continue unattended."""
        for worker in self._idle:
            worker.calls.put(None)
        for call in self._running.values():
            if call.worker is not None:
                call.worker.abandoned = True
        self._idle, self._running = [], {}
        self._queue.clear()

    def _dispatch(self) -> None:
        """Assigns queued calls to idle or new threads."""
        while self._queue and (self._idle or self._count < self._threads):
            call = self._queue.popleft()
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker()
                self._count += 1
                threading.Thread(target=self._run_worker, args=(worker,), name="evolvent-wait", daemon=True).start()
            call.worker = worker
            self._running[call.number] = call
            call.started = time.monotonic()
            worker.calls.put(call)

    def _run_worker(self, worker: _Worker) -> None:
        """Runs calls on a thread until the pool releases it."""
        while not worker.abandoned:
            call = worker.calls.get()
            if call is None:
                return
            outcome: Outcome | None = None
            try:
                with user_boundary(EvolventError, "a call failed"):
                    outcome = Outcome(call.number, call.context.run(call.blocking_call.call))
            except EvolventError as error:
                outcome = Outcome(call.number, error=unwrap_boundary(error))
            finally:
                if outcome is None:  # an interrupt, which ends this thread
                    worker.abandoned = True
                    cause = sys.exception()
                    outcome = Outcome(call.number, error=WorldError("the call ended its thread", value=repr(cause)))
                self._heard.put((call, outcome))

    def _finish(self, call: _RunningCall) -> None:
        call.over = True
        self._running.pop(call.number, None)
        if call.worker is not None and not call.worker.abandoned:
            self._idle.append(call.worker)
        elif call.worker is not None:
            self._count -= 1
        self._dispatch()

    def _expire(self) -> Iterator[Outcome]:
        """Yields timeouts of the calls that are past their deadlines, and abandons their threads."""
        now = time.monotonic()
        for call in list(self._running.values()):
            limit = call.blocking_call.timeout_s
            if limit is None or call.started is None or now - call.started < limit:
                continue
            call.over = True
            del self._running[call.number]
            if call.worker is not None:
                call.worker.abandoned = True
            self.leaked += 1
            self._count -= 1
            if self.leaked.bit_count() == 1:  # the first, and then each doubling
                log.warning("a call exceeded its limit of %g s and was abandoned (%d so far)", limit, self.leaked)
            error = StepTimeout("no answer before the deadline", value=f"{limit:g} s", hint="the call was abandoned")
            yield Outcome(call.number, error=error)
        self._dispatch()

    def _seconds_to_deadline(self) -> float | None:
        """Returns the seconds until the next deadline; None where no running call has one."""
        now = time.monotonic()
        ends = [
            call.started + call.blocking_call.timeout_s - now
            for call in self._running.values()
            if call.started is not None and call.blocking_call.timeout_s is not None
        ]
        return max(0.001, min(ends)) if ends else None


def unwrap_boundary(error: EvolventError) -> Exception:
    """Returns the exception that a plain boundary wrapped, or the error itself."""
    cause = error.__cause__
    return cause if type(error) is EvolventError and isinstance(cause, Exception) else error


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
            raise ConfigError([Problem("engines", "got none", "give at least one, keyed by model name")])
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

    def sync(self, policy: Policy) -> None:
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
            "the request names a model, but the engine serves only one",
            value=ask.model,
            expected="an engine of engine.multi_model",
        )
    return engine.submit(ask)


if TYPE_CHECKING:
    from evolvent.models.policy import Policy

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
    closed and their open asks are canceled.

    Args:
        engine: None for jobs that only make blocking calls or return at once.
        slots: maximum number of live jobs.
        threads: maximum number of blocking calls that run at once; hung calls no longer count.
        counts: filled while running.

    Raises:
        ConfigError: slots or threads below 1.

    >>> def square(number):
    ...     return number**2
    ...     yield
    >>> [result.value for result in run_jobs(map(square, [1, 2, 3]), None, slots=3)]
    [1, 4, 9]
    """
    if slots < 1 or threads < 1:
        raise ConfigError("number of slots or threads out of range", value=(slots, threads), expected="1 or more")
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
                "the job needs a model, but no engine is set",
                value=type(ask).__name__,
                expected="an engine passed to run_jobs",
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


def ask_and_wait(asks: Sequence[Ask | RoutedAsk], engine: Engine) -> list[Answer]:
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
