"""Maps: the published maze worked by hand, random mazes are spanning trees, and the eight symmetries."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds.maze import DIRECTIONS, DOUBLE_T_GOAL, SYMMETRIES, Layout, canonical_key, double_t, draw_layout

SIDES = st.integers(1, 7)
PUBLISHED = """
.............
.#####.#####.
...#.....#...
...#.....#...
...#.....#...
...#######...
......#......
......#......
......#......
.............
"""


def drawn(rows: int, cols: int, seed: int, loops: int = 0) -> Layout:
    return draw_layout(rows, cols, loops=loops, rng=Random(seed))


def relaxed(layout: Layout, goal: int) -> dict[int, int]:
    """Distances by relaxing every exit until nothing changes: no queue, no order."""
    far = len(layout.exits)
    distance = [far] * far
    distance[goal] = 0
    for _ in range(far):
        for cell, direction in product(range(far), DIRECTIONS):
            other = layout.move(cell, direction)
            distance[cell] = min(distance[cell], distance[other] + 1 if other != cell else far)
    return {cell: steps for cell, steps in enumerate(distance) if steps < far}


def test_the_published_maze_is_drawn_right():
    layout = double_t()
    picture = PUBLISHED.strip().splitlines()
    assert (layout.rows, layout.cols) == (10, 13) == (len(picture), len(picture[0]))
    free = [(row, col) for row in range(10) for col in range(13) if picture[row][col] == "#"]
    assert [layout.position(cell) for cell in layout.free] == free
    assert len(free) == 26 and free[-1] == DOUBLE_T_GOAL
    for row, col in free:
        beside = {"up": (row - 1, col), "down": (row + 1, col), "left": (row, col - 1), "right": (row, col + 1)}
        assert layout.walls(layout.cell(row, col)) == tuple(d for d in DIRECTIONS if beside[d] not in free)


def test_distances_in_the_published_maze_worked_by_hand():
    layout = double_t()
    expected = {(8, 6): 0, (7, 6): 1, (6, 6): 2, (5, 6): 3}
    expected |= {(5, 6 + side * n): 3 + n for side in (-1, 1) for n in (1, 2, 3)}
    expected |= {(5 - n, col): 6 + n for col in (3, 9) for n in (1, 2, 3, 4)}
    expected |= {(1, col + side * n): 10 + n for col in (3, 9) for side in (-1, 1) for n in (1, 2)}
    found = layout.distances(layout.cell(*DOUBLE_T_GOAL))
    assert {layout.position(cell): steps for cell, steps in found.items()} == expected
    assert found[layout.cell(1, 1)] == 12 == max(found.values())
    path = layout.path(layout.cell(1, 1), layout.cell(8, 6))
    assert path == ("right",) * 2 + ("down",) * 4 + ("right",) * 3 + ("down",) * 3


@given(rows=SIDES, cols=SIDES, seed=st.integers(0, 10**6))
def test_random_mazes_are_spanning_trees(rows, cols, seed):
    """One opening less than cells and all connected; every shortest way is the only one."""
    layout = drawn(rows, cols, seed)
    openings = sum(mask.bit_count() for mask in layout.exits)
    assert openings == 2 * (rows * cols - 1)
    assert len(layout.distances(0)) == rows * cols
    assert layout == drawn(rows, cols, seed)


@given(rows=SIDES, cols=SIDES, seed=st.integers(0, 10**6), loops=st.integers(0, 60))
def test_loops_open_so_many_walls_more(rows, cols, seed, loops):
    layout, tree = drawn(rows, cols, seed, loops), drawn(rows, cols, seed)
    walls = rows * (cols - 1) + cols * (rows - 1)
    openings = sum(mask.bit_count() for mask in layout.exits) // 2
    assert openings == min(rows * cols - 1 + loops, walls)
    assert all(mask & one == one for mask, one in zip(layout.exits, tree.exits, strict=True))


def test_every_spanning_tree_of_a_small_map_is_drawn():
    """A square of 2 x 2 has 4 spanning trees, a map of 2 x 3 has 15."""
    assert len({drawn(2, 2, seed) for seed in range(200)}) == 4
    assert len({drawn(2, 3, seed) for seed in range(600)}) == 15


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(1, 5), cols=st.integers(1, 5), seed=st.integers(0, 10**6), loops=st.integers(0, 4))
def test_distances_and_ways_are_shortest(rows, cols, seed, loops):
    layout, rng = drawn(rows, cols, seed, loops), Random(seed)
    goal, start = rng.randrange(rows * cols), rng.randrange(rows * cols)
    distances = layout.distances(goal)
    assert distances == relaxed(layout, goal)
    assert list(distances.values()) == sorted(distances.values())
    cell, way = start, layout.path(start, goal)
    for direction in way:
        assert direction not in layout.walls(cell)
        cell = layout.move(cell, direction)
    assert (cell, len(way)) == (goal, distances[start])


@settings(max_examples=60, deadline=None)
@given(rows=SIDES, cols=SIDES, seed=st.integers(0, 10**6), symmetry=st.integers(0, SYMMETRIES - 1))
def test_images_are_equal_up_to_symmetry(rows, cols, seed, symmetry):
    """Distances, keys and walls are kept; turning moves every cell to a cell of its own."""
    layout, rng = drawn(rows, cols, seed, 1), Random(seed)
    start, goal = rng.randrange(rows * cols), rng.randrange(rows * cols)
    turned = layout.transform(symmetry)
    image = [layout.transform_cell(cell, symmetry) for cell in range(rows * cols)]
    assert sorted(image) == list(range(rows * cols))
    assert (turned.rows, turned.cols) == ((cols, rows) if symmetry & 4 else (rows, cols))
    assert turned.distances(image[goal]) == {image[cell]: n for cell, n in layout.distances(goal).items()}
    assert canonical_key(turned, image[start], image[goal]) == canonical_key(layout, start, goal)


def test_a_quarter_turn_worked_by_hand():
    """A corridor 0-1-2 with the goal at its right end, mirrored, then stood on end."""
    corridor = Layout(1, 3, (8, 12, 4))
    assert corridor.transform(2) == corridor
    assert [corridor.transform_cell(cell, 2) for cell in range(3)] == [2, 1, 0]
    assert corridor.transform(4) == Layout(3, 1, (2, 3, 1))
    keys = {canonical_key(corridor, *ends) for ends in ((0, 2), (2, 0))} | {
        canonical_key(Layout(3, 1, (2, 3, 1)), 0, 2)
    }
    assert len(keys) == 1
    assert canonical_key(corridor, 0, 1) not in keys


def test_keys_tell_all_different_mazes_apart():
    """The spanning trees of 2 x 2 are one up to symmetry; their 4 x 12 tasks are 48 / 8 = 6."""
    trees = {drawn(2, 2, seed) for seed in range(200)}
    pairs = [(start, goal) for start, goal in product(range(4), repeat=2) if start != goal]
    assert len({canonical_key(tree, *pair) for tree in trees for pair in pairs}) == 6


@pytest.mark.parametrize(
    ("rows", "cols", "exits", "message"),
    [
        (1, 2, (8,), "1 cells in a map of 1 x 2"),
        (0, 0, (), "0 cells in a map of 0 x 0"),
        (1, 2, (16, 0), "exits are not masks"),
        (1, 2, (8, 0), r"exits lead only one way; the first is"),
        (1, 2, (9, 4), r"exits lead only one way; the first is"),
        (1, 2, (8, 12), r"exits lead only one way; the first is"),
    ],
)
def test_maps_that_cannot_be(rows, cols, exits, message):
    with pytest.raises(ConfigError, match=message):
        Layout(rows, cols, exits)


def test_a_way_that_is_not_there():
    with pytest.raises(ConfigError, match=r"no path from \(0, 0\) to \(0, 2\)"):
        Layout(1, 3, (8, 4, 0)).path(0, 2)
