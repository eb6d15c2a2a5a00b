"""`evolvent train mat`: a team learns to decide in sequence, or as what that is compared with, and is measured.

The run folder holds settings and state, the training's state (`training/`), the policy, `history.json`, the measured
episodes as trajectories, and `table.json`. A run goes on where its training was, and finished parts are not done again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator
from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.record import Record, new_folder, recorded
from evolvent.cli.registry import needs_train
from evolvent.cli.settings import Command, read_given
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import write_atomic
from evolvent.marl.updates import TeamUpdates
from evolvent.methods.mat import MAT, PRESETS
from evolvent.view.escape import plain

if TYPE_CHECKING:
    from evolvent.methods.mat import TrainedTeam
    from evolvent.trajectory import Task
    from evolvent.worlds.teams.base import TeamBatch
    from evolvent.worlds.teams.extras import ForeignWorld
    from evolvent.worlds.teams.games import GameWorld
    from evolvent.worlds.teams.particles import ParticleWorld
    from evolvent.worlds.teams.relay import RelayWorld
    from evolvent.worlds.teams.rescue import RescueWorld

    World = GameWorld | RelayWorld | RescueWorld | ParticleWorld

__all__ = ["COMMANDS", "FOREIGN", "TEAM_WORLDS", "TrainMat", "foreign_world", "run", "team_world"]

_GAMES = ("climbing", "penalty", "team", "distinct", "chain")
TEAM_WORLDS = (*_GAMES, "relay", "rescue", "spread", "hunt")
FOREIGN: Mapping[str, int] = {
    "mamujoco": 1000,
    "foraging": 50,
    "warehouse": 500,
    "particles": 25,
    "vmas": 100,
    "parallel": 1000,
}
"""The makers of `worlds.teams.extras` (extra `marl`), and the steps of an episode where no horizon is given."""

_FILMS = 3  # episodes of the report
_SMALL = MAT(
    rows=64, steps=20, decisions=200_000, update=TeamUpdates(lr=5e-4, epochs=10, minibatches=4, clip=0.1, entropy=0.01)
)


class TrainMat(Config):
    """Everything that can be chosen about `evolvent train mat`."""

    world: str = Field(
        default="rescue",
        description=f"the team's world: {', '.join(TEAM_WORLDS)}; of the extra marl: {', '.join(FOREIGN)}",
    )
    settings: tuple[str, ...] = Field(
        default=(), description="of a world of the extra, as name=value: scenario=Ant,parts=4x2"
    )
    horizon: int | None = Field(default=None, ge=1, description="steps of its episodes; none: the usual number")
    disabled: tuple[int, ...] = Field(default=(), description="its agents whose actions do nothing, from 0")
    workers: int = Field(default=0, ge=0, description="processes that it is played in; 0: this one")
    tier: Literal["seen", "longer"] = Field(default="seen", description="whose training tasks are learned on")
    agents: int | None = Field(
        default=None,
        ge=1,
        description="only tasks of so many agents; none: of every size; in a world of the extra, how many there are",
    )
    start: Path | None = Field(default=None, description="a run of train mat, or a policy's folder, to begin from")
    episodes: int = Field(default=128, ge=1, description="that the policy is measured on afterwards")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/mat-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    mat: MAT = Field(default_factory=lambda: _SMALL.model_copy(), description="the method")

    @field_validator("world")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (*TEAM_WORLDS, *FOREIGN):
            problem = unknown("world", name, (*TEAM_WORLDS, *FOREIGN))
            raise ValueError(f"{problem.what} ({problem.hint})")
        return name

    @model_validator(mode="after")
    def _foreign(self) -> TrainMat:
        """What only worlds of the extra take is refused for others; theirs is checked without their packages."""
        if self.world in FOREIGN:
            foreign_world(self)
            return self
        given = [name for name in ("settings", "horizon", "disabled", "workers") if getattr(self, name)]
        if given:
            raise ConfigError(
                [Problem(name, f"{self.world} takes none", f"for {', '.join(FOREIGN)}") for name in given]
            )
        return self


COMMANDS: dict[str, Command[Any]] = {
    "mat": Command(
        "train mat",
        "A team decides in sequence (MAT); also MAT-Dec, MAPPO and HAPPO on the same loop.",
        TrainMat,
        main="world",
        presets={"small": {}, **{name: {"mat": dict(given)} for name, given in PRESETS.items()}},
        resumes=True,
        free=("threads", "workers", "mat.decisions", "mat.keep_every"),
    ),
}
"""The command, for `evolvent train`."""


def team_world(name: str) -> World:
    """A team world by its name; ConfigError for one that there is not."""
    from evolvent.worlds.teams.games import GameWorld
    from evolvent.worlds.teams.particles import ParticleWorld
    from evolvent.worlds.teams.relay import RelayWorld
    from evolvent.worlds.teams.rescue import RescueWorld

    makers: dict[str, Callable[[], World]] = {
        **{game: partial(GameWorld, game) for game in _GAMES},
        "relay": RelayWorld,
        "rescue": RescueWorld,
        "spread": partial(ParticleWorld, "spread"),
        "hunt": partial(ParticleWorld, "hunt"),
    }
    if name not in makers:
        raise ConfigError([unknown("world", name, makers)])
    return makers[name]()


def foreign_world(config: TrainMat) -> ForeignWorld:
    """The world of the extra `marl` that is asked for; its package is not imported.

    Raises:
        ConfigError: settings that it does not have or that are no `name=value`, all at once.
    """
    from evolvent.worlds.teams.extras import ForeignWorld

    wrong = [
        Problem("settings", f"got {one!r}", "expected name=value, such as parts=4x2")
        for one in config.settings
        if not one.partition("=")[0] or "=" not in one
    ]
    if wrong:
        raise ConfigError(wrong)
    settings = {name: _value(text) for name, _, text in (one.partition("=") for one in config.settings)}
    if config.agents is not None:
        settings["agents"] = config.agents
    row = {"disabled": list(config.disabled)} if config.disabled else None
    return ForeignWorld(config.world, horizon=config.horizon or FOREIGN[config.world], settings=settings, row=row)


def _value(text: str) -> Any:
    """A JSON value where it is one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _batch(config: TrainMat, split: str, rows: int) -> TeamBatch:
    """Episodes of the asked tasks, side by side; MissingExtra names the extra of a package that is not there."""
    tasks = _tasks(config, split)
    if config.world not in FOREIGN:
        return team_world(config.world).batch(tasks, rows)
    from evolvent.rollout.team_workers import ProcessRows
    from evolvent.worlds.teams.extras import make_row

    host = ProcessRows(make_row, rows, workers=config.workers) if config.workers else None
    return foreign_world(config).batch(tasks, rows, host=host)


def run(words: Sequence[str], console: Console) -> int:
    """Train a team and measure it; returns the exit code. `words` begin with "mat"."""
    given = read_given(COMMANDS[words[0]], words[1:], console)
    if given is None:
        return 0
    config: TrainMat = given.config
    needs_train("evolvent train mat")
    import torch

    torch.set_num_threads(config.threads)
    with closing(_batch(config, "train", config.mat.rows)) as batch:
        folder = given.resume or new_folder("mat", config.to)
        console.print(plain(f"run {folder}, {len(batch.tasks)} tasks of {config.world}"), soft_wrap=True)
        with recorded(folder, Record("train mat", config, config.mat.seed, (config.mat.kind,), "mat")):
            trained = _trained(folder, config, batch, console)
            _measure(folder, config, trained, console)
    console.print(plain(f"policy {folder / 'policy'}"), soft_wrap=True)
    return 0


def _tasks(config: TrainMat, split: str) -> list[Any]:
    """Tasks of the world, of the asked size, of the first panel that has such: for training never "test" unless there
    is no other, and for measuring that one unless there is none (then the development and training panels stand in)."""
    world = foreign_world(config) if config.world in FOREIGN else team_world(config.world)
    if config.tier not in world.tiers:
        raise ConfigError([unknown("tier", config.tier, world.tiers)])
    if config.world in FOREIGN:
        return list(world.tasks(split, config.tier))  # one task a split; how many agents is a setting
    panels = ("train", "dev", "test") if split == "train" else ("test", "dev", "train")
    found = [world.tasks(name, config.tier) for name in panels]
    for tasks in found:
        chosen = [task for task in tasks if config.agents in (None, _team_size(task))]
        if chosen:
            return chosen
    raise ConfigError(
        f"{config.world} has no such tasks",
        value=f"{config.agents} agents, tier {config.tier}",
        expected=f"one of {sorted({_team_size(task) for tasks in found for task in tasks})} agents",
        hint=f"tiers: {', '.join(world.tiers)}",
    )


def _team_size(task: Task) -> int:
    """How many agents a task is for: the first word of its kind."""
    return int(task.kind.split()[0])


def _trained(folder: Path, config: TrainMat, batch: TeamBatch, console: Console) -> TrainedTeam:
    """Train, or take up a training; the policy and its history are kept."""
    from evolvent.methods.mat import mat
    from evolvent.models.team_files import save_team

    start = config.start
    if start is not None and (start / "policy").is_dir():
        start = start / "policy"

    def told(row: Mapping[str, float]) -> None:
        if "episode_return" in row:
            console.print(f"{row['decisions']:12,.0f}  return {row['episode_return']:8.3f}", soft_wrap=True)

    trained = mat(config.mat, batch, start=start, folder=folder / "training", told=told)
    save_team(trained.policy.model, folder / "policy")
    write_atomic(folder / "history.json", json.dumps(trained.history, indent=1))
    return trained


def _measure(folder: Path, config: TrainMat, trained: TrainedTeam, console: Console) -> None:
    """Play the test panel greedily; keep the episodes, the row of the table and the page, and print the row."""
    from evolvent.marl.policy import TeamPolicy
    from evolvent.rollout.teams import film, outcome_row, play_episodes
    from evolvent.store.store import Store
    from evolvent.view.teams import team_page
    from evolvent.worlds.teams.base import Drawn

    world = foreign_world(config) if config.world in FOREIGN else team_world(config.world)
    tasks = _tasks(config, "test")
    decisions = int(trained.history[-1]["decisions"])
    with closing(_batch(config, "test", min(config.mat.rows, config.episodes))) as batch:
        policy = TeamPolicy(trained.policy.model, batch.spec)
        found = play_episodes(batch, policy, config.episodes, stage=f"measured-{decisions}")
        films = [
            (tasks[number].kind, film(batch, policy, number))
            for number in range(min(_FILMS, len(tasks)))
            if isinstance(batch, Drawn)
        ]
    with Store.open(folder / "trajectories", writing=True) as store:
        known = set(store.ids())
        for trajectory in found:
            if trajectory.id not in known:
                store.append(trajectory)
    row = outcome_row(config.mat.kind, world, found)
    write_atomic(folder / "table.json", json.dumps([row], indent=1))
    facts = {
        "world": config.world,
        "tasks": f"{len(tasks)} of the {tasks[0].split} panel",
        "seed": str(config.mat.seed),
        "decisions": f"{decisions:,}",
    }
    page = team_page(
        {"title": f"{config.mat.kind} on {config.world}", "facts": facts, "rows": [row], "history": trained.history},
        films,
    )
    write_atomic(folder / "report.html", page)
    console.print(
        table(
            console,
            ("policy", "world", "episodes", "return", "success"),
            [
                (
                    config.mat.kind,
                    config.world,
                    str(row["episodes"]),
                    f"{row['return'][0]:.3f}",
                    f"{row['success'][0]:.1%}" if row["success"] else "-",
                )
            ],
            numbers=("episodes", "return", "success"),
        )
    )
    console.print(plain(f"report {folder / 'report.html'}"), soft_wrap=True)
