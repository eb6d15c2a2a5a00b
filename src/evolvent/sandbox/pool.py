"""Boxes started ahead: a fresh one for each job, ready when it comes."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import TracebackType

from evolvent.errors import ConfigError, IsolationUnavailable, Problem
from evolvent.sandbox.box import Box, Outside
from evolvent.sandbox.bubblewrap import isolation, places
from evolvent.sandbox.limits import Limits, Outcome, Request

__all__ = ["Boxes"]

_START_S = 30.0  # how long a box may take to start; packages to import ahead take seconds
_TRIES = 3  # a box that waits may have been ended by somebody else
_Ready = queue.SimpleQueue[Box | OSError]


class Boxes:
    """Runs sources, each in a fresh box; any number of threads may use it at once. Close it, or use it with `with`.

    Args:
        packages: modules that the code may import beside the standard library; their folders are bound read-only and
            they are imported before the source is known, so that they cost no time of the job. Give the job more
            memory then: `Limits(memory_mb=...)` counts address space.
        ahead: how many boxes wait, started.
        at_once: how many jobs run at the same time; further callers wait, their wall limit does not. None: two for
            each processor. A thread that holds a box may open more (a test in one, the code in another).
        tmp_mb: size of the working folder of boxes started ahead; a job with another limit waits for a start.
        unsafe: run without isolation. Every outcome says so.

    Raises:
        IsolationUnavailable: this host has no isolation, and `unsafe` is False.
        ConfigError: packages that are not installed, numbers that make no sense; all at once.
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
        wrong = [
            Problem(name, f"got {value}", f"expected {least} or more")
            for name, value, least in (("ahead", ahead, 0), ("at_once", at_once, 1), ("tmp_mb", tmp_mb, 1))
            if value < least
        ]
        if wrong:
            raise ConfigError(wrong)
        self._host = None if unsafe else isolation()
        self.unsafe = unsafe
        self._folders, self._packages, self._tmp_mb = places(packages), tuple(packages), tmp_mb
        self._ready: _Ready = queue.SimpleQueue()
        self._wanted: queue.SimpleQueue[tuple[int, _Ready] | None] = queue.SimpleQueue()
        self._slots, self._held = threading.Semaphore(at_once), threading.local()
        self._closed = False
        # A box dies with the thread that started it (that is what die-with-parent means to the kernel), so one thread
        # starts them all and lives as long as the pool.
        self._starter = threading.Thread(target=self._start, name="boxes", daemon=True)
        self._starter.start()
        for _ in range(ahead):
            self._wanted.put((tmp_mb, self._ready))

    def observe(self, source: str, requests: Sequence[Request], limits: Limits) -> tuple[Outcome, ...]:
        """One outcome for each request, in order; all requests go to one fresh box, one after another.

        The box and everything it started are gone when this returns. More answers than requests make all of them
        "malformed". What the source prints while it is loaded belongs to the first request.

        Raises:
            ConfigError: a source or arguments that are too large to be sent, or a closed pool.
            IsolationUnavailable: a box does not start.
        """
        with self.open(source, limits) as box:
            outcomes = tuple(box.ask(request.entry, request.args, request.kwargs) for request in requests)
            honest = box.end()
        if honest:
            return outcomes
        return tuple(
            replace(outcome, status="malformed", value=None, error="one answer too many") for outcome in outcomes
        )

    @contextmanager
    def open(self, source: str, limits: Limits, outside: Mapping[str, Outside] | None = None) -> Iterator[Box]:
        """A box with the source loaded, to be asked one request at a time; gone at the end of the block.

        Args:
            outside: functions that the source may call by these names; each call is answered here, by value.

        Raises:
            As `observe`.
        """
        with self._slot():
            box = self._take(limits.tmp_mb)
            try:
                box.load(source, limits, outside or {})
                yield box
            finally:
                box.kill()

    def opener(self, limits: Limits) -> Callable[[str, Mapping[str, Outside]], AbstractContextManager[Box]]:
        """`open` with the limits given, as graders take it (`evolvent.grade.code.judge`)."""
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

    def _take(self, tmp_mb: int) -> Box:
        """A ready box; the next one is ordered at the same time."""
        source: _Ready = self._ready if tmp_mb == self._tmp_mb else queue.SimpleQueue()
        for attempt in range(_TRIES):
            if self._closed:
                raise ConfigError("a closed pool of boxes", value=f"{attempt} tries", expected="an open one")
            self._wanted.put((tmp_mb, source))
            try:
                box = source.get(timeout=_START_S)
            except queue.Empty:
                raise IsolationUnavailable("no box started", value=f"{_START_S:g} s", expected="a box") from None
            if isinstance(box, OSError):
                raise IsolationUnavailable("a box cannot be started", value=str(box)) from box
            try:
                box.wait(_START_S)
                return box
            except IsolationUnavailable:
                if attempt + 1 == _TRIES:
                    raise
        raise IsolationUnavailable("no box started", value=f"{_TRIES} tries")

    def _start(self) -> None:
        while (order := self._wanted.get()) is not None:
            tmp_mb, place = order
            try:
                place.put(Box(self._host, tmp_mb=tmp_mb, folders=self._folders, packages=self._packages))
            except OSError as error:
                place.put(error)

    def close(self) -> None:
        """End the boxes that wait. Jobs that run in other threads are ended with them, as "killed"."""
        if self._closed:
            return
        self._closed = True
        self._wanted.put(None)
        self._starter.join()
        with suppress(queue.Empty):
            while True:
                box = self._ready.get_nowait()
                if isinstance(box, Box):
                    box.kill()

    def __enter__(self) -> Boxes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
