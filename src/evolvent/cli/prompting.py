"""Settings of the prompt that every episode begins with (`--agent.*`), and worlds with that prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import Field

from evolvent.cli.registry import load_worlds
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.rollout.prompting import prompt_world
from evolvent.worlds.base import SPLITS, World

__all__ = ["ActingConfig", "Prompt", "PromptConfig", "check_listed_actions", "load_prompted_worlds", "prompt_worlds"]


class Prompt(NamedTuple):
    """Arguments of `rollout.prompting.prompt_world`, which makes the same prompt of a world in every process."""

    examples: int = 0
    hint: bool = False
    seed: int = 0


class PromptConfig(Config):
    """Settings of what a model reads before its first observation."""

    examples: int = Field(
        default=0, ge=0, description="expert episodes of other tasks that the conversation begins with"
    )
    hint: bool | None = Field(
        default=None, description="name the form of an action after the instructions; none: to pretrained models"
    )

    def make_prompt(self, *, seed: int, is_pretrained: bool) -> Prompt:
        """Returns the prompt.

        Args:
            is_pretrained: whether the model knows other text than that of worlds; such models are told how to act.
        """
        return Prompt(self.examples, is_pretrained if self.hint is None else self.hint, seed)


class ActingConfig(PromptConfig):
    """Settings of the prompt, and of the actions that a model may write."""

    restrict_to_admissible: bool = Field(
        default=False, description="sample actions among those that the world lists, token by token"
    )

    def load_worlds(self, names: Sequence[str], prompt: Prompt) -> dict[str, World]:
        """Loads worlds by name, with a prompt.

        Raises:
            ConfigError: a world without enough expert episodes, or one that lists no actions where they are required.
        """
        worlds = load_prompted_worlds(names, prompt)
        if self.restrict_to_admissible:
            check_listed_actions(worlds, "agent.restrict_to_admissible")
        return worlds


def load_prompted_worlds(names: Sequence[str], prompt: tuple[int, bool, int]) -> dict[str, World]:
    """Loads worlds by name, with a prompt: a `Prompt`, or its values."""
    return prompt_worlds(load_worlds(names), Prompt(*prompt))


def prompt_worlds(worlds: Mapping[str, World], prompt: Prompt) -> dict[str, World]:
    """Returns the worlds with a prompt.

    Raises:
        ConfigError: a world without enough expert episodes.
    """
    problems: list[Problem] = []
    prompted: dict[str, World] = {}
    for name, world in worlds.items():
        try:
            prompted[name] = prompt_world(world, examples=prompt.examples, hint=prompt.hint, seed=prompt.seed)
        except ConfigError as error:
            problems += [Problem(f"agent.{problem.where}", problem.what, problem.hint) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return prompted


def check_listed_actions(worlds: Mapping[str, World], consumer: str) -> None:
    """Checks that all worlds list the actions that are possible.

    Args:
        consumer: the setting that needs them.
    Raises:
        ConfigError: worlds that do not; the message names them.
    """
    problems = []
    for name, world in worlds.items():
        first_task = next(task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)[:1])
        env = world.make(first_task)
        try:
            _, info = env.reset()
        finally:
            env.close()
        if not info.get("admissible"):
            message = f"{consumer} chooses among listed actions, but world {name!r} does not list actions"
            problems.append(Problem("worlds", message, "choose another world, or a method that writes actions as text"))
    if problems:
        raise ConfigError(problems)
