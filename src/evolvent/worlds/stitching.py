"""A maze whose best path appears in no demonstration, though each of its steps does: a test of stitching.

    P.A###      A: start; P: a small prize near by (2); D: a smaller one (1); G: the goal (10).
    ##.###      Demonstrated are A to P, A to D, and C to G. The way from A to G begins like the second and ends
    D.M..G      like the third.
    ##.###
    ##C###

What each kind of method can reach at most is computed, not guessed (`reachable`): who repeats whole episodes, who
repeats episodes of a wanted return (Decision Transformer), who puts demonstrated steps together (planning in a learned
model, Q-learning). Return-conditioned imitation finds the best way only where some episode from the start earned it:
"When does return-conditioned supervised learning work for offline reinforcement learning?" (arXiv 2206.01079).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, SessionGone
from evolvent.store.episodes import Episodes
from evolvent.trajectory import Array

__all__ = ["ACTIONS", "Reachable", "Stitching", "StitchingEnv", "compute_reachable", "demonstrations"]

ACTIONS = ("up", "right", "down", "left")
_MAP = ("P.A###", "##.###", "D.M..G", "##.###", "##C###")
_PRIZES = {"P": 2.0, "D": 1.0, "G": 10.0}
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
_WAYS = {
    "prize": ("A", (3, 3)),
    "dead_end": ("A", (2, 2, 3, 3)),
    "goal": ("C", (0, 0, 1, 1, 1)),
    "whole": ("A", (2, 2, 1, 1, 1)),
}


class Stitching:
    """The rules of the maze. Cells are numbered row by row; a move into a wall changes nothing.

    Attributes:
        cells: number of cells.
        places: (row, column) of each cell on the map.
        horizon: steps after which an episode is cut.
    """

    horizon = 12

    def __init__(self) -> None:
        positions = [(row, col) for row, line in enumerate(_MAP) for col, mark in enumerate(line) if mark != "#"]
        cell_of = {position: cell for cell, position in enumerate(positions)}
        self.cells, self.places = len(positions), tuple(positions)
        self._named = {_MAP[row][col]: cell for cell, (row, col) in enumerate(positions)}
        self._next = [
            [cell_of.get((row + up, col + right), cell) for up, right in _MOVES]
            for cell, (row, col) in enumerate(positions)
        ]
        self._prize = {self._named[mark]: prize for mark, prize in _PRIZES.items()}

    def cell(self, mark: str) -> int:
        """Returns the number of a cell that has a letter on the map.

        Raises:
            ConfigError: no such letter.
        """
        if mark not in self._named or mark == ".":
            raise ConfigError("unknown cell", value=mark, expected=sorted(set(self._named) - {"."}))
        return self._named[mark]

    def mark(self, cell: int) -> str:
        """Returns the mark of a cell on the map: a letter, or a dot."""
        row, column = self.places[cell]
        return _MAP[row][column]

    def step(self, cell: int, action: int) -> tuple[int, float, bool]:
        """Returns the next cell of an action, its reward, and whether the episode ends there."""
        next_cell = self._next[cell][action]
        return next_cell, self._prize.get(next_cell, 0.0), next_cell in self._prize

    def observe(self, cell: int) -> NDArray[np.float32]:
        """Returns the observation of a cell: `[cells]`, 1 at its number."""
        observation = np.zeros(self.cells, np.float32)
        observation[cell] = 1.0
        return observation

    def optimum(self, mark: str = "A") -> float:
        """Computes the best return from a cell within the horizon, by dynamic programming."""
        best = np.zeros(self.cells)
        for _ in range(self.horizon):
            outcome = [[self.step(cell, action) for action in range(4)] for cell in range(self.cells)]
            best = np.array(
                [
                    max(reward + (0.0 if ended else best[next_cell]) for next_cell, reward, ended in row)
                    for row in outcome
                ]
            )
        return float(best[self.cell(mark)])


class StitchingEnv:
    """One episode, with Gymnasium's signature: observations `[cells]` float32, actions 0..3 (up, right, down, left)."""

    def __init__(self, maze: Stitching | None = None, *, start: str = "A") -> None:
        self._maze = Stitching() if maze is None else maze
        self._first = self._maze.cell(start)
        self._cell, self._left = self._first, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, object]]:
        """Starts the episode at the start cell; nothing is random."""
        self._cell, self._left = self._first, self._maze.horizon
        return self._maze.observe(self._cell), {}

    def step(self, action: int | Array) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, object]]:
        """Returns (observation, reward, terminated, truncated, info).

        Raises:
            SessionGone: the episode is over, or was never begun.
        """
        if not self._left:
            raise SessionGone("the episode is over", hint="call reset()")
        self._cell, reward, ended = self._maze.step(self._cell, int(action))
        self._left = 0 if ended else self._left - 1
        return self._maze.observe(self._cell), reward, ended, not ended and not self._left, {}

    def close(self) -> None:
        """Returns at once: the Env holds no resources."""


def demonstrations(maze: Stitching, *, copies: int = 20, include_best: bool = False) -> Episodes:
    """Builds `copies` of each demonstrated path; `include_best` adds the best path from the start."""
    demonstrated_paths = [
        demonstration for name, demonstration in _WAYS.items() for _ in range(copies) if include_best or name != "whole"
    ]
    observation, final, action, reward = [], [], [], []
    for mark, moves in demonstrated_paths:
        cell = maze.cell(mark)
        for move in moves:
            observation.append(maze.observe(cell))
            cell, payoff, _ = maze.step(cell, move)
            action.append(move)
            reward.append(payoff)
        final.append(maze.observe(cell))
    return Episodes(
        observation=np.stack(observation),
        final=np.stack(final),
        action=np.array(action, np.int64),
        reward=np.array(reward, np.float64),
        lengths=np.array([len(moves) for _, moves in demonstrated_paths], np.int64),
        terminated=np.ones(len(demonstrated_paths), np.bool_),
        actions=len(ACTIONS),
    )


@dataclass(frozen=True, slots=True)
class Reachable:
    """The best returns from a start that each kind of method can be expected to reach on this data, in the limit.

    Attributes:
        optimum: best return of the maze.
        cloned: mean return of the episodes from the start, which imitation of all of them earns.
        conditioned: best return of an episode from the start; a return-conditioned policy can reach no more.
        stitched: best return of a path each of whose steps (cell, action) is in some episode.
    """

    optimum: float
    cloned: float
    conditioned: float
    stitched: float


def compute_reachable(maze: Stitching, episodes: Episodes, *, start: str = "A") -> Reachable:
    """Computes the reachable returns by enumeration.

    Policies read whole histories, and the maze is deterministic; so a policy that imitates episodes of one start
    draws one of those episodes, and a policy that is conditioned on a return draws one of those that earned it.

    Raises:
        ConfigError: no episode begins there.
    """
    start_cell = maze.cell(start)
    cells = episodes.observation.argmax(1)
    begins_at_start = cells[episodes.starts] == start_cell
    if not begins_at_start.any():
        raise ConfigError("no episode starts at this cell", value=start)
    demonstrated_actions: dict[int, set[int]] = defaultdict(set)
    for cell, action in zip(cells.tolist(), episodes.action.tolist(), strict=True):
        demonstrated_actions[cell].add(action)
    returns = episodes.returns[begins_at_start]
    return Reachable(
        maze.optimum(start),
        float(returns.mean()),
        float(returns.max()),
        _best_return(maze, demonstrated_actions, start_cell, maze.horizon),
    )


def _best_return(maze: Stitching, demonstrated_actions: dict[int, set[int]], cell: int, steps: int) -> float:
    """Computes the best return of `steps` demonstrated steps from a cell, by dynamic programming; 0 where none
    remains.
    """
    best = [0.0] * maze.cells
    for _ in range(steps):
        outcomes = [
            [maze.step(origin, action) for action in demonstrated_actions.get(origin, ())]
            for origin in range(maze.cells)
        ]
        best = [
            max((reward + (0.0 if ended else best[next_cell]) for next_cell, reward, ended in row), default=0.0)
            for row in outcomes
        ]
    return best[cell]
