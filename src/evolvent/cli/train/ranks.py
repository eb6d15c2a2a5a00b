"""Checks and set-up of the ranks that torchrun started, which the kinds of training share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.learn.settings import Parallelism
from evolvent.models.policy import Policy
from evolvent.rl.settings import RLConfig
from evolvent.trajectory import Task
from evolvent.worlds.base import World

if TYPE_CHECKING:  # a mistake in the settings is reported before torch is imported
    from evolvent.learn.parallel.ranks import RankCoordinator, Ranks

__all__ = [
    "check_model_layout",
    "check_ranks_agree",
    "check_shared_folder",
    "choose_practice_layout",
    "format_program",
    "open_ranks",
    "refuse_ranks",
]


def format_program(world_size: int) -> str:
    """Returns what starts a command over so many processes."""
    return "evolvent" if world_size == 1 else f"torchrun --nproc-per-node {world_size} -m evolvent"


def refuse_ranks(world_size: int, message: str) -> None:
    """Raises ConfigError where there are several ranks, with the reason."""
    if world_size > 1:
        raise ConfigError([Problem("parallel", f"{message}: got {world_size} ranks", "start it without torchrun")])


def check_shared_folder(output_dir: Path | None, *, world_size: int) -> list[Problem]:
    """Returns the problem of several ranks that would each choose a folder; none where one is named."""
    if world_size == 1 or output_dir is not None:
        return []
    return [Problem("output_dir", "several ranks need a shared folder", "set --to runs/NAME")]


def choose_practice_layout(
    parallelism: Parallelism,
    settings: Config,
    *,
    method: str,
    has_adapter: bool,
    output_dir: Path | None,
    world_size: int,
    argv: Sequence[str],
) -> Parallelism:
    """Returns the layout over the ranks: the given one, or a share of the data for each rank.

    Without a given one a rank has a share of every weight too, or all of them below an adapter: it plays with whole
    weights anyway, and what is exchanged are the adapter's gradients alone.

    Args:
        settings: of the method.
        has_adapter: whether an adapter is trained.
        output_dir: the folder that the run is written to or resumed from; None where none was named.
        argv: the arguments after `train rl`.
    Raises:
        ConfigError: another number of ranks, or settings of the method that the layout cannot run; lists all problems.
    """
    parallelism = parallelism.over(world_size, copies=has_adapter)
    problems = check_shared_folder(output_dir, world_size=world_size)
    if world_size > 1 or parallelism.mesh.size > 1:
        from evolvent.learn.parallel.lay import check_world_size

        problems += check_world_size(parallelism.mesh, world=world_size, command=shlex.join(["train", "rl", *argv]))
    practice = getattr(settings, "practice", None)
    if isinstance(practice, RLConfig) and world_size > 1:
        from evolvent.scale.ranks_backend import check_practice

        try:
            check_practice(
                practice,
                parallelism,
                action_level=getattr(settings, "level", "") == "listed",
                is_limited=getattr(settings, "target_kl", None) is not None,
                needs_logits=method == "etpo",
            )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return parallelism


def check_model_layout(policy: Policy, parallelism: Parallelism, *, world_size: int, adapter: str) -> None:
    """Raises ConfigError where the model cannot have the layout, with the nearest one that it can have."""
    from evolvent.learn.parallel.lay import check_layout

    if world_size > 1:
        check_layout(policy.model.config, parallelism, world=world_size, adapter=adapter, command="train rl ...")


@contextmanager
def open_ranks(parallelism: Parallelism, *, device: str, coordinator: RankCoordinator | None) -> Iterator[Ranks | None]:
    """Yields this process among the ranks; None where it is alone."""
    from evolvent.learn.parallel.ranks import join_ranks

    if coordinator is None:
        yield None
        return
    coordinator.timeout = parallelism.timeout
    with join_ranks(parallelism.mesh, device=device, timeout=parallelism.timeout, coordinator=coordinator) as ranks:
        yield ranks


def check_ranks_agree(
    ranks: Ranks, config: Config, worlds_by_name: Mapping[str, World], *, initial: Policy, tasks: Sequence[Task]
) -> None:
    """Raises ConfigError where ranks have other settings, worlds, tasks or weights than the first one."""
    from evolvent.scale.ranks_backend import check_agreement, list_agreement_facts

    check_agreement(ranks, list_agreement_facts(config, worlds_by_name, policy=initial, tasks=tasks))
