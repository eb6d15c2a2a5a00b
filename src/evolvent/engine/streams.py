"""Streams: the continuations, scores and outputs that are being worked on, one per arena row.

Everything that is touched per token is a numpy array over rows, so that a step of hundreds of streams is a handful of
array operations. Python objects are touched only when a stream begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Ask, Constraint, SampleAsk, ScoreAsk, Ticket
from evolvent.engine.sampling import ChoiceTrie
from evolvent.engine.trie import Place, Segment

__all__ = ["Limit", "Request", "Stream", "Streams", "limit_of"]


if TYPE_CHECKING:
    from torch import Tensor


class Limit:
    """The limit of one continuation, at what was written so far.

    Attributes:
        fault: why nothing may follow, where that is a failure; empty: it is none.
    """

    def __init__(self, trie: ChoiceTrie | None, constraint: Constraint | None) -> None:
        self._trie, self._constraint = trie, constraint
        self._written: tuple[int, ...] = ()
        self.fault = ""

    def copy(self) -> Limit:
        """The same limit for another continuation."""
        other = Limit(self._trie, None if self._constraint is None else self._constraint.copy())
        other._written = self._written
        return other

    def fill(self, allowed: Tensor) -> None:
        """Write into `allowed [V]` bool which tokens may follow."""
        import torch

        allowed.fill_(False)
        if self._trie is not None:
            allowed[self._trie.allowed(self._written)] = True
        if self._constraint is not None:
            mask = torch.tensor(self._constraint.allowed()[: len(allowed)])  # a model may have rows for no token
            allowed[: len(mask)] = mask.to(allowed.device)

    def take(self, token: int) -> str:
        """A token was written; why that is the end ("choice", "stop", "fault"), or empty: it goes on."""
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


def limit_of(ask: Ask) -> Limit | None:
    """The limit of an ask's continuations; None: there is none."""
    if not isinstance(ask, SampleAsk) or (ask.choices is None and ask.constraint is None):
        return None
    return Limit(None if ask.choices is None else ChoiceTrie(ask.choices), ask.constraint)


@dataclass(slots=True)
class Request:
    """One ticket: its ask, where its prompt ends, and the answers of its streams so far."""

    ticket: Ticket
    ask: Ask
    place: Place
    begin: int  # depth at which the asked tokens begin
    room: int  # most tokens to sample
    answers: list[Any]
    open: int
    error: Exception | None = None
    limit: Limit | None = None


@dataclass(slots=True)
class Stream:
    """One answer of a request on its way. `segment` is the pinned end of its prompt, `limit` what it may be."""

    request: Request
    index: int
    segment: Segment = field(init=False)
    limit: Limit | None = None

    def __post_init__(self) -> None:
        self.segment = self.request.place[0]
        self.segment.pins += 1

    @property
    def need(self) -> int:
        """How many positions must be computed before an answer can be read off."""
        depth = self.request.place[1]
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
        """Start a stream on a row that holds `fed` positions of its path."""
        request = stream.request
        segment, depth = request.place
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
            self.left[row] = request.room
            self.seed[row] = ask.seeds[stream.index] & 0xFFFFFFFFFFFFFFFF
            self.temperature[row], self.top_k[row], self.top_p[row] = setting.temperature, setting.top_k, setting.top_p
            plain = setting.temperature == 1.0 and setting.top_k == 0 and setting.top_p == 1.0
            self.plain[row] = plain and request.limit is None
            self.special[row] = bool(ask.stop_strings) or request.limit is not None
            stream.limit = None if request.limit is None else request.limit.copy()
            self._stop_set[row] = self._stop_number(ask.stop_ids)

    def end(self, row: int) -> Stream:
        """Take the stream off its row."""
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
        """Add a sampled token to each row. Returns why each goes on or ends: 0 goes on, 1 stop token, 2 length."""
        at = self.depth[rows]
        self.ids[rows, at] = tokens
        self.logprobs[rows, at] = logprobs
        self.depth[rows] = at + 1
        left = self.left[rows] - 1
        self.left[rows] = left
        return np.where(self._stops[self._stop_set[rows], tokens], 1, np.where(left <= 0, 2, 0))

    def sampled(self, row: int) -> slice:
        """Where the sampled tokens of a row lie."""
        stream = self.at[row]
        first = stream.request.place[1] if stream is not None else 0
        return slice(first, int(self.depth[row]))

    def _stop_number(self, stop_ids: frozenset[int]) -> int:
        number = self._stop_index.get(stop_ids)
        if number is None:
            number = len(self._stops)
            known = [token for token in stop_ids if 0 <= token < self._stops.shape[1]]
            self._stops = np.concatenate([self._stops, np.zeros_like(self._stops[:1])])
            self._stops[number, known] = True
            self._stop_index[stop_ids] = number
        return number
