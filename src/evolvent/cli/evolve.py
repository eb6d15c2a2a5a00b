"""`evolvent evolve`, the main job: clone, explore, keep, learn, measure, beside a train-matched control, and report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from rich.console import Console

from evolvent.cli.backends import Placed
from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.registry import policy, world_origins, worlds
from evolvent.cli.run_setup import Job, PanelConfig, check_panel, opened, playing_on
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import write_atomic
from evolvent.learn.learner import TrainConfig
from evolvent.methods.agentevol import EMBEDDED, FORMULATED, PUBLISHED, AgentEvol, agentevol
from evolvent.scale.initial import demonstrations
from evolvent.trajectory import Task
from evolvent.view import read_run, summary
from evolvent.worlds.audit import audit
from evolvent.worlds.base import World

__all__ = ["COMMAND", "Evolve", "explored", "run", "stages"]


class Evolve(OverWorlds, Placed):
    """Everything that can be chosen about `evolvent evolve`."""

    policy: str = Field(default="xs", description="a size (xs, s, m), a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/evolve-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(200,), min_length=1, description="demonstrated tasks of each world, in order; the last for the rest"
    )
    namings: int = Field(
        default=1, ge=1, description="times a demonstration is shown, under other names where possible"
    )
    explore: int = Field(default=400, ge=0, description="tasks of each world to explore without demonstration")
    slots: int = Field(default=384, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    method: AgentEvol = Field(default_factory=AgentEvol, description="the method")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")
    panel: PanelConfig = Field(default_factory=PanelConfig, description="the measurement")

    @field_validator("method")
    @classmethod
    def _known_worlds(cls, method: AgentEvol) -> AgentEvol:
        wrong = [unknown("world", name, world_origins()) for name in method.thresholds if name not in world_origins()]
        if wrong:
            raise ValueError("thresholds: " + "; ".join(f"{problem.what} ({problem.hint})" for problem in wrong))
        return method


# What two cores can show in six minutes, near what the study of AgentEvol fixed (benchmarks/evolve.py).
LAPTOP: Mapping[str, object] = {
    "demonstrations": [200, 50],
    "namings": 10,
    "train": {"lr": 5e-3, "betas": [0.9, 0.95], "batch_tokens": 512},
}

COMMAND = Command(
    "evolve",
    "Clone demonstrations, explore tasks that nobody demonstrated, keep what was rewarded, learn, measure; repeat.",
    Evolve,
    presets={
        "embedded": {**LAPTOP, "method": dict(EMBEDDED)},
        "paper": {"method": dict(PUBLISHED), "train": {"lr": 1e-5, "weight_decay": 0.0, "epochs": 1, "final_lr": 0.0}},
        "formulated": {"method": dict(FORMULATED)},
    },
    resumes=True,
    free=("on",),
)


def run(words: Sequence[str], console: Console) -> int:
    """Run the main job; returns the exit code."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    if config.method.select == "best" and config.panel.split == "dev":
        raise ConfigError(
            [
                Problem(
                    "panel.split",
                    "the best round is chosen on dev, which then measures nothing",
                    "measure on test, or end with the last round",
                )
            ]
        )
    made = worlds(config.worlds)
    panel = check_panel(made, config.panel)
    shown, tried = chosen_tasks(made, config)
    folder = given.resume or new_folder("evolve", config.to)
    initial = policy(config.policy, list(made.values()), seed=config.seed)
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with playing_on(config.on, config.worlds, made, threads=config.threads) as verbs:
        job = Job(
            folder,
            made,
            Record("evolve", config, config.seed, ("evolve", "control"), "agentevol"),
            train=config.train,
            panel=config.panel.panel(),
            slots=config.slots,
            max_tokens=config.max_tokens,
            threads=config.threads,
            plan=stages(config, len(tried), panel),
            verbs=verbs,
        )
        with opened(job, console) as running:
            write_floors(folder, made, config)
            taught = demonstrations(list(made.values()), shown, seed=config.seed, namings=config.namings)
            best = agentevol(initial, tried, taught, config=config.method, run=running)
            idle = config.method.model_copy(update={"keep": "none", "samples": 0})
            agentevol(initial, tried, taught, config=idle, run=running.arm("control"))
            best.save(folder / "model")
    console.print(summary(read_run(folder), width=console.width))
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0


def chosen_tasks(worlds: Mapping[str, World], config: Evolve) -> tuple[list[Task], list[Task]]:
    """(tasks to demonstrate, tasks to explore) of all worlds.

    Raises:
        ConfigError: a world with fewer tasks than asked for.
    """
    shown: list[Task] = []
    tried: list[Task] = []
    problems = []
    counts = [*config.demonstrations, *[config.demonstrations[-1]] * len(worlds)]
    for count, (name, world) in zip(counts, worlds.items(), strict=False):
        panel = list(world.tasks("train", world.tiers[0]))
        rest = explored(world, count, config.explore)
        if len(panel) < count:
            what = f"the world {name!r} has {len(panel)} tasks to demonstrate, got {count}"
            problems.append(Problem("demonstrations", what, f"give at most {len(panel)}"))
        if len(rest) < config.explore:
            what = f"the world {name!r} has {len(rest)} more tasks to explore, got {config.explore}"
            problems.append(Problem("explore", what, f"give at most {len(rest)}"))
        shown += panel[:count]
        tried += rest
    if problems:
        raise ConfigError(problems)
    return shown, tried


def explored(world: World, demonstrated: int, count: int) -> list[Task]:
    """At most `count` training tasks that are not demonstrated, evenly from all tiers that may be trained on."""
    panels = [list(world.tasks("train", tier)) for tier in world.tiers]
    panels[0] = panels[0][demonstrated:]
    dealt = [task for row in zip_longest(*panels) for task in row if task is not None]
    return dealt[:count]


def stages(config: Evolve, tried: int, panel: int) -> list[Planned]:
    """The stages of both arms, in order, with their sizes in tokens and episodes."""
    method, train = config.method, config.train
    learn = Planned("fit", method.round_tokens or train.tokens)
    measure = Planned("evaluate", panel)
    explore = [Planned("collect", tried * method.samples)] if tried * method.samples else []
    plan = [*(Planned("fit", tokens or train.tokens) for tokens in method.clones), measure]
    return plan + [*explore, learn, measure] * method.iterations + [learn, measure] * method.iterations


def write_floors(folder: Path, worlds: Mapping[str, World], config: Evolve) -> None:
    """Keep what random actions, blind replay and the expert win in each panel: what a success rate is compared with."""
    path = folder / "floors.json"
    if path.exists() or config.panel.split == "train":
        return
    floors: dict[str, dict[str, Any]] = {}
    for name, world in worlds.items():
        found = audit(world, config.panel.split, limit=config.panel.limit, seed=config.seed)
        floors[name] = {
            tier: {"random": row.random, "blind_replay": row.replay, "expert": row.expert}
            for tier, row in found.tiers.items()
        }
    write_atomic(path, json.dumps(floors))
