"""A maze whose best way is in no demonstration, though every step of it is in some: who can put them together?

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, SessionGone
from evolvent.store.episodes import Episodes

__all__ = ["ACTIONS", "Reachable", "Stitching", "StitchingEnv", "demonstrations", "reachable"]

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
    """The maze's rules. Cells are numbered row by row; a move into a wall changes nothing.

    Attributes:
        cells: how many there are. places: (row, column) of each on the map. horizon: steps after which an episode is
            cut.
    """

    horizon = 12

    def __init__(self) -> None:
        places = [(row, col) for row, line in enumerate(_MAP) for col, mark in enumerate(line) if mark != "#"]
        number = {place: cell for cell, place in enumerate(places)}
        self.cells, self.places = len(places), tuple(places)
        self._named = {_MAP[row][col]: cell for cell, (row, col) in enumerate(places)}
        self._next = [
            [number.get((row + up, col + right), cell) for up, right in _MOVES]
            for cell, (row, col) in enumerate(places)
        ]
        self._prize = {self._named[mark]: prize for mark, prize in _PRIZES.items()}

    def cell(self, mark: str) -> int:
        """The number of a cell that has a letter on the map.

        Raises:
            ConfigError: no such letter.
        """
        if mark not in self._named or mark == ".":
            raise ConfigError("no such cell", value=mark, expected=sorted(set(self._named) - {"."}))
        return self._named[mark]

    def mark(self, cell: int) -> str:
        """What stands in a cell on the map: a letter, or a dot."""
        row, column = self.places[cell]
        return _MAP[row][column]

    def step(self, cell: int, action: int) -> tuple[int, float, bool]:
        """Where an action leads, what it pays, and whether the episode ends there."""
        after = self._next[cell][action]
        return after, self._prize.get(after, 0.0), after in self._prize

    def seen(self, cell: int) -> NDArray[np.float32]:
        """What is observed in a cell: `[cells]`, 1 at its number."""
        found = np.zeros(self.cells, np.float32)
        found[cell] = 1.0
        return found

    def optimum(self, mark: str = "A") -> float:
        """The best return from a cell within the horizon, by going through all that can happen."""
        best = np.zeros(self.cells)
        for _ in range(self.horizon):
            outcome = [[self.step(cell, action) for action in range(4)] for cell in range(self.cells)]
            best = np.array(
                [max(paid + (0.0 if over else best[after]) for after, paid, over in row) for row in outcome]
            )
        return float(best[self.cell(mark)])


class StitchingEnv:
    """One episode, with Gymnasium's signature: observations `[cells]` float32, actions 0..3 (up, right, down, left)."""

    def __init__(self, maze: Stitching | None = None, *, start: str = "A") -> None:
        self._maze = Stitching() if maze is None else maze
        self._first = self._maze.cell(start)
        self._cell, self._left = self._first, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin at the start; nothing is random."""
        self._cell, self._left = self._first, self._maze.horizon
        return self._maze.seen(self._cell), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Returns (observation, reward, terminated, truncated, info).

        Raises:
            SessionGone: the episode is over, or was never begun.
        """
        if not self._left:
            raise SessionGone("the episode is over", hint="reset it")
        self._cell, paid, over = self._maze.step(self._cell, int(action))
        self._left = 0 if over else self._left - 1
        return self._maze.seen(self._cell), paid, over, not over and not self._left, {}

    def close(self) -> None:
        """Nothing is held."""


def demonstrations(maze: Stitching, *, copies: int = 20, whole: bool = False) -> Episodes:
    """`copies` of each demonstrated way; with `whole` the best way from the start is among them."""
    ways = [way for name, way in _WAYS.items() for _ in range(copies) if whole or name != "whole"]
    observation, final, action, reward = [], [], [], []
    for mark, moves in ways:
        cell = maze.cell(mark)
        for move in moves:
            observation.append(maze.seen(cell))
            cell, paid, _ = maze.step(cell, move)
            action.append(move)
            reward.append(paid)
        final.append(maze.seen(cell))
    return Episodes(
        observation=np.stack(observation),
        final=np.stack(final),
        action=np.array(action, np.int64),
        reward=np.array(reward, np.float64),
        lengths=np.array([len(moves) for _, moves in ways], np.int64),
        terminated=np.ones(len(ways), np.bool_),
        actions=len(ACTIONS),
    )


@dataclass(frozen=True, slots=True)
class Reachable:
    """The best returns from a start that methods can be expected to find in such data, in the limit.

    Attributes:
        optimum: of the maze. cloned: the mean return of the episodes from the start, which who imitates them all earns.
        conditioned: the best return of an episode from the start; others that occur can be asked for, none above.
        stitched: the best return of a way each of whose steps (cell, action) is in some episode.
    """

    optimum: float
    cloned: float
    conditioned: float
    stitched: float


def reachable(maze: Stitching, episodes: Episodes, *, start: str = "A") -> Reachable:
    """Compute them, by enumeration.

    Policies read whole histories, and the maze is deterministic; so a policy that imitates episodes of one start draws
    one of those episodes, and one that is asked for a return draws one of those that earned it.

    Raises:
        ConfigError: no episode begins there.
    """
    first = maze.cell(start)
    cells = episodes.observation.argmax(1)
    here = cells[episodes.starts] == first
    if not here.any():
        raise ConfigError("no episode begins there", value=start)
    known: dict[int, set[int]] = defaultdict(set)
    for cell, action in zip(cells.tolist(), episodes.action.tolist(), strict=True):
        known[cell].add(action)
    returns = episodes.returns[here]
    return Reachable(
        maze.optimum(start), float(returns.mean()), float(returns.max()), _best(maze, known, first, maze.horizon)
    )


def _best(maze: Stitching, known: dict[int, set[int]], cell: int, steps: int) -> float:
    """The best return of `steps` known steps from a cell, by dynamic programming; 0 where none is left."""
    best = [0.0] * maze.cells
    for _ in range(steps):
        found = [[maze.step(here, action) for action in known.get(here, ())] for here in range(maze.cells)]
        best = [max((paid + (0.0 if over else best[after]) for after, paid, over in row), default=0.0) for row in found]
    return best[cell]
