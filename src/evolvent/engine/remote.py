"""A model behind an OpenAI-compatible endpoint as an engine: completions with token ids, many of them in flight.

A node is its tokens; the server's prefix cache is the trie. So this engine only samples: an endpoint gives
neither all logits nor hidden states, and log-probabilities of given tokens only in ways that differ. A
token-level search, a value head or a process reward model needs a local model.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from evolvent.engine.asks import Ask, BlockingCall, Continuation, Finished, Node, SampleAsk, Ticket, Usage, validate_ask
from evolvent.engine.driver import BlockingCallPool, Outcome
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.replies import FINGERPRINT, Reply
from evolvent.errors import ConfigError, EndpointError, Problem, StaleNode, TokensMissing, WeightsChanged

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["RemoteEngine"]


@dataclass(frozen=True, slots=True, eq=False)
class _TextNode:
    """A node: the tokens themselves."""

    ids: tuple[int, ...]
    version: int
    engine: RemoteEngine

    @property
    def length(self) -> int:
        return len(self.ids)

    def tokens(self) -> list[int]:
        return list(self.ids)

    def __repr__(self) -> str:
        return f"{len(self.ids)} tokens of {self.engine!r}, version {self.version}"


@dataclass(slots=True, eq=False)
class _Request:
    """One ticket and its answers so far."""

    ticket: Ticket
    ask: SampleAsk
    prompt: tuple[int, ...]
    answers: list[Continuation | None] = field(default_factory=list)


class RemoteEngine:
    """Answers `SampleAsk`s with completions: one request a seed, repeated by `Endpoint` where that is safe.

    A seed goes to the endpoint as it is. Against `evolvent serve --policy` the answers are those of a `LocalEngine`
    over the same policy. The endpoint's own stop token always ends a continuation, also where the ask does not name it.

    Args:
        endpoint: the caller closes it. Its `processed` says whose log-probabilities come back.
        context: most tokens of a text there.
        vocabulary: how many token ids the model has.
        version: of the weights that are served. Ours tell it with every reply; then that counts.
        threads: requests in flight at once.
        wait_s: how long `poll` waits for something to happen; beside a local engine a short time is better.
        session: names these requests, so that routers find the replica that holds their prefixes.
    Attributes:
        usage: `generated` as the endpoint counts it. `computed` is all tokens read and written, as if nothing was
            shared: what a prefix cache saves there, an endpoint does not tell.
    Raises:
        ConfigError: a context, vocabulary or number of threads below 1, or a negative wait.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        context: int,
        vocabulary: int,
        version: int = 0,
        threads: int = 32,
        wait_s: float = 0.02,
        session: str | None = None,
    ) -> None:
        sizes = {"context": context, "vocabulary": vocabulary, "threads": threads}
        problems = [Problem(name, f"got {size}, expected 1 or more") for name, size in sizes.items() if size < 1]
        if not wait_s >= 0:
            problems.append(Problem("wait_s", f"got {wait_s}, expected 0 or more"))
        if problems:
            raise ConfigError(problems)
        self.usage = Usage()
        self.version, self.context, self.vocabulary = version, context, vocabulary
        self._endpoint, self._session, self._wait_s = endpoint, session, wait_s
        self._writer: tuple[str, str] | None = None
        self._tickets = itertools.count()
        self._requests: dict[Ticket, _Request] = {}
        self._done: list[Finished] = []
        self._waits, self._news = BlockingCallPool(threads), threading.Event()
        self._calls: dict[int, tuple[Ticket, int]] = {}

    def __repr__(self) -> str:
        return f"RemoteEngine({self._endpoint!r})"

    def close(self) -> None:
        """Releases the threads; the endpoint stays open."""
        self._requests.clear()
        self._calls.clear()
        self._waits.close()

    def sync(self, policy: Policy) -> None:
        """Marks that the endpoint serves this policy from now on (`Endpoint.load_weights`); all nodes become stale."""
        error = StaleNode(
            "the engine has loaded new weights", value=policy.version, hint="start again from new root nodes"
        )
        self._done += [Finished(ticket, error=error) for ticket in self._requests]
        self.version, self._writer = int(policy.version), None
        self._requests.clear()
        self._calls.clear()

    def submit(self, ask: Ask) -> Ticket:
        """Sends an ask, one request per seed.

        Raises:
            ConfigError: an ask that an endpoint cannot answer, or one for nothing. StaleNode, ContextOverflow,
            VocabularyMismatch: as other engines do.
        """
        node = ask.node
        if node is not None and not (
            isinstance(node, _TextNode) and (node.engine, node.version) == (self, self.version)
        ):
            raise StaleNode(
                "the node belongs to another engine or an older policy version",
                value=repr(node),
                expected=f"a node of this engine at version {self.version}",
                hint="start again from the tokens",
            )
        if not isinstance(ask, SampleAsk) or ask.choices is not None or ask.constraint is not None:
            restriction = "choices" if isinstance(ask, SampleAsk) and ask.choices is not None else "a constraint"
            ask_kind = restriction if isinstance(ask, SampleAsk) else type(ask).__name__
            raise ConfigError(
                "an endpoint cannot answer this request",
                value=ask_kind,
                expected="a SampleAsk without choices or constraint",
                hint="use a local engine for token-level search, process reward models, value heads, listed actions "
                "and constraints",
            )
        tokens = validate_ask(ask, None, context=self.context, vocabulary=self.vocabulary)
        prompt = (*(() if node is None else node.tokens()), *tokens)
        request = _Request(next(self._tickets), ask, prompt, [None] * len(ask.seeds))
        self._requests[request.ticket] = request
        for index, seed in enumerate(ask.seeds):
            call = partial(
                self._endpoint.complete,
                prompt,
                sampling=ask.sampling,
                seed=seed,
                stop=ask.stop_strings,
                max_tokens=min(ask.max_tokens, self.context - len(prompt)),
                session=self._session,
            )
            number = self._waits.start(BlockingCall(partial(self._run_request, call), self._endpoint.call_timeout_s))
            self._calls[number] = (request.ticket, index)
        return request.ticket

    def poll(self) -> Sequence[Finished]:
        """Returns finished tickets in ticket order; waits for `wait_s` when there are none."""
        self._news.clear()
        done, self._done = self._done, []
        outcomes = list(self._waits.collect(block=False))
        if not outcomes and not done and self._requests:
            self._news.wait(self._wait_s)
            outcomes = list(self._waits.collect(block=False))
        done += [finished for outcome in outcomes if (finished := self._record_outcome(outcome)) is not None]
        return sorted(done, key=lambda finished: finished.ticket)

    def pending(self) -> int:
        """Returns the number of open tickets."""
        return len(self._requests) + len(self._done)

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancels tickets. The endpoint completes requests that were already sent, and their answers are discarded."""
        cancelled = set(tickets)
        self._done = [finished for finished in self._done if finished.ticket not in cancelled]
        for ticket in cancelled:
            self._requests.pop(ticket, None)

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Lets the block run unchanged, because the endpoint manages its own prefix cache."""
        yield

    def _run_request(self, call: Callable[[], Reply]) -> Reply:
        """Runs a request on a thread and signals that its reply is available."""
        try:
            return call()
        finally:
            self._news.set()

    def _record_outcome(self, outcome: Outcome) -> Finished | None:
        """Returns the ticket that this outcome finishes; answers to canceled asks are counted and discarded."""
        ticket, index = self._calls.pop(outcome.number, (-1, 0))
        reply: Reply | None = outcome.value
        if reply is not None:
            self.usage.generated += reply.completion_tokens
            self.usage.computed += reply.completion_tokens + reply.prompt_tokens
            self.usage.forwards += 1
        request = self._requests.get(ticket)
        if request is None:
            return None
        error = outcome.error
        if reply is not None:
            error = self._reply_error(reply, request)
        if reply is None or error is not None:
            del self._requests[ticket]
            return Finished(
                ticket, error=error or EndpointError("the endpoint did not reply", value=repr(self._endpoint))
            )
        request.answers[index] = self._continuation(reply, request)
        if None in request.answers:
            return None
        del self._requests[ticket]
        return Finished(ticket, tuple(request.answers))

    def _reply_error(self, reply: Reply, request: _Request) -> Exception | None:
        """Returns the error that makes a reply unusable, or None."""
        writer = (reply.model, reply.fingerprint)
        if self._writer is None:
            self._writer = writer
            ours = FINGERPRINT.fullmatch(reply.fingerprint) is not None
            self.version = reply.version if ours else self.version
        if writer != self._writer:
            return WeightsChanged(
                "the endpoint's weights changed between two replies",
                value=" ".join(writer),
                expected=" ".join(self._writer),
                hint="sync the engine, then start again",
            )
        if reply.tokens is None:
            return TokensMissing(
                "the reply has no token ids", value=reply.text[:80], hint="use an endpoint that returns token ids"
            )
        if tuple(reply.tokens.prompt.tolist()) != request.prompt:
            return EndpointError(
                "the endpoint read a different number of tokens than it received",
                value=len(reply.tokens.prompt),
                expected=f"the {len(request.prompt)} token ids of the prompt",
            )
        return None

    def _continuation(self, reply: Reply, request: _Request) -> Continuation:
        """Converts a reply to a continuation, cut after the first token that stops the ask."""
        ids, logprobs, stop = np.zeros(0, np.int32), np.zeros(0, np.float32), str(reply.stop)
        if reply.tokens is not None:
            ids, logprobs = reply.tokens.ids, reply.tokens.logprobs
        stops = np.flatnonzero(np.isin(ids, list(request.ask.stop_ids)))
        if len(stops):
            ids, logprobs, stop = ids[: stops[0] + 1], logprobs[: stops[0] + 1], "stop"
        return Continuation(_TextNode((*request.prompt, *ids.tolist()), self.version, self), ids, logprobs, stop)
