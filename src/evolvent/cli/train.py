"""`evolvent train DATA`: clone recorded episodes into a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from evolvent.cli.jobs import Job, opened
from evolvent.cli.names import policy, worlds
from evolvent.cli.progress import Planned
from evolvent.cli.record import Record, new_folder
from evolvent.cli.runs import store_folder
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.store.exchange import read_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory

__all__ = ["COMMAND", "Train", "run"]


class Train(OverWorlds):
    """Everything that can be chosen about `evolvent train`."""

    data: Path = Field(description="a run, or a file that `evolvent runs export` wrote as jsonl")
    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/train-N")
    threshold: float | None = Field(default=0.99, description="learn episodes above this reward; none: all of them")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")


COMMAND = Command("train", "Clone recorded episodes into a policy.", Train, main="data", resumes=True)


def run(words: Sequence[str], console: Console) -> int:
    """Train a policy on recorded episodes; returns the exit code."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    data = _chosen(config)
    strange = sorted({trajectory.task.world for trajectory in data} - set(made))
    if strange:
        more = [Problem(str(config.data), f"{len(strange) - 5} more unknown worlds")] if len(strange) > 5 else []
        raise ConfigError([unknown("world", name, made, where=str(config.data)) for name in strange[:5]] + more)
    folder = given.resume or new_folder("train", config.to)
    initial = policy(config.policy, list(made.values()), seed=config.seed)
    job = Job(
        folder, made, Record("train", config, config.seed, ("base",)), train=config.train,
        threads=config.threads, plan=(Planned("fit", config.train.tokens),),
    )  # fmt: skip
    console.print(f"{len(data)} episodes to learn", soft_wrap=True)
    with opened(job, console) as running:
        running.fit(initial, data, weighted_nll, tokens=config.train.tokens).save(folder / "model")
    console.print(f"model {folder / 'model'}", soft_wrap=True)
    return 0


def _chosen(config: Train) -> list[Trajectory]:
    """The episodes above the threshold; imported ones have no reward and are taken as they are."""
    file = config.data.is_file()
    every = read_jsonl(config.data) if file else Store.open(store_folder(config.data)).trajectories()
    floor = config.threshold
    data = [
        trajectory
        for trajectory in every
        if trajectory.error is None
        and (floor is None or trajectory.score.unit is None or trajectory.score.unit > floor)
    ]
    if not data:
        what = f"{config.data} holds no episode to learn above the reward {floor}"
        raise ConfigError([Problem("data", what, "lower --threshold, or collect more")])
    return data
