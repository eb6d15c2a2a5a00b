"""Recordings of mazes for text and array policies: their quality, and that both see the same episodes."""

from __future__ import annotations

import numpy as np

from benchmarks.sequence.text import MazeArrays, TextSize, as_arrays, numbers, panels, recorded, world_of
from evolvent.methods.return_text import returns_to_go

SIZE = TextSize(episodes=12, tests=3)


def test_a_recording_is_of_known_quality():
    for name in ("double_t", "maze"):
        world = world_of(name, SIZE)
        shown, tested = panels(world, SIZE)
        assert world.published or not {task.id for task in shown} & {task.id for task in tested}
        found = recorded(world, shown, episodes=12, seed=0)
        for one in found[5::6]:  # the expert's
            assert one.success and len(one.steps) == len(world.expert(one.task))
        assert not all(one.success for one in found) and len({one.id for one in found}) == 12
        again = recorded(world, shown, episodes=7, seed=0)
        assert [one.actions for one in again] == [one.actions for one in found[:7]]
        assert recorded(world, shown, episodes=1, seed=1)[0].actions != found[0].actions


def test_arrays_are_the_same_episodes():
    world = world_of("maze", SIZE)
    shown, _ = panels(world, SIZE)
    data, cost = recorded(world, shown, episodes=12, seed=0), 1 / world.horizon
    arrays = as_arrays(data, cost)
    np.testing.assert_allclose(arrays.returns, [returns_to_go(one, cost=cost)[0] for one in data])
    assert arrays.terminated.tolist() == [bool(one.success) for one in data]
    for number, one in enumerate(data[:4]):
        env = MazeArrays(world, one.task)
        seen, _ = env.reset()
        for at in range(arrays.starts[number], arrays.starts[number] + arrays.lengths[number]):
            np.testing.assert_array_equal(seen, arrays.observation[at])
            seen, reward, over, _, _ = env.step(arrays.action[at])
            assert reward == arrays.reward[at]
        np.testing.assert_array_equal(seen, arrays.final[number])
        assert over == arrays.terminated[number]


def test_what_is_seen_in_numbers():
    assert numbers("at 3 2 goal 1 4 walls up left").tolist() == [3, 2, 1, 4, 1, 0, 1, 0]
    assert numbers("at 0 0 goal 1 4 walls none").tolist() == [0, 0, 1, 4, 0, 0, 0, 0]
    assert not numbers("goal reached").any()
