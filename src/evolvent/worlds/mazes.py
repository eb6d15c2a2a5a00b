"""Maze maps: open sides of cells, shortest paths, random spanning trees and symmetries.

Cells are numbered row by row from the top left; a cell's exits are a bit mask over `DIRECTIONS`. Rows and columns count
from 0, as in the published maze.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from evolvent.errors import ConfigError

__all__ = ["DIRECTIONS", "DOUBLE_T_GOAL", "SYMMETRIES", "Layout", "canonical_key", "double_t", "draw_layout"]

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
            raise ConfigError("exits that are no mask", value=list(self.exits), expected="0 to 15 for each cell")
        one_way = [
            f"{DIRECTIONS[side]} of {self.position(cell)}"
            for cell, mask in enumerate(self.exits)
            for side in range(len(DIRECTIONS))
            if mask >> side & 1 and not self._opens_back(cell, side)
        ]
        if one_way:
            raise ConfigError(
                f"{len(one_way)} exits lead nowhere, the first one {one_way[0]}",
                hint="open them from the other side too, or close them",
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
                f"no way leads from {self.position(start)} to {self.position(goal)}", hint="open one or move them"
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
