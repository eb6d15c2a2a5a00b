"""Streams: the continuations, scores and outputs in progress, one per arena row.

Everything that is touched per token is a numpy array over rows, so that a step of hundreds of streams is a
handful of array operations. Python objects are touched only when a stream begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Answer, Ask, Constraint, SampleAsk, ScoreAsk, Ticket
from evolvent.engine.sampling import ChoiceTrie
from evolvent.engine.trie import Segment, TriePosition

__all__ = ["Stream", "StreamLimit", "Streams", "TicketState", "build_limit"]


if TYPE_CHECKING:
    from torch import Tensor


class StreamLimit:
    """The restriction of one continuation, after the tokens written so far.

    Attributes:
        fault: why no token may follow, where that is a failure; otherwise empty.
    """

    def __init__(self, trie: ChoiceTrie | None, constraint: Constraint | None) -> None:
        self._trie, self._constraint = trie, constraint
        self._written: tuple[int, ...] = ()
        self.fault = ""

    def copy(self) -> StreamLimit:
        """Returns the same limit for another continuation."""
        copied = StreamLimit(self._trie, None if self._constraint is None else self._constraint.copy())
        copied._written = self._written
        return copied

    def fill(self, allowed: Tensor) -> None:
        """Writes into `allowed [V]` bool which tokens may follow."""
        import torch

        allowed.fill_(False)
        if self._trie is not None:
            allowed[self._trie.allowed(self._written)] = True
        if self._constraint is not None:
            mask = torch.tensor(self._constraint.allowed()[: len(allowed)])  # a model may have rows for no token
            allowed[: len(mask)] = mask.to(allowed.device)

    def advance(self, token: int) -> str:
        """Updates the limit with a written token and returns why the text ends ("choice", "stop", "fault"); empty:
        it goes on.
        """
        if self._trie is not None:
            self._written = (*self._written, token)
            return "" if self._trie.allowed(self._written) else "choice"
        if self._constraint is None:
            return ""
        self._constraint.advance(token)
        if self._constraint.allowed().any():
            return ""
        self.fault = self._constraint.fault
        return "fault" if self.fault else "stop"


def build_limit(ask: Ask) -> StreamLimit | None:
    """Returns the limit of an ask's continuations, or None."""
    if not isinstance(ask, SampleAsk) or (ask.choices is None and ask.constraint is None):
        return None
    return StreamLimit(None if ask.choices is None else ChoiceTrie(ask.choices), ask.constraint)


@dataclass(slots=True)
class TicketState:
    """The state of one ticket: its ask, the position where its prompt ends, and the answers of its streams so far."""

    ticket: Ticket
    ask: Ask
    position: TriePosition
    begin: int  # depth at which the asked tokens begin
    max_new_tokens: int  # most tokens to sample
    answers: list[Answer]
    open: int
    error: Exception | None = None
    limit: StreamLimit | None = None


@dataclass(slots=True)
class Stream:
    """One unfinished answer of a request. `segment` is the pinned end of its prompt, `limit` its restriction."""

    request: TicketState
    index: int
    segment: Segment = field(init=False)
    limit: StreamLimit | None = None

    def __post_init__(self) -> None:
        self.segment = self.request.position[0]
        self.segment.pins += 1

    @property
    def need(self) -> int:
        """Returns how many positions must be computed before an answer can be read."""
        depth = self.request.position[1]
        return depth - 1 if isinstance(self.request.ask, ScoreAsk) else depth


class Streams:
    """The state of the running streams, by arena row.

    Attributes:
        ids: `[rows, capacity]` tokens of each row's path from where they had to be fed, and sampled ones.
        logprobs: `[rows, capacity]` of sampled tokens.
        depth: `[rows]` tokens of the path so far.
        left: `[rows]` tokens that may still be sampled.
        special: `[rows]` streams that need a look in Python after every token (limits, stop strings).
    """

    def __init__(self, rows: int, capacity: int, vocabulary: int) -> None:
        self.ids = np.zeros((rows, capacity), np.int64)
        self.logprobs = np.zeros((rows, capacity), np.float32)
        self.depth = np.zeros(rows, np.int64)
        self.left = np.zeros(rows, np.int64)
        self.seed = np.zeros(rows, np.uint64)
        self.temperature = np.ones(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.top_p = np.ones(rows, np.float32)
        self.plain = np.ones(rows, np.bool_)
        self.special = np.zeros(rows, np.bool_)
        self.samples = np.zeros(rows, np.bool_)
        self.at: list[Stream | None] = [None] * rows
        self._stop_set = np.zeros(rows, np.int64)
        self._stops = np.zeros((1, vocabulary), np.bool_)
        self._stop_index: dict[frozenset[int], int] = {frozenset(): 0}

    def begin(self, row: int, stream: Stream, fed: int) -> None:
        """Starts a stream on a row that holds `fed` positions of its path."""
        request = stream.request
        segment, depth = request.position
        if depth > fed:
            if fed >= segment.start:
                self.ids[row, fed:depth] = segment.ids[fed - segment.start : depth - segment.start]
            else:
                self.ids[row, fed:depth] = segment.tokens(depth)[fed:]
        self.at[row] = stream
        self.depth[row] = depth
        ask = request.ask
        self.samples[row] = isinstance(ask, SampleAsk)
        if isinstance(ask, SampleAsk):
            setting = ask.sampling
            self.left[row] = request.max_new_tokens
            self.seed[row] = ask.seeds[stream.index] & 0xFFFFFFFFFFFFFFFF
            self.temperature[row], self.top_k[row], self.top_p[row] = setting.temperature, setting.top_k, setting.top_p
            plain = setting.temperature == 1.0 and setting.top_k == 0 and setting.top_p == 1.0
            self.plain[row] = plain and request.limit is None
            self.special[row] = bool(ask.stop_strings) or request.limit is not None
            stream.limit = None if request.limit is None else request.limit.copy()
            self._stop_set[row] = self._stop_set_index(ask.stop_ids)

    def end(self, row: int) -> Stream:
        """Removes the stream from its row and returns it."""
        stream = self.at[row]
        if stream is None:
            raise LookupError(f"no stream on row {row}")
        self.at[row] = None
        self.samples[row] = False
        stream.segment.pins -= 1
        return stream

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int64], logprobs: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Appends a sampled token to each row; returns per row: 0 continues, 1 stop token, 2 length."""
        depths = self.depth[rows]
        self.ids[rows, depths] = tokens
        self.logprobs[rows, depths] = logprobs
        self.depth[rows] = depths + 1
        left = self.left[rows] - 1
        self.left[rows] = left
        return np.where(self._stops[self._stop_set[rows], tokens], 1, np.where(left <= 0, 2, 0))

    def sampled_slice(self, row: int) -> slice:
        """Returns the slice of a row's sampled tokens."""
        stream = self.at[row]
        first = stream.request.position[1] if stream is not None else 0
        return slice(first, int(self.depth[row]))

    def _stop_set_index(self, stop_ids: frozenset[int]) -> int:
        number = self._stop_index.get(stop_ids)
        if number is None:
            number = len(self._stops)
            valid_ids = [token for token in stop_ids if 0 <= token < self._stops.shape[1]]
            self._stops = np.concatenate([self._stops, np.zeros_like(self._stops[:1])])
            self._stops[number, valid_ids] = True
            self._stop_index[stop_ids] = number
        return number
