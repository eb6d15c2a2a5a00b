"""`evolvent collect --experts`: a corpus of expert demonstrations of all worlds, in files to share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from evolvent.agents.plain import Expert
from evolvent.cli.setup.agent_options import store_episodes
from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import load_worlds
from evolvent.cli.setup.settings import Command, WorldsConfig, parse_command
from evolvent.cli.terminal.progress import Progress
from evolvent.curate.corpus import FileRow, write_eval, write_manifest, write_part
from evolvent.errors import ConfigError, Problem
from evolvent.rollout.episode import collect
from evolvent.store.store import Store
from evolvent.trajectory import Start, Task, trajectory_name
from evolvent.view.escape import show_hidden
from evolvent.worlds.base import World
from evolvent.worlds.goal_templates import WORDINGS
from evolvent.worlds.wording import Worded

__all__ = ["COMMAND", "CorpusConfig", "run"]


class CorpusConfig(WorldsConfig):
    """Settings of `evolvent collect --experts`."""

    worlds: tuple[str, ...] = Field(default=("all",), description="the worlds to act in; all: every embedded one")
    output_dir: Path | None = Field(default=None, description="folder of the corpus; none: the next runs/corpus-N")
    base: int = Field(default=200, ge=1, description="demonstrations of a world in base, all of its first tier")
    large: int = Field(default=600, ge=1, description="demonstrations of a world and trained tier in large")
    expanded: int = Field(default=200, ge=0, description="tasks of a world told in other words; 0: none")
    times: int = Field(default=3, ge=1, description="how often each is told, as far as there are forms")
    eval: int = Field(default=200, ge=1, description="tasks of a world and tier to measure on")
    slots: int = Field(default=192, ge=1, description="episodes open at once")


COMMAND = Command(
    "collect --experts",
    "Play what the experts of all worlds do and write it as a corpus in AgentGym's form.",
    CorpusConfig,
    resumes=True,
)


def run(argv: Sequence[str], console: Console) -> int:
    """Writes a corpus; returns the exit code: 1 where an expert failed; failed episodes are left out."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config = args.config
    worlds_by_name = load_worlds(config.worlds)
    if config.large < config.base:
        raise ConfigError(
            [
                Problem(
                    "large",
                    f"got {config.large}, expected at least {config.base}, the value of base",
                    "the large set contains the base set",
                )
            ]
        )
    folder = args.resume or choose_run_folder("corpus", config.output_dir)
    files: list[FileRow] = []
    all_worlds: list[World] = []
    num_failed = 0
    with Store.open(folder / "trajectories", writing=True) as store:
        with record_run(folder, RunRecord(COMMAND.verb, config, 0)), Progress(console) as progress:
            success_by_id = {trajectory.id: trajectory.success for trajectory in store.trajectories()}
            for world in _expand_worlds(worlds_by_name, config):
                all_worlds.append(world)
                remaining_starts = [
                    start
                    for start in map(Start, _list_tasks(world, config))
                    if trajectory_name(start) not in success_by_id
                ]
                episode_stream = collect(
                    {world.name: world}, remaining_starts, Expert(), engine=None, slots=config.slots
                )
                success_by_id |= {
                    trajectory.id: trajectory.success
                    for trajectory in store_episodes(
                        episode_stream, store, progress, count=len(remaining_starts), label=world.name
                    )
                }
            for world in all_worlds:
                files += _write_files(folder, world, store, config=config)
            num_failed = sum(not success for success in success_by_id.values())
            digest = write_manifest(
                folder, files, worlds=all_worlds, settings=config.model_dump(mode="json", exclude={"output_dir"})
            )
    rows = sum(row.rows for row in files)
    console.print(f"{len(files)} files, {rows:,} rows, digest {digest}", soft_wrap=True)
    if num_failed:
        console.print(f"{num_failed} episodes of experts did not succeed and are left out", soft_wrap=True)
    console.print(show_hidden(f"corpus {folder}"), soft_wrap=True)
    return 1 if num_failed else 0


def _expand_worlds(worlds_by_name: Mapping[str, World], config: CorpusConfig) -> Iterator[World]:
    """Yields the worlds, then reworded copies of those that have rewordings."""
    yield from worlds_by_name.values()
    for name, world in worlds_by_name.items():
        if config.expanded and name in WORDINGS:
            yield Worded(world, WORDINGS[name], times=config.times)


def _list_tasks(world: World, config: CorpusConfig) -> list[Task]:
    """Returns the tasks that the expert of a world plays: those of its largest part."""
    if isinstance(world, Worded):
        return list(world.tasks("train", world.tiers[0])[: config.expanded * world.times])
    return [task for tier in world.tiers for task in world.tasks("train", tier)[: config.large]]


def _write_files(folder: Path, world: World, store: Store, *, config: CorpusConfig) -> Iterator[FileRow]:
    """Writes the files of a world and yields their rows for the manifest."""
    trajectory_names = [trajectory_name(Start(task)) for task in _list_tasks(world, config)]
    successful = {
        trajectory.id: trajectory
        for trajectory in store.trajectories(filters={"world": world.name})
        if trajectory.success
    }
    solved = [successful[name] for name in trajectory_names if name in successful]
    if isinstance(world, Worded):
        yield write_part(folder, "expanded", world, trajectories=solved)
        return
    base_part = [trajectory for trajectory in solved if trajectory.task.tier == world.tiers[0]][: config.base]
    yield write_part(folder, "base", world, trajectories=base_part)
    yield write_part(folder, "large", world, trajectories=solved)
    tasks = [task for tier in world.tiers for task in world.tasks("test", tier)[: config.eval]]
    yield write_eval(folder, world, tasks=tasks)
