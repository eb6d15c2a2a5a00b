"""Constraints for agents that can write only valid calls, per step of an episode with tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, get_args

from evolvent.engine.asks import Constraint
from evolvent.errors import ConfigError
from evolvent.messages import Tool
from evolvent.models.call_grammars import CallForm
from evolvent.models.constraints import CallConstraints
from evolvent.trajectory import Task
from evolvent.worlds.base import Info, World

__all__ = ["Constrainer", "ValidCalls"]


class Constrainer(Protocol):
    """A function that returns the constraint of the next action."""

    def __call__(self, world: World, task: Task, info: Info) -> Constraint | None:
        """Returns the constraint of the next action, at its beginning; None: the action is free."""
        ...


@dataclass(frozen=True)
class ValidCalls:
    """Allows calls of the tools that a world offers, in its own form, or `[]`.

    The tools are those of `info["tools"]` (OpenAI's rows), else those of the world's `toolbox`. Where
    `info["language"]` is not Python, answers are free: their literals are not JSON.

    Args:
        constraints: of the policy that acts.
    """

    constraints: CallConstraints

    def __call__(self, world: World, task: Task, info: Info) -> Constraint | None:
        """Returns the constraint of the next action; see `Constrainer`.

        Raises:
            ConfigError: a world that does not offer tools or say how calls are written. The errors of
                `CallConstraints.for_tools`.
        """
        form: Any = getattr(world, "form", None)
        toolbox: Any = getattr(world, "toolbox", None)
        if form not in get_args(CallForm) or (toolbox is None and "tools" not in info):
            raise ConfigError(
                f"world {world.name!r} does not declare its valid calls",
                expected="tools and a call format",
                hint="run it without the constraint",
            )
        if info.get("language", "python") != "python":
            return None
        rows = info.get("tools")
        tools = tuple(toolbox(task).tools) if rows is None else tuple(map(Tool.of_openai, rows))
        return self.constraints.for_tools(tools, form=form)
