"""What the study of reverse curricula fixes before it runs: panels, bases, models, rates, budgets.

A panel says how the weak policy is made that every method begins with: which world, how many of its tasks are imitated,
how long. That was found on development seed 100: a base must be right sometimes, or nobody learns, and wrong often, or
there is nothing to learn. It imitates at a constant rate and stops: one whose rate fell to nothing keeps its mistakes
for longer than a study lasts (`r3/pilot.md`). Where a question must be read, models begin with heads that look
up (`looking_up`); in countdown with heads that find a number again (`search_heads`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.looking_back import look_back
from benchmarks.looking_up import look_up
from benchmarks.prm.bases import Proofs
from benchmarks.search_heads import look_alike
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.methods.r3 import R3Config
from evolvent.models.policy import Policy
from evolvent.models.tiny import ROPE_THETA, SIZES
from evolvent.rl.trainer import RLConfig
from evolvent.trajectory import Task, canonical_json, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from evolvent.worlds.reasoning.entailment import Entailment
from evolvent.worlds.reasoning.problems import Problems
from evolvent.worlds.reasoning.reading import Reading

__all__ = ["METHODS", "MODELS", "PANELS", "Cell", "Panel", "Protocol", "panel", "world_of"]

METHODS = ("sft", "outcome", "staged", "mixed")
Heads = Callable[[Policy], None]
IMITATING = TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=1024, final_lr_ratio=1.0)


@dataclass(frozen=True)
class Panel:
    """A panel, and how its base is made.

    Args:
        world: makes the world; settings: with what, beside the sizes of its panels.
        imitated: tasks whose demonstrations the base imitates, of those that are practiced on.
        tokens: learned tokens of that imitation.
        heads: what an untrained model of the embedded family begins with; theta: the base of its rotary wavelengths.
        max_tokens: of an action.
        guessed: what one of so many answers, drawn blindly, would solve.
        tiers: those that are measured; the first is practiced on.
    """

    world: Callable[..., World]
    imitated: int
    tokens: int
    settings: tuple[tuple[str, Any], ...] = ()
    heads: tuple[Heads, ...] = ()
    theta: float = ROPE_THETA
    max_tokens: int = 64
    guessed: float = 0.0
    tiers: tuple[str, ...] = ("seen", "evo")
    train: TrainConfig = IMITATING

    def described(self) -> dict[str, Any]:
        """Everything as JSON values, for a protocol's digest."""
        own = {name: getattr(value, "__name__", value) for name, value in vars(self).items()}
        return own | {
            "settings": dict(self.settings),
            "train": version_1_values(self.train),
            "tiers": list(self.tiers),
            "heads": [head.__name__ for head in self.heads],
        }


_READS: Mapping[str, Any] = {"heads": (look_up,), "theta": 5000.0}
_COUNTS: Mapping[str, Any] = {"heads": (look_back, look_alike), "theta": 3000.0, "max_tokens": 8}
PANELS: Mapping[str, Panel] = {
    "countdown 4": Panel(Countdown, 2000, 120_000, (("numbers", 4),), **_COUNTS),
    "countdown 5": Panel(Countdown, 4000, 180_000, (("numbers", 5),), **_COUNTS),
    "arithmetic": Panel(Arithmetic, 6000, 300_000, (("depth", 8),), max_tokens=80),
    "deduction": Panel(Proofs, 150, 60_000, (("longest", 4),), tiers=("evo",), **_READS),
    "entailment": Panel(Entailment, 4000, 300_000, guessed=1 / 3, **_READS),
    "reading": Panel(Reading, 4000, 300_000, guessed=1 / 4, **_READS),
    "problems": Panel(Problems, 4000, 200_000, **_READS),
    "programs": Panel(Problems, 4000, 200_000, (("form", "program"),), **_READS),
}
MODELS: Mapping[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, Any]]] = {
    "xs": (LlamaConfig, LlamaForCausalLM, SIZES["xs"]),
    "wide": (LlamaConfig, LlamaForCausalLM, {**SIZES["xs"], "hidden_size": 96, "intermediate_size": 288}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {**SIZES["xs"], "num_key_value_heads": 2, "head_dim": 32}),
}
"""The smallest embedded size, a Llama of twice the weights, and another architecture."""


MIXED = R3Config(
    kl=0.01,
    gae_lambda=1.0,
    practice=RLConfig(
        iterations=2000,
        tasks_per_iteration=128,
        group_size=1,
        ppo_epochs=1,
        minibatches=2,
        temperature=0.7,
        save_every=2000,
        critic="separate",
        critic_lr=1e-3,
    ),
)
PRACTISING = TrainConfig(weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, max_grad_norm=1.0, batch_tokens=4096)
AGAIN = TrainConfig(betas=(0.9, 0.95), batch_tokens=1024, final_lr_ratio=1.0)


@dataclass(frozen=True)
class Protocol:
    """All that the study fixes before it runs.

    Args:
        pool: tasks of a panel that are practiced on, at most, each with a demonstration; a base imitates the first.
        scale: of what bases imitate, for a quick run.
        dev, test: tasks of a tier that are measured.
        env_steps: of every method but sft.
        rates, imitated: the rates that each method tries, and those that sft does. development, tuned: on these seeds
            and panels, measured on the dev panels; the best mean is the method's rate in all other cells.
        r3: settings of all curricula. train, again: how practices and imitation go on; the rate is the cell's.
    """

    pool: int = 12_000
    scale: float = 1.0
    dev: int = 100
    test: int = 150
    env_steps: int = 6_000
    context: int = 320
    slots: int = 128
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    imitated: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    development: tuple[int, ...] = (100,)
    tuned: tuple[str, ...] = ("arithmetic", "deduction")
    r3: R3Config = MIXED
    train: TrainConfig = PRACTISING
    again: TrainConfig = AGAIN

    def tries(self, method: str) -> tuple[float, ...]:
        """The rates that a method chooses from: as many for each."""
        return self.imitated if method == "sft" else self.rates

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = asdict(replace(self, r3=None, train=None, again=None))  # type: ignore[arg-type]
        own |= {name: version_1_values(getattr(self, name)) for name in ("r3", "train", "again")}
        own["panels"] = {name: chosen.described() for name, chosen in PANELS.items()}
        return f"{sample_seed(canonical_json(own)):016x}"


@dataclass(frozen=True)
class Cell:
    """One training: a method from the base of a task, a model and a seed, at a rate."""

    task: str
    model: str
    method: str
    seed: int
    rate: float

    @property
    def row(self) -> str:
        """What the cells of one line of a table share."""
        return self.task if self.model == "xs" else f"{self.task}, {self.model}"

    @property
    def key(self) -> str:
        return f"{self.task}-{self.model}-{self.method}-{self.seed}-{self.rate:g}".replace(" ", "")


@cache
def world_of(protocol: Protocol, task: str) -> World:
    """The world of a panel, with no more tasks than are used."""
    chosen = PANELS[task]
    sizes = Sizes(train=protocol.pool, dev=max(protocol.dev, 2), test=max(protocol.test, 2))
    made: World = chosen.world(sizes=sizes, **dict(chosen.settings))
    return made


def panel(protocol: Protocol, task: str, split: str) -> list[Task]:
    """The tasks of a split: of "train" those that are practiced on; the dev panel has the first tier alone."""
    world, chosen = world_of(protocol, task), PANELS[task]
    counts = {"train": protocol.pool, "dev": protocol.dev, "test": protocol.test}
    tiers = chosen.tiers if split == "test" else chosen.tiers[:1]
    return [one for tier in tiers for one in world.tasks(split, tier)[: counts[split]]]
