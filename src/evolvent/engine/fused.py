"""The fused decoder: the forward of the Llama family (Llama, Mistral, Qwen2, Qwen3) straight over the arena.

It holds fused copies of the weights (query-key-value, gate-up; norm weights multiplied in where that is exact enough),
taken when the engine syncs. Linear layers see the flat list of new tokens. Queries and keys are stored with the pairs
that RoPE turns side by side, so that a rotation is one complex product; scores do not change under that permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.attention import Attention, AttentionGroup
from evolvent.engine.cuda_graphs import GraphRecorder, GraphShape
from evolvent.engine.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["FusedDecoder", "fused_obstacle"]

_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_MIN_ROWS = 4  # matrix products of fewer rows take another kernel, with other rounding


def fused_obstacle(config: PreTrainedConfig) -> str | None:
    """Returns None if the fused decoder can run a model of this configuration; otherwise the reason."""
    if config.model_type not in _FAMILY:
        return f"model type {config.model_type}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act}"
    return None


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer, transposed to `[in, out]`; a norm of None is multiplied into the matrix behind it."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    norm: Tensor | None
    mlp_norm: Tensor | None
    head_norm: Tensor | None  # [query heads + key heads, head]: Qwen3's norms of queries and keys


class FusedDecoder:
    """The fused forward of one model's weights as they are now.

    Attributes:
        shape: what the arena keeps per token.
        vocabulary: number of logits.
    """

    def __init__(self, model: PreTrainedModel, *, capacity: int) -> None:
        config, base = model.config, model.model
        weight = base.embed_tokens.weight.detach()
        self._queries = int(config.num_attention_heads)
        self._keys = int(config.num_key_value_heads)
        self._head = int(getattr(config, "head_dim", None) or config.hidden_size // self._queries)
        self._eps = float(config.rms_norm_eps)
        self.shape = Shape(len(base.layers), self._keys, self._head, int(config.hidden_size))
        self.vocabulary = int(weight.shape[0])
        self._exact = weight.dtype == torch.float32
        with torch.inference_mode():
            self._embedding = weight.clone()
            self._layers = [self._fuse(layer) for layer in base.layers]
            self._norm = base.norm.weight.detach().clone()
            self._logits = model.lm_head.weight.detach().t().contiguous()
            self._logits_bias = _copy(getattr(model.lm_head, "bias", None))
            rotary = base.rotary_emb
            angles = torch.arange(capacity, device=weight.device).unsqueeze(1) * rotary.inv_freq.float()
            scale = float(getattr(rotary, "attention_scaling", 1.0))
            self._turns = (torch.complex(angles.cos(), angles.sin()) * scale).unsqueeze(1)  # [capacity, 1, head / 2]
        self._attention = Attention(self._queries, self._keys, self._head, dtype=weight.dtype, device=weight.device)
        self._recorder = GraphRecorder() if weight.device.type == "cuda" else None

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> None:
        """Computes the new tokens `ids [N]` of a plan; keys, values and last hidden states go to the arena."""
        if self._recorder is not None and self._recorder.forward(ids, plan, arena, body=self._forward_single):
            return
        device = ids.device
        rows, positions = torch.from_numpy(plan.rows).to(device), torch.from_numpy(plan.positions).to(device)
        slots = rows * arena.capacity + positions
        if len(ids) < _MIN_ROWS:
            ids, positions = F.pad(ids, (0, _MIN_ROWS - len(ids))), F.pad(positions, (0, _MIN_ROWS - len(positions)))
        self._run_layers(ids, positions, slots, self._attention.prepare(plan, device), arena)

    def _forward_single(self, ids: Tensor, rows: Tensor, positions: Tensor, shape: GraphShape, arena: Arena) -> None:
        """Runs a forward of one new token per row, all `[n]`, as one group."""
        count, keys, side = shape
        mask = self._attention.mask(positions.unsqueeze(1), keys)
        group = AttentionGroup(rows, side, 1, keys, 0, count, mask, None, None)
        self._run_layers(ids, positions, rows * arena.capacity + positions, [group], arena)

    def _run_layers(
        self, ids: Tensor, positions: Tensor, slots: Tensor, groups: Sequence[AttentionGroup], arena: Arena
    ) -> None:
        """Runs all layers over tokens; tokens beyond the `slots [N]` are filler."""
        count, rotations = len(slots), self._turns[positions]
        queries = self._queries * self._head
        rotated = queries + self._keys * self._head
        x = self._embedding[ids]
        for index, layer in enumerate(self._layers):
            qkv = _product(self._normalize(x, layer.norm), layer.qkv, layer.qkv_bias)
            self._rotate(qkv[:, :rotated], rotations, layer.head_norm)
            cache = arena.cache[index].view(arena.rows * arena.capacity, -1)
            cache.index_copy_(0, slots, qkv[:count, queries:])
            attended = self._attention(qkv[:, :queries], groups, arena.cache[index])
            _add_residual(x, attended, layer.out, layer.out_bias)
            gate_up = _product(self._normalize(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
            gate, up = gate_up.chunk(2, 1)
            _add_residual(x, F.silu(gate).mul_(up), layer.down, layer.down_bias)
        hidden = self._normalize(x[:count], self._norm)
        arena.hidden.view(arena.rows * arena.capacity, -1).index_copy_(0, slots, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Computes logits from hidden states, `[M, H] -> [M, V]`."""
        count = len(hidden)
        if count < _MIN_ROWS:
            hidden = F.pad(hidden, (0, 0, 0, _MIN_ROWS - count))
        return _product(hidden, self._logits, self._logits_bias)[:count]

    def _normalize(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _rotate(self, x: Tensor, rotations: Tensor, norm: Tensor | None) -> None:
        """Applies RoPE in place to queries and keys `x [N, heads * head]`, after their norm if the model has one."""
        heads = x.view(x.shape[0], -1, self._head)
        if norm is not None:
            heads.copy_(self._normalize(heads, None) * norm)
        if self._exact:
            torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(rotations)
        else:
            pairs = torch.view_as_complex(heads.float().view(*heads.shape[:2], -1, 2)) * rotations
            heads.copy_(torch.view_as_real(pairs).flatten(-2))

    def _fuse(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norm, mlp_norm = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        qkv = torch.cat([self._pair_rows(part.weight.detach(), part is not parts[2]) for part in parts])
        gate_up = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
        if self._exact:
            qkv, gate_up = qkv * norm, gate_up * mlp_norm
        biases = [_copy(part.bias) for part in parts]
        qkv_bias = None
        if biases[0] is not None:
            qkv_bias = torch.cat([self._pair_rows(b, i < 2) for i, b in enumerate(biases) if b is not None])
        mlp_biases = [b for b in (_copy(mlp.gate_proj.bias), _copy(mlp.up_proj.bias)) if b is not None]
        return _Layer(
            qkv=qkv.t().contiguous(),
            qkv_bias=qkv_bias,
            out=attention.o_proj.weight.detach().t().contiguous(),
            out_bias=_copy(attention.o_proj.bias),
            gate_up=gate_up.t().contiguous(),
            gate_up_bias=torch.cat(mlp_biases) if mlp_biases else None,
            down=mlp.down_proj.weight.detach().t().contiguous(),
            down_bias=_copy(mlp.down_proj.bias),
            norm=None if self._exact else norm.clone(),
            mlp_norm=None if self._exact else mlp_norm.clone(),
            head_norm=self._head_norm(attention),
        )

    def _head_norm(self, attention: Any) -> Tensor | None:
        if getattr(attention, "q_norm", None) is None:
            return None
        query, key = (self._pair_rows(part.weight.detach(), True) for part in (attention.q_norm, attention.k_norm))
        return torch.cat([query.expand(self._queries, -1), key.expand(self._keys, -1)])

    def _pair_rows(self, weight: Tensor, is_rotated: bool) -> Tensor:
        """Orders the rows of each head as 0, h/2, 1, h/2 + 1, ..., so that pairs rotated together by RoPE are
        adjacent.
        """
        if not is_rotated:
            return weight
        heads = weight.reshape(-1, 2, self._head // 2, *weight.shape[1:])
        return heads.transpose(1, 2).flatten(0, 2)


def _copy(tensor: Any) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def _add_residual(x: Tensor, add: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Computes x += add @ weight (+ bias), with the sum inside the matrix product."""
    x.addmm_(add, weight)
    if bias is not None:
        x.add_(bias)
