"""`evolvent collect`: play tasks with an expert, at random or with a policy, and keep every episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from rich.console import Console

from evolvent.agents.base import Agent
from evolvent.agents.plain import Expert, Random
from evolvent.cli.console import rate
from evolvent.cli.names import needs_train, policy, worlds
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.rollout.collect import collect, trajectory_name
from evolvent.store.store import Store
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.engine.asks import Engine

__all__ = ["COMMAND", "Collect", "run"]


class Collect(OverWorlds):
    """Everything that can be chosen about `evolvent collect`."""

    agent: Literal["expert", "random", "policy"] = Field(default="expert", description="who plays")
    policy: str = Field(default="xs", description="for the agent policy: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/collect-N")
    split: Literal["train", "dev", "test"] = Field(default="train", description="whose tasks are played")
    tiers: tuple[str, ...] = Field(default=("seen",), description="the tiers that are played")
    limit: int = Field(default=200, ge=1, description="most tasks of a world and tier")
    samples: int = Field(default=1, ge=1, description="episodes per task")
    temperature: float = Field(default=1.0, ge=0, description="of the policy; 0: the likeliest token")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")


COMMAND = Command(
    "collect", "Play tasks with an expert, at random or with a policy; every episode is kept.", Collect, resumes=True
)


def run(words: Sequence[str], console: Console) -> int:
    """Collect episodes; returns the exit code: 1 where an episode could not be scored."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    starts = _starts(made, config)
    agent, engine = _player(made, config)
    folder = given.resume or new_folder("collect", config.to)
    record = Record("collect", config, config.seed)
    with Store.open(folder / "trajectories", writing=True) as store, recorded(folder, record):
        known = {found.id: found.success for found in store.trajectories()}
        todo = [start for start in starts if _name(start) not in known]
        played = collect(made, todo, agent, engine=engine, seed=config.seed, slots=config.slots, name=_name)
        results = [*known.values(), *_kept(played, store, Progress(console), len(todo))]
    unscored = sum(success is None for success in results)
    won = sum(map(bool, results))
    console.print(f"{len(results)} episodes, success {rate(won / max(1, len(results) - unscored))}, "
                  f"{unscored} not scored", soft_wrap=True)  # fmt: skip
    console.print(f"run {folder}", soft_wrap=True)
    return 1 if unscored else 0


def _kept(played: Iterator[Trajectory], store: Store, progress: Progress, count: int) -> Iterator[bool | None]:
    """Store every episode as it ends, show how far it is, and hand on how it went."""
    wins = scored = steps = 0
    with progress:
        progress.begin("collect", "collect", count)
        for number, trajectory in enumerate(played, 1):
            store.append(trajectory)
            wins, scored = wins + bool(trajectory.success), scored + (trajectory.success is not None)
            steps += len(trajectory.steps)
            share = {"success": wins / scored} if scored else {}
            progress.note({"episodes": number, "env_steps": steps, **share})
            yield trajectory.success
        progress.end()


def _name(start: Start) -> str:
    return trajectory_name(start, "collect")


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


def _player(worlds: Mapping[str, World], config: Collect) -> tuple[Agent, Engine | None]:
    if config.agent != "policy":
        return Expert() if config.agent == "expert" else Random(), None
    needs_train("evolvent collect --agent policy")
    import torch

    from evolvent.agents.language import LanguageAgent
    from evolvent.engine.asks import Sampling
    from evolvent.engine.local import LocalEngine

    torch.set_num_threads(config.threads)
    chosen = policy(config.policy, list(worlds.values()), seed=config.seed)
    sampling = Sampling(temperature=config.temperature)
    return LanguageAgent(chosen, sampling, max_tokens=config.max_tokens), LocalEngine(chosen, slots=config.slots)
