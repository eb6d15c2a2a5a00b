"""The module decoder: a Hugging Face model's own forward with a cache that lives in the arena.

Any causal LM with full attention and the same key and value heads in every layer. One forward per group of rows; the
rows of a group are padded to the longest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.plan import Group, Plan

__all__ = ["ModuleDecoder"]


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: writes the new ones to the arena, reads each row's path from it."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.is_initialized = True
        self._index = index
        self._arena: Arena | None = None
        self._slots = self._real = self._rows = torch.empty(0)
        self._keys = 0

    def target(self, arena: Arena, rows: Tensor, slots: Tensor, real: Tensor, keys: int) -> None:
        """Sets which rows the next forward reads, and the slots to which it writes the real tokens."""
        self._arena, self._rows, self._slots, self._real, self._keys = arena, rows, slots, real, keys

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores new keys and values `[B, H, q, d]` and returns those of the whole paths `[B, H, L, d]`."""
        if self._arena is None:
            raise LookupError("the arena layer was used before it was aimed")
        cache = self._arena.cache[self._index]
        new = torch.stack((key_states, value_states), 2).permute(0, 3, 2, 1, 4).flatten(0, 1)
        cache.flatten(0, 1).index_copy_(0, self._slots, new[self._real])
        keys_values = cache[:, : self._keys].index_select(0, self._rows).permute(2, 0, 3, 1, 4)
        return keys_values[0], keys_values[1]

    def get_seq_length(self) -> int:
        return 0  # positions and mask are always given


class ModuleDecoder:
    """A model's own modules over the arena.

    Attributes:
        shape: what the arena keeps per token.
        vocabulary: number of logits.
    """

    def __init__(self, model: Any, *, capacity: int) -> None:
        config = model.config
        heads = int(config.num_attention_heads)
        keys = int(getattr(config, "num_key_value_heads", None) or heads)
        head = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self._model, self._base, self._output = model, model.base_model, model.get_output_embeddings()
        self._layers = [_Layer(index) for index in range(int(config.num_hidden_layers))]
        self._scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        self._cap = getattr(config, "final_logit_softcapping", None)
        self.shape = Shape(len(self._layers), keys, head, int(config.hidden_size))
        self.vocabulary = int(self._output.weight.shape[0])
        model.eval()

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> None:
        """Computes the new tokens `ids [N]` of a plan; keys, values and last hidden states go to the arena."""
        for group in plan.groups:
            self._forward(ids[group.first : group.last], group, arena)

    def logits(self, hidden: Tensor) -> Tensor:
        """Computes logits, `[M, H] -> [M, V]`, with the scaling and capping that some models apply after their head."""
        logits: Tensor = self._output(hidden) * self._scale
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def _forward(self, ids: Tensor, group: Group, arena: Arena) -> None:
        device, n = ids.device, len(group.rows)
        rows, positions = torch.from_numpy(group.rows).to(device), torch.from_numpy(group.positions).to(device)
        if group.pad is None or group.real is None:
            real = torch.arange(len(ids), device=device)
            padded = ids
        else:
            real = torch.from_numpy(group.real).to(device)
            padded = ids[torch.from_numpy(group.pad).to(device) - group.first]
        slots = (rows.unsqueeze(1) * arena.capacity + positions).flatten()[real]
        for layer in self._layers:
            layer.target(arena, rows, slots, real, group.keys)
        mask = torch.arange(group.keys, device=device) <= positions.unsqueeze(-1)
        out = self._base(
            input_ids=padded.view(n, -1),
            position_ids=positions,
            attention_mask=mask.unsqueeze(1),
            past_key_values=Cache(layers=self._layers),
            use_cache=True,
        )
        hidden = out.last_hidden_state.flatten(0, 1)[real]
        arena.hidden.flatten(0, 1).index_copy_(0, slots, hidden)
