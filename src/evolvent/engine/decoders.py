"""The choice of the forward that runs a model: fused weights, the model's own modules, or no prefix sharing.

The choice follows from a model's configuration, and is then verified: a short random text is fed in two pieces
and the logits are compared with the model's own. A decoder that fails this check is not used.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.fused import FusedDecoder, fused_obstacle
from evolvent.engine.plan import Group, Plan, plan
from evolvent.errors import ConfigError, EngineError, boundary
from evolvent.models.tuned import plain_model

__all__ = ["Decoder", "ModuleDecoder", "arena_obstacle", "decoder_for"]


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


log = logging.getLogger(__name__)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1}  # of the largest logit, at least 1


class Decoder(Protocol):
    """A forward over the arena."""

    shape: Shape
    vocabulary: int

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> None:
        """Computes the new tokens `ids [N]` of a plan; keys, values and last hidden states go to the arena."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Computes logits from hidden states, `[M, H] -> [M, V]`."""
        ...


def arena_obstacle(config: Any) -> str | None:
    """Returns None if keys and values of every layer can be stored for all positions alike; otherwise the reason."""
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder-decoder"
    kinds = getattr(config, "layer_types", None)
    unsupported_kinds = sorted(set(kinds) - {"full_attention"}) if kinds else []
    if unsupported_kinds:
        return f"layers of kind {', '.join(unsupported_kinds)}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True) and not kinds:
        return f"a sliding window of {config.sliding_window}"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind in ("dynamic", "longrope"):
        return f"RoPE of type {kind}, which depends on the length"
    return None


def decoder_for(model: Any, *, capacity: int) -> Decoder:
    """Returns the fastest decoder that computes the model's outputs; adapter changes are merged into its weights.

    Raises:
        ConfigError: no decoder over an arena can; says why. Virtual tokens of an adapter are one reason.
    """
    config, plain = model.config, plain_model(model)
    reason = arena_obstacle(config)
    if reason is None:
        fused_reason = fused_obstacle(config)
        makers: tuple[type[FusedDecoder] | type[ModuleDecoder], ...] = (FusedDecoder, ModuleDecoder)
        for maker in makers[1 if fused_reason else 0 :]:
            try:
                with boundary(EngineError, f"{maker.__name__} cannot run it"):
                    decoder = maker(plain, capacity=capacity)
                    difference = _measure_difference(decoder, model)
            except EngineError as problem:
                reason = str(problem)
                continue
            if difference <= _TOLERANCE.get(next(model.parameters()).dtype, 1e-4):
                log.info(
                    "%s runs with %s%s", config.model_type, maker.__name__, f" ({fused_reason})" if fused_reason else ""
                )
                return decoder
            reason = f"{maker.__name__} differs from it by {difference:.2g}"
    raise ConfigError(
        f"a {config.model_type} model cannot share prefixes here",
        value=reason,
        expected="full attention in every layer, RoPE independent of length",
        hint="use RecomputeEngine",
    )


def _measure_difference(decoder: Decoder, model: Any) -> float:
    """Returns the largest logit difference on a random text, relative to the largest logit (at least 1)."""
    weight = next(model.parameters())
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, decoder.vocabulary, 7)).to(weight.device)
    arena = Arena(decoder.shape, 2, 16, dtype=weight.dtype, device=weight.device)
    row = np.array([1])
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        if not bool(torch.isfinite(expected).all()):
            return 0.0  # diverged weights: said when they are used, row by row
        for first, last in ((0, 4), (4, 5), (5, 7)):
            layout = plan(row, np.array([first]), np.array([last - first]), limit=4096, capacity=16)
            decoder.forward(ids[first:last], layout, arena)
        logits = decoder.logits(arena.hidden[1, :7]).float()
    return float((logits - expected).abs().max()) / max(1.0, float(expected.abs().max()))
