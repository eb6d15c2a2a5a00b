"""Calls that may take long, on daemon threads with deadlines. A call that hangs is abandoned, not waited for.

Python cannot end a thread. A hung one is left behind (it holds up neither the driver nor the end of the process),
counted as leaked, and another takes its place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from evolvent.engine.asks import Answer, BlockingCall
from evolvent.errors import EvolventError, StepTimeout, WorldError, boundary

__all__ = ["BlockingCallPool", "Outcome", "unwrap_boundary"]

log = logging.getLogger(__name__)


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
            outcome = Outcome(
                call.number, error=WorldError("a wait ended its thread", value=repr(call.blocking_call.call))
            )
            try:
                with boundary(EvolventError, "a wait failed"):
                    outcome = Outcome(call.number, call.context.run(call.blocking_call.call))
            except EvolventError as error:
                outcome = Outcome(call.number, error=unwrap_boundary(error))
            finally:
                self._heard.put((call, outcome))

    def _finish(self, call: _RunningCall) -> None:
        call.over = True
        self._running.pop(call.number, None)
        if call.worker is not None:
            self._idle.append(call.worker)
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
            log.warning("a call hung for more than %g s and was left behind (%d so far)", limit, self.leaked)
            error = StepTimeout("no answer before the deadline", value=f"{limit:g} s", hint="the call was left behind")
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
