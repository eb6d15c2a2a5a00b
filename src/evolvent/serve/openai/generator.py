"""One thread that drives an engine for all requests of an event loop: their asks share full forwards.

Nodes of the engine never leave the thread. It holds the newest ones, so that a continued conversation finds the
computation of its earlier turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Constraint, Continuation, Engine, Node, SampleAsk, Sampling, Ticket, Usage
from evolvent.engine.streams import StreamLimit, distribution
from evolvent.errors import AtCapacity, ConfigError, EngineError, EvolventError, boundary

if TYPE_CHECKING:
    from torch import Tensor

    from evolvent.models.policy import Policy

__all__ = ["CLIENT", "GeneratedSample", "Generator", "TokenScores", "policy_fingerprint"]

_log = logging.getLogger(__name__)
CLIENT: ContextVar[str] = ContextVar("client", default="")  # whose request the current task answers
T = TypeVar("T")
_MAX_LOGITS = 1 << 26  # logits that one forward of scoring returns
_MAX_SAMPLED_WEIGHTS = 1024  # weights of a tensor that enter the fingerprint


def policy_fingerprint(policy: Policy) -> str:
    """Returns `evolvent-vVERSION-DIGEST`, which changes with the version and with the weights.

    The digest is of the names, shapes and up to 1024 evenly spaced weights of every tensor: an update changes nearly
    all weights, and reading every weight of a large model would take longer than loading it.
    """
    digest = hashlib.sha256(policy.dialect.name.encode())
    for name, weight in sorted(policy.model.state_dict().items()):
        flat = weight.detach().flatten()
        sampled_weights = flat[:: max(1, -(-len(flat) // _MAX_SAMPLED_WEIGHTS))].float().cpu().numpy().astype("<f4")
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode() + sampled_weights.tobytes())
    return f"evolvent-v{policy.version}-{digest.hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedSample:
    """One sample.

    Args:
        ids: [T] int32. Token ids.
        logprobs: [T] float32. Log-probability of each token.
        stop: reason of the stop.
        fingerprint: fingerprint of the policy that generated it.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop: str
    fingerprint: str


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Log-probabilities of given tokens, and the likeliest tokens at their positions.

    Args:
        logprobs: [T] float32. Log-probability of each token.
        top_ids: [T, K] int32. The likeliest tokens, the likeliest first.
        top_logprobs: [T, K] float32. Their log-probabilities.
    """

    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    def __getitem__(self, positions: slice) -> TokenScores:
        return TokenScores(self.logprobs[positions], self.top_ids[positions], self.top_logprobs[positions])

    @classmethod
    def concatenate(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """Joins the scores of consecutive tokens."""
        return cls(
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.top_ids for part in parts]),
            np.concatenate([part.top_logprobs for part in parts]),
        )


@dataclass(slots=True, eq=False)
class _Job:
    """A part of a request that waits for its turn: an ask, or a call that scores tokens."""

    client: str
    ask: SampleAsk | None = None
    score: Callable[[], None] | None = None
    future: Future[tuple[GeneratedSample, ...]] = field(default_factory=Future)
    ticket: Ticket | None = None

    @property
    def size(self) -> int:
        return 0 if self.ask is None else len(self.ask.seeds)


def _set_result(future: Future[T], value: T | None = None, *, error: Exception | None = None) -> None:
    """Sets the result of a future, unless its caller has canceled it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)  # type: ignore[arg-type]


class Generator:
    """Answers many asks at once, those of different clients (`CLIENT`) in turn. Used in an `async with`.

    A client that has no text in the engine finds a free slot: the others leave an eighth of them.

    Args:
        policy: the served policy.
        engine: its engine; it has no other users meanwhile.
        max_open: maximum number of open asks. One client may have as many as are still free, about half.
        max_ends: number of ends of texts that are held for continuations.
        slots: texts that the engine is given at once.
    Raises:
        ConfigError: max_open or slots below 1.
    """

    def __init__(
        self, policy: Policy, engine: Engine, *, max_open: int = 2048, max_ends: int = 1024, slots: int = 64
    ) -> None:
        if slots < 1:
            raise ConfigError("number of slots out of range", value=slots, expected="1 or more")
        if max_open < 1:
            raise ConfigError("number of waiting requests out of range", value=max_open, expected="1 or more")
        self.policy, self.fingerprint = policy, policy_fingerprint(policy)
        self._engine, self._waiting, self._remembered = engine, max_open, max_ends
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._jobs: dict[Ticket, _Job] = {}
        self._slots, self._num_spare_slots = slots, slots // 8
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()  # by client, the one whose turn is next first
        self._busy: Counter[str] = Counter()  # texts in the engine, by client
        self._open_by_client: Counter[str] = Counter()
        self.num_refused = 0
        self._ends: OrderedDict[int, Node] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closing = self._ended = False
        self._count = 0
        self.open = 0

    @property
    def context(self) -> int:
        """Returns the maximum number of tokens of a text."""
        return self._engine.context

    @property
    def usage(self) -> Usage:
        """Returns the engine's counts so far."""
        return self._engine.usage

    @property
    def queued(self) -> int:
        """Returns the number of asks that the engine has accepted and not answered yet."""
        return self._engine.pending()

    @property
    def num_waiting(self) -> int:
        """Returns the number of asks that wait for their turn."""
        return sum(map(len, list(self._queues.values())))

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

    async def generate(self, ask: SampleAsk, *, is_continued: bool = False) -> tuple[GeneratedSample, ...]:
        """Returns the samples of an ask without node, one per seed. When the caller is cancelled, so is the work.

        Args:
            is_continued: the ask goes on with a reply that has begun, and is not refused.

        Raises:
            AtCapacity: too many asks are open.
            ContextOverflow, VocabularyMismatch, EngineError: errors of the engine.
        """
        if self._thread is None or self._closing:
            raise EngineError("the generator is not running", value=self.fingerprint)
        client = CLIENT.get()
        if not is_continued:
            self._check_room(client)
        size = max(1, self._num_spare_slots)
        parts = [ask.seeds[start : start + size] for start in range(0, len(ask.seeds), size)] or [ask.seeds]
        jobs = [_Job(client, replace(ask, seeds=seeds)) for seeds in parts]
        self.open += 1
        self._open_by_client[client] += 1
        for job in jobs:
            self._commands.put(partial(self._enqueue, job))
        is_answered = False
        try:
            results = await asyncio.gather(*(asyncio.wrap_future(job.future) for job in jobs))
            is_answered = True
            return tuple(sample for samples in results for sample in samples)
        finally:
            for job in () if is_answered else jobs:
                job.future.cancel()
                self._commands.put(partial(self._drop, job))
            self.open -= 1
            self._open_by_client[client] -= 1
            if not self._open_by_client[client]:
                del self._open_by_client[client]

    def _check_room(self, client: str) -> None:
        """Raises AtCapacity where there is no room, or where this client has more open asks than are still free."""
        num_free = self._waiting - self.open
        if num_free <= 0 or self._open_by_client[client] > num_free:
            self.num_refused += 1
            raise AtCapacity("too many requests at once", retry_after_s=1.0, value=self.open)

    async def score(
        self,
        ids: Sequence[int],
        *,
        first: int,
        num_top: int,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
    ) -> TokenScores:
        """Returns the log-probabilities of the tokens from `first` on, each after those before it.

        Args:
            ids: all tokens; the first one has nothing before it, so `first` is 1 or more.
            num_top: number of the likeliest tokens to return at every position.
            sampling: the distribution; None, and temperature 0: that of temperature 1.
            constraint: its state before the token at `first`; None: no constraint.
        """
        finished: Future[TokenScores] = Future()
        if self._thread is None or self._closing:
            raise EngineError("the generator is not running", value=self.fingerprint)
        call = partial(self._score, list(ids), first, num_top, sampling or Sampling(), constraint, finished)
        self._commands.put(partial(self._enqueue, _Job(CLIENT.get(), score=call)))
        return await asyncio.wrap_future(finished)

    def _score(
        self,
        ids: list[int],
        first: int,
        num_top: int,
        sampling: Sampling,
        constraint: Constraint | None,
        finished: Future[TokenScores],
    ) -> None:
        if finished.cancelled():
            return
        try:
            with boundary(EngineError, "the engine failed to score tokens"):
                limit = None if constraint is None else StreamLimit(None, constraint.copy())
                scores = _score_tokens(self.policy, ids, first, num_top=num_top, sampling=sampling, limit=limit)
        except EvolventError as error:
            _set_result(finished, error=error)
        else:
            _set_result(finished, scores)

    async def sync(self, policy: Policy) -> None:
        """Loads other weights from now on. Replies in progress start again under them."""
        finished: Future[None] = Future()
        self._commands.put(partial(self._sync_engine, policy, finished))
        await asyncio.wrap_future(finished)

    def _run(self) -> None:
        """Runs the thread; a failure ends the open asks, not the thread."""
        while not self._ended:
            try:
                with boundary(EngineError, "the engine failed"):
                    self._run_turn()
            except EvolventError as error:
                _log.exception("the engine failed with %d requests open", len(self._jobs))
                self._fail_all(error)
        self._fail_all(EngineError("the server is closing", value=f"{len(self._jobs)} open requests"))

    def _run_turn(self) -> None:
        """Runs the pending commands, then one forward."""
        for command in self._take_commands():
            if command is None:
                self._ended = True
            else:
                command()
        if not self._ended:
            self._admit_jobs()
        if self._jobs and not self._ended:
            self._poll_engine()

    def _take_commands(self) -> Iterator[Callable[[], None] | None]:
        """Yields the pending commands; waits for one if there is nothing else to do."""
        block = not self._jobs and not self._queues
        while True:
            try:
                yield self._commands.get(block=block)
            except Empty:
                return
            block = False

    def _enqueue(self, job: _Job, *, is_next: bool = False) -> None:
        queue = self._queues.setdefault(job.client, deque())
        if is_next:
            queue.appendleft(job)
        else:
            queue.append(job)

    def _admit_jobs(self) -> None:
        """Gives the engine what it has slots for, one ask of each client in turn; scores tokens once a turn."""
        has_scored, is_going = False, True
        while is_going:
            is_going = False
            for client in list(self._queues):
                queue = self._queues[client]
                job = queue[0]
                is_possible = not has_scored if job.score is not None else self._has_slots(job)
                if not (is_possible or job.future.cancelled()):
                    continue
                queue.popleft()
                if queue:
                    self._queues.move_to_end(client)
                else:
                    del self._queues[client]
                is_going = True
                if job.future.cancelled():
                    continue
                if job.score is not None:
                    has_scored = True
                    job.score()
                else:
                    self._submit(job)

    def _has_slots(self, job: _Job) -> bool:
        num_busy, own = self._busy.total(), self._busy[job.client]
        return not num_busy or num_busy + job.size <= self._slots - (self._num_spare_slots if own else 0)

    def _submit(self, job: _Job) -> None:
        if job.ask is None:
            return
        try:
            with boundary(EngineError, "the engine failed to take a request"):
                job.ticket = self._engine.submit(job.ask)
        except EvolventError as error:
            _set_result(job.future, error=error)
            return
        self._jobs[job.ticket] = job
        self._busy[job.client] += job.size

    def _take_job(self, ticket: Ticket | None) -> _Job | None:
        """Removes a job that the engine has, and frees its slots."""
        job = None if ticket is None else self._jobs.pop(ticket, None)
        if job is not None:
            self._busy[job.client] -= job.size
            if not self._busy[job.client]:
                del self._busy[job.client]
        return job

    def _drop(self, job: _Job) -> None:
        if job.ticket is not None and self._take_job(job.ticket) is not None:
            self._engine.cancel([job.ticket])
        queue = self._queues.get(job.client)
        if queue is not None and job in queue:
            queue.remove(job)
            if not queue:
                del self._queues[job.client]

    def _poll_engine(self) -> None:
        for result in self._engine.poll():
            job = self._take_job(result.ticket)
            if job is None:
                continue
            if result.error is not None:
                _set_result(job.future, error=result.error)
            else:
                _set_result(job.future, tuple(self._make_sample(sample) for sample in result.answer))

    def _make_sample(self, sample: Continuation) -> GeneratedSample:
        self._count += 1
        self._ends[self._count] = sample.node
        while len(self._ends) > self._remembered:
            self._ends.popitem(last=False)
        return GeneratedSample(sample.ids, sample.logprobs, sample.stop, self.fingerprint)

    def _sync_engine(self, policy: Policy, finished: Future[None]) -> None:
        restarted, self._jobs = self._jobs, {}
        self._busy.clear()
        self._ends.clear()
        try:
            with boundary(EngineError, "the engine failed to take new weights"):
                self._engine.cancel(list(restarted))
                self._engine.sync(policy)
                self.policy, self.fingerprint = policy, policy_fingerprint(policy)
        except EvolventError as error:
            _set_result(finished, error=error)
        else:
            _set_result(finished, None)
        for job in reversed(restarted.values()):
            self._enqueue(job, is_next=True)

    def _fail_all(self, error: EvolventError) -> None:
        """Ends all open asks: their callers get the error first, whatever the state of the engine."""
        jobs, self._jobs = self._jobs, {}
        waiting = [job for queue in self._queues.values() for job in queue if job.score is None]
        self._busy.clear()
        for client, queue in list(self._queues.items()):
            scores = deque(job for job in queue if job.score is not None)
            if scores:
                self._queues[client] = scores
            else:
                del self._queues[client]
        for job in (*jobs.values(), *waiting):
            _set_result(job.future, error=error)
        try:
            with boundary(EngineError, "the engine failed to forget requests"):
                self._engine.cancel(list(jobs))
        except EvolventError as problem:
            _log.warning("%s", problem)


def _score_tokens(
    policy: Policy, ids: list[int], first: int, *, num_top: int, sampling: Sampling, limit: StreamLimit | None
) -> TokenScores:
    """Scores tokens by forwards over the whole text, each of which returns the logits of some positions."""
    import torch

    device = next(policy.model.parameters()).device
    input_ids = torch.tensor([ids], device=device)
    vocabulary = int(policy.model.config.vocab_size)
    num_positions = max(1, _MAX_LOGITS // vocabulary)
    parts = []
    for start in range(first, len(ids), num_positions):
        targets = torch.arange(start, min(start + num_positions, len(ids)), device=device)
        with torch.inference_mode():
            if len(ids) <= num_positions:
                logits = policy.model(input_ids=input_ids, use_cache=False).logits[0, targets - 1]
            else:
                logits = policy.model(input_ids=input_ids, use_cache=False, logits_to_keep=targets - 1).logits[0]
        parts.append(_score_targets(logits.float().clone(), ids, targets, num_top, sampling, limit))
    if not parts:
        empty = np.zeros((0, num_top))
        return TokenScores(np.zeros(0, np.float32), empty.astype(np.int32), empty.astype(np.float32))
    return TokenScores.concatenate(parts)


def _score_targets(
    logits: Tensor, ids: list[int], targets: Tensor, num_top: int, sampling: Sampling, limit: StreamLimit | None
) -> TokenScores:
    """Returns the scores of target tokens by their `logits [T, V]`, which may be changed."""
    import torch

    allowed = None if limit is None else torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    tokens = torch.tensor([ids[position] for position in targets.tolist()], device=logits.device)
    if limit is not None and allowed is not None:
        for row, token in enumerate(tokens.tolist()):
            limit.fill(allowed[row])
            limit.add_bias(logits[row])
            limit.advance(token)
    count = len(tokens)
    logprobs = distribution(
        logits,
        temperature=torch.full((count,), sampling.temperature or 1.0, device=logits.device),
        top_k=torch.full((count,), sampling.top_k, device=logits.device),
        top_p=torch.full((count,), sampling.top_p, device=logits.device),
        allowed=allowed,
    )
    top = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    token_logprobs = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return TokenScores(
        token_logprobs.cpu().numpy().astype(np.float32),
        top.indices.cpu().numpy().astype(np.int32),
        top.values.cpu().numpy().astype(np.float32),
    )
