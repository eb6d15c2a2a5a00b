"""Settings of a training: its length and rate, its optimizer, its ranks and its files. They need no torch.

The command line checks settings before it loads the modules that learn, so that a mistake is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from evolvent.config import Config

__all__ = [
    "RL_OPTIMIZER",
    "RL_TRAIN",
    "CheckpointConfig",
    "Clipping",
    "Mesh",
    "Offload",
    "OptimizerConfig",
    "Parallelism",
    "Schedule",
    "TrainConfig",
]

Beta = Annotated[float, Field(ge=0, lt=1)]
Offload = Literal["optimizer", "reference", "both"]
"""What waits in main memory while a device trains: states of the optimizer, the reference of RL, or both."""


class TrainConfig(Config):
    """Settings of a training. Its length is `max_steps`, else `tokens`, else `epochs`: the first of them that is
    set.
    """

    lr: float = Field(default=4e-3, gt=0, description="peak learning rate of AdamW")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.98), description="decay of AdamW's two moments")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled decay of matrices; vectors have none")
    warmup_steps: int = Field(default=50, ge=0, description="updates of linear warm-up")
    final_lr_ratio: float = Field(
        default=0.1, ge=0, le=1, description="share of the peak that the linear decay ends at"
    )
    max_grad_norm: float | None = Field(
        default=1.0, gt=0, description="largest global norm of the gradient; none: no clipping"
    )
    batch_tokens: int = Field(default=768, ge=1, description="most tokens of an update, padding included")
    max_tokens_per_forward: int | None = Field(
        default=None, ge=1, description="most tokens of one forward; none: the whole update"
    )
    epochs: int = Field(default=10, ge=1, description="passes through the data")
    tokens: int | None = Field(
        default=None, ge=1, description="stop after this many learned tokens, instead of by epochs"
    )
    max_steps: int | None = Field(
        default=None, ge=1, description="stop after this many updates, instead of by tokens or epochs"
    )
    layout: Literal["auto", "bucketed", "packed", "shared"] = Field(
        default="auto",
        description="padded rows of like length, packed rows, or rows that share what sequences begin with; auto: "
        "shared where a policy practises on a CPU, else padded",
    )
    dtype: Literal["float32", "bfloat16", "bfloat16_weights"] = Field(
        default="float32", description="of the forward; weights stay float32, unless they are named too"
    )
    max_nonfinite_steps: int = Field(
        default=5, ge=1, description="updates in a row that may be not finite before training stops"
    )
    # Not in the repr, and so in no digest: a run goes on with or without it.
    offload: Offload | None = Field(
        default=None,
        repr=False,
        description="what a device leaves in main memory: states of the optimizer, the reference of RL, or both",
    )

    @property
    def offloads_optimizer(self) -> bool:
        """Returns whether the states of the optimizer are in main memory."""
        return self.offload in ("optimizer", "both")

    @property
    def offloads_reference(self) -> bool:
        """Returns whether the reference policy is in main memory while it scores nothing."""
        return self.offload in ("reference", "both")

    @property
    def max_forward_tokens(self) -> int:
        """Returns the token limit of one forward pass, padding included."""
        return self.max_tokens_per_forward or self.batch_tokens

    def learning_rate(self, update: int, progress: float) -> float:
        """Returns the learning rate of an update (from 0) after `progress` of the training: warm-up times linear
        decay.
        """
        warmup_factor = min(1.0, (update + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return self.lr * warmup_factor * (1.0 - (1.0 - self.final_lr_ratio) * min(1.0, progress))


RL_TRAIN = TrainConfig(
    lr=5e-4, final_lr_ratio=0.1, warmup_steps=0, weight_decay=0.0, max_grad_norm=0.5, batch_tokens=4096
)
"""Settings of the updates of reinforcement learning for small models, in Python and on the command line."""


Clipping = Literal["norm", "value", "two_pass", "none"]


class OptimizerConfig(Config):
    """Settings of the optimizer. A setting of None has the default that the optimizer was published with."""

    name: str = Field(default="adamw", description="adamw, lion, adan, sophiag, lomo, adalomo, sgd, adafactor, ...")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], ...] | None = Field(default=None, description="decay rates")
    eps: float | None = Field(default=None, gt=0, description="added to denominators")
    momentum: float | None = Field(default=None, ge=0, lt=1, description="of sgd and its kin")
    fused: bool = Field(default=True, description="lomo, adalomo: update inside the backward, without gradients")
    clip: Clipping | None = Field(
        default=None, description="what train.clip limits; none: the norm (fused lomo: in two passes; adalomo: nothing)"
    )
    rho: float | None = Field(default=None, gt=0, description="of sophiag: the larger, the fewer steps are clipped")
    hessian_every: int | None = Field(default=None, ge=1, description="of sophiag: updates from curvature to curvature")

    @property
    def fuses(self) -> bool:
        """Returns whether weights change inside the backward."""
        return self.fused and self.name in ("lomo", "adalomo")

    @property
    def clipping(self) -> Clipping:
        """Returns how gradients are clipped; one setting clips alike fused or not."""
        if self.clip in ("value", "none") or (self.clip is None and self.name == "adalomo"):
            return self.clip or "none"
        return "two_pass" if self.fuses else "norm"


RL_OPTIMIZER = OptimizerConfig(eps=1e-5)
"""The optimizer of reinforcement learning for small models: AdamW with the epsilon of published PPO and POAD code.

A policy that has become nearly certain has gradients near 0. With 1e-8, AdamW makes full steps of what is left, which
is noise, and the policy falls apart (docs/papers/poad.md).
"""


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

    def copies_weights(self, *, fuses: bool) -> bool:
        """Returns whether every rank trains a plain copy of all weights, and gradients alone are exchanged.

        Args:
            fuses: whether the optimizer changes weights inside the backward pass, before a sum after it could be taken.
        """
        return self.replicate == self.size > 1 and not fuses

    def uses_fsdp(self, *, fuses: bool) -> bool:
        """Returns whether FSDP2 holds the weights: the data are split, and ranks have more than plain copies."""
        return self.dp > 1 and not self.copies_weights(fuses=fuses)

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

    def over(self, num_ranks: int, *, copies: bool = False) -> Parallelism:
        """Returns this layout; the default one becomes a share of the data for each rank.

        Args:
            copies: whether each rank then has a copy of all weights, rather than a share of every weight.

        >>> Parallelism().over(4).shard, Parallelism(tp=2).over(4).shard, Parallelism().over(4, copies=True).replicate
        (4, 1, 4)
        """
        return self.model_copy(update={"replicate" if copies else "shard": num_ranks}) if self.mesh.size == 1 else self


class CheckpointConfig(Config):
    """Settings of the files that a training writes while it runs."""

    every: int = Field(default=200, ge=1, description="updates between checkpoints")
    last: int = Field(default=2, ge=1, description="how many checkpoints stay")
    best: Literal["", "loss"] = Field(
        default="", description="also the checkpoint with the least training loss: 'loss'"
    )
    snapshots: bool = Field(default=False, description="publish a model at every checkpoint, for watch and chat")
