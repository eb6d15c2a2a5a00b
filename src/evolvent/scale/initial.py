"""The start of a run: an untrained policy with the vocabulary of its worlds, and demonstrations of their experts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from evolvent.agents.plain import Expert
from evolvent.errors import ConfigError
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.episode import FailureCounts, collect
from evolvent.trajectory import Start, Task, Trajectory, sample_seed
from evolvent.worlds.base import SupportsRenaming, World

__all__ = ["collect_demonstrations", "make_policy"]

_MIN_CONTEXT, _TASKS_PER_TIER = 256, 12  # least tokens of an episode; tasks of a tier that are looked at for more
_WORDS = re.compile(r"\w+|[^\w\s]")


def make_policy(worlds: Sequence[World], *, size: str = "xs", context: int | None = None, seed: int = 0) -> Policy:
    """Creates the embedded default policy for these worlds: untrained, over the union of their vocabularies.

    Args:
        worlds: The worlds.
        size: Size of the model.
        context: Maximum tokens of an episode; None: enough for the worlds' experts.
        seed: Seed of the initialization.
    Raises:
        ConfigError: a world with an open vocabulary, which needs another model.

    >>> from evolvent import Lookup
    >>> policy = make_policy([Lookup()])
    >>> policy.version, policy.context
    (0, 256)
    """
    vocabulary: dict[str, None] = {}
    for world in worlds:
        world_words = world.vocabulary()
        if world_words is None:
            raise ConfigError(
                f"world {world.name!r} has an open vocabulary",
                expected="a model folder",
                hint="pass the policy as a Hugging Face folder",
            )
        vocabulary.update(dict.fromkeys(world_words))
    context = context or _choose_context(worlds)
    return tiny_policy(sorted(vocabulary), size=size, context=context, seed=sample_seed(seed, "initialisation") % 2**31)


def _choose_context(worlds: Sequence[World]) -> int:
    """Computes a context that holds the experts' longest episodes with a quarter to spare: 256, 512, 1024, ...
    tokens.
    """
    longest = 0
    for world in worlds:
        tasks = [task for tier in world.tiers for task in world.tasks("dev", tier)[:_TASKS_PER_TIER]]
        starts = [Start(task) for task in tasks if world.expert(task) is not None]
        for episode in collect({world.name: world}, starts, Expert(), engine=None):
            texts = [world.instructions, episode.final_observation]
            texts += [text for step in episode.steps for text in (step.observation, step.action)]
            num_words = sum(len(_WORDS.findall(str(text))) for text in texts)
            longest = max(longest, num_words + 3 * len(episode.steps))  # a turn's own marks
    context = _MIN_CONTEXT
    while context < 1.25 * longest:
        context *= 2
    return context


def collect_demonstrations(
    worlds: Sequence[World], tasks: Sequence[Task], *, seed: int = 0, namings: int = 1
) -> list[Trajectory]:
    """Collects the worlds' expert episodes on these tasks.

    Args:
        worlds: The worlds.
        tasks: The tasks.
        seed: Seed of renamings and episodes.
        namings: Number of variants of each task, from the second on under other names, where its world can rename.
    Raises:
        ConfigError: a demonstration that does not succeed.

    >>> from evolvent import Lookup
    >>> world = Lookup()
    >>> [len(episode.steps) for episode in collect_demonstrations([world], world.tasks("train", "seen")[:3])]
    [4, 3, 2]
    """
    worlds_by_name = {world.name: world for world in worlds}
    task_variants = list(tasks)
    for task in tasks:
        world = worlds_by_name[task.world]
        with suppress(ConfigError):  # names that mean something, as those of a user's data, stay
            if isinstance(world, SupportsRenaming):
                task_variants += [world.rename(task, Random(sample_seed(seed, task.id, n))) for n in range(1, namings)]
    starts = [Start(task) for task in dict.fromkeys(task_variants)]
    failures = FailureCounts()
    episodes = collect(
        worlds_by_name,
        starts,
        Expert(),
        engine=None,
        seed=seed,
        name=lambda s: f"demonstration/{s.task.id}",
        failures=failures,
    )
    episodes_by_task = {trajectory.task.id: trajectory for trajectory in episodes}
    failed = [trajectory.id for trajectory in episodes_by_task.values() if not trajectory.success]
    if failed:
        raise ConfigError(
            "demonstrations did not succeed",
            value=f"{len(failed)} of {len(episodes_by_task)}, such as {failed[0]}",
            expected="an expert that solves all tasks",
            hint=failures.describe() or None,
        )
    return [episodes_by_task[start.task.id] for start in starts]
