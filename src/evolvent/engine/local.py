"""The local engine: one model, one prefix trie and one key/value arena, run in full batched forwards."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.arena import Arena, RowAllocator, Shape
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
from evolvent.engine.decoders import Decoder, decoder_for
from evolvent.engine.stops import completes_stop_string
from evolvent.engine.streams import (
    STRIDE,
    Stream,
    Streams,
    TicketState,
    build_limit,
    draw,
    draw_plain,
    plan,
    score_tokens,
    uniforms,
)
from evolvent.engine.trie import Prefix, Trie
from evolvent.errors import ConfigError, EngineError, StaleNode, WeightsChanged
from evolvent.models.cpu_layers import release_heap
from evolvent.models.defaults import MIN_PRETRAINED
from evolvent.models.placement import available_bytes, free_address_bytes

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["LocalEngine"]

log = logging.getLogger(__name__)
_VERSION = attrgetter("_version")
_MIN_RELEASED = 2**26  # bytes of keys and values: to give back less costs more than it is worth
_STOPS = ("", "stop", "length", "choice", "fault")
Ints = NDArray[np.int64]


class LocalEngine:
    """Answers asks with a Hugging Face causal LM; every token of a tree is computed once for all asks.

    Args:
        policy: its model, tokenizer, version and context are used.
        slots: rows of the arena: how many paths are processed at once. More asks queue.
        capacity: maximum number of tokens of a path; None: the model's context.
        max_cached_tokens: tokens kept of idle paths that had to leave their rows; None: as many as the arena holds.
        memory_bytes: memory for keys, values and hidden states; None: half of what is free on the device. Asks beyond
            it wait. A CPU's memory is taken token by token; on other devices there are as many rows as fit.
        group_tokens: positions that one attention group attends to: its keys and values should fit a processor's
            cache. None: 6,144, and 262,144 where the model is on another device, whose calls cost more than what
            they move.

    Raises:
        ConfigError: a model whose cache cannot be an arena (use `recompute.RecomputeEngine`); slots below 1.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        slots: int = 192,
        capacity: int | None = None,
        max_cached_tokens: int | None = None,
        memory_bytes: int | None = None,
        group_tokens: int | None = None,
    ) -> None:
        if slots < 1:
            raise ConfigError("number of slots out of range", value=slots, expected="1 or more")
        self.usage = Usage()
        self._slots, self._asked_capacity = slots, capacity
        self._max_cached = max_cached_tokens
        self.memory_bytes = memory_bytes
        self._group_tokens = group_tokens
        self._tickets = itertools.count()
        self._queue: deque[Stream] = deque()
        self._requests: dict[Ticket, TicketState] = {}
        self._done: list[Finished] = []
        self._is_released = False
        self._midway = False  # an exception left a forward half done: rows and streams may contradict each other
        self._load_policy(policy, None)

    def sync(self, policy: Policy) -> None:
        """Takes a policy's weights and version; all nodes become stale, open tickets end with StaleNode."""
        self._fail_all(
            StaleNode("the engine has loaded new weights", value=policy.version, hint="start again from new root nodes")
        )
        self._load_policy(policy, self._rows.arena)

    def release(self) -> None:
        """Releases the copies of the weights and all keys and values; all nodes become stale, open tickets end with
        StaleNode.

        It is for the time in which nothing is asked, such as an update of the weights. The next ask loads the weights
        again, if they are the same; otherwise it needs `sync`, as ever.
        """
        self._fail_all(
            StaleNode("the engine has released its memory", value=self.version, hint="start again from new root nodes")
        )
        if self._is_released:
            return
        self._is_released, arena = True, self._rows.arena
        del self._decoder
        arena.release_all()
        self._reset_rows(arena)
        num_weights = sum(weight.numel() for weight in self._parameters)
        if num_weights >= MIN_PRETRAINED:
            release_heap(num_weights)

    def release_unused(self) -> None:
        """Releases the memory of rows that hold nothing that a node or an open ticket refers to, where it is much."""
        self._rows.reap()
        token_bytes = self._rows.arena.shape.token_bytes(self._rows.arena.cache.dtype)
        if int(self._rows.arena.touched.sum()) * token_bytes >= _MIN_RELEASED:
            self._rows.release_free()

    @property
    def is_idle(self) -> bool:
        """Returns whether no ticket is open and nobody holds a node."""
        self._rows.reap()
        return not self.pending() and self._trie.live == 1

    def _recover(self) -> None:
        """Resets the engine after an interrupted forward; nodes become stale."""
        if self._midway:
            log.warning("a forward pass was interrupted; the engine restarted with version %d", self.version)
            self.sync(self._policy)

    def _load_policy(self, policy: Policy, arena: Arena | None) -> None:
        """Builds the state that belongs to one version of the weights; an arena of the right shape is reused."""
        self._policy = policy
        self.version = int(policy.version)
        self.context = min(int(policy.context), self._asked_capacity or int(policy.context))
        capacity = -(-self.context // STRIDE) * STRIDE
        weight = next(iter(policy.model.parameters()))
        self._limit = self._group_tokens or (6144 if weight.device.type == "cpu" else 2**18)
        if hasattr(self, "_decoder"):
            del self._decoder  # its copies of the weights, before there are others
        self._decoder: Decoder = decoder_for(policy.model, capacity=capacity)
        self.vocabulary = self._decoder.vocabulary
        if arena is None or not arena.serves(self._decoder.shape, capacity, weight):
            arena = self._make_arena(capacity, weight)
        self._reset_rows(arena)
        self._parameters = [parameter for parameter in policy.model.parameters() if not parameter.is_inference()]
        self._fingerprint = self._weights_version()
        self._midway = self._is_released = False

    def _reset_rows(self, arena: Arena) -> None:
        """Resets rows and paths: nothing in the arena is known afterwards."""
        shape, memory_bytes = arena.shape, self.memory_bytes or 0
        max_tokens = memory_bytes // shape.token_bytes(arena.cache.dtype)
        self._trie = Trie(self.version)
        cached = arena.rows * arena.capacity if self._max_cached is None else self._max_cached
        self._rows = RowAllocator(
            arena,
            self._trie,
            max_cached_tokens=min(cached, max_tokens if arena.is_lazy else max_tokens // 2),
            max_tokens=max_tokens if arena.is_lazy else None,
            max_snapshots=_share_of_states(shape, memory_bytes),
        )
        self._streams = Streams(arena.rows, arena.capacity, self.vocabulary)

    def _make_arena(self, capacity: int, weight: Tensor) -> Arena:
        """Builds an arena within the memory that is free.

        Raises:
            EngineError: a device that takes all memory at once has too little for one text of the whole context.
        """
        shape, dtype, device = self._decoder.shape, weight.dtype, weight.device
        free_bytes, token_bytes = available_bytes(device), shape.token_bytes(dtype)
        if self.memory_bytes is None:
            self.memory_bytes = free_bytes // 2
        rows = min(self._slots, _share_of_states(shape, self.memory_bytes))
        # Memory that is taken token by token needs addresses at once, which a limit of them (ulimit -v) counts.
        is_bounded = device.type != "cpu" or free_address_bytes() is not None
        arena = None if is_bounded else Arena(shape, rows, capacity, dtype=dtype, device=device)
        if arena is None or not arena.is_lazy:
            if capacity * token_bytes > free_bytes:
                raise EngineError(
                    f"a text of the whole context does not fit the free memory of {device}",
                    value=f"{capacity:,} tokens of {token_bytes:,} bytes each",
                    expected=f"at most {free_bytes:,} bytes",
                    hint=f"load the policy with a context of {free_bytes // 2 // token_bytes} or less",
                )
            share = (
                self.memory_bytes // 2 if device.type == "cpu" else self.memory_bytes
            )  # what is set aside needs room
            rows = max(1, min(rows, share // (capacity * token_bytes)))
            arena = Arena(shape, rows, capacity, dtype=dtype, device=device)
        log.info(
            "keys and values: at most %.1f GiB of %.1f GiB that are free, %d bytes a token",
            self.memory_bytes / 2**30,
            free_bytes / 2**30,
            token_bytes,
        )
        return arena

    def submit(self, ask: Ask) -> Ticket:
        """Submits an ask and returns its ticket. Raises StaleNode, ContextOverflow, VocabularyMismatch, ConfigError
        at once.
        """
        self._recover()
        if self._is_released and self._weights_version() == self._fingerprint:
            self._load_policy(self._policy, self._rows.arena)
        tokens = validate_ask(ask, self._trie, context=self.context, vocabulary=self.vocabulary)
        self._rows.reap()
        node = ask.node
        start = (self._trie.root, 0)
        if isinstance(node, Prefix):
            start = self._trie.resolve((node.segment, node.depth))
            node.segment = start[0]
        sampling = isinstance(ask, SampleAsk)
        position = self._trie.extend(start, tokens, exact=sampling)
        request = TicketState(next(self._tickets), ask, position, start[1], 0, [None], 1)
        if isinstance(ask, SampleAsk):
            request.max_new_tokens = min(ask.max_tokens, self.context - position[1])
            request.answers, request.open = [None] * len(ask.seeds), len(ask.seeds)
            request.limit = build_limit(ask)
        self._requests[request.ticket] = request
        for index in range(request.open):
            self._queue.append(Stream(request, index))
        return request.ticket

    @property
    def slots(self) -> int:
        """Returns the number of texts that are processed at once."""
        return self._rows.arena.rows

    def pending(self) -> int:
        """Returns the number of open tickets."""
        return len(self._requests) + len(self._done)

    def poll(self) -> Sequence[Finished]:
        """Runs at most one forward and returns finished tickets in ticket order; returns () when the queue is empty."""
        self._recover()
        if self._requests:
            if self._weights_version() != self._fingerprint:
                self._fail_all(
                    WeightsChanged(
                        "the policy's weights changed without sync",
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
        """Cancels tickets: nothing more is computed for them, and they are not answered. Unknown tickets are
        ignored.
        """
        self._recover()
        cancelled = set(tickets)
        self._done = [finished for finished in self._done if finished.ticket not in cancelled]
        for request in [self._requests.pop(ticket) for ticket in cancelled if ticket in self._requests]:
            request.error = EngineError("the request was cancelled", value=request.ticket)
        rows, streams = self._rows, self._streams
        for row in np.flatnonzero(rows.busy).tolist():
            stream = streams.at[row]
            if stream is not None and stream.request.ticket in cancelled:
                streams.end(row)
                segment, depth = stream.request.position
                rows.release(row, segment, min(int(rows.fed[row]), depth))
        waiting, self._queue = self._queue, deque()
        for stream in waiting:
            if stream.request.ticket in cancelled:
                stream.segment.pins -= 1
            else:
                self._queue.append(stream)

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Keeps the keys and values of these nodes while the context manager is open."""
        positions = [self._trie.resolve((node.segment, node.depth)) for node in nodes if isinstance(node, Prefix)]
        for segment, _ in positions:
            for part in segment.path():
                part.holds += 1
        try:
            yield
        finally:
            for segment, _ in positions:
                for part in segment.path():
                    part.holds -= 1
            self._rows.reset_drop_limit()

    def _advance(self) -> None:
        """Starts waiting streams, feeds every row with unfed tokens, and samples one token for each running stream."""
        self._admit()
        rows, streams = self._rows, self._streams
        busy = np.flatnonzero(rows.busy)
        if not len(busy):
            return
        while True:
            counts = rows.target[busy] - rows.fed[busy]
            feeding = busy[counts > 0]
            if not len(feeding):
                break
            stops = rows.target[feeding]
            if self._decoder.shape.states:
                stops = self._state_stops(feeding)
            self._feed(feeding, stops - rows.fed[feeding])
        self.usage.live, self.usage.peak_live = self._trie.live, self._trie.peak
        samples = streams.samples[busy]
        if samples.any():
            self._sample(busy[samples])
        if not samples.all():
            self._answer_reads(busy[~samples])

    def _state_stops(self, feeding: Ints) -> Ints:
        """Returns how far rows are fed in one forward where a model has states: they are kept at every node."""
        streams = self._streams
        ends = []
        for row in feeding.tolist():
            stream = streams.at[row]
            is_known = stream is not None and self._rows.fed[row] < stream.request.position[1]
            ends.append((stream.request.position[0], stream.request.begin) if stream is not None and is_known else None)
        return self._rows.next_stops(feeding, ends)

    def _keep_states(self, fed: Ints) -> None:
        """Keeps the states of rows that have reached a node of the trie or the end of what was asked."""
        rows, streams = self._rows, self._streams
        rows.advance_states(fed)
        for row in fed.tolist():
            stream = streams.at[row]
            if stream is not None and rows.fed[row] <= stream.request.position[1]:
                rows.keep_states(row, stream.request.position[0], int(rows.fed[row]))

    def _admit(self) -> None:
        waiting = len(self._queue)
        rows, streams = self._rows, self._streams
        for _ in range(waiting):
            stream = self._queue.popleft()
            if stream.request.error is not None:
                stream.segment.pins -= 1
                continue
            need = stream.need
            reserve = stream.request.position[1] + stream.request.max_new_tokens
            row = rows.claim(stream.request.position, need, reserve=reserve)
            if row is None:
                self._queue.append(stream)
                if rows.full or rows.starved:
                    self._queue.rotate(1)  # it stays the first of those that wait for a row
                    break
                continue
            fed = int(rows.fed[row])
            rows.target[row] = max(need, fed)
            self.usage.shared += min(fed, need)
            self.usage.recomputed += rows.watermark(stream.request.position, fed, need)
            streams.begin(row, stream, fed)

    def _feed(self, feeding: Ints, counts: Ints) -> None:
        rows, streams = self._rows, self._streams
        layout = plan(feeding, rows.fed[feeding], counts, limit=self._limit, capacity=rows.arena.capacity)
        ids = torch.from_numpy(streams.ids[layout.rows, layout.positions]).to(rows.arena.cache.device)
        self._decoder.forward(ids, layout, rows.arena)
        rows.fed[feeding] += counts
        rows.arena.touch(feeding, rows.fed[feeding])
        if self._decoder.shape.states:
            self._keep_states(feeding)
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
            greedy = streams.temperature[running] == 0
            if greedy.any():
                model_logprobs = score_tokens(logits, tokens).cpu().numpy()
                streams.model_logprobs[running[greedy], last[greedy] + 1] = model_logprobs[greedy]
        token_ids, token_logprobs = tokens.cpu().numpy(), logprobs.cpu().numpy()
        broken = np.isnan(token_logprobs)
        if broken.any():
            for row in running[broken].tolist():
                self._fail_row(row)
            running, token_ids, token_logprobs = running[~broken], token_ids[~broken], token_logprobs[~broken]
        self.usage.generated += len(running)
        ends = streams.append(running, token_ids, token_logprobs)
        if streams.special[running].any():
            for index in np.flatnonzero(streams.special[running]).tolist():
                ends[index] = self._check_end(int(running[index]), int(ends[index]))
        is_going = ends == 0
        rows.target[running[is_going]] += 1
        for row, end in zip(running[~is_going].tolist(), ends[~is_going].tolist(), strict=True):
            if _STOPS[end] == "fault":
                self._fail_row(row)
            else:
                self._finish_sample(row, _STOPS[end])

    def _draw(self, running: Ints, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Samples tokens where rows differ in their settings or constraints."""
        streams = self._streams
        allowed, has_own_logits = None, False
        for index, row in enumerate(running.tolist()):
            stream = streams.at[row]
            if stream is not None and stream.limit is not None:
                if allowed is None:
                    allowed = torch.ones(logits.shape, dtype=torch.bool)
                stream.limit.fill(allowed[index])
                if stream.limit.is_biased:
                    if not has_own_logits:
                        logits, has_own_logits = logits.float().clone(), True
                    stream.limit.add_bias(logits[index])
        temperature, top_k, top_p = (
            torch.from_numpy(setting[running]).to(logits.device)
            for setting in (streams.temperature, streams.top_k, streams.top_p)
        )
        allowed = None if allowed is None else allowed.to(logits.device)
        return draw(logits, uniform, temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)

    def _check_end(self, row: int, end: int) -> int:
        """Returns the end code of a stream with a limit or stop strings after its newest token."""
        stream = self._streams.at[row]
        if stream is None or not isinstance(stream.request.ask, SampleAsk):
            return end
        ask, ids = stream.request.ask, self._streams.ids[row, self._streams.sampled_slice(row)]
        if stream.limit is not None and (ask.choices is not None or end != 1):
            limit_stop = stream.limit.advance(int(ids[-1]))
            if (
                limit_stop or ask.choices is not None
            ):  # a stop token inside a choice ends nothing, but room may be used up
                return _STOPS.index(limit_stop) or (2 if self._streams.left[row] <= 0 else 0)
        if end != 1 and ask.stop_strings and completes_stop_string(self._policy.tokenizer, ids, ask.stop_strings):
            return 1
        return end

    def _finish_sample(self, row: int, stop: str) -> None:
        streams = self._streams
        sampled_slice = streams.sampled_slice(row)
        ids = streams.ids[row, sampled_slice].astype(np.int32)
        logprobs, model_logprobs = streams.logprobs[row, sampled_slice].copy(), None
        if streams.temperature[row] == 0:
            model_logprobs = streams.model_logprobs[row, sampled_slice].copy()
        stream = streams.end(row)
        position = self._trie.extend(stream.request.position, ids.tolist())
        fed = int(self._rows.fed[row])
        self._rows.release(row, position[0], fed)
        self._rows.mark_computed(position, fed)
        self._record_answer(stream, Continuation(Prefix(*position), ids, logprobs, stop, model_logprobs))

    def _answer_reads(self, reading: Ints) -> None:
        """Computes scores and outputs from the hidden states of their rows; outputs together, scores one by one."""
        streams, rows = self._streams, self._rows
        hidden = rows.arena.hidden[torch.from_numpy(reading), torch.from_numpy(streams.depth[reading] - 1)]
        states, logits = hidden.float().cpu().numpy(), None
        for index, row in enumerate(reading.tolist()):
            stream = streams.at[row]
            if stream is None:
                continue
            request, answer = stream.request, None
            if isinstance(request.ask, LogitsAsk):
                if logits is None and not request.ask.hidden:
                    logits = self._decoder.logits(hidden).float().cpu().numpy()
                values = (states if logits is None or request.ask.hidden else logits)[index].copy()
                answer = Output(Prefix(*request.position), values) if request.ask.keep else values
                failed = bool(np.isnan(values).any())
            else:
                answer = self._score_tokens(row, request)
                failed = not np.isfinite(answer.logprobs).all()
            if failed:
                self._fail_row(row)
                continue
            streams.end(row)
            rows.release(row, request.position[0], int(rows.fed[row]))
            self._record_answer(stream, answer)

    def _score_tokens(self, row: int, request: TicketState) -> Scored:
        segment, depth = request.position
        tokens = request.ask.tokens
        first = max(request.begin, 1)
        values = np.zeros(len(tokens), np.float32)
        token_ids = torch.tensor(list(tokens[first - request.begin :]), device=self._rows.arena.hidden.device)
        skipped = first - request.begin
        for offset in range(0, len(token_ids), 1024):  # logits of long texts are large
            part = token_ids[offset : offset + 1024]
            hidden = self._rows.arena.hidden[row, first - 1 + offset : first - 1 + offset + len(part)]
            token_logprobs = self._decoder.logits(hidden).float().log_softmax(-1).gather(1, part.unsqueeze(1))
            values[skipped + offset : skipped + offset + len(part)] = token_logprobs.squeeze(1).cpu().numpy()
        return Scored(Prefix(segment, depth), values)

    def _record_answer(self, stream: Stream, answer: Any) -> None:
        request = stream.request
        request.answers[stream.index] = answer
        request.open -= 1
        if not request.open and request.error is None:
            del self._requests[request.ticket]
            ticket_answer = tuple(request.answers) if isinstance(request.ask, SampleAsk) else answer
            self._done.append(Finished(request.ticket, ticket_answer))

    def _fail_row(self, row: int) -> None:
        """Fails the request of a row with non-finite numbers or a failed limit, and clears the row; other rows
        continue.
        """
        depth = int(self._streams.depth[row])
        stream = self._streams.end(row)
        self._rows.discard(row)
        self._rows.arena.clear(row)
        error = EngineError(
            "the model's output is not finite",
            value=f"after {depth} tokens, policy version {self.version}",
            expected="finite logits",
            hint="check the last update: the weights may have diverged",
        )
        if stream.limit is not None and stream.limit.fault:
            error = EngineError("the constraint cannot be satisfied", value=stream.limit.fault)
        self._fail(stream.request, error)

    def _fail(self, request: TicketState, error: Exception) -> None:
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

    def _weights_version(self) -> tuple[int, int]:
        """Returns a value that changes whenever a weight is changed in place or replaced."""
        return self._policy.version, sum(map(_VERSION, self._parameters))


def _share_of_states(shape: Shape, memory_bytes: int) -> int:
    """Returns how many texts' states of fixed size fit into a quarter of the memory: at least one."""
    return max(1, memory_bytes // 4 // max(1, shape.state_bytes()))
