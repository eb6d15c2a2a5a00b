"""The local engine: one model, one prefix trie, one arena; full forwards from whatever was asked."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.arena import Arena
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
)
from evolvent.engine.decoders import decoder_for
from evolvent.engine.plan import STRIDE, plan
from evolvent.engine.sampling import draw, draw_plain, uniforms
from evolvent.engine.slots import Rows
from evolvent.engine.stops import completes
from evolvent.engine.streams import Request, Stream, Streams, limit_of
from evolvent.engine.trie import Prefix, Trie
from evolvent.engine.validation import checked
from evolvent.errors import ConfigError, EngineError, StaleNode, WeightsChanged

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)
_STOPS = ("", "stop", "length", "choice", "fault")
Ints = NDArray[np.int64]


class LocalEngine:
    """Answers asks with a Hugging Face causal LM; every token of a tree is computed once, whoever asks.

    Args:
        policy: its model, tokenizer, version and context are used.
        slots: rows of the arena: how many paths are worked on at once. More asks queue.
        capacity: most tokens of a path; None: the model's context.
        max_cached_tokens: tokens kept of idle paths that had to leave their rows; None: as many as the arena holds.
        group_tokens: positions that one attention group looks at: its keys and values should fit a processor's cache.
            None: 6,144, and 262,144 where the model is on another device, whose calls cost more than what they move.

    Raises:
        ConfigError: a model whose cache cannot be an arena (use `recompute.RecomputeEngine`); slots below 1.
    """

    def __init__(
        self,
        policy: Any,
        *,
        slots: int = 192,
        capacity: int | None = None,
        max_cached_tokens: int | None = None,
        group_tokens: int | None = None,
    ) -> None:
        if slots < 1:
            raise ConfigError("an engine needs rows to work in", value=slots, expected="slots of 1 or more")
        self.usage = Usage()
        self._slots, self._asked_capacity = slots, capacity
        self._max_cached = max_cached_tokens
        self._group_tokens = group_tokens
        self._tickets = itertools.count()
        self._queue: deque[Stream] = deque()
        self._requests: dict[Ticket, Request] = {}
        self._done: list[Finished] = []
        self._midway = False  # an exception left a forward half done: rows and streams may contradict each other
        self._take(policy, None)

    def sync(self, policy: Any) -> None:
        """Take a policy's weights and version; all nodes become stale, open tickets end with StaleNode."""
        self._fail_all(StaleNode("the engine took new weights", value=policy.version, hint="ask again from new roots"))
        self._take(policy, self._rows.arena)

    def _mend(self) -> None:
        """Begin anew after an interrupted forward; nodes become stale."""
        if self._midway:
            log.warning("a forward was interrupted: the engine begins anew with version %d", self.version)
            self.sync(self._policy)

    def _take(self, policy: Any, arena: Arena | None) -> None:
        """Build everything that belongs to one version of the weights; an arena of the right shape is used again."""
        self._policy = policy
        self.version = int(policy.version)
        self.context = min(int(policy.context), self._asked_capacity or int(policy.context))
        capacity = -(-self.context // STRIDE) * STRIDE
        weight = next(iter(policy.model.parameters()))
        self._limit = self._group_tokens or (6144 if weight.device.type == "cpu" else 2**18)
        self._decoder = decoder_for(policy.model, capacity=capacity)
        self.vocabulary = self._decoder.vocabulary
        if arena is None or not arena.serves(self._decoder.shape, capacity, weight):
            arena = Arena(self._decoder.shape, self._slots, capacity, dtype=weight.dtype, device=weight.device)
        self._trie = Trie(self.version)
        cached = self._slots * capacity if self._max_cached is None else self._max_cached
        self._rows = Rows(arena, self._trie, max_cached_tokens=cached)
        self._streams = Streams(self._slots, capacity, self.vocabulary)
        self._parameters = [each for each in policy.model.parameters() if not each.is_inference()]
        self._fingerprint = self._weights()
        self._midway = False

    def submit(self, ask: Ask) -> Ticket:
        """Queue an ask. Raises StaleNode, ContextOverflow, VocabularyMismatch, ConfigError at once."""
        self._mend()
        tokens = checked(ask, self._trie, context=self.context, vocabulary=self.vocabulary)
        self._rows.reap()
        node = ask.node
        start = (self._trie.root, 0)
        if isinstance(node, Prefix):
            start = self._trie.resolve((node.segment, node.depth))
            node.segment = start[0]
        sampling = isinstance(ask, SampleAsk)
        place = self._trie.extend(start, tokens, exact=sampling)
        request = Request(next(self._tickets), ask, place, start[1], 0, [None], 1)
        if isinstance(ask, SampleAsk):
            request.room = min(ask.max_tokens, self.context - place[1])
            request.answers, request.open = [None] * len(ask.seeds), len(ask.seeds)
            request.limit = limit_of(ask)
        self._requests[request.ticket] = request
        for index in range(request.open):
            self._queue.append(Stream(request, index))
        return request.ticket

    def pending(self) -> int:
        """How many tickets are open."""
        return len(self._requests) + len(self._done)

    def poll(self) -> Sequence[Finished]:
        """At most one forward; returns what became finished, in ticket order. Nothing queued: returns ()."""
        self._mend()
        if self._requests:
            if self._weights() != self._fingerprint:
                self._fail_all(
                    WeightsChanged(
                        "the policy's weights changed under the engine",
                        value=self.version,
                        hint="call sync(policy) after every update",
                    )
                )
            else:
                self._midway = True
                with torch.inference_mode():
                    self._advance()
                self._midway = False
        if not self._done:
            return ()
        done, self._done = self._done, []
        done.sort(key=lambda finished: finished.ticket)
        return done

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget tickets: nothing more is computed for them and they are not answered. Unknown ones are ignored."""
        self._mend()
        gone = set(tickets)
        self._done = [finished for finished in self._done if finished.ticket not in gone]
        for request in [self._requests.pop(ticket) for ticket in gone if ticket in self._requests]:
            request.error = EngineError("the ask was cancelled", value=request.ticket)
        rows, streams = self._rows, self._streams
        for row in np.flatnonzero(rows.busy).tolist():
            stream = streams.at[row]
            if stream is not None and stream.request.ticket in gone:
                streams.end(row)
                segment, depth = stream.request.place
                rows.release(row, segment, min(int(rows.fed[row]), depth))
        waiting, self._queue = self._queue, deque()
        for stream in waiting:
            if stream.request.ticket in gone:
                stream.segment.pins -= 1
            else:
                self._queue.append(stream)

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """While open, the keys and values of these nodes are kept."""
        places = [self._trie.resolve((node.segment, node.depth)) for node in nodes if isinstance(node, Prefix)]
        for segment, _ in places:
            for part in segment.path():
                part.holds += 1
        try:
            yield
        finally:
            for segment, _ in places:
                for part in segment.path():
                    part.holds -= 1
            self._rows.let_go()

    def _advance(self) -> None:
        """Admit streams, feed every row that has something to feed, and take every running stream one token on."""
        self._admit()
        rows, streams = self._rows, self._streams
        busy = np.flatnonzero(rows.busy)
        if not len(busy):
            return
        counts = rows.target[busy] - rows.fed[busy]
        feeding = counts > 0
        if feeding.any():
            self._feed(busy[feeding], counts[feeding])
        self.usage.live, self.usage.peak_live = self._trie.live, self._trie.peak
        samples = streams.samples[busy]
        if samples.any():
            self._sample(busy[samples])
        if not samples.all():
            self._read(busy[~samples])

    def _admit(self) -> None:
        waiting = len(self._queue)
        rows, streams = self._rows, self._streams
        for _ in range(waiting):
            stream = self._queue.popleft()
            if stream.request.error is not None:
                stream.segment.pins -= 1
                continue
            need = stream.need
            row = rows.claim(stream.request.place, need)
            if row is None:
                self._queue.append(stream)
                if rows.full:
                    self._queue.rotate(1)  # it stays the first of those that wait for a row
                    break
                continue
            fed = int(rows.fed[row])
            rows.target[row] = max(need, fed)
            self.usage.shared += min(fed, need)
            self.usage.recomputed += rows.watermark(stream.request.place, fed, need)
            streams.begin(row, stream, fed)

    def _feed(self, feeding: Ints, counts: Ints) -> None:
        rows, streams = self._rows, self._streams
        layout = plan(feeding, rows.fed[feeding], counts, limit=self._limit, capacity=rows.arena.capacity)
        ids = torch.from_numpy(streams.ids[layout.rows, layout.positions]).to(rows.arena.cache.device)
        self._decoder.forward(ids, layout, rows.arena)
        rows.fed[feeding] += counts
        self.usage.forwards += 1
        self.usage.computed += len(layout.rows)
        self.usage.padded += layout.padded

    def _sample(self, running: Ints) -> None:
        rows, streams = self._rows, self._streams
        last = streams.depth[running] - 1
        hidden = rows.arena.hidden[torch.from_numpy(running), torch.from_numpy(last)]
        logits = self._decoder.logits(hidden)
        uniform = torch.from_numpy(uniforms(streams.seed[running], last + 1)).to(logits.device)
        if streams.plain[running].all():
            tokens, logprobs = draw_plain(logits, uniform)
        else:
            tokens, logprobs = self._draw(running, logits, uniform)
        drawn, values = tokens.cpu().numpy(), logprobs.cpu().numpy()
        broken = np.isnan(values)
        if broken.any():
            for row in running[broken].tolist():
                self._break(row)
            running, drawn, values = running[~broken], drawn[~broken], values[~broken]
        self.usage.generated += len(running)
        ends = streams.append(running, drawn, values)
        if streams.special[running].any():
            for at in np.flatnonzero(streams.special[running]).tolist():
                ends[at] = self._look(int(running[at]), int(ends[at]))
        going = ends == 0
        rows.target[running[going]] += 1
        for row, end in zip(running[~going].tolist(), ends[~going].tolist(), strict=True):
            if _STOPS[end] == "fault":
                self._break(row)
            else:
                self._finish_sample(row, _STOPS[end])

    def _draw(self, running: Ints, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Sampling where rows differ in their settings or in what they may be."""
        streams = self._streams
        allowed = None
        for at, row in enumerate(running.tolist()):
            stream = streams.at[row]
            if stream is not None and stream.limit is not None:
                if allowed is None:
                    allowed = torch.ones(logits.shape, dtype=torch.bool)
                stream.limit.fill(allowed[at])
        temperature, top_k, top_p = (
            torch.from_numpy(setting[running]).to(logits.device)
            for setting in (streams.temperature, streams.top_k, streams.top_p)
        )
        allowed = None if allowed is None else allowed.to(logits.device)
        return draw(logits, uniform, temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)

    def _look(self, row: int, end: int) -> int:
        """The end of a stream with a limit or stop strings after its newest token."""
        stream = self._streams.at[row]
        if stream is None or not isinstance(stream.request.ask, SampleAsk):
            return end
        ask, ids = stream.request.ask, self._streams.ids[row, self._streams.sampled(row)]
        if stream.limit is not None and (ask.choices is not None or end != 1):
            ended = stream.limit.take(int(ids[-1]))
            if ended or ask.choices is not None:  # a stop token inside a choice ends nothing, but room may be used up
                return _STOPS.index(ended) or (2 if self._streams.left[row] <= 0 else 0)
        if end != 1 and ask.stop_strings and completes(self._policy.tokenizer, ids, ask.stop_strings):
            return 1
        return end

    def _finish_sample(self, row: int, stop: str) -> None:
        streams = self._streams
        where = streams.sampled(row)
        ids = streams.ids[row, where].astype(np.int32)
        logprobs = streams.logprobs[row, where].copy()
        stream = streams.end(row)
        place = self._trie.extend(stream.request.place, ids.tolist())
        fed = int(self._rows.fed[row])
        self._rows.release(row, place[0], fed)
        self._rows.computed(place, fed)
        self._answer(stream, Continuation(Prefix(*place), ids, logprobs, stop))

    def _read(self, reading: Ints) -> None:
        """Answer scores and outputs from the hidden states of their rows; outputs together, scores one by one."""
        streams, rows = self._streams, self._rows
        hidden = rows.arena.hidden[torch.from_numpy(reading), torch.from_numpy(streams.depth[reading] - 1)]
        states, logits = hidden.float().cpu().numpy(), None
        for at, row in enumerate(reading.tolist()):
            stream = streams.at[row]
            if stream is None:
                continue
            request, answer = stream.request, None
            if isinstance(request.ask, LogitsAsk):
                if logits is None and not request.ask.hidden:
                    logits = self._decoder.logits(hidden).float().cpu().numpy()
                values = (states if logits is None or request.ask.hidden else logits)[at].copy()
                answer = Output(Prefix(*request.place), values) if request.ask.keep else values
                failed = bool(np.isnan(values).any())
            else:
                answer = self._scored(row, request)
                failed = not np.isfinite(answer.logprobs).all()
            if failed:
                self._break(row)
                continue
            streams.end(row)
            rows.release(row, request.place[0], int(rows.fed[row]))
            self._answer(stream, answer)

    def _scored(self, row: int, request: Request) -> Scored:
        segment, depth = request.place
        tokens = request.ask.tokens
        first = max(request.begin, 1)
        values = np.zeros(len(tokens), np.float32)
        wanted = torch.tensor(list(tokens[first - request.begin :]), device=self._rows.arena.hidden.device)
        done = first - request.begin
        for at in range(0, len(wanted), 1024):  # logits of long texts are large
            part = wanted[at : at + 1024]
            hidden = self._rows.arena.hidden[row, first - 1 + at : first - 1 + at + len(part)]
            chosen = self._decoder.logits(hidden).float().log_softmax(-1).gather(1, part.unsqueeze(1))
            values[done + at : done + at + len(part)] = chosen.squeeze(1).cpu().numpy()
        return Scored(Prefix(segment, depth), values)

    def _answer(self, stream: Stream, answer: Any) -> None:
        request = stream.request
        request.answers[stream.index] = answer
        request.open -= 1
        if not request.open and request.error is None:
            del self._requests[request.ticket]
            whole = tuple(request.answers) if isinstance(request.ask, SampleAsk) else answer
            self._done.append(Finished(request.ticket, whole))

    def _break(self, row: int) -> None:
        """A row whose numbers are not finite, or whose limit failed: its request fails, it is cleaned, others go on."""
        depth = int(self._streams.depth[row])
        stream = self._streams.end(row)
        self._rows.discard(row)
        self._rows.arena.clear(row)
        error = EngineError(
            "the model's output is not finite",
            value=f"after {depth} tokens, policy version {self.version}",
            expected="finite logits",
            hint="the weights may have diverged: look at the last update",
        )
        if stream.limit is not None and stream.limit.fault:
            error = EngineError("a constraint cannot be followed", value=stream.limit.fault)
        self._fail(stream.request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        if request.error is None:
            request.error = error
            self._requests.pop(request.ticket, None)
            self._done.append(Finished(request.ticket, error=error))

    def _fail_all(self, error: Exception) -> None:
        for request in list(self._requests.values()):
            self._fail(request, error)
        self._queue.clear()
        for row in np.flatnonzero(self._rows.busy).tolist():
            self._streams.end(row)
            self._rows.discard(row)

    def _weights(self) -> tuple[int, int]:
        """Changes whenever a weight is changed in place or replaced."""
        return self._policy.version, sum([parameter._version for parameter in self._parameters])
