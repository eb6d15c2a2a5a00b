"""`evolvent train rl --method ppo` with a policy over numbers (`--policy mlp`): worlds of Gymnasium without language.

It is the default policy where all worlds are environments of Gymnasium. The run folder, the report and `--resume` are
those of other runs; `evolvent eval RUN` measures such a policy too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.prompt_data import print_world_notes
from evolvent.cli.setup.record import RunRecord, choose_run_folder
from evolvent.cli.setup.registry import find_control_policy, load_worlds, require_train_extra
from evolvent.cli.setup.run_setup import (
    EvaluationConfig,
    RunSetup,
    count_panel_episodes,
    open_run,
    print_results,
    print_verdict,
    write_report,
)
from evolvent.cli.setup.settings import AnyCommand, Command, DeviceConfig, WorldsConfig, parse_command
from evolvent.cli.terminal.progress import PlannedStage
from evolvent.errors import ConfigError, Problem
from evolvent.marl.settings import ControlPPOConfig
from evolvent.models.placement import find_device
from evolvent.view.redraw import redraw_repeatedly
from evolvent.worlds.gym.world import GymnasiumWorld

if TYPE_CHECKING:
    from evolvent.models.team_actions import TeamModel
    from evolvent.run import Run
    from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
    from evolvent.worlds.base import World

__all__ = [
    "COMMAND",
    "POLICY_NAME",
    "TrainControlConfig",
    "is_control_request",
    "load_control_policy",
    "load_control_worlds",
    "make_backend_factory",
    "run",
]

POLICY_NAME = "mlp"
"""The name of an untrained policy over numbers on the command line."""
_PREFIX = "gymnasium:"


class TrainControlConfig(DeviceConfig, WorldsConfig):
    """Settings of `evolvent train rl --method ppo` with a policy over numbers."""

    method: Literal["ppo"] = Field(default="ppo", description="the method")
    policy: str = Field(
        default=POLICY_NAME, description="what to begin with: mlp (untrained), or a run of such a policy"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/rl-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    tasks: int = Field(default=1200, ge=1, description="training seeds of the environment, at most")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    rl: ControlPPOConfig = Field(default_factory=ControlPPOConfig, description="settings of PPO over numbers")
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement")


COMMAND: AnyCommand = Command(
    "train rl",
    "ppo with a policy over numbers: an MLP acts in an environment of Gymnasium. --policy xs trains a language policy.",
    TrainControlConfig,
    resumes=True,
    free_settings=("device",),
)


def is_control_request(argv: Sequence[str]) -> bool:
    """Returns whether a command line of `train rl --method ppo` means a policy over numbers.

    It does where it names one, or none and nothing but environments of Gymnasium.

    >>> is_control_request(["--worlds", "gymnasium:CartPole-v1"])
    True
    >>> is_control_request(["--worlds", "gymnasium:CartPole-v1", "--policy", "xs"])
    False
    """
    settings = _read_settings(argv)
    policy, worlds = settings.get("policy"), settings.get("worlds")
    if policy is not None:
        return policy == POLICY_NAME or find_control_policy(str(policy)) is not None
    names = worlds.strip('[]"').split(",") if isinstance(worlds, str) else worlds
    return isinstance(names, list) and bool(names) and all(str(n).strip(' "').startswith(_PREFIX) for n in names)


def _read_settings(argv: Sequence[str]) -> dict[str, object]:
    """Reads `policy` and `worlds` from a settings file, a run to resume, and the command line, which goes last."""
    values: dict[str, str] = {}
    for word, following in pairwise([*argv, ""]):
        name, equals_sign, text = word.partition("=")
        if name in ("--policy", "--worlds", "--resume", "--config"):
            values[name[2:]] = text if equals_sign else following
    file = Path(values["resume"]) / "config.toml" if "resume" in values else Path(values.get("config", ""))
    file = Path(argv[0]) if argv and argv[0].endswith(".toml") else file
    settings: dict[str, object] = {}
    with suppress(OSError, ValueError):
        settings |= tomllib.loads(file.read_text(encoding="utf-8"))
    return {**settings, **values}


def load_control_policy(
    name: str, world: GymnasiumWorld, *, width: int = 64, seed: int = 0, device: str = "cpu"
) -> TeamModel:
    """Loads a policy over numbers for a world, or makes an untrained one.

    Raises:
        ConfigError: an unknown name. ShapeMismatch: a policy for other observations or actions.
    """
    from evolvent.marl.control import check_control_policy, make_control_policy
    from evolvent.models.team_files import load_team

    if name == POLICY_NAME:
        return make_control_policy(world, width=width, seed=seed).to(find_device(device))
    folder = find_control_policy(name)
    if folder is None:
        message = f"{name!r} is not a policy over numbers"
        raise ConfigError([Problem("policy", message, f"use {POLICY_NAME}, or a run of such a policy")])
    policy = load_team(folder)
    check_control_policy(policy, world)
    return policy.to(find_device(device))


def load_control_worlds(names: Sequence[str]) -> dict[str, GymnasiumWorld]:
    """Loads worlds by name; raises ConfigError for those that are not environments of Gymnasium."""
    worlds = load_worlds(names)
    problems = [
        Problem("worlds", f"{name!r} is told as text alone", "name a language policy, such as --policy xs")
        for name, world in worlds.items()
        if not isinstance(world, GymnasiumWorld)
    ]
    if problems:
        raise ConfigError(problems)
    return cast("dict[str, GymnasiumWorld]", worlds)


def make_backend_factory(device: str) -> type[LocalBackend]:
    """Returns what builds the backend of a run from the settings that all commands have."""
    from evolvent.scale.control_backend import ControlBackend

    def make_backend(
        worlds: Mapping[str, GymnasiumWorld], train: object, panel: EvaluationPanel, **_: object
    ) -> object:
        return ControlBackend(worlds, panel, device=device)

    return cast("type[LocalBackend]", make_backend)


def run(argv: Sequence[str], console: Console) -> int:
    """Trains a policy over numbers; returns the exit code."""
    args = parse_command(COMMAND, argv, console)
    if args is None:
        return 0
    config: TrainControlConfig = args.config
    require_train_extra("evolvent train")
    from evolvent.methods.control_ppo import control_ppo
    from evolvent.scale.control_backend import ControlBackend

    worlds = load_control_worlds(config.worlds)
    if len(worlds) != 1:
        message = f"got {len(worlds)} worlds, expected one for a policy over numbers"
        raise ConfigError([Problem("worlds", message, "train a policy for each world")])
    print_world_notes(console, worlds)
    panel_size = count_panel_episodes(cast("Mapping[str, World]", worlds), config.panel)
    (world,) = worlds.values()
    initial = load_control_policy(config.policy, world, width=config.rl.width, seed=config.seed, device=config.device)
    tasks = world.tasks("train", world.tiers[0])[: config.tasks]
    folder = args.resume or choose_run_folder("rl", config.output_dir)
    measure = PlannedStage("evaluate", panel_size)
    setup = RunSetup(
        folder,
        cast("Mapping[str, World]", worlds),
        RunRecord("train rl", config, config.seed, ("base", "ppo"), "ppo"),
        panel=config.panel.make_panel(),
        threads=config.threads,
        plan=[measure, PlannedStage("practise", config.rl.iterations), measure],
        backend_factory=make_backend_factory(config.device),
    )
    console.print(f"run {folder}, report {folder / 'report.html'}", soft_wrap=True)
    with open_run(setup, console) as opened, redraw_repeatedly(partial(write_report, folder)):
        active_run = cast("Run[TeamModel]", opened).arm("ppo")
        active_run.evaluate(initial, 0)
        trained = control_ppo(initial, tasks, config=config.rl, run=active_run)
        ControlBackend(worlds).save(trained, folder / "model")
        print_results(console, active_run.evaluate(trained, config.rl.iterations))
    print_verdict(console, folder)
    console.print(f"model  {folder / 'model'}\nreport {folder / 'report.html'}", soft_wrap=True)
    return 0
