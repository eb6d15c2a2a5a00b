"""Distribution of a model over ranks: the one order in which pipeline, TP, recomputation and shards fit together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, Problem
from evolvent.learn.forward import compute_outputs
from evolvent.learn.objectives import Need, Outputs
from evolvent.learn.parallel.ranks import Mesh, Parallelism, Ranks
from evolvent.learn.parallel.stages import Pipeline, check_pipeline, split_into_stages
from evolvent.learn.token_sequences import Batch
from evolvent.models.cpu_layers import release_heap
from evolvent.models.defaults import MIN_PRETRAINED

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = [
    "DistributedModel",
    "apply_compile",
    "apply_fsdp",
    "apply_recompute",
    "average_gradients",
    "check_layout",
    "check_world_size",
    "distribute_model",
    "list_layers",
]


def list_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Lists the decoder layers of a Hugging Face causal LM, also below an adapter; for a stage, only its own."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return [layer for layer in base.get_decoder().layers if hasattr(layer, "self_attn")]


def apply_recompute(model: PreTrainedModel) -> None:
    """Keeps the inputs of layers only; backward computes the rest again (activation checkpointing, non-reentrant)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


def apply_compile(layers: Sequence[nn.Module]) -> None:
    """Compiles every layer in place; names of parameters stay."""
    for layer in layers:
        layer.compile()


def apply_fsdp(root: nn.Module, layers: Sequence[nn.Module], ranks: Ranks, *, dtype: torch.dtype) -> None:
    """Applies FSDP2 to every layer, then to the remainder of `root`, whose forward is the one that is called.

    With `replicate` > 1 the shards are replicated (HSDP). Weights and gradients' sums stay as they are; a forward in
    bfloat16 gathers weights in bfloat16 and sums gradients in float32. In a pipeline weights stay gathered between
    micro-batches.
    """
    if ranks.devices is None:
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # Nobody changes a layer's output in place, which is what it warns of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
    mesh = ranks.devices["replicate", "shard"] if ranks.mesh.replicate > 1 else ranks.devices["shard"]
    low_precision = dtype if dtype != torch.float32 else None
    policy = MixedPrecisionPolicy(param_dtype=low_precision, reduce_dtype=torch.float32 if low_precision else None)
    reshard = ranks.mesh.pp == 1
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=policy)


@torch.no_grad()
def average_gradients(weights: Iterable[Tensor], ranks: Ranks) -> None:
    """Computes the average of gradients over the data ranks, in place and in float32: the same bits on all of them.

    A weight without a gradient on some ranks counts as 0 there; without one on all of them it stays without.

    Args:
        weights: plain tensors, the same on every rank in the same order.
    """
    trained = [weight for weight in weights if weight.requires_grad]
    has_gradient = torch.tensor([weight.grad is not None for weight in trained], dtype=torch.int64)
    counts = ranks.sum(has_gradient.to(ranks.device), "dp").tolist()
    counted = [weight for weight, count in zip(trained, counts, strict=True) if count]
    for bucket in _iterate_buckets(counted):
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
        flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
        means = torch.split(ranks.sum(flat, "dp").div_(ranks.mesh.dp), [weight.numel() for weight in bucket])
        for weight, gradient, mean in zip(bucket, gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))
            weight.grad = gradient


def _iterate_buckets(weights: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Splits weights into neighbors of at most `_BUCKET_NUMBERS` numbers together; a larger one is alone."""
    bucket, size = list[Tensor](), 0
    for weight in weights:
        if bucket and size + weight.numel() > _BUCKET_NUMBERS:
            yield bucket
            bucket, size = [], 0
        bucket.append(weight)
        size += weight.numel()
    if bucket:
        yield bucket


Loss = Callable[[Outputs, Batch], Tensor]
_BUCKET_NUMBERS = 1 << 23  # 32 MiB in float32: few exchanges for adapters, and little memory for whole models


class DistributedModel:
    """A model on its ranks, with one interface for the Learner whatever the layout.

    Attributes:
        ranks: this process among the ranks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        ranks: Ranks,
        *,
        pipeline: Pipeline | None,
        compute: Callable[..., Outputs],
        is_copied: bool = False,
    ) -> None:
        self.ranks, self._model, self._pipeline, self._compute = ranks, model, pipeline, compute
        self._is_copied = is_copied

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Returns this rank's parameters, under their names in the whole model; sharded ones are DTensors."""
        yield from self._model.named_parameters() if self._pipeline is None else self._pipeline.named_parameters()

    def is_counted(self, name: str) -> bool:
        """Returns whether a parameter counts for norms here: the second copy of a tied one does not."""
        return self._pipeline is None or self._pipeline.is_counted(name)

    def whole_name(self, name: str) -> str:
        """Returns a parameter's name in the whole model; a tied one has that of the embedding alone."""
        return name if self.is_counted(name) else name.replace("lm_head.", "model.embed_tokens.")

    def backward(self, batches: Sequence[Batch], loss: Loss, needs: Collection[Need]) -> Tensor:
        """Runs forward and backward of all micro-batches; returns the sum of the losses, 0 where this rank does not
        compute it.
        """
        if self._pipeline is not None:
            return self._pipeline.backward(batches, loss, needs)
        total, is_on_cpu = torch.zeros((), device=self.ranks.device), self.ranks.device.type == "cpu"
        num_weights = sum(weight.numel() for weight in self._model.parameters()) if is_on_cpu else 0
        for batch in batches:
            scaled_loss = loss(self._compute(self._model, batch, needs=needs), batch)
            torch.autograd.backward(scaled_loss)
            total += scaled_loss.detach()
            del scaled_loss
            if num_weights >= MIN_PRETRAINED:
                release_heap(num_weights)  # batches of other lengths leave other gaps in the heap, which would add up
        return total

    def reduce(self) -> None:
        """Sums gradients after backward: those of a tied weight on two stages, and those of copies."""
        if self._pipeline is not None:
            self._pipeline.reduce()
        elif self._is_copied:
            average_gradients(self._model.parameters(), self.ranks)


def distribute_model(
    model: PreTrainedModel,
    parallelism: Parallelism,
    ranks: Ranks,
    *,
    dtype: torch.dtype,
    temperature: float = 1.0,
    fuses: bool = False,
) -> DistributedModel:
    """Distributes a Hugging Face causal LM over ranks, in place; build the optimizer afterwards.

    Every rank brings the same whole model (weights may be on the meta device until they are filled). Copies alone
    (`Mesh.copies_weights`) leave it as it is.

    Args:
        temperature: of the distributions that the objective reads.
        fuses: whether the optimizer takes its steps inside the backward pass.
    Raises:
        ConfigError: a model without a plan, or one that does not divide.
    """
    compute = partial(compute_outputs, dtype=dtype, ranks=ranks, temperature=temperature)
    if parallelism.recompute:
        apply_recompute(model)
    chunks = (
        split_into_stages(model, ranks, parallelism.schedule, compute=compute, dtype=dtype)
        if ranks.mesh.pp > 1
        else [model]
    )
    if ranks.mesh.pp > 1:
        _free_weights(model, {id(weight) for chunk in chunks for weight in chunk.parameters()})
    for chunk in chunks:
        inner = chunk.model if ranks.mesh.pp > 1 else chunk
        if ranks.mesh.tp > 1:
            from evolvent.learn.parallel.tensor_parallel import apply_tp

            apply_tp(inner, ranks, sequence=parallelism.sequence)
        if parallelism.compile:
            apply_compile(list_layers(inner))
        if ranks.mesh.uses_fsdp(fuses=fuses):
            head = getattr(inner, "value_head", None)  # float32, whatever the rest is: a unit of its own
            apply_fsdp(chunk, [*list_layers(inner), *([] if head is None else [head])], ranks, dtype=dtype)
    pipeline = Pipeline(chunks, ranks, parallelism.schedule) if ranks.mesh.pp > 1 else None
    is_copied = ranks.mesh.copies_weights(fuses=fuses)
    return DistributedModel(model, ranks, pipeline=pipeline, compute=compute, is_copied=is_copied)


def _free_weights(model: nn.Module, kept_ids: set[int]) -> None:
    """Frees the memory of weights that other ranks own; their names and shapes stay."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) not in kept_ids:
                setattr(module, name, nn.Parameter(weight.to("meta"), weight.requires_grad))


def check_layout(
    config: PreTrainedConfig, parallelism: Parallelism, *, world: int, adapter: str = "none", command: str = "train ..."
) -> None:
    """Refuses impossible layouts, before a model is built.

    Args:
        config: the model's.
        adapter: the kind of adapter that is trained.
        command: the arguments that start this training.
    Raises:
        ConfigError: lists all problems, with the nearest possible layout of `world` ranks.
    """
    problems = [*_layout_problems(config, parallelism, world, command), *_adapter_problems(parallelism, adapter)]
    if problems:
        raise ConfigError([*problems, *_suggest_layout(config, parallelism, world)])


def check_world_size(mesh: Mesh, *, world: int, command: str) -> list[Problem]:
    """Returns the problem of a layout for another number of processes than there are; none where they agree.

    Args:
        world: processes that there are.
        command: the arguments that start this training.
    """
    if mesh.size == world:
        return []
    message = f"{mesh} needs {mesh.size} processes, {world} {'is' if world == 1 else 'are'} there"
    launch = f"torchrun --nproc-per-node {mesh.size} -m evolvent {command}"
    return [Problem("parallel", message, f"start it with: {launch}" if world == 1 else "change one of them")]


def _layout_problems(
    config: PreTrainedConfig, parallelism: Parallelism, world: int, command: str = "train ..."
) -> list[Problem]:
    mesh, problems = parallelism.mesh, []
    if mesh.size == 1 and world > 1:
        problems.append(
            Problem("parallel", f"missing layout for {world} processes", "set for example --parallel.shard 2")
        )
    else:
        problems += check_world_size(mesh, world=world, command=command)
    if mesh.tp > 1:
        from evolvent.learn.parallel.tensor_parallel import check_tp

        problems += check_tp(config, mesh.tp)
    if mesh.pp > 1:
        problems += check_pipeline(config, mesh.pp, parallelism.schedule)
    return problems


def _adapter_problems(parallelism: Parallelism, adapter: str) -> list[Problem]:
    """Returns the problems of an adapter's own forward with this layout."""
    problems, virtual = [], adapter in ("prefix", "prompt")
    if adapter == "prefix" and parallelism.recompute:
        message = "prefix tuning cannot be recomputed: a recomputed layer has no cache to hold the prefix"
        problems.append(Problem("parallel.recompute", message, "leave it out, or set the tuning to lora or prompt"))
    for dim, is_unsupported in (("tp", adapter in ("dora", "ia3") or virtual), ("pp", virtual)):
        if is_unsupported and getattr(parallelism, dim) > 1:
            message = f"{adapter} cannot be combined with {dim}"
            problems.append(Problem(f"parallel.{dim}", message, "use shard or replicate, or set the tuning to lora"))
    return problems


def _suggest_layout(config: PreTrainedConfig, parallelism: Parallelism, world: int) -> list[Problem]:
    """Returns the possible layout of as many ranks that differs least, as a hint."""
    size = parallelism.mesh.size if world == 1 else world
    requested_mesh = parallelism.mesh
    if requested_mesh.size == 1:
        return []
    possible = []
    for mesh in _iterate_meshes(size):
        candidate = parallelism.model_copy(
            update={"pp": mesh.pp, "replicate": mesh.replicate, "shard": mesh.shard, "tp": mesh.tp}
        )
        if not _layout_problems(config, candidate, size):
            possible.append(mesh)
    if not possible:
        return []

    def measure_distance(mesh: Mesh) -> tuple[int, int]:
        pairs = (
            (mesh.pp, requested_mesh.pp),
            (mesh.replicate, requested_mesh.replicate),
            (mesh.shard, requested_mesh.shard),
            (mesh.tp, requested_mesh.tp),
        )
        return sum(possible_size != requested_size for possible_size, requested_size in pairs), sum(
            abs(possible_size - requested_size) for possible_size, requested_size in pairs
        )

    best = min(possible, key=measure_distance)
    return (
        [] if best == requested_mesh else [Problem("parallel", f"the nearest possible layout of {size} is {best}", "")]
    )


def _iterate_meshes(size: int) -> Iterator[Mesh]:
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    for pp in divisors:
        for replicate in (d for d in divisors if size % (pp * d) == 0):
            for part in (d for d in divisors if size % (pp * replicate * d) == 0):
                yield Mesh(pp, replicate, part, size // (pp * replicate * part))
