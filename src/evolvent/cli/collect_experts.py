"""`evolvent collect --experts`: a corpus of what the experts of all worlds do, in files to share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from evolvent.agents.plain import Expert
from evolvent.cli.agent_options import kept
from evolvent.cli.progress import Progress
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import worlds
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.curate.corpus import FileRow, write_eval, write_manifest, write_part
from evolvent.errors import ConfigError, Problem
from evolvent.rollout.collect import collect
from evolvent.store.store import Store
from evolvent.trajectory import Start, Task, trajectory_name
from evolvent.view.escape import plain
from evolvent.worlds.base import World
from evolvent.worlds.goal_templates import WORDINGS
from evolvent.worlds.wording import Worded

__all__ = ["COMMAND", "Corpus", "run"]


class Corpus(OverWorlds):
    """Everything that can be chosen about `evolvent collect --experts`."""

    worlds: tuple[str, ...] = Field(default=("all",), description="the worlds to act in; all: every embedded one")
    to: Path | None = Field(default=None, description="folder of the corpus; none: the next runs/corpus-N")
    base: int = Field(default=200, ge=1, description="demonstrations of a world in base, all of its first tier")
    large: int = Field(default=600, ge=1, description="demonstrations of a world and trained tier in large")
    expanded: int = Field(default=200, ge=0, description="tasks of a world told in other words; 0: none")
    times: int = Field(default=3, ge=1, description="how often each is told, as far as there are forms")
    eval: int = Field(default=200, ge=1, description="tasks of a world and tier to measure on")
    slots: int = Field(default=192, ge=1, description="episodes open at once")


COMMAND = Command(
    "collect --experts",
    "Play what the experts of all worlds do and write it as a corpus in AgentGym's form.",
    Corpus,
    resumes=True,
)


def run(words: Sequence[str], console: Console) -> int:
    """Write a corpus; returns the exit code: 1 where an expert failed, its episodes are left out then."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    made = worlds(config.worlds)
    if config.large < config.base:
        raise ConfigError([Problem("large", f"got {config.large}, less than base {config.base}", "large holds base")])
    folder = given.resume or new_folder("corpus", config.to)
    files: list[FileRow] = []
    every: list[World] = []
    failed = 0
    with Store.open(folder / "trajectories", writing=True) as store:
        with recorded(folder, Record(COMMAND.verb, config, 0)), Progress(console) as progress:
            won = {one.id: one.success for one in store.trajectories()}
            for world in _told(made, config):
                every.append(world)
                todo = [start for start in map(Start, _tasks(world, config)) if trajectory_name(start) not in won]
                played = collect({world.name: world}, todo, Expert(), engine=None, slots=config.slots)
                won |= {one.id: one.success for one in kept(played, store, progress, count=len(todo), label=world.name)}
            for world in every:
                files += _files(folder, world, store, config=config)
            failed = sum(not success for success in won.values())
            digest = write_manifest(
                folder, files, worlds=every, settings=config.model_dump(mode="json", exclude={"to"})
            )
    rows = sum(row.rows for row in files)
    console.print(f"{len(files)} files, {rows:,} rows, digest {digest}", soft_wrap=True)
    if failed:
        console.print(f"{failed} episodes of experts did not succeed and are left out", soft_wrap=True)
    console.print(plain(f"corpus {folder}"), soft_wrap=True)
    return 1 if failed else 0


def _told(made: Mapping[str, World], config: Corpus) -> Iterator[World]:
    """The worlds, then those that can be told in other words."""
    yield from made.values()
    for name, world in made.items():
        if config.expanded and name in WORDINGS:
            yield Worded(world, WORDINGS[name], times=config.times)


def _tasks(world: World, config: Corpus) -> list[Task]:
    """What the expert of a world plays: the tasks of its largest part."""
    if isinstance(world, Worded):
        return list(world.tasks("train", world.tiers[0])[: config.expanded * world.times])
    return [task for tier in world.tiers for task in world.tasks("train", tier)[: config.large]]


def _files(folder: Path, world: World, store: Store, *, config: Corpus) -> Iterator[FileRow]:
    """Write the files of a world."""
    wanted = [trajectory_name(Start(task)) for task in _tasks(world, config)]
    found = {one.id: one for one in store.trajectories(where={"world": world.name}) if one.success}
    solved = [found[name] for name in wanted if name in found]
    if isinstance(world, Worded):
        yield write_part(folder, "expanded", world, trajectories=solved)
        return
    first = [one for one in solved if one.task.tier == world.tiers[0]][: config.base]
    yield write_part(folder, "base", world, trajectories=first)
    yield write_part(folder, "large", world, trajectories=solved)
    tasks = [task for tier in world.tiers for task in world.tasks("test", tier)[: config.eval]]
    yield write_eval(folder, world, tasks=tasks)
