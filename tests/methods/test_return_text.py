"""Returns as words: bins, what a trajectory becomes, a world that asks, and that asking decides what is done."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from evolvent.errors import ConfigError, NonFinite, SampleInvalid
from evolvent.learn.learner import TrainConfig
from evolvent.methods.return_text import (
    ReturnBins,
    ReturnConditionedWorld,
    ReturnTextConfig,
    add_return_lines,
    condition_worlds,
    return_text,
    returns_to_go,
)
from evolvent.models.policy import tiny_policy
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import Score, Start, Step, Task, Trajectory
from evolvent.worlds.base import Forkable, Plain, score_if_won
from evolvent.worlds.check import check_env
from tests.rl.acting import WORDS, Echo

TASK = Task("doors", "1", {}, "two", "seen", "train")


class Doors:
    """Two steps at two doors: left pays nothing, right pays 1."""

    name, version, instructions, grammar = "doors", "1", "choose", Plain()
    horizon, reward_range, tiers, run_in_thread = 2, (0.0, 1.0), ("seen",), False

    def tasks(self, split, tier):
        return [TASK]

    def make(self, task):
        return DoorsEnv()

    def score(self, rewards, info):
        return score_if_won(rewards)

    def expert(self, task):
        return ("right", "right")

    def vocabulary(self):
        return ("door", "one", "two", "left", "right", "over")


class DoorsEnv:
    def reset(self, *, seed=None, options=None):
        self.at = 0
        return "door one", {}

    def step(self, action):
        self.at += 1
        return ("over" if self.at == 2 else "door two"), float(action == "right"), self.at == 2, False, {}

    def close(self):
        pass


def walked(*actions: str, number: int = 0) -> Trajectory:
    seen = ("door one", "door two")
    steps = tuple(Step(text, action, float(action == "right")) for text, action in zip(seen, actions, strict=True))
    return Trajectory(f"doors/{number}", TASK, steps, "over", "world", Score(1.0, 1.0, True), sample=number)


EVERY = [
    walked(first, then, number=2 * a + b)
    for a, first in enumerate(("left", "right"))
    for b, then in enumerate(("left", "right"))
]


def test_bins_by_hand():
    bins = ReturnBins.from_returns([0.0, 0.0, 1.0, 1.0, 2.0, 3.0], bins=3)
    assert bins.borders == (1.0, 2.0)
    assert [bins(value) for value in (-5, 0, 0.99, 1, 1.99, 2, 99)] == [0, 0, 0, 1, 1, 2, 2]
    assert bins.format_observation("door one", 1.5) == "return 1\ndoor one" and bins.vocabulary == (
        "return",
        "0",
        "1",
        "2",
    )
    assert ReturnBins.from_returns([4.0, 4.0], bins=5).borders == (), "equal numbers share a bin"
    with pytest.raises(NonFinite):
        bins(math.nan)
    with pytest.raises(ConfigError):
        ReturnBins((2.0, 1.0))
    with pytest.raises(SampleInvalid):
        ReturnBins.from_returns([], bins=2)


def test_trajectories_are_told_what_was_earned_after():
    one = walked("left", "right")
    assert returns_to_go(one) == [1.0, 1.0] and returns_to_go(one, cost=0.25) == [0.5, 0.75]
    (told,) = add_return_lines([one], ReturnBins((0.6,)), cost=0.25)
    assert [step.observation for step in told.steps] == ["return 0\ndoor one", "return 1\ndoor two"]
    assert told.actions == one.actions and one.steps[0].observation == "door one"
    unscored = Trajectory("x", TASK, (Step("door one", "left", None),), "over")
    with pytest.raises(SampleInvalid, match="without a reward"):
        returns_to_go(unscored)


def test_a_world_that_asks():
    env = ReturnConditionedWorld(Doors(), ReturnBins((0.6, 1.6)), returns=2.0, cost=0.25).make(TASK)
    assert env.reset()[0] == "return 2\ndoor one"
    seen, reward, over, _, _ = env.step("right")
    assert (seen, reward, over) == ("return 1\ndoor two", 1.0, False), "2 - (1 - .25) = 1.25 is left"
    assert env.step("left")[0] == "return 1\nover" and env.reset()[0] == "return 2\ndoor one"
    world = ReturnConditionedWorld(Doors(), ReturnBins((0.6,)), returns=2.0)
    assert world.name == "doors" and {"return", "0", "1", "door"} <= set(world.vocabulary())
    with pytest.raises(NonFinite):
        ReturnConditionedWorld(Doors(), ReturnBins((0.6,)), returns=math.inf * 0)


def test_a_world_that_asks_can_be_forked_where_the_world_can():
    """What is still asked for belongs to the moment: it comes back with it, in another Env too."""
    assert not isinstance(ReturnConditionedWorld(Doors(), ReturnBins(()), returns=2.0).make(TASK), Forkable)
    world = ReturnConditionedWorld(Echo(), ReturnBins((0.5, 1.5)), returns=2)
    task = world.tasks("train", "seen")[0]
    env, other = world.make(task), world.make(task)
    assert check_env(partial(world.make, task), choose=lambda rng, info: rng.choice(WORDS), forkable=True) == []
    assert env.reset()[0].startswith("return 2\n")
    begun, right = env.snapshot(), task.spec["first"]
    paid = env.step(right)
    assert paid[0].startswith("return 1\n") and paid[1] == 1.0
    later = env.snapshot()
    other.reset()
    for fork in (env, other):
        fork.restore(begun)
        assert fork.step("no word") == (paid[0].replace("return 1", "return 2"), 0.0, *paid[2:])
        fork.restore(later)
        assert fork.step(task.spec["then"])[:3] == ("return 0\n", 1.0, True)
    for wrong in (("a", "b"), (right,), None):
        with pytest.raises(ConfigError, match="the snapshot does not belong to this world"):
            env.restore(wrong)


def test_who_asks_what():
    config, world = ReturnTextConfig(bins=3), Doors()
    assert condition_worlds({"doors": world}, EVERY, config)["doors"].make(TASK).reset()[0] == "return 2\ndoor one"
    assert (
        condition_worlds({"doors": world}, EVERY, config, returns=0.0)["doors"].make(TASK).reset()[0]
        == "return 0\ndoor one"
    )
    assert condition_worlds({"doors": world}, EVERY, ReturnTextConfig(conditioned=False)) == {"doors": world}
    with pytest.raises(ConfigError, match="worlds without recorded episodes"):
        condition_worlds({"doors": world, "other": world}, EVERY, config)
    with pytest.raises(ConfigError, match="no trajectory to learn from"):
        return_text(None, [], config=config, run=None)


@pytest.mark.parametrize("asked", [0.0, 1.0, 2.0])
def test_what_is_asked_is_earned(asked, tmp_path, taught):
    """All four ways are in the data, each as often: cloning cannot tell them apart, asking can."""
    config, policy = taught
    verbs = LocalBackend(condition_worlds({"doors": Doors()}, EVERY, config, returns=asked), slots=4, max_tokens=4)
    with Run(tmp_path, verbs, settings=verbs.settings()) as run:
        (played,) = run.collect(policy, [Start(TASK)], temperature=0.0)
    assert sum(played.rewards) == asked


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    config = ReturnTextConfig(bins=3, tokens=1500)
    worlds = condition_worlds({"doors": Doors()}, EVERY, config)
    train = TrainConfig(lr=5e-3, betas=(0.9, 0.95), batch_tokens=128)
    verbs = LocalBackend(worlds, train=train, slots=4, max_tokens=4)
    policy = tiny_policy(sorted(worlds["doors"].vocabulary()), context=64, seed=1)
    with Run(tmp_path_factory.mktemp("doors"), verbs, settings=verbs.settings()) as run:
        return config, return_text(policy, EVERY, config=config, run=run)


def test_returns_to_go_is_the_sum_of_what_follows():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=7).tolist()
    one = Trajectory("x", TASK, tuple(Step("s", "a", reward) for reward in rewards), "over")
    assert returns_to_go(one, cost=0.1) == pytest.approx([sum(rewards[at:]) - 0.1 * (7 - at) for at in range(7)])


def test_the_order_of_a_sum_makes_no_bin():
    bins = ReturnBins.from_returns([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 1.0, 2.0, 3.0], bins=2)
    assert ReturnBins.from_returns([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], bins=4).borders == ()
    assert bins(bins.borders[0]) == bins(bins.borders[0] - 1e-15) == 1
