"""The rescue world: its rules on levels drawn by hand, its best play found by trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.rescue import LOST, NEVER, RescueWorld, arrival_times, burn_times, parse_walls, plan_actions

STAY, NORTH, SOUTH, WEST, EAST, LIFT = range(6)
OPEN = ["....." for _ in range(5)]


def level(walls=OPEN, *, agents=2, victims=((0, 2, 1),), fires=(), entrance=(0, 0)) -> Task:
    spec = {
        "agents": agents,
        "walls": list(walls),
        "entrance": list(entrance),
        "victims": [list(v) for v in victims],
        "fires": [list(f) for f in fires],
    }
    return Task("team_rescue", "1", spec)


def begun(task, places, *, horizon=20):
    """A batch of one row in which agents stand where the test says."""
    world = RescueWorld(grid=len(task.spec["walls"]), horizon=horizon)
    batch = world.batch([task], 1)
    batch.reset([0])
    batch.restore({**batch.snapshot(), "place": np.array([places])})
    return world, batch


def test_ways_and_fires():
    walls = parse_walls({"walls": ["..#", ".#.", "..."]})
    assert arrival_times(walls, (0, 0)).tolist() == [[0, 1, NEVER], [1, NEVER, 5], [2, 3, 4]]
    spec = {"walls": ["..#", ".#.", "..."], "fires": [[2, 2, 3, 2]]}
    assert burn_times(spec).tolist() == [[11, 13, NEVER], [9, NEVER, 5], [7, 5, 3]]
    burns = burn_times(spec)
    assert arrival_times(walls, (0, 0), burns).tolist() == [[0, 1, NEVER], [1, NEVER, NEVER], [2, 3, NEVER]]
    assert arrival_times(walls, (0, 0), burns, time=8)[1, 0] == NEVER  # it burns from step 9, and is reached at step 9


def test_two_lift_together():
    _, batch = begun(level(victims=((0, 1, 2), (4, 4, 1))), [(0, 0), (0, 1)])
    first = batch.step(np.array([[EAST, LIFT]]))
    assert first.reward[0] == 0 and not first.ended.size
    second = batch.step(np.array([[LIFT, LIFT]]))
    assert second.reward[0] == 0.5 and not second.terminated[0]
    assert not second.view.available[0, :, LIFT].any(), "nobody lies there any more"


def test_the_episode_ends_with_the_last_victim():
    _, batch = begun(level(), [(0, 2), (0, 0)])
    assert batch._observe(np.array([0])).available[0].tolist() == [
        [True, False, True, True, True, True],
        [True, False, True, False, True, False],
    ]
    batch.restore(batch.snapshot())
    done = batch.step(np.array([[LIFT, EAST]]))
    assert done.reward[0] == 1.0 and done.terminated[0] and done.success[0]
    assert done.final.alive[0].all()


def test_fire_kills_and_takes():
    task = level(victims=((4, 0, 1), (4, 4, 1)), fires=((4, 4, 1, 2),))
    _, batch = begun(task, [(4, 4), (4, 3)])
    burnt = batch.step(np.array([[STAY, STAY]]))
    assert burnt.reward[0] == pytest.approx(-0.05)
    assert burnt.view.alive.tolist() == [[False, True]] and batch.fate[0, 1] == LOST
    assert burnt.view.available[0, 0].tolist() == [True] + [False] * 5
    assert not burnt.view.observation[0, 0].any()
    calm = batch.step(np.array([[EAST, STAY]]))
    assert calm.reward[0] == 0 and calm.view.alive.tolist() == [[False, True]]
    over = batch.step(np.array([[EAST, STAY]]))  # the fire comes to (4, 3) at step 3
    assert over.terminated[0] and over.reward[0] == pytest.approx(-0.05) and not over.success[0]
    assert not over.final.alive.any()


def test_what_an_agent_sees():
    task = level(["..#..", ".....", ".....", ".....", "....."], victims=((1, 1, 2),), fires=((2, 0, 0, 50),), agents=3)
    _, batch = begun(task, [(0, 0), (1, 1), (1, 1)])
    view = batch._observe(np.array([0]))
    near, own = view.observation[0, 0, :100].reshape(5, 5, 4), view.observation[0, 0, 100:]
    blocked = np.ones((5, 5))
    blocked[2:, 2:] = [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert np.array_equal(near[..., 0], blocked)
    assert np.argwhere(near[..., 1]).tolist() == [[4, 2]]
    assert near[2, 2, 2] == 0.25 and near[3, 3, 2] == 0.5 and near[..., 2].sum() == 0.75
    assert near[3, 3, 3] == 1.0 and near[..., 3].sum() == 1.0
    assert own == pytest.approx([0, 0, 1, 3 / 12, 3 / 4, 1 / 4])
    assert view.state.shape == (1, batch.spec.state)
    assert view.state[0, :9].tolist() == pytest.approx([0, 0, 1, 0.2, 0.2, 1, 0.2, 0.2, 1])


def best_return(world, task, places, horizon) -> float:
    """By trying every joint action at every step; places, fates and the living decide what can follow."""
    one, batches = world.batch([task], 1), {}
    one.reset([0])
    best, frontier = 0.0, [(0.0, {**one.snapshot(), "place": np.array([places])})]
    for _ in range(horizon):
        following = {}
        for total, state in frontier:
            free = one.restore(state).available[0]
            joint = np.array(list(product(*[np.flatnonzero(mask) for mask in free])))
            batch = batches.setdefault(len(joint), world.batch([task], len(joint)))
            batch.restore({name: np.repeat(array, len(joint), 0) for name, array in state.items()})
            result, after = batch.step(joint), batch.snapshot()
            sums = total + result.reward
            best = max(best, sums.max())
            for row in np.setdiff1d(np.arange(len(joint)), result.ended):
                own = {name: array[row : row + 1] for name, array in after.items()}
                key = own["place"].tobytes() + own["alive"].tobytes() + own["fate"].tobytes()
                if key not in following or following[key][0] < sums[row]:
                    following[key] = (sums[row], own)
        frontier = list(following.values())
    return best


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (level(["..", ".."], victims=((1, 1, 2),), agents=2), 1.0),
        (level(["...", ".#.", "..."], victims=((2, 2, 2), (0, 2, 1)), agents=2), 1.0),
        (level(["...", ".#.", "..."], victims=((2, 2, 2), (0, 2, 1)), fires=((2, 2, 5, 9),), agents=2), 0.5),
        (level(["..", ".."], victims=((1, 1, 2),), agents=1), 0.0),
    ],
)
def test_the_expert_is_as_good_as_trying_everything(task, expected):
    size = len(task.spec["walls"])
    places = [(0, 0)] * task.spec["agents"]
    world = RescueWorld.__new__(RescueWorld)  # grids below 5 are for this test only
    world.grid, world.horizon, world.agents = size, 7, None
    assert best_return(world, task, places, 7) == pytest.approx(expected)
    batch = world.batch([task], 1)
    batch.reset([0])
    batch.restore({**batch.snapshot(), "place": np.array([places])})
    total = 0.0
    for _ in range(7):
        result = batch.step(world.expert(batch))
        total += float(result.reward[0])
        if result.ended.size:
            break
    assert total == pytest.approx(expected) and total <= world.optimum(task).value


def test_orders_avoid_what_will_burn():
    walls = parse_walls({"walls": ["...", "...", "..."]})
    burns = np.full((3, 3), NEVER)
    burns[0, 1] = 1
    found = plan_actions(walls, burns, 0, agents=np.array([[0, 0]]), victims=np.array([[0, 2, 1]]))
    assert found.tolist() == [SOUTH]
    burns[0, 0] = 3
    assert plan_actions(walls, burns, 0, agents=np.array([[0, 0]]), victims=np.zeros((0, 3), int)).tolist() == [SOUTH]


@pytest.fixture(scope="module")
def world():
    return RescueWorld(grid=7, horizon=30, sizes=Sizes(train=6, dev=1, test=3, per_kind=3))


def test_panels_by_tier(world):
    seen, combo, longer = (world.tasks("test", tier) for tier in world.tiers)
    assert all(2 <= t.spec["agents"] <= 4 and len(t.spec["victims"]) <= 2 for t in seen)
    assert all(sum(v[2] == 2 for v in t.spec["victims"]) == 2 and len(t.spec["victims"]) == 3 for t in combo)
    assert all(5 <= t.spec["agents"] <= 12 for t in longer)
    assert not world.tasks("train", "combo") and not world.tasks("train", "longer")
    ids = [t.id for split in ("train", "dev", "test") for tier in world.tiers for t in world.tasks(split, tier)]
    assert len(ids) == len(set(ids))


def test_the_expert_wins_every_task(world):
    tasks = [t for tier in world.tiers for t in world.tasks("test", tier)]
    batch = world.batch(tasks, len(tasks))
    batch.reset(np.arange(len(tasks)))
    won = np.zeros(len(tasks), bool)
    for _ in range(world.horizon):
        running = batch.number < len(tasks)
        result = batch.step(world.expert(batch))
        won |= running & (result.success & result.terminated)
    assert won.all()


def test_the_same_weights_fit_any_team(world):
    task = world.tasks("train", "seen")[0]
    specs = {world.batch([world.resize_team(task, n)], 1).spec for n in (1, 2, 7, 12)}
    assert len({(s.observation, s.actions, s.state) for s in specs}) == 1 and {s.agents for s in specs} == {1, 2, 7, 12}
    roomy = RescueWorld(grid=7, agents=12).batch([task], 1)
    view = roomy.reset([0])
    assert roomy.spec.agents == 12 and view.alive[0].sum() == task.spec["agents"]


def test_mistakes_are_refused(world):
    with pytest.raises(ConfigError, match=r"grid: got 3(\n|.)*horizon: got 0(\n|.)*agents: got 13"):
        RescueWorld(grid=3, horizon=0, agents=13)
    with pytest.raises(ConfigError, match="levels have another grid size"):
        RescueWorld(grid=9).batch(world.tasks("train", "seen"), 1)
    with pytest.raises(ConfigError, match="the team is too large"):
        RescueWorld(grid=7, agents=2).batch([world.resize_team(world.tasks("train", "seen")[0], 5)], 1)
    with pytest.raises(ConfigError, match="1 to 12"):
        world.resize_team(world.tasks("train", "seen")[0], 13)


def test_a_scene_shows_what_is_there():
    task = level(["..#..", ".....", ".....", ".....", "....."], victims=((1, 1, 2),), fires=((4, 4, 0, 50),))
    _, batch = begun(task, [(0, 0), (3, 3)])
    marks = batch.scene(0).marks
    assert [(m.role, m.x, m.y) for m in marks] == [
        ("wall", 2.5, 0.5),
        ("danger", 4.5, 4.5),
        ("goal", 1.5, 1.5),
        ("agent", 0.5, 0.5),
        ("agent", 3.5, 3.5),
    ]
