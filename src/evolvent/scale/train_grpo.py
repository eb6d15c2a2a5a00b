"""GRPO on a user's prompts and rewards in one call: the world, the run, the measurements and the report around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from rich.console import Console

from evolvent.config import config_boundary
from evolvent.data.tables import Rows
from evolvent.errors import ConfigError, Problem
from evolvent.learn.learner import RL_TRAIN, TrainConfig
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.ranks import Parallelism, RankCoordinator, Ranks, join_ranks
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.models.placement import Placement
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tuned import kind_of
from evolvent.reward.builtin import find_reward
from evolvent.rl.trainer import PolicyTrainer, RLConfig, RLSpec
from evolvent.rollout.episode import Limits
from evolvent.rollout.evaluate import Evaluation
from evolvent.run import Run, RunStage
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.scale.ranks_backend import (
    RanksBackend,
    check_agreement,
    check_practice,
    list_agreement_facts,
    open_shared_run,
)
from evolvent.worlds.prompts import MAX_TOKENS
from evolvent.worlds.prompts.rewards import Reward, RewardFunction, Rewards
from evolvent.worlds.prompts.tools import ToolFunction
from evolvent.worlds.prompts.world import PromptWorld

__all__ = ["NamedRewards", "train_grpo"]

NamedRewards: TypeAlias = "Rewards | str | Sequence[RewardFunction | Reward | str | tuple[RewardFunction | str, float]]"
"""Reward functions, or names of built-in rewards."""
_MANY_CUT = 0.1  # share of cut replies from which a line says so


def train_grpo(
    policy: Policy | Path | str,
    dataset: Rows | PromptWorld,
    rewards: NamedRewards = (),
    *,
    tools: Sequence[ToolFunction] | ToolFunction | None = (),
    weights: Sequence[float] | None = None,
    instructions: str = "",
    folder: Path | str = "runs/grpo",
    iterations: int | None = None,
    tasks_per_iteration: int | None = None,
    group_size: int | None = None,
    lr: float | None = None,
    max_tokens: int = MAX_TOKENS,
    temperature: float | None = None,
    reward_timeout_s: float = 60.0,
    panel_limit: int = 200,
    seed: int = 0,
    slots: int = 64,
    config: GRPOConfig | None = None,
    train: TrainConfig | None = None,
    parallel: Parallelism | None = None,
    quiet: bool = False,
) -> Policy:
    """Trains a policy on prompts by GRPO: several replies to a prompt are compared by the sum of their rewards.

    The run measures the test rows before and after, writes its report and the trained model to its folder, and tells
    what it does on standard error. Called again on the same folder it goes on where it stopped; what has finished is
    read, and done again where a reward, a tool, a row or a setting has changed.

    A script that torchrun starts in several processes trains over them: each plays its share of the replies, the update
    is one, and the first process writes the run.

    Args:
        policy: a policy, a model folder, a GGUF file, or the name of a model on this machine. "xs", "s" and "m" are
            small untrained policies over the words of the dataset.
        dataset: a list of dicts, a `datasets.Dataset`, or a path to JSON lines, JSON, CSV or Parquet, with one of the
            columns `prompt`, `messages`, `question` and `problem`; or a `PromptWorld`, without rewards and tools.
        rewards: functions `def reward(completion, **row) -> float`, sync or async, or names of built-in ones
            ("exact", "number", "maths", "code", "json_schema", "regex:PATTERN", "judge:MODEL@URL"); `(function,
            weight)` weighs one.
        tools: typed functions that the model may call; episodes then have several turns.
        weights: a weight for each reward.
        instructions: a system message for rows without one.
        folder: folder of the run.
        iterations: rounds of playing and learning; None: 50, or that of `config`.
        tasks_per_iteration: prompts of a round; None: 16, or that of `config`.
        group_size: replies to a prompt that are compared; None: 4, or that of `config`.
        lr: learning rate; None: what fits the size of the model.
        max_tokens: longest reply in tokens.
        temperature: of sampling; None: 1, or that of `config`.
        reward_timeout_s: longest time of one reward, and of one round of tools.
        panel_limit: most test rows that are measured.
        seed: all randomness derives from it.
        slots: replies that are written at once.
        config: further settings of GRPO and its family. Its `practice` may set iterations, tasks_per_iteration,
            group_size and temperature instead of the arguments.
        train: further settings of the learner; it may set lr instead of the argument.
        parallel: the layout over torchrun's processes; None: each has a share of the data, and of every weight; or all
            weights, where an adapter is trained.
        quiet: whether nothing is told.
    Returns:
        the trained policy, on every process; the one that was passed in is unchanged.
    Raises:
        ConfigError: the dataset, rewards or tools cannot be used (see `PromptWorld`), a setting with a wrong value or
            two values, a layout for another number of processes or another model, or processes that were not called
            alike.
        RankFailed: another process failed.
        NothingToLearn: too many replies could not be scored, or all replies to every prompt earned the same.

    >>> import tempfile
    >>> rows = [{"prompt": f"say {word}", "answer": word} for word in "one two three four five six seven".split()]
    >>> folder = tempfile.mkdtemp()
    >>> policy = train_grpo("xs", rows, lambda text, answer: 0.1 * len(text.split()), folder=folder, iterations=1,
    ...     max_tokens=4, quiet=True)
    >>> policy.version
    1
    """
    if reward_timeout_s <= 0:
        raise ConfigError([Problem("reward_timeout_s", f"got {reward_timeout_s}, expected more than 0")])
    config = _merge_practice(
        GRPOConfig() if config is None else config,
        {
            "iterations": iterations,
            "tasks_per_iteration": tasks_per_iteration,
            "group_size": group_size,
            "temperature": temperature,
        },
    )
    train = _merge_lr(train, lr)
    world = _make_world(dataset, rewards, tools=tools or (), weights=weights, instructions=instructions)
    policy = _resolve_policy(policy, world, seed=seed)
    layout = _choose_layout(parallel, has_adapter=kind_of(policy.model) is not None)
    tasks = world.tasks("train", world.tiers[0])
    with _join_ranks(layout, policy=policy, config=config) as ranks:
        make_backend: Callable[..., _TellingBackend] = partial(_TellingBackend, parallelism=parallel)
        if ranks is not None:
            settings = [config, train, seed, max_tokens, slots, panel_limit, reward_timeout_s, str(folder)]
            check_agreement(ranks, list_agreement_facts(settings, {world.name: world}, policy=policy, tasks=tasks))
            placement = Placement(device=str(ranks.device))
            make_backend = partial(_TellingRanksBackend, parallelism=layout, ranks=ranks, placement=placement)
        is_leader = ranks is None or ranks.is_leader
        console = Console(stderr=True, quiet=quiet or not is_leader, soft_wrap=True, highlight=False)
        backend = make_backend(
            {world.name: world},
            train,
            EvaluationPanel(limit=panel_limit),
            slots=slots,
            max_tokens=max_tokens,
            limits=Limits(step_s=reward_timeout_s),
        )
        backend.console, backend.num_iterations = console, config.practice.iterations
        console.print(world.describe())

        def open_run(is_writing: bool) -> Run[Policy]:
            return Run(
                folder,
                backend,
                seed=seed,
                settings=backend.settings(),
                tell=console.print,
                method="grpo",
                writing=is_writing,
            )

        with open_shared_run(ranks, open_run) as run:
            arm = run.arm("grpo")
            before = arm.evaluate(policy, 0)
            trained = grpo(policy, tasks, config=config, run=arm)
            after = arm.evaluate(trained, config.practice.iterations)
            backend.save(trained, run.folder / "model")
        if is_leader:
            _write_report(run.folder)  # after the run: it states that the run is finished
    for line in (*_describe_results(before, after), *filter(None, [backend.failures.describe()])):
        console.print(line)
    if is_leader:
        console.print(_read_verdict(run.folder), soft_wrap=not console.is_terminal)
    console.print(f"model {run.folder / 'model'}, report {run.folder / 'report.html'}")
    return trained


def _merge_practice(config: GRPOConfig, arguments: Mapping[str, float | None]) -> GRPOConfig:
    """Returns the settings with the arguments that were given.

    Raises:
        ConfigError: a wrong value, or one that the settings state otherwise.
    """
    practice = config.practice
    given = {name: value for name, value in arguments.items() if value is not None}
    problems = [
        Problem(name, f"got {value}, but config.practice has {getattr(practice, name)}", "leave out one of them")
        for name, value in given.items()
        if name in practice.model_fields_set and getattr(practice, name) != value
    ]
    if problems:
        raise ConfigError(problems)
    with config_boundary():
        checked = RLConfig.model_validate({**dict(practice), **given})
        type(config).model_validate({**dict(config), "practice": checked})
    practice = practice.model_copy(update={name: getattr(checked, name) for name in given})
    return config.model_copy(update={"practice": practice})


def _merge_lr(train: TrainConfig | None, lr: float | None) -> TrainConfig | None:
    if lr is None:
        return train
    if train is not None and "lr" in train.model_fields_set and train.lr != lr:
        raise ConfigError([Problem("lr", f"got {lr:g}, but train has {train.lr:g}", "leave out one of them")])
    if not lr > 0:
        raise ConfigError([Problem("lr", f"got {lr:g}, expected more than 0")])
    return (train or RL_TRAIN).model_copy(update={"lr": lr})


def _choose_layout(parallel: Parallelism | None, *, has_adapter: bool) -> Parallelism:
    """Returns the given layout, or one in which each process has a share of the data.

    That is a share of every weight too, unless an adapter is trained, whose gradients alone are exchanged.

    Raises:
        ConfigError: it is for another number of processes than torchrun has started.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    layout = (parallel or Parallelism()).over(world_size, copies=has_adapter)
    if layout.mesh.size != world_size:
        message = f"{layout.mesh} needs {layout.mesh.size} processes: got {world_size}"
        launch = f"start the script with: torchrun --nproc-per-node {layout.mesh.size} SCRIPT.py"
        raise ConfigError([Problem("parallel", message, launch)])
    return layout


@contextmanager
def _join_ranks(layout: Parallelism, *, policy: Policy, config: GRPOConfig) -> Iterator[Ranks | None]:
    """Yields this process among the ranks, with the policy on its device; None where it is alone.

    Raises:
        ConfigError: the model or a setting cannot have the layout.
    """
    if layout.mesh.size == 1:
        yield None
        return
    check_practice(config.practice, layout, is_limited=config.target_kl is not None)
    adapter = kind_of(policy.model) or "none"
    check_layout(policy.model.config, layout, world=layout.mesh.size, adapter=adapter)
    device = next(iter(policy.model.parameters())).device.type
    with (
        RankCoordinator(layout.timeout) as coordinator,
        join_ranks(layout.mesh, device=device, timeout=layout.timeout, coordinator=coordinator) as ranks,
    ):
        policy.to(ranks.device)
        yield ranks


def _make_world(
    dataset: Rows | PromptWorld,
    rewards: NamedRewards,
    *,
    tools: Sequence[ToolFunction] | ToolFunction,
    weights: Sequence[float] | None,
    instructions: str,
) -> PromptWorld:
    if not isinstance(dataset, PromptWorld):
        return PromptWorld(dataset, _resolve_rewards(rewards), tools=tools, weights=weights, instructions=instructions)
    if rewards != () or tools != () or weights is not None or instructions:
        hint = "leave out rewards, tools, weights and instructions, or pass the rows"
        raise ConfigError([Problem("dataset", "a PromptWorld has its own rewards and tools", hint)])
    return dataset


def _resolve_rewards(rewards: NamedRewards) -> Rewards:
    """Returns the rewards with built-in ones in place of their names."""
    if isinstance(rewards, str):
        return find_reward(rewards)
    if not isinstance(rewards, list | tuple):
        return cast("Rewards", rewards)
    resolved: list[object] = []
    for item in rewards:
        if isinstance(item, tuple) and isinstance(item[0], str):
            resolved.append((find_reward(item[0]), item[1]))
        else:
            resolved.append(find_reward(item) if isinstance(item, str) else item)
    return cast("Rewards", tuple(resolved) if isinstance(rewards, tuple) else resolved)


def _resolve_policy(policy: Policy | Path | str, world: PromptWorld, *, seed: int) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str | Path):
        expected = "a policy, a model folder, a GGUF file, or the name of a model on this machine"
        hint = "save a model of transformers and its tokenizer with save_pretrained(folder), and pass the folder"
        raise ConfigError("policy is another object", value=type(policy).__name__, expected=expected, hint=hint)
    if str(policy) in ("xs", "s", "m"):
        from evolvent.scale.initial import make_policy

        return make_policy([world], size=str(policy), seed=seed)
    return load_policy(policy)


def _write_report(folder: Path) -> None:
    from evolvent.view import report

    report(folder, folder / "report.html")


class _TellingBackend(LocalBackend):
    """A backend that tells each iteration, and the first episode of each kind that could not be scored."""

    console: Console = Console(quiet=True)
    num_iterations: int = 0
    _tells_failures = False  # the caller does

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        def log(row: Mapping[str, object]) -> None:
            stage.log(row)
            if row.get("kind") == "practise":
                self.console.print(_describe_iteration(row, self.num_iterations))

        return super().train_rl(policy, replace(stage, log=log), spec=spec)


class _TellingRanksBackend(_TellingBackend, RanksBackend):
    """The same over several ranks."""


def _describe_iteration(row: Mapping[str, object], count: int) -> str:
    def number(name: str) -> float:
        value = row.get(name, 0.0)
        return float(value) if isinstance(value, int | float) else 0.0

    line = f"iteration {row.get('step')}/{count}: mean return {number('return'):.3f}, success {number('success'):.0%}"
    if number("cut") >= _MANY_CUT:
        line += f", {number('cut'):.0%} of the replies cut at max_tokens"
    if number("unscored"):
        line += f", {number('unscored'):.0%} not scored"
    return line


def _read_verdict(folder: Path) -> str:
    from evolvent.view import read_run
    from evolvent.view.reinforcement import describe_training

    return describe_training(read_run(folder))[-1]


def _describe_results(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> list[str]:
    lines = []
    for first, last in zip(before, after, strict=True):
        returns = [row.mean if row.mean_return is None else row.mean_return for row in (first, last)]
        if None in returns or last.mean is None or first.mean is None:
            lines.append(f"{last.split}: {last.errors} of {last.n} rows could not be scored, so no mean is given")
            continue
        lines.append(
            f"{last.split}, {last.n} rows: mean return {returns[0]:.3f} before, {returns[1]:.3f} after; "
            f"success {first.mean:.0%} before, {last.mean:.0%} after"
        )
    return lines
