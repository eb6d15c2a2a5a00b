"""Calls that may take long or hang, off the event loop: daemon threads with deadlines.

Python cannot end a thread. A call that passes its deadline is left behind with its thread (which holds up neither the
loop nor the end of the process), counted as hung, and another thread takes its place. When it does end after all, the
thread is told what to do with what it held.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from evolvent.errors import AtCapacity, EvolventError, StepTimeout, WorldError, boundary

__all__ = ["Calls"]

_log = logging.getLogger(__name__)


class _Call:
    """A call, the future of its value, and what to do if it ends after its deadline."""

    __slots__ = ("call", "future", "late", "limit_s", "over", "timer", "worker")

    def __init__(self, call: Callable[[], Any], limit_s: float, late: Callable[[], object] | None) -> None:
        self.call, self.limit_s, self.late = call, limit_s, late
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.worker: SimpleQueue[Callable[[], None] | None] | None = None
        self.over = False


class Calls:
    """Runs calls on at most `threads` threads that are not hung. Belongs to one event loop.

    Args:
        threads: how many calls run at once; more wait.
        hung: with so many threads hung, no further call is taken.

    Attributes:
        leaked: threads that hang now.
    """

    def __init__(self, threads: int = 64, *, hung: int = 256) -> None:
        self.leaked = 0
        self._threads, self._hung, self._count = threads, hung, 0
        self._idle: list[SimpleQueue[Callable[[], None] | None]] = []
        self._queue: deque[_Call] = deque()
        self._running: set[_Call] = set()

    async def run(self, call: Callable[[], Any], limit_s: float, *, late: Callable[[], object] | None = None) -> Any:
        """The value of the call.

        Args:
            limit_s: seconds from the moment a thread begins with it.
            late: called on the thread when the call ends after its deadline, or after nobody waits for it any more.

        Raises:
            StepTimeout: the deadline passed; the call is left to itself.
            AtCapacity: too many calls hang.
            EvolventError: what the call raised; another exception is a WorldError.
        """
        if self.leaked >= self._hung:
            raise AtCapacity("too many calls of worlds hang", value=self.leaked, retry_after_s=limit_s)
        made = _Call(call, limit_s, late)
        self._queue.append(made)
        self._spread()
        try:
            return await made.future
        except asyncio.CancelledError:
            if made in self._running:
                self._left(made)
                self._spread()  # its place is free for a call that waits
            elif late is not None:
                self.post(late, limit_s)
            raise

    def post(self, call: Callable[[], object], limit_s: float) -> None:
        """Run the call; nobody waits for it, and what it raises is logged."""
        made = _Call(call, limit_s, None)
        made.future.add_done_callback(_told)
        self._queue.append(made)
        self._spread()

    async def close(self, wait_s: float) -> None:
        """Wait so long for what runs, then let all threads go."""
        waiting = [call.future for call in (*self._running, *self._queue)]
        if waiting:
            await asyncio.wait(waiting, timeout=wait_s)
        for call in list(self._running):
            self._left(call)
        for worker in self._idle:
            worker.put(None)
        self._count -= len(self._idle)
        self._idle.clear()

    def _spread(self) -> None:
        """Give waiting calls to idle or new threads."""
        while self._queue and (self._idle or self._count < self._threads):
            call = self._queue.popleft()
            if call.future.done():
                continue
            call.worker = self._idle.pop() if self._idle else self._new()
            call.timer = asyncio.get_running_loop().call_later(call.limit_s, self._expire, call)
            self._running.add(call)
            call.worker.put(partial(self._work, call, call.future.get_loop()))

    def _new(self) -> SimpleQueue[Callable[[], None] | None]:
        worker: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count += 1
        threading.Thread(target=_live, args=(worker,), name="evolvent-call", daemon=True).start()
        return worker

    def _work(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread: make the call and tell the loop."""
        value, error = None, None
        try:
            with boundary(WorldError, "a call failed"):
                value = call.call()
        except EvolventError as problem:
            error = problem
        try:
            loop.call_soon_threadsafe(self._done, call, value, error)
        except RuntimeError:  # the loop is closed: nobody is there any more
            if call.late is not None:
                _afterwards(call.late)

    def _done(self, call: _Call, value: Any, error: EvolventError | None) -> None:
        """On the loop: the call has ended, in time or not."""
        worker = call.worker
        if worker is None:
            return
        if call.over:
            self.leaked -= 1
            if call.late is not None:
                worker.put(partial(_afterwards, call.late))
            worker.put(None)
            return
        self._end(call)
        if not call.future.done():
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
        self._idle.append(worker)
        self._spread()

    def _expire(self, call: _Call) -> None:
        self._left(call)
        _log.warning("a call took more than %g s and was left behind (%d hang)", call.limit_s, self.leaked)
        if not call.future.done():
            error = StepTimeout("no answer before the deadline", value=f"{call.limit_s:g} s", hint="it was left behind")
            call.future.set_exception(error)
        self._spread()

    def _left(self, call: _Call) -> None:
        """Leave a running call to itself."""
        self._end(call)
        call.over = True
        self.leaked += 1
        self._count -= 1

    def _end(self, call: _Call) -> None:
        self._running.discard(call)
        if call.timer is not None:
            call.timer.cancel()


def _live(worker: SimpleQueue[Callable[[], None] | None]) -> None:
    """The life of a thread."""
    while (work := worker.get()) is not None:
        work()


def _afterwards(late: Callable[[], object]) -> None:
    try:
        with boundary(WorldError, "a call that ended after its deadline could not be cleaned up"):
            late()
    except EvolventError as problem:
        _log.warning("%s", problem)


def _told(future: asyncio.Future[Any]) -> None:
    """Log what went wrong with a call that nobody waits for."""
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.warning("%s", error)
