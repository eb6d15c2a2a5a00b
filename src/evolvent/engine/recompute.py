"""The engine that shares nothing: every token is computed from the whole text. It is the reference, and the
fallback.

Any causal LM runs here: sliding windows, linear and hybrid layers, RoPE that depends on the length, virtual
tokens of an adapter. Texts of one forward are padded on the right, which no earlier token can attend to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from evolvent.engine.asks import (
    Ask,
    Continuation,
    Finished,
    LogitsAsk,
    Node,
    Output,
    SampleAsk,
    Scored,
    Ticket,
    Usage,
    validate_ask,
)
from evolvent.engine.stops import completes_stop_string
from evolvent.engine.streams import StreamLimit, build_limit, draw, score_tokens, uniforms
from evolvent.errors import ConfigError, EngineError, StaleNode

if TYPE_CHECKING:
    from torch import Tensor

    from evolvent.models.policy import Policy

__all__ = ["RecomputeEngine"]


@dataclass(frozen=True, slots=True, eq=False)
class _TextNode:
    """A node: the tokens themselves."""

    ids: tuple[int, ...]
    version: int
    engine: RecomputeEngine

    @property
    def length(self) -> int:
        return len(self.ids)

    def tokens(self) -> list[int]:
        return list(self.ids)


@dataclass(slots=True, eq=False)
class _Stream:
    """One unfinished answer."""

    ticket: Ticket
    ask: Ask
    index: int
    begin: int  # where the asked tokens begin
    ids: list[int]
    limit: StreamLimit | None = None
    written: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)


class RecomputeEngine:
    """Answers asks by computing every text from its beginning.

    Args:
        policy: its model, tokenizer, version and context are used.
        slots: texts per forward.

    Raises:
        ConfigError: slots below 1.
    """

    def __init__(self, policy: Policy, *, slots: int = 16) -> None:
        if slots < 1:
            raise ConfigError("number of slots out of range", value=slots, expected="1 or more")
        self.usage = Usage()
        self._slots = slots
        self._tickets = itertools.count()
        self._running: list[_Stream] = []
        self._answers: dict[Ticket, list[Any]] = {}
        self._done: list[Finished] = []
        self.sync(policy)

    def sync(self, policy: Policy) -> None:
        """Takes a policy's weights and version; all nodes become stale, open tickets end with StaleNode."""
        error = StaleNode(
            "the engine has loaded new weights", value=policy.version, hint="start again from new root nodes"
        )
        self._done += [Finished(ticket, error=error) for ticket in self._answers]
        self._running, self._answers = [], {}
        self._policy, self.version, self.context = policy, int(policy.version), int(policy.context)
        self._vocabulary = int(policy.model.get_output_embeddings().weight.shape[0])
        policy.model.eval()

    def submit(self, ask: Ask) -> Ticket:
        """Submits an ask and returns its ticket. Raises StaleNode, ContextOverflow, VocabularyMismatch, ConfigError
        at once.
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
        tokens = validate_ask(ask, None, context=self.context, vocabulary=self._vocabulary)
        before = [] if node is None else node.tokens()
        seeds = ask.seeds if isinstance(ask, SampleAsk) else (0,)
        limit = build_limit(ask)
        ticket = next(self._tickets)
        self._answers[ticket] = [None] * len(seeds)
        for index in range(len(seeds)):
            stream_limit = None if limit is None else limit.copy()
            self._running.append(_Stream(ticket, ask, index, len(before), before + tokens, stream_limit))
        return ticket

    @property
    def slots(self) -> int:
        """Returns the number of texts that are processed at once."""
        return self._slots

    def pending(self) -> int:
        """Returns the number of open tickets."""
        return len(self._answers) + len(self._done)

    def poll(self) -> Sequence[Finished]:
        """Runs at most one forward and returns finished tickets in ticket order; returns () when the queue is empty."""
        import torch

        batch = self._running[: self._slots]
        if batch:
            with torch.inference_mode():
                logits = self._forward(batch)
                ended = [stream for index, stream in enumerate(batch) if self._advance(stream, logits[index])]
            self._running = [s for s in self._running if s not in ended and s.ticket in self._answers]
        done, self._done = sorted(self._done, key=lambda finished: finished.ticket), []
        return done

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancels tickets: nothing more is computed for them, and they are not answered. Unknown tickets are
        ignored.
        """
        cancelled = set(tickets)
        self._running = [stream for stream in self._running if stream.ticket not in cancelled]
        self._answers = {ticket: answers for ticket, answers in self._answers.items() if ticket not in cancelled}
        self._done = [finished for finished in self._done if finished.ticket not in cancelled]

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Lets the block run unchanged, because this engine keeps no keys and values."""
        yield

    def _forward(self, batch: Sequence[_Stream]) -> list[Tensor]:
        """Computes the logits `[T, V]` of each text."""
        import torch

        device = next(self._policy.model.parameters()).device
        longest = max(len(stream.ids) for stream in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        for index, stream in enumerate(batch):
            ids[index, : len(stream.ids)] = torch.tensor(stream.ids)
        logits = self._policy.model(input_ids=ids.to(device), use_cache=False).logits[:, -longest:].float()
        real = sum(len(stream.ids) for stream in batch)
        self.usage.forwards += 1
        self.usage.computed += real
        self.usage.recomputed += sum(len(stream.ids) - 1 for stream in batch if stream.written)
        self.usage.padded += len(batch) * longest - real
        return [logits[index, : len(stream.ids)] for index, stream in enumerate(batch)]

    def _advance(self, stream: _Stream, logits: Tensor) -> bool:
        """Reads an answer off, or samples one token; returns whether the stream has ended."""
        ask = stream.ask
        if isinstance(ask, SampleAsk):
            return self._sample(stream, ask, logits)
        if isinstance(ask, LogitsAsk):
            values = (self._hidden(stream) if ask.hidden else logits[-1]).cpu().numpy()
            answer = Output(self._node(stream), values) if ask.keep else values
            return self._record_answer(stream, answer, bool(np.isnan(values).any()))
        import torch

        first = max(stream.begin, 1)
        scores = np.zeros(len(ask.tokens), np.float32)
        token_ids = torch.tensor(stream.ids[first:], dtype=torch.long, device=logits.device)
        token_logprobs = logits[first - 1 : len(stream.ids) - 1].log_softmax(-1).gather(1, token_ids.unsqueeze(1))
        scores[first - stream.begin :] = token_logprobs.squeeze(1).cpu().numpy()
        return self._record_answer(stream, Scored(self._node(stream), scores), not np.isfinite(scores).all())

    def _sample(self, stream: _Stream, ask: SampleAsk, logits: Tensor) -> bool:
        import torch

        seeds = np.array([ask.seeds[stream.index] & 0xFFFFFFFFFFFFFFFF], np.uint64)
        uniform = torch.from_numpy(uniforms(seeds, np.array([len(stream.ids)]))).to(logits.device)
        allowed, next_logits = None, logits[-1:]
        if stream.limit is not None:
            allowed = torch.zeros((1, logits.shape[-1]), dtype=torch.bool, device=logits.device)
            stream.limit.fill(allowed[0])
            next_logits = next_logits.float().clone() if stream.limit.is_biased else next_logits
            stream.limit.add_bias(next_logits[0])
        setting = ask.sampling
        token, logprob = draw(
            next_logits,
            uniform,
            temperature=torch.tensor([setting.temperature], device=logits.device),
            top_k=torch.tensor([setting.top_k], device=logits.device),
            top_p=torch.tensor([setting.top_p], device=logits.device),
            allowed=allowed,
        )
        if bool(logprob.isnan()):
            return self._record_answer(stream, None, True)
        self.usage.generated += 1
        stream.ids.append(int(token))
        stream.written.append(int(token))
        stream.logprobs.append(float(logprob))
        if setting.temperature == 0:
            stream.model_logprobs.append(float(score_tokens(logits[-1:], token)))
        stop = self._stop_reason(stream, ask)
        if not stop:
            return False
        if stop == "fault":
            return self._record_answer(stream, None, True)
        ids, logprobs = np.array(stream.written, np.int32), np.array(stream.logprobs, np.float32)
        model_logprobs = np.array(stream.model_logprobs, np.float32) if setting.temperature == 0 else None
        continuation = Continuation(self._node(stream), ids, logprobs, stop, model_logprobs)
        return self._record_answer(stream, continuation, False)

    def _stop_reason(self, stream: _Stream, ask: SampleAsk) -> str:
        """Returns why a stream ends after its newest token; empty: it continues."""
        if ask.choices is None and stream.written[-1] in ask.stop_ids:
            return "stop"
        if stream.limit is not None and (limit_stop := stream.limit.advance(stream.written[-1])):
            return limit_stop
        written, stops = stream.written, ask.stop_strings
        if ask.choices is None and stops and completes_stop_string(self._policy.tokenizer, written, stops):
            return "stop"
        return "length" if len(stream.written) >= ask.max_tokens or len(stream.ids) >= self.context else ""

    def _hidden(self, stream: _Stream) -> Tensor:
        """Computes the head's input `[H]` at the last token of a text."""
        import torch

        model, head_inputs = self._policy.model, []

        def keep_last(_: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            head_inputs.append(arguments[0][:, -1:])
            return (head_inputs[-1], *arguments[1:])

        hook = model.get_output_embeddings().register_forward_pre_hook(keep_last)
        try:
            device = next(model.parameters()).device
            model(input_ids=torch.tensor([stream.ids], device=device), use_cache=False)
        finally:
            hook.remove()
        return head_inputs[0][0, 0].float()

    def _node(self, stream: _Stream) -> _TextNode:
        return _TextNode(tuple(stream.ids), self.version, self)

    def _record_answer(self, stream: _Stream, answer: Any, failed: bool) -> bool:
        answers = self._answers.get(stream.ticket)
        if answers is None:
            return True
        if failed:
            del self._answers[stream.ticket]
            error = EngineError(
                "the model's output is not finite",
                value=f"after {len(stream.ids)} tokens",
                expected="finite logits",
                hint="check the last update of the weights",
            )
            if stream.limit is not None and stream.limit.fault:
                error = EngineError("the constraint cannot be satisfied", value=stream.limit.fault)
            self._done.append(Finished(stream.ticket, error=error))
            return True
        answers[stream.index] = answer
        if all(entry is not None for entry in answers):
            del self._answers[stream.ticket]
            ticket_answer = tuple(answers) if isinstance(stream.ask, SampleAsk) else answer
            self._done.append(Finished(stream.ticket, ticket_answer))
        return True
