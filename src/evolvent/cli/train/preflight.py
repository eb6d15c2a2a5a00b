"""Checks before a training begins: all problems at once, before weights are read or a file is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from evolvent.cli.setup.model_defaults import read_model_facts
from evolvent.cli.setup.prompting import Prompt, load_prompted_worlds
from evolvent.cli.setup.record import choose_run_folder
from evolvent.cli.setup.registry import POLICIES, resolve_model_folder, resolve_policy
from evolvent.cli.train.data import holds_episodes, summarize_episodes, unknown_world_problems
from evolvent.cli.train.planning import read_model_config
from evolvent.cli.train.ranks import check_shared_folder
from evolvent.cli.train.recipes import DistillConfig, RecipeConfig, RecipeInputs
from evolvent.errors import ConfigError, EvolventError, MissingExtra, Problem
from evolvent.learn.optim.make import build_optimizer, check_fused, check_offload
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.stages import min_micro_batches
from evolvent.models.adapters import find_base_problems
from evolvent.models.catalog import locate_model
from evolvent.models.placement import check_working_memory, find_device
from evolvent.models.policy import Policy
from evolvent.worlds.base import World

__all__ = ["TrainingRequest", "check_request"]


@dataclass(frozen=True)
class TrainingRequest:
    """A requested training.

    Args:
        config: its recipe, resolved.
        command: its arguments, for the message about starting it over several processes.
        resume: the run to resume.
        world_size: number of processes.
        rank: rank of this process.
    """

    config: RecipeConfig
    command: str
    resume: Path | None = None
    world_size: int = 1
    rank: int = 0

    @property
    def reads_data(self) -> bool:
        """Returns whether data are read: a run that has stored its tokens resumes from those."""
        return self.resume is None or not (self.resume / "tokens" / "manifest.json").is_file()


def check_request(request: TrainingRequest) -> RecipeInputs:
    """Returns the inputs of the recipe after checking the request.

    Raises:
        ConfigError: every problem that can be found without reading weights. Then any error of loading the policy.
    """
    config, problems = request.config, list[Problem]()
    worlds_by_name: dict[str, World] = {}
    is_episodes = False
    with _collect_problems(problems, "to"):
        _check_folder(request)
    with _collect_problems(problems, "data"):
        is_episodes = request.reads_data and holds_episodes(config.data)
    with _collect_problems(problems, "worlds"):
        if is_episodes or config.policy in POLICIES:
            is_pretrained = config.policy not in POLICIES and read_model_facts(config.policy).is_pretrained
            worlds_by_name = load_prompted_worlds(config.worlds, Prompt(hint=is_pretrained))
    if request.reads_data and not problems:
        with _collect_problems(problems, "data"):
            _check_data(request, worlds_by_name, is_episodes=is_episodes)
            if is_episodes and config.policy not in POLICIES:
                worlds_by_name = _leave_out_unplayed_worlds(worlds_by_name, config.data)
    with _collect_problems(problems, "teacher"):
        if request.reads_data and isinstance(config, DistillConfig):
            _check_teacher(config)
    initial: Policy | None = None
    placement = replace(config.placement, device="cpu")  # the ranks move it, or their part of it
    is_located = False  # the policy is a model of this machine
    with _collect_problems(problems, "policy"):
        if config.policy in POLICIES:
            initial = (
                resolve_policy(config.policy, list(worlds_by_name.values()), seed=config.seed, placement=placement)
                if worlds_by_name
                else None
            )
        else:
            resolve_model_folder(config.policy)
            is_located = True
    with _collect_problems(problems, "parallel"):
        _check_layout(request, initial, is_located=is_located)
    with _collect_problems(problems, "optimizer"):
        _check_optimizer(config)
    with _collect_problems(problems, "device"):
        _check_device(config)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    if initial is None:
        initial = resolve_policy(config.policy, list(worlds_by_name.values()), seed=config.seed, placement=placement)
    if config.device == "cpu" and request.world_size == 1:
        trains_all = config.adapter.kind == "none" and config.optimizer.name == "adamw"
        check_working_memory(initial.model, context=0, trains=trains_all, plays=False)
    return RecipeInputs(initial, worlds_by_name, torch.device(config.device))


@contextmanager
def _collect_problems(problems: list[Problem], setting: str) -> Iterator[None]:
    """Collects the problems raised in the block; `setting` is their place unless they name another one."""
    try:
        yield
    except MissingExtra:
        raise
    except ConfigError as error:
        problems += [
            replace(problem, where=setting) if problem.where == "input" else problem for problem in error.problems
        ]
    except EvolventError as error:
        problems.append(Problem(setting, str(error)))


def _check_device(config: RecipeConfig) -> None:
    """Checks that the device is there, and that every rank of this host has one."""
    device, num_ranks = find_device(config.device), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.type == "cpu" or num_ranks == 1:
        return
    if device.type != "cuda" or device.index is not None:
        message = f"got {config.device!r} for {num_ranks} ranks, expected cpu or cuda"
        raise ConfigError([Problem("device", message, "each rank takes a CUDA device by its number")])
    num_devices = torch.cuda.device_count()
    if num_devices < num_ranks:
        message = f"got {num_ranks} ranks on this host, expected at most {num_devices}, one per CUDA device"
        raise ConfigError([Problem("device", message, "start fewer ranks")])


def _check_folder(request: TrainingRequest) -> None:
    if request.resume is not None:
        return
    problems = check_shared_folder(request.config.output_dir, world_size=request.world_size)
    if problems:
        raise ConfigError(problems)
    if request.rank == 0:
        choose_run_folder("train", request.config.output_dir)


def _check_data(request: TrainingRequest, worlds_by_name: Mapping[str, World], *, is_episodes: bool) -> None:
    """Checks that the recipe accepts the data and that they hold usable entries; one rank inspects them."""
    config = request.config
    if is_episodes and config.form == "rows":
        message = f"{config.data} holds episodes, but this recipe learns from text"
        raise ConfigError([Problem("data", message, "use evolvent train sft to learn from episodes")])
    if not is_episodes and config.form == "episodes":
        message = f"{config.data} does not hold episodes"
        raise ConfigError([Problem("data", message, "pass a run, or a jsonl file of evolvent runs export")])
    if not is_episodes or request.rank:
        return
    summaries = summarize_episodes(config.data)
    lacking = config.check_episodes([summary for summary in summaries if not summary.failed])
    problems = [
        *unknown_world_problems(summaries, worlds_by_name, config.data),
        *([lacking] if lacking is not None else []),
    ]
    if problems:
        raise ConfigError(problems)


def _leave_out_unplayed_worlds(worlds_by_name: Mapping[str, World], data: Path) -> dict[str, World]:
    """Returns the worlds; where all episodes were imported only those that they name, so that a policy over other words
    may learn them.
    """
    summaries = summarize_episodes(data)
    played_names = {summary.world for summary in summaries}
    is_imported = all(summary.is_imported for summary in summaries)
    return {name: world for name, world in worlds_by_name.items() if name in played_names or not is_imported}


def _check_teacher(config: DistillConfig) -> None:
    if not config.teacher:
        raise ConfigError([Problem("teacher", "missing teacher", "set --teacher to a model folder or a run")])
    if not locate_model(config.teacher).exists():
        raise ConfigError([Problem("teacher", f"no model found at {config.teacher}", "pass a model folder or a run")])
    resolve_model_folder(config.teacher)


def _check_layout(request: TrainingRequest, initial: Policy | None, *, is_located: bool) -> None:
    config = request.config
    mesh = config.parallel.mesh
    if problems := find_base_problems(config.adapter, num_ranks=mesh.size, num_parts=mesh.tp * mesh.pp):
        raise ConfigError(problems)
    if initial is None and not is_located:
        return  # what is wrong with it is noted already
    model_shape = initial.model.config if initial is not None else read_model_config(config.policy)
    check_layout(
        model_shape, config.parallel, world=request.world_size, adapter=config.adapter.kind, command=request.command
    )


def _check_optimizer(config: RecipeConfig) -> None:
    """Builds the optimizer for a small weight, then checks whether a fused one fits the training."""
    train = config.train
    weight = nn.Parameter(torch.zeros(2, 2))
    build_optimizer(
        config.optimizer,
        [("weight", weight)],
        lr=train.lr,
        betas=train.betas,
        weight_decay=0.0,
        clip=train.max_grad_norm,
    )
    num_parts = (
        2 if train.max_tokens_per_forward is not None and train.max_tokens_per_forward < train.batch_tokens else 1
    )
    parallel = config.parallel
    problems = check_fused(config.optimizer, min_micro_batches(parallel.schedule, parallel.pp, num_parts), parallel.pp)
    if train.offloads_reference:
        message = f"got {train.offload!r}, but a recipe trains with no reference in memory: dpo scores with it before"
        problems.append(Problem("train.offload", message, "set it to 'optimizer', or leave it out"))
    elif train.offloads_optimizer:
        device_type = config.device.partition(":")[0]
        problems += check_offload(config.optimizer, device_type=device_type, num_ranks=parallel.mesh.size)
    if problems:
        raise ConfigError(problems)
