"""`ev.train_grpo`: prompts and a reward become a trained policy, a report and a run that goes on after a stop."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.learn.settings import Parallelism, TrainConfig
from evolvent.methods.grpo import GRPOConfig
from evolvent.rl.trainer import PolicyTrainer, RLConfig
from evolvent.worlds.prompts.world import PromptWorld
from tests.faults.launched import Launched

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "blue", "green", "black")
ROWS = [{"prompt": f"say {word}", "answer": word} for word in WORDS]
LEARN = {"iterations": 14, "tasks_per_iteration": 3, "group_size": 6, "max_tokens": 4}
FEW = {"iterations": 2, "tasks_per_iteration": 4, "group_size": 4, "max_tokens": 4}


def has_e(completion):
    words = completion.split()
    return sum("e" in word for word in words) / 4


def says_red(completion, answer):
    return completion.split().count("red") / 4


def returns(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["return"] for line in lines if line["kind"] == "practise" and "return" in line]


def test_the_mean_reward_rises_over_seeds(tmp_path):
    gains = []
    for seed in range(3):
        folder = tmp_path / str(seed)
        ev.train_grpo("xs", ROWS, has_e, folder=folder, seed=seed, lr=2e-3, quiet=True, **LEARN)
        found = returns(folder)
        gains.append(np.mean(found[-3:]) - np.mean(found[:3]))
        assert (folder / "model" / "config.json").exists() and (folder / "report.html").exists()
    assert min(gains) > 0.2


def test_it_tells_splits_results_and_what_was_read(tmp_path, capsys):
    first = ev.train_grpo("xs", ROWS, (says_red, 2.0), folder=tmp_path / "run", **FEW)
    told = capsys.readouterr().err
    assert "prompts: 9 train, 2 dev, 3 test rows; rewards says_red x 2" in told
    assert "iteration 2/2: mean return" in told and "cut at max_tokens" in told
    assert "test, 3 rows: mean return" in told and "not done again" not in told
    again = ev.train_grpo("xs", ROWS, (says_red, 2.0), folder=tmp_path / "run", **FEW)
    assert "read from the earlier run" in capsys.readouterr().err
    weights = [policy.model.state_dict() for policy in (first, again)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["round"] for row in rows} == {0, 2}


def test_a_changed_reward_is_done_again(tmp_path, capsys):
    def makes(value):
        def reward(completion):
            return value + 0.1 * completion.split().count("one")

        return reward

    for value, read in ((0.0, False), (0.0, True), (5.0, False)):
        ev.train_grpo("xs", ROWS, makes(value), folder=tmp_path / "run", **FEW)
        assert ("read from the earlier run" in capsys.readouterr().err) is read
    found = returns(tmp_path / "run")
    assert len(found) == 4 and max(found[:2]) < 1 and min(found[2:]) >= 5


def test_a_stopped_training_goes_on(tmp_path, monkeypatch):
    practice = RLConfig(iterations=2, tasks_per_iteration=4, group_size=4, save_every=1)
    settings = {"config": GRPOConfig(practice=practice), "max_tokens": 4, "quiet": True}
    update = PolicyTrainer.update

    def stops(self, rollout, advantages, **columns):
        if self.iteration == 2:
            raise KeyboardInterrupt
        update(self, rollout, advantages, **columns)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    with pytest.raises(KeyboardInterrupt):
        ev.train_grpo("xs", ROWS, says_red, folder=tmp_path / "stopped", **settings)
    monkeypatch.undo()
    for folder in ("stopped", "whole"):
        ev.train_grpo("xs", ROWS, says_red, folder=tmp_path / folder, **settings)
    files = [(tmp_path / folder / "model" / "model.safetensors").read_bytes() for folder in ("stopped", "whole")]
    assert files[0] == files[1]


def test_tools_run_in_the_episodes_of_training(tmp_path):
    def find(name: str) -> str:
        """Finds a number."""
        return "seven"

    def called(completion, messages):
        return float(sum(message["role"] == "tool" for message in messages))

    world = PromptWorld(ROWS, called, tools=find, max_turns=2, success_at=1)
    ev.train_grpo(
        "xs",
        world,
        folder=tmp_path / "run",
        iterations=1,
        tasks_per_iteration=2,
        group_size=2,
        quiet=True,
        max_tokens=3,
    )
    with ev.Store.open(tmp_path / "run" / "trajectories") as store:
        assert all(trajectory.score.raw == 0.0 for trajectory in store.trajectories())


def fails(completion):
    raise RuntimeError("the reward is broken")


def test_a_failing_reward_ends_the_training_and_keeps_the_replies(tmp_path, capsys):
    with pytest.raises(NothingToLearn, match=r"16 of 16.*reward 'fails' raised RuntimeError at .*test_train_grpo.py:"):
        ev.train_grpo("xs", ROWS, fails, folder=tmp_path / "run", **FEW)
    with ev.Store.open(tmp_path / "run" / "trajectories") as store:
        kept = list(store.trajectories())
    assert kept and all(trajectory.steps and trajectory.steps[0].generations for trajectory in kept)
    assert all("raised RuntimeError" in str(trajectory.failure) for trajectory in kept)


def test_a_slow_reward_names_the_setting(tmp_path, caplog):
    with pytest.raises(NothingToLearn, match=r"'prompts' did not answer before the deadline in step: got 0\.05 s"):
        ev.train_grpo("xs", ROWS, lambda text: time.sleep(1), folder=tmp_path / "run", reward_timeout_s=0.05, **FEW)
    assert "in Python, raise reward_timeout_s" in caplog.text
    counts = [int(count) for count in re.findall(r"was abandoned \((\d+) so far\)", caplog.text)]
    assert counts == [1, 2, 1, 2, 4, 8, 16], "3 of the measurement and 16 of training, without a line for each"


def test_a_reward_that_fails_for_some_rows_is_counted(tmp_path, capsys):
    shy = PromptWorld(ROWS, says_red).tasks("train", "seen")[0].spec["row"]["answer"]

    def sometimes(completion, answer):
        return None if answer == shy else says_red(completion, answer)

    ev.train_grpo("xs", ROWS, sometimes, folder=tmp_path / "run", **{**FEW, "tasks_per_iteration": 10})
    told = capsys.readouterr().err
    assert "% not scored" in told and told.count("episodes could not be scored") == 1
    assert re.search(
        r"[0-9]+ of 80 episodes could not be scored: [0-9]+ x reward 'sometimes' at .* returned None", told
    )


def test_built_in_rewards_by_name(tmp_path, capsys):
    ev.train_grpo("xs", ROWS, ["0.5*exact", has_e, ("regex:e", 0.1)], folder=tmp_path / "run", **FEW)
    assert "rewards exact x 0.5, has_e x 1, regex x 0.1" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown reward 'exat'"):
        ev.train_grpo("xs", ROWS, "exat")


def test_a_world_brings_its_own_rewards():
    with pytest.raises(ConfigError, match="a PromptWorld has its own rewards"):
        ev.train_grpo("xs", PromptWorld(ROWS, says_red), says_red)
    with pytest.raises(ConfigError, match="rewards is empty"):
        ev.train_grpo("xs", ROWS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations: Input should be greater than or equal to 1"),
        ({"group_size": 1}, "practice.group_size: grpo compares episodes"),
        ({"temperature": 0}, "temperature: Input should be greater than 0"),
        ({"lr": -1.0}, "lr: got -1, expected more than 0"),
        ({"lr": 0.1, "train": TrainConfig(lr=0.2)}, "lr: got 0.1, but train has 0.2"),
        ({"reward_timeout_s": 0}, "reward_timeout_s: got 0, expected more than 0"),
        (
            {"iterations": 50, "config": GRPOConfig(practice=RLConfig(iterations=4))},  # 50 is the default
            "iterations: got 50, but config.practice has 4",
        ),
        (
            {"iterations": 3, "config": GRPOConfig(practice=RLConfig(iterations=4))},
            "iterations: got 3, but config.practice has 4",
        ),
        ({"policy": torch.nn.Linear(1, 1)}, "got Linear, expected a policy, a model folder.* save_pretrained"),
        ({"policy": None}, "got NoneType, expected a policy"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        ev.train_grpo(**{"policy": "xs", "dataset": ROWS, "rewards": has_e, "folder": tmp_path, **settings})


def test_arguments_beside_settings_count(tmp_path):
    """`config=GRPOConfig(kind="dapo")` used to replace `iterations`, and `train=` the learning rate, without a word."""
    train = TrainConfig(warmup_steps=0, final_lr_ratio=1.0)
    settings = {"iterations": 1, "tasks_per_iteration": 2, "group_size": 3, "config": GRPOConfig(kind="dr_grpo")}
    ev.train_grpo(
        "xs", ROWS, has_e, tools=None, folder=tmp_path, lr=3e-3, train=train, max_tokens=4, quiet=True, **settings
    )
    (row,) = ev.store.read_metrics(tmp_path, "practise")
    assert (row["step"], row["episodes"]) == (1, 6) and row["lr"] == pytest.approx(3e-3)


def test_the_world_serves_evaluate_collect_and_best_of_n(tmp_path, caplog):
    from evolvent.search.settings import SearchConfig

    world = PromptWorld(ROWS, says_red)
    policy = ev.make_policy([world])
    (row,) = ev.evaluate(policy, world, max_tokens=4, temperature=2.0, split="train")
    assert row.n == 9 and row.errors == 0
    best_of_n = SearchConfig(method="best_of_n", value="rollouts", paths=4, rollouts=1, max_tokens=4)
    starts = [ev.Start(task) for task in world.tasks("train", "seen")]
    with ev.local_run(tmp_path / "run", [world]) as run:
        assert len(run.collect(policy, starts)) == 9
        chosen = run.search(policy, starts, best_of_n)
    assert len(chosen) == 9 and all(trajectory.score.raw is not None for trajectory in chosen)
    ev.evaluate(policy, PromptWorld(ROWS, fails), max_tokens=4)
    assert "3 of 3 episodes could not be scored: 3 x reward 'fails' raised RuntimeError at" in caplog.text


SCRIPT = """
import sys
import evolvent as ev

rows = [{"prompt": f"say {word}", "answer": word} for word in sys.argv[2].split()]


def says_red(completion, answer):
    return completion.split().count("red") / 4


more = {"iterations": 2, "tasks_per_iteration": 4, "group_size": 4, "max_tokens": 4}
trained = ev.train_grpo("xs", rows, says_red, folder=sys.argv[1], **more)
print("version", trained.version)
"""


@pytest.mark.filterwarnings("ignore")
def test_a_script_over_two_processes_learns_what_one_learns(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    for size in (1, 2):
        with Launched(size, ["script.py", f"run-{size}", " ".join(WORDS)], cwd=tmp_path) as ranks:
            assert ranks.wait() == [0] * size, ranks.errors()
            told = [ranks.said(rank) for rank in range(size)]
        assert all("version 2" in text for text in told)
        assert ["iteration 2/2" in text for text in told] == [rank == 0 for rank in range(size)]
    alone, together = (ev.load_policy(tmp_path / f"run-{size}" / "model").model.state_dict() for size in (1, 2))
    for name, weight in alone.items():
        np.testing.assert_allclose(weight.numpy(), together[name].numpy(), rtol=0, atol=2e-5, err_msg=name)
    assert returns(tmp_path / "run-1") == pytest.approx(returns(tmp_path / "run-2"), abs=1e-9)
    assert "finished" in (tmp_path / "run-2" / "run.json").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_processes_that_call_it_otherwise_are_refused(tmp_path):
    """Here each with a seed of its own."""
    script = SCRIPT.replace("import sys\n", "import os\nimport sys\n")
    script = script.replace('ev.train_grpo("xs"', "ev.train_grpo(sys.argv[3]").replace(
        "**more)", "seed=int(os.environ['RANK']), **more)"
    )
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    ev.make_policy([PromptWorld(ROWS, says_red)]).save(tmp_path / "policy")
    with Launched(2, ["script.py", "run", " ".join(WORDS), "policy"], cwd=tmp_path) as ranks:
        assert 0 not in ranks.wait()
        assert any("rank 1 has settings that differ from those of rank 0" in text for text in ranks.errors())
    assert not (tmp_path / "run").exists()


def test_a_layout_for_more_processes_than_there_are_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"needs 2 processes: got 1 \(start the script with: torchrun"):
        ev.train_grpo("xs", ROWS, has_e, folder=tmp_path / "run", parallel=Parallelism(shard=2), **FEW)
    assert not (tmp_path / "run").exists()
