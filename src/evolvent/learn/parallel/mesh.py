"""The shape of a layout: number of ranks in each direction.

Nothing here needs torch's process groups: impossible layouts are refused before a model is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from evolvent.config import Config

__all__ = ["Mesh", "Parallelism", "Schedule"]

Schedule = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "zbv"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in each direction: `pp` pipeline stages, `replicate` copies, `shard` parts of every weight, `tp` parts of
    every matrix product. Size 1 everywhere is one plain process."""

    pp: int = 1
    replicate: int = 1
    shard: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return self.pp * self.replicate * self.shard * self.tp

    @property
    def dp(self) -> int:
        """Returns the number of shares that the data is split into."""
        return self.replicate * self.shard

    def __str__(self) -> str:
        sizes = [("pp", self.pp), ("replicate", self.replicate), ("shard", self.shard), ("tp", self.tp)]
        return " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one process"


class Parallelism(Config):
    """Distribution of one model over processes. The default is one plain process."""

    pp: int = Field(default=1, ge=1, description="pipeline stages")
    replicate: int = Field(default=1, ge=1, description="whole copies that share the data")
    shard: int = Field(default=1, ge=1, description="ranks that share the data and hold a part of every weight (FSDP)")
    tp: int = Field(default=1, ge=1, description="ranks that share every matrix product")
    schedule: Schedule = Field(default="1f1b", description="order of forwards and backwards in a pipeline")
    sequence: bool = Field(default=True, description="with tp: share norms and residuals along the sequence too")
    recompute: bool = Field(default=False, description="keep the inputs of layers only and compute the rest again")
    compile: bool = Field(default=False, description="torch.compile on every layer")
    timeout: float = Field(default=600.0, gt=0, description="seconds after which a silent rank ends the training")

    @property
    def mesh(self) -> Mesh:
        """Returns the four sizes."""
        return Mesh(self.pp, self.replicate, self.shard, self.tp)
