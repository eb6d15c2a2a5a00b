"""A world small enough to be learned by acting within seconds, and runs over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import evolvent as ev
from evolvent.agents.plain import Script
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.models.policy import Policy
from evolvent.rl.trainer import RLConfig
from evolvent.rollout.episode import collect
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.trajectory import sample_rng
from evolvent.worlds.base import Play, TextWorld

WORDS = ("red", "green", "blue", "grey")


class Echo(TextWorld):
    """Say the word that is shown, twice in two steps: 1 for each right one."""

    name = "echo"
    reward_range = (0.0, 2.0)
    horizon = 2
    run_in_thread = False

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"first": a, "then": b, "copy": n} for a in WORDS for b in WORDS for n in range(6)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"say {spec['first']}"
        said = yield f"say {spec['then']}", float(said.strip() == spec["first"])
        return float(said.strip() == spec["then"])

    def vocabulary(self) -> Sequence[str]:
        return ("say", *WORDS)


class Endless(Echo):
    """Pays 1 a step, whatever is said, and is cut after three steps."""

    name = "endless"
    horizon = 3
    reward_range = (0.0, 3.0)

    def play(self, spec: Mapping[str, Any]) -> Play:
        yield f"say {spec['first']}"
        while True:
            yield f"say {spec['then']}", 1.0


def verbs_of(world: ev.World, **more: Any) -> LocalBackend:
    train = TrainConfig(lr=1e-3, weight_decay=0.0, warmup_steps=0, final_lr_ratio=1.0, batch_tokens=2048)
    return LocalBackend(
        {world.name: world}, more.pop("train", train), EvaluationPanel(limit=16), slots=32, max_tokens=3, **more
    )


def run_of(folder: Path, world: ev.World, **more: Any) -> ev.Run[Policy]:
    verbs = verbs_of(world, **more)
    return ev.Run(folder, verbs, seed=more.get("seed", 0), settings=verbs.settings())


def small(world: ev.World) -> Policy:
    """A fresh policy: it knows nothing."""
    return make_policy([world], seed=1, context=48)


def talking(folder: Path, world: ev.World) -> Policy:
    """A policy that knows the language, not the task: it says words at random."""

    def babble(world: ev.World, task: ev.Task) -> list[str]:
        return [WORDS[int(n)] for n in sample_rng("babble", task.id).integers(len(WORDS), size=world.horizon)]

    starts = [ev.Start(task) for task in world.tasks("train", "seen")]
    said = list(collect({world.name: world}, starts, Script(babble), engine=None))
    train = TrainConfig(lr=5e-3, warmup_steps=5, batch_tokens=512)
    with run_of(folder, world, train=train) as run:
        return run.fit(small(world), said, weighted_nll, tokens=4000)


def quick(**more: Any) -> RLConfig:
    return RLConfig(
        **{
            "iterations": 4,
            "tasks_per_iteration": 8,
            "group_size": 4,
            "save_every": 1,
            "ppo_epochs": 1,
            "minibatches": 1,
            **more,
        }
    )
