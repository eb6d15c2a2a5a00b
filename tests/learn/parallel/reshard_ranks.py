"""What the ranks of `test_reshard.py` do: lay one small model and its AdamW over a mesh, save it, and load others'.

The model has what layouts find hard: rows that do not divide, fewer rows than ranks, a vector, a scalar state, one
weight that both FSDP2 and tensor parallelism cut in the same dimension, and one that two pipeline stages share.
"""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from evolvent.errors import EvolventError
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.learn.parallel.ranks import Mesh, join_ranks

SHAPES = {
    "embed": (7, 3),  # cut in rows by tp
    "first.rows": (10, 4),  # the same
    "first.columns": (4, 9),  # cut in columns by tp
    "first.norm": (5,),
    "second.one": (1, 3),  # fewer rows than ranks
    "second.odd": (3, 2, 2),
}
TP = {"embed": 0, "first.rows": 0, "first.columns": 1}
LAYOUTS = {
    "one": Mesh(),
    "dp2": Mesh(shard=2),
    "tp2": Mesh(tp=2),
    "pp2": Mesh(pp=2),
    "replicate2": Mesh(replicate=2),
    "dp4": Mesh(shard=4),
    "dp2 tp2": Mesh(shard=2, tp=2),
    "replicate2 shard2": Mesh(replicate=2, shard=2),
    "replicate2 tp2": Mesh(replicate=2, tp=2),
    "pp2 dp2": Mesh(pp=2, shard=2),
}


def laid(ranks, scale):
    """(weights, optimizer state) as a rank of this mesh has them: values times `scale`, one AdamW step taken."""
    mine = [name for name in SHAPES if ranks.mesh.pp == 1 or name == "embed" or name[0] == "fs"[ranks.rank_along("pp")]]
    model = nn.Module()
    for name in mine:
        inner = model
        *path, last = name.split(".")
        for part in path:
            if part not in dict(inner.named_children()):
                inner.add_module(part, nn.Module())
            inner = inner.get_submodule(part)
        count = torch.Size(SHAPES[name]).numel()
        value = (torch.arange(count) + 100 * list(SHAPES).index(name) + 1.0).view(SHAPES[name]) * scale
        if ranks.mesh.tp > 1 and name in TP:
            value = distribute_tensor(value, ranks.devices["tp"], [Shard(TP[name])])
        inner.register_parameter(last, nn.Parameter(value))
    if ranks.mesh.dp > 1:
        mesh = ranks.devices["replicate", "shard"] if ranks.mesh.replicate > 1 else ranks.devices["shard"]
        for child in model.children():
            fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
    weights = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), lr=0.0 if scale == 0 else 0.01, foreach=False)
    for weight in weights.values():
        weight.grad = weight.detach() * 0.5
    optimizer.step()
    state = {f"{key}/{n}": v for n, w in weights.items() for key, v in optimizer.state[w].items()}
    return {name: weight.detach() for name, weight in weights.items()}, state


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def save(folders):
    """Save under every layout {(layout, wait): (folder, update)}: values times the update.

    Where `wait` is False all is set to 0 while a thread writes.
    """
    for (layout, wait), (folder, update) in folders.items():
        with join_ranks(LAYOUTS[layout]) as ranks:
            weights, state = laid(ranks, float(update))
            keeper = Checkpointer(Path(folder), ranks=ranks)
            handle = keeper.save(
                update, CheckpointContent({"model": weights, "optimizer": state}, {"update": update}), wait=wait
            )
            if not wait:
                for tensor in (*weights.values(), *state.values()):
                    local(tensor).zero_()
            handle.wait()


def load(layouts, folders):
    """Load each folder into each layout; what differs from a model that was laid out with the values."""
    wrong = {layout: [] for layout in layouts}
    for layout in layouts:
        with join_ranks(LAYOUTS[layout]) as ranks:
            weights, state = laid(ranks, 0.0)
            for folder in folders:
                found = Checkpointer(Path(folder), ranks=ranks).load(into={"model": weights, "optimizer": state})
                expected = laid(ranks, float(found.values["update"]))
                for got, right in zip((weights, state), expected, strict=True):
                    assert list(got) == list(right)
                    wrong[layout] += [
                        f"{folder}: {name}" for name in got if not torch.equal(local(got[name]), local(right[name]))
                    ]
    return wrong


def whole(layout, folder):
    """Every rank reads whole tensors, without any of its own."""
    with join_ranks(LAYOUTS[layout]) as ranks:
        found = Checkpointer(Path(folder), ranks=ranks).load(groups=("model",))
        return {name: tensor.tolist() for name, tensor in found.tensors["model"].items()}


# ---------------------------------------------------------------------- trouble


def told(function):
    """The kind and text of the error that it raises, or what it returns."""
    try:
        return function()
    except EvolventError as error:
        return f"{type(error).__name__}: {error}"


def damaged(folder):
    """What every rank says of a checkpoint that is damaged, and whether its own weights are as before."""
    with join_ranks(LAYOUTS["dp2"]) as ranks:
        weights, state = laid(ranks, 0.0)
        keeper = Checkpointer(Path(folder), ranks=ranks)
        said = told(lambda: keeper.load(into={"model": weights, "optimizer": state}))
        return said, not any(local(tensor).any() for tensor in weights.values())


def unequal(folder):
    """Rank 1 wants a moment that is not there; then both ranks have too few names; then weights alone do."""
    with join_ranks(LAYOUTS["dp2"]) as ranks:
        weights, state = laid(ranks, 0.0)
        keeper = Checkpointer(Path(folder), ranks=ranks)
        more = {**state, "hessian/embed": torch.zeros(7, 3)} if ranks.rank == 1 else state
        few = {name: tensor for name, tensor in weights.items() if name != "embed"}
        return [
            told(lambda: keeper.load(into={"model": weights, "optimizer": more})),
            told(lambda: keeper.load(into={"model": few})),
            told(lambda: sorted(keeper.load(into={"model": weights}).tensors)),
        ]


def silent(folder):
    """Rank 1 never saves: rank 0 gives up at its deadline. Then both save."""
    with join_ranks(LAYOUTS["dp2"]) as ranks:
        weights, _ = laid(ranks, 2.0)
        keeper = Checkpointer(Path(folder), ranks=ranks, timeout=1)
        said = told(lambda: keeper.save(2, CheckpointContent({"model": weights}))) if ranks.rank == 0 else ""
        there = sorted(path.name for path in Path(folder).iterdir())
        torch.distributed.barrier()
        keeper._saves = 1  # as if rank 1 had been there the first time
        keeper.save(3, CheckpointContent({"model": weights}))
        return said, there, keeper.find_newest().name


def full(folder, wait):
    """Rank 1's disk is full: it says so, and rank 0 need not wait for its deadline."""
    with join_ranks(LAYOUTS["dp2"]) as ranks:
        weights = {"w": DTensor.from_local(torch.ones(50_000), ranks.devices["shard"], [Shard(0)])}
        keeper = Checkpointer(Path(folder), ranks=ranks, timeout=100)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            if ranks.rank == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
            if wait:
                said = told(lambda: keeper.save(2, CheckpointContent({"model": weights})))
            else:
                keeper.save(2, CheckpointContent({"model": weights}), wait=False)
                said = told(lambda: keeper.save(3, CheckpointContent({"model": weights})))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        torch.distributed.barrier()
        return said, sorted(path.name for path in Path(folder).iterdir())


def refused():
    """Layouts that have no regions."""
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor.placement_types import _StridedShard

    from evolvent.models.pieces import region_of

    with join_ranks(LAYOUTS["dp2 tp2"]) as ranks:
        mesh = ranks.devices["shard", "tp"]
        placements = [[Partial(), Shard(0)], [_StridedShard(0, split_factor=2), Replicate()]]
        return [
            told(lambda p=p: region_of(DTensor.from_local(torch.ones(2, 2), mesh, p, run_check=False)))
            for p in placements
        ]
