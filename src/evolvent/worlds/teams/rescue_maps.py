"""Levels of the rescue world: walls, an entrance, victims, and spreading fires; distances; the expert's
assignment.

A level is JSON (the spec of a task): `walls` rows of "." and "#", `entrance` [y, x], `victims` [y, x, need]
each, `fires` [y, x, start, pace] each: a fire starts at step `start` and takes `pace` steps for every further
free cell.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from evolvent.trajectory import JsonObject

__all__ = ["MOVES", "NEVER", "arrival_times", "burn_times", "draw_level", "parse_walls", "plan_actions", "start_cells"]

Ints = NDArray[np.int64]
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
