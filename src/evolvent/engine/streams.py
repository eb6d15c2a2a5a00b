"""Streams: the continuations, scores and outputs in progress, one per arena row.

Everything that is touched per token is a numpy array over rows, so that a step of hundreds of streams is a
handful of array operations. Python objects are touched only when a stream begins or ends.

The layout of one forward: groups of rows that attend together, and the positions of their tokens. Pure numpy.

All new tokens of a forward lie in one flat list, without padding, for everything that treats tokens alone.
Attention needs rows of like shape: rows are put into groups of like numbers of new tokens and like lengths, and
only inside a group a row is padded to the longest.

Sampling of tokens: pure functions on arrays, every row with its own settings and its own random stream.

The random number of a token is a hash of (seed, position), so that a sample depends on nothing else: not on the order
of requests, not on what shares the batch, not on how often a generator was used before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evolvent.engine.asks import Answer, Ask, BiasedConstraint, Constraint, SampleAsk, ScoreAsk, Ticket
from evolvent.engine.trie import Segment, TriePosition
from evolvent.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ChoiceTrie",
    "Group",
    "Plan",
    "Stream",
    "StreamLimit",
    "Streams",
    "TicketState",
    "build_limit",
    "distribution",
    "draw",
    "draw_plain",
    "plan",
    "score_tokens",
    "uniforms",
]


_GAMMA, _MIX1, _MIX2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LARGE, _BLOCK = 4096, 128  # from so many words on, blocks of so many are summed first
_U30, _U27, _U31, _U11, _U1 = (np.uint64(n) for n in (30, 27, 31, 11, 1))


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Computes the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state = (state ^ (state >> _U30)) * _MIX1
    state = (state ^ (state >> _U27)) * _MIX2
    return state ^ (state >> _U31)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one number in [0, 1) for each (seed, position) `[N]`: SplitMix64 twice, 53 bits."""
    counters = _mix(seeds) + (positions.astype(np.uint64) + _U1) * _GAMMA
    return (_mix(counters) >> _U11).astype(np.float64) * 2.0**-53


def draw_plain(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Samples tokens `[N]` and their log-probabilities `[N]` from `logits [N, V]` at temperature 1, by inverse CDF.

    The token is the first whose cumulative probability exceeds `uniform [N]` (float64) times the total. Rows with NaN
    or infinite logits give a NaN log-probability.
    """
    import torch

    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    return _sample_inverse_cdf(logprobs.exp(), logprobs, uniform)


def draw(
    logits: Tensor, uniform: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Samples tokens `[N]` and log-probabilities `[N]` of exactly the distribution of `distribution`, by inverse
    CDF.
    """
    if bool((temperature == 0).all()):
        return _choose_largest(logits, allowed)
    logprobs = distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)
    return _sample_inverse_cdf(logprobs.exp(), logprobs, uniform)


def score_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the log-probabilities `[N]`, in float32, of `tokens [N]` under `logits [N, V]` at temperature 1."""
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).float() - logits.float().logsumexp(-1)


def _choose_largest(logits: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the tokens of the largest logits, as `distribution` chooses them at temperature 0, and their zeros."""
    import torch

    largest, tokens = logits.max(-1)
    broken = ~(largest < torch.inf)  # also where it is NaN
    if allowed is not None:
        tokens = logits.masked_fill(~allowed, -torch.inf).argmax(-1)
    return tokens, torch.zeros(tokens.shape, device=tokens.device).masked_fill_(broken, torch.nan)


def distribution(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Computes log-probabilities `[N, V]` after the settings of each row `[N]`.

    Order: only `allowed [N, V]` tokens, logits / temperature, the `top_k` largest (0: all), the smallest set of largest
    probabilities that reaches `top_p`, renormalized. Temperature 0 puts all probability on the largest logit. Of equal
    logits the lower token id counts as larger. Rows with NaN or infinite logits are all NaN.
    """
    import torch

    logits = logits.float()
    broken = ~(logits.amax(-1, keepdim=True) < torch.inf)  # also where it is NaN
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, torch.ones_like(temperature), temperature).unsqueeze(-1)
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(ordered.shape[-1], device=ordered.device)
        keep_mask = (top_k.unsqueeze(-1) <= 0) | (rank < top_k.unsqueeze(-1))
        ordered = ordered.masked_fill(~keep_mask, -torch.inf)
        mass = ordered.softmax(-1)
        keep_mask &= (mass.cumsum(-1) - mass < top_p.unsqueeze(-1)) | (top_p.unsqueeze(-1) >= 1)
        keep_mask[:, 0] = True
        scaled = scaled.masked_fill(~torch.zeros_like(keep_mask).scatter_(-1, order, keep_mask), -torch.inf)
    result = scaled.log_softmax(-1)
    if bool(greedy.any()):
        best = torch.full_like(result, -torch.inf).scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)
        result = torch.where(greedy.unsqueeze(-1), best, result)
    return result.masked_fill(broken, torch.nan)


def _sample_inverse_cdf(probs: Tensor, logprobs: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Samples by inverse CDF in float64; a token without probability is never returned."""
    import torch

    if probs.shape[-1] >= _LARGE:
        tokens = _sample_by_blocks(probs, uniform)
    else:
        cumulative = probs.double().cumsum(-1)
        target = (uniform * cumulative[:, -1]).unsqueeze(-1)
        tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=probs.shape[-1] - 1)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def _sample_by_blocks(probs: Tensor, uniform: Tensor) -> Tensor:
    """Samples the same tokens `[N, 1]` for large vocabularies: a block by float32 sums, then a token of it in
    float64.

    Sums of 128 are rounded as each probability is anyway, and nothing in float64 is as large as `probs [N, V]`.
    """
    import torch

    count, vocabulary_size = probs.shape
    blocks = vocabulary_size // _BLOCK
    sums = [probs[:, : blocks * _BLOCK].reshape(count, blocks, _BLOCK).sum(-1)]
    if blocks * _BLOCK < vocabulary_size:
        sums.append(probs[:, blocks * _BLOCK :].sum(-1, keepdim=True))
    cumulative = torch.cat(sums, -1).double().cumsum(-1)
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[-1] - 1)
    before = torch.where(block > 0, cumulative.gather(-1, (block - 1).clamp_(min=0)), 0.0)
    token_ids = block * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inside = (
        probs.gather(-1, token_ids.clamp(max=vocabulary_size - 1))
        .double()
        .masked_fill_(token_ids >= vocabulary_size, 0.0)
        .cumsum(-1)
    )
    block_sum = inside[:, -1:]  # what is left of the target goes by the block's exact sum, and stays below it
    remainder = (target - before) / (cumulative.gather(-1, block) - before) * block_sum
    remainder = torch.minimum(remainder, torch.nextafter(block_sum, torch.zeros_like(block_sum)))
    return (block * _BLOCK + torch.searchsorted(inside, remainder, right=True)).clamp_(max=vocabulary_size - 1)


class ChoiceTrie:
    """The allowed next tokens of a continuation that must be one of given token sequences.

    Raises:
        ConfigError: no sequences, an empty one, or one that begins another (nobody could tell where it ends).
    """

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        if not choices or not all(choices):
            raise ConfigError("a choice has no tokens", value=choices, expected="token sequences")
        self._next: dict[tuple[int, ...], set[int]] = {}
        sequences = {tuple(choice) for choice in choices}
        for choice in sequences:
            for end in range(len(choice)):
                self._next.setdefault(choice[:end], set()).add(choice[end])
        inside = sorted(sequences & self._next.keys())
        if inside:
            raise ConfigError(
                "one choice is a prefix of another",
                value=inside[0],
                expected="choices with an end token",
                hint="end every choice with the stop token",
            )

    def allowed(self, written: tuple[int, ...]) -> list[int]:
        """Returns the tokens that may follow `written`; none where a choice is complete."""
        return sorted(self._next.get(written, ()))


Ints = NDArray[np.int64]
# A token's numbers must not depend on what shares its forward, to the last bit. Sums over keys run in the same order if
# their number is a multiple of STRIDE up to SPAN, and beyond if it follows from the token's own depth (longer products
# are cut into blocks by their length). Products of fewer than ROWS rows run in another kernel. Measured with MKL.
STRIDE, SPAN, ROWS = 16, 192, 4


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that attend together.

    Attributes:
        rows: `[n]` arena rows.
        queries: q, new tokens per row after padding. keys: L, positions that are looked at.
        first, last: where the group's tokens lie in the flat list.
        pad: `[n * q]` index of each padded slot in the flat list (None: no padding).
        real: index of each of the group's flat tokens in the padded slots (None: no padding).
        positions: `[n, q]` depth of each padded slot.
    """

    rows: Ints
    queries: int
    keys: int
    first: int
    last: int
    positions: Ints
    pad: Ints | None = None
    real: Ints | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward: arena `rows` and `positions` `[N]` of the flat tokens, the groups, and how many slots are filler."""

    rows: Ints
    positions: Ints
    groups: tuple[Group, ...]
    padded: int


def plan(rows: Ints, starts: Ints, counts: Ints, *, limit: int, capacity: int) -> Plan:
    """Plans a forward.

    Args:
        rows: `[n]` arena rows. starts: `[n]` depth before each row's new tokens. counts: `[n]` new tokens, at least 1.
        limit: positions (rows x keys) that one group may look at, so that it stays in a processor's cache.
        capacity: positions that a row has.
    """
    rows, starts, counts = _split_at_spans(rows, starts, counts)
    ends = starts + counts
    spans = (ends - 1) // SPAN
    order = np.lexsort((-ends, counts, spans))  # what was cut stays in order
    rows, starts, counts, ends, spans = (array[order] for array in (rows, starts, counts, ends, spans))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    flat_rows = np.repeat(rows, counts)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    flat_positions = np.repeat(starts, counts) + within
    groups, padded, begin = [], 0, 0
    while begin < len(rows):
        span_end = begin + _run_length(spans[begin:])
        end = begin + _group_size(counts[begin:span_end], ends[begin:span_end], limit)
        members = slice(begin, end)
        queries, width = int(counts[end - 1]), int(offsets[end] - offsets[begin])
        queries = queries if queries == 1 else -(-queries // ROWS) * ROWS
        step = SPAN if spans[begin] else STRIDE
        keys = min(capacity, -(-int(ends[members].max()) // step) * step)
        first, last = int(offsets[begin]), int(offsets[end])
        n = end - begin
        if width == n * queries:
            positions = flat_positions[first:last].reshape(n, queries)
            groups.append(Group(rows[members], queries, keys, first, last, positions))
        else:
            slot = np.arange(queries)
            inside = np.minimum(slot, counts[members, None] - 1)
            pad = (offsets[begin:end, None] + inside).ravel()
            real = np.repeat(np.arange(n) * queries, counts[members]) + within[first:last]
            positions = flat_positions[pad].reshape(n, queries)
            groups.append(Group(rows[members], queries, keys, first, last, positions, pad, real))
            padded += n * queries - width
        begin = end
    return Plan(flat_rows, flat_positions, tuple(groups), padded)


def _split_at_spans(rows: Ints, starts: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Splits rows whose new tokens lie in several spans into several rows: keys are written before they are read."""
    ends = starts + counts
    while True:
        edge = (starts // SPAN + 1) * SPAN
        over = np.flatnonzero(ends > edge)
        if not len(over):
            return rows, starts, ends - starts
        rows, ends = np.concatenate([rows, rows[over]]), np.concatenate([ends, ends[over]])
        starts = np.concatenate([starts, edge[over]])
        ends[over] = edge[over]


def _run_length(values: Ints) -> int:
    """Returns how many of the first values are equal."""
    differing = np.flatnonzero(values != values[0])
    return int(differing[0]) if len(differing) else len(values)


def _group_size(counts: Ints, ends: Ints, limit: int) -> int:
    """Returns how many of the first rows make a group (rows sorted by count, then by falling end)."""
    smallest = int(counts[0])
    max_count = smallest if smallest == 1 else smallest + max(3, smallest // 2)
    end = int(np.searchsorted(counts, max_count, side="right")) if counts[0] > 1 else _run_length(counts)
    longest = np.maximum.accumulate(ends[:end])
    fits = longest * np.arange(1, end + 1) * np.maximum(1, counts[:end] // 8) <= limit
    return max(1, int(fits.sum()))


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

    def add_bias(self, logits: Tensor) -> None:
        """Adds to `logits [V]`, in place, what a constraint adds to those of the next token."""
        import torch

        if isinstance(self._constraint, BiasedConstraint):
            bias = torch.from_numpy(self._constraint.logit_bias()[: len(logits)])
            logits[: len(bias)] += bias.to(logits.device)

    @property
    def is_biased(self) -> bool:
        """Returns whether `add_bias` changes anything."""
        return isinstance(self._constraint, BiasedConstraint)

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
        model_logprobs: `[rows, capacity]`, at temperature 1 of tokens that were chosen at temperature 0.
        depth: `[rows]` tokens of the path so far.
        left: `[rows]` tokens that may still be sampled.
        special: `[rows]` streams that need a look in Python after every token (limits, stop strings).
    """

    def __init__(self, rows: int, capacity: int, vocabulary: int) -> None:
        self.ids = np.zeros((rows, capacity), np.int64)
        self.logprobs = np.zeros((rows, capacity), np.float32)
        self.model_logprobs = np.zeros((rows, capacity), np.float32)
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
