"""The choice of the forward that runs a model: fused weights, the model's own modules, or no prefix sharing.

The choice follows from a model's configuration, and is then verified: a short random text is fed in two pieces
and the logits are compared with the model's own. A decoder that fails this check is not used.

On a CPU, half of the time of a small model's step goes into Python and its modules. Steps of one new token a row are
therefore recorded as a graph of the same operations on the same numbers (`_StepGraph`).
"""

from __future__ import annotations

import inspect
import logging
import statistics
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

from evolvent.engine.arena import Arena, Shape, StateShape
from evolvent.engine.fused import FusedDecoder, fused_obstacle
from evolvent.engine.streams import Group, Plan, plan
from evolvent.errors import ConfigError, EngineError, boundary
from evolvent.models.cpu_layers import release_heap, release_pages
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


@dataclass(frozen=True, slots=True)
class _Place:
    """The positions of the tokens of a forward.

    Attributes:
        positions: `[n, q]` depths. rows: `[n]` rows of the arena. slots: `[N]` flat positions of the real tokens.
        key_positions: `[L]` 0 to L - 1, the positions that are looked at.
        real: `[N]` index of the real tokens among the padded ones; None: all are real.
    """

    positions: Tensor
    rows: Tensor
    slots: Tensor
    key_positions: Tensor
    real: Tensor | None = None


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: writes the new ones to the arena, reads each row's path from it.

    Keys and values of a token lie flat in the arena, so that layers may differ in their heads.
    """

    def __init__(self, index: int, shape: _LayerShape) -> None:
        super().__init__()
        self.is_initialized = True
        self._index, self._shape = index, shape
        self._cache: Tensor | None = None
        self._place: _Place | None = None

    def target(self, placement: _Place, cache: Tensor) -> None:
        """Sets which rows the next forward reads, and where it writes the real tokens.

        Args:
            cache: the arena's keys and values, `[layers, rows, capacity, 2, heads, head]`.
        """
        self._place, self._cache = placement, cache

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Stores new keys and values `[B, H, q, d]` and returns those of the whole paths `[B, H, L, d]`."""
        placement = self._place
        if self._cache is None or placement is None:
            raise LookupError("the arena layer was used before its slots were set")
        shape, cache = self._shape, self._cache[self._index].flatten(3)  # [rows, capacity, 2, width]
        positions = cache.flatten(0, 1)
        sizes = ((shape.key_heads, shape.key_head), (shape.value_heads, shape.value_head))
        for side, states in enumerate((key_states, value_states)):
            new = states.transpose(1, 2).flatten(2).flatten(0, 1)
            new = new if placement.real is None else new[placement.real]
            positions[:, side, : new.shape[-1]].index_copy_(0, placement.slots, new)
        path_states = cache[:, : placement.key_positions.shape[0]].index_select(0, placement.rows)
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

    def load_states(self, states: Mapping[StateShape, Tensor], rows: Tensor) -> None:
        """Sets the states of rows, before a forward."""
        for state in self._states:
            values = states[state].index_select(0, rows)
            self.has_previous_state[state.number] = True
            if state.kind == "conv":
                self.is_conv_states_initialized[state.number] = True
                self.conv_kernel_size[state.number] = values.shape[-1]
                self.conv_states[state.number] = values
            else:
                self.is_recurrent_states_initialized[state.number] = True
                self.recurrent_states[state.number] = values

    def store_states(self, states: Mapping[StateShape, Tensor], rows: Tensor) -> None:
        """Stores the states of rows, after a forward."""
        for state in self._states:
            layer_states = self.conv_states if state.kind == "conv" else self.recurrent_states
            states[state].index_copy_(0, rows, layer_states[state.number])

    def get_seq_length(self, *args: Any) -> int:
        return 0


class _MixedLayer(_Layer, _StateLayer):
    """A layer with both, side by side (Falcon-H1)."""

    def __init__(self, index: int, shape: _LayerShape, states: Sequence[StateShape]) -> None:
        _StateLayer.__init__(self, index, states)
        DynamicLayer.__init__(self)
        self.is_initialized = True
        self._index, self._shape = index, shape
        self._cache, self._place = None, None


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
        self._graph = _StepGraph(self._base, self._run_modules) if _is_on_cpu(model) else None
        heads, head = 1, max((layer.width for layer in layers), default=1)
        if len(set(layers)) == 1 and layers[0].key_heads * layers[0].key_head == head:
            heads, head = layers[0].key_heads, layers[0].key_head
        self.shape = Shape(len(layers), heads, head, hidden, states)
        self.vocabulary = int(self._output.weight.shape[0])
        model.eval()

    def forward(self, ids: Tensor, plan: Plan, arena: Arena) -> None:
        """Computes the new tokens `ids [N]` of a plan; keys, values and last hidden states go to the arena."""
        for group in plan.groups:
            if not self.shape.states or (group.queries == 1 and group.real is None and group.positions.min() > 0):
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
        slots, real, padded = (rows.unsqueeze(1) * arena.capacity + positions).flatten(), None, ids
        if group.pad is not None and group.real is not None:
            real = torch.from_numpy(group.real).to(device)
            slots, padded = slots[real], ids[torch.from_numpy(group.pad).to(device) - group.first]
        placement = _Place(positions, rows, slots, torch.arange(group.keys, device=device), real)
        tensors = _ArenaTensors(arena.cache, arena.hidden, arena.states)
        run = self._run_modules if self._graph is None or group.queries > 1 or real is not None else self._graph.run
        run(padded.view(n, -1), placement, tensors)

    def _run_modules(self, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> None:
        """Runs the modules; keys, values, states and the last hidden states go to the arena."""
        for layer in self._layers:
            if isinstance(layer, _Layer):
                layer.target(placement, tensors.cache)
            if isinstance(layer, _StateLayer):
                layer.load_states(tensors.states, placement.rows)
        masks = {
            kind: self._convert_mask(_attention_mask(kind, size, placement), tensors.cache.dtype)
            for kind, size in self._kinds.items()
        }
        arguments: dict[str, Any] = {self._cache_name: _ArenaCache(layers=self._layers)}
        if masks:
            arguments["position_ids"] = placement.positions
            arguments["attention_mask"] = masks if len(masks) > 1 else next(iter(masks.values()))
        out = self._base(input_ids=ids, use_cache=True, **arguments)
        for layer in self._layers:
            if isinstance(layer, _StateLayer):
                layer.store_states(tensors.states, placement.rows)
        hidden = out.last_hidden_state.flatten(0, 1)
        hidden = hidden if placement.real is None else hidden[placement.real]
        tensors.hidden.flatten(0, 1).index_copy_(0, placement.slots, hidden)

    def _convert_mask(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Converts a mask `[n, 1, q, L]` of booleans to addends where the model's attention adds it."""
        if not self._is_eager:
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True, slots=True)
class _ArenaTensors:
    """The tensors of an arena that a forward reads and writes."""

    cache: Tensor
    hidden: Tensor
    states: Mapping[StateShape, Tensor]


_RunStep = Callable[[Tensor, _Place, _ArenaTensors], None]
_STEPS_BEFORE_GRAPH = 8  # steps of a decoder before one is recorded: recording takes as long as twenty of them
_MAX_GRAPHS = 8
# Names of operations, or how they begin, whose numbers or sizes would be fixed in a graph if Python looked at them.
_READS_NUMBERS = ("_local_scalar", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique", "bincount")


@dataclass(slots=True)
class _Recording:
    """A recorded step of models of one shape.

    Attributes:
        graph: takes the tensors of a step, and weights.
        checked_sizes: numbers of rows, up to 8 each and then in powers of two, and powers of two of keys, at which it
            gave what the modules give.
        is_refused: whether the modules must run.
    """

    graph: Any = None
    checked_sizes: set[tuple[int, int, int]] = field(default_factory=set)
    is_refused: bool = False


class _StepGraph:
    """The modules' forward of one new token a row, recorded as a graph of tensor operations.

    Weights are inputs of the graph, so that it outlives updates and is found again by another decoder of such a model.
    It is compared with the modules at the first step of every size (`_Recording.checked_sizes`). Where a number differs
    in its last bit, where a size does not fit, or where the modules look at numbers in Python, the modules run.

    Args:
        base: the model without its head.
        run_modules: runs the modules.
    """

    _recordings: ClassVar[OrderedDict[object, _Recording]] = OrderedDict()  # the least recently used are dropped

    def __init__(self, base: Any, run_modules: _RunStep) -> None:
        self._base, self._run_modules, self._num_steps = base, run_modules, 0
        self._modules = list(base.modules())
        weights = {**dict(base.named_parameters()), **dict(base.named_buffers())}
        self._names, self._weights = list(weights), list(weights.values())
        shapes = tuple((name, tuple(weight.shape), weight.dtype) for name, weight in weights.items())
        self._key = (type(base), base.config.to_json_string(), shapes)

    def run(self, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> None:
        """Runs the graph, or the modules where there is none yet or it must not be used."""
        self._num_steps += 1
        recording = self._recordings.get(self._key)
        if recording is None and self._num_steps > _STEPS_BEFORE_GRAPH:
            recording = self._recordings[self._key] = _Recording()
            while len(self._recordings) > _MAX_GRAPHS:
                self._recordings.popitem(last=False)
        if recording is None or recording.is_refused or self._has_hooks():
            self._run_modules(ids, placement, tensors)
            return
        num_rows = len(placement.rows)
        size = (min(num_rows, 8), num_rows.bit_length(), len(placement.key_positions).bit_length())
        if size in recording.checked_sizes:
            try:
                self._run_graph(recording, ids, placement, tensors)
                return
            except RuntimeError as problem:  # a size that was taken for a constant; states are stored last
                log.warning("steps of a %s model are no longer replayed: %s", self._base.config.model_type, problem)
                recording.graph, recording.is_refused = None, True
                self._run_modules(ids, placement, tensors)
                return
        recording.checked_sizes.add(size)
        self._recordings.move_to_end(self._key)
        self._run_both(recording, ids, placement, tensors)

    def _has_hooks(self) -> bool:
        """Returns whether somebody watches the modules: a graph would run without their hooks."""
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._modules)

    def _run_graph(self, recording: _Recording, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> None:
        with cast(Any, torch.jit).optimized_execution(False):  # fused operations would round otherwise
            recording.graph(*self._flatten(ids, placement, tensors))

    def _flatten(self, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> tuple[Tensor, ...]:
        placement_tensors = (ids, placement.positions, placement.rows, placement.slots, placement.key_positions)
        return (*placement_tensors, tensors.cache, tensors.hidden, *tensors.states.values(), *self._weights)

    def _run_both(self, recording: _Recording, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> None:
        """Runs the graph, recorded first if needed, then the modules, whose numbers stay; compares them."""
        before, after = _read_rows(tensors, placement), list[Tensor]()
        try:
            with boundary(EngineError, "the modules cannot be recorded"):
                if recording.graph is None:
                    recording.graph = self._record(ids, placement, tensors)
                    _write_states(tensors, placement, before)
                self._run_graph(recording, ids, placement, tensors)
                after = _read_rows(tensors, placement)
        except EngineError as problem:
            log.info("steps of a %s model are not recorded: %s", self._base.config.model_type, problem)
            recording.is_refused = True
        _write_states(tensors, placement, before)
        self._run_modules(ids, placement, tensors)
        if not recording.is_refused and not all(map(torch.equal, after, _read_rows(tensors, placement))):
            log.info("steps of a %s model are not recorded: they differ in rounding", self._base.config.model_type)
            recording.is_refused = True
        if recording.is_refused:
            recording.graph = None

    def _record(self, ids: Tensor, placement: _Place, tensors: _ArenaTensors) -> Any:
        """Records a step.

        Raises:
            EngineError: the modules look at numbers in Python, which a graph would not see.
        """
        num_states = len(tensors.states)

        def step(*inputs: Tensor) -> Tensor:
            ids, positions, rows, slots, key_positions, cache, hidden, *other_inputs = inputs
            states = dict(zip(tensors.states, other_inputs, strict=False))
            weights = dict(zip(self._names, other_inputs[num_states:], strict=True))
            with torch.nn.utils.stateless._reparametrize_module(self._base, weights):
                self._run_modules(
                    ids, _Place(positions, rows, slots, key_positions), _ArenaTensors(cache, hidden, states)
                )
            return hidden

        inputs, before = self._flatten(ids, placement, tensors), _read_rows(tensors, placement)
        with _ReadNames() as reads, _OperationNames() as operations:
            step(*inputs)
        _write_states(tensors, placement, before)
        if names := sorted(reads.names | operations.names):
            raise EngineError("the modules look at numbers in Python", value=", ".join(names))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes in Python: every new size is compared with the modules
            return cast(Any, torch.jit).trace(step, inputs, check_trace=False)


class _OperationNames(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects operations inside the context whose result, or its size, depends on numbers that Python could read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        index_args = args[1] if name == "index" else args[1:]
        has_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in index_args)
        is_counted = name == "repeat_interleave" and (not index_args or isinstance(index_args[0], Tensor))
        if has_mask or is_counted or name.startswith(_READS_NUMBERS):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


class _ReadNames(TorchFunctionMode):
    """Collects calls inside the context that hand numbers to Python below the level of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("tolist", "numpy", "__array__"):
            self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def _read_rows(tensors: _ArenaTensors, placement: _Place) -> list[Tensor]:
    """Returns copies of the hidden states of a step, and of the states of its rows."""
    hidden = tensors.hidden.flatten(0, 1).index_select(0, placement.slots)
    return [hidden, *(values.index_select(0, placement.rows) for values in tensors.states.values())]


def _write_states(tensors: _ArenaTensors, placement: _Place, copies: Sequence[Tensor]) -> None:
    """Sets the states of a step's rows to those of `_read_rows`."""
    for values, copied in zip(tensors.states.values(), copies[1:], strict=True):
        values.index_copy_(0, placement.rows, copied)


def _is_on_cpu(model: PreTrainedModel) -> bool:
    return bool(next(model.parameters()).device.type == "cpu")


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


def _attention_mask(kind: str, size: int | None, placement: _Place) -> Tensor:
    """Returns which positions each query attends to, `[n, 1, q, L]`."""
    queries, key_positions = placement.positions.unsqueeze(-1), placement.key_positions
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
        is_copy = plain is not reference and plain is not model
        decoder: FusedDecoder | ModuleDecoder
        for maker in makers[1 if fused_reason else 0 :]:
            if plain is None:  # the decoder that failed took it apart
                plain = plain_model(model)
            try:
                with boundary(EngineError, f"{maker.__name__} cannot run it"):
                    if maker is FusedDecoder and is_copy:
                        merged, plain = plain, None
                        decoder = FusedDecoder(merged, capacity=capacity, drops_packed=True)
                        del merged
                    else:
                        decoder = maker(plain, capacity=capacity)
                    difference = _typical_difference(decoder, reference, tolerance=tolerance)
                    if isinstance(decoder, ModuleDecoder) and decoder.shape.states and difference > tolerance:
                        decoder.one_by_one = True
                        difference = _typical_difference(decoder, reference, tolerance=tolerance)
            except EngineError as problem:
                reason = str(problem)
                continue
            if difference <= tolerance:
                log.info(
                    "%s runs with %s%s", config.model_type, maker.__name__, f" ({fused_reason})" if fused_reason else ""
                )
                if isinstance(decoder, FusedDecoder) and decoder.is_packed:
                    release_pages(model.parameters())
                    del plain, reference  # of an adapter a merged copy, whose weights are packed now
                    release_heap(sum(weight.numel() for weight in model.parameters()))
                return decoder
            reason = f"{maker.__name__} differs from the model by {difference:.2g}"
            log.warning("%s: %s; a slower way is taken", config.model_type, reason)
    raise ConfigError(
        f"a {config.model_type} model cannot share prefixes",
        value=reason,
        expected="layers that keep keys and values, RoPE independent of length",
        hint="use RecomputeEngine",
    )


def _typical_difference(decoder: Decoder, model: PreTrainedModel, *, tolerance: float) -> float:
    """Returns the difference of the logits on a random text; in short numbers, where that is beyond the tolerance, the
    median over three texts.

    A text can lie where a model amplifies rounding: SmolLM2 in bfloat16, tuned until its loss was 0.0003, differed by
    0.0503 on one of eight texts and by 0.011 to 0.017 on the others. A decoder that is wrong differs on all of them.
    """
    difference = _measure_difference(decoder, model)
    if difference <= tolerance or next(model.parameters()).dtype not in _ROUNDING:
        return difference
    return statistics.median([difference, *(_measure_difference(decoder, model, seed=seed) for seed in (1, 2))])


def _measure_difference(decoder: Decoder, model: PreTrainedModel, *, seed: int = 0) -> float:
    """Returns the difference of the logits on a random text, which the seed draws.

    In float32 it is the largest difference, relative to the largest logit (at least 1). Shorter numbers round, and
    single logits of a large model differ by a tenth of the largest: there it is the root mean square of the differences
    over that of the logits. For SmolLM2 in bfloat16 it is 0.02; with two layers swapped, or positions counted wrongly
    from the tenth on, it is 0.12.
    """
    weight = next(model.parameters())
    rng = np.random.default_rng(seed)
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
