"""Laying a model over ranks: the one order in which pipeline, tensor parallelism, recomputation and shards fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from evolvent.errors import ConfigError, Problem
from evolvent.learn.forward import outputs
from evolvent.learn.objectives import Need, Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.mesh import Mesh, Parallelism
from evolvent.learn.parallel.plan import check_tensor_parallel, tensor_parallel
from evolvent.learn.parallel.ranks import Ranks
from evolvent.learn.parallel.shard import compile_layers, layers_of, recompute_layers, shard
from evolvent.learn.parallel.stages import Pipeline, check_pipeline, cut

__all__ = ["Laid", "check_layout", "lay"]

Loss = Callable[[Outputs, Batch], Tensor]


class Laid:
    """A model on its ranks: what the Learner calls, whatever the layout.

    Attributes:
        ranks: where this process stands.
    """

    def __init__(self, model: Any, ranks: Ranks, *, pipeline: Pipeline | None, compute: Callable[..., Outputs]) -> None:
        self.ranks, self._model, self._pipeline, self._compute = ranks, model, pipeline, compute

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's parameters, under their names in the whole model; sharded ones are DTensors."""
        yield from self._model.named_parameters() if self._pipeline is None else self._pipeline.named_parameters()

    def counted(self, name: str) -> bool:
        """Whether a parameter counts for norms here: the second copy of a tied one does not."""
        return self._pipeline is None or self._pipeline.counted(name)

    def whole_name(self, name: str) -> str:
        """A parameter's name in the whole model, where a tied one has that of the embedding alone."""
        return name if self.counted(name) else name.replace("lm_head.", "model.embed_tokens.")

    def backward(self, batches: Sequence[Batch], loss: Loss, needs: Collection[Need]) -> Tensor:
        """Forward and backward of all micro-batches; the sum of the losses, 0 where this rank does not compute it."""
        if self._pipeline is not None:
            return self._pipeline.backward(batches, loss, needs)
        total = torch.zeros((), device=self.ranks.device)
        for batch in batches:
            amount = loss(self._compute(self._model, batch, needs=needs), batch)
            torch.autograd.backward(amount)
            total += amount.detach()
        return total

    def reduce(self) -> None:
        """After backward: what the copies of a tied weight on two stages have in common is summed."""
        if self._pipeline is not None:
            self._pipeline.reduce()


def lay(model: Any, parallelism: Parallelism, ranks: Ranks, *, dtype: torch.dtype, temperature: float = 1.0) -> Laid:
    """Lay a Hugging Face causal LM over ranks, in place; make the optimizer afterwards.

    Every rank brings the same whole model (weights may be on the meta device until they are filled).

    Args:
        temperature: of the distributions that the objective is told of.
    Raises:
        ConfigError: a model without a plan, or one that does not divide.
    """
    compute = partial(outputs, dtype=dtype, ranks=ranks, temperature=temperature)
    if parallelism.recompute:
        recompute_layers(model)
    chunks = cut(model, ranks, parallelism.schedule, compute=compute, dtype=dtype) if ranks.mesh.pp > 1 else [model]
    if ranks.mesh.pp > 1:
        _forget(model, {id(weight) for chunk in chunks for weight in chunk.parameters()})
    for chunk in chunks:
        inner = chunk.model if ranks.mesh.pp > 1 else chunk
        if ranks.mesh.tp > 1:
            tensor_parallel(inner, ranks, sequence=parallelism.sequence)
        if parallelism.compile:
            compile_layers(layers_of(inner))
        if ranks.mesh.dp > 1:
            head = getattr(inner, "value_head", None)  # float32, whatever the rest is: a unit of its own
            shard(chunk, [*layers_of(inner), *([] if head is None else [head])], ranks, dtype=dtype)
    pipeline = Pipeline(chunks, ranks, parallelism.schedule) if ranks.mesh.pp > 1 else None
    return Laid(model, ranks, pipeline=pipeline, compute=compute)


def _forget(model: nn.Module, own: set[int]) -> None:
    """Give up the memory of weights that other ranks own; their names and shapes stay."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) not in own:
                setattr(module, name, nn.Parameter(weight.to("meta"), weight.requires_grad))


def check_layout(
    config: Any, parallelism: Parallelism, *, world: int, adapter: str = "none", command: str = "train ..."
) -> None:
    """Refuse what is impossible, before a model is built.

    Args:
        config: the model's. adapter: the kind of what is tuned. command: the words that start this training.
    Raises:
        ConfigError: everything wrong at once, with the nearest layout of `world` ranks that is possible.
    """
    problems = [*_problems(config, parallelism, world, command), *_adapter_problems(parallelism, adapter)]
    if problems:
        raise ConfigError([*problems, *_nearest(config, parallelism, world)])


def _problems(config: Any, parallelism: Parallelism, world: int, command: str = "train ...") -> list[Problem]:
    mesh, problems = parallelism.mesh, []
    if mesh.size == 1 and world > 1:
        problems.append(Problem("parallel", f"no layout is given for {world} processes", "as --parallel.shard 2"))
    elif mesh.size != world:
        launch = f"torchrun --nproc-per-node {mesh.size} -m evolvent {command}"
        what = f"{mesh} needs {mesh.size} processes, {world} {'is' if world == 1 else 'are'} there"
        problems.append(Problem("parallel", what, f"start it with: {launch}" if world == 1 else "change one of them"))
    if mesh.tp > 1:
        problems += check_tensor_parallel(config, mesh.tp)
    if mesh.pp > 1:
        problems += check_pipeline(config, mesh.pp, parallelism.schedule)
    return problems


def _adapter_problems(parallelism: Parallelism, adapter: str) -> list[Problem]:
    """What an adapter's own forward does not go along with."""
    problems, virtual = [], adapter in ("prefix", "prompt")
    if adapter == "prefix" and parallelism.recompute:
        what = "prefix tuning cannot be recomputed: a recomputed layer has no cache to hold the prefix"
        problems.append(Problem("parallel.recompute", what, "leave it out, or tune with lora or prompt"))
    for dim, misfit in (("tp", adapter in ("dora", "ia3") or virtual), ("pp", virtual)):
        if misfit and getattr(parallelism, dim) > 1:
            what = f"{adapter} does not go with {dim}"
            problems.append(Problem(f"parallel.{dim}", what, "use shard or replicate, or tune with lora"))
    return problems


def _nearest(config: Any, parallelism: Parallelism, world: int) -> list[Problem]:
    """The possible layout of as many ranks that differs least, as a hint."""
    size = parallelism.mesh.size if world == 1 else world
    wanted = parallelism.mesh
    if wanted.size == 1:
        return []
    possible = []
    for mesh in _meshes(size):
        asked = parallelism.model_copy(
            update={"pp": mesh.pp, "replicate": mesh.replicate, "shard": mesh.shard, "tp": mesh.tp}
        )
        if not _problems(config, asked, size):
            possible.append(mesh)
    if not possible:
        return []

    def distance(mesh: Mesh) -> tuple[int, int]:
        pairs = (
            (mesh.pp, wanted.pp),
            (mesh.replicate, wanted.replicate),
            (mesh.shard, wanted.shard),
            (mesh.tp, wanted.tp),
        )
        return sum(one != other for one, other in pairs), sum(abs(one - other) for one, other in pairs)

    best = min(possible, key=distance)
    return [] if best == wanted else [Problem("parallel", f"the nearest possible layout of {size} is {best}", "")]


def _meshes(size: int) -> Iterator[Mesh]:
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    for pp in divisors:
        for replicate in (d for d in divisors if size % (pp * d) == 0):
            for part in (d for d in divisors if size % (pp * replicate * d) == 0):
                yield Mesh(pp, replicate, part, size // (pp * replicate * part))
