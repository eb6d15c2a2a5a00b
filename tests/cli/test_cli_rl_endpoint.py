"""`evolvent train rl --endpoint`: the learner in this process, the player in another."""

from __future__ import annotations

import io

import pytest

import evolvent as ev
from evolvent.cli.terminal.console import make_console
from evolvent.cli.train.rl import run
from evolvent.errors import ConfigError
from evolvent.models.policy import load_policy
from tests.serve.command import command

SMALL = (
    "--method",
    "grpo",
    "--worlds",
    "lookup",
    "--demonstrations",
    "40",
    "--clone_tokens",
    "8000",
    "--tasks",
    "20",
    "--panel.limit",
    "4",
    "--rl.practice.iterations",
    "2",
    "--rl.practice.tasks_per_iteration",
    "3",
    "--rl.practice.group_size",
    "4",
)


def train(*words):
    return run([*SMALL, *map(str, words)], make_console(io.StringIO(), {}))


@pytest.mark.parametrize("dialect", ["openai", pytest.param("sglang", marks=pytest.mark.long)])
def test_an_endpoint_plays_and_takes_the_weights(tmp_path, dialect):
    """A server of ours speaks both; SGLang's weights bear a label, and it is asked whether they are served."""
    base, weights = tmp_path / "base", tmp_path / "weights"
    ev.make_policy([ev.Lookup()], seed=0).save(base)
    weights.mkdir()
    with command("--policy", base, "--reload", weights, OMP_NUM_THREADS="1") as server:
        there = ("--endpoint", server.url, "--hand_over", weights, "--policy", base, "--dialect", dialect)
        with pytest.raises(ConfigError, match=r"unknown model 'bass'.*did you mean 'base'"):
            train(*there, "--model", "bass", "--to", tmp_path / "wrong")
        assert train(*there, "--model", "base", "--to", tmp_path / "run") == 0
    assert load_policy(tmp_path / "run" / "model").version == 3, "one of imitation, two of practice"
    assert load_policy(max((weights / "snapshots").glob("step-*"))).version == 3


def test_a_server_without_the_routes_of_its_dialect_is_told(tmp_path):
    base, weights = tmp_path / "base", tmp_path / "weights"
    ev.make_policy([ev.Lookup()], seed=0).save(base)
    weights.mkdir()
    with command("--policy", base, "--reload", weights, OMP_NUM_THREADS="1") as server:
        there = ("--endpoint", server.url, "--hand_over", weights, "--policy", base, "--model", "base")
        with pytest.raises(ConfigError, match=r"takes no weights: it has no /collective_rpc"):
            train(*there, "--dialect", "vllm", "--to", tmp_path / "run")
    with pytest.raises(ConfigError, match="expected 'openai' or 'vllm' or 'sglang'"):
        train("--dialect", "vlm")


def test_an_endpoint_needs_a_model_and_a_folder():
    with pytest.raises(ConfigError, match="--model NAME and --hand_over FOLDER"):
        train("--endpoint", "http://127.0.0.1:1/v1")
