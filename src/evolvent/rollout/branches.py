"""Branches: episodes that start in the middle of an earlier one, by `restore` or by replaying it.

A branch is (parent, step, token). Its episode stores its own steps only. The environment is brought to the
parent's `step`; the agent takes the parent's tokens up to there, and `token` tokens of the action, as its own
past (`agents.base.Resuming`). Reverse curricula start in the middle of demonstrations this way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evolvent.agents.base import Agent, SupportsResume
from evolvent.errors import ConfigError, EnvLost, Problem
from evolvent.trajectory import Branch, Start, Trajectory, Value
from evolvent.worlds.base import Info

__all__ = ["BranchOrigins", "BranchState", "BranchedStarts", "check_branches", "check_replayed", "require_resuming"]

_MAX_PARENTS = 1024  # parents whose snapshots are kept


@dataclass(frozen=True, slots=True)
class BranchState:
    """An environment before a step of a parent.

    Args:
        observation, info: Observation and info there.
        rewards: Rewards of the steps before.
        snapshot: Snapshot for `restore`; None where the Env cannot be forked.
    """

    observation: Value
    info: Info
    rewards: tuple[float | None, ...] = ()
    snapshot: object = None


@dataclass(eq=False)
class BranchOrigins:
    """The episodes that others branch from, and snapshots of the steps that were reached in them.

    Where an Env can be forked, each step of a parent is replayed once, however many episodes start after it.
    Replayed steps belong to no episode's environment steps: they are counted here.

    Args:
        parents: Episodes by id.
        max_parents: Maximum number of parents with snapshots; the least recently used are dropped.
    Attributes:
        replayed: Number of replayed steps of parents.
        restored: Number of restored snapshots.
    """

    parents: Mapping[str, Trajectory] = field(default_factory=dict)
    max_parents: int = _MAX_PARENTS
    replayed: int = 0
    restored: int = 0
    _moments: OrderedDict[str, list[BranchState]] = field(default_factory=OrderedDict)

    def get_states(self, parent: str) -> list[BranchState]:
        """Returns the known states of a parent, from its beginning without gaps. Appended states are kept."""
        states = self._moments.setdefault(parent, [])
        self._moments.move_to_end(parent)
        while len(self._moments) > self.max_parents:
            self._moments.popitem(last=False)
        return states


@dataclass(frozen=True, slots=True)
class BranchedStarts:
    """Starts together with the origins of branches."""

    starts: Sequence[Start]
    origins: BranchOrigins


def check_branches(starts: Sequence[Start], origins: BranchOrigins) -> None:
    """Raises an error for branches at which no episode can start.

    Raises:
        ConfigError: all of them, once for each branch.
    """
    branches = dict.fromkeys((start.task.id, start.branch) for start in starts if start.branch is not None)
    problems = [problem for task, branch in branches for problem in _find_problems(task, branch, origins.parents)]
    if problems:
        raise ConfigError(problems)


def _find_problems(task: str, branch: Branch, parents: Mapping[str, Trajectory]) -> list[Problem]:
    description, parent = (
        f"branch at step {branch.step}, token {branch.token} of {branch.parent!r}",
        parents.get(branch.parent),
    )
    if parent is None:
        return [
            Problem(
                description, "this parent was not handed in", "give `Origins` the trajectories that starts branch from"
            )
        ]
    problems = []
    if parent.task.id != task:
        problems.append(
            Problem(description, f"its task is {parent.task.id}, the start's {task}", "branch from the same task")
        )
    if parent.branch is not None:
        problems.append(Problem(description, "the parent is a branch itself", "branch from a whole episode"))
    if not 0 <= branch.step < len(parent.steps) or branch.token < 0:
        problems.append(Problem(description, f"the parent has {len(parent.steps)} steps", "branch at one of them"))
    return problems


def check_replayed(parent: Trajectory, step: int, observation: Value, *, is_over: bool) -> None:
    """Raises an error where a replayed episode differs from its record.

    Args:
        step: the step that was reached. observation: what was seen there. is_over: whether the episode ended before it.
    Raises:
        EnvLost: names the parent and the step.
    """
    recorded = parent.steps[step].observation
    if is_over or not np.array_equal(observation, recorded):
        raise EnvLost(
            f"{parent.id!r}, played again, is another episode at step {step}",
            value="its end" if is_over else observation,
            expected=recorded,
        )


def require_resuming(agent: Agent) -> SupportsResume:
    """Returns the agent, if it can start in the middle of an episode.

    Raises:
        ConfigError: it cannot.
    """
    if not isinstance(agent, SupportsResume):
        raise ConfigError(
            "this agent cannot begin in the middle of an episode",
            value=type(agent).__name__,
            expected="one with `resume`, such as LanguageAgent",
        )
    return agent
