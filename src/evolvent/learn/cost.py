"""What a model costs: operations of its forward and backward, counted from its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from evolvent.learn.token_sequences import Parts

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations of forward and backward, in matrix products: what any training of the model needs.

    Not counted: what is recomputed, what is fed as padding, a second backward (two-pass clipping), the masked half of
    attention, an optimizer's own work. So the share of the ceiling is the utilisation (MFU, arXiv 2204.02311 appendix
    B), but for attention, which is taken as causal, and the head, which runs at targets only.

    Attributes:
        body: a fed token's, in the matrix products of the layers: 6 times their weights; 4 times the frozen ones, which
            have no gradient of their own.
        head: a scored token's, in the output embedding.
        attention: a fed token's, for each token of its sequence: 12 x layers x heads x head size, halved by causality.
            Query heads count: keys and values that several of them share are multiplied as often.
    """

    body: float
    head: float
    attention: float

    @classmethod
    def of(cls, model: Any) -> Cost:
        """The cost of a whole Hugging Face causal LM, with or without an adapter; before it is laid over ranks.

        A head of values, which some learners have beside it, does not count.
        """
        config, head = model.config, model.get_output_embeddings().weight
        looked_up = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} | {id(head)}
        products = [
            weight
            for name, weight in model.named_parameters()
            if weight.dim() > 1 and id(weight) not in looked_up and "value_head." not in name
        ]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 6.0 * config.num_hidden_layers * config.num_attention_heads * size
        return cls(sum(_times(weight) * weight.numel() for weight in products), _times(head) * head.numel(), attention)

    def operations(self, fed: float, scored: float, length: float) -> float:
        """Of `fed` tokens in sequences of `length`, so many of which the head scores."""
        return fed * (self.body + self.attention * length) + scored * self.head

    def each(self, parts: Sequence[Parts], *, worded: bool = True) -> float:
        """Of a fed token, on average over a data set.

        Args:
            worded: the head runs, as it does not for values alone.
        """
        feeds = getattr(parts, "feeds", None)
        targets = getattr(parts, "targets_each", None)
        lengths = np.asarray([one.feed for one in parts] if feeds is None else feeds, np.float64)
        scored = [np.count_nonzero(one.weight[1:]) for one in parts] if targets is None else targets
        fed = float(lengths.sum())
        if fed == 0:
            return 0.0
        count = float(np.asarray(scored, np.float64).sum()) if worded else 0.0
        return self.operations(fed, count, float((lengths**2).sum()) / fed) / fed


def _times(weight: Tensor) -> float:
    """Operations for each of its numbers: forward, the way through, and its own gradient, two each."""
    return 6.0 if weight.requires_grad else 4.0
