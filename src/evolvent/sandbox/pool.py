"""A pool of sandboxes started ahead: a fresh sandbox for each job, ready when the job comes."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType

from evolvent.errors import ConfigError, IsolationUnavailable, Problem
from evolvent.sandbox.box import HostFunction, Sandbox
from evolvent.sandbox.bubblewrap import isolation, package_folders
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits

__all__ = ["SandboxPool"]

_START_TIMEOUT_S = 30.0  # how long a box may take to start; packages to import ahead take seconds
_MAX_TRIES = 3  # a box that waits may have been ended by somebody else
_Ready = queue.SimpleQueue[Sandbox | OSError]


class SandboxPool:
    """Runs sources, each in a fresh sandbox; any number of threads may use the pool at once. Close it, or use
    `with`.

    Args:
        packages: modules that the code may import beside the standard library; their folders are bound read-only and
            they are imported before the source is known, so that they cost no time of the job. Give the job more
            memory then: `SandboxLimits(memory_mb=...)` counts address space.
        ahead: number of sandboxes that wait, started.
        at_once: number of jobs that run at the same time; further callers wait, their wall-clock limit does not. None:
            two for each processor. A thread that holds a sandbox may open more (a test in one, the code in another).
        tmp_mb: size of the working folder of sandboxes started ahead, MiB; a job with another limit waits for a start.
        unsafe: run without isolation. Every outcome reports it.

    Raises:
        IsolationUnavailable: this host has no isolation, and `unsafe` is False.
        ConfigError: packages that are not installed, or numbers out of range; all at once.
    """

    def __init__(
        self,
        *,
        packages: Sequence[str] = (),
        ahead: int = 2,
        at_once: int | None = None,
        tmp_mb: int = 16,
        unsafe: bool = False,
    ) -> None:
        at_once = 2 * (os.cpu_count() or 1) if at_once is None else at_once
        problems = [
            Problem(name, f"got {value}, expected {minimum} or more")
            for name, value, minimum in (("ahead", ahead, 0), ("at_once", at_once, 1), ("tmp_mb", tmp_mb, 1))
            if value < minimum
        ]
        if problems:
            raise ConfigError(problems)
        self._host = None if unsafe else isolation()
        self.unsafe = unsafe
        self._folders, self._packages, self._tmp_mb = package_folders(packages), tuple(packages), tmp_mb
        self._ready: _Ready = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[tuple[int, _Ready] | None] = queue.SimpleQueue()
        self._slots, self._held = threading.Semaphore(at_once), threading.local()
        self._closed = False
        # A box dies with the thread that started it (that is what die-with-parent means to the kernel), so one thread
        # starts them all and lives as long as the pool.
        self._starter = threading.Thread(target=self._start_ordered, name="boxes", daemon=True)
        self._starter.start()
        for _ in range(ahead):
            self._wanted.put((tmp_mb, self._ready))

    def observe(self, source: str, requests: Sequence[CallRequest], limits: SandboxLimits) -> tuple[Outcome, ...]:
        """Returns one outcome for each request, in order; all requests go to one fresh sandbox, one after another.

        The sandbox and all its processes have ended when this returns. More answers than requests make all outcomes
        "malformed". Text that the source prints while it is loaded belongs to the first request.

        Raises:
            ConfigError: the source or arguments are too large to be sent, or the pool is closed.
            IsolationUnavailable: a sandbox does not start.
        """
        with self.open(source, limits) as sandbox:
            outcomes = tuple(sandbox.ask(request.entry, request.args, request.kwargs) for request in requests)
            ended_cleanly = sandbox.end()
        if ended_cleanly:
            return outcomes
        return tuple(
            outcome
            if outcome.status == "malformed"
            else replace(outcome, status="malformed", value=None, error="one answer too many")
            for outcome in outcomes
        )

    @contextmanager
    def open(
        self, source: str, limits: SandboxLimits, host_functions: Mapping[str, HostFunction] | None = None
    ) -> Iterator[Sandbox]:
        """Opens a sandbox with the source loaded, for one request at a time; it ends with the block.

        Args:
            host_functions: functions that the source may call by these names; each call is answered here, by value.

        Raises:
            The errors of `observe`.
        """
        with self._slot():
            sandbox = self._take_ready(limits.tmp_mb)
            try:
                sandbox.load(source, limits, host_functions or {})
                yield sandbox
            finally:
                sandbox.kill()

    def opener(
        self, limits: SandboxLimits
    ) -> Callable[[str, Mapping[str, HostFunction]], AbstractContextManager[Sandbox]]:
        """Returns `open` with the limits bound, as graders take it (`grade.code.grade_code`)."""
        return lambda source, outside: self.open(source, limits, outside)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        depth = getattr(self._held, "depth", 0)
        if depth == 0:
            self._slots.acquire()
        self._held.depth = depth + 1
        try:
            yield
        finally:
            self._held.depth = depth
            if depth == 0:
                self._slots.release()

    def _take_ready(self, tmp_mb: int) -> Sandbox:
        """Takes a ready sandbox and orders the next one at the same time."""
        ready_queue: _Ready = self._ready if tmp_mb == self._tmp_mb else queue.SimpleQueue()
        for attempt in range(_MAX_TRIES):
            if self._closed:
                raise ConfigError("the sandbox pool is closed", value=f"{attempt} attempts", expected="an open one")
            self._wanted.put((tmp_mb, ready_queue))
            try:
                sandbox = ready_queue.get(timeout=_START_TIMEOUT_S)
            except queue.Empty:
                raise IsolationUnavailable(
                    "no sandbox started", value=f"{_START_TIMEOUT_S:g} s", expected="a sandbox within that time"
                ) from None
            if isinstance(sandbox, OSError):
                raise IsolationUnavailable("a sandbox cannot be started", value=str(sandbox)) from sandbox
            try:
                sandbox.wait(_START_TIMEOUT_S)
                return sandbox
            except IsolationUnavailable:
                if attempt + 1 == _MAX_TRIES:
                    raise
        raise IsolationUnavailable("no sandbox started", value=f"{_MAX_TRIES} attempts")

    def _start_ordered(self) -> None:
        while (order := self._wanted.get()) is not None:
            tmp_mb, ready_queue = order
            try:
                ready_queue.put(Sandbox(self._host, tmp_mb=tmp_mb, folders=self._folders, packages=self._packages))
            except OSError as error:
                ready_queue.put(error)

    def close(self) -> None:
        """Ends the sandboxes that wait. Jobs that run in other threads are ended with them, as "killed"."""
        if self._closed:
            return
        self._closed = True
        self._wanted.put(None)
        self._starter.join()
        with suppress(queue.Empty):
            while True:
                sandbox = self._ready.get_nowait()
                if isinstance(sandbox, Sandbox):
                    sandbox.kill()

    def __enter__(self) -> SandboxPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
