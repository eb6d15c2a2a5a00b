"""The particle world: one step by hand, catches, bounds above every play."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.particles import ParticleWorld

FEW = Sizes(train=6, dev=1, test=3, per_kind=3)


def begun(kind, places, goals, *, horizon=5, speed=None):
    world = ParticleWorld(kind, horizon=horizon)
    batch = world.batch([Task(world.name, "1", {"agents": len(places), "goals": goals})], 1)
    batch.reset([0])
    state = {**batch.snapshot(), "place": np.array([places], float)}
    if speed is not None:
        state["speed"] = np.array([speed], float)
    return batch, batch.restore(state)


def test_a_step_of_spread_by_hand():
    batch, _ = begun("spread", [(0, 0), (1, 0)], [[0, 0.2], [1, 0]], speed=[(0, 0), (0.4, -0.8)])
    result = batch.step(np.array([[[0.0, 2.0], [0.0, 0.0]]]))  # a force above 1 is 1
    # speed .75 v + .5 u = (0, .5), (.3, -.6); place + .1 of it = (0, .05), (1.03, -.06)
    assert batch.speed[0] == pytest.approx(np.array([[0, 0.5], [0.3, -0.6]]))
    assert batch.place[0] == pytest.approx(np.array([[0, 0.05], [1.03, -0.06]]))
    assert result.reward[0] == pytest.approx(-(0.15 + np.hypot(0.03, 0.06)) / 2)
    assert not result.ended.size


def test_pairs_that_touch_pay():
    batch, _ = begun("spread", [(0, 0), (0.05, 0), (0, 0.05)], [[0, 0], [0, 0], [0, 0]])
    result = batch.step(np.zeros((1, 3, 2)))
    assert result.reward[0] == pytest.approx(-0.3)


def test_spread_succeeds_at_its_end():
    batch, _ = begun("spread", [(0, 0), (1, 0)], [[0, 0.05], [1, 0]], horizon=2)
    assert not batch.step(np.zeros((1, 2, 2))).success[0], "only at the end"
    last = batch.step(np.zeros((1, 2, 2)))
    assert last.truncated[0] and not last.terminated[0] and last.success[0]
    batch, _ = begun("spread", [(0, 0), (1, 0.2)], [[0, 0.05], [1, 0]], horizon=1)
    assert not batch.step(np.zeros((1, 2, 2))).success[0]


def test_one_alone_catches_nobody():
    cornered = [[1.2, 1.2]]
    batch, _ = begun("hunt", [(1.1, 1.1), (0.0, 0.0)], cornered)
    alone = batch.step(np.zeros((1, 2, 2)))
    assert not alone.terminated[0] and alone.reward[0] == pytest.approx(-0.02 * (0.1 + 1.2) * np.sqrt(2) / 2)
    batch, _ = begun("hunt", [(1.1, 1.1), (1.15, 1.1)], cornered)
    caught = batch.step(np.zeros((1, 2, 2)))
    assert caught.terminated[0] and caught.reward[0] == 1.0 and caught.success[0]


def test_the_prey_flees_from_the_nearest_and_rests_far_away():
    batch, _ = begun("hunt", [(0.3, 0.0), (-0.5, 0.0)], [[0.0, 0.0]])
    batch.step(np.zeros((1, 2, 2)))
    assert batch.prey[0, 0] == pytest.approx([-0.2, 0.0])
    batch, _ = begun("hunt", [(0.7, 0.0), (-0.9, 0.0)], [[0.0, 0.0]])
    batch.step(np.zeros((1, 2, 2)))
    assert batch.prey[0, 0] == pytest.approx([0.0, 0.0])


def test_hunters_stay_inside_the_walls():
    batch, _ = begun("hunt", [(1.15, 0.0), (0.0, -1.2)], [[-1.0, 1.0]], speed=[(2.0, 0.0), (0.0, 0.0)])
    batch.step(np.array([[[1.0, 0.0], [0.0, -1.0]]]))
    assert batch.place[0].tolist() == [[1.2, 0.0], [0.0, -1.2]]


def test_what_an_agent_sees():
    _, view = begun("spread", [(0, 0), (1, 0), (0, -0.5)], [[0, 0.2], [1, 1], [-1, 0]], speed=[(1, 2), (0, 0), (0, 0)])
    seen = view.observation[0, 0]
    assert seen[:5] == pytest.approx([1, 2, 0, 0, 1])
    assert seen[5:14] == pytest.approx([0, 0.2, 1, -1, 0, 1, 1, 1, 1])
    assert seen[14:23] == pytest.approx([0, -0.5, 1, 1, 0, 1, 0, 0, 0])
    _, view = begun("hunt", [(0, 0), (1, 0)], [[0.5, 0]])
    assert view.observation[0, 1, 5:14] == pytest.approx([-0.5, 0, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("kind", ["spread", "hunt"])
@pytest.mark.parametrize(("split", "tier"), [("train", "seen"), ("test", "longer")])
def test_random_below_expert_below_bound(kind, split, tier):
    world = ParticleWorld(kind, horizon=40, sizes=FEW)
    tasks = world.tasks(split, tier)
    batch = world.batch(tasks, len(tasks))

    def returns(act):
        batch.reset(np.arange(len(tasks)))
        total, running = np.zeros(len(tasks)), np.ones(len(tasks), bool)
        won = np.zeros(len(tasks), bool)
        for _ in range(world.horizon):
            result = batch.step(act())
            total += np.where(running, result.reward, 0)
            won |= running & result.success
            running[result.ended] = False
        return total, won

    rng = np.random.default_rng(0)
    aimless, _ = returns(lambda: rng.uniform(-1, 1, (len(tasks), batch.spec.agents, 2)))
    expert, won = returns(lambda: world.expert(batch))
    bounds = np.array([world.bound(task, 0).value for task in tasks])
    assert won.all() and (aimless < expert).all() and (expert <= bounds + 1e-9).all()
    assert (bounds <= [world.optimum(task).value for task in tasks]).all()


def test_panels_and_mistakes():
    world = ParticleWorld("spread", sizes=FEW)
    assert {t.spec["agents"] for t in world.tasks("train", "seen")} <= {2, 3, 4}
    assert all(5 <= t.spec["agents"] <= 12 for t in world.tasks("test", "longer"))
    specs = {world.batch([world.task(n, 0)], 1).spec for n in (2, 5, 12)}
    assert len({(s.observation, s.actions, s.state) for s in specs}) == 1
    with pytest.raises(ConfigError, match=r"kind: got 'tag'(\n|.)*horizon(\n|.)*agents: got 0"):
        ParticleWorld("tag", horizon=0, agents=0)
    with pytest.raises(ConfigError, match="2 to 12"):
        world.task(1, 0)
    with pytest.raises(ConfigError, match="the team is too large"):
        ParticleWorld("spread", agents=2).batch([world.task(3, 0)], 1)


def test_a_scene_shows_what_is_there():
    batch, _ = begun("hunt", [(0, 0.5), (1, 0)], [[0.5, 0]])
    assert [(m.role, m.x, m.y) for m in batch.scene(0).marks] == [
        ("prey", 0.5, 0.0),
        ("agent", 0.0, -0.5),
        ("agent", 1.0, 0.0),
    ]
