"""Team environments of other packages: the same promises as ours, as far as the packages are installed."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import types
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from evolvent.errors import ConfigError, MissingExtra
from evolvent.rollout.team_workers import ProcessRows
from evolvent.worlds.teams.base import Continuous, Discrete
from evolvent.worlds.teams.extras import MAKERS, ForeignWorld, RobotRow, make_row
from evolvent.worlds.teams.parallel import ParallelRow
from tests.team_support import actions_for, equal_episodes, played, same

pytestmark = pytest.mark.filterwarnings("default")  # of other packages: what they warn of is theirs
PACKAGES = {
    "mamujoco": "gymnasium_robotics",
    "foraging": "lbforaging",
    "warehouse": "rware",
    "particles": "mpe2",
    "vmas": "vmas",
    "hands": "gymnasium_robotics",
}
EXPECTED = {
    "mamujoco": (6, 23, Continuous(1)),
    "foraging": (2, 12, Discrete(6)),
    "warehouse": (2, 71, Discrete(5)),
    "particles": (3, 18, Continuous(5)),
    "vmas": (3, 16, Continuous(2)),
    "hands": (7, 46, Continuous(5)),
}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file where it runs


def world(maker, horizon=6, **settings) -> ForeignWorld:
    if importlib.util.find_spec(PACKAGES[maker]) is None:
        pytest.skip(f"{PACKAGES[maker]} is not installed")
    return ForeignWorld(maker, horizon=horizon, settings=settings)


@pytest.mark.parametrize("maker", sorted(PACKAGES))
def test_a_package_as_a_batch(maker):
    made = world(maker, 3)
    tasks = made.tasks("train", "seen")
    batch = made.batch(tasks, 2)
    assert (batch.spec.agents, batch.spec.observation, batch.spec.actions) == EXPECTED[maker]
    together = played(batch, [0, 1], 6)
    assert len(together) == 4
    alone = made.batch(tasks, 1)
    for number in (3, 2, 0):
        episode = together[number]
        assert len(episode) == 4 and episode[-2][3], "three steps, and cut at the horizon"
        assert equal_episodes(episode, played(alone, [number], 3)[number]), f"episode {number}"


@pytest.mark.parametrize("scenario", ["football", "road_traffic", "balance"])
def test_vmas_rows_among_others_are_the_rows_alone(scenario):
    """All environments of VMAS 1.5.2 share one random stream; football draws from it while it plays."""
    made = world("vmas", 8, scenario=scenario)
    tasks = made.tasks("train", "seen")
    together = played(made.batch(tasks, 3), [0, 1, 2], 8)
    for number in (2, 0):
        alone = played(made.batch(tasks, 1), [number], 8)[number]
        assert equal_episodes(together[number], alone), f"episode {number}"


def test_vmas_leaves_the_shared_stream_alone():
    """Another VMAS environment of the process draws what it draws without ours."""
    made = world("vmas", 4)
    shared = importlib.import_module("vmas.simulator.environment").Environment.vmas_random_state
    before = list(shared)
    played(made.batch(made.tasks("train", "seen"), 2), [0, 1], 4)
    assert all(ours is theirs for ours, theirs in zip(shared, before, strict=True))


def test_foraging_forgets_where_agents_were():
    made = world("foraging", 2, size=5, agents=4, food=1)
    tasks = made.tasks("train", "seen")
    after_others = played(made.batch(tasks, 1), [0], 40)
    assert len(after_others) == 20
    for number, episode in after_others.items():
        assert equal_episodes(episode, played(made.batch(tasks, 1), [number], 2)[number]), f"episode {number}"


def test_a_robot_with_a_joint_that_does_nothing():
    made = world("mamujoco")
    whole, broken = make_row(made.task()), make_row(made.task(row={"disabled": [2]}))
    whole.begin(1)
    broken.begin(1)
    still = np.array([[0.5], [0.5], [0.0], [0.5], [0.5], [0.5]])
    moving = np.where(np.arange(6)[:, None] == 2, 0.9, still)
    assert same(whole.step(still), broken.step(moving))
    assert made.task().id != made.task(row={"disabled": [2]}).id


@pytest.mark.parametrize(("scenario", "parts"), [("HalfCheetah", "6x1"), ("Walker2d", "2x3"), ("Ant", "4x2")])
def test_robots_without_dictionaries_are_the_same(scenario, parts):
    task = world("mamujoco", 80, scenario=scenario, parts=parts).task(row={"disabled": [1]})
    quick, plain = make_row(task), make_row(task)
    assert type(quick) is RobotRow
    plain = ParallelRow(plain._robot, horizon=80, identity=True, disabled=[1])
    assert quick.spec == plain.spec
    rng, ended = np.random.default_rng(0), 0
    for seed in range(3):
        a, b = quick.begin(seed), plain.begin(seed)
        for _ in range(60):
            assert a.reward == pytest.approx(b.reward, rel=1e-14)  # a mean of equal numbers is rounded
            assert same(replace(a, reward=0.0), replace(b, reward=0.0))
            if a.terminated:
                ended += 1
                break
            actions = rng.uniform(-1, 1, (quick.spec.agents, quick.spec.actions.dim))
            a, b = quick.step(actions), plain.step(actions)
    assert ended == (3 if scenario == "Walker2d" else ended)
    with pytest.raises(ConfigError, match="disabled agents out of range"):
        make_row(world("mamujoco").task(row={"disabled": [6]}))


@pytest.mark.parametrize(
    ("parts", "scenario", "agents", "actions"),
    [("2x3", "Walker2d", 2, Continuous(3)), ("4x2", "Ant", 4, Continuous(2))],
)
def test_other_robots(parts, scenario, agents, actions):
    spec = make_row(world("mamujoco", scenario=scenario, parts=parts).task()).spec
    assert spec.agents == agents and spec.actions == actions


def test_a_foreign_world_in_processes():
    made = world("foraging")
    tasks = made.tasks("dev", "seen")
    here = played(made.batch(tasks, 3), np.arange(3), 6)
    host = ProcessRows(make_row, 3, workers=2)
    batch = made.batch(tasks, 3, host=host)
    there = played(batch, np.arange(3), 6)
    batch.close()
    assert len(here) == 3 and all(equal_episodes(here[number], there[number]) for number in here)


def test_resuming_a_foreign_world():
    made = world("particles", horizon=9)
    batch = made.batch(made.tasks("train", "seen"), 2)
    view = batch.reset([0, 1])
    for _ in range(5):
        view = batch.step(actions_for(view, batch.spec)).view
    again = made.batch(made.tasks("train", "seen"), 2)
    assert same(again.restore(batch.snapshot()), view)


def test_splits_share_no_seed():
    made = ForeignWorld("warehouse", horizon=5)
    assert len({task.id for split in ("train", "dev", "test") for task in made.tasks(split, "seen")}) == 3


def test_any_function_that_makes_an_environment():
    made = ForeignWorld("parallel", horizon=5, settings={"make": "tests.team_support:Counting"})
    batch = made.batch(made.tasks("train", "seen"), 2)
    assert batch.reset([0, 1]).observation.shape == (2, 2, 4)
    wrong = ForeignWorld("parallel", horizon=5, settings={"make": "tests.team_support:Nothing"})
    with pytest.raises(ConfigError, match="no function that makes an environment"):
        wrong.batch(wrong.tasks("train", "seen"), 1)


def test_mistakes_are_refused():
    with pytest.raises(ConfigError, match=r"identitiy(\n|.)*did you mean 'mamujoco'"):
        ForeignWorld("mamujocco", horizon=5, row={"identitiy": True})
    with pytest.raises(ConfigError, match=r"unknown setting of foraging 'agent'(.|\n)*did you mean 'agents'"):
        ForeignWorld("foraging", horizon=5, settings={"agent": 3})
    with pytest.raises(ConfigError, match="tier"):
        ForeignWorld("foraging", horizon=5).tasks("train", "longer")
    with pytest.raises(ConfigError, match="no tasks"):
        ForeignWorld("foraging", horizon=5).batch([], 1)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lbforaging.foraging", None)
    missing = ForeignWorld("foraging", horizon=5)
    with pytest.raises(MissingExtra, match=r"evolvent\[marl\]"):
        missing.batch(missing.tasks("train", "seen"), 1)
    assert set(PACKAGES) | {"parallel", "pettingzoo", "football"} == set(MAKERS)


class Academy:
    """A stand-in for gfootball 2.10 as its `env/__init__.py` documents it: the old Gym interface, arrays by player."""

    made: ClassVar[list[dict]] = []

    def __init__(self, **settings):
        Academy.made.append(settings)
        self.players = settings["number_of_left_players_agent_controls"]
        spaces = importlib.import_module("gymnasium").spaces
        shape = (115,) if self.players == 1 else (self.players, 115)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Discrete(19) if self.players == 1 else spaces.MultiDiscrete([19] * self.players)

    def reset(self):
        self.field, self.steps = random.randint(0, 2_000_000_000), 0
        return self._look()

    def _look(self):
        view = np.zeros((self.players, 115), np.float32)
        view[:, 0], view[:, 1] = self.field % 1000, self.steps
        return view[0] if self.players == 1 else view

    def step(self, actions):
        chosen = [actions] if self.players == 1 else list(actions)
        assert all(type(action) is int and 0 <= action < 19 for action in chosen)
        self.steps += 1
        shares = np.array([0.1 * (action == 12) for action in chosen], np.float32)  # 12: a shot
        return self._look(), shares[0] if self.players == 1 else shares, self.steps == 4, {"score_reward": 0}

    def close(self):
        pass


@pytest.fixture
def academy(monkeypatch):
    pytest.importorskip("gymnasium")
    package, module = types.ModuleType("gfootball"), types.ModuleType("gfootball.env")
    module.create_environment = lambda **settings: Academy(**settings)
    package.env = module
    monkeypatch.setitem(sys.modules, "gfootball", package)
    monkeypatch.setitem(sys.modules, "gfootball.env", module)
    Academy.made.clear()


@pytest.mark.parametrize(("agents", "expected"), [(None, 3), (1, 1)])
def test_football_is_played_through_its_documented_interface(academy, agents, expected):
    """Players are agents, the reward is their mean, an episode depends on its number alone, Python's stream is kept."""
    settings = {} if agents is None else {"agents": agents}
    made = ForeignWorld("football", horizon=10, settings=settings)
    tasks = made.tasks("train", "seen")
    state = random.getstate()
    batch = made.batch(tasks, 2)
    assert (batch.spec.agents, batch.spec.observation, batch.spec.actions) == (expected, 115, Discrete(19))
    view = batch.reset(np.arange(2))
    assert random.getstate() == state
    step = batch.step(np.full((2, expected), 12))
    assert step.reward.tolist() == pytest.approx([0.1, 0.1])
    ends = [batch.step(np.zeros((2, expected), int)).terminated.tolist() for _ in range(3)]
    assert ends == [[False, False], [False, False], [True, True]]
    again = made.batch(tasks, 1).reset(np.arange(1, 2))
    assert np.array_equal(view.observation[1], again.observation[0])
    assert not np.array_equal(view.observation[0], view.observation[1])
    assert Academy.made[0]["representation"] == "simple115v2" and Academy.made[0]["rewards"] == "scoring,checkpoints"


def test_football_without_its_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "gfootball", None)
    made = ForeignWorld("football", horizon=10, settings={})
    with pytest.raises(ConfigError, match=r"the package gfootball is not installed .pip install gfootball"):
        made.batch(made.tasks("train", "seen"), 1)
    other = ForeignWorld("football", horizon=10, settings={"scenario": "academy_corne"})
    with pytest.raises(ConfigError, match="did you mean 'academy_corner'"):
        other.batch(other.tasks("train", "seen"), 1)


def test_hands_are_divided_by_fingers_or_evenly():
    made = world("hands", agents=4)
    assert made.batch(made.tasks("train", "seen"), 1).spec.actions == Continuous(7)  # 28 actuators
    other = world("hands", agents=29)
    with pytest.raises(ConfigError, match="got 29, expected 1 to 28"):
        other.batch(other.tasks("train", "seen"), 1)
    unknown = world("hands", scenario="HandReach-v9")
    with pytest.raises(ConfigError, match="did you mean 'HandReach"):
        unknown.batch(unknown.tasks("train", "seen"), 1)
