"""`evolvent train sequence --method gato|multi_game`: one policy for several worlds, measured in each of them.

The run folder holds settings and state, `data.json` (the data of each world), the training's state, the policy,
`history.json`, `table.json` and the report. A run resumes where its training stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, create_model, field_validator
from rich.console import Console

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.setup.settings import AnyCommand, Command, ParsedCommand
from evolvent.cli.terminal.console import render_table
from evolvent.cli.train.sequence_tasks import SEQUENCE_WORLDS, SequenceTask, make_sequence_task
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.methods.gato import GatoConfig
from evolvent.trajectory import sample_seed
from evolvent.view.escape import show_hidden

__all__ = ["COMMANDS", "MultiGameConfig", "TrainGeneralistConfig", "run_generalist"]

_EVALUATION_SEED = sample_seed("generalist", "measured")


class MultiGameConfig(GatoConfig):
    """Settings of Multi-Game Decision Transformer: Gato that predicts the return before an action."""

    returns: Literal[True] = Field(default=True, description="predict the return before an action")


class _WorldData(Config):
    """The settings that `make_sequence_task` reads, for one of the worlds."""

    world: str = Field(description="the world")
    data: None = Field(default=None, description="no file: episodes are made")
    mixture: str | None = Field(default=None, description="the mixture")
    episodes: int = Field(description="episodes of the mixture")
    horizon: int | None = Field(default=None, description="maximum steps of an episode")
    scale: None = Field(default=None, description="no file, so no scale")
    learn: GatoConfig = Field(description="settings of the method, with the seed")


class TrainGeneralistConfig(Config):
    """Settings of `evolvent train sequence` for one policy over several worlds, beside those of the method."""

    method: str = Field(default="gato", description="the method")
    worlds: tuple[str, ...] = Field(
        default=("cartpole", "pendulum", "stitching"),
        min_length=1,
        description=f"where it acts: some of {', '.join(SEQUENCE_WORLDS)}",
    )
    mixture: Literal["random", "medium", "replay", "expert"] = Field(
        default="expert", description="data of control worlds; the maze always uses all its ways"
    )
    episodes: int = Field(default=50, ge=1, description="episodes of each control world to learn from")
    horizon: int | None = Field(default=200, ge=1, description="steps after which an episode is cut; none: the world's")
    evaluation: int = Field(default=10, ge=1, description="episodes that are played in each world")
    keep_every: int = Field(default=500, ge=1, description="updates between two states that can be taken up again")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/sequence-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @field_validator("worlds")
    @classmethod
    def _check_worlds(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in SEQUENCE_WORLDS:
                raise ValueError(unknown_name_problem("world", name, SEQUENCE_WORLDS).describe())
        return names


def _make_command(name: str, about: str, config: type[GatoConfig]) -> Command[Any]:
    method_literal: Any = Literal[name]
    fields: dict[str, Any] = {"learn": (config, Field(default_factory=config, description=f"settings of {name}"))}
    if name == "multi_game":
        mixture: Any = Literal["random", "medium", "replay", "expert"]
        fields["mixture"] = (
            mixture,
            Field(default="replay", description="data of control worlds; the maze always uses all its ways"),
        )
    command_config: type[TrainGeneralistConfig] = create_model(
        f"TrainGeneralist_{name}",
        __base__=TrainGeneralistConfig,
        method=(method_literal, Field(default=name, description="the method")),
        **fields,
    )
    small = {"train": {"max_steps": 4000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0}}
    return Command(
        "train sequence",
        f"{about}. Learns from episodes of several worlds and is measured in each.",
        command_config,
        main_field="worlds",
        resumes=True,
        free_settings=("threads", "keep_every"),
        presets={"small": {"learn": small}},
    )


COMMANDS: dict[str, AnyCommand] = {
    "gato": _make_command("gato", "Gato: one policy for several worlds", GatoConfig),
    "multi_game": _make_command("multi_game", "Multi-Game DT: one policy, asked for high returns", MultiGameConfig),
}
"""The commands of policies for several worlds."""


def run_generalist(args: ParsedCommand[TrainGeneralistConfig], console: Console) -> int:
    """Trains one policy for several worlds and measures it in each; returns the exit code."""
    config: Any = args.config
    require_train_extra("evolvent train sequence")
    import torch

    from evolvent.methods.gato import build_array_task, gato, save_generalist
    from evolvent.offline.state import SequenceCheckpoint

    torch.set_num_threads(config.threads)
    if len(set(config.worlds)) < len(config.worlds):
        raise ConfigError([Problem("worlds", f"got {', '.join(config.worlds)}", "name each world once")])
    sequence_tasks = {world: _make_task(config, world) for world in config.worlds}
    folder = args.resume or choose_run_folder("sequence", config.output_dir)
    console.print(show_hidden(f"run {folder}, episodes of {', '.join(sequence_tasks)}"), soft_wrap=True)
    with record_run(folder, RunRecord("train sequence", config, config.learn.seed, (config.method,), config.method)):
        manifests = {world: task.manifest for world, task in sequence_tasks.items()}
        write_atomic(folder / "data.json", json.dumps(manifests, indent=1))
        return_bins = config.learn.return_bins if config.learn.returns else 0
        policy = gato(
            config.learn,
            {world: build_array_task(task.data, return_bins=return_bins) for world, task in sequence_tasks.items()},
            checkpoint=SequenceCheckpoint(
                folder / "training.safetensors",
                every=config.keep_every,
                on_row=lambda row: console.print(f"{row['update']:10,.0f}  loss {row['loss']:.4f}", soft_wrap=True),
            ),
        )
        save_generalist(policy, folder / "policy")
        write_atomic(folder / "history.json", json.dumps(policy.history, indent=1, sort_keys=True))
        rows = [_measure_world(policy, config, world, task) for world, task in sequence_tasks.items()]
        write_atomic(folder / "table.json", json.dumps(rows, indent=1))
        write_atomic(folder / "report.html", _render_page(config, sequence_tasks, rows, policy.history))
    lines = [(row["world"], f"{row['mean']:.2f}", f"{row['data']:.2f}", f"{row['score']:.1f}") for row in rows]
    columns = ("world", "return", "data", "score")
    console.print(render_table(console, columns, lines, numbers=columns[1:]))
    console.print(show_hidden(f"policy {folder / 'policy'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


def _render_page(
    config: Any, sequence_tasks: Mapping[str, SequenceTask], rows: Sequence[dict[str, Any]], history: Any
) -> str:
    """Renders the page of the run: a row for each world, with the returns that its scores are measured by."""
    from evolvent.view.sequences import sequence_page

    facts = {
        "Worlds": ", ".join(sequence_tasks),
        "Data": f"{config.mixture}, up to {config.episodes} episodes of a control world",
        "Seed": str(config.learn.seed),
    }
    world_rows = [
        {
            "asked": None,
            **row,
            "random": sequence_tasks[row["world"]].random_return,
            "expert": sequence_tasks[row["world"]].expert_return,
        }
        for row in rows
    ]
    about = COMMANDS[config.method].about.partition(":")[0]
    title = f"{about} on {', '.join(sequence_tasks)}"
    return sequence_page({"title": title, "facts": facts, "rows": world_rows, "history": history, "played": []})


def _make_task(config: Any, world: str) -> SequenceTask:
    mixture = "whole" if world == "stitching" else config.mixture
    return make_sequence_task(
        _WorldData(world=world, mixture=mixture, episodes=config.episodes, horizon=config.horizon, learn=config.learn)
    )


def _measure_world(policy: Any, config: Any, world: str, task: SequenceTask) -> dict[str, Any]:
    """Plays episodes in a world: returns, their mean, the mean of the data, and the score."""
    episodes = task.play(policy.build_actor(world), episodes=config.evaluation, seed=_EVALUATION_SEED)
    mean = float(episodes.returns.mean())
    return {
        "world": world,
        "returns": episodes.returns.tolist(),
        "mean": mean,
        "data": float(task.data.returns.mean()),
        "score": task.normalize_return(mean),
    }
