"""What a team environment is: E episodes of n agents side by side, as arrays, with one shared reward.

The axes are `[E, n, ...]`: E episodes (rows), n agents. A row whose episode ends begins its next one at once: the view
that a step returns is always that of the NEXT decision, and what was seen at the end lies apart in `final`.

Episodes are numbered. A batch over T tasks plays, as number m, sample `m // T` of task `m % T`, and row e plays the
numbers `m_e, m_e + E, m_e + 2 E, ...` from the `m_e` it was given. An episode is a function of its task and its sample
alone, never of its row, of its neighbours or of what was played before.

Agents may be absent (a team smaller than `spec.agents`), die or finish early: `alive` is False from then on, what they
see is all zeros and what they do is ignored. Wherever actions are discrete and masked, a mask holds at least one
action, also that of an agent that is not alive: action 0 and no other.
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
from evolvent.trajectory import Task

__all__ = [
    "Actions",
    "Continuous",
    "Discrete",
    "Drawn",
    "Mark",
    "Multi",
    "Optimum",
    "Resumable",
    "Scene",
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
    """One of `n` actions, an index from 0. Actions of a batch: `[E, n_agents]` integers."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError("a discrete action", value=self.n, expected="1 choice or more")

    @property
    def logits(self) -> int:
        """How many numbers say how likely each choice is; the last axis of `available`."""
        return self.n


@dataclass(frozen=True, slots=True)
class Multi:
    """One index for each part, part k below `sizes[k]`. Actions of a batch: `[E, n_agents, parts]` integers."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError("a multi-discrete action", value=self.sizes, expected="parts of 1 choice or more")

    @property
    def logits(self) -> int:
        """The choices of all parts, one part after the other; the last axis of `available`."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Continuous:
    """`dim` numbers, meant in [-1, 1] and clipped to it by the environment. Actions: `[E, n_agents, dim]` floats."""

    dim: int

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ConfigError("a continuous action", value=self.dim, expected="1 number or more")


Actions = Discrete | Multi | Continuous


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSpec:
    """What a policy must know of a team.

    Args:
        agents: n, the most agents at once.
        observation: numbers that one agent sees (O).
        actions: one kind for all agents of a team.
        state: numbers of a central state that only a critic may read (S); 0: there is none.
        horizon: steps after which an episode is truncated.
    Raises:
        ConfigError: numbers that make no sense, all at once.
    """

    agents: int
    observation: int
    actions: Actions
    state: int = 0
    horizon: int

    def __post_init__(self) -> None:
        least = {"agents": 1, "observation": 1, "state": 0, "horizon": 1}
        wrong = [
            Problem(f"spec.{name}", f"got {getattr(self, name)}", f"expected {low} or more")
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamView:
    """What the agents of E episodes see before one decision.

    Args:
        observation: `[E, n, O]` float32; zeros where not alive.
        alive: `[E, n]` bool, who decides.
        available: `[E, n, A]` bool, which actions may be taken (A = `spec.actions.logits`); None: all, always.
        state: `[E, S]` float32, or None where there is no central state.
        number: `[E]` int64, the number of the episode.
        time: `[E]` int64, steps of this episode so far.
    """

    observation: NDArray[np.float32]
    alive: Bools
    available: Bools | None = None
    state: NDArray[np.float32] | None = None
    number: NDArray[np.int64]
    time: NDArray[np.int64]

    def rows(self, at: NDArray[np.int64]) -> TeamView:
        """The view of some rows `[K]` only, copied."""
        return TeamView(
            observation=self.observation[at],
            alive=self.alive[at],
            available=None if self.available is None else self.available[at],
            state=None if self.state is None else self.state[at],
            number=self.number[at],
            time=self.time[at],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TeamStep:
    """What one step of E episodes gave.

    Args:
        view: of the next decision; of a new episode in rows that ended.
        reward: `[E]` float64, shared by the team.
        terminated: `[E]` bool, ended by the world: nothing follows.
        truncated: `[E]` bool, cut at the horizon: the value of `final` goes on. Never both.
        ended: `[K]` int64, the rows that ended, in order (terminated, truncated or lost).
        final: what was seen at the end of those K rows, in that order; None where K is 0.
        success: `[E]` bool, whether the episode that ended here reached its goal (False where none ended); None: this
            world does not say.
        errors: row -> why its episode was lost. Such a row is neither terminated nor truncated, its reward is 0 and
            means nothing: the whole episode is not scored and not learned from.
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
    """E episodes of a team side by side. `size` is E; `tasks` are what episodes are numbered by."""

    spec: TeamSpec
    size: int
    tasks: tuple[Task, ...]

    def reset(self, seeds: Sequence[int] | NDArray[np.int64]) -> TeamView:
        """Begin an episode in every row. `seeds`: `[E]` numbers of episodes, 0 or more; row e goes on with
        `seeds[e] + E`, so `base + arange(E)` gives numbers that never repeat."""
        ...

    def step(self, actions: NDArray[Any]) -> TeamStep:
        """One decision of every team. `actions` as `spec.actions` says; what agents that are not alive do is ignored.

        Raises:
            BatchMismatch: actions of another shape. InvalidAction: an index that is none, a number that is not finite,
                an action that was not available; nothing has moved.
        """
        ...

    def close(self) -> None:
        """Give back what the episodes hold; calling it twice is harmless."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A batch whose running episodes can be kept and taken up again, to the same results."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """All that changes, as arrays (copied)."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> TeamView:
        """Back to a snapshot of a batch like this one; the view of its next decision. BatchMismatch: of another."""
        ...


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing in a picture: a square or a circle at (x, y) of half width or radius `r`, in the world's units.

    `role` says what it is ("wall", "danger", "goal", "agent", "prey"); whoever draws chooses colours.
    """

    shape: Literal["square", "circle"]
    x: float
    y: float
    r: float
    role: Literal["wall", "danger", "goal", "agent", "prey"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment of an episode, to be drawn: the area (left, top, right, bottom; y grows downwards) and what is in it."""

    area: tuple[float, float, float, float]
    marks: tuple[Mark, ...]


@runtime_checkable
class Drawn(Protocol):
    """A batch that can be looked at."""

    def scene(self, row: int) -> Scene:
        """What a row shows now (of the new episode, where one has ended)."""
        ...


@dataclass(frozen=True, slots=True)
class Optimum:
    """What can be reached in a task: a return, and how it is known.

    Args:
        value: the (undiscounted) return of an episode.
        exact: True: the greatest possible return. False: a bound above it.
    """

    value: float
    exact: bool


class TeamWorld(Protocol):
    """A team environment with its tasks."""

    @property
    def name(self) -> str:
        """Identity, with `version`; both are part of every task id."""
        ...

    @property
    def version(self) -> str:
        """Goes up whenever equal tasks become other episodes."""
        ...

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers that its tasks come in."""
        ...

    @property
    def horizon(self) -> int:
        """The most steps of an episode of any task."""
        ...

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier, always the same."""
        ...

    def batch(self, tasks: Sequence[Task], size: int) -> TeamBatch:
        """E = `size` rows of episodes of these tasks; `reset` begins them."""
        ...

    def optimum(self, task: Task) -> Optimum | None:
        """What can be reached in a task; None: not known."""
        ...


def episode_of(number: int, tasks: Sequence[Task]) -> tuple[Task, int]:
    """(task, sample) of an episode's number: sample `number // T` of task `number % T`."""
    sample, at = divmod(int(number), len(tasks))
    return tasks[at], sample


def check_view(view: TeamView, spec: TeamSpec) -> None:
    """Refuse a view that a policy cannot decide on.

    Raises:
        BatchMismatch: arrays whose shapes are not those of the spec.
        NonFinite: an observation or a state with NaN or infinity, naming episode, step and agent.
        NoLegalAction: an agent that has to decide and may do nothing.
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
            raise BatchMismatch(f"a team's {name}", value=None if array is None else array.shape, expected=shape)
    bad = ~np.isfinite(view.observation).all(-1) & view.alive
    if bad.any():
        row, agent = np.argwhere(bad)[0]
        raise NonFinite(f"an observation that is not finite ({_where(view, int(row), int(agent))})")
    if spec.state and view.state is not None and not np.isfinite(view.state).all():
        row = int(np.argwhere(~np.isfinite(view.state))[0, 0])
        raise NonFinite(f"a central state that is not finite ({_where(view, row)})")
    if view.available is not None and not isinstance(spec.actions, Continuous):
        _check_masks(view, spec.actions)


def _check_masks(view: TeamView, actions: Discrete | Multi) -> None:
    sizes_of = (actions.n,) if isinstance(actions, Discrete) else actions.sizes
    begin = 0
    for part, size in enumerate(sizes_of):
        empty = ~view.available[..., begin : begin + size].any(-1)  # type: ignore[index]
        if empty.any():
            row, agent = np.argwhere(empty)[0]
            where = _where(view, int(row), int(agent))
            raise NoLegalAction(
                f"an agent that may do nothing ({where}, part {part})",
                value=f"an empty mask of {size} actions",
                expected="one available action or more; action 0 for an agent that is not alive",
            )
        begin += size


def _where(view: TeamView, row: int, agent: int | None = None) -> str:
    place = f"row {row}, episode {int(view.number[row])}, step {int(view.time[row])}"
    return place if agent is None else f"{place}, agent {agent}"


def check_actions(actions: NDArray[Any], spec: TeamSpec, view: TeamView) -> NDArray[Any]:
    """Actions as a batch computes with them: int64, or float64 clipped to [-1, 1]; those of the others set to 0.

    Raises:
        BatchMismatch: another shape. InvalidAction: of an agent that is alive: no index, not finite, not available.
    """
    given, kind, rows = np.asarray(actions), spec.actions, len(view.number)
    tail = () if isinstance(kind, Discrete) else (len(kind.sizes),) if isinstance(kind, Multi) else (kind.dim,)
    if given.shape != (rows, spec.agents, *tail):
        raise BatchMismatch("a team's actions", value=given.shape, expected=(rows, spec.agents, *tail))
    alive = view.alive if not tail else view.alive[..., None]
    if isinstance(kind, Continuous):
        if not np.issubdtype(given.dtype, np.floating):
            raise InvalidAction("a continuous action", value=str(given.dtype), expected="floating point numbers")
        values = np.where(alive, given, 0.0).astype(np.float64)
        _refuse(~np.isfinite(values), "an action that is not finite", given, view)
        return np.clip(values, -1.0, 1.0)
    if not np.issubdtype(given.dtype, np.integer):
        raise InvalidAction("a discrete action", value=str(given.dtype), expected="integers")
    chosen = np.where(alive, given, 0).astype(np.int64)
    sizes = np.array([kind.n] if isinstance(kind, Discrete) else kind.sizes)
    parts = chosen[..., None] if isinstance(kind, Discrete) else chosen
    _refuse((parts < 0) | (parts >= sizes), "no action", given, view)
    if view.available is not None:
        place = parts + np.concatenate([[0], np.cumsum(sizes)[:-1]])
        free = np.take_along_axis(view.available, place, -1) | ~view.alive[..., None]
        _refuse(~free, "an action that is not available", given, view)
    return chosen


def _refuse(bad: Bools, what: str, given: NDArray[Any], view: TeamView) -> None:
    if bad.any():
        row, agent = (int(number) for number in np.argwhere(bad)[0][:2])
        raise InvalidAction(f"{what} ({_where(view, row, agent)})", value=given[row, agent].tolist())


def check_fit(trained: TeamSpec, given: TeamSpec) -> None:
    """Whether weights that were trained on one team can play another: its agents may be more or fewer, no more.

    Raises:
        ShapeMismatch: other observations, actions or states; all differences at once.
    """
    names = ("observation", "actions", "state")
    wrong = [
        f"{name}: trained on {getattr(trained, name)}, here {getattr(given, name)}"
        for name in names
        if getattr(trained, name) != getattr(given, name)
    ]
    if wrong:
        raise ShapeMismatch(f"spaces that do not match the checkpoint ({'; '.join(wrong)})")
