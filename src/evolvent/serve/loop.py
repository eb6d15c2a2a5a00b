"""One asyncio loop on a daemon thread: how worlds, which are called from threads, use asynchronous clients.

A client world owns one `Loop`. Its sockets and child processes live there; `run` hands a coroutine over and waits for
its value no longer than it is told. Closing the loop first closes what it was told to keep, then cancels what still
runs on it; that also happens when the loop is forgotten, and at the end of the process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from evolvent.errors import ConfigError, EnvLost, StepTimeout

__all__ = ["CLOSING_S", "Closing", "Loop"]

T = TypeVar("T")
CLOSING_S = 6.0  # how long what is closed or cancelled may take to give back what it holds
_log = logging.getLogger(__name__)


class Closing(Protocol):
    """Something on the loop that has to be closed in its own way."""

    async def close(self) -> None:
        """Give back what it holds; a second time does nothing."""
        ...


class _Thread:
    """The loop and its thread. It knows nothing of its `Loop`, so that the `Loop` can be forgotten."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.kept: set[Closing] = set()
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def current(self) -> bool:
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T], what: str) -> Future[T]:
        with self._lock:
            if not self._over:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise EnvLost("the connection was closed", value=what, expected="an open one", hint="make the world again")

    def end(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.current:
            self._thread.join(3 * CLOSING_S)

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        if self.kept:
            self._await([self.loop.create_task(each.close()) for each in list(self.kept)], "was closed")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._await(tasks, "was cancelled")
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _await(self, tasks: Iterable[asyncio.Task[Any]], what: str) -> None:
        """Let tasks end; say which do not, or fail."""
        ended, hung = self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSING_S))
        for task in hung:
            _log.warning("%r did not end when it %s", task, what)
        for task in ended:
            if not task.cancelled() and task.exception() is not None:
                _log.warning("%r failed when it %s", task, what)


class Loop:
    """An asyncio loop on a thread of its own, started when first used. All methods may be called from any thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str = "evolvent-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None, *, what: str = "a call") -> T:
        """The value of a coroutine that runs on the loop; past the deadline it is cancelled.

        Args:
            timeout_s: seconds; None: as long as it takes.
            what: of what an error speaks.

        Raises:
            StepTimeout: no value in time. The coroutine was cancelled: what it had in hand is in an unknown state.
            EnvLost: the loop is closed.
            ConfigError: called on the loop's own thread, where waiting would never end.
        """
        future = self.start(work, what=what)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # the coroutine's own timeout
                raise
            raise StepTimeout("no answer before the deadline", value=f"{what}, {timeout_s:g} s") from None
        finally:
            if not future.done():
                future.cancel()

    def start(self, work: Coroutine[Any, Any, T], *, what: str = "a call") -> Future[T]:
        """Run a coroutine in the background; cancelling the future cancels it. Raises as `run` does."""
        thread = self._started(what, work)
        if thread.current:
            work.close()
            raise ConfigError("the loop cannot wait for itself", value=what, hint="await it instead")
        return thread.submit(work, what)

    def keep(self, thing: Closing) -> None:
        """Close this on the loop before the loop ends, unless it is forgotten before."""
        self._started("keep").kept.add(thing)

    def forget(self, thing: Closing) -> None:
        """It was closed."""
        if self._thread is not None:
            self._thread.kept.discard(thing)

    @property
    def running(self) -> bool:
        """Whether the thread was started and not closed."""
        return self._thread is not None and not self._closed

    def close(self) -> None:
        """Cancel what runs, wait until it has ended, stop the thread; a second time does nothing."""
        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            thread.end()

    def _started(self, what: str, work: Coroutine[Any, Any, Any] | None = None) -> _Thread:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = _Thread(self._name)
                weakref.finalize(self, self._thread.end)  # also at the end of the process
            if self._thread is not None and not self._closed:
                return self._thread
        if work is not None:
            work.close()
        raise EnvLost("the connection was closed", value=what, expected="an open one", hint="make the world again")
