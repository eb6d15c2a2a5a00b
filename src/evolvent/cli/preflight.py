"""Whether a training can begin: what is wrong with it, all at once, before weights are read or a file is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from evolvent.cli.planning import model_config
from evolvent.cli.record import new_folder
from evolvent.cli.registry import POLICIES, model_folder, policy, worlds
from evolvent.cli.train_recipes import Distill, Given, Recipe
from evolvent.cli.training_data import holds_episodes, strangers, survey
from evolvent.errors import ConfigError, EvolventError, MissingExtra, Problem
from evolvent.learn.optim.make import check_fused, make
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.stages import micro_batches
from evolvent.models.policy import Policy
from evolvent.worlds.base import World

__all__ = ["Asked", "given"]


@dataclass(frozen=True)
class Asked:
    """A training as it was asked for.

    Args:
        config: its recipe, resolved. command: its words, for the line that starts it over several processes.
        resume: the run that is gone on with. world: how many processes there are. rank: which one this is.
    """

    config: Recipe
    command: str
    resume: Path | None = None
    world: int = 1
    rank: int = 0

    @property
    def reads(self) -> bool:
        """Whether data are read: a run that has its tokens goes on with those."""
        return self.resume is None or not (self.resume / "tokens" / "manifest.json").is_file()


def given(asked: Asked) -> Given:
    """What the recipe works with, once nothing is wrong with it.

    Raises:
        ConfigError: everything that can be found without reading weights. Then whatever loading the policy raises.
    """
    config, problems = asked.config, list[Problem]()
    made: dict[str, World] = {}
    played = False
    with _noting(problems, "to"):
        _check_folder(asked)
    with _noting(problems, "data"):
        played = asked.reads and holds_episodes(config.data)
    with _noting(problems, "worlds"):
        made = worlds(config.worlds) if played or config.policy in POLICIES else {}
    if asked.reads and not problems:
        with _noting(problems, "data"):
            _check_data(asked, made, played=played)
    with _noting(problems, "teacher"):
        if asked.reads and isinstance(config, Distill):
            _check_teacher(config)
    initial: Policy | None = None
    with _noting(problems, "policy"):
        if config.policy in POLICIES:
            initial = policy(config.policy, list(made.values()), seed=config.seed) if made else None
        else:
            model_folder(config.policy)
    with _noting(problems, "parallel"):
        _check_layout(asked, initial)
    with _noting(problems, "optimizer"):
        _check_optimizer(config)
    problems += _of_device(config)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    if initial is None:
        initial = policy(config.policy, list(made.values()), seed=config.seed)
    return Given(initial, made, torch.device(config.device))


@contextmanager
def _noting(problems: list[Problem], where: str) -> Iterator[None]:
    """What is wrong inside is noted; `where` it is, if it does not say that itself."""
    try:
        yield
    except MissingExtra:
        raise
    except ConfigError as error:
        problems += [replace(one, where=where) if one.where == "input" else one for one in error.problems]
    except EvolventError as error:
        problems.append(Problem(where, str(error)))


def _of_device(config: Recipe) -> list[Problem]:
    here, wanted = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.device == "cpu" or here >= wanted:
        return []
    if not here:
        return [Problem("device", "there is no CUDA device here", "train on the cpu")]
    return [Problem("device", f"{wanted} ranks run here and there are {here} CUDA devices", "start one for each")]


def _check_folder(asked: Asked) -> None:
    if asked.resume is not None:
        return
    if asked.world > 1 and asked.config.to is None:
        raise ConfigError([Problem("to", "several ranks need one folder", "name it: --to runs/NAME")])
    if asked.rank == 0:
        new_folder("train", asked.config.to)


def _check_data(asked: Asked, made: Mapping[str, World], *, played: bool) -> None:
    """Whether the recipe takes such data, and they hold something for it; one rank looks into them."""
    config = asked.config
    if played and config.form == "rows":
        what = f"{config.data} holds episodes, and this recipe learns from text"
        raise ConfigError([Problem("data", what, "evolvent train sft learns from episodes")])
    if not played and config.form == "episodes":
        what = f"{config.data} holds no episodes"
        raise ConfigError([Problem("data", what, "name a run, or a file that evolvent runs export wrote as jsonl")])
    if not played or asked.rank:
        return
    seen = survey(config.data)
    lacking = config.lacking([one for one in seen if not one.failed])
    problems = [*strangers(seen, made, config.data), *([lacking] if lacking is not None else [])]
    if problems:
        raise ConfigError(problems)


def _check_teacher(config: Distill) -> None:
    if not config.teacher:
        raise ConfigError([Problem("teacher", "no teacher is named", "--teacher FOLDER, a model or a run")])
    if not Path(config.teacher).is_dir():
        raise ConfigError([Problem("teacher", f"there is no model at {config.teacher}", "name a model or a run")])
    model_folder(config.teacher)


def _check_layout(asked: Asked, initial: Policy | None) -> None:
    config = asked.config
    if initial is None and (config.policy in POLICIES or not Path(config.policy).is_dir()):
        return  # what is wrong with it is noted already
    shape = initial.model.config if initial is not None else model_config(config.policy)
    check_layout(shape, config.parallel, world=asked.world, adapter=config.adapter.kind, command=asked.command)


def _check_optimizer(config: Recipe) -> None:
    """Make it for a small weight; then see whether a fused one could keep its promise."""
    train = config.train
    weight = nn.Parameter(torch.zeros(2, 2))
    make(config.optimizer, [("weight", weight)], lr=train.lr, betas=train.betas, weight_decay=0.0, clip=train.clip)
    parts = 2 if train.micro_tokens is not None and train.micro_tokens < train.batch_tokens else 1
    parallel = config.parallel
    problems = check_fused(config.optimizer, micro_batches(parallel.schedule, parallel.pp, parts), parallel.pp)
    if problems:
        raise ConfigError(problems)
