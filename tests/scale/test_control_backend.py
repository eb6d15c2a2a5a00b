"""Policies over numbers in a run: learning, measuring, and going on after an interrupt with the same result."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
import torch

from evolvent.errors import ConfigError, ShapeMismatch
from evolvent.marl.control import ControlTrainer, make_control_policy
from evolvent.marl.settings import ControlPPOConfig
from evolvent.methods.control_ppo import control_ppo
from evolvent.scale.control_backend import ControlBackend, control_run
from evolvent.scale.local_backend import EvaluationPanel
from evolvent.trajectory import Start
from evolvent.worlds.gym.world import GymnasiumWorld, open_gymnasium_world

SMALL = ControlPPOConfig(iterations=4, rows=4, steps=16, width=8, minibatches=2, ppo_epochs=2, save_every=1)
FEW = EvaluationPanel(limit=5)


@pytest.fixture(scope="module")
def world() -> GymnasiumWorld:
    return open_gymnasium_world("CartPole-v1?horizon=40")


def weights_of(model) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


def test_cartpole_is_learned_on_a_share_of_the_default_steps(tmp_path):
    world, config = GymnasiumWorld("CartPole-v1"), ControlPPOConfig(iterations=24, lr=1e-3)
    with control_run(tmp_path / "run", world, seed=0, panel=EvaluationPanel(limit=100)) as run:
        initial = make_control_policy(world, seed=0)
        (before,) = run.evaluate(initial, 0)
        trained = control_ppo(initial, world.tasks("train", "seen"), config=config, run=run)
        (after,) = run.evaluate(trained, 24)
    assert before.n == after.n == 100 and before.mean_return < 100
    assert after.mean_return >= 475 and after.mean > 0.9


@pytest.mark.long
def test_a_continuous_environment_is_learned(tmp_path):
    """Pendulum held at its best pays about -150, at random about -1,200."""
    world = GymnasiumWorld("Pendulum-v1")
    with control_run(tmp_path / "run", world, seed=0, panel=EvaluationPanel(limit=20)) as run:
        config = ControlPPOConfig(iterations=60, gamma=0.9, lr=1e-3)
        trained = control_ppo(make_control_policy(world), world.tasks("train", "seen"), config=config, run=run)
        (after,) = run.evaluate(trained, 60)
    assert after.mean_return > -400


def test_an_interrupted_training_ends_with_the_same_weights(world, tmp_path, monkeypatch):
    tasks = world.tasks("train", "seen")
    with control_run(tmp_path / "whole", world, seed=3, panel=FEW) as run:
        expected = weights_of(control_ppo(make_control_policy(world, width=8), tasks, config=SMALL, run=run))
    original = ControlTrainer.update

    def fail_in_the_third(self, rollout):
        if self.iteration == 3:
            raise KeyboardInterrupt
        original(self, rollout)

    with monkeypatch.context() as patched:
        patched.setattr(ControlTrainer, "update", fail_in_the_third)
        with pytest.raises(KeyboardInterrupt), control_run(tmp_path / "cut", world, seed=3, panel=FEW) as run:
            control_ppo(make_control_policy(world, width=8), tasks, config=SMALL, run=run)
    with control_run(tmp_path / "cut", world, seed=3, panel=FEW) as run:
        resumed = control_ppo(make_control_policy(world, width=8), tasks, config=SMALL, run=run)
        rows = run.metrics("practise")
    assert weights_of(resumed) == expected
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and rows[-1]["env_steps"] == 4 * 4 * 16
    with control_run(tmp_path / "cut", world, seed=3, panel=FEW) as run:
        again = control_ppo(make_control_policy(world, width=8), tasks, config=SMALL, run=run)
    assert weights_of(again) == expected


class BrokenFloor(gymnasium.Env):
    """An environment whose first step raises."""

    observation_space, action_space = gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        raise KeyError("the floor")


def test_measurement_without_scored_episodes_logs_no_success(tmp_path):
    world = GymnasiumWorld(BrokenFloor)
    with control_run(tmp_path / "run", world, seed=0, panel=FEW) as run:
        (row,) = run.evaluate(make_control_policy(world, width=8), 0)
        logged = run.metrics("evaluate")
    assert (row.errors, row.mean) == (5, None)
    assert logged[-1]["episodes"] == 5 and "success" not in logged[-1]


def test_the_policy_that_was_passed_in_is_unchanged(world, tmp_path):
    initial = make_control_policy(world, width=8)
    before = weights_of(initial)
    with control_run(tmp_path / "run", world, panel=FEW) as run:
        trained = control_ppo(initial, world.tasks("train", "seen"), config=SMALL, run=run)
    assert weights_of(initial) == before != weights_of(trained)


def test_a_measured_episode_is_that_of_the_environment(world, tmp_path):
    task = world.tasks("test", "seen")[0]
    policy = make_control_policy(world)
    with control_run(tmp_path / "run", world, panel=FEW) as run:
        (episode,) = run.collect(policy, [Start(task)], temperature=0.0)
        stored = [run.store.get(name) for name in run.store.ids()]
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=task.spec["seed"])
    for step in episode.steps:
        assert step.observation.tolist() == observation.tolist() and step.reward == 1.0
        observation, _, terminated, _, _ = env.step(int(step.action[0]))
    assert terminated == (episode.ended_by == "world")
    assert episode.score == world.score([1.0] * len(episode.steps), {})
    assert [trajectory.id for trajectory in stored] == [episode.id]


def test_examples_are_told_in_words(world, tmp_path):
    policy = make_control_policy(world)
    with control_run(tmp_path / "run", world, panel=FEW) as run:
        run.evaluate(policy, 0)
        rows = json.loads((run.folder / "examples.json").read_text())
    assert rows[0]["steps"][0]["observation"].startswith("cart position -0.024; cart velocity -0.020; pole angle 0.031")
    assert {step["action"] for row in rows for step in row["steps"]} <= {"left", "right"}
    assert not rows[0]["final_observation"].startswith("cart position 0.000; cart velocity 0.000")


def test_an_evaluation_does_not_depend_on_how_many_play_at_once(world, tmp_path):
    policy = make_control_policy(world)
    rows = []
    for count in (1, 7):
        with control_run(tmp_path / str(count), world, panel=EvaluationPanel(limit=9), rows=count) as run:
            rows += run.evaluate(policy, 0)
    assert rows[0] == rows[1]


def test_a_policy_of_other_spaces_is_refused(world, tmp_path):
    with control_run(tmp_path / "run", world, panel=FEW) as run:
        with pytest.raises(ShapeMismatch, match="does not fit gymnasium:CartPole-v1: got observations of 6 numbers"):
            run.evaluate(make_control_policy(GymnasiumWorld("Acrobot-v1")), 0)


def test_what_a_policy_over_numbers_cannot_do_is_told(world, tmp_path):
    policy = make_control_policy(world)
    backend = ControlBackend({world.name: world})
    with pytest.raises(ConfigError, match="cannot imitate trajectories"):
        backend.fit(policy, [])
    with pytest.raises(ConfigError, match="cannot be searched with"):
        backend.search(policy, [])
    with pytest.raises(ConfigError, match="cannot label spans"):
        backend.label(policy, [])
    several = ControlBackend({"a": world, "b": world})
    with pytest.raises(ConfigError, match="got 2 worlds, expected one"):
        several.train_rl(policy, None, spec=None)


def test_policies_are_told_apart_by_their_weights(world):
    backend = ControlBackend({world.name: world})
    policy, other = make_control_policy(world, seed=1), make_control_policy(world, seed=2)
    assert backend.origin(policy) == backend.origin(make_control_policy(world, seed=1)) != backend.origin(other)


def test_wrong_sizes_are_refused():
    with pytest.raises(ConfigError, match="got 99, expected at most the 4 steps"):
        ControlPPOConfig(rows=2, steps=2, minibatches=99)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_cartpole_is_solved_with_the_defaults(seed, tmp_path):
    torch.set_num_threads(1)
    world = GymnasiumWorld("CartPole-v1")
    with control_run(tmp_path / "run", world, seed=seed, panel=EvaluationPanel(limit=100)) as run:
        initial = make_control_policy(world, seed=seed)
        trained = control_ppo(initial, world.tasks("train", "seen"), config=ControlPPOConfig(), run=run)
        (row,) = run.evaluate(trained, 100)
    assert row.mean_return >= 475 and np.isclose(row.mean, 1.0, atol=0.05)
