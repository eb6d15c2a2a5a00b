"""One asyncio loop on a daemon thread, so that worlds, which are called from threads, can use asynchronous clients.

A client world owns one `Loop`. Its sockets and child processes live there; `run` submits a coroutine and waits for its
value with a timeout. Closing the loop first closes the resources that it was told to keep, then cancels the running
tasks; that also happens when the loop is garbage collected, and at the end of the process.
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

__all__ = ["CLOSE_TIMEOUT_S", "AsyncClosable", "Loop"]

T = TypeVar("T")
CLOSE_TIMEOUT_S = 6.0  # how long what is closed or canceled may take to give back what it holds
_log = logging.getLogger(__name__)


class AsyncClosable(Protocol):
    """A resource on the loop with its own `close`."""

    async def close(self) -> None:
        """Releases the resource; a second call does nothing."""
        ...


class _LoopThread:
    """The loop and its thread. It has no reference to its `Loop`, so that the `Loop` can be garbage collected."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.kept: set[AsyncClosable] = set()
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T], label: str) -> Future[T]:
        with self._lock:
            if not self._over:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise EnvLost(
            "the connection was closed", value=label, expected="an open connection", hint="create the world again"
        )

    def stop(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(3 * CLOSE_TIMEOUT_S)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        if self.kept:
            self._wait_for_tasks(
                [self.loop.create_task(resource.close()) for resource in list(self.kept)], "was closed"
            )
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._wait_for_tasks(tasks, "was cancelled")
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def _wait_for_tasks(self, tasks: Iterable[asyncio.Task[Any]], event: str) -> None:
        """Waits until tasks end; logs tasks that do not end, or fail."""
        ended, hung = self.loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S))
        for task in hung:
            _log.warning("%r did not end when it %s", task, event)
        for task in ended:
            if not task.cancelled() and task.exception() is not None:
                _log.warning("%r failed when it %s", task, event)


class Loop:
    """An asyncio loop on its own thread, started when first used. All methods may be called from any thread.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str = "evolvent-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._closed = False

    def run(self, coroutine: Coroutine[object, object, T], timeout_s: float | None, *, label: str = "a call") -> T:
        """Returns the value of a coroutine that runs on the loop; past the deadline it is canceled.

        Args:
            timeout_s: seconds; None: no timeout.
            label: name of the call in errors.

        Raises:
            StepTimeout: no value in time. The coroutine was cancelled: its resources are in an unknown state.
            EnvLost: the loop is closed.
            ConfigError: called on the loop's own thread, where waiting would never end.
        """
        future = self.start(coroutine, label=label)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # the coroutine's own timeout
                raise
            raise StepTimeout(f"{label}: no answer before the deadline of {timeout_s:g} s") from None
        finally:
            if not future.done():
                future.cancel()

    def start(self, coroutine: Coroutine[object, object, T], *, label: str = "a call") -> Future[T]:
        """Runs a coroutine in the background; canceling the future cancels it. Raises as `run` does."""
        thread = self._get_thread(label, coroutine)
        if thread.is_current:
            coroutine.close()
            raise ConfigError("the event loop cannot wait for itself", value=label, hint="await it instead")
        return thread.submit(coroutine, label)

    def keep(self, resource: AsyncClosable) -> None:
        """Closes the resource on the loop before the loop ends, unless it is forgotten before."""
        self._get_thread("keep").kept.add(resource)

    def forget(self, resource: AsyncClosable) -> None:
        """Removes a closed resource."""
        if self._thread is not None:
            self._thread.kept.discard(resource)

    @property
    def is_running(self) -> bool:
        """Returns whether the thread was started and not closed."""
        return self._thread is not None and not self._closed

    def close(self) -> None:
        """Cancels all tasks, waits until they have ended, and stops the thread; a second call does nothing."""
        with self._lock:
            self._closed, thread = True, self._thread
        if thread is not None:
            thread.stop()

    def _get_thread(self, label: str, coroutine: Coroutine[Any, Any, Any] | None = None) -> _LoopThread:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = _LoopThread(self._name)
                weakref.finalize(self, self._thread.stop)  # also at the end of the process
            if self._thread is not None and not self._closed:
                return self._thread
        if coroutine is not None:
            coroutine.close()
        raise EnvLost(
            "the connection was closed", value=label, expected="an open connection", hint="create the world again"
        )
