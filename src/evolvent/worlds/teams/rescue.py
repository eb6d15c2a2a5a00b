"""The rescue world: a team with limited sight carries victims out of a burning building before the fire reaches
them.

Agents stay, move to an adjacent free cell, or lift the victim in their cell. A victim is rescued if as many
agents as it needs (1 or 2) lift in its cell at the same step; each is worth 1 / victims. Then fires spread: an
agent in a burning cell dies (-0.05) and its part in the episode ends; a victim there is lost. The episode ends
when no victim is waiting or no agent is alive. Success: every victim rescued; the return is at most 1.

An agent observes the 5 x 5 cells around it (walls and outside, fire, teammates, victims' needs), its position,
the time left, the size of the team, and the share rescued. The observation does not grow with the team: the
same weights play 2 or 12.

Levels of the rescue world: walls, an entrance, victims, and spreading fires; distances; the expert's
assignment.

A level is JSON (the spec of a task): `walls` rows of "." and "#", `entrance` [y, x], `victims` [y, x, need]
each, `fires` [y, x, start, pace] each: a fire starts at step `start` and takes `pace` steps for every further
free cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import JsonObject, Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.teams.base import Discrete, Mark, Optimum, Scene, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = [
    "MOVES",
    "NEVER",
    "RescueBatch",
    "RescueWorld",
    "arrival_times",
    "burn_times",
    "draw_level",
    "parse_walls",
    "plan_actions",
    "start_cells",
]


Bools = NDArray[np.bool_]
NEVER = 10_000  # a step that no episode reaches
MOVES: Ints = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])  # stay, north, south, west, east
LIFT = 5


def parse_walls(spec: JsonObject) -> Bools:
    """Returns the walls of a level, `[H, W]` bool."""
    return np.array([[cell == "#" for cell in row] for row in spec["walls"]])


def arrival_times(walls: Bools, start: tuple[int, int], burns: Ints | None = None, *, time: int = 0) -> Ints:
    """Computes the first step at which each cell is reached from `start` at step `time`, `[H, W]`; NEVER if
    unreachable.

    A cell that already burns (`burns[cell] <= step`) cannot be entered. Fires only grow, so waiting never
    helps and a breadth-first search is exact.
    """
    times = np.full(walls.shape, NEVER, dtype=np.int64)
    times[start] = time
    queue = deque([start])
    height, width = walls.shape
    while queue:
        y, x = queue.popleft()
        step = int(times[y, x]) + 1
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            cell = (y + dy, x + dx)
            inside = 0 <= cell[0] < height and 0 <= cell[1] < width
            if not inside or walls[cell] or times[cell] <= step or (burns is not None and burns[cell] <= step):
                continue
            times[cell] = step
            queue.append(cell)
    return times


def burn_times(spec: JsonObject) -> Ints:
    """Computes the step from which each cell burns, `[H, W]`; NEVER if no fire reaches it."""
    walls = parse_walls(spec)
    burns = np.full(walls.shape, NEVER, dtype=np.int64)
    for y, x, start, pace in spec["fires"]:
        distances = arrival_times(walls, (y, x))
        burns = np.minimum(burns, np.where(distances < NEVER, start + pace * distances, NEVER))
    return burns


def start_cells(spec: JsonObject) -> list[tuple[int, int]]:
    """Returns the cells within two steps of the entrance, in reading order: agents start there."""
    is_near = arrival_times(parse_walls(spec), (spec["entrance"][0], spec["entrance"][1])) <= 2
    return [(int(y), int(x)) for y, x in np.argwhere(is_near)]


def draw_level(
    rng: np.random.Generator, *, size: int, agents: int, num_victims: int, num_heavy: int
) -> JsonObject | None:
    """Draws a level of `size` x `size` cells, `num_heavy` of whose victims need two agents; None if walls leave no
    room.
    """
    walls = rng.random((size, size)) < 0.18
    entrance = (int(rng.integers(size)), 0)
    walls[entrance] = False
    distances = arrival_times(walls, entrance)
    walls |= distances == NEVER  # what cannot be reached is wall
    free_cells = [(int(y), int(x)) for y, x in np.argwhere((distances >= 4) & (distances < NEVER))]
    if len(free_cells) < num_victims + 1 or (~walls).sum() < size * size // 2:
        return None
    drawn_cells = [free_cells[index] for index in rng.permutation(len(free_cells))[: num_victims + 1]]
    victim_rows = [[*cell, 2 if index < num_heavy else 1] for index, cell in enumerate(drawn_cells[:num_victims])]
    fire = [*drawn_cells[num_victims], int(rng.integers(0, 6)), int(rng.integers(3, 6))]
    rows = ["".join("#" if cell else "." for cell in row) for row in walls]
    return {"agents": agents, "walls": rows, "entrance": list(entrance), "victims": victim_rows, "fires": [fire]}


def plan_actions(walls: Bools, burns: Ints, time: int, *, agents: Ints, victims: Ints) -> Ints:
    """Returns one action `[m]` for each agent at `[m, 2]`, with knowledge of the whole level.

    Waiting victims `[v, 3]` (y, x, need) are served in the order in which the fire reaches them, each by the
    nearest free agents that arrive in time to lift and survive. Agents that are there lift. Free agents go to the
    nearest victim that is not served, to be there when others come; failing that they leave cells that will burn.
    """
    arrivals_by_agent = [arrival_times(walls, (int(y), int(x)), burns, time=time) for y, x in agents]
    actions = np.zeros(len(agents), dtype=np.int64)
    free, unserved = set(range(len(agents))), []
    for y, x, need in sorted(victims.tolist(), key=lambda victim: (burns[victim[0], victim[1]], victim)):
        candidates = sorted(
            (int(arrivals_by_agent[agent][y, x]), agent)
            for agent in free
            if arrivals_by_agent[agent][y, x] + 1 < burns[y, x]
        )
        if len(candidates) < need:
            unserved.append((y, x))
            continue
        for _, agent in candidates[:need]:
            free.discard(agent)
            position = (int(agents[agent, 0]), int(agents[agent, 1]))
            actions[agent] = LIFT if position == (y, x) else _first_move(arrivals_by_agent[agent], (y, x), time)
    for agent in free:
        position = (int(agents[agent, 0]), int(agents[agent, 1]))
        options = [
            (int(arrivals_by_agent[agent][cell]), cell)
            for cell in unserved
            if arrivals_by_agent[agent][cell] + 2 < burns[cell]
        ]
        if not options:
            actions[agent] = _flee(walls, burns, position)
        elif min(options)[1] != position:
            actions[agent] = _first_move(arrivals_by_agent[agent], min(options)[1], time)
    return actions


def _first_move(times: Ints, goal: tuple[int, int], time: int) -> int:
    """Returns the first move of a shortest path to the goal, traced back through cells reached one step earlier."""
    y, x = goal
    while True:
        for move in range(1, 5):
            previous = (y - int(MOVES[move, 0]), x - int(MOVES[move, 1]))
            inside = 0 <= previous[0] < times.shape[0] and 0 <= previous[1] < times.shape[1]
            if inside and times[previous] == times[y, x] - 1:
                if times[previous] == time:
                    return move
                y, x = previous
                break


def _flee(walls: Bools, burns: Ints, cell: tuple[int, int]) -> int:
    """Returns the move to the neighbor that burns last; stays if none burns later."""
    burn_steps = [
        -1 if (neighbor := _neighbor(walls, cell, move)) is None else int(burns[neighbor]) for move in range(5)
    ]
    return int(np.argmax(burn_steps))


def _neighbor(walls: Bools, cell: tuple[int, int], move: int) -> tuple[int, int] | None:
    y, x = cell[0] + int(MOVES[move, 0]), cell[1] + int(MOVES[move, 1])
    is_inside = 0 <= y < walls.shape[0] and 0 <= x < walls.shape[1]
    return (y, x) if is_inside and not walls[y, x] else None


Ints = NDArray[np.int64]
Floats32 = NDArray[np.float32]
MAX_AGENTS, MAX_VICTIMS, RADIUS = 12, 4, 2
DEATH_REWARD = -0.05
_CELLS = (2 * RADIUS + 1) ** 2
_OBSERVATION, _STATE = 4 * _CELLS + 6, 3 * MAX_AGENTS + 4 * MAX_VICTIMS + 2
WAITING, RESCUED, LOST = 0, 1, 2  # what can have become of a victim


class RescueBatch(ArrayTeam):
    """E rescues in parallel; actions: stay, north, south, west, east, lift."""

    state_names = ("place", "alive", "fate")

    def __init__(self, tasks: Sequence[Task], size: int, *, agents: int, grid: int, horizon: int) -> None:
        spec = TeamSpec(agents=agents, observation=_OBSERVATION, actions=Discrete(6), horizon=horizon, state=_STATE)
        super().__init__(tasks, size, spec=spec)
        self.grid = grid
        self._levels: dict[str, tuple[NDArray[np.bool_], Ints, Ints]] = {}
        self.walls = np.ones((size, grid, grid), dtype=bool)
        self.burns = np.zeros((size, grid, grid), dtype=np.int64)
        self.victims = np.zeros((size, MAX_VICTIMS, 3), dtype=np.int64)  # y, x, need; need 0: there is none
        self.team = np.zeros(size, dtype=np.int64)
        self.place = np.zeros((size, agents, 2), dtype=np.int64)
        self.alive = np.zeros((size, agents), dtype=bool)
        self.fate = np.zeros((size, MAX_VICTIMS), dtype=np.int64)

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        for row, task, sample in zip(rows, tasks, samples, strict=True):
            num_agents, victims = task.spec["agents"], np.array(task.spec["victims"])
            self.walls[row], self.burns[row], start_cells = self._get_level(task)
            self.victims[row] = 0
            self.victims[row, : len(victims)] = victims
            self.team[row] = num_agents
            self.place[row] = 0
            self.place[row, :num_agents] = start_cells[
                sample_rng("rescue starts", task.id, sample).integers(0, len(start_cells), num_agents)
            ]
            self.alive[row] = np.arange(self.spec.agents) < num_agents
            self.fate[row] = np.where(np.arange(MAX_VICTIMS) < len(victims), WAITING, RESCUED)

    def _get_level(self, task: Task) -> tuple[NDArray[np.bool_], Ints, Ints]:
        """Returns walls, burn times and start cells, computed once for each task."""
        if task.id not in self._levels:
            self._levels[task.id] = (parse_walls(task.spec), burn_times(task.spec), np.array(start_cells(task.spec)))
        return self._levels[task.id]

    def _move(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        rows = np.arange(self.size)[:, None]
        self.place += np.where(self.alive[..., None], MOVES[np.where(actions == LIFT, 0, actions)], 0)
        is_lifting = self.alive & (actions == LIFT)
        is_at_victim = (self.place[:, :, None] == self.victims[:, None, :, :2]).all(-1)
        has_enough = (is_at_victim & is_lifting[..., None]).sum(1) >= self.victims[..., 2]
        is_saved = (self.fate == WAITING) & has_enough
        self.fate[is_saved] = RESCUED
        time = self.time[:, None]
        is_dying = self.alive & (self.burns[rows, self.place[..., 0], self.place[..., 1]] <= time)
        self.alive &= ~is_dying
        is_burnt = self.burns[rows, self.victims[..., 0], self.victims[..., 1]] <= time
        self.fate[(self.fate == WAITING) & is_burnt] = LOST
        reward = is_saved.sum(-1) / (self.victims[..., 2] > 0).sum(-1) + DEATH_REWARD * is_dying.sum(-1)
        is_over = ~(self.fate == WAITING).any(-1) | ~self.alive.any(-1)
        return reward, is_over, (self.fate == RESCUED).all(-1)

    def _observe(self, rows: Ints) -> TeamView:
        alive, waiting = self.alive[rows], self.fate[rows] == WAITING
        windows = self._windows(rows, waiting)
        shares = np.stack(
            [
                (1.0 - self.time[rows] / self.spec.horizon),
                self.team[rows] / MAX_AGENTS,
                (self.fate[rows] == RESCUED).mean(-1),
                waiting.sum(-1) / MAX_VICTIMS,
            ],
            -1,
        )
        own_features = np.concatenate([self.place[rows] / self.grid, np.repeat(shares[:, None], alive.shape[1], 1)], -1)
        observation = np.concatenate([windows.reshape(*alive.shape, -1), own_features], -1).astype(np.float32)
        return TeamView(
            observation=np.where(alive[..., None], observation, np.float32(0)),
            alive=alive,
            available=self._available(rows, alive, waiting),
            state=self._build_state(rows, alive, waiting, shares),
            number=self.number[rows],
            time=self.time[rows],
        )

    def _windows(self, rows: Ints, waiting: NDArray[np.bool_]) -> Floats32:
        """Returns the cells around each agent, `[K, n, 5, 5, 4]`."""
        num_rows, padded_size = len(rows), self.grid + 2 * RADIUS
        layers = np.zeros((num_rows, padded_size, padded_size, 4), dtype=np.float32)
        layers[..., 0] = 1.0
        inner = slice(RADIUS, RADIUS + self.grid)
        layers[:, inner, inner, 0] = self.walls[rows]
        layers[:, inner, inner, 1] = self.burns[rows] <= self.time[rows, None, None]
        mates, victims = self.place[rows] + RADIUS, self.victims[rows]
        batch = np.arange(num_rows)[:, None]
        np.add.at(layers[..., 2], (batch, mates[..., 0], mates[..., 1]), np.where(self.alive[rows], 0.25, 0.0))
        victim_cells = (batch, victims[..., 0] + RADIUS, victims[..., 1] + RADIUS)
        np.add.at(layers[..., 3], victim_cells, np.where(waiting, victims[..., 2] / 2, 0.0))
        offsets = np.arange(-RADIUS, RADIUS + 1)
        y, x = mates[..., 0, None, None] + offsets[:, None], mates[..., 1, None, None] + offsets
        return np.asarray(layers[batch[..., None, None], y, x], dtype=np.float32)

    def _available(self, rows: Ints, alive: NDArray[np.bool_], waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        targets = self.place[rows][:, :, None] + MOVES
        is_inside = ((targets >= 0) & (targets < self.grid)).all(-1)
        targets = np.clip(targets, 0, self.grid - 1)
        can_move = is_inside & ~self.walls[rows[:, None, None], targets[..., 0], targets[..., 1]]
        is_at_victim = (self.place[rows][:, :, None] == self.victims[rows][:, None, :, :2]).all(-1)
        can_lift = (is_at_victim & waiting[:, None]).any(-1)
        available = np.concatenate([can_move, can_lift[..., None]], -1) & alive[..., None]
        available[..., 0] = True
        return available

    def _build_state(
        self, rows: Ints, alive: NDArray[np.bool_], waiting: NDArray[np.bool_], shares: NDArray[np.float64]
    ) -> Floats32:
        """Builds the central state: agents (12 times y, x, alive), victims (4 times y, x, need, waiting), time left,
        rescued.
        """
        agents = np.zeros((len(rows), MAX_AGENTS, 3), dtype=np.float32)
        agents[:, : alive.shape[1], :2] = self.place[rows] / self.grid * alive[..., None]
        agents[:, : alive.shape[1], 2] = alive
        victims = np.concatenate(
            [self.victims[rows, :, :2] / self.grid, self.victims[rows, :, 2:] / 2, waiting[..., None]], -1
        )
        parts = (agents.reshape(len(rows), -1), victims.reshape(len(rows), -1), shares[:, [0, 2]])
        return np.concatenate(parts, -1).astype(np.float32)

    def scene(self, row: int) -> Scene:
        """Returns the present scene of a row: cells are 1 x 1, y grows downwards."""
        marks = [Mark("square", x + 0.5, y + 0.5, 0.5, "wall") for y, x in np.argwhere(self.walls[row])]
        burning = np.argwhere((self.burns[row] <= self.time[row]) & ~self.walls[row])
        marks += [Mark("square", x + 0.5, y + 0.5, 0.5, "danger") for y, x in burning]
        for (y, x, need), fate in zip(self.victims[row], self.fate[row], strict=True):
            if need and fate == WAITING:
                marks.append(Mark("square", x + 0.5, y + 0.5, 0.15 + 0.1 * need, "goal"))
        living = np.flatnonzero(self.alive[row])
        marks += [
            Mark("circle", float(self.place[row, agent, 1]) + 0.5, float(self.place[row, agent, 0]) + 0.5, 0.3, "agent")
            for agent in living
        ]
        return Scene((0.0, 0.0, float(self.grid), float(self.grid)), tuple(marks))


class RescueWorld(DealtOnce):
    """Levels of one grid size.

    Tiers: "seen" (2 to 4 agents, 1 or 2 victims), "combo" (2 to 4 agents, 3 victims of which 2 need two), "longer"
    (5 to 12 agents, 3 or 4 victims). The expert wins every task (sample 0).

    Args:
        grid: cells along a side. horizon: steps of an episode. agents: number of agents in the spec (None: of the
            largest team of a batch's tasks); a smaller team has agents that are never alive.
    Raises:
        ConfigError: a grid below 5, a horizon below 1, or a number of agents outside 1 to 12.
    """

    name, version = "team_rescue", "1"
    tiers = ("seen", "combo", "longer")

    def __init__(
        self, *, grid: int = 9, horizon: int = 40, agents: int | None = None, sizes: Sizes | None = None
    ) -> None:
        problems = [] if grid >= 5 else [Problem("grid", f"got {grid}, expected 5 or more")]
        problems += [] if horizon >= 1 else [Problem("horizon", f"got {horizon}, expected 1 or more")]
        if agents is not None and not 1 <= agents <= MAX_AGENTS:
            problems.append(Problem("agents", f"got {agents}, expected 1 to {MAX_AGENTS}"))
        if problems:
            raise ConfigError(problems)
        self.grid, self.horizon, self.agents = grid, horizon, agents
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=32, dev=6, test=12, per_kind=4),
            recipe=self.recipe,
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def resize_team(self, task: Task, agents: int) -> Task:
        """Returns the same level with another number of agents, in the same split and tier, for few-shot studies."""
        if not 1 <= agents <= MAX_AGENTS:
            raise ConfigError("number of agents of a rescue out of range", value=agents, expected=f"1 to {MAX_AGENTS}")
        spec = {**task.spec, "agents": agents}
        return Task(self.name, self.version, spec, f"{agents} agents, resized", task.tier, task.split)

    def batch(self, tasks: Sequence[Task], size: int) -> RescueBatch:
        """Creates E rows; raises ConfigError for levels of another size, or a team larger than the spec's number of
        agents.
        """
        largest = max((task.spec["agents"] for task in tasks), default=1)
        agents = self.agents or largest
        if largest > agents:
            raise ConfigError("the team is too large", value=largest, expected=f"at most {agents} agents")
        other_sizes = {len(task.spec["walls"]) for task in tasks} - {self.grid}
        if other_sizes:
            raise ConfigError("levels have another grid size", value=sorted(other_sizes), expected=self.grid)
        return RescueBatch(tasks, size, agents=agents, grid=self.grid, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns the bound 1: every victim rescued and no agent dead. The expert reaches it in sample 0."""
        return Optimum(1.0, exact=False)

    def expert(self, batch: RescueBatch) -> Ints:
        """Returns actions `[E, n]` of a team that knows the whole level and all fires."""
        actions = np.zeros((batch.size, batch.spec.agents), dtype=np.int64)
        for row in range(batch.size):
            living = np.flatnonzero(batch.alive[row])
            waiting = batch.victims[row][batch.fate[row] == WAITING]
            actions[row, living] = plan_actions(
                batch.walls[row],
                batch.burns[row],
                int(batch.time[row]),
                agents=batch.place[row, living],
                victims=waiting,
            )
        return actions

    def _draw(self, tier: str) -> Iterator[Candidate | None]:
        for number in count():
            rng = sample_rng("rescue level", tier, self.grid, number)
            num_agents = int(rng.integers(5, 13)) if tier == "longer" else int(rng.integers(2, 5))
            num_victims = {"seen": int(rng.integers(1, 3)), "combo": 3, "longer": int(rng.integers(3, 5))}[tier]
            num_heavy = 2 if tier == "combo" else int(rng.integers(0, num_victims + 1))
            spec = draw_level(rng, size=self.grid, agents=num_agents, num_victims=num_victims, num_heavy=num_heavy)
            if spec is None or not self._is_solvable(spec):
                yield None
                continue
            kind = f"{num_agents} agents, {num_victims} victims, {num_heavy} heavy"
            yield Candidate(spec, kind, tier, canonical_json(spec))

    def _is_solvable(self, spec: JsonObject) -> bool:
        """Returns whether the expert rescues every victim within the horizon without losing an agent."""
        batch = self.batch([Task(self.name, self.version, spec)], 1)
        batch.reset([0])
        total = 0.0
        for _ in range(self.horizon):
            step = batch.step(self.expert(batch))
            total += float(step.reward[0])
            if step.ended.size:
                break
        return total >= 1.0 - 1e-9
