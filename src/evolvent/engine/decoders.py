"""The choice of the forward that runs a model: fused weights, the model's own modules, or no prefix sharing.

The choice follows from a model's configuration, and is then verified: a short random text is fed in two pieces
and the logits are compared with the model's own. A decoder that fails this check is not used.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

from evolvent.engine.arena import Arena, Shape, StateShape
from evolvent.engine.fused import FusedDecoder, fused_obstacle
from evolvent.engine.streams import Group, Plan, plan
from evolvent.errors import ConfigError, EngineError, boundary
from evolvent.models.cpu_linear import release_pages
from evolvent.models.tuned import plain_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["Decoder", "ModuleDecoder", "arena_obstacle", "decoder_for"]


@dataclass(frozen=True, slots=True)
class _LayerShape:
    """Sizes of what one layer keeps per token: heads and width of its keys, and of its values."""

    key_heads: int
    key_head: int
    value_heads: int
    value_head: int

    @property
    def width(self) -> int:
        return max(self.key_heads * self.key_head, self.value_heads * self.value_head)


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: writes the new ones to the arena, reads each row's path from it.

    Keys and values of a token lie flat in the arena, so that layers may differ in their heads.
    """

    def __init__(self, index: int, shape: _LayerShape) -> None:
        super().__init__()
        self.is_initialized = True
        self._index, self._shape = index, shape
        self._arena: Arena | None = None
        self._slots = self._real = self._rows = torch.empty(0)
        self._keys = 0

    def target(self, arena: Arena, rows: Tensor, slots: Tensor, real: Tensor, keys: int) -> None:
        """Sets which rows the next forward reads, and the slots to which it writes the real tokens."""
        self._arena, self._rows, self._slots, self._real, self._keys = arena, rows, slots, real, keys

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores new keys and values `[B, H, q, d]` and returns those of the whole paths `[B, H, L, d]`."""
        if self._arena is None:
            raise LookupError("the arena layer was used before its slots were set")
        shape, cache = self._shape, self._arena.cache[self._index].flatten(3)  # [rows, capacity, 2, width]
        positions = cache.flatten(0, 1)
        sizes = ((shape.key_heads, shape.key_head), (shape.value_heads, shape.value_head))
        for side, states in enumerate((key_states, value_states)):
            new = states.transpose(1, 2).flatten(2).flatten(0, 1)[self._real]
            positions[:, side, : new.shape[-1]].index_copy_(0, self._slots, new)
        path_states = cache[:, : self._keys].index_select(0, self._rows)
        keys, values = (
            path_states[:, :, side, : heads * head].reshape(*path_states.shape[:2], heads, head).transpose(1, 2)
            for side, (heads, head) in enumerate(sizes)
        )
        return keys, values

    def get_seq_length(self) -> int:
        return 0  # positions and mask are always given


class _StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """One layer's states of fixed size: convolutions, linear attention, state-space models.

    A text that begins has states of zeros, which is what the layer assumes where it has none.
    """

    def __init__(self, index: int, states: Sequence[StateShape]) -> None:
        super().__init__(number_of_states=1 + max((state.number for state in states), default=0))
        self._layer_index, self._states = index, states

    def load_states(self, arena: Arena, rows: Tensor) -> None:
        """Sets the states of rows, before a forward."""
        for state in self._states:
            values = arena.states[state].index_select(0, rows)
            self.has_previous_state[state.number] = True
            if state.kind == "conv":
                self.is_conv_states_initialized[state.number] = True
                self.conv_kernel_size[state.number] = values.shape[-1]
                self.conv_states[state.number] = values
            else:
                self.is_recurrent_states_initialized[state.number] = True
                self.recurrent_states[state.number] = values

    def store_states(self, arena: Arena, rows: Tensor) -> None:
        """Stores the states of rows, after a forward."""
        for state in self._states:
            layer_states = self.conv_states if state.kind == "conv" else self.recurrent_states
            arena.states[state].index_copy_(0, rows, layer_states[state.number])

    def get_seq_length(self, *args: Any) -> int:
        return 0


class _MixedLayer(_Layer, _StateLayer):
    """A layer with both, side by side (Falcon-H1)."""

    def __init__(self, index: int, shape: _LayerShape, states: Sequence[StateShape]) -> None:
        _StateLayer.__init__(self, index, states)
        DynamicLayer.__init__(self)
        self.is_initialized = True
        self._index, self._shape = index, shape
        self._arena = None
        self._slots = self._real = self._rows = torch.empty(0)
        self._keys = 0


class _ArenaCache(Cache):  # type: ignore[misc]
    """The cache of one forward. Positions and masks are given, so that it has no length of its own."""

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return 0


def _accept_masks(base: Any) -> None:
    """Lets a model with ALiBi (Bloom) compute its biases for a mask of four dimensions: of all positions."""
    build = getattr(base, "build_alibi_tensor", None)
    if build is None or getattr(build, "accepts_masks", False):
        return

    def build_for_all(mask: Tensor, *args: Any, **kwargs: Any) -> Any:
        if mask.dim() == 4:
            mask = torch.ones((mask.shape[0], mask.shape[-1]), dtype=torch.long, device=mask.device)
        return build(mask, *args, **kwargs)

    build_for_all.accepts_masks = True  # type: ignore[attr-defined]
    base.build_alibi_tensor = build_for_all


class ModuleDecoder:
    """A model's own modules over the arena.

    Attributes:
        shape: what the arena keeps per token.
        vocabulary: number of logits.
        one_by_one: whether a text goes on one token at a time, because the model forgets its state where several tokens
            follow it (Mamba 1 of transformers 5.23).
    """

    one_by_one = False

    def __init__(self, model: PreTrainedModel, *, capacity: int) -> None:
        config = model.config
        self._model, self._base, self._output = model, model.base_model, model.get_output_embeddings()
        probed, hidden = _probe_layers(model)
        layers = [layer for layer, _ in probed if layer is not None]
        states = tuple(state for _, layer_states in probed for state in layer_states)
        self._layers: list[_Layer | _StateLayer] = []
        for index, (layer, layer_states) in enumerate(probed):
            position = sum(earlier is not None for earlier, _ in probed[:index])
            if layer is None:
                self._layers.append(_StateLayer(index, layer_states))
            elif layer_states:
                self._layers.append(_MixedLayer(position, layer, layer_states))
            else:
                self._layers.append(_Layer(position, layer))
        self._kinds = _attention_kinds(config) if layers else {}
        self._cache_name = _cache_argument(self._base)
        _accept_masks(self._base)
        self._is_eager = getattr(config, "_attn_implementation", None) == "eager"
        self._scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        self._cap = getattr(config, "final_logit_softcapping", None)
        heads, head = 1, max((layer.width for layer in layers), default=1)
        if len(set(layers)) == 1 and layers[0].key_heads * layers[0].key_head == head:
            heads, head = layers[0].key_heads, layers[0].key_head
        self.shape = Shape(len(layers), heads, head, hidden, states)
        self.vocabulary = int(self._output.weight.shape[0])
        model.eval()

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> None:
        """Computes the new tokens `ids [N]` of a plan; keys, values and last hidden states go to the arena."""
        for group in plan.groups:
            if not self.shape.states:
                self._forward(ids[group.first : group.last], group, arena)
                continue
            for part, tokens in _split_by_count(group, one_by_one=self.one_by_one):  # padding must not enter a state
                index = torch.from_numpy(tokens + group.first).to(ids.device)
                self._forward(ids.index_select(0, index), part, arena)

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
            if isinstance(layer, _Layer):
                layer.target(arena, rows, slots, real, group.keys)
            if isinstance(layer, _StateLayer):
                layer.load_states(arena, rows)
        masks = {
            kind: self._convert_mask(_attention_mask(kind, size, positions, group.keys), arena.cache.dtype)
            for kind, size in self._kinds.items()
        }
        arguments: dict[str, Any] = {self._cache_name: _ArenaCache(layers=self._layers)}
        if masks:
            arguments["position_ids"] = positions
            arguments["attention_mask"] = masks if len(masks) > 1 else next(iter(masks.values()))
        out = self._base(input_ids=padded.view(n, -1), use_cache=True, **arguments)
        for layer in self._layers:
            if isinstance(layer, _StateLayer):
                layer.store_states(arena, rows)
        hidden = out.last_hidden_state.flatten(0, 1)[real]
        arena.hidden.flatten(0, 1).index_copy_(0, slots, hidden)

    def _convert_mask(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Converts a mask `[n, 1, q, L]` of booleans to addends where the model's attention adds it."""
        if not self._is_eager:
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


# Kinds of layers with a mask of their own. "hybrid" and "attention" attend to all positions, the others to none.
_MASKED_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_UNMASKED_KINDS = frozenset({"linear_attention", "conv", "mamba", "mlp", "moe", "recurrent"})


def _cache_argument(base: Any) -> str:
    """Returns the name under which a model takes its cache."""
    names = inspect.signature(base.forward).parameters
    return "cache_params" if "cache_params" in names and "past_key_values" not in names else "past_key_values"


def _split_by_count(group: Group, *, one_by_one: bool) -> Iterator[tuple[Group, NDArray[np.int64]]]:
    """Splits a group into groups without padding; yields each with the places of its tokens in the group's.

    Args:
        one_by_one: whether rows that go on are fed one token at a time.
    """
    count = group.last - group.first
    row_of_token = np.arange(count) // group.queries if group.real is None else group.real // group.queries
    counts = np.bincount(row_of_token, minlength=len(group.rows))
    firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    goes_on = group.positions[:, 0] > 0
    for width in np.unique(counts).tolist():
        for is_later in (False, True):
            members = np.flatnonzero((counts == width) & (goes_on == is_later))
            if not len(members):
                continue
            step = 1 if one_by_one and is_later else width
            for first in range(0, width, step):
                positions = group.positions[members, first : first + step]
                tokens = (firsts[members, None] + np.arange(first, first + step)).ravel()
                yield Group(group.rows[members], step, group.keys, 0, len(tokens), positions), tokens


def _attention_kinds(config: Any) -> dict[str, int | None]:
    """Returns the kinds of a model's attention layers, each with its window or chunk in tokens."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None) or (["sliding_attention"] if window else ["full_attention"])
    kinds = [kind if kind in _MASKED_KINDS else "full_attention" for kind in kinds if kind not in _UNMASKED_KINDS]
    sizes = {"sliding_attention": window, "chunked_attention": getattr(config, "attention_chunk_size", None)}
    return {str(kind): sizes.get(str(kind)) for kind in dict.fromkeys(kinds)}


def _attention_mask(kind: str, size: int | None, positions: Tensor, keys: int) -> Tensor:
    """Returns which positions each query attends to, `[n, 1, q, L]`.

    Args:
        positions: `[n, q]` depths of the queries.
        keys: L.
    """
    queries, key_positions = positions.unsqueeze(-1), torch.arange(keys, device=positions.device)
    mask = key_positions <= queries
    if size is not None and kind == "sliding_attention":
        mask &= queries - key_positions < size
    if size is not None and kind == "chunked_attention":
        mask &= torch.div(key_positions, size, rounding_mode="floor") == torch.div(queries, size, rounding_mode="floor")
    return mask.unsqueeze(1)


def _probe_layers(model: Any) -> tuple[list[tuple[_LayerShape | None, tuple[StateShape, ...]]], int]:
    """Runs two tokens through a model to see what its layers cache.

    Returns:
        For each layer of the cache its keys and values, where it has some, and its states; and the width of hidden
        states.
    Raises:
        EngineError: a layer caches something else.
    """
    device = next(model.parameters()).device
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        ids = torch.zeros((1, 2), dtype=torch.long, device=device)
        arguments = {_cache_argument(model.base_model): cache}
        hidden = model.base_model(input_ids=ids, use_cache=True, **arguments).last_hidden_state
    probed = []
    for index, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        shape = None
        if keys is not None and values is not None and keys.dim() == 4 and keys.numel():
            shape = _LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3])
        states = []
        for kind in ("conv", "recurrent"):
            for number, state in (getattr(layer, f"{kind}_states", None) or {}).items():
                if state is not None:
                    states.append(StateShape(index, kind, number, tuple(state.shape[1:]), state.dtype))
        if shape is None and not states and isinstance(layer, LinearAttentionLayer):
            raise EngineError("a layer keeps its state outside of the cache", value=type(layer).__name__)
        probed.append((shape, tuple(states)))
    if not any(shape is not None or states for shape, states in probed):
        raise EngineError("the model keeps its state outside of its cache", value=model.config.model_type)
    return probed, int(hidden.shape[-1])


log = logging.getLogger(__name__)
_CHECKED_TOKENS = 31
_TOLERANCE = 1e-4  # of the largest logit, at least 1, in float32
_ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 5e-2}  # root mean square of the differences over that of the logits


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


def _has_window(config: Any, capacity: int) -> bool:
    """Returns whether some layer does not attend to all positions of a text."""
    return any(size is not None and size < capacity for size in _attention_kinds(config).values())


def decoder_for(model: PreTrainedModel, *, capacity: int) -> Decoder:
    """Returns the fastest decoder that computes the model's outputs; adapter changes are merged into its weights.

    Raises:
        ConfigError: no decoder over an arena can; says why. Virtual tokens of an adapter are one reason.
    """
    config, plain = model.config, plain_model(model)
    reason = arena_obstacle(config, capacity=capacity)
    if reason is None:
        has_states = bool(set(getattr(config, "layer_types", None) or ()) & _UNMASKED_KINDS)
        fused_reason = (
            "layers with states"
            if has_states
            else "a window"
            if _has_window(config, capacity)
            else fused_obstacle(config)
        )
        dtype = next(model.parameters()).dtype
        tolerance = _ROUNDING.get(dtype, _TOLERANCE)
        reference = plain if dtype in _ROUNDING else model  # merging an adapter into short numbers rounds them too
        makers: tuple[type[FusedDecoder] | type[ModuleDecoder], ...] = (FusedDecoder, ModuleDecoder)
        for maker in makers[1 if fused_reason else 0 :]:
            try:
                with boundary(EngineError, f"{maker.__name__} cannot run it"):
                    decoder = maker(plain, capacity=capacity)
                    difference = _measure_difference(decoder, reference)
                    if isinstance(decoder, ModuleDecoder) and decoder.shape.states and difference > tolerance:
                        decoder.one_by_one = True
                        difference = _measure_difference(decoder, reference)
            except EngineError as problem:
                reason = str(problem)
                continue
            if difference <= tolerance:
                log.info(
                    "%s runs with %s%s", config.model_type, maker.__name__, f" ({fused_reason})" if fused_reason else ""
                )
                if isinstance(decoder, FusedDecoder) and decoder.is_packed:
                    release_pages(model.parameters())
                return decoder
            reason = f"{maker.__name__} differs from it by {difference:.2g}"
    raise ConfigError(
        f"a {config.model_type} model cannot share prefixes",
        value=reason,
        expected="layers that keep keys and values, RoPE independent of length",
        hint="use RecomputeEngine",
    )


def _measure_difference(decoder: Decoder, model: PreTrainedModel) -> float:
    """Returns the difference of the logits on a random text.

    In float32 it is the largest difference, relative to the largest logit (at least 1). Shorter numbers round, and
    single logits of a large model differ by a tenth of the largest: there it is the root mean square of the differences
    over that of the logits. For SmolLM2 in bfloat16 it is 0.02; with two layers swapped, or positions counted wrongly
    from the tenth on, it is 0.12.
    """
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
    if weight.dtype in _ROUNDING:
        return float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-6))
    return float((logits - expected).abs().max()) / max(1.0, float(expected.abs().max()))
