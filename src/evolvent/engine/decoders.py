"""The choice of the forward that runs a model: fused weights, the model's own modules, or no prefix sharing.

The choice follows from a model's configuration, and is then verified: a short random text is fed in two pieces
and the logits are compared with the model's own. A decoder that fails this check is not used.

The fused decoder: the forward of the Llama family (Llama, Mistral, Qwen2, Qwen3) straight over the arena.

It holds fused copies of the weights (query-key-value, gate-up; norm weights multiplied in where that is exact enough),
taken when the engine syncs. Linear layers see the flat list of new tokens. Queries and keys are stored with the pairs
that RoPE turns side by side, so that a rotation is one complex product; scores do not change under that permutation.

Forwards of one new token per row, recorded as CUDA graphs: a device waits for nobody to launch the next kernel.

A small model's forward is hundreds of short kernels, and launching them one by one takes longer than running them. What
is replayed is the same kernels on the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from evolvent.engine.arena import Arena, Shape
from evolvent.engine.attention import Attention, AttentionGroup, Plan, first_adjacent_row, plan
from evolvent.engine.module_decoder import ModuleDecoder, has_states, has_window
from evolvent.errors import ConfigError, EngineError, boundary
from evolvent.models.tuned import plain_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = [
    "Decoder",
    "FusedDecoder",
    "GraphRecorder",
    "GraphShape",
    "arena_obstacle",
    "decoder_for",
    "find_graph_shape",
    "fused_obstacle",
    "pad_order",
]


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
        log.warning("forwards are not recorded: %s", problem)  # all goes on, one kernel at a time
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


log = logging.getLogger(__name__)
_CHECKED_TOKENS = 31
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


def arena_obstacle(config: PreTrainedConfig, *, capacity: int | None = None) -> str | None:
    """Returns None if every layer keeps keys and values of all positions; otherwise the reason.

    Args:
        capacity: positions of a text; RoPE that depends on the length does not up to a model's original context.
    """
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder-decoder"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    original = original or getattr(config, "max_position_embeddings", 0)
    if kind in ("dynamic", "longrope") and (capacity is None or capacity > int(original or 0)):
        return f"RoPE of type {kind}, which depends on the length beyond {original} tokens"
    return None


def decoder_for(model: PreTrainedModel, *, capacity: int) -> Decoder:
    """Returns the fastest decoder that computes the model's outputs; adapter changes are merged into its weights.

    Raises:
        ConfigError: no decoder over an arena can; says why. Virtual tokens of an adapter are one reason.
    """
    config, plain = model.config, plain_model(model)
    reason = arena_obstacle(config, capacity=capacity)
    if reason is None:
        fused_reason = fused_obstacle(config)
        if has_states(config) or has_window(config, capacity):
            fused_reason = "layers with states or windows"
        tolerance = _TOLERANCE.get(next(model.parameters()).dtype, 1e-4)
        makers: tuple[type[FusedDecoder] | type[ModuleDecoder], ...] = (FusedDecoder, ModuleDecoder)
        for maker in makers[1 if fused_reason else 0 :]:
            try:
                with boundary(EngineError, f"{maker.__name__} cannot run it"):
                    decoder = maker(plain, capacity=capacity)
                    difference = _measure_difference(decoder, model)
                    if isinstance(decoder, ModuleDecoder) and decoder.shape.states and difference > tolerance:
                        decoder.one_by_one = True
                        difference = _measure_difference(decoder, model)
            except EngineError as problem:
                reason = str(problem)
                continue
            if difference <= tolerance:
                log.info(
                    "%s runs with %s%s", config.model_type, maker.__name__, f" ({fused_reason})" if fused_reason else ""
                )
                return decoder
            reason = f"{maker.__name__} differs from it by {difference:.2g}"
    raise ConfigError(
        f"a {config.model_type} model cannot share prefixes here",
        value=reason,
        expected="layers that keep keys and values, RoPE independent of length",
        hint="use RecomputeEngine",
    )


def _measure_difference(decoder: Decoder, model: PreTrainedModel) -> float:
    """Returns the largest logit difference on a random text, relative to the largest logit (at least 1)."""
    weight = next(model.parameters())
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, decoder.vocabulary, _CHECKED_TOKENS)).to(weight.device)
    arena = Arena(decoder.shape, 2, _CHECKED_TOKENS + 1, dtype=weight.dtype, device=weight.device)
    row = np.array([1])
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0].float()
        if not bool(torch.isfinite(expected).all()):
            return 0.0  # diverged weights: said when they are used, row by row
        for first, last in ((0, 4), (4, 5), (5, 15), (15, _CHECKED_TOKENS)):
            layout = plan(row, np.array([first]), np.array([last - first]), limit=4096, capacity=arena.capacity)
            decoder.forward(ids[first:last], layout, arena)
        logits = decoder.logits(arena.hidden[1, :_CHECKED_TOKENS]).float()
    return float((logits - expected).abs().max()) / max(1.0, float(expected.abs().max()))
