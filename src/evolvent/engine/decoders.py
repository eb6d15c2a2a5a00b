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

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.fused import FusedDecoder, fused_obstacle
from evolvent.engine.module import ModuleDecoder
from evolvent.engine.plan import Plan, plan
from evolvent.errors import ConfigError, EngineError, boundary
from evolvent.models.tuned import plain_model

__all__ = ["Decoder", "arena_obstacle", "decoder_for"]

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
