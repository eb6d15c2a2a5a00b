"""`evolvent collect`: play tasks with an expert, at random or with a policy, and keep every episode."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator
from rich.console import Console

from evolvent.cli.agent_options import PlayedByOverWorlds, Playing, kept, playing
from evolvent.cli.backends import HERE, Placed, placed
from evolvent.cli.console import rate
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import worlds
from evolvent.cli.settings import Command, read_given
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.rollout.collect import collect, trajectory_name
from evolvent.store.store import Store
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.scale.ray_players import Players

__all__ = ["COMMAND", "Collect", "run"]

_PREFIX = "collect"  # of the ids


class Collect(PlayedByOverWorlds, Placed):
    """Everything that can be chosen about `evolvent collect`."""

    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/collect-N")
    split: Literal["train", "dev", "test"] = Field(default="train", description="whose tasks are played")
    tiers: tuple[str, ...] = Field(default=("seen",), description="the tiers that are played")
    limit: int = Field(default=200, ge=1, description="most tasks of a world and tier")
    samples: int = Field(default=1, ge=1, description="episodes per task")

    @model_validator(mode="after")
    def _travels(self) -> Collect:
        if self.on != HERE and (self.agent == "endpoint" or self.shown.memory is not None):
            raise ValueError("--on is for the agents expert, random and policy, without a memory")
        return self


COMMAND = Command(
    "collect",
    "Play tasks with an expert, at random, with a policy or an endpoint; keep every episode.",
    Collect,
    resumes=True,
    free=("on",),
)


def run(words: Sequence[str], console: Console) -> int:
    """Collect episodes; returns the exit code: 1 where an episode could not be scored. `--experts`: a whole corpus."""
    if "--experts" in words:
        from evolvent.cli.collect_experts import run as corpus

        return corpus([word for word in words if word != "--experts"], console)
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    starts = _starts(made, config)
    with (
        playing(config, made, verb="collect") as by,
        placed(config.on, config.worlds, made, threads=config.threads) as players,
    ):
        folder = given.resume or new_folder("collect", config.to)
        record = Record("collect", config, config.seed)
        with Store.open(folder / "trajectories", writing=True) as store, recorded(folder, record):
            known = {found.id: found.success for found in store.trajectories()}
            todo = [start for start in starts if _name(start) not in known]
            with Progress(console) as progress, closing(_played(made, todo, by, config, players)) as played:
                new = [one.success for one in kept(played, store, progress, count=len(todo))]
    results = [*known.values(), *new]
    unscored = sum(success is None for success in results)
    won = sum(map(bool, results))
    console.print(
        f"{len(results)} episodes, success {rate(won / max(1, len(results) - unscored))}, {unscored} not scored",
        soft_wrap=True,
    )
    console.print(f"run {folder}", soft_wrap=True)
    return 1 if unscored else 0


def _played(
    worlds: Mapping[str, World], todo: Sequence[Start], by: Playing, config: Collect, players: Players | None
) -> Generator[Trajectory, None, None]:
    """The episodes, played here or on a cluster."""
    if players is None:
        return collect(worlds, todo, by.agent, engine=by.engine, seed=config.seed, slots=config.slots, name=_name)
    from evolvent.scale.ray_backend import collect_on

    return collect_on(players, todo, by.agent, seed=config.seed, slots=config.slots, prefix=_PREFIX)


def _name(start: Start) -> str:
    return trajectory_name(start, _PREFIX)


def _starts(worlds: Mapping[str, World], config: Collect) -> list[Start]:
    known = sorted({tier for world in worlds.values() for tier in world.tiers})
    problems = [unknown("tier", tier, known) for tier in config.tiers if tier not in known]
    tasks: list[Task] = []
    for world in worlds.values() if not problems else ():
        for tier in (tier for tier in config.tiers if tier in world.tiers):
            tasks += world.tasks(config.split, tier)[: config.limit]
    if not tasks and not problems:
        what = f"the panels {config.split}/{','.join(config.tiers)} are empty"
        problems.append(Problem("tiers", what, "choose another split or tier"))
    if problems:
        raise ConfigError(problems)
    return [Start(task, sample) for task in tasks for sample in range(config.samples)]
