"""One thread that drives an engine for everybody who asks on an event loop: their asks share full forwards.

Nodes of the engine never leave the thread. It holds the newest ones, so that a conversation that goes on finds what was
computed for its earlier turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Continuation, Engine, Node, SampleAsk, Ticket, Usage
from evolvent.errors import AtCapacity, ConfigError, EngineError, EvolventError, boundary

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Generator", "Written", "fingerprint"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
_SAMPLED = 1024  # weights of a tensor that enter the fingerprint


def fingerprint(policy: Policy) -> str:
    """`evolvent-vVERSION-DIGEST`: changes with the version, and with the weights.

    The digest is of the names, shapes and up to 1024 evenly spaced weights of every tensor: an update changes nearly
    all weights, and reading every one of a large model would take longer than loading it.
    """
    digest = hashlib.sha256(policy.dialect.name.encode())
    for name, weight in sorted(policy.model.state_dict().items()):
        flat = weight.detach().flatten()
        some = flat[:: max(1, -(-len(flat) // _SAMPLED))].float().cpu().numpy().astype("<f4")
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode() + some.tobytes())
    return f"evolvent-v{policy.version}-{digest.hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """One sample: `ids` `[T]` int32, `logprobs` `[T]` float32, why it stopped, and the fingerprint of its writer."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop: str
    writer: str


@dataclass(slots=True, eq=False)
class _Job:
    ask: SampleAsk
    future: Future[tuple[Written, ...]] = field(default_factory=Future)
    ticket: Ticket | None = None


def _settle(future: Future[T], value: T | None = None, *, error: Exception | None = None) -> None:
    """Answer a future, unless its asker has gone meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


class Generator:
    """Answers asks of many at once. Used in an `async with`.

    Args:
        policy, engine: what is served; nobody else uses the engine meanwhile.
        waiting: most asks that are open at once.
        remembered: how many ends of texts are held for whoever continues them.
    Raises:
        ConfigError: waiting below 1.
    """

    def __init__(self, policy: Policy, engine: Engine, *, waiting: int = 1024, remembered: int = 1024) -> None:
        if waiting < 1:
            raise ConfigError("a generator that takes no asks", value=waiting, expected="waiting of 1 or more")
        self.policy, self.fingerprint = policy, fingerprint(policy)
        self._engine, self._waiting, self._remembered = engine, waiting, remembered
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._jobs: dict[Ticket, _Job] = {}
        self._ends: OrderedDict[int, Node] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closing = self._ended = False
        self._count = 0
        self.open = 0

    @property
    def context(self) -> int:
        """Most tokens of a text."""
        return self._engine.context

    @property
    def usage(self) -> Usage:
        """What the engine has counted so far."""
        return self._engine.usage

    @property
    def queued(self) -> int:
        """Asks that the engine has taken and not answered yet."""
        return self._engine.pending()

    async def __aenter__(self) -> Generator:
        self._closing = self._ended = False
        self._thread = threading.Thread(target=self._run, name="evolvent-generator", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._commands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def write(self, ask: SampleAsk) -> tuple[Written, ...]:
        """The samples of an ask without node, one per seed. When the caller is cancelled, so is the work.

        Raises:
            AtCapacity: too many asks are open.
            ContextOverflow, VocabularyMismatch, EngineError: as the engine says.
        """
        if self._thread is None or self._closing:
            raise EngineError("a generator that is not running was asked", value=self.fingerprint)
        if self.open >= self._waiting:
            raise AtCapacity("too many requests at once", retry_after_s=1.0, value=self.open)
        job = _Job(ask)
        self.open += 1
        self._commands.put(partial(self._submit, job))
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._commands.put(partial(self._drop, job))
            raise
        finally:
            self.open -= 1

    async def sync(self, policy: Policy) -> None:
        """Serve other weights from now on. What is being written begins again under them."""
        done: Future[None] = Future()
        self._commands.put(partial(self._sync, policy, done))
        await asyncio.wrap_future(done)

    def _run(self) -> None:
        """The life of the thread; a failure ends what is open, not the thread."""
        while not self._ended:
            try:
                with boundary(EngineError, "the engine failed"):
                    self._turn()
            except EvolventError as error:
                _log.exception("the engine failed with %d requests open", len(self._jobs))
                self._fail(error)
        self._fail(EngineError("the server is closing", value=f"{len(self._jobs)} open requests"))

    def _turn(self) -> None:
        """Do what was commanded, then one forward."""
        for command in self._taken():
            if command is None:
                self._ended = True
            else:
                command()
        if self._jobs and not self._ended:
            self._poll()

    def _taken(self) -> Iterator[Callable[[], None] | None]:
        """The commands that are there; waits for one if there is nothing else to do."""
        block = not self._jobs
        while True:
            try:
                yield self._commands.get(block=block)
            except Empty:
                return
            block = False

    def _submit(self, job: _Job) -> None:
        if job.future.cancelled():
            return
        try:
            with boundary(EngineError, "the engine failed to take a request"):
                job.ticket = self._engine.submit(job.ask)
        except EvolventError as error:
            _settle(job.future, error=error)
            return
        self._jobs[job.ticket] = job

    def _drop(self, job: _Job) -> None:
        if job.ticket is not None and self._jobs.pop(job.ticket, None) is not None:
            self._engine.cancel([job.ticket])

    def _poll(self) -> None:
        for one in self._engine.poll():
            job = self._jobs.pop(one.ticket, None)
            if job is None:
                continue
            if one.error is not None:
                _settle(job.future, error=one.error)
            else:
                _settle(job.future, tuple(self._written(sample) for sample in one.answer))

    def _written(self, sample: Continuation) -> Written:
        self._count += 1
        self._ends[self._count] = sample.node
        while len(self._ends) > self._remembered:
            self._ends.popitem(last=False)
        return Written(sample.ids, sample.logprobs, sample.stop, self.fingerprint)

    def _sync(self, policy: Policy, done: Future[None]) -> None:
        again, self._jobs = self._jobs, {}
        self._ends.clear()
        try:
            with boundary(EngineError, "the engine failed to take new weights"):
                self._engine.cancel(list(again))
                self._engine.sync(policy)
                self.policy, self.fingerprint = policy, fingerprint(policy)
        except EvolventError as error:
            _settle(done, error=error)
        else:
            _settle(done, None)
        for job in again.values():
            self._submit(job)

    def _fail(self, error: EvolventError) -> None:
        """End everything that is open: who asked is told first, whatever state the engine is in."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            _settle(job.future, error=error)
        try:
            with boundary(EngineError, "the engine failed to forget requests"):
                self._engine.cancel(list(jobs))
        except EvolventError as problem:
            _log.warning("%s", problem)
