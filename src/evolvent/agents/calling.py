"""Agents that can write nothing but valid calls: what an answer may be, moment by moment of an episode with tools."""

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
    """Says what an action may be."""

    def __call__(self, world: World, task: Task, info: Info) -> Constraint | None:
        """The constraint of the action that comes next, at its beginning; None: it is free."""
        ...


@dataclass(frozen=True)
class ValidCalls:
    """Calls of the tools that a world offers, in its own form, or `[]`.

    The tools are those of `info["tools"]` (OpenAI's rows), else those of the world's `toolbox`. Where
    `info["language"]` is another one than Python, answers are free: their literals are no JSON.

    Args:
        constraints: of the policy that acts.
    """

    constraints: CallConstraints

    def __call__(self, world: World, task: Task, info: Info) -> Constraint | None:
        """See `Constrainer`.

        Raises:
            ConfigError: a world that does not offer tools or say how calls are written. What `CallConstraints.of`
                raises.
        """
        form: Any = getattr(world, "form", None)
        box: Any = getattr(world, "toolbox", None)
        if form not in get_args(CallForm) or (box is None and "tools" not in info):
            raise ConfigError(
                f"the world {world.name!r} does not say which calls are valid",
                expected="tools, and a form of calls",
                hint="play it without the constraint",
            )
        if info.get("language", "python") != "python":
            return None
        rows = info.get("tools")
        tools = tuple(box(task).tools) if rows is None else tuple(map(Tool.of_openai, rows))
        return self.constraints.of(tools, form=form)
