"""`evolvent train mat`: a team learns to decide in sequence, or by a baseline of that method, and is measured.

The run folder holds settings and state, the training's state (`training/`), the policy, `history.json`, the
measured episodes as trajectories, and `table.json`. A run resumes where its training stopped; finished parts
are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

from pydantic import Field, field_validator, model_validator
from rich.console import Console

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.setup.settings import AnyCommand, Command, DeviceConfig, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import PRESETS, MATConfig
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.marl.policy import TeamPolicy
    from evolvent.methods.mat import TrainedTeam
    from evolvent.trajectory import JsonObject, Task, Trajectory
    from evolvent.worlds.teams.base import TeamBatch
    from evolvent.worlds.teams.battle import BattleWorld
    from evolvent.worlds.teams.battles import BattlesWorld
    from evolvent.worlds.teams.extras import ForeignWorld
    from evolvent.worlds.teams.games import GameWorld
    from evolvent.worlds.teams.particles import ParticleWorld
    from evolvent.worlds.teams.relay import RelayWorld
    from evolvent.worlds.teams.rescue import RescueWorld

    World = GameWorld | RelayWorld | RescueWorld | ParticleWorld | BattleWorld | BattlesWorld

__all__ = [
    "COMMANDS",
    "FOREIGN_WORLDS",
    "TEAM_WORLDS",
    "TrainMATConfig",
    "make_foreign_world",
    "make_team_world",
    "run",
]

_FEW_TASKS = 20  # training tasks below which a team is told to know these alone
_GAMES = ("climbing", "penalty", "team", "distinct", "chain")
TEAM_WORLDS = (*_GAMES, "relay", "rescue", "spread", "hunt", "battle", "battles")
_OPTION_WORLDS = ("battle", "battles", "pettingzoo")  # an option follows their name after a colon
FOREIGN_WORLDS: Mapping[str, int] = {
    "mamujoco": 1000,
    "foraging": 50,
    "warehouse": 500,
    "particles": 25,
    "vmas": 100,
    "football": 400,
    "hands": 200,
    "parallel": 1000,
    "pettingzoo": 1000,
}
"""The makers of `worlds.teams.extras` (extra `marl`), and the steps of an episode where no horizon is given."""

_RECORDED_EPISODES = 3  # episodes of the report
_SMALL_CONFIG = MATConfig(
    rows=64,
    steps=20,
    decisions=200_000,
    update=TeamUpdateConfig(lr=5e-4, ppo_epochs=10, minibatches=4, clip_range=0.1, entropy_coef=0.01),
)


class TrainMATConfig(DeviceConfig):
    """Settings of `evolvent train mat`."""

    world: str = Field(
        default="rescue",
        description=f"the team's world: {', '.join(TEAM_WORLDS)}; of the extra marl: {', '.join(FOREIGN_WORLDS)}",
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
    held_out: tuple[str, ...] = Field(
        default=(), description="layouts of battles that the trained team goes on with (few-shot, world battles:...)"
    )
    few_shot_decisions: int = Field(default=20_000, ge=1, description="decisions on each held-out layout")
    start: Path | None = Field(default=None, description="a run of train mat, or a policy's folder, to begin from")
    episodes: int = Field(default=128, ge=1, description="that the policy is measured on afterwards")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/mat-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    mat: MATConfig = Field(default_factory=lambda: _SMALL_CONFIG.model_copy(), description="the method")

    @field_validator("world")
    @classmethod
    def _check_world(cls, name: str) -> str:
        base, colon, _ = name.partition(":")
        if base not in (*TEAM_WORLDS, *FOREIGN_WORLDS) or (colon and base not in _OPTION_WORLDS):
            problem = unknown_name_problem("world", name, (*TEAM_WORLDS, *FOREIGN_WORLDS))
            raise ValueError(problem.describe())
        if base in ("battle", "battles"):
            make_team_world(name)  # refuses an unknown layout
        return name

    @model_validator(mode="after")
    def _check_held_out(self) -> TrainMATConfig:
        if not self.held_out:
            return self
        if self.world.partition(":")[0] != "battles":
            hint = "train on battles:LAYOUT,LAYOUT"
            raise ConfigError([Problem("held_out", f"world {self.world} has no layouts in one form", hint)])
        trained = set(_list_layouts(self.world))
        problems = [
            Problem("held_out", f"{name!r} is a layout of the training", "leave it out of one of them")
            for name in self.held_out
            if name in trained
        ]
        if problems:
            raise ConfigError(problems)
        make_team_world(f"battles:{','.join(self.held_out)}")  # refuses unknown layouts
        return self

    @model_validator(mode="after")
    def _check_foreign_settings(self) -> TrainMATConfig:
        """Checks settings of worlds of the extra without importing their packages, and refuses them for other
        worlds.
        """
        if _is_foreign(self.world):
            make_foreign_world(self)
            return self
        foreign_settings = [name for name in ("settings", "horizon", "disabled", "workers") if getattr(self, name)]
        if foreign_settings:
            raise ConfigError(
                [
                    Problem(name, f"world {self.world} does not take it", f"use it with {', '.join(FOREIGN_WORLDS)}")
                    for name in foreign_settings
                ]
            )
        return self


COMMANDS: dict[str, AnyCommand] = {
    "mat": Command(
        "train mat",
        "A team decides in sequence (MAT); also MAT-Dec, MAPPO and HAPPO on the same loop.",
        TrainMATConfig,
        main_field="world",
        presets={"small": {}, **{name: {"mat": dict(preset)} for name, preset in PRESETS.items()}},
        resumes=True,
        free_settings=("threads", "workers", "device", "mat.decisions", "mat.keep_every"),
    ),
}
"""The command, for `evolvent train`."""


def make_team_world(name: str) -> World:
    """Makes a team world by its name, a battle by `battle:LAYOUT`, or battles of several layouts in one form by
    `battles:LAYOUT,LAYOUT`; raises ConfigError for an unknown name.
    """
    from evolvent.worlds.teams.battle import BattleWorld
    from evolvent.worlds.teams.battles import BattlesWorld
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
        "battle": BattleWorld,
        "battles": BattlesWorld,
    }
    base, colon, layout = name.partition(":")
    if base == "battle" and colon:
        return BattleWorld(layout)
    if base == "battles" and colon:
        return BattlesWorld(_list_layouts(name))
    if name not in makers:
        raise ConfigError([unknown_name_problem("world", name, makers)])
    return makers[name]()


def make_foreign_world(config: TrainMATConfig) -> ForeignWorld:
    """Makes the configured world of the extra `marl`; its package is not imported.

    Raises:
        ConfigError: settings that it does not have or that are not `name=value`, all at once.
    """
    from evolvent.worlds.teams.extras import ForeignWorld

    problems = [
        Problem("settings", f"got {setting!r}, expected name=value, such as parts=4x2")
        for setting in config.settings
        if not setting.partition("=")[0] or "=" not in setting
    ]
    if problems:
        raise ConfigError(problems)
    settings = {name: _parse_value(text) for name, _, text in (setting.partition("=") for setting in config.settings)}
    if config.agents is not None:
        settings["agents"] = config.agents
    row = {"disabled": list(config.disabled)} if config.disabled else None
    maker, _, option = config.world.partition(":")
    if maker == "pettingzoo":
        settings |= _parse_pettingzoo(option)
    return ForeignWorld(maker, horizon=config.horizon or FOREIGN_WORLDS[maker], settings=settings, row=row)


def _list_layouts(world: str) -> tuple[str, ...]:
    """Lists the layouts of `battles:LAYOUT,LAYOUT`, or all.

    >>> _list_layouts("battles:3m,8m"), _list_layouts("battles")
    (('3m', '8m'), ('3m', '8m', '2s3z', '3s5z', 'MMM2'))
    """
    from evolvent.worlds.teams.battle import LAYOUTS

    _, colon, names = world.partition(":")
    return tuple(names.split(",")) if colon else tuple(LAYOUTS)


def _is_foreign(world: str) -> bool:
    return world.partition(":")[0] in FOREIGN_WORLDS


def _parse_pettingzoo(option: str) -> dict[str, Any]:
    """Parses `ID?key=value&...`: the keys are arguments of the environment.

    >>> _parse_pettingzoo("mpe2.simple_spread_v3?N=4")
    {'id': 'mpe2.simple_spread_v3', 'arguments': {'N': 4}}
    """
    env_id, _, query = option.partition("?")
    if not env_id:
        hint = "for example pettingzoo:butterfly/knights_archers_zombies-v11"
        raise ConfigError([Problem("world", "pettingzoo needs the id of an environment", hint)])
    arguments = {name: _parse_value(text) for name, text in parse_qsl(query, keep_blank_values=True)}
    return {"id": env_id, "arguments": arguments}


def _parse_value(text: str) -> Any:
    """Parses a JSON value; other texts are returned unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _make_batch(config: TrainMATConfig, split: str, rows: int) -> TeamBatch:
    """Makes a batch of simultaneous episodes of the configured tasks; MissingExtra names the extra of a missing
    package.
    """
    tasks = _list_tasks(config, split)
    if not _is_foreign(config.world):
        return make_team_world(config.world).batch(tasks, rows)
    from evolvent.rollout.team_workers import ProcessRows
    from evolvent.worlds.teams.extras import make_row

    host = ProcessRows(make_row, rows, workers=config.workers) if config.workers else None
    return make_foreign_world(config).batch(tasks, rows, host=host)


def run(argv: Sequence[str], console: Console) -> int:
    """Trains a team and measures it; returns the exit code. `argv` begins with "mat"."""
    args = parse_command(COMMANDS[argv[0]], argv[1:], console)
    if args is None:
        return 0
    config: TrainMATConfig = args.config
    require_train_extra("evolvent train mat")
    import torch

    from evolvent.models.placement import find_device

    torch.set_num_threads(config.threads)
    find_device(config.device)
    with closing(_make_batch(config, "train", config.mat.rows)) as batch:
        folder = args.resume or choose_run_folder("mat", config.output_dir)
        console.print(show_hidden(f"run {folder}, {len(batch.tasks)} tasks of {config.world}"), soft_wrap=True)
        with record_run(folder, RunRecord("train mat", config, config.mat.seed, (config.mat.kind,), "mat")):
            trained = _train_team(folder, config, batch, console)
            held_out_rows = _go_on_with_held_out(folder, config, console)
            _measure_team(folder, config, trained, held_out_rows, console)
            _print_few_tasks(batch.tasks, _list_tasks(config, "test"), console)
    console.print(show_hidden(f"policy {folder / 'policy'}"), soft_wrap=True)
    return 0


def _print_few_tasks(learned: Sequence[Any], test_tasks: Sequence[Any], console: Console) -> None:
    """Says so where a team has learned on few tasks and was measured on others."""
    unseen = {task.id for task in test_tasks} - {task.id for task in learned}
    if unseen and len(learned) < _FEW_TASKS:
        line = f"{len(unseen)} of {len(test_tasks)} test tasks are not among the {len(learned)} training tasks,"
        line += " which are few"
        console.print(f"{line}: success in training does not carry over to them", soft_wrap=True)


def _list_tasks(config: TrainMATConfig, split: str) -> list[Any]:
    """Lists tasks of the world with the configured team size, from the first panel that has any.

    Training prefers the training and development panels to the test panel; the measurement prefers the test panel.
    """
    world = make_foreign_world(config) if _is_foreign(config.world) else make_team_world(config.world)
    if config.tier not in world.tiers:
        raise ConfigError([unknown_name_problem("tier", config.tier, world.tiers)])
    if _is_foreign(config.world):
        return list(world.tasks(split, config.tier))  # one task a split; how many agents is a setting
    panels = ("train", "dev", "test") if split == "train" else ("test", "dev", "train")
    panel_tasks = [world.tasks(name, config.tier) for name in panels]
    for tasks in panel_tasks:
        matching = [task for task in tasks if config.agents in (None, _parse_team_size(task))]
        if matching:
            return matching
    raise ConfigError(
        f"world {config.world} has no tasks of this team size and tier",
        value=f"{config.agents} agents, tier {config.tier}",
        expected=f"one of {sorted({_parse_team_size(task) for tasks in panel_tasks for task in tasks})} agents",
        hint=f"tiers: {', '.join(world.tiers)}",
    )


def _parse_team_size(task: Task) -> int:
    """Parses the number of agents of a task: the first word of its kind."""
    return int(task.kind.split()[0])


def _train_team(folder: Path, config: TrainMATConfig, batch: TeamBatch, console: Console) -> TrainedTeam:
    """Trains or resumes the team; saves the policy and its history."""
    from evolvent.methods.mat import mat
    from evolvent.models.team_files import save_team

    start = config.start
    if start is not None and (start / "policy").is_dir():
        start = start / "policy"

    def print_return(row: Mapping[str, float]) -> None:
        if "episode_return" in row:
            console.print(f"{row['decisions']:12,.0f}  return {row['episode_return']:8.3f}", soft_wrap=True)

    trained = mat(config.mat, batch, start=start, folder=folder / "training", on_row=print_return, device=config.device)
    save_team(trained.policy.model, folder / "policy")
    write_atomic(folder / "history.json", json.dumps(trained.history, indent=1))
    return trained


def _go_on_with_held_out(folder: Path, config: TrainMATConfig, console: Console) -> list[JsonObject]:
    """Trains the policy on with few decisions on each held-out layout, beside one from scratch; returns table rows.

    Each layout gives three rows: the policy as it is, after the few decisions, and one that had these alone. Finished
    layouts are kept in `few_shot.json`.
    """
    from evolvent.marl.policy import TeamPolicy, team_shape
    from evolvent.methods.mat import mat
    from evolvent.models.team_files import load_team

    path, start = folder / "few_shot.json", folder / "policy"
    rows_by_layout: dict[str, list[JsonObject]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for layout in config.held_out:
        if layout in rows_by_layout:
            continue
        few = config.mat.model_copy(update={"decisions": config.few_shot_decisions})
        held_out = config.model_copy(update={"world": f"battles:{layout}", "mat": few})
        policies: dict[str, TeamPolicy] = {}
        with closing(_make_batch(held_out, "train", few.rows)) as batch:
            shape = team_shape(batch.spec, few.kind, **_shape_settings(few))
            policies["zero-shot"] = TeamPolicy(load_team(start, expected=shape), batch.spec)
            for name, beginning in (("few-shot", start), ("scratch", None)):
                console.print(show_hidden(f"{layout}: {name}, {few.decisions:,} decisions"), soft_wrap=True)
                state = folder / "few_shot" / layout / name
                policies[name] = mat(few, batch, start=beginning, folder=state, device=config.device).policy
        rows_by_layout[layout] = [
            _measure_policy(held_out, policy, f"{few.kind}, {name}", stage=f"{layout}-{name}")[0]
            for name, policy in policies.items()
        ]
        write_atomic(path, json.dumps(rows_by_layout, indent=1))
    return [row for layout in config.held_out for row in rows_by_layout[layout]]


def _shape_settings(config: MATConfig) -> dict[str, int | bool]:
    """Returns the settings of a method that belong to its network."""
    prefix_values = config.update.credit == "part"
    settings: dict[str, int | bool] = {name: getattr(config, name) for name in ("width", "heads", "blocks", "share")}
    return {**settings, "prefix_values": prefix_values}


def _measure_policy(
    config: TrainMATConfig, policy: TeamPolicy, name: str, *, stage: str
) -> tuple[JsonObject, Sequence[Trajectory]]:
    """Plays the test panel greedily; returns a row of the table and the episodes."""
    from evolvent.marl.policy import TeamPolicy
    from evolvent.rollout.teams import outcome_row, play_episodes

    world = make_foreign_world(config) if _is_foreign(config.world) else make_team_world(config.world)
    with closing(_make_batch(config, "test", min(config.mat.rows, config.episodes))) as batch:
        player = TeamPolicy(policy.model, batch.spec)
        episodes = play_episodes(batch, player, config.episodes, stage=stage)
    return {**outcome_row(name, world, episodes), "world": config.world}, episodes


def _measure_team(
    folder: Path,
    config: TrainMATConfig,
    trained: TrainedTeam,
    held_out_rows: Sequence[JsonObject],
    console: Console,
) -> None:
    """Plays the test panel greedily; writes the episodes, the table and the page, and prints the table."""
    from evolvent.marl.policy import TeamPolicy
    from evolvent.rollout.teams import outcome_row, play_episodes, record_scenes
    from evolvent.store.store import Store
    from evolvent.view.teams import team_page
    from evolvent.worlds.teams.base import SupportsScenes

    world = make_foreign_world(config) if _is_foreign(config.world) else make_team_world(config.world)
    tasks = _list_tasks(config, "test")
    decisions = int(trained.history[-1]["decisions"])
    with closing(_make_batch(config, "test", min(config.mat.rows, config.episodes))) as batch:
        policy = TeamPolicy(trained.policy.model, batch.spec)
        episodes = play_episodes(batch, policy, config.episodes, stage=f"measured-{decisions}")
        scene_recordings = [
            (tasks[number].kind, record_scenes(batch, policy, number))
            for number in range(min(_RECORDED_EPISODES, len(tasks)))
            if isinstance(batch, SupportsScenes)
        ]
    with Store.open(folder / "trajectories", writing=True) as store:
        stored_ids = set(store.ids())
        for trajectory in episodes:
            if trajectory.id not in stored_ids:
                store.append(trajectory)
    row = outcome_row(config.mat.kind, world, episodes)
    rows = [row, *held_out_rows]
    write_atomic(folder / "table.json", json.dumps(rows, indent=1))
    facts = {
        "world": config.world,
        "tasks": f"{len(tasks)} of the {tasks[0].split} panel",
        "seed": str(config.mat.seed),
        "decisions": f"{decisions:,}",
    }
    page = team_page(
        {"title": f"{config.mat.kind} on {config.world}", "facts": facts, "rows": rows, "history": trained.history},
        scene_recordings,
    )
    write_atomic(folder / "report.html", page)
    console.print(
        render_table(
            console,
            ("policy", "world", "episodes", "return", "success"),
            [
                (
                    str(table_row["name"]),
                    config.world if table_row is row else str(table_row["world"]),
                    str(table_row["episodes"]),
                    f"{table_row['return'][0]:.3f}",
                    f"{table_row['success'][0]:.1%}" if table_row["success"] else "-",
                )
                for table_row in rows
            ],
            numbers=("episodes", "return", "success"),
        )
    )
    console.print(show_hidden(f"report {folder / 'report.html'}"), soft_wrap=True)
