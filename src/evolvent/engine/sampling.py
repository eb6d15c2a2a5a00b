"""Sampling of tokens: pure functions on arrays, every row with its own settings and its own random stream.

The random number of a token is a hash of (seed, position), so that a sample depends on nothing else: not on the order
of requests, not on what shares the batch, not on how often a generator was used before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ChoiceTrie", "distribution", "draw", "draw_plain", "uniforms"]

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
    logprobs = distribution(logits, temperature=temperature, top_k=top_k, top_p=top_p, allowed=allowed)
    return _sample_inverse_cdf(logprobs.exp(), logprobs, uniform)


def distribution(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Computes log-probabilities `[N, V]` after the settings of each row `[N]`.

    Order: only `allowed [N, V]` tokens, logits / temperature, the `top_k` largest (0: all), the smallest set of largest
    probabilities that reaches `top_p`, renormalised. Temperature 0 puts all probability on the largest logit. Of equal
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
            raise ConfigError("choices need at least one token each", value=choices, expected="token sequences")
        self._next: dict[tuple[int, ...], set[int]] = {}
        sequences = {tuple(choice) for choice in choices}
        for choice in sequences:
            for end in range(len(choice)):
                self._next.setdefault(choice[:end], set()).add(choice[end])
        inside = sorted(sequences & self._next.keys())
        if inside:
            raise ConfigError(
                "one choice begins another",
                value=inside[0],
                expected="sequences that say where they end",
                hint="end every choice with the stop token",
            )

    def allowed(self, written: tuple[int, ...]) -> list[int]:
        """Returns the tokens that may follow `written`; none where a choice is complete."""
        return sorted(self._next.get(written, ()))
