"""The maze of pieces: its optimum, and what each kind of method can reach, by other means than its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evolvent.errors import ConfigError, SessionGone
from evolvent.worlds.stitching import Stitching, StitchingEnv, compute_reachable, demonstrations


def returns_of_all(moves: int) -> float:
    best = 0.0
    for path in itertools.product(range(4), repeat=moves):
        env, total = StitchingEnv(), 0.0
        env.reset()
        for action in path:
            _, paid, terminated, _, _ = env.step(action)
            total += paid
            if terminated:
                break
        best = max(best, total)
    return best


def test_the_optimum_is_that_of_all_paths():
    assert Stitching().optimum() == returns_of_all(5) == 10.0
    assert returns_of_all(4) == 2.0, "the goal is five steps away"
    assert Stitching().optimum("C") == 10.0


def test_what_can_be_reached():
    maze = Stitching()
    pieces, whole = demonstrations(maze), demonstrations(maze, include_best=True)
    found = compute_reachable(maze, pieces)
    assert (found.optimum, found.cloned, found.conditioned, found.stitched) == (10.0, 1.5, 2.0, 10.0)
    found = compute_reachable(maze, whole)
    assert (found.cloned, found.conditioned, found.stitched) == (pytest.approx(13 / 3), 10.0, 10.0)
    without_goal = pieces.select([at for at, paid in enumerate(pieces.returns) if paid < 10])
    assert compute_reachable(maze, without_goal).stitched == 2.0, "a way that nobody went is not known"
    assert compute_reachable(maze, pieces, start="C").cloned == 10.0
    with pytest.raises(ConfigError):
        compute_reachable(maze, without_goal, start="C")


def test_demonstrations_replay():
    maze, data = Stitching(), demonstrations(Stitching(), copies=1, include_best=True)
    for episode, start in enumerate(data.starts):
        mark = "C" if data.returns[episode] == 10 and data.action[start] == 0 else "A"
        env = StitchingEnv(maze, start=mark)
        seen, _ = env.reset()
        for at in range(start, start + data.lengths[episode]):
            np.testing.assert_array_equal(seen, data.observation[at])
            seen, paid, over, cut, _ = env.step(int(data.action[at]))
            assert paid == data.reward[at] and not cut
        assert over
        np.testing.assert_array_equal(seen, data.final[episode])


def test_an_episode_is_cut_at_its_horizon():
    env = StitchingEnv()
    with pytest.raises(SessionGone):
        env.step(0)
    env.reset()
    ends = [env.step(0)[2:4] for _ in range(12)]
    assert ends == [(False, False)] * 11 + [(False, True)]
    with pytest.raises(SessionGone):
        env.step(0)
    with pytest.raises(ConfigError):
        Stitching().cell(".")


def test_what_can_be_put_together_is_found_where_everything_is_known():
    """All four steps of every cell: trying all ways of twelve steps, sixteen million of them, would take minutes."""
    maze, data = Stitching(), demonstrations(Stitching(), copies=1)
    seen = np.eye(maze.cells, dtype=np.float32)[np.repeat(np.arange(maze.cells), 4)]
    count = len(seen)
    every = type(data)(
        observation=seen,
        final=seen,
        action=np.tile(np.arange(4), maze.cells),
        reward=np.zeros(count),
        lengths=np.ones(count, np.int64),
        terminated=np.ones(count, bool),
        actions=4,
    )
    for start in "ACM":
        assert compute_reachable(maze, every, start=start).stitched == maze.optimum(start)
