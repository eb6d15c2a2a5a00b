"""The cost of a model: floating-point operations of forward and backward, counted from its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.nf4 import list_nf4_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations of forward and backward in matrix products: the minimum of any training of the
    model.

    Not counted: recomputation, padding, a second backward (two-pass clipping), the masked half of attention, the
    optimizer's own work. So the share of the ceiling is the utilization (MFU, arXiv 2204.02311 appendix B), except
    that attention is counted as causal and the head at targets only.

    Attributes:
        body: per fed token, in the matrix products of the layers: 6 times their weights; 4 times the frozen ones,
            which have no gradient of their own.
        head: per scored token, in the output embedding.
        attention: per fed token and token of its sequence: 12 x layers x heads x head size, halved by causality.
            Query heads count: keys and values that several of them share are multiplied as often.
    """

    body: float
    head: float
    attention: float

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> Cost:
        """Computes the cost of a whole Hugging Face causal LM, with or without an adapter, before it is distributed
        over ranks.

        A value head, which some learners have beside it, does not count.
        """
        config, head = model.config, model.get_output_embeddings().weight
        embedding_ids = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)} | {
            id(head)
        }
        products = [
            weight
            for name, weight in model.named_parameters()
            if weight.dim() > 1 and id(weight) not in embedding_ids and "value_head." not in name
        ]
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 6.0 * config.num_hidden_layers * config.num_attention_heads * size
        frozen = sum(layer.out_features * layer.in_features for layer in list_nf4_layers(model).values())
        return cls(
            sum(_operations_per_weight(weight) * weight.numel() for weight in products) + 4.0 * frozen,
            _operations_per_weight(head) * head.numel(),
            attention,
        )

    def count_operations(self, fed: float, scored: float, length: float) -> float:
        """Counts operations for `fed` tokens in sequences of `length`, of which `scored` tokens pass the head."""
        return fed * (self.body + self.attention * length) + scored * self.head

    def per_token(self, sequences: Sequence[TokenSequence], *, uses_head: bool = True) -> float:
        """Computes the operations per fed token, averaged over a data set.

        Args:
            uses_head: whether the head runs; it does not for values alone.
        """
        feeds = getattr(sequences, "feeds", None)
        targets = getattr(sequences, "targets_each", None)
        lengths = np.asarray([sequence.feed for sequence in sequences] if feeds is None else feeds, np.float64)
        scored = [np.count_nonzero(sequence.weight[1:]) for sequence in sequences] if targets is None else targets
        fed = float(lengths.sum())
        if fed == 0:
            return 0.0
        count = float(np.asarray(scored, np.float64).sum()) if uses_head else 0.0
        return self.count_operations(fed, count, float((lengths**2).sum()) / fed) / fed


def _operations_per_weight(weight: Tensor) -> float:
    """Returns operations per weight: forward, backward through it, and its own gradient, two each."""
    return 6.0 if weight.requires_grad else 4.0
