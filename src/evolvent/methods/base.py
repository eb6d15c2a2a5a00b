"""The interface of methods that improve a policy by acting, by which they are run by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evolvent.config import Config

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["Method"]


@dataclass(frozen=True)
class Method:
    """A method as `evolvent train rl --method NAME` runs it; packages add theirs by the entry point
    `evolvent.methods`.

    Args:
        config: its settings, a frozen `Config`; a method with rollouts has a `practice: RLConfig`.
        call: `call(policy, tasks, config=..., run=...) -> policy`, a function of a `Run`'s operations.
        about: a line for the list of methods.
        defaults: settings that differ from those of `config`.
        fixed: names of those that cannot be set, because they define the method.
        values: networks of values that it trains, by which its memory is planned: a critic, or ETPO's Q.
        demonstrated: whether `call` also takes `demonstrations=` (trajectories).
    """

    config: type[Config]
    call: Callable[..., Policy]
    about: str
    defaults: Mapping[str, object] | None = None
    demonstrated: bool = False
    fixed: tuple[str, ...] = ()
    values: Literal["none", "critic", "soft_q"] = "none"
