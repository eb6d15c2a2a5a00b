"""Points in the plane that push themselves about: covering landmarks, and hunting together.

The motion is that of the multi-agent particle environments (Lowe et al., 2017): `v <- .75 v + .1 * 5 u` and then
`x <- x + .1 v` with a force u in [-1, 1]^2, without contact forces. Rewards and observations are our own:

spread  n agents, n landmarks: each step pays minus the mean over the landmarks of the distance to the nearest agent,
        minus .1 for every pair of agents closer than .1. Success: at the end every landmark has an agent within .1.
hunt    n hunters and one prey inside walls at +-1.2. It flees straight from the nearest hunter within .6, .2 a step (a
        hunter's top speed along one axis). Each step pays minus .02 times the mean distance of the two nearest hunters.
        When two are within .15 of the prey at once it is caught: 1, and the episode ends. One alone never catches it.

An agent sees its velocity and place, the time left and, relative to itself and nearest first, three landmarks (or the
prey, three times as an only one) and three mates: whatever the size of the team, the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.teams.base import Continuous, Mark, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["ParticleBatch", "ParticleWorld"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
MOST_AGENTS, NEAR = 12, 3
DAMPING, DT, FORCE = 0.75, 0.1, 5.0
COVERED, TOUCH, CAUGHT, WALL, FLIGHT, SIGHT = 0.1, 0.1, 0.15, 1.2, 0.2, 0.6
_OBSERVATION = 5 + 2 * 3 * NEAR


def _distances(a: Floats, b: Floats) -> Floats:
    """`[K, p, q]` between points `[K, p, 2]` and `[K, q, 2]`."""
    gap = a[:, :, None] - b[:, None]
    return np.sqrt(gap[..., 0] ** 2 + gap[..., 1] ** 2)


class ParticleBatch(ArrayTeam):
    """E episodes of points side by side; actions: a force of two numbers."""

    kept = ("place", "speed", "prey")

    def __init__(
        self, kind: Literal["spread", "hunt"], tasks: Sequence[Task], size: int, *, agents: int, horizon: int
    ) -> None:
        spec = TeamSpec(
            agents=agents,
            observation=_OBSERVATION,
            actions=Continuous(2),
            horizon=horizon,
            state=5 * MOST_AGENTS + 2 * MOST_AGENTS + 1,
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
            n, goals = task.spec["agents"], np.array(task.spec["goals"], dtype=np.float64)
            self.team[row] = np.arange(self.spec.agents) < n
            self.there[row] = np.arange(self.there.shape[1]) < len(goals)
            self.goals[row, : len(goals)], self.goals[row, len(goals) :] = goals, 0.0
            start = sample_rng("particle starts", task.id, sample).uniform(-1.0, 1.0, (n, 2))
            self.place[row, :n], self.place[row, n:] = start, 0.0
        self.speed[rows], self.prey[rows] = 0.0, self.goals[rows]

    def _move(self, actions: NDArray[Any]) -> tuple[Floats, Bools, Bools]:
        self.speed = DAMPING * self.speed + DT * FORCE * actions
        self.place = self.place + DT * self.speed
        if self.kind == "hunt":
            self.place = np.clip(self.place, -WALL, WALL)
            return self._hunted()
        away = np.where(self.team[..., None], _distances(self.place, self.prey), np.inf)
        nearest = np.where(self.there, away.min(1), 0.0)
        pairs = np.triu(np.ones((self.spec.agents,) * 2, dtype=bool), 1)
        close = (_distances(self.place, self.place) < TOUCH) & pairs & self.team[:, None] & self.team[..., None]
        reward = -_sums(nearest) / self.there.sum(-1) - 0.1 * close.sum((1, 2))
        return reward, np.zeros(self.size, dtype=bool), np.asarray((nearest <= COVERED).all(-1))

    def _hunted(self) -> tuple[Floats, Bools, Bools]:
        self.prey = np.clip(self.prey + self._flight(), -WALL, WALL)
        away = np.where(self.team, _distances(self.place, self.prey)[..., 0], np.inf)
        two = np.sort(away, -1)[:, :2]
        caught = np.asarray((two <= CAUGHT).all(-1))
        return np.where(caught, 1.0, -0.02 * (two[:, 0] + two[:, 1]) / 2), caught, caught

    def _flight(self) -> Floats:
        """`[E, 1, 2]` the step of the prey: straight away from the nearest hunter."""
        away = np.where(self.team, _distances(self.place, self.prey)[..., 0], np.inf)
        nearest = np.take_along_axis(self.place, away.argmin(-1)[:, None, None], 1)
        gap = self.prey - nearest
        length = np.sqrt(gap[..., :1] ** 2 + gap[..., 1:] ** 2)
        way = np.where(length > 1e-9, gap / np.maximum(length, 1e-9), np.array([1.0, 0.0]))
        return np.asarray(way * FLIGHT * (length < SIGHT), dtype=np.float64)

    def _look(self, rows: Ints) -> TeamView:
        team, place, prey = self.team[rows], self.place[rows], self.prey[rows]
        left = np.broadcast_to((1.0 - self.time[rows] / self.spec.horizon)[:, None, None], (*team.shape, 1))
        goals = _nearest(place, prey, self.there[rows], itself=False)
        mates = _nearest(place, place, team, itself=True)
        seen = np.concatenate([self.speed[rows], place, left, goals, mates], -1).astype(np.float32)
        return TeamView(
            observation=np.where(team[..., None], seen, np.float32(0)),
            alive=team.copy(),
            state=self._state(rows, left[:, 0]),
            number=self.number[rows],
            time=self.time[rows],
        )

    def _state(self, rows: Ints, left: Floats) -> NDArray[np.float32]:
        """Places, speeds and presence of 12 agents, places of 12 goals, time left; zeros where there is none."""
        kept, n, goals = len(rows), self.spec.agents, self.prey.shape[1]
        agents, targets = np.zeros((kept, MOST_AGENTS, 5)), np.zeros((kept, MOST_AGENTS, 2))
        team = self.team[rows][..., None]
        agents[:, :n] = np.concatenate([self.place[rows] * team, self.speed[rows] * team, team], -1)
        targets[:, :goals] = self.prey[rows]
        return np.concatenate([agents.reshape(kept, -1), targets.reshape(kept, -1), left], -1).astype(np.float32)

    def scene(self, row: int) -> Scene:
        """What to draw of a row now, in the plane's own units (y grows upwards there and is turned here)."""
        role: Literal["goal", "prey"] = "goal" if self.kind == "spread" else "prey"
        shape: Literal["square", "circle"] = "square" if role == "goal" else "circle"
        goals = self.prey[row, self.there[row]]
        marks = [Mark(shape, float(x), -float(y), 0.1, role) for x, y in goals]
        marks += [Mark("circle", float(x), -float(y), 0.08, "agent") for x, y in self.place[row, self.team[row]]]
        return Scene((-1.5, -1.5, 1.5, 1.5), tuple(marks))


def _sums(values: Floats) -> Floats:
    """`[E]` sums over the last axis, added from the left: the same bits whatever E is."""
    return np.asarray(np.add.accumulate(values, -1)[:, -1], dtype=np.float64)


def _nearest(place: Floats, others: Floats, there: Bools, *, itself: bool) -> Floats:
    """`[K, n, 3 * NEAR]` (dx, dy, 1) of the nearest others, zeros where there are fewer."""
    away = np.where(there[:, None], _distances(place, others), np.inf)
    if itself:
        away[:, np.arange(place.shape[1]), np.arange(place.shape[1])] = np.inf
    order = np.argsort(away, -1, kind="stable")[..., :NEAR]
    known = np.isfinite(np.take_along_axis(away, order, -1))
    batch = np.arange(len(place))[:, None, None]
    gap = np.where(known[..., None], others[batch, order] - place[:, :, None], 0.0)
    found = np.zeros((*place.shape[:2], NEAR, 3))
    found[:, :, : order.shape[-1]] = np.concatenate([gap, known[..., None]], -1)
    return found.reshape(*place.shape[:2], -1)


class ParticleWorld:
    """Panels of `spread` or `hunt`. Tiers: "seen" (2 to 4 agents) and "longer" (5 to 12).

    Args:
        kind: "spread" or "hunt".
        horizon: steps of an episode. agents: room in the spec (None: for the largest team among a batch's tasks).
    Raises:
        ConfigError: no such kind, a horizon below 1, room for none or for more than 12.
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
        wrong = [] if kind in ("spread", "hunt") else [Problem("kind", f"got {kind!r}", "expected spread or hunt")]
        wrong += [] if horizon >= 1 else [Problem("horizon", f"got {horizon}", "expected 1 or more")]
        if agents is not None and not 1 <= agents <= MOST_AGENTS:
            wrong.append(Problem("agents", f"got {agents}", f"expected 1 to {MOST_AGENTS}"))
        if wrong:
            raise ConfigError(wrong)
        self.name, self.kind, self.horizon, self.agents = f"team_{kind}", kind, horizon, agents
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=48, dev=6, test=12, per_kind=4),
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """The panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def task(self, agents: int, level: int, *, tier: str = "seen", split: str = "train") -> Task:
        """A task by its number: where landmarks lie, or the prey begins. ConfigError: not 2 to 12 agents."""
        if not 2 <= agents <= MOST_AGENTS:
            raise ConfigError(f"agents of {self.name!r}", value=agents, expected=f"2 to {MOST_AGENTS}")
        rng = sample_rng("particles", self.name, agents, level)
        goals = rng.uniform(-1.0, 1.0, (agents if self.kind == "spread" else 1, 2)).round(4).tolist()
        return Task(self.name, self.version, {"agents": agents, "goals": goals}, f"{agents} agents", tier, split)

    def batch(self, tasks: Sequence[Task], size: int) -> ParticleBatch:
        """E rows. ConfigError: a team larger than the room."""
        largest = max((task.spec["agents"] for task in tasks), default=1)
        agents = self.agents or largest
        if largest > agents:
            raise ConfigError("a team larger than the room for it", value=largest, expected=f"at most {agents}")
        return ParticleBatch(self.kind, tasks, size, agents=agents, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """A bound that holds for every sample: 0 (each landmark covered from the first step) or 1 (caught at once).
        `bound` is nearer for a given sample of spread."""
        return Optimum(0.0 if self.kind == "spread" else 1.0, exact=False)

    def bound(self, task: Task, sample: int) -> Optimum:
        """Above every return of one episode: no landmark can be nearer to an agent than to the one that begins nearest,
        less the way a full force takes it. For hunt: 1."""
        if self.kind == "hunt":
            return Optimum(1.0, exact=False)
        batch = self.batch([task], 1)
        batch.reset([sample])
        start = _distances(batch.place[:, batch.team[0]], batch.goals[:, batch.there[0]])[0].min(0)
        speed = way = total = 0.0
        for _ in range(self.horizon):
            speed = DAMPING * speed + DT * FORCE
            way += DT * speed
            total -= float(np.maximum(0.0, start - np.sqrt(2.0) * way).mean())
        return Optimum(total, exact=False)

    def expert(self, batch: ParticleBatch) -> Floats:
        """`[E, n, 2]` forces. Spread: the nearest free pair of agent and landmark first, each steered to its own.
        Hunt: everybody towards the prey, each from another side."""
        aims = np.stack([self._aims(batch, row) for row in range(batch.size)])
        wanted = (aims - batch.place) / DT
        return np.asarray(np.clip((wanted - DAMPING * batch.speed) / (DT * FORCE), -1.0, 1.0), dtype=np.float64)

    def _aims(self, batch: ParticleBatch, row: int) -> Floats:
        place, goals = batch.place[row], batch.prey[row, batch.there[row]]
        aims = place.copy()
        if self.kind == "hunt":
            gap = place - goals[0]
            side = gap / np.maximum(np.sqrt((gap**2).sum(-1, keepdims=True)), 1e-9)
            return np.asarray(goals[0] + 0.05 * side, dtype=np.float64)
        away = np.where(batch.team[row][:, None], _distances(place[None], goals[None])[0], np.inf)
        for _ in range(len(goals)):
            agent, goal = np.unravel_index(int(away.argmin()), away.shape)
            aims[agent] = goals[goal]
            away[agent], away[:, goal] = np.inf, np.inf
        return np.asarray(aims, dtype=np.float64)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for level in count():
            agents = 2 + level % 3 if tier == "seen" else 5 + level % 8
            task = self.task(agents, level)
            yield Candidate(task.spec, task.kind, tier, canonical_json(dict(task.spec)))
