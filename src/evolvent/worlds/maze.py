"""Maze: walk to a goal with known coordinates while observing only the adjacent walls. Each task has a fresh maze.

    at 3 2 goal 1 4 walls up left  ->  move right  ->  at 3 3 goal 1 4 walls down  ->  ...  ->  goal reached

`Maze()` draws spanning trees (or, with `loops`, mazes with loops) of varied shapes; `Maze("double_t")` is the one maze
of LMRL-Gym and AgentGym with its 25 starts. Row 0 is at the top, column 0 at the left; a move into a wall changes
nothing. A task's kind is the length of its shortest way and the turns and forks on it.

Maze maps: open sides of cells, shortest paths, random spanning trees and symmetries.

Cells are numbered row by row from the top left; a cell's exits are a bit mask over `DIRECTIONS`. Rows and columns count
from 0, as in the published maze.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Literal, NamedTuple

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes, choose_split

__all__ = [
    "DIRECTIONS",
    "DOUBLE_T_GOAL",
    "LAYOUTS",
    "STARTS",
    "SYMMETRIES",
    "Layout",
    "Maze",
    "MazeEnv",
    "canonical_key",
    "double_t",
    "draw_layout",
]


DIRECTIONS: tuple[str, ...] = ("up", "down", "left", "right")
"""The sides of a cell; the side at place i has the bit 1 << i."""

DOUBLE_T_GOAL = (8, 6)
"""Row and column of the goal of the published maze."""

SYMMETRIES = 8
"""Of the square: four turns, mirrored or not."""

_OFFSETS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_OPPOSITE = (1, 0, 3, 2)


@dataclass(frozen=True, slots=True)
class Layout:
    """A map of rows x cols cells.

    Args:
        rows, cols: how many, at least 1.
        exits: the open sides of every cell, row by row: a sum of 1 (up), 2 (down), 4 (left) and 8 (right). A cell with
            none is solid.
    Raises:
        ConfigError: too few or too many cells, an exit that leads out of the map or is open from one side only.
    """

    rows: int
    cols: int
    exits: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1 or len(self.exits) != self.rows * self.cols:
            raise ConfigError(
                f"{len(self.exits)} cells in a map of {self.rows} x {self.cols}",
                expected="a mask of exits for each cell",
            )
        if not all(0 <= mask < 1 << len(DIRECTIONS) for mask in self.exits):
            raise ConfigError("exits are not masks", value=list(self.exits), expected="0 to 15 for each cell")
        one_way = [
            f"{DIRECTIONS[side]} of {self.position(cell)}"
            for cell, mask in enumerate(self.exits)
            for side in range(len(DIRECTIONS))
            if mask >> side & 1 and not self._opens_back(cell, side)
        ]
        if one_way:
            raise ConfigError(
                f"{len(one_way)} exits lead only one way; the first is {one_way[0]}",
                hint="open them on the other side too, or close them",
            )

    def _opens_back(self, cell: int, side: int) -> bool:
        neighbor = self._neighbor(cell, side)
        return neighbor is not None and bool(self.exits[neighbor] >> _OPPOSITE[side] & 1)

    def _neighbor(self, cell: int, side: int) -> int | None:
        row, col = cell // self.cols + _OFFSETS[side][0], cell % self.cols + _OFFSETS[side][1]
        return row * self.cols + col if 0 <= row < self.rows and 0 <= col < self.cols else None

    def position(self, cell: int) -> tuple[int, int]:
        """Returns the (row, column) of a cell."""
        return divmod(cell, self.cols)

    def cell(self, row: int, col: int) -> int:
        """Returns the number of the cell at a row and column of the map."""
        return row * self.cols + col

    def move(self, cell: int, direction: str) -> int:
        """Returns the cell that a move reaches; the same cell where a wall blocks it."""
        side = DIRECTIONS.index(direction)
        return cell + _OFFSETS[side][0] * self.cols + _OFFSETS[side][1] if self.exits[cell] >> side & 1 else cell

    def walls(self, cell: int) -> tuple[str, ...]:
        """Returns the closed sides of a cell."""
        return tuple(name for side, name in enumerate(DIRECTIONS) if not self.exits[cell] >> side & 1)

    def distances(self, goal: int) -> dict[int, int]:
        """Computes the steps to the goal from every cell that reaches it, by breadth-first search, ordered by
        distance.
        """
        distances = {goal: 0}
        queue = [goal]
        for cell in queue:
            for direction in DIRECTIONS:
                neighbor = self.move(cell, direction)
                if neighbor not in distances:
                    distances[neighbor] = distances[cell] + 1
                    queue.append(neighbor)
        return distances

    def path(self, start: int, goal: int) -> tuple[str, ...]:
        """Returns the directions of a shortest path; among several, the first in the order of `DIRECTIONS`.

        Raises:
            ConfigError: no way leads there.
        """
        distances = self.distances(goal)
        if start not in distances:
            raise ConfigError(
                f"no path from {self.position(start)} to {self.position(goal)}",
                hint="open a path, or move start or goal",
            )
        directions, cell = [], start
        while cell != goal:
            direction = next(name for name in DIRECTIONS if distances[self.move(cell, name)] == distances[cell] - 1)
            directions.append(direction)
            cell = self.move(cell, direction)
        return tuple(directions)

    @property
    def free(self) -> tuple[int, ...]:
        """Returns the cells that are not solid, in order."""
        return tuple(cell for cell, mask in enumerate(self.exits) if mask)

    def transform(self, symmetry: int) -> Layout:
        """Returns the map under one of the 8 symmetries of the square: bits 1, 2, 4 mirror rows, mirror columns,
        transpose.
        """
        rows, cols = (self.cols, self.rows) if symmetry & 4 else (self.rows, self.cols)
        return Layout(rows, cols, tuple(_transform_exits(self, symmetry)))

    def transform_cell(self, cell: int, symmetry: int) -> int:
        """Returns the number of a cell of this map in `transform(symmetry)`."""
        return _symmetry_maps(self.rows, self.cols, symmetry)[0][cell]


@cache
def _symmetry_maps(rows: int, cols: int, symmetry: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the images of every cell of a map of this shape, and of every mask of exits, under a symmetry."""

    def transform(row: int, col: int, max_row: int, max_col: int) -> tuple[int, int]:
        row = max_row - row if symmetry & 1 else row
        col = max_col - col if symmetry & 2 else col
        return (col, row) if symmetry & 4 else (row, col)

    width = rows if symmetry & 4 else cols
    new_positions = [transform(row, col, rows - 1, cols - 1) for row in range(rows) for col in range(cols)]
    sides = [_OFFSETS.index(transform(*offset, 0, 0)) for offset in _OFFSETS]
    masks = [sum(1 << sides[side] for side in range(len(sides)) if mask >> side & 1) for mask in range(16)]
    return tuple(row * width + col for row, col in new_positions), tuple(masks)


def _transform_exits(layout: Layout, symmetry: int) -> bytearray:
    new_cells, masks = _symmetry_maps(layout.rows, layout.cols, symmetry)
    exits = bytearray(len(new_cells))
    for new_cell, mask in zip(new_cells, layout.exits, strict=True):
        exits[new_cell] = masks[mask]
    return exits


def canonical_key(layout: Layout, start: int, goal: int) -> str:
    """Returns a key that is equal for a maze, start and goal and all their mirror images and rotations, and for
    nothing else.
    """
    rows, exits, first, last = min(
        (
            layout.cols if symmetry & 4 else layout.rows,
            _transform_exits(layout, symmetry).hex()[1::2],
            layout.transform_cell(start, symmetry),
            layout.transform_cell(goal, symmetry),
        )
        for symmetry in range(SYMMETRIES)
    )
    return f"{rows}:{exits}:{first}:{last}"


def draw_layout(rows: int, cols: int, *, loops: int = 0, rng: Random) -> Layout:
    """Draws a random maze: walls open in random order where they part two regions (Kruskal), until one region
    remains.

    The open sides are then a spanning tree of the cells: exactly one way leads from any cell to any other.

    Args:
        loops: open so many further walls, as far as there are any; each makes one loop.
        rng: draws one number a wall.
    """
    walls = [(cell, cell + 1, 3) for cell in range(rows * cols) if (cell + 1) % cols]
    walls += [(cell, cell + cols, 1) for cell in range((rows - 1) * cols)]
    region, exits = list(range(rows * cols)), [0] * (rows * cols)

    def root(cell: int) -> int:
        while region[cell] != cell:
            region[cell] = region[region[cell]]
            cell = region[cell]
        return cell

    closed_walls = []
    for wall in sorted(walls, key=lambda wall: rng.random()):
        first_root, second_root = root(wall[0]), root(wall[1])
        if first_root == second_root:
            closed_walls.append(wall)
        else:
            region[first_root] = second_root
            _open_wall(exits, wall)
    for wall in closed_walls[:loops]:
        _open_wall(exits, wall)
    return Layout(rows, cols, tuple(exits))


def _open_wall(exits: list[int], wall: tuple[int, int, int]) -> None:
    cell, neighbor, side = wall
    exits[cell] |= 1 << side
    exits[neighbor] |= 1 << _OPPOSITE[side]


@cache
def double_t() -> Layout:
    """Returns the maze of LMRL-Gym and AgentGym: two T-shaped halls whose stems meet above the goal, in 10 x 13
    squares.

    Its 26 free squares, row by row, are AgentGym's starts 0 to 25; the last one is the goal.
    """
    free = {(1, col) for col in (*range(1, 6), *range(7, 12))}
    free |= {(row, col) for row in (2, 3, 4) for col in (3, 9)}
    free |= {(5, col) for col in range(3, 10)} | {(row, 6) for row in (6, 7, 8)}
    exits = [
        sum(1 << side for side, (down, right) in enumerate(_OFFSETS) if (row + down, col + right) in free)
        if (row, col) in free
        else 0
        for row in range(10)
        for col in range(13)
    ]
    return Layout(10, 13, tuple(exits))


_ACTIONS = tuple(f"move {direction}" for direction in DIRECTIONS)
_SIDES = {action: side for side, action in enumerate(_ACTIONS)}
_EXPECTED = "expected move up, down, left or right"
_REACHED = "goal reached"
_WORDS = ("at", "goal", "reached", "walls", "none", "expected", "move", "or", ",", *DIRECTIONS)
LAYOUTS = ("random", "double_t")
_SHORTEST_SIDE, _SMALLEST, _LARGEST = 3, 4, 12  # sides of random mazes: the shortest drawn, the bounds of `size`
_NEAREST = 4  # steps from start to goal, at least, in random mazes: nearer goals are found by chance
_LIMIT = 50  # steps after which the published engine ends an episode
_KNOWN_TASKS = 4096  # scenes kept ready


@dataclass(frozen=True, slots=True)
class _Scene:
    """Data that all episodes of a task share: the observation of every cell and the cell that each direction leads
    to.
    """

    layout: Layout
    start: int
    goal: int
    texts: tuple[str, ...]
    destinations: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, layout: Layout, start: int, goal: int) -> _Scene:
        (goal_row, goal_col), cells = layout.position(goal), range(len(layout.exits))
        texts = []
        for cell in cells:
            row, col = layout.position(cell)
            walls = " ".join(layout.walls(cell)) or "none"
            texts.append(f"at {row} {col} goal {goal_row} {goal_col} walls {walls}")
        destinations = tuple(tuple(layout.move(cell, direction) for cell in cells) for direction in DIRECTIONS)
        return cls(layout, start, goal, tuple(texts), destinations)

    def plan(self) -> tuple[str, ...]:
        return tuple(f"move {direction}" for direction in self.layout.path(self.start, self.goal))


STARTS: tuple[tuple[int, int], ...] = (
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (1, 5),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 10),
    (1, 11),
    (2, 3),
    (3, 3),
    (4, 3),
    (5, 3),
    (5, 4),
    (5, 5),
    (5, 6),
    (6, 6),
    (7, 6),
    (5, 7),
    (5, 8),
    (5, 9),
    (4, 9),
    (3, 9),
    (2, 9),
)
"""The starts of AgentGym's maze server, (row, column) in its order; its last one, the goal itself, is left out."""


class _State(NamedTuple):
    """The state of an episode: the agent's cell, and the number of steps."""

    cell: int
    steps: int = 0


class MazeEnv(StateEnv[_State]):
    """One episode."""

    def __init__(self, task: Task, scene: _Scene, penalty: float) -> None:
        super().__init__(task, _State(scene.start))
        self._scene, self._penalty = scene, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._scene.texts[self._scene.start], {"admissible": _ACTIONS}

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        text = str(action)
        side = _SIDES.get(text)
        if side is None:
            side = _SIDES.get(" ".join(text.lower().split()))
        steps = state.steps + 1
        is_out_of_steps = steps >= _LIMIT
        if side is None:
            info = {"admissible": _ACTIONS, "invalid": True}
            return _State(state.cell, steps), (_EXPECTED, self._penalty, False, is_out_of_steps, info)
        next_state = _State(self._scene.destinations[side][state.cell], steps)
        if next_state.cell == self._scene.goal:
            return next_state, (_REACHED, 1.0, True, False, {"admissible": _ACTIONS})
        text = self._scene.texts[next_state.cell]
        return next_state, (text, 0.0, False, is_out_of_steps, {"admissible": _ACTIONS})


class Maze(DealtOnce):
    """The world of mazes.

    Args:
        layout: "random" (a fresh maze for each task) or "double_t" (the published maze).
        size: the longest side of random mazes, 4 to 12; both sides are drawn from 3 to `size`, and goals lie 4 to
            2 * `size` steps away.
        loops: how many walls more than a spanning tree are opened in random mazes.
        penalty: the reward of an action that is none, 0 or less.
        sizes: the sizes of the panels; the published maze has 25 tasks.
        horizon: how many steps an episode may take, at most 50 (None: 4 * `size`; 15 in the published maze). Who sees
            only the walls around needs more steps than the shortest way has.

    Raises:
        ConfigError: an unknown layout, or a number out of its bounds; all of them at once.
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = False
    instructions = (
        "Walk to the goal. 'at 3 2 goal 1 4 walls up left' means that you are in row 3, column 2, the goal is in row "
        "1, column 4, and walls block the ways up and left. Row 0 is at the top, column 0 at the left. "
        f"Actions: {', '.join(_ACTIONS)}."
    )

    def __init__(
        self,
        layout: Literal["random", "double_t"] = "random",
        *,
        size: int = 5,
        loops: int = 0,
        penalty: float = 0.0,
        sizes: Sizes | None = None,
        horizon: int | None = None,
    ) -> None:
        problems = [] if layout in LAYOUTS else [unknown_name_problem("layout", str(layout), LAYOUTS)]
        if not _SMALLEST <= size <= _LARGEST:
            problems.append(Problem("size", f"got a longest side of {size}, expected {_SMALLEST} to {_LARGEST}"))
        if loops < 0:
            problems.append(Problem("loops", f"got {loops} loops, expected 0 or more"))
        if horizon is not None and not 1 <= horizon <= _LIMIT:
            problems.append(Problem("horizon", f"got {horizon} steps, expected 1 to {_LIMIT}"))
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.published = layout == "double_t"
        self.name = "double_t" if self.published else "maze"
        self.size, self.loops, self.penalty = size, loops, penalty
        self.horizon = horizon or (15 if self.published else 4 * size)
        self.reward_range = (min(0.0, penalty), 1.0)
        self._scenes: dict[str, _Scene] = {}
        draw = self._draw_published if self.published else self._draw
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=draw, recipe=self.recipe
        )

    def _draw_published(self, tier: str) -> Iterator[Candidate]:
        """Yields one task for every start. The map is known and cells are named, so mirrored starts are two tasks."""
        layout = double_t()
        distances = layout.distances(layout.cell(*DOUBLE_T_GOAL))
        for cell in layout.free[:-1]:
            start = layout.position(cell)
            yield Candidate({"start": list(start)}, f"{distances[cell]} steps", tier, _start_key(start))

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields random mazes without end; the goal's distance is uniform over the distances that the maze offers."""
        for seed in count():
            rng = Random(sample_seed("maze", self.size, self.loops, seed))
            rows, cols = (_below(self.size - _SHORTEST_SIDE + 1, rng) + _SHORTEST_SIDE for _ in range(2))
            layout = draw_layout(rows, cols, loops=self.loops, rng=rng)
            goal = _below(rows * cols, rng)
            distances = layout.distances(goal)
            farthest = min(max(distances.values()), 2 * self.size)
            if farthest < _NEAREST:
                continue
            distance = _below(farthest - _NEAREST + 1, rng) + _NEAREST
            starts = [cell for cell, steps in distances.items() if steps == distance]
            start = starts[_below(len(starts), rng)]
            key = canonical_key(layout, start, goal)
            yield Candidate(_build_spec(layout, start, goal), _describe_kind(layout, start, goal), tier, key)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def task_from(self, index: int) -> Task:
        """Returns the task that begins at AgentGym's start of this index, in the order of its server (`STARTS`).

        Raises:
            ConfigError: the world is not the published maze; an index outside 0 to 24. AgentGym's start 25 is the goal.
        """
        if not self.published:
            raise ConfigError("random mazes have no numbered starts", value=index, hint="use Maze('double_t')")
        if index == len(STARTS):
            raise ConfigError(f"start {index} is the goal", hint="choose another start from 0 to 24")
        if not 0 <= index < len(STARTS):
            raise ConfigError("start of the published maze out of range", value=index, expected="0 to 24")
        candidates = self._draw_published(self.tiers[0])
        candidate = next(option for option in candidates if tuple(option.spec["start"]) == STARTS[index])  # type: ignore[arg-type]
        return Task(
            self.name, self.version, candidate.spec, candidate.kind, candidate.tier, choose_split(self.name, candidate)
        )

    def make(self, task: Task) -> MazeEnv:
        """Creates an Env for one task.

        Raises:
            ConfigError: a task of another world, or a spec that holds no maze with a way to walk.
            VersionMismatch: a task of another version.
        """
        return MazeEnv(task, self._scene(task), self.penalty)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the goal was reached; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns a shortest path, computed with the whole map."""
        return self._scene(task).plan()

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that are rotations or mirror images; in the published maze the start
        alone.
        """
        scene = self._scene(task)
        if self.published:
            return _start_key(scene.layout.position(scene.start))
        return canonical_key(scene.layout, scene.start, scene.goal)

    def rename(self, task: Task, rng: Random) -> Task:
        """Returns a random maze rotated or mirrored: another task with the same key, kind, tier and split.

        A task of the published maze comes back as it is.
        """
        if self.published:
            return task
        scene, symmetry = self._scene(task), 1 + _below(SYMMETRIES - 1, rng)
        start, goal = (scene.layout.transform_cell(cell, symmetry) for cell in (scene.start, scene.goal))
        spec = _build_spec(scene.layout.transform(symmetry), start, goal)
        return Task(task.world, task.version, spec, task.kind, task.tier, task.split)

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and legal actions, sorted."""
        longest = double_t().cols if self.published else self.size
        return sorted({*_WORDS, *map(str, range(longest))})

    def _scene(self, task: Task) -> _Scene:
        scene = self._scenes.get(task.id)
        if scene is None:
            scene = self._build_scene(task)
            while len(self._scenes) >= _KNOWN_TASKS:
                self._scenes.pop(next(iter(self._scenes)))
            self._scenes[task.id] = scene
        return scene

    def _build_scene(self, task: Task) -> _Scene:
        check_task(self, task)
        layout = double_t() if self.published else self._parse_layout(task)
        start = _parse_cell(layout, "start", task.spec.get("start"))
        goal = _parse_cell(layout, "goal", DOUBLE_T_GOAL if self.published else task.spec.get("goal"))
        if start == goal:
            raise ConfigError("the start is the goal", value=layout.position(goal))
        scene = _Scene.of(layout, start, goal)
        scene.plan()
        return scene

    def _parse_layout(self, task: Task) -> Layout:
        rows, cols, exits = (task.spec.get(name) for name in ("rows", "cols", "exits"))
        sides = [side for side in (rows, cols) if type(side) is int and 1 <= side <= self.size]
        if len(sides) < 2:
            raise ConfigError("maze size out of range", value=(rows, cols), expected=f"1 to {self.size}")
        if not isinstance(exits, str) or not set(exits) <= set("0123456789abcdef"):
            raise ConfigError("invalid maze exits", value=exits, expected="a hexadecimal digit for each cell")
        return Layout(sides[0], sides[1], tuple(int(digit, 16) for digit in exits))


def _build_spec(layout: Layout, start: int, goal: int) -> dict[str, Json]:
    return {
        "rows": layout.rows,
        "cols": layout.cols,
        "exits": "".join(f"{mask:x}" for mask in layout.exits),
        "start": list(layout.position(start)),
        "goal": list(layout.position(goal)),
    }


def _parse_cell(layout: Layout, name: str, value: object) -> int:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(type(number) is int for number in value):
        raise ConfigError(f"{name} is not a position", value=value, expected="[row, column]")
    row, col = value
    if not (0 <= row < layout.rows and 0 <= col < layout.cols) or not layout.exits[layout.cell(row, col)]:
        raise ConfigError(f"{name} is not a free cell of the maze", value=value)
    return layout.cell(row, col)


def _start_key(start: tuple[int, int]) -> str:
    return f"start {start[0]} {start[1]}"


def _describe_kind(layout: Layout, start: int, goal: int) -> str:
    """Describes the shortest path by its steps, turns and forks.

    A fork is a cell of the path, the goal excepted, with an exit besides the next step and the step back.
    """
    path = layout.path(start, goal)
    turns = sum(previous != following for previous, following in pairwise(path))
    cell, forks, needed = start, 0, 1
    for direction in path:
        forks += len(DIRECTIONS) - len(layout.walls(cell)) > needed
        cell, needed = layout.move(cell, direction), 2
    return f"{len(path)} steps {turns} turns {forks} forks"


def _below(bound: int, rng: Random) -> int:
    return int(rng.random() * bound)
