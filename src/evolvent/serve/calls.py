"""Calls that may take long or hang, off the event loop: daemon threads with deadlines.

Python cannot end a thread. A call that passes its deadline is abandoned with its thread (which holds up neither the
loop nor the end of the process), counted as hung, and another thread replaces it. When it ends after all, the thread
runs its cleanup.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from evolvent.errors import AtCapacity, EvolventError, StepTimeout, WorldError, boundary

__all__ = ["CallRunner"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _Call:
    """A call, the future of its value, and its cleanup if it ends after its deadline."""

    __slots__ = ("call", "future", "late", "limit_s", "over", "timer", "worker")

    def __init__(self, call: Callable[[], Any], limit_s: float, late: Callable[[], object] | None) -> None:
        self.call, self.limit_s, self.late = call, limit_s, late
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.worker: SimpleQueue[Callable[[], None] | None] | None = None
        self.over = False


class CallRunner:
    """Runs calls on at most `threads` threads that are not hung. Belongs to one event loop.

    Args:
        threads: number of calls that run at once; more calls wait.
        hung: number of hung threads from which on calls are refused.

    Attributes:
        leaked: number of threads that hang now.
    """

    def __init__(self, threads: int = 64, *, hung: int = 256) -> None:
        self.leaked = 0
        self._threads, self._hung, self._count = threads, hung, 0
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._queue: deque[_Call] = deque()
        self._running: set[_Call] = set()

    async def run(self, call: Callable[[], T], limit_s: float, *, late: Callable[[], object] | None = None) -> T:
        """Returns the value of the call.

        Args:
            limit_s: seconds from the moment a thread begins with it.
            late: called on the thread when the call ends after its deadline, or after its caller has stopped waiting.

        Raises:
            StepTimeout: the deadline passed; the call is abandoned.
            AtCapacity: too many calls hang.
            EvolventError: the error of the call; another exception is a WorldError.
        """
        if self.leaked >= self._hung:
            raise AtCapacity("too many world calls are stuck", value=self.leaked, retry_after_s=limit_s)
        queued_call = _Call(call, limit_s, late)
        self._queue.append(queued_call)
        self._assign_calls()
        try:
            value: T = await queued_call.future
            return value
        except asyncio.CancelledError:
            if queued_call in self._running:
                self._abandon(queued_call)
                self._assign_calls()  # its place is free for a call that waits
            elif late is not None:
                self.post(late, limit_s)
            raise

    def post(self, call: Callable[[], object], limit_s: float) -> None:
        """Runs the call without a waiting caller; its errors are logged."""
        queued_call = _Call(call, limit_s, None)
        queued_call.future.add_done_callback(_log_failure)
        self._queue.append(queued_call)
        self._assign_calls()

    async def close(self, wait_s: float) -> None:
        """Waits up to `wait_s` seconds for running calls, then releases all threads."""
        waiting = [call.future for call in (*self._running, *self._queue)]
        if waiting:
            await asyncio.wait(waiting, timeout=wait_s)
        for call in list(self._running):
            self._abandon(call)
        for worker in self._idle:
            worker.put(None)
        self._count -= len(self._idle)
        self._idle.clear()

    def _assign_calls(self) -> None:
        """Gives waiting calls to idle or new threads."""
        while self._queue and (self._idle or self._count < self._threads):
            call = self._queue.popleft()
            if call.future.done():
                continue
            call.worker = self._idle.pop() if self._idle else self._start_thread()
            call.timer = asyncio.get_running_loop().call_later(call.limit_s, self._expire_call, call)
            self._running.add(call)
            call.worker.put(partial(self._run_call, call, call.future.get_loop()))

    def _start_thread(self) -> SimpleQueue[Callable[[], None] | None]:
        worker: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count += 1
        threading.Thread(target=_run_worker, args=(worker,), name="evolvent-call", daemon=True).start()
        return worker

    def _run_call(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        """Runs the call on the thread and reports its result to the loop."""
        value, error = None, None
        try:
            with boundary(WorldError, "a call failed"):
                value = call.call()
        except EvolventError as problem:
            error = problem
        try:
            loop.call_soon_threadsafe(self._finish_call, call, value, error)
        except RuntimeError:  # the loop is closed: nobody is there any more
            if call.late is not None:
                _clean_up(call.late)

    def _finish_call(self, call: _Call, value: Any, error: EvolventError | None) -> None:
        """Records on the loop that the call has ended, in time or not."""
        worker = call.worker
        if worker is None:
            return
        if call.over:
            self.leaked -= 1
            if call.late is not None:
                worker.put(partial(_clean_up, call.late))
            worker.put(None)
            return
        self._remove_running(call)
        if not call.future.done():
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
        self._idle.append(worker)
        self._assign_calls()

    def _expire_call(self, call: _Call) -> None:
        self._abandon(call)
        _log.warning("a call exceeded its limit of %g s and was abandoned (%d are stuck)", call.limit_s, self.leaked)
        if not call.future.done():
            error = StepTimeout(
                "no answer before the deadline", value=f"{call.limit_s:g} s", hint="the call was abandoned"
            )
            call.future.set_exception(error)
        self._assign_calls()

    def _abandon(self, call: _Call) -> None:
        """Stops tracking a running call."""
        self._remove_running(call)
        call.over = True
        self.leaked += 1
        self._count -= 1

    def _remove_running(self, call: _Call) -> None:
        self._running.discard(call)
        if call.timer is not None:
            call.timer.cancel()


def _run_worker(worker: SimpleQueue[Callable[[], None] | None]) -> None:
    """Runs the jobs of a thread until it gets None."""
    while (job := worker.get()) is not None:
        job()


def _clean_up(cleanup: Callable[[], object]) -> None:
    try:
        with boundary(WorldError, "a call that ended after its deadline could not be cleaned up"):
            cleanup()
    except EvolventError as problem:
        _log.warning("%s", problem)


def _log_failure(future: asyncio.Future[Any]) -> None:
    """Logs the error of a call without a waiting caller."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.warning("%s", error)
