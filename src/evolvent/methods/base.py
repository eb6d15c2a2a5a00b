"""What a method that improves a policy by acting is to those who run it by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.config import Config

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A method as `evolvent train rl --method NAME` knows it; packages offer theirs by the entry point
    `evolvent.methods`.

    Args:
        config: its settings, a frozen `Config`; one that practises has a `practice: PracticeConfig`.
        call: `call(policy, tasks, config=..., run=...) -> policy`, a function of a `Run`'s verbs.
        about: a line for the list of methods.
        defaults: settings that differ from those of `config`. fixed: those of them that cannot be set: they are what
            the method is.
        demonstrated: whether `call` is handed `demonstrations=` (trajectories) too.
    """

    config: type[Config]
    call: Callable[..., Any]
    about: str
    defaults: Mapping[str, Any] | None = None
    demonstrated: bool = False
    fixed: tuple[str, ...] = ()
