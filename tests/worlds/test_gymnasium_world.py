"""Gymnasium's environments as worlds: texts of spaces, seeds as tasks, replay, and what is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import evolvent as ev
from evolvent.agents.plain import Random
from evolvent.cli.setup.registry import load_world, load_world_file
from evolvent.errors import ConfigError, EnvLost, InvalidAction, MissingExtra, VersionMismatch
from evolvent.rollout.episode import collect
from evolvent.trajectory import Score, Task
from evolvent.worlds.check import check_env
from evolvent.worlds.extras import wrapped
from evolvent.worlds.gym.rows import make_control_batch
from evolvent.worlds.gym.spaces import ActionText, ObservationText, split_words
from evolvent.worlds.gym.world import GymnasiumWorld, open_gymnasium_world


def make_box(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


SPACES = {
    "named box": (spaces.Box(-1, 1, (2,)), ("a", "b"), np.array([0.12345, -0.0001]), "a 0.123; b 0.000"),
    "box": (spaces.Box(-np.inf, np.inf, (3,)), (), np.array([1234.5, -2.0, np.inf]), "1,234.500 -2.000 inf"),
    "whole box": (spaces.Box(0, 9, (2, 2), np.int64), (), np.array([[1, 2], [3, 4]]), "1 2\n3 4"),
    "discrete": (spaces.Discrete(5, start=2), (), np.int64(4), "4"),
    "several": (spaces.MultiDiscrete([3, 4]), (), np.array([2, 3]), "2 3"),
    "bits": (spaces.MultiBinary(3), (), np.array([0, 1, 1], np.int8), "0 1 1"),
    "text": (spaces.Text(20), (), "a door", "a door"),
    "tuple": (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), ("sum", "ace"), (2, 1), "sum 2; ace 1"),
    "unnamed tuple": (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), (), (2, 1), "part 1 2; part 2 1"),
    "dictionary": (
        spaces.Dict({"at": spaces.Box(0, 9, (2,), np.int32), "goal": spaces.Text(9)}),
        (),
        {"at": np.array([1, 2]), "goal": "exit"},
        "at: 1 2\ngoal exit",
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_an_observation_is_told_as_text(name):
    space, names, value, expected = SPACES[name]
    assert ObservationText(space, names).tell(value) == expected


@settings(max_examples=200)
@given(hnp.arrays(np.float64, 3, elements=st.floats(allow_nan=True)), st.integers(0, 3))
def test_the_vocabulary_of_a_box_holds_every_number(values, decimals):
    text = ObservationText(spaces.Box(-np.inf, np.inf, (3,), np.float64), decimals=decimals)
    assert set(split_words(text.tell(values))) <= set(text.words() or ())


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 255, (210, 160, 3), np.uint8), "too many numbers for a text: got 100,800"),
        (spaces.Sequence(spaces.Discrete(2)), "a Sequence observation cannot be told as text"),
        (spaces.Tuple([spaces.Graph(spaces.Discrete(2), None)]), "a Graph observation cannot be told"),
        (spaces.Dict({"a": spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)])}), "a OneOf observation cannot"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(space, message):
    with pytest.raises(ConfigError, match=message):
        ObservationText(space)


def test_names_must_fit_the_space():
    with pytest.raises(ConfigError, match=r"names does not fit .*: got 1, expected 4"):
        open_gymnasium_world("CartPole-v1?observations=x")
    with pytest.raises(ConfigError, match="expected 2 different names"):
        open_gymnasium_world("CartPole-v1?actions=one,one")
    with pytest.raises(ConfigError, match="names of the actions do not fit"):
        open_gymnasium_world("Pendulum-v1?actions=push")


ACTIONS = [
    (spaces.Discrete(2, start=3), ("left", "right"), "Right", 4),
    (spaces.Discrete(2, start=3), ("left", "right"), "3", 3),
    (spaces.Discrete(3), (), " 2 ", 2),
    (spaces.MultiDiscrete([2, 3], start=[1, 5]), (), "2, 7", [2, 7]),
    (spaces.MultiBinary(2), (), "0 1", [0, 1]),
    (spaces.Box(-1, 1, (2,)), (), "[0.5, - 0 . 25]", [0.5, -0.25]),
    (make_box([2.0], [np.inf]), (), "1e3", [1000.0]),
    (make_box([-np.inf], [0.1]), (), "0.1", [np.float32(0.1)]),
    (spaces.Box(0, 255, (2,), np.uint8), (), "0 255", [0, 255]),
    (spaces.Text(5, charset="abc"), (), "abba", "abba"),
]


@pytest.mark.parametrize(("space", "names", "text", "expected"), ACTIONS)
def test_an_action_is_read_from_text_and_lies_in_its_space(space, names, text, expected):
    action = ActionText(space, names).parse(text)
    assert space.contains(action)
    assert action == expected if isinstance(expected, str | int) else action.tolist() == expected


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (spaces.Discrete(2), "2"),
        (spaces.Discrete(2), "0.5"),
        (spaces.Discrete(2), "go 1"),
        (spaces.MultiDiscrete([2, 3]), "1"),
        (spaces.MultiDiscrete([2, 3]), "1 3"),
        (spaces.Box(-1, 1, (1,)), "1.5"),
        (spaces.Box(-1, 1, (1,)), "nan"),
        (spaces.Box(-1, 1, (1,)), "1e999"),
        (make_box([2.0], [np.inf]), "1.9"),
        (make_box([-np.inf], [5.0]), "5.1"),
        (spaces.Box(0, 255, (1,), np.uint8), "1.5"),
        (spaces.Text(5, charset="abc"), "xyz"),
    ],
)
def test_what_is_no_action_is_refused(space, text):
    with pytest.raises(InvalidAction):
        ActionText(space).parse(text)


def test_a_form_of_actions_without_text_is_refused_by_name():
    with pytest.raises(ConfigError, match="a Tuple action cannot be written as text"):
        ActionText(spaces.Tuple([spaces.Discrete(2)]))
    with pytest.raises(ConfigError, match="too many numbers for a text: got 33"):
        ActionText(spaces.Box(-1, 1, (33,)))


def test_actions_are_listed_where_they_are_few():
    assert ActionText(spaces.MultiDiscrete([2, 2])).listed == ("0 0", "0 1", "1 0", "1 1")
    assert ActionText(spaces.Discrete(65)).listed == () and ActionText(spaces.Box(-1, 1, (1,))).listed == ()


@pytest.mark.parametrize(
    ("space", "names", "sentence"),
    [
        (spaces.Discrete(2), ("left", "right"), "Reply with one action: left, right."),
        (spaces.Discrete(70), (), "Reply with one action: a number from 0 to 69."),
        (spaces.Box(-2, 2, (1,)), (), "Reply with a number between -2 and 2."),
        (spaces.Box(-1, 1, (3,)), (), "Reply with 3 numbers separated by spaces, each between -1 and 1."),
        (
            make_box([0.0, -np.inf], [np.inf, 3.0]),
            (),
            "Reply with 2 numbers separated by spaces: number 1 of at least 0, number 2 of at most 3.",
        ),
        (
            spaces.MultiDiscrete([2, 3]),
            (),
            "Reply with 2 whole numbers separated by spaces: number 1 from 0 to 1, number 2 from 0 to 2.",
        ),
    ],
)
def test_instructions_say_how_an_action_is_written(space, names, sentence):
    assert ActionText(space, names).describe() == sentence


def _task(world: GymnasiumWorld, index: int = 0) -> Task:
    return world.tasks("test", "seen")[index]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_an_environment_keeps_the_contract_of_worlds(env_id):
    world = load_world(f"gymnasium:{env_id}")
    assert check_env(lambda: world.make(_task(world)), forkable=True) == []


def test_a_continuous_environment_keeps_the_contract_of_worlds():
    world = load_world("gymnasium:Pendulum-v1")
    problems = check_env(
        lambda: world.make(_task(world)), forkable=True, choose=lambda rng, _: f"{rng.uniform(-2, 2):.3f}"
    )
    assert problems == []


def test_an_environment_of_another_package_names_its_actions():
    pytest.importorskip("minigrid")
    world = load_world("gymnasium:minigrid:MiniGrid-Empty-5x5-v0")
    observation, info = world.make(_task(world)).reset()
    assert info["admissible"] == ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    assert observation.splitlines()[-1] == "mission: get to the green goal square" and world.vocabulary() is None
    assert check_env(lambda: world.make(_task(world)), forkable=True, walks=2) == []


def test_an_episode_is_that_of_gymnasium_under_the_seed_of_the_task():
    world = GymnasiumWorld("Pendulum-v1", decimals=6)
    task = _task(world)
    env, original = world.make(task), gymnasium.make("Pendulum-v1")
    observation, _ = env.reset()
    value, _ = original.reset(seed=task.spec["seed"])
    for number in (0.5, -2.0, 1.25):
        assert observation == "x {:.6f}; y {:.6f}; angular velocity {:.6f}".format(*value)
        observation, reward, terminated, truncated, _ = env.step(str(number))
        value, expected_reward, _, _, _ = original.step(np.array([number], np.float32))
        assert (reward, terminated, truncated) == (float(expected_reward), False, False)


def test_the_time_limit_truncates_and_can_be_set():
    world = open_gymnasium_world("CartPole-v1?horizon=3")
    env = world.make(_task(world))
    env.reset()
    ends = [env.step(action)[2:4] for action in ("left", "right", "left")]
    assert world.horizon == 3 and ends == [(False, False), (False, False), (False, True)]


def test_seeds_are_tasks_and_splits_share_none():
    world = load_world("gymnasium:CartPole-v1")
    seeds = {split: {task.spec["seed"] for task in world.tasks(split, "seen")} for split in ("train", "dev", "test")}
    assert {split: len(values) for split, values in seeds.items()} == {"train": 1200, "dev": 100, "test": 200}
    assert len(set.union(*seeds.values())) == 1500
    assert world.describe() == (
        "gymnasium:CartPole-v1: 1200 train, 100 dev, 200 test seeds; at most 500 steps; "
        "success is a return of at least 475"
    )


def test_success_follows_from_the_threshold_the_info_or_the_setting():
    cartpole = GymnasiumWorld("CartPole-v1")
    assert cartpole.score([1.0] * 475, {}) == Score(475.0, 1.0, True)
    assert cartpole.score([1.0] * 95, {}) == Score(95.0, 0.2, False)
    assert cartpole.score([1.0, None], {}) == Score(None, None, None)
    assert GymnasiumWorld("Blackjack-v1").score([-1.0], {}) == Score(-1.0, 0.0, False)
    assert open_gymnasium_world("Pendulum-v1?success_at=-200").score([-150.0], {}).success
    assert GymnasiumWorld("Pendulum-v1").score([-150.0], {"is_success": True}).success


def test_settings_are_part_of_the_name_and_of_the_task():
    world = open_gymnasium_world("FrozenLake-v1?is_slippery=false&map_name=8x8")
    assert world.name == "gymnasium:FrozenLake-v1?is_slippery=false&map_name=8x8"
    assert _task(world).spec["settings"] == {"is_slippery": False, "map_name": "8x8"}
    assert world.observation_space == spaces.Discrete(64)


def test_a_drawn_state_is_shown_to_people_and_on_request_to_the_agent():
    picture = "[S]FFF\nFHFH\nFFFH\nHFFG"
    plain, drawn = load_world("gymnasium:FrozenLake-v1"), load_world("gymnasium:FrozenLake-v1?render=1")
    observation, info = plain.make(_task(plain)).reset()
    assert (observation, info["image"]) == ("square 0", picture)
    assert drawn.make(_task(drawn)).reset()[0] == f"{picture}\nsquare 0"
    with pytest.raises(ConfigError, match="does not draw its state as text"):
        load_world("gymnasium:CartPole-v1?render=1")


def test_an_action_mask_limits_the_listed_actions():
    world = load_world("gymnasium:Taxi-v4")
    task = next(task for task in world.tasks("test", "seen") if task.spec["seed"] == _task(world).spec["seed"])
    _, info = world.make(task).reset()
    _, native_info = gymnasium.make("Taxi-v4").reset(seed=task.spec["seed"])
    names = ("south", "north", "east", "west", "pickup", "dropoff")
    assert info["admissible"] == [name for name, legal in zip(names, native_info["action_mask"], strict=True) if legal]


def test_a_wrong_action_is_answered_in_words_of_the_vocabulary():
    world = load_world("gymnasium:CartPole-v1")
    env = world.make(_task(world))
    start, _ = env.reset()
    observation, reward, terminated, truncated, info = env.step("jump")
    assert observation == f"That is not an action. Reply with one action: left, right.\n{start}"
    assert (reward, terminated, truncated, info["invalid"]) == (0.0, False, False, True)
    assert set(split_words(observation)) <= set(world.vocabulary() or ())


def test_language_agents_of_the_small_model_act_in_it():
    world = load_world("gymnasium:CartPole-v1?horizon=6")
    (row,) = ev.evaluate(ev.make_policy([world]), world, limit=3, max_tokens=3)
    assert (row.n, row.errors) == (3, 0)
    episodes = list(collect({world.name: world}, world.tasks("test", "seen")[:3], Random()))
    assert all(episode.score.raw == len(episode.steps) for episode in episodes)


class Walk(gymnasium.Env):
    """A corridor of seven squares whose fifth one is broken."""

    observation_space, action_space = spaces.Discrete(7), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.square = 3
        return self.square, {}

    def step(self, action):
        self.square += 1 if action else -1
        if self.square == 5:
            raise KeyError("the floor")
        return self.square, 0.0, self.square == 0, False, {}


class Drift(Walk):
    """An environment that ignores its seed."""

    observation_space = spaces.Box(0, 1, (1,))

    def reset(self, *, seed=None, options=None):
        self.steps = np.random.default_rng()
        return self.steps.random(1), {}

    def step(self, action):
        return self.steps.random(1), 0.0, False, False, {}


def test_an_environment_that_raises_is_one_sentence_with_its_place():
    world = GymnasiumWorld(Walk)
    env = world.make(_task(world))
    env.reset()
    env.step("1")
    with pytest.raises(EnvLost, match=r"gymnasium:Walk failed in step at .*test_gymnasium_world.py:\d+: KeyError"):
        env.step("1")


class OldReset(Walk):
    def reset(self, *, seed=None, options=None):
        self.square = 3
        return self.square


class OldStep(Walk):
    def step(self, action):
        return 2, 0.0, False, {}


class SpelledReward(Walk):
    def step(self, action):
        return 2, "one", False, False, {}


class EndlessReward(Walk):
    def step(self, action):
        return 2, float("nan"), False, False, {}


@pytest.mark.parametrize(
    ("env_class", "message"),
    [
        (OldReset, r"reset of gymnasium:OldReset returned one value \(int\): expected \(observation, info\)"),
        (OldStep, r"step of gymnasium:OldStep returned a tuple of 4 values \(int, float, bool, dict\): expected \(obs"),
        (SpelledReward, "gymnasium:SpelledReward gave a reward that is not a number: got 'one'"),
        (EndlessReward, "gymnasium:EndlessReward gave a reward that is not finite: got nan"),
    ],
)
def test_result_of_another_interface_is_named_with_what_is_expected(env_class, message):
    world = GymnasiumWorld(env_class)
    env = world.make(_task(world))
    with pytest.raises(EnvLost, match=message):
        env.reset()
        env.step("1")
    batch = make_control_batch(world, world.tasks("train", "seen"), 1)
    with pytest.raises(EnvLost, match=message):
        batch.reset([0])
        raise EnvLost(batch.step(np.zeros((1, 1), np.int64)).errors[0].message)


def test_a_snapshot_of_an_environment_that_does_not_repeat_itself_is_refused():
    world = GymnasiumWorld(Drift)
    env = world.make(_task(world))
    env.reset()
    snapshot = env.snapshot()
    with pytest.raises(EnvLost, match="gymnasium:Drift does not repeat itself"):
        env.restore(snapshot)


def test_a_class_of_a_file_is_a_world(tmp_path):
    file = tmp_path / "walk.py"
    file.write_text(
        "import gymnasium\n"
        "class Corridor(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(3)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return 1, {}\n"
        "    def step(self, action):\n"
        "        return 2 * action, float(action), True, False, {}\n"
        "def make_corridor():\n"
        "    return Corridor()\n"
    )
    for name in (f"{file}:Corridor", str(file), f"{file}:make_corridor"):
        world = load_world_file(name)
        env = world.make(world.tasks("test", "seen")[0])
        assert env.reset()[0] == "1" and env.step("1")[:3] == ("2", 1.0, True)
        assert world.score([1.0], {}).success


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("", "needs the id of an environment"),
        ("CartPol-v1", "unknown environment 'CartPol-v1' .did you mean 'CartPole-v1'"),
        ("CartPole-v9", "unknown environment 'CartPole-v9' .did you mean 'CartPole-v"),
        ("Nothing-v0", "one of another package is written gymnasium:MODULE:ID"),
        ("no_module:Env-v0", "No module named 'no_module'"),
        ("CartPole-v1?mass=3", "unexpected keyword argument 'mass'"),
        ("CartPole-v1?horizon=0", "got a horizon of 0 steps, expected 1 or more"),
        ("CartPole-v1?decimals=x", "decimals is not a number: got 'x'"),
    ],
)
def test_a_name_that_is_no_environment_is_refused(option, message):
    with pytest.raises(ConfigError, match=message):
        open_gymnasium_world(option)


def test_a_missing_package_is_one_sentence_with_the_command(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(wrapped.importlib, "import_module", refuse)
    with pytest.raises(MissingExtra, match=r"pip install 'evolvent\[gymnasium\]'"):
        open_gymnasium_world("CartPole-v1")


def test_a_task_of_another_version_is_refused():
    world = GymnasiumWorld("CartPole-v1")
    with pytest.raises(VersionMismatch):
        world.make(Task(world.name, "0.1", {"env": "CartPole-v1", "seed": 1}))
