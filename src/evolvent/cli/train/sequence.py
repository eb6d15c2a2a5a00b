"""`evolvent train sequence --method NAME`: trains a policy on recorded episodes as sequences, and measures it.

The episodes come from a file (D4RL's or Minari's layout) or are made here: mixtures of a control world, or the
maze of pieces. The run folder holds settings and state, `data.json` (a description of the data), the training's
state, the policy, `history.json`, `table.json` and the report. A run resumes where its training stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model, field_validator
from rich.console import Console

from evolvent.cli.setup.method_option import parse_method
from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.setup.settings import AnyCommand, Command, DeviceConfig, parse_command
from evolvent.cli.terminal.console import render_table
from evolvent.cli.train.families import COMMANDS as FAMILY_COMMANDS
from evolvent.cli.train.families import run_family
from evolvent.cli.train.generalist import COMMANDS as GENERALIST_COMMANDS
from evolvent.cli.train.generalist import run_generalist
from evolvent.cli.train.sequence_tasks import SEQUENCE_WORLDS, SequenceTask, make_sequence_task
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.methods.decision_transformer import PRESETS as DT_PRESETS
from evolvent.methods.decision_transformer import DecisionTransformerConfig
from evolvent.methods.generalized_dt import GeneralizedDTConfig
from evolvent.methods.online_dt import OnlineDTConfig
from evolvent.methods.q_decision_transformer import PRESETS as QDT_PRESETS
from evolvent.methods.q_decision_transformer import QDecisionTransformerConfig
from evolvent.methods.q_transformer import QTransformerConfig
from evolvent.methods.trajectory_transformer import PRESETS as TT_PRESETS
from evolvent.methods.trajectory_transformer import TrajectoryTransformerConfig
from evolvent.trajectory import JsonObject, sample_seed
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.offline.acting import ArrayActor
    from evolvent.offline.state import SequenceCheckpoint
    from evolvent.store.episodes import Episodes

__all__ = [
    "COMMANDS",
    "METHODS",
    "SEQUENCE_WORLDS",
    "CloningConfig",
    "OnlineConfig",
    "SequenceMethod",
    "SequenceTask",
    "TrainSequenceConfig",
    "make_sequence_task",
    "run",
]


_MAX_MESSAGES = 5  # episodes left out of which the reason is told
_NUM_TARGETS = 5  # returns that are asked for where none are named
_EVALUATION_SEED = sample_seed("measured", 77)  # of no data: a mixture's seeds are --learn.seed and the next


class CloningConfig(DecisionTransformerConfig):
    """Settings of behavior cloning: the network of Decision Transformer without returns."""

    returns: Literal[False] = Field(default=False, description="no returns are read")


class OnlineConfig(OnlineDTConfig):
    """Settings of Online DT; the default target is the best return in the data."""

    target: float | None = Field(  # type: ignore[assignment]
        default=None, description="the return that it is made for; none: the most in the data"
    )

    def with_target(self, best_return: float) -> OnlineDTConfig:
        """Returns the settings with a target."""
        settings = {name: getattr(self, name) for name in OnlineDTConfig.model_fields}
        return OnlineDTConfig(**{**settings, "target": best_return if self.target is None else self.target})


@dataclass(frozen=True)
class SequenceMethod:
    """A method for recorded sequences.

    Attributes:
        config: its settings class.
        about: its description.
        takes_target: whether its policy takes a target return.
        small: settings for a processor.
        paper: settings of the paper.
    """

    config: type[Config]
    about: str
    takes_target: bool = False
    small: JsonObject = field(default_factory=dict)
    paper: JsonObject = field(default_factory=dict)


_SHORT_TRAINING = {"max_steps": 2000, "lr": 1e-3, "warmup": 100, "grad_norm": 1.0}
METHODS: Mapping[str, SequenceMethod] = {
    "dt": SequenceMethod(
        DecisionTransformerConfig,
        "Decision Transformer: asked for a return",
        takes_target=True,
        small=DT_PRESETS["small"],
    ),
    "bc": SequenceMethod(CloningConfig, "behavior cloning by the same network", small=DT_PRESETS["small"]),
    "odt": SequenceMethod(
        OnlineConfig,
        "Online DT: plays after it has learned from the data",
        takes_target=True,
        small={
            "context": 8,
            "scale": 100.0,
            "width": 64,
            "heads": 2,
            "layers": 2,
            "dropout": 0.0,
            "explore": 1.0,
            "rounds": 20,
            "updates": 50,
            "temperature_lr": 1e-3,
            "train": _SHORT_TRAINING,
        },
    ),
    "qdt": SequenceMethod(
        QDecisionTransformerConfig,
        "Q-learning DT: returns relabeled by learned values",
        takes_target=True,
        small=QDT_PRESETS["small"],
    ),
    "gdt": SequenceMethod(
        GeneralizedDTConfig,
        "Generalized DT: matches what an episode visits",
        small={**DT_PRESETS["small"], "scale": 20.0},
    ),
    "tt": SequenceMethod(
        TrajectoryTransformerConfig,
        "Trajectory Transformer: a model, and a beam in it",
        small=TT_PRESETS["small"],
        paper=TT_PRESETS["paper"],
    ),
    "qt": SequenceMethod(
        QTransformerConfig,
        "Q-Transformer: values of an action's dimensions",
        small={"bins": 32, "width": 64, "heads": 2, "polyak": 0.02, "conservative": 0.5, "train": _SHORT_TRAINING},
    ),
}


class TrainSequenceConfig(DeviceConfig):
    """Settings of `evolvent train sequence`, beside those of the method."""

    method: str = Field(default="dt", description="the method")
    world: str = Field(default="cartpole", description=f"where it acts: {', '.join(SEQUENCE_WORLDS)}")
    data: Path | None = Field(
        default=None, description="a file of D4RL's layout, or a folder of Minari's; none: episodes are made here"
    )
    mixture: Literal["random", "medium", "replay", "medium-replay", "expert", "pieces", "whole"] | None = Field(
        default=None,
        description="what is made: of a control world random, medium, replay or expert; of the maze "
        "pieces or whole; none: replay, or pieces",
    )
    episodes: int = Field(default=200, ge=1, description="of a mixture")
    horizon: int | None = Field(default=None, ge=1, description="steps after which one is cut; none: the world's")
    scale: float | None = Field(
        default=None, gt=0, description="what a file's actions are divided by; none: as the world takes them"
    )
    targets: tuple[float, ...] = Field(
        default=(), description="returns that are asked for; none: from the data's least to their most"
    )
    evaluation: int = Field(default=10, ge=1, description="episodes that are played for each of them")
    keep_every: int = Field(default=500, ge=1, description="updates between two states that can be taken up again")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/sequence-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @field_validator("world")
    @classmethod
    def _check_world(cls, name: str) -> str:
        if name not in SEQUENCE_WORLDS:
            problem = unknown_name_problem("world", name, SEQUENCE_WORLDS)
            raise ValueError(problem.describe())
        return name

    @field_validator("mixture")
    @classmethod
    def _resolve_alias(cls, name: str | None) -> str | None:
        return "replay" if name == "medium-replay" else name


def _make_command(name: str, method: SequenceMethod) -> Command[Any]:
    method_literal: Any = Literal[name]
    config: type[TrainSequenceConfig] = create_model(
        f"TrainSequence_{name}",
        __base__=TrainSequenceConfig,
        method=(method_literal, Field(default=name, description="the method")),
        learn=(method.config, Field(default_factory=method.config, description=f"settings of {name}")),
    )
    description = f"{method.about}. Learns from recorded episodes and is measured in their world."
    return Command(
        "train sequence",
        description,
        config,
        main_field="world",
        resumes=True,
        free_settings=("threads", "device", "keep_every"),
        presets={"small": {"learn": {**method.small}}, "paper": {"learn": {**method.paper}}},
    )


COMMANDS: dict[str, AnyCommand] = {
    **{name: _make_command(name, method) for name, method in METHODS.items()},
    **FAMILY_COMMANDS,
    **GENERALIST_COMMANDS,
}
"""The command of each method."""


def run(argv: Sequence[str], console: Console) -> int:
    """Trains a sequence policy and measures it; returns the exit code. `argv` begins with "sequence"."""
    name, method_argv = parse_method(argv[1:], COMMANDS, default="dt")
    if name is None:
        console.print(_format_usage(), soft_wrap=True)
        return 0
    args = parse_command(COMMANDS[name], method_argv, console)
    if args is None:
        return 0
    if name in FAMILY_COMMANDS:
        return run_family(args, console)
    if name in GENERALIST_COMMANDS:
        return run_generalist(args, console)
    config: Any = args.config
    require_train_extra("evolvent train sequence")
    import torch

    from evolvent.models.placement import find_device

    torch.set_num_threads(config.threads)
    find_device(config.device)
    sequence_task = make_sequence_task(config)
    _check_measurable(config, sequence_task)
    folder = args.resume or choose_run_folder("sequence", config.output_dir)
    _check_same_data(folder, sequence_task)
    console.print(
        show_hidden(
            f"run {folder}, {len(sequence_task.data.lengths):,} episodes, "
            f"{len(sequence_task.data.reward):,} decisions of "
            f"{config.world}"
        ),
        soft_wrap=True,
    )
    left_out = sequence_task.manifest.get("left_out", ())
    for line in left_out[:_MAX_MESSAGES]:
        console.print(show_hidden(f"left out: {line}"), soft_wrap=True)
    if len(left_out) > _MAX_MESSAGES:
        console.print(f"left out: {len(left_out) - _MAX_MESSAGES:,} more episodes")
    with record_run(folder, RunRecord("train sequence", config, config.learn.seed, (name,), name)):
        write_atomic(folder / "data.json", json.dumps(sequence_task.manifest, indent=1))
        policy, history, online_returns = _train_policy(folder, config, sequence_task, console)
        _measure_policy(folder, config, sequence_task, console, outcome=(policy, history, online_returns))
    console.print(show_hidden(f"policy {folder / 'policy'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


# ------------------------------------------------------------------------------------------------------- learning


def _check_measurable(config: Any, sequence_task: SequenceTask) -> None:
    """Checks, before any training, that the result can be measured."""
    problems = []
    if config.targets and not METHODS[config.method].takes_target:
        problems.append(Problem("targets", f"{config.method} does not use target returns", "leave out --targets"))
    if config.method in ("dt", "bc", "qdt", "gdt") and config.learn.horizon < sequence_task.horizon:
        message = (
            f"got {config.learn.horizon} time steps, but episodes of {config.world} have up to {sequence_task.horizon}"
        )
        problems.append(
            Problem("learn.horizon", message, f"set {sequence_task.horizon} or more, or a shorter --horizon")
        )
    if problems:
        raise ConfigError(problems)


def _check_same_data(folder: Path, sequence_task: SequenceTask) -> None:
    """Checks that a resumed run still has the same data: a file may have changed meanwhile."""
    try:
        stored_digest = json.loads((folder / "data.json").read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if stored_digest != sequence_task.data.digest:
        raise ConfigError([Problem("--resume", f"{folder} was trained on different episodes", "start a new run")])


def _train_policy(
    folder: Path, config: Any, sequence_task: SequenceTask, console: Console
) -> tuple[Any, Any, list[float]]:
    """Trains or resumes a training; saves the policy and its history.

    Returns:
        (policy, history, returns of the episodes played online).
    """
    from evolvent.offline.state import SequenceCheckpoint

    def print_loss(row: Mapping[str, float]) -> None:
        if row["update"] <= config.learn.train.max_steps:  # what is learned between episodes is in the report
            console.print(f"{row['update']:10,.0f}  loss {row['loss']:.4f}", soft_wrap=True)

    checkpoint = SequenceCheckpoint(folder / "training.safetensors", every=config.keep_every, on_row=print_loss)
    policy, online_returns = _run_method(folder, config, sequence_task, checkpoint)
    write_atomic(folder / "history.json", json.dumps(policy.history, indent=1, sort_keys=True))
    return policy, policy.history, online_returns


def _run_method(
    folder: Path, config: Any, sequence_task: SequenceTask, checkpoint: SequenceCheckpoint
) -> tuple[Any, list[float]]:
    from evolvent.methods.decision_transformer import decision_transformer, save_conditioned
    from evolvent.methods.generalized_dt import generalized_dt, save_matching
    from evolvent.methods.online_dt import online_dt
    from evolvent.methods.q_decision_transformer import q_decision_transformer
    from evolvent.methods.q_transformer import q_transformer, save_q_transformer
    from evolvent.methods.trajectory_transformer import save_planner, trajectory_transformer
    from evolvent.offline.state import SequenceCheckpoint

    policy_folder = folder / "policy"
    match config.method:
        case "tt":
            planner = trajectory_transformer(
                config.learn, sequence_task.data, checkpoint=checkpoint, device=config.device
            )
            save_planner(planner, policy_folder)
            return planner, []
        case "qt":
            q_policy = q_transformer(config.learn, sequence_task.data, checkpoint=checkpoint, device=config.device)
            save_q_transformer(q_policy, policy_folder)
            return q_policy, []
        case "qdt":
            values = SequenceCheckpoint(folder / "values.safetensors", every=config.keep_every)
            relabeled = q_decision_transformer(
                config.learn,
                sequence_task.data,
                value_checkpoint=values,
                checkpoint=checkpoint,
                device=config.device,
            )
            save_conditioned(relabeled, policy_folder)
            return relabeled, []
        case "gdt":
            matching = generalized_dt(config.learn, sequence_task.data, checkpoint=checkpoint, device=config.device)
            save_matching(matching, policy_folder)
            return matching, []
        case "odt":
            online_config = config.learn.with_target(float(sequence_task.data.returns.max()))
            online = online_dt(
                online_config,
                sequence_task.data,
                checkpoint=checkpoint,
                explore=partial(_play_round, folder / "played", sequence_task, online_config.seed),
                device=config.device,
            )
            save_conditioned(online.policy, policy_folder)
            return online.policy, list(online.online_returns)
    policy = decision_transformer(config.learn, sequence_task.data, checkpoint=checkpoint, device=config.device)
    save_conditioned(policy, policy_folder)
    return policy, []


def _play_round(folder: Path, sequence_task: SequenceTask, seed: int, actor: ArrayActor, number: int) -> Episodes:
    """Returns the episode of a round: the stored one of an interrupted run, or a new one."""
    from evolvent.store.episodes import load_episodes, save_episodes

    path = folder / f"{number}.safetensors"
    if path.is_file():
        return load_episodes(path)
    episode = sequence_task.play(actor, episodes=1, seed=sample_seed("online", seed, number))
    save_episodes(episode, path)
    return episode


# ------------------------------------------------------------------------------------------------------- measuring


def _measure_policy(
    folder: Path, config: Any, sequence_task: SequenceTask, console: Console, *, outcome: tuple[Any, Any, list[float]]
) -> None:
    """Plays episodes for each target return; writes the table and the page, and prints the table."""
    from evolvent.view.sequence_strips import draw_best_and_worst
    from evolvent.view.sequences import sequence_page

    policy, history, online_returns = outcome
    rows, best_episodes = list[dict[str, Any]](), None
    for target, actor in _build_actors(policy, config, sequence_task):
        episodes = sequence_task.play(actor, episodes=config.evaluation, seed=_EVALUATION_SEED)
        returns = [float(episode_return) for episode_return in episodes.returns]
        mean = sum(returns) / len(returns)
        rows.append({"asked": target, "returns": returns, "mean": mean, "score": sequence_task.normalize_return(mean)})
        if config.method == "gdt":
            rows[-1]["distance"] = _mean_distance(policy, sequence_task, episodes, row=len(rows) - 1)
        best_episodes = episodes if best_episodes is None or mean > best_episodes.returns.mean() else best_episodes
    write_atomic(folder / "table.json", json.dumps(rows, indent=1))
    facts = {
        "World": config.world,
        "Data": str(config.data or sequence_task.manifest["kind"]),
        "Episodes": f"{len(sequence_task.data.lengths):,}",
        "Decisions": f"{len(sequence_task.data.reward):,}",
        "Seed": str(config.learn.seed),
    }
    about = METHODS[config.method].about.partition(":")[0].partition(" by ")[0]
    return_statistics = [
        float(episode_return)
        for episode_return in (
            sequence_task.data.returns.min(),
            sequence_task.data.returns.mean(),
            sequence_task.data.returns.max(),
        )
    ]
    page = sequence_page(
        {
            "title": f"{about[0].upper()}{about[1:]} on {config.world}",
            "facts": facts,
            "rows": rows,
            "history": history,
            "played": online_returns,
            "random": sequence_task.random_return,
            "expert": sequence_task.expert_return,
            "data": return_statistics,
        },
        [] if best_episodes is None else draw_best_and_worst(config.world, best_episodes),
    )
    write_atomic(folder / "report.html", page)
    columns = ("asked", "return", "score", *(["distance"] if "distance" in rows[0] else []))
    lines = [
        (
            "-" if row["asked"] is None else f"{row['asked']:.2f}",
            f"{row['mean']:.2f}",
            f"{row['score']:.1f}",
            *([f"{row['distance']:.2f}"] if "distance" in row else []),
        )
        for row in rows
    ]
    console.print(render_table(console, columns, lines, numbers=columns))


def _build_actors(policy: Any, config: Any, sequence_task: SequenceTask) -> list[tuple[float | None, ArrayActor]]:
    """Builds an actor for each target return; of Generalized DT, for each episode that should be matched."""
    if config.method == "gdt":
        from evolvent.methods.generalized_dt import episode_counts

        counts = episode_counts(sequence_task.data, policy.features)
        return [
            (float(sequence_task.data.returns[episode]), policy.build_actor(counts[episode]))
            for episode in _episodes_to_match(sequence_task)
        ]
    if not METHODS[config.method].takes_target:
        return [(None, policy.build_actor())]
    return [(target, policy.build_actor(target)) for target in _target_returns(config, sequence_task)]


def _episodes_to_match(sequence_task: SequenceTask) -> list[int]:
    """Returns episodes of the data from the least to the largest return, evenly spaced in their order."""
    order = sequence_task.data.returns.argsort(kind="stable").tolist()
    return [order[(len(order) - 1) * index // (_NUM_TARGETS - 1)] for index in range(_NUM_TARGETS)]


def _mean_distance(policy: Any, sequence_task: SequenceTask, episodes: Episodes, *, row: int) -> float:
    """Computes how far the visits of episodes are from those of the episode to match, in widths of a bin."""
    from evolvent.methods.generalized_dt import episode_counts
    from evolvent.offline.statistics import count_distance

    matched = episode_counts(sequence_task.data, policy.features)[_episodes_to_match(sequence_task)[row]]
    visited = episode_counts(episodes, policy.features)
    return sum(count_distance(counts, matched, bins=policy.features.bins) for counts in visited) / len(visited)


def _target_returns(config: Any, sequence_task: SequenceTask) -> list[float]:
    """Returns the target returns: the configured ones, or evenly spaced ones from the lowest to the highest of the
    data.

    For the maze these are the returns of the episodes from its start, and its optimum.
    """
    if config.targets:
        return list(config.targets)
    if config.world == "stitching":
        return sorted({*sequence_task.data.returns.tolist(), sequence_task.expert_return})
    lowest, highest = float(sequence_task.data.returns.min()), float(sequence_task.data.returns.max())
    return (
        [lowest + (highest - lowest) * index / (_NUM_TARGETS - 1) for index in range(_NUM_TARGETS)]
        if highest > lowest
        else [highest]
    )


# ------------------------------------------------------------------------------------------------------- the words


def _format_usage() -> str:
    lines = "\n".join(f"  {name:12}{command.about.partition('. ')[0]}" for name, command in COMMANDS.items())
    return (
        "usage: evolvent train sequence --method NAME [WORLD] [--key value ...]\n\n" + lines + "\n\n"
        "`evolvent train sequence --method NAME --help` lists the settings. Episodes are\n"
        "read from `--data FILE` or made: `cartpole --mixture medium-replay`."
    )
