"""What every in-tree team world promises: an episode is a function of its task and sample, whatever plays beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    InvalidAction,
    NoLegalAction,
    NonFinite,
    SessionGone,
    ShapeMismatch,
)
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.base import (
    Continuous,
    Discrete,
    Multi,
    TeamSpec,
    TeamView,
    check_actions,
    check_fit,
    check_view,
    episode_of,
)
from evolvent.worlds.teams.games import GameWorld
from evolvent.worlds.teams.particles import ParticleWorld
from evolvent.worlds.teams.relay import RelayWorld
from evolvent.worlds.teams.rescue import RescueWorld
from tests.team_support import actions_for, equal_episodes, played, same

FEW = Sizes(train=4, dev=0, test=2, per_kind=4)
WORLDS = {
    "distinct": GameWorld("distinct", rounds=2),
    "relay": RelayWorld(horizon=14),
    "rescue": RescueWorld(grid=7, horizon=9, sizes=FEW),
    "spread": ParticleWorld("spread", horizon=7, sizes=FEW),
    "hunt": ParticleWorld("hunt", horizon=7, sizes=FEW),
}
each = pytest.mark.parametrize("name", sorted(WORLDS))


def tasks_of(name) -> tuple[Task, ...]:
    """Teams of several sizes in one batch, so that some have agents that are never alive."""
    return (*WORLDS[name].tasks("train", "seen")[:3], *WORLDS[name].tasks("test", "longer")[:1])


@each
def test_side_by_side_is_one_at_a_time(name):
    world, tasks = WORLDS[name], tasks_of(name)
    together = played(world.batch(tasks, 5), np.arange(5), 3 * world.horizon)
    assert len(together) >= 10
    alone = world.batch(tasks, 1)
    for number in list(together)[:10]:
        one = played(alone, [number], world.horizon)[number]
        assert equal_episodes(together[number], one), f"episode {number}"


@each
def test_the_row_does_not_matter(name):
    world, tasks = WORLDS[name], tasks_of(name)
    a = played(world.batch(tasks, 3), [4, 11, 2], world.horizon)
    b = played(world.batch(tasks, 4), [2, 4, 99, 11], world.horizon)
    assert {2, 4, 11} <= set(a) & set(b)
    assert all(equal_episodes(a[number], b[number]) for number in (2, 4, 11))


@each
def test_samples_differ_and_repeat(name):
    world, tasks = WORLDS[name], tasks_of(name)[:1]
    batch = world.batch(tasks, 2)
    a = batch.reset([0, 1])
    assert np.array_equal(a.number, [0, 1]) and a.time.tolist() == [0, 0]
    assert same(a, batch.reset([0, 1]))
    if name in ("rescue", "spread", "hunt"):
        assert not np.array_equal(a.observation[0], a.observation[1])


@each
def test_a_snapshot_goes_on_as_if_nothing_had_been(name):
    world, tasks = WORLDS[name], tasks_of(name)
    batch = world.batch(tasks, 4)
    view = batch.reset([3, 1, 7, 5])
    for _ in range(5):
        view = batch.step(actions_for(view, batch.spec)).view
    kept = batch.snapshot()
    first, at = [], view
    for _ in range(6):
        result = batch.step(actions_for(at, batch.spec))
        first.append(result)
        at = result.view
    other = world.batch(tasks, 4)
    at = other.restore(kept)
    assert same(at, view)
    for result in first:
        again = other.step(actions_for(at, other.spec))
        assert np.array_equal(again.reward, result.reward) and same(again.view, result.view)
        at = again.view


@each
def test_ends_and_what_follows(name):
    world, tasks = WORLDS[name], tasks_of(name)
    batch = world.batch(tasks, 3)
    view, seen = batch.reset([0, 1, 2]), 0
    for _ in range(2 * world.horizon):
        result = batch.step(actions_for(view, batch.spec))
        over = result.terminated | result.truncated
        assert not (result.terminated & result.truncated).any() and not result.errors
        assert result.ended.tolist() == np.flatnonzero(over).tolist()
        assert np.array_equal(result.view.number, view.number + 3 * over)
        assert np.array_equal(result.view.time, np.where(over, 0, view.time + 1))
        assert (view.time[result.truncated] + 1 == world.horizon).all()
        assert not result.success[~over].any()
        if result.ended.size:
            seen += result.ended.size
            assert np.array_equal(result.final.number, view.number[result.ended])
            assert np.array_equal(result.final.time, view.time[result.ended] + 1)
            fresh = world.batch(tasks, 1)
            row = int(result.ended[0])
            begun = fresh.reset([int(result.view.number[row])])
            assert same(result.view.select_rows(np.array([row])), begun)
        else:
            assert result.final is None
        check_view(result.view, batch.spec)
        assert not result.view.observation[~result.view.alive].any()
        assert (result.view.alive <= view.alive)[~over].all(), "an agent came back"
        view = result.view
    assert seen


@each
def test_what_the_dead_do_is_ignored(name):
    world, tasks = WORLDS[name], tasks_of(name)
    one, other = world.batch(tasks, 4), world.batch(tasks, 4)
    a = one.reset([0, 1, 2, 3])
    other.reset([0, 1, 2, 3])
    assert not a.alive.all()
    for _ in range(6):
        actions = actions_for(a, one.spec)
        strange = np.where(a.alive if actions.ndim == 2 else a.alive[..., None], actions, -7)
        x, y = one.step(actions), other.step(strange)
        assert same(x.view, y.view) and np.array_equal(x.reward, y.reward)
        a = x.view


@each
def test_rewards_stay_below_the_optimum(name):
    world, tasks = WORLDS[name], tasks_of(name)
    for number, episode in played(world.batch(tasks, 4), np.arange(4), 3 * world.horizon, salt="more").items():
        task, _ = episode_of(number, tasks)
        assert sum(step[1] for step in episode[:-1]) <= world.optimum(task).value + 1e-9


@each
def test_refusals(name):
    world, tasks = WORLDS[name], tasks_of(name)
    batch = world.batch(tasks, 2)
    with pytest.raises(SessionGone, match=r"reset\(\) first"):
        batch.step(np.zeros((2, batch.spec.agents)))
    with pytest.raises(BatchMismatch, match="wrong shape of the episode numbers"):
        batch.reset([0])
    with pytest.raises(ConfigError, match="0 or more"):
        batch.reset([0, -1])
    view = batch.reset([0, 1])
    good = actions_for(view, batch.spec)
    with pytest.raises(BatchMismatch, match="wrong shape of the team's actions"):
        batch.step(good[:1])
    with pytest.raises(InvalidAction):
        batch.step(good.astype(str))
    bad = good.copy()
    bad[1, 0] = np.nan if good.dtype == np.float64 else 99
    with pytest.raises(InvalidAction, match="row 1, episode 1, step 0, agent 0"):
        batch.step(bad)
    assert same(batch.step(good).view, world_again(world, tasks, good)), "a refused step has moved something"
    with pytest.raises(BatchMismatch, match="another"):
        world.batch(tasks, 3).restore(batch.snapshot())
    with pytest.raises(ConfigError, match=r"got none, expected 1 or more"):
        world.batch((), 0)


def world_again(world, tasks, actions):
    batch = world.batch(tasks, 2)
    batch.reset([0, 1])
    return batch.step(actions).view


SPEC = TeamSpec(agents=2, observation=3, actions=Discrete(4), state=2, horizon=5)


def a_view(**arrays) -> TeamView:
    usual = TeamView(
        observation=np.zeros((2, 2, 3), np.float32),
        alive=np.array([[True, True], [True, False]]),
        available=np.ones((2, 2, 4), bool),
        state=np.zeros((2, 2), np.float32),
        number=np.array([5, 9]),
        time=np.array([0, 3]),
    )
    return replace(usual, **arrays)


def test_views_that_nobody_can_decide_on():
    check_view(a_view(), SPEC)
    nan = np.zeros((2, 2, 3), np.float32)
    nan[1, 0, 2] = np.nan
    with pytest.raises(NonFinite, match="row 1, episode 9, step 3, agent 0"):
        check_view(a_view(observation=nan), SPEC)
    dead = np.zeros((2, 2, 3), np.float32)
    dead[1, 1] = np.inf  # nobody looks
    check_view(a_view(observation=dead), SPEC)
    with pytest.raises(NonFinite, match="central state"):
        check_view(a_view(state=np.array([[0, 0], [np.inf, 0]], np.float32)), SPEC)
    empty = np.ones((2, 2, 4), bool)
    empty[0, 1] = False
    with pytest.raises(NoLegalAction, match=r"row 0, episode 5, step 0, agent 1, part 0.*an empty mask of 4"):
        check_view(a_view(available=empty), SPEC)
    with pytest.raises(BatchMismatch, match="wrong shape of the team's"):
        check_view(a_view(observation=np.zeros((2, 2, 4), np.float32)), SPEC)
    with pytest.raises(BatchMismatch, match="the team's state"):
        check_view(a_view(state=None), SPEC)


def test_masks_of_parts():
    spec = replace(SPEC, actions=Multi((2, 3)), state=0)
    mask = np.ones((2, 2, 5), bool)
    mask[0, 0] = [True, False, True, True, False]
    view = a_view(available=mask, state=None)
    good = np.zeros((2, 2, 2), int)
    assert check_actions(good, spec, view).dtype == np.int64
    for part, choice in ((0, 1), (1, 2)):
        bad = good.copy()
        bad[0, 0, part] = choice
        with pytest.raises(InvalidAction, match="not available"):
            check_actions(bad, spec, view)
        elsewhere = good.copy()
        elsewhere[0, 1, part] = choice
        check_actions(elsewhere, spec, view)
    mask[1, 1, 0] = False  # of an agent that is not alive: what it may do is never asked
    check_actions(good, spec, view)
    mask[1, 0, 2:] = False
    with pytest.raises(NoLegalAction, match="part 1"):
        check_view(view, spec)


def test_continuous_actions_are_clipped():
    spec = replace(SPEC, actions=Continuous(2))
    given = np.array([[[-3.0, 0.5], [2.0, 0.0]], [[0.0, 0.0], [np.nan, 9.0]]])  # the last agent is not alive
    assert check_actions(given, spec, a_view(available=None)).tolist() == [
        [[-1.0, 0.5], [1.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0]],
    ]


def test_what_fits_a_checkpoint():
    check_fit(SPEC, replace(SPEC, agents=12, horizon=99))
    with pytest.raises(ShapeMismatch, match=r"observation: trained on 3, got 4; actions: .*n=4.*n=5"):
        check_fit(SPEC, replace(SPEC, observation=4, actions=Discrete(5)))
    with pytest.raises(ShapeMismatch, match="state"):
        check_fit(SPEC, replace(SPEC, state=0))


def test_specs_that_make_no_sense():
    with pytest.raises(ConfigError, match=r"agents: got 0(\n|.)*state: got -1"):
        TeamSpec(agents=0, observation=1, actions=Discrete(1), state=-1, horizon=1)
    for make in (lambda: Discrete(0), lambda: Multi(()), lambda: Multi((2, 0)), lambda: Continuous(0)):
        with pytest.raises(ConfigError):
            make()
