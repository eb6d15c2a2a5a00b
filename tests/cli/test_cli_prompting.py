"""`--agent.*`: the prompt of every episode, the form of an action, and replies that were not actions."""

import json

import pytest

from evolvent.cli.main import main
from evolvent.store.store import Store

SMALL_PANEL = ["--worlds", "lookup", "--panel.limit", "2", "--slots", "8", "--max_tokens", "4"]


def test_examples_reach_the_model_and_are_kept_on_resume(tmp_path, capsys):
    run = tmp_path / "run"
    argv = ["collect", "--agent", "policy", "--agent.examples", "2", "--policy", "xs", "--worlds", "lookup"]
    assert main([*argv, "--limit", "3", "--max_tokens", "4", "--output_dir", str(run)]) == 0
    config = (run / "config.toml").read_text()
    assert 'kind = "policy"' in config
    assert "examples = 2" in config
    with Store.open(run / "trajectories") as store:
        lengths = [len(trajectory.steps[0].generations[0].ids) for trajectory in store.trajectories()]
    assert min(lengths) > 60  # two solved tasks stand before the first observation
    assert main(["collect", "--resume", str(run)]) == 0
    assert "3 episodes" in capsys.readouterr().out


def test_replies_that_are_not_actions_are_counted_and_shown(tmp_path, capsys):
    assert main(["eval", "xs", *SMALL_PANEL, "--output_dir", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert "invalid" in printed
    assert "replies were not actions, most often" in printed
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert all(row["replies"] >= row["invalid"] > 0 for row in rows)
    assert all(row["invalid_texts"] for row in rows)


def test_actions_can_be_restricted_to_those_that_a_world_lists(tmp_path, capsys):
    argv = ["eval", "xs", "--worlds", "maze", "--panel.limit", "2", "--slots", "8"]
    assert main([*argv, "--agent.restrict_to_admissible", "true", "--output_dir", str(tmp_path / "run")]) == 0
    assert "not actions" not in capsys.readouterr().out
    argv = ["eval", "xs", "--worlds", "deduction", "--agent.restrict_to_admissible", "true"]
    assert main([*argv, "--output_dir", str(tmp_path / "no")]) != 0
    assert "world 'deduction' does not list actions" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("verb", ["evolve", "train rl --method grpo", "eval xs", "search --methods greedy"])
def test_too_many_examples_are_refused_before_a_run_is_made(tmp_path, capsys, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    assert main([*verb.split(), "--worlds", "lookup", "--agent.examples", "100000"]) != 0
    assert "agent.examples: got 100000 for world 'lookup'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_settings_of_older_runs_name_the_agent_alone(tmp_path):
    old = tmp_path / "old.toml"
    old.write_text('agent = "random"\nworlds = ["maze"]\nlimit = 2\n')
    assert main(["collect", str(old), "--output_dir", str(tmp_path / "run")]) == 0
    assert 'kind = "random"' in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("collect --agent expert --agent.examples 2", "examples need --agent policy or endpoint, got expert"),
        ("collect --agent random --agent.restrict_to_admissible true", "restrict_to_admissible needs --agent policy"),
        ("bench code --agent.examples 2", "unknown key 'agent.examples'"),
        ("search --agent.restrict_to_admissible true", "unknown key 'agent.restrict_to_admissible'"),
    ],
)
def test_a_setting_that_a_command_would_ignore_is_refused(capsys, argv, message):
    assert main(argv.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_restricted_actions_of_a_training_are_those_that_its_practice_scores(tmp_path):
    argv = ["train", "grpo", "--worlds", "maze", "--panel.limit", "2", "--slots", "4", "--demonstrations", "2"]
    argv += ["--clone_tokens", "20", "--tasks", "2", "--rl.practice.iterations", "1", "--rl.practice.group_size", "2"]
    argv += ["--rl.practice.tasks_per_iteration", "2", "--agent.restrict_to_admissible", "true"]
    assert main([*argv, "--output_dir", str(tmp_path / "run")]) == 0
    config = (tmp_path / "run" / "config.toml").read_text()
    assert config.count("restrict_to_admissible = true") == 2  # of the agent, and of the practice
    with Store.open(tmp_path / "run" / "trajectories") as store:
        steps = [step for trajectory in store.trajectories() for step in trajectory.steps]
    assert steps
    assert all("choices" in step.info for step in steps if step.generations)
