"""Branches: episodes that begin in the middle of one that was played before, by `restore` or by playing it again.

A branch is (parent, step, token). Its episode stores its own steps only. The environment is brought to the parent's
`step`; the agent takes what the parent read and wrote up to there, and `token` tokens of the action, for its own past
(`agents.base.Resuming`). Reverse curricula begin in the middle of demonstrations this way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolvent.agents.base import Agent, Resuming
from evolvent.errors import ConfigError, EnvLost, Problem
from evolvent.trajectory import Branch, Start, Trajectory, Value
from evolvent.worlds.base import Info

__all__ = ["Branching", "Moment", "Origins", "check_branches", "check_replayed", "resuming"]

_KEPT = 1024  # parents whose snapshots are kept


@dataclass(frozen=True, slots=True)
class Moment:
    """An environment before a step of a parent.

    Args:
        observation, info: what it says there.
        rewards: what the steps before earned.
        snapshot: how to come back; None where the Env cannot be forked.
    """

    observation: Value
    info: Info
    rewards: tuple[float | None, ...] = ()
    snapshot: object = None


@dataclass(eq=False)
class Origins:
    """The episodes that others branch from, and the snapshots of the steps that were reached in them.

    Where an Env can be forked, each step of a parent is played again once, however many episodes begin behind it. The
    steps played again are nobody's environment steps: they are counted here.

    Args:
        parents: by id.
        kept: how many parents keep their snapshots; those that were not needed for longest go first.
    Attributes:
        replayed: steps of parents that were played again. restored: times that a snapshot was gone back to.
    """

    parents: Mapping[str, Trajectory] = field(default_factory=dict)
    kept: int = _KEPT
    replayed: int = 0
    restored: int = 0
    _moments: OrderedDict[str, list[Moment]] = field(default_factory=OrderedDict)

    def moments(self, parent: str) -> list[Moment]:
        """The known moments of a parent, from its beginning on without a gap. What is appended is kept."""
        found = self._moments.setdefault(parent, [])
        self._moments.move_to_end(parent)
        while len(self._moments) > self.kept:
            self._moments.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class Branching:
    """Starts together with what those in the middle need."""

    starts: Sequence[Start]
    origins: Origins


def check_branches(starts: Sequence[Start], origins: Origins) -> None:
    """Refuse branches that no episode can begin at.

    Raises:
        ConfigError: all of them, once for each branch.
    """
    places = dict.fromkeys((start.task.id, start.branch) for start in starts if start.branch is not None)
    problems = [found for task, branch in places for found in _problems(task, branch, origins.parents)]
    if problems:
        raise ConfigError(problems)


def _problems(task: str, branch: Branch, parents: Mapping[str, Trajectory]) -> list[Problem]:
    where, parent = (
        f"branch at step {branch.step}, token {branch.token} of {branch.parent!r}",
        parents.get(branch.parent),
    )
    if parent is None:
        return [
            Problem(where, "this parent was not handed in", "give `Origins` the trajectories that starts branch from")
        ]
    found = []
    if parent.task.id != task:
        found.append(Problem(where, f"its task is {parent.task.id}, the start's {task}", "branch from the same task"))
    if parent.branch is not None:
        found.append(Problem(where, "the parent is a branch itself", "branch from a whole episode"))
    if not 0 <= branch.step < len(parent.steps) or branch.token < 0:
        found.append(Problem(where, f"the parent has {len(parent.steps)} steps", "branch at one of them"))
    return found


def check_replayed(parent: Trajectory, step: int, observation: Value, *, over: bool) -> None:
    """Refuse to begin in an episode that goes another way than its record when it is played again.

    Args:
        step: the step that was reached. observation: what was seen there. over: whether the episode ended before it.
    Raises:
        EnvLost: names the parent and the step.
    """
    recorded = parent.steps[step].observation
    if over or not np.array_equal(observation, recorded):
        raise EnvLost(
            f"{parent.id!r}, played again, is another episode at step {step}",
            value="its end" if over else observation,
            expected=recorded,
        )


def resuming(agent: Agent) -> Resuming:
    """The agent, if it can begin in the middle of an episode.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(agent, Resuming):
        raise ConfigError(
            "this agent cannot begin in the middle of an episode",
            value=type(agent).__name__,
            expected="one with `resume`, such as LanguageAgent",
        )
    return agent
