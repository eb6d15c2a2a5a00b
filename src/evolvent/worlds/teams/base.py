"""Team environments: E episodes of n agents in parallel, as arrays, with one shared reward.

The axes are `[E, n, ...]`: E episodes (rows), n agents. A row whose episode ends starts its next one at once:
the view that a step returns is always that of the NEXT decision, and the last view of the ended episode is in
`final`.

Episodes are numbered. A batch over T tasks plays, as number m, sample `m // T` of task `m % T`, and row e plays
the numbers `m_e, m_e + E, m_e + 2 E, ...` from the initial `m_e`. An episode is a function of its task and its
sample alone, never of its row, of its neighbors or of earlier episodes.

Agents may be absent (a team smaller than `spec.agents`), die or finish early: `alive` is False from then on,
their observations are all zeros and their actions are ignored. If actions are discrete and masked, a mask holds
at least one action, also that of an agent that is not alive: action 0 and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    ErrorRecord,
    InvalidAction,
    NoLegalAction,
    NonFinite,
    Problem,
    ShapeMismatch,
)
from evolvent.trajectory import Array, Task

__all__ = [
    "Actions",
    "Continuous",
    "Discrete",
    "Mark",
    "Multi",
    "Optimum",
    "Resumable",
    "Scene",
    "SupportsScenes",
    "TeamBatch",
    "TeamSpec",
    "TeamStep",
    "TeamView",
    "TeamWorld",
    "check_actions",
    "check_fit",
    "check_view",
    "episode_of",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Discrete:
    """A choice of one of `n` actions, an index from 0. Actions of a batch: `[E, n_agents]` integers."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError("number of choices out of range", value=self.n, expected="1 choice or more")

    @property
    def logits(self) -> int:
        """Returns the number of logits of a policy; the size of the last axis of `available`."""
        return self.n


@dataclass(frozen=True, slots=True)
class Multi:
    """One index per part, part k below `sizes[k]`. Actions of a batch: `[E, n_agents, parts]` integers."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError(
                "sizes of a multi-discrete action out of range", value=self.sizes, expected="parts of 1 choice or more"
            )

    @property
    def logits(self) -> int:
        """Returns the number of choices of all parts together, one part after the other; the last axis of
        `available`.
        """
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Continuous:
    """Vectors of `dim` numbers in [-1, 1], clipped by the environment. Actions: `[E, n_agents, dim]` floats."""

    dim: int

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ConfigError("size of a continuous action out of range", value=self.dim, expected="1 number or more")


Actions = Discrete | Multi | Continuous


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSpec:
    """The properties of a team that a policy must know.

    Args:
        agents: n, the maximum number of agents at once.
        observation: size O of one agent's observation.
        actions: one kind for all agents of a team.
        state: size S of a central state that only a critic may read; 0: there is none.
        horizon: number of steps after which an episode is truncated.
    Raises:
        ConfigError: invalid numbers, all at once.
    """

    agents: int
    observation: int
    actions: Actions
    state: int = 0
    horizon: int

    def __post_init__(self) -> None:
        minimums = {"agents": 1, "observation": 1, "state": 0, "horizon": 1}
        problems = [
            Problem(f"spec.{name}", f"got {getattr(self, name)}, expected {minimum} or more")
            for name, minimum in minimums.items()
            if getattr(self, name) < minimum
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamView:
    """The observations of the agents of E episodes before one decision.

    Args:
        observation: `[E, n, O]` float32; zeros where not alive.
        alive: `[E, n]` bool. Agents that decide.
        available: `[E, n, A]` bool. Available actions (A = `spec.actions.logits`); None: all, always.
        state: `[E, S]` float32, or None without a central state.
        number: `[E]` int64. Number of the episode.
        time: `[E]` int64. Steps of this episode so far.
    """

    observation: NDArray[np.float32]
    alive: Bools
    available: Bools | None = None
    state: NDArray[np.float32] | None = None
    number: NDArray[np.int64]
    time: NDArray[np.int64]

    def select_rows(self, indices: NDArray[np.int64]) -> TeamView:
        """Returns a copy of the view of some rows, `[K]`."""
        return TeamView(
            observation=self.observation[indices],
            alive=self.alive[indices],
            available=None if self.available is None else self.available[indices],
            state=None if self.state is None else self.state[indices],
            number=self.number[indices],
            time=self.time[indices],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamStep:
    """The result of one step of E episodes.

    Args:
        view: of the next decision; of a new episode in rows that ended.
        reward: `[E]` float64. Shared by the team.
        terminated: `[E]` bool. Ended by the world: nothing follows.
        truncated: `[E]` bool. Cut at the horizon: the value of `final` continues. Never both.
        ended: `[K]` int64. Rows that ended, in order (terminated, truncated or lost).
        final: the last view of those K rows, in that order; None if K is 0.
        success: `[E]` bool. Whether the episode that ended here reached its goal (False if none ended); None:
            unknown.
        errors: row -> error that lost its episode. Such a row is neither terminated nor truncated, its reward is 0
            and has no meaning: the whole episode is neither scored nor used for training.
    """

    view: TeamView
    reward: Floats
    terminated: Bools
    truncated: Bools
    ended: NDArray[np.int64]
    final: TeamView | None = None
    success: Bools | None = None
    errors: Mapping[int, ErrorRecord] = field(default_factory=dict)


class TeamBatch(Protocol):
    """E episodes of a team in parallel. `size` is E; `tasks` are the tasks by which episodes are numbered."""

    spec: TeamSpec
    size: int
    tasks: tuple[Task, ...]

    def reset(self, seeds: Sequence[int] | NDArray[np.int64]) -> TeamView:
        """Starts an episode in every row and returns the first view.

        Args:
            seeds: `[E]`. Numbers of episodes, 0 or more; row e continues with `seeds[e] + E`, so `base + arange(E)`
                gives numbers that never repeat.
        """
        ...

    def step(self, actions: Array) -> TeamStep:
        """Steps every team once.

        Args:
            actions: `[E, n, ...]`. As `spec.actions` states; actions of agents that are not alive are ignored.

        Raises:
            BatchMismatch: actions of another shape. InvalidAction: an invalid index, a number that is not finite, or an
                action that was not available; no episode has moved.
        """
        ...

    def close(self) -> None:
        """Releases the resources of the episodes; a second call is harmless."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A batch whose running episodes can be saved and resumed, with the same results."""

    def snapshot(self) -> Mapping[str, Array]:
        """Returns all changing state as arrays (copied)."""
        ...

    def restore(self, state: Mapping[str, Array]) -> TeamView:
        """Restores a snapshot of a similar batch and returns the view of its next decision; raises BatchMismatch for
        another.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """One object in a picture: a square or a circle at (x, y) with half width or radius `radius`, in the world's
    units.

    `role` names its meaning ("wall", "danger", "goal", "agent", "prey", "enemy"); the renderer chooses colors.
    """

    shape: Literal["square", "circle"]
    x: float
    y: float
    radius: float
    role: Literal["wall", "danger", "goal", "agent", "prey", "enemy"]


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of an episode, to be drawn: the area (left, top, right, bottom; y grows downwards) and its objects."""

    area: tuple[float, float, float, float]
    marks: tuple[Mark, ...]


@runtime_checkable
class SupportsScenes(Protocol):
    """A batch whose rows can be drawn."""

    def scene(self, row: int) -> Scene:
        """Returns the present scene of a row (of the new episode, if one has ended)."""
        ...


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best return of a task, and how it is known.

    Args:
        value: the (undiscounted) return of an episode.
        exact: True: the greatest possible return. False: an upper bound.
    """

    value: float
    exact: bool


class TeamWorld(Protocol):
    """A team environment with its tasks."""

    @property
    def name(self) -> str:
        """Returns the name, which with `version` is part of every task id."""
        ...

    @property
    def version(self) -> str:
        """Returns the version, which is increased if equal tasks become other episodes."""
        ...

    @property
    def tiers(self) -> tuple[str, ...]:
        """Returns the tiers of its tasks."""
        ...

    @property
    def horizon(self) -> int:
        """Returns the maximum number of steps of an episode of any task."""
        ...

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier, always the same."""
        ...

    def batch(self, tasks: Sequence[Task], size: int) -> TeamBatch:
        """Creates E = `size` rows of episodes of these tasks; `reset` starts them."""
        ...

    def optimum(self, task: Task) -> Optimum | None:
        """Returns the best return of a task, or None if it is unknown."""
        ...


def episode_of(number: int, tasks: Sequence[Task]) -> tuple[Task, int]:
    """Returns (task, sample) of an episode's number: sample `number // T` of task `number % T`."""
    sample, task_index = divmod(int(number), len(tasks))
    return tasks[task_index], sample


def check_view(view: TeamView, spec: TeamSpec) -> None:
    """Checks that a policy can decide on a view.

    Raises:
        BatchMismatch: arrays whose shapes differ from the spec.
        NonFinite: an observation or a state with NaN or infinity, naming episode, step and agent.
        NoLegalAction: an agent that must decide without an available action.
    """
    rows = len(view.number)
    expected: dict[str, tuple[int, ...]] = {
        "observation": (rows, spec.agents, spec.observation),
        "alive": (rows, spec.agents),
        "time": (rows,),
    }
    if not isinstance(spec.actions, Continuous) and view.available is not None:
        expected["available"] = (rows, spec.agents, spec.actions.logits)
    if spec.state:
        expected["state"] = (rows, spec.state)
    for name, shape in expected.items():
        array = getattr(view, name)
        if array is None or array.shape != shape:
            raise BatchMismatch(
                f"wrong shape of the team's {name}", value=None if array is None else array.shape, expected=shape
            )
    not_finite = ~np.isfinite(view.observation).all(-1) & view.alive
    if not_finite.any():
        row, agent = np.argwhere(not_finite)[0]
        raise NonFinite(f"an observation is not finite ({_describe_position(view, int(row), int(agent))})")
    if spec.state and view.state is not None and not np.isfinite(view.state).all():
        row = int(np.argwhere(~np.isfinite(view.state))[0, 0])
        raise NonFinite(f"a central state is not finite ({_describe_position(view, row)})")
    if view.available is not None and not isinstance(spec.actions, Continuous):
        _check_masks(view, spec.actions)


def _check_masks(view: TeamView, actions: Discrete | Multi) -> None:
    sizes_of = (actions.n,) if isinstance(actions, Discrete) else actions.sizes
    offset = 0
    for part, size in enumerate(sizes_of):
        empty = ~view.available[..., offset : offset + size].any(-1)  # type: ignore[index]
        if empty.any():
            row, agent = np.argwhere(empty)[0]
            position = _describe_position(view, int(row), int(agent))
            raise NoLegalAction(
                f"an agent has no available action ({position}, part {part})",
                value=f"an empty mask of {size} actions",
                expected="one available action or more; action 0 for an agent that is not alive",
            )
        offset += size


def _describe_position(view: TeamView, row: int, agent: int | None = None) -> str:
    position = f"row {row}, episode {int(view.number[row])}, step {int(view.time[row])}"
    return position if agent is None else f"{position}, agent {agent}"


def check_actions(actions: Array, spec: TeamSpec, view: TeamView) -> Array:
    """Checks actions and returns them as a batch uses them.

    Args:
        actions: `[E, n, ...]`. As `spec.actions` states.

    Returns:
        int64, or float64 clipped to [-1, 1]; actions of agents that are not alive are set to 0.

    Raises:
        BatchMismatch: another shape. InvalidAction: an agent that is alive has an invalid index, a number that is
            not finite, or an action that is not available.
    """
    raw_actions, kind, rows = np.asarray(actions), spec.actions, len(view.number)
    action_shape = () if isinstance(kind, Discrete) else (len(kind.sizes),) if isinstance(kind, Multi) else (kind.dim,)
    if raw_actions.shape != (rows, spec.agents, *action_shape):
        raise BatchMismatch(
            "wrong shape of the team's actions", value=raw_actions.shape, expected=(rows, spec.agents, *action_shape)
        )
    alive = view.alive if not action_shape else view.alive[..., None]
    if isinstance(kind, Continuous):
        if not np.issubdtype(raw_actions.dtype, np.floating):
            raise InvalidAction("a continuous action", value=str(raw_actions.dtype), expected="floating point numbers")
        values = np.where(alive, raw_actions, 0.0).astype(np.float64)
        _raise_if_any(~np.isfinite(values), "an action that is not finite", raw_actions, view)
        return np.clip(values, -1.0, 1.0)
    if not np.issubdtype(raw_actions.dtype, np.integer):
        raise InvalidAction("number of choices out of range", value=str(raw_actions.dtype), expected="integers")
    checked = np.where(alive, raw_actions, 0).astype(np.int64)
    sizes = np.array([kind.n] if isinstance(kind, Discrete) else kind.sizes)
    parts = checked[..., None] if isinstance(kind, Discrete) else checked
    _raise_if_any((parts < 0) | (parts >= sizes), "no action", raw_actions, view)
    if view.available is not None:
        logit_indices = parts + np.concatenate([[0], np.cumsum(sizes)[:-1]])
        is_available = np.take_along_axis(view.available, logit_indices, -1) | ~view.alive[..., None]
        _raise_if_any(~is_available, "an action that is not available", raw_actions, view)
    return checked


def _raise_if_any(is_invalid: Bools, message: str, actions: NDArray[Any], view: TeamView) -> None:
    if is_invalid.any():
        row, agent = (int(number) for number in np.argwhere(is_invalid)[0][:2])
        raise InvalidAction(f"{message} ({_describe_position(view, row, agent)})", value=actions[row, agent].tolist())


def check_fit(source: TeamSpec, target: TeamSpec) -> None:
    """Checks that weights trained on one team can play another; the number of agents may differ, nothing else.

    Raises:
        ShapeMismatch: other observations, actions or states; all differences at once.
    """
    names = ("observation", "actions", "state")
    differences = [
        f"{name}: trained on {getattr(source, name)}, got {getattr(target, name)}"
        for name in names
        if getattr(source, name) != getattr(target, name)
    ]
    if differences:
        raise ShapeMismatch(f"spaces that do not match the checkpoint ({'; '.join(differences)})")
