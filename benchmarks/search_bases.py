"""The policies that the benchmarks of search begin with: small, trained within minutes, and far from perfect.

    python -m benchmarks.search_bases [--tasks ...] [--seeds ...] [--json]
    python -m benchmarks.search_bases --quick [--json]      the machinery in seconds; supports no claim

Search can only help where a policy is sometimes right and sometimes wrong. `BASES` has one recipe for each task: a
world, how many of its tasks are demonstrated, a model, and how long it imitates. They were found on development seed
100. A seed decides on initialization and order, not on the tasks. A policy is made once and kept under FOLDER/runs, so
that all benchmarks of a folder begin with the same weights.

The table says what a policy does and what it could do: success of greedy decoding, and pass@k of samples at temperature
1. An answer of deduction is right half of the time by luck: the share of right steps, and of right answers by a proof
without a wrong step, stand beside it (`benchmarks/search_headroom.py`).
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from benchmarks.looking_back import look_back
from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.search_headroom import KS, measured
from benchmarks.search_heads import look_alike
from benchmarks.study import load_or_make_policy, read_policy_note
from evolvent.agents.plain import Script
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.identity import version_1_values
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import ROPE_THETA, init_tiny, tiny_config, word_tokenizer
from evolvent.rollout.episode import collect
from evolvent.scale.initial import collect_demonstrations
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes
from evolvent.worlds.preference.world import Faults, Preference
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.problems import Problems

__all__ = [
    "BASES",
    "FOLDER",
    "QUICK",
    "Base",
    "base_of",
    "made_by",
    "measured",
    "panel",
    "shown_of",
    "world_of",
]

FOLDER = RESULTS / "search"
_HELD_OUT, _QUICK_HELD_OUT = {"dev": 200, "test": 400}, {"dev": 60, "test": 60}
TRAIN = TrainConfig(lr=3e-3, batch_tokens=512)


def _experts(world: World, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
    """What the world's expert does."""
    return collect_demonstrations([world], tasks, seed=seed)


def _mixture(world: World, tasks: Sequence[Task], seed: int) -> list[Trajectory]:
    """Continuations of every quality: each has faults at rates of its own, as those of the world's pairs have."""
    if not isinstance(world, Preference):
        raise ConfigError("only continuations have a quality", value=world.name, expected=Preference.name)

    def actions(_: World, task: Task) -> list[str]:
        rates = Faults.sample(Random(sample_seed("search base", seed, task.id)))
        return [world.continuation(task, faults=rates, seed=seed)]

    playing = collect({world.name: world}, [*map(Start, tasks)], Script(actions), engine=None)
    return sorted(playing, key=lambda one: one.id)  # they come in order of completion


@dataclass(frozen=True)
class Base:
    """How the policy that a task begins with is made.

    Args:
        world: makes the world; settings: with what, beside the sizes of its panels.
        pool: training tasks that are dealt. shown: how many of them are demonstrated; nobody sees the others solved.
        tokens: learned tokens of the imitation; `train` has all else of it.
        longest: parts of the longest chain in any panel; None: every chain of the tier.
        first: (parts of the longest chain, learned tokens) of an imitation before: short chains are learned sooner.
        size, context, theta: of the model; theta is the base of its rotary wavelengths.
        looking_back, looking_alike: whether heads begin as `look_back` and `look_alike` make them.
        max_tokens: of an action.
        shows: (world, tasks, seed) -> the demonstrations.
        tier: of all panels.
    """

    world: Callable[..., World]
    pool: int
    shown: int
    tokens: int
    settings: tuple[tuple[str, Any], ...] = ()
    train: TrainConfig = TRAIN
    longest: int | None = None
    first: tuple[int, int] | None = None
    size: str = "xs"
    context: int = 256
    theta: float = ROPE_THETA
    looking_back: bool = False
    looking_alike: bool = False
    max_tokens: int = 96
    shows: Callable[[World, Sequence[Task], int], list[Trajectory]] = _experts
    tier: str = "seen"

    @property
    def digest(self) -> str:
        """16 hex digits: a policy of another recipe, or of another version of its world, is another policy."""
        own = {name: getattr(value, "__name__", value) for name, value in vars(self).items()}
        own |= {"settings": dict(self.settings), "train": version_1_values(self.train)}
        return f"{sample_seed(canonical_json(own), _world(self).version):016x}"


BASES: Mapping[str, Base] = {
    "countdown": Base(
        Countdown,
        4500,
        2000,
        180_000,
        (("numbers", 4),),
        context=96,
        theta=3000.0,
        looking_back=True,
        looking_alike=True,
        max_tokens=8,
    ),
    "deduction": Base(
        Deduction,
        26_000,
        15_500,
        750_000,
        (("depth", 4),),
        longest=3,
        first=(2, 500_000),
        theta=1000.0,
        looking_back=True,
        max_tokens=112,
    ),
    "problems": Base(Problems, 7000, 6000, 300_000),
    "preference": Base(Preference, 7000, 4000, 400_000, max_tokens=64, shows=_mixture),
}
"""The recipe of every task. That of deduction is weak: its policy writes proofs in form, and few that are right."""
QUICK: Mapping[str, Base] = {
    name: replace(base, pool=80, shown=40, tokens=2000, first=base.first and (base.first[0], 1000), context=256)
    for name, base in BASES.items()
}
"""The same for tests: policies that have learned next to nothing."""


@cache
def _world(base: Base) -> World:
    held_out = _QUICK_HELD_OUT if base in QUICK.values() else _HELD_OUT
    return base.world(sizes=Sizes(train=base.pool, **held_out), **dict(base.settings))


def _tasks(base: Base, split: str) -> list[Task]:
    tasks = _world(base).tasks(split, base.tier)
    return [one for one in tasks if base.longest is None or len(one.spec["chain"]) <= base.longest]


def _recipe(task: str, bases: Mapping[str, Base]) -> Base:
    if task not in bases:
        raise ConfigError([unknown_name_problem("task", task, bases)])
    return bases[task]


def world_of(task: str, *, bases: Mapping[str, Base] = BASES) -> World:
    """The world of a task, with room for what is shown, practiced on and held out.

    Raises:
        ConfigError: an unknown task.
    """
    return _world(_recipe(task, bases))


def panel(task: str, split: str, count: int, *, bases: Mapping[str, Base] = BASES) -> list[Task]:
    """The first `count` tasks of a split: of "train" those that no demonstration shows, for practice and for labels.

    Where a question lists its answers, tasks of each answer come in turn, while there are any: a constant answer of two
    is right in half of an even panel.

    Raises:
        ConfigError: an unknown task or split, or fewer tasks than are asked for.
    """
    base, world = _recipe(task, bases), world_of(task, bases=bases)
    tasks = _tasks(base, split)
    if split == "train":
        tasks = tasks[base.shown :]
    found = _in_turn(world, tasks)[:count]
    if len(found) < count or count < 1:
        raise ConfigError([Problem("count", f"{count} tasks of {task}, {split}", f"give 1 to {len(found)}")])
    return found


def _in_turn(world: World, tasks: Sequence[Task]) -> list[Task]:
    if not isinstance(world, Generated):
        return list(tasks)
    by: dict[str, list[Task]] = {}
    for one in tasks:
        asked = world.question(one)
        by.setdefault(asked.answer if asked.choices else "", []).append(one)
    return [one for turn in zip_longest(*(by[answer] for answer in sorted(by))) for one in turn if one is not None]


def shown_of(task: str, seed: int, *, bases: Mapping[str, Base] = BASES) -> list[Trajectory]:
    """The demonstrations that the policy of a task and seed has imitated.

    Raises:
        ConfigError: an unknown task.
    """
    base = _recipe(task, bases)
    return base.shows(_world(base), _tasks(base, "train")[: base.shown], _own(task, seed))


def _own(task: str, seed: int) -> int:
    return sample_seed("search base", task, seed) % 2**31


# ---------------------------------------------------------------------- making


def base_of(task: str, seed: int, folder: Path, *, bases: Mapping[str, Base] = BASES) -> Policy:
    """The policy that a task and seed begin with: made by the first to ask, kept under `folder`/runs for the others.

    Raises:
        ConfigError: an unknown task. Locked: another process has been making it for half an hour.
    """
    return load_or_make_policy(folder, _name(task, seed, bases), lambda: _made(_recipe(task, bases), task, seed))


def _name(task: str, seed: int, bases: Mapping[str, Base]) -> str:
    return f"base-{_recipe(task, bases).digest}-{task}-{seed}"


def made_by(task: str, seed: int, folder: Path, *, bases: Mapping[str, Base] = BASES) -> dict[str, Any]:
    """What making a kept policy took: tokens learned and fed, CPU seconds, parameters, the loss at the end."""
    return read_policy_note(folder, _name(task, seed, bases))


def _untrained(base: Base, seed: int) -> Policy:
    world = _world(base)
    words = world.vocabulary()
    if words is None:
        raise ConfigError("a world with an open vocabulary", value=world.name)
    tokenizer = word_tokenizer(sorted(words), context=base.context)
    config = tiny_config(len(tokenizer), base.size, context=base.context)
    config.rope_parameters = {"rope_type": "default", "rope_theta": base.theta}
    policy = Policy(init_tiny(config, seed=seed), tokenizer, dialect_for(tokenizer, "words"))
    if base.looking_back:
        look_back(policy)
    if base.looking_alike:
        look_alike(policy)
    return policy


def _made(base: Base, task: str, seed: int) -> tuple[Policy, dict[str, Any]]:
    world, own, began = _world(base), _own(task, seed), time.process_time()
    policy = _untrained(base, own)
    shown = base.shows(world, _tasks(base, "train")[: base.shown], own)
    flat = flatten(shown, policy.dialect, instructions=lambda _: world.instructions, context=policy.context)
    if flat.refused or len(shown) < base.shown:
        raise ConfigError(
            "demonstrations that are missing or do not fit the context",
            value=(len(shown), len(flat.refused)),
            expected=f"{base.shown} that fit",
        )
    learned, fed, config = 0, 0, base.train
    if base.first is not None:
        longest, tokens = base.first
        short = {one.id for one in shown if len(one.task.spec["chain"]) <= longest}
        before = Learner(
            policy, weighted_nll, config.model_copy(update={"tokens": tokens, "final_lr_ratio": 0.3}), seed=own
        )
        report = before.fit([one for one in flat.sequences if one.trajectory in short])
        policy, learned, fed = before.policy, report.tokens, report.fed
    learner = Learner(policy, weighted_nll, config.model_copy(update={"tokens": base.tokens}), seed=own)
    report = learner.fit(flat.sequences)
    note = {
        "task": task,
        "seed": seed,
        "shown": len(shown),
        "parameters": policy.parameters(),
        "learned": learned + report.tokens,
        "fed": fed + report.fed,
        "loss": round(float(np.mean(report.losses[-50:])), 4),
        "cpu_s": round(time.process_time() - began, 1),
    }
    return learner.policy.next_version(), note


# ---------------------------------------------------------------------- showing


def row_of(task: str, seed: int, folder: Path, *, count: int, bases: Mapping[str, Base] = BASES) -> dict[str, Any]:
    """A line of the table, as JSON values: making a base, and measuring it on the dev panel."""
    policy, tasks = base_of(task, seed, folder, bases=bases), panel(task, "dev", count, bases=bases)
    found = measured(policy, world_of(task, bases=bases), tasks, max_tokens=bases[task].max_tokens, seed=seed)
    row = {"digest": bases[task].digest, **asdict(found), "headroom": found.headroom}
    return {**made_by(task, seed, folder, bases=bases), **json.loads(json.dumps(row), parse_float=_short)}


def _short(number: str) -> float:
    return round(float(number), 4)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table for people."""
    ks = [f"success@{k}" for k in KS]
    heads = ("task", "seed", "weights", "learned", "cpu-s", "greedy", *(f"pass@{k}" for k in KS), "return", "best")
    print("".join(f"{head:>11}" for head in (*heads, "tokens")))
    for row in rows:
        greedy, sampled = row["greedy"], row["sampled"]
        shares = [greedy["success"], *(sampled[k] for k in ks), greedy["return"], row["best"]]
        made = [row[name] for name in ("task", "seed", "parameters", "learned", "cpu_s")]
        print(
            "".join(f"{one:>11}" for one in made)
            + "".join(f"{one:>11.3f}" for one in shares)
            + f"{greedy['tokens']:>11.1f}"
        )
    for row in rows:
        if "proof" in row["greedy"]:
            often = ", ".join(f"{row['sampled'][f'proof@{k}']:.3f} @{k}" for k in KS)
            print(
                f"{row['task']} {row['seed']}: right steps {row['greedy']['steps']:.3f}, right proofs "
                f"{row['greedy']['proof']:.3f}, sampled {often}"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    few = "tiny recipes in a temporary folder: a smoke test"
    parser = command_line("search_bases", __doc__, quick=few)
    parser.add_argument("--tasks", nargs="+", choices=[*BASES], default=[*BASES], help="which recipes")
    parser.add_argument("--seeds", nargs="+", type=int, default=[100], help="100 is the one they were found on")
    parser.add_argument("--count", type=int, default=100, help="tasks of the dev panel")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the policies are kept")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("evolvent").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch:
        bases, folder, count = BASES, options.folder, options.count
        if options.quick:
            bases, folder, count = QUICK, Path(scratch), 8
        rows = [
            row_of(task, seed, folder, count=count, bases=bases) for task in options.tasks for seed in options.seeds
        ]
    show(rows)
    own = {"benchmark": "search_bases", "quick": options.quick, "rows": rows, "seeds": options.seeds}
    finish({**own, **about("evolvent", "torch", threads=1)}, options)


if __name__ == "__main__":
    main()
