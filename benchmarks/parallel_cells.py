"""The cells of `benchmarks.parallel`: small trainings under every layout that must equal the one in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.ranks import Parallelism, join_ranks
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer
from evolvent.trajectory import Step, Task, Trajectory, sample_rng

WORDS = [f"word{number}" for number in range(40)]
FAMILIES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig}
UPDATES = 10


@dataclass(frozen=True)
class Cell:
    """One training: what is trained, and how it is laid over ranks.

    Attributes:
        layout: settings of `Parallelism`. optimizer: its name, and settings of `OptimizerConfig`.
        long: not in the subset that every CI run covers.
    """

    layout: Mapping[str, Any] = field(default_factory=dict, hash=False)
    family: str = "llama"
    tied: bool = False
    optimizer: str = "adamw"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    adapter: str = "none"
    packed: bool = False
    lr: float = 4e-3
    long: bool = False

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(**self.layout)

    @property
    def alone(self) -> Cell:
        """The same training in one process."""
        return replace(self, layout={}, long=False)

    @property
    def bound(self) -> float:
        """How far its losses may be from those of one process."""
        return 1e-5 if self.adapter != "none" else 2e-6

    def __str__(self) -> str:
        mesh = str(self.parallelism.mesh)
        pipeline = [self.parallelism.schedule] if self.parallelism.pp > 1 else []
        extra = [
            f"{name} {value}" for name, value in self.layout.items() if name in ("sequence", "recompute", "compile")
        ]
        tuned = [] if self.adapter == "none" else [self.adapter]
        rule = " ".join([self.optimizer, *(f"{name} {value}" for name, value in self.options.items())])
        words = [self.family + (" tied" if self.tied else ""), mesh, *pipeline, *extra, rule, *tuned]
        return ", ".join([*words, *(["packed"] if self.packed else [])])


def small_policy(cell: Cell) -> Policy:
    """Four layers of width 32, four heads over two of keys and values, 64 words; the same in every process."""
    tokenizer = word_tokenizer(WORDS, context=64)
    config = FAMILIES[cell.family](
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=cell.tied,
        sliding_window=None,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    policy = Policy(model, tokenizer, dialect_for(tokenizer, "words"))
    if cell.adapter == "none":
        return policy
    return adapt(policy, AdapterConfig(kind=cell.adapter), seed=4)


def episodes(policy: Policy, count: int = 40) -> list[TokenSequence]:
    """Episodes of ragged lengths with ragged learning weights."""
    made = [_episode(number) for number in range(count)]
    flat = flatten(
        made, policy.dialect, instructions=lambda task: "", context=64, weight=lambda t: 0.5 + (len(t.steps) % 3)
    )
    return flat.sequences


def _episode(number: int) -> Trajectory:
    rng = sample_rng("parallel", number)

    def text(low: int, high: int) -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(low, high))))

    steps = tuple(Step(text(2, 6), text(1, 4)) for _ in range(int(rng.integers(1, 5))))
    return Trajectory(f"e{number}", Task("synthetic", "1", {"number": number}), steps)


@dataclass(frozen=True)
class Trained:
    """What a training was: its losses, and which samples each update learned."""

    losses: tuple[float, ...]
    order: tuple[tuple[str, ...], ...]


def train(cell: Cell, folder: str | None = None, updates: int = UPDATES) -> Trained:
    """Train to so many updates in all; with a folder, going on from the checkpoint there. Runs in every rank."""
    torch.set_num_threads(1)
    policy = small_policy(cell)
    fused = cell.optimizer in ("lomo", "adalomo") and cell.options.get("fused", True)
    config = TrainConfig(
        lr=cell.lr,
        max_steps=UPDATES,
        warmup_steps=2,
        batch_tokens=260,
        max_tokens_per_forward=260 if fused else 130,
        layout="packed" if cell.packed else "bucketed",
    )
    optimizer = OptimizerConfig(name=cell.optimizer, **cell.options)
    with join_ranks(cell.parallelism.mesh) as ranks:
        learner = Learner(
            policy, weighted_nll, config, seed=5, optimizer=optimizer, parallelism=cell.parallelism, ranks=ranks
        )
        order: list[tuple[str, ...]] = []
        keeper = None if folder is None else Checkpointer(Path(folder), every=100, ranks=ranks)
        report = learner.fit(
            episodes(policy),
            checkpoint=keeper,
            on_update=lambda _: order.append(learner.taken),
            should_stop=lambda: learner.updates >= updates,
        )
    return Trained(report.losses, tuple(order))


def cells() -> list[Cell]:
    """The published table: architecture x layout x schedule x optimizer x tuning."""
    found: dict[str, Cell] = {}
    for cell in (*_layouts(), *_families(), *_optimizers(), *_adapters(), *_options()):
        if str(cell) not in found or not cell.long:
            found[str(cell)] = cell
    return list(found.values())


SCHEDULES = ("gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "zbv")
TWO = ({"shard": 2}, {"replicate": 2}, {"tp": 2})
FOUR = (
    {"shard": 4},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tp": 2},
    {"pp": 2, "shard": 2},
    {"pp": 2, "tp": 2},
    {"replicate": 2, "tp": 2},
    {"pp": 4},
    {"pp": 2, "replicate": 2},
)
EIGHT = (
    {"pp": 2, "shard": 2, "tp": 2},
    {"replicate": 2, "shard": 2, "tp": 2},
    {"pp": 2, "replicate": 2, "shard": 2},
    {"pp": 4, "shard": 2},
    {"pp": 2, "shard": 4},
    {"shard": 4, "tp": 2},
)


def _layouts() -> Iterator[Cell]:
    for layout in (*TWO, *FOUR):
        yield Cell(layout)
    for layout in EIGHT:
        yield Cell(layout, long=layout != EIGHT[0])
    for schedule in SCHEDULES:
        yield Cell({"pp": 2, "schedule": schedule}, long=schedule not in ("1f1b", "zero_bubble"))
        for beside in ("shard", "tp"):
            yield Cell({"pp": 2, beside: 2, "schedule": schedule}, long=True)
        if schedule not in ("zbv",):
            yield Cell({"pp": 2, "shard": 2, "tp": 2, "schedule": schedule}, long=True)


def _families() -> Iterator[Cell]:
    for family in FAMILIES:
        for tied in (False, True):
            for layout in (*TWO, {"pp": 2}, *FOUR[2:5], EIGHT[0]):
                yield Cell(layout, family, tied, long=layout != FOUR[2] or tied or family == "mistral")
    for layout in ({"pp": 2}, {"pp": 2, "schedule": "zbv"}):
        yield Cell(layout, "qwen3", True)


def _optimizers() -> Iterator[Cell]:
    rates = {"sgd": 0.1, "lion": 4e-4, "adan": 4e-3, "sophiag": 4e-4}
    for name, lr in rates.items():
        for layout in ({"shard": 2}, {"tp": 2}, {"shard": 2, "tp": 2}, {"pp": 2}):
            yield Cell(layout, optimizer=name, lr=lr, long=layout != {"shard": 2, "tp": 2})
    yield Cell({"pp": 2}, optimizer="adafactor")  # torch's refuses sharded weights; AdaLomo is its rule
    yield Cell({"shard": 2, "tp": 2}, optimizer="adalomo", options={"fused": False})
    for name, lr in (("lomo", 0.2), ("adalomo", 4e-3)):
        for layout in ({"shard": 2}, {"tp": 2}, {"shard": 4}, {"replicate": 2, "shard": 2}, {"shard": 2, "tp": 2}):
            yield Cell(layout, optimizer=name, lr=lr, long=layout not in ({"shard": 4}, {"shard": 2, "tp": 2}))
        yield Cell({"pp": 2, "shard": 2}, optimizer=name, lr=lr, options={"fused": False}, long=True)


def _adapters() -> Iterator[Cell]:
    for layout in ({"shard": 2}, {"tp": 2}, {"pp": 2}, {"shard": 2, "tp": 2}, {"pp": 2, "shard": 2, "tp": 2}):
        yield Cell(layout, adapter="lora", lr=1e-2, long=layout not in ({"shard": 2, "tp": 2}, {"pp": 2}))
    for adapter in ("dora", "ia3", "prefix", "prompt"):
        yield Cell({"shard": 2}, adapter=adapter, lr=1e-2, long=adapter != "prompt")
        yield Cell({"replicate": 2, "shard": 2}, adapter=adapter, lr=1e-2, long=True)


def _options() -> Iterator[Cell]:
    for layout in ({"shard": 2}, {"tp": 2}, {"pp": 2}, {"shard": 2, "tp": 2}):
        yield Cell({**layout, "recompute": True}, long=layout not in ({"shard": 2}, {"tp": 2}))
        yield Cell(layout, packed=True, long=layout not in ({"pp": 2}, {"tp": 2}))
    yield Cell({"tp": 2, "sequence": False})
    yield Cell({"shard": 2, "tp": 2, "sequence": False}, "qwen3", long=True)
    yield Cell({"shard": 2, "compile": True}, long=True)


def resumes() -> list[tuple[Cell, Cell]]:
    """Trainings that stop after half of their updates on one layout and go on on another: every ordered pair."""
    layouts = ({}, {"shard": 2}, {"shard": 4}, {"tp": 2}, {"shard": 2, "tp": 2}, {"pp": 2}, {"pp": 2, "shard": 2})
    return [(Cell(one), Cell(other)) for one, other in permutations(layouts, 2)]
