"""The rescue world: a team that sees little carries victims out of a burning building before the fire reaches them.

Agents stay, move to the next free cell, or lift the victim that lies in their cell. A victim is rescued when as many
agents as it needs (1 or 2) lift in its cell at the same step; each is worth 1 / victims. Then fires spread: an agent in
a cell that burns dies (-0.05) and its part in the episode ends, a victim there is lost. The episode ends when no victim
waits or no agent lives. Success: every victim rescued; the return is at most 1.

An agent sees the 5 x 5 cells around it (walls and outside, fire, mates, what victims need), where it is, how much time
is left, how large the team is, what share is rescued. None of that grows with the team: the same weights play 2 or 12.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.teams.base import Discrete, Mark, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam
from evolvent.worlds.teams.rescue_maps import LIFT, MOVES, burn_times, draw_level, orders, room, walls_of

__all__ = ["RescueBatch", "RescueWorld"]

Ints = NDArray[np.int64]
Floats32 = NDArray[np.float32]
MOST_AGENTS, MOST_VICTIMS, RADIUS = 12, 4, 2
DEATH = -0.05
_CELLS = (2 * RADIUS + 1) ** 2
_OBSERVATION, _STATE = 4 * _CELLS + 6, 3 * MOST_AGENTS + 4 * MOST_VICTIMS + 2
WAITS, RESCUED, LOST = 0, 1, 2  # what can have become of a victim


class RescueBatch(ArrayTeam):
    """E rescues side by side; actions: stay, north, south, west, east, lift."""

    kept = ("place", "alive", "fate")

    def __init__(self, tasks: Sequence[Task], size: int, *, agents: int, grid: int, horizon: int) -> None:
        spec = TeamSpec(agents=agents, observation=_OBSERVATION, actions=Discrete(6), horizon=horizon, state=_STATE)
        super().__init__(tasks, size, spec=spec)
        self.grid = grid
        self._levels: dict[str, tuple[NDArray[np.bool_], Ints, Ints]] = {}
        self.walls = np.ones((size, grid, grid), dtype=bool)
        self.burns = np.zeros((size, grid, grid), dtype=np.int64)
        self.victims = np.zeros((size, MOST_VICTIMS, 3), dtype=np.int64)  # y, x, need; need 0: there is none
        self.team = np.zeros(size, dtype=np.int64)
        self.place = np.zeros((size, agents, 2), dtype=np.int64)
        self.alive = np.zeros((size, agents), dtype=bool)
        self.fate = np.zeros((size, MOST_VICTIMS), dtype=np.int64)

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        for row, task, sample in zip(rows, tasks, samples, strict=True):
            n, lying = task.spec["agents"], np.array(task.spec["victims"])
            self.walls[row], self.burns[row], places = self._level(task)
            self.victims[row] = 0
            self.victims[row, : len(lying)] = lying
            self.team[row] = n
            self.place[row] = 0
            self.place[row, :n] = places[sample_rng("rescue starts", task.id, sample).integers(0, len(places), n)]
            self.alive[row] = np.arange(self.spec.agents) < n
            self.fate[row] = np.where(np.arange(MOST_VICTIMS) < len(lying), WAITS, RESCUED)

    def _level(self, task: Task) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Walls, burn times and places to begin at; worked out once for each task."""
        if task.id not in self._levels:
            self._levels[task.id] = (walls_of(task.spec), burn_times(task.spec), np.array(room(task.spec)))
        return self._levels[task.id]

    def _move(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        rows = np.arange(self.size)[:, None]
        self.place += np.where(self.alive[..., None], MOVES[np.where(actions == LIFT, 0, actions)], 0)
        lifts = self.alive & (actions == LIFT)
        at = (self.place[:, :, None] == self.victims[:, None, :, :2]).all(-1)
        enough = (at & lifts[..., None]).sum(1) >= self.victims[..., 2]
        saved = (self.fate == WAITS) & enough
        self.fate[saved] = RESCUED
        now = self.time[:, None]
        dies = self.alive & (self.burns[rows, self.place[..., 0], self.place[..., 1]] <= now)
        self.alive &= ~dies
        burnt = self.burns[rows, self.victims[..., 0], self.victims[..., 1]] <= now
        self.fate[(self.fate == WAITS) & burnt] = LOST
        reward = saved.sum(-1) / (self.victims[..., 2] > 0).sum(-1) + DEATH * dies.sum(-1)
        over = ~(self.fate == WAITS).any(-1) | ~self.alive.any(-1)
        return reward, over, (self.fate == RESCUED).all(-1)

    def _look(self, rows: Ints) -> TeamView:
        alive, waits = self.alive[rows], self.fate[rows] == WAITS
        near = self._windows(rows, waits)
        shares = np.stack(
            [
                (1.0 - self.time[rows] / self.spec.horizon),
                self.team[rows] / MOST_AGENTS,
                (self.fate[rows] == RESCUED).mean(-1),
                waits.sum(-1) / MOST_VICTIMS,
            ],
            -1,
        )
        own = np.concatenate([self.place[rows] / self.grid, np.repeat(shares[:, None], alive.shape[1], 1)], -1)
        seen = np.concatenate([near.reshape(*alive.shape, -1), own], -1).astype(np.float32)
        return TeamView(
            observation=np.where(alive[..., None], seen, np.float32(0)),
            alive=alive,
            available=self._available(rows, alive, waits),
            state=self._state(rows, alive, waits, shares),
            number=self.number[rows],
            time=self.time[rows],
        )

    def _windows(self, rows: Ints, waits: NDArray[np.bool_]) -> Floats32:
        """`[K, n, 5, 5, 4]`: what each agent sees around it."""
        kept, wide = len(rows), self.grid + 2 * RADIUS
        layers = np.zeros((kept, wide, wide, 4), dtype=np.float32)
        layers[..., 0] = 1.0
        inner = slice(RADIUS, RADIUS + self.grid)
        layers[:, inner, inner, 0] = self.walls[rows]
        layers[:, inner, inner, 1] = self.burns[rows] <= self.time[rows, None, None]
        mates, victims = self.place[rows] + RADIUS, self.victims[rows]
        batch = np.arange(kept)[:, None]
        np.add.at(layers[..., 2], (batch, mates[..., 0], mates[..., 1]), np.where(self.alive[rows], 0.25, 0.0))
        where = (batch, victims[..., 0] + RADIUS, victims[..., 1] + RADIUS)
        np.add.at(layers[..., 3], where, np.where(waits, victims[..., 2] / 2, 0.0))
        around = np.arange(-RADIUS, RADIUS + 1)
        y, x = mates[..., 0, None, None] + around[:, None], mates[..., 1, None, None] + around
        return np.asarray(layers[batch[..., None, None], y, x], dtype=np.float32)

    def _available(self, rows: Ints, alive: NDArray[np.bool_], waits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        to = self.place[rows][:, :, None] + MOVES
        inside = ((to >= 0) & (to < self.grid)).all(-1)
        to = np.clip(to, 0, self.grid - 1)
        free = inside & ~self.walls[rows[:, None, None], to[..., 0], to[..., 1]]
        at = (self.place[rows][:, :, None] == self.victims[rows][:, None, :, :2]).all(-1)
        lift = (at & waits[:, None]).any(-1)
        found = np.concatenate([free, lift[..., None]], -1) & alive[..., None]
        found[..., 0] = True
        return found

    def _state(
        self, rows: Ints, alive: NDArray[np.bool_], waits: NDArray[np.bool_], shares: NDArray[np.float64]
    ) -> Floats32:
        """Where everybody is (12 times y, x, alive), the victims (4 times y, x, need, waits), time left, rescued."""
        agents = np.zeros((len(rows), MOST_AGENTS, 3), dtype=np.float32)
        agents[:, : alive.shape[1], :2] = self.place[rows] / self.grid * alive[..., None]
        agents[:, : alive.shape[1], 2] = alive
        victims = np.concatenate(
            [self.victims[rows, :, :2] / self.grid, self.victims[rows, :, 2:] / 2, waits[..., None]], -1
        )
        parts = (agents.reshape(len(rows), -1), victims.reshape(len(rows), -1), shares[:, [0, 2]])
        return np.concatenate(parts, -1).astype(np.float32)

    def scene(self, row: int) -> Scene:
        """What to draw of a row now: cells are 1 x 1, y grows downwards."""
        marks = [Mark("square", x + 0.5, y + 0.5, 0.5, "wall") for y, x in np.argwhere(self.walls[row])]
        burning = np.argwhere((self.burns[row] <= self.time[row]) & ~self.walls[row])
        marks += [Mark("square", x + 0.5, y + 0.5, 0.5, "danger") for y, x in burning]
        for (y, x, need), fate in zip(self.victims[row], self.fate[row], strict=True):
            if need and fate == WAITS:
                marks.append(Mark("square", x + 0.5, y + 0.5, 0.15 + 0.1 * need, "goal"))
        living = np.flatnonzero(self.alive[row])
        marks += [
            Mark("circle", float(self.place[row, at, 1]) + 0.5, float(self.place[row, at, 0]) + 0.5, 0.3, "agent")
            for at in living
        ]
        return Scene((0.0, 0.0, float(self.grid), float(self.grid)), tuple(marks))


class RescueWorld:
    """Levels of one size of grid. Tiers: "seen" (2 to 4 agents, 1 or 2 victims), "combo" (2 to 4 agents, 3 victims of
    which 2 need two), "longer" (5 to 12 agents, 3 or 4 victims). Every task is one that `expert` wins (sample 0).

    Args:
        grid: cells along a side. horizon: steps of an episode. agents: room in the spec for so many (None: for the
            largest team among a batch's tasks); a team that is smaller has agents that are never alive.
    Raises:
        ConfigError: a grid below 5, a horizon below 1, room for none or for more than 12.
    """

    name, version = "team_rescue", "1"
    tiers = ("seen", "combo", "longer")

    def __init__(
        self, *, grid: int = 9, horizon: int = 40, agents: int | None = None, sizes: Sizes | None = None
    ) -> None:
        wrong = [] if grid >= 5 else [Problem("grid", f"got {grid}", "expected 5 or more")]
        wrong += [] if horizon >= 1 else [Problem("horizon", f"got {horizon}", "expected 1 or more")]
        if agents is not None and not 1 <= agents <= MOST_AGENTS:
            wrong.append(Problem("agents", f"got {agents}", f"expected 1 to {MOST_AGENTS}"))
        if wrong:
            raise ConfigError(wrong)
        self.grid, self.horizon, self.agents = grid, horizon, agents
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=32, dev=6, test=12, per_kind=4),
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """The panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def resized(self, task: Task, agents: int) -> Task:
        """The same level with another number of agents (its split and tier stay): for few-shot studies."""
        if not 1 <= agents <= MOST_AGENTS:
            raise ConfigError("agents of a rescue", value=agents, expected=f"1 to {MOST_AGENTS}")
        spec = {**task.spec, "agents": agents}
        return Task(self.name, self.version, spec, f"{agents} agents, resized", task.tier, task.split)

    def batch(self, tasks: Sequence[Task], size: int) -> RescueBatch:
        """E rows. ConfigError: levels of another size, or a team larger than the room."""
        largest = max((task.spec["agents"] for task in tasks), default=1)
        agents = self.agents or largest
        if largest > agents:
            raise ConfigError("a team larger than the room for it", value=largest, expected=f"at most {agents}")
        other = {len(task.spec["walls"]) for task in tasks} - {self.grid}
        if other:
            raise ConfigError("levels of another size", value=sorted(other), expected=self.grid)
        return RescueBatch(tasks, size, agents=agents, grid=self.grid, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """1 is the bound: every victim rescued, nobody dead. The expert reaches it in sample 0."""
        return Optimum(1.0, exact=False)

    def expert(self, batch: RescueBatch) -> Ints:
        """`[E, n]` actions of a team that knows the whole level and all fires."""
        found = np.zeros((batch.size, batch.spec.agents), dtype=np.int64)
        for row in range(batch.size):
            living = np.flatnonzero(batch.alive[row])
            waiting = batch.victims[row][batch.fate[row] == WAITS]
            found[row, living] = orders(
                batch.walls[row],
                batch.burns[row],
                int(batch.time[row]),
                agents=batch.place[row, living],
                victims=waiting,
            )
        return found

    def _draw(self, tier: str) -> Iterator[Candidate]:
        for number in count():
            rng = sample_rng("rescue level", tier, self.grid, number)
            agents = int(rng.integers(5, 13)) if tier == "longer" else int(rng.integers(2, 5))
            victims = {"seen": int(rng.integers(1, 3)), "combo": 3, "longer": int(rng.integers(3, 5))}[tier]
            heavy = 2 if tier == "combo" else int(rng.integers(0, victims + 1))
            spec = draw_level(rng, size=self.grid, agents=agents, victims=victims, heavy=heavy)
            if spec is None or not self._won(spec):
                continue
            kind = f"{agents} agents, {victims} victims, {heavy} heavy"
            yield Candidate(spec, kind, tier, canonical_json(spec))

    def _won(self, spec: dict[str, Any]) -> bool:
        """Whether the expert rescues everybody, nobody dying, within the horizon."""
        batch = self.batch([Task(self.name, self.version, spec)], 1)
        batch.reset([0])
        total = 0.0
        for _ in range(self.horizon):
            step = batch.step(self.expert(batch))
            total += float(step.reward[0])
            if step.ended.size:
                break
        return total >= 1.0 - 1e-9
