"""Points in the plane that apply forces to themselves: they cover landmarks, or hunt together.

The motion is that of the multi-agent particle environments (Lowe et al., 2017): `v <- .75 v + .1 * 5 u` and
then `x <- x + .1 v` with a force u in [-1, 1]^2, without contact forces. Rewards and observations differ:

spread  n agents, n landmarks: each step pays minus the mean over the landmarks of the distance to the nearest
agent,
        minus .1 for every pair of agents closer than .1. Success: at the end every landmark has an agent within .1.
hunt    n hunters and one prey inside walls at +-1.2. It flees straight from the nearest hunter within .6, .2 a step (a
        hunter's top speed along one axis). Each step pays minus .02 times the mean distance of the two nearest hunters.
        If two are within .15 of the prey at once it is caught: 1, and the episode ends. One alone never catches it.

An agent observes its velocity and position, the time left and, relative to itself and nearest first, three
landmarks (or the prey, as the only target) and three teammates: the same numbers for every size of the team.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.teams.base import Continuous, Mark, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["ParticleBatch", "ParticleWorld"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
MAX_AGENTS, NUM_NEIGHBORS = 12, 3
DAMPING, DT, FORCE = 0.75, 0.1, 5.0
COVER_DISTANCE, COLLISION_DISTANCE, CATCH_DISTANCE, WALL_POSITION, PREY_STEP, PREY_SIGHT = 0.1, 0.1, 0.15, 1.2, 0.2, 0.6
_OBSERVATION = 5 + 2 * 3 * NUM_NEIGHBORS


def _distances(points: Floats, targets: Floats) -> Floats:
    """Computes the distances `[K, p, q]` between points `[K, p, 2]` and targets `[K, q, 2]`."""
    offset = points[:, :, None] - targets[:, None]
    return np.sqrt(offset[..., 0] ** 2 + offset[..., 1] ** 2)


class ParticleBatch(ArrayTeam):
    """E episodes of points in parallel; an action is a force of two numbers."""

    state_names = ("place", "speed", "prey")

    def __init__(
        self, kind: Literal["spread", "hunt"], tasks: Sequence[Task], size: int, *, agents: int, horizon: int
    ) -> None:
        spec = TeamSpec(
            agents=agents,
            observation=_OBSERVATION,
            actions=Continuous(2),
            horizon=horizon,
            state=5 * MAX_AGENTS + 2 * MAX_AGENTS + 1,
        )
        super().__init__(tasks, size, spec=spec)
        self.kind = kind
        goals = agents if kind == "spread" else 1
        self.team = np.zeros((size, agents), dtype=bool)
        self.there = np.zeros((size, goals), dtype=bool)  # which goals exist
        self.goals = np.zeros((size, goals, 2))  # landmarks, or where the prey begins
        self.place = np.zeros((size, agents, 2))
        self.speed = np.zeros((size, agents, 2))
        self.prey = np.zeros((size, goals, 2))  # where goals are now

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        for row, task, sample in zip(rows, tasks, samples, strict=True):
            num_agents, goals = task.spec["agents"], np.array(task.spec["goals"], dtype=np.float64)
            self.team[row] = np.arange(self.spec.agents) < num_agents
            self.there[row] = np.arange(self.there.shape[1]) < len(goals)
            self.goals[row, : len(goals)], self.goals[row, len(goals) :] = goals, 0.0
            positions = sample_rng("particle starts", task.id, sample).uniform(-1.0, 1.0, (num_agents, 2))
            self.place[row, :num_agents], self.place[row, num_agents:] = positions, 0.0
        self.speed[rows], self.prey[rows] = 0.0, self.goals[rows]

    def _move(self, actions: NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.speed = DAMPING * self.speed + DT * FORCE * actions
        self.place = self.place + DT * self.speed
        if self.kind == "hunt":
            self.place = np.clip(self.place, -WALL_POSITION, WALL_POSITION)
            return self._move_hunt()
        distances = np.where(self.team[..., None], _distances(self.place, self.prey), np.inf)
        nearest = np.where(self.there, distances.min(1), 0.0)
        pairs = np.triu(np.ones((self.spec.agents,) * 2, dtype=bool), 1)
        is_colliding = (
            (_distances(self.place, self.place) < COLLISION_DISTANCE)
            & pairs
            & self.team[:, None]
            & self.team[..., None]
        )
        reward = -_sum_in_order(nearest) / self.there.sum(-1) - 0.1 * is_colliding.sum((1, 2))
        return reward, np.zeros(self.size, dtype=bool), np.asarray((nearest <= COVER_DISTANCE).all(-1))

    def _move_hunt(self) -> tuple[Floats, Bools, Bools]:
        self.prey = np.clip(self.prey + self._flee(), -WALL_POSITION, WALL_POSITION)
        distances = np.where(self.team, _distances(self.place, self.prey)[..., 0], np.inf)
        nearest_two = np.sort(distances, -1)[:, :2]
        is_caught = np.asarray((nearest_two <= CATCH_DISTANCE).all(-1))
        return np.where(is_caught, 1.0, -0.02 * (nearest_two[:, 0] + nearest_two[:, 1]) / 2), is_caught, is_caught

    def _flee(self) -> Floats:
        """Computes the step of the prey, `[E, 1, 2]`: straight away from the nearest hunter."""
        distances = np.where(self.team, _distances(self.place, self.prey)[..., 0], np.inf)
        nearest = np.take_along_axis(self.place, distances.argmin(-1)[:, None, None], 1)
        offset = self.prey - nearest
        length = np.sqrt(offset[..., :1] ** 2 + offset[..., 1:] ** 2)
        direction = np.where(length > 1e-9, offset / np.maximum(length, 1e-9), np.array([1.0, 0.0]))
        return np.asarray(direction * PREY_STEP * (length < PREY_SIGHT), dtype=np.float64)

    def _observe(self, rows: Ints) -> TeamView:
        team, positions, prey = self.team[rows], self.place[rows], self.prey[rows]
        time_left = np.broadcast_to((1.0 - self.time[rows] / self.spec.horizon)[:, None, None], (*team.shape, 1))
        goals = _nearest_neighbors(positions, prey, self.there[rows], exclude_self=False)
        mates = _nearest_neighbors(positions, positions, team, exclude_self=True)
        observation = np.concatenate([self.speed[rows], positions, time_left, goals, mates], -1).astype(np.float32)
        return TeamView(
            observation=np.where(team[..., None], observation, np.float32(0)),
            alive=team.copy(),
            state=self._build_state(rows, time_left[:, 0]),
            number=self.number[rows],
            time=self.time[rows],
        )

    def _build_state(self, rows: Ints, time_left: Floats) -> NDArray[np.float32]:
        """Builds the central state: position, speed and presence of 12 agents, positions of 12 goals, and time left."""
        num_rows, num_agents, num_goals = len(rows), self.spec.agents, self.prey.shape[1]
        agents, targets = np.zeros((num_rows, MAX_AGENTS, 5)), np.zeros((num_rows, MAX_AGENTS, 2))
        team = self.team[rows][..., None]
        agents[:, :num_agents] = np.concatenate([self.place[rows] * team, self.speed[rows] * team, team], -1)
        targets[:, :num_goals] = self.prey[rows]
        return np.concatenate([agents.reshape(num_rows, -1), targets.reshape(num_rows, -1), time_left], -1).astype(
            np.float32
        )

    def scene(self, row: int) -> Scene:
        """Returns the present scene of a row, in the plane's own units (y grows upwards there and is flipped here)."""
        role: Literal["goal", "prey"] = "goal" if self.kind == "spread" else "prey"
        shape: Literal["square", "circle"] = "square" if role == "goal" else "circle"
        goals = self.prey[row, self.there[row]]
        marks = [Mark(shape, float(x), -float(y), 0.1, role) for x, y in goals]
        marks += [Mark("circle", float(x), -float(y), 0.08, "agent") for x, y in self.place[row, self.team[row]]]
        return Scene((-1.5, -1.5, 1.5, 1.5), tuple(marks))


def _sum_in_order(values: Floats) -> Floats:
    """Computes sums `[E]` over the last axis, added from the left: bit-identical for every E."""
    return np.asarray(np.add.accumulate(values, -1)[:, -1], dtype=np.float64)


def _nearest_neighbors(positions: Floats, targets: Floats, present: Bools, *, exclude_self: bool) -> Floats:
    """Computes (dx, dy, 1) of the nearest targets, `[K, n, 3 * NUM_NEIGHBORS]`, with zeros for missing ones."""
    distances = np.where(present[:, None], _distances(positions, targets), np.inf)
    if exclude_self:
        distances[:, np.arange(positions.shape[1]), np.arange(positions.shape[1])] = np.inf
    order = np.argsort(distances, -1, kind="stable")[..., :NUM_NEIGHBORS]
    exists = np.isfinite(np.take_along_axis(distances, order, -1))
    batch = np.arange(len(positions))[:, None, None]
    offsets = np.where(exists[..., None], targets[batch, order] - positions[:, :, None], 0.0)
    neighbors = np.zeros((*positions.shape[:2], NUM_NEIGHBORS, 3))
    neighbors[:, :, : order.shape[-1]] = np.concatenate([offsets, exists[..., None]], -1)
    return neighbors.reshape(*positions.shape[:2], -1)


class ParticleWorld(DealtOnce):
    """Panels of `spread` or `hunt`. Tiers: "seen" (2 to 4 agents) and "longer" (5 to 12).

    Args:
        kind: "spread" or "hunt".
        horizon: steps of an episode. agents: number of agents in the spec (None: of the largest team of a batch's
            tasks).
    Raises:
        ConfigError: an unknown kind, a horizon below 1, or a number of agents outside 1 to 12.
    """

    version = "1"
    tiers = ("seen", "longer")

    def __init__(
        self,
        kind: Literal["spread", "hunt"] = "spread",
        *,
        horizon: int = 50,
        agents: int | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        problems = [] if kind in ("spread", "hunt") else [Problem("kind", f"got {kind!r}, expected spread or hunt")]
        problems += [] if horizon >= 1 else [Problem("horizon", f"got {horizon}, expected 1 or more")]
        if agents is not None and not 1 <= agents <= MAX_AGENTS:
            problems.append(Problem("agents", f"got {agents}, expected 1 to {MAX_AGENTS}"))
        if problems:
            raise ConfigError(problems)
        self.name, self.kind, self.horizon, self.agents = f"team_{kind}", kind, horizon, agents
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=48, dev=6, test=12, per_kind=4),
            recipe=self.recipe,
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def task(self, agents: int, level: int, *, tier: str = "seen", split: str = "train") -> Task:
        """Returns a task by its number, which fixes landmarks or the prey's start; raises ConfigError unless 2 to 12
        agents.
        """
        if not 2 <= agents <= MAX_AGENTS:
            raise ConfigError(
                f"number of agents of {self.name!r} out of range", value=agents, expected=f"2 to {MAX_AGENTS}"
            )
        rng = sample_rng("particles", self.name, agents, level)
        goals = rng.uniform(-1.0, 1.0, (agents if self.kind == "spread" else 1, 2)).round(4).tolist()
        return Task(self.name, self.version, {"agents": agents, "goals": goals}, f"{agents} agents", tier, split)

    def batch(self, tasks: Sequence[Task], size: int) -> ParticleBatch:
        """Creates E rows; raises ConfigError for a team larger than the spec's number of agents."""
        largest = max((task.spec["agents"] for task in tasks), default=1)
        agents = self.agents or largest
        if largest > agents:
            raise ConfigError("the team is too large", value=largest, expected=f"at most {agents} agents")
        return ParticleBatch(self.kind, tasks, size, agents=agents, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns a bound that holds for every sample: 0 (each landmark covered from the first step) or 1 (caught at
        once).

        For a given sample of spread, `bound` is tighter.
        """
        return Optimum(0.0 if self.kind == "spread" else 1.0, exact=False)

    def bound(self, task: Task, sample: int) -> Optimum:
        """Returns an upper bound on the return of one episode.

        A landmark cannot be nearer to an agent than the initial distance of the nearest agent, less the distance that
        full force covers. For hunt: 1.
        """
        if self.kind == "hunt":
            return Optimum(1.0, exact=False)
        batch = self.batch([task], 1)
        batch.reset([sample])
        start_distances = _distances(batch.place[:, batch.team[0]], batch.goals[:, batch.there[0]])[0].min(0)
        speed = travelled = total = 0.0
        for _ in range(self.horizon):
            speed = DAMPING * speed + DT * FORCE
            travelled += DT * speed
            total -= float(np.maximum(0.0, start_distances - np.sqrt(2.0) * travelled).mean())
        return Optimum(total, exact=False)

    def expert(self, batch: ParticleBatch) -> Floats:
        """Computes forces, `[E, n, 2]`.

        Spread: pairs of free agent and landmark are matched nearest first, and each agent is steered to its landmark.
        Hunt: every agent moves towards the prey, each from another side.
        """
        targets = np.stack([self._choose_targets(batch, row) for row in range(batch.size)])
        target_speed = (targets - batch.place) / DT
        return np.asarray(np.clip((target_speed - DAMPING * batch.speed) / (DT * FORCE), -1.0, 1.0), dtype=np.float64)

    def _choose_targets(self, batch: ParticleBatch, row: int) -> Floats:
        positions, goals = batch.place[row], batch.prey[row, batch.there[row]]
        targets = positions.copy()
        if self.kind == "hunt":
            offsets = positions - goals[0]
            directions = offsets / np.maximum(np.sqrt((offsets**2).sum(-1, keepdims=True)), 1e-9)
            return np.asarray(goals[0] + 0.05 * directions, dtype=np.float64)
        distances = np.where(batch.team[row][:, None], _distances(positions[None], goals[None])[0], np.inf)
        for _ in range(len(goals)):
            agent, goal = np.unravel_index(int(distances.argmin()), distances.shape)
            targets[agent] = goals[goal]
            distances[agent], distances[:, goal] = np.inf, np.inf
        return np.asarray(targets, dtype=np.float64)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for level in count():
            agents = 2 + level % 3 if tier == "seen" else 5 + level % 8
            task = self.task(agents, level)
            yield Candidate(task.spec, task.kind, tier, canonical_json(dict(task.spec)))
