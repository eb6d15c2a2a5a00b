"""This process among the ranks of a training: its groups, and sums over them. One process needs no process group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from evolvent.errors import ConfigError, EvolventError, Problem, RankFailed
from evolvent.learn.parallel.mesh import Mesh

__all__ = ["ALONE", "Ranks", "ranks_of"]

_FAILED = "evolvent/failed"

Dim = Literal["pp", "replicate", "shard", "tp", "dp"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where this process stands.

    Attributes:
        mesh: the layout. device: of this process. devices: torch's mesh with dimensions pp, replicate, shard, tp, and
            dp, which is the product of replicate and shard; None in a single process.
    """

    mesh: Mesh
    device: torch.device
    devices: DeviceMesh | None = None

    def group(self, dim: Dim) -> dist.ProcessGroup | None:
        """The ranks along a dimension through this one; None in a single process."""
        return None if self.devices is None else self.devices.get_group(dim)

    def at(self, dim: Dim) -> int:
        """This rank's number along a dimension."""
        return 0 if self.devices is None else int(self.devices[dim].get_local_rank())

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return 0 if self.devices is None else dist.get_rank()

    @property
    def leads(self) -> bool:
        """Whether this is the one rank that writes and speaks for all."""
        return self.rank == 0

    def sum(self, value: Tensor, *dims: Dim) -> Tensor:
        """The sum over the ranks along dimensions, everywhere; in place."""
        for dim in dims:
            group = self.group(dim)
            if group is not None and group.size() > 1:
                dist.all_reduce(value, group=group)
        return value


ALONE = Ranks(Mesh(), torch.device("cpu"))


@contextmanager
def ranks_of(mesh: Mesh, *, device: str = "cpu", timeout: float = 600.0) -> Iterator[Ranks]:
    """Join the process group that torchrun describes in the environment, and leave it at the end.

    A group that is there already is used, and stays. One process needs none.

    Args:
        device: "cpu" or "cuda"; on CUDA each rank takes the device of its local number.
        timeout: seconds after which waiting for a silent rank ends.
    Raises:
        ConfigError: a mesh of several ranks in a process that torchrun did not start. RankFailed: another rank failed,
            died or was silent for too long. What failed first is raised as it is, in that rank only.
    """
    if mesh.size == 1:
        yield Ranks(mesh, torch.device(device))
        return
    owned = not dist.is_initialized()
    store = _join(mesh, device, timeout) if owned else None
    here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    try:
        sizes = (mesh.pp, mesh.replicate, mesh.shard, mesh.tp)
        devices = init_device_mesh(here.type, sizes, mesh_dim_names=("pp", "replicate", "shard", "tp"))
        devices["replicate", "shard"]._flatten("dp")
        yield Ranks(mesh, here, devices)
    except (EvolventError, RuntimeError) as error:
        if store is None or not _lost(error):
            _claim(store, f"rank {dist.get_rank()}: {error}")
            raise
        told = _claim(store, f"rank {dist.get_rank()} lost another rank: {error}")
        what = "another rank failed" if told else "a rank died, or was silent for too long"
        raise RankFailed(what, value=told or str(error), hint="look at its output; resume when it is mended") from error
    finally:
        if owned:
            dist.destroy_process_group()


def _join(mesh: Mesh, device: str, timeout: float) -> Any:
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        launch = f"torchrun --nproc-per-node {mesh.size} -m evolvent ..."
        raise ConfigError([Problem("parallel", f"{mesh} needs {mesh.size} processes", f"start it with: {launch}")])
    limit = timedelta(seconds=timeout)
    store, rank, world = next(iter(rendezvous("env://", timeout=limit)))
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
    return store


def _lost(error: Exception) -> bool:
    """Whether an error says that another rank is gone or silent."""
    words = ("gloo", "nccl", "connection closed", "timed out", "connection reset")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def _claim(store: Any, text: str) -> str | None:
    """Tell the ranks what failed first; returns what another rank told before, or None."""
    if store is None:
        return None
    try:
        found = store.compare_set(_FAILED, "", text).decode()
    except RuntimeError:  # the store went away with the rank that held it
        return None
    return None if found == text else found
