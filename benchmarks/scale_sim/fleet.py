"""GPUs, models, episodes and this library's costs: what a fleet is made of, and the time of a forward on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.scale_sim.model import Floats, Ints
from evolvent.errors import ConfigError

__all__ = ["GPU", "MODELS", "Fleet", "Gpu", "Library", "Model", "Workload", "with_constant"]


@dataclass(frozen=True)
class Gpu:
    """A GPU and its node. The first group is published, the second assumed.

    NVIDIA's data sheets: H100 SXM (80 GB, 3.35 TB/s, 989 TFLOP/s bf16 dense, NVLink 900 GB/s, 450 a direction) and DGX
    H100 (8 GPUs, 112 cores, a 400 Gb/s adapter for each GPU). Time between failures: 419 unexpected interruptions in 54
    days on 16,384 GPUs (The Llama 3 Herd of Models, 2024, section 3.3.4), 50,700 hours a GPU.

    Attributes:
        decode_share, train_share, read_share: of bandwidth or peak that decoding, training and reading reach.
        *_latency_s: of a message between GPUs of a node, and between nodes. restart_s: after a failure.
    """

    memory_bytes: float = 80e9
    bandwidth: float = 3.35e12
    flops: float = 989e12
    link: float = 450e9
    network: float = 50e9
    per_node: int = 8
    cores: int = 112
    between_failures_s: float = 50_700 * 3600.0

    decode_share: float = 0.7
    train_share: float = 0.4
    read_share: float = 0.5
    link_latency_s: float = 5e-6
    network_latency_s: float = 10e-6
    restart_s: float = 600.0


@dataclass(frozen=True)
class Model:
    """A model in bf16, from its published configuration. engine: GPUs that one engine is divided over."""

    parameters: float
    layers: int
    kv_heads: int
    head: int
    hidden: int
    engine: int

    @property
    def weights_bytes(self) -> float:
        """Of the weights."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Of the keys and values of a token."""
        return 2.0 * 2 * self.layers * self.kv_heads * self.head


GPU = Gpu()
MODELS: Mapping[str, Model] = {
    "0.5B": Model(0.494e9, 24, 2, 64, 896, 1),  # Qwen2.5-0.5B
    "7B": Model(7.62e9, 28, 4, 128, 3584, 1),  # Qwen2.5-7B
    "70B": Model(70.6e9, 80, 8, 128, 8192, 4),  # Llama-3-70B
}


@dataclass(frozen=True)
class Workload:
    """Episodes: the measured distribution of steps times `stretch`; tokens read and written in a step (assumed).

    Attributes:
        update_tokens: of an optimizer's step.
    """

    lengths: tuple[int, ...]
    stretch: int = 4
    read: int = 256
    written: int = 128
    update_tokens: float = 2.0**22

    @property
    def context(self) -> int:
        """Tokens that a row has room for: those of the longest episode, since rows are contiguous."""
        return self.stretch * max(self.lengths) * (self.read + self.written)

    def drawn(self, count: int, rng: np.random.Generator) -> Ints:
        """Steps of so many episodes, `[count]`."""
        return self.stretch * np.array(self.lengths, dtype=np.int64)[rng.integers(0, len(self.lengths), count)]

    def seen(self) -> float:
        """Mean tokens that a forward finds in a row: a turn comes from the middle of its episode."""
        steps = self.stretch * np.array(self.lengths, dtype=np.float64)
        return float((self.read + self.written) * (steps**2).sum() / steps.sum() / 2)


@dataclass(frozen=True)
class Library:
    """What this library costs, as measured on a processor. Seconds of one core, and bytes.

    Attributes:
        forward_s, row_s: of a forward and of each of its rows, outside of the model. turn_s: of a step, in the engine's
            own process. env_s: of a step, in its environment and the server around it. latency_s: until its answer.
        deal_s, take_s: of an episode, in the driver: dealt; read and stored. episode_bytes: on the wire.
        pack_s, load_s: of a byte of weights, in the driver and at an engine.
    """

    forward_s: float
    row_s: float
    turn_s: float
    env_s: float
    latency_s: float
    deal_s: float
    take_s: float
    episode_bytes: float
    pack_s: float
    load_s: float


@dataclass(frozen=True)
class Fleet:
    """So many GPUs, all of which play and then learn (synchronous), with so many environments.

    Attributes:
        drivers: processes that deal, read and store, each a shard of the episodes.
    """

    gpus: int
    environments: int
    model: Model
    workload: Workload
    library: Library
    gpu: Gpu = GPU
    drivers: int = 1

    def __post_init__(self) -> None:
        if self.gpus < self.gpu.per_node or self.gpus % self.gpu.per_node or self.environments < 1:
            raise ConfigError(
                "a fleet is of whole nodes, with an environment or more", value=(self.gpus, self.environments)
            )

    @property
    def engines(self) -> int:
        """How many have something to do."""
        return min(self.gpus // self.model.engine, self.environments)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.gpus // self.gpu.per_node

    @property
    def rows(self) -> int:
        """Rows that fit beside the weights in nine tenths of an engine's memory; 0: not even one."""
        room = 0.9 * self.gpu.memory_bytes * self.model.engine - self.model.weights_bytes
        return max(0, int(room / (self.model.kv_bytes * self.workload.context)))

    @property
    def learns(self) -> bool:
        """Whether weights, gradients and AdamW's state fit: 16 bytes a parameter, over all GPUs."""
        return 16 * self.model.parameters <= 0.9 * self.gpus * self.gpu.memory_bytes

    def forward_gpu_s(self, rows: Floats) -> Floats:
        """A forward that writes a token in each row: weights and caches are read, or multiplied, and summed up."""
        gpu, model = self.gpu, self.model
        speed = model.engine * gpu.decode_share
        moved = (model.weights_bytes + rows * self.workload.seen() * model.kv_bytes) / (speed * gpu.bandwidth)
        computed = 2 * model.parameters * rows / (speed * gpu.flops)
        summed = 0.0 * rows
        if model.engine > 1:
            share = 2 * (model.engine - 1) * (2 * model.hidden * rows / model.engine / gpu.link + gpu.link_latency_s)
            summed = 2 * model.layers * share
        return np.maximum(moved, computed) + summed

    def forward_s(self, rows: Floats) -> Floats:
        """A forward with what this library does around it."""
        return self.forward_gpu_s(rows) + self.library.forward_s + self.library.row_s * rows

    @property
    def read_s(self) -> float:
        """Reading what a turn reads."""
        return (
            2 * self.model.parameters * self.workload.read / (self.model.engine * self.gpu.read_share * self.gpu.flops)
        )


def with_constant(fleet: Fleet, name: str, factor: float) -> Fleet:
    """The same fleet with one constant times a factor; `part.name`, as `gpu.network` or `library.env_s`.

    Raises:
        ConfigError: no such constant.
    """
    part, _, field = name.partition(".")
    owner = getattr(fleet, part, None)
    if owner is None or not hasattr(owner, field):
        raise ConfigError("no such constant of a fleet", value=name, expected="gpu.*, library.*, model.* or workload.*")
    value = getattr(owner, field) * factor
    changed = replace(owner, **{field: max(1, round(value)) if isinstance(getattr(owner, field), int) else value})
    return replace(fleet, **{part: changed})
