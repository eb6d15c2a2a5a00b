"""The fused decoder: the forward of the Llama family (Llama, Mistral, Qwen2, Qwen3) straight over the arena.

Of a small model in float32 it holds fused copies of the weights (query-key-value, gate-up; norm weights multiplied in),
taken when the engine syncs: there the calls cost more than the numbers. Of a large model on a CPU it holds packed
copies (`models/cpu_layers.py`), and the memory of the model's own weights is given back until they are read again if
they come from a file. Of other models it reads the model's own weights and copies those of queries, keys and values
alone. Linear layers see the flat list of new tokens. Queries and keys are stored with the pairs that RoPE turns side by
side, so that a rotation is one complex product; scores do not change under that permutation.

Forwards of one new token per row, recorded as CUDA graphs: a device waits for nobody to launch the next kernel.

A small model's forward is hundreds of short kernels, and launching them one by one takes longer than running them. What
is replayed is the same kernels on the same numbers.

Attention of groups of rows over the arena. Each group's keys and values are gathered into a small scratch first.

It is PyTorch's fused attention. Small heads on a CPU get a second form for rows with one new token: the queries of all
heads stand as one block-diagonal matrix `[heads, heads * head]`, so that a row is two matrix products for all heads
together. The zeros cost less than the calls they save; and as matrix products of at least four rows all run in the same
kernel, a token's numbers are the same to the last bit whatever it is fed with (measured with MKL).

On another device, and in bfloat16, the query heads that share keys stand as queries of one head, so that no kernel has
to repeat keys (32 rows of 150 keys on that core: 0.7 ms, where torch's grouped form takes 3.7); on another device rows
that lie side by side are looked at where they are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.streams import Plan
from evolvent.models.cpu_layers import multiply_packed, pack_weight, packs_weights
from evolvent.models.nf4 import count_weights
from evolvent.models.tuned import kind_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = [
    "Attention",
    "AttentionGroup",
    "FusedDecoder",
    "GraphRecorder",
    "GraphShape",
    "copied_bytes",
    "find_graph_shape",
    "fused_obstacle",
    "pad_order",
]


_WIDEST = 128  # key width up to which the block-diagonal product pays


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """A group of a plan as tensors; `mask [n, 1, q, L]` is added to scores. `side`: the first of rows side by side."""

    rows: Tensor
    side: int | None
    queries: int
    keys: int
    first: int
    last: int
    mask: Tensor
    pad: Tensor | None
    real: Tensor | None


class Attention:
    """Attention of one model.

    Args:
        queries, keys: heads. head: width of one head.
    """

    def __init__(self, queries: int, keys: int, head: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self._queries, self._keys, self._head = queries, keys, head
        self._cpu = device.type == "cpu"
        self._blocks = self._cpu and dtype == torch.float32 and keys * head <= _WIDEST and queries >= 4
        owner = torch.arange(queries, device=device) // (queries // keys)
        diagonal = (owner.unsqueeze(1) == torch.arange(keys, device=device)).to(dtype)
        self._diagonal = (diagonal * head**-0.5).unsqueeze(-1)  # [queries, keys, 1], the scale multiplied in
        self._scratch = torch.empty(0, dtype=dtype, device=device)

    def prepare(self, plan: Plan, device: torch.device) -> list[AttentionGroup]:
        """Builds the groups of a plan with their masks, once for all layers."""
        return [
            AttentionGroup(
                rows=torch.from_numpy(group.rows).to(device),
                side=None if self._cpu else first_adjacent_row(group.rows),
                queries=group.queries,
                keys=group.keys,
                first=group.first,
                last=group.last,
                mask=self.mask(torch.from_numpy(group.positions).to(device), group.keys),
                pad=None if group.pad is None else torch.from_numpy(group.pad).to(device),
                real=None if group.real is None else torch.from_numpy(group.real).to(device),
            )
            for group in plan.groups
        ]

    def mask(self, positions: Tensor, keys: int) -> Tensor:
        """Returns the additive mask `[n, 1, q, L]` for attention scores: 0 where a query attends, -inf elsewhere."""
        beyond = torch.arange(keys, device=positions.device) > positions.unsqueeze(-1)
        mask = torch.zeros(beyond.shape, dtype=self._scratch.dtype, device=beyond.device)
        return mask.masked_fill_(beyond, -torch.inf).unsqueeze(1)

    def __call__(self, queries: Tensor, groups: Sequence[AttentionGroup], cache: Tensor) -> Tensor:
        """Computes attention of `queries [N, heads * head]` over one layer's cache.

        Args:
            cache: `[rows, capacity, 2, heads, head]`.

        Returns:
            The attention output, in the shape of `queries`.
        """
        only, filled = groups[0], groups[-1].last
        if len(groups) == 1 and only.pad is None and filled == len(queries):
            return self._attend(queries, only, cache).reshape(filled, -1)
        result = torch.empty_like(queries, memory_format=torch.contiguous_format)
        if filled < len(result):
            result[filled:] = 0
        for group in groups:
            group_queries = (
                queries[group.first : group.last] if group.pad is None else queries.index_select(0, group.pad)
            )
            out = self._attend(group_queries, group, cache)
            if group.real is None:
                result[group.first : group.last].view(out.shape).copy_(out)
            else:
                torch.index_select(
                    out.reshape(len(group_queries), -1), 0, group.real, out=result[group.first : group.last]
                )
        return result

    def _attend(self, group_queries: Tensor, group: AttentionGroup, cache: Tensor) -> Tensor:
        """Computes attention of one group, `[n * q, heads * head] -> [n, q, heads, head]`."""
        attend = self._fused if group.queries > 1 else self._single
        return attend(
            group_queries.view(-1, group.queries, self._queries, self._head),
            self._gather_keys_values(cache, group),
            group.mask,
        )

    def _gather_keys_values(self, cache: Tensor, group: AttentionGroup) -> Tensor:
        """Returns the first `keys` positions of the group's rows, `[n, L, 2, heads, head]`."""
        if group.side is not None:
            return cache[group.side : group.side + len(group.rows), : group.keys]
        if not self._cpu:
            return cache[:, : group.keys].index_select(0, group.rows)
        shape = (len(group.rows), group.keys, *cache.shape[2:])
        size = torch.Size(shape).numel()
        if self._scratch.numel() < size:
            self._scratch = cache.new_empty(size)
        gathered = self._scratch[:size].view(shape)
        torch.index_select(cache[:, : group.keys], 0, group.rows, out=gathered)
        return gathered

    def _single(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        """Computes attention of one new token per row in the fastest form for this device."""
        if self._blocks:
            return self._block_diagonal(queries, keys_values, mask)
        if self._cpu and keys_values.dtype == torch.float32:
            return self._fused(queries, keys_values, mask)
        return attend_shared_keys(queries, keys_values, mask)

    def _block_diagonal(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        """Computes attention of one new token per row with the heads as rows of one block-diagonal matrix."""
        n, _, heads, _ = queries.shape
        keys, values = keys_values.flatten(3).unsqueeze(1).unbind(3)
        spread = (queries.view(n, 1, heads, 1, -1) * self._diagonal).flatten(3)
        mixed = F.scaled_dot_product_attention(spread, keys, values, attn_mask=mask, scale=1.0)
        head_blocks = mixed.view(n, self._keys, heads // self._keys, self._keys, self._head)
        return head_blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(n, 1, heads, self._head)

    def _fused(self, queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
        keys, values = keys_values.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=self._keys != self._queries
        )
        return out.transpose(1, 2)


def attend_shared_keys(queries: Tensor, keys_values: Tensor, mask: Tensor) -> Tensor:
    """Computes attention of one new token per row.

    The query heads that share a key head are treated as that many queries of it.

    Args:
        queries: `[n, 1, heads, head]`.
        keys_values: `[n, L, 2, key heads, head]`.
    """
    n, _, heads, width = queries.shape
    keys, values = keys_values.permute(2, 0, 3, 1, 4)
    count = keys.shape[1]
    grouped = queries.view(n, count, heads // count, width)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(n, 1, heads, width)


def first_adjacent_row(rows: NDArray[np.int64]) -> int | None:
    """Returns the first row where rows `[n]` are n consecutive rows; otherwise None."""
    first = int(rows[0])
    return first if bool((rows == np.arange(first, first + len(rows))).all()) else None


_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_MAX_COPIED = 10_000_000  # weights of a model up to which copies pay
_PROJECTION = re.compile(r"\b[qkv]_proj\b")
_MIN_ROWS = 4  # matrix products of fewer rows take another kernel, with other rounding


def fused_obstacle(config: PreTrainedConfig) -> str | None:
    """Returns None if the fused decoder can run a model of this configuration; otherwise the reason."""
    if config.model_type not in _FAMILY:
        return f"model type {config.model_type}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act}"
    return None


def copied_bytes(model: PreTrainedModel, *, device: str) -> int:
    """Returns the bytes of the copies of a model's weights that the decoder of an engine holds.

    Args:
        model: a causal LM; its weights may be on the meta device.
        device: type of the device that it plays on.
    """
    named_weights = dict(model.named_parameters())
    weight = next(iter(named_weights.values()))
    itemsize, num_weights = int(weight.element_size()), count_weights(model)
    merged = num_weights if kind_of(model) is not None else 0  # changes of an adapter are merged into a copy
    if fused_obstacle(model.config) is None:
        ends = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
        table, is_tied = int(ends[0].numel()), ends[0] is ends[1]
        if weight.dtype == torch.float32 and num_weights < _MAX_COPIED:
            return (num_weights + table * is_tied) * itemsize
        if device == "cpu" and packs_weights(torch.empty(0, dtype=weight.dtype), num_weights):
            return (num_weights - table * (not is_tied)) * itemsize
        merged += sum(
            int(part.numel())
            for name, part in named_weights.items()
            if _PROJECTION.search(name) and "lora_" not in name
        )
    return merged * itemsize


@dataclass(frozen=True, slots=True)
class _Packed:
    """A weight in the blocks of oneDNN."""

    blocks: Tensor


Weight = Tensor | _Packed
"""A weight as `[in, out]`, or packed."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Weights of one layer; a norm of None is multiplied into the matrix behind it.

    Without `up`, `gate` holds both side by side.
    """

    qkv: Weight
    qkv_bias: Tensor | None
    out: Weight
    out_bias: Tensor | None
    gate: Weight
    gate_bias: Tensor | None
    up: Weight | None
    up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None
    norm: Tensor | None
    mlp_norm: Tensor | None
    head_norm: Tensor | None  # [query heads + key heads, head]: Qwen3's norms of queries and keys


class FusedDecoder:
    """The fused forward of one model's weights as they are now.

    Args:
        model: a causal LM without adapter.
        capacity: maximum number of tokens of a text.
        drops_packed: whether the model is a copy that nobody else needs: its linear layers lose each weight as soon as
            it is packed, so that no two copies of all weights are in memory at once.
    Attributes:
        shape: what the arena keeps per token.
        vocabulary: number of logits.
        is_packed: whether it holds packed copies of the weights, so that the model's own are not read.
    """

    def __init__(self, model: PreTrainedModel, *, capacity: int, drops_packed: bool = False) -> None:
        config, base = model.config, model.model
        weight = base.embed_tokens.weight.detach()
        self._queries = int(config.num_attention_heads)
        self._keys = int(config.num_key_value_heads)
        self._head = int(getattr(config, "head_dim", None) or config.hidden_size // self._queries)
        self._eps = float(config.rms_norm_eps)
        self.shape = Shape(len(base.layers), self._keys, self._head, int(config.hidden_size))
        self.vocabulary = int(weight.shape[0])
        self._exact = weight.dtype == torch.float32
        num_weights = sum(part.numel() for part in model.parameters())
        self._copies = self._exact and num_weights < _MAX_COPIED
        self.is_packed = not self._copies and packs_weights(weight, num_weights)
        self._drops_packed = drops_packed and self.is_packed
        with torch.inference_mode():
            self._embedding = weight.clone() if self._copies else weight
            self._fuses = self._copies or self.is_packed
            self._layers = [self._fuse(layer) for layer in base.layers]
            self._norm = base.norm.weight.detach().clone()
            self._logits = self._lay_out(model.lm_head.weight.detach())
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
            normalized = self._normalize(x, layer.mlp_norm)
            gate = _product(normalized, layer.gate, layer.gate_bias)
            if layer.up is None:
                gate, up = gate.chunk(2, 1)
            else:
                up = _product(normalized, layer.up, layer.up_bias)
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
        if self._copies:
            qkv = qkv * norm
        biases = [_copy(part.bias) for part in parts]
        qkv_bias = None
        if biases[0] is not None:
            qkv_bias = torch.cat([self._pair_rows(b, i < 2) for i, b in enumerate(biases) if b is not None])
        gate, up = mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()
        gate_bias, up_bias = _copy(mlp.gate_proj.bias), _copy(mlp.up_proj.bias)
        if self._fuses:
            gate = torch.cat([gate, up])
            gate_bias = None if gate_bias is None or up_bias is None else torch.cat([gate_bias, up_bias])
        if self._copies:
            gate = gate * mlp_norm
        fused = _Layer(
            qkv=self._lay_out(qkv),
            qkv_bias=qkv_bias,
            out=self._lay_out(attention.o_proj.weight.detach()),
            out_bias=_copy(attention.o_proj.bias),
            gate=self._lay_out(gate),
            gate_bias=gate_bias,
            up=None if self._fuses else self._lay_out(up),
            up_bias=None if self._fuses else up_bias,
            down=self._lay_out(mlp.down_proj.weight.detach()),
            down_bias=_copy(mlp.down_proj.bias),
            norm=None if self._copies else norm.clone(),
            mlp_norm=None if self._copies else mlp_norm.clone(),
            head_norm=self._head_norm(attention),
        )
        if self._drops_packed:
            for part in (*parts, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
                part.weight = None
        return fused

    def _lay_out(self, weight: Tensor) -> Weight:
        """Returns a weight `[out, in]` as products need it: packed, a copy, or a view of the model's own."""
        if self.is_packed:
            return _Packed(pack_weight(weight))
        return weight.t().contiguous() if self._copies else weight.t()

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


def _product(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, _Packed):
        return multiply_packed(x, weight.blocks, bias)
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def _add_residual(x: Tensor, add: Tensor, weight: Weight, bias: Tensor | None) -> None:
    """Computes x += add @ weight (+ bias), where the weight is not packed with the sum inside the matrix product."""
    if isinstance(weight, _Packed):
        x.add_(multiply_packed(add, weight.blocks, bias))
        return
    x.addmm_(add, weight)
    if bias is not None:
        x.add_(bias)


log = logging.getLogger(__name__)
Ints = NDArray[np.int64]
GraphShape = tuple[int, int, int | None]  # rows, positions, the first of rows side by side
Body = Callable[[Tensor, Tensor, Tensor, GraphShape, Arena], None]
_KEYS, _ROWS = 64, 8  # a graph serves all numbers of positions and rows up to the next multiple
_WASTE = 2.0  # positions that may be looked at in vain, over those that must be
_MOST = 64  # graphs of a recorder: what comes in more shapes than that is not worth recording


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: Any
    inputs: Tensor  # [3, n]: ids, rows, positions


class GraphRecorder:
    """Records the forwards of one decoder when their shape comes back, and replays them from then on.

    It does not keep the decoder: old weights go when the engine lets them go, and their graphs with them. Graphs are
    recorded on the arena's own stream, since the libraries' workspaces belong to streams.
    """

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._graphs: dict[GraphShape, _Graph] = {}
        self._known: set[GraphShape] = set()
        self._pool: Any = None
        self._broken = False

    def forward(self, ids: Tensor, plan: Plan, arena: Arena, *, body: Body) -> bool:
        """Returns whether the forward was replayed; if not, the caller has to run it.

        Args:
            body: the forward over `ids [n]`, `rows [n]` and `positions [n]` of a shape, and an arena; always the same.
        """
        shape = None if self._broken else find_graph_shape(plan, capacity=arena.capacity)
        if shape is None:
            return False
        if arena is not self._arena:
            self._arena, self._graphs, self._known, self._pool = arena, {}, set(), None
        graph = self._graphs.get(shape)
        if graph is None:
            if shape not in self._known:  # libraries choose their kernels outside of a recording
                self._known.add(shape)
                return False
            graph = self._try_capture(shape, ids.device, arena, body) if len(self._graphs) < _MOST else None
            if graph is None:
                return False
        order = pad_order(np.argsort(plan.rows), shape[0])
        graph.inputs[1:].copy_(torch.from_numpy(np.stack([plan.rows[order], plan.positions[order]])))
        torch.index_select(ids, 0, torch.from_numpy(order).to(ids.device), out=graph.inputs[0])
        graph.graph.replay()
        return True

    def _try_capture(self, shape: GraphShape, device: torch.device, arena: Arena, body: Body) -> _Graph | None:
        """Returns a new graph; returns None, and stops recording, where there is no memory for it."""
        problem: RuntimeError | None = None
        for _ in range(2):
            try:
                captured = self._graphs[shape] = self._capture(shape, device, arena, body)
                return captured
            except RuntimeError as error:  # no room, as a rule: a graph's memory is its own, and not what others keep
                problem = error
                torch.cuda.empty_cache()
        log.warning("forward passes are not recorded as CUDA graphs: %s", problem)  # all goes on, one kernel at a time
        self._broken = True
        return None

    def _capture(self, shape: GraphShape, device: torch.device, arena: Arena, body: Body) -> _Graph:
        if arena.aside is None:
            arena.aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        inputs, graph = torch.zeros((3, shape[0]), dtype=torch.int64, device=device), torch.cuda.CUDAGraph()
        current_stream = torch.cuda.current_stream(device)
        arena.aside.wait_stream(current_stream)
        with torch.cuda.stream(arena.aside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                body(inputs[0], inputs[1], inputs[2], shape, arena)
            finally:
                graph.capture_end()
        current_stream.wait_stream(arena.aside)
        self._pool = graph.pool() if self._pool is None else self._pool
        return _Graph(graph, inputs)


def find_graph_shape(plan: Plan, *, capacity: int) -> GraphShape | None:
    """Returns the graph shape that serves a plan; None where rows have several new tokens or very unequal lengths.

    Args:
        capacity: positions that a row has.
    """
    if any(group.queries > 1 for group in plan.groups):
        return None
    widths = [min(capacity, -(-group.keys // _KEYS) * _KEYS) for group in plan.groups]
    keys, count = max(widths), len(plan.rows)
    if count * keys > _WASTE * sum(len(group.rows) * width for group, width in zip(plan.groups, widths, strict=True)):
        return None
    step = max(_ROWS, 1 << max(0, count.bit_length() - 4))  # at most an eighth of the rows is filler, above 64
    rows = -(-count // step) * step
    fills_arena = (
        rows == count and first_adjacent_row(np.sort(plan.rows)) == 0
    )  # the usual case; each other would be a graph
    return rows, keys, 0 if fills_arena else None


def pad_order(order: Ints, count: int) -> Ints:
    """Pads `[n]` to `[count]` with copies of the last entry, which write the same numbers to the same position."""
    return np.concatenate([order, np.full(count - len(order), order[-1])])
