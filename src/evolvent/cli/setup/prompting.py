"""Settings of the prompt that every episode begins with (`--agent.*`), and worlds with that prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.registry import load_worlds
from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.models.dialects import Chat, HistoryMode
from evolvent.rollout.prompting import prompt_world
from evolvent.worlds.base import SPLITS, World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "ActingConfig",
    "HistoryConfig",
    "Prompt",
    "PromptConfig",
    "check_listed_actions",
    "fill_history",
    "load_prompted_worlds",
    "prompt_worlds",
]

C = TypeVar("C", bound=Config)
_HISTORY_TEXTS: Mapping[HistoryMode, str] = {
    "append": "past replies stay as they were sampled, which the chat template would render otherwise",
    "template": "every turn reads the past as the chat template renders it",
}


class Prompt(NamedTuple):
    """Arguments of `rollout.prompting.prompt_world`, which makes the same prompt of a world in every process."""

    examples: int = 0
    hint: bool = False
    seed: int = 0


class HistoryConfig(Config):
    """Settings of how a conversation holds its past replies."""

    history: HistoryMode | None = Field(
        default=None,
        description="past replies: append (as sampled) or template (as the chat template renders them); none: as the "
        "policy was saved",
    )


class PromptConfig(HistoryConfig):
    """Settings of what a model reads before its first observation, and of past replies."""

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


def fill_history(config: C, policy: Policy, console: Console | None = None) -> C:
    """Returns the settings with the policy's history, so that a resumed run keeps it, and prints it where the policy's
    template changes past replies.

    Args:
        config: has `agent`, a `HistoryConfig`.
        policy: the loaded policy.
        console: None: nothing is printed.
    """
    if not isinstance(policy.dialect, Chat):
        return config
    history = policy.dialect.history
    if console is not None and policy.dialect.changes_past:
        console.print(f"history {history}: {_HISTORY_TEXTS[history]}", soft_wrap=True)
    agent: Any = getattr(config, "agent")  # noqa: B009
    return config.model_copy(update={"agent": agent.model_copy(update={"history": history})})


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
