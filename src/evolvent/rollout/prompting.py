"""Prompts for models that never saw a world: the form of an action, and expert episodes of other tasks as turns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import Any

from evolvent.agents.chat import format_hint
from evolvent.agents.plain import Expert
from evolvent.errors import ConfigError, Problem
from evolvent.messages import Instructions
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Task, Trajectory, sample_rng
from evolvent.worlds.base import Parsed, World

__all__ = ["prompt_world"]


def prompt_world(world: World, *, examples: int = 0, hint: bool = False, seed: int = 0) -> World:
    """Returns the world with instructions that show a model how to act.

    The examples are expert episodes of training tasks. The returned world does not offer these tasks, so that no agent
    plays a task whose solution it reads.

    Args:
        world: The world; it stays as it was.
        examples: Number of expert episodes before the first observation.
        hint: Whether the form of an action follows the instructions.
        seed: Seed of the choice of examples.
    Raises:
        ConfigError: a world with fewer tasks that its expert solves.

    >>> from evolvent import Lookup
    >>> world = prompt_world(Lookup(), examples=1, hint=True)
    >>> world.instructions.examples[0]
    ('find home of mayor of capital of goravia', 'capital of goravia')
    """
    form = getattr(world, "reply_hint", None) if hint else ""  # a world of prompts says itself how to reply
    form = format_hint(world.grammar) if form is None else form
    if not examples and not form:
        return world
    episodes = _play_examples(world, examples, seed=seed) if examples else []
    turns: list[tuple[str, str]] = []
    closing = ""
    for episode in episodes:
        for step in episode.steps:
            observation = f"{closing}\n\n{step.observation}" if closing else str(step.observation)
            turns.append((observation, world.grammar.render(Parsed(str(step.action), step.thought))))
            closing = ""
        closing = str(episode.final_observation)
    text = "\n\n".join(filter(None, [str(world.instructions), form]))
    return _replace_prompt(world, Instructions(text, turns, closing), {episode.task.id for episode in episodes})


def _play_examples(world: World, count: int, *, seed: int) -> list[Trajectory]:
    """Plays the expert on training tasks, of different kinds as far as there are enough kinds."""
    tasks = [task for tier in world.tiers for task in world.tasks("train", tier)]
    shuffled = [tasks[int(index)] for index in sample_rng(seed, "examples", world.name).permutation(len(tasks))]
    first_of_kind = {task.kind: task for task in reversed(shuffled)}
    others = (task for task in shuffled if first_of_kind[task.kind] is not task)
    solved: list[Trajectory] = []
    for task in chain([task for task in shuffled if first_of_kind[task.kind] is task], others):
        if len(solved) == count:
            break
        if world.expert(task) is not None:
            episodes = collect({world.name: world}, [Start(task)], Expert(), engine=None, seed=seed)
            solved += [episode for episode in episodes if episode.success]
    if len(solved) < count:
        message = f"got {count} for world {world.name!r}, whose expert solves {len(solved)} training tasks"
        hint = f"set at most {len(solved)}" if solved else "leave it out"
        raise ConfigError([Problem("examples", message, hint)])
    return solved


def _replace_prompt(world: World, instructions: Instructions, hidden_tasks: set[str]) -> World:
    """Returns a copy of the world with other instructions, and without some of its training tasks."""
    world_class: Any = type(world)

    def tasks(self: Any, split: str, tier: str) -> Sequence[Task]:
        panel: Sequence[Task] = world_class.tasks(self, split, tier)
        return [task for task in panel if task.id not in hidden_tasks] if split == "train" else panel

    prompted: Any = copy.copy(world)
    members = {"__slots__": (), "__module__": world_class.__module__, "instructions": instructions, "tasks": tasks}
    prompted.__dict__.pop("instructions", None)
    prompted.__class__ = type(world_class.__name__, (world_class,), members)
    result: World = prompted
    return result
