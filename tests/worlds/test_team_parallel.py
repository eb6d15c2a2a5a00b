"""Team worlds as PettingZoo environments, and there and back again."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from evolvent.errors import ConfigError, InvalidAction, SessionGone
from evolvent.worlds.panel import Sizes
from evolvent.worlds.teams.as_parallel import TeamParallel, as_parallel
from evolvent.worlds.teams.games import GameWorld
from evolvent.worlds.teams.parallel import ParallelRow
from evolvent.worlds.teams.particles import ParticleWorld
from evolvent.worlds.teams.relay import RelayWorld
from evolvent.worlds.teams.rescue import RescueWorld
from tests.team_support import actions_for

spaces = pytest.importorskip("gymnasium.spaces")
FEW = Sizes(train=4, dev=0, test=0, per_kind=4)
WORLDS = {
    "chain": GameWorld("chain", rounds=3),
    "relay": RelayWorld(horizon=14),
    "rescue": RescueWorld(grid=7, horizon=9, sizes=FEW),
    "spread": ParticleWorld("spread", horizon=7, sizes=FEW),
}
each = pytest.mark.parametrize("name", sorted(WORLDS))


def made(name) -> TeamParallel:
    world = WORLDS[name]
    return TeamParallel(world, world.tasks("train", "seen")[0])


@each
def test_pettingzoo_is_content(name):
    api = pytest.importorskip("pettingzoo.test")
    world = WORLDS[name]
    env = as_parallel(world, world.tasks("train", "seen")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        api.parallel_api_test(env, num_cycles=60)
        if name != "rescue":  # that test draws actions without looking at masks, and a wall stops its agents
            api.parallel_seed_test(lambda: as_parallel(world, world.tasks("train", "seen")[0]), num_cycles=30)
    assert isinstance(env, pytest.importorskip("pettingzoo").ParallelEnv)


@each
def test_there_and_back_again(name):
    """Our batch, and our batch as a PettingZoo environment as a row: the same numbers."""
    world = WORLDS[name]
    batch = world.batch(world.tasks("train", "seen")[:1], 1)
    row = ParallelRow(made(name), horizon=world.horizon, success="success")
    spec = batch.spec
    assert (row.spec.observation, row.spec.actions, row.spec.agents) == (spec.observation, spec.actions, spec.agents)
    assert row.spec.state == spec.state
    close = 1e-5 if name == "spread" else 0  # continuous actions pass through float32
    for sample in (3, 4):
        view, moment = batch.reset([sample]), row.begin(sample)
        for _ in range(world.horizon):
            assert np.allclose(moment.observation, view.observation[0], rtol=0, atol=close)
            assert np.array_equal(moment.alive, view.alive[0])
            if view.available is not None:
                assert np.array_equal(moment.available, view.available[0])
            if spec.state:
                assert np.allclose(moment.state, view.state[0], rtol=0, atol=close)
            actions = actions_for(view, spec)
            result, moment = batch.step(actions), row.step(actions[0])
            assert moment.reward == pytest.approx(result.reward[0], abs=close)
            assert (moment.terminated, moment.truncated) == (bool(result.terminated[0]), bool(result.truncated[0]))
            if result.ended.size:
                assert moment.success is bool(result.success[0])
                break
            view = result.view


def test_the_dead_leave():
    world = WORLDS["relay"]
    env = TeamParallel(world, world.task([0, 1, 2]))
    env.reset(seed=0)
    seen, paid, ended, cut, _ = env.step({"agent_0": 0, "agent_1": 0, "agent_2": 1})
    assert ended == {"agent_0": False, "agent_1": False, "agent_2": True} and not any(cut.values())
    assert set(seen) == set(paid) == {"agent_0", "agent_1", "agent_2"} and env.agents == ["agent_0", "agent_1"]
    assert set(env.step({"agent_0": 0, "agent_1": 0})[0]) == {"agent_0", "agent_1"}


def test_samples_go_on_where_no_seed_is_given():
    env = made("spread")
    a = env.reset(seed=1)[0]["agent_0"]
    b = env.reset()[0]["agent_0"]
    assert np.array_equal(env.reset(seed=2)[0]["agent_0"], b) and not np.array_equal(a, b)


def test_mistakes_are_refused():
    env = made("chain")
    with pytest.raises(SessionGone):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="agents lack an action"):
        env.step({"agent_0": 0})
    with pytest.raises(InvalidAction):
        env.step(dict.fromkeys(env.agents, 99))
    with pytest.raises(ConfigError, match="0 or more"):
        env.reset(seed=-1)
    with pytest.raises(ConfigError, match="the world has no central state"):
        env.state()


class _Boxed:
    """One agent whose action space is a given box, and who remembers the last action."""

    possible_agents = ("a",)
    agents = ("a",)

    def __init__(self, low, high, dtype=np.float32):
        self.space = spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1,))

    def action_space(self, agent):
        return self.space

    def reset(self, seed=None, options=None):
        return {"a": np.zeros(1)}, {"a": {}}

    def step(self, actions):
        self.last = actions["a"]
        return {"a": np.zeros(1)}, {"a": 0.0}, {"a": False}, {"a": False}, {"a": {}}

    def close(self):
        pass


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2.0, np.inf, [2.0, 3.0, 4.0]),  # one bound: a range of width 2 that ends there
        (-np.inf, -5.0, [-7.0, -6.0, -5.0]),
        (-np.inf, np.inf, [-1.0, 0.0, 1.0]),
        (2.0, 10.0, [2.0, 6.0, 10.0]),
        (0.0, 0.5, [0.0, 0.25, 0.5]),
    ],
)
def test_actions_lie_in_a_box_that_is_bounded_on_one_side(low, high, expected):
    env = _Boxed([low], [high])
    row = ParallelRow(env, horizon=9)
    row.begin(0)
    for action, value in zip((-1.0, 0.0, 1.0), expected, strict=True):
        row.step(np.array([[action]]))
        assert env.last.tolist() == [value] and env.space.contains(env.last)


def test_every_number_of_a_box_with_several_kinds_of_bounds_is_in_the_space():
    env = _Boxed([-np.inf, 0.1, 3.0, -np.inf], [0.3, np.inf, 3.7, np.inf])
    row = ParallelRow(env, horizon=9)
    row.begin(0)
    for action in np.random.default_rng(0).uniform(-1, 1, (200, 1, 4)):
        row.step(action)
        assert env.space.contains(env.last)
