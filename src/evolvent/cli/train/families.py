"""`evolvent train sequence --method ad|pdt FAMILY`: learns from many tasks of a family, plays tasks it never saw.

The run folder holds settings and state, `data.json` (which tasks were held out), the training's state, the policy,
`history.json`, `table.json` and the report. A run resumes where its training stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model, field_validator
from rich.console import Console

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.setup.settings import AnyCommand, Command, DeviceConfig, ParsedCommand
from evolvent.cli.terminal.console import render_table
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.methods.algorithm_distillation import PRESETS as AD_PRESETS
from evolvent.methods.algorithm_distillation import AlgorithmDistillationConfig
from evolvent.methods.prompt_dt import PromptDTConfig
from evolvent.trajectory import sample_seed
from evolvent.view.escape import show_hidden
from evolvent.worlds.families import FAMILIES, TaskFamily, get_family

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from evolvent.methods.prompt_dt import TaskEpisodes
    from evolvent.store.episodes import Episodes

__all__ = ["COMMANDS", "TrainFamilyConfig", "run_family"]

_EVALUATION_SEED = sample_seed("family", "measured")
_REFERENCE_EPISODES = 50  # of the expert and of random actions, in each measured task
_SAME_TASKS = 40  # training tasks that are measured beside the held-out ones, at most


class TrainFamilyConfig(DeviceConfig):
    """Settings of `evolvent train sequence` for families of tasks, beside those of the method."""

    method: str = Field(default="ad", description="the method")
    family: str = Field(default="darkroom", description=f"family of tasks: {', '.join(FAMILIES)}")
    tasks: int | None = Field(
        default=None, ge=1, description="maximum number of training tasks; none: all that are not held out"
    )
    held_out: int = Field(default=8, ge=1, description="tasks that are measured and do not teach")
    episodes: int = Field(default=60, ge=2, description="episodes of a task to learn from")
    trials: int = Field(default=12, ge=1, description="episodes of an evaluation that are played one after another")
    evaluation: int = Field(default=4, ge=1, description="evaluations of each task")
    keep_every: int = Field(default=500, ge=1, description="updates between two states that can be taken up again")
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/sequence-N")
    threads: int = Field(default=1, ge=1, description="threads of torch")

    @field_validator("family")
    @classmethod
    def _check_family(cls, name: str) -> str:
        if name not in FAMILIES:
            raise ValueError(unknown_name_problem("task family", name, FAMILIES).describe())
        return name


_SMALL_PROMPT_DT = {
    "prompt_steps": 4,
    "context": 2,
    "scale": 10.0,
    "width": 64,
    "heads": 4,
    "layers": 2,
    "dropout": 0.0,
    "horizon": 20,
    "train": {"max_steps": 1000, "lr": 2e-3, "warmup": 50, "grad_norm": 1.0},
}


def _make_command(
    name: str,
    about: str,
    config: type[AlgorithmDistillationConfig] | type[PromptDTConfig],
    small: Mapping[str, object],
) -> Command[Any]:
    method_literal: Any = Literal[name]
    command_config: type[TrainFamilyConfig] = create_model(
        f"TrainFamily_{name}",
        __base__=TrainFamilyConfig,
        method=(method_literal, Field(default=name, description="the method")),
        learn=(config, Field(default_factory=config, description=f"settings of {name}")),
    )
    return Command(
        "train sequence",
        f"{about}. Learns from tasks of a family and is measured on tasks that it never saw.",
        command_config,
        main_field="family",
        resumes=True,
        free_settings=("threads", "device", "keep_every"),
        presets={"small": {"learn": {**small}}, "paper": {"learn": {}}},
    )


COMMANDS: dict[str, AnyCommand] = {
    "ad": _make_command(
        "ad",
        "Algorithm Distillation: learns to learn from learning histories",
        AlgorithmDistillationConfig,
        AD_PRESETS["small"],
    ),
    "pdt": _make_command("pdt", "Prompt-DT: a demonstration shows the task", PromptDTConfig, _SMALL_PROMPT_DT),
}
"""The commands of methods that learn from families of tasks."""


@dataclass(frozen=True, slots=True)
class _MeasuredTasks:
    """Returns of tasks by task and trial, beside those of random actions and of the expert.

    Attributes:
        kind: "held out" or "training".
        returns: `[tasks, trials]`, means over the evaluations.
        random: mean return of random actions in these tasks.
        expert: mean return of the expert in these tasks.
    """

    kind: str
    returns: NDArray[np.float64]
    random: float
    expert: float

    def normalize_return(self, value: float) -> float | None:
        """Scales a return to a score: 0 for random actions, 100 for the expert; None where both earn the same."""
        if self.expert == self.random:
            return None
        return 100.0 * (value - self.random) / (self.expert - self.random)


def run_family(args: ParsedCommand[TrainFamilyConfig], console: Console) -> int:
    """Trains a policy on tasks of a family and measures it on held-out ones; returns the exit code."""
    config: Any = args.config
    require_train_extra("evolvent train sequence")
    import numpy as np
    import torch

    from evolvent.models.placement import find_device

    torch.set_num_threads(config.threads)
    find_device(config.device)
    family = get_family(config.family)
    if config.method == "pdt" and config.learn.horizon < family.horizon:
        message = f"got {config.learn.horizon} time steps, but episodes of {config.family} have {family.horizon}"
        raise ConfigError([Problem("learn.horizon", message, f"set {family.horizon} or more")])
    training, held_out = family.split_tasks(held_out=config.held_out, seed=config.learn.seed)
    training = training[: config.tasks]
    folder = args.resume or choose_run_folder("sequence", config.output_dir)
    console.print(
        show_hidden(f"run {folder}, {len(training)} tasks of {family.name} to learn from, {len(held_out)} held out"),
        soft_wrap=True,
    )
    with record_run(folder, RunRecord("train sequence", config, config.learn.seed, (config.method,), config.method)):
        manifest = {"family": family.name, "training": training, "held_out": held_out}
        write_atomic(folder / "data.json", json.dumps(manifest, indent=1))
        data = _play_data(config, family, training)
        policy = _train_policy(folder, config, data, console=console)
        write_atomic(folder / "history.json", json.dumps(policy.history, indent=1, sort_keys=True))
        results = [
            _measure_tasks(policy, config, family, tasks, kind=kind)
            for kind, tasks in (("held out", held_out), ("training", training[:_SAME_TASKS]))
        ]
        learned_returns = np.concatenate([task.episodes.returns for task in data])
        _write_results(folder, config, results, policy.history, learned_returns=learned_returns, console=console)
    console.print(show_hidden(f"policy {folder / 'policy'}\nreport {folder / 'report.html'}"), soft_wrap=True)
    return 0


def _play_data(config: Any, family: TaskFamily, training: list[int]) -> list[TaskEpisodes]:
    """Plays the data of the training tasks: a learner's history of each, or an expert's episodes with a demonstration.

    Half of the expert's episodes have random actions in half of their steps.
    """
    from evolvent.methods.prompt_dt import TaskEpisodes
    from evolvent.rollout.histories import play_learning_history
    from evolvent.store.episodes import concatenate_episodes

    seed = config.learn.seed
    data = []
    for task in training:
        if config.method == "ad":
            episodes = play_learning_history(
                family.build_env(task),
                num_actions=family.actions,
                episodes=config.episodes,
                horizon=family.horizon,
                seed=sample_seed("history of", seed, task),
            )
            data.append(TaskEpisodes(episodes, episodes))
            continue
        half = config.episodes // 2
        expert_episodes = _play_expert(family, task, half, seed=seed)
        mixed_episodes = _play_expert(family, task, config.episodes - half, seed=seed + 1, random_ratio=0.5)
        demonstration = _play_expert(family, task, 1, seed=seed + 2)
        data.append(TaskEpisodes(concatenate_episodes([expert_episodes, mixed_episodes]), demonstration))
    return data


def _train_policy(folder: Path, config: Any, data: list[TaskEpisodes], *, console: Console) -> Any:
    """Trains or resumes, and saves the policy."""
    from evolvent.methods.algorithm_distillation import algorithm_distillation, save_in_context
    from evolvent.methods.prompt_dt import prompt_dt, save_prompted
    from evolvent.offline.state import SequenceCheckpoint

    checkpoint: SequenceCheckpoint = SequenceCheckpoint(
        folder / "training.safetensors",
        every=config.keep_every,
        on_row=lambda row: console.print(f"{row['update']:10,.0f}  loss {row['loss']:.4f}", soft_wrap=True),
    )
    if config.method == "ad":
        histories = [task.episodes for task in data]
        learner = algorithm_distillation(config.learn, histories, checkpoint=checkpoint, device=config.device)
        save_in_context(learner, folder / "policy")
        return learner
    prompted = prompt_dt(config.learn, data, checkpoint=checkpoint, device=config.device)
    save_prompted(prompted, folder / "policy")
    return prompted


def _play_expert(family: TaskFamily, task: int, episodes: int, *, seed: int, random_ratio: float = 0.0) -> Episodes:
    from evolvent.rollout.histories import play_policy_episodes

    env = family.build_env(task)
    return play_policy_episodes(
        env,
        env.best_action,
        num_actions=family.actions,
        episodes=episodes,
        horizon=family.horizon,
        seed=sample_seed("expert of", seed, task),
        random_ratio=random_ratio,
    )


def _measure_tasks(policy: Any, config: Any, family: TaskFamily, tasks: list[int], *, kind: str) -> _MeasuredTasks:
    """Plays each task: `trials` episodes as one (Algorithm Distillation), or each by itself with one demonstration."""
    import numpy as np

    from evolvent.rollout.arrays import play_arrays
    from evolvent.rollout.histories import AcrossEpisodesEnv

    returns, references = [], []
    for task in tasks:
        demonstration = _play_expert(family, task, _REFERENCE_EPISODES, seed=_EVALUATION_SEED)
        random = _play_expert(family, task, _REFERENCE_EPISODES, seed=_EVALUATION_SEED, random_ratio=1.0)
        references.append((float(random.returns.mean()), float(demonstration.returns.mean())))
        if config.method == "ad":
            episodes = play_arrays(
                policy.build_actor(),
                lambda task=task: AcrossEpisodesEnv(  # type: ignore[misc]
                    family.build_env(task), episodes=config.trials, horizon=family.horizon
                ),
                episodes=config.evaluation,
                horizon=config.trials * family.horizon,
                num_actions=family.actions,
                seed=_EVALUATION_SEED,
            )
            by_trial = episodes.reward.reshape(config.evaluation, config.trials, -1).sum(2)
        else:
            episodes = play_arrays(
                policy.build_actor(references[-1][1], demonstration),
                lambda task=task: family.build_env(task),  # type: ignore[misc]
                episodes=config.evaluation,
                horizon=family.horizon,
                num_actions=family.actions,
                seed=_EVALUATION_SEED,
            )
            by_trial = episodes.returns[:, None]
        returns.append(by_trial.mean(0))
    random_return, expert_return = np.mean(references, 0)
    return _MeasuredTasks(kind, np.array(returns), float(random_return), float(expert_return))


def _write_results(
    folder: Path,
    config: Any,
    results: list[_MeasuredTasks],
    history: Any,
    *,
    learned_returns: NDArray[np.float64],
    console: Console,
) -> None:
    """Writes the table and the page, and prints the table: returns of the first and of the last trial."""
    from evolvent.view.sequences import sequence_page

    rows = []
    for tasks in results:
        for trial in sorted({0, tasks.returns.shape[1] - 1}):
            mean = float(tasks.returns[:, trial].mean())
            rows.append(
                {
                    "asked": None,
                    "tasks": tasks.kind,
                    "episode": trial + 1,
                    "returns": tasks.returns[:, trial].tolist(),
                    "mean": mean,
                    "score": tasks.normalize_return(mean),
                    "by_episode": tasks.returns.mean(0).tolist(),
                }
            )
    write_atomic(folder / "table.json", json.dumps(rows, indent=1))
    held_out = results[0]
    facts = {
        "Family": config.family,
        "Tasks": f"{len(results[1].returns)} of training, {len(held_out.returns)} held out",
        "Seed": str(config.learn.seed),
    }
    page = sequence_page(
        {
            "title": f"{COMMANDS[config.method].about.partition(':')[0]} on {config.family}",
            "facts": facts,
            "rows": rows,
            "history": history,
            "played": held_out.returns.mean(0).tolist(),
            "played_caption": "Mean return in held-out tasks, episode by episode",
            "random": held_out.random,
            "expert": held_out.expert,
            "data": [
                float(statistic) for statistic in (learned_returns.min(), learned_returns.mean(), learned_returns.max())
            ],
        }
    )
    write_atomic(folder / "report.html", page)
    columns = ("tasks", "episode", "return", "score")
    lines = [
        (row["tasks"], str(row["episode"]), f"{row['mean']:.2f}", "" if row["score"] is None else f"{row['score']:.1f}")
        for row in rows
    ]
    console.print(render_table(console, columns, lines, numbers=columns[1:]))
