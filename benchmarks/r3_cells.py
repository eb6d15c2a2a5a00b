"""What one cell of the study of reverse curricula is: its weak base, a training within a budget, a panel played.

`benchmarks/r3.py` says which cells there are, keeps their rows and compares them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.tuning_cells import sources
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import GREEDY
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, ScoringError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.parts import flatten
from evolvent.learn.practice import Practice, PracticeConfig, Setup
from evolvent.methods.r3 import R3, r3
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy, tiny_policy
from evolvent.models.tiny import ROPE_THETA, SIZES, word_tokenizer
from evolvent.rollout.collect import collect
from evolvent.run import Run
from evolvent.scale.initial import demonstrations
from evolvent.scale.local import LocalVerbs
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_seed
from evolvent.verbs import Stage
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from evolvent.worlds.reasoning.entailment import Entailment
from evolvent.worlds.reasoning.problems import Problems
from evolvent.worlds.reasoning.reading import Reading

__all__ = ["METHODS", "PANELS", "Cell", "Protocol", "panel", "run_cell"]

METHODS = ("sft", "outcome", "staged", "mixed")
PANELS: Mapping[str, Callable[[Sizes], World]] = {
    "countdown 4": lambda sizes: Countdown(numbers=4, sizes=sizes),
    "countdown 5": lambda sizes: Countdown(numbers=5, sizes=sizes),
    "arithmetic": lambda sizes: Arithmetic(sizes=sizes),
    "deduction": lambda sizes: Deduction(sizes=sizes),
    "entailment": lambda sizes: Entailment(sizes=sizes),
    "reading": lambda sizes: Reading(sizes=sizes),
    "problems": lambda sizes: Problems(sizes=sizes),
    "programs": lambda sizes: Problems(form="program", sizes=sizes),
}
GUESSED = {"deduction": 1 / 2, "entailment": 1 / 3, "reading": 1 / 4}
"""What one of so many answers, drawn blindly, would solve; elsewhere nothing."""

MODELS: Mapping[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, Any]]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {**SIZES["xs"], "num_key_value_heads": 2, "head_dim": 32}),
    "wide": (LlamaConfig, LlamaForCausalLM, {**SIZES["xs"], "hidden_size": 96, "intermediate_size": 288}),
}
"""Others than the embedded sizes: another architecture, and a Llama of twice the weights."""

MIXED = R3(
    kl=0.01, lam=1.0,
    practice=PracticeConfig(
        iterations=2000, tasks=128, samples=1, epochs=1, minibatches=2, temperature=0.7, save_every=2000,
        critic="own", critic_lr=1e-3,
    ),
)  # fmt: skip
BASE = TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=1024, final_lr=1.0, epochs=1)
PRACTISING = TrainConfig(weight_decay=0.0, warmup_updates=0, final_lr=1.0, clip=1.0, batch_tokens=4096)
AGAIN = TrainConfig(betas=(0.9, 0.95), batch_tokens=1024, final_lr=1.0)


@dataclass(frozen=True)
class Protocol:
    """All that the study fixes before it runs.

    Args:
        shown: tasks with a demonstration, which are imitated and practised on. dev, test: tasks of the panels' tier.
        solved: the base imitates until it solves this share of what guessing leaves of the dev panel, each
            demonstration at most once.
        env_steps: of every method but sft.
        tiers: those that are measured.
        rates, imitated: the rates that each method tries, and those that sft does. development, tuned: on these seeds
            and panels, measured on the dev panels; the best mean is the method's rate in all other cells.
        r3: settings of all curricula. base, train, again: how the base, practices and continued imitation learn; the
            rate of the last two is the cell's.
    """

    shown: int = 3600
    dev: int = 100
    test: int = 150
    solved: float = 0.1
    env_steps: int = 6_000
    tiers: tuple[str, ...] = ("seen", "evo")
    context: int = 320
    max_tokens: int = 96
    slots: int = 128
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    imitated: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    development: tuple[int, ...] = (100,)
    tuned: tuple[str, ...] = ("arithmetic", "entailment")
    r3: R3 = MIXED
    base: TrainConfig = BASE
    train: TrainConfig = PRACTISING
    again: TrainConfig = AGAIN

    def enough(self, task: str) -> float:
        """The share of a dev panel at which its base stops."""
        guessed = GUESSED.get(task, 0.0)
        return guessed + (1 - guessed) * self.solved

    def tries(self, method: str) -> tuple[float, ...]:
        """The rates that a method chooses from: as many for each."""
        return self.imitated if method == "sft" else self.rates

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = asdict(replace(self, r3=None, base=None, train=None, again=None))  # type: ignore[arg-type]
        own |= {name: getattr(self, name).model_dump(mode="json") for name in ("r3", "base", "train", "again")}
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
    return PANELS[task](Sizes(train=protocol.shown, dev=max(protocol.dev, 2), test=max(protocol.test, 2)))


def panel(protocol: Protocol, task: str, split: str) -> list[Task]:
    """The held-out tasks of a split; the dev panel has the first tier alone."""
    world, count = world_of(protocol, task), protocol.dev if split == "dev" else protocol.test
    tiers = protocol.tiers if split == "test" else protocol.tiers[:1]
    return [one for tier in tiers if tier in world.tiers for one in world.tasks(split, tier)[:count]]


def untrained(protocol: Protocol, task: str, model: str, seed: int) -> Policy:
    """A fresh policy over the world's words."""
    words = world_of(protocol, task).vocabulary()
    if words is None:
        raise ConfigError("a world with an open vocabulary", value=task)
    drawn = sample_seed("r3 model", seed) % 2**31
    if model in SIZES:
        return tiny_policy(sorted(words), size=model, context=protocol.context, seed=drawn)
    tokenizer, (configured, made, shape) = word_tokenizer(sorted(words), context=protocol.context), MODELS[model]
    config = configured(
        vocab_size=len(tokenizer), max_position_embeddings=protocol.context,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        pad_token_id=0, bos_token_id=1, eos_token_id=2, attn_implementation="sdpa", **shape,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(drawn)
        network = made(config)
        for name, weight in network.named_parameters():  # as `init_tiny` does
            if weight.dim() > 1:
                weight.normal_(0.0, 0.25 if "embed_tokens" in name else 0.7 * weight.shape[-1] ** -0.5)
    return Policy(network.eval(), tokenizer, dialect_for(tokenizer, "words"))


def solved(protocol: Protocol, policy: Policy, task: str, split: str) -> list[bool]:
    """Whether each task of a panel is solved, greedily and from its beginning."""
    world, tasks = world_of(protocol, task), panel(protocol, task, split)
    agent = LanguageAgent(policy, GREEDY, max_tokens=protocol.max_tokens)
    engine = LocalEngine(policy, slots=protocol.slots)
    playing = collect({world.name: world}, [*map(Start, tasks)], agent, engine=engine, slots=protocol.slots)
    won = {one.task.id: one.success for one in playing}
    if None in won.values():
        raise ScoringError("episodes that could not be scored", value=[*won.values()].count(None))
    return [bool(won[one.id]) for one in tasks]


@cache
def base_of(protocol: Protocol, task: str, model: str, seed: int) -> tuple[Policy, int]:
    """The weak base, and how many tokens it learned; the same weights whenever it is made on one machine."""
    world, policy = world_of(protocol, task), untrained(protocol, task, model, seed)
    learner = Learner(policy, weighted_nll, protocol.base, seed=sample_seed("r3 base", seed) % 2**31)

    def enough() -> bool:
        if learner.updates % 10:
            return False
        won = solved(protocol, learner.policy, task, "dev")
        return sum(won) >= protocol.enough(task) * len(won)

    shown = demonstrations([world], world.tasks("train", world.tiers[0])[: protocol.shown], seed=seed)
    flat = flatten(shown, policy.dialect, instructions=lambda one: world.instructions, context=policy.context)
    if flat.refused:
        raise ConfigError("demonstrations that do not fit the context", value=len(flat.refused))
    report = learner.fit(flat.parts, should_stop=enough)
    return learner.policy.advanced(), report.tokens


class Budgeted(LocalVerbs):
    """Verbs whose practices end with the iteration in which the environment steps are used up."""

    env_steps = 0
    most = 0

    def practise(self, policy: Policy, stage: Stage, *, setup: Setup) -> Practice:
        practice = super().practise(policy, stage, setup=setup)
        rounds, play = practice.rounds, practice.play

        def counted(starts: Sequence[Start], **more: Any) -> list[Trajectory]:
            played = play(starts, **more)
            self.env_steps += sum(len(one.steps) for one in played)
            return played

        def limited() -> Iterator[int]:
            for number in rounds():  # what an iteration came to is told when the next is asked for
                if self.env_steps >= self.most:
                    return
                yield number

        vars(practice).update(rounds=limited, play=counted)
        return practice


def run_cell(protocol: Protocol, cell: Cell, sft_tokens: int) -> dict[str, Any]:
    """Train and measure, cells of development seeds on the dev panel; the row to keep."""
    began = time.process_time()
    world = world_of(protocol, cell.task)
    base, learned = base_of(protocol, cell.task, cell.model, cell.seed)
    shown = demonstrations([world], world.tasks("train", world.tiers[0])[: protocol.shown], seed=cell.seed)
    verbs = Budgeted(
        {world.name: world}, protocol.again.model_copy(update={"lr": cell.rate}), slots=protocol.slots,
        max_tokens=protocol.max_tokens, practising=protocol.train.model_copy(update={"lr": cell.rate}),
    )  # fmt: skip
    verbs.most = protocol.env_steps
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), verbs, seed=cell.seed) as run:
        if cell.method == "sft":
            policy = run.fit(base, shown, weighted_nll, tokens=sft_tokens)
        else:
            policy = r3(base, [one.task for one in shown], shown, config=config_of(protocol, cell, shown), run=run)
        used = dict(verbs.usage())
    trained = time.process_time()
    split = "dev" if cell.seed in protocol.development else "test"
    before, outcomes = (solved(protocol, one, cell.task, split) for one in (base, policy))
    return {
        **asdict(cell), "split": split, "digest": protocol.digest, "accuracy": sum(outcomes) / len(outcomes),
        "base": sum(before) / len(before), "base_tokens": learned, "outcomes": "".join(str(int(w)) for w in outcomes),
        "env_steps": verbs.env_steps, "replayed": used.pop("replayed"),
        **{f"tokens_{name}": count for name, count in used.items()},
        "cpu_train_s": round(trained - began, 1), "cpu_play_s": round(time.process_time() - trained, 1),
        "sources": sources(),
    }  # fmt: skip


def config_of(protocol: Protocol, cell: Cell, shown: Sequence[Trajectory]) -> R3:
    """R3's settings of a cell. A staged curriculum must know how long it will be: from the steps that are left."""
    config = protocol.r3.model_copy(update={"kind": cell.method})
    if cell.method != "staged":
        return config
    long = sum(len(one.steps) for one in shown) / len(shown)
    left = 1 + (long - 1) / 2  # on average over the way
    episodes = config.practice.tasks * config.practice.samples
    count = max(config.stages + 1, round(protocol.env_steps / (left * episodes)))
    return config.model_copy(update={"practice": config.practice.model_copy(update={"iterations": count})})
