"""Levels of the rescue world: walls, an entrance, victims, and fires that spread; how far things are; who goes where.

A level is JSON (the spec of a task): `walls` rows of "." and "#", `entrance` [y, x], `victims` [y, x, need] each,
`fires` [y, x, start, pace] each: a fire begins at step `start` and takes `pace` steps for every further free cell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOVES", "NEVER", "arrivals", "burn_times", "draw_level", "orders", "room", "walls_of"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NEVER = 10_000  # a step that no episode reaches
MOVES: Ints = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])  # stay, north, south, west, east
LIFT = 5


def walls_of(spec: Mapping[str, Any]) -> Bools:
    """`[H, W]` bool of a level."""
    return np.array([[cell == "#" for cell in row] for row in spec["walls"]])


def arrivals(walls: Bools, start: tuple[int, int], burns: Ints | None = None, *, now: int = 0) -> Ints:
    """`[H, W]` the step at which each cell is reached first from `start`, where one is at step `now`; NEVER: never.

    A cell whose fire has come by then (`burns[cell] <= step`) cannot be entered. Fires only grow, so waiting never
    helps and a breadth-first search is exact.
    """
    found = np.full(walls.shape, NEVER, dtype=np.int64)
    found[start] = now
    queue = deque([start])
    height, width = walls.shape
    while queue:
        y, x = queue.popleft()
        step = int(found[y, x]) + 1
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            cell = (y + dy, x + dx)
            inside = 0 <= cell[0] < height and 0 <= cell[1] < width
            if not inside or walls[cell] or found[cell] <= step or (burns is not None and burns[cell] <= step):
                continue
            found[cell] = step
            queue.append(cell)
    return found


def burn_times(spec: Mapping[str, Any]) -> Ints:
    """`[H, W]` the step from which each cell burns, NEVER where no fire comes."""
    walls = walls_of(spec)
    burns = np.full(walls.shape, NEVER, dtype=np.int64)
    for y, x, start, pace in spec["fires"]:
        away = arrivals(walls, (y, x))
        burns = np.minimum(burns, np.where(away < NEVER, start + pace * away, NEVER))
    return burns


def room(spec: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The cells within two steps of the entrance, in reading order: where agents begin."""
    near = arrivals(walls_of(spec), (spec["entrance"][0], spec["entrance"][1])) <= 2
    return [(int(y), int(x)) for y, x in np.argwhere(near)]


def draw_level(rng: np.random.Generator, *, size: int, agents: int, victims: int, heavy: int) -> dict[str, Any] | None:
    """A level of `size` x `size` cells, `heavy` of whose victims need two agents; None: the walls leave no room."""
    walls = rng.random((size, size)) < 0.18
    entrance = (int(rng.integers(size)), 0)
    walls[entrance] = False
    away = arrivals(walls, entrance)
    walls |= away == NEVER  # what cannot be reached is wall
    places = [(int(y), int(x)) for y, x in np.argwhere((away >= 4) & (away < NEVER))]
    if len(places) < victims + 1 or (~walls).sum() < size * size // 2:
        return None
    chosen = [places[at] for at in rng.permutation(len(places))[: victims + 1]]
    lying = [[*cell, 2 if at < heavy else 1] for at, cell in enumerate(chosen[:victims])]
    fire = [*chosen[victims], int(rng.integers(0, 6)), int(rng.integers(3, 6))]
    rows = ["".join("#" if cell else "." for cell in row) for row in walls]
    return {"agents": agents, "walls": rows, "entrance": list(entrance), "victims": lying, "fires": [fire]}


def orders(walls: Bools, burns: Ints, now: int, *, agents: Ints, victims: Ints) -> Ints:
    """One action for each agent that knows the whole level: `[m]` for agents at `[m, 2]`.

    Victims `[v, 3]` (y, x, need) that wait are served in the order in which the fire comes to them, each by the nearest
    free agents that arrive in time to lift and live. Who is there lifts. Who is free goes to the nearest victim that
    nobody serves, to be there when others come; failing that it leaves cells that will burn.
    """
    reach = [arrivals(walls, (int(y), int(x)), burns, now=now) for y, x in agents]
    actions = np.zeros(len(agents), dtype=np.int64)
    free, left = set(range(len(agents))), []
    for y, x, need in sorted(victims.tolist(), key=lambda victim: (burns[victim[0], victim[1]], victim)):
        able = sorted((int(reach[agent][y, x]), agent) for agent in free if reach[agent][y, x] + 1 < burns[y, x])
        if len(able) < need:
            left.append((y, x))
            continue
        for _, agent in able[:need]:
            free.discard(agent)
            here = (int(agents[agent, 0]), int(agents[agent, 1]))
            actions[agent] = LIFT if here == (y, x) else _first(reach[agent], (y, x), now)
    for agent in free:
        here = (int(agents[agent, 0]), int(agents[agent, 1]))
        open_ = [(int(reach[agent][cell]), cell) for cell in left if reach[agent][cell] + 2 < burns[cell]]
        if not open_:
            actions[agent] = _away(walls, burns, here)
        elif min(open_)[1] != here:
            actions[agent] = _first(reach[agent], min(open_)[1], now)
    return actions


def _first(reached: Ints, goal: tuple[int, int], now: int) -> int:
    """The first move of a shortest way to the goal: back from there, always to a cell reached one step earlier."""
    y, x = goal
    while True:
        for move in range(1, 5):
            back = (y - int(MOVES[move, 0]), x - int(MOVES[move, 1]))
            inside = 0 <= back[0] < reached.shape[0] and 0 <= back[1] < reached.shape[1]
            if inside and reached[back] == reached[y, x] - 1:
                if reached[back] == now:
                    return move
                y, x = back
                break


def _away(walls: Bools, burns: Ints, here: tuple[int, int]) -> int:
    """Stay unless a neighbour burns later."""
    later = [-1 if (cell := _moved(walls, here, move)) is None else int(burns[cell]) for move in range(5)]
    return int(np.argmax(later))


def _moved(walls: Bools, here: tuple[int, int], move: int) -> tuple[int, int] | None:
    y, x = here[0] + int(MOVES[move, 0]), here[1] + int(MOVES[move, 1])
    inside = 0 <= y < walls.shape[0] and 0 <= x < walls.shape[1]
    return (y, x) if inside and not walls[y, x] else None
