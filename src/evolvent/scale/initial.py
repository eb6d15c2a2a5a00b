"""What a run begins with: an untrained policy that knows the words of its worlds, and what their experts do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from evolvent.agents.plain import Expert
from evolvent.errors import ConfigError
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.collect import collect
from evolvent.trajectory import Start, Task, Trajectory, sample_seed
from evolvent.worlds.base import Renamable, World

__all__ = ["demonstrations", "policy_for"]

_CONTEXT, _SAMPLED = 256, 12  # least tokens of an episode; tasks of a tier that are looked at for more
_WORDS = re.compile(r"\w+|[^\w\s]")


def policy_for(worlds: Sequence[World], *, size: str = "xs", context: int | None = None, seed: int = 0) -> Policy:
    """The embedded default policy for these worlds: untrained, over the union of their vocabularies.

    Args:
        context: most tokens of an episode; None: room for what the worlds' experts do.
    Raises:
        ConfigError: a world with an open vocabulary, which needs a model of its own.
    """
    words: dict[str, None] = {}
    for world in worlds:
        known = world.vocabulary()
        if known is None:
            raise ConfigError(
                f"world {world.name!r} has an open vocabulary",
                expected="a model folder",
                hint="give the policy as a Hugging Face folder",
            )
        words.update(dict.fromkeys(known))
    context = context or _roomy(worlds)
    return tiny_policy(sorted(words), size=size, context=context, seed=sample_seed(seed, "initialisation") % 2**31)


def _roomy(worlds: Sequence[World]) -> int:
    """A context that holds the experts' longest episodes with a quarter to spare: 256, 512, 1024, ... tokens."""
    longest = 0
    for world in worlds:
        tasks = [task for tier in world.tiers for task in world.tasks("dev", tier)[:_SAMPLED]]
        starts = [Start(task) for task in tasks if world.expert(task) is not None]
        for played in collect({world.name: world}, starts, Expert(), engine=None):
            said = [world.instructions, played.final_observation]
            said += [text for step in played.steps for text in (step.observation, step.action)]
            words = sum(len(_WORDS.findall(str(text))) for text in said)
            longest = max(longest, words + 3 * len(played.steps))  # a turn's own marks
    context = _CONTEXT
    while context < 1.25 * longest:
        context *= 2
    return context


def demonstrations(
    worlds: Sequence[World], tasks: Sequence[Task], *, seed: int = 0, namings: int = 1
) -> list[Trajectory]:
    """What the worlds' experts do on these tasks.

    Args:
        namings: show each task so many times, from the second time on under other names, where its world can rename.
    Raises:
        ConfigError: a demonstration that does not succeed when it is played.
    """
    known = {world.name: world for world in worlds}
    shown = list(tasks)
    for task in tasks:
        world = known[task.world]
        with suppress(ConfigError):  # names that mean something, as those of a user's data, stay
            if isinstance(world, Renamable):
                shown += [world.renamed(task, Random(sample_seed(seed, task.id, n))) for n in range(1, namings)]
    starts = [Start(task) for task in dict.fromkeys(shown)]
    played = collect(known, starts, Expert(), engine=None, seed=seed, name=lambda s: f"demonstration/{s.task.id}")
    found = {trajectory.task.id: trajectory for trajectory in played}
    failed = [trajectory.id for trajectory in found.values() if not trajectory.success]
    if failed:
        raise ConfigError("demonstrations that do not succeed", value=failed[:5], expected="an expert that solves them")
    return [found[start.task.id] for start in starts]
