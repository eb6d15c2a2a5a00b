"""Heads that look up what followed a word before, from the beginning: for small models that are to follow given rules.

Whoever has written `every dax is a` finds what comes next where `every dax is a` stands above: one place behind it. Two
layers do that (induction heads: Olsson et al., arXiv 2209.11895). Heads of the first carry the words one, two and three
places before along, each into dimensions of its own; heads of the second look for a place before which the same words
stand one place earlier, and write what stands there. They form late in small models: in `deduction` policies of 170,000
weights had not formed them after 370,000 learned tokens. Beginning with them decides nothing about what is to be looked
up: that is learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.looking_back import look_back
from evolvent.models.policy import Policy

__all__ = ["look_up"]

_OFFSETS = (1, 2, 3)
_SHIFTS = ((2, 3), (2, 3), (1, 2), (1, 2))  # (places before the one who asks, places before the one who answers)


def look_up(
    policy: Policy,
    *,
    offsets: Sequence[int] = _OFFSETS,
    shifts: Sequence[tuple[int, int]] = _SHIFTS,
    carried: float = 0.5,
    sharpness: float = 2.0,
    written: float = 2.0,
) -> None:
    """Turn heads of an untrained Llama's first two layers into ones that look up, in place.

    Args:
        offsets: how many places before, of the words that are carried along. shifts: of each head of the second layer,
            which of these words are compared: that of the place that asks, and that of the place that answers.
        carried: how strong the words before are beside a place's own. sharpness: of the match; equal words score about
            `2 sharpness^2` in a head, others about 0. written: how strong is what was found.
    """
    look_back(policy, offsets=offsets)
    config = policy.model.config
    heads, hidden = config.num_attention_heads, config.hidden_size
    size = hidden // heads
    half = size // 2  # of a head's dimensions: those of its slowest rotary pairs, which hardly turn within an episode
    first, second = (policy.model.model.layers[layer].self_attn for layer in (0, 1))
    with torch.no_grad():
        known = torch.linalg.qr(torch.cat([torch.eye(hidden)[:, :1], first.v_proj.weight.T], 1))[0]
        read = torch.linalg.qr(second.v_proj.weight[:size, 1:].T)[0].T  # [size, hidden - 1]: what is carried of a word
        places = {offset: known[:, 1 + at * size : 1 + (at + 1) * size] for at, offset in enumerate(offsets)}
        for head, offset in enumerate(offsets):
            rows = slice(head * size, (head + 1) * size)
            first.v_proj.weight[rows] = torch.nn.functional.pad(read, (1, 0))
            first.o_proj.weight[:, rows] = carried * places[offset]
        own = known[:, 1 + len(offsets) * size :][:, :size]  # dimensions that nothing is carried into
        for head, (asks, answers) in enumerate(shifts[:heads]):
            slow = [head * size + half // 2 + at + side * half for side in (0, 1) for at in range(half // 2)]
            words = slice(head % 2 * half, (head % 2 + 1) * half)
            for weight, offset in ((second.q_proj.weight, asks), (second.k_proj.weight, answers)):
                weight[head * size : (head + 1) * size] = 0.0
                weight[slow] = sharpness * places[offset][:, words].T
            rows = slice(head * size, head * size + own.shape[1])
            second.v_proj.weight[rows] = own.T
            second.o_proj.weight[:, rows] = written * own
