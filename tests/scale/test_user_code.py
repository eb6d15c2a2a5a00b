"""A user's own worlds, rewards and weights in a script: an edit is never stale, and a bug is told with its line."""

import importlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.errors import ConfigError
from evolvent.identity import user_code_fingerprint
from evolvent.learn.learner import RL_TRAIN, TrainConfig
from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.rl.trainer import RLConfig
from evolvent.run import changed_code, record_code, world_code
from evolvent.scale.local_backend import EvaluationPanel

SOURCE = """
import evolvent as ev


def pay(answer, spec):
    return {pay}


class Guess(ev.TextWorld):
    name, horizon = "guess", 2

    def specs(self):
        return [{{"number": number}} for number in range(60)]

    def vocabulary(self):
        return ["say", "hello", "hi"]

    def play(self, spec):
        answer = yield "say hello"
        return pay(answer, spec)

    def expert(self, task):
        {expert}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes the user's module with another reward, as an editor does, and loads its world."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write_world(pay: str, expert: str = "return ['hello']", name: str = "guessing"):
        Path(f"{name}.py").write_text(SOURCE.format(pay=pay, expert=expert))
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        for cached in Path("__pycache__").glob(f"{name}*"):
            cached.unlink()
        return importlib.reload(module).Guess()

    return write_world


def play(world, **settings):
    policy = ev.tiny_policy(["say", "hello", "hi"], size="xs", context=64, seed=0)
    panel = EvaluationPanel(limit=5)
    with ev.local_run("run", [world], panel=panel, max_tokens=2, **settings) as run:
        tasks = world.tasks("train", "seen")[:6]
        trajectories = run.collect(policy, [ev.Start(task) for task in tasks])
        rows = run.evaluate(policy, 0)
        return sum(bool(trajectory.success) for trajectory in trajectories), rows[0].mean, len(run.reused_stages)


def test_a_changed_reward_is_played_again_and_what_is_read_says_so(write, caplog):
    assert play(write("1.0")) == (6, 1.0, 0)
    assert not caplog.records
    assert play(write("1.0")) == (6, 1.0, 2)
    (record,) = caplog.records
    assert record.getMessage().startswith("read from the earlier run in run, not done again: base-0-collect-")
    caplog.clear()
    assert play(write("0.0")) == (0, 0.0, 0), "a helper of the world's method changed, under one version"
    assert [record.getMessage() for record in caplog.records] == [
        "the code of guess has changed since the earlier run in run: stages that depend on it are done again"
    ]
    caplog.clear()
    assert play(write("1.0")) == (6, 1.0, 2), "the first stages are there still"


def test_code_of_packages_has_no_digest_and_cached_properties_do_not_count(write):
    assert world_code({"lookup": ev.Lookup()}) == {}
    world = write("1.0")
    before = world_code({"guess": world})
    world.tasks("train", "seen")  # keeps its panel
    assert world_code({"guess": world}) == before
    world.size = 3
    assert world_code({"guess": world}) != before


@dataclass(frozen=True)
class Twice:
    factor: float = 2.0

    def __call__(self, trajectory):
        return self.factor


def test_weights_and_held_functions_count_as_the_users_code(tmp_path):
    assert user_code_fingerprint(Twice()) is not None
    assert user_code_fingerprint(Twice()) != user_code_fingerprint(Twice(3.0))
    assert user_code_fingerprint((0.5, None)) is None
    lookup = ev.Lookup()
    lookup.bonus = lambda: 1
    assert user_code_fingerprint(lookup) is not None
    record_code(tmp_path, {"a": "1", "b": "1"})
    assert changed_code(tmp_path, {"a": "1", "b": "2", "new": "1"}) == ["b"]
    (tmp_path / "code.json").write_text("{")
    assert changed_code(tmp_path, {"a": "2"}) == [], "a damaged record compares nothing"


class Numbers(ev.TextWorld):
    """Its rewards are numbers of numpy and torch, in an episode and in a step of an Env."""

    name, horizon, rewards = (
        "numbers",
        2,
        (np.float32(0.25), torch.tensor(0.25), np.array([0.25]), torch.tensor([0.25])),
    )

    def specs(self):
        return [{"number": number} for number in range(40)] * 2

    def vocabulary(self):
        return ["say", "hello"]

    def play(self, spec):
        yield "say hello"
        reward = self.rewards[spec["number"] % 4]
        yield "say hello", reward
        return reward


class Stepping(Numbers):
    name = "stepping"

    def make(self, task):
        reward = self.rewards[task.spec["number"] % 4]
        return SimpleNamespace(
            reset=lambda *, seed=None, options=None: ("say hello", {}),
            step=lambda action: ("say hello", 2 * reward, np.bool_(True), False, {}),
            close=lambda: None,
        )


@pytest.mark.parametrize("world", [Numbers(), Stepping()], ids=lambda world: world.name)
def test_numbers_of_arrays_and_tensors_are_rewards(world, tmp_path):
    tasks = world.tasks("train", "seen")
    with ev.local_run(tmp_path, [world], max_tokens=2) as run:
        policy = ev.tiny_policy(["say", "hello"], size="xs", context=64, seed=0)
        played = list(run.collect(policy, [ev.Start(task) for task in tasks]))
    assert [trajectory.score.raw for trajectory in played] == [0.5] * len(tasks)
    assert {type(step.reward) for trajectory in played for step in trajectory.steps} == {float}


def test_repeated_tasks_count_once_and_those_that_json_cannot_write_are_refused():
    world = Numbers()
    panels = {split: world.tasks(split, "seen") for split in ("train", "dev", "test")}
    assert sorted(task.spec["number"] for tasks in panels.values() for task in tasks) == list(range(40))

    class Sets(Numbers):
        def specs(self):
            return [{"number": np.int64(1)}]

    with pytest.raises(ConfigError, match=r"specs of world 'numbers' lists a task that JSON cannot write .*int64"):
        Sets().tasks("train", "seen")


def test_a_bug_of_a_world_is_told_once_with_its_line_and_count(write, caplog):
    world = write("spec['numbr']")
    (row,) = ev.evaluate(ev.Expert(), world, limit=5)
    assert (row.mean, row.errors) == (None, 5)
    place = "5 of 5 episodes could not be scored: 5 x EnvLost: world 'guess' failed in step at guessing.py:6: KeyError"
    assert [record.getMessage() for record in caplog.records] == [f"{place}: 'numbr'. Fix that line and start again"]


def test_a_bug_of_an_expert_or_a_score_is_told_with_its_line(write, caplog):
    world = write("1.0", "return [task.spec['numbr']]")
    tasks = world.tasks("train", "seen")[:3]
    with pytest.raises(
        ConfigError, match=r"3 x WorldError: world 'guess' failed in expert at guessing\.py:23: KeyError"
    ):
        ev.collect_demonstrations([world], tasks)
    assert not caplog.records, "the error says it already"
    world = write("1.0")
    world.score = lambda rewards, info: rewards["no"]
    ev.evaluate(ev.Expert(), world, limit=2)
    assert "world 'guess' failed in score at " in caplog.text


def test_agents_that_cannot_play_a_world_say_so(write, caplog):
    world = write("1.0", "return None")
    starts = [ev.Start(task) for task in world.tasks("train", "seen")[:3]]
    for agent, reason in ((ev.Expert(), "has no expert for this task"), (ev.Random(), "lists its admissible actions")):
        assert [t.success for t in ev.collect({"guess": world}, starts, agent, engine=None)] == [None] * 3
        assert "3 of 3 episodes could not be scored: 3 x WorldError" in caplog.text and reason in caplog.text
        caplog.clear()


def learn(world, train, iterations=2):
    policy = ev.tiny_policy(["say", "hello", "hi"], size="xs", context=64, seed=0)
    practice = RLConfig(iterations=iterations, tasks_per_iteration=4, group_size=4, temperature=5.0)
    with ev.local_run("run", [world], max_tokens=2, train=train) as run:
        grpo(policy, world.tasks("train", "seen"), config=GRPOConfig(practice=practice), run=run.arm("grpo"))
        ev.report(run.folder, "report.html")
        lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "practise"]
    return rows, Path("report.html").read_text()


def test_a_warm_up_longer_than_the_training_is_told_and_a_sign(write, caplog):
    world = write("len(answer) / 100")
    rows, page = learn(world, TrainConfig(lr=1e-3))
    assert [row["lr_reached"] for row in rows] == [0.08, 0.16], "4 and 8 of 50 updates"
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "the learning rate only reached 16% of 0.001: warm-up takes 50 updates, and there were 8. "
        "Lower warmup_steps, or train longer"
    )
    assert "learning rate reached so far, of its value" in page and "the warm-up is longer than the training" in page


def test_a_reward_without_success_is_a_sign_and_the_report_judges_the_return(write, caplog):
    world = write("0.1 + answer.count('hi') / 10")
    rows, page = learn(world, RL_TRAIN, iterations=3)
    assert [(row["paid_only"], row["success"]) for row in rows] == [(1.0, 0.0)] * 3
    assert "the reward has no success that is ever met" in page
    assert "the return in training is" in page and not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_report_shows_the_mean_return_beside_success(write):
    world = write("0.25")
    policy = ev.tiny_policy(["say", "hello", "hi"], size="xs", context=64, seed=0)
    with ev.local_run("run", [world], panel=EvaluationPanel(limit=4), max_tokens=2) as run:
        (row,) = run.evaluate(policy, 0)
        assert (row.mean, row.mean_return) == (0.0, 0.25)
        ev.report(run.folder, "report.html")
    assert "mean return 0.25" in Path("report.html").read_text()
